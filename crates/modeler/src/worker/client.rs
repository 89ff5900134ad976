//! The client side: starts the clients' threads, keeps the time, reports.
//!
//! This thread decides when the warm-up and the measured time end; clients decide by
//! the same clock which of their transactions count. When numbers are given instead of
//! times, all clients end their warm-up before any begins to count.

use std::convert::Infallible;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::clock::{self, HANG_S, SECOND_NS};
use super::control_line::{ControlLine, Ending, Note};
use super::event_loop::Epoll;
use super::failure::Failure;
use super::generator::{Generator, Pulse};
use super::poller::Poller;
use super::record::Recorder;
use super::shares::{STACK_LEN, shares};
use super::socket::{Dialer, show};
use super::stage::Stage;
use super::threads::{Blocking, Polling};
use super::trouble::Trouble;
use crate::control::{Address, Command, Event, Job, Usage};
use crate::plan::{Extent, Model};

/// Connects to `to`, makes one run, and stays until the input ends.
///
/// # Errors
/// Always: [`Ending::InputEnded`] is the good one.
pub(super) fn run<W: Write>(
    job: &Job,
    to: &Address,
    line: &mut ControlLine<W>,
) -> Result<Infallible, Ending> {
    let mut team = Team::assemble(job, to, line)?;
    team.gather(line)?;
    line.say(&Event::Connected)?;
    let begin_ns = team.await_go(line)?;
    let (recorder, usage) = match job.conduct.extent {
        Extent::Time { warmup, measured } => team.run_for(begin_ns, warmup, measured, line)?,
        Extent::Count { warmup, measured } => team.run_through(begin_ns, warmup, measured, line)?,
    };
    let bytes = job.workload.request_len.saturating_add(job.workload.reply_len);
    line.say(&Event::Report(Box::new(recorder.into_report(bytes, usage))))?;
    line.serve()
}

/// The threads with the clients.
struct Team {
    threads: Vec<Thread>,
    gate: Arc<Gate>,
    to: String,
    /// Threads that have been told something and have not reported.
    pending: usize,
    /// What those have recorded that have.
    recorded: Option<Recorder>,
    watch: Watch,
}

struct Thread {
    clients: Range<u32>,
    pulse: Arc<Pulse>,
}

/// Where threads wait for the next stage: one call lets thousands of them through.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    /// Stages that have been begun.
    begun: u64,
    stage: Option<Arc<Stage>>,
    /// There will be no more.
    closed: bool,
}

/// Notices that nothing moves.
struct Watch {
    /// All beats, when they were counted last.
    beats: u64,
    /// Since when there have been no more.
    since_ns: u64,
    /// When to count again: with thousands of threads that is work.
    next_ns: u64,
}

impl Team {
    fn assemble<W: Write>(job: &Job, to: &Address, line: &ControlLine<W>) -> Result<Self, Failure> {
        let shares = shares(job);
        let gate = Arc::new(Gate::default());
        let mut threads = Vec::with_capacity(shares.len());
        let mut first = job.first_client;
        for (number, share) in shares.iter().enumerate() {
            let clients = first..first + share;
            first = clients.end;
            let failed = |source| Failure::Thread { number, of: shares.len(), source };
            threads.push(Thread::start(job, to, clients, &gate, line.desk()).map_err(failed)?);
        }
        let pending = threads.len();
        Ok(Self { threads, gate, to: show(to), pending, recorded: None, watch: Watch::new() })
    }

    /// Waits for the command to begin.
    fn await_go<W: Write>(&self, line: &mut ControlLine<W>) -> Result<u64, Ending> {
        loop {
            if let Some(Note::Command(Command::Go { at_ns })) = line.next(None)? {
                return Ok(at_ns.max(clock::now_ns()));
            }
        }
    }

    fn run_for<W: Write>(
        &mut self,
        begin_ns: u64,
        warmup: Duration,
        measured: Duration,
        line: &mut ControlLine<W>,
    ) -> Result<(Recorder, Usage), Ending> {
        let stage = Stage::timed(begin_ns, nanoseconds(warmup), nanoseconds(measured));
        let stage = self.begin(stage);
        self.attend(stage.measured_from_ns, line)?;
        stage.mark(clock::now_ns());
        line.say(&Event::Warm)?;
        self.attend(stage.end_ns, line)?;
        stage.mark(clock::now_ns());
        Ok((self.finish(&stage, line)?, stage.usage()))
    }

