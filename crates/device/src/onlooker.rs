//! Slabs and counters of connections, read by a process that is no end of them.
//!
//! An onlooker maps a slab read-only, so nothing that it does reaches the two ends. In return neither of them waits for
//! it: bytes may be overwritten while it copies them, and a slot or a ring may be another connection's a moment later.
//! So it copies first and asks then whether the copy counts ([`View::copy`] says nothing about that).

use crate::map;
use crate::slab::{self, Record, Slab};
use crate::stamp::{Kind, Stamp};
use crate::state::{Header, RING_SIZES, Rings};
use crate::sys::{self, Errno, Result};
use core::mem::{MaybeUninit, offset_of};

/// A slab that an onlooker has mapped. The records that it lends live no longer than it does.
#[derive(Debug)]
pub struct View(Slab);

impl View {
    /// Maps the slab behind `fd`, which may be closed then.
    ///
    /// # Errors
    /// As [`slab::adopt`].
    pub fn open(fd: i32) -> Result<Self> {
        slab::adopt(fd).map(Self)
    }

    /// The record of a slot.
    ///
    /// # Panics
    /// There is no such slot.
    #[must_use]
    pub fn record(&self, slot: usize) -> &Record {
        self.0.record(slot)
    }

    /// Whether the slab has room for a ring there.
    #[must_use]
    pub fn has_ring(&self, at: u64, len: u32) -> bool {
        self.0.ring(at, len).is_some()
    }

    /// Copies the bytes from a position on out of a ring of the slab, as they are at this moment. False: there is no
    /// such ring, or they are more than its memory has.
    #[must_use]
    pub fn copy(&self, (at, len): (u64, u32), position: u64, room: &mut [u8]) -> bool {
        let Some(ring) = self.0.ring(at, len).filter(|ring| room.len() <= ring.memory_len()) else {
            return false;
        };
        if !room.is_empty() {
            // SAFETY: initialised bytes, into which `read` puts initialised ones only.
            let room = unsafe { &mut *(&raw mut *room as *mut [MaybeUninit<u8>]) };
            ring.read(position, room);
        }
        true
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: what `record` lends lives no longer than the view, which alone has this mapping.
        unsafe { self.0.unmap() }
    }
}

/// What a slot's record in the slab behind `fd` says, read without making a page of it, as a mapping would.
///
/// # Errors
/// It is no slab of this version, or shorter than one.
///
/// # Panics
/// There is no such slot.
pub fn peek(fd: i32, slot: usize) -> Result<Record> {
    map::check(fd, slab::SLAB_LEN)?;
    Stamp::read(fd)?.check(Kind::Slab)?;
    let mut record = MaybeUninit::<Record>::zeroed();
    // SAFETY: so many bytes of memory of ours.
    let bytes = unsafe {
        core::slice::from_raw_parts_mut(record.as_mut_ptr().cast::<u8>(), size_of::<Record>())
    };
    match sys::read_at(fd, bytes, slab::record_at(slot) as u64)? {
        // SAFETY: `Record` is made of atomics, so any bytes are one (`Shared`).
        n if n == size_of::<Record>() => Ok(unsafe { record.assume_init() }),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// How many rings the process of a state, which is one of this version, has handed out so far, of any length. It counts
/// a ring before a connection has it: as long as the number stays, no ring has passed from one connection to another.
///
/// # Errors
/// As `pread`, and `EINVAL` when the file is shorter than a state.
pub fn rings_handed_out(state: i32) -> Result<u64> {
    const LEN: usize = RING_SIZES * size_of::<Rings>();
    let mut bytes = [0u8; LEN];
    match sys::read_at(state, &mut bytes, offset_of!(Header, rings) as u64)? {
        LEN => {}
        _ => return Err(Errno(libc::EINVAL)),
    }
    let (words, _) = bytes.as_chunks::<8>();
    let (rings, _) = words.as_chunks::<{ size_of::<Rings>() / 8 }>();
    let outgoing = [offset_of!(Rings, fresh) / 8, offset_of!(Rings, reused) / 8];
    let handed_out = rings.iter().flat_map(|ring| outgoing.map(|at| u64::from_ne_bytes(ring[at])));
    Ok(handed_out.fold(0, u64::wrapping_add))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::Manner;
    use crate::state;
    use core::sync::atomic::Ordering;

    #[test]
    fn an_onlooker_sees_records_and_rings_and_makes_no_page() {
        let (ours, fd) = slab::create().unwrap();
        let at = slab::RINGS_AT as u64;
        ours.record(5).sending.producer.publish(0, 77);
        ours.ring(at, 32 << 10).unwrap().write(10, b"bytes", Manner::Cached);
        let blocks = || {
            // SAFETY: all-zero is a valid stat, which fstat fills.
            unsafe {
                let mut stat: libc::stat = core::mem::zeroed();
                assert_eq!(libc::fstat(fd, &raw mut stat), 0);
                stat.st_blocks
            }
        };
        let before = blocks();
        assert_eq!(peek(fd, 5).unwrap().sending.producer.claim(), 77);
        assert_eq!(peek(fd, 9000).unwrap().sending.producer.claim(), 0);
        assert_eq!(blocks(), before);
        let view = View::open(fd).unwrap();
        assert_eq!(view.record(5).sending.producer.claim(), 77);
        let mut room = [0; 5];
        assert!(view.copy((at, 32 << 10), 10, &mut room));
        assert_eq!(&room, b"bytes");
        assert!(view.copy((at, 32 << 10), 10, &mut []));
        assert!(!view.copy((0, 32 << 10), 10, &mut room), "no ring");
        assert!(!view.copy((at, 32 << 10), 0, &mut [0; (64 << 10) + 1]), "more than its memory");
        sys::close(fd);
        // SAFETY: nothing of it is used again.
        unsafe { ours.unmap() }
    }

    #[test]
    fn rings_that_are_handed_out_are_counted_whatever_their_length() {
        let (state, fd) = state::create(1, [2, 3]).unwrap();
        assert_eq!(rings_handed_out(fd), Ok(0));
        let rings = &state.header().rings;
        rings[0].fresh.store(1, Ordering::Relaxed);
        rings[RING_SIZES - 1].reused.store(20, Ordering::Relaxed);
        rings[1].incoming.store(300, Ordering::Relaxed);
        assert_eq!(rings_handed_out(fd), Ok(21));
        assert!(peek(fd, 0).is_err(), "a state is no slab");
        sys::close(fd);
        // SAFETY: nothing of it is used again.
        unsafe { state.unmap() }
    }
}
