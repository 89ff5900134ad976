//! The load: warmed until its rate is flat, then measured.
//!
//! A driver runs without end and says each second how much it did. What happens between two moments is measured:
//! transactions, their response times, and the CPU time of the driver's and all servers' processes. Two kinds are
//! known. [Ours](Kind::Ours) are Java programs of `bench/macro/java` that are told by a line when to begin and when
//! to end, and answer with a line of JSON. [`pgbench`](Kind::Pgbench) takes no orders; it logs each transaction with
//! the time of its end, so those between the two moments are picked out of its log.

use std::fs;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::stage::Stage;
use super::workload::Kind;
use crate::bench::lab::RUN_PATIENCE;
use crate::bench::launch::{self, Dialogue};

/// Seconds until the programs have got used to the endless loops, which rest while they are warmed.
const SETTLING_S: usize = 1;

/// Pause between two looks at the log of pgbench.
const LOG_INTERVAL: Duration = Duration::from_millis(50);

/// What a run found out.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) transactions: f64,
    pub(super) seconds: f64,
    /// Of all processes.
    pub(super) cpu_s: f64,
    pub(super) latencies: Latencies,
}

/// Response times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Latencies {
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
}

/// Runs the driver against the servers.
///
/// **Errors**: it failed, or over SMC none of its connections was SMC.
pub(super) fn drive(stage: &Stage<'_>) -> Result<Figures> {
    let mut load = stage.lab.in_peace(|| {
        let mut load = Load::start(stage)?;
        load.warm(stage)?;
        Ok(load)
    })?;
    for _ in 0..SETTLING_S {
        load.next_second()?;
    }
    match load.kind {
        Kind::Ours => measure_ours(stage, load),
        Kind::Pgbench => measure_pgbench(stage, load),
    }
}

/// A driver at work.
struct Load {
    kind: Kind,
    program: Dialogue,
}

impl Load {
    fn start(stage: &Stage<'_>) -> Result<Self> {
        let driver = &stage.workload.driver;
        let mut command = stage.command(&driver.command, driver.accelerated)?;
        let program = match driver.kind {
            Kind::Ours => Dialogue::start(command)?,
            Kind::Pgbench => {
                command.args(["--progress=1", "--log"]);
                command.arg(format!("--log-prefix={}", stage.path(LOG_PREFIX).display()));
                // Longer than anything: it is killed.
                command.arg("--time=86400");
                Dialogue::start_merged(command)?
            }
        };
        Ok(Self { kind: driver.kind, program })
    }

    /// The rate of the next whole second.
    fn next_second(&mut self) -> Result<f64> {
        match self.kind {
            Kind::Ours => {
                let line = self.program.await_line(SECOND, RUN_PATIENCE)?;
                line[SECOND.len()..].trim().parse().with_context(|| format!("a rate in '{line}'"))
            }
            Kind::Pgbench => {
                let line = self.program.await_line(PROGRESS, RUN_PATIENCE)?;
                progress_of(&line).with_context(|| format!("a rate in '{line}'"))
            }
        }
    }

    fn warm(&mut self, stage: &Stage<'_>) -> Result<()> {
        let rule = stage.workload.warm_up;
        let mut rates = Vec::new();
        while !rule.is_flat(&rates) {
            if rates.len() >= rule.at_most_s {
                let name = &stage.workload.name;
                stage.lab.note(format!(
                    "{name}: its rate was not flat after {} s, and was measured as it was",
                    rule.at_most_s
                ));
                break;
            }
            rates.push(self.next_second()?);
        }
        Ok(())
    }

    /// Lets whole seconds pass, as many as a run measures at least.
    fn pass(&mut self, duration: Duration) -> Result<()> {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            self.next_second()?;
        }
        Ok(())
    }

    fn cpu_s(&mut self, stage: &Stage<'_>) -> f64 {
        stage.cpu_s() + launch::cpu_s(&self.program.program().family())
    }
}

// ---- ours ----------------------------------------------------------------

/// How the line of a second begins.
const SECOND: &str = "second";

/// How the line with the result begins.
const MEASURED: &str = "measured";

/// The result, in the words of `Load.java`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    transactions: f64,
    seconds: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
}

fn measure_ours(stage: &Stage<'_>, mut load: Load) -> Result<Figures> {
    load.program.say("measure")?;
    load.program.await_line("measuring", RUN_PATIENCE)?;
    let cpu_before_s = load.cpu_s(stage);
    load.pass(stage.lab.duration())?;
    load.program.say("stop")?;
    let line = load.program.await_line(MEASURED, RUN_PATIENCE)?;
    let cpu_s = load.cpu_s(stage) - cpu_before_s;
    stage.prove(load.program.program())?;
    // It ends when it hears no more, and fails if a payload was wrong.
    load.program.finish(RUN_PATIENCE)?;
    figures_of(&line, cpu_s)
}

fn figures_of(line: &str, cpu_s: f64) -> Result<Figures> {
    let answer: Answer = serde_json::from_str(line.trim_start_matches(MEASURED))
        .with_context(|| format!("the result in '{line}'"))?;
    let Answer { transactions, seconds, mean_us, p50_us, p99_us, p999_us } = answer;
    let latencies = Latencies { mean_us, p50_us, p99_us, p999_us };
    Ok(Figures { transactions, seconds, cpu_s, latencies })
}

// ---- pgbench -------------------------------------------------------------

/// How its line of a second begins.
const PROGRESS: &str = "progress:";

/// How the files of its log begin, one for each thread.
const LOG_PREFIX: &str = "transactions";

