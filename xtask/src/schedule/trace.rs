//! Lines of the kernel's trace.
//!
//! ```text
//!   client 0-6527    [000] d..2. 12311.921158: sched_switch: prev_comm=… prev_pid=6527 … prev_state=S ==> next_comm=… next_pid=6522 …
//!   client 0-6527    [000] d.s5. 12311.921147: sched_waking: comm=server 0 pid=6522 prio=120 target_cpu=000
//!   server 0-6522    [000] ..... 12311.921162: sys_enter: NR 24 (…)
//! ```
//!
//! Names of programs may hold anything, spaces and brackets included; so each field is found
//! from the side on which nothing of the kind follows.

use anyhow::{Context, Result};

/// Something that the scheduler did, or was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Nanoseconds of the monotonic clock.
    pub(super) at_ns: u64,
    /// On which CPU.
    pub(super) cpu: usize,
    pub(super) what: What,
}

/// Threads are given by their numbers; 0 is the idle thread of each CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The CPU goes from one thread to another.
    Switch {
        from: u32,
        /// It would go on if it could.
        wants_more: bool,
        to: u32,
    },
    /// A thread is woken.
    Waking(u32),
    /// A thread calls `sched_yield`.
    Yields(u32),
    /// The call returns.
    HasYielded(u32),
}

/// The event of a line; `None` if it is of another kind.
pub(super) fn read(line: &str) -> Option<Result<Event>> {
    let (before, rest) = split_at_event(line)?;
    let (kind, fields) = rest.split_once(": ")?;
    let parse = || -> Option<Event> {
        let (thread, cpu, at_ns) = header(before)?;
        let what = match kind {
            "sched_switch" => switch(fields)?,
            "sched_waking" => What::Waking(number(fields, " pid=")?),
            "sys_enter" => What::Yields(thread),
            "sys_exit" => What::HasYielded(thread),
            _ => return None,
        };
        Some(Event { at_ns, cpu, what })
    };
    let known = ["sched_switch", "sched_waking", "sys_enter", "sys_exit"].contains(&kind);
    known.then(|| parse().with_context(|| format!("not as the kernel writes it: {line}")))
}

/// What stands before the name of an event (`thread [cpu] flags seconds`), and from there on.
fn split_at_event(line: &str) -> Option<(&str, &str)> {
    // The first colon behind a number of seconds with six digits.
    let mut from = 0;
    loop {
        let colon = from + line.get(from..)?.find(": ")?;
        let word = line[..colon].rsplit(' ').next()?;
        if word
            .split_once('.')
            .is_some_and(|(s, us)| us.len() == 6 && is_number(s) && is_number(us))
        {
            return Some((&line[..colon], &line[colon + 2..]));
        }
        from = colon + 2;
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn header(before: &str) -> Option<(u32, usize, u64)> {
    let (before, seconds) = before.rsplit_once(' ')?;
    let (before, _flags) = before.trim_end().rsplit_once(' ')?;
    let (thread, cpu) = before.trim_end().rsplit_once(" [")?;
    let thread = thread.trim_end().rsplit_once('-')?.1.parse().ok()?;
    let (seconds, micros) = seconds.split_once('.')?;
    let at_ns = (seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?) * 1_000;
    Some((thread, cpu.strip_suffix(']')?.parse().ok()?, at_ns))
}

fn switch(fields: &str) -> Option<What> {
    let (from, to) = fields.rsplit_once(" ==> ")?;
    let state = from.rsplit_once(" prev_state=")?.1;
    Some(What::Switch {
        from: number(from, " prev_pid=")?,
        wants_more: state.starts_with('R'),
        to: number(to, " next_pid=")?,
    })
}

/// The number behind the last such key.
fn number(fields: &str, key: &str) -> Option<u32> {
    let value = fields.rsplit_once(key)?.1;
    value.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_linux_6_18_are_read() {
        let lines = [
            "        client 0-6527    [001] d..2. 12311.921158: sched_switch: prev_comm=client 0 prev_pid=6527 prev_prio=120 prev_state=S ==> next_comm=server 0 next_pid=6522 next_prio=120",
            " lto d479lp9cvhi-3338    [001] d..2. 12237.324865: sched_switch: prev_comm=lto d479lp9cvhi prev_pid=3338 prev_prio=120 prev_state=R+ ==> next_comm=memfd:sealed-91 next_pid=27771 next_prio=120",
            "          <idle>-0       [000] d.s5. 12311.921147: sched_waking: comm=server 0 pid=6522 prio=120 target_cpu=000",
            "        server 0-6522    [000] ..... 12311.921162: sys_enter: NR 24 (0, 0, 0, 0, 0, 0)",
            "        server 0-6522    [000] ..... 12311.921165: sys_exit: NR 24 = 0",
        ];
        let events: Vec<Event> = lines.iter().map(|line| read(line).unwrap().unwrap()).collect();
        let event = |at_ns, cpu, what| Event { at_ns, cpu, what };
        assert_eq!(
            events,
            [
                event(
                    12_311_921_158_000,
                    1,
                    What::Switch { from: 6527, wants_more: false, to: 6522 }
                ),
                event(
                    12_237_324_865_000,
                    1,
                    What::Switch { from: 3338, wants_more: true, to: 27771 }
                ),
                event(12_311_921_147_000, 0, What::Waking(6522)),
                event(12_311_921_162_000, 0, What::Yields(6522)),
                event(12_311_921_165_000, 0, What::HasYielded(6522)),
            ]
        );
    }

    #[test]
    fn names_of_programs_may_look_like_anything() {
        let line = "  [x] y-9-12     [000] d..2.     5.000001: sched_waking: comm=b pid=5 pid=77 prio=120 target_cpu=001";
        let event = read(line).unwrap().unwrap();
        assert_eq!((event.cpu, event.at_ns), (0, 5_000_001_000));
        assert_eq!(event.what, What::Waking(77));
    }

    #[test]
    fn other_events_are_passed_over_and_broken_ones_are_errors() {
        assert!(read(" a-1 [000] d..2. 5.000001: sched_wakeup: comm=b pid=5").is_none());
        assert!(read("CPU:1 [LOST 3 EVENTS]").is_none());
        assert!(read(" a-1 [000] d..2. 5.000001: sched_switch: prev_pid=5").unwrap().is_err());
    }
}
