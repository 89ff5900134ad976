//! The state as bytes: there and back, cut off, changed, of another version.

use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::fcntl_get_seals;
use sidestep_engine::{Caller, MigrantBuffer, MigrantStream, PeerEnd};
use sidestep_proto::connection::{self, Wish};
use sidestep_proto::link_group::{
    self, Connection, LinkAtRest, LinkEnd, PeerRmbId, RmbId, Role, Rtoken,
};
use sidestep_rdma::device::{AtRest, Peer};
use sidestep_rdma::memory::Shared;
use sidestep_wire::cdc::StateFlags;
use sidestep_wire::llc::{Form, LengthOrder};
use sidestep_wire::{
    AlertToken, LinkNumber, LinkUserId, Mac, Mtu, PeerId, Psn, QpNumber, Rkey, RmbAddress,
    RmbeSize, RoceGid,
};

use super::*;
use crate::session::LeaveAtRest;

const LINK: LinkUserId = LinkUserId(0x101);
const TOKEN: AlertToken = AlertToken(0x0A0B_0C0D);

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn rtoken(number: u32) -> Rtoken {
    Rtoken { rkey: Rkey(number), address: RmbAddress(u64::from(number) << 12) }
}

fn group() -> link_group::AtRest {
    let (qp, psn, mtu) = (QpNumber([1, 2, 3]), Psn([4, 5, 6]), Mtu::from_low_bits(3));
    let peer = LinkEnd { gid: RoceGid([7; 16]), mac: Mac([2; 6]), qp, psn, mtu };
    let (number, peer_user_id) = (LinkNumber(1), LinkUserId(0x201));
    let link = LinkAtRest {
        user_id: LINK,
        number,
        gid: RoceGid([8; 16]),
        qp: (qp, psn),
        peer,
        peer_user_id,
    };
    let peer_rmb = Some(PeerRmbId(3));
    link_group::AtRest {
        role: Role::Client,
        form: Form::V2(LengthOrder::LittleEndian),
        max_conns: 255,
        max_links: 2,
        peer_id: PeerId([1; 8]),
        proposer: PeerId([2; 8]),
        own_id: PeerId([3; 8]),
        vlan: 5,
        direct: true,
        adapters: vec![RoceGid([8; 16])],
        links: vec![link],
        last: [1, 1],
        rmbs: vec![(RmbId(9), vec![(LINK, rtoken(11))])],
        peer_rmbs: vec![(PeerRmbId(3), vec![(LINK, rtoken(12))])],
        has_refused_rmb: false,
        connections: vec![Connection { token: TOKEN, rmb: RmbId(9), link: LINK, peer_rmb }],
        counts: [13, 14],
    }
}

fn connection() -> connection::AtRest {
    let said = StateFlags { done_writing: true, ..StateFlags::default() };
    connection::AtRest {
        peer: AlertToken(15),
        lens: [16_384, 65_536],
        queued: 103,
        written: 100,
        furthest: 101,
        consumed_by_peer: 99,
        urgent_out: [Some(102), None],
        has_told_urgent: true,
        produced: 98,
        consumed: 97,
        told: 96,
        writer_is_blocked: false,
        update_requested: true,
        urgent_is_pending: false,
        urgent_in: Some(95),
        has_read_urgent: true,
        said: [said, StateFlags::default(), said],
        is_passive: true,
        wish: Wish::WriteNoMore,
        seqnos: [1, 2, 3],
        must_validate: false,
        must_repeat: true,
    }
}

fn migrant() -> Migrant {
    let memory = Shared::zeroed(16_384);
    assert!(memory.copy_in(16_380, b"end."));
    let (qp, first_psn) = (QpNumber([1, 2, 3]), Psn([4, 5, 7]));
    Migrant {
        group: group(),
        founder: Caller::new(1000, address(1), "fd00::2".parse().unwrap()),
        queue_pairs: vec![AtRest {
            number: qp,
            next_psn: Psn([4, 5, 8]),
            peer: Peer { qp, first_psn, mtu: 1024 },
            address: address(2),
            completed: 17,
        }],
        buffers: vec![MigrantBuffer {
            id: RmbId(9),
            size: RmbeSize::MIN,
            uid: 1000,
            memory: Arc::new(memory),
        }],
        streams: vec![MigrantStream {
            token: TOKEN,
            role: Role::Server,
            peer: PeerEnd {
                token: AlertToken(15),
                size: RmbeSize::DEFAULT,
                rtoken: rtoken(12),
                offset: 0,
            },
            connection: connection(),
            heard_over: Some(LINK),
            rmb: RmbId(9),
            send_buffer_len: 65_536,
            unsent: b"abc".to_vec(),
            is_held: true,
            patience: None,
            is_blocked: true,
            counts: [18, 19, 20],
        }],
    }
}

