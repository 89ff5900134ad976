//! One look at all programs, with what two looks are compared by.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use sidestep_observe::{Connection, Counters, Glances, Program, Snapshot, StateId};

use crate::accounts;
use crate::commands::beyond::Beyond;
use crate::commands::ss;
use crate::output::Escaped;

/// Looks, and remembers what users are called: asking that may take a network.
#[derive(Default)]
pub(super) struct Looker {
    glances: Glances,
    names: HashMap<u32, String>,
}

/// What one look found.
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) programs: Vec<SeenProgram>,
    pub(super) connections: Vec<SeenConnection>,
    /// Processes at whose descriptors we may not look.
    pub(super) unreadable: usize,
    /// Programs with another version of Sidestep.
    pub(super) incompatible: usize,
    /// Whether not all of some user's programs were read.
    pub(super) is_curtailed: bool,
}

pub(super) struct SeenProgram {
    pub(super) program: Program,
    /// What its user is called, escaped.
    pub(super) user: String,
}

pub(super) struct SeenConnection {
    pub(super) connection: Connection,
    /// How it travels.
    pub(super) mode: &'static str,
    /// Why it is on TCP; empty if it is not, or that is not decided.
    pub(super) reason: String,
}

/// What tells a connection from the others, and is the same at the next look.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Identity {
    state: StateId,
    ends: [Option<SocketAddr>; 2],
    descriptor: Option<i32>,
}

impl Looker {
    /// Looks at every process of the host.
    ///
    /// # Errors
    /// `/proc` cannot be listed, or there is no address space.
    pub(super) fn look(&mut self) -> io::Result<Look> {
        let snapshot = self.glances.look()?;
        Ok(self.looked(Instant::now(), snapshot))
    }

    fn looked(&mut self, at: Instant, snapshot: Snapshot) -> Look {
        let beyond = Beyond::of(&snapshot.connections);
        let seen = |connection: Connection| {
            let way = beyond.path(&connection);
            let mode = ss::mode(&connection, way.as_ref());
            let reason = match &way {
                Some(way) => way.fallback().map(|reason| reason.text.clone()),
                None => connection.fallback.as_ref().map(ToString::to_string),
            };
            SeenConnection { mode, reason: reason.unwrap_or_default(), connection }
        };
        let connections = snapshot.connections.into_iter().map(seen).collect();
        let programs = snapshot.programs.into_iter();
        let programs =
            programs.map(|program| SeenProgram { user: self.name_of(program.user), program });
        Look {
            at,
            programs: programs.collect(),
            connections,
            unreadable: snapshot.unreadable.len(),
            incompatible: snapshot.incompatible.len(),
            is_curtailed: !snapshot.curtailed.is_empty(),
        }
    }

    fn name_of(&mut self, user: u32) -> String {
        let name = self.names.entry(user);
        name.or_insert_with(|| Escaped(accounts::name_of(user)).to_string()).clone()
    }
}

impl Look {
    /// What each program had counted.
    pub(super) fn counters_of_programs(&self) -> HashMap<StateId, Counters> {
        let programs = self.programs.iter().map(|seen| &seen.program);
        programs.map(|program| (program.state, program.totals.counters)).collect()
    }

    /// What each connection had counted.
    pub(super) fn counters_of_connections(&self) -> HashMap<Identity, Counters> {
        let connections = self.connections.iter().map(|seen| &seen.connection);
        connections.map(|it| (Identity::of(it), it.counters)).collect()
    }
}

impl Identity {
    pub(super) fn of(connection: &Connection) -> Self {
        let Connection { state, local, peer, descriptor, .. } = connection;
        Self { state: *state, ends: [*local, *peer], descriptor: *descriptor }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    /// A look so many milliseconds after `begun`.
    pub(in crate::commands::top) fn look(
        begun: Instant,
        ms: u64,
        programs: Vec<Program>,
        connections: Vec<Connection>,
    ) -> Look {
        let snapshot = Snapshot { programs, connections, ..Snapshot::default() };
        Looker::default().looked(begun + Duration::from_millis(ms), snapshot)
    }
}
