//! What is measured: every workload starts its own server, runs once over
//! one transport, and answers with one number for each of its rows.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::launch::{self, Dialogue, Launcher, Program, Transport};
use super::measure::{Bound, Compare};

/// How long one run may take beyond the time it measures.
const RUN_PATIENCE: Duration = Duration::from_secs(60);

/// One line of the table: a promise and how it is judged.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Of the samples, not of a ratio made of them.
    pub(crate) unit: &'static str,
    pub(crate) compare: Compare,
    pub(crate) bound: Bound,
    pub(crate) must: f64,
    pub(crate) aim: f64,
}

impl Row {
    const fn ratio(
        name: &'static str,
        unit: &'static str,
        compare: Compare,
        must: f64,
        aim: f64,
    ) -> Self {
        Self { name, unit, compare, bound: Bound::AtLeast, must, aim }
    }

    const fn added(name: &'static str, unit: &'static str, must: f64, aim: f64) -> Self {
        Self { name, unit, compare: Compare::SmcMinusTcp, bound: Bound::AtMost, must, aim }
    }
}

/// Something to run over both transports.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// Commands without which it is skipped.
    pub(crate) needs: &'static [&'static str],
    pub(crate) rows: &'static [Row],
    /// Runs once; the answer has a number for each row, in their order.
    pub(crate) sample: fn(&Lab, Transport) -> Result<Vec<f64>>,
}

/// The table of the project's promises, in the order of its rows.
pub(crate) const WORKLOADS: &[Workload] = &[
    Workload {
        name: "sockperf",
        needs: &["sockperf"],
        rows: &[Row::ratio("sockperf 64 B, p50 RTT", "µs", Compare::TcpOverSmc, 30.0, 100.0)],
        sample: |lab, transport| sockperf(lab, transport, None),
    },
    Workload {
        name: "sockperf-one-cpu",
        needs: &["sockperf", "taskset"],
        rows: &[Row::ratio("sockperf 64 B, p50, one CPU", "µs", Compare::TcpOverSmc, 1.0, 2.5)],
        sample: |lab, transport| sockperf(lab, transport, Some(first_cpu()?)),
    },
    Workload {
        name: "redis-c1",
        needs: &["redis-server", "redis-benchmark"],
        rows: &[
            Row::ratio("redis 2 KiB SET, -c 1", "req/s", Compare::SmcOverTcp, 5.0, 10.0),
            Row::ratio("redis 2 KiB GET, -c 1", "req/s", Compare::SmcOverTcp, 5.0, 10.0),
        ],
        sample: |lab, transport| Ok(redis(lab, transport, 1)?.rates().into()),
    },
    Workload {
        name: "redis-c10",
        needs: &["redis-server", "redis-benchmark"],
        rows: &[
            Row::ratio("redis 2 KiB SET, -c 10", "req/s", Compare::SmcOverTcp, 2.5, 4.0),
            Row::ratio("redis 2 KiB GET, -c 10", "req/s", Compare::SmcOverTcp, 2.5, 4.0),
        ],
        sample: |lab, transport| Ok(redis(lab, transport, 10)?.rates().into()),
    },
    Workload {
        name: "redis-c50",
        needs: &["redis-server", "redis-benchmark"],
        rows: &[
            Row::ratio("redis 2 KiB SET, -c 50", "req/s", Compare::SmcOverTcp, 2.5, 4.0),
            Row::ratio("redis 2 KiB GET, -c 50", "req/s", Compare::SmcOverTcp, 2.5, 4.0),
            Row {
                name: "redis server CPU/request, -c 50",
                unit: "µs",
                compare: Compare::SmcOverTcp,
                bound: Bound::AtMost,
                must: 0.5,
                aim: 0.3,
            },
        ],
        sample: |lab, transport| {
            let run = redis(lab, transport, 50)?;
            let [set, get] = run.rates();
            Ok(vec![set, get, run.server_cpu_us_per_request])
        },
    },
    Workload {
        name: "iperf3",
        needs: &["iperf3"],
        rows: &[Row::ratio("iperf3, one stream", "GB/s", Compare::SmcOverTcp, 1.5, 2.5)],
        sample: |lab, transport| iperf3(lab, transport, &[]),
    },
    Workload {
        name: "iperf3-1m",
        needs: &["iperf3"],
        rows: &[Row::ratio("iperf3, one stream, -l 1M", "GB/s", Compare::SmcOverTcp, 1.5, 2.5)],
        sample: |lab, transport| iperf3(lab, transport, &["-l", "1M"]),
    },
    Workload {
        name: "rr-threads",
        needs: &["gcc"],
        rows: &[Row::ratio("RR10(2KB/2KB), threads", "tran/s", Compare::SmcOverTcp, 3.0, 8.3)],
        sample: |lab, transport| request_response(lab, transport, "threads"),
    },
    Workload {
        name: "rr-epoll",
        needs: &["gcc"],
        rows: &[Row::ratio("RR10(2KB/2KB), epoll", "tran/s", Compare::SmcOverTcp, 8.3, 20.0)],
        sample: |lab, transport| request_response(lab, transport, "epoll"),
    },
    Workload {
        name: "foreign",
        needs: &["gcc"],
        rows: &[Row::added("send/recv on a foreign fd, added", "ns", 10.0, 3.0)],
        sample: foreign,
    },
    // Last: it leaves thousands of connections in TIME_WAIT behind.
    Workload {
        name: "idle",
        needs: &["gcc"],
        rows: &[
            // "No CPU": what is left is a timer tick that hit a sleeper's CPU.
            Row::added("10 000 idle, CPU of both ends", "µs/s", 100.0, 100.0),
            Row::added("10 000 idle, memory per end", "KB", 16.0, 8.0),
        ],
        sample: idle,
    },
];

