//! What SMC would gain: a model of costs, in elements that were measured.
//!
//! Each side of the comparison is a bound of operational analysis: with `k`
//! transactions at a time, each of which takes the sum of some terms, there are `k /
//! sum` transactions per second. What the terms are and how many go on at a time is
//! what follows; `docs/probe.md` has the formulas and how far they were off.
//!
//! * **TCP, clients fewer than processors**: each transaction waits for two messages
//!   and two wake-ups of a processor that has gone idle.
//! * **TCP, more clients**: no thread sleeps for long; the processors are busy with
//!   messages and with switching between threads. An event loop handles a batch of
//!   clients for each wake-up. What is longer than a call fills the sockets' buffers,
//!   which no cache holds.
//! * **SMC with another processor**: the peer looks for the message, so there are
//!   copies and cache lines that change their processor, and no wake-up. Where two
//!   processors are far apart, threads do better to share them and yield.
//! * **SMC on one processor**: the same copies, and yields in place of wake-ups.
//! * **CRR** never gets as far as the rings: TCP's costs, and the looks on top.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::figures::{Figures, Places, RING_LEN};
use crate::plan::Model;
use crate::workload::{Kind, Workload};

/// What a workload would do over TCP and over SMC, and what follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prediction {
    /// Transactions per second over SMC, divided by those over TCP.
    pub throughput_ratio: f64,
    /// Mean response time over SMC, divided by that over TCP. Clients that do not think
    /// have one transaction under way each, so this is the inverse of the other
    /// (Little's law).
    pub response_ratio: f64,
    /// Over TCP.
    pub tcp: Estimate,
    /// Over SMC.
    pub smc: Estimate,
}

/// What a workload would do over one transport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// Transactions per second of all clients: `at_a_time` divided by the sum of the
    /// terms.
    pub tps: f64,
    /// Mean response time, in microseconds.
    pub response_us: f64,
    /// What holds it at that.
    pub limit: Limit,
    /// Transactions that go on at the same time.
    pub at_a_time: f64,
    /// What one of them takes.
    pub terms: Vec<Term>,
}

/// What bounds the transactions per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The way of a message to the other side and back: processors are left over.
    Path,
    /// The processors.
    Processors,
}

/// A part of what a transaction takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Term {
    /// What it is.
    pub element: Element,
    /// How often it comes in a transaction; below 1 if transactions share it.
    pub count: f64,
    /// All of it, in microseconds.
    pub us: f64,
}

/// What transactions are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Element {
    /// To connect, accept and close.
    Connection,
    /// To find out that both ends have SMC, and to agree on rings.
    Agreement,
    /// A send and a receive of TCP with their copies.
    TcpMessage,
    /// Two copies of TCP in memory that no cache holds, beyond what they take in a cache.
    ColdCopies,
    /// Falling asleep and being woken.
    Wakeup,
    /// An event that epoll reports.
    EpollEvent,
    /// A copy into the ring and one out of it.
    RingCopies,
    /// Cache lines that change their processor, for one message.
    LinesMoved,
    /// A send or receive through the library.
    LibraryCall,
    /// An event that the library reports to an event loop.
    LibraryEvent,
    /// A search for such events.
    LibrarySearch,
    /// The processor given to the other side.
    Yield,
}

/// What this workload would do on a machine with these figures.
///
/// Conduct is the default: a closed loop, no think time, chunks of 64 KB, one event
/// loop on each side, Sidestep's default ring. Nothing else runs on the machine, and
/// both sides are on it.
#[must_use]
pub fn predict(figures: &Figures, workload: &Workload, model: Model) -> Prediction {
    let machine = Machine { figures, workload, model };
    let (tcp, smc) = (machine.tcp(), machine.smc());
    Prediction {
        throughput_ratio: smc.tps / tcp.tps,
        response_ratio: smc.response_us / tcp.response_us,
        tcp,
        smc,
    }
}

