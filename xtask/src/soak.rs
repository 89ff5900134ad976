//! `cargo xtask soak`: connections that come and go for an hour, and nothing that grows.
//!
//! Two hosts with an agent and a gateway each ([`crate::hosts`]). Half of the connections go from one to the
//! other, by SMC-R; half stay within one of them, in shared memory. Each lives for some messages, ends in one
//! of several ways, and another takes its place ([`soak.c`]); every byte is compared. Meanwhile memory,
//! descriptors and threads of agents, gateways and programs are looked at.
//!
//! | When | What must be so |
//! |---|---|
//! | after the warm-up | nothing has a trend upwards ([`Trend`]) |
//! | in the middle | connections are SMC-R and SMC-D |
//! | in the end | each connection has ended as it was to; gateways and servers have no more descriptors than before |
//!
//! [`soak.c`]: ../../../tests/soak/soak.c

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use crate::bench::launch::{Dialogue, LaunchOptions, Launcher, Program};
use crate::bench::place;
use crate::hosts::{CLIENT, Ground, Hosts, SERVER};
use crate::leftovers::Leftovers;
use crate::suite::{self, HANG, Summary};
use trend::Trend;

mod trend;

/// Options of `cargo xtask soak`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// How long connections come and go
    #[arg(long, value_name = "M", default_value_t = 60.0)]
    minutes: f64,

    /// Connections that there are at any moment, half of them between the hosts
    #[arg(long, default_value_t = 2000)]
    connections: u32,

    /// The longest pause of a connection between two messages, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    pause: u32,

    /// Seed of payloads and lives [default: a new one]
    #[arg(long)]
    seed: Option<u32>,

    #[command(flatten)]
    launch: LaunchOptions,
}

/// Plays it, and prints a line for each process.
///
/// **Errors**: something grows, a byte is another, or a connection has ended as none may.
pub(crate) fn run(options: &Options) -> Result<()> {
    let seed = options.seed.map_or_else(suite::new_seed, Ok)?;
    println!("seed {seed} (repeat with --seed {seed})");
    let leftovers = Leftovers::note();
    let mut summary = Summary::default();
    summary.add("soak", "", suite::play(&["ip"], || soak(options, seed)));
    let nothing_left = || leftovers.check().map(|()| String::new());
    summary.add("nothing left behind", "", suite::play(&[], nothing_left));
    summary.conclude("soak", Some(seed))
}

const PORT: u16 = 7_609;

/// Looks at the processes in all that time, and the shortest pause between two.
const LOOKS: u32 = 240;
const LOOK_INTERVAL_MIN: Duration = Duration::from_millis(250);

/// A part of the time after which what is kept for the next connection has been kept.
const WARM_UP: f64 = 0.4;

/// Descriptors that a process may have more of in the end: memory of peers that it still knows.
const DESCRIPTORS_KEPT: u64 = 16;

fn soak(options: &Options, seed: u32) -> Result<String> {
    let repo = place::repo_root()?;
    let scratch = place::scratch_dir(&repo, "sidestep-soak")?;
    let program = place::compile_c(&repo.join("tests/soak/soak.c"), &scratch)?;
    let launcher = Launcher::new(&options.launch, &repo)?;
    let hosts = Hosts::set(launcher.observer(), scratch.join("hosts"), Ground::ONE_CABLE)?;
    let scene = Scene { hosts: &hosts, program, options, seed };
    let mut between = Pair::start(&scene, true)?;
    let mut within = Pair::start(&scene, false)?;
    let mut watched = vec![
        Watched::new("agent of the server", hosts.server.agent_pid())?,
        Watched::new("agent of the client", hosts.client.agent_pid())?,
        Watched::new("gateway of the server", hosts.server.gateway_pid())?,
        Watched::new("gateway of the client", hosts.client.gateway_pid())?,
        Watched::new("server between hosts", between.server.pid())?,
        Watched::new("server within one host", within.server.pid())?,
    ];
    between.call(&scene)?;
    within.call(&scene)?;
    for pair in [&mut between, &mut within] {
        let pid = pair.caller()?.program().pid();
        watched.push(Watched::new(pair.caller_name(), pid)?);
    }

    let time = Duration::from_secs_f64(options.minutes * 60.0);
    let interval = (time / LOOKS).max(LOOK_INTERVAL_MIN);
    let begin = Instant::now();
    while begin.elapsed() < time {
        thread::sleep(interval);
        let is_warm = begin.elapsed() > time.mul_f64(WARM_UP);
        for process in &mut watched {
            process.look(is_warm).with_context(|| between.or_within(&mut within))?;
        }
    }
    let moved = [between.moved(&scene)?, within.moved(&scene)?];
    let said = [between.finish()?, within.finish()?];
    for process in &watched {
        println!("{process}");
    }
    for process in watched.iter().filter(|it| it.outlives_its_connections()) {
        process.await_rest()?;
    }
    watched.iter().try_for_each(Watched::must_be_flat)?;
    for pair in [&mut between, &mut within] {
        pair.server.must_be_alive()?;
    }
    let [of_hosts, of_one] = &said;
    let by_rdma_mb = hosts.bytes_sent()? / 1_000_000;
    ensure!(by_rdma_mb > 0, "the adapters have sent nothing");
    Ok(format!(
        "{:.1} min; between hosts {of_hosts}, {} by the gateways, {by_rdma_mb} MB by RDMA; \
         within one {of_one}, {} by SMC-D",
        options.minutes, moved[0], moved[1]
    ))
}

struct Scene<'a> {
    hosts: &'a Hosts,
    program: PathBuf,
    options: &'a Options,
    seed: u32,
}

