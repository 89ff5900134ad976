//! The load: which client does what when, whatever carries the bytes.
//!
//! ```text
//!              due later                 connection blocks
//!            ┌───────────┐               ┌──────────────┐
//!            v           │               v              │
//!         timers ──> start(client) ──> conversation ──> poller
//!                        ^               │
//!                        └── due now ────┘ a transaction ended: one look at the clock
//! ```
//!
//! A generator belongs to one thread. In a closed loop without think time, the moment
//! at which a transaction ends is the moment at which the next one starts, so there
//! is one look at the clock for each. Nothing is allocated for a transaction.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::conversation::{Conversation, Step, Terms};
use super::pace::{Pace, Schedule};
use super::poller::{Interest, Poller};
use super::record::Recorder;
use super::stage::Stage;
use super::trouble::Trouble;
use crate::control::Job;

/// The clients of one thread.
pub(crate) struct Generator<P: Poller> {
    poller: P,
    terms: Terms,
    pace: Pace,
    clients: Vec<Client<P::Transport>>,
    buffer: Vec<u8>,
    /// When idle clients have to start, with their tokens.
    timers: BinaryHeap<Reverse<(u64, usize)>>,
    /// Clients with a transaction under way.
    under_way: usize,
    ready: Vec<usize>,
    /// When the stage wants to know what the process has used.
    mark_ns: u64,
    pulse: Arc<Pulse>,
}

/// A sign of life of one thread, for who watches it.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// Twice the number of beats; plus one when a transaction is under way.
    state: AtomicU64,
}

struct Client<T> {
    number: u32,
    /// None before the first connection, and between two of them.
    transport: Option<T>,
    conversation: Conversation,
    /// What the poller watches; none: it does not know the connection yet.
    interest: Option<Interest>,
    schedule: Schedule,
    /// From when the response time counts; none: idle.
    since_ns: Option<u64>,
    /// Transactions it has ended, in all stages.
    ended: u64,
    /// In this stage, those before its end.
    ended_in_time: u64,
    /// Transactions it may still start.
    left: u64,
}

impl<P: Poller> Generator<P> {
    /// Clients of the job with these numbers. They have no connections yet.
    pub(crate) fn new(poller: P, job: &Job, numbers: Range<u32>, pulse: Arc<Pulse>) -> Self {
        let terms = Terms::of(job);
        let pace = Pace::of(job);
        let clients: Vec<_> = numbers.map(|number| Client::new(number, terms, pace)).collect();
        Self {
            poller,
            terms,
            pace,
            buffer: terms.buffer(job.conduct.chunk_len),
            timers: BinaryHeap::with_capacity(clients.len()),
            under_way: 0,
            ready: Vec::with_capacity(clients.len()),
            clients,
            mark_ns: 0,
            pulse,
        }
    }

    /// Connects all clients. Those of `CRR` make a first transaction instead.
    ///
    /// # Errors
    /// One cannot, and says why.
    pub(crate) fn connect(&mut self) -> Result<(), Trouble> {
        self.pulse.beat(true);
        if self.terms.one_transaction {
            let first = Stage::counted(self.poller.now_ns(), 1);
            self.pace_with(Pace::Closed { think_ns: 0 }, &first)?;
        } else {
            for token in 0..self.clients.len() {
                self.open(token)?;
                self.watch(token, Interest::Read)?;
                self.pulse.beat(true);
            }
        }
        self.pulse.beat(false);
        Ok(())
    }

    /// Runs a stage to its end: transactions that are under way then are finished.
    ///
    /// # Errors
    /// A client cannot go on, and says why.
    pub(crate) fn run(&mut self, stage: &Stage) -> Result<Recorder, Trouble> {
        self.pace_with(self.pace, stage)
    }

    fn pace_with(&mut self, pace: Pace, stage: &Stage) -> Result<Recorder, Trouble> {
        let mut recorder = Recorder::new(stage);
        self.prepare(pace, stage);
        while self.under_way > 0 || !self.timers.is_empty() {
            self.start_those_due(stage, &mut recorder)?;
            self.pulse.beat(self.under_way > 0);
            self.advance_those_ready(stage, &mut recorder)?;
        }
        self.pulse.beat(false);
        for client in &self.clients {
            recorder.add_unfinished(client.unfinished(stage));
        }
        Ok(recorder)
    }

    fn prepare(&mut self, pace: Pace, stage: &Stage) {
        self.mark_ns = stage.first_mark_ns();
        for (token, client) in self.clients.iter_mut().enumerate() {
            client.schedule = Schedule::new(pace, client.number, stage.begin_ns);
            client.ended_in_time = 0;
            client.left = stage.count;
            if let Some(due_ns) = client.next_due_ns(stage.begin_ns, stage) {
                self.timers.push(Reverse((due_ns, token)));
            }
        }
    }

    #[inline]
    fn start_those_due(&mut self, stage: &Stage, recorder: &mut Recorder) -> Result<(), Trouble> {
        if self.timers.is_empty() {
            return Ok(());
        }
        let mut now_ns = self.poller.now_ns();
        while let Some(&Reverse((due_ns, token))) = self.timers.peek()
            && due_ns <= now_ns
        {
            self.timers.pop();
            self.start(token, due_ns, now_ns)?;
            self.advance(token, stage, recorder)?;
            now_ns = self.poller.now_ns();
        }
        Ok(())
    }

