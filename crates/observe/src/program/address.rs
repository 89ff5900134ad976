//! Addresses as a state has them: words, which may be anything.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The address in a slot's words, if they hold one.
pub(crate) fn address(family: u8, ip: &[AtomicU64; 2], port: &AtomicU32) -> Option<SocketAddr> {
    let ip = ip.each_ref().map(|half| half.load(Ordering::Relaxed));
    address_of(family, ip, port.load(Ordering::Relaxed))
}

/// The address of this family (4 or 6), if the words hold one.
pub(crate) fn address_of(family: u8, [high, low]: [u64; 2], port: u32) -> Option<SocketAddr> {
    let ip = match family {
        4 => IpAddr::V4(Ipv4Addr::from(u32::try_from(high).ok()?)),
        6 => IpAddr::V6(Ipv6Addr::from(u128::from(high) << 64 | u128::from(low))),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::try_from(port).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_an_address_or_none() {
        let v4 = |high, port| address_of(4, [high, 0], port).map(|address| address.to_string());
        assert_eq!(v4(0x0a00_0001, 1002).unwrap(), "10.0.0.1:1002");
        assert_eq!(v4(1 << 32, 1), None, "more than 32 bits");
        assert_eq!(v4(1, 65_536), None, "no such port");
        let v6 = address_of(6, [0x2001_0db8_0000_0000, 7], 443).unwrap();
        assert_eq!(v6.to_string(), "[2001:db8::7]:443");
        for family in [0, 1, 5, 255] {
            assert_eq!(address_of(family, [1, 1], 1), None);
        }
    }
}
