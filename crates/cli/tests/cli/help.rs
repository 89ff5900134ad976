//! The help texts, as files that show up in a review when they change.
//!
//! After an intended change: `SIDESTEP_UPDATE_SNAPSHOTS=1 cargo test -p sidestep-cli`.

use std::path::Path;

use crate::support::{Place, outcome};

fn check(snapshot: &str, arguments: &[&str]) {
    let place = Place::new();
    let (status, text, errors) = outcome(place.sidestep(None).args(arguments));
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    check_text(snapshot, &text);
}

/// Asserts that `text` is what the file has.
pub(crate) fn check_text(snapshot: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/snapshots").join(snapshot);
    if std::env::var_os("SIDESTEP_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, expected, "differs from {}", path.display());
}

#[test]
fn of_sidestep() {
    check("help.txt", &["--help"]);
}

#[test]
fn of_run() {
    check("help-run.txt", &["run", "--help"]);
}

#[test]
fn of_agent() {
    check("help-agent.txt", &["agent", "--help"]);
}

#[test]
fn of_gateway() {
    check("help-gateway.txt", &["gateway", "--help"]);
}

#[test]
fn of_vip() {
    check("help-vip.txt", &["vip", "--help"]);
    check("help-vip-run.txt", &["vip", "run", "--help"]);
}

#[test]
fn of_distributor() {
    check("help-distributor.txt", &["distributor", "--help"]);
    check("help-distributor-target.txt", &["distributor", "target", "--help"]);
    check("help-distributor-move.txt", &["distributor", "move", "--help"]);
}

#[test]
fn of_enable() {
    check("help-enable.txt", &["enable", "--help"]);
}

#[test]
fn of_doctor() {
    check("help-doctor.txt", &["doctor", "--help"]);
}

#[test]
fn of_config_check() {
    check("help-config-check.txt", &["config", "check", "--help"]);
}

#[test]
fn of_config_apply() {
    check("help-config-apply.txt", &["config", "apply", "--help"]);
}

#[test]
fn of_ss() {
    check("help-ss.txt", &["ss", "--help"]);
}

#[test]
fn of_top() {
    check("help-top.txt", &["top", "--help"]);
}

#[test]
fn of_tap() {
    check("help-tap.txt", &["tap", "--help"]);
}

#[test]
fn of_report() {
    check("help-report.txt", &["report", "--help"]);
}

#[test]
fn of_stats() {
    check("help-stats.txt", &["stats", "--help"]);
}

#[test]
fn of_support() {
    check("help-support.txt", &["support", "--help"]);
}

#[test]
fn of_assess() {
    check("help-assess.txt", &["assess", "--help"]);
}

#[test]
fn of_why() {
    check("help-why.txt", &["why", "--help"]);
}

#[test]
fn of_decode() {
    check("help-decode.txt", &["decode", "--help"]);
}

#[test]
fn of_filter() {
    check("help-filter.txt", &["filter", "--help"]);
    check("help-filter-check.txt", &["filter", "check", "--help"]);
    check("help-filter-apply.txt", &["filter", "apply", "--help"]);
    check("help-filter-watch.txt", &["filter", "watch", "--help"]);
    check("help-filter-add.txt", &["filter", "add", "--help"]);
    check("help-filter-resolve.txt", &["filter", "resolve", "--help"]);
    check("help-filter-import.txt", &["filter", "import", "--help"]);
    check("help-filter-test.txt", &["filter", "test", "--help"]);
}

#[test]
fn of_bench() {
    check("help-bench.txt", &["bench", "--help"]);
}

#[test]
fn of_probe() {
    check("help-probe.txt", &["probe", "--help"]);
}

#[test]
fn the_version_is_the_package_version() {
    let place = Place::new();
    let (status, text, _) = outcome(place.sidestep(None).arg("--version"));
    assert_eq!(status, Some(0));
    assert_eq!(text, format!("sidestep {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_wrong_command_line_is_status_2() {
    let place = Place::new();
    for arguments in [&["run"][..], &["walk"], &["run", "--fast", "true"], &["ss", "x"], &[]] {
        let (status, _, errors) = outcome(place.sidestep(None).args(arguments));
        assert_eq!(status, Some(2), "{arguments:?}");
        assert!(errors.contains("Usage: sidestep"), "{errors}");
    }
}

#[test]
fn of_demote() {
    check("help-demote.txt", &["demote", "--help"]);
}
