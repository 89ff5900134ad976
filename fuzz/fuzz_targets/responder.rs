//! An adapter under attack by somebody who can forge everything: the peer's address, the QP, PSNs
//! near the expected ones, the key, and a right ICRC. It may break the connection, and touches
//! nothing but what was registered.
//!
//! `cargo xtask fuzz responder`

#![no_main]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sidestep_rdma::memory::Shared;
use sidestep_rdma::soft::Adapter;
use sidestep_rdma::soft::adapter::{DATAGRAM_MAX, Datagram};
use sidestep_rdma::soft::queue_pair::Peer;
use sidestep_wire::roce::icrc::{Addresses, Envelope};
use sidestep_wire::roce::{BTH_LEN, PORT, RETH_LEN};
use sidestep_wire::{Psn, QpNumber};

const REGISTERED: usize = 8192;
const AROUND: usize = 4096;
const SOURCE_PORT: u16 = 0xC123;
/// The numbers go around.
const FIRST_PSN: u32 = 0x00FF_FFF0;

#[derive(Arbitrary, Debug)]
struct Forged {
    opcode: u8,
    flags: u8,
    psn: i8,
    knows_key: bool,
    offset: i16,
    len: u16,
    payload: Vec<u8>,
    /// Milliseconds until the next one.
    pause: u16,
}

fuzz_target!(|all: Vec<Forged>| {
    let [own, peer] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    let mut adapter = Adapter::new(own, SOURCE_PORT);
    let (qp, _) = adapter.create();
    let first_psn = Psn::from_low_bits(FIRST_PSN);
    let described = Peer { qp: QpNumber([0, 1, 2]), first_psn, mtu: 1024 };
    assert!(adapter.ready_to_receive(qp, peer, described));
    adapter.queue_pair(qp).unwrap().ready_to_send();

    let mut memory = vec![0u8; AROUND + REGISTERED + AROUND];
    // SAFETY: it lives to the end of this function, and is looked at when the adapter is gone.
    let shared = unsafe { Shared::new(memory.as_mut_ptr().add(AROUND), REGISTERED) };
    let at = adapter.regions().register(Arc::new(shared), qp);

    let addresses = Addresses::new(peer, own).unwrap();
    let envelope = Envelope { addresses, source_port: SOURCE_PORT, destination_port: PORT };
    let mut now = Duration::ZERO;
    let mut out = [0; DATAGRAM_MAX];
    for forged in all.iter().take(64) {
        let mut bytes = vec![0; BTH_LEN];
        bytes[0] = forged.opcode;
        bytes[1] = forged.flags & 0xF0 & !0x30 | (((4 - forged.payload.len() % 4) % 4) << 4) as u8;
        bytes[2..4].copy_from_slice(&[0xFF, 0xFF]);
        bytes[5..8].copy_from_slice(&qp.0);
        let psn = Psn::from_low_bits(FIRST_PSN.wrapping_add_signed(forged.psn.into()));
        bytes[8] = forged.flags << 7;
        bytes[9..12].copy_from_slice(&psn.0);
        if forged.flags & 2 != 0 {
            let address = at.address.0.wrapping_add_signed(forged.offset.into());
            let rkey = if forged.knows_key { at.rkey.0 } else { !at.rkey.0 };
            bytes.extend(address.to_be_bytes());
            bytes.extend(rkey.to_be_bytes());
            bytes.extend(u32::from(forged.len).to_be_bytes());
            assert_eq!(bytes.len(), BTH_LEN + RETH_LEN);
        }
        bytes.extend(&forged.payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let icrc = envelope.icrc(&bytes, 0);
        bytes.extend(icrc);
        let datagram = Datagram { from: peer, port: SOURCE_PORT, index: 0, bytes: &bytes };
        adapter.handle_datagram(&datagram, now);
        while adapter.poll_transmit(&mut out, 1, now).is_some() {}
        while adapter.poll_event().is_some() {}
        now += Duration::from_millis(forged.pause.into());
        adapter.handle_timeout(now);
    }
    drop(adapter);
    assert!(memory[..AROUND].iter().all(|byte| *byte == 0));
    assert!(memory[AROUND + REGISTERED..].iter().all(|byte| *byte == 0));
});