/// A server and its caller.
struct Pair {
    server: Program,
    caller: Option<Dialogue>,
    is_between: bool,
}

impl Pair {
    /// The server of the pair.
    fn start(scene: &Scene<'_>, is_between: bool) -> Result<Self> {
        let (host, address, port) = match is_between {
            true => (&scene.hosts.server, SERVER, PORT),
            false => (&scene.hosts.client, CLIENT, PORT + 1),
        };
        let program = scene.program.to_string_lossy();
        let words = [&*program, "serve", address, &port.to_string()];
        let server = host.serve(port, host.program(&words))?;
        Ok(Self { server, caller: None, is_between })
    }

    fn call(&mut self, scene: &Scene<'_>) -> Result<()> {
        let (address, port) = if self.is_between { (SERVER, PORT) } else { (CLIENT, PORT + 1) };
        let options = scene.options;
        let numbers = [
            port.to_string(),
            (options.connections / 2).to_string(),
            (scene.seed + u32::from(port)).to_string(),
            options.pause.to_string(),
        ];
        let [port, count, seed, pause] = &numbers;
        let program = scene.program.to_string_lossy();
        let words = [&*program, "call", address, port, count, seed, pause];
        self.caller = Some(Dialogue::start(scene.hosts.client.program(&words))?);
        Ok(())
    }

    fn caller(&mut self) -> Result<&mut Dialogue> {
        self.caller.as_mut().context("it has called")
    }

    fn caller_name(&self) -> &'static str {
        if self.is_between { "caller between hosts" } else { "caller within one host" }
    }

    /// How many of its connections have left TCP.
    ///
    /// **Errors**: none has.
    fn moved(&mut self, scene: &Scene<'_>) -> Result<u64> {
        let key = if self.is_between { "gateway_connections" } else { "smc_connections" };
        let (name, pid) = (self.caller_name(), self.caller()?.program().pid());
        let totals = scene.hosts.client.totals(pid)?;
        let moved = totals[key].as_u64().unwrap_or(0);
        ensure!(moved > 0, "{name}: {key} is {}", Value::to_string(&totals));
        Ok(moved)
    }

    /// Why a process may be gone: what the pair of one of the callers has said.
    fn or_within(&mut self, other: &mut Self) -> String {
        [self, other]
            .into_iter()
            .filter_map(|pair| pair.caller.take()?.finish(HANG).err())
            .fold(String::from("a process is gone"), |text, error| format!("{text}; {error:#}"))
    }

    /// Lets all connections come to their ends; what the caller says then.
    fn finish(&mut self) -> Result<String> {
        let name = self.caller_name();
        let mut caller = self.caller.take().context("it has called")?;
        caller.hang_up();
        let said = caller.await_line("done ", HANG).context(name)?;
        caller.finish(HANG).context(name)?;
        Ok(said.trim_start_matches("done ").to_owned())
    }
}

/// A process that must not grow.
struct Watched {
    name: &'static str,
    pid: u32,
    /// Before any connection.
    at_first: Look,
    looks: Vec<Look>,
}

/// What a process has.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// Resident, in KB, with what it shares.
    memory_kb: u64,
    descriptors: u64,
    threads: u64,
}

impl Look {
    fn at(pid: u32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let number = |key: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let word = line.and_then(|line| line.split_whitespace().next());
            word.and_then(|word| word.parse().ok()).with_context(|| format!("no {key}"))
        };
        Ok(Self {
            memory_kb: number("VmRSS:")?,
            descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64,
            threads: number("Threads:")?,
        })
    }
}

/// What is looked at, with its unit and how much more of it says nothing.
type Figure = (&'static str, fn(&Look) -> u64, f64);
const FIGURES: [Figure; 3] = [
    ("KB", |look| look.memory_kb, 16_384.0),
    ("descriptors", |look| look.descriptors, 20.0),
    ("threads", |look| look.threads, 3.0),
];

impl Watched {
    fn new(name: &'static str, pid: u32) -> Result<Self> {
        Ok(Self { name, pid, at_first: Look::at(pid)?, looks: Vec::new() })
    }

    fn look(&mut self, is_warm: bool) -> Result<()> {
        let look = Look::at(self.pid).with_context(|| self.name)?;
        if is_warm {
            self.looks.push(look);
        }
        Ok(())
    }

    fn outlives_its_connections(&self) -> bool {
        !self.name.starts_with("caller")
    }

    fn trend(&self, figure: fn(&Look) -> u64) -> Trend {
        Trend::of(&self.looks.iter().map(|look| figure(look) as f64).collect::<Vec<_>>())
    }

    fn must_be_flat(&self) -> Result<()> {
        for (unit, figure, noise) in FIGURES {
            let trend = self.trend(figure);
            ensure!(!trend.is_growth(noise), "{} grows: {trend} {unit}", self.name);
        }
        Ok(())
    }

    /// Waits until it has given back what it had for its connections.
    fn await_rest(&self) -> Result<()> {
        let deadline = Instant::now() + HANG;
        loop {
            let now = Look::at(self.pid)?.descriptors;
            if now <= self.at_first.descriptors + DESCRIPTORS_KEPT {
                return Ok(());
            }
            let (name, before) = (self.name, self.at_first.descriptors);
            ensure!(Instant::now() < deadline, "{name}: {now} descriptors are left of {before}");
            thread::sleep(LOOK_INTERVAL_MIN);
        }
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {:<23}", self.name)?;
        let figures = FIGURES.map(|(unit, figure, _)| format!("{} {unit}", self.trend(figure)));
        f.write_str(&figures.join(", "))
    }
}
