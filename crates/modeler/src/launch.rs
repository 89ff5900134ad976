//! Starting workers, listening to them, and ending them for certain.
//!
//! A worker is this very executable, started as `sidestep bench worker`; for SMC as
//! `sidestep run -- sidestep bench worker`, and nothing else is different. It speaks
//! lines of JSON on its standard streams ([`control`](crate::control)), and what it
//! writes to its standard error is kept for the texts of errors.
//!
//! ```text
//!   Launcher ── start(transport, jobs) ──> Crew ── one process for each job
//!                                           │ tell(command)        to all
//!                                           │ gather("connect", …) one event of each
//!                                           └ end()                or drop: killed
//! ```
//!
//! No process is waited for without a limit ([`Limits`]), and the first of a crew to fail
//! fails it: the others would only wait for it. The kernel kills a worker when the
//! thread that has started it ends, however that comes about.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;
use thiserror::Error;

use crate::affinity;
use crate::contention::CpuList;
use crate::control::{Command, Event, Job, Role};
use crate::plan::Transport;

mod descriptors;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod lines;

pub use descriptors::TooFewDescriptors;
use lines::LineError;

/// Knows how workers are started.
#[derive(Clone, Debug)]
pub struct Launcher {
    sidestep: PathBuf,
    cgroup: Option<PathBuf>,
    confines: Confines,
    limits: Limits,
}

/// Where processes run: on which CPUs, and in which control group.
#[derive(Clone, Debug, Default)]
pub struct Confines {
    /// The CPUs; none: those of this process.
    pub cpus: CpuList,
    /// The directory of the group, which limits them or judges their packets; `None`: that of this process.
    pub cgroup: Option<PathBuf>,
}

/// How long a worker may take for what is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A server: to listen.
    pub listen: Duration,
    /// Clients: to connect, all of them.
    pub connect: Duration,
    /// More than the warm-up or the measured time is long.
    pub slack: Duration,
    /// Warm-up or measured part of a run that counts transactions.
    pub count: Duration,
    /// To say what it has used.
    pub sample: Duration,
    /// To end.
    pub end: Duration,
}

/// Why there is no answer of a worker.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum WorkerError {
    #[error("cannot start `{command}`: {reason}")]
    Start { command: String, reason: io::Error },
    #[error(transparent)]
    TooFewDescriptors(#[from] TooFewDescriptors),
    #[error("cannot write a configuration for `sidestep run`: {0}")]
    Configuration(io::Error),
    #[error(
        "cannot put a process into the control group {}: {reason}; it takes root", path.display()
    )]
    Cgroup { path: PathBuf, reason: io::Error },
    #[error("{worker}: {text}")]
    Failed { worker: String, text: String },
    #[error("{worker} ended ({status}){tail}")]
    Ended { worker: String, status: String, tail: String },
    #[error("{worker} did not {what} within {limit:?}{tail}")]
    TimedOut { worker: String, what: &'static str, limit: Duration, tail: String },
    #[error("{worker} cannot be understood: {reason}{tail}")]
    Unreadable { worker: String, reason: String, tail: String },
    #[error("{worker} was to {what} and said `{event}`")]
    OutOfTurn { worker: String, what: &'static str, event: String },
}

impl From<WorkerError> for io::Error {
    fn from(error: WorkerError) -> Self {
        Self::other(error)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            listen: Duration::from_secs(15),
            connect: Duration::from_secs(30),
            slack: Duration::from_secs(30),
            count: Duration::from_secs(15 * 60),
            sample: Duration::from_secs(15),
            end: Duration::from_secs(15),
        }
    }
}

impl Launcher {
    /// Workers are started by this `sidestep` executable.
    ///
    /// From now on a write to a pipe without a reader is an error of this process and
    /// not its end (SIGPIPE is ignored; not in workers): a worker that dies has to be
    /// reported.
    #[must_use]
    pub fn new(sidestep: PathBuf) -> Self {
        // SAFETY: no handler is installed, only a disposition.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        Self { sidestep, cgroup: None, confines: Confines::default(), limits: Limits::default() }
    }

