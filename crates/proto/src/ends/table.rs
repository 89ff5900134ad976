//! Prints [`states.md`](./states.md) from the machines: what follows what, over all words that two ends can have written, and
//! all answers of the kernel.

use super::errno::{ECONNRESET, EPIPE};
use super::*;
use crate::readiness;
use core::cell::{Cell, RefCell};
use core::fmt::Debug;
use core::hash::{BuildHasher, BuildHasherDefault, Hash};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::format;
use std::hash::DefaultHasher;
use std::string::String;
use std::vec::Vec;

/// An error that is no reset: no answer came.
const ETIMEDOUT: i32 = 110;
/// More steps than any machine takes where no other thread changes words.
const STEPS_MAX: usize = 24;

/// One end of which all is known, and what the kernel and the host will answer.
struct Scripted {
    seen: Cell<Seen>,
    error: Cell<i32>,
    is_gone: bool,
    runs: bool,
    is_connected: bool,
    is_in_ring: bool,
    said: RefCell<Vec<Say>>,
}

impl Scripted {
    fn own(&self, change: impl FnOnce(&mut Own)) {
        let mut seen = self.seen.get();
        change(&mut seen.own);
        self.seen.set(seen);
    }

    fn change_reset(&self, change: impl FnOnce(Reset) -> Option<Reset>) -> Option<Reset> {
        let before = self.seen.get().own.reset;
        let after = change(before)?;
        self.own(|own| own.reset = after);
        Some(before)
    }
}

impl Words for Scripted {
    fn look(&self) -> Seen {
        self.seen.get()
    }

    fn note(&self, note: Note) {
        self.own(|own| match note {
            Note::Shut(what) => {
                own.read_shut |= what != What::Output;
                own.write_shut |= what != What::Input;
            }
            Note::InputEnded => own.input_ended = true,
            Note::PeerGone => own.peer_gone = true,
            Note::PeerRefuses => own.peer_refuses = true,
        });
    }

    fn say(&self, say: Say) {
        self.said.borrow_mut().push(say);
    }

    fn note_reset(&self, errno: i32) -> bool {
        self.change_reset(|reset| reset.noted(errno)).is_some()
    }

    fn claim_reset(&self) -> bool {
        self.change_reset(Reset::claimed).is_some()
    }

    fn take_reset(&self) -> Option<i32> {
        match self.change_reset(Reset::taken)? {
            Reset::Pending(errno) => Some(errno),
            _ => None,
        }
    }

    fn hint(&self) {}
}

impl Kernel for Scripted {
    fn take_error(&self) -> i32 {
        self.error.take()
    }

    fn is_peer_gone(&self) -> bool {
        self.is_gone
    }

    fn peer_runs(&self) -> bool {
        self.runs
    }

    fn is_connected(&self) -> bool {
        self.is_connected
    }

    fn wake_readers(&self) {}
}

impl Output for Scripted {
    fn lock(&self) -> bool {
        self.is_in_ring
    }

    fn unlock(&self) {}

    fn send_fin(&self, _: What) {}

    fn stop_reading(&self) {}

    fn drain_bells(&self) {}
}

/// What happens to an end.
#[derive(Clone, Copy, Debug)]
enum Event {
    PeerSays(Say),
    PeerLingers,
    Hint,
    KernelEnds,
    KernelFails(i32),
    CallFails,
    Receives,
    Sends,
    AsksError,
    Polls,
    Shuts(What),
    Disconnects,
    PeerBreaks(Breach),
    Closes,
    Exits,
}

