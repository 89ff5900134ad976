//! The tests: what hostile peers and strangers do, and what a machine without
//! resources does.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail, ensure};

use super::hardship;
use super::mixed::mixed;
use super::small_group::SmallGroup;
use super::sparse::sparse_states;
use super::stage::{Stage, Style, Tally, Victim};
use crate::bench::launch::{self, Dialogue, Transport};
use crate::suite::{HANG, Lacking};
use crate::user;
use crate::witness::Claim;

/// A test; what it returns is worth reading when it has passed.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Commands without which it is skipped.
    pub(crate) needs: &'static [&'static str],
    pub(crate) styles: &'static [Style],
    pub(crate) play: fn(&Stage<'_>) -> Result<String>,
}

impl Case {
    const fn new(
        name: &'static str,
        needs: &'static [&'static str],
        play: fn(&Stage<'_>) -> Result<String>,
    ) -> Self {
        Self { name, needs, styles: &[Style::Threads, Style::Epoll], play }
    }
}

/// All tests.
pub(crate) const CASES: &[Case] = &[
    Case::new("scribbling-client", &[], scribbling_client),
    Case::new("scribbling-server", &[], scribbling_server),
    Case::new("scribbling-owner", &[], scribbling_owner),
    Case::new("lying-client", &[], lying_client),
    Case::new("lying-server", &[], lying_server),
    Case::new("unread-stderr", &[], unread_stderr),
    Case::new("valgrind", &["valgrind"], valgrind),
    Case::new("datagrams", &["python3"], datagrams),
    Case::new("strange-datagrams", &["python3"], strange_datagrams),
    Case::new("sleepers", &["python3"], sleepers),
    Case { styles: &[Style::Epoll], ..Case::new("squatters", &["python3"], squatters) },
    Case::new("scripted-client", &["python3"], scripted_client),
    Case { styles: &[Style::Epoll], ..Case::new("scripted-server", &["python3"], scripted_server) },
    Case::new("other-user", &[], other_user),
    Case { styles: &[Style::Threads], ..Case::new("sparse-states", &["python3"], sparse_states) },
    Case::new("few-descriptors", &[], few_descriptors),
    Case::new("few-addresses", &[], few_addresses),
    Case::new("no-files", &[], no_files),
    Case::new("no-proc", &[], no_proc),
    Case::new("memory-limit", &[], memory_limit),
    Case::new("user-memory", &[], user_memory),
    Case::new("little-memory", &[], little_memory),
    Case::new("no-memory", &[], no_memory),
    Case::new("stopped", &[], stopped),
    Case::new("doomed", &[], doomed),
    Case { styles: &[Style::Epoll], ..Case::new("crowd", &[], crowd) },
    Case { styles: &[Style::Epoll], ..Case::new("live", &[], live) },
    Case { styles: &[Style::Epoll], ..Case::new("clients", &[], clients) },
    Case::new("storm", &[], storm),
    Case { styles: &[Style::Epoll], ..Case::new("mixed", &["python3"], mixed) },
    Case::new("leaks", &[], leaks),
];

// ---- peers that write nonsense ---------------------------------------------

/// What connections agree on, field by field.
const LIES: [&str; 6] = ["box", "ring", "token", "rmbe", "phase", "clc"];

/// Of these, the ones that may cost the liar his bytes: he says that he has
/// moved, or has not, and is read where he did not write. `clc` is all of them.
const LIES_ABOUT_PLACES: [&str; 2] = ["phase", "clc"];

/// How long each lie is told, as a part of an attack.
const LIE_PART: f64 = 0.3;

fn scribbling_client(stage: &Stage<'_>) -> Result<String> {
    let mut victim = stage.serve()?;
    stage.attack(&mut victim, stage.house.seconds, |victim| {
        Ok(hostile_client(stage, victim)?.to_string())
    })
}

fn hostile_client(stage: &Stage<'_>, victim: &Victim) -> Result<Tally> {
    until_it_hits(stage, || {
        let mut client = reckless_client(stage, victim, 1.0);
        stage.make_hostile(&mut client, "all");
        // It has destroyed its own words, too: all that counts is that it ends.
        stage.visit(client)
    })
}

