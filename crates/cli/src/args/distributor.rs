//! The command lines of `sidestep distributor`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Subcommand;

use super::log::{LogArg, parse_log};
use super::vip::VipRunArgs;

/// The arguments of `sidestep distributor`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DistributorArgs {
    /// Which side this host is.
    #[command(subcommand)]
    pub(crate) command: DistributorCommand,
}

/// The commands of `sidestep distributor`.
#[derive(Debug, Subcommand)]
pub(crate) enum DistributorCommand {
    /// Send what comes for the VIPs of the configuration on to other hosts, until SIGTERM
    Run(VipRunArgs),
    /// Have this host serve VIPs: they are on its `lo`, and it does not answer for them, until SIGTERM
    Target(DistributorTargetArgs),
    /// Have another distributor own the VIPs; it has to be a backup (`sidestep vip list` names them)
    Move(DistributorMoveArgs),
}

/// The arguments of `sidestep distributor move`.
#[derive(Debug, clap::Args)]
pub(crate) struct DistributorMoveArgs {
    /// The address of its host
    #[arg(value_name = "HOST")]
    pub(crate) host: IpAddr,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `sidestep distributor target`.
#[derive(Debug, clap::Args)]
#[command(after_help = TARGET_HELP)]
pub(crate) struct DistributorTargetArgs {
    /// Addresses of VIPs [default: those of the configuration that have an address of this host as a
    /// target]
    #[arg(value_name = "ADDRESS")]
    pub(crate) vips: Vec<IpAddr>,

    /// What is reported (error, warn, info, debug, trace), and the file it appends to instead of
    /// standard error [default: info]
    #[arg(long, value_name = "LEVEL[:FILE]", value_parser = parse_log)]
    pub(crate) log: Option<LogArg>,

    /// A configuration file that goes before the user's and the machine's
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

const EXAMPLES: &str = "\
A VIP is an address in front of servers on many hosts. Packets for it come to the distributor, which
sends them on, to hosts beyond a router through a tunnel; answers go to the client past it. In the
configuration, which all hosts may have:

  [distributor]
  interface = \"eth0\"
  [vip.redis]
  address = \"10.77.0.100:6379\"
  targets = { t1 = { address = \"10.77.0.11\", weight = 4 }, t2 = \"10.77.0.12\" }

`sidestep vip list`, `targets`, `connections`, `drain`, `resume`, `apply` and `remove` are about these
VIPs, too. docs/distributor.md tells more.

Examples:
  sidestep distributor run
  sidestep distributor target 10.77.0.100";

const TARGET_HELP: &str = "\
It needs root, or CAP_NET_ADMIN. Where [distributor] has `hosts` it takes packets out of the tunnels of
those, which needs CAP_BPF and CAP_PERFMON as well. When it ends the VIPs leave `lo`, and what it has set of ARP
(arp_ignore, arp_announce) is as before.

Exit status: 0 after a signal; 1 if the VIPs cannot be had; 2 if the command line is wrong.";
