//! The command lines of `sidestep filter`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use sidestep_filter::{Format, Way};
use sidestep_proto::policy::Interface;

use super::bench::parse_time;

/// The arguments of `sidestep filter`.
#[derive(Debug, clap::Args)]
#[command(after_help = FILTER_EXAMPLES)]
pub(crate) struct FilterArgs {
    /// What to do with the filter.
    #[command(subcommand)]
    pub(crate) command: FilterCommand,
}

/// The commands of `sidestep filter`.
#[derive(Debug, Subcommand)]
pub(crate) enum FilterCommand {
    /// Read and compile a list, and tell what is wrong or odd in it; nothing is changed
    Check(FilterCheckArgs),
    /// Put a list into force
    Apply(FilterApplyArgs),
    /// Put one rule more into force, at once
    Add(FilterAddArgs),
    /// Look up again what control groups in the rules are, after a unit has started
    Resolve(FilterResolveArgs),
    /// Show what is in force
    Show(FilterShowArgs),
    /// List the rules in force, with how often each has decided and when last
    List(FilterShowArgs),
    /// Show the packets that rules with `log` decide about, as they come
    Watch(FilterWatchArgs),
    /// Tell what becomes of a packet, by which rule
    Test(FilterTestArgs),
    /// Tell by which rules a list differs from the one in force
    Diff(FilterCheckArgs),
    /// Write rules of iptables, nftables or z/OS Policy Agent as a list
    Import(FilterImportArgs),
    /// Take the filter away: every packet passes
    Remove,
    /// Reset connections in shared memory that are denied; the commands that change rules start it
    #[command(hide = true)]
    EndDenied(FilterEndDeniedArgs),
}

/// The arguments of `sidestep filter end-denied`.
#[derive(Debug, clap::Args)]
pub(crate) struct FilterEndDeniedArgs {
    /// A process whose sockets are not asked
    #[arg(long, value_name = "PID")]
    pub(crate) process: Vec<u32>,

    /// A user whose processes' sockets are not asked
    #[arg(long, value_name = "UID")]
    pub(crate) user: Vec<u32>,
}

/// The arguments of `sidestep filter check` and `sidestep filter diff`.
#[derive(Debug, clap::Args)]
#[command(after_help = LIST_HELP)]
pub(crate) struct FilterCheckArgs {
    #[command(flatten)]
    pub(crate) list: ListArgs,

    /// Print one JSON object instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which list is meant.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// The list of rules [default: filter.file or filter.rules of the configuration]
    pub(crate) file: Option<PathBuf>,

    /// A configuration file that goes before the user's and the machine's
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// The arguments of `sidestep filter apply`.
#[derive(Debug, clap::Args)]
#[command(after_help = APPLY_HELP)]
pub(crate) struct FilterApplyArgs {
    #[command(flatten)]
    pub(crate) list: ListArgs,

    /// Take the list back after so long (30s, 2m) unless ENTER was pressed by then
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) confirm: Option<Duration>,

    /// Filter the packets of this control group's programs only [default: of all programs]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) cgroup: Option<PathBuf>,

    /// Judge packets that this host forwards as well, where they leave by one of these interfaces
    /// (eth0,eth1) [default: filter.forwarded of the configuration]
    #[arg(long, value_name = "INTERFACES", value_delimiter = ',')]
    pub(crate) forwarded: Vec<Interface>,

    /// Print one JSON object instead of a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `sidestep filter add`.
#[derive(Debug, clap::Args)]
#[command(after_help = ADD_HELP)]
pub(crate) struct FilterAddArgs {
    /// The words of a rule, as in a list
    #[arg(required = true, value_name = "WORD")]
    pub(crate) rule: Vec<String>,

    /// Put it before the rule in this line of the list [default: before all]
    #[arg(long, value_name = "LINE", conflicts_with = "last")]
    pub(crate) before: Option<usize>,

