//! The one door for developers: `cargo xtask check`, `test`, `bench`, `fuzz`…
//!
//! | command | what it does |
//! |---|---|
//! | `check` | tidiness, format, lints, documentation |
//! | `test` | everything that must pass: all of these for a short time, without the last three |
//! | `posix` | the POSIX programs of `tests/posix`, plain and preloaded |
//! | `operations` | random lists of socket operations, with Linux TCP as the oracle |
//! | `hostile` | hostile peers and exhausted resources: the victim lives |
//! | `e2e` | strangers' programs, payloads checked, shared memory proven |
//! | `compat` | more of them, for the table of what works |
//! | `suites` | the test suites of other projects, plain and under Sidestep |
//! | `loom` | every interleaving of every shared word |
//! | `races` | many threads on one socket, under ThreadSanitizer |
//! | `fuzz` | parsers, the ring and lists of operations, for a bounded time |
//! | `interop` | a stock Linux kernel, in a virtual machine, is the peer |
//! | `kernels` | the IP filter in older kernels, in virtual machines |
//! | `kubernetes` | manifests and the plugin of container runtimes, against real parts of Kubernetes |
//! | `demo` | redis through TCP, then through shared memory, or by RDMA between two hosts |
//! | `bench` | TCP against shared memory, interleaved |
//! | `macro` | real middleware, as IBM's papers have it: TCP against shared memory, interleaved |
//! | `walk` | which files a warm send and receive pass, and what they execute |
//! | `schedule` | which thread had which CPU beside endless loops, TCP and shared memory, as a picture |
//! | `soak` | connections that come and go for an hour, and nothing that grows |
//! | `dist` | packages for users, tried on clean systems |
//! | `sim` | ten thousand simulated worlds of each kind by their seeds, for the night |

mod bench;
mod callgrind;
mod capture;
mod compat;
mod costs;
mod cpus;
mod debian;
mod demo;
mod dist;
mod distance;
mod e2e;
mod enclosure;
mod fuzz;
mod hostile;
mod hosts;
mod interop;
mod kernels;
mod kubernetes;
mod lanes;
mod leftovers;
mod maven;
mod nginx;
mod operations;
mod payload;
mod posix;
mod races;
mod schedule;
mod sim;
mod soak;
mod sshd;
mod suite;
mod suites;
mod tidy;
mod user;
mod walk;
mod witness;

use anyhow::{Context, Result, ensure};
use bench::place;
use clap::{Parser, Subcommand};
use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

#[derive(Parser)]
#[command(about = "Developer tasks of Sidestep")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Tidiness, format, lints and documentation, warnings as errors.
    Check,
    /// Everything that must pass, fast parts first.
    Test,
    /// The POSIX programs, plain and preloaded.
    Posix(posix::Options),
    /// Random lists of socket operations, with Linux TCP as the oracle.
    Operations(operations::Options),
    /// Hostile peers and exhausted resources.
    Hostile(hostile::Options),
    /// End to end with unmodified programs.
    E2e(e2e::E2eOptions),
    /// Strangers' programs of many kinds, for docs/compatibility.md.
    Compat(compat::Options),
    /// The test suites of other projects, plain and under Sidestep.
    Suites(suites::Options),
    /// The model checker over every shared word.
    Loom,
    /// Many threads on one socket, under ThreadSanitizer (needs a nightly toolchain).
    Races,
    /// Redis through TCP, then through Sidestep, with the proof.
    Demo(demo::Options),
    /// TCP against shared memory in interleaved runs.
    Bench(bench::BenchOptions),
    /// Real middleware as in IBM's papers, TCP against shared memory: the workloads of bench/macro.
    Macro(bench::BenchOptions),
    /// Which files a warm send and a warm receive pass, as ARCHITECTURE.md says, and what they execute.
    Walk,
    /// What messages and connections cost in instructions and system calls, beside the record of bench/costs.jsonl.
    Costs(costs::Options),
    /// Which thread had which CPU beside endless loops, TCP and shared memory, as a picture (needs root).
    Schedule(schedule::Options),
    /// Connections that come and go for an hour, between two hosts and within one: nothing grows.
    Soak(soak::Options),
    /// Simulated worlds, SMC-D and SMC-R, by their seeds.
    Sim(sim::Options),
    /// A stock Linux kernel, in a virtual machine, is the peer (needs root; no KVM, no RDMA hardware).
    Interop(interop::Options),
    /// The tests of the IP filter in older kernels, in virtual machines (no KVM).
    Kernels(kernels::Options),
    /// Manifests and the plugin of container runtimes, against real parts of Kubernetes.
    Kubernetes,
    /// Debian, RPM and tar packages; --try installs, upgrades and purges them on clean systems.
    Dist(dist::Options),
    /// The fuzz targets, each for some seconds.
    Fuzz(fuzz::Options),
}

