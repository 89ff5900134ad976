//! The filter that the kernel has, and the list that it was made of.
//!
//! The kernel knows the graph and a name, which is a part of the list's hash. The list itself, with
//! its comments and names, lies under that name in [`STATE`], beside [`About`] it; both are gone
//! when the host ends, as the filter is. A list is there before its graph is in force and goes after
//! it, so a command that is cut short leaves too many lists and never too few.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sidestep_bpf::{Filter, Identity, Totals};
use sidestep_filter::{Action, Groups, LaterRule, Packet, RuleList, Way};

use super::answer::{FilterError, counted, named};
use super::source::{Machine, identity};

/// Where the filter is pinned.
pub(super) const PINS: &str = "/sys/fs/bpf/sidestep/filter";
/// Where the lists are.
pub(super) const STATE: &str = "/run/sidestep/filter";

/// A filter and its list.
pub(super) struct InForce {
    pub(super) filter: Filter,
    pub(super) identity: Identity,
    /// As it was applied.
    pub(super) list: RuleList,
    /// Rules that were added since.
    pub(super) later: Vec<LaterRule>,
    pub(super) about: About,
}

/// What is to be known of a list in force beside its text.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(in crate::commands) struct About {
    /// The file that it was read from.
    pub(in crate::commands) file: PathBuf,
    /// The group of processes whose packets are judged.
    pub(in crate::commands) cgroup: PathBuf,
    /// Where packets leave that are forwarded and judged.
    #[serde(default)]
    pub(in crate::commands) forwarded: Vec<String>,
    /// Where the units were that rules name, as control groups.
    #[serde(default)]
    pub(in crate::commands) units: BTreeMap<String, PathBuf>,
    /// Rules that were added since: before which rule of the list, and each as a line.
    #[serde(default)]
    pub(in crate::commands) later: Vec<(usize, String)>,
    /// When it was put into force, in seconds since 1970.
    pub(in crate::commands) applied_s: i64,
    /// How many rules it has.
    #[serde(default)]
    pub(in crate::commands) rules: usize,
}

/// What metrics tell of a filter; to read its list for each of them would take long.
pub(in crate::commands) struct Figures {
    pub(in crate::commands) name: String,
    pub(in crate::commands) about: About,
    pub(in crate::commands) totals: Totals,
}

/// Whose a socket is.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct Owner<'a> {
    pub(in crate::commands) user: u32,
    /// The control group, from the root of all on.
    pub(in crate::commands) cgroup: &'a Path,
}

impl InForce {
    /// `None`: no filter is in force.
    pub(super) fn find() -> Result<Option<Self>, FilterError> {
        let Some(filter) = Filter::find(Path::new(PINS))? else { return Ok(None) };
        let identity = filter.identity()?;
        let text = read(&path_of(identity, "rules"))?;
        let about = About::read(identity)?;
        let list = RuleList::parse(&text)
            .map_err(|errors| foreign(identity, "rules", errors[0].to_string()))?;
        let later = about
            .later_rules()
            .ok_or_else(|| foreign(identity, "json", "rules that were added".to_owned()))?;
        Ok(Some(Self { filter, identity, list, later, about }))
    }

    /// The control groups of its rules, as its graph has their numbers.
    pub(super) fn groups(&self) -> Groups {
        self.about.groups(&self.list)
    }

    /// All its rules in their order, and the number that the kernel has for each.
    pub(super) fn rules(&self) -> (RuleList, Vec<usize>) {
        self.list.with_later(&self.later)
    }

    /// Whether another list is in force, or none.
    pub(super) fn is_superseded(&self) -> Result<bool, FilterError> {
        let now = Filter::find(Path::new(PINS))?.map(|filter| filter.identity()).transpose()?;
        Ok(now != Some(self.identity))
    }

    pub(super) fn remove(self) -> Result<(), FilterError> {
        self.filter.remove()?;
        forget_all_but(None);
        Ok(())
    }
}

impl About {
    pub(super) fn write(&self, identity: Identity) -> Result<(), FilterError> {
        let text = serde_json::to_string(self).expect("paths and names that are text, and numbers");
        write(&path_of(identity, "json"), &text)
    }

    /// `None`: one is no rule of this version.
    pub(super) fn later_rules(&self) -> Option<Vec<LaterRule>> {
        let rule = |(before, line): &(usize, String)| {
            let rule = RuleList::parse(line).ok()?.rules.into_iter().next()?;
            Some(LaterRule { before: *before, rule })
        };
        self.later.iter().map(rule).collect()
    }

    pub(super) fn groups(&self, list: &RuleList) -> Groups {
        Groups::of(list, |unit| self.units.get(unit).cloned().unwrap_or_else(|| unit.into()))
    }

    pub(super) fn read(identity: Identity) -> Result<Self, FilterError> {
        serde_json::from_str(&read(&path_of(identity, "json"))?)
            .map_err(|error| foreign(identity, "json", error.to_string()))
    }
}

/// What lies there was not written by this version.
fn foreign(identity: Identity, kind: &str, reason: String) -> FilterError {
    FilterError::file(&path_of(identity, kind), io::Error::new(ErrorKind::InvalidData, reason))
}