/// What the workloads share.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) launcher: Launcher,
    /// How long one run measures.
    pub(crate) seconds: f64,
    /// For logs and compiled programs.
    pub(crate) scratch: PathBuf,
    /// Remarks for below the table.
    pub(crate) notes: RefCell<BTreeSet<String>>,
    /// Requests per second seen last, by transport and clients: redis-benchmark
    /// wants a number of requests, not a time.
    redis_rates: RefCell<HashMap<(bool, u32), f64>>,
}

impl Lab {
    pub(crate) fn new(launcher: Launcher, seconds: f64, scratch: PathBuf) -> Self {
        let (notes, redis_rates) = (RefCell::default(), RefCell::default());
        Self { launcher, seconds, scratch, notes, redis_rates }
    }

    fn serve(&self, transport: Transport, port: u16, words: &[&str]) -> Result<Program> {
        let mut program = Program::start(self.command(transport, words)?, &self.scratch)?;
        program.await_listener(port)?;
        Ok(program)
    }

    fn run(&self, transport: Transport, words: &[&str]) -> Result<String> {
        let patience = RUN_PATIENCE + Duration::from_secs_f64(self.seconds);
        launch::run(self.command(transport, words)?, patience)
    }

    fn command(&self, transport: Transport, words: &[&str]) -> Result<Command> {
        let (program, args) = words.split_first().context("an empty command")?;
        Ok(self.launcher.launch(transport, program, args))
    }

    /// One of our own programs, compiled when the bench began.
    fn own(&self, name: &str) -> String {
        self.scratch.join(name).display().to_string()
    }

    fn note(&self, text: String) {
        self.notes.borrow_mut().insert(text);
    }
}

// ---- sockperf ------------------------------------------------------------

fn sockperf(lab: &Lab, transport: Transport, cpu: Option<String>) -> Result<Vec<f64>> {
    let port = launch::free_port()?;
    let port_text = port.to_string();
    let address = ["--tcp", "-i", "127.0.0.1", "-p", &port_text];
    let pin = cpu.as_ref().map_or(vec![], |cpu| vec!["taskset", "-c", cpu]);
    // It counts whole seconds, of which it spends 0.4 on warming up.
    let seconds = lab.seconds.ceil().to_string();

    let mut server =
        lab.serve(transport, port, &[&pin[..], &["sockperf", "sr"], &address].concat())?;
    let client = [
        "sockperf",
        "ping-pong",
        "-m",
        "64",
        "--full-rtt",
        // It refuses sequence numbers beyond 600 000 a second, so it must not be
        // answered faster than that; over TCP the pace is never reached.
        "--mps=250000",
        "-t",
        &seconds,
    ];
    let output = lab.run(transport, &[&pin[..], &client, &address].concat())?;
    server.must_be_alive()?;
    Ok(vec![median_us(&output).context("sockperf printed no percentile 50")?])
}

/// From `sockperf: ---> percentile 50.000 =   54.480`.
fn median_us(output: &str) -> Option<f64> {
    let line = output.lines().find(|line| line.contains("percentile 50.000"))?;
    line.rsplit_once('=')?.1.trim().parse().ok()
}

/// The first CPU this process may use.
fn first_cpu() -> Result<String> {
    let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .context("no Cpus_allowed_list in /proc/self/status")?;
    Ok(list.trim().split(['-', ',']).next().unwrap_or("0").to_owned())
}

// ---- redis ---------------------------------------------------------------

/// Enough requests to learn the rate from, few enough to take a moment.
const REDIS_PROBE_REQUESTS: u64 = 2_000;

struct RedisRun {
    set_per_s: f64,
    get_per_s: f64,
    server_cpu_us_per_request: f64,
}