    /// Put it behind all rules
    #[arg(long)]
    pub(crate) last: bool,

    /// Print one JSON object instead of a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `sidestep filter resolve`.
#[derive(Debug, clap::Args)]
#[command(after_help = RESOLVE_HELP)]
pub(crate) struct FilterResolveArgs {
    /// Stay, and look again whenever control groups come or go
    #[arg(long)]
    pub(crate) follow: bool,
}

/// The arguments of `sidestep filter import`.
#[derive(Debug, clap::Args)]
#[command(after_help = IMPORT_EXAMPLES)]
pub(crate) struct FilterImportArgs {
    /// What the file has: the output of `iptables-save` or `ip6tables-save`, that of
    /// `nft -j list ruleset`, or statements of Policy Agent
    pub(crate) format: FormatWord,

    /// The file; `-` is standard input
    pub(crate) file: PathBuf,
}

/// Who has written the rules.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FormatWord {
    /// `iptables-save`, `ip6tables-save`.
    Iptables,
    /// `nft -j list ruleset`.
    Nft,
    /// z/OS Policy Agent.
    PolicyAgent,
}

impl From<FormatWord> for Format {
    fn from(word: FormatWord) -> Self {
        match word {
            FormatWord::Iptables => Self::IptablesSave,
            FormatWord::Nft => Self::Nft,
            FormatWord::PolicyAgent => Self::PolicyAgent,
        }
    }
}

/// The arguments of `sidestep filter show` and `sidestep filter list`.
#[derive(Debug, clap::Args)]
pub(crate) struct FilterShowArgs {
    /// Print one JSON object instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `sidestep filter watch`.
#[derive(Debug, clap::Args)]
#[command(after_help = WATCH_HELP)]
pub(crate) struct FilterWatchArgs {
    /// Print a JSON object for each line
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `sidestep filter test`.
#[derive(Debug, clap::Args)]
#[command(after_help = TEST_EXAMPLES)]
pub(crate) struct FilterTestArgs {
    /// The protocol: tcp, udp, icmp:TYPE/CODE, icmp6:TYPE/CODE or a number
    pub(crate) protocol: String,

    /// Where the packet comes from: ADDRESS, or ADDRESS:PORT, of IPv6 with brackets
    pub(crate) from: String,

    /// Where it goes
    pub(crate) to: String,

    /// Whether it arrives here, leaves, or is forwarded
    #[arg(value_name = "in|out|forwarded", hide_possible_values = true)]
    pub(crate) way: WayWord,

    /// The interface that it arrives at or leaves by [default: one without a name]
    #[arg(long = "on", value_name = "INTERFACE")]
    pub(crate) interface: Option<String>,

    /// Whose the socket is; a forwarded packet has none [default: root]
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,

    /// The control group of the socket (/system.slice/nginx.service) [default: one without rules]
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Option<String>,

    /// The unit of the socket (nginx.service) instead of the control group
    #[arg(long, value_name = "UNIT", conflicts_with = "cgroup")]
    pub(crate) unit: Option<String>,

    /// Ask this list instead of what is in force
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Print one JSON object instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum WayWord {
    /// It arrives at this host.
    In,
    /// It leaves.
    Out,
    /// It passes through this host.
    Forwarded,
}

impl From<WayWord> for Way {
    fn from(word: WayWord) -> Self {
        match word {
            WayWord::In => Self::In,
            WayWord::Out => Self::Out,
            WayWord::Forwarded => Self::Forwarded,
        }
    }
}

const FILTER_EXAMPLES: &str = "\
A list has a rule in each line; the first that matches a packet decides:

