//! Everything that is counted of a program, each figure with the metric and labels that tell it.

use std::collections::BTreeMap;

use sidestep_observe::{Program, Rings, Totals};
use sidestep_proto::fallback::Reason;

/// A counter of Prometheus: a name, and what it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
}

/// All counters; `docs/agent.md` explains each. The bytes of [`Figure::Message`] are a
/// histogram of their own.
pub(super) const FAMILIES: [Family; 18] = [
    CONNECTIONS,
    FALLBACKS,
    ATTEMPTS,
    HANDSHAKES,
    BYTES,
    MESSAGES,
    RINGS,
    RING_BYTES,
    WAITS,
    WAITS_BESIDE_STRANGERS,
    SPINS,
    SPINS_IN_VAIN,
    SPIN_SECONDS,
    YIELDS,
    STRANGERS,
    STRANGERS_SECONDS,
    SLEEPS,
    WAKEUPS,
];

const CONNECTIONS: Family = Family {
    name: "sidestep_connections_total",
    help: "Connections: smc-d once a byte went through shared memory, gateway once that has them, tcp when they ended.",
};
const FALLBACKS: Family = Family {
    name: "sidestep_fallbacks_total",
    help: "Connections that ended on TCP, by the reason that kept them there.",
};
const ATTEMPTS: Family = Family {
    name: "sidestep_handshakes_attempted_total",
    help: "Attempts to move a connection: its two ends began to look for each other.",
};
const HANDSHAKES: Family = Family {
    name: "sidestep_handshakes_total",
    help: "Attempts to move a connection that are over; agreed: it moved.",
};
const BYTES: Family = Family {
    name: "sidestep_bytes_total",
    help: "Bytes that programs sent and received, by their path.",
};
const MESSAGES: Family =
    Family { name: "sidestep_messages_total", help: "Calls of programs that moved bytes." };
const RINGS: Family = Family {
    name: "sidestep_rings_total",
    help: "Rings that connections were given to send through, from new memory or from another \
           connection's, and to receive from, in the peer's memory.",
};
const RING_BYTES: Family =
    Family { name: "sidestep_rings_bytes_total", help: "The lengths of these rings, together." };
const WAITS: Family =
    Family { name: "sidestep_waits_total", help: "Times a thread waited for the peer." };
const WAITS_BESIDE_STRANGERS: Family = Family {
    name: "sidestep_waits_beside_strangers_total",
    help: "The part of these waits that began when strangers were known to want the CPUs.",
};
const SPINS: Family = Family {
    name: "sidestep_spins_total",
    help: "Times a thread looked for the peer's bytes again instead of sleeping.",
};
const SPINS_IN_VAIN: Family = Family {
    name: "sidestep_spins_in_vain_total",
    help: "The part of these times that brought nothing.",
};
const SPIN_SECONDS: Family =
    Family { name: "sidestep_spin_cpu_seconds_total", help: "CPU time spent on that." };
const YIELDS: Family = Family {
    name: "sidestep_yields_total",
    help: "Times a thread that waited let another one run.",
};
const STRANGERS: Family = Family {
    name: "sidestep_strangers_total",
    help: "Times a thread that let another one run got the CPU back late, from a stranger.",
};
const STRANGERS_SECONDS: Family = Family {
    name: "sidestep_strangers_seconds_total",
    help: "Time for which these strangers had the CPU.",
};
const SLEEPS: Family =
    Family { name: "sidestep_sleeps_total", help: "Times a thread that waited slept." };
const WAKEUPS: Family =
    Family { name: "sidestep_wakeups_total", help: "Times a program woke its sleeping peer." };

/// The histogram of the lengths of messages.
pub(super) const MESSAGE_SIZE: Family = Family {
    name: "sidestep_message_size_bytes",
    help: "Lengths of messages: bytes that one call of a program moved.",
};

/// What is counted. Each only grows, as long as the program lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Figure {
    MovedConnections,
    HandedOverConnections,
    TcpConnections,
    /// By number of the [`Reason`].
    Fallback(u8),
    Attempts,
    Agreed,
    Failed,
    RingBytes(Direction),
    TcpBytes(Direction),
    Messages(Direction),
    /// Messages of one class of lengths.
    Message(Direction, usize),
    Rings(Source),
    BytesOfRings(Source),
    Waits,
    WaitsBesideStrangers,
    Spins,
    SpinsInVain,
    SpinNs,
    Yields,
    Strangers,
    StrangersNs,
    Sleeps,
    Wakeups,
}

/// Seen from the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    Sent,
    Received,
}

/// Where a ring comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Fresh,
    Reused,
    Peer,
}