/// `None`: no filter is in force, or it cannot be seen.
pub(in crate::commands) fn figures() -> Option<Figures> {
    let filter = Filter::find(Path::new(PINS)).ok()??;
    let identity = filter.identity().ok()?;
    let (about, totals) = (About::read(identity).ok()?, filter.totals().ok()?);
    Some(Figures { name: name_of(identity), about, totals })
}

/// Which rule denies packets between an end here and a remote one, those that leave or those that arrive, in words;
/// `None`: none does, or no filter is in force. By which interface they go is not known: it is taken for loopback.
///
/// # Errors
/// The filter cannot be seen by this user.
pub(in crate::commands) fn denial(
    protocol: u8,
    [local, remote]: [SocketAddr; 2],
    Owner { user, cgroup }: Owner<'_>,
) -> Result<Option<String>, String> {
    /// Its index, in every network namespace.
    const LOOPBACK: u32 = 1;
    let Some(in_force) = InForce::find().map_err(|error| error.to_string())? else {
        return Ok(None);
    };
    let (list, about) = (in_force.rules().0, &in_force.about);
    let (machine, file) = (Machine::with(about.groups(&list)), about.file.display());
    let group = machine.groups().number(cgroup);
    let denies = |(way, from, to)| {
        let packet = Packet::between(protocol, from, to, way);
        let packet = Packet { interface: LOOPBACK, user, group, ..packet };
        let rule = list.first_match(&packet, &machine);
        let is_denied = match rule.map(|rule| &list.rules[rule]) {
            // What is asked about is not what the gateway protects.
            Some(rule) => rule.action == Action::Deny || rule.needs_tls,
            None => list.default == Action::Deny,
        };
        is_denied.then(|| match rule {
            Some(rule) if list.line_of(rule) == 0 => named(&list, rule),
            Some(rule) => format!("{file}:{}: {}", list.line_of(rule), list.rules[rule]),
            None => format!("{file}: default {}", list.default_words()),
        })
    };
    Ok([(Way::Out, local, remote), (Way::In, remote, local)].into_iter().find_map(denies))
}

/// Keeps a list for the time when it is in force.
pub(super) fn keep(text: &str, about: &About) -> Result<Identity, FilterError> {
    let identity = identity(text);
    write(&path_of(identity, "rules"), text)?;
    about.write(identity)?;
    Ok(identity)
}

/// The same list may be in force now: a reader finds the old file or the new one.
fn write(path: &Path, content: &str) -> Result<(), FilterError> {
    let new = path.with_extension("new");
    let written = fs::write(&new, content).and_then(|()| fs::rename(&new, path));
    written.map_err(|error| FilterError::file(path, error))
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
    let busy = |path: &Path| {
        let reason =
            "another command is changing the filter; one that waits for its confirmation counts";
        FilterError::file(path, io::Error::new(ErrorKind::ResourceBusy, reason))
    };
    lock_named("lock", busy)
}

/// The same, after waiting for so long that another command ends.
pub(super) fn lock_within(patience: Duration) -> Result<File, FilterError> {
    const PAUSE: Duration = Duration::from_millis(20);
    let deadline = Instant::now() + patience;
    loop {
        match lock() {
            Err(FilterError::File { source, .. })
                if source.kind() == ErrorKind::ResourceBusy && Instant::now() < deadline =>
            {
                thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

/// While it is held no other command reads the log.
pub(super) fn lock_log() -> Result<File, FilterError> {
    lock_named("reader", |_| FilterError::OtherReader)
}

fn lock_named(name: &str, busy: impl Fn(&Path) -> FilterError) -> Result<File, FilterError> {
    let path = Path::new(STATE).join(name);
    let failed = |error: io::Error| FilterError::file(&path, error);
    fs::create_dir_all(STATE).map_err(failed)?;
    let lock = File::create(&path).map_err(failed)?;
    match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(busy(&path)),
        Err(error) => Err(failed(error.into())),
    }
}

/// A rule that was added to a list, in words.
pub(super) fn later_line(identity: Identity, number: usize) -> String {
    let about = About::read(identity).ok();
    let line = about.and_then(|about| about.later.into_iter().nth(number));
    line.map_or_else(|| "a rule that was added".to_owned(), |(_, rule)| format!("added: {rule}"))
}

/// The text of the list of this name.
pub(super) fn text_of(identity: Identity) -> Result<String, FilterError> {
    read(&path_of(identity, "rules"))
}

/// The list of this name, if it is kept still.
pub(super) fn list_of(identity: Identity) -> Option<RuleList> {
    RuleList::parse(&read(&path_of(identity, "rules")).ok()?).ok()
}

/// In a line, for `sidestep doctor`; `None`: no filter is in force.
pub(in crate::commands) fn summary() -> Result<Option<String>, String> {
    let in_force = InForce::find().map_err(|error| error.to_string())?;
    Ok(in_force.map(|in_force| {
        let (rules, about) = (counted(&in_force.rules().0.rules), in_force.about);
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
