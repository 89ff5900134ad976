//! A temporary cgroup, to say whose sockets are meant.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::BpfError;

/// A cgroup2 group of our own. Dropping it sends processes that are still in it back to
/// the group above and removes it.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes a group below the one this process is in: `sidestep-bench-PID-NUMBER`.
    /// Groups that a killed run has left there are removed.
    ///
    /// # Errors
    /// No cgroup2 is mounted, or this process may not make groups there.
    pub fn create_for_run() -> Result<Self, BpfError> {
        let parent = own_group()?;
        remove_leftovers(&parent);
        // Several groups of one process have different numbers.
        for number in 0u32.. {
            let path = parent.join(format!("{NAME_PREFIX}{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(BpfError::of_file(&path, error)),
            }
        }
        unreachable!("one process has not made four thousand million groups")
    }

    /// The directory of the group that has all processes.
    ///
    /// # Errors
    /// No cgroup2 is mounted.
    pub fn root() -> Result<PathBuf, BpfError> {
        mount_in(&read("/proc/self/mountinfo")?).ok_or(BpfError::NoCgroup2)
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves a process into the group, all its threads with it. Its sockets of before
    /// still belong to the old group.
    ///
    /// # Errors
    /// There is no such process, or it may not be moved.
    pub fn add(&self, pid: u32) -> Result<(), BpfError> {
        move_to(&self.path, pid).map_err(|error| BpfError::of_file(&self.path, error))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Some(parent) = self.path.parent() {
            for pid in processes(&self.path) {
                // One that has ended by now needs no moving.
                let _ = move_to(parent, pid);
            }
        }
        // A failure would leave an empty directory, which the next run removes.
        let _ = fs::remove_dir(&self.path);
    }
}

fn move_to(group: &Path, pid: u32) -> io::Result<()> {
    fs::write(group.join(PROCESSES), pid.to_string())
}

fn processes(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join(PROCESSES)).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Removes groups of processes that do not exist any more. The kernel keeps those with
/// processes in them.
fn remove_leftovers(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if maker_of(&name.to_string_lossy()).is_some_and(|maker| !is_running(maker)) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The process that made a group of this name.
fn maker_of(name: &str) -> Option<u32> {
    let (maker, number) = name.strip_prefix(NAME_PREFIX)?.split_once('-')?;
    number.parse::<u32>().ok()?;
    maker.parse().ok()
}

fn is_running(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// The directory of the group this process is in.
fn own_group() -> Result<PathBuf, BpfError> {
    let (mounts, memberships) = (read("/proc/self/mountinfo")?, read("/proc/self/cgroup")?);
    let mount = mount_in(&mounts).ok_or(BpfError::NoCgroup2)?;
    let group = group_in(&memberships).ok_or(BpfError::NoCgroup2)?;
    let path = mount.join(group.trim_start_matches('/'));
    // Seen from inside a container the own group may lie outside of what is mounted.
    Ok(if path.is_dir() { path } else { mount })
}

fn read(path: &str) -> Result<String, BpfError> {
    fs::read_to_string(path).map_err(|error| BpfError::of_file(Path::new(path), error))
}

/// Where the first cgroup2 file system is mounted. A line of `mountinfo` is
/// `36 35 98:0 /root /mount/point options fields… - type source options`.
fn mount_in(mountinfo: &str) -> Option<PathBuf> {
    let mut mounts = mountinfo.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        Some((before.split(' ').nth(4)?, after.split(' ').next()?))
    });
    let (point, _) = mounts.find(|(_, kind)| *kind == "cgroup2")?;
    // Blanks, tabs, line ends and backslashes are written in octal; only blanks are seen.
    Some(PathBuf::from(point.replace("\\040", " ")))
}

/// The group of cgroup2 in `/proc/self/cgroup`, whose line is `0::/the/group`.
fn group_in(memberships: &str) -> Option<&str> {
    memberships.lines().find_map(|line| line.strip_prefix("0::"))
}

const PROCESSES: &str = "cgroup.procs";
const NAME_PREFIX: &str = "sidestep-bench-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_where_cgroup2_is_mounted() {
        let mountinfo = "\
24 1 0:22 / /sys/fs/cgroup rw shared:3 - tmpfs tmpfs rw
25 24 0:23 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
34 24 0:32 / /sys/fs/my\\040groups rw,relatime shared:9 master:1 - cgroup2 cgroup2 rw
";
        assert_eq!(mount_in(mountinfo), Some(PathBuf::from("/sys/fs/my groups")));
        assert_eq!(mount_in("24 1 0:22 / /sys rw - sysfs sysfs rw\n"), None);
    }

    #[test]
    fn finds_the_own_group_beside_those_of_version_1() {
        assert_eq!(group_in("9:cpu:/old\n0::/user.slice/a\n"), Some("/user.slice/a"));
        assert_eq!(group_in("9:cpu:/old\n"), None);
    }

    #[test]
    fn knows_the_names_it_gives() {
        assert_eq!(maker_of("sidestep-bench-4711-0"), Some(4711));
        assert_eq!(maker_of("sidestep-bench-4711"), None);
        assert_eq!(maker_of("sidestep-bench-4711-0.scope"), None);
        assert_eq!(maker_of("user.slice"), None);
    }
}
