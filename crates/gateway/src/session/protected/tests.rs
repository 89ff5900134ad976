//! A protected connection by itself: a program at H, a peer at N with a session of its own, and real threads for the handshake.

use super::*;
use crate::handshakes::Handshakes;
use crate::limits::CHUNK;
use crate::protection::Protection as Rules;
use crate::session::carrier::ByTcp;
use rustls::time_provider::DefaultTimeProvider;
use sidestep_proto::protection::Scope;
use sidestep_tls::rule::{Expected, Identity, Rule, UncleanEnd, Versions};
use sidestep_tls::{Material, Peer, setup};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// What no test takes.
const HANG: Duration = Duration::from_secs(20);

/// The rule of the program, a client, and that of its peer.
fn setups(change: impl Fn(Rule) -> Rule) -> [Setup; 2] {
    client_and_server(change, same)
}

/// A client's rule and a server's.
fn client_and_server(
    change: impl Fn(Rule) -> Rule,
    change_server: impl Fn(Rule) -> Rule,
) -> [Setup; 2] {
    let key = rcgen::KeyPair::generate().unwrap();
    let parameters = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
    let certificate = parameters.self_signed(&key).unwrap().pem().into_bytes();
    let anchors = setup::anchors(&certificate).unwrap();
    let identity = Some((certificate, key.serialize_pem().into_bytes()));
    let set_up = |rule, identity| {
        let material = Material { identity, anchors: anchors.clone() };
        Setup::new(rule, &material, Arc::new(DefaultTimeProvider)).unwrap()
    };
    let [client, server] = [change(rule(Role::Outbound)), change_server(rule(Role::Inbound))];
    [set_up(client, None), set_up(server, identity)]
}

fn rule(role: Role) -> Rule {
    let ports = ["8443".parse().unwrap()].into_iter().collect();
    let (begin, peers, users) = Default::default();
    let rule = Rule::new(Scope { role, begin, name: "test".parse().unwrap(), ports, peers, users });
    match role {
        Role::Outbound => {
            Rule { server_name: Some(Expected::Name("a.example".parse().unwrap())), ..rule }
        }
        Role::Inbound => {
            let identity = Identity { certificate: "/c".into(), key: "/k".into() };
            Rule { identity: Some(identity), ..rule }
        }
    }
}

/// Bytes that each end of a connection has room for, about: what there is more soon stands still.
const BUFFER: usize = 64 << 10;

/// Both ends of a TCP connection.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    for end in [&one, &other] {
        end.set_nonblocking(true).unwrap();
        sockopt::set_socket_send_buffer_size(end, BUFFER).unwrap();
        sockopt::set_socket_recv_buffer_size(end, BUFFER).unwrap();
    }
    (one, other)
}

/// A gateway with one session, its program and its peer.
struct Scene {
    protected: Protected,
    h: TcpStream,
    n: TcpStream,
    program: TcpStream,
    peer: TcpStream,
    rules: Rules,
    now: Duration,
    fate: Fate,
}

impl Scene {
    fn new(setup: &Setup) -> Self {
        let ((program, h), (n, peer)) = (connection(), connection());
        let ends = Ends::of(&n, 0);
        let rules = Rules::new(vec![setup.rule().clone()], Handshakes::begin(true).unwrap());
        let mut protected = Protected::new(ends, setup);
        protected.begin(Duration::ZERO);
        let address = ends.remote().unwrap().ip();
        rules.handshakes.start(1, setup.clone(), Peer { address, resolved: None });
        Self { protected, h, n, program, peer, rules, now: Duration::ZERO, fate: Fate::Waits }
    }

    /// A turn of the session, unless it is over.
    fn turn(&mut self) {
        if matches!(self.fate, Fate::Over(_)) {
            return;
        }
        let mut reports = Vec::new();
        for done in self.rules.handshakes.take() {
            self.protected.handle_handshake(done, &mut reports);
        }
        let chunk = &mut vec![0; CHUNK];
        let mut apart = Apart { chunk, reports: &mut reports, now: self.now };
        let (mut h_is, mut n_is) = (Ready::ALL, Ready::ALL);
        let mut carrier = ByTcp { n: &self.n, is: &mut n_is };
        self.protected.settle(&self.n, apart.reports);
        self.fate = self.protected.advance(1, (&self.h, &mut h_is), &mut carrier, &mut apart);
        reports.into_iter().for_each(|report| self.rules.heed(1, report));
        if let Fate::Over(end) = self.fate {
            if end != End::InOrder {
                sockopt::set_socket_linger(&self.h, Some(Duration::ZERO)).unwrap();
            }
            self.h = connection().0;
        }
    }

