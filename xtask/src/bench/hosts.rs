//! Two hosts with gateways, by SMC-R over soft RNICs, against TCP over the same cable.
//!
//! Rates are measured by the modeler: its server on one host, its client on the other. Some promises compare
//! SMC-R with itself. Then both columns are SMC-R, and that of TCP has the plain case: no loss, the smaller RMBE,
//! no cut.

use std::cell::OnceCell;
use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sidestep_rdma::faults::Plan;

use super::lab::{Lab, RUN_PATIENCE};
use super::launch::{self, Dialogue, Program, Transport};
use crate::distance::{self, PER_KM};
use crate::hosts::{Ground, Hosts, SERVER};

const PORT: u16 = 7_609;

/// One stream, from the server to the client. Only whole transactions count, so it is measured for longer.
const STREAM: &str = "STR1(1B/20MB)";
const STREAM_RUN: Duration = Duration::from_secs(3);

/// The hosts that there are so far, by what lies between them.
#[derive(Default)]
pub(super) struct Grounds {
    plain: OnceCell<Hosts>,
    divided: OnceCell<Hosts>,
    lossy: OnceCell<Hosts>,
    doubled: OnceCell<Hosts>,
    distant: [OnceCell<Hosts>; KILOMETRES.len()],
}

/// How far hosts are apart that have two routers between them.
const KILOMETRES: [u32; 3] = [0, 10, 100];

impl std::fmt::Debug for Grounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grounds").finish_non_exhaustive()
    }
}

impl Grounds {
    fn plain<'a>(&'a self, lab: &Lab) -> Result<&'a Hosts> {
        made(&self.plain, lab, "plain", Ground::ONE_CABLE)
    }

    /// As hosts are: what one does takes no CPU from the other, and no program of one is on the CPU
    /// on which the other's has just sent.
    fn divided<'a>(&'a self, lab: &Lab) -> Result<&'a Hosts> {
        made(&self.divided, lab, "divided", Ground { is_divided: true, ..Ground::ONE_CABLE })
    }

    fn lossy<'a>(&'a self, lab: &Lab) -> Result<&'a Hosts> {
        made(&self.lossy, lab, "lossy", Ground { faults: "loss=0.1% seed=7", ..Ground::ONE_CABLE })
    }

    /// So many kilometres apart, which `ping` must find as well.
    fn distant<'a>(&'a self, lab: &Lab, which: usize) -> Result<&'a Hosts> {
        let km = KILOMETRES[which];
        let (delay, place) = (km * PER_KM, &self.distant[which]);
        let is_new = place.get().is_none();
        let distance = Some(Plan { delay, ..Plan::PERFECT });
        let hosts = made(place, lab, &format!("km{km}"), Ground { distance, ..Ground::ONE_CABLE })?;
        if is_new {
            let ping = hosts.client.command(&["ping", "-q", "-c", "20", "-i", "0.02", SERVER]);
            let found = distance::check(&launch::run(ping, RUN_PATIENCE)?, delay)?;
            lab.note(format!("{km} km: {delay:?} one way; to and fro `ping` takes {found:?}"));
        }
        Ok(hosts)
    }

    fn doubled<'a>(&'a self, lab: &Lab) -> Result<&'a Hosts> {
        made(&self.doubled, lab, "doubled", Ground::TWO_CABLES)
    }
}

fn made<'a>(
    place: &'a OnceCell<Hosts>,
    lab: &Lab,
    name: &str,
    ground: Ground<'_>,
) -> Result<&'a Hosts> {
    if place.get().is_none() {
        let hosts = Hosts::set(lab.launcher.observer(), lab.scratch.join(name), ground)?;
        let _ = place.set(hosts);
    }
    place.get().context("they were made before")
}

