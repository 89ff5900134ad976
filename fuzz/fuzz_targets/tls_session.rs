//! Two sessions of TLS and a network between them that an attacker has: it holds back, cuts, damages, repeats and forges bytes,
//! and ends either way when it likes.
//!
//! * Whatever comes, a program gets the beginning of what the other one has said, and nothing else.
//! * Not a byte of a program's is taken before the handshake is over, which ends with the version that both rules say.
//! * An end is one of the other program's: not one of the attacker's.
//!
//! An input is a byte, which is even for TLS 1.2 and odd for 1.3, and steps:
//!
//! | Off | Len | Field |
//! |---|---|---|
//! | 0 | 1 | the end: 0 the client, 1 the server; above that bit the kind |
//! | 1 | 2 | a number, big-endian |
//! | 3 | the number | [`FORGE`] alone: bytes |
//!
//! The committed inputs called `recorded-…` have the flights of a handshake of rustls' as forged bytes
//! (`crates/tls/tests/sessions/seeds.rs` records them).
//!
//! `cargo xtask fuzz tls_session`

#![no_main]

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use rcgen::{CertificateParams, KeyPair};
use rustls::time_provider::DefaultTimeProvider;
use sidestep_proto::protection::{Role, Scope};
use sidestep_tls::rule::{Expected, Identity, Rule, Versions};
use sidestep_tls::session::{Got, Version};
use sidestep_tls::{Material, Peer, Session, Setup, setup};

/// Steps of one input.
const STEPS_MAX: usize = 200;

/// The program at this end says so many bytes.
const SAY: u8 = 0;
/// It has said all.
const CLOSE: u8 = 1;
/// So many bytes arrive at this end.
const CARRY: u8 = 2;
/// The byte there on its way to this end is another.
const DAMAGE: u8 = 3;
/// These bytes are on their way to this end, before all others.
const FORGE: u8 = 4;
/// So many bytes on their way to this end are there twice.
const REPEAT: u8 = 5;
/// TCP ends behind what is on its way to this end.
const END: u8 = 6;
const KINDS: u8 = 7;

/// One end, and what is on its way to it.
struct End {
    session: Session,
    /// What its program has said, of which the session has taken as much.
    said: Vec<u8>,
    has_closed: bool,
    got: Vec<u8>,
    way: Vec<u8>,
    way_ends: bool,
    has_failed: bool,
}

fuzz_target!(|input: &[u8]| {
    let Some((version, mut steps)) = input.split_first() else { return };
    let is_tls13 = version & 1 == 1;
    let mut ends = SETUPS[usize::from(is_tls13)].each_ref().map(End::new);
    for _ in 0..STEPS_MAX {
        let Some((&[head, high, low], rest)) = steps.split_first_chunk() else { return };
        let number = u16::from_be_bytes([high, low]).into();
        let kind = (head >> 1) % KINDS;
        let (forged, rest) = rest.split_at(if kind == FORGE { rest.len().min(number) } else { 0 });
        take(&mut ends, usize::from(head & 1), kind, number, forged);
        steps = rest;
        transmit(&mut ends);
        for end in ends.iter().filter(|end| !end.has_failed) {
            let version = end.session.protection().map(|it| it.version);
            let wanted = if is_tls13 { Version::Tls13 } else { Version::Tls12 };
            assert!(version.is_none_or(|it| it == wanted), "{version:?}");
        }
    }
});

fn take(ends: &mut [End; 2], at: usize, kind: u8, number: usize, forged: &[u8]) {
    let end = &mut ends[at];
    match kind {
        SAY => end.say(number),
        CLOSE => end.close(),
        CARRY => carry(ends, at, number),
        DAMAGE => end.way.iter_mut().skip(number).take(1).for_each(|byte| *byte ^= 1),
        FORGE => drop(end.way.splice(..0, forged.iter().copied())),
        REPEAT => end.way.extend_from_within(..number.min(end.way.len())),
        END => end.way_ends = true,
        _ => unreachable!("there are no more kinds"),
    }
}

