//! Which names the program has resolved, and to which addresses.
//!
//! `connect` has an address and no name, and TLS needs the name: the server is told it, and has to have it in its
//! certificate. So what libc resolves is remembered, as long as a rule of TLS is about connections that the program begins.
//! Many names may have one address. The name of an address is
//!
//! * the one that this thread has resolved to it last, or else
//! * the one that other threads have, if they agree: programs resolve in threads of their own, as curl does.
//!
//! Otherwise there is none, and the gateway refuses the connection if its rule wants one. A guess would not deceive the
//! verification, but it would lead one server's bytes to another one at the same address.
//!
//! There is no allocator here: the latest [`PLACES`] are remembered.

use crate::process::owner::Held;
use crate::process::pool::SharedLock;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use sidestep_proto::protection::ResolvedName;
use sidestep_wire::hand_over::RESOLVED_NAME_ROOM;

/// Answers that are remembered: of one name, thread and address each.
const PLACES: usize = 256;
/// Words of a name.
const WORDS: usize = RESOLVED_NAME_ROOM / 8;

/// See the [module](self). All is changed and read under the lock.
pub(super) struct Resolved {
    lock: SharedLock,
    /// Answers that there have been.
    count: AtomicU64,
    places: [Place; PLACES],
}

struct Place {
    /// Which one it was of all answers, from 1; 0: the place is free.
    turn: AtomicU64,
    thread: AtomicU32,
    address: [AtomicU64; 2],
    name: [AtomicU64; WORDS],
}

impl Resolved {
    pub(super) const fn new() -> Self {
        Self {
            lock: SharedLock::new(),
            count: AtomicU64::new(0),
            places: [const { Place::new() }; PLACES],
        }
    }

    pub(super) fn reset_lock(&self) {
        self.lock.get().reset();
    }

    /// A thread has resolved a name to this address.
    pub(super) fn note(&self, thread: u32, address: IpAddr, name: &ResolvedName) {
        let held = Held::enter(self.lock.get());
        if !held.is_outermost() {
            // A signal handler in the middle of another answer, where libc does not allow it to ask.
            return;
        }
        let (address, name) = (words_of(address), words_of_name(name));
        let is_same = |it: &&Place| it.is_of(thread) && it.is_at(address) && it.has(&name);
        let oldest = || self.places.iter().min_by_key(|it| it.turn.load(Relaxed));
        let Some(place) = self.places.iter().find(is_same).or_else(oldest) else { return };
        place.turn.store(self.count.fetch_add(1, Relaxed) + 1, Relaxed);
        place.thread.store(thread, Relaxed);
        store(&place.address, &address);
        store(&place.name, &name);
    }

    /// The name of an address, for this thread.
    pub(super) fn name_of(&self, thread: u32, address: IpAddr) -> Option<ResolvedName> {
        let held = Held::enter(self.lock.get());
        if !held.is_outermost() {
            return None;
        }
        let address = words_of(address);
        let known = || self.places.iter().filter(|it| it.is_taken() && it.is_at(address));
        let own = known().filter(|it| it.is_of(thread)).max_by_key(|it| it.turn.load(Relaxed));
        let agreed = || {
            let first = known().next()?;
            known().all(|it| it.has(&load(&first.name))).then_some(first)
        };
        own.or_else(agreed)?.name()
    }
}

impl Place {
    const fn new() -> Self {
        Self {
            turn: AtomicU64::new(0),
            thread: AtomicU32::new(0),
            address: [const { AtomicU64::new(0) }; 2],
            name: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    fn is_taken(&self) -> bool {
        self.turn.load(Relaxed) != 0
    }

    fn is_of(&self, thread: u32) -> bool {
        self.thread.load(Relaxed) == thread
    }

    fn is_at(&self, address: [u64; 2]) -> bool {
        load(&self.address) == address
    }

    fn has(&self, name: &[u64; WORDS]) -> bool {
        load(&self.name) == *name
    }

    fn name(&self) -> Option<ResolvedName> {
        let mut bytes = [0; RESOLVED_NAME_ROOM];
        for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(load(&self.name)) {
            *chunk = word.to_ne_bytes();
        }
        ResolvedName::from_padded(&bytes)
    }
}

fn words_of(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

fn words_of_name(name: &ResolvedName) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, chunk) in words.iter_mut().zip(name.padded().as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*chunk);
    }
    words
}

fn store<const N: usize>(to: &[AtomicU64; N], words: &[u64; N]) {
    to.iter().zip(words).for_each(|(place, word)| place.store(*word, Relaxed));
}

fn load<const N: usize>(from: &[AtomicU64; N]) -> [u64; N] {
    from.each_ref().map(|word| word.load(Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Box<Resolved> {
        Box::new(Resolved::new())
    }

    fn note(table: &Resolved, thread: u32, address: &str, name: &str) {
        table.note(thread, address.parse().unwrap(), &name.parse().unwrap());
    }

    fn name_of(table: &Resolved, thread: u32, address: &str) -> Option<String> {
        let name = table.name_of(thread, address.parse().unwrap());
        name.map(|it| it.as_str().to_owned())
    }

    #[test]
    fn a_thread_has_its_own_last_name_of_an_address() {
        let table = table();
        note(&table, 1, "10.0.0.1", "a.example");
        note(&table, 1, "10.0.0.1", "b.example");
        note(&table, 1, "fd00::1", "c.example");
        note(&table, 2, "10.0.0.1", "d.example");
        assert_eq!(name_of(&table, 1, "10.0.0.1").as_deref(), Some("b.example"));
        assert_eq!(name_of(&table, 1, "fd00::1").as_deref(), Some("c.example"));
        note(&table, 1, "10.0.0.1", "a.example");
        assert_eq!(name_of(&table, 1, "10.0.0.1").as_deref(), Some("a.example"), "once more");
        assert_eq!(name_of(&table, 1, "10.0.0.2"), None);
    }

    #[test]
    fn other_threads_are_believed_if_they_agree() {
        let table = table();
        note(&table, 1, "10.0.0.1", "a.example");
        note(&table, 2, "10.0.0.1", "a.example");
        assert_eq!(name_of(&table, 3, "10.0.0.1").as_deref(), Some("a.example"));
        note(&table, 2, "10.0.0.1", "b.example");
        assert_eq!(name_of(&table, 3, "10.0.0.1"), None, "which one is meant is not known");
        assert_eq!(name_of(&table, 1, "10.0.0.1").as_deref(), Some("a.example"));
    }

    #[test]
    fn the_latest_are_remembered() {
        let table = table();
        for n in 0..=PLACES {
            note(&table, 1, &format!("10.0.{}.{}", n / 256, n % 256), &format!("{n}.example"));
            note(&table, 1, "fd00::1", "often.example");
        }
        assert_eq!(name_of(&table, 1, "10.0.0.0"), None);
        assert_eq!(name_of(&table, 1, "10.0.1.0").as_deref(), Some("256.example"));
        assert_eq!(name_of(&table, 1, "fd00::1").as_deref(), Some("often.example"));
    }

    #[test]
    fn names_of_all_lengths_come_back() {
        let table = table();
        for len in [1, 7, 8, 9, 252, 253] {
            let name = "x".repeat(len);
            note(&table, 1, "10.0.0.1", &name);
            assert_eq!(name_of(&table, 1, "10.0.0.1"), Some(name));
        }
    }
}
