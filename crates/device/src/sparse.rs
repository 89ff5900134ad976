//! Tables that take memory only as far as they are written.
//!
//! The kernel counts every private writable mapping against `RLIMIT_DATA`, touched or not.
//! So the addresses of a table are reserved read-only, which counts nothing, and become
//! writable from the front on, in pieces, when an entry is to be written. What lies behind
//! reads as zeroes. With the first entry comes the reservation: an empty table is one word.

use crate::map;
use crate::sys;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Bytes that become writable together: few system calls for a full table, and little that
/// counts for one with a single entry.
const PIECE: usize = 64 << 10;

/// `LEN` entries, all-zero until they are written.
pub struct Sparse<T, const LEN: usize> {
    /// Null: nothing is reserved.
    base: AtomicPtr<T>,
    /// Bytes from the base on that are writable, whole pieces.
    writable: AtomicUsize,
}

impl<T, const LEN: usize> Default for Sparse<T, LEN> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const LEN: usize> Sparse<T, LEN> {
    /// Bytes of addresses: whole pieces.
    const RESERVED: usize = (LEN * size_of::<T>()).next_multiple_of(PIECE);

    /// An empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self { base: AtomicPtr::new(core::ptr::null_mut()), writable: AtomicUsize::new(0) }
    }

    /// An entry to be read; `None`: all of them are zero, or there are not so many.
    ///
    /// # Safety
    /// All-zero bytes are a valid `T`, and the entry is not written through what is returned,
    /// unless [`Self::writable`] has had it before.
    #[inline]
    #[must_use]
    pub unsafe fn get(&self, index: usize) -> Option<&T>
    where
        T: Sync,
    {
        // Relaxed: what the address leads to is zero, or was published by whoever wrote it.
        let base = self.base.load(Ordering::Relaxed);
        if base.is_null() || index >= LEN {
            return None;
        }
        // SAFETY: inside the reservation, which is never given back; valid by the caller's
        // promise.
        Some(unsafe { &*base.add(index) })
    }

    /// Whether an entry was ever to be written.
    #[inline]
    #[must_use]
    pub fn is_begun(&self) -> bool {
        // Relaxed: a word that was written since is news to whoever asks next.
        self.writable.load(Ordering::Relaxed) != 0
    }

    /// Where an entry is, after making it writable. `None`: there are not so many, or the
    /// kernel has no addresses or no memory for it.
    #[inline]
    pub fn writable(&self, index: usize) -> Option<*mut T> {
        if index >= LEN {
            return None;
        }
        let end = (index + 1) * size_of::<T>();
        // Acquire: pairs with the exchange in `extend`; the base is there before.
        if end > self.writable.load(Ordering::Acquire) {
            self.extend(end)?;
        }
        // SAFETY: inside the reservation.
        Some(unsafe { self.base.load(Ordering::Relaxed).add(index) })
    }

    /// The index of the entry at an address, if it is that of one that was ever to be
    /// written.
    #[must_use]
    pub fn index_of(&self, address: usize) -> Option<usize> {
        // Acquire: as in `writable`.
        let written = self.writable.load(Ordering::Acquire);
        let offset = address.checked_sub(self.base.load(Ordering::Relaxed) as usize)?;
        let index = offset / size_of::<T>();
        let is_one = offset.is_multiple_of(size_of::<T>()) && index < LEN;
        (is_one && offset + size_of::<T>() <= written).then_some(index)
    }

    /// Gives everything back.
    ///
    /// # Safety
    /// Nobody uses an entry, nor will.
    pub unsafe fn give_back(&self) {
        let base = self.base.swap(core::ptr::null_mut(), Ordering::Relaxed);
        self.writable.store(0, Ordering::Relaxed);
        if !base.is_null() {
            // SAFETY: what `reserved` has mapped; the caller's promise.
            unsafe { sys::unmap(base.cast(), Self::RESERVED) };
        }
    }

    #[cold]
    fn extend(&self, end: usize) -> Option<()> {
        let base = self.reserved()?.cast::<u8>();
        let from = self.writable.load(Ordering::Relaxed);
        let to = end.next_multiple_of(PIECE);
        if to > from {
            // SAFETY: inside the reservation. Another thread may do the same, or more: what
            // is writable stays so.
            sys::make_writable(unsafe { base.add(from) }, to - from).ok()?;
            // Release: what was reserved and made writable is so for whoever sees the length.
            self.writable.fetch_max(to, Ordering::AcqRel);
        }
        Some(())
    }

    fn reserved(&self) -> Option<*mut T> {
        let base = self.base.load(Ordering::Relaxed);
        if !base.is_null() {
            return Some(base);
        }
        let reserved = map::reserve_unwritten(Self::RESERVED).ok()?;
        let base = reserved.at(0, 0).cast();
        let ours = self.base.compare_exchange(
            core::ptr::null_mut(),
            base,
            // Relaxed: the mapping is the kernel's, and is all zeroes.
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        // SAFETY: no other thread knows what was reserved second.
        ours.inspect_err(|_| unsafe { reserved.unmap() }).map_or_else(Some, |_| Some(base))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;
    use std::string::String;
    use std::vec::Vec;

    /// What the kernel counts against `RLIMIT_DATA`, in KiB, of a range of addresses.
    fn counted(base: usize, len: usize) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mapping = |line: &str| -> Option<(usize, usize, String)> {
            let mut words = line.split(' ');
            let (from, to) = words.next()?.split_once('-')?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            Some((number(from)?, number(to)?, words.next()?.into()))
        };
        let mappings: Vec<_> = maps.lines().filter_map(mapping).collect();
        let of_range = mappings.iter().filter(|(_, _, rights)| rights == "rw-p");
        let bytes =
            of_range.map(|(from, to, _)| to.min(&(base + len)).saturating_sub(*from.max(&base)));
        bytes.sum::<usize>() >> 10
    }

    #[test]
    fn only_what_is_written_counts() {
        static TABLE: Sparse<AtomicU64, { 1 << 20 }> = Sparse::new();
        // SAFETY: atomics, and only looked at.
        let read = |index| unsafe { TABLE.get(index) }.map(|it| it.load(Ordering::Relaxed));
        assert_eq!(read(7), None, "nothing is reserved");
        let at = TABLE.writable(7).unwrap();
        // SAFETY: it has just been made writable.
        unsafe { &*at }.store(5, Ordering::Relaxed);
        assert_eq!((read(7), read(8), read((1 << 20) - 1)), (Some(5), Some(0), Some(0)));
        let (base, len) = (at as usize - 7 * 8, 8 << 20);
        assert_eq!(counted(base, len), 64);
        assert!(TABLE.writable(100_000).is_some());
        assert_eq!(counted(base, len), 832);
        assert_eq!(read(7), Some(5), "what was there stays");
        assert!(TABLE.writable((1 << 20) - 1).is_some());
        assert_eq!(counted(base, len), 8192);
        assert!(TABLE.writable(1 << 20).is_none() && read(1 << 20).is_none());
    }

    #[test]
    fn an_address_is_one_of_its_entries_or_not() {
        static TABLE: Sparse<[u64; 3], 10_000> = Sparse::new();
        assert_eq!(TABLE.index_of(0), None);
        let at = TABLE.writable(1).unwrap() as usize;
        assert_eq!(TABLE.index_of(at), Some(1));
        assert_eq!(TABLE.index_of(at + 8), None, "inside one");
        assert_eq!(TABLE.index_of(at - 48), None, "before them");
        assert_eq!(TABLE.index_of(at + 24 * 9_000), None, "never to be written");
    }

    #[test]
    fn threads_that_extend_it_at_once_do_not_take_from_each_other() {
        static TABLE: Sparse<AtomicU64, { 1 << 20 }> = Sparse::new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for index in (thread..1 << 18).step_by(4) {
                        // SAFETY: writable, and an atomic.
                        unsafe { &*TABLE.writable(index).unwrap() }
                            .store(index as u64 + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        for index in 0..1 << 18 {
            // SAFETY: only looked at.
            let word = unsafe { TABLE.get(index) }.unwrap();
            assert_eq!(word.load(Ordering::Relaxed), index as u64 + 1);
        }
    }
}
