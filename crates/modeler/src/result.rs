//! What came of a measurement: the document that `--json` writes.
//!
//! The form is part of the interface: it is documented in `docs/bench-json.md`, its
//! schema is a reviewed snapshot, and [`VERSION`] rises when a reader would be
//! misled. A reader ignores what it does not know.
//!
//! Units stand in the names: `us` are microseconds, `mb` are 1 000 000 bytes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contention::Contention;
pub use crate::figure::Figure;
use crate::plan::{Model, Transport};

/// Version of the document's form.
pub const VERSION: u32 = 1;

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Document {
    /// [`VERSION`].
    pub version: u32,
    /// Where and when: the noise certificate.
    pub machine: Machine,
    /// How clients and servers behaved, in words that `sidestep bench` takes
    /// (`--model threads --pairs 5 …`).
    pub options: Vec<String>,
    /// The suite that was run, if it was one.
    pub suite: Option<String>,
    /// One for each workload, model and transport, in the order of the plan.
    pub results: Vec<Cell>,
    /// Transports set against the baseline.
    pub comparisons: Vec<Comparison>,
    /// Workloads under an IP filter, set against the same without.
    #[serde(default)]
    pub filtered: Vec<Filtered>,
}

/// The machine and its moods: how far the figures can be trusted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// Version of Sidestep.
    pub sidestep: String,
    /// When the measurement began: RFC 3339, UTC.
    pub began: String,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// The processor's name.
    pub cpu_model: String,
    /// Processors that may be used.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory: u64,
    /// Name and release of the kernel.
    pub kernel: String,
    /// The hypervisor, when there is one.
    pub hypervisor: Option<String>,
    /// Load averages of 1, 5 and 15 minutes at the beginning.
    pub load_average: [f64; 3],
    /// CPU time taken by other guests, in percent of all CPUs' time.
    pub steal_percent: f64,
    /// CPU time of processes that were not ours, in percent of all CPUs' time.
    pub foreign_percent: f64,
    /// From waking a sleeping thread on the same CPU to its running: median.
    pub wakeup_same_cpu_us: f64,
    /// The same on another CPU; 0 when there is only one.
    pub wakeup_other_cpu_us: f64,
    /// What the generator itself spends on a transaction of one byte each way, with a
    /// responder in its own process: CPU time in microseconds.
    pub generator_us_per_tran: f64,
    /// What is wrong with this machine as a place to measure, in sentences.
    pub warnings: Vec<String>,
}

/// A workload in one model over one transport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cell {
    /// Its name, such as `RR10(2KB/2KB)`.
    pub workload: String,
    /// How the bytes were to travel.
    pub transport: Transport,
    /// How the clients were made.
    pub model: Model,
    /// Receive buffer (RMBE) that was asked for, in bytes; `null`: the default.
    pub rmbe: Option<u32>,
    /// What else wanted the CPUs.
    #[serde(default)]
    pub contention: Contention,
    /// Rules of the IP filter that judged each packet; 0: there was none.
    #[serde(default)]
    pub filter_rules: u32,
    /// Runs that were measured.
    pub runs: u32,
    /// Transactions per second over the runs.
    pub tps: Spread,
    /// Application bytes, both ways: median over the runs.
    pub mb_per_s: f64,
    /// Over all transactions of all runs.
    pub response_us: Response,
    /// CPU time for one transaction: medians over the runs.
    pub cpu_us_per_tran: CpuCost,
    /// CPU time of the whole machine for one transaction, by RMF's arithmetic
    /// (utilisation × CPUs × interval / transactions): median over the runs. When
    /// both sides are on one host it is for both together, else for the clients' host.
    pub machine_us_per_tran: f64,
    /// The same on the server's host, when that is another.
    pub server_machine_us_per_tran: Option<f64>,
    /// Context switches, sleeps and wake-ups for one transaction.
    pub waits_per_tran: Waits,
    /// CPUs that the neighbours had, on average, such as 1.5: median over the runs. They
    /// are in no other figure.
    #[serde(default)]
    pub neighbour_cpus: f64,
    /// What the connections really were.
    pub transport_proof: Proof,
    /// What is wrong with the runs: `bimodal`, `drifting`, `noisy`, `fell back`, each
    /// with an explanation.
    pub remarks: Vec<Remark>,
    /// Response times in microseconds at rising percentiles, for a curve: pairs of
    /// percentile (0 to 100) and time.
    pub percentiles: Vec<(f64, f64)>,
    /// Transactions per second in each slice of the measured time, one list per run.
    pub over_time: Vec<Vec<f64>>,
    /// Length of a slice of `over_time` in milliseconds.
    pub slice_ms: u64,
    /// The runs, in the order in which they were made.
    pub samples: Vec<Sample>,
}

