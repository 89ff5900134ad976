//! A connection in shared memory, as this end has it: two records, and two rings.

use crate::process::group::Group;
use sidestep_device::ring::Ring;
use sidestep_device::slab::Record;

/// The two halves of a connection in shared memory.
#[derive(Clone, Copy)]
pub struct Conn {
    /// What we report.
    pub mine: &'static Record,
    /// What the peer reports: claims.
    pub theirs: &'static Record,
    /// We write into it.
    pub outgoing: Ring,
    /// The peer writes into it.
    pub incoming: Ring,
    /// Whom it belongs to.
    pub group: &'static Group,
    /// The peer's slot.
    pub peer_slot: usize,
}
