//! The command line of `sidestep support`.

use std::path::PathBuf;

/// The arguments of `sidestep support`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SupportArgs {
    /// Where to write the bundle [default: sidestep-support-TIME.tar.gz in this directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// A configuration file that goes before the user's and the machine's
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Write nothing, and say file by file what would be in the bundle
    #[arg(long, conflicts_with = "output")]
    pub(crate) list: bool,
}

const EXAMPLES: &str = "\
The bundle has what a developer asks for first: versions, what `doctor`, `ss`, `why`, `stats`,
`links` and `devices` say, the configuration and facts of the kernel. It has no byte that a
connection carried, no environment and no command line of any program, no log, and no contents of
the files that the configuration names; values of keys that name secrets are left out. Addresses,
ports, names of programs and users, and paths are in it: look before you send it to a stranger.

Root sees the programs of all users, everybody else their own.

Examples:
  sudo sidestep support
  sidestep support --list
  sidestep support --output /tmp/bundle.tar.gz && tar -tvf /tmp/bundle.tar.gz

Exit status: 0; 1 if the bundle cannot be written; 2 if the command line is wrong.";
