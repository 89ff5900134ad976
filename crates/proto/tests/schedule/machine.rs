//! A machine: a few CPUs, each with a queue of groups, each with a queue of threads; a virtual clock,
//! ticks, quotas, and a hypervisor that lets a CPU stand still.
//!
//! Threads keep their CPU. What a thread does is not known here: it is told for how long to run, and
//! [`Machine::next`] says when it has.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Ns;
use crate::queue::{Queue, Yielding};

/// From one thread to another on one CPU.
const SWITCH_NS: Ns = 1_200;
/// From a wake-up to its arrival on another CPU that is idle, and on one that is not.
const WAKE_IDLE_NS: Ns = 40_000;
const WAKE_BUSY_NS: Ns = 25_000;
/// The period of a quota.
pub(crate) const PERIOD_NS: Ns = 100_000_000;
/// Longer than any world.
pub(crate) const FOR_EVER: Ns = u64::MAX / 4;

/// A thread, by its number.
pub(crate) type Thread = usize;
/// A group of threads, by its number.
pub(crate) type Group = usize;

/// What scheduler it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) slice: Ns,
    pub(crate) tick: Ns,
    pub(crate) yielding: Yielding,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A thread has run for as long as it was told.
    Ran(Thread),
    /// A timer of the caller's.
    Timer(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Wake(Thread),
    Still(usize, Ns),
    Moves(usize),
    Period(Group),
    Caller(u64),
}

struct Place {
    cpu: usize,
    group: Group,
    which: usize,
    /// For how much longer it runs.
    left: Ns,
    /// If it loses the CPU on the way: how long it runs then.
    left_if_late: Option<Ns>,
    /// When it has lost the CPU.
    lost_at: Ns,
    /// Its longest time without the CPU since it was told to run.
    absence: Ns,
    used: Ns,
}

struct Cpu {
    groups: Queue,
    threads: Vec<Queue>,
    /// What thread stands at a place of a queue.
    names: Vec<Vec<Thread>>,
    current: Option<Thread>,
    charged_at: Ns,
    /// A switch costs time that does no work.
    works_from: Ns,
    tick_at: Ns,
    is_still: bool,
    is_due: bool,
}

#[derive(Clone, Copy)]
struct Quota {
    per_period: Ns,
    used: Ns,
    is_out: bool,
}

pub(crate) struct Machine {
    rules: Rules,
    now: Ns,
    cpus: Vec<Cpu>,
    threads: Vec<Place>,
    quotas: Vec<Option<Quota>>,
    timers: BinaryHeap<Reverse<(Ns, u64, Timer)>>,
    timers_set: u64,
}

impl Machine {
    pub(crate) fn new(cpus: usize, rules: Rules) -> Self {
        let cpu = |number: usize| Cpu {
            groups: Queue::new(rules.slice, rules.tick),
            threads: Vec::new(),
            names: Vec::new(),
            current: None,
            charged_at: 0,
            works_from: 0,
            tick_at: rules.tick * (number as u64 + 1) / cpus as u64,
            is_still: false,
            is_due: false,
        };
        Self {
            rules,
            now: 0,
            cpus: (0..cpus).map(cpu).collect(),
            threads: Vec::new(),
            quotas: Vec::new(),
            timers: BinaryHeap::new(),
            timers_set: 0,
        }
    }

    pub(crate) const fn now(&self) -> Ns {
        self.now
    }

    pub(crate) fn cpu_of(&self, thread: Thread) -> usize {
        self.threads[thread].cpu
    }

    /// How long its longest time without the CPU was since it was told to run.
    pub(crate) fn absence(&self, thread: Thread) -> Ns {
        self.threads[thread].absence
    }

    /// What CPU time it has had.
    pub(crate) fn used(&self, thread: Thread) -> Ns {
        self.threads[thread].used
    }

    /// A group; with a quota, of so much CPU time in each period.
    pub(crate) fn add_group(&mut self, weight: i64, quota: Option<Ns>) -> Group {
        for cpu in &mut self.cpus {
            cpu.groups.add(weight);
            cpu.threads.push(Queue::new(self.rules.slice, self.rules.tick));
            cpu.names.push(Vec::new());
        }
        let group = self.quotas.len();
        self.quotas.push(quota.map(|per_period| Quota { per_period, used: 0, is_out: false }));
        if quota.is_some() {
            self.set_timer(PERIOD_NS, Timer::Period(group));
        }
        group
    }

    /// A thread that sleeps.
    pub(crate) fn add_thread(&mut self, cpu: usize, group: Group, weight: i64) -> Thread {
        let which = self.cpus[cpu].threads[group].add(weight);
        let thread = self.threads.len();
        self.cpus[cpu].names[group].push(thread);
        self.threads.push(Place {
            cpu,
            group,
            which,
            left: FOR_EVER,
            left_if_late: None,
            lost_at: 0,
            absence: 0,
            used: 0,
        });
        thread
    }

