//! `sidestep tap` on busy connections: what it costs their programs.
//!
//! Both columns go through shared memory: in that of TCP no tap looks on, in that of SMC one does, and writes a file.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::lab::Lab;
use super::launch::{self, Program, Transport};
use crate::suite::Lacking;

const BITS_PER_GIGABYTE: f64 = 8e9;
/// Seconds at the begin, and about the end of a tap, that are not counted: connections move, and are found.
const SETTLING: usize = 1;
/// How long a tap may take to end.
const ENDING: Duration = Duration::from_secs(5);

/// A tap on everything, while it is there.
struct Onlooker<'a> {
    lab: &'a Lab,
    tap: Program,
    file: String,
}

impl<'a> Onlooker<'a> {
    /// `None` where no tap is to look on.
    fn begin(lab: &'a Lab, transport: Transport, words: &[&str]) -> Result<Option<Self>> {
        if transport != Transport::Smc {
            return Ok(None);
        }
        let Some(sidestep) = lab.launcher.observer() else {
            bail!(Lacking("the tap is in `sidestep`".to_owned()));
        };
        let file = lab.path("tap.pcapng");
        let mut command = Command::new(sidestep);
        command.args(["tap", "all", "--write", &file]).args(words);
        let tap = Program::start(command, &lab.scratch)?;
        Ok(Some(Self { lab, tap, file }))
    }
}

impl Drop for Onlooker<'_> {
    fn drop(&mut self) {
        let _ = launch::signal(self.tap.pid(), libc::SIGTERM);
        let deadline = Instant::now() + ENDING;
        while self.tap.has_ended().is_ok_and(|has_ended| !has_ended) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        if let Some(sums) = self.tap.printed().lines().last() {
            self.lab.note(sums.to_owned());
        }
        let _ = fs::remove_file(&self.file);
    }
}

/// Gigabytes per second of a stream in the first half of its time, in which a tap is there, and in the second.
pub(super) fn stream(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let half = (lab.seconds.ceil() as usize).max(1) + 2 * SETTLING;
    let port = launch::free_port()?;
    let text = port.to_string();
    let server = ["iperf3", "-s", "-B", "127.0.0.1", "-p", &text];
    let mut server = lab.serve(port, lab.command(Transport::Smc, &server)?)?;
    let _tap = Onlooker::begin(lab, transport, &["--duration", &format!("{half}s")])?;
    let seconds = (2 * half).to_string();
    let client = ["iperf3", "-c", "127.0.0.1", "-p", &text, "-t", &seconds, "-i", "1", "-J"];
    let output = lab.run(Transport::Smc, &client)?;
    server.must_be_alive()?;
    let report: Value = serde_json::from_str(&output).context("iperf3's report")?;
    let rate = |at: usize| -> Result<f64> {
        let rate = report.pointer(&format!("/intervals/{at}/sum/bits_per_second"));
        Ok(rate.and_then(Value::as_f64).with_context(|| format!("no second {at}"))?
            / BITS_PER_GIGABYTE)
    };
    let mean = |begin: usize| -> Result<f64> {
        let counted = begin + SETTLING..begin + half - SETTLING;
        let count = counted.len() as f64;
        Ok(counted.map(rate).sum::<Result<f64>>()? / count)
    };
    Ok(vec![mean(0)?, mean(half)?])
}

/// Requests per second on ten connections.
pub(super) fn requests(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let (program, seconds) = (lab.own("rr"), lab.seconds.to_string());
    let _tap = Onlooker::begin(lab, transport, &[])?;
    // Before it has looked for connections once, there are none.
    thread::sleep(Duration::from_millis(300));
    let words = [&program, "--mode", "threads", "--connections", "10", "--seconds", &seconds];
    let report: Value = serde_json::from_str(&lab.run(Transport::Smc, &words)?)?;
    let rate = report.pointer("/transactions_per_s").and_then(Value::as_f64);
    Ok(vec![rate.context("no rate in the report")?])
}