fn measure_pgbench(stage: &Stage<'_>, mut load: Load) -> Result<Figures> {
    let cpu_before_s = load.cpu_s(stage);
    let begin_s = epoch_s()?;
    load.pass(stage.lab.duration())?;
    let end_s = epoch_s()?;
    let cpu_s = load.cpu_s(stage) - cpu_before_s;
    stage.prove(load.program.program())?;
    let logged = await_log(stage, &mut load, end_s)?;
    if let Some(aborted) = aborted_in(load.program.said()) {
        bail!("a client of pgbench has given up: {aborted}");
    }
    let mut within: Vec<f64> = logged
        .iter()
        .filter(|it| (begin_s..end_s).contains(&it.ended_s))
        .map(|it| it.latency_us)
        .collect();
    within.sort_by(f64::total_cmp);
    let latencies = latencies_of(&within).context("no transaction ended while it was measured")?;
    let transactions = within.len() as f64;
    Ok(Figures { transactions, seconds: end_s - begin_s, cpu_s, latencies })
}

fn epoch_s() -> Result<f64> {
    Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64())
}

/// The log, once each of its files goes beyond `end_s`: what is before it is whole then.
fn await_log(stage: &Stage<'_>, load: &mut Load, end_s: f64) -> Result<Vec<Logged>> {
    let deadline = Instant::now() + RUN_PATIENCE;
    loop {
        let files = log_files(stage)?;
        let is_whole = |file: &Vec<Logged>| file.last().is_some_and(|it| it.ended_s > end_s);
        if !files.is_empty() && files.iter().all(is_whole) {
            return Ok(files.into_iter().flatten().collect());
        }
        load.program.program().must_be_alive()?;
        ensure!(Instant::now() < deadline, "pgbench's log does not grow");
        thread::sleep(LOG_INTERVAL);
    }
}

fn log_files(stage: &Stage<'_>) -> Result<Vec<Vec<Logged>>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(stage.path(""))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(LOG_PREFIX) {
            let text = fs::read_to_string(entry.path())?;
            // The last line may be half written.
            let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
            files.push(whole.lines().filter_map(logged_of).collect());
        }
    }
    Ok(files)
}

/// pgbench goes on with the other clients when one of them has met an error.
fn aborted_in(said: &str) -> Option<&str> {
    said.lines().find(|line| line.starts_with("pgbench: error:"))
}

/// A transaction of the log.
#[derive(Debug, PartialEq)]
struct Logged {
    ended_s: f64,
    latency_us: f64,
}

/// From `CLIENT NUMBER LATENCY SCRIPT SECONDS MICROSECONDS`; one that failed has no latency.
fn logged_of(line: &str) -> Option<Logged> {
    let fields: Vec<&str> = line.split(' ').collect();
    let [_, _, latency, _, seconds, micros, ..] = fields[..] else { return None };
    let ended_s = seconds.parse::<f64>().ok()? + micros.parse::<f64>().ok()? / 1e6;
    Some(Logged { ended_s, latency_us: latency.parse().ok()? })
}

/// From `progress: 3.0 s, 10066.0 tps, lat 0.993 ms stddev 0.2, 0 failed`.
fn progress_of(line: &str) -> Option<f64> {
    let (before, _) = line.split_once(" tps")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// Of values in their order; `None` when there are none.
fn latencies_of(sorted_us: &[f64]) -> Option<Latencies> {
    let last = sorted_us.len().checked_sub(1)?;
    // The nearest rank: the least value that so many parts do not exceed.
    let rank = |part: f64| {
        let count = (part * sorted_us.len() as f64).ceil() as usize;
        sorted_us[count.saturating_sub(1).min(last)]
    };
    let mean_us = sorted_us.iter().sum::<f64>() / sorted_us.len() as f64;
    Some(Latencies { mean_us, p50_us: rank(0.5), p99_us: rank(0.99), p999_us: rank(0.999) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_of_a_driver_of_ours_is_a_line_of_json() -> Result<()> {
        let line = r#"measured {"transactions": 4, "seconds": 2.0, "mean_us": 5.5, "p50_us": 5.0, "p99_us": 7.0, "p999_us": 9.0}"#;
        let figures = figures_of(line, 0.5)?;
        assert_eq!((figures.transactions, figures.seconds, figures.cpu_s), (4.0, 2.0, 0.5));
        assert_eq!(figures.latencies.p999_us, 9.0);
        assert!(figures_of("measured {}", 0.5).is_err());
        Ok(())
    }

    #[test]
    fn pgbench_s_lines_are_understood() {
        let progress = "progress: 3.0 s, 10066.5 tps, lat 0.993 ms stddev 0.200, 0 failed";
        assert_eq!(progress_of(progress), Some(10_066.5));
        let logged = Logged { ended_s: 1_412_881_037.912_698, latency_us: 1_600.0 };
        assert_eq!(logged_of("0 199 1600 0 1412881037 912698"), Some(logged));
        assert_eq!(logged_of("0 199 failed 0 1412881037 912698"), None);
        assert_eq!(logged_of("0 199 16"), None);
    }

    #[test]
    fn a_client_that_gave_up_is_noticed() {
        let error = "pgbench: error: client 3 script 2 aborted in command 5 query 0: ERROR:  no";
        assert_eq!(aborted_in(&format!("pgbench (15.1)\n{error}\n")), Some(error));
        assert_eq!(aborted_in("pgbench (15.1)\n"), None);
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=1000).map(f64::from).collect();
        let latencies = Latencies { mean_us: 500.5, p50_us: 500.0, p99_us: 990.0, p999_us: 999.0 };
        assert_eq!(latencies_of(&values), Some(latencies));
        assert_eq!(latencies_of(&[7.0]).map(|it| it.p999_us), Some(7.0));
        assert_eq!(latencies_of(&[]), None);
    }
}