    fn set_timer(&mut self, after: Ns, timer: Timer) {
        self.timers_set += 1;
        self.timers.push(Reverse((self.now + after, self.timers_set, timer)));
    }

    pub(crate) fn call_after(&mut self, after: Ns, what: u64) {
        self.set_timer(after, Timer::Caller(what));
    }

    /// From then on a CPU stands still for a while.
    pub(crate) fn stand_still_after(&mut self, after: Ns, cpu: usize, ns: Ns) {
        self.set_timer(after, Timer::Still(cpu, ns));
    }

    /// For how long it runs; `if_late`: if it loses the CPU meanwhile, for how long after that.
    pub(crate) fn run_for(&mut self, thread: Thread, ns: Ns, if_late: Option<Ns>) {
        self.account(self.threads[thread].cpu);
        let it = &mut self.threads[thread];
        (it.left, it.left_if_late, it.absence) = (ns, if_late, 0);
        if !self.is_current(thread) {
            self.threads[thread].lost_at = self.now;
        }
    }

    /// It runs for no longer than that.
    pub(crate) fn cut_short(&mut self, thread: Thread, ns: Ns) {
        self.account(self.threads[thread].cpu);
        let it = &mut self.threads[thread];
        it.left = it.left.min(ns);
    }

    fn is_current(&self, thread: Thread) -> bool {
        self.cpus[self.threads[thread].cpu].current == Some(thread)
    }

    /// Begins it, or wakes it; `by`: a thread on whose CPU that happens.
    pub(crate) fn wake(&mut self, thread: Thread, by: Option<Thread>) {
        let cpu = self.threads[thread].cpu;
        match by {
            Some(by) if self.threads[by].cpu != cpu => {
                let is_idle = self.cpus[cpu].current.is_none();
                let after = if is_idle { WAKE_IDLE_NS } else { WAKE_BUSY_NS };
                self.set_timer(after, Timer::Wake(thread));
            }
            _ => self.enter(thread),
        }
    }

    fn enter(&mut self, thread: Thread) {
        let Place { cpu: number, group, which, .. } = self.threads[thread];
        self.account(number);
        self.threads[thread].lost_at = self.now;
        let is_out = self.is_out(group);
        let cpu = &mut self.cpus[number];
        cpu.threads[group].enter(which);
        if is_out {
            return;
        }
        cpu.groups.enter(group);
        let preempts = match cpu.current.map(|current| self.threads[current].group) {
            None => true,
            Some(of) if of == group => cpu.threads[group].best() == Some(which),
            Some(_) => cpu.groups.best() == Some(group),
        };
        if preempts {
            cpu.is_due = true;
        }
        self.settle(number);
    }

    /// It sleeps until it is woken.
    pub(crate) fn sleep(&mut self, thread: Thread) {
        let Place { cpu: number, group, which, .. } = self.threads[thread];
        self.account(number);
        let cpu = &mut self.cpus[number];
        cpu.threads[group].leave(which);
        if cpu.threads[group].is_empty() && cpu.groups.is_here(group) {
            cpu.groups.leave(group);
        }
        cpu.is_due = true;
        self.settle(number);
    }

    /// It ends, or is stopped.
    pub(crate) fn stop(&mut self, thread: Thread) {
        let Place { cpu: number, group, which, .. } = self.threads[thread];
        self.account(number);
        let cpu = &mut self.cpus[number];
        cpu.threads[group].withdraw(which);
        if cpu.threads[group].is_empty() {
            cpu.groups.withdraw(group);
        }
        cpu.is_due = true;
        self.settle(number);
    }

    /// It calls `sched_yield`.
    pub(crate) fn yields(&mut self, thread: Thread) {
        let Place { cpu: number, group, which, .. } = self.threads[thread];
        self.account(number);
        let (quotas, cpu) = (&self.quotas, &mut self.cpus[number]);
        let runs = |(group, _): &(Group, &Queue)| !quotas[*group].is_some_and(|it| it.is_out);
        let ready = cpu.threads.iter().enumerate().filter(runs).map(|(_, queue)| queue.ready());
        if ready.sum::<usize>() > 1 {
            cpu.threads[group].yields(which, self.rules.yielding);
            cpu.is_due = true;
            self.settle(number);
        }
    }

    fn is_out(&self, group: Group) -> bool {
        self.quotas[group].is_some_and(|it| it.is_out)
    }

    /// Until now.
    fn account(&mut self, number: usize) {
        let cpu = &mut self.cpus[number];
        let ran = self.now - cpu.charged_at;
        let worked = self.now.saturating_sub(cpu.charged_at.max(cpu.works_from));
        cpu.charged_at = self.now;
        let Some(current) = cpu.current.filter(|_| !cpu.is_still && ran > 0) else { return };
        let it = &mut self.threads[current];
        it.left -= worked.min(it.left);
        it.used += ran;
        cpu.is_due |= cpu.threads[it.group].charge(it.which, ran);
        cpu.is_due |= cpu.groups.charge(it.group, ran);
        if let Some(quota) = &mut self.quotas[it.group] {
            quota.used += ran;
        }
    }

