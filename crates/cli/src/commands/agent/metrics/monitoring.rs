//! The dashboard and the alert rules of `packaging/` ask for metrics that the agent tells, and for no others.

use std::collections::BTreeSet;
use std::time::Duration;

use prometheus::proto::MetricFamily;
use sidestep_gateway::status::{Adapter, Status, Traffic, Usage};
use sidestep_observe::{Program, Snapshot, Watched};
use sidestep_proto::fallback::Reason;

use super::ledger::Ledger;
use super::{exposition, figures, filter, tunnels, vips};
use crate::commands::filter::Figures;
use crate::commands::ss;

const RULES: &str = include_str!("../../../../../../packaging/prometheus/sidestep.rules.yml");
const RULES_TEST: &str =
    include_str!("../../../../../../packaging/prometheus/sidestep.rules.test.yml");
const DASHBOARD: &str = include_str!("../../../../../../packaging/grafana/sidestep.json");

/// An adapter that tells how many packets it has sent again.
fn adapter() -> Adapter {
    Adapter {
        address: "10.0.0.1".parse().unwrap(),
        port: None,
        roce: vec![2],
        gid: String::new(),
        mac: String::new(),
        mtu: None,
        vlan: 0,
        pnet_id: None,
        interface: None,
        is_up: true,
        links: 0,
        usage: Usage { traffic: Traffic::default(), retransmissions: Some(0) },
    }
}

fn filter_in_force() -> Figures {
    let about = serde_json::json!({ "file": "", "cgroup": "", "applied_s": 0 });
    let about = serde_json::from_value(about).unwrap();
    Figures { name: String::new(), about, totals: Default::default() }
}

/// All that the agent tells where there is everything of which it may tell.
fn families() -> Vec<MetricFamily> {
    let connection = ss::tests::on_tcp();
    let programs = vec![Program { pids: vec![1], program: "a".into(), ..Program::default() }];
    let connections = vec![connection];
    let snapshot = Snapshot { programs, connections, ..Snapshot::default() };
    let (mut ledger, watched) = (Ledger::default(), Watched { snapshot, ..Watched::default() });
    ledger.enter(&watched);
    let status = Status { adapters: vec![adapter()], ..Status::default() };
    let mut families = exposition::gauges(&watched.snapshot, &ledger, Duration::ZERO);
    families.extend(exposition::counters(&ledger));
    families.extend(exposition::of_gateway(&status));
    families.extend(vips::families(&[]));
    families.extend(tunnels::families(None));
    families.extend(filter::families(&filter_in_force()));
    families
}

/// Names under which samples are found.
fn told() -> BTreeSet<String> {
    let names = families().into_iter().map(|family| family.name().to_owned());
    let sizes =
        ["_bucket", "_sum", "_count"].map(|part| figures::MESSAGE_SIZE.name.to_owned() + part);
    names.chain(sizes).collect()
}

/// Words that are names of ours, in a text.
fn asked(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("sidestep_")).map(str::to_owned).collect()
}

#[test]
fn dashboard_and_rules_ask_for_what_the_agent_tells() {
    let told = told();
    assert!(told.len() > 45, "{told:?}");
    for (file, text) in [("rules", RULES), ("their test", RULES_TEST), ("dashboard", DASHBOARD)] {
        let asked = asked(text);
        let unknown: Vec<_> = asked.difference(&told).collect();
        assert!(unknown.is_empty(), "{file}: the agent does not tell {unknown:?}");
        assert!(asked.len() > 3, "{file}: {asked:?}");
    }
}

/// A rule for a reason of another name would never fire.
#[test]
fn rules_name_reasons_that_there_are() {
    let known: BTreeSet<&str> = (0..=u8::MAX).map(|code| Reason::of(code, 0).name()).collect();
    let named: Vec<&str> = RULES
        .split("reason=")
        .skip(1)
        .filter_map(|rest| rest.trim_start_matches('~').split('"').nth(1))
        .flat_map(|reasons| reasons.split('|'))
        .collect();
    assert_eq!(named.len(), 4, "{named:?}");
    for reason in named {
        assert!(known.contains(reason), "there is no reason {reason}");
    }
}

#[test]
fn the_dashboard_is_a_document_with_a_question_in_each_panel() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    assert_eq!(dashboard["uid"], "sidestep");
    for panel in dashboard["panels"].as_array().unwrap() {
        let is_row = panel["type"] == "row";
        let targets = panel["targets"].as_array().map_or(0, Vec::len);
        assert_eq!(targets == 0, is_row, "{panel:#}");
        assert_eq!(panel["description"].is_string(), !is_row, "{panel:#}");
    }
}
