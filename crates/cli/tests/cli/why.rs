//! `sidestep why` about real programs: connections that are open, and those that have ended.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::{Place, outcome};
use crate::talk::{Running, Talk, USERS, as_user, connect, eventually, free_port};

fn why(talk: &Talk, subject: &str) -> Value {
    let (status, output, errors) = outcome(talk.sidestep().args(["why", "--json", subject]));
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{subject}");
    serde_json::from_str(&output).unwrap()
}

/// The finding of an end in this role and mode, as soon as there is one.
fn finding(talk: &Talk, subject: &str, role: &str, mode: &str) -> Value {
    eventually(&format!("no {mode} finding of a {role}"), || {
        let explanation = why(talk, subject);
        let is_it = |finding: &&Value| finding["role"] == role && finding["mode"] == mode;
        explanation["findings"].as_array().unwrap().iter().find(is_it).cloned()
    })
}

fn text<'a>(finding: &'a Value, key: &str) -> &'a str {
    finding[key].as_str().unwrap_or_else(|| panic!("no {key}: {finding:#}"))
}

#[test]
fn a_plain_client_is_named_and_remembered() {
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    let server = Running::start(talk.moved(&[], &["serve", &port]));
    let call = || Running::start(talk.plain(&["call", &port, "1", "1", "5"]));
    let client = call();
    let subject = format!(":{port}");
    let open = finding(&talk, &subject, "server", "TCP");
    // The server's end goes on looking for a while; what came of it is remembered at the end.
    assert_eq!((&open["open"], &open["in_last_hour"]), (&1.into(), &0.into()), "{open:#}");
    assert_eq!(open["code"]["code"], "0x03010000");
    assert_eq!(open["code"]["name"], "PEERNOSMC");
    let decider = format!("the peer, talker ({}): it was not started with", client.pid());
    assert!(text(&open, "decided_by").starts_with(&decider), "{open:#}");
    assert_eq!(text(&open, "change"), "start talker with `sidestep run`");
    assert_eq!(open["pid"], server.pid());

    client.finish();
    call().finish();
    let ended = eventually("both have ended", || {
        let finding = finding(&talk, &subject, "server", "TCP");
        (finding["open"] == 0 && finding["in_last_hour"] == 2).then_some(finding)
    });
    assert!(text(&ended, "change").starts_with("start the peer with `sidestep run`"), "{ended:#}");
    assert!(ended["last_ago_s"].as_u64().unwrap() < 60, "{ended:#}");

    // The process, the server's address and a bare number lead to the same.
    let address = format!("127.0.0.1:{port}");
    for subject in [server.pid().to_string(), format!("pid:{}", server.pid()), address] {
        assert_eq!(finding(&talk, &subject, "server", "TCP")["in_last_hour"], 2, "{subject}");
    }
    let lines = outcome(talk.sidestep().args(["why", &subject])).1;
    assert!(lines.contains("Code        0x03010000 PEERNOSMC ("), "{lines}");
    assert!(lines.contains("0 connections open; 2 in the last hour"), "{lines}");
}

/// A server of one user and a client of another, both under Sidestep; the server's port. None, with a
/// printed line, if there cannot be any.
fn two_users(talk: &Talk, connections: &str) -> Option<(String, [Running; 2])> {
    talk.has_other_users()?;
    let port = free_port();
    let server = Running::start(as_user(USERS[0], talk.moved(&[], &["serve", &port])));
    let call = ["call", &port, connections, "50", "100"];
    let client = Running::start(as_user(USERS[1], talk.moved(&[], &call)));
    Some((port, [server, client]))
}

#[test]
fn a_client_of_another_user_is_not_said_to_lack_sidestep() {
    let Some(talk) = Talk::prepare() else { return };
    // After eight the client does not ask again for a while.
    let Some((port, programs)) = two_users(&talk, "9") else { return };
    let stays = eventually("no finding of the server", || {
        let mut why = talk.sidestep();
        why.args(["why", "--json", &format!(":{port}")]);
        let why = outcome(&mut as_user(USERS[0], why)).1;
        let explanation: Value = serde_json::from_str(&why).ok()?;
        let is_decided = |finding: &Value| text(finding, "words") != "its ends are agreeing";
        let is_it = |finding: &&Value| {
            finding["role"] == "server" && finding["open"] == 1 && is_decided(finding)
        };
        explanation["findings"].as_array()?.iter().find(is_it).cloned()
    });
    // The server's user may not look at the client's process.
    assert_eq!(
        text(&stays, "words"),
        "the client is of another user, user 4712, and has not answered"
    );
    assert_eq!(text(&stays, "decided_by"), "the peer, a program of user 4712");
    assert!(text(&stays, "rule").contains("policy.share_with_users"), "{stays:#}");
    assert!(text(&stays, "change").contains("policy.share_with_users"), "{stays:#}");
    drop(programs);
}

