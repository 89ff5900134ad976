//! The wake memory: where peers leave hints for a process.
//!
//! ```text
//!   64       mail   not 0: a datagram waits in the mailbox
//!   4 KiB    channels   64 x 72 KiB
//!   5 MiB    cells      16 384 x 16 bytes: "the connection of your slot s is my slot c"
//!   5.25 MiB claims     16 384 x 16 bytes: "the connection of this token is my slot c"
//! ```
//!
//! Writable by every peer of the process, and therefore never believed: a cell
//! only says where to look, and what is found there has to carry the right token. So it has no
//! stamp either, with which a peer could keep others out: its layout is told by that of the slab
//! with which it comes.

use crate::channel::{Channel, SLOTS};
use crate::map::{self, Created, Mapping};
use crate::sys::Result;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sidestep_derive::Shared;

/// Length of the wake memory in bytes.
pub const WAKE_LEN: usize = 6 << 20;
/// Channels of a process: one per event loop that has connections in it.
pub const CHANNELS: usize = 64;

const MAIL_AT: usize = 64;
const CHANNELS_AT: usize = 4 << 10;
const CHANNEL_STRIDE: usize = 72 << 10;
const CELLS_AT: usize = 5 << 20;
const CLAIMS_AT: usize = CELLS_AT + SLOTS * size_of::<Cell>();
/// Places for claims. Two that meet in one are told apart by what they lead to; the first
/// is then not found.
const CLAIMS: usize = SLOTS;

const _: () = assert!(size_of::<Channel>() <= CHANNEL_STRIDE);
const _: () = assert!(CHANNELS_AT + CHANNELS * CHANNEL_STRIDE <= CELLS_AT);
const _: () = assert!(CLAIMS_AT + CLAIMS * size_of::<Cell>() <= WAKE_LEN);

/// Mapped wake memory, ours or a peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake(Mapping);

/// Where a peer has left something for us: in which link group, in which of its slots.
#[derive(Shared)]
#[repr(C, align(16))]
pub struct Cell {
    key: AtomicU64,
    slot: AtomicU64,
}

/// Creates the wake memory of this process.
///
/// # Errors
/// As [`map::create`].
pub fn create() -> Result<(Wake, i32)> {
    let Created { mapping, fd } = map::create(c"sidestep-wake", WAKE_LEN)?;
    Ok((Wake(mapping), fd))
}

/// Maps a peer's wake memory.
///
/// # Errors
/// As [`map::adopt`].
pub fn adopt(fd: i32) -> Result<Wake> {
    Ok(Wake(map::adopt(fd, WAKE_LEN, true)?))
}

impl Wake {
    /// The mail flag.
    #[must_use]
    pub fn mail(&self) -> &'static AtomicU32 {
        self.0.get(MAIL_AT)
    }

    /// A channel.
    #[must_use]
    pub fn channel(&self, number: usize) -> &'static Channel {
        assert!(number < CHANNELS);
        self.0.get(CHANNELS_AT + number * CHANNEL_STRIDE)
    }

    /// The reply cell of a slot.
    #[must_use]
    pub fn cell(&self, slot: usize) -> &'static Cell {
        assert!(slot < SLOTS);
        self.0.get(CELLS_AT + slot * size_of::<Cell>())
    }

    /// The place of the claim on the connection with this token.
    #[must_use]
    pub fn claim(&self, token: u64) -> &'static Cell {
        let place = token as usize % CLAIMS;
        self.0.get(CLAIMS_AT + place * size_of::<Cell>())
    }

    /// Gives the address range back.
    ///
    /// # Safety
    /// Nothing obtained from it is used again.
    pub unsafe fn unmap(self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.unmap() }
    }
}

impl Cell {
    /// Peer: leaves its slot; `key` names its instance.
    pub fn put(&self, key: u64, slot: u32) {
        self.key.store(key, Ordering::Relaxed);
        // Release: pairs with the Acquire in `take`.
        self.slot.store(u64::from(slot) + 1, Ordering::Release);
    }

    /// Owner: what was left, if anything.
    #[must_use]
    pub fn take(&self) -> Option<(u64, u32)> {
        let slot = self.slot.load(Ordering::Acquire).checked_sub(1)?;
        Some((self.key.load(Ordering::Relaxed), u32::try_from(slot).ok()?))
    }

    /// Owner: ready for the next connection of this slot.
    pub fn clear(&self) {
        self.slot.store(0, Ordering::Relaxed);
    }
}
