//! Control groups that limit the CPU time of the measured programs.
//!
//! A weight says nothing by itself: it is a share against that of others. So there is a
//! group for either party, side by side:
//!
//! ```text
//!   sidestep-bench-cpu-PID/
//!     ├── measured/     cpu.max, cpu.weight as asked for: client and server together
//!     └── neighbours/   weight 100, the default
//! ```
//!
//! The files are those of cgroup version 2, or, where version 1 still has the controller
//! `cpu`, of that: the kernel's scheduler behind them is the same.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use thiserror::Error;

/// The groups of one measurement. Dropped, they are removed; who is in them has ended by
/// then.
#[derive(Debug)]
pub struct CpuGroups {
    path: PathBuf,
}

/// Why there are no such groups.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum CpuGroupError {
    #[error(
        "--cpu-quota and --cpu-weight take a control group, and no cgroup file system here has \
         the controller cpu; see /proc/mounts"
    )]
    NoController,
    #[error(
        "--cpu-quota and --cpu-weight take a control group, and {} cannot be written: {reason}; \
         it takes root, and outside of a container", path.display()
    )]
    File { path: PathBuf, reason: io::Error },
}

/// Where the controller `cpu` is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Controller {
    mount: PathBuf,
    version: Version,
}

/// Of the interface of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl CpuGroups {
    /// Makes them. `quota_percent` is of one CPU, `weight` is 1 to 10 000; what is not
    /// given is not limited. Groups that a killed measurement has left are removed.
    ///
    /// # Errors
    /// There is no controller `cpu`, or this process may not make groups.
    pub fn create(quota_percent: Option<u32>, weight: Option<u32>) -> Result<Self, CpuGroupError> {
        let controller = Controller::find()?;
        remove_leftovers(&controller.mount);
        let path = controller.mount.join(format!("{NAME_PREFIX}{}", process::id()));
        make(&path)?;
        // From here on it removes what there is.
        let groups = Self { path };
        if controller.version == Version::Two {
            // A group has the controller's files if the one above hands it down.
            write(&controller.mount.join(SUBTREE), "+cpu")?;
            write(&groups.path.join(SUBTREE), "+cpu")?;
        }
        make(&groups.measured())?;
        make(&groups.neighbours())?;
        for (file, value) in controller.version.settings(quota_percent, weight) {
            write(&groups.measured().join(file), &value)?;
        }
        Ok(groups)
    }

    /// The directory of the group for clients and servers.
    #[must_use]
    pub fn measured(&self) -> PathBuf {
        self.path.join("measured")
    }

    /// The directory of the group for neighbours.
    #[must_use]
    pub fn neighbours(&self) -> PathBuf {
        self.path.join("neighbours")
    }
}

impl Drop for CpuGroups {
    fn drop(&mut self) {
        // What is left over the next measurement removes.
        remove(&self.path);
    }
}

impl Version {
    /// Files with what to write into them, in this order.
    ///
    /// *Source*: Documentation/admin-guide/cgroup-v2.rst, "CPU Interface Files", and
    /// Documentation/scheduler/sched-bwc.rst; a weight of 100 is 1024 shares
    /// (`CGROUP_WEIGHT_DFL` in the kernel's `cpu_weight_write_u64`).
    fn settings(
        self,
        quota_percent: Option<u32>,
        weight: Option<u32>,
    ) -> Vec<(&'static str, String)> {
        let quota_us = quota_percent.map(|percent| u64::from(percent) * PERIOD_US / 100);
        let mut settings = Vec::new();
        match self {
            Self::Two => {
                settings.extend(quota_us.map(|us| ("cpu.max", format!("{us} {PERIOD_US}"))));
                settings.extend(weight.map(|weight| ("cpu.weight", weight.to_string())));
            }
            Self::One => {
                if let Some(us) = quota_us {
                    settings.push(("cpu.cfs_period_us", PERIOD_US.to_string()));
                    settings.push(("cpu.cfs_quota_us", us.to_string()));
                }
                let shares = weight.map(|weight| (u64::from(weight) * 1024).div_ceil(100));
                settings.extend(shares.map(|shares| ("cpu.shares", shares.to_string())));
            }
        }
        settings
    }
}

/// A quota is for each period of 100 ms, the kernel's default.
const PERIOD_US: u64 = 100_000;

impl Controller {
    fn find() -> Result<Self, CpuGroupError> {
        let path = Path::new("/proc/self/mountinfo");
        let mounts = fs::read_to_string(path)
            .map_err(|reason| CpuGroupError::File { path: path.to_owned(), reason })?;
        let has_cpu = |mount: &Path| {
            let controllers = fs::read_to_string(mount.join("cgroup.controllers"));
            controllers.is_ok_and(|names| names.split_ascii_whitespace().any(|name| name == "cpu"))
        };
        Self::among(&mounts, has_cpu).ok_or(CpuGroupError::NoController)
    }