#[test]
fn root_sees_what_the_client_of_another_user_has_decided() {
    let Some(talk) = Talk::prepare() else { return };
    let Some((port, programs)) = two_users(&talk, "1") else { return };
    let stays = finding(&talk, &format!(":{port}"), "server", "TCP");
    assert_eq!(text(&stays, "words"), "the peer runs Sidestep, and stays on TCP");
    let decider =
        format!("the peer, talker ({}): the peer runs as another user", programs[1].pid());
    assert!(text(&stays, "decided_by").starts_with(&decider), "{stays:#}");
    assert!(text(&stays, "change").contains("policy.share_with_users"), "{stays:#}");
}

/// As root's `redis-cli` and the service of another user, both under Sidestep: each is named as long as its connection
/// is open, and what is not known afterwards is not said.
#[test]
fn a_client_of_root_and_a_server_of_another_user_are_named() {
    let Some(talk) = Talk::prepare() else { return };
    if talk.has_other_users().is_none() {
        return;
    }
    let port = free_port();
    let subject = format!(":{port}");
    let server = Running::start(as_user(USERS[0], talk.moved(&[], &["serve", &port])));
    let client = Running::start(talk.moved(&[], &["call", &port, "1", "50", "100"]));
    let of_client = finding(&talk, &subject, "client", "TCP");
    let who = format!(": talker ({}) of user {}", server.pid(), USERS[0]);
    assert!(text(&of_client, "words").contains("another user"), "{of_client:#}");
    assert!(text(&of_client, "words").ends_with(&who), "{of_client:#}");
    assert!(text(&of_client, "change").contains("[share]"), "{of_client:#}");
    let of_server = finding(&talk, &subject, "server", "TCP");
    let decider = format!("the peer, talker ({}): the peer runs as another user", client.pid());
    assert!(text(&of_server, "decided_by").starts_with(&decider), "{of_server:#}");

    client.finish();
    let ended = eventually("it has ended", || {
        let finding = finding(&talk, &subject, "server", "TCP");
        (finding["open"] == 0 && finding["in_last_hour"] == 1).then_some(finding)
    });
    let lines = outcome(talk.sidestep().args(["why", &subject])).1;
    assert!(!lines.contains("does not run Sidestep"), "{lines}");
    assert!(!text(&ended, "decided_by").contains("talker"), "{ended:#}");
}

/// A client that has ended may have been any program: a living one that has connected there is not accused for it.
#[test]
fn a_client_that_has_ended_is_not_taken_for_another_one() {
    let Some(talk) = Talk::prepare() else { return };
    if talk.has_other_users().is_none() {
        return;
    }
    let port = free_port();
    let subject = format!(":{port}");
    let _server = Running::start(as_user(USERS[0], talk.moved(&[], &["serve", &port])));
    Running::start(talk.plain(&["call", &port, "1", "50", "100"])).finish();
    let _of_root = Running::start(talk.moved(&[], &["call", &port, "1", "50", "100"]));
    finding(&talk, &subject, "client", "TCP");
    let ended = eventually("the plain one has ended", || {
        let explanation = why(&talk, &subject);
        let findings = explanation["findings"].as_array().unwrap().clone();
        let is_it = |it: &Value| it["role"] == "server" && it["open"] == 0 && it["mode"] == "TCP";
        findings.into_iter().find(is_it)
    });
    let words = "no program under Sidestep has answered at the other end";
    assert_eq!(text(&ended, "words"), words, "{ended:#}");
    assert!(!text(&ended, "decided_by").contains("talker"), "{ended:#}");
}