/// What a session has for its peer is on its way, unless that way has ended.
fn transmit(ends: &mut [End; 2]) {
    for at in 0..2 {
        let mut records = Vec::new();
        ends[at].session.transmit(&mut records);
        if !ends[1 - at].way_ends {
            ends[1 - at].way.extend(records);
        }
    }
}

impl End {
    fn new(setup: &Setup) -> Self {
        let peer = Peer { address: IpAddr::from([10, 0, 0, 1]), resolved: None };
        let session = setup.begin(&peer).expect("random numbers");
        let (said, got, way) = (Vec::new(), Vec::new(), Vec::new());
        Self { session, said, has_closed: false, got, way, way_ends: false, has_failed: false }
    }

    fn say(&mut self, len: usize) {
        if self.has_closed || self.has_failed {
            return;
        }
        let first = self.said.len();
        let bytes: Vec<u8> = (first..first + len).map(|at| (at % 251) as u8).collect();
        let was_handshaking = self.session.is_handshaking();
        let taken = self.session.write(&bytes);
        assert!(taken == 0 || !was_handshaking, "before the handshake is over");
        self.said.extend_from_slice(&bytes[..taken]);
    }

    fn close(&mut self) {
        if !self.session.is_handshaking() && !self.has_failed {
            self.has_closed = true;
            self.session.close();
        }
    }
}

/// Bytes arrive, and the program receives what has become of them.
fn carry(ends: &mut [End; 2], at: usize, len: usize) {
    let other_has_closed = ends[1 - at].has_closed;
    let end = &mut ends[at];
    if end.has_failed {
        return;
    }
    let taken = end.session.take(&end.way[..len.min(end.way.len())]);
    end.way.drain(..taken);
    if end.way.is_empty() && end.way_ends {
        end.session.handle_end();
    }
    end.has_failed = end.session.process().is_err();
    let mut room = [0; 1 << 12];
    while !end.has_failed {
        match end.session.read(&mut room) {
            Ok(Got::Bytes(count)) => end.got.extend_from_slice(&room[..count]),
            Ok(Got::End) => {
                assert!(other_has_closed, "an end that is none of the program's");
                assert_eq!(ends[at].got, ends[1 - at].said, "an end before its time");
                return;
            }
            Ok(Got::Nothing) => break,
            Err(_) => end.has_failed = true,
        }
    }
    let [got, said] = [&ends[at].got, &ends[1 - at].said];
    assert!(said.starts_with(got), "bytes that were not said");
}

/// A client and a server each for TLS 1.2 and 1.3.
static SETUPS: LazyLock<[[Setup; 2]; 2]> = LazyLock::new(|| {
    let key = KeyPair::generate().expect("a key");
    let parameters = CertificateParams::new(["a.example".to_owned()]).expect("a name");
    let certificate = parameters.self_signed(&key).expect("a certificate").pem().into_bytes();
    let key = key.serialize_pem().into_bytes();
    let anchors = setup::anchors(&certificate).expect("itself");
    [false, true].map(|tls13| {
        let versions = Versions { tls12: !tls13, tls13 };
        let set_up = |role, identity| {
            let rule = Rule { versions, ..rule(role) };
            let material = Material { identity, anchors: anchors.clone() };
            Setup::new(rule, &material, Arc::new(DefaultTimeProvider)).expect("a rule")
        };
        let identity = Some((certificate.clone(), key.clone()));
        [set_up(Role::Outbound, None), set_up(Role::Inbound, identity)]
    })
});

fn rule(role: Role) -> Rule {
    let ports = ["8443".parse().expect("a port")].into_iter().collect();
    let (begin, peers, users) = Default::default();
    let name = "fuzz".parse().expect("a name");
    let rule = Rule::new(Scope { role, begin, name, ports, peers, users });
    match role {
        Role::Outbound => {
            let name = "a.example".parse().expect("a name");
            Rule { server_name: Some(Expected::Name(name)), ..rule }
        }
        Role::Inbound => {
            let identity = Identity { certificate: "/c".into(), key: "/k".into() };
            Rule { identity: Some(identity), ..rule }
        }
    }
}