fn main() -> Result<()> {
    match Arguments::parse().task {
        Task::Check => check(),
        Task::Test => test(),
        Task::Posix(options) => {
            build()?;
            posix::run(&options)
        }
        Task::Operations(options) => {
            debian::ensure(&["gcc"])?;
            build()?;
            operations::run(&options)
        }
        Task::Hostile(options) => {
            debian::ensure(&["gcc"])?;
            build()?;
            hostile::run(&options)
        }
        Task::E2e(options) => {
            debian::ensure_for_e2e()?;
            build()?;
            e2e::run(&options)
        }
        Task::Compat(options) => {
            build()?;
            compat::run(&options)
        }
        Task::Suites(options) => {
            build()?;
            suites::run(&options)
        }
        Task::Loom => loom(),
        Task::Races => races::run(),
        Task::Demo(options) => demo::run(&options),
        Task::Bench(options) => {
            debian::ensure(debian::ALL)?;
            build()?;
            bench::run(&options)
        }
        Task::Macro(options) => {
            if options.needs_build() {
                build()?;
            }
            bench::middleware::run(&options)
        }
        Task::Walk => walk::run(),
        Task::Costs(options) => costs::run(&options),
        Task::Schedule(options) => {
            build()?;
            schedule::run(&options)
        }
        Task::Soak(options) => {
            debian::ensure(&["gcc", "ip"])?;
            build()?;
            soak::run(&options)
        }
        Task::Sim(options) => sim::run(&options),
        Task::Interop(options) => {
            build()?;
            interop::run(&options)
        }
        Task::Kernels(options) => kernels::run(&options),
        Task::Kubernetes => {
            build()?;
            kubernetes::run()
        }
        Task::Dist(options) => dist::run(&options),
        Task::Fuzz(options) => fuzz::run(&options),
    }
}

/// The package of `libsidestep.so`.
const LIBRARY: &str = "sidestep-preload";

/// The workspace of the fuzz targets.
const FUZZ: &str = "fuzz/Cargo.toml";

fn check() -> Result<()> {
    form()?;
    lints()
}

/// What is seen without a compiler.
fn form() -> Result<()> {
    tidy::run()?;
    cargo_if_installed(&["fmt", "--all", "--check"])?;
    cargo_if_installed(&["fmt", "--manifest-path", FUZZ, "--check"])
}

