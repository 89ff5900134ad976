//! The filter that the kernel has, and the list that it was made of.
//!
//! The kernel knows the graph and a name, which is a part of the list's hash. The list itself, with
//! its comments and names, lies under that name in [`STATE`], beside [`About`] it; both are gone
//! when the host ends, as the filter is. A list is there before its graph is in force and goes after
//! it, so a command that is cut short leaves too many lists and never too few.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sidestep_bpf::{Filter, Identity};
use sidestep_filter::RuleList;

use super::answer::{FilterError, counted};
use super::source::{Source, identity};

/// Where the filter is pinned.
pub(super) const PINS: &str = "/sys/fs/bpf/sidestep/filter";
/// Where the lists are.
const STATE: &str = "/run/sidestep/filter";

/// A filter and its list.
pub(super) struct InForce {
    pub(super) filter: Filter,
    pub(super) identity: Identity,
    pub(super) list: RuleList,
    pub(super) about: About,
}

/// What is to be known of a list in force beside its text.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct About {
    /// The file that it was read from.
    pub(super) file: PathBuf,
    /// The group of processes whose packets are judged.
    pub(super) cgroup: PathBuf,
    /// When it was put into force, in seconds since 1970.
    pub(super) applied_s: i64,
}

impl InForce {
    /// `None`: no filter is in force.
    pub(super) fn find() -> Result<Option<Self>, FilterError> {
        let Some(filter) = Filter::find(Path::new(PINS))? else { return Ok(None) };
        let identity = filter.identity()?;
        let text = read(&path_of(identity, "rules"))?;
        let about = read(&path_of(identity, "json"))?;
        let foreign = |reason: String| {
            let path = path_of(identity, "json");
            FilterError::file(&path, io::Error::new(ErrorKind::InvalidData, reason))
        };
        let about = serde_json::from_str(&about).map_err(|error| foreign(error.to_string()))?;
        let list = RuleList::parse(&text).map_err(|errors| foreign(errors[0].to_string()))?;
        Ok(Some(Self { filter, identity, list, about }))
    }

    pub(super) fn remove(self) -> Result<(), FilterError> {
        self.filter.remove()?;
        forget_all_but(None);
        Ok(())
    }
}

/// Keeps a list for the time when it is in force.
pub(super) fn keep(source: &Source, about: &About) -> Result<Identity, FilterError> {
    let identity = identity(&source.text);
    let about = serde_json::to_string(about).expect("paths that are text, and a number");
    for (kind, content) in [("rules", source.text.as_str()), ("json", &about)] {
        let path = path_of(identity, kind);
        // The same list may be in force now: a reader finds the old file or the new one.
        let new = path.with_extension("new");
        let written = fs::write(&new, content).and_then(|()| fs::rename(&new, &path));
        written.map_err(|error| FilterError::file(&path, error))?;
    }
    Ok(identity)
}

/// Removes the lists that are not in force. A list that cannot be removed does no harm.
pub(super) fn forget_all_but(identity: Option<Identity>) {
    let keep = identity.map(name_of);
    for entry in fs::read_dir(STATE).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_list = path.extension().is_some();
        if is_list && path.file_stem().and_then(|stem| stem.to_str()) != keep.as_deref() {
            _ = fs::remove_file(path);
        }
    }
}

/// While it is held no other command changes the filter.
pub(super) fn lock() -> Result<File, FilterError> {
    let path = Path::new(STATE).join("lock");
    let failed = |error: io::Error| FilterError::file(&path, error);
    fs::create_dir_all(STATE).map_err(failed)?;
    let lock = File::create(&path).map_err(failed)?;
    match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(failed(io::Error::new(
            ErrorKind::ResourceBusy,
            "another command is changing the filter; one that waits for its confirmation counts",
        ))),
        Err(error) => Err(failed(error.into())),
    }
}

/// In a line, for `sidestep doctor`; `None`: no filter is in force.
pub(in crate::commands) fn summary() -> Result<Option<String>, String> {
    let in_force = InForce::find().map_err(|error| error.to_string())?;
    Ok(in_force.map(|InForce { list, about, .. }| {
        let rules = counted(&list.rules);
        format!("{rules} of {} for {}", about.file.display(), about.cgroup.display())
    }))
}

fn read(path: &Path) -> Result<String, FilterError> {
    fs::read_to_string(path).map_err(|error| FilterError::file(path, error))
}

fn path_of(identity: Identity, kind: &str) -> PathBuf {
    Path::new(STATE).join(name_of(identity)).with_extension(kind)
}

pub(super) fn name_of(identity: Identity) -> String {
    identity.iter().map(|byte| format!("{byte:02x}")).collect()
}
