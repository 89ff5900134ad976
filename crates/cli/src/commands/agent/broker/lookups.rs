//! Which lookups are two ends of one connection: no I/O, no clock.
//!
//! Two that have the same token and come from opposite sides are. The token is made of the connection's identity
//! ([`sidestep_wire::host_control::distant_token`]): a process that knows it holds an end, or could trace the
//! process that does. Addresses and ports may differ at the two ends.
//!
//! A lookup waits for the other one for [`LIFETIME`]; the libraries ask again as long as their
//! connections are in use. What waits is bounded, for each process, each user and in all.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sidestep_wire::host_control::{Instance, Lookup, Side};

/// How long one waits: longer than a library takes to ask again.
pub(super) const LIFETIME: Duration = Duration::from_secs(4);
/// Those of one process.
pub(super) const OF_LINE_MAX: usize = 1_024;
/// Those of one user, of all its processes.
pub(super) const OF_USER_MAX: usize = 4_096;
/// Those of all users; about 100 bytes each.
pub(super) const ALL_MAX: usize = 65_536;

/// Who looks up, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asker {
    /// The connection to the agent that it came by.
    pub(super) line: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// A process that waits for the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) asker: Asker,
    /// The process, as it says.
    pub(super) instance: Instance,
    /// The server's port, as it sees that.
    pub(super) port: u16,
    pub(super) since: Instant,
}

/// All that wait.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    waiting: HashMap<([u8; 16], Side), Waiting>,
    counts: HashMap<Owner, usize>,
}

/// Whose lookups are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    Line(u64),
    User(u32),
}

impl Lookups {
    /// Takes a lookup; returns who holds the other end, if it waits and its line is still there.
    /// Without room for one more it is forgotten, which the asker cannot tell from waiting.
    pub(super) fn submit(
        &mut self,
        now: Instant,
        asker: Asker,
        lookup: &Lookup,
        is_there: impl Fn(u64) -> bool,
    ) -> Option<Waiting> {
        let other = self.remove(&(lookup.token, lookup.side.other()));
        if let Some(other) = other.filter(|other| is_there(other.asker.line)) {
            self.remove(&(lookup.token, lookup.side));
            return Some(other);
        }
        // Who asks again takes his own place.
        let before = self.remove(&(lookup.token, lookup.side));
        let has_room = owners(asker).into_iter().all(|(owner, max)| self.count(owner) < max);
        if has_room && self.waiting.len() < ALL_MAX {
            self.note(asker);
            let since = before.map_or(now, |before| before.since);
            let Lookup { instance, port, .. } = *lookup;
            let waiting = Waiting { asker, instance, port, since };
            self.waiting.insert((lookup.token, lookup.side), waiting);
        }
        None
    }

    /// Forgets those that have waited too long.
    pub(super) fn expire(&mut self, now: Instant) {
        self.waiting.retain(|_, waiting| now.duration_since(waiting.since) < LIFETIME);
        self.counts.clear();
        let all: Vec<Asker> = self.waiting.values().map(|it| it.asker).collect();
        all.into_iter().for_each(|asker| self.note(asker));
    }

    fn count(&self, owner: Owner) -> usize {
        self.counts.get(&owner).copied().unwrap_or(0)
    }

    fn note(&mut self, asker: Asker) {
        for (owner, _) in owners(asker) {
            *self.counts.entry(owner).or_default() += 1;
        }
    }

    fn remove(&mut self, key: &([u8; 16], Side)) -> Option<Waiting> {
        let waiting = self.waiting.remove(key)?;
        for (owner, _) in owners(waiting.asker) {
            if let Some(count) = self.counts.get_mut(&owner) {
                *count -= 1;
            }
        }
        Some(waiting)
    }
}

