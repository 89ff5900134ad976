//! How a rendezvous between hosts ends, for the driver and for the records.

use sidestep_wire::Diagnosis;
use sidestep_wire::clc::{Decline, Version};

/// What has become of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is SMC-R.
    Agreed {
        /// The version of CLC, LLC and CDC.
        version: Version,
        /// A link group was made for it.
        first_contact: bool,
    },
    /// It stays TCP, with the next byte, as if SMC had never been mentioned.
    Tcp(Fallback),
    /// It cannot go on, not even as TCP: to be reset.
    Broken(Failure),
}

/// Which side has declined, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fallback {
    /// We have, or nothing was sent at all.
    #[error("declined here: {0}")]
    Ours(Cause),
    /// The peer has. If it is out of sync, the link group that our Accept named has to end.
    #[error("declined by the peer: {}", .0.diagnosis)]
    Peers(Decline),
}

impl Fallback {
    /// The standard's code.
    #[must_use]
    pub fn diagnosis(&self) -> Diagnosis {
        match self {
            Self::Ours(cause) => cause.diagnosis(),
            Self::Peers(decline) => decline.diagnosis,
        }
    }
}

/// Why we decline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// Neither version is allowed.
    #[error("SMC-R is switched off here")]
    NotAllowed,
    /// No adapter of ours is on the VLAN and physical network of the connection.
    #[error("no RDMA adapter here is on the network of the connection")]
    NoAdapter,
    /// Server, version 2: the same, or no route leads from there to the client's.
    #[error("no RDMA adapter here leads to the peer's by RoCEv2")]
    NoRoutedAdapter,
    /// Client: the prefix length of our address is not known.
    #[error("the subnet of the connection's own address is not known")]
    NoSubnet,
    /// Version 1 does not go beyond a subnet.
    #[error("the peer is in another subnet, where SMC-Rv1 does not go")]
    OtherSubnet,
    /// Client: version 2 needs a UEID.
    #[error("no UEID is configured here")]
    NoEid,
    /// Server: the client offers version 2 without one.
    #[error("the peer names no UEID")]
    PeerWithoutEid,
    /// Server: the client's UEIDs and ours are different ones.
    #[error("no UEID in common")]
    NoCommonEid,
    /// Client: the server has chosen a UEID that is not ours. Server: so has the client.
    #[error("the peer names a UEID that was not agreed on")]
    ForeignEid,
    /// Server: the client cannot do SMC-R.
    #[error("the peer offers SMC-D only")]
    OnlySmcD,
    /// Server: the client offers only versions that are not allowed here.
    #[error("the peer offers no version that is allowed here")]
    NothingUsable,
    /// Client: it is another protocol or version. Server: the Confirm is not that of our Accept.
    #[error("the peer chose what was not offered")]
    NotOffered,
    /// The release is above the one that was offered, or not the one that was agreed on.
    #[error("the peer names a release that was not agreed on")]
    Release,
    /// Fewer than 16, or more than were offered.
    #[error("the peer's limit of connections per link group is out of range")]
    Connections,
    /// None, or more than were offered.
    #[error("the peer's limit of links per link group is out of range")]
    Links,
    /// Client: packets cannot go to the server's adapter.
    #[error("no route leads to the peer's RDMA adapter")]
    NoRoute,
    /// Client: the server's adapter is in our subnet, but the server sees a gateway on the way.
    #[error("the peer sees a gateway where there is none")]
    Indirect,
    /// No program can have such a queue pair.
    #[error("the peer names a queue pair that cannot be")]
    NoLinkEnd,
    /// No such element of an RMB can be.
    #[error("the peer names a receive buffer that cannot be")]
    NoBuffer,
    /// An MTU, a version or another value that only a later edition knows.
    #[error("the peer uses a value that only a later edition knows")]
    Reserved,
    /// Server: the client has closed before its Proposal. Nothing was sent either way.
    #[error("the peer closed the connection before it said anything")]
    Silent,
    /// By [`Exchange::decline`](super::Exchange::decline).
    #[error("{}", .0.meaning())]
    Driver(Diagnosis),
}

impl Cause {
    /// The standard's code, where Linux has one for it the same.
    ///
    /// *Source*: wire reference §2.9.
    #[must_use]
    pub const fn diagnosis(self) -> Diagnosis {
        match self {
            Self::NotAllowed | Self::NoSubnet => Diagnosis::CNFERR,
            // NOUEID is for a Proposal without any.
            Self::NoAdapter | Self::NoEid | Self::NoCommonEid => Diagnosis::NOSMCDEV,
            Self::NoRoutedAdapter => Diagnosis::NOSMCRDEV,
            Self::OtherSubnet => Diagnosis::DIFFPREFIX,
            Self::PeerWithoutEid | Self::ForeignEid => Diagnosis::NOUEID,
            Self::OnlySmcD => Diagnosis::NOSMCDDEV,
            Self::NothingUsable | Self::Silent => Diagnosis::PEERNOSMC,
            Self::NotOffered | Self::Reserved => Diagnosis::MODEUNSUPP,
            Self::Release => Diagnosis::RELEASEERR,
            Self::Connections => Diagnosis::MAXCONNERR,
            Self::Links => Diagnosis::MAXLINKERR,
            Self::NoRoute => Diagnosis::NOROUTE,
            Self::Indirect => Diagnosis::NOINDIRECT,
            Self::NoLinkEnd => Diagnosis::ERR_RDYLNK,
            Self::NoBuffer => Diagnosis::ERR_RTOK,
            Self::Driver(diagnosis) => diagnosis,
        }
    }
}

/// Why the TCP connection is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// What came is no CLC message, or not the expected one (RFC 7609 C.6).
    #[error("the peer's bytes are not the CLC message that was expected")]
    Protocol,
    /// Nothing came in time (C.5).
    #[error("the peer's CLC message did not come in time")]
    TimedOut,
    /// The peer has left (C.5).
    #[error("the peer ended the connection in the middle of the rendezvous")]
    Left,
    /// It is too late to decline (C.3).
    #[error("SMC-R failed after both sides had agreed on it")]
    TooLate,
}
