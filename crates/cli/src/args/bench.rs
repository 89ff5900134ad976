//! The command lines of `sidestep bench` and `sidestep probe`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use jiff::SignedDuration;
use sidestep_modeler::contention::{CPU_QUOTA_MAX, CPU_WEIGHT_MAX, CpuList, Neighbours};
use sidestep_modeler::plan::{FILTER_RULES_MAX, Model, Transport};

use crate::options::RmbeSize;
use crate::words::parse_size;

/// The arguments of `sidestep bench`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_precedence_over_arg = true,
    override_usage = "sidestep bench [OPTIONS] WORKLOAD...\n       \
                      sidestep bench [OPTIONS] --suite SUITE\n       \
                      sidestep bench serve|compare|report ...",
    after_help = BENCH_EXAMPLES
)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,

    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

/// What else `sidestep bench` does.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Be the server side of measurements that are started on another host
    Serve(ServeArgs),
    /// Is one result better than another, worse, or equivalent?
    Compare(CompareArgs),
    /// Show earlier results again
    Report(ReportArgs),
    /// A measured program; `bench` and `serve` start it and speak to it in lines of JSON
    #[command(hide = true)]
    Worker,
    /// An endless loop beside the measured programs; `bench --neighbours` starts it
    #[command(hide = true)]
    Neighbour,
}

/// What is measured, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct MeasureArgs {
    /// Workloads such as 'RR10(2KB/2KB)', 'CRR40(64B/8kB)' or 'STR3(1B/20MB)'
    #[arg(value_name = "WORKLOAD")]
    pub(crate) workloads: Vec<String>,

    /// A list of workloads: smc-r-2013, zos-3.1, friendly-bank, busy, confined, or a TOML file
    #[arg(long, value_name = "SUITE", conflicts_with = "workloads")]
    pub(crate) suite: Option<String>,

    /// In workload names KB is 1000 bytes, not 1024
    #[arg(long)]
    pub(crate) si: bool,

    /// How clients are made: threads, processes, event-loop; several with commas
    /// [default: that of the suite, else threads]
    #[arg(long, value_name = "MODEL", value_delimiter = ',', value_parser = parse_model)]
    pub(crate) model: Vec<Model>,

    /// Transports, interleaved: tcp, smc, unix, sockmap; tcp, or else the last, is the baseline
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = parse_transport,
        default_value = "tcp,smc"
    )]
    pub(crate) over: Vec<Transport>,

    /// Endless loops that compete for the CPUs: K, K:nice=N or K:idle (SCHED_IDLE); several levels
    /// with commas, such as 0,2,4, measure each workload beside each [default: none]
    #[arg(long, value_name = "K", value_delimiter = ',')]
    pub(crate) neighbours: Vec<Neighbours>,

    /// Rules of an IP filter that judges all packets, of which the last matches; 0: no filter; several with
    /// commas, such as 0,1000,10000, take turns [default: none]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=i64::from(FILTER_RULES_MAX)))]
    pub(crate) filter_rules: Vec<u32>,

    /// CPU time that clients and servers may use together, in percent of one CPU (cpu.max)
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=i64::from(CPU_QUOTA_MAX)))]
    pub(crate) cpu_quota: Option<u32>,

    /// Weight of clients and servers together against 100 of all neighbours together (cpu.weight)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(CPU_WEIGHT_MAX)))]
    pub(crate) cpu_weight: Option<u32>,

    /// Clients, servers and neighbours run on these CPUs only, such as 0 or 0,2-3
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<CpuList>,

    /// Runs of each workload over each transport
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,

    /// Measured time of a run, such as 1s or 500ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    pub(crate) duration: Duration,

    /// Time before it that is not measured
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = parse_time)]
    pub(crate) warmup: Duration,

    /// Measure this many transactions of each client instead of a time
    #[arg(long, value_name = "N", conflicts_with_all = ["duration", "warmup"], value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,

    /// Open loop: start this many transactions a second, over all clients, and count response
    /// times from the intended start
    #[arg(long, value_name = "PER_SECOND", value_parser = parse_rate)]
    pub(crate) rate: Option<f64>,

    /// Pause of a client between two transactions
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) think: Option<Duration>,

    /// Threads wait in poll instead of send and recv
    #[arg(long)]
    pub(crate) non_blocking: bool,

    /// Receive with MSG_WAITALL
    #[arg(long, conflicts_with = "non_blocking")]
    pub(crate) wait_all: bool,

    /// The most bytes given to one send or recv
    #[arg(long, value_name = "SIZE", default_value = "64KB", value_parser = parse_chunk)]
    pub(crate) chunk: usize,

    /// Connections of one event loop [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections_per_loop: Option<u32>,

    /// Receive buffer (RMBE) of SMC connections: 32KB, 64KB, 128KB, 256KB, 512KB or 1MB
    #[arg(long, value_name = "SIZE", value_parser = parse_rmbe)]
    pub(crate) rmbe: Option<u32>,

    /// Compare every byte with what the other side must have sent
    #[arg(long)]
    pub(crate) verify: bool,

    /// Connect by IPv6
    #[arg(long)]
    pub(crate) ipv6: bool,

    /// The server side is `sidestep bench serve` at this address
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) server: Option<String>,

    /// Write the result as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write the report as one HTML page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// The arguments of `sidestep bench serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Where coordinators connect; there is no authentication, so choose a trusted network
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7609")]
    pub(crate) listen: SocketAddr,
}