const EVENTS: [(&str, Event); 27] = [
    ("the peer says done", Event::PeerSays(Say::Done { refuses: false })),
    ("the peer says FIN by TCP", Event::PeerSays(Say::FinByTcp { refuses: false })),
    ("the peer says done and refuses", Event::PeerSays(Say::Done { refuses: true })),
    ("the peer says FIN by TCP and refuses", Event::PeerSays(Say::FinByTcp { refuses: true })),
    ("the peer says abort", Event::PeerSays(Say::Abort)),
    ("the peer says refuses", Event::PeerSays(Say::Refuses)),
    ("the peer says read all", Event::PeerSays(Say::ReadAll)),
    ("the peer says closed", Event::PeerSays(Say::Closed)),
    ("the peer says linger zero", Event::PeerLingers),
    ("a hint", Event::Hint),
    ("TCP ends", Event::KernelEnds),
    ("TCP: ECONNRESET", Event::KernelFails(ECONNRESET)),
    ("TCP: EPIPE", Event::KernelFails(EPIPE)),
    ("TCP: ETIMEDOUT", Event::KernelFails(ETIMEDOUT)),
    ("the program's own call by TCP fails", Event::CallFails),
    ("recv", Event::Receives),
    ("send", Event::Sends),
    ("SO_ERROR", Event::AsksError),
    ("poll", Event::Polls),
    ("shutdown: input", Event::Shuts(What::Input)),
    ("shutdown: output", Event::Shuts(What::Output)),
    ("shutdown: both", Event::Shuts(What::Both)),
    ("disconnect", Event::Disconnects),
    ("the peer breaks the protocol", Event::PeerBreaks(Breach::Answered)),
    ("it does, and no call can tell", Event::PeerBreaks(Breach::Untold)),
    ("close", Event::Closes),
    ("exit", Event::Exits),
];

