//! The command lines of `sidestep vip`.

use std::path::PathBuf;

use clap::Subcommand;

use super::log::{LogArg, parse_log};

/// The arguments of `sidestep vip`.
#[derive(Debug, clap::Args)]
#[command(after_help = VIP_EXAMPLES)]
pub(crate) struct VipArgs {
    /// What to do with VIPs.
    #[command(subcommand)]
    pub(crate) command: VipCommand,
}

/// The commands of `sidestep vip`.
#[derive(Debug, Subcommand)]
pub(crate) enum VipCommand {
    /// Put the VIPs of the configuration into force, and look after their targets until SIGTERM
    Run(VipRunArgs),
    /// Have the running `sidestep vip run` read its configuration again
    Apply(VipShowArgs),
    /// List the VIPs in force and their terms
    List(VipShowArgs),
    /// List the targets: state, weight, connections, responsiveness
    Targets(VipShowArgs),
    /// List the live connections, and which target each is with
    Connections(VipShowArgs),
    /// Give a target no new connections; those that it has stay
    Drain(VipTargetArgs),
    /// Take `drain` back
    Resume(VipTargetArgs),
    /// Take a VIP out of force until the next `apply`; its connections stay
    Remove(VipNameArgs),
    /// Give the kernel's table a listener; `run` starts it
    #[command(hide = true)]
    GiveListener(GiveListenerArgs),
}

/// The arguments of `sidestep vip give-listener`.
#[derive(Debug, clap::Args)]
pub(crate) struct GiveListenerArgs {
    /// The place in the table
    pub(crate) slot: u32,
}

/// The arguments of `sidestep vip run`.
#[derive(Debug, clap::Args)]
#[command(after_help = RUN_HELP)]
pub(crate) struct VipRunArgs {
    /// What is reported (error, warn, info, debug, trace), and the file it appends to instead of
    /// standard error [default: info]
    #[arg(long, value_name = "LEVEL[:FILE]", value_parser = parse_log)]
    pub(crate) log: Option<LogArg>,

    /// A configuration file that goes before the user's and the machine's
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// The arguments of commands that show something.
#[derive(Debug, clap::Args)]
pub(crate) struct VipShowArgs {
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `sidestep vip drain` and `sidestep vip resume`.
#[derive(Debug, clap::Args)]
pub(crate) struct VipTargetArgs {
    /// The target: VIP/TARGET, or TARGET if no other VIP has one of this name
    pub(crate) target: String,

    /// Print one JSON object instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `sidestep vip remove`.
#[derive(Debug, clap::Args)]
pub(crate) struct VipNameArgs {
    /// The VIP
    pub(crate) vip: String,

    /// Print one JSON object instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

const VIP_EXAMPLES: &str = "\
A VIP is an address in front of servers that listen elsewhere on this host. In the configuration:

  [vip.redis]
  address = \"127.0.0.10:6379\"
  method = \"basewlm\"             or roundrobin, weightedactive, hotstandby
  probe = \"tcp\"                  or listens, http:/PATH, [\"/a/command\", \"its argument\"]
  [vip.redis.targets]
  a = { address = \"127.0.0.1:7001\", weight = 4 }
  b = { address = \"127.0.0.1:7002\", weight = 2 }

The kernel gives each new connection to the listener of a target; nothing is translated, and both
ends see the VIP. Connections of Sidestep programs move to shared memory as ever. docs/vip.md tells
more.

Examples:
  sidestep vip run
  sidestep vip targets
  sidestep vip drain redis/a";

const RUN_HELP: &str = "\
It needs root, or CAP_BPF, CAP_NET_ADMIN, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, and Linux 5.12.
One runs in each network namespace, whose servers can be targets. When it ends, connections stay
and VIPs take no new ones.

Exit status: 0 after a signal; 1 if the VIPs cannot be put into force; 2 if the command line is
wrong.";
