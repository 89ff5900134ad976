//! Tables that take memory only as far as they are written.
//!
//! The kernel counts every private writable mapping against `RLIMIT_DATA`, touched or not.
//! So the addresses of a table are reserved read-only, which counts nothing, and become
//! writable from the front on, in pieces, when an entry is to be written. What lies behind
//! reads as zeroes. With the first entry comes the reservation: an empty table is one word.

use crate::map;
use crate::sys;
use crate::valid::Zeroable;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Bytes that become writable together: few system calls for a full table, and little that
/// counts for one with a single entry.
const PIECE: usize = 64 << 10;

/// `LEN` entries, all-zero until they are written. All-zero bytes are an empty table.
#[derive(Zeroable)]
pub struct Sparse<T, const LEN: usize> {
    /// Null: nothing is reserved.
    base: AtomicPtr<T>,
    /// Entries from the base on that are writable.
    writable: AtomicUsize,
}

/// Bytes of addresses for so many entries: whole pieces.
const fn addresses<T>(len: usize) -> usize {
    (len * size_of::<T>()).next_multiple_of(PIECE)
}

impl<T: Zeroable + Sync, const LEN: usize> Default for Sparse<T, LEN> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Zeroable + Sync, const LEN: usize> Sparse<T, LEN> {
    /// Entries lie on from the start of a page.
    const ALIGNED: () = assert!(align_of::<T>() <= 4096 && size_of::<T>() > 0);

    /// An empty table.
    #[must_use]
    pub const fn new() -> Self {
        let () = Self::ALIGNED;
        Self { base: AtomicPtr::new(core::ptr::null_mut()), writable: AtomicUsize::new(0) }
    }