/// Median, least and most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// Response times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Response {
    pub mean: f64,
    pub stddev: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// CPU time for one transaction, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuCost {
    /// All of the client side: its programs, and between hosts the gateway of its host.
    pub client: f64,
    /// All of the server side, likewise.
    pub server: f64,
    /// The part of `client` in user mode.
    pub client_user: f64,
    /// The part of `client` in the kernel.
    pub client_system: f64,
    /// The part of `client_user` that looked for the peer's next word.
    pub client_spin: f64,
    /// The part of `server` in user mode.
    pub server_user: f64,
    /// The part of `server` in the kernel.
    pub server_system: f64,
    /// The part of `server_user` that looked for the peer's next word.
    pub server_spin: f64,
    /// The part of `client` that the gateway of its host took.
    #[serde(default)]
    pub client_gateway: f64,
    /// The part of `server` that the gateway of its host took.
    #[serde(default)]
    pub server_gateway: f64,
}

/// Waiting, for one transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Waits {
    /// Context switches of the client side, of either kind.
    pub client_switches: f64,
    /// Context switches of the server side.
    pub server_switches: f64,
    /// Waits in Sidestep that ended in a sleep, both sides.
    pub parks: f64,
    /// How often Sidestep woke a peer, both sides.
    pub wakeups: f64,
}

/// What the connections were, counted at the clients' end, over all runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Proof {
    /// Connections whose bytes went through shared memory, or between hosts by SMC-R.
    pub smc_connections: u64,
    /// Connections whose bytes went by TCP, or of which nothing else is known.
    pub tcp_connections: u64,
    /// Those among them that were too short to be worth moving, as AUTOSMC has it.
    #[serde(default)]
    pub too_short: u64,
    /// Why those that should have been SMC were TCP, with their number.
    pub fallbacks: BTreeMap<String, u64>,
}

impl Proof {
    /// Connections were to be SMC and were not, or none was seen at all. Those that AUTOSMC
    /// leaves on TCP are as they should be: their figures are not SMC's, but nothing has failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.tcp_connections > self.too_short || self.smc_connections + self.tcp_connections == 0
    }
}

/// Something a reader must know before using the figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Remark {
    /// What kind.
    pub kind: RemarkKind,
    /// A sentence.
    pub text: String,
}

/// The kinds of remarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RemarkKind {
    /// The runs fall into two groups.
    Bimodal,
    /// The runs become faster or slower with time.
    Drifting,
    /// The runs are too far apart for a small difference to be seen.
    Noisy,
    /// Connections stayed on TCP, whatever the reason: this is not a figure of SMC.
    FellBack,
    /// An open loop in which the server did not keep up.
    Overloaded,
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// The number of the pair this run belongs to, from 0.
    pub pair: u32,
    /// Transactions in the measured time.
    pub transactions: u64,
    /// Length of the measured time in seconds.
    pub elapsed_s: f64,
    /// Transactions per second.
    pub tps: f64,
    /// Application bytes, both ways.
    pub mb_per_s: f64,
    /// Response times.
    pub response_us: Response,
    /// CPU time for one transaction.
    pub cpu_us_per_tran: CpuCost,
    /// The whole machine's CPU time for one transaction.
    pub machine_us_per_tran: f64,
    /// The same on the server's host, when that is another.
    pub server_machine_us_per_tran: Option<f64>,
    /// Waiting.
    pub waits_per_tran: Waits,
    /// CPUs that the neighbours had, on average.
    #[serde(default)]
    pub neighbour_cpus: f64,
}

