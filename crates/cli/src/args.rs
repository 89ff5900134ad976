//! The command line of `sidestep`.

mod bench;
mod distributor;
mod filter;
mod generate;
mod host_report;
mod interval;
mod log;
mod mistakes;
mod nri;
mod service;
mod subject;
mod support;
mod tap;
mod target;
mod top;
mod vip;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::metrics_address::MetricsAddress;
use crate::options::{Mode, Promotion};
use sidestep_gateway::AdapterChoice;
use sidestep_socket::process::options::AGENT_SOCKET;

pub(crate) use generate::{GenerateArgs, GenerateCommand};
pub(crate) use host_report::HostReportArgs;
pub(crate) use log::LogArg;
use log::parse_log;
pub(crate) use nri::NriArgs;
pub(crate) use service::{CallArgs, ServiceArgs, ServiceStatusArgs};
pub(crate) use subject::{Subject, canonical};
pub(crate) use support::SupportArgs;
pub(crate) use tap::TapArgs;
pub(crate) use target::Target;
pub(crate) use top::{SortColumn, TopArgs};

pub(crate) use filter::{
    FilterAddArgs, FilterApplyArgs, FilterArgs, FilterCheckArgs, FilterCommand,
    FilterEndDeniedArgs, FilterImportArgs, FilterResolveArgs, FilterShowArgs, FilterTestArgs,
    FilterWatchArgs, ListArgs,
};

pub(crate) use distributor::{DistributorArgs, DistributorCommand, DistributorTargetArgs};
pub(crate) use vip::{GiveListenerArgs, VipArgs, VipCommand, VipRunArgs, VipShowArgs};

pub(crate) use bench::{
    BenchArgs, BenchCommand, CompareArgs, MeasureArgs, ProbeArgs, ReportArgs, ServeArgs,
};

/// Lets unmodified TCP programs talk through shared memory on one host, and through RDMA between hosts.
#[derive(Debug, Parser)]
#[command(name = "sidestep", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The command line of this process, or the end of the process, with the reason. The name
/// `sidestepd` stands for `sidestep agent`, so that service managers have a program of its own.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Args {
    let words: Vec<OsString> = with_command(words).collect();
    Args::try_parse_from(&words).unwrap_or_else(|error| mistakes::explained(error, &words).exit())
}

fn with_command(words: impl IntoIterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut words = words.into_iter();
    let name = words.next();
    let is_agent =
        name.as_ref().is_some_and(|name| Path::new(name).file_name() == Some("sidestepd".as_ref()));
    let command = is_agent.then(|| "agent".into());
    name.into_iter().chain(command).chain(words)
}

/// The number of a process; a beginner writes its name.
fn parse_pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("use the number of a process, such as $(pidof {text})"))
}

/// The commands of `sidestep`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program with its TCP connections moved to shared memory or RDMA where possible
    Run(RunArgs),
    /// Have services of systemd run under Sidestep, from their next start on
    Enable(ServiceArgs),
    /// Have services of systemd run without Sidestep again, from their next start on
    Disable(ServiceArgs),
    /// List the services that are enabled, and what there is to do about them
    Status(ServiceStatusArgs),
    /// A client of a service, whatever that speaks; `enable` starts it
    #[command(hide = true)]
    Call(CallArgs),
    /// Check this machine, and a program, for what would keep connections on TCP
    Doctor(DoctorArgs),
    /// List the connections of Sidestep programs: how they travel and, if by TCP, why
    Ss(SsArgs),
    /// Watch what programs and connections do now, the busiest first
    Top(TopArgs),
    /// Write what goes through shared memory as a packet capture, for Wireshark
    Tap(TapArgs),
    /// Count what Sidestep programs have had: connections, handshakes, rings, bytes, waits
    Stats(StatsArgs),
    /// Write a page about this host: what moved, what did not and why, what to change
    Report(HostReportArgs),
    /// Find out which server ports would profit, and by how much, while all stays on TCP
    Assess(AssessArgs),
    /// Explain why connections of a process, port or address are on TCP, and what to change
    Why(WhyArgs),
    /// Take connections of running programs back to TCP, and keep them there
    Demote(DemoteArgs),
    /// Let connections that were demoted move to shared memory again
    Promote(DemoteArgs),
    /// Pack what developers ask for first, without payloads or secrets
    Support(SupportArgs),
    /// Check the configuration files, show what they come to, and apply changes
    Config(ConfigArgs),
    /// Show how connections in a packet capture agreed on SMC, and which rules they broke
    Decode(DecodeArgs),
    /// Do on this host what takes a privilege: have the TCP option of SMC written, and bring
    /// programs of different users and network namespaces together
    Agent(AgentArgs),
    /// Have pods that ask for it run under Sidestep, as a plugin of the container runtime
    Nri(NriArgs),
    /// Carry the connections of this host's Sidestep programs to other hosts, by SMC-R
    Gateway(GatewayArgs),
    /// List the links of the gateway of this network namespace, by link group
    Links(StatusArgs),
    /// List the RDMA adapters of the gateway of this network namespace
    Devices(StatusArgs),
    /// List the rules by which TLS protects connections, and what has become of them
    Tls(TlsArgs),
    /// Filter the packets of all programs by an ordered list of rules
    Filter(FilterArgs),
    /// Give one address to many servers of this host: by weight, load and health
    Vip(VipArgs),
    /// Give one address to servers of many hosts of one link: by weight, load and health
    Distributor(DistributorArgs),
    /// Measure workloads over TCP, shared memory and other transports, side by side
    Bench(Box<BenchArgs>),
    /// Measure in two seconds what this machine would gain
    Probe(ProbeArgs),
    /// Write the manual pages, or what a shell needs to complete command lines
    Generate(GenerateArgs),
}

