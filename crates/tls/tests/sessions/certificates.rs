//! Whose certificate an end has seen.

use sidestep_proto::protection::Role;
use sidestep_tls::rule::{ClientCertificate, Rule, Versions};
use sidestep_tls::{PeerCertificate, Session};

use crate::authority::{Authority, peer, rule, setup};

/// What each end knows of the other after a handshake.
fn seen(versions: Versions, client_shows: bool) -> [Option<PeerCertificate>; 2] {
    let authority = Authority::new();
    let trust = authority.pem();
    let client = Rule { versions, ..rule(Role::Outbound) };
    let client_certificate = ClientCertificate::Wanted;
    let server = Rule { versions, client_certificate, ..rule(Role::Inbound) };
    let identity = client_shows.then(|| authority.issue("c.example", 2030));
    let own = authority.issue("a.example", 2030);
    let setups =
        [setup(client, identity, &trust).unwrap(), setup(server, Some(own), &trust).unwrap()];
    let mut ends = setups.each_ref().map(|it| it.begin(&peer(None)).unwrap());
    assert!(ends.iter().all(|it| it.peer_certificate().is_none()), "before the handshake");
    while ends.iter().any(Session::is_handshaking) {
        for from in 0..2 {
            let mut records = Vec::new();
            ends[from].transmit(&mut records);
            ends[1 - from].take(&records);
            ends[1 - from].process().unwrap();
        }
    }
    ends.each_ref().map(Session::peer_certificate)
}

#[test]
fn each_end_knows_the_certificate_that_the_other_has_shown() {
    for tls13 in [false, true] {
        let versions = Versions { tls12: !tls13, tls13 };
        let [of_server, of_client] = seen(versions, true).map(Option::unwrap);
        assert_eq!(of_server.subject, "CN=rcgen self signed cert");
        assert_ne!(of_server.sha256, of_client.sha256);
        assert!(matches!(seen(versions, false), [Some(_), None]));
    }
}
