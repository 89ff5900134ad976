//! `sidestep doctor`: a line for each check, and a status that scripts can use.

use std::net::UdpSocket;

use serde_json::Value;

use crate::support::{Place, outcome};

/// The check of this name in the output of `sidestep doctor --json`.
fn find<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["check"] == name);
    check.unwrap_or_else(|| panic!("no check {name} in {report:#}"))
}

#[test]
fn every_line_has_a_status_and_bad_ones_have_advice() {
    let place = Place::new();
    let Some(library) = place.library() else {
        return;
    };
    let mut command = place.sidestep(Some(&library));
    let (_, output, errors) = outcome(command.args(["doctor", "--json", "sh"]));
    assert_eq!(errors, "");
    let report: Value = serde_json::from_str(&output).unwrap();
    for check in report["checks"].as_array().unwrap() {
        assert!(check["finding"].is_string(), "{check}");
        assert_eq!(check["advice"].is_null(), check["status"] == "ok", "{check}");
    }
    assert_eq!(find(&report, "library")["status"], "ok");
    assert_eq!(find(&report, "preloadable")["status"], "ok");
}

#[test]
fn what_other_hosts_need_is_looked_for() {
    let place = Place::new();
    let (_, output, _) = outcome(place.sidestep(None).args(["doctor", "--json"]));
    let report: Value = serde_json::from_str(&output).unwrap();
    let finding = |name| find(&report, name)["finding"].as_str().unwrap();
    for name in ["gateway", "rdma devices", "port 4791"] {
        assert!(!finding(name).is_empty(), "{name}");
    }
    let memory = finding("locked memory");
    let is_told =
        memory == "unlimited" || ["CAP_IPC_LOCK", "gateway"].iter().any(|it| memory.contains(it));
    assert!(is_told, "{memory}");
    // Whoever has the port at any address is in the way, unless it is a gateway.
    if let (Ok(_held), "ok") =
        (UdpSocket::bind("127.0.0.1:4791"), find(&report, "port 4791")["status"].as_str().unwrap())
    {
        let (_, output, _) = outcome(place.sidestep(None).args(["doctor", "--json"]));
        let report: Value = serde_json::from_str(&output).unwrap();
        let port = find(&report, "port 4791");
        let is_of_gateway = port["finding"].as_str().unwrap().contains("gateway");
        assert!(port["status"] == "warn" || is_of_gateway, "{port}");
    }
}

#[test]
fn text_says_the_same_as_json() {
    let place = Place::new();
    let Some(library) = place.library() else {
        return;
    };
    let mut command = place.sidestep(Some(&library));
    let (status, output, _) = outcome(command.arg("doctor"));
    let line = output.lines().find(|line| line.starts_with("ok    library"));
    let line = line.unwrap_or_else(|| panic!("{output}"));
    assert!(line.ends_with("probe.so loads"), "{line}");
    let failed = output.lines().any(|line| line.starts_with("fail"));
    assert_eq!(status, Some(i32::from(failed)));
}

#[test]
fn a_pnet_id_without_an_interface_of_this_machine_is_found() {
    let place = Place::new();
    let finding = |interface: &str| {
        let text = format!("[pnet.A]\ninterfaces = [\"{interface}\"]\ndevices = [\"ism\"]\n");
        place.file(".config/sidestep/sidestep.toml", &text);
        let (_, output, _) = outcome(place.sidestep(None).args(["doctor", "--json"]));
        let report: Value = serde_json::from_str(&output).unwrap();
        find(&report, "configuration").clone()
    };
    let missing = finding("none0");
    assert_eq!(missing["status"], "warn", "{missing}");
    assert!(missing["finding"].as_str().unwrap().contains("none0"), "{missing}");
    assert_eq!(finding("lo")["status"], "ok");
}

#[test]
fn a_library_that_does_not_load_fails() {
    let place = Place::new();
    let library = place.file("broken.so", "not a library");
    let mut command = place.sidestep(Some(&library));
    let (status, output, _) = outcome(command.args(["doctor", "--json"]));
    assert_eq!(status, Some(1));
    let report: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(report["status"], "fail");
    let check = find(&report, "library");
    assert_eq!(check["status"], "fail");
    assert!(check["finding"].as_str().unwrap().contains("does not load"));
}

#[test]
fn a_configuration_with_an_error_fails() {
    let place = Place::new();
    place.file(".config/sidestep/sidestep.toml", "[smc]\nmod = \"tcp\"\n");
    let (status, output, _) = outcome(place.sidestep(None).args(["doctor", "--json"]));
    assert_eq!(status, Some(1));
    let report: Value = serde_json::from_str(&output).unwrap();
    let finding = find(&report, "configuration")["finding"].as_str().unwrap();
    assert!(finding.contains("sidestep.toml:2: smc.mod: unknown key"), "{finding}");
}

#[test]
fn a_program_that_stays_on_tcp_fails() {
    let place = Place::new();
    let (status, output, _) = outcome(place.sidestep(None).args(["doctor", "no-such-program"]));
    assert_eq!(status, Some(1));
    assert!(output.contains("no-such-program: not found in PATH"), "{output}");

    let source = "int main(void) { return 0; }";
    let Some(program) = place.compile("program", source, &["-static"]) else {
        return;
    };
    let mut command = place.sidestep(None);
    let (status, output, _) = outcome(command.args(["doctor", "--json"]).arg(&program));
    assert_eq!(status, Some(1));
    let report: Value = serde_json::from_str(&output).unwrap();
    let check = find(&report, "preloadable");
    assert_eq!(check["status"], "fail");
    assert!(check["advice"].as_str().unwrap().contains("dynamically linked"));
}

#[test]
fn a_script_is_followed_to_its_interpreter() {
    let place = Place::new();
    place.script("script", "#!/bin/sh\n");
    let (_, output, _) = outcome(place.sidestep(None).args(["doctor", "--json", "./script"]));
    let report: Value = serde_json::from_str(&output).unwrap();
    let interpreter = find(&report, "interpreter");
    assert_eq!(interpreter["finding"], "a script, run by /bin/sh");
    assert_eq!(find(&report, "preloadable")["status"], "ok");
}

/// `sidestep bench` measures its own connections: it must not make calls past the C library, and
/// neither must the crates it is made of.
#[test]
fn sidestep_itself_can_be_carried() {
    let place = Place::new();
    let own = env!("CARGO_BIN_EXE_sidestep");
    let output = outcome(place.sidestep(None).args(["doctor", own])).1;
    assert!(output.contains("preloadable"), "{output}");
    assert!(!output.contains("past the C library"), "{output}");
}