    /// Workers for sockmap live in this control group (its directory), where the
    /// program that redirects is attached.
    #[must_use]
    pub fn with_cgroup(self, cgroup: PathBuf) -> Self {
        Self { cgroup: Some(cgroup), ..self }
    }

    /// Workers run where `confines` says.
    #[must_use]
    pub fn confined(self, confines: Confines) -> Self {
        Self { confines, ..self }
    }

    #[cfg(test)]
    fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// The executable of which workers and neighbours are made.
    #[must_use]
    pub fn sidestep(&self) -> &Path {
        &self.sidestep
    }

    /// How long workers may take.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Starts a worker for each job and tells it. The workers are killed when the thread
    /// that has called this ends.
    ///
    /// # Errors
    /// One cannot be started; none is left running.
    pub fn start(&self, transport: Transport, jobs: &[Job]) -> Result<Crew, WorkerError> {
        let allowed = descriptors::Allowed::now().map_err(|reason| self.not_started(reason))?;
        let who = || format!("`sidestep bench` with {} workers", jobs.len());
        if let Some(limit) = allowed.raised_for(descriptors::needed_for(jobs.len()), who)? {
            descriptors::set(limit).map_err(|reason| self.not_started(reason))?;
        }
        let (sender, events) = mpsc::channel();
        let mut crew = Crew { workers: Vec::new(), events, limits: self.limits };
        for job in jobs {
            let number = crew.workers.len();
            crew.workers.push(self.start_one(transport, job, number, sender.clone())?);
        }
        for (number, job) in jobs.iter().enumerate() {
            crew.send(number, job)?;
        }
        Ok(crew)
    }

    fn start_one(
        &self,
        transport: Transport,
        job: &Job,
        number: usize,
        events: Sender<(usize, Incoming)>,
    ) -> Result<Worker, WorkerError> {
        let (mut command, configuration) = self.command(transport, job)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.prepare(&mut command, transport, job)?;
        let mut child = command.spawn().map_err(|reason| self.not_started(reason))?;
        let role = match job.role {
            Role::Server(_) => "server",
            Role::Client(_) => "client",
        };
        let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors)) = streams else {
            unreachable!("all three are pipes");
        };
        let (tail, finished) = (Arc::default(), mpsc::channel());
        let mut worker = Worker {
            name: format!("{role} worker {number} (process {})", child.id()),
            child,
            input: Some(input),
            heard: VecDeque::new(),
            has_ended: false,
            tail: Arc::clone(&tail),
            tail_finished: finished.1,
            _configuration: configuration,
        };
        let reading = start_thread(move || read_events(output, number, &events))
            .and_then(|()| start_thread(move || keep_tail(errors, &tail, &finished.0)));
        match reading {
            Ok(()) => Ok(worker),
            Err(reason) => {
                worker.kill();
                Err(self.not_started(reason))
            }
        }
    }

    /// The words of the command line, and the file that must outlive its start.
    fn command(
        &self,
        transport: Transport,
        job: &Job,
    ) -> Result<(process::Command, Option<NamedTempFile>), WorkerError> {
        let mut command = process::Command::new(&self.sidestep);
        let mut configuration = None;
        if transport == Transport::Smc {
            command.arg("run");
            if let Some(len) = job.conduct.rmbe_len {
                let file = configuration_file(len).map_err(WorkerError::Configuration)?;
                command.arg("--config").arg(file.path());
                configuration = Some(file);
            }
            command.arg("--").arg(&self.sidestep);
        }
        command.args(WORKER_COMMAND);
        // `sidestep bench` may run under `sidestep run` itself: workers of a plain
        // transport must not, and the others decide anew.
        for variable in ["LD_PRELOAD", "SIDESTEP_OPTIONS"] {
            command.env_remove(variable);
        }
        Ok((command, configuration))
    }

    /// What the new process does to itself before it becomes a worker.
    fn prepare(
        &self,
        command: &mut process::Command,
        transport: Transport,
        job: &Job,
    ) -> Result<(), WorkerError> {
        let parent = process::id();
        let allowed = descriptors::Allowed::now().map_err(|reason| self.not_started(reason))?;
        let who = || format!("a worker with {} connections over {transport}", job.connections);
        let limit = allowed.raised_for(descriptors::needed_by(job, transport), who)?;
        let cgroup = match (&self.cgroup, transport) {
            (Some(path), Transport::Sockmap) => Some(open_cgroup(path)?),
            _ => None,
        };
        let enter = self.confines.entering()?;
        let in_child = move || {
            die_with(parent)?;
            limit.map_or(Ok(()), descriptors::set)?;
            cgroup.as_ref().map_or(Ok(()), enter_cgroup)?;
            enter()
        };
        // SAFETY: between fork and exec it makes system calls only.
        unsafe { command.pre_exec(in_child) };
        Ok(())
    }

    fn not_started(&self, reason: io::Error) -> WorkerError {
        let command = format!("{} {}", self.sidestep.display(), WORKER_COMMAND.join(" "));
        WorkerError::Start { command, reason }
    }
}

