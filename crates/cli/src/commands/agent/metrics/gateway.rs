//! What the gateway of this network namespace tells of itself, for Prometheus.
//!
//! The counters of programs end at the gateway: that a connection was handed over does not say how it
//! travelled. The gateway knows, and counts its own CPU time, which is part of what SMC-R costs.

use std::collections::BTreeMap;

use sidestep_gateway::status::{Mode, Status};

use super::figures::Family;

/// A sample of a family.
pub(super) struct Sample {
    pub(super) family: Family,
    /// At most one, a name and a value.
    pub(super) label: Option<(&'static str, String)>,
    pub(super) value: f64,
}

/// What only grows.
pub(super) fn counters(status: &Status) -> Vec<Sample> {
    let Status { totals, cpu, adapters, .. } = status;
    let count = |family, value: u64| Sample { family, label: None, value: value as f64 };
    let labeled = |family, name, label: &str, value| Sample {
        family,
        label: Some((name, label.to_owned())),
        value,
    };
    let seconds = |us: u64| us as f64 / 1e6;
    let bytes = |of: fn(&sidestep_gateway::status::Traffic) -> u64| {
        adapters.iter().map(|adapter| of(&adapter.usage.traffic)).sum::<u64>() as f64
    };
    let mut samples = vec![
        labeled(CONNECTIONS, "path", "smc-r", totals.smc_r_connections as f64),
        labeled(CONNECTIONS, "path", "tcp", totals.tcp_connections as f64),
        count(RESETS, totals.resets),
        labeled(BYTES, "direction", "sent", bytes(|traffic| traffic.bytes_sent)),
        labeled(BYTES, "direction", "received", bytes(|traffic| traffic.bytes_received)),
        count(FAILOVERS, totals.failovers),
        count(RMBE_FULL, totals.rmbe_full),
        labeled(CPU_SECONDS, "mode", "user", seconds(cpu.user_us)),
        labeled(CPU_SECONDS, "mode", "system", seconds(cpu.system_us)),
    ];
    samples.extend(status.sent_again().map(|packets| count(SENT_AGAIN, packets)));
    samples
}

/// What is so at the moment. What there is none of is 0, and not absent.
pub(super) fn gauges(status: &Status) -> Vec<Sample> {
    let paths = status.connections.iter().map(|it| word(it.mode).to_owned());
    let states = status.adapters.iter().map(|it| (if it.is_up { "up" } else { "down" }).to_owned());
    let links = status.links.iter().map(|it| it.state.clone());
    [
        (OPEN, "path", tally(["smc-r", "tcp", "deciding"], paths)),
        (ADAPTERS, "state", tally(["up", "down"], states)),
        (LINKS, "state", tally(["Active"], links)),
    ]
    .into_iter()
    .flat_map(|(family, name, counts)| {
        counts.into_iter().map(move |(label, count)| Sample {
            family,
            label: Some((name, label)),
            value: count as f64,
        })
    })
    .collect()
}

fn tally<const N: usize>(
    known: [&str; N],
    seen: impl Iterator<Item = String>,
) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<String, usize> = known.map(|name| (name.to_owned(), 0)).into();
    seen.for_each(|name| *counts.entry(name).or_default() += 1);
    counts
}

const fn word(mode: Mode) -> &'static str {
    match mode {
        Mode::Deciding => "deciding",
        Mode::SmcR => "smc-r",
        Mode::Tcp => "tcp",
        Mode::Tls => "tls",
        Mode::WithinHost => "within-host",
    }
}

const CONNECTIONS: Family = Family {
    name: "sidestep_gateway_connections_total",
    help: "Connections that were handed to the gateway, by the path to the other host.",
};
const RESETS: Family =
    Family { name: "sidestep_gateway_resets_total", help: "Connections that it has reset." };
const BYTES: Family =
    Family { name: "sidestep_gateway_bytes_total", help: "Bytes of programs that went by RDMA." };
const FAILOVERS: Family = Family {
    name: "sidestep_gateway_failovers_total",
    help: "Times that a connection has gone over to another link.",
};
const RMBE_FULL: Family = Family {
    name: "sidestep_gateway_rmbe_full_total",
    help: "Times that a connection had more to send than the peer's RMBE has room for.",
};
const SENT_AGAIN: Family = Family {
    name: "sidestep_gateway_packets_sent_again_total",
    help: "Packets that its adapters have sent again.",
};
const CPU_SECONDS: Family =
    Family { name: "sidestep_gateway_cpu_seconds_total", help: "CPU time of the gateway." };
const OPEN: Family = Family {
    name: "sidestep_gateway_connections",
    help: "Open connections of the gateway now, by the path to the other host.",
};
const LINKS: Family =
    Family { name: "sidestep_gateway_links", help: "Links of all link groups now." };
const ADAPTERS: Family =
    Family { name: "sidestep_gateway_adapters", help: "Adapters of the gateway now." };

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_gateway::status::{Cpu, Totals};

    #[test]
    fn what_is_passed_on_by_tcp_is_told_apart() {
        let status = Status {
            totals: Totals { smc_r_connections: 5, tcp_connections: 3, ..Totals::default() },
            cpu: Cpu { user_us: 1_500_000, ..Cpu::default() },
            ..Status::default()
        };
        let samples = counters(&status);
        let value = |family: Family, label: &str| {
            let is_it = |it: &&Sample| {
                it.family == family && it.label.as_ref().is_some_and(|(_, of)| of == label)
            };
            samples.iter().find(is_it).map(|it| it.value)
        };
        assert_eq!(value(CONNECTIONS, "smc-r"), Some(5.0));
        assert_eq!(value(CONNECTIONS, "tcp"), Some(3.0));
        assert_eq!(value(CPU_SECONDS, "user"), Some(1.5));
        assert!(samples.iter().all(|it| it.family != SENT_AGAIN), "nothing tells");
        assert!(gauges(&status).iter().all(|it| it.value == 0.0));
    }
}
