//! `sidestep stats` against what programs have really sent.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Place, outcome};
use crate::talk::{Running, Talk, connect, eventually, free_port};

/// `sidestep stats --json PID`, the only program of it.
fn stats(talk: &Talk, pid: u32) -> Option<Value> {
    let (status, output, _) = outcome(talk.sidestep().args(["stats", "--json", &pid.to_string()]));
    let statistics: Value = serde_json::from_str(&output).ok().filter(|_| status == Some(0))?;
    Some(statistics["programs"][0].clone())
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("no {key}: {row:#}"))
}

fn sizes(row: &Value, key: &str) -> Vec<(Option<u64>, u64)> {
    let classes = row["sizes"].as_array().unwrap().iter();
    let used = classes.map(|class| (class["up_to"].as_u64(), number(class, key)));
    used.filter(|(_, n)| *n > 0).collect()
}

#[test]
fn sums_are_what_was_sent() {
    const CONNECTIONS: u64 = 4;
    const TRIPS: u64 = 100;
    const LEN: u64 = 1000;
    const BYTES: u64 = CONNECTIONS * TRIPS * LEN;
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    let server = Running::start(talk.moved(&[], &["serve", &port]));
    drop(connect(&port));
    let client = Running::start(talk.moved(&[], &["call", &port, "4", "100", "1000"]));
    let seen = |pid, bytes| {
        eventually("all that was sent is counted", || {
            stats(&talk, pid).filter(|row| number(row, "bytes_sent") == bytes)
        })
    };
    let mine = seen(client.pid(), BYTES);
    assert_eq!(number(&mine, "bytes_received"), BYTES);
    assert_eq!(number(&mine, "messages_sent"), CONNECTIONS * TRIPS);
    assert_eq!(sizes(&mine, "sent"), [(Some(1024), CONNECTIONS * TRIPS)]);
    assert_eq!(number(&mine, "smc_connections"), CONNECTIONS);
    assert_eq!(number(&mine, "tcp_connections"), 0);
    for key in ["handshakes_attempted", "handshakes_agreed"] {
        assert_eq!(number(&mine, key), CONNECTIONS, "{mine:#}");
    }
    assert_eq!(number(&mine, "handshakes_failed"), 0);
    let keeps_delays = std::fs::read_to_string("/proc/self/schedstat")
        .is_ok_and(|figures| !figures.ends_with(" 0\n"));
    assert_eq!(mine["run_queue_delay_ns"].is_u64(), keeps_delays, "{mine:#}");

    let theirs = seen(server.pid(), BYTES + 5);
    assert_eq!(number(&theirs, "tcp_connections"), 1);
    assert_eq!(theirs["reasons"][0]["name"], "PEERNOSMC");
    for (mine_by, theirs_by) in [("sent", "received"), ("received", "sent")] {
        // A direction switches at one byte for both ends.
        let key = |by| format!("ring_bytes_{by}");
        let ring = number(&mine, &key(mine_by));
        assert_eq!(ring, number(&theirs, &key(theirs_by)));
        assert!(ring > 0 && ring < BYTES, "begins on TCP: {mine:#}");
    }
    for row in [&mine, &theirs] {
        let all: u64 = sizes(row, "received").iter().map(|(_, n)| n).sum();
        assert_eq!(all, number(row, "messages_received"));
        let [rings] = row["rings"].as_array().unwrap().as_slice() else { panic!("{row:#}") };
        assert_eq!(number(rings, "rmbe"), 64 << 10);
        let taken = number(rings, "send_fresh") + number(rings, "send_reused");
        assert_eq!((taken, number(rings, "receive")), (CONNECTIONS, CONNECTIONS));
        assert!(number(rings, "send_reused") > 0, "one after the other: {row:#}");
    }
    client.finish();

    let output = outcome(talk.sidestep().args(["stats", &server.pid().to_string()])).1;
    assert!(output.contains("Connections     SMC-D 4, to the gateway 0, TCP 1\n"), "{output}");
    assert!(output.contains("Handshakes      attempted 4, agreed 4, failed 0"), "{output}");
    assert!(output.contains(" 1 x 0x03010000 the peer does not run Sidestep\n"), "{output}");
}

#[test]
fn a_watch_shows_growth_and_ends_as_success() {
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    let server = Running::start(talk.moved(&[], &["serve", &port]));
    drop(connect(&port));
    let watch = |more: &[&str]| {
        let mut command = talk.sidestep();
        command.args(["stats", "--watch", "0.1", &server.pid().to_string()]).args(more);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut child = watch(&["--json"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    connect(&port);
    let mut sent = 0;
    eventually("five bytes came and went", || {
        let line: Value = serde_json::from_str(&lines.next()?.unwrap()).unwrap();
        sent += number(&line["since"], "tcp_bytes");
        (sent == 10).then_some(())
    });
    // SAFETY: a child that has not been waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
    assert_eq!(child.wait().unwrap().code(), Some(0));

    // The program ends: so does its watch.
    let mut child = watch(&[]);
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut heading = String::new();
    output.read_line(&mut heading).unwrap();
    assert!(heading.contains("calls/s"), "{heading}");
    drop(server);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_watch_ends_when_nobody_reads_it() {
    let place = Place::new();
    let mut command = place.sidestep(None);
    command.args(["stats", "--watch", "0.1"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    child.wait().unwrap();
}

#[test]
fn a_process_without_connections_or_without_existence_is_an_error() {
    let place = Place::new();
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = sleeper.id().to_string();
    let (status, _, errors) = outcome(place.sidestep(None).args(["stats", &pid]));
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(status, Some(1));
    assert!(errors.contains(&format!("`sidestep why pid:{pid}`")), "{errors}");
    let (status, _, errors) = outcome(place.sidestep(None).args(["stats", "1073741824"]));
    assert_eq!(status, Some(1));
    assert_eq!(errors, "sidestep stats: there is no process 1073741824\n");
    let (status, ..) = outcome(place.sidestep(None).args(["stats", "--watch", "0"]));
    assert_eq!(status, Some(2));
}
