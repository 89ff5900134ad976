//! What is not to be had: each with the failure that both ends tell, and the alert between them.

use sidestep_proto::protection::Role;
use sidestep_tls::rule::{ClientCertificate, Expected, Rule, Versions};
use sidestep_tls::session::{Protection, Version};
use sidestep_tls::setup::SetupError;
use sidestep_tls::{Failure, Peer, Session, Setup};

use crate::authority::{Authority, named, pair, peer, rule, setup};

/// Whether each end comes to be protected.
type Outcomes = [Result<Protection, Failure>; 2];

/// The handshake of a client and a server at 10.0.0.1.
fn shake_hands(setups: &[Setup; 2]) -> Outcomes {
    shake_hands_with(setups, &peer(None))
}

fn shake_hands_with(setups: &[Setup; 2], peer: &Peer) -> Outcomes {
    let mut ends = setups.each_ref().map(|it| it.begin(peer).unwrap());
    let mut failures = [None, None];
    for _ in 0..8 {
        for from in 0..2 {
            let mut records = Vec::new();
            ends[from].transmit(&mut records);
            let to = 1 - from;
            if failures[to].is_none() && !records.is_empty() {
                assert_eq!(ends[to].take(&records), records.len());
                failures[to] = ends[to].process().err();
            }
        }
    }
    let outcome = |(end, failure): (&Session, Option<Failure>)| match failure {
        Some(failure) => Err(failure),
        None => end.protection().ok_or(Failure::TooLate),
    };
    let [client, server] = failures;
    [outcome((&ends[0], client)), outcome((&ends[1], server))]
}

/// Two rules that go together, changed.
fn changed(client: impl Fn(Rule) -> Rule, server: impl Fn(Rule) -> Rule) -> Outcomes {
    let [client, server] = [client(rule(Role::Outbound)), server(rule(Role::Inbound))];
    shake_hands(&pair(&Authority::new(), client, server))
}

fn same(rule: Rule) -> Rule {
    rule
}

/// Which alert each end tells of.
fn alerts(outcomes: &Outcomes) -> [Option<String>; 2] {
    outcomes.each_ref().map(|it| Some(it.as_ref().err()?.alert()?.to_string()))
}

fn both(alert: &str) -> [Option<String>; 2] {
    [Some(alert.to_owned()), Some(alert.to_owned())]
}

fn words(outcome: &Result<Protection, Failure>) -> String {
    outcome.as_ref().unwrap_err().to_string()
}

const ONLY_12: Versions = Versions { tls12: true, tls13: false };
const ONLY_13: Versions = Versions { tls12: false, tls13: true };

#[test]
fn rules_that_go_together_agree_on_what_both_allow() {
    let [client, server] = changed(same, same).map(Result::unwrap);
    assert_eq!((client, client.version), (server, Version::Tls13));
    let [client, _] = changed(same, |it| Rule { versions: ONLY_12, ..it }).map(Result::unwrap);
    assert_eq!(client.version, Version::Tls12);
    let suites = |it| Rule { ciphers: ["1301", "C02B"].map(|it| it.parse().unwrap()).into(), ..it };
    let [client, _] = changed(suites, same).map(Result::unwrap);
    assert_eq!(client.cipher.to_string(), "TLS_AES_128_GCM_SHA256");
}

#[test]
fn the_second_connection_goes_on_with_the_keys_of_the_first() {
    let setups = pair(&Authority::new(), rule(Role::Outbound), rule(Role::Inbound));
    let is_resumed = || shake_hands(&setups).map(|it| it.unwrap().is_resumed);
    assert_eq!([is_resumed(), is_resumed()], [[false, false], [true, true]]);
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    let other = |it| Rule { server_name: Some(named("b.example")), ..it };
    let outcomes = changed(other, same);
    assert_eq!(alerts(&outcomes), both("bad_certificate (42)"));
    assert!(words(&outcomes[0]).contains("b.example"), "{}", words(&outcomes[0]));
    assert!(words(&outcomes[1]).starts_with("the peer refuses"), "{}", words(&outcomes[1]));
    let by_address = |it| Rule { server_name: Some(Expected::Address), ..it };
    assert_eq!(alerts(&changed(by_address, same)), both("bad_certificate (42)"));
}

#[test]
fn an_address_in_the_certificate_will_do_where_the_rule_says_so() {
    let authority = Authority::new();
    let by_address = Rule { server_name: Some(Expected::Address), ..rule(Role::Outbound) };
    let trust = authority.pem();
    for (address, is_right) in [("10.0.0.1", true), ("10.0.0.2", false)] {
        let identity = Some(authority.issue(address, 2030));
        let client = setup(by_address.clone(), None, &trust).unwrap();
        let server = setup(rule(Role::Inbound), identity, &trust).unwrap();
        assert_eq!(shake_hands(&[client, server])[0].is_ok(), is_right, "{address}");
    }
}

#[test]
fn what_the_program_has_resolved_has_to_be_in_the_certificate() {
    let authority = Authority::new();
    let by_resolved = Rule { server_name: Some(Expected::Resolved), ..rule(Role::Outbound) };
    let trust = authority.pem();
    for (certified, resolved, is_right) in [
        ("a.example", "a.example", true),
        ("a.example", "A.Example.", true),
        ("a.example", "b.example", false),
        ("a.example", "10.0.0.1", false),
        ("10.0.0.1", "10.0.0.1", true),
        // The address that it has connected to counts, whatever it has asked for.
        ("10.0.0.9", "10.0.0.9", false),
    ] {
        let identity = Some(authority.issue(certified, 2030));
        let client = setup(by_resolved.clone(), None, &trust).unwrap();
        let server = setup(rule(Role::Inbound), identity, &trust).unwrap();
        let outcomes = shake_hands_with(&[client, server], &peer(Some(resolved)));
        assert_eq!(outcomes[0].is_ok(), is_right, "{certified}, {resolved}");
    }
    let client = setup(by_resolved, None, &trust).unwrap();
    for unusable in [None, Some("no_name..at.all")] {
        assert_eq!(client.begin(&peer(unusable)).unwrap_err(), Failure::Unnamed);
    }
}

