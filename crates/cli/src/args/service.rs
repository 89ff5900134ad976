//! The arguments of `sidestep enable`, `disable` and `status`.

use std::net::SocketAddr;

/// The arguments of `sidestep enable` and `sidestep disable`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServiceArgs {
    /// Services of systemd; without a suffix, `.service` is meant
    #[arg(required_unless_present_any = ["all_of_user", "container_runtime"], value_name = "UNIT")]
    pub(crate) units: Vec<String>,

    /// All services of a user: those of the system, and the user's own (`systemctl --user`)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["units", "container_runtime"])]
    pub(crate) all_of_user: Option<String>,

    /// All containers that podman creates from then on, without an option of theirs
    #[arg(long, conflicts_with_all = ["units", "restart"])]
    pub(crate) container_runtime: bool,

    /// Restart those that run, so that it holds at once: their connections end. `enable` then tries whether a
    /// connection moves
    #[arg(long)]
    pub(crate) restart: bool,
}

/// The arguments of `sidestep call`.
#[derive(Debug, clap::Args)]
pub(crate) struct CallArgs {
    /// Where a service listens
    pub(crate) address: SocketAddr,
}

/// The arguments of `sidestep status`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServiceStatusArgs {
    /// Print a JSON array with an object for each service instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

const EXAMPLES: &str = "\
Examples:
  sidestep enable redis-server nginx
  sidestep enable --restart postgresql@15-main.service
  sidestep disable --restart redis-server
  sidestep enable --all-of-user deploy
  sidestep enable --container-runtime
  sidestep status

Users of enabled services become pairs of `[share]` in /etc/sidestep/sidestep.toml where an agent
runs; without one they are listed in policy.share_with_users.

Exit status: 0 if it was done for all and no connection that was tried stayed on TCP, else 1.";
