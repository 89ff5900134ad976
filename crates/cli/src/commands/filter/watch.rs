//! `sidestep filter watch`: the packets that rules with `log` decide about, as they come.
//!
//! A line of the kernel has a rule's place and the name of its list. The lists that were in force while this
//! reads are kept here, because the files of old ones go when a new one is confirmed.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::{Value, json};
use sidestep_bpf::{Cgroup, Filter, Identity, Log, LogLine, Totals};
use sidestep_filter::{Action, NO_USER, RuleList, Verdict};

use super::answer::{FilterError, named};
use super::control_groups::ControlGroups;
use super::in_force::{self, InForce, name_of};
use super::show::monotonic_ns;
use crate::args::FilterWatchArgs;
use crate::commands::signals;
use crate::{accounts, output};

/// How often is looked whether the filter is there, and what was lost.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

pub(super) fn execute(args: &FilterWatchArgs) -> Result<(), FilterError> {
    let stop = signals::stop().map_err(FilterError::Signals)?;
    let InForce { filter, identity, list, .. } = InForce::find()?.ok_or(FilterError::None)?;
    let _only_reader = in_force::lock_log()?;
    let mut log = filter.log()?;
    let mut reader = Reader {
        lists: HashMap::from([(identity, Some(list))]),
        groups: ControlGroups::below(Cgroup::root()?),
        lost: Lost::default(),
        is_json: args.json,
    };
    loop {
        if !reader.read(&filter, &mut log)? {
            return Ok(());
        }
        if !log.is_live() {
            return Err(FilterError::Removed);
        }
        if is_stopped(&log, &stop)? {
            return Ok(());
        }
    }
}

