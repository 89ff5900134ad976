//! `sidestep gateway`: how it starts, and what it says if it cannot. What it does is tried in
//! `crates/gateway/tests`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::support::{Place, outcome};

/// What a gateway without adapters says, all before it waits for some to come.
fn said_without_adapters(command: &mut Command) -> String {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut said = String::new();
    for line in lines.by_ref() {
        said += &line;
        said.push('\n');
        if line.ends_with("without an adapter, connections to other hosts stay TCP") {
            break;
        }
    }
    let goes_on = child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(goes_on, "{said}");
    said
}

#[test]
fn a_gateway_without_adapters_says_how_to_have_some_and_goes_on() {
    let place = Place::new();
    let Some(library) = place.library() else { return };
    let said = |words: &[&str]| {
        said_without_adapters(place.sidestep(Some(&library)).arg("gateway").args(words))
    };
    match std::fs::read_dir("/sys/class/infiniband").map(Iterator::count) {
        Ok(1..) => println!("skipped: without a name, as this host has RDMA devices"),
        _ => assert!(said(&[]).contains("name one: --adapter soft:INTERFACE\n")),
    }
    assert!(said(&["--adapter", "nowhere0"]).contains(
        "nowhere0: there is no such interface or address in this network namespace. It is used when it \
         comes\n"
    ));
    let file = place.file("gateway.toml", "[smc-r]\nadapters = [\"soft:192.0.2.9\"]\n");
    let said = said(&["--config", file.to_str().unwrap()]);
    assert!(said.contains("soft:192.0.2.9: there is no such"), "{said}");
}

#[test]
fn what_is_wrong_in_its_configuration_is_said() {
    let place = Place::new();
    let Some(library) = place.library() else { return };
    let file = place.file("wrong.toml", "[smc-r]\nfaults = \"loss=lots\"\n");
    let words = ["gateway", "--config", file.to_str().unwrap()];
    let (status, _, error) = outcome(place.sidestep(Some(&library)).args(words));
    assert_eq!(status, Some(125), "{error}");
    assert!(error.contains("wrong.toml:2: smc-r.faults: `loss=lots` is not allowed"), "{error}");
}

/// It is a program under Sidestep itself.
#[test]
fn it_starts_itself_with_the_library() {
    let place = Place::new();
    let (status, _, error) = outcome(place.sidestep(Some(&place.path().join("none.so"))).args([
        "gateway",
        "--adapter",
        "lo",
    ]));
    assert_eq!(status, Some(125), "{error}");
    assert!(error.contains("none.so, which is not a file"), "{error}");
}
