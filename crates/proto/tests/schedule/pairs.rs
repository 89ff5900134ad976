//! Pairs of threads that ask and answer, in two processes, over one connection each.
//!
//! Both ends wait as the library's `linger` does: by the real [`Governor`] of the connection and the
//! real [`Contention`] of the process, with looks, yields, naps and sleeps that take what they took
//! on a machine. Or they wait by a fixed rule, to compare.

use sidestep_proto::contention::{Company, Contention, DEAR_NS};
use sidestep_proto::governor::{
    Circumstances, Governor, NAP_NS, SPIN_BUDGET_NS_MAX, SpinPolicy, Step, Wait, YIELDS_MAX,
};

use crate::Ns;
use crate::machine::{Group, Machine, Thread};

/// What things cost, as measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    publish: Ns,
    /// The looks at a cursor between two looks at the clock.
    looks: Ns,
    /// From publishing to the look that sees it.
    seen: Ns,
    /// Into the kernel for a yield, and back.
    yield_enter: Ns,
    yield_return: Ns,
    /// To lie down for a nap, to wake a napper, and to return from it.
    nap: [Ns; 3],
    /// The same on the TCP socket.
    sleep: [Ns; 3],
}

/// Over shared memory.
pub(crate) const SHARED: Costs = Costs {
    publish: 150,
    looks: 400,
    seen: 200,
    yield_enter: 300,
    yield_return: 600,
    nap: [2_200, 1_700, 600],
    sleep: [4_500, 4_500, 1_500],
};

/// By TCP, where each message goes through the kernel, with the wake-up.
pub(crate) const TCP: Costs =
    Costs { publish: 500, nap: [4_500, 4_500, 1_500], sleep: [4_500, 4_500, 1_500], ..SHARED };

/// How ends wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// By the rules.
    Governed,
    /// They sleep at once.
    Sleeps,
    /// They yield as often as is ever allowed.
    Yields,
    /// They spin for as long as is ever allowed, then yield as above.
    Spins,
}

enum Course {
    Governed(Wait),
    Fixed { spin_ns: u32, yields: u32 },
}

impl Course {
    fn next_step(&mut self) -> Step {
        match self {
            Self::Governed(wait) => wait.next_step(),
            Self::Fixed { spin_ns, .. } if *spin_ns > 0 => {
                Step::Spin { budget_ns: core::mem::take(spin_ns) }
            }
            Self::Fixed { yields: 0, .. } => Step::Park,
            Self::Fixed { yields, .. } => {
                *yields -= 1;
                Step::Yield
            }
        }
    }

    fn stop_yielding(&mut self) {
        if let Self::Governed(wait) = self {
            wait.stop_yielding();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bed {
    Nap,
    Tcp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Works,
    Rings,
    BeginsToWait,
    Spins { began: Ns },
    EntersYield,
    Yields { began: Ns, spins_begun: u32 },
    LiesDown(Bed),
    Sleeps(Bed),
    GetsUp(Bed),
    NapIsOver,
}

struct End {
    thread: Thread,
    peer: usize,
    process: usize,
    governor: Governor,
    /// The connection's messages so far.
    messages: u64,
    doing: Doing,
    course: Course,
    company: Company,
    has_mail: bool,
    naps: u64,
    asked_at: Ns,
}

/// What befell a process.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// When a stranger was met, and when a trial has said that there are none, in turns.
    pub(crate) changes: Vec<Ns>,
    /// What dear yields have cost.
    pub(crate) losses: Vec<Ns>,
    /// Spun beside strangers.
    pub(crate) spun_beside: Ns,
    /// From meeting one until there were none.
    pub(crate) beside: Ns,
    /// Those that have ended.
    pub(crate) trials: Vec<Trial>,
}

/// For so long all threads of a process yielded, to learn whether strangers have gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    pub(crate) from: Ns,
    pub(crate) to: Ns,
    /// It has said that there are none.
    pub(crate) is_passed: bool,
}

#[derive(Default)]
struct Process {
    contention: Contention,
    spinning: u32,
    yielding: u32,
    spins_begun: u32,
    /// When a wait last began on each CPU.
    waited: Vec<Ns>,
    ledger: Ledger,
    beside_since: Option<Ns>,
    trial_since: Option<Ns>,
}

impl Process {
    /// A wait begins on a CPU.
    fn company(&mut self, now: Ns, cpu: usize) -> Company {
        if self.waited.len() <= cpu {
            self.waited.resize(cpu + 1, now);
        }
        let gap = now - core::mem::replace(&mut self.waited[cpu], now);
        let company = self.contention.company(now, gap);
        let is_trial = company == Company::Alone && !self.contention.is_settled();
        match self.trial_since {
            None if is_trial => self.trial_since = Some(now),
            Some(_) if !is_trial => self.end_trial(now, true),
            _ => {}
        }
        self.note(now);
        company
    }

