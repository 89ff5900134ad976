//! What a program has decided about its connections in the last hour.

use super::address::address_of;
use super::connection::Role;
use super::fallback::Fallback;
use core::net::SocketAddr;
use core::time::Duration;
use sidestep_device::history;
use sidestep_device::state::State;
use sidestep_device::untracked::Batch;
use sidestep_proto::fallback::{ProgramDid, Reason};

/// Decisions of one kind about connections with one server, in the last hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The server's end; `None`: its address was not known.
    pub server: Option<SocketAddr>,
    /// Who opened these connections.
    pub role: Role,
    /// What was decided.
    pub verdict: Verdict,
    /// How often in the last hour, in steps of five minutes.
    pub in_last_hour: u64,
    /// Time since the last one.
    pub last_ago: Duration,
}

/// What was decided about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It moved to shared memory.
    Moved,
    /// Of another host: it was handed to the gateway.
    HandedOver,
    /// Nothing: it ended before.
    Undecided,
    /// It stays on TCP.
    Tcp(Fallback),
}

impl Decision {
    fn add(&mut self, more: &Self) {
        self.in_last_hour += more.in_last_hour;
        self.last_ago = self.last_ago.min(more.last_ago);
    }
}

/// The decisions of the last hour, and how many found no place to be told apart.
pub(crate) fn decisions(state: &State) -> (Vec<Decision>, u64) {
    let decision = |(kind, recent): (history::Kind, history::Recent)| Decision {
        server: address_of(kind.family, kind.server_ip, u32::from(kind.server_port)),
        role: Role::of(kind.is_server),
        verdict: match kind.verdict {
            history::Verdict::Moved => Verdict::Moved,
            history::Verdict::HandedOver => Verdict::HandedOver,
            history::Verdict::Undecided => Verdict::Undecided,
            history::Verdict::Tcp { reason, detail } => {
                Fallback::of(Reason::of(reason, detail)).map_or(Verdict::Undecided, Verdict::Tcp)
            }
        },
        in_last_hour: recent.in_last_hour,
        last_ago: Duration::from_secs(u64::from(recent.last_ago)),
    };
    let mut decisions: Vec<Decision> = Vec::new();
    let untracked = state.untracked_places().filter_map(|(_, place)| {
        let Batch { about, connections, last, .. } = place.look().1?;
        let recent = history::Recent::of(connections, last);
        (recent.in_last_hour > 0)
            .then(|| (about.ended_on_tcp(Reason::from(ProgramDid::TooShort).code()), recent))
    });
    for more in state.history().recent().chain(untracked).map(decision) {
        let is_same = |known: &&mut Decision| {
            (known.server, known.role, &known.verdict) == (more.server, more.role, &more.verdict)
        };
        match decisions.iter_mut().find(is_same) {
            Some(known) => known.add(&more),
            None => decisions.push(more),
        }
    }
    (decisions, state.history().untold().in_last_hour)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Maker;
    use sidestep_device::sys;
    use sidestep_proto::fallback::Field;

    #[test]
    fn decisions_of_one_kind_are_one_whichever_cpu_wrote_them() {
        let program = Maker::new(sys::pid());
        let kind = |verdict| history::Kind {
            server_ip: [0x0a00_0001, 0],
            server_port: 80,
            family: 4,
            is_server: true,
            verdict,
        };
        let history = program.state.history();
        for cpu in 0..3 {
            history.note(&kind(history::Verdict::Moved), cpu);
        }
        // A reason that this version does not know is told as such, and a field comes through.
        let unknown = history::Verdict::Tcp { reason: 250, detail: 0 };
        let broke = Reason::PeerBroke(Field::HELLO_RMBE_LEN);
        let breach = history::Verdict::Tcp { reason: broke.code(), detail: broke.detail() };
        (0..4).for_each(|_| history.note(&kind(breach), 0));
        history.note(&kind(unknown), 0);
        history.note(&kind(history::Verdict::Undecided), 1);
        history.note(&kind(history::Verdict::Undecided), 1);
        let (decisions, untold) = decisions(&program.state);
        let mut found: Vec<_> = decisions.iter().map(|it| (it.verdict, it.in_last_hour)).collect();
        found.sort_by_key(|(_, n)| *n);
        let tcp = |reason| Verdict::Tcp(Fallback { reason });
        let unknown = tcp(Reason::Unknown(250));
        let expected =
            [(unknown, 1), (Verdict::Undecided, 2), (Verdict::Moved, 3), (tcp(broke), 4)];
        assert_eq!(found, expected);
        assert_eq!(decisions[0].server, Some("10.0.0.1:80".parse().unwrap()));
        assert_eq!((decisions[0].role, untold), (Role::Server, 0));
    }
}
