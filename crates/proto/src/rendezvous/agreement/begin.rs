//! Whether an attempt may begin: questions in the order of their price.
//!
//! What the process knows itself comes first, then what costs a system call, and last what
//! needs another party. The first objection ends it. The owner asks one after the other and tells the
//! end's machine what has come of them ([`Answer::Begun`]).

use super::answer::{Answer, Illegal};
pub use super::answer::{Begun, Givers, Standing};
use super::other_end::Token;
use crate::fallback::{Lack, OperatorSaid, PeerCannot, ProgramDid, Reason};
use sidestep_wire::host_control::Side;

/// The next question, or what has come of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// What does the end know of itself?
    LooksAtItself,
    /// Another process may use the connection as well, and the one that is left alone with it goes
    /// on. Can this one have memory to share at all?
    LooksForMemory,
    /// Takes a slot of this process, if it has one of an ancestor. Is there memory for it?
    MovesHome {
        /// See [`Standing::is_received`].
        is_received: bool,
    },
    /// Which processes else have it?
    AsksGivers,
    /// Are both addresses known?
    LearnsAddresses,
    /// Do the operator's rules object to them?
    AsksRules,
    /// Can the other end be found by its name? It has to be in the network namespace of this process, and, where an
    /// agent brings users together, of the same user.
    LooksWhere,
    /// Client: it is on another host. Does the gateway object?
    AsksGateway,
    /// What do both ends call the connection, by the numbers with which it began?
    LearnsIdentity {
        /// Why the other end cannot be found by a name.
        elsewhere: Reason,
    },
    /// Was the TCP option of SMC refused?
    AsksTcpOption {
        /// What both ends call the connection.
        token: Token,
        /// The other end cannot be found by its name.
        is_distant: bool,
    },
    /// Does its network object: the PNET ID, or an IP filter of which the process knows?
    AsksNetwork {
        /// As before.
        token: Token,
        /// As before.
        is_distant: bool,
    },
    /// Client: has agreeing with this server failed lately?
    AsksMemoryOfFailures {
        /// As before.
        token: Token,
        /// As before.
        is_distant: bool,
    },
    /// All are answered.
    Over(Begun),
}

impl Begin {
    /// The first question.
    #[must_use]
    pub const fn new() -> Self {
        Self::LooksAtItself
    }

    /// The question was answered, at an end of this side.
    ///
    /// # Errors
    /// It was another question.
    #[inline]
    pub fn answered(self, side: Side, answer: &Answer) -> Result<Self, Illegal> {
        Ok(match (self, answer) {
            (Self::LooksAtItself, &Answer::Standing(it)) => Self::of(&it),
            (Self::LooksForMemory, &Answer::Is(true)) => Self::Over(Begun::NotYet),
            (Self::LooksForMemory | Self::MovesHome { .. }, &Answer::Is(false)) => {
                Self::Over(Begun::MayNot(Lack::NoMemory.into()))
            }
            (Self::MovesHome { is_received: true }, &Answer::Is(true)) => Self::AsksGivers,
            (Self::MovesHome { is_received: false }, &Answer::Is(true))
            | (Self::AsksGivers, &Answer::Givers(Givers::Gone)) => Self::LearnsAddresses,
            (Self::AsksGivers, &Answer::Givers(Givers::Many)) => {
                Self::Over(Begun::MayNot(ProgramDid::HandedOver.into()))
            }
            (Self::AsksGivers, &Answer::Givers(Givers::Here)) => Self::Over(Begun::AwaitsGiver),
            (Self::LearnsAddresses, &Answer::Is(false)) => Self::Over(Begun::NotYet),
            (Self::LearnsAddresses, &Answer::Is(true)) => Self::AsksRules,
            (Self::AsksRules, &Answer::Objection(None)) => Self::LooksWhere,
            (Self::LooksWhere, &Answer::Here(token)) => {
                Self::AsksTcpOption { token, is_distant: false }
            }
            // The other end has no program yet.
            (Self::LooksWhere, &Answer::NotYet) => Self::Over(Begun::NotYet),
            (Self::LooksWhere, &Answer::Elsewhere(elsewhere)) => match (side, elsewhere) {
                (Side::Client, Reason::Peer(PeerCannot::RemotePeer)) => Self::AsksGateway,
                _ => Self::LearnsIdentity { elsewhere },
            },
            (Self::AsksGateway, &Answer::Objection(None)) => {
                Self::LearnsIdentity { elsewhere: PeerCannot::RemotePeer.into() }
            }
            (Self::LearnsIdentity { .. }, &Answer::Token(Some(token))) => {
                Self::AsksTcpOption { token, is_distant: true }
            }
            (Self::LearnsIdentity { elsewhere }, &Answer::Token(None)) => {
                Self::Over(Begun::MayNot(elsewhere))
            }
            (Self::AsksTcpOption { token, is_distant }, &Answer::Is(false)) => {
                Self::AsksNetwork { token, is_distant }
            }
            (Self::AsksTcpOption { .. }, &Answer::Is(true)) => {
                Self::Over(Begun::MayNot(PeerCannot::NoTcpOption.into()))
            }
            (Self::AsksNetwork { token, is_distant }, &Answer::Objection(None)) => match side {
                Side::Client => Self::AsksMemoryOfFailures { token, is_distant },
                Side::Server => Self::Over(Begun::May { token, is_distant }),
            },
            (Self::AsksMemoryOfFailures { token, is_distant }, &Answer::Objection(None)) => {
                Self::Over(Begun::May { token, is_distant })
            }
            (
                Self::AsksRules
                | Self::AsksGateway
                | Self::AsksNetwork { .. }
                | Self::AsksMemoryOfFailures { .. },
                &Answer::Objection(Some(reason)),
            ) => Self::Over(Begun::MayNot(reason)),
            _ => return Err(Illegal),
        })
    }

    fn of(it: &Standing) -> Self {
        if !it.has_slot {
            Self::Over(Begun::MayNot(Lack::NoSlot.into()))
        } else if it.is_never_promoted {
            Self::Over(Begun::MayNot(OperatorSaid::PromotionNever.into()))
        } else if it.is_tcp_only {
            Self::Over(Begun::MayNot(ProgramDid::OptionUnsupported.into()))
        } else if it.is_memory_strict {
            Self::Over(Begun::MayNot(Lack::StrictMemory.into()))
        } else if it.is_congested {
            Self::Over(Begun::MayNot(OperatorSaid::Congested.into()))
        } else if it.is_shared {
            Self::LooksForMemory
        } else {
            Self::MovesHome { is_received: it.is_received }
        }
    }
}

impl Default for Begin {
    fn default() -> Self {
        Self::new()
    }
}