    #[inline]
    fn advance_those_ready(
        &mut self,
        stage: &Stage,
        recorder: &mut Recorder,
    ) -> Result<(), Trouble> {
        let until_ns = self.timers.peek().map(|Reverse((due_ns, _))| *due_ns);
        if until_ns.is_none() && self.under_way == 0 {
            return Ok(());
        }
        let mut ready = mem::take(&mut self.ready);
        ready.clear();
        self.poller.wait(until_ns, &mut ready)?;
        for &token in &ready {
            self.advance(token, stage, recorder)?;
        }
        self.ready = ready;
        Ok(())
    }

    fn start(&mut self, token: usize, due_ns: u64, now_ns: u64) -> Result<(), Trouble> {
        self.under_way += 1;
        self.clients[token].start(due_ns, now_ns);
        if self.clients[token].transport.is_none() {
            self.open(token)?;
        }
        Ok(())
    }

    /// Lets a client go on until it has to wait, for the other side or for its time.
    #[inline]
    fn advance(
        &mut self,
        token: usize,
        stage: &Stage,
        recorder: &mut Recorder,
    ) -> Result<(), Trouble> {
        loop {
            let client = &mut self.clients[token];
            let Some(transport) = &mut client.transport else { return Ok(()) };
            let Some(since_ns) = client.since_ns else {
                return Ok(client.conversation.look_while_idle(transport)?);
            };
            match client.conversation.step(transport, &mut self.buffer)? {
                Step::More => self.pulse.beat(true),
                Step::Wait(interest) => return self.watch(token, interest),
                // Only a server is ever left between transactions.
                Step::Ended | Step::Left => {
                    if self.terms.one_transaction {
                        client.transport = None;
                    }
                    let now_ns = self.poller.now_ns();
                    recorder.record(since_ns, now_ns);
                    if now_ns >= self.mark_ns {
                        self.mark_ns = stage.mark(now_ns);
                    }
                    client.end(now_ns, stage);
                    self.under_way -= 1;
                    match client.next_due_ns(now_ns, stage) {
                        Some(due_ns) if due_ns <= now_ns => {
                            self.start(token, due_ns, now_ns)?;
                        }
                        Some(due_ns) => {
                            self.timers.push(Reverse((due_ns, token)));
                            return Ok(());
                        }
                        None => return Ok(()),
                    }
                }
            }
        }
    }

    fn open(&mut self, token: usize) -> Result<(), Trouble> {
        let client = &mut self.clients[token];
        let (terms, number) = (self.terms, client.number);
        let open = |source| Trouble::Open { client: number, source };
        client.transport = Some(self.poller.open().map_err(open)?);
        client.conversation = Conversation::of_client(terms, number, client.ended);
        client.interest = None;
        Ok(())
    }

    #[inline]
    fn watch(&mut self, token: usize, interest: Interest) -> Result<(), Trouble> {
        let client = &mut self.clients[token];
        let Some(transport) = &client.transport else { return Ok(()) };
        match client.interest {
            Some(watched) if watched == interest => return Ok(()),
            Some(_) => self.poller.reregister(token, transport, interest)?,
            None => self.poller.register(token, transport, interest)?,
        }
        client.interest = Some(interest);
        Ok(())
    }
}

impl<T> Client<T> {
    fn new(number: u32, terms: Terms, pace: Pace) -> Self {
        Self {
            number,
            transport: None,
            conversation: Conversation::of_client(terms, number, 0),
            interest: None,
            schedule: Schedule::new(pace, number, 0),
            since_ns: None,
            ended: 0,
            ended_in_time: 0,
            left: 0,
        }
    }

    #[inline]
    fn start(&mut self, due_ns: u64, now_ns: u64) {
        self.left -= 1;
        self.since_ns = Some(self.schedule.start(due_ns, now_ns));
    }

    #[inline]
    fn end(&mut self, now_ns: u64, stage: &Stage) {
        self.since_ns = None;
        self.ended += 1;
        self.ended_in_time += u64::from(now_ns < stage.end_ns);
    }

    /// When it starts again, when it ended (or the stage began) at `now_ns`; none: not
    /// in this stage.
    #[inline]
    fn next_due_ns(&self, now_ns: u64, stage: &Stage) -> Option<u64> {
        let due_ns = self.schedule.due_ns(now_ns);
        let in_time = due_ns < stage.end_ns && now_ns < stage.end_ns;
        (in_time && self.left > 0).then_some(due_ns)
    }

    /// In a stage that ends with a number nothing is left unfinished.
    fn unfinished(&self, stage: &Stage) -> u64 {
        if stage.count != u64::MAX {
            return 0;
        }
        self.schedule.unfinished(stage.measured_from_ns, stage.end_ns, self.ended_in_time)
    }
}

impl Pulse {
    /// Something has moved, or will be waited for.
    #[inline]
    pub(crate) fn beat(&self, under_way: bool) {
        // A load and a store, not a locked add: only one thread writes. Relaxed:
        // nothing is published by it.
        let beats = self.state.load(Ordering::Relaxed) >> 1;
        self.state.store((beats + 1) << 1 | u64::from(under_way), Ordering::Relaxed);
    }

    /// Beats so far, and whether a transaction is under way.
    pub(crate) fn feel(&self) -> (u64, bool) {
        let state = self.state.load(Ordering::Relaxed);
        (state >> 1, state & 1 == 1)
    }
}

#[cfg(test)]
mod tests;
