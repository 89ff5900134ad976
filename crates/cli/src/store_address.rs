//! Where a member of the store is reached that distributors share: `http://HOST:PORT`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A member of etcd, by the address at which it serves clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreAddress {
    /// `HOST:PORT`.
    authority: String,
}

/// Why a text is no address of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "is no address of etcd; use http:// with a host and a port, such as \"http://10.0.0.5:2379\""
)]
pub(crate) struct NoStoreAddress;

impl StoreAddress {
    /// `HOST:PORT`.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }
}

impl FromStr for StoreAddress {
    type Err = NoStoreAddress;

    fn from_str(text: &str) -> Result<Self, NoStoreAddress> {
        let rest = text.strip_prefix("http://").ok_or(NoStoreAddress)?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = authority.rsplit_once(':').ok_or(NoStoreAddress)?;
        let is_address = host.starts_with('[') && host.ends_with(']');
        let is_name = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-');
        let is_host = !host.is_empty() && (is_address || host.bytes().all(is_name));
        let is_port = port.parse::<u16>().is_ok_and(|port| port != 0);
        if !is_host || !is_port {
            return Err(NoStoreAddress);
        }
        Ok(Self { authority: authority.to_owned() })
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_needed() {
        for good in ["http://10.0.0.5:2379", "http://[fd00::5]:2379", "http://etcd-1.example:2379"]
        {
            let address: StoreAddress = good.parse().unwrap();
            assert_eq!(address.to_string(), good);
        }
        assert_eq!("http://a:1/".parse::<StoreAddress>().unwrap().authority(), "a:1");
        for bad in
            ["10.0.0.5:2379", "https://a:1", "http://a", "http://:1", "http://a:0", "http://a:1/b"]
        {
            assert_eq!(bad.parse::<StoreAddress>(), Err(NoStoreAddress), "{bad}");
        }
    }
}
