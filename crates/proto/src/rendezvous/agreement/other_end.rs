//! What an end sees of the other one: its record, its datagrams, its process. All of it is claims.

use crate::fallback::{Field, PeerCannot, Reason};
use sidestep_wire::Error;
use sidestep_wire::host_control::{ControlMessage, Hello, Instance};

/// Says which connection it is: made from its addresses, or at random for one hello.
pub type Token = [u8; 16];

/// Connection slots of a process: none has a higher number.
pub const SLOTS: u32 = 16_384;

/// How far an end shows that it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Client: the CLC box holds a Proposal.
    Proposed,
    /// Server: the CLC box holds an Accept; it reads by the ledger.
    Accepted,
    /// Client: the CLC box holds a Confirm; it reads by the ledger.
    Confirmed,
    /// The CLC box holds a Decline.
    Declined,
    /// Client: looks for the other end of the connection of the token.
    Claimed,
    /// Server: has that end.
    Greeted,
    /// Anything else: it is not agreeing.
    Otherwise,
}

impl Shown {
    /// Whether an end that shows this may read the ring of the end that it names, now or later. An end that has
    /// declined does not.
    #[must_use]
    pub const fn may_need_ring(self) -> bool {
        !matches!(self, Self::Declined | Self::Otherwise)
    }
}

/// A record of the peer, each word read once: claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// How far its owner shows that it has come.
    pub shown: Shown,
    /// Generation of the peer's slot, 24 bits.
    pub generation: u32,
    /// The token in it.
    pub token: Token,
    /// The peer names our slot as the other end's.
    pub is_for_us: bool,
}

impl Seen {
    /// Whether it shows this of the connection of this token.
    #[must_use]
    pub fn shows(&self, shown: Shown, token: &Token) -> bool {
        self.shown == shown && self.token == *token
    }
}

/// A datagram under the connection's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Letter {
    /// What it says.
    pub message: Result<ControlMessage, Error>,
    /// The network namespace of the name, by its cookie.
    pub netns_cookie: u64,
    /// By the kernel's word memory may be shared with its sender.
    pub is_friend: bool,
    /// Its sender is another user, which may not want to share memory with us.
    pub is_stranger: bool,
}

impl Letter {
    /// The hello that it is, if it is one that leads on in this network namespace.
    ///
    /// # Errors
    /// Why not.
    pub fn hello(&self) -> Result<Hello, Reason> {
        match self.message {
            Ok(ControlMessage::Hello(hello)) if hello.netns_cookie != self.netns_cookie => {
                Err(PeerCannot::OtherNamespace.into())
            }
            Ok(ControlMessage::Hello(hello)) if hello.slot >= SLOTS => {
                Err(Reason::PeerBroke(Field::HELLO_SLOT))
            }
            Ok(ControlMessage::Hello(hello)) => Ok(hello),
            Ok(_) => Err(Reason::PeerBroke(Field::CONTROL_KIND)),
            Err(error) => Err(Reason::of_unread_control(&error)),
        }
    }
}

/// The server's process that has left a greeting or sent a hello: what of it is needed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeter {
    /// Its process.
    pub instance: Instance,
    /// What the proposal has to show.
    pub token: Token,
    /// Its slot.
    pub slot: u32,
    /// Which use of that slot it is.
    pub generation: u32,
    /// Bytes of its receive buffer.
    pub rmbe_len: u32,
}

impl From<Hello> for Greeter {
    fn from(hello: Hello) -> Self {
        let Hello { instance, slot, generation, token, rmbe_len, .. } = hello;
        Self { instance, token, slot, generation, rmbe_len }
    }
}
