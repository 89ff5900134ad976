//! Protocols, and the messages of ICMP.

use std::fmt::{self, Display};

/// Which packets, by their protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// All.
    #[default]
    Any,
    /// Those of this number (IANA, "Protocol Numbers"): 6 is TCP.
    Number(u8),
    /// ICMP for IPv4 of this kind.
    Icmp(Icmp),
    /// ICMP for IPv6 of this kind.
    Icmp6(Icmp),
}

/// Which messages of ICMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Icmp {
    /// The type, such as 8 for an echo request.
    pub kind: u8,
    /// The code within the type; `None`: any.
    pub code: Option<u8>,
}

impl Protocol {
    pub(crate) const ICMP: u8 = 1;
    pub(crate) const TCP: u8 = 6;
    pub(crate) const UDP: u8 = 17;
    pub(crate) const ICMP6: u8 = 58;
    pub(crate) const SCTP: u8 = 132;

    /// Whether packets of this protocol have ports.
    #[must_use]
    pub fn has_ports(self) -> bool {
        matches!(self, Self::Number(number) if number_has_ports(number))
    }

    pub(crate) fn number(self) -> Option<u8> {
        match self {
            Self::Any => None,
            Self::Number(number) => Some(number),
            Self::Icmp(_) => Some(Self::ICMP),
            Self::Icmp6(_) => Some(Self::ICMP6),
        }
    }

    /// Whether packets of a number are meant, of ICMP with this type and code.
    pub(crate) fn matches(self, number: u8, icmp: (u8, u8)) -> bool {
        match self {
            Self::Icmp(kind) | Self::Icmp6(kind) => {
                self.number() == Some(number) && kind.matches(icmp)
            }
            _ => self.number().is_none_or(|it| it == number),
        }
    }
}

/// TCP, UDP, DCCP, SCTP and UDP-Lite begin with the two ports.
pub(crate) fn number_has_ports(number: u8) -> bool {
    matches!(number, Protocol::TCP | Protocol::UDP | 33 | Protocol::SCTP | 136)
}

impl Icmp {
    fn matches(self, (kind, code): (u8, u8)) -> bool {
        self.kind == kind && self.code.is_none_or(|it| it == code)
    }
}

impl Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Any => write!(f, "any"),
            Self::Number(Self::TCP) => write!(f, "tcp"),
            Self::Number(Self::UDP) => write!(f, "udp"),
            Self::Number(Self::ICMP) => write!(f, "icmp"),
            Self::Number(Self::ICMP6) => write!(f, "icmp6"),
            Self::Number(Self::SCTP) => write!(f, "sctp"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Icmp(icmp) => write!(f, "icmp:{icmp}"),
            Self::Icmp6(icmp) => write!(f, "icmp6:{icmp}"),
        }
    }
}

impl Display for Icmp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            None => write!(f, "{}", self.kind),
            Some(code) => write!(f, "{}/{code}", self.kind),
        }
    }
}