/// The arguments of `sidestep run`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "sidestep run [OPTIONS] [--] PROGRAM [ARGS]...",
    after_help = RUN_EXAMPLES
)]
pub(crate) struct RunArgs {
    /// smc: use shared memory where both ends can; tcp: load the library, count, move nothing
    /// [default: smc]
    #[arg(long, value_name = "MODE", hide_possible_values = true)]
    pub(crate) mode: Option<Mode>,

    /// early: move connections as soon as both ends agree; lazy: once they have lived long
    /// enough to be worth it; never [default: lazy]
    #[arg(long, value_name = "WHEN", hide_possible_values = true)]
    pub(crate) promotion: Option<Promotion>,

    /// What the library reports (error, warn, info, debug, trace), and the file it appends to
    /// instead of standard error [default: error]
    #[arg(long, value_name = "LEVEL[:FILE]", value_parser = parse_log)]
    pub(crate) log: Option<LogArg>,

    /// A configuration file that goes before the user's and the machine's
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// The program and its arguments: everything from the first word that is not an option
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_names = ["PROGRAM", "ARGS"]
    )]
    pub(crate) command: Vec<OsString>,
}

/// The arguments of `sidestep doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// A program to check as well: a path, or a name to look for in PATH
    pub(crate) program: Option<OsString>,

    /// Another host, by an address of it: is there an adapter and a way for RDMA to it, and does it speak SMC?
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) peer: Option<IpAddr>,

    /// Print one JSON object instead of lines
    #[arg(long)]
    pub(crate) json: bool,

    /// Change what can be changed without harm to what runs; each change is said, with the way back
    #[arg(long, conflicts_with = "json")]
    pub(crate) fix: bool,

    /// With --fix: only say what would be changed
    #[arg(long, requires = "fix")]
    pub(crate) dry_run: bool,
}

/// The arguments of `sidestep ss`.
#[derive(Debug, clap::Args)]
#[command(after_help = SS_EXAMPLES)]
pub(crate) struct SsArgs {
    /// Print a JSON array with an object for each connection, or program, instead of a table
    #[arg(long)]
    pub(crate) json: bool,

    /// List programs instead, each with all it has had since its start: connections by their
    /// path, bytes, waits, CPU time spent looking, time for which other threads had the CPU, and
    /// how often each reason kept it on TCP
    #[arg(long, conflicts_with = "all")]
    pub(crate) totals: bool,

    /// Also list connections that are closed here while the peer still reads what was sent
    #[arg(long)]
    pub(crate) all: bool,

    /// List only the connections of this process, or its program
    #[arg(long, value_name = "PID", value_parser = parse_pid)]
    pub(crate) pid: Option<u32>,
}

/// The arguments of `sidestep assess`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "sidestep assess [OPTIONS] [--] PROGRAM [ARGS]...\n       \
                      sidestep assess [OPTIONS] [--pid PID]",
    after_help = ASSESS_EXAMPLES
)]
pub(crate) struct AssessArgs {
    /// Count for so long (10s, 5m, 1h); a program started here is then asked to end (SIGTERM)
    #[arg(long = "for", value_name = "DURATION", value_parser = bench::parse_time)]
    pub(crate) interval: Option<Duration>,