    /// A thread runs again after a yield. True: it has met a stranger.
    fn resumed(&mut self, now: Ns, late: Ns, spins: u32) -> bool {
        let has_met = self.contention.resumed(now, late, spins);
        if has_met {
            self.end_trial(now, false);
        }
        self.note(now);
        has_met
    }

    fn end_trial(&mut self, to: Ns, is_passed: bool) {
        let trial = self.trial_since.take().map(|from| Trial { from, to, is_passed });
        self.ledger.trials.extend(trial);
    }

    fn note(&mut self, now: Ns) {
        let is_contended = !self.contention.is_settled();
        match self.beside_since {
            None if is_contended => self.beside_since = Some(now),
            Some(since) if !is_contended => {
                self.ledger.beside += now - since;
                self.beside_since = None;
            }
            _ => return,
        }
        self.ledger.changes.push(now);
    }
}

/// How the pairs of a world talk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// What a message takes, at the client and at the server.
    pub(crate) work: [Ns; 2],
    /// After so many messages a connection is closed, and another one begun.
    pub(crate) messages: u64,
}

pub(crate) struct Pairs {
    habits: Habits,
    costs: Costs,
    manner: Manner,
    cpus: u32,
    processes: [Process; 2],
    ends: Vec<End>,
    /// What end a thread is.
    names: Vec<Option<usize>>,
    /// Since when transactions count.
    counts_from: Ns,
    /// Times from question to answer.
    times: Vec<Ns>,
}

impl Pairs {
    pub(crate) fn new(
        cpus: usize,
        manner: Manner,
        costs: Costs,
        habits: Habits,
        counts_from: Ns,
    ) -> Self {
        Self {
            habits,
            costs,
            manner,
            cpus: cpus as u32,
            processes: Default::default(),
            ends: Vec::new(),
            names: Vec::new(),
            counts_from,
            times: Vec::new(),
        }
    }

    /// A pair, whose client asks at once.
    pub(crate) fn begin(&mut self, machine: &mut Machine, cpus: [usize; 2], groups: [Group; 2]) {
        let client = self.ends.len();
        for process in 0..2 {
            let thread = machine.add_thread(cpus[process], groups[process], crate::queue::ORDINARY);
            self.names.resize(thread + 1, None);
            self.names[thread] = Some(client + process);
            self.ends.push(End {
                thread,
                peer: client + 1 - process,
                process,
                governor: Governor::new(),
                messages: 0,
                doing: Doing::Works,
                course: Course::Fixed { spin_ns: 0, yields: 0 },
                company: Company::Alone,
                has_mail: false,
                naps: 0,
                asked_at: 0,
            });
        }
        for (end, doing) in [(client, Doing::Works), (client + 1, Doing::BeginsToWait)] {
            self.does(machine, end, doing, self.habits.work[0]);
            machine.wake(self.ends[end].thread, None);
        }
    }

    /// What befell the processes until now.
    pub(crate) fn end(mut self, now: Ns) -> (Vec<Ns>, [Ledger; 2]) {
        for it in &mut self.processes {
            it.ledger.beside += it.beside_since.map_or(0, |since| now - since);
        }
        (self.times, self.processes.map(|it| it.ledger))
    }

