//! Programs that Sidestep cannot carry, or that call the kernel in unusual ways.
//!
//! Each talks to an ordinary peer under Sidestep, as server and as client. `sidestep
//! doctor` has to tell beforehand what will come of it, every byte must be right, and
//! `sidestep ss` has to show what it was: TCP with the reason, or SMC-D after all.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::stage::Stage;
use crate::bench::launch::{self, Dialogue, Program, Transport};
use crate::bench::place;
use crate::payload::{must_be_equal, random_bytes};
use crate::suite::Lacking;
use crate::user;
use crate::witness::Claim;

/// `nobody` of Debian, for programs that raise their privileges.
const NOBODY: u32 = 65534;

const PEER_IS_PLAIN: &str = "the peer does not run Sidestep";
const USES_IO_URING: &str = "through io_uring";
const GOES_PAST_LIBC: &str = "past the C library";

/// What there is to be seen of a program.
struct Expected {
    /// What doctor says of it.
    diagnosis: &'static str,
    claim: Claim,
    /// Why its connections are TCP, in words of `sidestep ss`.
    reason: &'static str,
}

impl Expected {
    /// Nothing can be preloaded, and doctor says why.
    const fn stranger(diagnosis: &'static str) -> Self {
        Self { diagnosis, claim: Claim::Tcp, reason: PEER_IS_PLAIN }
    }
}

pub(crate) fn static_program(stage: &Stage<'_>) -> Result<String> {
    let program = compile(stage, "gcc", "static", &["-static"])?;
    echo(stage, &program, "calls", &Expected::stranger("statically linked"))
}

/// The library is for both, and each of the two may be either side.
pub(crate) fn musl(stage: &Stage<'_>) -> Result<String> {
    let moved = Expected { diagnosis: "musl", claim: Claim::Smc, reason: "" };
    let program = compile(stage, "musl-gcc", "musl", &[])?;
    echo(stage, &program, "calls", &moved).context("musl and glibc")?;
    echo(stage, &program, "number", &moved).context("musl and glibc, by number")?;
    let both = |words: &[&str]| command(stage, &program, "calls", words);
    converse(stage, launch::free_port()?, Claim::Smc, "", &both, &both).context("musl and musl")?;
    let program = compile(stage, "musl-gcc", "musl-static", &["-static"])?;
    echo(stage, &program, "calls", &Expected::stranger("statically linked"))
}

pub(crate) fn narrow(stage: &Stage<'_>) -> Result<String> {
    let program = compile(stage, "gcc", "32", &["-m32"])?;
    echo(stage, &program, "calls", &Expected::stranger("a 32-bit program"))
}

pub(crate) fn by_number(stage: &Stage<'_>) -> Result<String> {
    let program = compile(stage, "gcc", "calls", &[])?;
    let expected = Expected { diagnosis: "glibc", claim: Claim::Smc, reason: "" };
    echo(stage, &program, "number", &expected)
}

pub(crate) fn io_uring(stage: &Stage<'_>) -> Result<String> {
    let program = compile(stage, "gcc", "ring", &["-DWITH_RING", "-luring"])?;
    let diagnosis = "it can use io_uring";
    let files = Expected { diagnosis, claim: Claim::Smc, reason: "" };
    echo(stage, &program, "files", &files)?;
    let sockets = Expected { diagnosis, claim: Claim::Tcp, reason: USES_IO_URING };
    echo(stage, &program, "mixed", &sockets)?;
    echo(stage, &program, "ring", &sockets)
}

/// What it gives to the kernel, nobody sees; but that it enters the kernel is seen.
pub(crate) fn io_uring_built_in(stage: &Stage<'_>) -> Result<String> {
    let flags = ["-DWITH_RING", "-Wl,-Bstatic", "-luring", "-Wl,-Bdynamic"];
    let program = compile(stage, "gcc", "ring-built-in", &flags)?;
    let entry = past_libc("io_uring_");
    echo(stage, &program, "mixed", &entry)?;
    echo(stage, &program, "ring", &entry)
}

pub(crate) fn instructions(stage: &Stage<'_>) -> Result<String> {
    let program = compile(stage, "gcc", "instructions", &["-DWITH_INSTRUCTIONS"])?;
    let expected = past_libc("past the C library");
    echo(stage, &program, "half", &expected)?;
    echo(stage, &program, "own", &expected)
}

/// A program with system call instructions of its own, of which doctor says this.
const fn past_libc(diagnosis: &'static str) -> Expected {
    Expected { diagnosis, claim: Claim::Tcp, reason: GOES_PAST_LIBC }
}

/// Run by somebody else than its owner, it gets the owner's privileges, and the loader
/// ignores what it finds in the environment.
pub(crate) fn set_user_id(stage: &Stage<'_>) -> Result<String> {
    if !user::is_root() {
        bail!(Lacking("giving a program away needs root".to_owned()));
    }
    let program = compile(stage, "gcc", "set-user-id", &[])?;
    let mut reach = Command::new(&program);
    if reach.uid(NOBODY).gid(NOBODY).output().is_err() {
        bail!(Lacking("nobody cannot reach the build".to_owned()));
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755))?;
    let expected = Expected::stranger("set-user-ID");
    let prepare = |command: &mut Command| {
        command.uid(NOBODY).gid(NOBODY);
    };
    echo_as(stage, &program, "calls", &expected, prepare)
}

