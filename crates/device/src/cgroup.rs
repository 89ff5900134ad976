//! How much memory the control group of this process may have.
//!
//! A page of a ring is charged to the group of the process that writes it first, and there is no
//! error for one that the group may not have: the kernel ends a program. A process that hands
//! out rings therefore has to know the limit before. It holds for a group together with
//! all below it, so what counts is the least on the way up to the root. In a container
//! the names of the groups may be those of the host; then the root of what is mounted
//! there is the container's own group.

use crate::sys;
use core::ffi::CStr;
use core::fmt::{self, Write};
use core::iter;

/// Where control groups are mounted.
const MOUNTED_AT: &str = "/sys/fs/cgroup";
/// The list of groups has a line for each hierarchy, a dozen at most.
const LIST_LEN: usize = 2048;
/// Paths that are longer are left out. On the stack of any thread of the program.
const PATH_LEN: usize = 512;

/// The least limit in bytes; `None` if there is none, or none that we can read.
#[must_use]
pub fn memory_limit() -> Option<u64> {
    let mut list = [0; LIST_LEN];
    least_limit(MOUNTED_AT, read(c"/proc/self/cgroup", &mut list)?)
}

/// `groups`: the text of `/proc/PID/cgroup`.
fn least_limit(mounted_at: &str, groups: &str) -> Option<u64> {
    let limits = groups.lines().filter_map(memory_controller).flat_map(|(at, file, group)| {
        let upwards = iter::successors(Some(group), |group| Some(group.rsplit_once('/')?.0));
        upwards.filter_map(move |group| number(format_args!("{mounted_at}{at}{group}/{file}")))
    });
    limits.min()
}

/// Of a line of the list, if it is about memory: where its hierarchy is mounted, the file
/// with the limit, and the group. `0::/a/b` is version 2, `4:memory:/a/b` version 1.
fn memory_controller(line: &str) -> Option<(&str, &str, &str)> {
    let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
    if controllers.is_empty() {
        return Some(("", "memory.max", group));
    }
    let is_memory = controllers.split(',').any(|controller| controller == "memory");
    is_memory.then_some(("/memory", "memory.limit_in_bytes", group))
}

/// The number in a file; `None` if it cannot be read or says "max".
fn number(path: fmt::Arguments<'_>) -> Option<u64> {
    let mut name = Path { bytes: [0; PATH_LEN], len: 0 };
    name.write_fmt(path).ok()?;
    let mut text = [0; 32];
    read(CStr::from_bytes_until_nul(&name.bytes).ok()?, &mut text)?.trim_end().parse().ok()
}

fn read<'a>(path: &CStr, into: &'a mut [u8]) -> Option<&'a str> {
    let len = sys::read_file(path, into).ok()?;
    core::str::from_utf8(&into[..len]).ok()
}

struct Path {
    bytes: [u8; PATH_LEN],
    len: usize,
}

impl Write for Path {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The last byte stays 0.
        let room = self.bytes[..PATH_LEN - 1].get_mut(self.len..self.len + text.len());
        room.ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;
    use std::string::String;

    /// A directory with these files, until it is dropped.
    struct Mounted(PathBuf);

    impl Mounted {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let at = std::env::temp_dir().join(std::format!("{name}-{}", std::process::id()));
            for (file, text) in files {
                let file = at.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            Self(at)
        }

        fn least_limit(&self, groups: &str) -> Option<u64> {
            least_limit(self.0.to_str().unwrap(), groups)
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn the_least_limit_on_the_way_to_the_root_counts() {
        let mounted = Mounted::new(
            "cgroup-v2",
            &[("a/memory.max", "5000\n"), ("a/b/memory.max", "max\n"), ("a/c/memory.max", "70\n")],
        );
        assert_eq!(mounted.least_limit("0::/a/b\n"), Some(5000));
        assert_eq!(mounted.least_limit("0::/a/c\n"), Some(70));
        assert_eq!(mounted.least_limit("0::/b\n"), None);
        assert_eq!(mounted.least_limit("0::/\n"), None);
    }

    #[test]
    fn version_1_has_a_hierarchy_for_memory() {
        let mounted = Mounted::new(
            "cgroup-v1",
            &[
                ("memory/memory.limit_in_bytes", "9000\n"),
                ("memory/x/memory.limit_in_bytes", "800\n"),
                ("memory/y/memory.limit_in_bytes", "1\n"),
            ],
        );
        let groups = "5:devices:/y\n4:hugetlb,memory:/x\n1:name=systemd:/y\n0::/\n";
        assert_eq!(mounted.least_limit(groups), Some(800));
        assert_eq!(mounted.least_limit("4:memory:/docker/0123\n"), Some(9000), "in a container");
    }

    #[test]
    fn what_makes_no_sense_is_no_limit() {
        let mounted = Mounted::new("cgroup-odd", &[("memory.max", "lots\n")]);
        let long = String::from("0::/") + &"x".repeat(PATH_LEN) + "\n";
        for groups in ["", "0:", "nonsense\n", "0::/\n", &long] {
            assert_eq!(mounted.least_limit(groups), None, "{groups}");
        }
    }
}