#[test]
fn what_has_moved_needs_no_change() {
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    let server = Running::start(talk.moved(&[], &["serve", &port]));
    let client = Running::start(talk.moved(&[], &["call", &port, "1", "50", "100"]));
    let subject = format!(":{port}");
    for (role, pid) in [("server", server.pid()), ("client", client.pid())] {
        let moved = finding(&talk, &subject, role, "SMC-D");
        assert_eq!((&moved["pid"], &moved["open"]), (&pid.into(), &1.into()));
        assert!(moved["change"].is_null() && moved["code"].is_null(), "{moved:#}");
    }
    client.finish();
    eventually("it is remembered", || {
        let moved = finding(&talk, &subject, "server", "SMC-D");
        (moved["open"] == 0 && moved["in_last_hour"] == 1).then_some(())
    });
}

#[test]
fn the_rule_of_the_peer_is_found_with_its_file() {
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    let config = talk.place.file("rules.toml", &format!("[policy]\nexclude_ports = [{port}]\n"));
    let mut server = talk.moved(&[], &["serve", &port]);
    server.env("SIDESTEP_CONFIG", &config);
    let server = Running::start(server);
    let client = Running::start(talk.moved(&[], &["call", &port, "1", "5", "100"]));
    let subject = format!("127.0.0.1:{port}");
    let rule = format!("policy.exclude_ports = {port}, in {}", config.display());
    let own = finding(&talk, &subject, "server", "TCP");
    assert_eq!(text(&own, "rule"), rule);
    assert_eq!(own["code"]["name"], "CNFERR");
    let clients = finding(&talk, &subject, "client", "TCP");
    assert_eq!(clients["code"]["name"], "PEERNOSMC");
    assert_eq!(text(&clients, "rule"), rule);
    let decider = format!("the peer, talker ({}): the port is excluded", server.pid());
    assert!(text(&clients, "decided_by").starts_with(&decider), "{clients:#}");
    assert!(text(&clients, "change").contains("policy.exclude_ports"), "{clients:#}");
    client.finish();
    let clients = why(&talk, &subject);
    assert_eq!(clients["findings"].as_array().unwrap().len(), 1, "its program has ended");
}

#[test]
fn a_name_that_cannot_be_bound_is_no_fault_of_the_peers() {
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    let _server = Running::start(talk.moved(&[], &["serve", &port]));
    let client = Running::start(talk.moved(&[], &["taken", &port]));
    let subject = format!("pid:{}", client.pid());
    let own = finding(&talk, &subject, "client", "TCP");
    assert_eq!(text(&own, "words"), "the name for the peer's hello could not be bound here");
    assert_eq!((&own["blame"], &own["field"]), (&"lack".into(), &Value::Null), "{own:#}");
    let decider = format!("this end, talker ({})", client.pid());
    assert_eq!(text(&own, "decided_by"), decider);
    let lines = outcome(talk.sidestep().args(["why", &subject])).1;
    assert!(lines.contains("Fault       something is lacking here\n"), "{lines}");
    client.finish();
}

fn named(name: String) -> SocketAddr {
    SocketAddr::from_abstract_name(name).unwrap()
}

/// A server that is not under Sidestep, has the marker of one that is, and says a hello that
/// claims nine bytes: an echo for one connection.
fn lie(listener: &TcpListener, _marker: UnixDatagram) {
    let port = listener.local_addr().unwrap().port();
    let (mut stream, client) = listener.accept().unwrap();
    let name = named(format!("sidestep/1/connection/{client}-127.0.0.1:{port}"));
    let mut hello = [0; 72];
    hello[..12].copy_from_slice(b"SSTP\0\x01\0\x01\0\0\0\x09");
    let liar = UnixDatagram::unbound().unwrap();
    let mut bytes = [0; 100];
    while stream.read_exact(&mut bytes).is_ok() {
        // Its name is gone when it has read the first.
        let _ = liar.send_to_addr(&hello, &name);
        stream.write_all(&bytes).unwrap();
    }
}

#[test]
fn a_breach_of_the_protocol_is_told_with_its_field() {
    let Some(talk) = Talk::prepare() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let marker = UnixDatagram::bind_addr(&named(format!("sidestep/1/listen/{port}/0"))).unwrap();
    let server = std::thread::spawn(move || lie(&listener, marker));
    let client = Running::start(talk.moved(&[], &["call", &port, "1", "50", "100"]));
    let subject = format!("pid:{}", client.pid());
    let told = finding(&talk, &subject, "client", "TCP");
    let words = "the peer's messages made no sense: control length";
    assert_eq!(text(&told, "words"), words, "{told:#}");
    let blame = (&told["blame"], &told["field"]);
    assert_eq!(blame, (&"protocol".into(), &"control length".into()), "{told:#}");
    let lines = outcome(talk.sidestep().args(["why", &subject])).1;
    assert!(lines.contains("Fault       the peer broke the protocol\n"), "{lines}");
    client.finish();
    server.join().unwrap();
}

