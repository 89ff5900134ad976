//! `cargo xtask bench`: the project's promises about speed and memory,
//! measured with real programs.
//!
//! Every workload runs over TCP and over SMC in turn, TCP, SMC, SMC, TCP and
//! so on, so that both see the same moods of the machine and neither always
//! comes after the other; what counts is the median of the pairs' ratios. The programs are unmodified and have their
//! default settings. Nothing here fails because of a number: numbers are for
//! people, on a quiet machine.

mod brokers;
mod databases;
mod distributor;
mod files;
mod filter;
mod ftp;
mod hosts;
mod lab;
pub(crate) mod launch;
mod measure;
pub(crate) mod middleware;
mod modeled;
mod musl;
mod namespaces;
pub(crate) mod place;
mod published;
mod report;
mod syslog;
mod tap;
mod top;
mod vip;
mod web;
pub(crate) mod workloads;

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::Args;

use crate::debian;
use lab::{Lab, Lacking};
use launch::{LaunchOptions, Launcher, Transport};
use measure::{Noise, Verdict};
use report::{Measured, Pair};
use workloads::{MANY, Row, Sampling, WORKLOADS, Workload};

/// Our own programs, in `bench/`.
const OWN_PROGRAMS: [&str; 5] = ["rr", "idle", "foreign", "setup", "crr"];

/// Options of `cargo xtask bench`.
#[derive(Args, Debug)]
pub(crate) struct BenchOptions {
    /// Only workloads with this text in their name (`--list` shows them)
    #[arg(value_name = "FILTER")]
    filter: Option<String>,

    /// Show the workloads and their promises, run nothing
    #[arg(long)]
    list: bool,

    /// How often each workload runs over TCP and then over SMC
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,

    /// How long each run measures [default: 1; of real middleware 5]
    #[arg(long)]
    seconds: Option<f64>,

    /// Endless loops of the same priority beside the programs: one number, or several, such as
    /// 0,2,4. Beside them it is promised that SMC is not slower than TCP
    #[arg(long, value_name = "K", value_delimiter = ',', default_value = "0")]
    neighbours: Vec<usize>,

    /// Also write all numbers to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Compare with another build in place of TCP: its `sidestep` command. Each row then promises
    /// what that build has, within 3 %
    #[arg(long, value_name = "FILE", conflicts_with = "plain")]
    against: Option<PathBuf>,

    #[command(flatten)]
    launch: LaunchOptions,
}

/// How long one run of the bench measures.
const SECONDS: f64 = 1.0;

/// Measures, and prints the table.
///
/// **Errors**: a workload could not be run to its end, or nothing matched.
pub(crate) fn run(options: &BenchOptions) -> Result<()> {
    let chosen: Vec<&Workload> = WORKLOADS.iter().filter(|it| options.wants(it.name)).collect();
    ensure!(!chosen.is_empty(), "no workload of that name: see `cargo xtask bench --list`");
    if options.list {
        list(&chosen);
        return Ok(());
    }
    let lab = options.lab(SECONDS)?;
    compile_own_programs(&lab)?;
    tabulate(options, &lab, &chosen, |it| it.name, measure)
}

