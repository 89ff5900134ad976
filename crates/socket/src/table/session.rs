//! Where a connection leads that goes by the gateway.

use crate::process::tcp::{self, Name};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sidestep_device::state::Slot;
use sidestep_device::sys;

/// A connection to another host, that goes by the gateway.
#[derive(Clone, Copy)]
pub(crate) struct Session {
    /// The addresses of its ends, as the kernel has them.
    pub(crate) local: Name,
    pub(crate) peer: Name,
    /// This end has accepted it.
    pub(crate) is_server: bool,
    /// Our port on the way to the gateway.
    pub(crate) port: u16,
}

impl Session {
    /// As it stands in the slot: see [`Slot::session`](sidestep_device::state::Slot::session).
    pub(super) fn word(&self) -> u32 {
        u32::from(self.port) | u32::from(self.is_server) << 16
    }

    /// That of a connection which another program has given, as its slot has it; `fd` is the way to the
    /// gateway. `None`: it does not go there.
    pub(crate) fn of_slot(slot: &Slot, fd: i32) -> Option<Self> {
        let word = slot.session.load(Ordering::Relaxed);
        // Acquire: pairs with the Release that sets the family after the addresses.
        let family = slot.family.load(Ordering::Acquire);
        let domain = sys::socket_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
        let name = |ip: &[AtomicU64; 2], port: &AtomicU32| {
            let ip = tcp::of_words(ip.each_ref().map(|it| it.load(Ordering::Relaxed)), family)?;
            let port = port.load(Ordering::Relaxed) as u16;
            Some(Name::new(SocketAddr::new(ip, port), domain == Ok(libc::AF_INET6)))
        };
        let (local, peer) =
            (name(&slot.local_ip, &slot.local_port)?, name(&slot.peer_ip, &slot.peer_port)?);
        let is_server = word >> 16 & 1 == 1;
        (word != 0).then_some(Self { local, peer, is_server, port: word as u16 })
    }

    /// Where it was accepted.
    pub(crate) fn server(&self) -> Option<SocketAddr> {
        if self.is_server { self.local.address() } else { self.peer.address() }
    }
}