    fn does(&mut self, machine: &mut Machine, end: usize, doing: Doing, ns: Ns) {
        self.ends[end].doing = doing;
        machine.run_for(self.ends[end].thread, ns, None);
    }

    /// The timer of a nap.
    pub(crate) fn ring(&mut self, machine: &mut Machine, timer: u64) {
        let (end, nap) = ((timer & 0xff) as usize, timer >> 8);
        let it = &self.ends[end];
        if it.doing == Doing::Sleeps(Bed::Nap) && it.naps == nap {
            self.does(machine, end, Doing::NapIsOver, self.costs.nap[2]);
            machine.wake(self.ends[end].thread, None);
        }
    }

    /// A thread has done what it did.
    pub(crate) fn ran(&mut self, machine: &mut Machine, thread: Thread) {
        let Some(end) = self.names.get(thread).copied().flatten() else { return };
        match self.ends[end].doing {
            Doing::Works => self.publish(machine, end),
            Doing::Rings => {
                let peer = self.ends[end].peer;
                // It may lose the CPU to the one that it wakes.
                self.does(machine, end, Doing::BeginsToWait, 100);
                if let Doing::Sleeps(bed) = self.ends[peer].doing {
                    let nap = if bed == Bed::Nap { self.costs.nap } else { self.costs.sleep };
                    self.does(machine, peer, Doing::GetsUp(bed), nap[2]);
                    machine.wake(self.ends[peer].thread, Some(thread));
                }
            }
            Doing::BeginsToWait => self.begin_wait(machine, end),
            Doing::Spins { began } => self.end_spin(machine, end, began),
            Doing::EntersYield => {
                let began = machine.now();
                let process = &mut self.processes[self.ends[end].process];
                process.yielding += 1;
                let spins_begun = process.spins_begun;
                let yields = Doing::Yields { began, spins_begun };
                self.does(machine, end, yields, self.costs.yield_return);
                machine.yields(thread);
            }
            Doing::Yields { began, spins_begun } => {
                self.end_yield(machine, end, began, spins_begun);
            }
            Doing::LiesDown(_) if self.ends[end].has_mail => self.take(machine, end),
            Doing::LiesDown(bed) => {
                let it = &mut self.ends[end];
                it.doing = Doing::Sleeps(bed);
                if bed == Bed::Nap {
                    it.naps += 1;
                    machine.call_after(NAP_NS, end as u64 | it.naps << 8);
                }
                machine.sleep(thread);
            }
            Doing::Sleeps(_) => unreachable!("it sleeps"),
            Doing::GetsUp(bed) => {
                if bed == Bed::Nap {
                    self.ends[end].governor.napped(true);
                }
                self.take(machine, end);
            }
            Doing::NapIsOver => {
                self.ends[end].governor.napped(false);
                match self.ends[end].has_mail {
                    true => self.take(machine, end),
                    false => {
                        self.does(machine, end, Doing::LiesDown(Bed::Tcp), self.costs.sleep[0]);
                    }
                }
            }
        }
    }

    fn publish(&mut self, machine: &mut Machine, end: usize) {
        let peer = self.ends[end].peer;
        if self.ends[end].process == 0 {
            self.ends[end].asked_at = machine.now();
        }
        self.ends[peer].has_mail = true;
        match self.ends[peer].doing {
            Doing::Sleeps(bed) => {
                let nap = if bed == Bed::Nap { self.costs.nap } else { self.costs.sleep };
                self.does(machine, end, Doing::Rings, nap[1]);
                return;
            }
            Doing::Spins { .. } => machine.cut_short(self.ends[peer].thread, self.costs.seen),
            _ => {}
        }
        self.begin_wait(machine, end);
    }

