//! How many links, receive buffers, connections and adapters a group has at most.

use sidestep_wire::llc;

/// Links that a group asks for, not counting an asymmetric one. RFC 7609 §2.2.2 allows up to 8;
/// Linux has 2, and a second one is what survives a failure.
pub const LINKS_MAX: u8 = 2;

/// Links that exist at once: while a symmetric link takes the place of an asymmetric one, one more.
pub const LINK_SLOTS: usize = LINKS_MAX as usize + 1;

/// Receive buffers of each side, as many as an RMB count on the wire can tell.
pub const RMBS_MAX: usize = 255;

/// Connections of a group that nothing else was agreed for.
pub const CONNECTIONS_MAX: u8 = 255;

/// Adapters that a group knows of.
pub const ADAPTERS_MAX: usize = 8;

const _: () = assert!(LINK_SLOTS - 1 <= 2, "CONFIRM RKEY has room for two other links");
const _: () = assert!(RMBS_MAX <= llc::RKEY_COUNT_MAX);
