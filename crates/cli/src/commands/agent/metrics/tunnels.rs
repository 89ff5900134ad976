//! Packets that came through tunnels of distributors to the agent's network namespace, if `sidestep distributor target` takes any there.

use prometheus::proto::{MetricFamily, MetricType};

use super::exposition::{family, valued};
use crate::commands::vip_status::Tunnelled;

/// What became of packets.
pub(super) fn families(tunnelled: Option<Tunnelled>) -> Vec<MetricFamily> {
    let counts = |it: Tunnelled| [("taken", it.taken), ("refused", it.refused)];
    let metric = |(result, count)| valued(MetricType::COUNTER, &[("result", result)], count as f64);
    let metrics = tunnelled.into_iter().flat_map(counts).map(metric).collect();
    let help = "Packets to the port of tunnels, in a distributor's name or as if they were.";
    vec![family("sidestep_vip_tunnel_packets_total", help, MetricType::COUNTER, metrics)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_packets_are_told_apart_and_nothing_where_no_tunnel_leads() {
        let counted = |tunnelled| {
            let families = families(tunnelled);
            let metrics = families[0].get_metric().iter();
            let told = metrics
                .map(|it| (it.get_label()[0].value().to_owned(), it.get_counter().get_value()));
            told.collect::<Vec<_>>()
        };
        assert_eq!(counted(None), []);
        let due = [("taken".to_owned(), 7.0), ("refused".to_owned(), 3.0)];
        assert_eq!(counted(Some(Tunnelled { taken: 7, refused: 3 })), due);
    }
}
