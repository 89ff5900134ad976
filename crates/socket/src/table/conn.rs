//! What an [`End`](crate::table::end::End) is made of: a slot, two records, and two rings.

use crate::process::group::Group;
use sidestep_device::ring::Ring;
use sidestep_device::slab::Record;
use sidestep_device::state::Slot;

/// What this end has of a connection in shared memory.
#[derive(Clone, Copy)]
pub struct Conn {
    /// What the processes that hold this end agree on.
    pub slot: &'static Slot,
    /// What we report.
    pub mine: &'static Record,
    /// What the peer reports: claims.
    pub theirs: &'static Record,
    /// We write into it.
    pub outgoing: Ring,
    /// The peer writes into it.
    pub incoming: Ring,
    /// The link group of the connection.
    pub group: &'static Group,
    /// The peer's slot.
    pub peer_slot: usize,
}