    /// Only this process, of those that run in count-only mode already
    #[arg(long, value_name = "PID", value_parser = parse_pid, conflicts_with = "command")]
    pub(crate) pid: Option<u32>,

    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,

    /// A configuration file for the program that goes before the user's and the machine's
    #[arg(long, value_name = "FILE", conflicts_with = "pid")]
    pub(crate) config: Option<PathBuf>,

    /// A program to run in count-only mode, and its arguments: everything from the first word
    /// that is not an option
    #[arg(trailing_var_arg = true, value_names = ["PROGRAM", "ARGS"])]
    pub(crate) command: Vec<OsString>,
}

/// The arguments of `sidestep stats`.
#[derive(Debug, clap::Args)]
#[command(after_help = STATS_EXAMPLES)]
pub(crate) struct StatsArgs {
    /// Only this process, or its program
    #[arg(value_parser = parse_pid)]
    pub(crate) pid: Option<u32>,

    /// Print what comes in so many seconds, again and again, until ctrl-C
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "1",
        value_parser = interval::parse_seconds
    )]
    pub(crate) watch: Option<f64>,

    /// Print a JSON object instead of text; with --watch one in each line
    #[arg(long)]
    pub(crate) json: bool,

    /// Append what comes in each interval to this file, a line of JSON for each, until ctrl-C or
    /// SIGTERM; `sidestep report` reads it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["watch", "json", "pid"])]
    pub(crate) record: Option<PathBuf>,

    /// With --record: how long an interval is (10s, 5m, 1h)
    #[arg(
        long,
        value_name = "TIME",
        default_value = "60s",
        requires = "record",
        value_parser = interval::parse_time
    )]
    pub(crate) every: Duration,
}

/// The arguments of `sidestep why`.
#[derive(Debug, clap::Args)]
#[command(after_help = WHY_EXAMPLES)]
pub(crate) struct WhyArgs {
    /// What is asked about.
    #[arg(value_name = "PID|PORT|ADDRESS", help = SUBJECT_HELP)]
    pub(crate) subject: Subject,

    /// Print one JSON object instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `sidestep demote` and `sidestep promote`.
#[derive(Debug, clap::Args)]
#[command(after_help = DEMOTE_EXAMPLES)]
pub(crate) struct DemoteArgs {
    /// Whose connections: a process (4711 or pid:4711), a server's port (6379 or :6379), or all
    #[arg(value_name = "PID|PORT|all")]
    pub(crate) target: Target,
}

/// The arguments of `sidestep config`.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// What to do with the configuration.
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

/// The commands of `sidestep config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show every key, its value and the file that it comes from, and every mistake
    Check(ConfigCheckArgs),
    /// Let running programs have what the files say now, for their new connections
    Apply(ConfigApplyArgs),
}

/// The arguments of `sidestep config apply`.
#[derive(Debug, clap::Args)]
#[command(after_help = CONFIG_APPLY_EXAMPLES)]
pub(crate) struct ConfigApplyArgs {
    /// Also a configuration file that programs were started with by `sidestep run --config`
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// The arguments of `sidestep config check`.
#[derive(Debug, clap::Args)]
#[command(after_help = CONFIG_CHECK_EXAMPLES)]
pub(crate) struct ConfigCheckArgs {
    /// A configuration file that goes before the user's and the machine's
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Print one JSON object instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `sidestep decode`.
#[derive(Debug, clap::Args)]
#[command(after_help = DECODE_EXAMPLES)]
pub(crate) struct DecodeArgs {
    /// A packet capture, pcap or pcapng
    pub(crate) file: PathBuf,

    /// Also show connections without any sign of SMC
    #[arg(long)]
    pub(crate) all: bool,

    /// Print one JSON object instead of figures
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `sidestep agent`.
#[derive(Debug, clap::Args)]
#[command(after_help = AGENT_EXAMPLES)]
pub(crate) struct AgentArgs {
    /// Serve the programs of this control group only [default: all programs]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) cgroup: Option<PathBuf>,

    /// Tell Prometheus, at /metrics of this address, what `sidestep stats` counts: a loopback
    /// IP:PORT, or unix:PATH [default: agent.metrics of the configuration, else nowhere]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<MetricsAddress>,

    /// What the agent reports (error, warn, info, debug, trace), and the file it appends to
    /// instead of standard error [default: info]
    #[arg(long, value_name = "LEVEL[:FILE]", value_parser = parse_log)]
    pub(crate) log: Option<LogArg>,

