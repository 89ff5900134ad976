//! `sidestep why`: in plain words, why connections of a process, port or address are where they
//! are, who decided it, and what to change.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use sidestep_gateway::status::{Refusal, Status};
use sidestep_observe::{Connection, Program, Snapshot};
use thiserror::Error;

use super::beyond::Beyond;
use super::ss;
use crate::args::{Subject, WhyArgs, canonical};
use crate::output;
use findings::{Scope, Sight, Stranger};
use host::{Holder, Host};
use report::{Explanation, ListenerRow};

mod advice;
mod findings;
pub(super) mod host;
mod report;
mod setting;

/// Prints the explanation; 1 if there is none, otherwise 0.
pub(crate) fn execute(args: &WhyArgs) -> i32 {
    let explained = explain(args.subject).and_then(|explanation| {
        let text = if args.json { explanation.to_json() } else { explanation.to_text() };
        output::print_as(args.json, &text).map(drop).map_err(WhyError::Output)
    });
    match explained {
        Ok(()) => 0,
        Err(error) => {
            output::complain("why", &error);
            1
        }
    }
}

/// Why there is no explanation. Each says what to do next.
#[derive(Debug, Error)]
enum WhyError {
    #[error("cannot read /proc: {0}")]
    Processes(io::Error),
    #[error("there is no process {0}; `sidestep ss` lists those under Sidestep")]
    NoProcess(u32),
    #[error("process {0}: {reason}", reason = ss::refusal(ss::is_root()))]
    Unreadable(u32),
    #[error(
        "no program under Sidestep listens on {0} or has had a connection with it in the last \
         hour; start the server with `sidestep run`{1}"
    )]
    UnknownPort(u16, &'static str),
    #[error(
        "{0} is neither a process nor a port with a server; start the server with `sidestep run`"
    )]
    UnknownNumber(u32),
    #[error(
        "no program under Sidestep has a connection with {0}, or had one with a server there in the \
         last hour; `sidestep ss` lists those that are open{1}"
    )]
    UnknownAddress(Subject, &'static str),
    #[error("cannot write the explanation: {0}")]
    Output(io::Error),
}

/// Which connections the subject has.
enum Asked {
    /// Of the processes that share a state.
    Processes(Vec<u32>),
    Port(u16),
    Host(IpAddr),
    Address(SocketAddr),
}

impl Scope for Asked {
    fn has_connection(&self, connection: &Connection) -> bool {
        let ends = [connection.local, connection.peer];
        match self {
            Self::Processes(pids) => pids.contains(&connection.pid),
            Self::Port(port) => connection.server().is_some_and(|end| end.port() == *port),
            Self::Host(ip) => ends.iter().flatten().any(|end| end.ip() == *ip),
            Self::Address(address) => ends.contains(&Some(*address)),
        }
    }

    fn has_decision(&self, program: &Program, server: Option<SocketAddr>) -> bool {
        match self {
            Self::Processes(pids) => program.pids == *pids,
            Self::Port(port) => server.is_some_and(|server| server.port() == *port),
            Self::Host(ip) => server.is_some_and(|server| server.ip() == *ip),
            Self::Address(address) => server == Some(*address),
        }
    }
}

fn explain(subject: Subject) -> Result<Explanation, WhyError> {
    let mut snapshot = Snapshot::take().map_err(WhyError::Processes)?;
    ss::say_curtailed("why", &snapshot.curtailed);
    snapshot.find_addresses();
    let host = Host::look().map_err(WhyError::Processes)?;
    let beyond = Beyond::of(&snapshot.connections);
    let sight = Sight { snapshot: &snapshot, host: &host, beyond: &beyond };
    match subject {
        Subject::Process(pid) => sight.explain_process(pid, None),
        Subject::Port(port) => sight.explain_port(port, None),
        Subject::Number(number) => sight.explain_number(number),
        Subject::Host(ip) => sight.explain_address(subject, Asked::Host(ip)),
        Subject::Address(address) => {
            sight.explain_address(subject, Asked::Address(canonical(address)))
        }
    }
}

/// What the gateway has refused lately for lack of TLS. One that cannot be asked tells nothing.
fn refusals(asked: &Asked) -> Vec<Refusal> {
    let told = Status::ask().map(|status| status.refusals).unwrap_or_default();
    let is_meant = |it: &Refusal| {
        let ends = [it.local, it.remote];
        let server = if it.is_server { it.local } else { it.remote };
        match asked {
            Asked::Processes(_) => false,
            Asked::Port(port) => server.is_some_and(|end| end.port() == *port),
            Asked::Host(ip) => ends.iter().flatten().any(|end| end.ip() == *ip),
            Asked::Address(address) => ends.contains(&Some(*address)),
        }
    };
    told.into_iter().filter(is_meant).collect()
}