/// Which state of a machine followed which.
type Steps = BTreeMap<(&'static str, usize, String), BTreeSet<String>>;

/// The name of a state, without what it holds.
fn name<S: Debug>(state: &S) -> String {
    let told = format!("{state:?}");
    let end = told.find([' ', '(', '{']).unwrap_or(told.len());
    match told.strip_prefix("Answers(") {
        Some(answer) => {
            let end = answer.find(['(', ')']).unwrap_or(answer.len());
            format!("answers {}", &answer[..end])
        }
        None => told[..end].into(),
    }
}

/// Runs machines, and writes down their steps.
struct Runner {
    steps: Steps,
    /// In which order states were met first.
    met: BTreeMap<(&'static str, String), usize>,
    /// Steps that are written down.
    known: HashSet<u64>,
}

impl Runner {
    fn new() -> Self {
        Self { steps: Steps::new(), met: BTreeMap::new(), known: HashSet::new() }
    }

    fn note<S: Debug + Hash>(&mut self, machine: &'static str, from: &S, to: Option<&S>) {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((machine, from, to));
        if !self.known.insert(hash) {
            return;
        }
        let from = name(from);
        let next = self.met.len();
        let place = *self.met.entry((machine, from.clone())).or_insert(next);
        let to = to.map_or("ends".into(), name);
        self.steps.entry((machine, place, from)).or_default().insert(to);
    }

    fn run<S: Copy + Debug + Hash + PartialEq>(
        &mut self,
        machine: &'static str,
        first: Option<S>,
        step: impl Fn(S) -> Option<S>,
    ) -> Option<S> {
        let (mut state, mut last) = (first, first);
        for _ in 0..STEPS_MAX {
            let Some(now) = state else { return last };
            let next = step(now);
            if next == Some(now) {
                return next;
            }
            self.note(machine, &now, next.as_ref());
            (last, state) = (next.or(last), next);
        }
        panic!("{machine} does not end: {state:?}")
    }

    /// Lets it happen. What the call is told, if it is one.
    fn happens(&mut self, event: Event, end: &Scripted) -> Option<Told> {
        let hears = |runner: &mut Self, first: Option<Hearing>| {
            runner.run("Hearing", first, |state| state.step(end, end));
            None
        };
        let tells = |runner: &mut Self, call| {
            let last = runner
                .run("Telling", Some(Telling::begin(call)), |state| Some(state.step(end, end)));
            match last {
                Some(Telling::Answers(told)) => Some(told),
                other => panic!("{other:?}"),
            }
        };
        match event {
            Event::PeerSays(say) => {
                let mut seen = end.seen.get();
                let peer = &mut seen.peer;
                let bit = match say {
                    Say::Done { refuses } => {
                        peer.refuses |= refuses;
                        &mut peer.done
                    }
                    Say::FinByTcp { refuses } => {
                        peer.refuses |= refuses;
                        &mut peer.fin_by_tcp
                    }
                    Say::Abort => &mut peer.abort,
                    Say::Refuses => &mut peer.refuses,
                    Say::ReadAll => &mut peer.read_all,
                    Say::Closed => &mut peer.closed,
                };
                *bit = true;
                end.seen.set(seen);
                None
            }
            Event::PeerLingers => {
                let mut seen = end.seen.get();
                seen.peer.linger_zero = true;
                end.seen.set(seen);
                None
            }
            Event::Hint => hears(self, Some(Hearing::Hinted)),
            Event::KernelEnds => hears(self, Some(Hearing::TcpEnded)),
            Event::KernelFails(errno) => hears(self, Hearing::failed(errno)),
            Event::CallFails => hears(self, Some(Hearing::OwnCallFailed)),
            Event::Receives => tells(self, Call::Receives),
            Event::Sends => tells(self, Call::Sends { len: 1 }),
            Event::AsksError => tells(self, Call::AsksError),
            Event::Polls => {
                tells(self, Call::Polls);
                None
            }
            Event::Shuts(what) => {
                let first = Some(Shutting::begin(what));
                self.run("Shutting", first, |state| Some(state.step(end, end, end)));
                None
            }
            Event::Disconnects if State::of(&end.look()).is_closed() => None,
            Event::Disconnects => {
                let first = Some(Breaking::begin(Breach::Disconnects));
                self.run("Breaking", first, |state| state.step(end));
                None
            }
            Event::PeerBreaks(breach) => {
                self.run("Breaking", Some(Breaking::begin(breach)), |state| state.step(end));
                None
            }
            Event::Closes => {
                let first = Some(Closing::begin(end.look().unread));
                self.run("Closing", first, |state| state.step(end, end));
                None
            }
            Event::Exits => {
                let first = Some(Leaving::by_exit(end.look().unread));
                self.run("Leaving", first, |state| state.step(end));
                None
            }
        }
    }
}

fn bits<const N: usize>(of: usize) -> [bool; N] {
    core::array::from_fn(|bit| of >> bit & 1 != 0)
}

/// All words that there can be.
fn all_words(mut f: impl FnMut(Seen)) {
    for [done, fin_by_tcp, abort, linger_zero, refuses, read_all, closed] in (0..128).map(bits) {
        let peer = Said { done, fin_by_tcp, abort, linger_zero, refuses, read_all, closed };
        for [read_shut, write_shut, input_ended, peer_gone, peer_refuses, sends_by_tcp] in
            (0..64).map(bits)
        {
            for reset in
                [Reset::None, Reset::Pending(EPIPE), Reset::Pending(ECONNRESET), Reset::Told]
            {
                let own = Own {
                    read_shut,
                    write_shut,
                    input_ended,
                    peer_gone,
                    peer_refuses,
                    reset,
                    sends_by_tcp,
                };
                for [unread, is_next, unread_by_peer, peer_sends_by_tcp] in (0..16).map(bits) {
                    f(Seen { own, peer, unread, is_next, unread_by_peer, peer_sends_by_tcp });
                }
            }
        }
    }
}

/// Words of a peer that keeps the protocol, and of an end that has followed it.
fn is_honest(seen: &Seen) -> bool {
    let (own, peer) = (&seen.own, &seen.peer);
    let by_tcp = seen.peer_sends_by_tcp;
    (seen.unread || !seen.is_next)
        && (!peer.done || !by_tcp)
        && (!peer.fin_by_tcp || by_tcp)
        && (!own.input_ended || by_tcp)
        && (!peer.refuses || peer.done || peer.fin_by_tcp)
        && (!own.peer_refuses || peer.refuses)
        // The last byte comes first; and what lies in the ring behind TCP is of no concern here.
        && (!seen.unread || (seen.is_next && !by_tcp))
}

/// What the kernel and the host may answer, where that makes a difference.
fn all_answers(event: Event, seen: &Seen, mut f: impl FnMut(i32, [bool; 4])) {
    match event {
        Event::Shuts(_) => (0..4).map(bits).for_each(|[is_connected, is_in_ring]| {
            f(0, [true, true, is_connected, is_in_ring]);
        }),
        Event::KernelFails(_) => {
            for runs in [true, false] {
                f(0, [true, runs, true, true]);
            }
        }
        Event::Receives | Event::Sends if !seen.peer.abort => f(0, [true; 4]),
        Event::Hint
        | Event::KernelEnds
        | Event::AsksError
        | Event::Receives
        | Event::Sends
        | Event::Polls => {
            for [is_gone, runs] in (0..4).map(bits) {
                // With an error TCP is over; without one it may be, too, if another thread has taken that.
                f(0, [is_gone, runs, true, true]);
                for error in [0, ECONNRESET, ETIMEDOUT] {
                    f(error, [is_gone, runs, false, true]);
                }
            }
        }
        _ => f(0, [true; 4]),
    }
}

fn scripted(seen: Seen, error: i32, answers: [bool; 4]) -> Scripted {
    let [is_gone, runs, is_connected, is_in_ring] = answers;
    let (seen, error, said) = (Cell::new(seen), Cell::new(error), RefCell::default());
    Scripted { seen, error, is_gone, runs, is_connected, is_in_ring, said }
}

/// For each state and event the states that follow, a bit for each.
type Follows = [[u8; EVENTS.len()]; State::ALL.len()];
type Tells = BTreeMap<(State, &'static str), BTreeSet<String>>;

struct Table {
    follows: Follows,
    tells: Tells,
    runner: Runner,
}

fn play() -> Table {
    let runner = Runner::new();
    let mut table =
        Table { follows: [[0; EVENTS.len()]; State::ALL.len()], tells: Tells::new(), runner };
    let (mut known, mut masks) = (HashSet::new(), HashSet::new());
    all_words(|seen| {
        if !is_honest(&seen) {
            return;
        }
        let from = State::of(&seen);
        if masks.insert((from, seen.poll(), seen.own.read_shut, seen.own.write_shut)) {
            table.tells.entry((from, "poll")).or_default().insert(polled(&seen));
        }
        for (row, (label, event)) in EVENTS.into_iter().enumerate() {
            // Behind a FIN no peer says another one, and one that goes by the ring says none by TCP.
            let is_said = match event {
                Event::PeerSays(Say::Done { .. }) => !seen.peer_sends_by_tcp,
                Event::PeerSays(Say::FinByTcp { .. }) => seen.peer_sends_by_tcp,
                Event::PeerSays(Say::Refuses) => seen.peer.done || seen.peer.fin_by_tcp,
                Event::Sends => from != State::Open && from != State::InputEnded,
                _ => true,
            };
            if !is_said {
                continue;
            }
            all_answers(event, &seen, |error, answers| {
                let end = scripted(seen, error, answers);
                let told = table.runner.happens(event, &end);
                let to = State::of(&end.look());
                table.follows[from as usize][row] |= 1 << to as u8;
                if let Some(told) = told
                    && known.insert((from, row, told))
                {
                    table.tells.entry((from, label)).or_default().insert(words_of(told));
                }
            });
        }
    });
    table
}

fn words_of(told: Told) -> String {
    match told {
        Told::Nothing => "nothing now".into(),
        Told::End => "0".into(),
        Told::Sent(_) => "taken".into(),
        Told::NotOver => "not over".into(),
        Told::Polled(polled) => format!("{polled:?}"),
        Told::Errno(0) => "0".into(),
        Told::Errno(EPIPE) => "EPIPE".into(),
        Told::Errno(ECONNRESET) => "ECONNRESET".into(),
        Told::Errno(ETIMEDOUT) => "ETIMEDOUT".into(),
        Told::Errno(errno) => format!("error {errno}"),
    }
}

/// The bits of ends in the mask of `poll`, of a connection with room and without bytes.
fn polled(seen: &Seen) -> String {
    use readiness::mask;
    let end = seen.poll();
    let state = readiness::State {
        readable: usize::from(seen.unread),
        low_water: 1,
        peer_done: end.peer_done,
        read_shut: seen.own.read_shut,
        write_shut: seen.own.write_shut,
        reset: end.reset,
        error_pending: end.error_pending,
        ..readiness::State::default()
    };
    let mask = state.mask();
    let names = [(mask::ERR, "ERR"), (mask::HUP, "HUP"), (mask::RDHUP, "RDHUP")];
    let set: Vec<&str> =
        names.into_iter().filter(|(bit, _)| mask & bit != 0).map(|(_, name)| name).collect();
    if set.is_empty() { "none".into() } else { set.join(" ") }
}

fn joined<T: Debug>(set: &BTreeSet<T>) -> String {
    let names: Vec<String> = set.iter().map(|it| format!("{it:?}").replace('"', "")).collect();
    names.join(", ")
}

fn states_of(bits: u8) -> impl Iterator<Item = State> {
    State::ALL.into_iter().filter(move |state| bits >> *state as u8 & 1 != 0)
}

fn printed() -> String {
    let table = play();
    let mut text = String::from(
        "# States of an end\n\nPrinted from `proto::ends` by its test `the_table_is_the_one_in_states_md`: over all words that two ends\n\
         can have written, and all answers of the kernel.\n\n## Drawing\n\n```mermaid\nstateDiagram-v2\n    [*] --> Open\n",
    );
    let mut edges: BTreeMap<(State, State), Vec<&str>> = BTreeMap::new();
    for from in State::ALL {
        for (row, to) in table.follows[from as usize].into_iter().enumerate() {
            for to in states_of(to).filter(|to| *to != from) {
                edges.entry((from, to)).or_default().push(EVENTS[row].0);
            }
        }
    }
    for ((from, to), labels) in edges {
        text += &format!("    {from:?} --> {to:?}: {}\n", labels.join(", ").replace(':', ""));
    }
    text += "```\n\n## What follows\n\nA dot: the state stays.\n\n| event |";
    for state in State::ALL {
        text += &format!(" {state:?} |");
    }
    text += &format!("\n|---|{}\n", "---|".repeat(State::ALL.len()));
    for (row, (label, _)) in EVENTS.into_iter().enumerate() {
        text += &format!("| {label} |");
        for state in State::ALL {
            let to = states_of(table.follows[state as usize][row]).map(|to| match to == state {
                true => "·".into(),
                false => format!("{to:?}"),
            });
            let cell = to.collect::<Vec<String>>().join(", ");
            let cell = if cell.is_empty() { "never" } else { &cell };
            text += &format!(" {cell} |");
        }
        text += "\n";
    }
    text += "\n## What the program is told\n\n| state | recv | send | SO_ERROR | poll |\n|---|---|---|---|---|\n";
    for state in State::ALL {
        text += &format!("| {state:?} |");
        for call in ["recv", "send", "SO_ERROR", "poll"] {
            let told = table.tells.get(&(state, call)).map_or("goes".into(), joined);
            text += &format!(" {told} |");
        }
        text += "\n";
    }
    text += "\n## Steps of the machines\n";
    let mut last = "";
    for ((machine, _, from), to) in &table.runner.steps {
        if core::mem::replace(&mut last, machine) != *machine {
            text += &format!("\n### {machine}\n\n| state | next |\n|---|---|\n");
        }
        text += &format!("| {from} | {} |\n", joined(to));
    }
    text
}

#[test]
fn the_table_is_the_one_in_states_md() {
    let now = printed();
    assert!(now == include_str!("states.md"), "states.md is to be:\n{now}");
}

/// The peer may have written anything: no machine runs for ever, a send that is over is never taken for one that is not,
/// and a reset is told once.
#[test]
fn every_event_has_an_answer_whatever_the_words_say() {
    let mut runner = Runner::new();
    all_words(|seen| {
        let end = scripted(seen, 0, [true, true, true, true]);
        let own = seen.own;
        let is_over =
            own.write_shut || own.peer_gone || own.peer_refuses || own.reset != Reset::None;
        let told = runner.happens(Event::Sends, &end);
        assert!(!is_over || told != Some(Told::NotOver), "{seen:?}");
        let calls = [Event::Receives, Event::AsksError, Event::Sends, Event::Receives];
        let told: Vec<_> = calls.map(|call| runner.happens(call, &end)).into();
        let is_reset = |told: &&Option<Told>| matches!(told, Some(Told::Errno(errno)) if ![0, EPIPE].contains(errno));
        assert!(told.iter().filter(is_reset).count() <= 1, "{seen:?}: {told:?}");
        runner.happens(Event::KernelEnds, &end);
        runner.happens(Event::Shuts(What::Both), &end);
    });
}

/// Each word that a side may still write, written.
fn one_word_more(seen: Seen) -> impl Iterator<Item = Seen> {
    let own: [fn(&mut Own) -> &mut bool; 5] = [
        |own| &mut own.read_shut,
        |own| &mut own.write_shut,
        |own| &mut own.input_ended,
        |own| &mut own.peer_gone,
        |own| &mut own.peer_refuses,
    ];
    let peer: [fn(&mut Said) -> &mut bool; 7] = [
        |peer| &mut peer.done,
        |peer| &mut peer.fin_by_tcp,
        |peer| &mut peer.abort,
        |peer| &mut peer.linger_zero,
        |peer| &mut peer.refuses,
        |peer| &mut peer.read_all,
        |peer| &mut peer.closed,
    ];
    let with = move |change: &dyn Fn(&mut Seen)| {
        let mut more = seen;
        change(&mut more);
        more
    };
    let by_own = own.into_iter().map(move |word| with(&|seen| *word(&mut seen.own) = true));
    by_own.chain(peer.into_iter().map(move |word| with(&|seen| *word(&mut seen.peer) = true)))
}

/// A reset that no thread has noticed can turn out to be one behind the FIN of a peer whose direction goes by TCP. Then the
/// end of its bytes is still to come; ours are over in any case.
#[test]
fn no_word_of_either_side_opens_an_end_that_is_closed() {
    all_words(|seen| {
        let state = State::of(&seen);
        for after in one_word_more(seen).map(|more| State::of(&more)) {
            let is_closed = match state {
                State::Broken => after.is_closed() || after == State::OutputShut,
                _ => !state.is_closed() || after.is_closed(),
            };
            assert!(is_closed, "{seen:?}: {state:?}, then {after:?}");
        }
    });
}

fn told(call: Call, end: &Scripted) -> Told {
    let mut telling = Telling::begin(call);
    for _ in 0..STEPS_MAX {
        match telling {
            Telling::Answers(told) => return told,
            _ => telling = telling.step(end, end),
        }
    }
    panic!("{call:?} is not told: {telling:?}")
}

/// Whatever a peer has written, and whatever the kernel says: bytes that the next receive finds come before any end and
/// any error, which stays for a later call; and no call is told what Linux does not tell it.
#[test]
fn a_call_is_told_what_such_a_call_is_told_by_linux_and_bytes_come_first() {
    const ERRORS: [i32; 4] = [0, ECONNRESET, EPIPE, ETIMEDOUT];
    let is_error = |errno: i32| errno != 0 && ERRORS.contains(&errno);
    all_words(|seen| {
        for error in ERRORS {
            let tells = |call| {
                let end = scripted(seen, error, [true; 4]);
                (told(call, &end), end.look().own.reset)
            };
            let (receive, reset) = tells(Call::Receives);
            let is_of_receive = match receive {
                Told::Nothing | Told::End => true,
                Told::Errno(errno) => is_error(errno) && errno != EPIPE,
                _ => false,
            };
            assert!(is_of_receive, "{seen:?}, {error}: {receive:?}");
            if seen.unread && seen.is_next {
                let is_kept = reset != Reset::Told || seen.own.reset == Reset::Told;
                assert!(receive == Told::Nothing && is_kept, "{seen:?}, {error}: {receive:?}");
            }
            for len in [0, usize::MAX] {
                let (send, _) = tells(Call::Sends { len });
                let is_of_send = match send {
                    Told::Sent(sent) => sent == len,
                    Told::Errno(errno) => is_error(errno),
                    other => other == Told::NotOver,
                };
                assert!(is_of_send, "{seen:?}, {error}: {send:?}");
            }
        }
    });
}