/// Names and values of labels, besides the program's.
pub(super) type Labels = Vec<(&'static str, String)>;

impl Figure {
    /// The counter that tells it. `None`: a part of the histogram.
    pub(super) fn counter(self) -> Option<(Family, Labels)> {
        let by = |name, value: &str| vec![(name, value.to_owned())];
        let bytes = |direction: Direction, path| {
            let direction = direction.word().to_owned();
            (BYTES, vec![("direction", direction), ("path", String::from(path))])
        };
        Some(match self {
            Self::MovedConnections => (CONNECTIONS, by("mode", "smc-d")),
            Self::HandedOverConnections => (CONNECTIONS, by("mode", "gateway")),
            Self::TcpConnections => (CONNECTIONS, by("mode", "tcp")),
            Self::Fallback(code) => (FALLBACKS, labels_of(Reason::of(code, 0))),
            Self::Attempts => (ATTEMPTS, Labels::new()),
            Self::Agreed => (HANDSHAKES, by("result", "agreed")),
            Self::Failed => (HANDSHAKES, by("result", "failed")),
            Self::RingBytes(direction) => bytes(direction, "ring"),
            Self::TcpBytes(direction) => bytes(direction, "tcp"),
            Self::Messages(direction) => (MESSAGES, by("direction", direction.word())),
            Self::Message(..) => return None,
            Self::Rings(source) => (RINGS, by("source", source.word())),
            Self::BytesOfRings(source) => (RING_BYTES, by("source", source.word())),
            Self::Waits => (WAITS, Labels::new()),
            Self::WaitsBesideStrangers => (WAITS_BESIDE_STRANGERS, Labels::new()),
            Self::Spins => (SPINS, Labels::new()),
            Self::SpinsInVain => (SPINS_IN_VAIN, Labels::new()),
            Self::SpinNs => (SPIN_SECONDS, Labels::new()),
            Self::Yields => (YIELDS, Labels::new()),
            Self::Strangers => (STRANGERS, Labels::new()),
            Self::StrangersNs => (STRANGERS_SECONDS, Labels::new()),
            Self::Sleeps => (SLEEPS, Labels::new()),
            Self::Wakeups => (WAKEUPS, Labels::new()),
        })
    }

    /// The value in the unit of its metric.
    pub(super) fn in_unit(self, value: u64) -> f64 {
        match self {
            Self::SpinNs | Self::StrangersNs => value as f64 / 1e9,
            _ => value as f64,
        }
    }
}

impl Direction {
    pub(super) const ALL: [Self; 2] = [Self::Sent, Self::Received];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Received => "received",
        }
    }
}

impl Source {
    fn word(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Reused => "reused",
            Self::Peer => "peer",
        }
    }
}

/// The name of a reason, which stays when its words get better, so that no alert breaks; and
/// the standard's code.
pub(super) fn labels_of(reason: Reason) -> Labels {
    let name = reason.name().to_owned();
    let code = reason.diagnosis().map_or_else(String::new, |code| format!("{:#010x}", code.0));
    vec![("reason", name), ("code", code)]
}

/// All figures of a program. Of one that is there, connections count as TCP when they have
/// ended, because until then they may still move; of one that has ended, all do.
pub(super) fn of(program: &Program, has_ended: bool) -> Vec<(Figure, u64)> {
    let totals = &program.totals;
    let mut figures = match has_ended {
        false => fallbacks(program.ended_on_tcp.iter().copied()),
        true => {
            let told = totals.fallbacks.iter().map(|(fallback, n)| (fallback.reason, *n));
            fallbacks(told.chain([(Reason::None, totals.undecided)]))
        }
    };
    figures.extend(handshakes(totals));
    figures.extend(traffic(totals));
    figures.extend(rings(&totals.rings));
    figures.extend(waits(totals));
    figures
}

fn fallbacks(ended: impl Iterator<Item = (Reason, u64)>) -> Vec<(Figure, u64)> {
    let mut by_code: BTreeMap<u8, u64> = BTreeMap::new();
    for (reason, n) in ended.filter(|(_, n)| *n > 0) {
        // Codes that this version does not know have one series together: a program may say any.
        let code = match reason {
            Reason::Unknown(_) => u8::MAX,
            reason => reason.code(),
        };
        let sum = by_code.entry(code).or_default();
        *sum = sum.saturating_add(n);
    }
    let mut figures: Vec<_> =
        by_code.into_iter().map(|(code, n)| (Figure::Fallback(code), n)).collect();
    let tcp = figures.iter().fold(0, |sum: u64, (_, n)| sum.saturating_add(*n));
    figures.push((Figure::TcpConnections, tcp));
    figures
}

fn handshakes(totals: &Totals) -> [(Figure, u64); 5] {
    [
        (Figure::MovedConnections, totals.smc),
        (Figure::HandedOverConnections, totals.handed_over),
        (Figure::Attempts, totals.handshakes.attempted),
        (Figure::Agreed, totals.handshakes.agreed),
        (Figure::Failed, totals.handshakes.failed),
    ]
}