    fn run_through<W: Write>(
        &mut self,
        begin_ns: u64,
        warmup: u64,
        measured: u64,
        line: &mut ControlLine<W>,
    ) -> Result<(Recorder, Usage), Ending> {
        let stage = self.begin(Stage::counted(begin_ns, warmup));
        self.finish(&stage, line)?;
        self.attend(begin_ns, line)?;
        line.say(&Event::Warm)?;
        let stage = Stage::counted(clock::now_ns(), measured);
        stage.mark(stage.begin_ns);
        let stage = self.begin(stage);
        Ok((self.finish(&stage, line)?, stage.usage()))
    }

    fn begin(&mut self, stage: Stage) -> Arc<Stage> {
        self.pending = self.threads.len();
        self.gate.open(stage)
    }

    /// Waits until all have run the stage; puts together what they recorded.
    fn finish<W: Write>(
        &mut self,
        stage: &Stage,
        line: &mut ControlLine<W>,
    ) -> Result<Recorder, Ending> {
        self.gather(line)?;
        Ok(self.recorded.take().unwrap_or_else(|| Recorder::new(stage)))
    }

    /// Waits until all threads have reported.
    fn gather<W: Write>(&mut self, line: &mut ControlLine<W>) -> Result<(), Ending> {
        while self.pending > 0 {
            self.attend_once(u64::MAX, line)?;
        }
        Ok(())
    }

    /// Waits for a moment, and takes reports meanwhile.
    fn attend<W: Write>(&mut self, until_ns: u64, line: &mut ControlLine<W>) -> Result<(), Ending> {
        while clock::now_ns() < until_ns {
            self.attend_once(until_ns, line)?;
        }
        Ok(())
    }

    fn attend_once<W: Write>(
        &mut self,
        until_ns: u64,
        line: &mut ControlLine<W>,
    ) -> Result<(), Ending> {
        match line.next(Some(until_ns.min(self.watch.next_ns)))? {
            None => {}
            Some(Note::Ready) => self.pending -= 1,
            Some(Note::Done(recorder)) => self.take(*recorder),
            Some(Note::Command(_) | Note::Over(_)) => {
                return Err(Failure::Unexpected("go").into());
            }
        }
        Ok(self.look()?)
    }

    fn take(&mut self, recorder: Recorder) {
        self.pending -= 1;
        match &mut self.recorded {
            None => self.recorded = Some(recorder),
            Some(all) => all.merge(&recorder),
        }
    }

    /// # Errors
    /// Clients wait, and nothing has moved for [`HANG_S`].
    fn look(&mut self) -> Result<(), Failure> {
        let now_ns = clock::now_ns();
        if now_ns < self.watch.next_ns {
            return Ok(());
        }
        let pulses = self.threads.iter().map(|thread| thread.pulse.feel());
        if !self.watch.is_hanging(pulses, now_ns) {
            return Ok(());
        }
        Err(Failure::Hang { who: self.who_waits(), to: self.to.clone() })
    }

    /// The clients of threads in which a transaction is under way.
    fn who_waits(&self) -> String {
        let waiting: Vec<_> = self.threads.iter().filter(|thread| thread.pulse.feel().1).collect();
        let named = waiting.iter().take(NAMED_MAX).map(|thread| match &thread.clients {
            clients if clients.len() == 1 => format!("client {}", clients.start),
            clients => format!("clients {} to {}", clients.start, clients.end - 1),
        });
        let mut text = named.collect::<Vec<_>>().join(", ");
        if waiting.len() > NAMED_MAX {
            text.push_str(&format!(" and {} more threads", waiting.len() - NAMED_MAX));
        }
        text
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.gate.close();
    }
}