    /// Chooses anew, if that is due.
    fn settle(&mut self, number: usize) {
        let cpu = &mut self.cpus[number];
        if cpu.is_still || !core::mem::take(&mut cpu.is_due) {
            return;
        }
        let next = loop {
            let Some(group) = cpu.groups.pick() else { break None };
            match cpu.threads[group].pick() {
                Some(which) => break Some(cpu.names[group][which]),
                None => cpu.groups.withdraw(group),
            }
        };
        if next == cpu.current {
            return;
        }
        if let Some(before) = cpu.current {
            self.threads[before].lost_at = self.now;
        }
        cpu.current = next;
        cpu.works_from = self.now + SWITCH_NS;
        let Some(next) = next else { return };
        let it = &mut self.threads[next];
        it.absence = it.absence.max(self.now - it.lost_at);
        if let Some(left) = it.left_if_late {
            it.left = it.left.min(left);
        }
    }

    /// Lets the clock go on until something happens that the caller has to know.
    pub(crate) fn next(&mut self) -> Event {
        loop {
            let done = self.cpus.iter().enumerate().filter_map(|(number, cpu)| {
                let current = cpu.current.filter(|_| !cpu.is_still)?;
                let begin = cpu.charged_at.max(cpu.works_from);
                Some((begin + self.threads[current].left, number))
            });
            let done = done.min();
            let tick = self.cpus.iter().enumerate().map(|(at, cpu)| (cpu.tick_at, at)).min();
            let (tick_at, ticks) = tick.expect("a machine has CPUs");
            let timer_at = self.timers.peek().map_or(FOR_EVER, |Reverse((at, ..))| *at);
            if timer_at <= tick_at && done.is_none_or(|(at, _)| timer_at <= at) {
                self.now = timer_at;
                let Some(Reverse((.., timer))) = self.timers.pop() else { continue };
                match timer {
                    Timer::Caller(what) => return Event::Timer(what),
                    other => self.ring(other),
                }
            } else if let Some((at, number)) = done.filter(|(at, _)| *at <= tick_at) {
                self.now = at;
                self.account(number);
                let current = self.cpus[number].current.expect("it has run");
                return Event::Ran(current);
            } else {
                self.now = tick_at;
                self.tick(ticks);
            }
        }
    }

    fn tick(&mut self, number: usize) {
        self.cpus[number].tick_at += self.rules.tick;
        self.account(number);
        for group in 0..self.quotas.len() {
            if let Some(quota) = &mut self.quotas[group]
                && quota.used >= quota.per_period
                && !quota.is_out
            {
                quota.is_out = true;
                self.throttle(group);
            }
        }
        self.settle(number);
    }

    fn throttle(&mut self, group: Group) {
        for number in 0..self.cpus.len() {
            self.account(number);
            self.cpus[number].groups.withdraw(group);
            self.cpus[number].is_due = true;
            self.settle(number);
        }
    }

    fn ring(&mut self, timer: Timer) {
        match timer {
            Timer::Wake(thread) => self.enter(thread),
            Timer::Still(number, ns) => {
                self.account(number);
                self.cpus[number].is_still = true;
                if let Some(current) = self.cpus[number].current {
                    self.threads[current].lost_at = self.now;
                }
                self.set_timer(ns, Timer::Moves(number));
            }
            Timer::Moves(number) => {
                let cpu = &mut self.cpus[number];
                (cpu.is_still, cpu.charged_at) = (false, self.now);
                if let Some(current) = cpu.current {
                    let it = &mut self.threads[current];
                    it.absence = it.absence.max(self.now - it.lost_at);
                    if let Some(left) = it.left_if_late {
                        it.left = it.left.min(left);
                    }
                }
                self.settle(number);
            }
            Timer::Period(group) => {
                self.set_timer(PERIOD_NS, Timer::Period(group));
                for number in 0..self.cpus.len() {
                    self.account(number);
                }
                let Some(quota) = &mut self.quotas[group] else { return };
                quota.used = quota.used.saturating_sub(quota.per_period);
                quota.is_out = quota.used >= quota.per_period;
                if quota.is_out {
                    return;
                }
                for number in 0..self.cpus.len() {
                    let cpu = &mut self.cpus[number];
                    if !cpu.threads[group].is_empty() {
                        cpu.groups.enter(group);
                        cpu.is_due = true;
                    }
                    self.settle(number);
                }
            }
            Timer::Caller(_) => unreachable!("told to the caller"),
        }
    }
}
