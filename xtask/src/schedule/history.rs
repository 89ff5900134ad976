//! What the scheduler did with each thread in a window, from the events of a trace.
//!
//! A thread of either end is in one of three states: it runs, it waits for a CPU, or it sleeps.
//! For one that waits it counts what made it wait, because that tells which cure helps:
//!
//! * woken: another thread has woken it, and its CPU still runs a third one;
//! * yielded: it has given the CPU away by `sched_yield`;
//! * preempted: the scheduler has taken the CPU from it.

use std::collections::HashMap;
use std::fmt::Write;

use anyhow::{Context, Result};

use super::trace::{Event, What};

/// One side of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Side {
    Client,
    Server,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Client, Self::Server];

    /// By the name of a thread of `sidestep bench`: `client 0`, `server 7`.
    pub(super) fn named(thread: &str) -> Option<Self> {
        match thread.split_once(' ')?.0 {
            "client" => Some(Self::Client),
            "server" => Some(Self::Server),
            _ => None,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// What a thread belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Actor {
    End(Side),
    /// An endless loop.
    Loop,
    /// A program that has no part in the measurement.
    Other,
}

/// Why a thread waits for a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reason {
    Woken,
    Yielded,
    Preempted,
}

impl Reason {
    pub(super) const ALL: [Self; 3] = [Self::Woken, Self::Yielded, Self::Preempted];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Woken => "woken",
            Self::Yielded => "yielded",
            Self::Preempted => "preempted",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    Runs,
    Waits(Reason),
    Sleeps,
}

/// Something that lasted, in nanoseconds from the beginning of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span<T> {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) of: T,
}

impl<T> Span<T> {
    pub(super) fn len(&self) -> u64 {
        self.to - self.from
    }

    /// How much of it lies in a part of the window.
    fn within(&self, from: u64, to: u64) -> u64 {
        self.to.min(to).saturating_sub(self.from.max(from))
    }
}

/// How far apart the windows are from which [`History::quietest`] chooses, in nanoseconds.
const STEP_NS: usize = 1_000_000;

/// A window.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) len_ns: u64,
    /// What ran on each CPU; there is no span while it was idle.
    pub(super) cpus: Vec<Vec<Span<Actor>>>,
    /// Each thread of the two ends.
    pub(super) threads: Vec<Thread>,
}

/// A thread of one end.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) side: Side,
    /// From its first event on.
    pub(super) spans: Vec<Span<State>>,
}

/// A thread while the events are read.
struct Reading {
    thread: Thread,
    state: Option<(State, u64)>,
    in_yield: bool,
}

impl Reading {
    fn enter(&mut self, state: State, now: u64) {
        if let Some((of, from)) = self.state.replace((state, now)) {
            self.thread.spans.push(Span { from, to: now, of });
        }
    }
}

impl History {
    /// `cast`: what threads are; all that are not in it are others'.
    ///
    /// **Errors**: there are no events.
    pub(super) fn of(events: &[Event], cast: &HashMap<u32, Actor>) -> Result<Self> {
        let begin = events.first().context("nothing was recorded")?.at_ns;
        let len_ns = events.last().context("nothing was recorded")?.at_ns - begin;
        let mut threads: HashMap<u32, Reading> = HashMap::new();
        for (tid, actor) in cast {
            if let Actor::End(side) = *actor {
                let thread = Thread { side, spans: Vec::new() };
                threads.insert(*tid, Reading { thread, state: None, in_yield: false });
            }
        }
        let mut cpus: Vec<Vec<Span<Actor>>> = Vec::new();
        let mut on_cpu: Vec<Option<(u32, u64)>> = Vec::new();
        for event in events {
            let now = event.at_ns - begin;
            match event.what {
                What::Switch { from, wants_more, to } => {
                    if on_cpu.len() <= event.cpu {
                        on_cpu.resize(event.cpu + 1, None);
                        cpus.resize_with(event.cpu + 1, Vec::new);
                    }
                    // The thread that the first switch takes the CPU from has had it since the
                    // window began.
                    let (who, since) = on_cpu[event.cpu].replace((to, now)).unwrap_or((from, 0));
                    occupy(&mut cpus[event.cpu], cast, who, since, now);
                    if let Some(leaving) = threads.get_mut(&from) {
                        leaving.enter(after_switch(wants_more, leaving.in_yield), now);
                    }
                    if let Some(coming) = threads.get_mut(&to) {
                        coming.enter(State::Runs, now);
                    }
                }
                What::Waking(woken) => {
                    if let Some(thread) = threads.get_mut(&woken)
                        && matches!(thread.state, None | Some((State::Sleeps, _)))
                    {
                        thread.enter(State::Waits(Reason::Woken), now);
                    }
                }
                What::Yields(tid) | What::HasYielded(tid) => {
                    if let Some(thread) = threads.get_mut(&tid) {
                        thread.in_yield = matches!(event.what, What::Yields(_));
                    }
                }
            }
        }
        for (cpu, current) in on_cpu.into_iter().enumerate() {
            if let Some((who, since)) = current {
                occupy(&mut cpus[cpu], cast, who, since, len_ns);
            }
        }
        let threads = threads.into_values().filter_map(|mut reading| {
            let (state, _) = reading.state?;
            reading.enter(state, len_ns);
            Some(reading.thread)
        });
        Ok(Self { len_ns, cpus, threads: threads.collect() })
    }