/// A client that writes also into the slab that it was shown: the kernel does not keep a process of
/// the same user from it. Connections of that link group may break, and nothing else.
fn scribbling_owner(stage: &Stage<'_>) -> Result<String> {
    let mut victim = stage.serve()?;
    stage.attack(&mut victim, stage.house.seconds, |victim| {
        let tally = until_it_hits(stage, || {
            let mut client = reckless_client(stage, victim, 1.0);
            stage.make_hostile(&mut client, "owner");
            stage.visit(client)
        })?;
        Ok(tally.to_string())
    })
}

/// Repeats an attack until it has damaged something: on a busy machine the one who
/// scribbles may not get a CPU in time.
///
/// **Errors**: nonsense was written where nobody reads, and nothing was tested.
fn until_it_hits(stage: &Stage<'_>, mut attack: impl FnMut() -> Result<Tally>) -> Result<Tally> {
    let mut sum = Tally::default();
    for _ in 0..ATTACKS_MAX {
        sum.add(&attack()?);
        if sum.wrong + sum.reset + sum.silent > 0 || stage.house.launcher.is_plain() {
            return Ok(sum);
        }
    }
    bail!("the attack had no effect: {sum}")
}

/// Attacks without effect before it is said that they have none.
const ATTACKS_MAX: u32 = 20;

/// A client that connects again and again and takes what comes; it does not
/// wait for a silent server for long.
fn reckless_client(stage: &Stage<'_>, victim: &Victim, times: f64) -> Command {
    stage.client(victim, &["storm", "-n", "8", "-f", "-p", "1", "-t", &seconds(stage, times)])
}

/// What an honest client gets from a server that scribbles need not be right,
/// but each of its calls returns in time: `late` is an error of the client.
fn scribbling_server(stage: &Stage<'_>) -> Result<String> {
    let mut server = stage.serve_with(|command| stage.make_hostile(command, "all"))?;
    let tally = until_it_hits(stage, || {
        let tally = stage.visit(reckless_client(stage, &server, 1.0))?;
        server.must_be_alive()?;
        Ok(tally)
    })?;
    Ok(tally.to_string())
}

/// Who lies while a connection is agreed on gets it by SMC-D or by TCP, or not
/// at all.
fn lying_client(stage: &Stage<'_>) -> Result<String> {
    let mut victim = stage.serve()?;
    let duration = LIES.len() as f64 * LIE_PART * stage.house.seconds;
    stage.attack(&mut victim, duration, |victim| {
        tell_lies(|lie| {
            let mut client = reckless_client(stage, victim, LIE_PART);
            stage.make_hostile(&mut client, lie);
            stage.visit(client)
        })
    })
}

fn lying_server(stage: &Stage<'_>) -> Result<String> {
    tell_lies(|lie| {
        let mut server = stage.serve_with(|command| stage.make_hostile(command, lie))?;
        let tally = stage.visit(reckless_client(stage, &server, LIE_PART))?;
        server.must_be_alive()?;
        Ok(tally)
    })
}