/// Transactions per second of ten clients, by TCP and by SMC-R: of threads and of event loops on hosts
/// that share their CPUs, and of threads on hosts with CPUs of their own.
pub(super) fn requests(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let (shared, divided) = (lab.hosts.plain(lab)?, lab.hosts.divided(lab)?);
    let rate = |hosts, model| {
        let words = ["--over", name_of(transport), "--model", model, "RR10(2KB/2KB)"];
        let run = Run::begin(lab, hosts, lab.duration(), &words)?;
        run.end(lab)?.number("/tps/median")
    };
    Ok(vec![rate(shared, "threads")?, rate(shared, "event-loop")?, rate(divided, "threads")?])
}

/// Megabytes per second of a stream, by TCP and by SMC-R.
pub(super) fn stream(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let run = Run::stream(lab, lab.hosts.plain(lab)?, &["--over", name_of(transport)])?;
    Ok(vec![run.end(lab)?.number("/mb_per_s")?])
}

fn name_of(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Smc => "smc",
    }
}

/// Megabytes per second of a stream, without and with loss.
pub(super) fn loss(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let is_lossy = transport == Transport::Smc;
    let hosts = if is_lossy { lab.hosts.lossy(lab)? } else { lab.hosts.plain(lab)? };
    let run = Run::stream(lab, hosts, &["--over", "smc"])?;
    Ok(vec![run.end(lab)?.number("/mb_per_s")?])
}

/// CPU time that the sender's program and gateway take for a megabyte, in microseconds, with the
/// receiver's RMBE of 256 KB and of 1 MB.
pub(super) fn rmbe(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let len = if transport == Transport::Smc { "1MB" } else { "256KB" };
    let hosts = lab.hosts.divided(lab)?;
    let gateway_before_s = hosts.server.gateway_cpu_s();
    let run = Run::stream(lab, hosts, &["--over", "smc", "--rmbe", len])?;
    let outcome = run.end(lab)?;
    let cpu_s = outcome.server_cpu_s + hosts.server.gateway_cpu_s() - gateway_before_s;
    Ok(vec![cpu_s * 1e12 / outcome.bytes_by_rdma as f64])
}

/// The longest that a program has waited for its answer, in milliseconds, without and with a cut in
/// the middle: of a cable whose ends are told, and of one that goes silent.
pub(super) fn failover(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let hosts = lab.hosts.doubled(lab)?;
    if transport == Transport::Tcp {
        let undisturbed = longest_wait_ms(lab, hosts, |_| Ok(()))?;
        return Ok(vec![undisturbed; 2]);
    }
    let unplugged = longest_wait_ms(lab, hosts, |cable| hosts.unplug(cable))?;
    let silent = longest_wait_ms(lab, hosts, |cable| hosts.silence(cable))?;
    Ok(vec![unplugged, silent])
}

/// At one of the [distances](KILOMETRES): for RMBE of 64 KB and of 1 MB, and of ten connections with requests, of one
/// stream and of three, transactions or megabytes per second, and the CPU time of programs and gateways at both ends,
/// in microseconds for a transaction.
pub(super) fn distance(lab: &Lab, transport: Transport, which: usize) -> Result<Vec<f64>> {
    let hosts = lab.hosts.distant(lab, which)?;
    let mut figures = Vec::new();
    for rmbe in ["64KB", "1MB"] {
        for (load, rate) in [
            ("RR10(32kB/32kB)", "/tps/median"),
            (STREAM, "/mb_per_s"),
            ("STR3(1B/20MB)", "/mb_per_s"),
        ] {
            let lasts = STREAM_RUN.max(lab.duration());
            let words = ["--over", name_of(transport), "--rmbe", rmbe, load];
            let outcome = Run::begin(lab, hosts, lasts, &words)?.end(lab)?;
            let cpu = |side: &str| outcome.number(&format!("/samples/0/cpu_us_per_tran/{side}"));
            figures.extend([outcome.number(rate)?, cpu("client")? + cpu("server")?]);
        }
    }
    Ok(figures)
}