    /// Of all windows of this length in a longer record, the one in which other programs had the
    /// least of the CPUs.
    ///
    /// **Errors**: there are no events.
    pub(super) fn quietest(
        events: &[Event],
        window_ns: u64,
        cast: &HashMap<u32, Actor>,
    ) -> Result<Self> {
        let whole = Self::of(events, cast)?;
        let starts = (0..=whole.len_ns.saturating_sub(window_ns)).step_by(STEP_NS);
        let others = |from: u64| -> u64 {
            let spans = whole.cpus.iter().flatten().filter(|span| span.of == Actor::Other);
            spans.map(|span| span.within(from, from + window_ns)).sum()
        };
        let from = starts.min_by_key(|from| others(*from)).unwrap_or(0);
        Ok(whole.cut(from, from + window_ns))
    }

    /// The part between two times.
    fn cut(self, from: u64, to: u64) -> Self {
        let to = to.min(self.len_ns);
        let threads = self.threads.into_iter();
        Self {
            len_ns: to - from,
            cpus: self.cpus.into_iter().map(|spans| cut(spans, from, to)).collect(),
            threads: threads
                .map(|thread| Thread { spans: cut(thread.spans, from, to), ..thread })
                .collect(),
        }
    }

    /// How many threads of a side there are.
    pub(super) fn count(&self, side: Side) -> usize {
        self.of_side(side).count()
    }

    pub(super) fn of_side(&self, side: Side) -> impl Iterator<Item = &Thread> {
        self.threads.iter().filter(move |thread| thread.side == side)
    }

    /// The part of a side's time in a state, all its threads together.
    pub(super) fn share(&self, side: Side, state: State) -> f64 {
        let spans = || self.of_side(side).flat_map(|thread| &thread.spans);
        let all: u64 = spans().map(Span::len).sum();
        let its: u64 = spans().filter(|span| span.of == state).map(Span::len).sum();
        its as f64 / all.max(1) as f64
    }

    /// Lengths of all waits for a CPU of either end for this reason, in nanoseconds, rising.
    fn waits(&self, reason: Reason) -> Vec<u64> {
        let spans = self.threads.iter().flat_map(|thread| &thread.spans);
        let of_it = spans.filter(|span| span.of == State::Waits(reason));
        let mut lengths: Vec<u64> = of_it.map(Span::len).collect();
        lengths.sort_unstable();
        lengths
    }

    /// The part of all CPUs that other programs had. A window with much of it shows the machine
    /// rather than the loops.
    fn others(&self) -> f64 {
        let spans = self.cpus.iter().flatten().filter(|span| span.of == Actor::Other);
        let all = self.len_ns * self.cpus.len() as u64;
        spans.map(Span::len).sum::<u64>() as f64 / all.max(1) as f64
    }

    /// Where the time has gone.
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "  window of {:.1} ms, other programs had {:.0} % of the CPUs\n",
            self.len_ns as f64 / 1e6,
            100.0 * self.others(),
        );
        for side in Side::BOTH {
            let part = |state| 100.0 * self.share(side, state);
            let waits = Reason::ALL
                .map(|reason| format!("{} {:.1} %", reason.name(), part(State::Waits(reason))));
            let _ = writeln!(
                text,
                "  {} × {}: runs {:.1} %, sleeps {:.1} %, waits for a CPU: {}",
                self.count(side),
                side.name(),
                part(State::Runs),
                part(State::Sleeps),
                waits.join(", "),
            );
        }
        for reason in Reason::ALL {
            let waits = self.waits(reason);
            let at = |part: f64| {
                let index = (part * waits.len() as f64) as usize;
                waits
                    .get(index.min(waits.len().saturating_sub(1)))
                    .map_or(0.0, |ns| *ns as f64 / 1e3)
            };
            let _ = writeln!(
                text,
                "  waits, {}: {}, median {:.0} µs, p90 {:.0} µs, longest {:.0} µs",
                reason.name(),
                waits.len(),
                at(0.5),
                at(0.9),
                at(1.0),
            );
        }
        text
    }
}

fn after_switch(wants_more: bool, in_yield: bool) -> State {
    match (wants_more, in_yield) {
        (false, _) => State::Sleeps,
        (true, true) => State::Waits(Reason::Yielded),
        (true, false) => State::Waits(Reason::Preempted),
    }
}

/// The parts of spans between two times, counted from the first of them.
fn cut<T: Copy>(spans: Vec<Span<T>>, from: u64, to: u64) -> Vec<Span<T>> {
    let inside = spans.into_iter().filter(|span| span.within(from, to) > 0);
    let part = |span: Span<T>| Span {
        from: span.from.max(from) - from,
        to: span.to.min(to) - from,
        of: span.of,
    };
    inside.map(part).collect()
}