impl Gate {
    fn open(&self, stage: Stage) -> Arc<Stage> {
        let stage = Arc::new(stage);
        let mut state = self.lock();
        state.begun += 1;
        state.stage = Some(Arc::clone(&stage));
        self.changed.notify_all();
        stage
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits for the stage that follows the first `seen`. None: there will be none.
    fn pass(&self, seen: u64) -> Option<Arc<Stage>> {
        let state = self.lock();
        let state = self
            .changed
            .wait_while(state, |state| state.begun <= seen && !state.closed)
            .unwrap_or_else(PoisonError::into_inner);
        if state.closed { None } else { state.stage.clone() }
    }

    /// Its contents are whole at any moment, even if a thread has panicked.
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Thread {
    fn start(
        job: &Job,
        to: &Address,
        clients: Range<u32>,
        gate: &Arc<Gate>,
        desk: Sender<Note>,
    ) -> io::Result<Self> {
        let pulse = Arc::new(Pulse::default());
        let body = Body {
            job: job.clone(),
            dialer: Dialer::new(to, job),
            to: show(to),
            clients: clients.clone(),
            pulse: Arc::clone(&pulse),
            gate: Arc::clone(gate),
            desk,
        };
        thread::Builder::new()
            .name(format!("client {}", clients.start))
            .stack_size(STACK_LEN)
            .spawn(move || body.live())?;
        Ok(Self { clients, pulse })
    }
}

/// What a client's thread has.
struct Body {
    job: Job,
    dialer: Dialer,
    to: String,
    clients: Range<u32>,
    pulse: Arc<Pulse>,
    gate: Arc<Gate>,
    desk: Sender<Note>,
}

impl Body {
    /// Runs all stages that come, and says so.
    fn live(self) {
        let lived = match self.job.model {
            Model::EventLoop => Epoll::new(self.dialer.clone())
                .map_err(Trouble::from)
                .and_then(|poller| self.work(poller)),
            _ if self.job.conduct.blocking => self.work(Blocking::new(self.dialer.clone())),
            _ => self.work(Polling::new(self.dialer.clone())),
        };
        if let Err(source) = lived {
            let failure = Failure::Client { to: self.to, source };
            let _ = self.desk.send(Note::Over(failure.into()));
        }
    }

    /// Notes that are not read are lost: the worker has ended.
    fn work<P: Poller>(&self, poller: P) -> Result<(), Trouble> {
        let pulse = Arc::clone(&self.pulse);
        let mut generator = Generator::new(poller, &self.job, self.clients.clone(), pulse);
        generator.connect()?;
        let _ = self.desk.send(Note::Ready);
        for seen in 0.. {
            let Some(stage) = self.gate.pass(seen) else { break };
            let recorder = generator.run(&stage)?;
            let _ = self.desk.send(Note::Done(Box::new(recorder)));
        }
        Ok(())
    }
}

impl Watch {
    fn new() -> Self {
        let now_ns = clock::now_ns();
        Self { beats: 0, since_ns: now_ns, next_ns: now_ns + LOOK_NS }
    }

    /// Whether nothing has moved for too long while a transaction waits.
    fn is_hanging(&mut self, pulses: impl Iterator<Item = (u64, bool)>, now_ns: u64) -> bool {
        let mut beats = 0;
        let mut somebody_waits = false;
        for (its_beats, waits) in pulses {
            beats += its_beats;
            somebody_waits |= waits;
        }
        if beats != self.beats || !somebody_waits {
            self.since_ns = now_ns;
        }
        self.beats = beats;
        self.next_ns = now_ns + LOOK_NS;
        now_ns - self.since_ns >= HANG_S * SECOND_NS
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Time between two looks at all pulses.
const LOOK_NS: u64 = SECOND_NS;
/// Threads that are named in a text; of the others only the number.
const NAMED_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hang_is_noticed_after_its_time_and_not_while_all_are_idle() {
        let mut watch = Watch { beats: 0, since_ns: 0, next_ns: 0 };
        let second = |s: u64| s * SECOND_NS;
        let mut look = |beats, waits, s| watch.is_hanging([(beats, waits)].into_iter(), second(s));
        assert!(!look(5, true, 1));
        assert!(!look(5, true, HANG_S));
        assert!(look(5, true, HANG_S + 1));
        assert!(!look(6, true, 20));
        assert!(!look(6, false, 40));
        assert!(!look(6, true, 45));
        assert!(look(6, true, 50));
    }
}