// ---- the two transports ----------------------------------------------------

/// A workload on a machine.
struct Machine<'a> {
    figures: &'a Figures,
    workload: &'a Workload,
    model: Model,
}

/// A way in which transactions may go.
#[derive(Clone, Copy)]
struct Course {
    limit: Limit,
    /// Transactions that go on at the same time.
    at_a_time: f64,
    /// Client and server are on two processors.
    apart: bool,
    /// Transactions that share a wait.
    batch: f64,
}

impl Machine<'_> {
    fn tcp(&self) -> Estimate {
        let along =
            |course: Course| self.estimate(course.limit, course.at_a_time, self.tcp_terms(course));
        match self.model {
            Model::EventLoop if self.has_two_cpus() && self.nobody_sleeps() => {
                along(self.two_busy_loops())
            }
            Model::EventLoop if self.has_two_cpus() => {
                slower(along(self.one_after_the_other()), along(self.two_busy_loops()))
            }
            Model::EventLoop => along(self.one_busy_cpu()),
            // As soon as there are clients enough to keep all processors busy, a client
            // and its server end up on one: then no processor has to be woken.
            _ if self.workload.clients < self.figures.cpus => along(self.one_after_the_other()),
            _ => along(self.all_cpus_busy()),
        }
    }

    fn smc(&self) -> Estimate {
        if self.workload.kind == Kind::ConnectRequestResponse {
            let agreement_ns = AGREEMENT_IN_CONNECTIONS * self.figures.connect_us * 1e3;
            let Estimate { limit, at_a_time, mut terms, .. } = self.tcp();
            terms.push(term(Element::Agreement, 1.0, agreement_ns));
            return self.estimate(limit, at_a_time, terms);
        }
        let along =
            |course: Course| self.estimate(course.limit, course.at_a_time, self.smc_terms(course));
        match self.model {
            Model::EventLoop if self.has_two_cpus() => {
                slower(along(self.one_after_the_other()), along(self.two_busy_loops()))
            }
            Model::EventLoop => along(self.one_busy_cpu()),
            // The governor learns which of the two serves better.
            _ if self.has_two_cpus() => {
                faster(along(self.looking_pairs()), along(self.all_cpus_busy()))
            }
            _ => along(self.all_cpus_busy()),
        }
    }

    /// A loop has messages of other clients to handle until the other loop has woken up
    /// and answers, so that it never falls asleep itself.
    fn nobody_sleeps(&self) -> bool {
        let messages_ns = self.messages().map(|message| self.tcp_message_ns(&message));
        let shorter_ns = messages_ns[0].min(messages_ns[1]);
        let wakeup_us = self.figures.wakeup_us.other_cpu.unwrap_or_default();
        self.clients() * shorter_ns >= wakeup_us * 1e3
    }

    // ---- courses

    /// Client and server take turns, each on a processor that is idle meanwhile.
    fn one_after_the_other(&self) -> Course {
        Course { limit: Limit::Path, at_a_time: self.clients(), apart: true, batch: 1.0 }
    }

    /// The same, but who has no turn looks for the message: a transaction takes two
    /// processors.
    fn looking_pairs(&self) -> Course {
        let pairs = self.cpus() / 2.0;
        let limit = if self.clients() <= pairs { Limit::Path } else { Limit::Processors };
        Course { limit, at_a_time: self.clients().min(pairs), apart: true, batch: 1.0 }
    }

    /// Threads take turns on the processors, a client and its server on the same.
    fn all_cpus_busy(&self) -> Course {
        let at_a_time = self.cpus().min(self.clients());
        Course { limit: Limit::Processors, at_a_time, apart: false, batch: 1.0 }
    }

    /// One loop handles some clients while the other handles the rest.
    fn two_busy_loops(&self) -> Course {
        let batch = (self.clients() / 2.0).max(1.0);
        // The kernel makes both ends of a connection on the processor of the client,
        // whose loop has nearly all the work.
        let connects = self.workload.kind == Kind::ConnectRequestResponse;
        let at_a_time = if connects { 1.0 } else { 2.0 };
        Course { limit: Limit::Processors, at_a_time, apart: true, batch }
    }

    /// The two loops take turns with all clients.
    fn one_busy_cpu(&self) -> Course {
        Course { limit: Limit::Processors, at_a_time: 1.0, apart: false, batch: self.clients() }
    }

    // ---- terms

    fn tcp_terms(&self, course: Course) -> Vec<Term> {
        let figures = self.figures;
        let mut terms = Vec::new();
        let mut waits = 2.0 / course.batch;
        if self.workload.kind == Kind::ConnectRequestResponse {
            terms.push(term(Element::Connection, 1.0, figures.connect_us * 1e3));
            // The server waits for the connection and for its end as well.
            waits *= 2.0;
        }
        for message in self.messages() {
            terms.push(message.term(Element::TcpMessage, self.tcp_piece_ns(&message)));
            terms.push(self.cold_copies(&message));
            if course.apart {
                let ns = self.lines_moved_ns(message.piece_len);
                terms.push(message.term(Element::LinesMoved, ns));
            }
        }
        // A processor without work has gone idle, and takes longer to wake.
        let wakeup_us = match figures.wakeup_us {
            Places { other_cpu: Some(us), .. } if course.limit == Limit::Path => us,
            Places { same_cpu, .. } => same_cpu,
        };
        terms.push(term(Element::Wakeup, waits, wakeup_us * 1e3));
        if self.model == Model::EventLoop {
            terms.push(term(Element::EpollEvent, waits, figures.epoll_ns));
        }
        merged(terms)
    }

    fn smc_terms(&self, course: Course) -> Vec<Term> {
        let mut terms = Vec::new();
        let mut turns = 0.0;
        for message in self.messages() {
            let copies_ns = 2.0 * self.ring_copy_ns(message.piece_len, course);
            terms.push(message.term(Element::RingCopies, copies_ns));
            terms.push(message.term(Element::LibraryCall, 2.0 * LIBRARY_CALL_NS));
            if course.apart {
                let ns = self.lines_moved_ns(message.piece_len);
                terms.push(message.term(Element::LinesMoved, ns));
            }
            // A turn for the message; a ring that is full gives it away and needs it back.
            turns += 1.0 + 2.0 * (message.pieces - 1.0);
        }
        let turns = turns / course.batch;
        if self.model == Model::EventLoop {
            terms.push(term(Element::LibraryEvent, 2.0, LIBRARY_EVENT_NS));
            terms.push(term(Element::LibrarySearch, turns, LIBRARY_WAIT_NS));
        }
        if !course.apart {
            let yield_ns = self.figures.ring_ns.same_cpu / 2.0 + LIBRARY_WAIT_NS;
            terms.push(term(Element::Yield, turns, yield_ns));
        }
        merged(terms)
    }

    fn messages(&self) -> [Message; 2] {
        [Message::of(self.workload.request_len), Message::of(self.workload.reply_len)]
    }

    fn tcp_message_ns(&self, message: &Message) -> f64 {
        message.pieces * self.tcp_piece_ns(message)
    }

    fn tcp_piece_ns(&self, message: &Message) -> f64 {
        let costs = self.figures.tcp.iter().map(|it| (it.len, it.ns));
        at_len(costs, message.piece_len)
    }

    /// What is sent before it is read fills TCP's buffers, megabytes that no cache holds.
    fn cold_copies(&self, message: &Message) -> Term {
        let len = message.piece_len;
        let more_ns = (self.cold_copy_ns(len) - self.hot_copy_ns(len)).max(0.0);
        term(Element::ColdCopies, message.pieces - 1.0, 2.0 * more_ns)
    }

    /// What a copy on the way to another processor takes more than two on one.
    fn lines_moved_ns(&self, len: f64) -> f64 {
        let handed = self.figures.copies.iter().filter_map(|it| Some((it.len, it.handed_ns?)));
        (at_len(handed, len) - 2.0 * self.hot_copy_ns(len)).max(0.0)
    }

    /// Threads that take turns on several processors wander between them, and find
    /// their rings in no cache of theirs.
    fn ring_copy_ns(&self, len: f64, course: Course) -> f64 {
        if course.apart || !self.has_two_cpus() {
            self.hot_copy_ns(len)
        } else {
            self.cold_copy_ns(len)
        }
    }

    fn cold_copy_ns(&self, len: f64) -> f64 {
        at_len(self.figures.copies.iter().map(|it| (it.len, it.cold_ns)), len)
    }

    fn hot_copy_ns(&self, len: f64) -> f64 {
        at_len(self.figures.copies.iter().map(|it| (it.len, it.hot_ns)), len)
    }

    fn has_two_cpus(&self) -> bool {
        self.figures.cpus >= 2
    }

    fn cpus(&self) -> f64 {
        f64::from(self.figures.cpus)
    }

    fn clients(&self) -> f64 {
        f64::from(self.workload.clients)
    }

    // ---- estimates

    fn estimate(&self, limit: Limit, at_a_time: f64, terms: Vec<Term>) -> Estimate {
        let sum_us: f64 = terms.iter().map(|term| term.us).sum();
        let tps = at_a_time * 1e6 / sum_us;
        Estimate { tps, response_us: self.clients() * 1e6 / tps, limit, at_a_time, terms }
    }
}

