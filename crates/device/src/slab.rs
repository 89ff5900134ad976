//! The slab: what one side of a link group shows to the other.
//!
//! ```text
//!   0        stamp    magic, version (see `stamp`)
//!   4 KiB    records  16 384 x 256 bytes, one per connection slot of the owner
//!   4 MiB +  CLC      16 384 x 512 bytes, the message a side has for the other
//!   16 MiB   rings    32 KiB to 1 MiB each, in twice as much memory (see `ring`)
//! ```
//!
//! The owner maps it writable, the peer read-only (it holds a descriptor that was
//! opened read-only; what another process of the same user can do with it stands in
//! `docs/threat-model.md`). Sparse: an idle connection has one page of records (shared
//! with fifteen others) and as many ring pages as its bytes ever touched.
//!
//! One slab per link group and not per process, so that a peer sees the bytes
//! of its own connections only.

use crate::arm::Arm;
use crate::channel::SLOTS;
use crate::cursor::Cursor;
use crate::map::{self, Created, Mapping};
use crate::ring::{LAPS, Ring};
use crate::stamp::Kind;
use crate::sys::{self, Result};
use crate::way::{Permit, Way};
use core::sync::atomic::{AtomicU32, AtomicU64};
use sidestep_derive::Shared;

/// Address space of a slab in bytes; pages exist only where bytes were written.
pub const SLAB_LEN: usize = 4 << 30;
/// Longest CLC message: a Proposal with eight UEIDs is 448 bytes.
pub const CLC_LEN_MAX: usize = 504;

const RECORDS_AT: usize = 4 << 10;
const CLC_AT: usize = RECORDS_AT + SLOTS * size_of::<Record>();
/// Where rings begin.
pub const RINGS_AT: usize = 16 << 20;

const _: () = assert!(size_of::<Record>() == 256);
const _: () = assert!(size_of::<ClcBox>() == 512);
const _: () = assert!(CLC_AT + SLOTS * size_of::<ClcBox>() <= RINGS_AT);

/// One end of a connection, as its owner reports it to the peer.
///
/// Grouped by writer and rate of writes, a cache line each.
#[derive(Shared)]
#[repr(C)]
pub struct Record {
    /// Written by the owner's senders.
    pub sending: Sending,
    /// Written by the owner's receivers.
    pub receiving: Receiving,
    /// Written when a thread on the owner's side sleeps or stops sleeping.
    pub waiting: Waiting,
    /// Written while the two sides agree, constant afterwards.
    pub identity: Identity,
}

/// What the owner has sent.
#[derive(Shared)]
#[repr(C, align(64))]
pub struct Sending {
    /// Producer cursor: bytes ever put into the owner's ring.
    pub producer: Cursor,
    /// By TCP or through the ring, and since where.
    pub way: Way,
    /// 0, or 1 + the ring position of the last urgent byte.
    pub urgent: AtomicU64,
    /// CPU from which the owner last moved a cursor.
    pub cpu: AtomicU32,
    /// [`flag`] bits.
    pub flags: AtomicU32,
    /// Raised by one after a process of the owner has closed its last descriptor, or
    /// shut down both directions, before one ends by itself, and when the owner permits
    /// a turn or wants one: look at the flags, the permit and the TCP connection.
    pub closes: AtomicU32,
}

/// What the owner has received.
#[derive(Shared)]
#[repr(C, align(64))]
pub struct Receiving {
    /// Consumer cursor: bytes ever taken out of the peer's ring.
    pub consumer: Cursor,
    /// Which turn the peer's direction may take.
    pub permit: Permit,
}

/// The threads that sleep on the owner's side.
#[derive(Shared)]
#[repr(C, align(64))]
pub struct Waiting {
    /// A reader (or `poll`) asks for a bell when there is something to read.
    pub read_arm: Arm,
    /// A writer (or `poll`) asks for a bell when there is room to write.
    pub write_arm: Arm,
    /// Up to four channels (number + 1, one byte each, 0 = none) that want a mark
    /// when there is something to read.
    pub channels: AtomicU32,
    /// [`wanted`] bits: who besides `write_arm` waits for room to write.
    pub write_wanted: AtomicU32,
    /// A reader sleeps on the futex in the low half of the peer's producer cursor.
    pub nap_arm: Arm,
}

/// Where things are and how far the agreement has come.
#[derive(Shared)]
#[repr(C, align(64))]
pub struct Identity {
    /// [`phase`] in the low 8 bits, generation of the slot above.
    pub phase: AtomicU32,
    /// The peer's slot in the peer's records, as the owner understood it.
    pub peer_slot: AtomicU32,
    /// Offset of the owner's ring in the owner's slab, in bytes.
    pub ring_at: AtomicU64,
    /// Length of the owner's ring in bytes.
    pub ring_len: AtomicU32,
    /// Length in bytes of the ring the owner wishes to receive from (its RMBE).
    pub rmbe_len: AtomicU32,
    /// The token of the hello that this connection answers to, or is itself, twice 64 bits.
    pub token: [AtomicU64; 2],
    /// `SO_COOKIE` of the owner's TCP socket.
    pub cookie: AtomicU64,
}

