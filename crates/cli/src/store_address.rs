//! Where a member of the store is reached that distributors share: `http://HOST:PORT` or `https://HOST:PORT`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A member of etcd, by the address at which it serves clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreAddress {
    /// `HOST:PORT`.
    authority: String,
    /// By TLS.
    is_secure: bool,
}

/// Why a text is no address of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "is no address of etcd; use https:// or http:// with a host and a port, such as \"https://10.0.0.5:2379\""
)]
pub(crate) struct NoStoreAddress;

impl StoreAddress {
    /// `HOST:PORT`.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    /// A name, or an address without brackets.
    pub(crate) fn host(&self) -> &str {
        let host = self.authority.rsplit_once(':').map_or("", |(host, _)| host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// Whether it is reached by TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.is_secure
    }
}

impl FromStr for StoreAddress {
    type Err = NoStoreAddress;

    fn from_str(text: &str) -> Result<Self, NoStoreAddress> {
        let (scheme, rest) = text.split_once("://").ok_or(NoStoreAddress)?;
        let is_secure = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(NoStoreAddress),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = authority.rsplit_once(':').ok_or(NoStoreAddress)?;
        let is_address = host.starts_with('[') && host.ends_with(']');
        let is_name = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-');
        let is_host = !host.is_empty() && (is_address || host.bytes().all(is_name));
        let is_port = port.parse::<u16>().is_ok_and(|port| port != 0);
        if !is_host || !is_port {
            return Err(NoStoreAddress);
        }
        Ok(Self { authority: authority.to_owned(), is_secure })
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_secure { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_needed() {
        for (good, host, is_secure) in [
            ("http://10.0.0.5:2379", "10.0.0.5", false),
            ("https://[fd00::5]:2379", "fd00::5", true),
            ("https://etcd-1.example:2379", "etcd-1.example", true),
        ] {
            let address: StoreAddress = good.parse().unwrap();
            assert_eq!(address.to_string(), good);
            assert_eq!((address.host(), address.is_secure()), (host, is_secure));
        }
        assert_eq!("http://a:1/".parse::<StoreAddress>().unwrap().authority(), "a:1");
        for bad in
            ["10.0.0.5:2379", "ftp://a:1", "http://a", "http://:1", "http://a:0", "http://a:1/b"]
        {
            assert_eq!(bad.parse::<StoreAddress>(), Err(NoStoreAddress), "{bad}");
        }
    }
}