    /// It has found its message.
    fn take(&mut self, machine: &mut Machine, end: usize) {
        let it = &mut self.ends[end];
        it.has_mail = false;
        it.messages += 1;
        if it.messages == self.habits.messages {
            (it.messages, it.governor) = (0, Governor::new());
        }
        let process = it.process;
        if process == 0 && it.asked_at >= self.counts_from {
            self.times.push(machine.now() - it.asked_at);
        }
        let ns = self.habits.work[process] + self.costs.publish;
        self.does(machine, end, Doing::Works, ns);
    }

    fn begin_wait(&mut self, machine: &mut Machine, end: usize) {
        if self.ends[end].has_mail {
            return self.take(machine, end);
        }
        let peer_cpu = machine.cpu_of(self.ends[self.ends[end].peer].thread);
        let it = &mut self.ends[end];
        let process = &mut self.processes[it.process];
        it.company = process.company(machine.now(), machine.cpu_of(it.thread));
        let peer_elsewhere = machine.cpu_of(it.thread) != peer_cpu;
        let spins = peer_elsewhere && process.spinning + 1 < self.cpus;
        it.course = match self.manner {
            Manner::Governed | Manner::Sleeps => {
                let policy = match self.manner {
                    Manner::Sleeps => SpinPolicy::Never,
                    _ => SpinPolicy::Auto,
                };
                let company = it.company;
                Course::Governed(it.governor.begin(Circumstances {
                    peer_elsewhere,
                    cpus: self.cpus,
                    spinning: process.spinning,
                    yielding: process.yielding,
                    company,
                    policy,
                }))
            }
            Manner::Yields => Course::Fixed { spin_ns: 0, yields: YIELDS_MAX },
            Manner::Spins => {
                let spin_ns = if spins { SPIN_BUDGET_NS_MAX } else { 0 };
                Course::Fixed { spin_ns, yields: YIELDS_MAX }
            }
        };
        self.step(machine, end);
    }

    fn step(&mut self, machine: &mut Machine, end: usize) {
        match self.ends[end].course.next_step() {
            Step::Spin { budget_ns } => {
                let began = machine.now();
                let process = &mut self.processes[self.ends[end].process];
                process.spinning += 1;
                process.spins_begun += 1;
                self.ends[end].doing = Doing::Spins { began };
                let budget = Ns::from(budget_ns) + self.costs.looks;
                machine.run_for(self.ends[end].thread, budget, Some(self.costs.looks));
            }
            Step::Yield => self.does(machine, end, Doing::EntersYield, self.costs.yield_enter),
            Step::Park if self.ends[end].has_mail => self.take(machine, end),
            Step::Park => {
                let (bed, costs) = match self.ends[end].governor.may_nap() {
                    true => (Bed::Nap, self.costs.nap),
                    false => (Bed::Tcp, self.costs.sleep),
                };
                self.does(machine, end, Doing::LiesDown(bed), costs[0]);
            }
        }
    }

    fn end_spin(&mut self, machine: &mut Machine, end: usize, began: Ns) {
        let (now, absence) = (machine.now(), machine.absence(self.ends[end].thread));
        let it = &mut self.ends[end];
        let process = &mut self.processes[it.process];
        process.spinning -= 1;
        if it.company == Company::Strangers {
            process.ledger.spun_beside += now - began - absence.min(now - began);
        }
        it.governor.spun(it.has_mail);
        match it.has_mail {
            true => self.take(machine, end),
            false => self.step(machine, end),
        }
    }

    fn end_yield(&mut self, machine: &mut Machine, end: usize, began: Ns, spins_begun: u32) {
        let now = machine.now();
        let it = &mut self.ends[end];
        let process = &mut self.processes[it.process];
        process.yielding -= 1;
        let late = now - began;
        let met_stranger = process.resumed(now, late, process.spins_begun - spins_begun);
        if late > DEAR_NS {
            process.ledger.losses.push(late);
        }
        if met_stranger {
            it.course.stop_yielding();
        }
        if it.has_mail {
            it.governor.served_by_yield();
            return self.take(machine, end);
        }
        self.step(machine, end);
    }
}
