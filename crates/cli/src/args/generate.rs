//! The arguments of `sidestep generate`: what a package makes of the command line itself.

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
}

const EXAMPLES: &str = "\
Examples:
  sidestep generate man /usr/local/share/man/man1
  sidestep generate completions bash > /etc/bash_completion.d/sidestep
  source <(sidestep generate completions zsh)";
