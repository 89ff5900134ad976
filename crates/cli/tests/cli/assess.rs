//! `sidestep assess`: counts that must be exact, and what it makes of them.

use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Place, outcome};
use crate::talk::{Running, Talk, connect, eventually, free_port};

fn services(output: &str) -> Vec<Value> {
    // The program writes to the same standard output, before.
    let at = output.find("{\n").unwrap_or_else(|| panic!("no JSON: {output}"));
    let assessment: Value = serde_json::from_str(&output[at..]).unwrap();
    assessment["services"].as_array().unwrap().clone()
}

/// What a client counts is all there although its program has ended.
#[test]
fn a_program_is_counted_to_its_end() {
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    let _server = Running::start(talk.plain(&["serve", &port]));
    let mut command = talk.sidestep();
    command.args(["assess", "--json"]).arg(talk.talker()).args(["call", &port, "3", "200", "100"]);
    let (status, output, errors) = outcome(command.stdin(Stdio::null()));
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    let [service] = services(&output).try_into().unwrap();
    assert_eq!(service["server"], format!("127.0.0.1:{port}"));
    assert_eq!((&service["role"], &service["program"]), (&"client".into(), &"talker".into()));
    assert_eq!(service["connections"], 3);
    assert_eq!(service["open"], 0);
    assert_eq!(service["round_trips"], 600);
    assert_eq!(service["request_bytes"], 60_000);
    assert_eq!(service["reply_bytes"], 60_000);
    assert_eq!(service["same_host"], true);
    assert_eq!(service["sizes"][1]["sent"], 600);
    assert!(service["forecast"]["gain"][1].as_f64().unwrap() > 0.0, "{service:#}");
}

#[test]
fn children_of_a_program_are_counted_as_well() {
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    let _server = Running::start(talk.plain(&["serve", &port]));
    let script = r#""$0" call "$1" 2 10 100; "$0" call "$1" 1 10 100"#;
    let mut command = talk.sidestep();
    command.args(["assess", "--json", "sh", "-c", script]).arg(talk.talker()).arg(&port);
    let (status, output, _) = outcome(command.stdin(Stdio::null()));
    assert_eq!(status, Some(0));
    let [service] = services(&output).try_into().unwrap();
    assert_eq!((&service["connections"], &service["round_trips"]), (&3.into(), &30.into()));
}

/// Nothing meets although both ends have the library. How long the interval has to be for the client
/// to come and go in it is the machine's affair.
#[test]
fn the_interval_ends_a_server_and_no_byte_has_moved() {
    let Some(talk) = Talk::prepare() else { return };
    let in_time = [3, 30, 300].into_iter().any(|seconds| assess_server(&talk, seconds).is_some());
    assert!(in_time, "the client did not end in 300 s");
}

/// None: the interval has ended before the client.
fn assess_server(talk: &Talk, seconds: u64) -> Option<()> {
    let port = free_port();
    let mut command = talk.sidestep();
    command.args(["assess", "--for", &format!("{seconds}s")]);
    command.arg(talk.talker()).args(["serve", &port]);
    let begun = Instant::now();
    let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
    let address = format!("127.0.0.1:{port}");
    let stream = eventually("it listens, or is over", || match TcpStream::connect(&address) {
        Ok(stream) => Some(Some(stream)),
        Err(_) => server.try_wait().unwrap().map(|_| None),
    })?;
    drop(stream);
    let Some(client) = Running::try_start(talk.moved(&[], &["call", &port, "1", "500", "64"]))
    else {
        server.wait().unwrap();
        return None;
    };
    let pid = client.pid().to_string();
    let (_, output, _) = outcome(talk.sidestep().args(["ss", "--json", "--pid", &pid]));
    let rows: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(rows[0]["mode"], "TCP", "{rows:#}");
    client.finish();
    let output = server.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(begun.elapsed() >= Duration::from_secs(seconds));
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with("127.0.0.1:")).unwrap();
    assert!(line.contains("talker (server)") && line.contains(" 500 "), "{text}");
    assert!(text.contains("Not known:"), "{text}");
    Some(())
}

#[test]
fn programs_that_run_already_are_read() {
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    let server = Running::start(talk.moved(&["--mode", "tcp"], &["serve", &port]));
    drop(connect(&port));
    let stream = connect(&port);
    let pid = server.pid().to_string();
    let assess = |more: &[&str]| {
        let mut command = talk.sidestep();
        outcome(command.args(["assess", "--json", "--pid", &pid]).args(more))
    };
    let service = eventually("both are counted", || {
        let (status, output, _) = assess(&[]);
        let [service] = services(&output).try_into().ok().filter(|_| status == Some(0))?;
        // The client has its answer a moment before the server has counted it.
        let is_all = service["round_trips"] == 2 && service["open"] == 1;
        (service["connections"] == 2 && is_all).then_some(service)
    });
    assert_eq!(service["request_bytes"], 10);
    // In an interval in which nothing comes, there is the one that is open.
    let (status, output, _) = assess(&["--for", "200ms"]);
    assert_eq!(status, Some(0));
    let [service] = services(&output).try_into().unwrap();
    assert_eq!((&service["connections"], &service["round_trips"]), (&1.into(), &0.into()));
    drop(stream);
}

#[test]
fn who_does_not_count_is_told_how() {
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    let server = Running::start(talk.moved(&[], &["serve", &port]));
    drop(connect(&port));
    let pid = server.pid().to_string();
    let (status, _, errors) = outcome(talk.sidestep().args(["assess", "--pid", &pid]));
    assert_eq!(status, Some(1));
    assert!(errors.contains("--mode tcp"), "{errors}");
}

#[test]
fn a_program_that_cannot_be_started_has_the_status_of_run() {
    let Some(talk) = Talk::prepare() else { return };
    let (status, _, errors) = outcome(talk.sidestep().args(["assess", "no-such-program"]));
    assert_eq!(status, Some(127), "{errors}");
    let place = Place::new();
    let (status, _, errors) = outcome(place.sidestep(None).args(["assess", "--pid", "1073741824"]));
    assert_eq!(
        (status, errors.as_str()),
        (Some(1), "sidestep assess: there is no process 1073741824\n")
    );
}