fn slower(one: Estimate, other: Estimate) -> Estimate {
    if one.tps <= other.tps { one } else { other }
}

fn faster(one: Estimate, other: Estimate) -> Estimate {
    if one.tps >= other.tps { one } else { other }
}

// ---- messages --------------------------------------------------------------

/// One direction of a transaction.
struct Message {
    /// Pieces that are sent: at least 1, with a fraction for the last.
    pieces: f64,
    piece_len: f64,
}

impl Message {
    fn of(len: u64) -> Self {
        // A ring holds no more, and applications send no more at once.
        let piece_len = len.min(RING_LEN as u64) as f64;
        Self { pieces: len as f64 / piece_len, piece_len }
    }

    fn term(&self, element: Element, ns_per_piece: f64) -> Term {
        term(element, self.pieces, ns_per_piece)
    }
}

/// The cost at a length, from those at some lengths: straight lines between and beyond.
fn at_len(points: impl Iterator<Item = (u64, f64)>, len: f64) -> f64 {
    let points: Vec<(f64, f64)> = points.map(|(len, ns)| (len as f64, ns)).collect();
    match points[..] {
        [] => 0.0,
        [(_, ns)] => ns,
        _ => {
            let behind = points.iter().position(|point| point.0 >= len).unwrap_or(points.len());
            let right = behind.clamp(1, points.len() - 1);
            let ((len_0, ns_0), (len_1, ns_1)) = (points[right - 1], points[right]);
            let ns = ns_0 + (len - len_0) * (ns_1 - ns_0) / (len_1 - len_0);
            // Short of the first length a line may fall below zero.
            if behind == 0 { ns_0 } else { ns }
        }
    }
}

