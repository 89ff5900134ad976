//! How long a payload may be so that its packet fits through.
//!
//! A packet of RoCEv2 is never cut into fragments: the check at its end covers the length that it
//! has when it leaves. The standard knows five lengths of payloads, and both ends of a link take
//! the smaller one of what they offer, so an adapter must not offer more than its network carries:
//!
//! ```text
//!   network   IP 40 | UDP 8 | BTH 12, RETH 16 | payload: 256, 512, 1024, 2048 or 4096 | ICRC 4
//!    1500  ──────────────── 80 ──────────────>  1420 are left: 1024
//! ```

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use sidestep_wire::roce::PORT;

use super::options;
use crate::soft::sys;

/// The payloads of the standard, in bytes.
const PAYLOADS: [u16; 5] = [4096, 2048, 1024, 512, 256];

/// What is not payload: the longest headers of IP (without extensions), UDP and RoCE, and the ICRC.
/// Linux's `rdma_rxe` leaves as much.
const HEADERS: u32 = 80;

/// The longest payload of a packet that a network carries whose own packets have `mtu` bytes, the
/// IP header included. `None`: it carries none of the standard's.
///
/// *Source*: Linux `drivers/infiniband/sw/rxe/rxe_param.h`.
#[must_use]
pub fn roce_mtu(mtu: u32) -> Option<u16> {
    PAYLOADS.into_iter().find(|payload| u32::from(*payload) + HEADERS <= mtu)
}

/// Why no length is known.
#[derive(Debug, thiserror::Error)]
pub enum MtuError {
    /// The way to the peer carries too little.
    #[error("the way to {peer} carries packets of {mtu} bytes, and RoCE needs 336")]
    TooNarrow {
        /// The peer.
        peer: IpAddr,
        /// What it carries.
        mtu: u32,
    },
    /// There is no way to the peer, or the kernel does not tell.
    #[error("no way to {peer}: {error}")]
    NoWay {
        /// The peer.
        peer: IpAddr,
        /// What the kernel says.
        error: io::Error,
    },
}

/// The longest payload on the way from one address to another. Also what ICMP has told of narrower
/// places on it counts, as far as the kernel believes it.
pub(super) fn on_the_way(from: IpAddr, to: IpAddr, device: Option<&str>) -> Result<u16, MtuError> {
    let ask = || {
        let socket = sys::socket(options::family(from), libc::SOCK_DGRAM)?;
        if let Some(device) = device {
            options::bind_to_device(socket.as_fd(), device)?;
        }
        sys::bind(socket.as_fd(), &sys::SocketName::new(SocketAddr::new(from, 0)))?;
        sys::connect(socket.as_fd(), &sys::SocketName::new(SocketAddr::new(to, PORT)))?;
        let (level, name) = match from {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        sys::option(socket.as_fd(), level, name)
    };
    let mtu = ask().map_err(|error| MtuError::NoWay { peer: to, error })? as u32;
    roce_mtu(mtu).ok_or(MtuError::TooNarrow { peer: to, mtu })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_fits_with_all_headers() {
        let expected = [
            (1500, Some(1024)),
            (9000, Some(4096)),
            (4176, Some(4096)),
            (4175, Some(2048)),
            (65_536, Some(4096)),
            (336, Some(256)),
            (335, None),
            (0, None),
        ];
        for (mtu, payload) in expected {
            assert_eq!(roce_mtu(mtu), payload, "{mtu}");
        }
    }

    #[test]
    fn the_way_to_oneself_is_wide() {
        for address in ["127.0.0.1", "::1"] {
            let address = address.parse().unwrap();
            assert_eq!(on_the_way(address, address, None).unwrap(), 4096);
        }
        let [from, to] = ["127.0.0.1", "::1"].map(|text| text.parse().unwrap());
        assert!(matches!(on_the_way(from, to, None), Err(MtuError::NoWay { .. })));
    }
}
