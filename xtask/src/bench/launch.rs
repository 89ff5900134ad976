//! Starting programs, plain or under Sidestep, and ending them for certain.
//!
//! Whatever is started here is held by a [`Program`], which ends it and its
//! descendants, by their ids, when it is dropped. Should this process itself
//! be killed, the kernel tells the children (`PR_SET_PDEATHSIG`).

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::place;
use crate::suite::HANG;

/// How often the state of a process or a port is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Lines of a failed program's output worth showing.
const TAIL_LINES: usize = 15;

/// Ports for servers start here: below the ephemeral range, where no
/// outgoing connection can be in the way.
const FIRST_PORT: u16 = 20_000;

/// One past the last port for servers.
const PORTS_END: u16 = 32_000;

/// How the bytes of a program are meant to travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// The program as it is.
    Tcp,
    /// The program under Sidestep.
    Smc,
}

/// How programs come under Sidestep.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct LaunchOptions {
    /// The `sidestep` command [default: the release build]
    #[arg(long, value_name = "FILE")]
    sidestep: Option<PathBuf>,

    /// Preload this library directly, without the `sidestep` command
    #[arg(long, value_name = "FILE", conflicts_with = "plain")]
    library: Option<PathBuf>,

    /// Start everything plain: tests the tests, or shows the meter's error
    #[arg(long)]
    plain: bool,
}

impl LaunchOptions {
    /// Whether they name nothing else than the release build.
    pub(crate) fn needs_build(&self) -> bool {
        self.sidestep.is_none() && self.library.is_none() && !self.plain
    }
}

/// Builds the commands of both transports.
#[derive(Debug)]
pub(crate) struct Launcher {
    smc: SmcStart,
    /// Connections move from their first bytes, however short they are.
    is_eager: bool,
    /// The `sidestep` command, when there is one.
    sidestep: Option<PathBuf>,
    /// The `sidestep` command of another build, which has the place of TCP.
    against: Option<PathBuf>,
}

#[derive(Debug)]
enum SmcStart {
    Command(PathBuf),
    Library(PathBuf),
    Plain,
}

impl Launcher {
    /// A launcher for the build in `repo`, unless the options name another.
    ///
    /// **Errors**: what is to be preloaded does not exist.
    pub(crate) fn new(options: &LaunchOptions, repo: &Path) -> Result<Self> {
        let built = place::build_dir(repo);
        if options.needs_build() {
            existing(&built.join("libsidestep.so"))?;
        }
        let sidestep = options.sidestep.clone().unwrap_or_else(|| built.join("sidestep"));
        let smc = match &options.library {
            _ if options.plain => SmcStart::Plain,
            Some(library) => SmcStart::Library(existing(library)?),
            None => SmcStart::Command(existing(&sidestep)?),
        };
        let sidestep = sidestep.is_file().then_some(sidestep);
        Ok(Self { smc, is_eager: false, sidestep, against: None })
    }

    /// The same, for tests: moves whatever can be moved.
    pub(crate) fn eager(self) -> Self {
        Self { is_eager: true, ..self }
    }

    /// The same, with another build in the place of TCP: its `sidestep` command.
    ///
    /// **Errors**: it does not exist.
    pub(crate) fn against_build(self, sidestep: &Path) -> Result<Self> {
        Ok(Self { against: Some(existing(sidestep)?), ..self })
    }

    /// The command that starts `program` over `transport`.
    pub(crate) fn launch<S: AsRef<OsStr>>(
        &self,
        transport: Transport,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = match (&self.smc, transport) {
            (SmcStart::Command(sidestep), Transport::Smc) => self.under(sidestep, program),
            (SmcStart::Library(library), Transport::Smc) => {
                let mut command = Command::new(program);
                command.env("LD_PRELOAD", library);
                if self.is_eager {
                    command.env("SIDESTEP_OPTIONS", "promotion=early");
                }
                command
            }
            (_, Transport::Tcp) => match &self.against {
                Some(other) => self.under(other, program),
                None => Command::new(program),
            },
            (SmcStart::Plain, Transport::Smc) => Command::new(program),
        };
        command.args(args);
        command
    }

    fn under(&self, sidestep: &Path, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(sidestep);
        command.arg("run");
        if self.is_eager {
            command.args(["--promotion", "early"]);
        }
        command.arg("--").arg(program);
        command
    }

    /// Whether nothing at all runs under Sidestep.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.smc, SmcStart::Plain)
    }

    /// What the two transports are in this run.
    pub(crate) fn sides(&self) -> [&'static str; 2] {
        if self.against.is_some() { ["other build", "this build"] } else { ["TCP", "SMC"] }
    }

    /// The `sidestep` command of the build that has the place of TCP, if one has.
    pub(crate) fn against(&self) -> Option<&Path> {
        self.against.as_deref()
    }

    /// The `sidestep` command for looking at connections, when programs do
    /// run under Sidestep and it is there.
    pub(crate) fn observer(&self) -> Option<&Path> {
        self.sidestep.as_deref().filter(|_| !self.is_plain())
    }
}