fn tell_lies(mut tell: impl FnMut(&'static str) -> Result<Tally>) -> Result<String> {
    let mut sum = Tally::default();
    for lie in LIES {
        let tally = tell(lie).context(lie)?;
        if !LIES_ABOUT_PLACES.contains(&lie) {
            tally.must_be_true().context(lie)?;
        }
        sum.add(&tally);
    }
    Ok(sum.to_string())
}

/// Each cursor out of range is a line of log. With nobody to read it, the
/// victim must neither wait nor get a signal.
fn unread_stderr(stage: &Stage<'_>) -> Result<String> {
    let (_reader, full) = hardship::full_pipe()?;
    let mut victim = stage.serve_with(|command| hardship::set_standard_error(command, full))?;
    let remark = stage.attack(&mut victim, stage.house.seconds, |victim| {
        Ok(hostile_client(stage, victim)?.to_string())
    })?;

    let mut server = stage.serve_with(|command| stage.make_hostile(command, "all"))?;
    let mut client = reckless_client(stage, &server, 0.5);
    hardship::set_standard_error(&mut client, hardship::broken_pipe()?);
    stage.visit(client)?;
    server.must_be_alive()?;
    Ok(remark)
}

// ---- valgrind --------------------------------------------------------------

/// The errors that valgrind prints; warnings about itself begin otherwise.
const ERROR_MARK: &str = "==";

/// The lines of its report that are shown.
const ERROR_LINES: usize = 12;

fn valgrind(stage: &Stage<'_>) -> Result<String> {
    let report = stage.house.scratch.join("valgrind.txt");
    let port = launch::free_port()?;
    let mut words = ["-q", "--leak-check=no"].map(str::to_owned).to_vec();
    words.push(format!("--log-file={}", report.display()));
    words.push(stage.house.victim.display().to_string());
    words.extend([stage.style.to_string(), port.to_string()]);
    let command = stage.house.launcher.launch(Transport::Smc, "valgrind", words);
    let mut victim = stage.await_victim(command, port)?;

    let tally = hostile_client(stage, &victim)?;
    stage.visit(stage.client(&victim, &["steady", "-n", "2", "-t", "0.2"]))?;
    victim.must_be_alive()?;
    let said = fs::read_to_string(&report)?;
    let errors: Vec<&str> =
        said.lines().filter(|line| line.starts_with(ERROR_MARK)).take(ERROR_LINES).collect();
    ensure!(errors.is_empty(), "valgrind found:\n{}", errors.join("\n"));
    Ok(tally.to_string())
}

// ---- datagrams -------------------------------------------------------------

fn datagrams(stage: &Stage<'_>) -> Result<String> {
    send_datagrams(stage, &[])
}

fn strange_datagrams(stage: &Stage<'_>) -> Result<String> {
    must_be_root("sending as another user")?;
    send_datagrams(stage, &["--uid", &hardship::STRANGER.to_string()])
}

/// Malformed ones, while connections begin and end: only then is mail read.
fn send_datagrams(stage: &Stage<'_>, options: &[&str]) -> Result<String> {
    if stage.house.launcher.is_plain() {
        bail!(Lacking("nobody has a mailbox".to_owned()));
    }
    let mut victim = stage.serve()?;
    stage.attack(&mut victim, stage.house.seconds, |victim| {
        let words = ["storm", "-n", "2", "-t", &seconds(stage, 1.0)];
        let storm = Dialogue::start(stage.client(victim, &words))?;
        let mut sender = Command::new("python3");
        sender.env("PYTHONDONTWRITEBYTECODE", "1").arg(&stage.house.datagrams);
        sender.args(["--pid", &victim.pid().to_string(), "--seed", &stage.house.next_seed()]);
        sender.args(["--seconds", &seconds(stage, 1.0)]).args(options);
        let sent = launch::run(sender, stage.seconds(1.0) + HANG)?;
        ensure!(sent.trim() != "sent 0", "no datagram was taken");
        storm.finish(HANG).context("honest clients that come and go")?;
        Ok(sent.trim().to_owned())
    })
}

/// Descriptors whose last close sleeps for a minute: who drops them waits for longer than anybody may.
fn sleepers(stage: &Stage<'_>) -> Result<String> {
    if stage.house.launcher.is_plain() {
        bail!(Lacking("nobody has a mailbox".to_owned()));
    }
    must_be_root("sending as another user")?;
    let mut victim = stage.serve()?;
    stage.attack(&mut victim, stage.house.seconds, |victim| {
        // Each is a process that the victim does not know: for it mail is read.
        let newcomers = || {
            (0..5).try_for_each(|_| {
                launch::run(stage.client(victim, &["cycles", "-c", "2"]), HANG).map(drop)
            })
        };
        let mut sender = Command::new("python3");
        sender.env("PYTHONDONTWRITEBYTECODE", "1").arg(stage.house.scripts.join("sleepers.py"));
        sender.args(["--pid", &victim.pid().to_string(), "--seconds", &seconds(stage, 1.0)]);
        sender.args(["--uid", &hardship::STRANGER.to_string()]);
        sender.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut sender = sender.spawn().context("python3")?;
        let mut sent = String::new();
        let told = sender.stdout.take().context("its output")?;
        BufReader::new(told).read_line(&mut sent)?;
        // The sockets that sleep live as long as it does, which is until its input ends.
        let came = newcomers().context("newcomers");
        drop(sender.stdin.take());
        ensure!(sender.wait()?.success(), "the sender has failed");
        came?;
        ensure!(!sent.starts_with("sent 0,"), "no descriptor was taken");
        Ok(sent.trim().to_owned())
    })
}

/// Names of the dead that another user holds, at the end of [`squatters`].
const NAMES_HELD: usize = 6;

/// Another user binds the names of peers that have ended: what belongs to them is given back all the
/// same.
fn squatters(stage: &Stage<'_>) -> Result<String> {
    if stage.house.launcher.is_plain() {
        bail!(Lacking("nobody has a mailbox".to_owned()));
    }
    must_be_root("another user")?;
    let mut victim = stage.serve()?;
    let before = stage.vitals_at_rest(&mut victim)?;
    let mut squatter = Command::new("python3");
    squatter.env("PYTHONDONTWRITEBYTECODE", "1").arg(stage.house.scripts.join("squatters.py"));
    squatter.args(["--pid", &victim.pid().to_string()]);
    squatter.args(["--uid", &hardship::STRANGER.to_string()]);
    let mut squatter = Dialogue::start(squatter)?;
    let mut held = 0;
    // Whose name it does not see in time is not held.
    for _ in 0..ATTACKS_MAX {
        stage.visit(stage.client(&victim, &["steady", "-n", "1", "-t", &seconds(stage, 0.3)]))?;
        squatter.say("how many?")?;
        let said = squatter.await_line("holds", HANG)?;
        let number = said.split_whitespace().nth(1).context("a number")?;
        held = number.parse::<usize>().with_context(|| said.clone())?;
        if held >= NAMES_HELD {
            break;
        }
    }
    ensure!(held >= NAMES_HELD, "the attack had no effect: {held} names");
    let after = stage.await_rest(&mut victim, &before, LEAK_KB)?;
    squatter.finish(HANG)?;
    Ok(format!("{held} names: {before}, then {after}"))
}

/// The error scenarios of RFC 7609 Appendix C, by a client that is not Sidestep.
fn scripted_client(stage: &Stage<'_>) -> Result<String> {
    if stage.house.launcher.is_plain() {
        bail!(Lacking("nobody has a mailbox".to_owned()));
    }
    let mut victim = stage.serve()?;
    stage.attack(&mut victim, stage.house.seconds, |victim| {
        let client = script(&stage.house.scripted_client, victim.port);
        let played = launch::run(client, HANG)?;
        Ok(format!("{} scenarios", played.lines().count()))
    })
}

/// Those by a server that is not Sidestep: a connection for each, of one client.
fn scripted_server(stage: &Stage<'_>) -> Result<String> {
    const SCENARIOS: &str = "9";
    if stage.house.launcher.is_plain() {
        bail!(Lacking("nobody has a mailbox".to_owned()));
    }
    let port = launch::free_port()?;
    let mut server = Dialogue::start(script(&stage.house.scripted_server, port))?;
    server.program().await_listener(port)?;
    let words = ["cycles", &port.to_string(), "-c", SCENARIOS];
    let mut client = stage.house.launcher.launch(Transport::Smc, &stage.house.client, words);
    // It has to ask a server again that has failed it before.
    let file = stage.house.scratch.join("scripted-server.toml");
    fs::write(&file, "[smc]\nautocache = false\n")?;
    client.env("SIDESTEP_CONFIG", file);
    let client = launch::run(client, HANG).context("the client");
    // It knows better what went wrong.
    let played = server.finish(HANG).context("the server")?;
    client?;
    Ok(format!("{} scenarios", played.lines().count()))
}

fn script(path: &Path, port: u16) -> Command {
    let mut command = Command::new("python3");
    command.env("PYTHONDONTWRITEBYTECODE", "1").arg(path).arg(port.to_string());
    command
}

// ---- another user ----------------------------------------------------------

fn must_be_root(what: &str) -> Result<()> {
    if !user::is_root() {
        bail!(Lacking(format!("{what} needs root")));
    }
    Ok(())
}

fn other_user(stage: &Stage<'_>) -> Result<String> {
    must_be_root("another user")?;
    hardship::must_be_possible("another user", &stage.house.client, hardship::estrange)?;
    let mut victim = stage.serve()?;
    let words = ["steady", "-h", "-t", &seconds(stage, 2.0)];
    let mut client = stage.client(&victim, &words);
    hardship::estrange(&mut client);
    let seen = stage.witness(Dialogue::start(client)?, Claim::Tcp, HANG)?;
    victim.must_be_alive()?;
    if stage.house.launcher.observer().is_some() {
        seen.gives_reason("the peer runs as another user")?;
    }
    Ok("TCP, and `sidestep ss` says why".to_owned())
}

// ---- exhausted machines ----------------------------------------------------

/// Connections that stay.
const STEADY: [&str; 3] = ["steady", "-n", "4"];

/// From hardly enough for the program itself to nearly enough for both.
const DESCRIPTORS: [u64; 4] = [8, 10, 13, 16];

/// From what threads need to more than one of the two slabs of a link group.
const ADDRESS_SPACES: [u64; 3] = [128 << 20, 3 << 30, 6 << 30];

/// Of these, the ones with room for the library, which then says what there was no room
/// for.
const LEAST_FOR_REASONS: u64 = 1 << 30;

fn few_descriptors(stage: &Stage<'_>) -> Result<String> {
    for number in DESCRIPTORS {
        // One at a time: what Sidestep has taken, the program has not.
        let words = ["storm", "-n", "1"];
        starve(stage, &words, |command| hardship::limit(command, libc::RLIMIT_NOFILE, number))
            .with_context(|| format!("{number} descriptors"))?;
    }
    Ok(format!("{DESCRIPTORS:?}"))
}

fn few_addresses(stage: &Stage<'_>) -> Result<String> {
    for bytes in ADDRESS_SPACES {
        starve(stage, &STEADY, |command| hardship::limit(command, libc::RLIMIT_AS, bytes))
            .with_context(|| format!("{bytes} bytes of address space"))?;
    }
    for bytes in ADDRESS_SPACES.into_iter().filter(|bytes| *bytes >= LEAST_FOR_REASONS) {
        let little = |command: &mut Command| hardship::limit(command, libc::RLIMIT_AS, bytes);
        let enough = |_: &mut Command| {};
        must_say_no_memory(stage, little, enough).with_context(|| format!("server, {bytes}"))?;
        must_say_no_memory(stage, enough, little).with_context(|| format!("client, {bytes}"))?;
    }
    Ok(format!("{} address spaces", ADDRESS_SPACES.len()))
}

/// Both ends of all connections say why they stay on TCP: the one without memory that it has none, the
/// other that its peer has declined, because nothing is lacking there.
fn must_say_no_memory(
    stage: &Stage<'_>,
    prepare_server: impl Fn(&mut Command),
    prepare_client: impl Fn(&mut Command),
) -> Result<()> {
    let server = stage.serve_with(prepare_server)?;
    let mut client = stage.client(&server, &["steady", "-h", "-t", &seconds(stage, 0.4)]);
    prepare_client(&mut client);
    let seen = stage.look_at_both(vec![Dialogue::start(client)?], &server, HANG)?;
    if stage.house.launcher.observer().is_some() {
        stage.house.witness.judge(Claim::Tcp, &seen)?;
        let (own, peers) =
            ("no memory, address space or descriptors", "the peer declined: 0x01010000");
        seen.gives_no_other_reasons(&[own, peers])?;
    }
    Ok(())
}

/// No byte may be written to any file: a memory file cannot even be made longer
/// without SIGXFSZ.
fn no_files(stage: &Stage<'_>) -> Result<String> {
    starve(stage, &STEADY, |command| hardship::limit(command, libc::RLIMIT_FSIZE, 0))
}

fn no_proc(stage: &Stage<'_>) -> Result<String> {
    must_be_root("hiding /proc")?;
    hardship::must_be_possible("hiding /proc", &stage.house.client, hardship::hide_proc)?;
    starve(stage, &STEADY, |command| {
        // Without /proc nobody knows where his own program lies.
        command.env("SIDESTEP_LIBRARY", &stage.house.library);
        hardship::hide_proc(command);
    })
}

/// Takes something from a server, then from a client: connections stay on TCP
/// or not, and every byte is right.
fn starve(stage: &Stage<'_>, words: &[&str], hardship: impl Fn(&mut Command)) -> Result<String> {
    let seconds = seconds(stage, 0.2);
    let words = [words, &["-t", &seconds]].concat();
    let mut server = stage.serve_with(&hardship)?;
    let mut sum = must_do_well(stage, stage.client(&server, &words)).context("server")?;
    server.must_be_alive()?;

    let mut server = stage.serve()?;
    let mut client = stage.client(&server, &words);
    hardship(&mut client);
    sum.add(&must_do_well(stage, client).context("client")?);
    server.must_be_alive()?;
    Ok(sum.to_string())
}

fn must_do_well(stage: &Stage<'_>, client: Command) -> Result<Tally> {
    let tally = stage.visit(client)?;
    tally.must_be_well()?;
    Ok(tally)
}

/// Rings are counted in the memory of those who write them, in twice the size that
/// the reader wants.
const MEMORY_LIMIT: &str = "[smc]\nmemory_limit = \"2MB\"\nrmbe_size = \"512KB\"\n";

/// The same for a library that was not started by the `sidestep` command, which
/// would overwrite it.
const MEMORY_LIMIT_OPTIONS: &str = "promotion=early memory=2097152 rmbe=524288";

fn memory_limit(stage: &Stage<'_>) -> Result<String> {
    let file = stage.house.scratch.join("memory-limit.toml");
    fs::write(&file, MEMORY_LIMIT)?;
    let configure = |command: &mut Command| {
        command.env("SIDESTEP_CONFIG", &file).env("SIDESTEP_OPTIONS", MEMORY_LIMIT_OPTIONS);
    };
    let mut victim = stage.serve_with(configure)?;
    let words = ["steady", "-n", "8", "-h", "-t", &seconds(stage, 0.5)];
    let mut client = stage.client(&victim, &words);
    configure(&mut client);
    stage.witness(Dialogue::start(client)?, Claim::Both, HANG)?;
    victim.must_be_alive()?;
    Ok("some on TCP".to_owned())
}

/// Room for the rings of all eight connections in one program, and of four in the other.
const USER_MEMORY: &str = "[smc]\nuser_memory_limit = \"12MB\"\nrmbe_size = \"512KB\"\n";
const USER_MEMORY_OPTIONS: &str = "usermemory=12582912 rmbe=524288";

/// Twice: what the killed programs of the first round had, those of the second have.
fn user_memory(stage: &Stage<'_>) -> Result<String> {
    let file = stage.house.scratch.join("user-memory.toml");
    fs::write(&file, USER_MEMORY)?;
    let configure = |command: &mut Command| {
        command.env("SIDESTEP_CONFIG", &file).env("SIDESTEP_OPTIONS", USER_MEMORY_OPTIONS);
    };
    for _ in 0..2 {
        let victim = stage.serve_with(configure)?;
        let words = ["steady", "-n", "8", "-h", "-t", &seconds(stage, 0.5)];
        let mut client = stage.client(&victim, &words);
        configure(&mut client);
        let seen = stage.witness(Dialogue::start(client)?, Claim::Both, HANG)?;
        if stage.house.launcher.observer().is_some() {
            // Whoever came too late for a share: the client itself, or the server that declined.
            let declined = |_| seen.gives_reason("the peer declined: 0x01010000 MEM");
            seen.gives_reason("smc.user_memory_limit is reached").or_else(declined)?;
        }
    }
    Ok("some on TCP, and nothing is left taken".to_owned())
}

/// Memory of a control group, and connections for whose rings there is none: a quarter of
/// it is room for 192, each with a ring of 64 KiB in twice as much memory.
const LITTLE_MEMORY: u64 = 96 << 20;
const LITTLE_MEMORY_CROWD: &str = "250";

/// Server and client together in a control group with little memory: rings take a part of
/// it, the other connections stay on TCP, and the kernel has to end nobody.
fn little_memory(stage: &Stage<'_>) -> Result<String> {
    let group = SmallGroup::new(LITTLE_MEMORY)?;
    let mut victim = stage.serve_with(|command| group.enclose(command))?;
    let words = ["steady", "-n", LITTLE_MEMORY_CROWD, "-h"];
    let mut client = stage.client(&victim, &[&words[..], &["-t", &seconds(stage, 3.0)]].concat());
    group.enclose(&mut client);
    let patience = HANG + stage.seconds(3.0);
    stage.witness(Dialogue::start(client)?, Claim::Both, patience)?;
    victim.must_be_alive()?;
    Ok("some on TCP".to_owned())
}

/// Memory of a control group that the rings of `NO_MEMORY_CROWD` exceed, when they may.
const NO_MEMORY: u64 = 20 << 20;
const NO_MEMORY_CROWD: &str = "200";
const NO_MEMORY_LIMIT: &str = "[smc]\nmemory_limit = \"8GB\"\n";
const NO_MEMORY_OPTIONS: &str = "promotion=early memory=8589934592";

/// Where the operator allows more rings than there is memory, the kernel ends the server,
/// and its clients are told at once, as they would be by TCP.
fn no_memory(stage: &Stage<'_>) -> Result<String> {
    if stage.house.launcher.is_plain() {
        bail!(Lacking("nobody has rings".to_owned()));
    }
    let group = SmallGroup::new(NO_MEMORY)?;
    let file = stage.house.scratch.join("no-memory.toml");
    fs::write(&file, NO_MEMORY_LIMIT)?;
    let mut victim = stage.serve_with(|command| {
        command.env("SIDESTEP_CONFIG", &file).env("SIDESTEP_OPTIONS", NO_MEMORY_OPTIONS);
        group.enclose(command);
    })?;
    let words = ["steady", "-n", NO_MEMORY_CROWD, "-f"];
    let client = stage.client(&victim, &[&words[..], &["-t", &seconds(stage, 3.0)]].concat());
    let tally = stage.visit(client)?;
    tally.must_be_true()?;
    ensure!(tally.bytes > 0, "the server has never answered");
    victim.must_end(HANG)?;
    Ok(tally.to_string())
}

// ---- standing still -------------------------------------------------------

/// Each side stands still for a while under load, as under a debugger: nothing is
/// lost, and nobody gives up.
fn stopped(stage: &Stage<'_>) -> Result<String> {
    let mut victim = stage.serve()?;
    let pause = stage.seconds(1.0);
    let patience = (HANG + pause).as_secs().to_string();
    let words = ["steady", "-n", "4", "-h", "-p", &patience, "-t", &seconds(stage, 4.0)];
    let mut client = Dialogue::start(stage.client(&victim, &words))?;
    for pid in [victim.pid(), client.program().pid()] {
        thread::sleep(pause / 2);
        launch::signal(pid, libc::SIGSTOP)?;
        thread::sleep(pause);
        launch::signal(pid, libc::SIGCONT)?;
    }
    stage.witness(client, Claim::Smc, HANG + stage.seconds(4.0))?;
    victim.must_be_alive()?;
    Ok(format!("{:.1} s each", pause.as_secs_f64()))
}

/// How many times as long as another attack clients die in the middle of what they do.
const DOOMED: f64 = 6.0;

/// Clients that send, do not read and are killed, most of them while their connection moves.
fn doomed(stage: &Stage<'_>) -> Result<String> {
    let mut victim = stage.serve()?;
    let attack_s = DOOMED * stage.house.seconds;
    stage.attack(&mut victim, attack_s, |victim| {
        let words = [victim.port.to_string(), stage.house.next_seed(), seconds(stage, DOOMED)];
        let doomed = stage.house.launcher.launch(Transport::Smc, &stage.house.doomed, words);
        Ok(launch::run(doomed, HANG + stage.seconds(DOOMED))?.trim().to_owned())
    })
}

// ---- crowds ----------------------------------------------------------------

/// Plain and Sidestep clients that come and go at one listener.
fn storm(stage: &Stage<'_>) -> Result<String> {
    let mut victim = stage.serve()?;
    stage.attack(&mut victim, stage.house.seconds, |victim| {
        let words = ["storm", "-n", "8", "-t", &seconds(stage, 1.0)];
        let plain = Dialogue::start(stage.client_over(Transport::Tcp, victim, &words))?;
        let mut sum = must_do_well(stage, stage.client(victim, &words))?;
        let said = plain.finish(HANG).context("plain clients")?;
        sum.add(&Tally::parse(said.trim())?);
        Ok(sum.to_string())
    })
}

/// Connections that have their first bytes at once, with an attack of a second. Half
/// of them are more than there is room for hellos, and fit into 1024 descriptors.
const CROWD: f64 = 800.0;

/// All of them move, and all are served. (In threads it would be a crowd of stacks.)
fn crowd(stage: &Stage<'_>) -> Result<String> {
    let mut victim = stage.serve()?;
    let count = (CROWD * stage.house.seconds) as u32;
    let words = ["crowd", "-n", &count.to_string(), "-h", "-t", &seconds(stage, 2.0)];
    let client = Dialogue::start(stage.client(&victim, &words))?;
    stage.witness(client, Claim::Smc, HANG + stage.seconds(4.0))?;
    victim.must_be_alive()?;
    Ok(format!("{count} connections"))
}

/// Connections that live at once, with an attack of a second and at most, and how many of
/// them a client has.
const LIVE: f64 = 4000.0;
const LIVE_MAX: f64 = 10_000.0;
const LIVE_EACH: u32 = 1000;

/// Clients that are there at once.
const CLIENTS: u32 = 200;

/// Descriptors that a server needs besides those of its connections: a few, and some for
/// each process that it shares memory with.
const FEW: u32 = 100;
const FEW_EACH: u32 = 5;

fn live(stage: &Stage<'_>) -> Result<String> {
    let count = (LIVE * stage.house.seconds).min(LIVE_MAX) as u32;
    all_must_move(stage, count.div_ceil(LIVE_EACH), count.min(LIVE_EACH))
}

fn clients(stage: &Stage<'_>) -> Result<String> {
    all_must_move(stage, CLIENTS, 1)
}

/// So many clients with so many connections each, on all of which bytes go to and fro:
/// each byte is right, and both ends of each connection are in shared memory.
fn all_must_move(stage: &Stage<'_>, clients: u32, each: u32) -> Result<String> {
    let needed = clients * (each + FEW_EACH) + FEW;
    let descriptors = hardship::descriptors_for(u64::from(needed))?;
    let allow = |command: &mut Command| hardship::limit(command, libc::RLIMIT_NOFILE, descriptors);
    let mut victim = stage.serve_with(allow)?;
    let each_word = each.to_string();
    let words = ["crowd", "-n", &each_word, "-h", "-t", &seconds(stage, 4.0)];
    let start = |_| {
        let mut client = stage.client(&victim, &words);
        allow(&mut client);
        Dialogue::start(client)
    };
    let dialogues = (0..clients).map(start).collect::<Result<Vec<_>>>()?;
    let seen = stage.look_at_both(dialogues, &victim, HANG + stage.seconds(10.0))?;
    let count = clients * each;
    if stage.house.launcher.observer().is_some() {
        seen.must_all_be_smc(2 * count as usize)?;
    }
    victim.must_be_alive()?;
    Ok(format!("{count} connections of {clients} clients"))
}

/// Connections of one process, and processes with a connection or two, with an
/// attack of a second.
const CYCLES: f64 = 40_000.0;
const VISITORS: f64 = 600.0;

/// Memory a victim may have more of after them: not a hundred bytes for each.
const LEAK_KB: u64 = 1024;

/// On a busy machine connections that have ended wait for their processes, and tables are as long as the most that there ever
/// were of them. A leak grows in each round, and this does not.
const ROUNDS_MAX: u32 = 4;
const TABLES_KB: u64 = 16 << 10;

fn leaks(stage: &Stage<'_>) -> Result<String> {
    let mut victim = stage.serve()?;
    let mut before = stage.vitals_at_rest(&mut victim)?;
    let times = stage.house.seconds;
    let (cycles, visitors) = ((CYCLES * times) as u32, (VISITORS * times) as u32);
    let mut grown = Vec::new();
    for _ in 0..ROUNDS_MAX {
        come_and_go(stage, &victim, cycles, visitors)?;
        let after = stage.await_rest(&mut victim, &before, TABLES_KB)?;
        match after.must_not_exceed(&before, LEAK_KB) {
            Ok(()) => {
                return Ok(format!(
                    "{cycles} connections, {visitors} processes: {before}, then {after}"
                ));
            }
            Err(error) => grown.push(error.to_string()),
        }
        before = after;
    }
    bail!("the victim, in each round: {}", grown.join(", then "))
}

fn come_and_go(stage: &Stage<'_>, victim: &Victim, cycles: u32, visitors: u32) -> Result<()> {
    let words = ["cycles", "-c", &cycles.to_string()];
    launch::run(stage.client(victim, &words), HANG + stage.seconds(CYCLES / 100.0))?;
    for _ in 0..visitors {
        launch::run(stage.client(victim, &["cycles", "-c", "2"]), HANG)?;
    }
    Ok(())
}

/// So many times as long as an attack lasts, as a word for a program.
fn seconds(stage: &Stage<'_>, times: f64) -> String {
    stage.seconds(times).as_secs_f64().to_string()
}