/// Bits of [`Sending::flags`], named after the CDC's connection state flags. The peer has to find them when the
/// owner is gone, so they are in shared memory. `socket::ends` alone writes those of ends, by the machine of
/// `proto::ends` that stands in brackets, and takes none back but [`flag::LINGER_ZERO`] and [`flag::CLOSED`].
pub mod flag {
    /// Sending is done (D): no byte after the producer cursor. [`Shutting`: the FIN of a direction in the ring]
    pub const DONE: u32 = 1 << 0;
    /// Abnormal close (A): what follows is a reset. [`Closing`, `Breaking`, `Hearing`, `Telling`: TCP's RST may be about a bell, or not
    /// have come]
    pub const ABORT: u32 = 1 << 1;
    /// `SO_LINGER` with time 0 is set: the end of this connection is a reset. [No machine, a value: of a process that is killed
    /// nothing else says so]
    pub const LINGER_ZERO: u32 = 1 << 2;
    /// Both directions are shut down: what arrives from now on is answered with a
    /// reset. [`Shutting`: the peer does not see `SHUT_RD` otherwise]
    pub const REFUSES: u32 = 1 << 3;
    /// Sending was shut down before the switch, by TCP's own FIN. A FIN without this
    /// flag is the end of the owner. [`Shutting`: TCP does not tell the two apart]
    pub const FIN_BY_TCP: u32 = 1 << 4;
    /// The owner's process ends by itself, with nothing unread: what it has not read in
    /// the end was sent to it afterwards. [`Leaving`: the cursors do not tell when]
    pub const READ_ALL: u32 = 1 << 5;
    /// The owner wants both directions to go by TCP. [`Wishes`: the peer learns an operator's word here and nowhere else]
    pub const WANTS_TCP: u32 = 1 << 6;
    /// The owner closes its last descriptor. How its end of the TCP connection goes from here
    /// on, with a reset for a bell that lies unread, says nothing about the connection. [`Leaving`: TCP does not tell whose reset it is]
    pub const CLOSED: u32 = 1 << 7;
}

/// Bits of [`Waiting::write_wanted`].
pub mod wanted {
    /// The channels want a mark.
    pub const CHANNELS: u32 = 1 << 0;
    /// A writer sleeps on the futex in the low half of the peer's consumer cursor.
    pub const FUTEX: u32 = 1 << 1;
}

/// How far a side has come: the low 8 bits of [`Identity::phase`].
pub mod phase {
    /// Unused.
    pub const FREE: u32 = 0;
    /// Client: the CLC box holds a Proposal.
    pub const PROPOSED: u32 = 1;
    /// Server: the CLC box holds an Accept; reads by the ledger from now on.
    pub const ACCEPTED: u32 = 2;
    /// Client: the CLC box holds a Confirm; reads by the ledger from now on.
    pub const CONFIRMED: u32 = 3;
    /// The CLC box holds a Decline; the connection stays on TCP.
    pub const DECLINED: u32 = 4;
    /// The owner is done with this connection and with the peer's ring.
    pub const DETACHED: u32 = 5;
    /// Client: has the connection of this token, and looks for its other end.
    pub const CLAIMED: u32 = 6;
    /// Server: has that end.
    pub const GREETED: u32 = 7;
    /// Mask of the phase.
    pub const MASK: u32 = 0xff;
}

/// A CLC message from one side to the other.
#[derive(Shared)]
#[repr(C, align(64))]
pub struct ClcBox {
    len: AtomicU64,
    words: [AtomicU64; CLC_LEN_MAX / 8],
}

impl ClcBox {
    /// Owner: puts a message in; it is visible once the phase says so.
    pub fn put(&self, message: &[u8]) {
        use core::sync::atomic::Ordering::Relaxed;
        let len = message.len().min(CLC_LEN_MAX);
        let (eights, rest) = message[..len].as_chunks::<8>();
        for (word, eight) in self.words.iter().zip(eights) {
            word.store(u64::from_ne_bytes(*eight), Relaxed);
        }
        if !rest.is_empty() {
            let mut eight = [0; 8];
            eight[..rest.len()].copy_from_slice(rest);
            self.words[eights.len()].store(u64::from_ne_bytes(eight), Relaxed);
        }
        self.len.store(len as u64, Relaxed);
    }