fn traffic(totals: &Totals) -> Vec<(Figure, u64)> {
    let counters = &totals.counters;
    let (sent, received) = (Direction::Sent, Direction::Received);
    let by_tcp = |all: u64, by_ring| all.saturating_sub(by_ring);
    let mut figures = vec![
        (Figure::RingBytes(sent), counters.ring_bytes_sent),
        (Figure::RingBytes(received), counters.ring_bytes_received),
        (Figure::TcpBytes(sent), by_tcp(counters.bytes_sent, counters.ring_bytes_sent)),
        (Figure::TcpBytes(received), by_tcp(counters.bytes_received, counters.ring_bytes_received)),
        (Figure::Messages(sent), counters.messages_sent),
        (Figure::Messages(received), counters.messages_received),
    ];
    for (direction, sizes) in [(sent, &totals.sent), (received, &totals.received)] {
        let classes = sizes.classes().enumerate();
        figures.extend(classes.map(|(class, (_, n))| (Figure::Message(direction, class), n)));
    }
    figures
}

fn rings(rings: &[Rings]) -> Vec<(Figure, u64)> {
    let sum = |source, numbers: &dyn Fn(&Rings) -> u64| {
        let all = rings.iter().enumerate();
        let (rings, bytes) = all.fold((0, 0), |(rings, bytes): (u64, u64), (index, given)| {
            let len = Rings::len_at(index) as u64;
            let n = numbers(given);
            (rings.saturating_add(n), bytes.saturating_add(n.saturating_mul(len)))
        });
        [(Figure::Rings(source), rings), (Figure::BytesOfRings(source), bytes)]
    };
    [
        sum(Source::Fresh, &|given| given.fresh),
        sum(Source::Reused, &|given| given.reused),
        sum(Source::Peer, &|given| given.incoming),
    ]
    .concat()
}

fn waits(Totals { counters, .. }: &Totals) -> [(Figure, u64); 10] {
    [
        (Figure::Waits, counters.waits),
        (Figure::WaitsBesideStrangers, counters.waits_beside_strangers),
        (Figure::Spins, counters.spins),
        (Figure::SpinsInVain, counters.spins_in_vain),
        (Figure::SpinNs, counters.spin_ns),
        (Figure::Yields, counters.yields),
        (Figure::Strangers, counters.strangers),
        (Figure::StrangersNs, counters.strangers_ns),
        (Figure::Sleeps, counters.parks),
        (Figure::Wakeups, counters.wakeups),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_reason_is_explained_to_operators() {
        let page = include_str!("../../../../../../docs/agent.md");
        for reason in Reason::all().chain([Reason::Unknown(u8::MAX)]) {
            let label = format!("`{}`", labels_of(reason)[0].1);
            assert!(page.contains(&label), "docs/agent.md does not know {label}");
        }
    }

    #[test]
    fn every_figure_has_a_family_and_labels_of_its_own() {
        let totals = Totals { undecided: 1, ..Totals::default() };
        let program = Program { totals, ..Program::default() };
        let told: Vec<_> =
            of(&program, true).into_iter().filter_map(|(figure, _)| figure.counter()).collect();
        assert!(told.iter().all(|(family, _)| FAMILIES.contains(family)));
        let series: BTreeSet<_> =
            told.iter().map(|(family, labels)| (family.name, labels.clone())).collect();
        assert_eq!(series.len(), told.len(), "two figures under one name");
        assert!(FAMILIES.iter().all(|family| told.iter().any(|(told, _)| told == family)));
    }

    #[test]
    fn codes_that_this_version_does_not_know_are_one_series() {
        let ended_on_tcp = [200, 201, 255].map(|code| (Reason::Unknown(code), 2)).to_vec();
        let told = fallbacks(ended_on_tcp.into_iter().chain([(Reason::None, 1)]));
        let unknown = Figure::Fallback(u8::MAX);
        assert_eq!(told[1..], [(unknown, 6), (Figure::TcpConnections, 7)]);
        assert_eq!(unknown.counter().unwrap().1[0].1, "Unknown");
    }

    #[test]
    fn a_connection_counts_as_tcp_once_that_is_certain() {
        let totals = Totals { undecided: 3, ..Totals::default() };
        let ended_on_tcp = vec![(Reason::None, 2)];
        let program = Program { totals, ended_on_tcp, ..Program::default() };
        let tcp = |has_ended| {
            let figures = of(&program, has_ended);
            let it = figures.iter().find(|(figure, _)| *figure == Figure::TcpConnections);
            it.map(|(_, n)| *n)
        };
        assert_eq!((tcp(false), tcp(true)), (Some(2), Some(3)));
    }
}
