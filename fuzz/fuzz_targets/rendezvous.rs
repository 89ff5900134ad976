//! Whatever a peer sends in place of its CLC messages, the rendezvous between hosts comes to one
//! end, takes no byte behind it, and neither depends on how the stream is cut into pieces.
//!
//! The first byte says whether we are the client (bit 0), of which versions we are (bits 1 and 2),
//! whether the server knows the client's link group (bit 3), and how long the pieces are (bits 4 to
//! 7); the rest is what the peer sends, until it closes.
//!
//! `cargo xtask fuzz rendezvous`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_proto::link_group::AdapterId;
use sidestep_proto::rendezvous::hosts::{
    Adapter, Event, Exchange, LocalHost, Outcome, Roce, Route, Terms, Versions, Wording,
};
use sidestep_wire::clc::{AcceptConfirmR, FormR, Hostname, Message, Role};
use sidestep_wire::{
    AlertToken, Eid, Mac, Mtu, PeerId, Psn, QpNumber, Rkey, RmbAddress, RmbeSize, RoceGid,
};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

fuzz_target!(|input: &[u8]| {
    let Some((kind, stream)) = input.split_first() else { return };
    let in_one = play(*kind, stream, stream.len());
    let in_pieces = play(*kind, stream, usize::from(kind >> 4) + 1);
    assert_eq!(in_one, in_pieces);
});

/// What becomes of the connection, how many bytes of the stream were CLC's, and what was sent.
fn play(kind: u8, stream: &[u8], piece: usize) -> (Outcome, usize, Vec<Vec<u8>>) {
    let role = if kind & 1 != 0 { Role::Confirm } else { Role::Accept };
    let host = Arc::new(host(role, Versions { v1: kind & 2 != 0, v2: kind & 4 == 0 }));
    let begin = match role {
        Role::Accept => Exchange::server,
        Role::Confirm => Exchange::client,
    };
    let mut exchange = begin(Arc::clone(&host), route(role), Duration::ZERO);
    let mut sent = vec![];
    let mut taken = 0;
    for bytes in stream.chunks(piece.max(1)) {
        let mut rest = bytes;
        loop {
            if let Some(outcome) = act(&mut exchange, &host, role, kind & 8 == 0, &mut sent) {
                assert_eq!((exchange.wanted(), exchange.poll_timeout()), (0, None));
                return (outcome, taken, sent);
            }
            let len = exchange.handle_bytes(&rest[..rest.len().min(exchange.wanted())]);
            if len == 0 {
                break;
            }
            taken += len;
            rest = &rest[len..];
        }
    }
    exchange.handle_reset();
    let outcome = act(&mut exchange, &host, role, true, &mut sent);
    (outcome.expect("a reset is the end"), taken, sent)
}

/// Carries out what the exchange wants, as an engine that has no trouble.
fn act(
    exchange: &mut Exchange,
    host: &LocalHost,
    role: Role,
    is_first: bool,
    sent: &mut Vec<Vec<u8>>,
) -> Option<Outcome> {
    loop {
        while let Some(message) = exchange.poll_transmit() {
            assert!(Message::parse(&message).is_ok());
            sent.push(message);
        }
        match exchange.poll_event()? {
            Event::Accept(_, terms) => {
                exchange.introduce(&introduction(role, host, &terms, is_first), Duration::ZERO);
            }
            Event::Connect(accept, terms) => {
                let is_first = accept.is_first_contact();
                exchange.introduce(&introduction(role, host, &terms, is_first), Duration::ZERO);
                exchange.established();
            }
            Event::Confirmed(_) => exchange.established(),
            Event::Ended(outcome) => return Some(outcome),
        }
    }
}

fn host(role: Role, versions: Versions) -> LocalHost {
    let n = number(role);
    let adapter = |id, roce, gid: Ipv6Addr| Adapter {
        id: AdapterId(id),
        roce,
        gid: RoceGid(gid.octets()),
        mac: Mac([0x52, 0x54, 0, 0, 0, n]),
        mtu: Mtu::from_low_bits(3),
        interface: 2,
        networks: route(role).networks,
        vlan: 0,
        pnet_id: None,
        is_up: true,
    };
    let mapped = Ipv4Addr::new(10, 0, 0, n).to_ipv6_mapped();
    let link_local = Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, n.into());
    LocalHost {
        peer_id: PeerId([1, n, 0x52, 0x54, 0, 0, 0, n]),
        hostname: Hostname::new(b"host"),
        ueids: Eid::ueid("SMCV2-EID-1").into_iter().collect(),
        adapters: [adapter(1, Roce::V2, mapped), adapter(2, Roce::V1, link_local)]
            .into_iter()
            .collect(),
        versions,
        max_conns: 255,
        max_links: 2,
    }
}

fn route(role: Role) -> Route {
    let n = number(role);
    let network = format!("10.0.0.{n}/24").parse().expect("a network");
    Route {
        local: Ipv4Addr::new(10, 0, 0, n).into(),
        remote: Ipv4Addr::new(10, 0, 0, 3 - n).into(),
        interface: 2,
        networks: std::iter::once(network).collect(),
        vlan: 0,
        pnet_id: None,
    }
}

/// As in the captures: 10.0.0.1 is the server.
fn number(role: Role) -> u8 {
    match role {
        Role::Accept => 1,
        Role::Confirm => 2,
    }
}

fn introduction(role: Role, host: &LocalHost, terms: &Terms, is_first: bool) -> AcceptConfirmR {
    let adapter = host.adapters.iter().find(|it| it.id == terms.adapters[0]).expect("ours");
    AcceptConfirmR {
        role,
        peer_id: host.peer_id,
        gid: adapter.gid,
        mac: adapter.mac,
        qp_number: QpNumber::FIRST,
        rkey: Rkey(1),
        rmbe_index: 1,
        alert_token: AlertToken(1),
        size: RmbeSize::DEFAULT,
        mtu: adapter.mtu,
        rmb_address: RmbAddress(0),
        psn: Psn::default(),
        form: match &terms.wording {
            Wording::V1 => FormR::V1 { first_contact: is_first },
            Wording::V2 { eid, hello } => {
                FormR::V2 { eid: *eid, first_contact: is_first.then(|| hello.clone()) }
            }
        },
    }
}