    /// Peer: copies the message out once; what is parsed is the copy.
    pub fn take(&self, into: &mut [u8; CLC_LEN_MAX]) -> usize {
        use core::sync::atomic::Ordering::Relaxed;
        for (word, bytes) in self.words.iter().zip(into.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        (self.len.load(Relaxed) as usize).min(CLC_LEN_MAX)
    }
}

/// Offset of a slot's record in bytes.
///
/// # Panics
/// There is no such slot.
pub(crate) fn record_at(slot: usize) -> usize {
    assert!(slot < SLOTS);
    RECORDS_AT + slot * size_of::<Record>()
}

/// A mapped slab, ours or the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slab(Mapping);

/// Creates our slab for a new link group.
///
/// # Errors
/// As [`map::create`].
pub fn create() -> Result<(Slab, i32)> {
    let Created { mapping, fd } = map::create(c"sidestep-slab", SLAB_LEN)?;
    mapping.stamp().put(Kind::Slab);
    Ok((Slab(mapping), fd))
}

/// Maps the peer's slab.
///
/// # Errors
/// As [`map::adopt_kind`].
pub fn adopt(fd: i32) -> Result<Slab> {
    open(fd, false)
}

/// Maps a slab that another process of our end has created, to go on writing it.
///
/// # Errors
/// As [`adopt`].
pub fn adopt_own(fd: i32) -> Result<Slab> {
    open(fd, true)
}

fn open(fd: i32, writable: bool) -> Result<Slab> {
    Ok(Slab(map::adopt_kind(fd, Kind::Slab, SLAB_LEN, writable)?))
}

impl Slab {
    /// The record of a slot.
    #[must_use]
    pub fn record(&self, slot: usize) -> &'static Record {
        self.0.get(record_at(slot))
    }

    /// The CLC box of a slot.
    #[must_use]
    pub fn clc(&self, slot: usize) -> &'static ClcBox {
        assert!(slot < SLOTS);
        self.0.get(CLC_AT + slot * size_of::<ClcBox>())
    }

    /// The ring at an offset; `None` when it is not a ring inside the slab.
    #[must_use]
    pub fn ring(&self, at: u64, len: u32) -> Option<Ring> {
        let (at, len) = (usize::try_from(at).ok()?, len as usize);
        let is_ring = (32 << 10..=1 << 20).contains(&len) && len.is_power_of_two();
        let fits = at >= RINGS_AT && at.checked_add(len * LAPS)? <= SLAB_LEN;
        if !(is_ring && fits && at.is_multiple_of(4 << 10)) {
            return None;
        }
        // SAFETY: inside the mapping, which lives until the link group ends.
        Some(unsafe { Ring::new(self.0.at(at, len * LAPS), len) })
    }

    /// Owner: gives back the memory behind `len` bytes from `at` on, both whole pages. They read as zeroes from then on,
    /// here and at the peer. A kernel that refuses leaves them as they are.
    ///
    /// # Panics
    /// They leave the slab.
    pub fn give_back(&self, at: usize, len: usize) {
        let _ = sys::advise(self.0.at(at, len), len, libc::MADV_REMOVE);
    }

    /// Gives the address range back.
    ///
    /// # Safety
    /// No record, box or ring of this slab is used again.
    pub unsafe fn unmap(self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.unmap() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn a_peer_sees_what_the_owner_writes_and_cannot_write() {
        let (ours, fd) = create().unwrap();
        let twin = map::read_only_twin(fd).unwrap();
        assert_eq!(sys::map(Some(twin), 4096, true), Err(sys::Errno(libc::EACCES)));
        let theirs = adopt(twin).unwrap();
        assert!(ours.record(5).sending.producer.publish(0, 77));
        assert_eq!(theirs.record(5).sending.producer.claim(), 77);
        ours.clc(5).put(b"SMCD message");
        let mut copy = [0; CLC_LEN_MAX];
        let len = theirs.clc(5).take(&mut copy);
        assert_eq!(&copy[..len], b"SMCD message");
    }

    #[test]
    fn a_file_whose_length_may_change_is_refused() {
        let fd = sys::memfd(c"unsealed").unwrap();
        sys::set_len(fd, SLAB_LEN).unwrap();
        assert_eq!(adopt(fd).unwrap_err(), sys::Errno(libc::EPERM));
        let Created { fd, .. } = map::create(c"short", 4096).unwrap();
        assert_eq!(adopt(fd).unwrap_err(), sys::Errno(libc::EINVAL));
    }

    #[test]
    fn only_rings_inside_the_slab_are_rings() {
        let (slab, _) = create().unwrap();
        let first = RINGS_AT as u64;
        assert!(slab.ring(first, 64 << 10).is_some());
        assert!(slab.ring(0, 64 << 10).is_none(), "over the header");
        assert!(slab.ring(first, 48 << 10).is_none(), "not a power of two");
        assert!(slab.ring(first, 2 << 20).is_none(), "longer than any RMBE");
        let last = (SLAB_LEN - LAPS * (64 << 10)) as u64;
        assert!(slab.ring(last, 64 << 10).is_some());
        assert!(slab.ring(last + 4096, 64 << 10).is_none(), "over the end");
        assert!(slab.ring(u64::MAX - 10, 64 << 10).is_none());
    }
}