    /// A configuration file that goes before the user's and the machine's
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where programs of different users and network namespaces find the agent
    #[arg(long, value_name = "PATH", default_value = AGENT_SOCKET)]
    pub(crate) socket: PathBuf,
}

/// The arguments of `sidestep gateway`.
#[derive(Debug, clap::Args)]
#[command(after_help = GATEWAY_EXAMPLES)]
pub(crate) struct GatewayArgs {
    /// Use the RDMA device at this address, at that of this interface, or of this port (`mlx5_0/1`), or a
    /// soft RNIC (`soft:eth0`); the preferred first [default: smc-r.adapters of the configuration, or
    /// else all RDMA devices]
    #[arg(long = "adapter", value_name = "ADDRESS|INTERFACE|PORT|soft:…")]
    pub(crate) adapters: Vec<AdapterChoice>,

    /// What the gateway reports (error, warn, info, debug, trace), and the file it appends to
    /// instead of standard error [default: info]
    #[arg(long, value_name = "LEVEL[:FILE]", value_parser = parse_log)]
    pub(crate) log: Option<LogArg>,

    /// A configuration file that goes before the user's and the machine's
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Take the place of the gateway that is there: new connections go by this one, and so do those over soft
    /// RNICs; the other one goes on with the rest, and ends with the last one
    #[arg(long)]
    pub(crate) replace: bool,

    /// How long connections may go on that are there when the gateway is told to end (SIGTERM) or is
    /// replaced, such as 30s; a second signal ends it at once [default: none when it is told to end;
    /// without limit when it is replaced]
    #[arg(long, value_name = "TIME", value_parser = bench::parse_time)]
    pub(crate) drain_limit: Option<Duration>,