impl Confines {
    /// What a new process does to be there: system calls only, as befits the time between
    /// fork and exec.
    ///
    /// # Errors
    /// The group cannot be entered.
    pub(crate) fn entering(
        &self,
    ) -> Result<impl Fn() -> io::Result<()> + Send + Sync + 'static, WorkerError> {
        let group = self.cgroup.as_deref().map(open_cgroup).transpose()?;
        let cpus = self.cpus.clone();
        Ok(move || {
            group.as_ref().map_or(Ok(()), enter_cgroup)?;
            match cpus.numbers() {
                [] => Ok(()),
                cpus => affinity::pin_to(cpus),
            }
        })
    }
}

const WORKER_COMMAND: [&str; 2] = ["bench", "worker"];

/// A configuration that only sets the size of receive buffers.
fn configuration_file(rmbe_len: u32) -> io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix("sidestep-bench-").suffix(".toml").tempfile()?;
    writeln!(file, "[smc]\nrmbe_size = {rmbe_len}")?;
    Ok(file)
}

/// The kernel kills this process when the thread that has forked it ends.
pub(crate) fn die_with(parent: u32) -> io::Result<()> {
    // SAFETY: neither call takes memory.
    let (set, now) = unsafe {
        (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), libc::getppid().cast_unsigned())
    };
    match (set, now == parent) {
        (0, true) => Ok(()),
        // It had ended before it could matter.
        (0, false) => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn open_cgroup(path: &Path) -> Result<File, WorkerError> {
    let opened = OpenOptions::new().write(true).open(path.join("cgroup.procs"));
    opened.map_err(|reason| WorkerError::Cgroup { path: path.to_owned(), reason })
}

/// Moves this process into the group whose `cgroup.procs` this is.
fn enter_cgroup(procs: &File) -> io::Result<()> {
    let me = b"0";
    // SAFETY: one byte is read.
    match unsafe { libc::write(procs.as_raw_fd(), me.as_ptr().cast(), me.len()) } {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn start_thread(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().stack_size(THREAD_STACK_LEN).spawn(work).map(drop)
}

/// Readers of pipes need little; there are two for each worker.
const THREAD_STACK_LEN: usize = 128 << 10;

/// Workers that do the same at the same time. Dropped, they are killed.
#[derive(Debug)]
pub struct Crew {
    workers: Vec<Worker>,
    events: Receiver<(usize, Incoming)>,
    limits: Limits,
}

impl Crew {
    /// The numbers of their processes, in the order of their jobs.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.workers.iter().map(|worker| worker.child.id()).collect()
    }

    /// Tells all of them the same.
    ///
    /// # Errors
    /// One is gone.
    pub fn tell(&mut self, command: Command) -> Result<(), WorkerError> {
        (0..self.workers.len()).try_for_each(|number| self.send(number, &command))
    }

    /// The next event of each, in the order of their jobs; `pick` takes what is waited
    /// for out of it. `what` is a verb for error texts: what they are to do.
    ///
    /// # Errors
    /// One gives up, ends, says something else, or takes longer than `limit`: the
    /// error is that of the first.
    pub fn gather<T>(
        &mut self,
        what: &'static str,
        limit: Duration,
        pick: impl Fn(Event) -> Result<T, Event>,
    ) -> Result<Vec<T>, WorkerError> {
        let deadline = Instant::now() + limit;
        while let Some(silent) = self.workers.iter().position(|worker| worker.heard.is_empty()) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok((number, incoming)) => self.hear(number, incoming)?,
                Err(RecvTimeoutError::Timeout) => {
                    let worker = &mut self.workers[silent];
                    let (tail, worker) = (worker.tail(), worker.name.clone());
                    return Err(WorkerError::TimedOut { worker, what, limit, tail });
                }
                // Its end was heard before and was an error then.
                Err(RecvTimeoutError::Disconnected) => return Err(self.workers[silent].ended()),
            }
        }
        let next = |worker: &mut Worker| {
            let event = worker.heard.pop_front().unwrap_or_else(|| unreachable!("none is silent"));
            pick(event).map_err(|event| WorkerError::OutOfTurn {
                worker: worker.name.clone(),
                what,
                event: name_of(&event),
            })
        };
        self.workers.iter_mut().map(next).collect()
    }

    /// Lets them close their connections and end, and waits for it.
    ///
    /// # Errors
    /// One gives up, fails or does not end: the first error is returned, and none is
    /// left running.
    pub fn end(mut self) -> Result<(), WorkerError> {
        for worker in &mut self.workers {
            worker.input = None;
        }
        let deadline = Instant::now() + self.limits.end;
        while let Some(slow) = self.workers.iter().position(|worker| !worker.has_ended) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok((number, Incoming::End)) => self.workers[number].wait_for_success(deadline)?,
                Ok((number, incoming)) => self.hear(number, incoming)?,
                Err(RecvTimeoutError::Timeout) => {
                    let worker = &mut self.workers[slow];
                    let (tail, worker) = (worker.tail(), worker.name.clone());
                    let limit = self.limits.end;
                    return Err(WorkerError::TimedOut { worker, what: "end", limit, tail });
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.workers[slow].wait_for_success(deadline)?;
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, number: usize, message: &impl serde::Serialize) -> Result<(), WorkerError> {
        let worker = &mut self.workers[number];
        let Some(input) = &mut worker.input else { return Err(worker.ended()) };
        if lines::write(input, message).is_ok() {
            return Ok(());
        }
        // It may have said why it left.
        while let Ok((number, incoming)) = self.events.recv_timeout(LAST_WORDS_LIMIT) {
            self.hear(number, incoming)?;
        }
        Err(self.workers[number].ended())
    }

    /// Notes an event; whatever keeps the crew from going on is an error at once.
    fn hear(&mut self, number: usize, incoming: Incoming) -> Result<(), WorkerError> {
        let worker = &mut self.workers[number];
        match incoming {
            Incoming::Event(Event::Failed(text)) => {
                Err(WorkerError::Failed { worker: worker.name.clone(), text })
            }
            Incoming::Event(event) => {
                worker.heard.push_back(event);
                Ok(())
            }
            Incoming::Unreadable(error) => {
                let (reason, tail) = (error.to_string(), worker.tail());
                Err(WorkerError::Unreadable { worker: worker.name.clone(), reason, tail })
            }
            Incoming::End => Err(worker.ended()),
        }
    }
}

/// How long one that does not listen any more is given to say why.
const LAST_WORDS_LIMIT: Duration = Duration::from_millis(500);

fn name_of(event: &Event) -> String {
    match event {
        Event::Listening(_) => "listening",
        Event::Connected => "connected",
        Event::Warm => "warm",
        Event::Report(_) => "report",
        Event::Usage(_) => "usage",
        Event::Failed(text) => text,
    }
    .to_owned()
}

/// A worker's process.
#[derive(Debug)]
struct Worker {
    name: String,
    child: Child,
    /// Closed: it is to end.
    input: Option<ChildStdin>,
    /// Events that were not asked for yet.
    heard: VecDeque<Event>,
    has_ended: bool,
    /// The end of what it wrote to its standard error.
    tail: Arc<Mutex<Vec<u8>>>,
    tail_finished: Receiver<()>,
    /// `sidestep run` reads it while it starts.
    _configuration: Option<NamedTempFile>,
}

impl Worker {
    /// Kills it unless it has ended.
    fn kill(&mut self) -> Option<ExitStatus> {
        // An error says that it has ended.
        let _ = self.child.kill();
        self.has_ended = true;
        self.child.wait().ok()
    }

    /// It has closed its standard output: it ends, or never will.
    fn ended(&mut self) -> WorkerError {
        let status = self.wait_until(Instant::now() + LAST_WORDS_LIMIT);
        let status = match status.or_else(|| self.kill()) {
            Some(status) => status.to_string(),
            None => "it is not known how".to_owned(),
        };
        WorkerError::Ended { worker: self.name.clone(), status, tail: self.tail() }
    }

    fn wait_for_success(&mut self, deadline: Instant) -> Result<(), WorkerError> {
        match self.wait_until(deadline) {
            Some(status) if status.success() => {
                self.has_ended = true;
                Ok(())
            }
            _ => Err(self.ended()),
        }
    }

    fn wait_until(&mut self, deadline: Instant) -> Option<ExitStatus> {
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < deadline => thread::sleep(END_POLL),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }

    /// The last lines it wrote to its standard error, for the end of an error text.
    fn tail(&self) -> String {
        // If it has ended there is little left to be read; if not, this is what there is.
        let _ = self.tail_finished.recv_timeout(LAST_WORDS_LIMIT);
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        match String::from_utf8_lossy(&tail).trim() {
            "" => String::new(),
            text => format!(":\n{text}"),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How often a process that is ending is looked at.
const END_POLL: Duration = Duration::from_millis(2);

#[derive(Debug)]
enum Incoming {
    Event(Event),
    Unreadable(LineError),
    End,
}

fn read_events(output: ChildStdout, number: usize, events: &Sender<(usize, Incoming)>) {
    let mut output = BufReader::new(output);
    loop {
        let incoming = match lines::read(&mut output, EVENT_LEN_MAX) {
            Ok(Some(event)) => Incoming::Event(event),
            Ok(None) => Incoming::End,
            Err(error) => Incoming::Unreadable(error),
        };
        let is_last = !matches!(incoming, Incoming::Event(_));
        if events.send((number, incoming)).is_err() || is_last {
            return;
        }
    }
}

/// Longest event in bytes: a report with its histogram has some ten thousand, and one
/// number for each tenth of a second that was measured.
const EVENT_LEN_MAX: usize = 16 << 20;

fn keep_tail(mut errors: ChildStderr, tail: &Mutex<Vec<u8>>, finished: &Sender<()>) {
    let mut bytes = [0; 1024];
    while let Ok(len @ 1..) = errors.read(&mut bytes) {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(&bytes[..len]);
        let excess = tail.len().saturating_sub(TAIL_LEN);
        tail.drain(..excess);
    }
    // It is not waited for.
    let _ = finished.send(());
}

/// Bytes of a worker's standard error that are kept.
const TAIL_LEN: usize = 2048;

#[cfg(test)]
mod tests {
    use super::fake::{CLIENT, Fake, SERVER, client_of, job, server_at};
    use super::*;
    use crate::control::{Address, Usage};
    use std::ffi::OsStr;

    fn listening(event: Event) -> Result<Address, Event> {
        match event {
            Event::Listening(address) => Ok(address),
            other => Err(other),
        }
    }

    fn usage(event: Event) -> Result<Usage, Event> {
        match event {
            Event::Usage(usage) => Ok(usage),
            other => Err(other),
        }
    }

    /// One server that does as it is told, and what comes when it is to listen.
    fn listen(server: &str, limit: Duration) -> (Fake, Result<Vec<Address>, WorkerError>) {
        let fake = Fake::new(server, "");
        let launcher = fake.launcher_with_limits(limit);
        let listening = launcher
            .start(Transport::Tcp, &[server_at("127.0.0.1:0")])
            .and_then(|mut crew| crew.gather("listen", limit, listening));
        (fake, listening)
    }

    fn error_of(server: &str) -> WorkerError {
        let (fake, listening) = listen(server, LONG);
        fake.wait_until_gone(1);
        listening.unwrap_err()
    }

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn workers_get_their_jobs_and_answer_in_their_order() {
        let fake = Fake::new(SERVER, "");
        let jobs = ["127.0.0.1:0", "127.0.0.2:0", "127.0.0.3:0"].map(server_at);
        let mut crew = fake.launcher().start(Transport::Tcp, &jobs).unwrap();
        let addresses = crew.gather("listen", LONG, listening).unwrap();
        let expected = ["127.0.0.1:4711", "127.0.0.2:4711", "127.0.0.3:4711"];
        assert_eq!(addresses, expected.map(|at| Address::Tcp(at.parse().unwrap())));
        for used in [100, 200] {
            crew.tell(Command::Sample).unwrap();
            let usages = crew.gather("say what it has used", LONG, usage).unwrap();
            assert_eq!(usages.iter().map(|usage| usage.user_us).collect::<Vec<_>>(), [used; 3]);
        }
        let mut pids = crew.pids();
        crew.end().unwrap();
        pids.sort_by_key(u32::to_string);
        assert_eq!(fake.lines("processes"), pids.iter().map(u32::to_string).collect::<Vec<_>>());
        assert_eq!(fake.lines("command-lines"), ["bench worker"; 3]);
        assert_eq!(fake.jobs(), jobs);
        fake.wait_until_gone(3);
    }

    #[test]
    fn an_event_that_comes_early_is_kept() {
        let fake = Fake::new(SERVER, CLIENT);
        let jobs = [client_of("127.0.0.1:1"), client_of("127.0.0.1:2")];
        let mut crew = fake.launcher().start(Transport::Unix, &jobs).unwrap();
        let connected = |event| if event == Event::Connected { Ok(()) } else { Err(event) };
        crew.gather("connect", LONG, connected).unwrap();
        crew.tell(Command::Go { at_ns: 0 }).unwrap();
        // Each says `warm` and at once `report`.
        let warm = |event| if event == Event::Warm { Ok(()) } else { Err(event) };
        crew.gather("become warm", LONG, warm).unwrap();
        let report = |event| match event {
            Event::Report(report) => Ok(report.transactions),
            other => Err(other),
        };
        assert_eq!(crew.gather("report", LONG, report).unwrap(), [7, 7]);
        crew.end().unwrap();
    }

    #[test]
    fn for_smc_workers_run_under_sidestep() {
        let fake = Fake::new(SERVER, "");
        let mut with_buffer = server_at("127.0.0.1:0");
        with_buffer.conduct.rmbe_len = Some(262_144);
        let jobs = [server_at("127.0.0.1:0"), with_buffer];
        let mut crew = fake.launcher().start(Transport::Smc, &jobs).unwrap();
        crew.gather("listen", LONG, listening).unwrap();
        crew.end().unwrap();
        assert_eq!(fake.lines("configurations"), ["[smc]", "rmbe_size = 262144"]);
        let lines = fake.lines("command-lines");
        let worker = format!("-- {} bench worker", fake.path().display());
        assert_eq!(lines[..2], ["bench worker"; 2]);
        let (configured, plain): (Vec<_>, Vec<_>) =
            lines[2..].iter().partition(|line| line.starts_with("run --config /"));
        assert_eq!(plain, [&format!("run {worker}")]);
        assert!(configured[0].ends_with(&worker), "{configured:?}");
        let file = configured[0].split(' ').nth(2).unwrap();
        assert!(!Path::new(file).exists(), "it goes with the worker");
    }

    #[test]
    fn workers_do_not_inherit_a_preload() {
        let launcher = Launcher::new("/x/sidestep".into());
        for transport in [Transport::Tcp, Transport::Unix, Transport::Sockmap, Transport::Smc] {
            let (command, _) = launcher.command(transport, &server_at("[::]:0")).unwrap();
            let removed: Vec<_> = command.get_envs().collect();
            let expected = ["LD_PRELOAD", "SIDESTEP_OPTIONS"].map(|name| (OsStr::new(name), None));
            assert_eq!(removed, expected, "{transport}");
        }
    }

    #[test]
    fn who_gives_up_says_why() {
        let error = error_of(r#"echo '{"failed":"no port is free"}'; exit 1"#);
        let WorkerError::Failed { worker, text } = &error else { panic!("{error}") };
        assert_eq!(text, "no port is free");
        assert!(worker.starts_with("server worker 0 (process "), "{worker}");
    }

    #[test]
    fn who_dies_leaves_status_and_last_words() {
        let error = error_of("echo 'panicked: oh' >&2; exit 3").to_string();
        assert!(error.ends_with(" ended (exit status: 3):\npanicked: oh"), "{error}");
        let error = error_of("kill -KILL $$").to_string();
        assert!(error.ends_with(" ended (signal: 9 (SIGKILL))"), "{error}");
        // Of a long speech the end.
        let error = error_of("seq 100000 >&2; exit 3").to_string();
        assert!(error.ends_with("\n99999\n100000"), "{error}");
        assert!(error.len() < TAIL_LEN + 100, "{error}");
    }

    #[test]
    fn who_closes_its_output_and_stays_is_killed() {
        let error = error_of("exec >&- ; exec sleep 600").to_string();
        assert!(error.ends_with(" ended (signal: 9 (SIGKILL))"), "{error}");
    }

    #[test]
    fn who_cannot_be_understood_is_shown() {
        let error = error_of("echo listening; exec sleep 600").to_string();
        assert!(error.contains(" cannot be understood: the line `listening`: "), "{error}");
        let error = error_of("echo '\"warm\"'; exec sleep 600").to_string();
        assert!(error.ends_with(" was to listen and said `warm`"), "{error}");
    }

    #[test]
    fn who_is_silent_is_not_waited_for_for_ever() {
        let (fake, listening) = listen("echo thinking >&2; exec sleep 600", SHORT);
        let error = listening.unwrap_err();
        assert!(matches!(error, WorkerError::TimedOut { what: "listen", limit: SHORT, .. }));
        assert!(error.to_string().contains(" did not listen within 30ms"), "{error}");
        // It may have been killed before it had begun.
        fake.wait_until_gone(fake.lines("processes").len());
    }

    #[test]
    fn who_does_not_end_is_killed() {
        let fake = Fake::new("echo '\"connected\"'; exec sleep 600", "");
        let jobs = [server_at("127.0.0.1:0")];
        let mut crew = fake.launcher_with_limits(SHORT).start(Transport::Tcp, &jobs).unwrap();
        crew.gather("connect", LONG, |_| Ok(())).unwrap();
        let error = crew.end().unwrap_err();
        assert!(matches!(error, WorkerError::TimedOut { what: "end", .. }), "{error}");
        fake.wait_until_gone(1);
    }

    #[test]
    fn who_ends_badly_is_reported() {
        let fake = Fake::new("echo '\"connected\"'; read -r command; exit 4", "");
        let jobs = [server_at("127.0.0.1:0")];
        let mut crew = fake.launcher().start(Transport::Tcp, &jobs).unwrap();
        crew.gather("connect", LONG, |_| Ok(())).unwrap();
        let error = crew.end().unwrap_err().to_string();
        assert!(error.ends_with(" ended (exit status: 4)"), "{error}");
    }

    #[test]
    fn who_is_gone_cannot_be_told_anything() {
        let fake = Fake::new("echo '\"connected\"'; echo '{\"failed\":\"enough\"}'", "");
        let jobs = [server_at("127.0.0.1:0")];
        let mut crew = fake.launcher().start(Transport::Tcp, &jobs).unwrap();
        wait_for_zombie(crew.pids()[0]);
        // The pipe has no reader any more.
        let error = crew.tell(Command::Sample).unwrap_err();
        assert!(matches!(&error, WorkerError::Failed { text, .. } if text == "enough"), "{error}");
    }

    /// It has ended, and how was not asked.
    fn wait_for_zombie(pid: u32) {
        let is_zombie = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit(')').next().unwrap().starts_with(" Z")
        };
        let deadline = Instant::now() + LONG;
        while !is_zombie() {
            assert!(Instant::now() < deadline);
            thread::sleep(END_POLL);
        }
    }

    #[test]
    fn the_first_to_fail_fails_all() {
        let fake =
            Fake::new("exec sleep 600", r#"echo '{"failed":"connection refused"}'; sleep 600"#);
        let jobs = [server_at("127.0.0.1:0"), client_of("127.0.0.1:1")];
        let mut crew = fake.launcher().start(Transport::Tcp, &jobs).unwrap();
        let error = crew.gather("connect", LONG, |_| Ok(())).unwrap_err();
        let WorkerError::Failed { worker, text } = &error else { panic!("{error}") };
        assert!(worker.starts_with("client worker 1 "), "{worker}");
        assert_eq!(text, "connection refused");
        drop(crew);
        fake.wait_until_gone(fake.lines("processes").len());
    }

    #[test]
    fn workers_end_with_the_thread_that_has_started_them() {
        let fake = Fake::new("echo '\"connected\"'; exec sleep 600", "");
        let launcher = fake.launcher();
        let started = thread::spawn(move || {
            let mut crew = launcher.start(Transport::Tcp, &[server_at("127.0.0.1:0")]).unwrap();
            crew.gather("connect", LONG, |_| Ok(())).unwrap();
            crew
        });
        let mut crew = started.join().unwrap();
        let error = crew.gather("live", LONG, |_| Ok(())).unwrap_err().to_string();
        assert!(error.ends_with(" ended (signal: 9 (SIGKILL))"), "{error}");
    }

    #[test]
    fn what_cannot_be_started_is_named() {
        let launcher = Launcher::new("/nowhere/sidestep".into());
        let error = launcher.start(Transport::Tcp, &[server_at("[::]:0")]).unwrap_err().to_string();
        assert!(error.starts_with("cannot start `/nowhere/sidestep bench worker`: "), "{error}");
    }

    #[test]
    fn too_many_connections_are_refused_before_anything_starts() {
        let fake = Fake::new(SERVER, CLIENT);
        let many = Job { connections: u32::MAX, ..job(Role::Client(Address::Unix("x".into()))) };
        let started = fake.launcher().start(Transport::Unix, &[many]);
        let error = started.unwrap_err().to_string();
        let start = "a worker with 4294967295 connections over unix needs 4294967359 open files";
        assert!(error.starts_with(start), "{error}");
        assert_eq!(fake.lines("processes"), [""; 0]);
    }

    #[test]
    fn a_control_group_is_for_sockmap_alone() {
        let fake = Fake::new(SERVER, "");
        let launcher = fake.launcher().with_cgroup("/nowhere".into());
        let jobs = [server_at("127.0.0.1:0")];
        let error = launcher.start(Transport::Sockmap, &jobs).unwrap_err().to_string();
        assert!(error.contains("control group /nowhere: No such file"), "{error}");
        launcher.start(Transport::Tcp, &jobs).unwrap().end().unwrap();
    }

    #[test]
    fn a_worker_enters_its_control_group() {
        // Not a real one: what counts is what it writes.
        let group = tempfile::tempdir().unwrap();
        std::fs::write(group.path().join("cgroup.procs"), "").unwrap();
        let fake = Fake::new(SERVER, "");
        let launcher = fake.launcher().with_cgroup(group.path().to_owned());
        let mut crew = launcher.start(Transport::Sockmap, &[server_at("127.0.0.1:0")]).unwrap();
        crew.gather("listen", LONG, listening).unwrap();
        assert_eq!(std::fs::read(group.path().join("cgroup.procs")).unwrap(), b"0");
        crew.end().unwrap();
    }
}
