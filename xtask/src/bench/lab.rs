//! What the workloads share: how programs are started and for how long, where
//! their files lie, and what they cost.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::hosts::Grounds;
use super::launch::{self, Launcher, Program, Transport};
use super::namespaces::Networks;
use super::place;
use crate::user;

/// How long one run may take beyond the time it measures.
pub(super) const RUN_PATIENCE: Duration = Duration::from_secs(60);

/// One for all workloads of a run.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(super) launcher: Launcher,
    /// How long one run measures.
    pub(super) seconds: f64,
    /// For logs, data and compiled programs.
    pub(super) scratch: PathBuf,
    /// Remarks for below the table.
    pub(super) notes: RefCell<BTreeSet<String>>,
    /// Requests per second seen last, by transport and clients: redis-benchmark
    /// wants a number of requests, not a time.
    pub(super) redis_rates: RefCell<HashMap<(bool, u32), f64>>,
    pub(super) networks: Networks,
    pub(super) hosts: Grounds,
    /// Programs that compute beside the measured ones.
    loops: RefCell<Vec<Program>>,
}

/// Why a workload cannot be run here: no fault of a program, so it is skipped.
#[derive(Debug)]
pub(super) struct Lacking;

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what it takes cannot be had here")
    }
}

/// What a client said, and what it cost to all programs together.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) said: String,
    pub(super) cpu_s: f64,
}

/// What a load generator found out.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) requests_per_s: f64,
    /// Of all programs together.
    pub(super) cpu_us_per_request: f64,
}

impl From<Load> for Vec<f64> {
    fn from(load: Load) -> Self {
        vec![load.requests_per_s, load.cpu_us_per_request]
    }
}

/// How connections go.
#[derive(Debug)]
pub(super) struct Connections {
    /// By SMC-D.
    pub(super) moved: usize,
    all: usize,
    /// Why the others are on TCP.
    reasons: BTreeSet<String>,
}

impl fmt::Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} connections were SMC-D", self.moved, self.all)?;
        self.reasons.iter().try_for_each(|reason| write!(f, "; on TCP: {reason}"))
    }
}

impl Lab {
    pub(super) fn new(launcher: Launcher, seconds: f64, scratch: PathBuf) -> Self {
        let (notes, redis_rates) = (RefCell::default(), RefCell::default());
        let (networks, hosts) = (Networks::default(), Grounds::default());
        let loops = RefCell::default();
        Self { launcher, seconds, scratch, notes, redis_rates, networks, hosts, loops }
    }

    /// Sees to it that exactly so many endless loops compute beside what runs from now on.
    pub(super) fn surround(&self, count: usize) -> Result<()> {
        let mut loops = self.loops.borrow_mut();
        loops.clear();
        for _ in 0..count {
            loops.push(Program::endless_loop(&self.scratch)?);
        }
        Ok(())
    }

    /// Lets the endless loops rest while `prepare` does what is not measured and takes seconds of CPU time.
    pub(super) fn in_peace<T>(&self, prepare: impl FnOnce() -> Result<T>) -> Result<T> {
        self.signal_loops(libc::SIGSTOP)?;
        let prepared = prepare();
        self.signal_loops(libc::SIGCONT)?;
        prepared
    }

    fn signal_loops(&self, number: libc::c_int) -> Result<()> {
        self.loops.borrow().iter().try_for_each(|it| launch::signal(it.pid(), number))
    }

    /// Starts a server and waits until it listens.
    pub(super) fn serve(&self, port: u16, command: Command) -> Result<Program> {
        let mut program = Program::start(command, &self.scratch)?;
        program.await_listener(port)?;
        Ok(program)
    }

    /// Runs a client to its end and returns what it said.
    pub(super) fn run(&self, transport: Transport, words: &[&str]) -> Result<String> {
        launch::run(self.command(transport, words)?, self.patience())
    }

    /// Runs a client to its end, with the CPU time that it and `servers` took
    /// meanwhile.
    pub(super) fn run_counted(&self, client: Command, servers: &[&Program]) -> Result<Counted> {
        let cpu_s = || -> Result<f64> {
            let servers: f64 = servers.iter().map(|it| launch::cpu_s(&it.family())).sum();
            Ok(servers + ended_children_cpu_s()?)
        };
        let before_s = cpu_s()?;
        let said = launch::run(client, self.patience())?;
        Ok(Counted { said, cpu_s: cpu_s()? - before_s })
    }