  permit tcp   10.0.0.0/8  192.0.2.7:443     in on eth0
  permit icmp  any         any
  deny   udp   any         any:6000-6010     user nobody
  deny   any   10.1.0.0/16 any               log
  permit tcp   any         any:5432          out unit web.service
  permit tcp   any         any:6514          out tls
  deny   tcp   any         any:25            forwarded
  default permit

It holds for the sockets of all programs, under Sidestep or not, and for what moves to shared
memory or RDMA, until it is removed or the host ends. Of packets that this host forwards, those are
judged that leave by an interface of `apply --forwarded`. docs/filter.md tells more.

Examples:
  sidestep filter check /etc/sidestep/rules
  sidestep filter apply /etc/sidestep/rules --confirm 30s
  sidestep filter test tcp 10.1.2.3:5000 192.0.2.7:443 in
  sidestep filter list";

const LIST_HELP: &str = "\
Exit status: 0; 1 if the list has a mistake or cannot be read; 2 if the command line is wrong.";

const APPLY_HELP: &str = "\
A list with a mistake changes nothing. A change is one moment: each packet meets the old rules or
the new ones, those of connections that live too. Connections in shared memory that the new ones
deny are reset. It needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN,
cgroup version 2 and a BPF file system at /sys/fs/bpf; --forwarded needs Linux 6.6.

Examples:
  sidestep filter apply /etc/sidestep/rules
  sidestep filter apply --forwarded eth0,eth1
  sidestep filter apply --confirm 30s       from a distance: who is locked out is back in 30 s

Exit status: 0 if the list is in force; 1 if not; 2 if the command line is wrong.";

const ADD_HELP: &str = "\
The list in force stays, with its counts, and the rule is in force for the next packet of every
connection. Connections in shared memory that it denies are reset. Write it into the list's file as well:
`sidestep filter apply` puts that into force, without what was added.

Examples:
  sidestep filter add deny any 192.0.2.66 any
  sidestep filter add --before 7 permit tcp 10.1.2.3 any:443 in

Exit status: 0 if the rule is in force; 1 if not; 2 if the command line is wrong.";

const RESOLVE_HELP: &str = "\
The kernel knows control groups by number, and a unit that starts again has another. Let either the
unit itself say so before its program starts:

  ExecStartPre=+/usr/local/bin/sidestep filter resolve

or let `sidestep filter resolve --follow` run, which takes a moment to hear of it.

Exit status: 0; 1 if there is no filter, or it was removed; 2 if the command line is wrong.";

const IMPORT_EXAMPLES: &str = "\
The list goes to standard output. What is no rule of ours (states of connections, jumps, other
tables, negations) is named on standard error, and stands as a comment where it was: to leave it out
changes what the list means, so look at each.

Examples:
  iptables-save | sidestep filter import iptables - > rules
  nft -j list ruleset | sidestep filter import nft - > rules
  sidestep filter import policy-agent ipsec.policy > rules

Exit status: 0 if all was taken; 1 if something was left out or cannot be read; 2 if the command
line is wrong.";

const WATCH_HELP: &str = "\
A line is a packet for which the rules were searched, and whose rule, or the default, has `log`:
when, what became of it, its length, interface, user and control group, and the rule. Lines that
are still unread come first. A rule has up to 100 lines a second; how many were lost is told.
There is one reader at a time.

Exit status: 0 after Ctrl-C or SIGTERM; 1 if there is no filter, or it was removed; 2 if the command
line is wrong.";

const TEST_EXAMPLES: &str = "\
Without --file the graph is asked that the kernel has.

Examples:
  sidestep filter test tcp 10.1.2.3:5000 192.0.2.7:443 in
  sidestep filter test udp [2001:db8::1]:53 [2001:db8::2]:4000 out --user nobody
  sidestep filter test tcp 10.1.2.3:5000 192.0.2.7:5432 out --unit web.service
  sidestep filter test icmp:8/0 10.1.2.3 192.0.2.7 in --file new-rules
  sidestep filter test tcp 10.1.2.3:5000 192.0.2.7:25 forwarded --on eth1

Exit status: 0 if there is an answer; 1 if there is no filter or the packet makes no sense; 2 if the
command line is wrong.";
