//! Why a connection stays on TCP, and whose fault that is.
//!
//! | blame | the type | what the operator asks next |
//! |---|---|---|
//! | the peer broke the protocol | [`Field`]: which field was wrong | which version or program is the peer? |
//! | the peer cannot, or will not | [`PeerCannot`], or the [`Diagnosis`] of its Decline | what does the peer lack? |
//! | something is lacking here | [`Lack`] | which resource ran out? |
//! | the operator said so | [`OperatorSaid`] | which setting? |
//! | the program did something | [`ProgramDid`] | which of its features? |
//!
//! Two laws hold, and the tests keep them. What cannot be read of the peer's messages is never told as
//! a failure of ours ([`Reason::of_unread`]), and what fails here is never told as the peer's.
//!
//! A reason lies in shared memory as a *code* of one byte and a *detail* of 32 bits: the number of the
//! field that was wrong, or the diagnosis of a peer that declined. A code once given keeps its meaning.
//! A version that meets a code it does not know says so ([`Reason::Unknown`]).

mod field;

pub use field::Field;

use core::fmt;
use sidestep_wire::Error;
use sidestep_wire::diagnosis::Diagnosis;

/// Why a connection stays on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Not decided yet, or moved.
    None,
    /// The peer broke the protocol.
    PeerBroke(Field),
    /// The peer has sent a Decline, or the refusal that stands for one; this is why.
    PeerDeclined(Diagnosis),
    /// The peer cannot, or will not.
    Peer(PeerCannot),
    /// Something is lacking here.
    Lack(Lack),
    /// The operator said so.
    Operator(OperatorSaid),
    /// The program did something.
    Program(ProgramDid),
    /// A code that this version does not know: another version has written it.
    Unknown(u8),
}

/// Whose fault a reason is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The peer broke the protocol.
    PeerBroke,
    /// The peer cannot, or will not.
    PeerCannot,
    /// Something is lacking here.
    Lack,
    /// The operator said so.
    Operator,
    /// The program did something.
    Program,
}

