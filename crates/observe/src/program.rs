//! What one state says: a program, its connections, and what it has written down besides them.
//!
//! Each file turns one part of the layout in `sidestep_device` into plain values. All of it is a
//! stranger's word, so each word is checked before it means anything, and an absurd one does no harm.

pub(crate) mod address;
pub(crate) mod connection;
pub(crate) mod counters;
pub(crate) mod decision;
pub(crate) mod fallback;
pub(crate) mod service;
pub(crate) mod totals;

use crate::host::state_file::StateId;
use address::address;
use connection::Seen;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use core::time::Duration;
use counters::Counters;
use decision::Decision;
use service::Service;
use sidestep_device::channel::SLOTS;
use sidestep_device::state::{self, State};
use sidestep_device::sys;
use sidestep_proto::autosmc::Patience;
use sidestep_proto::fallback::Reason;
use totals::Totals;

/// A state and the processes that hold it. A program has a state from its first TCP connection to
/// its end; children that have opened no connection of their own share their parent's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Which state it is.
    pub state: StateId,
    /// The processes that hold it: the one that made it first, if it lives. Never empty.
    pub pids: Vec<u32>,
    /// What the kernel calls the first of them, without control characters.
    pub program: String,
    /// The user who made the state.
    pub user: u32,
    /// All its connections since its start.
    pub totals: Totals,
    /// Connections that have ended on TCP, by reason; [`Reason::None`]: nothing was decided.
    pub ended_on_tcp: Vec<(Reason, u64)>,
    /// What AUTOSMC has learned: servers' ports at which connections have to live longer than
    /// elsewhere before they are moved.
    pub patience: Vec<(u16, Patience)>,
    /// What AUTOCACHE remembers.
    pub left_alone: Vec<LeftAlone>,
    /// What was decided in the last hour.
    pub decisions: Vec<Decision>,
    /// Decisions of the last hour that found no place among these.
    pub decisions_untold: u64,
    /// Its traffic by server, if it only counts.
    pub services: Vec<Service>,
    /// Connections that found no place among these.
    pub services_untold: u64,
}

/// A server with which agreeing has failed, and that is not asked for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftAlone {
    /// Its address.
    pub server: SocketAddr,
    /// Why it failed last.
    pub reason: Reason,
    /// Failures in a row.
    pub failures: u32,
    /// When it is asked again.
    pub again_in: Duration,
}

impl Program {
    /// What a mirrored state says: all but `pids`, `program` and `user`, which it does not know.
    pub(crate) fn read(state: &State, id: StateId) -> Self {
        let untracked: Vec<_> = state.untracked_places().map(|(_, place)| place.look()).collect();
        let (services, services_untold) = service::services(state);
        let (decisions, decisions_untold) = decision::decisions(state);
        Self {
            state: id,
            pids: Vec::new(),
            program: String::new(),
            user: 0,
            totals: totals::totals(state, &untracked),
            ended_on_tcp: totals::ended_on_tcp(state, &untracked),
            patience: patience(state),
            left_alone: left_alone(state),
            decisions,
            decisions_untold,
            services,
            services_untold,
        }
    }
}

/// The connections of a mirrored state, each with its place, by which they are sorted.
pub(crate) fn connections(state: &State) -> impl Iterator<Item = (usize, Seen)> {
    let owner = state.header().pid.load(Ordering::Relaxed);
    let grown = state.slots().enumerate();
    let grown = grown.filter_map(|(index, slot)| Some((index, Seen::read(slot)?)));
    let untracked = state.untracked_places().filter_map(move |(fd, place)| {
        let (about, traffic) = place.look().0?;
        let counters = Counters::of_untracked(traffic);
        Some((SLOTS + fd as usize, Seen::untracked(owner, fd, about, &counters)))
    });
    grown.chain(untracked)
}

fn patience(state: &State) -> Vec<(u16, Patience)> {
    let learned = state.header().ports.iter().map(state::Port::get);
    let learned = learned.filter(|(port, doublings)| *port != 0 && *doublings != 0);
    let mut ports: Vec<_> =
        learned.map(|(port, doublings)| (port, Patience::new(doublings))).collect();
    ports.sort_by_key(|(port, _)| *port);
    ports
}

fn left_alone(state: &State) -> Vec<LeftAlone> {
    let now = sys::now_ns();
    let failure = |failure: &state::Failure| {
        // Acquire: pairs with the Release after what it is about.
        let left = failure.until_ns.load(Ordering::Acquire).checked_sub(now)?;
        let family = u8::try_from(failure.family.load(Ordering::Relaxed)).ok()?;
        Some(LeftAlone {
            server: address(family, &failure.ip, &failure.port)?,
            reason: Reason::of_word(failure.reason.load(Ordering::Relaxed)),
            failures: failure.in_a_row.load(Ordering::Relaxed),
            again_in: Duration::from_nanos(left),
        })
    };
    state.header().failures.iter().filter_map(failure).collect()
}
