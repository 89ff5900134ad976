//! Users and groups that a configuration names, and their numbers: the library compares
//! numbers, as the kernel tells them.

use std::fmt;

use nix::unistd::{self, Gid, Uid};

/// A user of this system, or just a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    shown: String,
    uid: u32,
}

impl User {
    /// The allowed values in words, for error texts.
    pub(crate) const ALLOWED: &str = "the name of a user of this system, or a number";

    /// The user of this name or, if the text is one, this number.
    pub(crate) fn find(text: &str, number: Option<u32>) -> Option<Self> {
        let named = || unistd::User::from_name(text).ok().flatten().map(|user| user.uid.as_raw());
        Some(Self { uid: number.or_else(named)?, shown: text.to_owned() })
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// What a user is called: by name, if this system has one for the number.
pub(crate) fn name_of(uid: u32) -> String {
    known_name_of(uid).unwrap_or_else(|| format!("user {uid}"))
}

/// The name that this system has for the number.
pub(crate) fn known_name_of(uid: u32) -> Option<String> {
    unistd::User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name)
}

/// A group of this system and its members, or just a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    shown: String,
    gid: u32,
    members: Vec<u32>,
}

impl Group {
    /// The allowed values in words, for error texts.
    pub(crate) const ALLOWED: &str = "the name of a group of this system, or a number";

    /// The group of this name or number.
    pub(crate) fn find(text: &str, number: Option<u32>) -> Option<Self> {
        let known = match number {
            Some(gid) => unistd::Group::from_gid(Gid::from_raw(gid)),
            None => unistd::Group::from_name(text),
        };
        let known = known.ok().flatten();
        let gid = number.or_else(|| known.as_ref().map(|group| group.gid.as_raw()))?;
        let names = known.map(|group| group.mem).unwrap_or_default();
        let members = names.iter().filter_map(|name| unistd::User::from_name(name).ok().flatten());
        let members = members.map(|user| Uid::as_raw(user.uid)).collect();
        Some(Self { shown: text.to_owned(), gid, members })
    }

    pub(crate) fn gid(&self) -> u32 {
        self.gid
    }

    /// Users who are in it beside those who run as it.
    pub(crate) fn members(&self) -> &[u32] {
        &self.members
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up_and_numbers_taken() {
        assert_eq!(User::find("root", None).map(|user| user.uid()), Some(0));
        assert_eq!(User::find("4711", Some(4711)).map(|user| user.uid()), Some(4711));
        assert_eq!(User::find("no-such-user", None), None);
        assert_eq!([0, 4711].map(name_of), ["root", "user 4711"]);
        assert_eq!(Group::find("root", None).map(|group| group.gid()), Some(0));
        let number = Group::find("4711", Some(4711)).unwrap();
        assert_eq!((number.gid(), number.members()), (4711, &[][..]));
        assert_eq!(Group::find("no-such-group", None), None);
    }
}