    pub(super) fn command(&self, transport: Transport, words: &[&str]) -> Result<Command> {
        let (program, args) = words.split_first().context("an empty command")?;
        Ok(self.launcher.launch(transport, program, args))
    }

    /// How long one run measures.
    pub(super) fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// How long a client may take.
    pub(super) fn patience(&self) -> Duration {
        RUN_PATIENCE + self.duration()
    }

    /// For programs that count whole seconds.
    pub(super) fn whole_seconds(&self) -> String {
        self.seconds.ceil().to_string()
    }

    /// One of our own programs, compiled when the bench began.
    pub(super) fn own(&self, name: &str) -> String {
        self.path(name)
    }

    /// A file or folder below the scratch folder, as a word of a command.
    pub(super) fn path(&self, name: &str) -> String {
        self.scratch.join(name).display().to_string()
    }

    /// Writes a file there and returns its path.
    pub(super) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<String> {
        let file = self.scratch.join(name);
        let dir = file.parent().context("a file lies in a folder")?;
        fs::create_dir_all(dir)?;
        fs::write(&file, content).with_context(|| format!("writing {}", file.display()))?;
        Ok(self.path(name))
    }

    /// A source file of `bench/` that needs no compiling before.
    pub(super) fn source(&self, name: &str) -> Result<String> {
        Ok(place::repo_root()?.join("bench").join(name).display().to_string())
    }

    /// Notes how many connections of a client go through shared memory, and why the others do not:
    /// those that stayed on TCP would make a row that says nothing.
    pub(super) fn note_connections(&self, what: &str, pid: u32) -> Result<()> {
        if let Some(connections) = self.connections_of(&[pid])? {
            self.note(format!("{what}: {connections}"));
        }
        Ok(())
    }

    /// How the connections of some processes go, by `sidestep ss`; `None` where nothing runs under Sidestep.
    ///
    /// **Errors**: `sidestep ss` fails, or prints no table.
    pub(super) fn connections_of(&self, pids: &[u32]) -> Result<Option<Connections>> {
        let Some(sidestep) = self.launcher.observer() else {
            return Ok(None);
        };
        let mut command = Command::new(sidestep);
        command.args(["ss", "--json"]);
        let table: Value = serde_json::from_str(&launch::run(command, RUN_PATIENCE)?)?;
        let Some(rows) = table.as_array() else { bail!("`sidestep ss --json` printed no array") };
        let is_ours = |row: &&Value| pids.iter().any(|pid| row["pid"] == *pid);
        let ours: Vec<&Value> = rows.iter().filter(is_ours).collect();
        let (moved, stayed): (Vec<_>, Vec<_>) = ours.iter().partition(|row| row["mode"] == "SMC-D");
        let reason =
            |row: &&Value| row["reason"]["text"].as_str().unwrap_or("undecided").to_owned();
        let reasons = stayed.into_iter().map(reason).collect();
        Ok(Some(Connections { moved: moved.len(), all: ours.len(), reasons }))
    }

    pub(super) fn note(&self, text: String) {
        self.notes.borrow_mut().insert(text);
    }
}

/// CPU time of all children that have ended and been waited for, in seconds.
fn ended_children_cpu_s() -> Result<f64> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to room for one `rusage`.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    ensure!(failed == 0, "getrusage: {}", std::io::Error::last_os_error());
    // SAFETY: all zeros are a valid `rusage`, and getrusage() has filled it in.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(seconds(usage.ru_utime) + seconds(usage.ru_stime))
}

/// Makes a folder that belongs to the user of [`given_to_nobody`].
pub(super) fn folder_of_nobody(dir: &str) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("creating {dir}"))?;
    let nobody = user::unless_root();
    chown(dir, nobody, nobody)?;
    Ok(())
}

/// For programs that refuse to run as root.
pub(super) fn given_to_nobody(mut command: Command) -> Command {
    if let Some(nobody) = user::unless_root() {
        command.uid(nobody).gid(nobody);
    }
    command
}