/// A group of reasons without details, each with its code.
macro_rules! reasons {
    ($(#[$about:meta])* $group:ident { $($(#[$doc:meta])* $name:ident = $code:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $group {
            $($(#[$doc])* $name = $code,)*
        }

        impl $group {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

reasons! {
    /// What the peer cannot, or will not.
    PeerCannot {
        /// The peer's address is not on this host.
        RemotePeer = 2,
        /// The peer did not answer beside the connection: a plain program.
        PeerNotSmc = 3,
        /// The peer lives in another network namespace.
        OtherNamespace = 5,
        /// The peer did not finish agreeing before the connection ended or the attempt was given up.
        Unanswered = 14,
        /// Agreeing with this server has failed lately: AUTOCACHE.
        FailedLately = 25,
        /// An agent writes the TCP option of SMC, and one end has not sent it.
        NoTcpOption = 26,
        /// The agent knows of no program at the other end that asks for us.
        LookupUnanswered = 29,
        /// The peer runs another version of Sidestep, whose memory is laid out in another way.
        OtherVersion = 34,
        /// The peer offers nothing that this end can use, or answers in a form of a later edition.
        NothingInCommon = 35,
    }
}

reasons! {
    /// What is lacking here.
    Lack {
        /// No memory, address space or descriptor for the rings.
        NoMemory = 6,
        /// All connection slots of the process are taken.
        NoSlot = 12,
        /// The peer is in another network namespace or on another host, and the agent, which would
        /// know, cannot be reached from here.
        AgentAway = 28,
        /// The kernel counts what memory it has promised, so that a touch of shared memory can fail.
        StrictMemory = 33,
        /// The connection's name, under which the peer would send its hello, could not be bound.
        NameTaken = 36,
        /// A message of ours could not be written.
        Unwritten = 37,
        /// Descriptors of strangers lie in the sockets by which peers introduce themselves.
        Beset = 38,
        /// What the library has done and what it has decided do not fit together.
        Contradiction = 39,
        /// The peer is on another host, and the gateway has no RDMA adapter that is up.
        NoAdapter = 43,
    }
}

reasons! {
    /// What the operator said, or did not allow.
    OperatorSaid {
        /// `mode = "tcp"`: loaded, but only counting.
        ModeTcp = 1,
        /// The peer runs as another user, or as root of other namespaces, which one of the two ends
        /// does not list.
        OtherUser = 4,
        /// `promotion = "never"`.
        PromotionNever = 9,
        /// No common EID.
        NoCommonEid = 13,
        /// The server's port is one of `policy.exclude_ports`.
        PortExcluded = 19,
        /// The peer is not in `policy.permit_peers`, or is in `policy.exclude_peers`.
        PeerExcluded = 20,
        /// The program is one of `policy.exclude_programs`.
        ProgramExcluded = 21,
        /// `smc.memory_limit` or `smc.user_memory_limit` is reached.
        MemoryLimit = 22,
        /// So many connections are being agreed on as `policy.handshake_limit` allows.
        Congested = 23,
        /// An operator keeps it there for now.
        Demoted = 27,
        /// The shared memory has a PNET ID, and the interface of the connection's own address has
        /// another one or none.
        OtherPnet = 30,
        /// A rule of the host's IP filter denies the connection.
        Denied = 44,
        /// A rule of TLS has the connection, which begins when the program asks for it.
        TlsLater = 45,
    }
}

reasons! {
    /// What the program did.
    ProgramDid {
        /// It set an option this library cannot carry (ULP, fast open, repair…).
        OptionUnsupported = 8,
        /// It forked while the two libraries were still agreeing.
        ForkedMeanwhile = 10,
        /// It made the descriptor standard input, output or error, which libc reads and writes by
        /// calls of its own.
        StandardStream = 15,
        /// It handed the descriptor to another program before anything was decided.
        HandedOver = 16,
        /// It gives sockets to io_uring, whose reads and writes the kernel makes by itself.
        IoUring = 17,
        /// It, or a library of it, makes calls on sockets by instructions of its own, which this
        /// library does not see.
        PastLibc = 18,
        /// Its connection has not lived long enough to be worth moving, or not yet.
        TooShort = 24,
        /// Its connections to this server of another host have ended too soon lately: AUTOSMC.
        ShortLately = 31,
        /// It has a filter of system calls (seccomp), or will install one.
        Filtered = 32,
        /// A direction of its connection, or both, had ended before the two ends had agreed.
        EndedMeanwhile = 40,
        /// What its connections to this server of another host have carried by SMC-R was no more than what they
        /// carried by TCP: AUTOSMC.
        NoGain = 41,
        /// AUTOSMC compares: connections to this server of another host that begin now go by TCP.
        Compared = 42,
    }
}

/// Code of [`Reason::PeerDeclined`].
const PEER_DECLINED: u8 = 7;
/// Code of [`Reason::PeerBroke`].
const PEER_BROKE: u8 = 11;
/// Codes from here on mean something else where decisions are kept: no reason has one.
pub const CODES_END: u8 = 254;

impl From<PeerCannot> for Reason {
    fn from(reason: PeerCannot) -> Self {
        Self::Peer(reason)
    }
}

impl From<Lack> for Reason {
    fn from(reason: Lack) -> Self {
        Self::Lack(reason)
    }
}

impl From<OperatorSaid> for Reason {
    fn from(reason: OperatorSaid) -> Self {
        Self::Operator(reason)
    }
}

impl From<ProgramDid> for Reason {
    fn from(reason: ProgramDid) -> Self {
        Self::Program(reason)
    }
}

impl Reason {
    /// All that this version can write, without details: each code once.
    pub fn all() -> impl Iterator<Item = Self> {
        let with_details = [Self::PeerDeclined(Diagnosis(0)), Self::PeerBroke(Field::UNTOLD)];
        [Self::None]
            .into_iter()
            .chain(with_details)
            .chain(PeerCannot::ALL.iter().copied().map(Self::from))
            .chain(Lack::ALL.iter().copied().map(Self::from))
            .chain(OperatorSaid::ALL.iter().copied().map(Self::from))
            .chain(ProgramDid::ALL.iter().copied().map(Self::from))
    }

    /// What bytes of the peer say that cannot be read. A value that a later edition may have given
    /// a meaning is no breach (RFC 7609 C.6).
    #[must_use]
    pub fn of_unread(error: &Error) -> Self {
        if error.is_reserved_value() {
            Self::Peer(PeerCannot::NothingInCommon)
        } else {
            Self::PeerBroke(Field::of(error))
        }
    }

    /// The same of a message beside the connection, which says the version of its format.
    #[must_use]
    pub fn of_unread_control(error: &Error) -> Self {
        match error {
            Error::Unsupported { .. } => Self::Peer(PeerCannot::OtherVersion),
            _ => Self::of_unread(error),
        }
    }

    /// The reason with this code and this detail, as they lie in shared memory.
    #[must_use]
    pub fn of(code: u8, detail: u32) -> Self {
        let reason = Self::all().find(|reason| reason.code() == code);
        match reason.unwrap_or(Self::Unknown(code)) {
            Self::PeerBroke(_) => Self::PeerBroke(Field::of_number(detail)),
            Self::PeerDeclined(_) => Self::PeerDeclined(Diagnosis(detail)),
            reason => reason,
        }
    }

    /// Its code, by which it is known in shared memory.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::PeerBroke(_) => PEER_BROKE,
            Self::PeerDeclined(_) => PEER_DECLINED,
            Self::Peer(reason) => reason as u8,
            Self::Lack(reason) => reason as u8,
            Self::Operator(reason) => reason as u8,
            Self::Program(reason) => reason as u8,
            Self::Unknown(code) => code,
        }
    }

    /// What it says besides its code; 0: nothing.
    #[must_use]
    pub const fn detail(self) -> u32 {
        match self {
            Self::PeerBroke(field) => field.number(),
            Self::PeerDeclined(diagnosis) => diagnosis.0,
            Self::None
            | Self::Peer(_)
            | Self::Lack(_)
            | Self::Operator(_)
            | Self::Program(_)
            | Self::Unknown(_) => 0,
        }
    }

    /// Code and detail in one word, for a place that threads write and read at once.
    #[must_use]
    pub const fn word(self) -> u64 {
        (self.detail() as u64) << 32 | self.code() as u64
    }

    /// The reason of a word.
    #[must_use]
    pub fn of_word(word: u64) -> Self {
        Self::of(word as u8, (word >> 32) as u32)
    }

    /// Whose fault it is. `None`: nothing is decided, or this version does not know.
    #[must_use]
    pub const fn blame(self) -> Option<Blame> {
        match self {
            Self::None | Self::Unknown(_) => None,
            Self::PeerBroke(_) => Some(Blame::PeerBroke),
            Self::PeerDeclined(_) | Self::Peer(_) => Some(Blame::PeerCannot),
            Self::Lack(_) => Some(Blame::Lack),
            Self::Operator(_) => Some(Blame::Operator),
            Self::Program(_) => Some(Blame::Program),
        }
    }

    /// The field that was wrong, if the peer broke the protocol and that is told.
    #[must_use]
    pub fn field(self) -> Option<Field> {
        match self {
            Self::PeerBroke(field) => Some(field).filter(|field| *field != Field::UNTOLD),
            _ => None,
        }
    }

    /// The peer's own code, if the peer declined and has told one.
    #[must_use]
    pub fn peer_diagnosis(self) -> Option<Diagnosis> {
        match self {
            Self::PeerDeclined(diagnosis) => Some(diagnosis).filter(|code| code.0 != 0),
            _ => None,
        }
    }

    /// The name by which operators know it. It stays when the words get better.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "Undecided",
            Self::PeerBroke(_) => "PeerMisbehaved",
            Self::PeerDeclined(_) => "PeerDeclined",
            Self::Peer(reason) => reason.name(),
            Self::Lack(reason) => reason.name(),
            Self::Operator(reason) => reason.name(),
            Self::Program(reason) => reason.name(),
            Self::Unknown(_) => "Unknown",
        }
    }

    /// Whether the next attempt with the same server would come to the same.
    #[must_use]
    pub const fn is_likely_to_recur(self) -> bool {
        match self {
            // The peer found that the connection was ending: see `diagnosis`.
            Self::PeerDeclined(Diagnosis::TIMEOUT_CL) => false,
            Self::PeerBroke(_) | Self::PeerDeclined(_) => true,
            Self::Peer(reason) => match reason {
                PeerCannot::Unanswered
                | PeerCannot::LookupUnanswered
                | PeerCannot::OtherVersion
                | PeerCannot::NothingInCommon => true,
                PeerCannot::RemotePeer
                | PeerCannot::PeerNotSmc
                | PeerCannot::OtherNamespace
                | PeerCannot::FailedLately
                | PeerCannot::NoTcpOption => false,
            },
            Self::Operator(reason) => {
                matches!(reason, OperatorSaid::OtherUser | OperatorSaid::NoCommonEid)
            }
            Self::None | Self::Lack(_) | Self::Program(_) | Self::Unknown(_) => false,
        }
    }

    /// The diagnosis code of the standard that says the same.
    ///
    /// *Source*: `net/smc/smc_clc.h` names, values in the wire reference §2.9.
    #[must_use]
    pub const fn diagnosis(self) -> Option<Diagnosis> {
        Some(match self {
            Self::None => return None,
            Self::PeerBroke(_) | Self::Unknown(_) => Diagnosis::INTERR,
            Self::PeerDeclined(_) => Diagnosis::PEERDECL,
            Self::Peer(reason) => match reason {
                PeerCannot::RemotePeer
                | PeerCannot::PeerNotSmc
                | PeerCannot::Unanswered
                | PeerCannot::FailedLately
                | PeerCannot::NoTcpOption
                | PeerCannot::LookupUnanswered => Diagnosis::PEERNOSMC,
                // The standard has no code of its own for it: of what both could use there is nothing.
                PeerCannot::OtherNamespace
                | PeerCannot::OtherVersion
                | PeerCannot::NothingInCommon => Diagnosis::NOSMCD2DEV,
            },
            Self::Lack(reason) => match reason {
                Lack::NoMemory | Lack::StrictMemory => Diagnosis::MEM,
                Lack::NoSlot => Diagnosis::MAX_DMB,
                Lack::AgentAway => Diagnosis::PEERNOSMC,
                Lack::NameTaken | Lack::Unwritten | Lack::Contradiction => Diagnosis::INTERR,
                Lack::Beset => Diagnosis::CNFERR,
                Lack::NoAdapter => Diagnosis::NOSMCDEV,
            },
            Self::Operator(reason) => match reason {
                OperatorSaid::ModeTcp
                | OperatorSaid::PromotionNever
                | OperatorSaid::OtherUser
                | OperatorSaid::PortExcluded
                | OperatorSaid::PeerExcluded
                | OperatorSaid::ProgramExcluded
                | OperatorSaid::Congested
                | OperatorSaid::Demoted
                | OperatorSaid::Denied
                | OperatorSaid::TlsLater => Diagnosis::CNFERR,
                OperatorSaid::MemoryLimit => Diagnosis::MEM,
                // NOUEID is for a Proposal without any, as Linux has it.
                OperatorSaid::NoCommonEid => Diagnosis::NOSMCDEV,
                OperatorSaid::OtherPnet => Diagnosis::NOSMCD2DEV,
            },
            Self::Program(reason) => match reason {
                ProgramDid::TooShort
                | ProgramDid::ShortLately
                | ProgramDid::NoGain
                | ProgramDid::Compared => Diagnosis::CNFERR,
                ProgramDid::OptionUnsupported
                | ProgramDid::StandardStream
                | ProgramDid::IoUring
                | ProgramDid::PastLibc
                | ProgramDid::Filtered => Diagnosis::OPTUNSUPP,
                ProgramDid::ForkedMeanwhile | ProgramDid::HandedOver => Diagnosis::INTERR,
                // The time was over in which it could have been confirmed.
                ProgramDid::EndedMeanwhile => Diagnosis::TIMEOUT_CL,
            },
        })
    }

    /// What an end on this host means by a code: the reverse of [`Self::diagnosis`]. The standard has fewer codes than there
    /// are reasons here, and its own words are about links and adapters, of which two ends on one host have none.
    #[must_use]
    pub const fn meaning_of(diagnosis: Diagnosis) -> &'static str {
        match diagnosis {
            Diagnosis::TIMEOUT_CL => "the connection was ending before the two ends had agreed",
            Diagnosis::CNFERR => "its operator said so, or it was too short to be worth moving",
            Diagnosis::PEERNOSMC => "the other end was not found, or not in time",
            Diagnosis::NOSMCDEV => "no adapter that is up, or no enterprise ID in common",
            Diagnosis::NOSMCD2DEV => {
                "another network namespace, another version of Sidestep, or not the PNET ID of the shared memory"
            }
            Diagnosis::OPTUNSUPP => {
                "the program uses an option, a standard stream, io_uring or calls that only TCP serves"
            }
            Diagnosis::MAX_DMB => "all connection slots of the process are taken",
            Diagnosis::INTERR => {
                "the program forked or handed the socket on meanwhile, or a message made no sense"
            }
            _ => diagnosis.meaning(),
        }
    }

    /// The reason in words, without its detail: see [`Display`](fmt::Display).
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::None => "not decided yet",
            Self::PeerBroke(_) => "the peer's messages made no sense",
            Self::PeerDeclined(_) => "the peer declined",
            Self::Peer(reason) => match reason {
                PeerCannot::RemotePeer => "the peer is not on this host",
                PeerCannot::PeerNotSmc => "the peer does not run Sidestep",
                PeerCannot::OtherNamespace => "the peer lives in another network namespace",
                PeerCannot::Unanswered => "the two ends did not finish agreeing",
                PeerCannot::FailedLately => "agreeing with this server has failed lately",
                PeerCannot::NoTcpOption => "SYN or SYN-ACK came without the SMC option",
                PeerCannot::LookupUnanswered => {
                    "the agent knows of no Sidestep program at the other end"
                }
                PeerCannot::OtherVersion => "the peer runs another version of Sidestep",
                PeerCannot::NothingInCommon => "the peer offers nothing that this end can use",
            },
            Self::Lack(reason) => match reason {
                Lack::NoMemory => "no memory, address space or descriptors for the rings",
                Lack::NoSlot => "all connection slots of the process are taken",
                Lack::AgentAway => {
                    "the peer is elsewhere, and the agent's socket cannot be reached"
                }
                Lack::StrictMemory => {
                    "vm.overcommit_memory is 2: a touch of shared memory could fail"
                }
                Lack::NameTaken => "the name for the peer's hello could not be bound here",
                Lack::Unwritten => "a message to the peer could not be written",
                Lack::Beset => "descriptors of other users lie where peers introduce themselves",
                Lack::NoAdapter => "the gateway has no RDMA adapter that is up",
                Lack::Contradiction => "this library contradicts itself: an error of Sidestep",
            },
            Self::Operator(reason) => match reason {
                OperatorSaid::ModeTcp => "smc.mode is tcp, by --mode or the configuration",
                OperatorSaid::OtherUser => {
                    "the peer runs as another user or as root elsewhere, with whom no memory is shared"
                }
                OperatorSaid::PromotionNever => "promotion is switched off by the configuration",
                OperatorSaid::NoCommonEid => "no enterprise ID in common",
                OperatorSaid::PortExcluded => "the port is excluded by policy.exclude_ports",
                OperatorSaid::PeerExcluded => {
                    "the peer is excluded by policy.permit_peers or policy.exclude_peers"
                }
                OperatorSaid::ProgramExcluded => {
                    "the program is excluded by policy.exclude_programs"
                }
                OperatorSaid::MemoryLimit => "smc.memory_limit or smc.user_memory_limit is reached",
                OperatorSaid::Congested => {
                    "policy.handshake_limit: too many ends were agreeing at once"
                }
                OperatorSaid::Demoted => "kept on TCP by an operator, here or over there",
                OperatorSaid::OtherPnet => {
                    "its interface does not have the PNET ID of the shared memory"
                }
                OperatorSaid::Denied => "a rule of `sidestep filter` denies it",
                OperatorSaid::TlsLater => {
                    "a rule of TLS has it (controlled), and the program has not begun TLS"
                }
            },
            Self::Program(reason) => match reason {
                ProgramDid::OptionUnsupported => {
                    "the program uses a socket option that only TCP has"
                }
                ProgramDid::ForkedMeanwhile => "the program forked while the ends were agreeing",
                ProgramDid::EndedMeanwhile => "it was ending before the two ends had agreed",
                ProgramDid::StandardStream => "the socket is a standard stream of the program",
                ProgramDid::HandedOver => "the program has handed the socket to another program",
                ProgramDid::IoUring => "the program uses its sockets through io_uring",
                ProgramDid::PastLibc => "the program makes system calls past the C library",
                ProgramDid::TooShort => "too short, so far, to be worth moving",
                ProgramDid::ShortLately => {
                    "connections to this server have been too short lately for SMC-R"
                }
                ProgramDid::Filtered => "the program has a filter of system calls (seccomp)",
                ProgramDid::NoGain => "SMC-R has carried no more to and from this server than TCP",
                ProgramDid::Compared => "SMC-R is being compared with TCP at this server",
            },
            Self::Unknown(_) => "a reason that this version of Sidestep does not know",
        }
    }
}

/// The words, and the field, the peer's own code or the unknown code.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())?;
        match (self, self.field(), self.peer_diagnosis()) {
            (Self::Unknown(code), ..) => write!(f, " (code {code})"),
            (_, Some(field), _) => write!(f, ": {field}"),
            (.., Some(code)) => {
                write!(f, ": {:#010x} {} ({})", code.0, code.name(), Self::meaning_of(code))
            }
            _ => Ok(()),
        }
    }
}

impl Blame {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::PeerBroke, Self::PeerCannot, Self::Lack, Self::Operator, Self::Program];

    /// The name by which consumers of JSON know it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PeerBroke => "protocol",
            Self::PeerCannot => "peer",
            Self::Lack => "lack",
            Self::Operator => "operator",
            Self::Program => "program",
        }
    }

    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::PeerBroke => "the peer broke the protocol",
            Self::PeerCannot => "the peer cannot, or will not",
            Self::Lack => "something is lacking here",
            Self::Operator => "the operator said so",
            Self::Program => "the program did something",
        }
    }
}

#[cfg(test)]
mod tests;
