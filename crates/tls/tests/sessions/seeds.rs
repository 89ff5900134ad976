//! What the fuzz target `tls_session` begins with: handshakes as rustls speaks them, recorded here.
//!
//! They are what anybody in the network sees: no key is in them. Recording them anew (other random numbers, another
//! certificate): `SIDESTEP_UPDATE_SNAPSHOTS=1 cargo test -p sidestep-tls seeds`.

use std::fs;
use std::path::PathBuf;

use sidestep_proto::protection::Role;
use sidestep_tls::rule::{Rule, Versions};
use sidestep_tls::{Session, Setup};

use crate::authority::{Authority, pair, peer, rule};

// An input's steps, as `fuzz/fuzz_targets/tls_session.rs` reads them.
const SAY: u8 = 0;
const CLOSE: u8 = 1;
const CARRY: u8 = 2;
const FORGE: u8 = 4;
const CLIENT: u8 = 0;
const SERVER: u8 = 1;
const HEAD_LEN: usize = 3;

fn setups(tls13: bool) -> [Setup; 2] {
    let versions = Versions { tls12: !tls13, tls13 };
    let rule = |role| Rule { versions, ..rule(role) };
    pair(&Authority::new(), rule(Role::Outbound), rule(Role::Inbound))
}

fn place(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/tls_session").join(name)
}

fn step(kind: u8, end: u8, number: usize, bytes: &[u8]) -> Vec<u8> {
    let number = u16::try_from(number).unwrap().to_be_bytes();
    [&[kind << 1 | end], &number[..], bytes].concat()
}

/// Both ends speak with each other, and each flight is recorded for its receiver.
fn record(tls13: bool) -> Vec<u8> {
    let mut ends = setups(tls13).map(|setup| setup.begin(&peer(None)).unwrap());
    let mut input = vec![u8::from(tls13)];
    let mut quiet = 0;
    for at in [CLIENT, SERVER].into_iter().cycle() {
        let flight = flight(&mut ends[usize::from(at)]);
        quiet = if flight.is_empty() { quiet + 1 } else { 0 };
        if quiet == ends.len() {
            break;
        }
        let to = 1 - at;
        assert_eq!(ends[usize::from(to)].take(&flight), flight.len());
        ends[usize::from(to)].process().unwrap();
        input.extend(step(FORGE, to, flight.len(), &flight));
        input.extend(step(CARRY, to, flight.len(), &[]));
    }
    assert!(ends.iter().all(|it| !it.is_handshaking()));
    input
}

fn flight(session: &mut Session) -> Vec<u8> {
    let mut records = Vec::new();
    session.transmit(&mut records);
    records
}

/// What two programs say whose handshake nothing disturbs, in pieces of this length.
fn talk(tls13: bool, piece: usize) -> Vec<u8> {
    let all = usize::from(u16::MAX);
    let mut input = vec![u8::from(tls13)];
    let carry_both = |len| [SERVER, CLIENT].map(|to| step(CARRY, to, len, &[])).concat();
    for _ in 0..6 {
        input.extend(carry_both(piece));
    }
    for _ in 0..2 {
        input.extend(carry_both(all));
    }
    for end in [CLIENT, SERVER] {
        input.extend(step(SAY, end, 20_000, &[]));
        input.extend(step(CLOSE, end, 0, &[]));
    }
    input.extend(carry_both(piece));
    input.extend(carry_both(all));
    input
}

/// The committed inputs are still what their names say: a server takes the recorded beginning and answers it.
#[test]
fn recorded_handshakes_are_understood() {
    for (name, tls13) in [("12", false), ("13", true)] {
        let recorded = place(&format!("recorded-{name}"));
        if std::env::var_os("SIDESTEP_UPDATE_SNAPSHOTS").is_some() {
            fs::create_dir_all(place("")).unwrap();
            fs::write(&recorded, record(tls13)).unwrap();
            fs::write(place(&format!("whole-{name}")), talk(tls13, usize::from(u16::MAX))).unwrap();
            fs::write(place(&format!("pieces-{name}")), talk(tls13, 100)).unwrap();
        }
        let input = fs::read(&recorded).unwrap();
        assert_eq!(input[..2], [u8::from(tls13), FORGE << 1 | SERVER]);
        let len = usize::from(u16::from_be_bytes([input[2], input[3]]));
        let hello = &input[1 + HEAD_LEN..][..len];
        let [_, server] = setups(tls13);
        let mut server = server.begin(&peer(None)).unwrap();
        assert_eq!(server.take(hello), hello.len());
        server.process().unwrap();
        let answer = flight(&mut server);
        assert!(matches!(answer[..], [22, 3, 3, ..]), "{:?}", &answer[..5]);
    }
}
