//! Where the agent tells its metrics: to this host only.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

/// An address that only programs of this host can reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MetricsAddress {
    /// A loopback address and a port.
    Tcp(SocketAddr),
    /// The absolute path of a UNIX socket.
    Unix(PathBuf),
}

/// Why a text is no address for metrics.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum MetricsAddressError {
    #[error(
        "{0} can be reached from other hosts, and whoever reads metrics is not asked who he is; \
         use a loopback address such as 127.0.0.1:{port}, or unix:PATH, and let a proxy with \
         authentication stand in front of it", port = .0.port()
    )]
    Reachable(SocketAddr),
    #[error("`{0}` is not an absolute path; use one such as unix:/run/sidestep/metrics")]
    Relative(String),
    #[error("`{0}` is not allowed; use {allowed}", allowed = MetricsAddress::ALLOWED)]
    Neither(String),
}

impl MetricsAddress {
    /// The allowed values in words, for error texts.
    pub(crate) const ALLOWED: &str =
        "a loopback address with a port (127.0.0.1:9464, [::1]:9464), or unix:PATH";
}

impl FromStr for MetricsAddress {
    type Err = MetricsAddressError;

    fn from_str(text: &str) -> Result<Self, MetricsAddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let absolute = Path::new(path).is_absolute().then(|| Self::Unix(path.into()));
            return absolute.ok_or_else(|| MetricsAddressError::Relative(path.to_owned()));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().to_canonical().is_loopback() => Ok(Self::Tcp(address)),
            Ok(address) => Err(MetricsAddressError::Reachable(address)),
            Err(_) => Err(MetricsAddressError::Neither(text.to_owned())),
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_host_is_told() {
        for allowed in ["127.0.0.1:9464", "127.8.0.1:1", "[::1]:9464", "unix:/run/x y"] {
            assert_eq!(allowed.parse::<MetricsAddress>().unwrap().to_string(), allowed);
        }
        for reachable in ["0.0.0.0:9464", "192.0.2.1:9464", "[::]:9464"] {
            let error = reachable.parse::<MetricsAddress>().unwrap_err().to_string();
            assert!(error.contains("127.0.0.1:9464, or unix:PATH"), "{error}");
        }
        for wrong in ["", "9464", "localhost:9464", "unix:", "unix:run/x", "127.0.0.1"] {
            assert!(wrong.parse::<MetricsAddress>().is_err(), "{wrong}");
        }
    }
}
