//! Tables that threads and processes fill at once, without a lock and without growing.
//!
//! An entry begins with a [`Label`] that says what it stands for. A thread that wants the entry
//! of a [`Key`] looks at a few places, beginning at one that the key determines; if none has
//! the label, the first free or outdated one gets it. If none is to be had the table is full
//! for this key, and its owner counts that.
//!
//! Two who enter the same key at once may get two entries; readers add those up. A thread that
//! still counts in an entry that is just given away counts one for the new key. Neither is
//! worth a lock in the way of a program.

use core::sync::atomic::{AtomicU64, Ordering, fence};
use sidestep_derive::Shared;

/// What an entry stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// An address, as in a slot.
    pub address: [u64; 2],
    /// Everything else; neither 0 nor all ones.
    pub word: u64,
}

/// The end of a connection that accepted, and whether it is ours: what all keys have.
#[derive(Clone, Copy)]
pub(crate) struct Server {
    pub(crate) ip: [u64; 2],
    pub(crate) port: u16,
    /// 4 or 6; 0: the address is not known.
    pub(crate) family: u8,
    pub(crate) is_ours: bool,
}

/// Where its parts lie in the word of a key. The bits from 16 to 23, and those from 28 on but
/// for 31, are for what else is told apart. One bit is always set and bit 31 never is: no
/// word is 0 or all ones.
const OURS: u64 = 1 << 24;
const FAMILY_AT: u32 = 25;
const USED: u64 = 1 << 27;

impl Server {
    /// The key of this server and of what else is told apart.
    pub(crate) fn key(&self, others: u64) -> Key {
        let family: u64 = match self.family {
            4 => 1,
            6 => 2,
            _ => 0,
        };
        let ours = if self.is_ours { OURS } else { 0 };
        let word = USED | ours | u64::from(self.port) | family << FAMILY_AT | others;
        Key { address: self.ip, word }
    }

    /// The server of a key.
    pub(crate) fn of(&Key { address, word }: &Key) -> Self {
        Self {
            ip: address,
            port: word as u16,
            family: [0, 4, 6, 0][(word >> FAMILY_AT & 3) as usize],
            is_ours: word & OURS != 0,
        }
    }
}

/// The key in an entry.
#[derive(Shared)]
#[repr(C)]
pub struct Label {
    /// [`FREE`], [`BUSY`] or the key's.
    word: AtomicU64,
    address: [AtomicU64; 2],
}

const FREE: u64 = 0;
/// A thread is writing the address.
const BUSY: u64 = u64::MAX;

/// Places that are looked at for one key.
const PLACES: usize = 8;

/// An entry of a table.
pub(crate) trait Entry {
    /// Its label.
    fn label(&self) -> &Label;
    /// Whether it is missed no more.
    fn is_outdated(&self) -> bool;
}

/// The entry of a key, which it gets if it has none. `None`: the table is full.
pub(crate) fn enter<'a, T: Entry>(table: &'a [T], key: &Key) -> Option<&'a T> {
    let mut vacant = None;
    for place in 0..PLACES {
        let entry = table.get((hash(key) + place) % table.len())?;
        // Acquire: pairs with the Release in `claim`; the address is there.
        let word = entry.label().word.load(Ordering::Acquire);
        if word == key.word && entry.label().is_at(&key.address) {
            return Some(entry);
        }
        if word == FREE || (word != BUSY && entry.is_outdated()) {
            vacant = vacant.or(Some((entry, word)));
        }
        if word == FREE {
            // Entries never become free again: beyond it there is nothing of this key.
            break;
        }
    }
    vacant.and_then(|(entry, word)| entry.label().claim(word, key).then_some(entry))
}

impl Label {
    /// What the entry stands for; `None` if for nothing, or if it is just given away.
    #[must_use]
    pub fn key(&self) -> Option<Key> {
        // Acquire: pairs with the Release in `claim`.
        let word = self.word.load(Ordering::Acquire);
        let address = self.address.each_ref().map(|half| half.load(Ordering::Relaxed));
        // Acquire: what went before is of the next line's word or an earlier one.
        fence(Ordering::Acquire);
        let is_still = self.word.load(Ordering::Relaxed) == word;
        (is_still && word != FREE && word != BUSY).then_some(Key { address, word })
    }

    fn is_at(&self, address: &[u64; 2]) -> bool {
        self.address.iter().zip(address).all(|(half, of)| half.load(Ordering::Relaxed) == *of)
    }

    fn claim(&self, old: u64, key: &Key) -> bool {
        let taken = self.word.compare_exchange(old, BUSY, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            return false;
        }
        for (half, of) in self.address.iter().zip(key.address) {
            half.store(of, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire of a reader of the word.
        self.word.store(key.word, Ordering::Release);
        true
    }
}

/// Where the search for a key begins: Fibonacci hashing of its words.
fn hash(key: &Key) -> usize {
    let mixed = (key.address[0] ^ key.address[1].rotate_left(32) ^ key.word.rotate_left(16))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use std::vec::Vec;

    struct Place {
        label: Label,
        outdated: AtomicBool,
        count: AtomicU64,
    }

    impl Entry for Place {
        fn label(&self) -> &Label {
            &self.label
        }

        fn is_outdated(&self) -> bool {
            self.outdated.load(Ordering::Relaxed)
        }
    }

    fn table(len: usize) -> Vec<Place> {
        let place = |_| Place {
            label: Label { word: AtomicU64::new(FREE), address: [const { AtomicU64::new(0) }; 2] },
            outdated: AtomicBool::new(false),
            count: AtomicU64::new(0),
        };
        (0..len).map(place).collect()
    }

    fn key(n: u64) -> Key {
        Key { address: [n, 7], word: n + 1 }
    }

    #[test]
    fn a_key_keeps_its_entry() {
        let table = table(64);
        for n in (0..20).chain(0..20) {
            enter(&table, &key(n)).unwrap().count.fetch_add(1, Ordering::Relaxed);
        }
        let mut known: Vec<_> = table.iter().filter_map(|place| place.label.key()).collect();
        known.sort_by_key(|key| key.word);
        assert_eq!(known, (0..20).map(key).collect::<Vec<_>>());
        let counts = table.iter().map(|place| place.count.load(Ordering::Relaxed));
        assert_eq!(counts.filter(|n| *n > 0).collect::<Vec<_>>(), [2; 20]);
    }

    #[test]
    fn a_full_table_refuses_until_an_entry_is_outdated() {
        let table = table(PLACES);
        for n in 0..PLACES as u64 {
            assert!(enter(&table, &key(n)).is_some());
        }
        assert!(enter(&table, &key(100)).is_none());
        assert!(enter(&table, &key(3)).is_some(), "it is in there");
        table[5].outdated.store(true, Ordering::Relaxed);
        let given = enter(&table, &key(100)).unwrap();
        assert!(core::ptr::eq(given, &raw const table[5]));
        assert_eq!(given.label.key(), Some(key(100)));
    }

    #[test]
    fn an_entry_whose_writer_died_is_nobodys() {
        let table = table(PLACES);
        table[hash(&key(1)) % PLACES].label.word.store(BUSY, Ordering::Relaxed);
        assert!(enter(&table, &key(1)).is_some());
        assert_eq!(table.iter().filter(|place| place.label.key().is_some()).count(), 1);
    }

    #[test]
    fn threads_lose_no_count() {
        const EACH: u64 = 5000;
        let table = table(64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..EACH {
                        let entry = enter(&table, &key(n % 10)).or_else(|| table.first()).unwrap();
                        entry.count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let sum: u64 = table.iter().map(|place| place.count.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, 4 * EACH);
    }
}
