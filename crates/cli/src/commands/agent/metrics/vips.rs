//! Figures of the VIPs of the agent's network namespace, if `sidestep vip run` is at work there.

use prometheus::proto::{Metric, MetricFamily, MetricType};

use super::exposition::{family, valued};
use crate::commands::vip_status::{TargetStatus, VipStatus};

/// A figure of each target; `None`: it has none now.
struct Figure {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    of: fn(&TargetStatus) -> Option<f64>,
}

const FIGURES: [Figure; 6] = [
    Figure {
        name: "sidestep_vip_connections",
        help: "Live connections through the VIP, by target.",
        kind: MetricType::GAUGE,
        of: |target| Some(target.connections as f64),
    },
    Figure {
        name: "sidestep_vip_given_total",
        help: "Connections that the target was given by the VIP.",
        kind: MetricType::COUNTER,
        of: |target| Some(target.given as f64),
    },
    Figure {
        name: "sidestep_vip_active",
        help: "1: the target takes new connections.",
        kind: MetricType::GAUGE,
        of: |target| Some(f64::from(u8::from(target.state == "active"))),
    },
    Figure {
        name: "sidestep_vip_up",
        help: "1: the target serves, be it for connections that it has.",
        kind: MetricType::GAUGE,
        of: |target| {
            Some(f64::from(u8::from(!matches!(target.state.as_str(), "down" | "drained"))))
        },
    },
    Figure {
        name: "sidestep_vip_weight",
        help: "The weight of the target.",
        kind: MetricType::GAUGE,
        of: |target| Some(target.weight.into()),
    },
    Figure {
        name: "sidestep_vip_responsiveness_percent",
        help: "The part of the target's listen queue that is free.",
        kind: MetricType::GAUGE,
        of: |target| target.responsiveness.map(f64::from),
    },
];

/// All figures of all targets.
pub(super) fn families(vips: &[VipStatus]) -> Vec<MetricFamily> {
    let of = |figure: &Figure| {
        let metric = |vip: &VipStatus, target: &TargetStatus| {
            let labels = [("vip", vip.name.as_str()), ("target", target.name.as_str())];
            Some(valued(figure.kind, &labels, (figure.of)(target)?))
        };
        let of_vip = |vip: &VipStatus| -> Vec<Metric> {
            vip.targets.iter().filter_map(|it| metric(vip, it)).collect()
        };
        let metrics = vips.iter().flat_map(of_vip).collect();
        family(figure.name, figure.help, figure.kind, metrics)
    };
    FIGURES.iter().map(of).collect()
}