/// Waits for a line, or for a second; true: a signal has come.
fn is_stopped(log: &Log, stop: &UnixStream) -> Result<bool, FilterError> {
    let mut events = [PollFd::new(log, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
    match poll(&mut events, Some(&LOOK)) {
        Ok(_) => Ok(!events[1].revents().is_empty()),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(FilterError::Wait(error.into())),
    }
}

/// Makes words of lines.
struct Reader {
    /// `None`: the list has gone.
    lists: HashMap<Identity, Option<RuleList>>,
    groups: ControlGroups,
    /// What was told already.
    lost: Lost,
    is_json: bool,
}

/// Lines that no reader gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lost {
    by_rate: u64,
    for_room: u64,
}

impl Reader {
    /// Prints what is there; false: the output has no reader any more.
    fn read(&mut self, filter: &Filter, log: &mut Log) -> Result<bool, FilterError> {
        // Those in the ring came before those that found no room in it.
        while let Some(line) = log.take() {
            let shown = self.shown(&line);
            if !self.print(&if self.is_json { shown.to_json() } else { shown.to_text() })? {
                return Ok(false);
            }
        }
        // One that is being removed tells nothing any more.
        let Ok(Totals { lost_by_rate: by_rate, lost_for_room: for_room, .. }) = filter.totals()
        else {
            return Ok(true);
        };
        let now = Lost { by_rate, for_room };
        let new = now.since(self.lost);
        self.lost = now;
        if new == Lost::default() {
            return Ok(true);
        }
        self.print(&if self.is_json { new.to_json() } else { new.to_text() })
    }

    fn print(&self, line: &str) -> Result<bool, FilterError> {
        output::print_as(self.is_json, &format!("{line}\n")).map_err(FilterError::Output)
    }

    fn shown(&mut self, line: &LogLine) -> Shown {
        let LogLine { identity, cgroup, .. } = *line;
        let list = self.lists.entry(identity).or_insert_with(|| in_force::list_of(identity));
        let rule = match (list, line.verdict.rule) {
            (_, None) => "no rule matches, so the default decides".to_owned(),
            (Some(list), Some(rule)) if rule < list.rules.len() => named(list, rule),
            (Some(list), Some(rule)) if rule > list.rules.len() => {
                in_force::later_line(identity, rule - list.rules.len() - 1)
            }
            (_, Some(rule)) => {
                format!("rule {} of the list {}, which has gone", rule + 1, name_of(identity))
            }
        };
        Shown {
            line: *line,
            rule,
            time: time_of(line.time_ns),
            user: (line.packet.user != NO_USER).then(|| accounts::name_of(line.packet.user)),
            group: self.groups.name(cgroup),
            program: self.groups.program(cgroup),
        }
    }
}

/// A line with what its numbers mean.
struct Shown {
    line: LogLine,
    rule: String,
    time: Timestamp,
    /// `None`: the packet is forwarded.
    user: Option<String>,
    group: Option<String>,
    program: Option<(u32, String)>,
}

impl Shown {
    fn to_text(&self) -> String {
        let Self { line: LogLine { packet, verdict, len, .. }, rule, time, .. } = self;
        let interface = packet.interface;
        let mut text =
            format!("{time:.6} {} {packet}: {len} bytes, interface {interface}", verdict.action);
        if let Some(user) = &self.user {
            text += &format!(", user {user}");
        }
        if let Some(group) = &self.group {
            text += &format!(", {group}");
        }
        if let Some((pid, name)) = &self.program {
            text += &format!(", {name} ({pid})");
        }
        let why = if self.lacks_tls() { "not protected by TLS, by " } else { "" };
        text + &format!("; {why}{rule}")
    }

    /// The rule permits what TLS protects, and this was not.
    fn lacks_tls(&self) -> bool {
        let Verdict { action, needs_tls, .. } = self.line.verdict;
        action == Action::Deny && needs_tls
    }

    fn to_json(&self) -> String {
        let LogLine { packet, verdict, len, identity, .. } = self.line;
        let (pid, name) = self.program.clone().unzip();
        let value = json!({
            "time": self.time.to_string(),
            "action": verdict.action.to_string(),
            "lacks_tls": self.lacks_tls(),
            "packet": packet.to_string(),
            "way": packet.way.to_string(),
            "protocol": packet.protocol,
            "source": packet.source,
            "destination": packet.destination,
            "source_port": packet.ports.0,
            "destination_port": packet.ports.1,
            "bytes": len,
            "interface": packet.interface,
            "user": self.user,
            "cgroup": self.group,
            "pid": pid,
            "program": name,
            "list": name_of(identity),
            "rule": self.rule,
        });
        value.to_string()
    }
}

impl Lost {
    fn since(self, before: Self) -> Self {
        // Less is there after the filter was made anew.
        let more = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        Self {
            by_rate: more(self.by_rate, before.by_rate),
            for_room: more(self.for_room, before.for_room),
        }
    }

    fn to_text(self) -> String {
        let Self { by_rate, for_room } = self;
        let most = sidestep_bpf::LINES_MAX;
        format!(
            "lines lost: {by_rate} beyond {most} a second of one rule, {for_room} for lack of room"
        )
    }

    fn to_json(self) -> String {
        let value: Value =
            json!({ "lost": { "by_rate": self.by_rate, "for_room": self.for_room } });
        value.to_string()
    }
}

/// The time of day of a moment of the monotonic clock.
fn time_of(ns: u64) -> Timestamp {
    let ago = monotonic_ns().saturating_sub(ns);
    let now = Timestamp::now();
    Timestamp::from_nanosecond(now.as_nanosecond() - i128::from(ago)).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_filter::{Packet, Way};

    fn shown() -> Shown {
        let ends = ["10.1.2.3:5000", "192.0.2.7:443"].map(|it| it.parse().unwrap());
        let verdict =
            Verdict { action: Action::Deny, rule: Some(2), is_logged: true, needs_tls: false };
        let line = LogLine {
            time_ns: 1,
            identity: [1; 7],
            verdict,
            packet: Packet::between(6, ends[0], ends[1], Way::In),
            len: 60,
            cgroup: 7,
        };
        let rule = "line 7: deny tcp any any log".to_owned();
        let (group, program) = (Some("/web.service".to_owned()), Some((9, "nginx".to_owned())));
        let (time, user) = (Timestamp::UNIX_EPOCH, Some("root".to_owned()));
        Shown { line, rule, time, user, group, program }
    }

    #[test]
    fn a_line_says_what_why_and_whose() {
        let text = "1970-01-01T00:00:00.000000Z deny tcp 10.1.2.3:5000 192.0.2.7:443 in: 60 bytes, \
                    interface 0, user root, /web.service, nginx (9); line 7: deny tcp any any log";
        assert_eq!(shown().to_text(), text);
        let mut shown = shown();
        shown.line.verdict.needs_tls = true;
        assert!(
            shown.to_text().ends_with("; not protected by TLS, by line 7: deny tcp any any log")
        );
        let shown = self::shown();
        let value: Value = serde_json::from_str(&shown.to_json()).unwrap();
        assert_eq!((&value["pid"], &value["cgroup"]), (&9.into(), &"/web.service".into()));
        assert_eq!((&value["source_port"], &value["bytes"]), (&5000.into(), &60.into()));
    }

    #[test]
    fn only_new_losses_are_told() {
        let before = Lost { by_rate: 3, for_room: 5 };
        let now = Lost { by_rate: 4, for_room: 5 };
        assert_eq!(now.since(before), Lost { by_rate: 1, for_room: 0 });
        assert_eq!(
            Lost { by_rate: 2, for_room: 0 }.since(before),
            Lost { by_rate: 2, for_room: 0 }
        );
    }
}
