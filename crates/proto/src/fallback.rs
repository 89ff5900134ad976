//! Why a connection stays on TCP: the standard's diagnosis code and words.

use sidestep_wire::diagnosis::Diagnosis;

/// Why a connection was not moved to shared memory. Stored in the connection's
/// slot as its number and shown by `sidestep ss`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// Not decided yet, or moved.
    None = 0,
    /// `mode = "tcp"`: loaded, but only counting.
    ModeTcp = 1,
    /// The peer's address is not on this host.
    RemotePeer = 2,
    /// Nobody answered beside the connection: a plain program.
    PeerNotSmc = 3,
    /// The peer runs as another user, or as root of other namespaces, which one of the two ends does not
    /// list.
    OtherUser = 4,
    /// The peer lives in another network namespace.
    OtherNamespace = 5,
    /// No memory, address space or descriptor for the rings.
    NoMemory = 6,
    /// The peer refused; its code is stored beside the reason.
    PeerDeclined = 7,
    /// An option this library cannot carry was set (ULP, fast open, repair…).
    OptionUnsupported = 8,
    /// `promotion = "never"`.
    PromotionNever = 9,
    /// The program forked while the two libraries were still agreeing.
    ForkedMeanwhile = 10,
    /// The peer's messages made no sense.
    PeerMisbehaved = 11,
    /// All connection slots of the process are taken.
    NoSlot = 12,
    /// No common EID.
    NoCommonEid = 13,
    /// The two ends did not finish agreeing before the connection ended or the
    /// attempt was given up.
    Unanswered = 14,
    /// The descriptor became standard input, output or error, which libc reads and
    /// writes by calls of its own.
    StandardStream = 15,
    /// The descriptor was handed to another program before anything was decided.
    HandedOver = 16,
    /// The program gives sockets to io_uring, whose reads and writes the kernel makes by
    /// itself.
    IoUring = 17,
    /// The program, or a library of it, makes calls on sockets by instructions of its own,
    /// which nobody sees.
    PastLibc = 18,
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
    /// It has not lived long enough to be worth moving, or not yet.
    TooShort = 24,
    /// Agreeing with this server has failed lately: AUTOCACHE.
    FailedLately = 25,
    /// An agent writes the TCP option of SMC, and one end has not sent it.
    NoTcpOption = 26,
    /// An operator keeps it there for now.
    Demoted = 27,
    /// The peer is in another network namespace or on another host, and the agent, who would
    /// know, cannot be reached from here.
    AgentAway = 28,
    /// The agent knows of no program at the other end that asks for us.
    PetitionUnanswered = 29,
    /// The shared memory has a PNET ID, and the interface of the connection's own address has
    /// another one or none.
    OtherPnet = 30,
    /// Connections to this server of another host have ended too soon lately: AUTOSMC.
    ShortLately = 31,
    /// The program has a filter of system calls (seccomp), or will install one.
    Filtered = 32,
    /// The kernel counts what memory it has promised, so that a touch of shared memory can fail.
    StrictMemory = 33,
    /// The peer runs another version of Sidestep, whose memory is laid out in another way.
    OtherVersion = 34,
}

