//! The single door for atomics: core's in the library, loom's under `--cfg loom`,
//! so that the model checker runs the very code that ships.
//!
//! Run it: `cargo xtask loom`.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