fn existing(file: &Path) -> Result<PathBuf> {
    fs::canonicalize(file).with_context(|| {
        format!("{}: build it with `cargo build --release` or name another", file.display())
    })
}

/// A running program and its descendants, ended when dropped.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    child: Child,
    log: Option<PathBuf>,
}

impl Program {
    /// Starts a server whose output goes to a file in `log_dir`, shown when
    /// something fails.
    pub(crate) fn start(mut command: Command, log_dir: &Path) -> Result<Self> {
        let log = log_dir.join(format!("{}.log", name_of(&command)));
        let file = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let mut program = Self::spawn(command)?;
        program.log = Some(log);
        Ok(program)
    }

    /// Starts a program that computes, for ever.
    pub(crate) fn endless_loop(log_dir: &Path) -> Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        Self::start(command, log_dir)
    }

    fn spawn(mut command: Command) -> Result<Self> {
        let name = name_of(&command);
        end_with_parent(&mut command);
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        Ok(Self { name, child, log: None })
    }

    /// The id of the program's first process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The ids of the program's processes: the first and all below it.
    pub(crate) fn family(&self) -> Vec<u32> {
        family_of(self.pid())
    }

    /// Waits until somebody listens on `port`, without connecting: a server
    /// that expects one client would take the probe for it.
    ///
    /// **Errors**: the program ended, or took too long.
    pub(crate) fn await_listener(&mut self, port: u16) -> Result<()> {
        let deadline = Instant::now() + HANG;
        while !listens(self.pid(), port) {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended before it listened ({status}){}", self.name, self.tail());
            }
            if Instant::now() > deadline {
                bail!("{} does not listen on port {port}{}", self.name, self.tail());
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Whether the program has ended.
    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// **Errors**: the program, a server, is no longer running.
    pub(crate) fn must_be_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended by itself ({status}){}", self.name, self.tail()),
            None => Ok(()),
        }
    }

    fn await_end(&mut self, deadline: Instant) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{} has not ended in time", self.name);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// What a program started with [`Program::start`] has printed so far.
    pub(crate) fn printed(&self) -> String {
        let text = self.log.as_ref().and_then(|log| fs::read(log).ok()).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The end of what the program printed, as a part of an error text.
    fn tail(&self) -> String {
        last_lines(&self.printed())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Once it was waited for, its id may belong to somebody else.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // Collected first: once the parent is gone nothing leads to them. The
        // parent goes first, or it would start new ones.
        for pid in self.family() {
            let _ = signal(pid, libc::SIGKILL);
        }
        // Fails only when the child was waited for already.
        let _ = self.child.wait();
    }
}

/// Runs a command to its end and returns what it printed to its standard
/// output.
///
/// **Errors**: it does not start, fails, or has not ended after `patience`.
pub(crate) fn run(command: Command, patience: Duration) -> Result<String> {
    let mut dialogue = Dialogue::start(command)?;
    dialogue.hang_up();
    dialogue.finish(patience)
}

/// A program whose output is read line by line while it runs, and whose
/// standard input stays open until [`Dialogue::hang_up`].
#[derive(Debug)]
pub(crate) struct Dialogue {
    program: Program,
    lines: Receiver<String>,
    errors: Receiver<String>,
    said: String,
}