impl Reason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 35] = [
        Self::None,
        Self::ModeTcp,
        Self::RemotePeer,
        Self::PeerNotSmc,
        Self::OtherUser,
        Self::OtherNamespace,
        Self::NoMemory,
        Self::PeerDeclined,
        Self::OptionUnsupported,
        Self::PromotionNever,
        Self::ForkedMeanwhile,
        Self::PeerMisbehaved,
        Self::NoSlot,
        Self::NoCommonEid,
        Self::Unanswered,
        Self::StandardStream,
        Self::HandedOver,
        Self::IoUring,
        Self::PastLibc,
        Self::PortExcluded,
        Self::PeerExcluded,
        Self::ProgramExcluded,
        Self::MemoryLimit,
        Self::Congested,
        Self::TooShort,
        Self::FailedLately,
        Self::NoTcpOption,
        Self::Demoted,
        Self::AgentAway,
        Self::PetitionUnanswered,
        Self::OtherPnet,
        Self::ShortLately,
        Self::Filtered,
        Self::StrictMemory,
        Self::OtherVersion,
    ];

    /// The reason with this number; unknown numbers are [`Reason::None`].
    #[must_use]
    pub fn from_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::None)
    }

    /// Whether the next attempt with the same server would come to the same.
    #[must_use]
    pub const fn is_likely_to_recur(self) -> bool {
        matches!(
            self,
            Self::OtherUser
                | Self::PeerDeclined
                | Self::NoCommonEid
                | Self::PeerMisbehaved
                | Self::Unanswered
                | Self::PetitionUnanswered
                | Self::OtherVersion
        )
    }

    /// The diagnosis code of the standard that says the same.
    ///
    /// *Source*: `net/smc/smc_clc.h` names, values in the wire reference §2.9.
    #[must_use]
    pub const fn diagnosis(self) -> Option<Diagnosis> {
        Some(match self {
            Self::None => return None,
            Self::ModeTcp
            | Self::PromotionNever
            | Self::OtherUser
            | Self::PortExcluded
            | Self::PeerExcluded
            | Self::ProgramExcluded
            | Self::Congested
            | Self::TooShort
            | Self::ShortLately
            | Self::Demoted => Diagnosis::CNFERR,
            Self::RemotePeer
            | Self::PeerNotSmc
            | Self::Unanswered
            | Self::FailedLately
            | Self::NoTcpOption
            | Self::AgentAway
            | Self::PetitionUnanswered => Diagnosis::PEERNOSMC,
            // The standard has no code of its own for it: of what both could use there is nothing.
            Self::OtherNamespace | Self::OtherPnet | Self::OtherVersion => Diagnosis::NOSMCD2DEV,
            Self::NoMemory | Self::MemoryLimit | Self::StrictMemory => Diagnosis::MEM,
            Self::PeerDeclined => Diagnosis::PEERDECL,
            Self::OptionUnsupported
            | Self::StandardStream
            | Self::IoUring
            | Self::PastLibc
            | Self::Filtered => Diagnosis::OPTUNSUPP,
            Self::ForkedMeanwhile | Self::PeerMisbehaved | Self::HandedOver => Diagnosis::INTERR,
            Self::NoSlot => Diagnosis::MAX_DMB,
            // NOUEID is for a Proposal without any, as Linux has it.
            Self::NoCommonEid => Diagnosis::NOSMCDEV,
        })
    }

    /// The reason in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::None => "not decided yet",
            Self::ModeTcp => "smc.mode is tcp, by --mode or the configuration",
            Self::RemotePeer => "the peer is not on this host",
            Self::PeerNotSmc => "the peer does not run Sidestep",
            Self::OtherUser => {
                "the peer runs as another user or as root elsewhere, with whom no memory is shared"
            }
            Self::OtherNamespace => "the peer lives in another network namespace",
            Self::NoMemory => "no memory, address space or descriptors for the rings",
            Self::PeerDeclined => "the peer declined",
            Self::OptionUnsupported => "the program uses a socket option that only TCP has",
            Self::PromotionNever => "promotion is switched off by the configuration",
            Self::ForkedMeanwhile => "the program forked while the ends were agreeing",
            Self::PeerMisbehaved => "the peer's messages made no sense",
            Self::NoSlot => "all connection slots of the process are taken",
            Self::NoCommonEid => "no enterprise ID in common",
            Self::Unanswered => "the two ends did not finish agreeing",
            Self::StandardStream => "the socket is a standard stream of the program",
            Self::HandedOver => "the program has handed the socket to another program",
            Self::IoUring => "the program uses its sockets through io_uring",
            Self::PastLibc => "the program makes system calls past the C library",
            Self::PortExcluded => "the port is excluded by policy.exclude_ports",
            Self::PeerExcluded => {
                "the peer is excluded by policy.permit_peers or policy.exclude_peers"
            }
            Self::MemoryLimit => "smc.memory_limit or smc.user_memory_limit is reached",
            Self::Congested => "policy.handshake_limit: too many ends were agreeing at once",
            Self::ProgramExcluded => "the program is excluded by policy.exclude_programs",
            Self::TooShort => "too short, so far, to be worth moving",
            Self::FailedLately => "agreeing with this server has failed lately",
            Self::NoTcpOption => "SYN or SYN-ACK came without the SMC option",
            Self::Demoted => "kept on TCP by an operator, here or over there",
            Self::AgentAway => "the peer is elsewhere, and the agent's socket cannot be reached",
            Self::PetitionUnanswered => {
                "the peer is elsewhere, and the agent knows of no Sidestep program there"
            }
            Self::OtherPnet => "its interface does not have the PNET ID of the shared memory",
            Self::OtherVersion => "the peer runs another version of Sidestep",
            Self::ShortLately => "connections to this server have been too short lately for SMC-R",
            Self::Filtered => "the program has a filter of system calls (seccomp)",
            Self::StrictMemory => "vm.overcommit_memory is 2: a touch of shared memory could fail",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_reasons() {
        for (number, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
            assert_eq!(Reason::from_number(number as u8), reason);
            assert_eq!(reason.diagnosis().is_none(), reason == Reason::None);
        }
        assert_eq!(Reason::from_number(250), Reason::None);
    }
}
