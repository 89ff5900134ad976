//! What `sidestep why` is asked about.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use thiserror::Error;

/// A process, a server's port or an address, as the user wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A bare number: whichever there is.
    Number(u32),
    /// `pid:4711`.
    Process(u32),
    /// `:6379`.
    Port(u16),
    /// `10.0.0.7`.
    Host(IpAddr),
    /// `10.0.0.7:80`.
    Address(SocketAddr),
}

/// A word that is none of these.
#[derive(Debug, Error)]
#[error(
    "use a process (4711 or pid:4711), a port (6379 or :6379) or an address (10.0.0.7, \
     127.0.0.1:6379, [::1]:6379)"
)]
pub(crate) struct NotSubject;

impl FromStr for Subject {
    type Err = NotSubject;

    fn from_str(text: &str) -> Result<Self, NotSubject> {
        if let Some(pid) = text.strip_prefix("pid:") {
            return pid.parse().map(Self::Process).map_err(|_| NotSubject);
        }
        if let Some(port) = text.strip_prefix(':').filter(|rest| !rest.starts_with(':')) {
            return port.parse().map(Self::Port).map_err(|_| NotSubject);
        }
        if let Ok(number) = text.parse() {
            return Ok(Self::Number(number));
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self::Address(canonical(address)));
        }
        let ip: IpAddr = text.parse().map_err(|_| NotSubject)?;
        Ok(Self::Host(ip.to_canonical()))
    }
}

/// IPv4-mapped addresses as IPv4: so they are kept.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::Port(port) => write!(f, "port {port}"),
            Self::Host(ip) => write!(f, "{ip}"),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_mean_what_they_look_like() {
        let parse = |text: &str| text.parse::<Subject>().unwrap();
        assert_eq!(parse("6379"), Subject::Number(6379));
        assert_eq!(parse("100000"), Subject::Number(100_000));
        assert_eq!(parse("pid:6379"), Subject::Process(6379));
        assert_eq!(parse(":6379"), Subject::Port(6379));
        assert_eq!(parse("10.0.0.7"), Subject::Host("10.0.0.7".parse().unwrap()));
        assert_eq!(parse("::1"), Subject::Host("::1".parse().unwrap()));
        assert_eq!(parse("[::1]:80"), Subject::Address("[::1]:80".parse().unwrap()));
        assert_eq!(parse("[::ffff:10.0.0.7]:80"), Subject::Address("10.0.0.7:80".parse().unwrap()));
        for text in ["", ":", "pid:", "pid:x", ":65536", "redis", "10.0.0", "1.2.3.4:x", "-1"] {
            assert!(text.parse::<Subject>().is_err(), "{text}");
        }
    }
}
