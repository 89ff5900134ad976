//! `sidestep demote` and `sidestep promote`: connections go by TCP, and come back, while their
//! programs run.

use std::io;

use sidestep_observe::{Connection, Reached, Snapshot, Whose};
use thiserror::Error;

use super::ss;
use crate::args::{DemoteArgs, Target};
use crate::output;

/// Takes connections back to TCP; 1 if not all could be told, otherwise 0.
pub(crate) fn demote(args: &DemoteArgs) -> i32 {
    let done = |reached: &Reached| {
        format!(
            "{}: they go by TCP from their next messages on; \
             `sidestep promote {}` lets them come back",
            count(reached),
            args.target
        )
    };
    report(
        "demote",
        tell("demote", args.target, sidestep_observe::hold).map(|reached| done(&reached)),
    )
}

/// Lets them move again; 1 if not all could be told, otherwise 0.
pub(crate) fn promote(args: &DemoteArgs) -> i32 {
    let done = |reached: &Reached| format!("{}: they may move again", count(reached));
    report(
        "promote",
        tell("promote", args.target, sidestep_observe::release).map(|reached| done(&reached)),
    )
}

fn report(command: &str, done: Result<String, Untold>) -> i32 {
    match done.and_then(|text| output::print(&format!("{text}\n")).map_err(Untold::Output)) {
        Ok(_) => 0,
        Err(error) => {
            output::complain(command, &error);
            1
        }
    }
}

/// Why it is not known whose connections are meant.
#[derive(Debug, Error)]
pub(super) enum NotMeant {
    #[error("cannot list /proc: {0}")]
    Processes(#[from] io::Error),
    #[error("{0} is both a process and a port: say pid:{0} or :{0}")]
    Ambiguous(u32),
}

/// Why a program was not told.
#[derive(Debug, Error)]
enum Untold {
    #[error(transparent)]
    Target(#[from] NotMeant),
    #[error(
        "there is no Sidestep program {0} with TCP connections; `sidestep ss --totals` lists them"
    )]
    Nobody(Target),
    #[error("may not tell {}: run it as their user, or as root", pids(.0))]
    Refused(Vec<u32>),
    #[error(
        "{} hold as many ports as they can: promote some of them, or demote the process",
        pids(.0)
    )]
    Full(Vec<u32>),
    #[error("all ports of {} are held, and none can be let go alone: promote the process, or all", pids(.0))]
    AllHeld(Vec<u32>),
    #[error("cannot write the result: {0}")]
    Output(io::Error),
}

fn tell(
    command: &str,
    target: Target,
    say: impl Fn(Whose) -> io::Result<Reached>,
) -> Result<Reached, Untold> {
    let whose = whose(target)?;
    let reached = say(whose).map_err(NotMeant::Processes)?;
    ss::say_curtailed(command, &reached.curtailed);
    let is_process = matches!(whose, Whose::Process(_));
    if !reached.full.is_empty() {
        Err(Untold::Full(reached.full))
    } else if !reached.all_held.is_empty() {
        Err(Untold::AllHeld(reached.all_held))
    } else if !reached.pids.is_empty() {
        Ok(reached)
    } else if is_process && !reached.refused.is_empty() {
        // Whoever means a port or all means those that he may tell: of the others nobody
        // knows whether they are Sidestep's.
        Err(Untold::Refused(reached.refused))
    } else {
        Err(Untold::Nobody(target))
    }
}

/// A bare number is a process if a Sidestep program has it, and else a port.
pub(super) fn whose(target: Target) -> Result<Whose, NotMeant> {
    let number = match target {
        Target::All => return Ok(Whose::All),
        Target::Process(pid) => return Ok(Whose::Process(pid)),
        Target::Port(port) => return Ok(Whose::Port(port)),
        Target::Number(number) => number,
    };
    let mut snapshot = Snapshot::take()?;
    snapshot.find_addresses();
    let is_process = snapshot.programs.iter().any(|program| program.pids.contains(&number));
    let port = u16::try_from(number).ok();
    let servers = snapshot.connections.iter().filter_map(Connection::server);
    let is_port = servers.map(|server| server.port()).any(|used| Some(used) == port);
    match (is_process, port) {
        (true, Some(_)) if is_port => Err(NotMeant::Ambiguous(number)),
        (false, Some(port)) => Ok(Whose::Port(port)),
        _ => Ok(Whose::Process(number)),
    }
}

fn count(reached: &Reached) -> String {
    let some = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    format!("{} of {}", some(reached.connections, "connection"), processes(reached.pids.len()))
}

fn processes(n: usize) -> String {
    if n == 1 { "1 process".into() } else { format!("{n} processes") }
}

fn pids(pids: &[u32]) -> String {
    let numbers: Vec<_> = pids.iter().map(u32::to_string).collect();
    format!("process {}", numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_agree_with_what_they_count() {
        let reached = |connections, pids: &[u32]| Reached {
            connections,
            pids: pids.iter().copied().collect(),
            ..Reached::default()
        };
        assert_eq!(count(&reached(1, &[7])), "1 connection of 1 process");
        assert_eq!(count(&reached(0, &[7, 8])), "0 connections of 2 processes");
    }

    #[test]
    fn who_is_not_there_is_said_to_be_not_there() {
        let error = tell("demote", Target::Process(u32::MAX), sidestep_observe::hold).unwrap_err();
        assert!(error.to_string().starts_with("there is no Sidestep program pid:4294967295"));
    }
}
