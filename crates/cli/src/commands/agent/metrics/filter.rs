//! Figures of the IP filter of the host, if one is in force.

use prometheus::proto::{MetricFamily, MetricType};

use super::exposition::{family, valued};
use crate::commands::filter::Figures;

/// A figure: its metrics, each with the value of the label.
struct Figure {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    of: fn(&Figures) -> Vec<(&'static str, String, f64)>,
}

/// Counts that one label tells apart.
fn by(label: &'static str, counts: [(&str, u64); 2]) -> Vec<(&'static str, String, f64)> {
    counts.map(|(value, count)| (label, value.to_owned(), count as f64)).into()
}

const FIGURES: [Figure; 6] = [
    Figure {
        name: "sidestep_filter_packets_total",
        help: "Packets for which the rules were searched, because no verdict was kept with the socket.",
        kind: MetricType::COUNTER,
        of: |it| by("action", [("permit", it.totals.permitted), ("deny", it.totals.denied)]),
    },
    Figure {
        name: "sidestep_filter_forwarded_packets_total",
        help: "Packets that were forwarded by an interface where the filter judges them.",
        kind: MetricType::COUNTER,
        of: |it| {
            let totals = &it.totals;
            by(
                "action",
                [("permit", totals.forwarded_permitted), ("deny", totals.forwarded_denied)],
            )
        },
    },
    Figure {
        name: "sidestep_filter_log_lines_lost_total",
        help: "Lines of the log that were too many in a second, or for which the ring had no room.",
        kind: MetricType::COUNTER,
        of: |it| {
            by("reason", [("rate", it.totals.lost_by_rate), ("room", it.totals.lost_for_room)])
        },
    },
    Figure {
        name: "sidestep_filter_rules",
        help: "Rules of the list in force.",
        kind: MetricType::GAUGE,
        of: |it| vec![("file", it.about.file.display().to_string(), it.about.rules as f64)],
    },
    Figure {
        name: "sidestep_filter_info",
        help: "1; the name of the list in force, which changes with its text.",
        kind: MetricType::GAUGE,
        of: |it| vec![("list", it.name.clone(), 1.0)],
    },
    Figure {
        name: "sidestep_filter_applied_timestamp_seconds",
        help: "When the list was put into force, since 1970.",
        kind: MetricType::GAUGE,
        of: |it| vec![("cgroup", it.about.cgroup.display().to_string(), it.about.applied_s as f64)],
    },
];

/// All figures.
pub(super) fn families(filter: &Figures) -> Vec<MetricFamily> {
    let of = |figure: &Figure| {
        let metrics = (figure.of)(filter)
            .into_iter()
            .map(|(label, of, value)| valued(figure.kind, &[(label, &of)], value));
        family(figure.name, figure.help, figure.kind, metrics.collect())
    };
    FIGURES.iter().map(of).collect()
}