/// Transport `a` set against transport `b`: ratios a / b, each the median of the
/// ratios of the pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The workload.
    pub workload: String,
    /// How the clients were made.
    pub model: Model,
    /// Receive buffer (RMBE) that was asked for, in bytes; `null`: the default.
    pub rmbe: Option<u32>,
    /// What else wanted the CPUs.
    #[serde(default)]
    pub contention: Contention,
    /// Rules of the IP filter that judged each packet; 0: there was none.
    #[serde(default)]
    pub filter_rules: u32,
    /// What is compared.
    pub a: Transport,
    /// The baseline.
    pub b: Transport,
    /// Transactions per second.
    pub throughput_ratio: f64,
    /// Bounds of `throughput_ratio` at 95 % (paired bootstrap).
    pub ci95: [f64; 2],
    /// Mean response time.
    pub response_ratio: f64,
    /// Its bounds at 95 %.
    pub response_ci95: [f64; 2],
    /// 99th percentile of response times; `null` in documents of versions that did not
    /// compare it.
    #[serde(default)]
    pub p99_ratio: Option<f64>,
    /// Its bounds at 95 %.
    #[serde(default)]
    pub p99_ci95: Option<[f64; 2]>,
    /// CPU time of both sides for one transaction; `null` as `p99_ratio`.
    #[serde(default)]
    pub cpu_ratio: Option<f64>,
    /// Its bounds at 95 %.
    #[serde(default)]
    pub cpu_ci95: Option<[f64; 2]>,
    /// CPU time of the client side for one transaction.
    pub cpu_ratio_client: f64,
    /// Its bounds at 95 %.
    pub cpu_ci95_client: [f64; 2],
    /// CPU time of the server side for one transaction.
    pub cpu_ratio_server: f64,
    /// Its bounds at 95 %.
    pub cpu_ci95_server: [f64; 2],
    /// What IBM has published for this workload, with a verdict on ours.
    pub published: Vec<Published>,
    /// What the suite requires of this comparison, with a verdict.
    #[serde(default)]
    pub required: Vec<Required>,
}

/// A workload under an IP filter set against the same without one: ratios with / without, each the median of
/// the ratios of the pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Filtered {
    /// The workload.
    pub workload: String,
    /// How the bytes were to travel.
    pub transport: Transport,
    /// How the clients were made.
    pub model: Model,
    /// Receive buffer (RMBE) that was asked for, in bytes; `null`: the default.
    pub rmbe: Option<u32>,
    /// What else wanted the CPUs.
    pub contention: Contention,
    /// Rules of the filter: at least 1.
    pub filter_rules: u32,
    /// Transactions per second.
    pub throughput_ratio: f64,
    /// Bounds of `throughput_ratio` at 95 % (paired bootstrap).
    pub ci95: [f64; 2],
    /// Mean response time.
    pub response_ratio: f64,
    /// Its bounds at 95 %.
    pub response_ci95: [f64; 2],
    /// CPU time of both sides for one transaction.
    pub cpu_ratio: f64,
    /// Its bounds at 95 %.
    pub cpu_ci95: [f64; 2],
    /// What IBM has published for this workload under so many rules, with a verdict on ours.
    pub published: Vec<Published>,
}

/// What is required of a ratio, and what it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Required {
    /// What is measured.
    pub figure: Figure,
    /// Where more is better, the ratio has to be at least this, otherwise at most.
    pub ratio: f64,
    /// The same of the worse end of its interval; `null`: nothing is required of it.
    pub bound: Option<f64>,
    /// The ratio that was measured.
    pub ours: f64,
    /// Its bounds at 95 %.
    pub ours_ci95: [f64; 2],
    /// Ours is as required.
    pub met: bool,
}

/// A published figure beside ours. Changes are relative to the baseline: +7.32 is
/// +732 %, -0.88 is -88 %.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Published {
    /// What is measured, such as `throughput`.
    pub figure: Figure,
    /// Where it was published.
    pub source: String,
    /// What was set against what, on our side.
    #[serde(default)]
    pub compared: String,
    /// What theirs had and ours has not: then nothing was measured that could be set beside it.
    #[serde(default)]
    pub lacking: Option<String>,
    /// The published change.
    pub theirs: f64,
    /// Our change.
    pub ours: f64,
    /// Ours is at least as good, and of the same thing.
    pub beaten: bool,
}