#[test]
fn the_command_line_is_a_source_as_well() {
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    let server = Running::start(talk.moved(&["--mode", "tcp"], &["serve", &port]));
    drop(connect(&port));
    let counted = finding(&talk, &format!("pid:{}", server.pid()), "server", "TCP");
    assert!(text(&counted, "rule").starts_with("smc.mode: no file has it now"), "{counted:#}");
    assert!(text(&counted, "change").contains("--mode smc"), "{counted:#}");
}

/// A connection whose addresses are not known when it is begun is held to the rules as well. To
/// keep it waiting, the queue of its listener is full until its first packet is sent again.
#[test]
fn the_rules_are_for_slow_connections_too() {
    let Some(talk) = Talk::prepare() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let address = listener.local_addr().unwrap();
    let _in_the_way = TcpStream::connect(address).unwrap();
    let port = address.port();
    let config = talk.place.file("rules.toml", &format!("[policy]\nexclude_ports = [{port}]\n"));
    let mut client = talk.moved(&[], &["late", &port.to_string()]);
    client.env("SIDESTEP_CONFIG", &config);
    let server = std::thread::spawn(move || {
        eventually("the client waits", || waits_for(port).then_some(()));
        let _first = listener.accept().unwrap();
        let mut stream = listener.accept().unwrap().0;
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
        stream
    });
    let client = Running::start(client);
    let stays = finding(&talk, &format!("pid:{}", client.pid()), "client", "TCP");
    assert_eq!(stays["code"]["name"], "CNFERR", "{stays:#}");
    assert!(text(&stays, "rule").starts_with("policy.exclude_ports = "), "{stays:#}");
    drop(server.join().unwrap());
    client.finish();
}

/// Whether a connection to this port has sent its first packet and has no answer.
fn waits_for(port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // The addresses of both ends, and `TCP_SYN_SENT`.
    let words = format!(":{port:04X} 02 ");
    table.lines().any(|line| line.contains(&words))
}

#[test]
fn a_plain_server_is_the_commonest_answer() {
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    let server = Running::start(talk.plain(&["serve", &port]));
    let explanation = why(&talk, &format!(":{port}"));
    let listener = &explanation["listeners"][0];
    assert_eq!((&listener["pid"], &listener["program"]), (&server.pid().into(), &"talker".into()));
    assert_eq!(listener["under_sidestep"], false);
    assert_eq!(listener["change"], "start talker with `sidestep run`");

    let client = Running::start(talk.moved(&[], &["call", &port, "3", "1", "100"]));
    let stays = finding(&talk, &format!(":{port}"), "client", "TCP");
    assert_eq!((&stays["open"], &stays["in_last_hour"]), (&1.into(), &3.into()));
    let decider = format!("the peer, talker ({}): it was not", server.pid());
    assert!(text(&stays, "decided_by").starts_with(&decider), "{stays:#}");
    assert_eq!(text(&stays, "change"), "start talker with `sidestep run`");
    client.finish();

    let (_, output, _) = outcome(talk.sidestep().args(["why", &format!("pid:{}", server.pid())]));
    let expected = format!("process {}: talker; it was not started with Sidestep; ", server.pid());
    assert!(output.starts_with(&expected), "{output}");
}

/// Process numbers are port numbers as well, as long as they are small enough.
#[test]
fn a_number_that_is_both_says_how_to_ask_for_the_other() {
    let Some(talk) = Talk::prepare() else { return };
    let moved = Running::start(talk.moved(&[], &["serve", &free_port()]));
    let plain = Running::start(talk.plain(&["serve", &free_port()]));
    let [moved_at, plain_at] = [&moved, &plain].map(|program| {
        let port = u16::try_from(program.pid()).ok()?;
        TcpListener::bind(("127.0.0.1", port)).ok()
    });
    if moved_at.is_none() || plain_at.is_none() {
        println!("skipped: the numbers of new processes are no free ports here");
        return;
    }
    let [under, other] = [&moved, &plain].map(|program| program.pid().to_string());
    // Without a connection it has no state: it is a plain process, and the port goes first.
    let explanation = why(&talk, &under);
    assert_eq!(explanation["subject"], format!("port {under}"));
    assert_eq!(explanation["hint"], format!("{under} is a process as well: ask for pid:{under}"));
    assert_eq!(why(&talk, &other)["subject"], format!("port {other}"));
    drop(plain_at);
    let explanation = why(&talk, &other);
    assert!(text(&explanation, "subject").starts_with(&format!("process {other}: talker")));
    assert!(explanation["hint"].is_null());
}