impl Dialogue {
    /// Starts the program.
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut program = Program::spawn(command)?;
        let lines = lines_of(program.child.stdout.take());
        let errors = lines_of(program.child.stderr.take());
        Ok(Self { program, lines, errors, said: String::new() })
    }

    /// Starts a program that reports on its standard error: that and its standard output are one.
    pub(crate) fn start_merged(mut command: Command) -> Result<Self> {
        let (reader, writer) = io::pipe()?;
        command.stdin(Stdio::piped()).stdout(writer.try_clone()?).stderr(writer);
        // Takes the command, and with it our ends for writing.
        let program = Program::spawn(command)?;
        let errors = lines_of(None::<io::Empty>);
        Ok(Self { program, lines: lines_of(Some(reader)), errors, said: String::new() })
    }

    /// The program behind the dialogue.
    pub(crate) fn program(&mut self) -> &mut Program {
        &mut self.program
    }

    /// Waits for a line that begins with `word` and returns it; what comes
    /// before is kept for [`Dialogue::finish`].
    ///
    /// **Errors**: the program ended or said nothing such for `patience`.
    pub(crate) fn await_line(&mut self, word: &str, patience: Duration) -> Result<String> {
        let deadline = Instant::now() + patience;
        loop {
            match self.lines.recv_timeout(left_until(deadline)) {
                Ok(line) if line.starts_with(word) => return Ok(line),
                Ok(line) => self.note(&line),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{} did not say '{word}' within {patience:?}{}", self.name(), self.tail())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("{} ended before it said '{word}'{}", self.name(), self.tail())
                }
            }
        }
    }

    /// What it has said so far beside what was awaited, as far as that was waited for.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }

    /// Writes a line to the program's standard input.
    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        let input = self.program.child.stdin.as_mut().context("its standard input is closed")?;
        Ok(writeln!(input, "{line}")?)
    }

    /// Closes the program's standard input: the agreed sign to come to an end.
    pub(crate) fn hang_up(&mut self) {
        drop(self.program.child.stdin.take());
    }

    /// Waits for the program's end and returns everything it printed to its
    /// standard output, except the lines that were awaited.
    ///
    /// **Errors**: it failed, or has not ended after `patience`.
    pub(crate) fn finish(mut self, patience: Duration) -> Result<String> {
        self.hang_up();
        let deadline = Instant::now() + patience;
        loop {
            match self.lines.recv_timeout(left_until(deadline)) {
                Ok(line) => self.note(&line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{} has not ended within {patience:?}{}", self.name(), self.tail())
                }
            }
        }
        let status = self.program.await_end(deadline)?;
        if !status.success() {
            bail!("{} failed ({status}){}", self.name(), self.tail());
        }
        Ok(self.said)
    }

    fn name(&self) -> &str {
        &self.program.name
    }

    fn note(&mut self, line: &str) {
        self.said.push_str(line);
        self.said.push('\n');
    }

    fn tail(&self) -> String {
        let errors: Vec<String> = self.errors.try_iter().collect();
        last_lines(&format!("{}{}", self.said, errors.join("\n")))
    }
}

/// Reads lines on a thread of its own, so that they can be awaited with a
/// time limit.
fn lines_of(source: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    if let Some(source) = source {
        thread::spawn(move || {
            let mut lines = BufReader::new(source).lines().map_while(Result::ok);
            // Ends with the source, or when nobody listens any more.
            lines.all(|line| sender.send(line).is_ok())
        });
    }
    receiver
}

fn left_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

fn last_lines(text: &str) -> String {
    let mut tail: VecDeque<&str> = VecDeque::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(line);
    }
    tail.iter().map(|line| format!("\n      | {line}")).collect()
}