/// Whose a lookup is, and how many each may have.
fn owners(asker: Asker) -> [(Owner, usize); 2] {
    [(Owner::Line(asker.line), OF_LINE_MAX), (Owner::User(asker.uid), OF_USER_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Asker = Asker { line: 1, uid: 1000, gid: 100 };
    const BOB: Asker = Asker { line: 2, uid: 1000, gid: 100 };

    fn lookup(token: u32, side: Side) -> Lookup {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&token.to_be_bytes());
        Lookup { instance: Instance([side as u8; 16]), token: bytes, side, port: 80 }
    }

    /// Submits it while all lines are there.
    fn submit(all: &mut Lookups, now: Instant, who: Asker, it: &Lookup) -> Option<u64> {
        all.submit(now, who, it, |_| true).map(|other| other.asker.line)
    }

    #[test]
    fn opposite_sides_of_one_connection_are_matched_once() {
        let (mut all, now) = (Lookups::default(), Instant::now());
        let (client, server) = (lookup(7, Side::Client), lookup(7, Side::Server));
        assert_eq!(submit(&mut all, now, ALICE, &client), None);
        let other = all.submit(now, BOB, &server, |_| true).unwrap();
        assert_eq!((other.asker, other.instance), (ALICE, client.instance));
        assert_eq!(submit(&mut all, now, BOB, &server), None, "it was taken");
        assert_eq!(submit(&mut all, now, ALICE, &client), Some(BOB.line), "and waits again");
        assert!(all.waiting.is_empty());
    }

    #[test]
    fn same_sides_and_other_connections_are_not() {
        let (mut all, now) = (Lookups::default(), Instant::now());
        for (who, token, side) in
            [(ALICE, 7, Side::Client), (BOB, 7, Side::Client), (BOB, 8, Side::Server)]
        {
            assert_eq!(submit(&mut all, now, who, &lookup(token, side)), None);
        }
        assert_eq!(all.waiting.len(), 2, "a second client takes the place of the first");
        assert_eq!(submit(&mut all, now, ALICE, &lookup(7, Side::Server)), Some(BOB.line));
    }

    #[test]
    fn one_that_has_hung_up_is_nobody() {
        let (mut all, now) = (Lookups::default(), Instant::now());
        submit(&mut all, now, ALICE, &lookup(7, Side::Client));
        let server = lookup(7, Side::Server);
        assert_eq!(all.submit(now, BOB, &server, |line| line != ALICE.line), None);
        let client = lookup(7, Side::Client);
        assert_eq!(submit(&mut all, now, ALICE, &client), Some(BOB.line), "but BOB waits");
    }

    #[test]
    fn waiting_ends() {
        let (mut all, now) = (Lookups::default(), Instant::now());
        submit(&mut all, now, ALICE, &lookup(7, Side::Client));
        all.expire(now + LIFETIME / 2);
        // Asking again does not prolong it: who asks for ever would wait for ever.
        submit(&mut all, now + LIFETIME / 2, ALICE, &lookup(7, Side::Client));
        all.expire(now + LIFETIME);
        assert!(all.waiting.is_empty());
        assert_eq!(submit(&mut all, now + LIFETIME, BOB, &lookup(7, Side::Server)), None);
    }

    #[test]
    fn one_process_leaves_room_for_others_of_its_user() {
        let (mut all, now) = (Lookups::default(), Instant::now());
        for token in 0..2 * OF_LINE_MAX as u32 {
            submit(&mut all, now, ALICE, &lookup(token, Side::Client));
        }
        assert_eq!(all.waiting.len(), OF_LINE_MAX);
        submit(&mut all, now, BOB, &lookup(u32::MAX, Side::Server));
        assert_eq!(submit(&mut all, now, ALICE, &lookup(u32::MAX, Side::Client)), Some(BOB.line));
    }

    #[test]
    fn one_user_leaves_room_for_others() {
        let (mut all, now) = (Lookups::default(), Instant::now());
        for token in 0..2 * OF_USER_MAX as u32 {
            let who = Asker { line: 10 + u64::from(token % 8), ..ALICE };
            submit(&mut all, now, who, &lookup(token, Side::Client));
        }
        assert_eq!(all.waiting.len(), OF_USER_MAX);
        let stranger = Asker { uid: 1, ..BOB };
        submit(&mut all, now, stranger, &lookup(u32::MAX, Side::Client));
        assert_eq!(submit(&mut all, now, ALICE, &lookup(u32::MAX, Side::Server)), Some(2));
        assert_eq!(all.waiting.len(), OF_USER_MAX);
        // What was matched, or has expired, is room again.
        submit(&mut all, now, BOB, &lookup(0, Side::Server));
        submit(&mut all, now, BOB, &lookup(u32::MAX, Side::Server));
        assert_eq!(all.waiting.len(), OF_USER_MAX);
        all.expire(now + LIFETIME);
        assert!(all.waiting.is_empty() && all.counts.is_empty());
    }

    #[test]
    fn all_users_together_are_bounded() {
        let (mut all, now) = (Lookups::default(), Instant::now());
        for number in 0..ALL_MAX as u32 + 10 {
            let who = Asker { line: number.into(), uid: number / 1000, gid: 0 };
            submit(&mut all, now, who, &lookup(number, Side::Server));
        }
        assert_eq!(all.waiting.len(), ALL_MAX);
    }
}