impl RedisRun {
    fn rates(&self) -> [f64; 2] {
        [self.set_per_s, self.get_per_s]
    }
}

fn redis(lab: &Lab, transport: Transport, clients: u32) -> Result<RedisRun> {
    let port = launch::free_port()?;
    let text = port.to_string();
    let options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    let command = [&["redis-server", "--port", &text][..], &options].concat();
    let mut server = lab.serve(transport, port, &command)?;

    let requests = redis_requests(lab, transport, clients, &text)?;
    let cpu_before_s = launch::cpu_s(&server.family());
    let (set_per_s, get_per_s) = redis_benchmark(lab, transport, clients, &text, requests)?;
    let cpu_s = launch::cpu_s(&server.family()) - cpu_before_s;
    server.must_be_alive()?;

    let key = (transport == Transport::Smc, clients);
    lab.redis_rates.borrow_mut().insert(key, set_per_s.min(get_per_s));
    // As many SETs as GETs were made.
    let server_cpu_us_per_request = cpu_s * 1e6 / (2 * requests) as f64;
    Ok(RedisRun { set_per_s, get_per_s, server_cpu_us_per_request })
}

/// How many requests fill the time of one run; a short run finds out first
/// when nothing is known yet.
fn redis_requests(lab: &Lab, transport: Transport, clients: u32, port: &str) -> Result<u64> {
    let known = lab.redis_rates.borrow().get(&(transport == Transport::Smc, clients)).copied();
    let rate = match known {
        Some(rate) => rate,
        None => redis_benchmark(lab, transport, clients, port, REDIS_PROBE_REQUESTS)?.0,
    };
    Ok(((rate * lab.seconds) as u64).max(REDIS_PROBE_REQUESTS))
}

/// SETs, then GETs of the same key; returns the rate of each.
fn redis_benchmark(
    lab: &Lab,
    transport: Transport,
    clients: u32,
    port: &str,
    requests: u64,
) -> Result<(f64, f64)> {
    let (clients, requests) = (clients.to_string(), requests.to_string());
    let what = ["-t", "set,get", "-d", "2048", "-n", &requests, "-c", &clients, "--csv"];
    let command = [&["redis-benchmark", "-h", "127.0.0.1", "-p", port][..], &what].concat();
    let output = lab.run(transport, &command)?;
    let rate = |test| redis_rate(&output, test).context("redis-benchmark printed no rate");
    Ok((rate("SET")?, rate("GET")?))
}

/// From `"SET","16129.03",...`.
pub(crate) fn redis_rate(csv: &str, test: &str) -> Option<f64> {
    let mut rows = csv.lines().map(|line| line.split(',').map(|cell| cell.trim_matches('"')));
    rows.find_map(|mut cells| (cells.next()? == test).then(|| cells.next()?.parse().ok())?)
}

// ---- iperf3 --------------------------------------------------------------

fn iperf3(lab: &Lab, transport: Transport, extra: &[&str]) -> Result<Vec<f64>> {
    const BITS_PER_GIGABYTE: f64 = 8e9;
    let port = launch::free_port()?;
    let text = port.to_string();
    let seconds = lab.seconds.ceil().to_string();
    let server = ["iperf3", "-s", "-B", "127.0.0.1", "-p", &text];
    let mut server = lab.serve(transport, port, &server)?;
    let client = ["iperf3", "-c", "127.0.0.1", "-p", &text, "-t", &seconds, "-J"];
    let output = lab.run(transport, &[&client, extra].concat())?;
    server.must_be_alive()?;
    let report: Value = serde_json::from_str(&output).context("iperf3's report")?;
    Ok(vec![number(&report, "/end/sum_received/bits_per_second")? / BITS_PER_GIGABYTE])
}

// ---- our own programs ----------------------------------------------------

/// Requests per second that IBM's RR10(2KB/2KB) would count.
fn request_response(lab: &Lab, transport: Transport, mode: &str) -> Result<Vec<f64>> {
    let (program, seconds) = (lab.own("rr"), lab.seconds.to_string());
    let words = [&program, "--mode", mode, "--connections", "10", "--seconds", &seconds];
    let report: Value = serde_json::from_str(&lab.run(transport, &words)?)?;
    Ok(vec![number(&report, "/transactions_per_s")?])
}

/// The dearest of the calls whose own time is steady enough to see a
/// nanosecond in (a byte through a socket pair is not).
fn foreign(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let (program, seconds) = (lab.own("foreign"), lab.seconds.to_string());
    let output = lab.run(transport, &[&program, "--seconds", &seconds])?;
    let report: Value = serde_json::from_str(&output)?;
    let mut dearest = f64::NEG_INFINITY;
    for call in ["unix_recv_empty", "null_recv", "null_send"] {
        dearest = dearest.max(number(&report, &format!("/{call}/added_ns"))?);
    }
    Ok(vec![dearest])
}