/// Measures what was chosen beside each number of endless loops, and prints the table and what it was like here.
///
/// **Errors**: something could not be measured.
fn tabulate<'a, W>(
    options: &BenchOptions,
    lab: &Lab,
    chosen: &[&'a W],
    name: impl Fn(&'a W) -> &'a str,
    measure: impl Fn(&Lab, &'a W, usize, u32) -> Result<Vec<Measured<'a>>>,
) -> Result<()> {
    let noise = Noise::watch()?;
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    report::print_heading(lab.launcher.sides());
    for neighbours in &options.neighbours {
        if options.neighbours != [0] {
            report::print_neighbours(*neighbours);
        }
        for workload in chosen {
            let name = name(workload);
            match measure(lab, workload, *neighbours, options.pairs) {
                Ok(measured) => rows.extend(measured),
                Err(error) if error.is::<Lacking>() => {
                    report::print_remark(name, &format!("skipped: {error:#}"));
                }
                Err(error) => {
                    report::print_remark(name, &format!("FAILED: {error:#}"));
                    failed.push(name);
                }
            }
        }
    }
    print_summary(lab, &noise, &rows)?;
    if let Some(file) = &options.json {
        report::write_json(file, &noise, &rows)?;
    }
    if !failed.is_empty() {
        bail!("could not be measured: {}", failed.join(", "));
    }
    Ok(())
}

impl BenchOptions {
    fn wants(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }

    /// Whether it takes the release build.
    pub(crate) fn needs_build(&self) -> bool {
        !self.list && self.launch.needs_build()
    }

    /// A lab in which one run measures for so many seconds, unless the options name others.
    fn lab(&self, seconds: f64) -> Result<Lab> {
        let seconds = self.seconds.unwrap_or(seconds);
        // An upper limit only so that a typing error does not take a night.
        ensure!((0.1..=60.0).contains(&seconds), "--seconds is from 0.1 to 60");
        let repo = place::repo_root()?;
        let scratch = place::scratch_dir(&repo, "sidestep-bench")?;
        let mut launcher = Launcher::new(&self.launch, &repo)?;
        if let Some(other) = &self.against {
            launcher = launcher.against_build(other)?;
        }
        Ok(Lab::new(launcher, seconds, scratch))
    }
}

fn compile_own_programs(lab: &Lab) -> Result<()> {
    if place::first_missing(&["gcc"]).is_none() {
        let sources = place::repo_root()?.join("bench");
        for name in OWN_PROGRAMS {
            place::compile_c(&sources.join(format!("{name}.c")), &lab.scratch)?;
        }
    }
    Ok(())
}

fn list(chosen: &[&Workload]) {
    for workload in chosen {
        for row in workload.rows {
            println!(
                "{:<18} {:<34} must {bound} {}, aim {bound} {}",
                workload.name,
                row.name,
                row.must,
                row.aim,
                bound = row.bound,
            );
        }
    }
}

/// Runs one workload's pairs beside so many endless loops and prints its rows. What cannot be
/// installed is said and gives no rows.
fn measure(
    lab: &Lab,
    workload: &Workload,
    neighbours: usize,
    pairs: u32,
) -> Result<Vec<Measured<'static>>> {
    if !has_packages(workload.name, workload.packages) {
        return Ok(Vec::new());
    }
    let mut measured = unmeasured(lab, workload.rows.iter().copied(), neighbours);
    lab.surround(neighbours)?;
    match workload.sampling {
        Sampling::Runs(run) => interleave(lab, run, pairs, &mut measured)?,
        Sampling::ManyRuns(run) => interleave(lab, run, pairs * MANY, &mut measured)?,
        Sampling::Pairs(take) => measured[0].pairs = take(lab, pairs)?,
    }
    lab.surround(0)?;
    measured.iter().for_each(Measured::print);
    Ok(measured)
}

/// Whether a workload has its packages, perhaps since now; it is said when it has not.
fn has_packages(name: &str, packages: &[&str]) -> bool {
    let ensured = debian::ensure(packages);
    if let Err(error) = &ensured {
        report::print_remark(name, &format!("skipped: {error:#}"));
    }
    ensured.is_ok()
}

/// Rows with what is promised of them beside so many endless loops, or against another build.
fn unmeasured<'a>(
    lab: &Lab,
    rows: impl IntoIterator<Item = Row<'a>>,
    neighbours: usize,
) -> Vec<Measured<'a>> {
    let promised = |row: Row<'a>| match (lab.launcher.against(), neighbours) {
        (Some(_), _) => row.against_build(),
        (None, 0) => row,
        (None, _) => row.beside_neighbours(),
    };
    let unmeasured = |row| Measured { row: promised(row), neighbours, pairs: Vec::new() };
    rows.into_iter().map(unmeasured).collect()
}

/// Neither transport always comes first.
fn interleave(
    lab: &Lab,
    run: impl Fn(&Lab, Transport) -> Result<Vec<f64>>,
    pairs: u32,
    measured: &mut [Measured<'_>],
) -> Result<()> {
    for pair in 0..pairs {
        let (tcp, smc) = if pair % 2 == 0 {
            (run(lab, Transport::Tcp)?, run(lab, Transport::Smc)?)
        } else {
            let smc = run(lab, Transport::Smc)?;
            (run(lab, Transport::Tcp)?, smc)
        };
        for ((row, tcp), smc) in measured.iter_mut().zip(tcp).zip(smc) {
            row.pairs.push(Pair { tcp, smc });
        }
    }
    Ok(())
}

fn print_summary(lab: &Lab, noise: &Noise, rows: &[Measured<'_>]) -> Result<()> {
    println!();
    for note in lab.notes.borrow().iter() {
        println!("{note}");
    }
    report::print_noise(noise)?;
    let count = |verdict| rows.iter().filter(|row| row.verdict() == Some(verdict)).count();
    println!(
        "{} rows: {} met their aim, {} their must, {} missed it",
        rows.len(),
        count(Verdict::Aim),
        count(Verdict::Must),
        count(Verdict::Missed),
    );
    Ok(())
}
