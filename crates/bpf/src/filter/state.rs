//! Which set is in force.

use crate::map::{MapDefinition, MapKind};

/// Which set is in force: one value, of which [`STATE_SLOT`] is what the gates read.
pub(super) const STATE: &str = "state";
/// The byte of the state that says which slot is in force: 0, 1 or [`OPEN`].
pub(super) const STATE_SLOT: usize = 0;
/// No set is in force, and all packets pass.
pub(super) const OPEN: u8 = 2;
pub(super) const MAP: MapDefinition = MapDefinition {
    name: STATE,
    kind: MapKind::Array,
    key_len: 4,
    value_len: 8,
    entries_max: 1,
    on_demand: false,
};