fn sessions() -> Vec<SessionAtRest> {
    let left = Duration::from_millis(1500);
    vec![SessionAtRest {
        token: TOKEN,
        uid: 1000,
        is_client: true,
        ends: [None, Some("10.0.0.2:80".parse().unwrap())],
        sizes: [RmbeSize::MIN, RmbeSize::DEFAULT],
        age: Duration::from_secs(3),
        has_ended: true,
        peer_has_ended: false,
        is_told: false,
        leave: Some(LeaveAtRest { left, is_reset: false, was_heard: true }),
    }]
}

fn bytes_of((migrant, sessions): &(Migrant, Vec<SessionAtRest>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    version().put(&mut bytes);
    migrant.put(&mut bytes);
    sessions.put(&mut bytes);
    bytes
}

#[test]
fn what_is_written_is_read() {
    let whole = (migrant(), sessions());
    let file = write(&whole.0, &whole.1).unwrap();
    assert!(fcntl_get_seals(&file).unwrap().contains(SEALS));
    let (read, sessions) = read(file).unwrap();
    assert_eq!(bytes_of(&(read.clone(), sessions.clone())), bytes_of(&whole));
    assert_eq!((read.group, sessions), (group(), self::sessions()));
    assert_eq!(read.streams[0].connection, connection());
    let mut end = [0; 4];
    assert!(read.buffers[0].memory.copy_out(16_380, &mut end) && &end == b"end.");
}

/// Of the bytes behind the version, without those of the buffer. If it fails, the state has another layout: raise
/// [`STATE`], and put the new sum here.
#[test]
fn a_layout_has_its_version() {
    let whole = (migrant(), sessions());
    whole.0.buffers[0].memory.clear();
    let bytes = bytes_of(&whole);
    let bytes = &bytes[4..];
    let sum = bytes.iter().fold(0_u32, |sum, byte| sum.rotate_left(5).wrapping_add((*byte).into()));
    assert_eq!((STATE, bytes.len(), sum), (2, 520, 0xC545_601E));
}

#[test]
fn what_is_cut_off_or_goes_on_is_refused() {
    let whole = (migrant(), sessions());
    whole.0.buffers[0].memory.clear();
    let bytes = bytes_of(&whole);
    for len in 0..bytes.len() {
        assert!(parse(&bytes[..len]).is_none(), "{len}");
    }
    assert!(parse(&[&bytes[..], &[0]].concat()).is_none());
    assert!(parse(&bytes).is_some());
}

/// Some of it is another state, and most is none.
#[test]
fn whatever_is_changed_nothing_panics() {
    let whole = (migrant(), sessions());
    whole.0.buffers[0].memory.clear();
    let bytes = bytes_of(&whole);
    let mut refused = 0;
    for at in 0..bytes.len() {
        for value in [0, 1, bytes[at] ^ 0x80, 0xFF] {
            let mut changed = bytes.clone();
            changed[at] = value;
            refused += usize::from(parse(&changed).is_none());
        }
    }
    assert!(refused > 50, "{refused}");
    for at in 0..4 {
        let mut other = bytes.clone();
        other[at] ^= 1;
        assert!(parse(&other).is_none(), "another state, or another library");
    }
}

#[test]
fn a_file_that_can_still_change_is_refused() {
    let mut file = File::from(memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap());
    file.write_all(&bytes_of(&(migrant(), sessions()))).unwrap();
    assert!(read(file.into()).is_err());
    let pipe = io::pipe().unwrap().0;
    assert!(read(pipe.into()).is_err(), "no memory file");
}