/// What runs in the end: under `sidestep run … -- PROGRAM` and `taskset -c N PROGRAM` that is among the arguments.
fn name_of(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words: Vec<&str> = words.filter_map(|word| Path::new(word).file_name()?.to_str()).collect();
    let mut rest = &words[..];
    while let [word, behind @ ..] = rest {
        rest = match *word {
            // What its options say is no name.
            "sidestep" => {
                let options = behind.iter().position(|word| *word == "--");
                &behind[options.map_or(0, |count| count + 1)..]
            }
            "taskset" | "-c" => behind,
            word if is_number(word) => behind,
            word => return word.to_owned(),
        };
    }
    "program".to_owned()
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Asks the kernel to end the program when this process dies.
fn end_with_parent(command: &mut Command) {
    let end_with_parent = || {
        // SAFETY: prctl(PR_SET_PDEATHSIG) takes its arguments by value.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) };
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes one system call,
    // which is async-signal-safe, and allocates nothing.
    unsafe { command.pre_exec(end_with_parent) };
}

/// Lets a program begin in the control group whose `cgroup.procs` is open for writing.
pub(crate) fn enclose(command: &mut Command, entrance: &File) {
    const ITSELF: &[u8] = b"0";
    let entrance = entrance.as_raw_fd();
    let enter = move || {
        // SAFETY: the buffer is a constant, the file is open as long as the group.
        let written = unsafe { libc::write(entrance, ITSELF.as_ptr().cast(), ITSELF.len()) };
        if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec the closure makes one system call.
    unsafe { command.pre_exec(enter) };
}

/// Sends a signal to a program that we have started, and not yet waited for, or to a process
/// below it.
pub(crate) fn signal(pid: u32, number: libc::c_int) -> Result<()> {
    let pid = libc::pid_t::try_from(pid).context("the id of a process")?;
    // SAFETY: kill() takes its arguments by value.
    match unsafe { libc::kill(pid, number) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).context("kill"),
    }
}

/// A port below the ephemeral range on which nobody listens on 127.0.0.1. Each process
/// begins elsewhere, so that two that run at once do not find the same.
pub(crate) fn free_port() -> Result<u16> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(PORTS_END - FIRST_PORT);
    let start = std::process::id().wrapping_mul(PORTS_APART) % count;
    (0..count)
        .map(|_| start + GIVEN.fetch_add(1, Ordering::Relaxed))
        .map(|nth| FIRST_PORT + (nth % count) as u16)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .context("no free port")
}

/// How far from each other processes with neighbouring numbers begin.
const PORTS_APART: u32 = 101;

/// Whether somebody listens in the network namespace of a process.
fn listens(pid: u32, port: u16) -> bool {
    ["tcp", "tcp6"].map(|table| format!("/proc/{pid}/net/{table}")).iter().any(|table| {
        let Ok(file) = File::open(table) else {
            return false;
        };
        let rows = BufReader::new(file).lines().skip(1).map_while(Result::ok);
        // Listeners come first; behind them may be many thousand connections.
        rows.map_while(|row| listening_port(&row)).any(|listening| listening == port)
    })
}

/// The local port of a row of `/proc/net/tcp` if it is a listener.
fn listening_port(row: &str) -> Option<u16> {
    const LISTEN: &str = "0A";
    let mut fields = row.split_whitespace().skip(1);
    let (_, port) = fields.next()?.rsplit_once(':')?;
    (fields.nth(1)? == LISTEN).then(|| u16::from_str_radix(port, 16).ok())?
}

/// A process and all its descendants, parents before children.
pub(crate) fn family_of(root: u32) -> Vec<u32> {
    let processes: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat_field(pid, PARENT_FIELD)?.try_into().ok()?)))
        .collect();
    let mut family = vec![root];
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        family.extend(processes.iter().filter(|(_, its)| *its == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    family
}

/// Places in `/proc/PID/stat` behind the program's name (proc(5): 4, and 14 to 17).
const PARENT_FIELD: usize = 1;
const CPU_FIELDS: [usize; 4] = [11, 12, 13, 14];

fn stat_field(pid: u32, index: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold blanks and parentheses; it ends with the last one.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(index)?.parse().ok()
}

/// CPU time of processes so far, user and system, in seconds, with that of
/// children that have ended and were waited for.
pub(crate) fn cpu_s(pids: &[u32]) -> f64 {
    // USER_HZ is 100 on every architecture that Rust's Linux targets have.
    const TICKS_PER_S: f64 = 100.0;
    let ticks: u64 =
        pids.iter().flat_map(|pid| CPU_FIELDS.map(|field| stat_field(*pid, field))).flatten().sum();
    ticks as f64 / TICKS_PER_S
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_row_gives_its_port() {
        let listener = "   0: 0100007F:56CE 00000000:0000 0A 00000000:00000000 00:00000000";
        let connection = "   1: 0100007F:56CE 0100007F:8000 01 00000000:00000000 00:00000000";
        assert_eq!(listening_port(listener), Some(0x56CE));
        assert_eq!(listening_port(connection), None);
    }

    #[test]
    fn programs_are_named_by_what_runs_in_the_end() {
        let mut command = Command::new("/x/sidestep");
        command.args(["run", "--promotion", "early", "--"]);
        command.args(["taskset", "-c", "0", "/usr/bin/sockperf", "sr", "--", "x"]);
        assert_eq!(name_of(&command), "sockperf");
        assert_eq!(name_of(Command::new("/x/sidestep").args(["ss", "--json"])), "ss");
        assert_eq!(name_of(Command::new("/usr/bin/redis-server").arg("7")), "redis-server");
    }

    #[test]
    fn a_port_found_free_is_seen_once_it_listens() -> Result<()> {
        // A process that another test forks at this moment has a copy of the socket with
        // which the port was tried, until its exec: then the next port will do.
        let bound = || TcpListener::bind(("127.0.0.1", free_port().ok()?)).ok();
        let listener = (0..10).find_map(|_| bound()).context("no port can be bound")?;
        assert!(listens(std::process::id(), listener.local_addr()?.port()));
        Ok(())
    }

    #[test]
    fn a_program_that_hangs_is_ended_with_its_children() -> Result<()> {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & echo $!; wait"]);
        let mut dialogue = Dialogue::start(command)?;
        let child: u32 = dialogue.await_line("", Duration::from_secs(5))?.parse()?;
        assert!(dialogue.program().family().contains(&child));
        assert!(dialogue.finish(Duration::from_millis(50)).is_err());
        let gone = || stat_field(child, PARENT_FIELD).is_none() || is_zombie(child);
        assert!((0..100).any(|_| {
            thread::sleep(POLL_INTERVAL);
            gone()
        }));
        Ok(())
    }

    fn is_zombie(pid: u32) -> bool {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    }
}
