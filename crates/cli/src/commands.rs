//! The commands, one file each.

mod agent;
mod bench;
mod config;
mod decode;
mod doctor;
mod probe;
mod run;
mod ss;

use crate::args::{Args, Command};

/// Does what the command line asks for and says with which status to exit.
///
/// `run` returns only if the program could not be started.
pub(crate) fn execute(args: Args) -> i32 {
    match args.command {
        Command::Run(args) => run::execute(&args),
        Command::Doctor(args) => doctor::execute(&args),
        Command::Ss(args) => ss::execute(&args),
        Command::Config(args) => config::execute(&args),
        Command::Decode(args) => decode::execute(&args),
        Command::Agent(args) => agent::execute(&args),
        Command::Bench(args) => bench::execute(&args),
        Command::Probe(args) => probe::execute(&args),
    }
}
