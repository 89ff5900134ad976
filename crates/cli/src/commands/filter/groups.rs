//! What the control groups in rules are here.
//!
//! A unit's control group is looked for from the root on through slices alone. Only systemd makes these, so a user
//! who may make groups of his own (below `user@1000.service`) cannot make one that counts as the unit. A unit that does
//! not run has none; then it is where systemd would put it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sidestep_bpf::{Cgroup, GroupNumbers, NumberedGroup};
use sidestep_filter::Groups;

use super::answer::FilterError;

/// A directory of the root of control groups, and all slices.
pub(super) fn slices(root: &Path) -> impl Iterator<Item = PathBuf> {
    let mut left = vec![root.to_owned()];
    std::iter::from_fn(move || {
        let path = left.pop()?;
        let is_slice = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "slice");
        let entries = fs::read_dir(&path).into_iter().flatten().flatten();
        left.extend(entries.map(|entry| entry.path()).filter(is_slice));
        Some(path)
    })
}

/// Where the control group of a unit is, or would be, from the root on.
pub(super) fn place(unit: &str, root: &Path) -> PathBuf {
    let there = slices(root).map(|slice| slice.join(unit)).find(|path| path.is_dir());
    let relative = there.and_then(|path| path.strip_prefix(root).map(Path::to_owned).ok());
    Path::new("/").join(relative.unwrap_or_else(|| usual_place(unit)))
}

/// Where systemd puts a unit that says nothing of it (`systemd.slice(5)`, `Slice=` of `systemd.resource-control(5)`).
fn usual_place(unit: &str) -> PathBuf {
    if let Some(name) = unit.strip_suffix(".slice") {
        let ends = name.match_indices('-').map(|(at, _)| at).chain([name.len()]);
        return ends.map(|end| format!("{}.slice", &name[..end])).collect();
    }
    let slice = PathBuf::from("system.slice");
    match unit.split_once('@') {
        Some((template, _)) => {
            let template = template.replace('-', "\\x2d");
            slice.join(format!("system-{template}.slice")).join(unit)
        }
        None => slice.join(unit),
    }
}

/// Whether the group of this path from the root on is there.
pub(super) fn is_there(path: &Path) -> Result<bool, FilterError> {
    Ok(directory(&Cgroup::root()?, path).is_dir())
}

fn directory(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// What the groups are in the kernel, for a filter of this control group.
///
/// # Errors
/// The root of all is not seen here.
pub(super) fn numbers(groups: &Groups, of_filter: &Path) -> Result<GroupNumbers, FilterError> {
    /// The inode of the root.
    const ROOT: u64 = 1;
    let root = Cgroup::root()?;
    let number = |path: &Path| fs::metadata(path).map(|directory| directory.ino());
    if groups.paths().next().is_none() {
        return Ok(GroupNumbers::default());
    }
    if number(&root).ok() != Some(ROOT) {
        return Err(FilterError::NoRootGroup);
    }
    let there = groups.paths().filter_map(|(path, of_rules)| {
        let directory = directory(&root, path);
        Some((number(&directory).ok()?, NumberedGroup { directory, number: of_rules }))
    });
    let depth = |path: &Path| path.components().count() as u32 - 1;
    let of_filter = of_filter.strip_prefix(&root).unwrap_or(Path::new(""));
    Ok(GroupNumbers {
        groups: there.collect(),
        deepest: groups.paths().map(|(path, _)| depth(path)).max().unwrap_or(0),
        around: groups.number(&Path::new("/").join(of_filter)),
    })
}

/// The control group of a process, from the root on; `None`: it has ended.
pub(in crate::commands) fn control_group_of(pid: u32) -> Option<PathBuf> {
    let memberships = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    memberships.lines().find_map(|line| line.strip_prefix("0::")).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_found_in_slices_and_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str| fs::create_dir_all(root.path().join(path)).unwrap();
        let place = |unit: &str| place(unit, root.path()).display().to_string();
        make("user.slice/user-1000.slice/user@1000.service/nginx.service");
        assert_eq!(place("nginx.service"), "/system.slice/nginx.service", "a user's is no unit");
        make("web.slice/web-front.slice/nginx.service");
        assert_eq!(place("nginx.service"), "/web.slice/web-front.slice/nginx.service");
        assert_eq!(place("user-1000.slice"), "/user.slice/user-1000.slice");
    }

    #[test]
    fn a_unit_that_does_not_run_is_where_it_would_be() {
        let place = |unit: &str| usual_place(unit).display().to_string();
        assert_eq!(place("a-b.service"), "system.slice/a-b.service");
        assert_eq!(place("a-b@c.service"), "system.slice/system-a\\x2db.slice/a-b@c.service");
        assert_eq!(place("a-b-c.slice"), "a.slice/a-b.slice/a-b-c.slice");
    }
}
