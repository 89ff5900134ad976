//! A peer that does what no session of ours begins: it updates its keys (RFC 8446 §4.6.3).

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use sidestep_proto::protection::Role;
use sidestep_tls::session::Got;
use sidestep_tls::{Session, setup};

use crate::authority::{Authority, pair, peer, rule};

/// A client that trusts this authority.
fn client(authority: &Authority) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    for anchor in setup::anchors(&authority.pem()).unwrap() {
        roots.add(anchor).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    ClientConnection::new(Arc::new(config), ServerName::try_from("a.example").unwrap()).unwrap()
}

/// Both send until neither has anything more to say. Returns what the client has said.
fn exchange(client: &mut ClientConnection, server: &mut Session) -> Vec<u8> {
    let (mut said, mut room) = (Vec::new(), [0; 4096]);
    for _ in 0..8 {
        let mut records = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut records).unwrap();
        }
        let mut rest = &records[..];
        while !rest.is_empty() {
            rest = &rest[server.take(rest)..];
            server.process().unwrap();
            while let Got::Bytes(count) = server.read(&mut room).unwrap() {
                said.extend_from_slice(&room[..count]);
            }
        }
        records.clear();
        server.transmit(&mut records);
        let mut rest = &records[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets().unwrap();
        }
    }
    said
}

#[test]
fn a_peer_may_update_its_keys() {
    let authority = Authority::new();
    let [_, setup] = pair(&authority, rule(Role::Outbound), rule(Role::Inbound));
    let (mut client, mut server) = (client(&authority), setup.begin(&peer(None)).unwrap());
    exchange(&mut client, &mut server);
    assert!(!server.is_handshaking());
    for n in 0u8..5 {
        client.refresh_traffic_keys().unwrap();
        client.writer().write_all(&[n; 20_000]).unwrap();
        assert_eq!(exchange(&mut client, &mut server), [n; 20_000]);
        // The other way the keys are others as well: the peer has asked for that.
        assert_eq!(server.write(&[n; 100]), 100);
        exchange(&mut client, &mut server);
        let mut heard = [0; 100];
        client.reader().read_exact(&mut heard).unwrap();
        assert_eq!(heard, [n; 100]);
    }
}