/// Lints and documentation, warnings as errors.
fn lints() -> Result<()> {
    cargo_if_installed(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    // The fuzz targets are a workspace of their own; their build comes late and takes long.
    cargo_if_installed(&[
        "clippy",
        "--manifest-path",
        FUZZ,
        "--bins",
        "--target-dir",
        "target/fuzz",
        "--",
        "-D",
        "warnings",
    ])?;
    // Library and command have one name, so one folder: two of cargo's jobs that clear it at the same
    // time trip over each other.
    document(&["--workspace", "--exclude", LIBRARY])?;
    document(&["--package", LIBRARY])
}

fn document(packages: &[&str]) -> Result<()> {
    run(Command::new("cargo")
        .args(["doc", "--no-deps", "--document-private-items"])
        .args(packages)
        .env("RUSTDOCFLAGS", "-D warnings"))
}

/// What runs side by side once all is built. A long stage stands first in its lane, so that all end at about the same time.
const LANES: &[lanes::Lane] = &[
    &[&["e2e", "hosts", "units", "namespaces"]],
    &[&["e2e", "--except", "hosts", "units", "namespaces"]],
    &[
        &["posix"],
        // What is different there: cancellation, streams, `posix_spawn`, structs.
        &[
            "posix",
            "--libc",
            "musl",
            "--only",
            "preloaded",
            "exec",
            "poll",
            "rights",
            "stdio",
            "threads",
        ],
        &["operations", "--always"],
        &["compat", "--short"],
        &["suites", "--short"],
        &["walk"],
        &["costs"],
    ],
    &[
        &["hostile"],
        // A tenth of the connections, which live a tenth as long.
        &["soak", "--minutes", "1.5", "--connections", "400", "--pause", "200"],
        &["interop", "--short"],
    ],
];

fn test() -> Result<()> {
    form()?;
    thread::scope(|scope| {
        let prepared = scope.spawn(|| lanes::timed("preparations", prepare));
        let tested = test_crates();
        if let Err(error) = &tested {
            eprintln!("{error:#}; waiting for the preparations of what comes next to end");
        }
        prepared.join().expect("it does not panic").and(tested)
    })?;
    lanes::run(LANES, &put_together()?)
}

/// What needs compilers alone.
fn test_crates() -> Result<()> {
    lanes::timed("lints", lints)?;
    lanes::timed("unit tests", || cargo(&["test", "--quiet", "--workspace"]))?;
    lanes::timed("loom", loom)?;
    lanes::timed("races", races::run)?;
    lanes::timed("fuzz", || fuzz::run(&fuzz::Options::short()))
}

/// What tests with unmodified programs need, made on the time that compilers and tests leave when they wait.
fn prepare() -> Result<()> {
    debian::ensure_for_e2e()?;
    run(Command::new("nice").args(["cargo", "build", "--release", "--package", LIBRARY]))?;
    // What cannot be had is said when it is needed.
    let _ = interop::fetch();
    Ok(())
}

fn loom() -> Result<()> {
    run(Command::new("cargo")
        .args(["test", "--package", "sidestep-device", "--lib", "--profile", "quick", "loom"])
        .args(["--target-dir", "target/loom"])
        .env("RUSTFLAGS", "--cfg loom")
        .env("LOOM_MAX_PREEMPTIONS", "3"))
}

/// The library as it is shipped, and beside it the command that its own tests have used, which has its assertions: to
/// optimize it takes as long as half of all other compiling.
fn put_together() -> Result<PathBuf> {
    let repo = place::repo_root()?;
    let (target, built) = (place::target_dir(&repo), place::scratch_dir(&repo, "sidestep-built")?);
    for (from, name) in [("debug", "sidestep"), ("release", "libsidestep.so")] {
        let from = target.join(from).join(name);
        fs::copy(&from, built.join(name)).with_context(|| from.display().to_string())?;
    }
    Ok(built)
}

/// Builds the library and the command as they are shipped, unless there is a build for this stage.
fn build() -> Result<()> {
    if env::var_os(place::BUILT).is_some() {
        return Ok(());
    }
    cargo(&["build", "--release", "--package", LIBRARY, "--package", "sidestep-cli"])
}

/// For the commands that some distributions leave out of their Rust.
fn cargo_if_installed(arguments: &[&str]) -> Result<()> {
    let version = Command::new("cargo").args([arguments[0], "--version"]).output();
    if version.is_ok_and(|output| output.status.success()) {
        return cargo(arguments);
    }
    println!("cargo {}: skipped, it is not installed", arguments[0]);
    Ok(())
}

fn cargo(arguments: &[&str]) -> Result<()> {
    run(Command::new("cargo").args(arguments))
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}