/// Connections of the promise about idle ones.
const IDLE_CONNECTIONS: u64 = 10_000;

/// CPU of both ends in µs per second, and memory per connection end in KB.
fn idle(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let (program, seconds) = (lab.own("idle"), lab.seconds.to_string());
    let count = IDLE_CONNECTIONS.to_string();
    let words = [&program, "--connections", &count, "--seconds", &seconds, "--hold", "yes"];
    let mut dialogue = Dialogue::start(lab.command(transport, &words)?)?;
    let report: Value = serde_json::from_str(&dialogue.await_line("{", RUN_PATIENCE)?)?;
    if transport == Transport::Smc {
        note_proof(lab, &report)?;
    }
    dialogue.finish(RUN_PATIENCE)?;

    let connections = number(&report, "/connections")?;
    ensure!(
        connections >= IDLE_CONNECTIONS as f64,
        "RLIMIT_NOFILE allows only {connections} connections: raise it with `ulimit -Hn`"
    );
    let cpu_s = number(&report, "/server/cpu_s")? + number(&report, "/client/cpu_s")?;
    let memory_kb = resident_kb(&report)? / (2.0 * connections);
    Ok(vec![cpu_s * 1e6 / number(&report, "/seconds")?, memory_kb])
}

/// Memory of both processes together, each shared page counted once. Shared
/// memory is taken from the host's total when that has grown by more: pages
/// of a segment which nobody maps are resident too.
fn resident_kb(report: &Value) -> Result<f64> {
    let both = |field: &str| -> Result<f64> {
        Ok(number(report, &format!("/server/{field}"))?
            + number(report, &format!("/client/{field}"))?)
    };
    let private = both("pss_anon_kb")? + both("pss_file_kb")?;
    Ok(private + both("pss_shmem_kb")?.max(number(report, "/shmem_growth_kb")?))
}

/// Memory of connections that stayed TCP would look splendid: says how many
/// did not.
fn note_proof(lab: &Lab, report: &Value) -> Result<()> {
    let Some(sidestep) = lab.launcher.observer() else {
        return Ok(());
    };
    let mut command = Command::new(sidestep);
    command.args(["ss", "--json"]);
    let table: Value = serde_json::from_str(&launch::run(command, RUN_PATIENCE)?)?;
    let Some(rows) = table.as_array() else { bail!("`sidestep ss --json` printed no array") };
    let pid = report.pointer("/client/pid");
    let ours = rows.iter().filter(|row| row.get("pid") == pid);
    let smc = ours.filter(|row| row["mode"] == "SMC-D").count();
    lab.note(format!("idle: {smc} of {} connections were SMC-D", report["connections"]));
    Ok(())
}

fn number(report: &Value, pointer: &str) -> Result<f64> {
    report
        .pointer(pointer)
        .and_then(Value::as_f64)
        .with_context(|| format!("no number at {pointer} in the report"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockperf_s_median_is_found_behind_its_colours() {
        let output = "x\nsockperf: ---> percentile 75.000 =   58.346\n\
                      sockperf: ---> percentile 50.000 =   54.480\n";
        assert_eq!(median_us(output), Some(54.48));
        assert_eq!(median_us("nothing"), None);
    }

    #[test]
    fn redis_rates_are_read_by_name() {
        let csv = "\"test\",\"rps\"\n\"SET\",\"16129.03\",\"0.058\"\n\"GET\",\"16680.57\",\"0.05\"";
        assert_eq!(redis_rate(csv, "GET"), Some(16680.57));
        assert_eq!(redis_rate(csv, "PING"), None);
    }

    #[test]
    fn every_aim_is_at_least_as_hard_as_its_must() {
        for row in WORKLOADS.iter().flat_map(|workload| workload.rows) {
            match row.bound {
                Bound::AtLeast => assert!(row.aim >= row.must, "{}", row.name),
                Bound::AtMost => assert!(row.aim <= row.must, "{}", row.name),
            }
        }
    }

    #[test]
    fn unmapped_segments_count_as_memory() -> Result<()> {
        let process = r#"{"pss_anon_kb":10,"pss_file_kb":1,"pss_shmem_kb":5}"#;
        let report = |growth: u32| {
            let text =
                format!(r#"{{"server":{process},"client":{process},"shmem_growth_kb":{growth}}}"#);
            serde_json::from_str::<Value>(&text)
        };
        assert_eq!(resident_kb(&report(0)?)?, 32.0);
        assert_eq!(resident_kb(&report(100)?)?, 122.0);
        Ok(())
    }
}
