//! The arguments of `sidestep generate`: what a package makes of the command line itself, and container runtimes of the library.

use std::path::PathBuf;

use clap::Subcommand;
use clap_complete::Shell;

/// The arguments of `sidestep generate`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GenerateArgs {
    /// What to write
    #[command(subcommand)]
    pub(crate) command: GenerateCommand,
}

/// What `sidestep generate` writes.
#[derive(Debug, Subcommand)]
pub(crate) enum GenerateCommand {
    /// Write a manual page for each command into a directory that exists
    Man {
        /// The directory
        #[arg(value_name = "DIRECTORY")]
        directory: PathBuf,
    },
    /// Print the completions of a shell: bash, elvish, fish, powershell, zsh
    Completions {
        /// The shell
        #[arg(value_name = "SHELL", hide_possible_values = true)]
        shell: Shell,
    },
    /// Print a CDI specification: containers with the device sidestep.dev/smc=all run under Sidestep
    #[command(after_help = CDI_EXAMPLES)]
    Cdi,
}

const CDI_EXAMPLES: &str = "\
The device sidestep.dev/smc=all is for containers with networks of their own, and needs the agent.
Containers that share a network, as those of a pod do, need sidestep.dev/smc=pod, and no agent.
Options are those of the machine's configuration; write the file again when that changes.

Examples:
  sidestep generate cdi > /etc/cdi/sidestep.json
  podman run --device sidestep.dev/smc=all IMAGE";

const EXAMPLES: &str = "\
Examples:
  sidestep generate man /usr/local/share/man/man1
  sidestep generate completions bash > /etc/bash_completion.d/sidestep
  source <(sidestep generate completions zsh)
  sidestep generate cdi > /etc/cdi/sidestep.json";
