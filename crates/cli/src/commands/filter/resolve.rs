//! `sidestep filter resolve`: the names of control groups in the rules in force, looked up again.
//!
//! A unit that starts has a new directory, and the kernel knows groups by their directories' numbers. So either
//! the unit runs this command before its program (`ExecStartPre=+`), or one that follows hears of the
//! new directory by inotify, which takes a moment. Until then the sockets of the unit are no unit's.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{io, thread};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use sidestep_bpf::{Cgroup, GroupNumbers};
use sidestep_filter::Groups;

use super::answer::{FilterError, say};
use super::apply::put_again;
use super::in_force::{self, InForce};
use super::source::Machine;
use super::{groups, moved};
use crate::args::FilterResolveArgs;
use crate::commands::signals;

pub(super) fn execute(args: &FilterResolveArgs) -> Result<(), FilterError> {
    if args.follow {
        return follow();
    }
    let mut in_force = InForce::find()?.ok_or(FilterError::None)?;
    let (groups, numbers) = resolve(&mut in_force, None)?;
    let (named, there) = (groups.paths().count(), numbers.groups.len());
    say(&format!("{there} of {named} control groups in rules are there\n"))
}

/// Looks the groups up again, until a signal comes or the filter goes.
fn follow() -> Result<(), FilterError> {
    let stop = signals::stop().map_err(FilterError::Signals)?;
    let mut in_force = InForce::find()?.ok_or(FilterError::None)?;
    let mut watch = Watch::start().map_err(FilterError::Wait)?;
    let mut known = None;
    loop {
        if in_force.is_superseded()? {
            in_force = InForce::find()?.ok_or(FilterError::Removed)?;
            known = None;
        }
        // What came into a directory before it was watched is found by looking again.
        let is_new = watch.add(&in_force)?;
        known = Some(resolve(&mut in_force, known.as_ref().map(|(_, numbers)| numbers))?);
        if !is_new && watch.is_stopped(&stop).map_err(FilterError::Wait)? {
            return Ok(());
        }
    }
}

/// Tells the kernel what the groups are now, if that is not `known`; and makes the rules anew if a unit has moved to another slice.
fn resolve(
    in_force: &mut InForce,
    known: Option<&GroupNumbers>,
) -> Result<(Groups, GroupNumbers), FilterError> {
    let machine = Machine::here(&in_force.list)?;
    let groups = machine.groups().clone();
    let numbers = groups::numbers(&groups, &in_force.about.cgroup)?;
    if known == Some(&numbers) && groups == in_force.groups() {
        return Ok((groups, numbers));
    }
    let _lock = in_force::lock_within(Duration::from_secs(60))?;
    if groups == in_force.groups() {
        in_force.filter.renumber(&numbers)?;
    } else {
        put_again(in_force, &machine, &numbers)?;
    }
    moved::reset_denied();
    Ok((groups, numbers))
}

/// What is heard of directories.
struct Watch {
    inotify: OwnedFd,
    watched: HashSet<i32>,
}

impl Watch {
    fn start() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self { inotify, watched: HashSet::new() })
    }

    /// Watches where groups of the rules may come, and the lists; true: some of that was not watched.
    fn add(&mut self, in_force: &InForce) -> Result<bool, FilterError> {
        let root = Cgroup::root()?;
        let above = |path: &Path| -> Vec<PathBuf> {
            let path = path.strip_prefix("/").unwrap_or(path).to_owned();
            path.ancestors().skip(1).map(|part| root.join(part)).collect()
        };
        let groups = in_force.groups();
        let of_paths = groups.paths().flat_map(|(path, _)| above(path));
        let slices = groups::slices(&root).take_while(|_| !groups.units().is_empty());
        let flags = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_TO;
        let mut is_new = false;
        for path in of_paths.chain(slices).chain([PathBuf::from(in_force::STATE)]) {
            match inotify::add_watch(&self.inotify, &path, flags | WatchFlags::ONLYDIR) {
                Ok(watch) => is_new |= self.watched.insert(watch),
                // It is not there; its coming is heard of where it is made.
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => return Err(FilterError::file(&path, error.into())),
            }
        }
        Ok(is_new)
    }

    /// Waits until there is something to hear of; true: a signal has come.
    fn is_stopped(&mut self, stop: &UnixStream) -> io::Result<bool> {
        let mut events =
            [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut events, None) {
            Ok(_) if !events[1].revents().is_empty() => return Ok(true),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // A directory is moved and filled in several steps, of which each would be heard.
        thread::sleep(Duration::from_micros(200));
        let mut buffer = [0; 4096];
        while rustix::io::read(&self.inotify, &mut buffer).is_ok_and(|len| len > 0) {}
        Ok(false)
    }
}
