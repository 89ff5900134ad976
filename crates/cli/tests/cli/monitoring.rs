//! The alert rules and the dashboard of `packaging/`, as Prometheus's own tool judges them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{Place, outcome};

/// None, with a printed line, where the tool is not installed.
fn promtool() -> Option<Command> {
    let found = Command::new("promtool").arg("--version").output().is_ok();
    if !found {
        println!("skipped: no promtool here (Debian has it in the package prometheus)");
    }
    found.then(|| Command::new("promtool"))
}

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name)
}

#[test]
fn promtool_takes_the_alert_rules_and_they_fire_as_they_should() {
    let Some(mut check) = promtool() else { return };
    check.args(["check", "rules"]).arg(packaging("prometheus/sidestep.rules.yml"));
    let (status, text, errors) = outcome(&mut check);
    assert_eq!(status, Some(0), "{text}{errors}");
    assert!(text.contains("SUCCESS: 12 rules found"), "{text}");
    let Some(mut test) = promtool() else { return };
    test.args(["test", "rules"]).arg(packaging("prometheus/sidestep.rules.test.yml"));
    let (status, text, errors) = outcome(&mut test);
    assert_eq!(status, Some(0), "{text}{errors}");
}

/// The tool knows no dashboards, but a question is a rule that records its answer.
#[test]
fn promtool_understands_every_question_of_the_dashboard() {
    let Some(mut check) = promtool() else { return };
    let dashboard = std::fs::read_to_string(packaging("grafana/sidestep.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let rules: Vec<Value> = targets
        .enumerate()
        .map(|(number, target)| {
            let question = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
            serde_json::json!({ "record": format!("dashboard:{number}"), "expr": question })
        })
        .collect();
    assert!(rules.len() > 30);
    // JSON is YAML.
    let groups = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    let place = Place::new();
    let file = place.file("dashboard.rules.yml", &groups.to_string());
    let (status, text, errors) = outcome(check.args(["check", "rules"]).arg(file));
    assert_eq!(status, Some(0), "{text}{errors}");
}
