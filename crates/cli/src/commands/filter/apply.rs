//! `sidestep filter apply`: puts a list into force, for good or until it is not confirmed.

use std::ffi::c_int;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::json;
use sidestep_bpf::{Cgroup, Filter, GroupNumbers, RuleSet};
use sidestep_filter::{Names, compile};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::answer::{FilterError, counted, say, say_json};
use super::check::{complain_of_groups, remarks};
use super::diff::in_short;
use super::in_force::{self, About, InForce, PINS, name_of};
use super::source::{Machine, Source};
use super::{groups, moved};
use crate::args::FilterApplyArgs;
use crate::config::Configuration;
use crate::output;

pub(super) fn execute(args: &FilterApplyArgs) -> Result<(), FilterError> {
    let source = Source::named(&args.list)?;
    let machine = Machine::here(&source.list)?;
    let compiled = source.compile(&machine)?;
    output::complain_lines("filter apply", &remarks(&source.list, &compiled.report));
    complain_of_groups("filter apply", machine.groups())?;
    let _lock = in_force::lock()?;
    let before = InForce::find()?;
    let cgroup = cgroup(args.cgroup.as_deref(), before.as_ref())?;
    let (forwarded, indices) = forwarded(args)?;
    // Before anything is changed: who cannot be asked cannot confirm.
    let confirmation = args.confirm.map(Confirmation::prepare).transpose()?;
    let about = About {
        file: std::path::absolute(&source.path).unwrap_or_else(|_| source.path.clone()),
        cgroup,
        forwarded,
        units: machine.groups().units().clone(),
        later: Vec::new(),
        applied_s: Timestamp::now().as_second(),
        rules: source.list.rules.len(),
    };
    let numbers = groups::numbers(machine.groups(), &about.cgroup)?;
    let identity = in_force::keep(&source.text, &about)?;
    let set = RuleSet { graph: &compiled.graph, rules: about.rules, identity, groups: &numbers };
    let filter = put(before.as_ref(), &about.cgroup, &set)?;
    if let Err(error) = filter.judge_forwarded(&indices) {
        take_back(before)?;
        return Err(error.into());
    }
    let reset = moved::reset_denied();
    if let Some(confirmation) = confirmation
        && let Err(reason) = confirmation.wait()
    {
        take_back(before)?;
        return Err(FilterError::NotConfirmed(reason));
    }
    in_force::forget_all_but(Some(identity));
    if args.json {
        return say_json(&json!({
            "file": about.file,
            "cgroup": about.cgroup,
            "forwarded": about.forwarded,
            "name": name_of(identity),
            "rules": source.list.rules.len(),
            "default": source.list.default.to_string(),
            "reset": reset.to_json(),
        }));
    }
    let change = before.map_or_else(
        || "no filter was before".to_owned(),
        |before| in_short(&before.rules().0, &source.list),
    );
    let rules = counted(&source.list.rules);
    let forwarded = match about.forwarded.join(", ") {
        names if names.is_empty() => names,
        names => format!("; forwarded packets by {names}"),
    };
    let reset = reset.to_text();
    say(&format!("in force: {rules} of {}{forwarded}; {change}{reset}\n", source.path.display()))
}

/// The group that is asked for, or that the filter has already, or that of all processes.
fn cgroup(asked: Option<&Path>, before: Option<&InForce>) -> Result<PathBuf, FilterError> {
    match (asked, before) {
        (Some(asked), Some(before)) if asked != before.about.cgroup => {
            Err(FilterError::OtherCgroup(before.about.cgroup.display().to_string()))
        }
        (_, Some(before)) => Ok(before.about.cgroup.clone()),
        (Some(asked), None) => Ok(asked.to_owned()),
        (None, None) => Ok(Cgroup::root()?),
    }
}

