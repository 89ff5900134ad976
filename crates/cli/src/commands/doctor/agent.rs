//! The check of the agent: can programs of different users and network namespaces meet?

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use sidestep_socket::process::options::AGENT_SOCKET;
use sidestep_wire::tcp_option::{Identity, question};

use super::change::{AGENT_UNIT, Change};
use super::check::Check;
use crate::commands::{agent_line, service};
use crate::config::Configuration;

/// Two things are needed: an agent that tells which connection is which, and a socket at which to ask
/// for its other end. Within one namespace, for one user, neither is.
pub(super) fn check() -> Check {
    const NAME: &str = "agent";
    let socket = socket();
    let at = socket.display();
    match (is_identity_told(), agent_line::call(&socket)) {
        (true, Ok(())) => {
            let who = "programs of different users and network namespaces";
            Check::ok(NAME, format!("{who} meet at {at}"))
        }
        (false, Err(_)) => none(NAME),
        (true, Err(error)) => Check::warn(
            NAME,
            format!("it is there, but {at} cannot be reached from here: {error}"),
            "mount the directory of the agent's socket into this container, or say by \
             smc.agent_socket where it is",
        ),
        (false, Ok(())) => Check::warn(
            NAME,
            format!(
                "it is at {at}, but nobody tells which connection is which: programs of \
                 different network namespaces stay on TCP"
            ),
            "run `sidestep agent` with CAP_BPF and CAP_NET_ADMIN, on Linux 5.18 or later, for a \
             control group that has these programs",
        ),
    }
}

/// A host lacks nothing without an agent, unless something of its own counts on one: a policy that only an agent tells, or the
/// unit, which is to start with the machine. A unit that is not enabled is started only if the policy is there.
fn none(name: &'static str) -> Check {
    let unit = AgentUnit::ask();
    let reason = match (has_policy(), unit) {
        (true, _) => "[share] lets users share memory, and takes an agent to tell their programs",
        (false, AgentUnit::Enabled) => "its unit is enabled, and does not run",
        (false, _) => {
            return Check::ok(name, "none, so programs meet within one network namespace only");
        }
    };
    let (advice, change) = match unit {
        AgentUnit::Enabled | AgentUnit::Disabled => {
            (format!("systemctl enable --now {AGENT_UNIT}"), Some(Change::StartAgent))
        }
        AgentUnit::Missing => ("sudo sidestep agent".to_owned(), None),
    };
    Check::warn(name, format!("none: {reason}"), advice).with_changes(change)
}

/// What systemd has of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgentUnit {
    /// There is none that could be started: no systemd, no such unit, or a masked one.
    Missing,
    Disabled,
    Enabled,
}

impl AgentUnit {
    fn ask() -> Self {
        let asked = ["show", "--property", "LoadState,UnitFileState", "--", AGENT_UNIT];
        service::systemctl(&asked).map_or(Self::Missing, |said| Self::parse(&said))
    }

    fn parse(said: &str) -> Self {
        let has = |line: &str| said.lines().any(|it| it == line);
        match (has("LoadState=loaded"), has("UnitFileState=enabled")) {
            (false, _) => Self::Missing,
            (true, false) => Self::Disabled,
            (true, true) => Self::Enabled,
        }
    }
}

/// Whether the policy of the host grants anything. One with a mistake has a check of its own.
fn has_policy() -> bool {
    let settings = Configuration::load(None, |name| std::env::var_os(name)).map(|it| it.settings);
    settings.is_ok_and(|it| {
        it.share_all == Some(true)
            || it.share_groups.is_some_and(|groups| !groups.is_empty())
            || it.share_pairs.is_some_and(|pairs| !pairs.is_empty())
    })
}

/// Where programs of this user look for the agent.
pub(super) fn socket() -> PathBuf {
    let configuration = Configuration::load(None, |name| std::env::var_os(name));
    let settings = configuration.ok().map(|configuration| configuration.settings);
    settings.and_then(|it| it.agent_socket).unwrap_or_else(|| AGENT_SOCKET.into())
}

/// Asks as the library does.
fn is_identity_told() -> bool {
    let connection = || {
        let listener =
            TcpListener::bind("127.0.0.1:0").or_else(|_| TcpListener::bind("[::1]:0"))?;
        TcpStream::connect(listener.local_addr()?)
    };
    let Ok(connection) = connection() else { return false };
    let answers: [i32; Identity::PARTS] =
        std::array::from_fn(|part| ask(&connection, question::IDENTITY + part as i32));
    Identity::from_answers(answers, false).is_some()
}

/// The error number that is the answer.
fn ask(connection: &TcpStream, what: i32) -> i32 {
    let value: libc::c_int = 0;
    // SAFETY: the kernel reads the given size, that of `value`, which lives until the call
    // returns.
    let result = unsafe {
        libc::setsockopt(
            connection.as_raw_fd(),
            question::LEVEL,
            what,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_started_only_if_it_can_be() {
        let unit = AgentUnit::parse;
        assert_eq!(unit("LoadState=loaded\nUnitFileState=enabled\n"), AgentUnit::Enabled);
        assert_eq!(unit("LoadState=loaded\nUnitFileState=disabled\n"), AgentUnit::Disabled);
        assert_eq!(unit("LoadState=masked\nUnitFileState=masked\n"), AgentUnit::Missing);
        assert_eq!(unit("LoadState=not-found\nUnitFileState=\n"), AgentUnit::Missing);
    }
}
