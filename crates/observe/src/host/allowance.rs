//! What one look at the host may cost for each user.
//!
//! Any user can run a thousand processes with a hundred thousand descriptors each, and fill a state
//! with connections that do not exist. The process that looks pays for that in time and memory, and
//! the agent looks for all users. So each user has an allowance for one look. When it is used up,
//! the look goes on without what is left of *that* user, and says so. What belongs to the user who
//! looks has no bound.

use std::collections::HashMap;

/// Descriptors that are looked at: a server with a million connections is seen. About a second.
const DESCRIPTORS_MAX: u64 = 1 << 20;
/// What a process costs besides its descriptors, in descriptors.
const PROCESS_COST: u64 = 32;
/// What a thread costs, in descriptors.
const THREAD_COST: u64 = 8;
/// Bytes that are read, or taken for what was found. About a tenth of a second.
const BYTES_MAX: u64 = 256 << 20;
/// What is kept of a state besides its connections, in bytes.
const STATE_COST: u64 = 64 << 10;
/// What is kept of a connection, in bytes.
const CONNECTION_COST: u64 = 1 << 10;

/// Those of all users, for one look.
pub(crate) struct Allowances {
    of_users: HashMap<u32, Allowance>,
    /// The user who looks.
    looker: u32,
}

/// See the [module](self).
pub(crate) struct Allowance {
    descriptors: u64,
    /// Bytes that are left.
    pub(crate) bytes: u64,
    is_exceeded: bool,
}

impl Allowances {
    pub(crate) fn new(looker: u32) -> Self {
        Self { of_users: HashMap::new(), looker }
    }

    pub(crate) fn of(&mut self, user: u32) -> &mut Allowance {
        let [descriptors, bytes] = match user == self.looker {
            true => [u64::MAX; 2],
            false => [DESCRIPTORS_MAX, BYTES_MAX],
        };
        let new = || Allowance { descriptors, bytes, is_exceeded: false };
        self.of_users.entry(user).or_insert_with(new)
    }

    /// The users of whom something was left out, in the order of their numbers.
    pub(crate) fn exceeded(&self) -> Vec<u32> {
        let exceeded = self.of_users.iter().filter(|(_, allowance)| allowance.is_exceeded);
        let mut users: Vec<u32> = exceeded.map(|(user, _)| *user).collect();
        users.sort_unstable();
        users
    }
}

impl Allowance {
    /// A process may be looked at. False: not any more.
    pub(crate) fn takes_process(&mut self) -> bool {
        self.takes_descriptors(PROCESS_COST)
    }

    /// One of its descriptors.
    pub(crate) fn takes_descriptor(&mut self) -> bool {
        self.takes_descriptors(1)
    }

    /// One of its threads.
    pub(crate) fn takes_thread(&mut self) -> bool {
        self.takes_descriptors(THREAD_COST)
    }

    /// A state, before its bytes are read.
    pub(crate) fn takes_state(&mut self) -> bool {
        self.takes_bytes(STATE_COST)
    }

    /// A connection, to be kept.
    pub(crate) fn takes_connection(&mut self) -> bool {
        self.takes_bytes(CONNECTION_COST)
    }

    /// Something was more than there is left for.
    pub(crate) fn exceed(&mut self) {
        self.is_exceeded = true;
    }

    fn takes_descriptors(&mut self, n: u64) -> bool {
        let left = self.descriptors.checked_sub(n);
        self.is_exceeded |= left.is_none();
        left.inspect(|left| self.descriptors = *left).is_some()
    }

    fn takes_bytes(&mut self, n: u64) -> bool {
        let left = self.bytes.checked_sub(n);
        self.is_exceeded |= left.is_none();
        left.inspect(|left| self.bytes = *left).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_his_own_and_the_looker_no_end() {
        let mut all = Allowances::new(7);
        assert!((0..DESCRIPTORS_MAX / PROCESS_COST).all(|_| all.of(1).takes_process()));
        assert!(!all.of(1).takes_descriptor() && all.of(1).takes_state());
        assert!(!all.of(1).takes_thread());
        assert!(all.of(2).takes_descriptor());
        assert!((0..BYTES_MAX / CONNECTION_COST + 1).all(|_| all.of(7).takes_connection()));
        assert_eq!(all.exceeded(), [1]);
        all.of(3).exceed();
        assert!(!(0..BYTES_MAX / CONNECTION_COST + 1).all(|_| all.of(2).takes_connection()));
        assert_eq!(all.exceeded(), [1, 2, 3]);
    }
}