    /// Turns until it is so.
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + HANG;
        while !is_so(self) {
            assert!(Instant::now() < end, "{what}: never; {:?}", self.fate);
            self.turn();
            thread::yield_now();
        }
    }

    /// Why it was refused.
    fn refusal(&self) -> String {
        let (_, refusals) = self.rules.status();
        refusals.last().map(|it| it.words.clone()).unwrap_or_default()
    }

    /// What the program receives until it is told of an end: true if that is one in order.
    fn heard_by_program(&mut self) -> (Vec<u8>, bool) {
        let (mut heard, mut end) = (Vec::new(), None);
        self.until("the program is told", |scene| {
            let mut room = [0; 1 << 14];
            match scene.program.read(&mut room) {
                Ok(0) => end = Some(true),
                Ok(count) => heard.extend_from_slice(&room[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => end = Some(false),
            }
            end.is_some()
        });
        (heard, end.unwrap())
    }
}

/// The other end of N, with TLS.
struct Other {
    tls: Tls,
    heard: Vec<u8>,
    has_ended: bool,
}

impl Other {
    fn new(setup: &Setup) -> Self {
        let peer = Peer { address: [127, 0, 0, 1].into(), resolved: None };
        Self { tls: setup.begin(&peer).unwrap(), heard: Vec::new(), has_ended: false }
    }

    /// Sends what is to be sent, and receives.
    fn turn(&mut self, peer: &mut TcpStream) {
        let mut records = Vec::new();
        self.tls.transmit(&mut records);
        peer.set_nonblocking(false).unwrap();
        peer.write_all(&records).unwrap();
        peer.set_nonblocking(true).unwrap();
        let mut room = [0; 1 << 13];
        if let Ok(count @ 1..) = peer.read(&mut room) {
            let mut rest = &room[..count];
            while !rest.is_empty() {
                let taken = self.tls.take(rest);
                rest = &rest[taken..];
                self.tls.process().unwrap();
                self.receive();
            }
        }
    }

    fn receive(&mut self) {
        let mut room = [0; 1 << 14];
        loop {
            match self.tls.read(&mut room).unwrap() {
                Got::Bytes(count) => self.heard.extend_from_slice(&room[..count]),
                Got::End => {
                    self.has_ended = true;
                    return;
                }
                Got::Nothing => return,
            }
        }
    }
}

/// Both after the handshake.
fn shaken_hands(change: impl Fn(Rule) -> Rule) -> (Scene, Other) {
    let [setup, other] = setups(change);
    let (mut scene, mut other) = (Scene::new(&setup), Other::new(&other));
    shake_hands(&mut scene, &mut other);
    (scene, other)
}

fn shake_hands(scene: &mut Scene, other: &mut Other) {
    scene.until("the handshake is over", |scene| {
        other.turn(&mut scene.peer);
        !scene.protected.is_shaking_hands() && !other.tls.is_handshaking()
    });
}

fn same(rule: Rule) -> Rule {
    rule
}

#[test]
fn bytes_go_both_ways_and_both_end_in_order() {
    let (mut scene, mut other) = shaken_hands(same);
    scene.program.write_all(b"there").unwrap();
    scene.program.shutdown(Shutdown::Write).unwrap();
    scene.until("the peer has the end", |scene| {
        other.turn(&mut scene.peer);
        other.has_ended
    });
    assert_eq!(other.heard, b"there");
    other.tls.write(b"and back");
    other.tls.close();
    other.turn(&mut scene.peer);
    assert_eq!(scene.heard_by_program(), (b"and back".to_vec(), true));
    scene.until("it is over", |scene| scene.fate == Fate::Over(End::InOrder));
}

#[test]
fn an_end_of_the_program_is_held_until_the_peers_where_the_rule_says_so() {
    let (mut scene, mut other) = shaken_hands(|it| Rule { half_close: HalfClose::Hold, ..it });
    scene.program.write_all(b"there").unwrap();
    scene.program.shutdown(Shutdown::Write).unwrap();
    scene.until("the peer has all", |scene| {
        other.turn(&mut scene.peer);
        other.heard == b"there" && scene.protected.has_ended
    });
    for _ in 0..100 {
        scene.turn();
        other.turn(&mut scene.peer);
    }
    assert!(!other.has_ended, "told before its own end");
    other.tls.close();
    scene.until("the peer has the end", |scene| {
        other.turn(&mut scene.peer);
        other.has_ended
    });
    scene.until("it is over", |scene| scene.fate == Fate::Over(End::InOrder));
}

#[test]
fn an_end_of_tcp_alone_is_a_reset_or_what_the_rule_says() {
    for (unclean_end, is_end) in [(UncleanEnd::Reset, false), (UncleanEnd::Eof, true)] {
        let (mut scene, mut other) = shaken_hands(|it| Rule { unclean_end, ..it });
        other.tls.write(b"half of");
        other.turn(&mut scene.peer);
        scene.peer.shutdown(Shutdown::Write).unwrap();
        let (heard, is_in_order) = scene.heard_by_program();
        assert_eq!(is_in_order, is_end);
        assert!(b"half of".starts_with(&heard[..]));
        assert_eq!(scene.refusal().contains("without close_notify"), !is_end);
    }
}

#[test]
fn a_peer_that_does_not_read_stops_the_program_and_loses_nothing() {
    const LEN: usize = 4 << 20;
    let (mut scene, mut other) = shaken_hands(same);
    let said: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    let mut sent = 0;
    let mut still = 0;
    // Buffers of the kernel are full when there is no room for many turns.
    while still < 1000 {
        assert!(sent < LEN, "the program was never stopped");
        scene.turn();
        match scene.program.write(&said[sent..]) {
            Ok(count) => (sent, still) = (sent + count, 0),
            Err(_) => still += 1,
        }
        // A record has a few bytes more than what is in it.
        assert!(
            scene.protected.records.left().len() <= CHUNK + CHUNK / 8,
            "kept more than a chunk"
        );
    }
    scene.until("the peer has all", |scene| {
        if let Ok(count) = scene.program.write(&said[sent..]) {
            sent += count;
        }
        other.turn(&mut scene.peer);
        other.heard.len() == LEN
    });
    assert!(other.heard == said);
}

#[test]
fn a_program_that_does_not_read_stops_the_peer_and_loses_nothing() {
    const LEN: usize = 4 << 20;
    let (mut scene, mut other) = shaken_hands(same);
    let said: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    other.tls.write(&said);
    other.tls.close();
    let mut records = Vec::new();
    other.tls.transmit(&mut records);
    let (mut sent, mut still) = (0, 0);
    while still < 1000 {
        assert!(sent < records.len(), "the peer was never stopped");
        scene.turn();
        match scene.peer.write(&records[sent..]) {
            Ok(count) => (sent, still) = (sent + count, 0),
            Err(_) => still += 1,
        }
        assert!(scene.protected.plain.left().len() <= CHUNK, "kept more than a chunk");
        assert!(scene.protected.incoming.left().len() <= CHUNK, "kept more than a chunk");
    }
    let mut heard = Vec::new();
    scene.until("the program has all", |scene| {
        if let Ok(count) = scene.peer.write(&records[sent..]) {
            sent += count;
        }
        let mut room = vec![0; 1 << 16];
        if let Ok(count) = scene.program.read(&mut room) {
            heard.extend_from_slice(&room[..count]);
        }
        heard.len() == LEN
    });
    assert!(heard == said);
}

#[test]
fn before_the_handshake_is_over_not_a_byte_of_the_program_goes_out() {
    let [setup, _] = setups(same);
    let mut scene = Scene::new(&setup);
    scene.program.write_all(b"secret").unwrap();
    let mut wire = Vec::new();
    scene.until("there is a flight", |scene| {
        let _ = scene.peer.read_to_end(&mut wire);
        !wire.is_empty()
    });
    scene.peer.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    let (heard, is_in_order) = scene.heard_by_program();
    assert_eq!((heard, is_in_order), (Vec::new(), false));
    let _ = scene.peer.read_to_end(&mut wire);
    assert_eq!(wire[0], 22, "a handshake");
    assert!(!wire.windows(6).any(|it| it == b"secret"));
    let tail = &wire[wire.len() - 7..];
    assert_eq!((tail[0], tail[5]), (21, 2), "and then a fatal alert: {tail:?}");
    assert!(!scene.refusal().is_empty());
}

#[test]
fn a_handshake_that_takes_too_long_is_a_reset() {
    let [setup, _] = setups(same);
    let mut scene = Scene::new(&setup);
    scene.turn();
    assert_eq!(scene.protected.poll_timeout(), Some(HANDSHAKE_PATIENCE));
    scene.now = HANDSHAKE_PATIENCE;
    assert!(!scene.heard_by_program().1);
    assert_eq!(scene.refusal(), Failure::TooLate.to_string());
}

#[test]
fn a_damaged_record_is_a_reset_and_the_peer_is_told() {
    for tls13 in [false, true] {
        let versions = Versions { tls12: !tls13, tls13 };
        let (mut scene, mut other) = shaken_hands(|it| Rule { versions, ..it });
        other.tls.write(b"as it was");
        let mut records = Vec::new();
        other.tls.transmit(&mut records);
        *records.last_mut().unwrap() ^= 1;
        scene.peer.write_all(&records).unwrap();
        let (heard, is_in_order) = scene.heard_by_program();
        assert_eq!((heard, is_in_order), (Vec::new(), false));
        assert!(scene.refusal().contains("bad_record_mac (20)"), "{}", scene.refusal());
        let mut wire = Vec::new();
        let _ = scene.peer.read_to_end(&mut wire);
        assert!(!wire.is_empty(), "no alert");
    }
}

/// The program has begun TLS in the middle of its connection.
fn later(rule: Rule) -> Rule {
    let begin = Begin::Asked;
    Rule { scope: Scope { begin, ..rule.scope }, ..rule }
}

/// As [`setups`], for a program of this role.
fn later_setups(role: Role) -> [Setup; 2] {
    match role {
        Role::Outbound => client_and_server(later, same),
        Role::Inbound => {
            let [client, server] = client_and_server(same, later);
            [server, client]
        }
    }
}

/// The peer sends these bytes, and they are there.
fn send_ahead(scene: &mut Scene, bytes: &[u8]) {
    scene.peer.write_all(bytes).unwrap();
    let end = Instant::now() + HANG;
    while scene.n.peek(&mut [0]).is_err() {
        assert!(Instant::now() < end, "nothing comes");
        thread::yield_now();
    }
}

#[test]
fn where_tls_begins_later_plain_text_ahead_of_it_is_refused_and_nothing_goes_out() {
    for (role, ahead) in [
        (Role::Inbound, &b"RCPT TO:<a@a.example>\r\n"[..]),
        (Role::Inbound, b"\x15\x03\x03\0\x02\x01\0"),
        (Role::Outbound, b"250 injected\r\n"),
        // Whatever it looks like: no server speaks before the client.
        (Role::Outbound, b"\x16\x03\x03\0\x04\x0e\0\0\0"),
    ] {
        let [setup, _] = later_setups(role);
        let mut scene = Scene::new(&setup);
        send_ahead(&mut scene, ahead);
        scene.program.write_all(b"secret").unwrap();
        assert_eq!(scene.heard_by_program(), (Vec::new(), false), "{role:?} {ahead:?}");
        assert_eq!(scene.refusal(), Failure::Ahead.to_string());
        let mut wire = Vec::new();
        let _ = scene.peer.read_to_end(&mut wire);
        assert!(wire.is_empty(), "{wire:?}");
    }
}

#[test]
fn where_tls_begins_later_a_client_may_have_begun_before_its_server() {
    let [setup, other] = later_setups(Role::Inbound);
    let (mut scene, mut other) = (Scene::new(&setup), Other::new(&other));
    let mut flight = Vec::new();
    other.tls.transmit(&mut flight);
    send_ahead(&mut scene, &flight);
    shake_hands(&mut scene, &mut other);
    scene.program.write_all(b"250 a.example\r\n").unwrap();
    scene.until("the peer has it", |scene| {
        other.turn(&mut scene.peer);
        other.heard == b"250 a.example\r\n"
    });
}

#[test]
fn where_tls_begins_later_a_client_begins_with_a_handshake_of_its_own() {
    let [setup, other] = later_setups(Role::Outbound);
    let (mut scene, mut other) = (Scene::new(&setup), Other::new(&other));
    shake_hands(&mut scene, &mut other);
    other.tls.write(b"250 a.example\r\n");
    scene.until("the program has it", |scene| {
        other.turn(&mut scene.peer);
        let mut room = [0; 100];
        scene.program.read(&mut room).is_ok_and(|count| &room[..count] == b"250 a.example\r\n")
    });
}
