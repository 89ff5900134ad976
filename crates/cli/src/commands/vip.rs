//! `sidestep vip`: one address for many servers of this host.
//!
//! ```text
//!   sidestep vip run ── Director ──┬── sockets, listener   what the kernel knows of sockets; theirs, fetched
//!      │                           ├── giving              the kernel gets them, by a process that may wait
//!      │                           ├── probe               whether a target serves
//!      │                           ├── presence            clients under Sidestep may meet the targets
//!   vip_status <── sidestep vip ...└── sidestep_bpf::Steering
//! ```
//!
//! One process for each network namespace holds all of it. The other commands ask it, by a name that only
//! processes of the namespace can reach.

mod daemon;
mod director;
mod error;
mod giving;
mod greeting;
mod hosts;
mod inquiry;
mod listener;
mod presence;
mod probe;
mod roster;
mod run;
mod show;
mod sockets;

pub(crate) use hosts::execute as distribute;

use super::vip_status::Request;
use crate::args::{VipArgs, VipCommand};
use crate::output;

/// Does what was asked for; 1 if it could not be done, otherwise 0.
pub(crate) fn execute(args: &VipArgs) -> i32 {
    let (command, done) = match &args.command {
        VipCommand::Run(args) => ("run", run::execute(args)),
        VipCommand::Apply(args) => ("apply", show::change(&Request::Apply, args.json)),
        VipCommand::List(args) => ("list", show::list(args)),
        VipCommand::Targets(args) => ("targets", show::targets(args)),
        VipCommand::Connections(args) => ("connections", show::connections(args)),
        VipCommand::Drain(args) => {
            ("drain", show::change(&Request::Drain(args.target.clone()), args.json))
        }
        VipCommand::Resume(args) => {
            ("resume", show::change(&Request::Resume(args.target.clone()), args.json))
        }
        VipCommand::Remove(args) => {
            ("remove", show::change(&Request::Remove(args.vip.clone()), args.json))
        }
        VipCommand::GiveListener(args) => {
            ("give-listener", giving::execute(args).map_err(Into::into))
        }
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            output::complain_lines(&format!("vip {command}"), &error.to_string());
            1
        }
    }
}
