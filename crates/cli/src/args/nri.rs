//! The arguments of `sidestep nri`.

use std::path::PathBuf;

use super::log::{LogArg, parse_log};

/// Where runtimes listen for their plugins.
const RUNTIME_SOCKET: &str = "/var/run/nri/nri.sock";

/// The arguments of `sidestep nri`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct NriArgs {
    /// Where the container runtime listens for its plugins
    #[arg(long, value_name = "PATH", default_value = RUNTIME_SOCKET)]
    pub(crate) socket: PathBuf,

    /// Copy the library to this directory first, and give containers that one: for a plugin that
    /// is in a container itself, a directory which has the same path on the host
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) copy_library: Option<PathBuf>,

    /// What the plugin reports (error, warn, info, debug, trace), and the file it appends to
    /// instead of standard error [default: info]
    #[arg(long, value_name = "LEVEL[:FILE]", value_parser = parse_log)]
    pub(crate) log: Option<LogArg>,
}

const EXAMPLES: &str = "\
A pod asks for Sidestep by an annotation in its template, for all its containers:

  sidestep.dev/smc: all    they meet programs of all containers of the host; the agent is needed
  sidestep.dev/smc: pod    they meet those of the containers of their pod

The plugin runs until SIGTERM or SIGINT, beside a runtime with NRI: containerd 2 or CRI-O 1.30,
which have it switched on. Containers that are there already stay as they are. Options are those of
the machine's configuration when the plugin begins. docs/kubernetes.md tells more.

Examples:
  sidestep nri
  sidestep nri --copy-library /var/lib/sidestep

Exit status: 0 after a signal; 1 if there is no runtime, no library, or the runtime turns the
plugin away; 2 if the command line is wrong.";