    /// An entry; `None`: it is zero, as it was never to be written, or there are not so many.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&T> {
        // Acquire: pairs with the exchange in `extend`; the base is there before.
        if index >= self.writable.load(Ordering::Acquire) {
            return None;
        }
        Some(self.entry(index))
    }

    /// The entry at an index below what is writable, or was when it was asked.
    #[inline]
    fn entry(&self, index: usize) -> &T {
        // Relaxed: the caller has acquired the count, which is published behind the base.
        let base = self.base.load(Ordering::Relaxed);
        // SAFETY: `extend` has made the entries below the count writable, at this base, which only
        // the end of the table's lifetime unmaps (`drop`). They lie aligned from a page on
        // (`ALIGNED`). They began as zeroes, which `Zeroable` says are a value, and are lent as
        // shared references alone, to several threads as `Sync` allows.
        unsafe { &*base.add(index) }
    }

    /// Whether an entry was ever to be written.
    #[inline]
    #[must_use]
    pub fn is_begun(&self) -> bool {
        // Relaxed: a word that was written since is news at the next look.
        self.writable.load(Ordering::Relaxed) != 0
    }

    /// An entry, after making it writable. `None`: there are not so many, or the kernel has no
    /// addresses or no memory for it.
    #[inline]
    pub fn writable(&self, index: usize) -> Option<&T> {
        // Acquire: as in `get`.
        if index >= self.writable.load(Ordering::Acquire) {
            self.extend(index)?;
        }
        Some(self.entry(index))
    }

    /// The entry at an address, if it is that of one that was ever to be written.
    #[must_use]
    pub fn at(&self, address: usize) -> Option<&T> {
        // Acquire: as in `get`.
        let writable = self.writable.load(Ordering::Acquire);
        let offset = address.checked_sub(self.base.load(Ordering::Relaxed) as usize)?;
        let index = offset / size_of::<T>();
        let is_one = offset.is_multiple_of(size_of::<T>()) && index < writable;
        is_one.then(|| self.entry(index))
    }

    #[cold]
    fn extend(&self, index: usize) -> Option<()> {
        if index >= LEN {
            return None;
        }
        let base = self.reserved()?.cast::<u8>();
        let bytes = |entries: usize| entries * size_of::<T>();
        // The piece in which the last of these ends may be writable already: once more does no harm.
        let from = bytes(self.writable.load(Ordering::Relaxed)) / PIECE * PIECE;
        let to = bytes(index + 1).next_multiple_of(PIECE);
        if to > from {
            // SAFETY: inside the reservation. Another thread may do the same, or more: what
            // is writable stays so.
            sys::make_writable(unsafe { base.add(from) }, to - from).ok()?;
            // Release: what was reserved and made writable is so for a thread that sees the count.
            self.writable.fetch_max((to / size_of::<T>()).min(LEN), Ordering::AcqRel);
        }
        Some(())
    }

    fn reserved(&self) -> Option<*mut T> {
        let base = self.base.load(Ordering::Relaxed);
        if !base.is_null() {
            return Some(base);
        }
        let reserved = map::reserve_unwritten(addresses::<T>(LEN)).ok()?;
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

impl<T, const LEN: usize> Drop for Sparse<T, LEN> {
    fn drop(&mut self) {
        let base = *self.base.get_mut();
        if !base.is_null() {
            // SAFETY: what `reserved` has mapped. Entries were lent for no longer than the table,
            // which ends here.
            unsafe { sys::unmap(base.cast(), addresses::<T>(LEN)) };
        }
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

    fn address<T>(entry: &T) -> usize {
        core::ptr::from_ref(entry) as usize
    }

    /// An entry may be longer than a piece, and end in the middle of one.
    #[test]
    fn entries_of_any_size_are_all_writable() {
        fn fill<const LEN: usize>(table: &Sparse<[AtomicU64; LEN], 40>) {
            for index in [0, 1, 7, 39] {
                let entry = table.writable(index).unwrap();
                entry.iter().for_each(|word| word.store(index as u64 + 1, Ordering::Relaxed));
            }
            assert!(table.writable(40).is_none());
            for (index, expected) in [(0, 1), (1, 2), (2, 0), (7, 8), (39, 40)] {
                let entry = table.get(index).unwrap();
                assert!(entry.iter().all(|word| word.load(Ordering::Relaxed) == expected));
            }
        }
        fill(&Sparse::<[AtomicU64; 3], 40>::new());
        fill(&Sparse::<[AtomicU64; 5_000], 40>::new());
        fill(&Sparse::<[AtomicU64; 8_192], 40>::new());
        fill(&Sparse::<[AtomicU64; 20_001], 40>::new());
    }

    #[test]
    fn only_what_is_written_counts() {
        static TABLE: Sparse<AtomicU64, { 1 << 20 }> = Sparse::new();
        let read = |index| TABLE.get(index).map(|it| it.load(Ordering::Relaxed));
        assert_eq!(read(7), None, "nothing is reserved");
        let at = TABLE.writable(7).unwrap();
        at.store(5, Ordering::Relaxed);
        assert_eq!((read(7), read(8), read((1 << 20) - 1)), (Some(5), Some(0), None));
        let (base, len) = (address(at) - 7 * 8, 8 << 20);
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
        static TABLE: Sparse<[AtomicU64; 3], 10_000> = Sparse::new();
        let is_one = |address: usize| TABLE.at(address).is_some();
        assert!(!is_one(0));
        let entry = TABLE.writable(1).unwrap();
        let at = address(entry);
        assert!(TABLE.at(at).is_some_and(|found| core::ptr::eq(found, entry)));
        assert!(!is_one(at + 8), "inside one");
        assert!(!is_one(at - 48), "before them");
        assert!(!is_one(at + 24 * 9_000), "never to be written");
    }

    #[test]
    fn threads_that_extend_it_at_once_do_not_take_from_each_other() {
        static TABLE: Sparse<AtomicU64, { 1 << 20 }> = Sparse::new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for index in (thread..1 << 18).step_by(4) {
                        let word = TABLE.writable(index).unwrap();
                        word.store(index as u64 + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        for index in 0..1 << 18 {
            let word = TABLE.get(index).unwrap();
            assert_eq!(word.load(Ordering::Relaxed), index as u64 + 1);
        }
    }
}
