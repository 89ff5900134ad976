//! `[share]`: which users' programs may share memory, by the policy of the host.
//!
//! It is the administrator's word, told to both ends by the agent, which knows from the kernel who they are. So it
//! counts only where a file says it that no other user may write.

use std::fmt;

use crate::accounts::{Group, User};

/// Two users whose programs may share memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair(pub(crate) [User; 2]);

impl Pair {
    /// What a pair looks like, for error texts.
    pub(crate) const ALLOWED: &str = "a list of two users: [\"redis\", \"www-data\"]";

    fn is_of(&self, one: u32, other: u32) -> bool {
        let [first, second] = &self.0;
        let pair = (first.uid(), second.uid());
        pair == (one, other) || pair == (other, one)
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = &self.0;
        write!(f, "{first} with {second}")
    }
}

/// A process, as the kernel says of whom it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Party<'a> {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Its other groups.
    pub(crate) groups: &'a [u32],
}

impl Party<'_> {
    fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

/// The policy. By default it grants nothing: the two ends' own lists decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharePolicy {
    pub(crate) all: bool,
    pub(crate) groups: Vec<Group>,
    pub(crate) pairs: Vec<Pair>,
}

impl SharePolicy {
    /// Whether these two may share memory, whatever they list themselves.
    pub(crate) fn grants(&self, one: &Party<'_>, other: &Party<'_>) -> bool {
        let have_both = |group: &Group| one.is_in(group.gid()) && other.is_in(group.gid());
        self.all
            || self.groups.iter().any(have_both)
            || self.pairs.iter().any(|pair| pair.is_of(one.uid, other.uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(uid: u32, gid: u32, groups: &[u32]) -> Party<'_> {
        Party { uid, gid, groups }
    }

    fn pair(one: u32, other: u32) -> Pair {
        Pair([one, other].map(|uid| User::find(&uid.to_string(), Some(uid)).unwrap()))
    }

    #[test]
    fn nothing_is_granted_by_default_and_everything_by_all() {
        let [redis, nginx] = [party(1, 1, &[]), party(2, 2, &[])];
        assert!(!SharePolicy::default().grants(&redis, &nginx));
        assert!(!SharePolicy::default().grants(&redis, &redis));
        assert!(SharePolicy { all: true, ..SharePolicy::default() }.grants(&redis, &nginx));
    }

    #[test]
    fn a_group_is_granted_among_its_members_only() {
        let groups = Group::find("70", Some(70)).into_iter().collect();
        let policy = SharePolicy { groups, ..SharePolicy::default() };
        let [redis, nginx, other] = [party(1, 70, &[]), party(2, 2, &[3, 70]), party(3, 3, &[7])];
        assert!(policy.grants(&redis, &nginx) && policy.grants(&nginx, &redis));
        assert!(!policy.grants(&redis, &other) && !policy.grants(&other, &nginx));
    }

    #[test]
    fn a_pair_is_granted_both_ways_and_leads_no_further() {
        let pairs = vec![pair(1, 2), pair(2, 3), pair(0, 0)];
        let policy = SharePolicy { pairs, ..SharePolicy::default() };
        let user = |uid| party(uid, uid, &[]);
        for (one, other) in [(1, 2), (2, 1), (2, 3), (0, 0)] {
            assert!(policy.grants(&user(one), &user(other)), "{one}, {other}");
        }
        for (one, other) in [(1, 3), (1, 1), (0, 1)] {
            assert!(!policy.grants(&user(one), &user(other)), "{one}, {other}");
        }
    }
}