    /// The kernel gives a controller to one version alone. `has_cpu` says whether a mount
    /// of version 2 has it.
    ///
    /// A line of `mountinfo` is
    /// `36 35 98:0 /root /mount/point options fields… - type source options`.
    fn among(mounts: &str, has_cpu: impl Fn(&Path) -> bool) -> Option<Self> {
        mounts.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            // Blanks are written in octal; no other character of these is ever seen.
            let mount = PathBuf::from(before.split(' ').nth(4)?.replace("\\040", " "));
            let mut after = after.split(' ');
            let (kind, options) = (after.next()?, after.nth(1)?);
            match kind {
                "cgroup" if options.split(',').any(|option| option == "cpu") => {
                    Some(Self { mount, version: Version::One })
                }
                "cgroup2" if has_cpu(&mount) => Some(Self { mount, version: Version::Two }),
                _ => None,
            }
        })
    }
}

fn make(path: &Path) -> Result<(), CpuGroupError> {
    fs::create_dir(path).map_err(|reason| CpuGroupError::File { path: path.to_owned(), reason })
}

fn write(path: &Path, value: &str) -> Result<(), CpuGroupError> {
    fs::write(path, value).map_err(|reason| CpuGroupError::File { path: path.to_owned(), reason })
}

/// Removes a group with those in it. The kernel keeps one that has processes.
fn remove(path: &Path) {
    for group in ["measured", "neighbours"] {
        let _ = fs::remove_dir(path.join(group));
    }
    let _ = fs::remove_dir(path);
}

/// Removes groups whose makers do not exist any more.
fn remove_leftovers(mount: &Path) {
    for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(NAME_PREFIX));
        let maker = maker.and_then(|pid| pid.parse::<u32>().ok());
        if maker.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            remove(&entry.path());
        }
    }
}

const NAME_PREFIX: &str = "sidestep-bench-cpu-";
const SUBTREE: &str = "cgroup.subtree_control";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_the_version() {
        let of = |version: Version| version.settings(Some(50), Some(1));
        assert_eq!(
            of(Version::Two),
            [("cpu.max", "50000 100000".to_owned()), ("cpu.weight", "1".to_owned())]
        );
        assert_eq!(
            of(Version::One),
            [
                ("cpu.cfs_period_us", "100000".to_owned()),
                ("cpu.cfs_quota_us", "50000".to_owned()),
                ("cpu.shares", "11".to_owned())
            ]
        );
        let of_default = |version: Version| version.settings(Some(250), Some(100));
        assert_eq!(
            of_default(Version::One)[1..],
            [("cpu.cfs_quota_us", "250000".to_owned()), ("cpu.shares", "1024".to_owned())]
        );
        assert!(Version::Two.settings(None, None).is_empty());
    }

    #[test]
    fn the_controller_is_found_in_either_version() {
        const HYBRID: &str = "\
25 24 0:23 / /sys/fs/cgroup/cpu\\040set rw - cgroup cgroup rw,cpuset
26 24 0:24 / /sys/fs/cgroup/cpu,cpuacct rw shared:1 - cgroup cgroup rw,cpu,cpuacct
34 24 0:32 / /sys/fs/cgroup/unified rw,relatime shared:9 master:1 - cgroup2 cgroup2 rw
";
        let found = Controller::among(HYBRID, |_| false).unwrap();
        let expected =
            Controller { mount: "/sys/fs/cgroup/cpu,cpuacct".into(), version: Version::One };
        assert_eq!(found, expected);

        const UNIFIED: &str = "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let found = Controller::among(UNIFIED, |mount| mount == Path::new("/sys/fs/cgroup"));
        let expected = Controller { mount: "/sys/fs/cgroup".into(), version: Version::Two };
        assert_eq!(found, Some(expected));
        assert_eq!(Controller::among(UNIFIED, |_| false), None);
        assert_eq!(Controller::among("24 1 0:22 / /sys rw - sysfs sysfs rw\n", |_| true), None);
    }

    #[test]
    fn groups_have_their_limits_and_are_removed() {
        let groups = match CpuGroups::create(Some(50), Some(200)) {
            Ok(groups) => groups,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let (path, measured) = (groups.path.clone(), groups.measured());
        let has = |file: &str| fs::read_to_string(measured.join(file)).ok();
        let quota = has("cpu.max").or_else(|| has("cpu.cfs_quota_us")).unwrap();
        assert!(quota.starts_with("50000"), "{quota}");
        let weight = has("cpu.weight").or_else(|| has("cpu.shares")).unwrap();
        assert!(["200", "2048"].contains(&weight.trim()), "{weight}");
        assert!(groups.neighbours().is_dir());
        drop(groups);
        assert!(!path.exists());
    }
}