/// Notes which thread had a CPU; 0 is the idle one.
fn occupy(cpu: &mut Vec<Span<Actor>>, cast: &HashMap<u32, Actor>, who: u32, from: u64, to: u64) {
    if who != 0 && from < to {
        cpu.push(Span { from, to, of: cast.get(&who).copied().unwrap_or(Actor::Other) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: u32 = 10;
    const SERVER: u32 = 20;
    const LOOP: u32 = 30;
    const STRANGER: u32 = 40;

    fn history(events: &[(u64, What)]) -> History {
        let cast = HashMap::from([
            (CLIENT, Actor::End(Side::Client)),
            (SERVER, Actor::End(Side::Server)),
            (LOOP, Actor::Loop),
        ]);
        let events: Vec<Event> =
            events.iter().map(|&(at_ns, what)| Event { at_ns, cpu: 0, what }).collect();
        History::of(&events, &cast).unwrap()
    }

    fn switch(from: u32, wants_more: bool, to: u32) -> What {
        What::Switch { from, wants_more, to }
    }

    fn spans(history: &History, side: Side) -> Vec<(State, u64)> {
        let thread = history.of_side(side).next().unwrap();
        thread.spans.iter().map(|span| (span.of, span.len())).collect()
    }

    #[test]
    fn a_wait_for_a_cpu_is_charged_to_what_began_it() {
        let history = history(&[
            (1_000, switch(LOOP, true, CLIENT)),
            (1_010, What::Waking(SERVER)),
            (1_020, switch(CLIENT, false, SERVER)),
            (1_050, What::Waking(CLIENT)),
            (1_060, What::Yields(SERVER)),
            (1_070, switch(SERVER, true, CLIENT)),
            (1_080, switch(CLIENT, true, SERVER)),
            (1_081, What::HasYielded(SERVER)),
            (1_100, switch(SERVER, true, STRANGER)),
            (1_200, switch(STRANGER, false, 0)),
        ]);
        let waits = State::Waits;
        assert_eq!(
            spans(&history, Side::Client),
            [
                (State::Runs, 20),
                (State::Sleeps, 30),
                (waits(Reason::Woken), 20),
                (State::Runs, 10),
                (waits(Reason::Preempted), 120),
            ]
        );
        assert_eq!(
            spans(&history, Side::Server),
            [
                (waits(Reason::Woken), 10),
                (State::Runs, 50),
                (waits(Reason::Yielded), 10),
                (State::Runs, 20),
                (waits(Reason::Preempted), 100),
            ]
        );
        let actors: Vec<_> = history.cpus[0].iter().map(|span| (span.of, span.len())).collect();
        let (client, server) = (Actor::End(Side::Client), Actor::End(Side::Server));
        assert_eq!(
            actors,
            [(client, 20), (server, 50), (client, 10), (server, 20), (Actor::Other, 100)]
        );
        assert_eq!(history.others(), 0.5);
    }

    #[test]
    fn the_first_thread_on_a_cpu_has_had_it_since_the_window_began() {
        let history = history(&[
            (500, What::Waking(CLIENT)),
            (600, switch(LOOP, true, CLIENT)),
            (700, switch(CLIENT, false, 0)),
            (800, What::Waking(CLIENT)),
        ]);
        let loops = Span { from: 0, to: 100, of: Actor::Loop };
        let client = Span { from: 100, to: 200, of: Actor::End(Side::Client) };
        assert_eq!(history.cpus, [[loops, client]]);
        assert_eq!(history.share(Side::Client, State::Runs), 1.0 / 3.0);
        assert_eq!(history.share(Side::Client, State::Sleeps), 1.0 / 3.0);
    }

    #[test]
    fn the_quietest_window_has_the_least_of_other_programs() {
        const MS: u64 = 1_000_000;
        let cast = HashMap::from([(LOOP, Actor::Loop), (CLIENT, Actor::End(Side::Client))]);
        let turns =
            [(0, CLIENT, LOOP), (6, LOOP, STRANGER), (8, STRANGER, LOOP), (20, LOOP, STRANGER)];
        let events = turns.map(|(at, from, to)| Event {
            at_ns: at * MS,
            cpu: 0,
            what: switch(from, true, to),
        });
        let quiet = History::quietest(&events, 12 * MS, &cast).unwrap();
        assert_eq!((quiet.len_ns, quiet.others()), (12 * MS, 0.0));
        // What was so before the window began is so in it.
        assert_eq!(quiet.cpus, [[Span { from: 0, to: 12 * MS, of: Actor::Loop }]]);
        let waits = (State::Waits(Reason::Preempted), 12 * MS);
        assert_eq!(spans(&quiet, Side::Client), [waits]);
        let whole = History::quietest(&events, 100 * MS, &cast).unwrap();
        assert_eq!((whole.len_ns, whole.others()), (20 * MS, 0.1));
    }

    #[test]
    fn sides_are_told_by_the_names_of_their_threads() {
        assert_eq!(Side::named("client 12\n"), Some(Side::Client));
        assert_eq!(Side::named("server 0\n"), Some(Side::Server));
        assert_eq!(Side::named("commands\n"), None);
    }
}