    /// Say which process is the gateway, which ones before it still drain, and how many connections each has
    #[arg(long, exclusive = true)]
    pub(crate) status: bool,
}

/// The arguments of `sidestep links` and `sidestep devices`.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Print a JSON array instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `sidestep tls`.
#[derive(Debug, clap::Args)]
pub(crate) struct TlsArgs {
    /// A configuration file that goes before the user's and the machine's
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

const EXAMPLES: &str = "\
Examples:
  sidestep run redis-server --port 6379     one end of the connections
  sidestep run redis-benchmark -p 6379      the other end: both must run under sidestep
  sidestep ss                               which connections are in shared memory now?
  sidestep doctor redis-server              can this machine, and this program, do it?";

const RUN_EXAMPLES: &str = "\
Options come before PROGRAM; everything after it belongs to the program. What is not given here
comes from --config FILE, $SIDESTEP_CONFIG, $XDG_CONFIG_HOME/sidestep/sidestep.toml (or
~/.config/sidestep/sidestep.toml) and /etc/sidestep/sidestep.toml, in that order.

Examples:
  sidestep run redis-server --port 6379
  sidestep run --mode tcp -- nginx -g 'daemon off;'
  sidestep run --log debug:/tmp/sidestep.log curl http://127.0.0.1:8080/

Exit status: that of PROGRAM; 127 if it is not found, 126 if it cannot be executed, 125 if
sidestep itself failed, 2 if its command line is wrong.";

const DOCTOR_EXAMPLES: &str = "\
Each line says `ok`, `warn` (it works, with a drawback) or `fail` (connections stay on TCP), and
what to do about it.

Examples:
  sidestep doctor
  sidestep doctor --json nginx
  sidestep doctor --fix --dry-run
  sudo sidestep doctor --fix

--fix starts the agent where something counts on one, writes drop-ins and the device of containers
again, removes sockets and files of processes that have ended, and raises the limit of open files.
What others have set, such as vm.overcommit_memory, it leaves. docs/operations.md has all of it.

Exit status: 0 if nothing failed, 1 if a check failed, or with --fix if something is left that
could be changed or keeps connections on TCP, 2 if the command line is wrong.";

const CONFIG_CHECK_EXAMPLES: &str = "\
The files are those that `sidestep run` reads: --config FILE, $SIDESTEP_CONFIG,
$XDG_CONFIG_HOME/sidestep/sidestep.toml (or ~/.config/sidestep/sidestep.toml) and
/etc/sidestep/sidestep.toml. A key is taken from the first that has it.

Examples:
  sidestep config check
  sidestep config check --config new.toml
  sidestep config check --json | jq '.keys[] | select(.file)'

Exit status: 0 if there is no mistake, 1 if there is one, 2 if the command line is wrong.";

const CONFIG_APPLY_EXAMPLES: &str = "\
The files are those of `sidestep config check`. Beside each, FILE.applied is written, which running
programs look for when they begin or accept a connection, at most once a second. Each program takes
over the files that it was started with; its command line still goes before them. Connections that
exist stay as they are. If a file has a mistake, nothing is changed.

Examples:
  sidestep config apply
  sidestep config apply --config web.toml

Exit status: 0; 1 if a file has a mistake or cannot be written; 2 if the command line is wrong.";

const DEMOTE_EXAMPLES: &str = "\
`demote` takes live connections back to TCP without their programs noticing, each direction at its
next messages, and keeps new ones there, until `promote` says otherwise. `sidestep ss` shows how far
it has come. The programs of other users can be told by root.

Examples:
  sidestep demote 6379          all of a server's port, to look at them with tcpdump
  sidestep promote 6379
  sidestep demote pid:4711      all of one process
  sidestep demote all           all of this host, before the library is replaced

Exit status: 0; 1 if there is no such Sidestep program, or one could not be told; 2 if the command
line is wrong.";

const AGENT_EXAMPLES: &str = "\
It runs until SIGTERM or SIGINT, and needs CAP_BPF, CAP_NET_ADMIN and cgroup version 2. Programs
under Sidestep use an agent if there is one, and go on without it when it ends. Others are not
touched, but where a rule of TLS has `enforce`: there only the gateway sends. Called as `sidestepd`
it is the same program. docs/agent.md, docs/tcp-option.md and docs/tls.md tell more.

Examples:
  sidestep agent
  sidestep agent --cgroup /sys/fs/cgroup/system.slice
  sidestep agent --metrics 127.0.0.1:9464
  sidestepd --metrics unix:/run/sidestep/metrics --log warn
  sidestep agent --socket /run/sidestep/agent.sock

Exit status: 0 after a signal; 1 if so much is lacking that there is nothing to do, or the control
group is none; 2 if the command line is wrong.";

const GATEWAY_EXAMPLES: &str = "\
It runs until SIGTERM or SIGINT, one for each network namespace. RDMA devices of Ethernet (`rdma
link`) are used by libibverbs. A soft RNIC speaks RoCEv2 at UDP port 4791 of its address, without
hardware and privilege; it costs more CPU time than TCP, so it is there only if it is named. What is
not there is used when it comes; until one adapter is there, connections to other hosts stay TCP.
Programs under Sidestep hand the gateway their connections to other hosts that know SMC-R, which
`sidestep agent` finds out. When it ends, these are reset; when it is replaced, or gets SIGHUP and so
replaces itself, they are not. docs/gateway.md tells more.

Examples:
  sidestep gateway
  sidestep gateway --adapter mlx5_0/1
  sidestep gateway --adapter soft:eth0 --adapter soft:eth1
  sidestep gateway --replace --adapter soft:eth0
  sidestep gateway --status

Exit status: 0 after a signal, or when it was replaced and has drained; 1 if it cannot begin, as where
another gateway is there, or if there is none to tell its status; 2 if the command line is wrong; 125 to 127 if it cannot start itself, as of `sidestep run`.";

const SS_EXAMPLES: &str = "\
A connection between two Sidestep programs has two lines, one for each end. SMC-D: its bytes go
through shared memory; TCP: they do not, and the last column says why, with the standard's code.
RMBE is the buffer in which an end receives. Spins, parks and wakeups count how a thread has
waited for the peer: by looking, by sleeping; and how often the peer had to be woken.

Root sees the programs of all users, everybody else their own.

Examples:
  sidestep ss
  sidestep ss --pid $(pidof redis-server)
  sidestep ss --json | jq '.[] | select(.mode == \"TCP\") | .reason.text'
  sidestep ss --totals

Exit status: 0, also if there is nothing to list; 1 if the list cannot be made or the process of
--pid is gone or may not be looked at; 2 if the command line is wrong.";

const ASSESS_EXAMPLES: &str = "\
In count-only mode (smc.mode = \"tcp\") no byte is touched and no connection moves. What is counted
for each server's address: connections and how long they live, messages and their lengths, round
trips, and whether both ends are on this host. The figures of `sidestep probe`, measured
afterwards, say what that would take over TCP and over SMC.

Without PROGRAM: of programs that run in that mode already, since their start or in the interval.

Examples:
  sidestep assess --for 60s redis-server --port 6379
  sidestep run --mode tcp nginx; sidestep assess --for 10m
  sidestep assess --json --pid $(pidof redis-server)

Exit status: 0, whatever the status of PROGRAM; 125, 126 or 127 if it could not be started; 1 if
there is nothing to assess; 2 if the command line is wrong.";

const STATS_EXAMPLES: &str = "\
Sums since each program's start, connections that have ended included, and the sums of all
programs. Handshakes: attempts to move a connection. Rings to send through are fresh (new memory)
or reused (another connection's before). Messages are the calls that moved bytes, by their length.

Root sees the programs of all users, everybody else their own.

Examples:
  sidestep stats
  sidestep stats $(pidof redis-server)
  sidestep stats --watch 5
  sidestep stats --watch --json | jq .since
  sidestep stats --record /var/log/sidestep.record --every 60s

Exit status: 0, also after ctrl-C or when the reader of a pipe leaves; 1 if there is nothing to
count for PID, or the last line of a record cannot be written; 2 if the command line is wrong.";

const SUBJECT_HELP: &str = "\
A process, the port of a server, or an address: 4711, 6379, :6379, pid:4711, 10.0.0.7, \
127.0.0.1:6379, [::1]:6379. A bare number is a process if one under Sidestep has it, else a port";

const WHY_EXAMPLES: &str = "\
For each kind of decision: what was tried, who decided and by which rule, the standard's code, how
often in the last hour, and what to change, if anything. It covers connections that are open and
those that ended in the last hour, as long as their program runs.

Root sees the programs of all users, everybody else their own.

Examples:
  sidestep why 6379                 connections with the server at port 6379
  sidestep why $(pidof nginx)       connections of a process
  sidestep why 10.0.0.7             connections with this address
  sidestep why --json :443 | jq '.findings[] | {words, change}'

Exit status: 0; 1 if nothing is known about the process, port or address; 2 if the command line is
wrong.";

const DECODE_EXAMPLES: &str = "\
Each connection is a figure: the client at the left, the server at the right, time downwards. It
begins with the SMC option of SYN and SYN-ACK; the CLC messages follow with their fields, and then
what became of it. What goes by RDMA comes behind: a figure for each link, with LLC and CDC messages,
and the WRITEs of each connection. Lines with !! are rules of RFC 7609, of InfiniBand or of Linux,
that are broken.

Examples:
  tcpdump -i any -w smc.pcap 'tcp or udp port 4791'     in one terminal, until the end
  sidestep decode smc.pcap
  sidestep decode --json smc.pcap | jq '.connections[] | .result'

Exit status: 0; 1 if a rule is broken or not all of FILE can be read; 2 if the command line is
wrong.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::LogLevel;

    fn parse(line: &str) -> Result<RunArgs, clap::Error> {
        let words = ["sidestep", "run"].into_iter().chain(line.split(' '));
        match Args::try_parse_from(words)?.command {
            Command::Run(args) => Ok(args),
            _ => unreachable!("the line starts with `sidestep run`"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn options_after_the_program_are_the_programs() {
        let args = parse("--mode tcp server --mode smc --help --port 1").unwrap();
        assert_eq!(args.mode, Some(Mode::Tcp));
        assert_eq!(args.command, ["server", "--mode", "smc", "--help", "--port", "1"]);
    }

    #[test]
    fn sidestepd_is_the_agent() {
        let words = |line: &str| with_command(line.split(' ').map(Into::into)).collect::<Vec<_>>();
        assert_eq!(words("/usr/sbin/sidestepd --help"), ["/usr/sbin/sidestepd", "agent", "--help"]);
        assert_eq!(words("sidestep agent"), ["sidestep", "agent"]);
        assert_eq!(words("/sidestepd/sidestep ss"), ["/sidestepd/sidestep", "ss"]);
    }

    #[test]
    fn two_dashes_end_our_options_once() {
        let args = parse("-- server -- -x").unwrap();
        assert_eq!(args.command, ["server", "--", "-x"]);
        assert_eq!(parse("-- --odd-name").unwrap().command, ["--odd-name"]);
    }

    #[test]
    fn log_is_a_level_and_perhaps_a_file() {
        let log = |text| parse(&format!("--log {text} x")).map(|args| args.log.unwrap());
        assert_eq!(log("info").unwrap(), LogArg { level: LogLevel::Info, file: None });
        assert_eq!(log("trace:/a:b").unwrap().file, Some(PathBuf::from("/a:b")));
        let error = log("loud").unwrap_err().to_string();
        assert!(error.contains("error, warn, info, debug, trace"), "{error}");
        assert!(log("info:").is_err());
    }
}