/// The interfaces, by name and index, where packets leave that are forwarded and to be judged.
fn forwarded(args: &FilterApplyArgs) -> Result<(Vec<String>, Vec<u32>), FilterError> {
    let names = if args.forwarded.is_empty() {
        let environment = |name: &str| std::env::var_os(name);
        let configuration = Configuration::load(args.list.config.as_deref(), environment)?;
        configuration.settings.filter_forwarded.unwrap_or_default()
    } else {
        args.forwarded.clone()
    };
    let machine = Machine::default();
    let index = |name: String| match machine.interface(&name) {
        Some(index) => Ok((name, index)),
        None => Err(FilterError::NoInterface(name)),
    };
    names.iter().map(ToString::to_string).map(index).collect()
}

fn put(before: Option<&InForce>, cgroup: &Path, set: &RuleSet<'_>) -> Result<Filter, FilterError> {
    match before {
        Some(before) => {
            before.filter.put(set)?;
            Ok(before.filter.clone())
        }
        None => Ok(Filter::attach(Path::new(PINS), cgroup, set)?),
    }
}

/// Makes the list in force anew, where a unit in it is at another place than before.
pub(super) fn put_again(
    in_force: &mut InForce,
    machine: &Machine,
    numbers: &GroupNumbers,
) -> Result<(), FilterError> {
    let InForce { filter, identity, list, later, about } = in_force;
    let graph = compile(list, machine).map_err(|error| FilterError::List(error.to_string()))?.graph;
    about.units = machine.groups().units().clone();
    about.write(*identity)?;
    let set =
        RuleSet { graph: &graph, rules: list.rules.len(), identity: *identity, groups: numbers };
    filter.put(&set)?;
    match filter.put_later(later, machine)? {
        Some(Err(error)) => Err(FilterError::List(error.to_string())),
        // What had room has it again.
        _ => Ok(()),
    }
}

fn take_back(before: Option<InForce>) -> Result<(), FilterError> {
    match before {
        Some(before) => {
            before.filter.take_back(before.identity)?;
            // The list may be the same, and what was told of it another.
            before.about.write(before.identity)?;
            // An interface that has gone meanwhile forwards nothing.
            let machine = Machine::default();
            let names = before.about.forwarded.iter();
            let indices: Vec<u32> = names.filter_map(|name| machine.interface(name)).collect();
            before.filter.judge_forwarded(&indices)?;
            moved::reset_denied();
            in_force::forget_all_but(Some(before.identity));
        }
        None => {
            if let Some(filter) = Filter::find(Path::new(PINS))? {
                filter.remove()?;
            }
            in_force::forget_all_but(None);
        }
    }
    Ok(())
}

/// Somebody at a terminal who has to press a key in time. A terminal that has gone says nothing,
/// and a signal ends the waiting: all of that takes the list back.
struct Confirmation {
    within: Duration,
    /// Has a byte when one of [`SIGNALS`] has come.
    signals: UnixStream,
}

/// That end a command, or say that its terminal has gone.
const SIGNALS: [c_int; 3] = [SIGHUP, SIGINT, SIGTERM];

impl Confirmation {
    fn prepare(within: Duration) -> Result<Self, FilterError> {
        let prepared = || {
            let (signals, writer) = UnixStream::pair()?;
            for signal in SIGNALS {
                signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
            }
            Ok(Self { within, signals })
        };
        prepared().map_err(FilterError::Signals)
    }

    /// **Errors**: why not.
    fn wait(&self) -> Result<(), &'static str> {
        let ask = "the new rules are in force: press ENTER to keep them";
        let within = self.within.as_secs_f64();
        output::complain("filter apply", format_args!("{ask} (within {within} s)"));
        let deadline = Instant::now() + self.within;
        let stdin = io::stdin();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| "the time is too long")?;
            let mut events =
                [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
            match poll(&mut events, Some(&left)) {
                Err(Errno::INTR) => continue,
                Err(_) => return Err("nobody can be asked"),
                Ok(0) => return Err("nobody has answered in time"),
                Ok(_) if !events[1].revents().is_empty() => return Err("a signal has come"),
                Ok(_) => {}
            }
            // Byte by byte: what is behind the line is not ours, and half a line may be all.
            let mut byte = [0];
            match rustix::io::read(&stdin, &mut byte) {
                Ok(1) if byte[0] == b'\n' => return Ok(()),
                Ok(1) => {}
                _ => return Err("there is nobody to ask"),
            }
        }
    }
}
