//! Where a connection leads that goes by the gateway.

use crate::process::tcp::Name;
use core::net::SocketAddr;

/// A connection to another host, that goes by the gateway.
#[derive(Clone, Copy)]
pub(crate) struct Passage {
    /// The addresses of its ends, as the kernel has them.
    pub(crate) local: Name,
    pub(crate) peer: Name,
    /// This end has accepted it.
    pub(crate) is_server: bool,
    /// Our port on the way to the gateway.
    pub(crate) port: u16,
}

impl Passage {
    /// As it stands in the slot: see [`Slot::passage`](sidestep_device::state::Slot::passage).
    pub(super) fn word(&self) -> u32 {
        u32::from(self.port) | u32::from(self.is_server) << 16
    }

    /// Where it was accepted.
    pub(crate) fn server(&self) -> Option<SocketAddr> {
        if self.is_server { self.local.address() } else { self.peer.address() }
    }
}