impl Sight<'_> {
    /// A number is a process under Sidestep, else a port, else a plain process.
    fn explain_number(&self, number: u32) -> Result<Explanation, WhyError> {
        let is_process = Path::new(&format!("/proc/{number}")).exists();
        let port = u16::try_from(number).ok();
        let known_port = port.filter(|port| self.knows_port(*port));
        if self.is_sidestep(number) {
            let hint = known_port.map(|port| format!("{port} is a port as well: ask for :{port}"));
            return self.explain_process(number, hint);
        }
        match (known_port.or(port.filter(|_| !is_process)), is_process) {
            (Some(port), _) => {
                let hint = is_process
                    .then(|| format!("{number} is a process as well: ask for pid:{number}"));
                self.explain_port(port, hint)
            }
            (None, true) => self.explain_process(number, None),
            (None, false) => Err(WhyError::UnknownNumber(number)),
        }
    }

    fn knows_port(&self, port: u16) -> bool {
        !self.host.listeners(port).is_empty() || !self.findings(&Asked::Port(port)).is_empty()
    }

    fn explain_process(&self, pid: u32, hint: Option<String>) -> Result<Explanation, WhyError> {
        if self.snapshot.unreadable.contains(&pid) {
            return Err(WhyError::Unreadable(pid));
        }
        if !Path::new(&format!("/proc/{pid}")).exists() {
            return Err(WhyError::NoProcess(pid));
        }
        let program = host::name(pid);
        let of_program = self.snapshot.programs.iter().find(|known| known.pids.contains(&pid));
        let Some(of_program) = of_program else {
            let holder = Holder { pid, program: program.clone() };
            let stranger = Stranger::of(&holder, self.snapshot);
            let change = stranger.change.map(|change| format!("; {change}"));
            let change = change.unwrap_or_default();
            let subject = format!("process {pid}: {program}; {}{change}", stranger.words);
            return Ok(Explanation { subject, hint, ..Explanation::default() });
        };
        Ok(Explanation {
            subject: format!("process {pid}: {program}, under Sidestep"),
            hint,
            findings: self.findings(&Asked::Processes(of_program.pids.clone())),
            untold: of_program.decisions_untold,
            ..Explanation::default()
        })
    }

    fn explain_port(&self, port: u16, hint: Option<String>) -> Result<Explanation, WhyError> {
        let listeners: Vec<_> =
            self.host.listeners(port).into_iter().map(|it| self.row(it)).collect();
        let findings = self.findings(&Asked::Port(port));
        let refusals = refusals(&Asked::Port(port));
        if listeners.is_empty() && findings.is_empty() && refusals.is_empty() {
            return Err(WhyError::UnknownPort(port, self.what_is_hidden()));
        }
        let subject = format!("port {port}");
        Ok(Explanation { subject, hint, listeners, findings, refusals, untold: self.untold() })
    }

    fn explain_address(&self, subject: Subject, asked: Asked) -> Result<Explanation, WhyError> {
        let (findings, refusals) = (self.findings(&asked), refusals(&asked));
        let listeners: Vec<_> = match asked {
            Asked::Address(address) => {
                let is_asked_for = |listener: &host::Listener| {
                    listener.address.ip() == address.ip() || listener.address.ip().is_unspecified()
                };
                let listeners = self.host.listeners(address.port()).into_iter();
                listeners.filter(is_asked_for).map(|it| self.row(it)).collect()
            }
            _ => Vec::new(),
        };
        if listeners.is_empty() && findings.is_empty() && refusals.is_empty() {
            return Err(WhyError::UnknownAddress(subject, self.what_is_hidden()));
        }
        let subject = subject.to_string();
        let untold = self.untold();
        Ok(Explanation { subject, hint: None, listeners, findings, refusals, untold })
    }

    fn untold(&self) -> u64 {
        self.snapshot.programs.iter().map(|program| program.decisions_untold).sum()
    }

    /// What to add when nothing was found: another user may see more.
    fn what_is_hidden(&self) -> &'static str {
        match self.snapshot.unreadable.is_empty() || ss::is_root() {
            true => "",
            false => " (processes of other users were not looked at; root sees all)",
        }
    }

    fn row(&self, listener: host::Listener) -> ListenerRow {
        let blank = ListenerRow {
            address: listener.address,
            pid: None,
            program: None,
            under_sidestep: true,
            state: None,
            change: None,
            target: listener.target,
        };
        let Some(holder) = listener.holder else {
            let state = format!("its process is not known: {}", ss::refusal(ss::is_root()));
            return ListenerRow { under_sidestep: false, state: Some(state), ..blank };
        };
        let known =
            ListenerRow { pid: Some(holder.pid), program: Some(holder.program.clone()), ..blank };
        if self.is_sidestep(holder.pid) {
            return known;
        }
        let Stranger { is_under_sidestep, words, change } = Stranger::of(&holder, self.snapshot);
        ListenerRow { under_sidestep: is_under_sidestep, state: Some(words), change, ..known }
    }
}