#[test]
fn a_certificate_that_has_ended_is_refused() {
    let authority = Authority::new();
    let trust = authority.pem();
    let client = setup(rule(Role::Outbound), None, &trust).unwrap();
    let identity = Some(authority.issue("a.example", 2025));
    let server = setup(rule(Role::Inbound), identity, &trust).unwrap();
    assert_eq!(alerts(&shake_hands(&[client, server])), both("certificate_expired (45)"));
}

#[test]
fn an_unknown_authority_is_refused() {
    let trust = Authority::new().pem();
    let client = setup(rule(Role::Outbound), None, &trust).unwrap();
    let other = Authority::new();
    let server = setup(rule(Role::Inbound), Some(other.issue("a.example", 2030)), &trust).unwrap();
    let outcomes = shake_hands(&[client, server]);
    assert_eq!(alerts(&outcomes), both("unknown_ca (48)"));
    assert!(words(&outcomes[0]).contains("does not trust"), "{}", words(&outcomes[0]));
}

#[test]
fn without_a_version_in_common_there_is_none() {
    let old = changed(|it| Rule { versions: ONLY_12, ..it }, |it| Rule { versions: ONLY_13, ..it });
    assert_eq!(alerts(&old), both("protocol_version (70)"));
}

#[test]
fn without_a_suite_in_common_there_is_none() {
    let with = |suite: &'static str| {
        move |it| Rule { versions: ONLY_13, ciphers: vec![suite.parse().unwrap()], ..it }
    };
    assert_eq!(alerts(&changed(with("1302"), with("1301"))), both("handshake_failure (40)"));
}

#[test]
fn without_a_protocol_in_common_there_is_none() {
    let with = |name: &'static str| move |it| Rule { alpn: vec![name.to_owned()], ..it };
    assert_eq!(alerts(&changed(with("a"), with("b"))), both("no_application_protocol (120)"));
    assert!(changed(with("a"), same)[0].is_ok(), "a server that names none does not speak of them");
}

/// The client with the identity it is given, against a server that asks; in both versions.
fn asked(server: &Rule, name: Option<&str>, version: Versions) -> Outcomes {
    let authority = Authority::new();
    let trust = authority.pem();
    let identity = name.map(|name| authority.issue(name, 2030));
    let client = Rule { versions: version, ..rule(Role::Outbound) };
    let client = setup(client, identity, &trust).unwrap();
    let server = setup(server.clone(), Some(authority.issue("a.example", 2030)), &trust).unwrap();
    shake_hands(&[client, server])
}

#[test]
fn clients_show_what_the_rule_asks_for() {
    let asking = |client_certificate, names: &[&str]| {
        let client_names = names.iter().map(|it| it.parse().unwrap()).collect();
        Rule { client_certificate, client_names, ..rule(Role::Inbound) }
    };
    let (wanted, needed) = (ClientCertificate::Wanted, ClientCertificate::Needed);
    for version in [ONLY_12, ONLY_13] {
        for (server, name, is_served) in [
            (asking(needed, &[]), Some("c.example"), true),
            (asking(needed, &[]), None, false),
            (asking(wanted, &[]), None, true),
            (asking(needed, &["c.example"]), Some("c.example"), true),
            (asking(needed, &["d.example"]), Some("c.example"), false),
            (asking(wanted, &["d.example"]), Some("c.example"), false),
        ] {
            let outcomes = asked(&server, name, version);
            assert_eq!(outcomes[1].is_ok(), is_served, "{version}: {server:?}, {name:?}");
            assert_eq!(outcomes[0].is_ok(), is_served, "{version}: the client, {name:?}");
        }
        let refused = asked(&asking(needed, &["d.example"]), Some("c.example"), version);
        assert_eq!(alerts(&refused), both("access_denied (49)"));
        assert!(words(&refused[1]).contains("client_names"), "{}", words(&refused[1]));
    }
}

#[test]
fn what_is_no_tls_is_refused() {
    let [_, server] = pair(&Authority::new(), rule(Role::Outbound), rule(Role::Inbound));
    for text in
        [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], b"\x16\x03\x01\xff\xff\x01", b"\0\0\0\0\0"]
    {
        let mut session = server.begin(&peer(None)).unwrap();
        session.take(text);
        let failure = session.process().unwrap_err();
        assert!(matches!(failure, Failure::Protocol { .. }), "{failure}");
        assert_eq!(session.write(b"secret"), 0, "not a byte before the handshake is over");
    }
}

#[test]
fn material_that_will_not_do_is_told() {
    let authority = Authority::new();
    let trust = authority.pem();
    let [(certificate, key), (_, other_key)] =
        ["a.example", "b.example"].map(|name| authority.issue(name, 2030));
    let try_with = |certificate: &[u8], key: &[u8]| {
        let identity = Some((certificate.to_vec(), key.to_vec()));
        setup(rule(Role::Inbound), identity, &trust).unwrap_err()
    };
    assert!(matches!(try_with(b"", &key), SetupError::Certificate(_)));
    assert!(matches!(try_with(&certificate, b""), SetupError::Key(_)));
    assert!(matches!(try_with(&certificate, &certificate), SetupError::Key(_)));
    assert!(matches!(try_with(&certificate, &other_key), SetupError::Pair(_)));
    assert!(matches!(setup(rule(Role::Outbound), None, b""), Err(SetupError::Certificate(_))));
}