/// How long the modeler measures around a cut.
const CUT_RUN: Duration = Duration::from_secs(3);
/// From the first bytes to the cut.
const CUT_AFTER: Duration = Duration::from_millis(800);
/// Longer than it may take until bytes go by the other cable.
const CUT_LASTS: Duration = Duration::from_secs(1);
/// For the link group to have two links, before the cut.
const LINKS_PATIENCE: Duration = Duration::from_secs(20);

/// `cut` is told the cable by which the bytes go.
fn longest_wait_ms(lab: &Lab, hosts: &Hosts, cut: impl FnOnce(usize) -> Result<()>) -> Result<f64> {
    let lasts = CUT_RUN.max(lab.duration());
    let run = Run::begin(lab, hosts, lasts, &["--over", "smc", "RR4(1KB/1KB)"])?;
    hosts.await_links(2, LINKS_PATIENCE)?;
    thread::sleep(CUT_AFTER);
    cut(hosts.busiest_cable()?)?;
    thread::sleep(CUT_LASTS);
    // The modeler's two sides talk by TCP over the first cable, when they have measured.
    (0..2).try_for_each(|cable| hosts.mend(cable))?;
    Ok(run.end(lab)?.number("/response_us/max")? / 1e3)
}

/// The modeler at work.
struct Run<'a> {
    hosts: &'a Hosts,
    server: Program,
    client: Dialogue,
    json: String,
    is_smc: bool,
    sent_before: u64,
}

impl<'a> Run<'a> {
    fn stream(lab: &Lab, hosts: &'a Hosts, words: &[&str]) -> Result<Self> {
        let lasts = STREAM_RUN.max(lab.duration());
        Self::begin(lab, hosts, lasts, &[words, &[STREAM]].concat())
    }

    fn begin(lab: &Lab, hosts: &'a Hosts, lasts: Duration, words: &[&str]) -> Result<Self> {
        let at = format!("{SERVER}:{PORT}");
        let server = hosts.server.sidestep(&["bench", "serve", "--listen", &at]);
        let server = hosts.server.serve(PORT, server)?;
        let (json, lasts) = (lab.path("hosts.json"), format!("{}ms", lasts.as_millis()));
        let options = ["bench", "--runs", "1", "--duration", &lasts, "--server", &at];
        let words = [&options, &["--json", &json][..], words].concat();
        let sent_before = hosts.bytes_sent()?;
        let client = Dialogue::start(hosts.client.sidestep(&words))?;
        let is_smc = words.contains(&"smc");
        Ok(Self { hosts, server, client, json, is_smc, sent_before })
    }

    /// **Errors**: connections stayed on TCP that were not to, or the bytes did not go by RDMA.
    fn end(self, lab: &Lab) -> Result<Outcome> {
        self.client.finish(lab.patience())?;
        let result: Value = serde_json::from_slice(&fs::read(&self.json)?)?;
        fs::remove_file(&self.json)?;
        let server_cpu_s = launch::cpu_s(&self.server.family());
        let bytes_by_rdma = self.hosts.bytes_sent()? - self.sent_before;
        let outcome = Outcome { result, server_cpu_s, bytes_by_rdma };
        if self.is_smc {
            let bytes =
                outcome.number("/mb_per_s")? * outcome.number("/samples/0/elapsed_s")? * 1e6;
            ensure!(bytes_by_rdma as f64 >= bytes, "{bytes_by_rdma} of {bytes} bytes by RDMA");
        }
        Ok(outcome)
    }
}

/// What the modeler found out, and what was seen beside it.
struct Outcome {
    result: Value,
    server_cpu_s: f64,
    bytes_by_rdma: u64,
}

impl Outcome {
    /// A number of the only result.
    fn number(&self, pointer: &str) -> Result<f64> {
        let number = self.result.pointer(&format!("/results/0{pointer}")).and_then(Value::as_f64);
        number.with_context(|| format!("no {pointer} in the result"))
    }
}
