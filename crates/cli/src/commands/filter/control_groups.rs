//! The names of control groups, of which the kernel tells numbers.
//!
//! The number of a group of version 2 is that of its directory's inode. So the tree of directories tells them all; it is
//! walked when a number is asked for that is not known yet, once a second at most: a group that has gone is not
//! there, however often it is asked for.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What is known of them.
pub(crate) struct ControlGroups {
    root: PathBuf,
    paths: HashMap<u64, PathBuf>,
    walked: Option<Instant>,
}

const REST: Duration = Duration::from_secs(1);

impl ControlGroups {
    /// Those below this directory.
    pub(crate) fn below(root: PathBuf) -> Self {
        Self { root, paths: HashMap::new(), walked: None }
    }

    /// The directory of a group; `None`: there is none with this number any more.
    pub(super) fn path(&mut self, number: u64) -> Option<&Path> {
        let may_walk = self.walked.is_none_or(|at| at.elapsed() >= REST);
        if !self.paths.contains_key(&number) && may_walk {
            self.walked = Some(Instant::now());
            self.paths = directories(&self.root)
                .filter_map(|path| Some((fs::metadata(&path).ok()?.ino(), path)))
                .collect();
        }
        self.paths.get(&number).map(PathBuf::as_path)
    }

    /// Its name, as `/proc/PID/cgroup` has it.
    pub(crate) fn name(&mut self, number: u64) -> Option<String> {
        let root = self.root.clone();
        let path = self.path(number)?.strip_prefix(root).ok()?;
        Some(format!("/{}", path.display()))
    }

    /// Number and name of its process, if it has one alone.
    pub(crate) fn program(&mut self, number: u64) -> Option<(u32, String)> {
        let processes = fs::read_to_string(self.path(number)?.join("cgroup.procs")).ok()?;
        let pid = processes.trim().parse().ok()?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some((pid, name.trim_end().to_owned()))
    }
}

/// A directory and all below it. One that vanishes meanwhile has none below it.
pub(super) fn directories(root: &Path) -> impl Iterator<Item = PathBuf> {
    let mut left = vec![root.to_owned()];
    std::iter::from_fn(move || {
        let path = left.pop()?;
        let entries = fs::read_dir(&path).into_iter().flatten().flatten();
        let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|it| it.is_dir());
        left.extend(entries.filter(is_directory).map(|entry| entry.path()));
        Some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_the_name_of_its_directory() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("a.slice/b.service");
        fs::create_dir_all(&group).unwrap();
        let number = fs::metadata(&group).unwrap().ino();
        let mut groups = ControlGroups::below(root.path().to_owned());
        assert_eq!(groups.name(number).as_deref(), Some("/a.slice/b.service"));
        let root_number = fs::metadata(root.path()).unwrap().ino();
        assert_eq!(groups.name(root_number).as_deref(), Some("/"));
        assert_eq!(groups.name(0), None);
        let own = std::process::id();
        fs::write(group.join("cgroup.procs"), format!("{own}\n")).unwrap();
        assert_eq!(groups.program(number).map(|(pid, _)| pid), Some(own));
        fs::write(group.join("cgroup.procs"), format!("{own}\n1\n")).unwrap();
        assert_eq!(groups.program(number), None, "which of the two is not known");
    }
}