/// The arguments of `sidestep bench compare`.
#[derive(Debug, clap::Args)]
#[command(after_help = COMPARE_EXIT)]
pub(crate) struct CompareArgs {
    /// The result to compare with
    pub(crate) before: PathBuf,

    /// The result in question
    pub(crate) after: PathBuf,

    /// Differences below this many percent do not matter
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = parse_margin)]
    pub(crate) margin: f64,
}

/// The arguments of `sidestep bench report`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// Results that `--json` has written
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Write one HTML page instead of tables
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// The arguments of `sidestep probe`.
#[derive(Debug, clap::Args)]
#[command(after_help = PROBE_EXAMPLES)]
pub(crate) struct ProbeArgs {
    /// Workloads for which the gain is predicted
    #[arg(value_name = "WORKLOAD")]
    pub(crate) workloads: Vec<String>,

    /// How their clients are made: threads, processes, event-loop
    #[arg(long, value_name = "MODEL", default_value = "threads", value_parser = parse_model)]
    pub(crate) model: Model,

    /// In workload names KB is 1000 bytes, not 1024
    #[arg(long)]
    pub(crate) si: bool,

    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_model(text: &str) -> Result<Model, String> {
    one_of(text, [Model::Threads, Model::Processes, Model::EventLoop])
}

fn parse_transport(text: &str) -> Result<Transport, String> {
    one_of(text, [Transport::Tcp, Transport::Smc, Transport::Unix, Transport::Sockmap])
}

fn one_of<T: std::fmt::Display, const N: usize>(text: &str, all: [T; N]) -> Result<T, String> {
    let names = all.each_ref().map(T::to_string).join(", ");
    all.into_iter()
        .find(|it| it.to_string() == text)
        .ok_or_else(|| format!("`{text}` is not one of: {names}"))
}

pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    let time: SignedDuration =
        text.parse().map_err(|_| format!("`{text}` is not a time; write 2s, 500ms or 1m"))?;
    Duration::try_from(time).map_err(|_| "a time cannot be negative".to_owned())
}

fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if f64::is_finite(rate) && rate > 0.0 => Ok(rate),
        _ => Err("a rate is a number above 0, in transactions per second".to_owned()),
    }
}

fn parse_margin(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse() {
        Ok(percent) if (0.1..=50.0).contains(&percent) => Ok(percent),
        _ => Err("a margin is between 0.1 and 50 percent".to_owned()),
    }
}

fn parse_chunk(text: &str) -> Result<usize, String> {
    match parse_size(text).and_then(|size| usize::try_from(size).ok()) {
        Some(size) if (1..=CHUNK_MAX).contains(&size) => Ok(size),
        _ => Err("a chunk is a size between 1 and 64MB, such as 4KB".to_owned()),
    }
}

fn parse_rmbe(text: &str) -> Result<u32, String> {
    parse_size(text)
        .and_then(RmbeSize::new)
        .map(RmbeSize::bytes)
        .ok_or_else(|| format!("`{text}` is not {}", RmbeSize::ALLOWED))
}

/// Each connection has a buffer of this length.
const CHUNK_MAX: usize = 64 << 20;

const BENCH_EXAMPLES: &str = "\
RRx(y/z): x clients connect once; a transaction sends y bytes and receives z.
CRRx(y/z): a transaction is connect, send y, receive z, close.
STRx(y/z): as RR, for streams. KB is 1024 bytes, MB is 1 000 000, as in IBM's papers.

The measured programs are ordinary: for smc, and only for smc, they are started by `sidestep run`.

Examples:
  sidestep bench 'RR10(2KB/2KB)'
  sidestep bench --model threads,event-loop --over tcp,unix,smc 'RR10(2KB/2KB)' 'STR1(1B/20MB)'
  sidestep bench --suite smc-r-2013 --html report.html
  sidestep bench --rate 20000 --duration 10s 'RR50(100B/800B)'

Exit status: 0 if all was measured; 1 if something could not be, or if SMC connections stayed on
TCP; 2 if the command line is wrong.";

const COMPARE_EXIT: &str = "\
Exit status: 0 if nothing is worse; 1 if something is; 2 if the results cannot be compared.";

const PROBE_EXAMPLES: &str = "\
Examples:
  sidestep probe
  sidestep probe --model event-loop 'RR10(2KB/2KB)' 'STR1(1B/20MB)'";
