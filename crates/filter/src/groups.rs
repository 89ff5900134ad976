//! Control groups as numbers.
//!
//! A rule with a control group means the sockets of the group and of all groups in it. The groups that a list names
//! are a tree, and are numbered from 1 as it is walked: each before those in it. So a group and those in it are
//! a range of numbers, and a packet has one number, that of the innermost group that its socket is in.
//!
//! ```text
//!   1 /system.slice                   cgroup /system.slice         means 1 to 2
//!   2 /system.slice/nginx.service     unit nginx.service           means 2
//!   3 /user.slice                     a socket of /init.scope      has 0
//! ```

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::list::RuleList;
use crate::rule::Group;

/// The groups that a list names, and their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Each before those in it: number 1 is the first.
    paths: Vec<PathBuf>,
    /// Where the units are.
    units: BTreeMap<String, PathBuf>,
}

impl Groups {
    /// Those of a list; `place` says at which path the control group of a unit is, or would be.
    #[must_use]
    pub fn of(list: &RuleList, place: impl Fn(&str) -> PathBuf) -> Self {
        let (mut paths, mut units) = (Vec::new(), BTreeMap::new());
        for group in list.rules.iter().filter_map(|rule| rule.group.as_ref()) {
            match group {
                Group::Path(path) => paths.push(PathBuf::from(path.as_str())),
                Group::Unit(unit) if units.contains_key(unit.as_str()) => {}
                Group::Unit(unit) => {
                    let path = place(unit.as_str());
                    units.insert(unit.as_str().to_owned(), path.clone());
                    paths.push(path);
                }
            }
        }
        // By parts, so a path is followed by those below it.
        paths.sort_unstable();
        paths.dedup();
        Self { paths, units }
    }

    /// Their paths, each with its number.
    pub fn paths(&self) -> impl Iterator<Item = (&Path, u32)> {
        self.paths.iter().map(PathBuf::as_path).zip(1..)
    }

    /// Where each unit is.
    #[must_use]
    pub fn units(&self) -> &BTreeMap<String, PathBuf> {
        &self.units
    }

    /// The numbers of a group and of those in it; `None`: it is not among them.
    #[must_use]
    pub fn numbers(&self, group: &Group) -> Option<RangeInclusive<u32>> {
        let path = match group {
            Group::Path(path) => Path::new(path.as_str()),
            Group::Unit(unit) => self.units.get(unit.as_str())?,
        };
        let first = self.paths.binary_search_by(|it| it.as_path().cmp(path)).ok()?;
        let inner = self.paths[first..].iter().take_while(|it| it.starts_with(path)).count();
        Some(first as u32 + 1..=(first + inner) as u32)
    }

    /// The number of the innermost of them that a path is in; 0: it is in none.
    #[must_use]
    pub fn number(&self, path: &Path) -> u32 {
        self.paths.iter().rposition(|group| path.starts_with(group)).map_or(0, |at| at as u32 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(text: &str) -> Groups {
        Groups::of(&RuleList::parse(text).unwrap(), |unit| Path::new("/system.slice").join(unit))
    }

    #[test]
    fn a_group_and_those_in_it_are_a_range() {
        let groups = groups(
            "deny any any any cgroup /user.slice\n\
             deny any any any unit nginx.service\n\
             deny any any any cgroup /system.slice\n\
             deny any any any cgroup /system.slice-other\n\
             deny any any any cgroup /system.slice\n",
        );
        let numbers = |group: Option<Group>| groups.numbers(&group.unwrap());
        assert_eq!(numbers(Group::path("/system.slice")), Some(1..=2));
        assert_eq!(numbers(Group::unit("nginx.service")), Some(2..=2));
        assert_eq!(numbers(Group::path("/system.slice/nginx.service")), Some(2..=2));
        assert_eq!(numbers(Group::path("/system.slice-other")), Some(3..=3));
        assert_eq!(numbers(Group::path("/user.slice")), Some(4..=4));
        assert_eq!(numbers(Group::unit("redis.service")), None);
        let number = |path: &str| groups.number(Path::new(path));
        assert_eq!(number("/system.slice/nginx.service/worker"), 2);
        assert_eq!(number("/system.slice/redis.service"), 1);
        assert_eq!(number("/user.slice/user-0.slice"), 4);
        assert_eq!((number("/init.scope"), number("/")), (0, 0));
    }

    #[test]
    fn the_root_is_a_group_as_well() {
        let groups = groups("deny any any any cgroup /\ndeny any any any cgroup /a/b");
        assert_eq!(groups.numbers(&Group::path("/").unwrap()), Some(1..=2));
        assert_eq!((groups.number(Path::new("/a")), groups.number(Path::new("/a/b/c"))), (1, 2));
    }

    #[test]
    fn what_is_no_group_is_refused() {
        for path in ["", "a", "/a/", "//a", "/a/../b", "/a/.", "/a b"] {
            assert_eq!(Group::path(path), None, "{path}");
        }
        for unit in ["", "nginx", ".service", "a/b.service", "a.timer", "a b.service"] {
            assert_eq!(Group::unit(unit), None, "{unit}");
        }
    }
}
