//! The commands, one file each.

mod activity;
mod agent;
mod agent_line;
mod assess;
mod bench;
mod beyond;
mod config;
mod container_edits;
mod decode;
mod demote;
mod descriptors;
mod doctor;
mod filter;
mod gateway;
mod gateway_status;
mod generate;
mod logging;
mod nri;
mod probe;
mod record;
mod report;
mod run;
mod service;
mod signals;
mod ss;
mod stats;
mod support;
mod systemd;
mod tap;
mod tls;
mod top;
mod vip;
mod vip_status;
mod why;

use crate::args::{Args, Command};

/// Does what the command line asks for and says with which status to exit.
///
/// `run` returns only if the program could not be started.
pub(crate) fn execute(args: Args) -> i32 {
    match args.command {
        Command::Run(args) => run::execute(&args),
        Command::Enable(args) => service::enable(&args),
        Command::Disable(args) => service::disable(&args),
        Command::Status(args) => service::status(&args),
        Command::Call(args) => service::call(&args),
        Command::Doctor(args) => doctor::execute(&args),
        Command::Ss(args) => ss::execute(&args),
        Command::Top(args) => top::execute(&args),
        Command::Tap(args) => tap::execute(&args),
        Command::Stats(args) => stats::execute(&args),
        Command::Report(args) => report::execute(&args),
        Command::Assess(args) => assess::execute(&args),
        Command::Why(args) => why::execute(&args),
        Command::Demote(args) => demote::demote(&args),
        Command::Promote(args) => demote::promote(&args),
        Command::Support(args) => support::execute(&args),
        Command::Config(args) => config::execute(&args),
        Command::Decode(args) => decode::execute(&args),
        Command::Agent(args) => agent::execute(&args),
        Command::Nri(args) => nri::execute(&args),
        Command::Gateway(args) => gateway::execute(&args),
        Command::Links(args) => gateway_status::links(&args),
        Command::Devices(args) => gateway_status::devices(&args),
        Command::Tls(args) => tls::execute(&args),
        Command::Filter(args) => filter::execute(&args),
        Command::Vip(args) => vip::execute(&args),
        Command::Distributor(args) => vip::distribute(&args),
        Command::Bench(args) => bench::execute(&args),
        Command::Probe(args) => probe::execute(&args),
        Command::Generate(args) => generate::execute(&args),
    }
}