fn term(element: Element, count: f64, ns_each: f64) -> Term {
    Term { element, count, us: count * ns_each / 1e3 }
}

/// Terms of one element as one.
fn merged(terms: Vec<Term>) -> Vec<Term> {
    let mut sums: Vec<Term> = Vec::new();
    for term in terms {
        match sums.iter_mut().find(|sum| sum.element == term.element) {
            Some(sum) => {
                sum.count += term.count;
                sum.us += term.us;
            }
            None => sums.push(term),
        }
    }
    sums
}

// What no figure of the machine tells: the library's own work.

/// A send or receive through the library, without the copy.
const LIBRARY_CALL_NS: f64 = 70.0;
/// An event of a connection, found and reported.
const LIBRARY_EVENT_NS: f64 = 80.0;
/// A search for events, or a yield, with the clock that is read around it.
const LIBRARY_WAIT_NS: f64 = 200.0;
/// A connection that ends before it is worth moving is looked at and left alone.
const AGREEMENT_IN_CONNECTIONS: f64 = 0.03;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{documented_machine, workload};
    use super::super::{CopyCost, TcpCost};
    use super::*;

    const KB: u64 = 1 << 10;

    fn ratio(figures: &Figures, workload: &Workload, model: Model) -> f64 {
        predict(figures, workload, model).throughput_ratio
    }

    /// Machines on which nothing is for nothing: to wake another processor takes longer
    /// than to switch, more bytes take longer than fewer, a cold copy longer than a hot
    /// one, and a copy to another processor longer than one that stays.
    fn machines() -> impl Strategy<Value = Figures> {
        let three = || prop::array::uniform3(0.1..10_000.0);
        let singles = prop::array::uniform7(0.1..10_000.0);
        (0u32..7, singles, three(), three(), three(), three()).prop_map(
            |(cpus, singles, hot, cold, moved, tcp)| {
                machine(1 << cpus, singles, [hot, cold, moved, tcp])
            },
        )
    }

    fn machine(
        cpus: u32,
        [syscall_ns, switch_ns, idle_ns, line_ns, yield_ns, connect_us, epoll_ns]: [f64; 7],
        [hot, cold, moved, tcp]: [[f64; 3]; 4],
    ) -> Figures {
        let other = |cost: f64| (cpus > 1).then_some(cost);
        let up_to = |costs: [f64; 3], index: usize| costs[..=index].iter().sum::<f64>();
        let copy = |(index, len)| {
            let hot_ns = up_to(hot, index);
            CopyCost {
                len,
                hot_ns,
                cold_ns: hot_ns + up_to(cold, index),
                handed_ns: other(2.0 * hot_ns + up_to(moved, index)),
            }
        };
        let lens = [64, 2 * KB, 64 * KB].into_iter().enumerate();
        Figures {
            cpus,
            syscall_ns,
            wakeup_us: Places {
                same_cpu: switch_ns / 1e3,
                other_cpu: other((switch_ns + idle_ns) / 1e3),
            },
            ring_ns: Places { same_cpu: yield_ns, other_cpu: other(line_ns) },
            copies: lens.clone().map(copy).collect(),
            tcp: lens.map(|(index, len)| TcpCost { len, ns: up_to(tcp, index) }).collect(),
            connect_us,
            epoll_ns,
        }
    }

    fn workloads() -> impl Strategy<Value = Workload> {
        let kinds = prop::sample::select(vec![
            Kind::RequestResponse,
            Kind::ConnectRequestResponse,
            Kind::Streaming,
        ]);
        let len = || 1u64..1_000_000;
        (kinds, 1u32..200, len(), len()).prop_map(|(kind, clients, request_len, reply_len)| {
            workload(kind, clients, request_len, reply_len)
        })
    }

    fn models() -> impl Strategy<Value = Model> {
        prop::sample::select(vec![Model::Threads, Model::Processes, Model::EventLoop])
    }

    proptest! {
        #[test]
        fn the_dearer_wakeups_are_the_more_is_gained(
            machine in machines(),
            workload in workloads(),
            model in models(),
            factor in 1.0..100.0,
        ) {
            let mut dearer = machine.clone();
            dearer.wakeup_us.same_cpu *= factor;
            dearer.wakeup_us.other_cpu = machine.wakeup_us.other_cpu.map(|us| us * factor);
            let before = ratio(&machine, &workload, model);
            let after = ratio(&dearer, &workload, model);
            prop_assert!(after >= before * (1.0 - 1e-9), "{before} {after}");
        }

        #[test]
        fn more_clients_never_have_fewer_transactions(
            machine in machines(),
            workload in workloads(),
            model in models(),
        ) {
            let more = Workload { clients: workload.clients + 1, ..workload };
            let before = predict(&machine, &workload, model);
            let after = predict(&machine, &more, model);
            prop_assert!(after.tcp.tps >= before.tcp.tps * (1.0 - 1e-9));
            prop_assert!(after.smc.tps >= before.smc.tps * (1.0 - 1e-9));
        }

        #[test]
        fn longer_messages_never_go_faster_through_rings(
            machine in machines(),
            workload in workloads(),
            model in models(),
            more in 1u64..100_000,
        ) {
            prop_assume!(workload.kind != Kind::ConnectRequestResponse);
            let longer = Workload { reply_len: workload.reply_len + more, ..workload };
            let before = predict(&machine, &workload, model).smc.tps;
            let after = predict(&machine, &longer, model).smc.tps;
            prop_assert!(after <= before * (1.0 + 1e-9), "{before} {after}");
        }

        #[test]
        fn estimates_follow_from_their_terms(
            machine in machines(),
            workload in workloads(),
            model in models(),
        ) {
            let prediction = predict(&machine, &workload, model);
            let clients = f64::from(workload.clients);
            for estimate in [&prediction.tcp, &prediction.smc] {
                let sum_us: f64 = estimate.terms.iter().map(|term| term.us).sum();
                prop_assert!(sum_us.is_finite() && sum_us > 0.0);
                prop_assert!((estimate.tps * sum_us / 1e6 / estimate.at_a_time - 1.0).abs() < 1e-9);
                // Little's law.
                let under_way = estimate.tps * estimate.response_us / 1e6;
                prop_assert!((under_way / clients - 1.0).abs() < 1e-9);
            }
            let product = prediction.throughput_ratio * prediction.response_ratio;
            prop_assert!((product - 1.0).abs() < 1e-9);
        }

        #[test]
        fn a_connection_that_closes_at_once_never_gains(
            machine in machines(),
            workload in workloads(),
            model in models(),
        ) {
            let crr = Workload { kind: Kind::ConnectRequestResponse, ..workload };
            prop_assert!(ratio(&machine, &crr, model) < 1.0);
        }
    }

    /// TCP of this machine is nothing but the two copies that a ring takes as well.
    #[test]
    fn nothing_is_gained_where_copies_are_all_there_is() {
        let lens = [1, 64 * KB];
        let hot_ns = |len: u64| len as f64;
        let copy = |len| CopyCost {
            len,
            hot_ns: hot_ns(len),
            cold_ns: hot_ns(len),
            handed_ns: Some(2.0 * hot_ns(len)),
        };
        let machine = Figures {
            copies: lens.map(copy).to_vec(),
            tcp: lens.map(|len| TcpCost { len, ns: 2.0 * hot_ns(len) }).to_vec(),
            ..documented_machine()
        };
        let one_cpu = Figures { cpus: 1, ..machine.clone() };
        let streaming = workload(Kind::Streaming, 1, 1, 20_000_000);
        let echo = workload(Kind::RequestResponse, 10, 64 * KB, 64 * KB);
        let near_one = 0.9..1.1;
        for machine in [machine, one_cpu] {
            assert!(near_one.contains(&ratio(&machine, &streaming, Model::Threads)));
            assert!(near_one.contains(&ratio(&machine, &streaming, Model::EventLoop)));
            assert!(near_one.contains(&ratio(&machine, &echo, Model::EventLoop)));
        }
    }

    #[test]
    fn costs_between_lengths_lie_on_a_line() {
        let points = [(64, 10.0), (128, 20.0)];
        let at = |len| at_len(points.into_iter(), len);
        assert_eq!([at(1.0), at(64.0), at(96.0), at(128.0), at(256.0)], [10., 10., 15., 20., 40.]);
        assert_eq!(at_len([(64, 10.0)].into_iter(), 1000.0), 10.0);
    }
}