#[test]
fn a_process_with_connections_goes_before_a_port() {
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    let server = Running::start(talk.moved(&[], &["serve", &port]));
    drop(connect(&port));
    let pid = server.pid();
    let at_port =
        u16::try_from(pid).ok().and_then(|pid| TcpListener::bind(("127.0.0.1", pid)).ok());
    if at_port.is_none() {
        println!("skipped: the numbers of new processes are no free ports here");
        return;
    }
    let explanation = why(&talk, &pid.to_string());
    assert_eq!(explanation["subject"], format!("process {pid}: talker, under Sidestep"));
    assert_eq!(explanation["hint"], format!("{pid} is a port as well: ask for :{pid}"));
}

#[test]
fn a_server_that_waits_for_its_first_client_is_seen() {
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    let _server = Running::start(talk.moved(&[], &["serve", &port]));
    let explanation = why(&talk, &port);
    let listener = &explanation["listeners"][0];
    assert_eq!(listener["under_sidestep"], true, "{explanation:#}");
    assert!(text(listener, "state").contains("no TCP connection yet"), "{explanation:#}");
}

#[test]
fn what_is_not_there_is_said_with_what_to_do() {
    let place = Place::new();
    let refused = |subject: &str| {
        let (status, output, errors) = outcome(place.sidestep(None).args(["why", subject]));
        assert_eq!(output, "");
        (status, errors)
    };
    let (status, errors) = refused(":1");
    assert_eq!(status, Some(1));
    assert!(errors.contains("on 1 or") && errors.contains("`sidestep run`"), "{errors}");
    let (status, errors) = refused("192.0.2.77");
    assert_eq!(status, Some(1));
    assert!(errors.contains("192.0.2.77") && errors.contains("`sidestep ss`"), "{errors}");
    for subject in ["pid:1073741824", "1073741824"] {
        let (status, errors) = refused(subject);
        assert_eq!(status, Some(1));
        assert!(errors.contains("1073741824"), "{errors}");
    }
    let (status, errors) = refused("redis");
    assert_eq!(status, Some(2));
    assert!(errors.contains("use a process"), "{errors}");
}

/// What `why` says in text. It ends by itself long before it is given up.
fn said_of(talk: &Talk, subject: &str) -> String {
    let mut asking = talk.sidestep();
    asking.args(["why", subject]).stdout(Stdio::piped());
    let mut asking = asking.spawn().unwrap();
    let ended = (0..6000).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        asking.try_wait().unwrap().is_some()
    });
    asking.kill().unwrap();
    let output = asking.wait_with_output().unwrap();
    assert!(ended, "`sidestep why {subject}` does not end");
    String::from_utf8(output.stdout).unwrap()
}

/// Whoever started the program has chosen the name, and what has it now.
#[test]
fn files_that_an_environment_names_neither_hold_up_nor_command() {
    let Some(talk) = Talk::prepare() else { return };
    let port = free_port();
    let rules = format!("[policy]\nexclude_ports = [{port}]\n");
    let config = talk.place.file("rules\u{1b}[2J\n\u{202e}.toml", &rules);
    let mut server = talk.moved(&[], &["serve", &port]);
    server.env("SIDESTEP_CONFIG", &config);
    let server = Running::start(server);
    let client = Running::start(talk.moved(&[], &["call", &port, "1", "5", "100"]));
    let subject = format!("pid:{}", server.pid());
    let as_named = said_of(&talk, &subject);
    assert!(as_named.contains("rules\\u{1b}[2J\\n\\u{202e}.toml"), "{as_named:?}");
    assert!(
        as_named.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'),
        "{as_named:?}"
    );

    std::fs::remove_file(&config).unwrap();
    assert!(Command::new("mkfifo").arg(&config).status().unwrap().success());
    assert!(said_of(&talk, &subject).contains("no file has it now"));
    std::fs::remove_file(&config).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &config).unwrap();
    assert!(said_of(&talk, &subject).contains("no file has it now"));
    client.finish();
}