const PAGE_LEN: usize = 20_000_000;
/// More than a second for the page: long enough to be looked at.
const SLOW_RATE: &str = "10M";

pub(crate) fn go(stage: &Stage<'_>) -> Result<String> {
    let caddy = place::find_command("caddy").context("caddy is here, or it would be skipped")?;
    diagnose(&mut doctor(stage, &caddy)?, "a Go program")?;
    let dir = stage.house.scratch.join("caddy");
    fs::create_dir_all(&dir)?;
    let (page, fetched) = (dir.join("page"), stage.house.scratch.join("fetched"));
    fs::write(&page, random_bytes(PAGE_LEN)?)?;
    let port = launch::free_port()?;
    let address = format!("127.0.0.1:{port}");
    let root = dir.display().to_string();
    let mut command = stage
        .command(Transport::Smc, &["caddy", "file-server", "--listen", &address, "--root", &root]);
    command.env("HOME", &dir).env("XDG_DATA_HOME", &dir).env("XDG_CONFIG_HOME", &dir);
    let mut server = Program::start(command, &stage.house.scratch)?;
    server.await_listener(port)?;
    let url = format!("http://{address}/page");
    let mut curl = stage.command(Transport::Smc, &["curl", "-sS", "--fail"]);
    curl.args(["--limit-rate", SLOW_RATE, "-o"]).arg(&fetched).arg(&url);
    stage.watch_for(Claim::Tcp, &server, curl)?;
    must_be_equal(&fetched, &page)?;
    server.must_be_alive()?;
    fs::remove_file(&page)?;
    fs::remove_file(&fetched)?;
    Ok(format!("{PAGE_LEN} bytes compared"))
}

/// Echoes between the program and an ordinary peer, each as server.
fn echo(stage: &Stage<'_>, program: &Path, way: &str, expected: &Expected) -> Result<String> {
    echo_as(stage, program, way, expected, |_| ())
}

/// The same; `prepare` is for the commands that run the program.
fn echo_as(
    stage: &Stage<'_>,
    program: &Path,
    way: &str,
    expected: &Expected,
    prepare: impl Fn(&mut Command),
) -> Result<String> {
    let mut doctor = doctor(stage, program)?;
    prepare(&mut doctor);
    diagnose(&mut doctor, expected.diagnosis)?;
    let peer = ordinary(stage)?;
    let outsider = |words: &[&str]| {
        let mut command = command(stage, program, way, words);
        prepare(&mut command);
        command
    };
    let ordinary = |words: &[&str]| command(stage, &peer, "calls", words);
    let Expected { claim, reason, .. } = *expected;
    let port = launch::free_port;
    converse(stage, port()?, claim, reason, &outsider, &ordinary).context("as server")?;
    converse(stage, port()?, claim, reason, &ordinary, &outsider).context("as client")
}

/// Makes a command from the program's words.
pub(super) type Maker<'a> = &'a dyn Fn(&[&str]) -> Command;

/// Runs a server and a client, each made from its words. What `sidestep ss` shows of them
/// must be as claimed, and for this reason if it is TCP.
pub(super) fn converse(
    stage: &Stage<'_>,
    port: u16,
    claim: Claim,
    reason: &str,
    server: Maker<'_>,
    client: Maker<'_>,
) -> Result<String> {
    let (text, seed) = (port.to_string(), stage.house.seed.to_string());
    let mut server = Program::start(server(&["server", &text]), &stage.house.scratch)?;
    server.await_listener(port)?;
    let client = Dialogue::start(client(&["client", &text, &seed]))?;
    let (said, seen) = stage.observe(&mut server, [client], claim)?;
    if stage.house.witness.sees() {
        seen.gives_reason(reason)?;
    }
    Ok(said)
}

/// An ordinary build of the program.
pub(super) fn ordinary(stage: &Stage<'_>) -> Result<PathBuf> {
    compile(stage, "gcc", "peer", &[])
}

/// The command that runs it under Sidestep, in one of its ways.
pub(super) fn command(stage: &Stage<'_>, program: &Path, way: &str, words: &[&str]) -> Command {
    let words = words.iter().map(OsStr::new);
    let all: Vec<&OsStr> = [program.as_os_str(), way.as_ref()].into_iter().chain(words).collect();
    stage.command(Transport::Smc, &all)
}

/// `sidestep doctor PROGRAM`, if there is one to ask.
fn doctor(stage: &Stage<'_>, program: &Path) -> Result<Command> {
    let Some(sidestep) = stage.house.launcher.observer() else {
        bail!(Lacking("there is no `sidestep` to ask".to_owned()));
    };
    let mut command = Command::new(sidestep);
    command.arg("doctor").arg(program);
    Ok(command)
}

/// **Errors**: doctor does not say this of the program.
fn diagnose(doctor: &mut Command, diagnosis: &str) -> Result<()> {
    let said = String::from_utf8(doctor.output()?.stdout)?;
    let of_program = said.split_once("program ").map_or("", |(_, rest)| rest);
    ensure!(of_program.contains(diagnosis), "doctor does not say '{diagnosis}': {said}");
    Ok(())
}

/// Builds the program in one of its variants.
pub(super) fn compile(
    stage: &Stage<'_>,
    compiler: &str,
    variant: &str,
    flags: &[&str],
) -> Result<PathBuf> {
    let made = stage.house.scratch.join(format!("outsider-{variant}"));
    place::compile_with(compiler, &stage.house.scripts.join("outsider.c"), made, flags)
}
