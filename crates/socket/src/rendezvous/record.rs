//! What an end prepares in its record, and answers in its CLC box ([`clc`]).

use crate::process::clc;
use crate::process::group::Group;
use crate::process::tcp::socket_cookie;
use crate::rendezvous::attempt::Look;
use crate::table::rendezvous::Peer;
use crate::table::sock::Sock;
use core::sync::atomic::Ordering;
use sidestep_device::slab::{CLC_LEN_MAX, Record, phase};
use sidestep_device::state::Slot;
use sidestep_device::sys;
use sidestep_proto::fallback::{Lack, Reason};
use sidestep_proto::rendezvous::Buffer;
use sidestep_wire::clc::{Decline, Hostname};
use sidestep_wire::{DmbToken, Error, RmbeSize};

/// Puts a Decline for the peer of this end. It is visible once the phase says so.
pub(super) fn put_decline(look: &Look, peer: Peer, message: &Decline) {
    let index = look.sock.slot_index();
    let mut bytes = [0; CLC_LEN_MAX];
    if let Ok(len) = message.emit(&mut bytes) {
        peer.group.slab().clc(index).put(&bytes[..len]);
    }
    peer.group.record(index).identity.peer_slot.store(peer.slot as u32, Ordering::Relaxed);
}

/// Fills a record for a new connection.
pub(super) fn prepare(
    record: &Record,
    slot: &Slot,
    fd: i32,
    ring_at: u64,
    ring: RmbeSize,
    rmbe: RmbeSize,
) {
    clc::turn(record, slot, phase::FREE);
    record.sending.producer.reset();
    record.sending.way.reset();
    record.sending.urgent.store(0, Ordering::Relaxed);
    record.sending.flags.store(0, Ordering::Relaxed);
    record.sending.closes.store(0, Ordering::Relaxed);
    record.sending.cpu.store(sys::cpu(), Ordering::Relaxed);
    record.receiving.consumer.reset();
    record.receiving.permit.reset();
    record.waiting.read_arm.withdraw();
    record.waiting.write_arm.withdraw();
    record.waiting.nap_arm.withdraw();
    record.waiting.channels.store(0, Ordering::Relaxed);
    record.waiting.write_wanted.store(0, Ordering::Relaxed);
    record.identity.ring_at.store(ring_at, Ordering::Relaxed);
    record.identity.ring_len.store(ring.bytes() as u32, Ordering::Relaxed);
    record.identity.rmbe_len.store(rmbe.bytes() as u32, Ordering::Relaxed);
    record.identity.cookie.store(socket_cookie(fd), Ordering::Relaxed);
    slot.send_ring_len.store(ring.bytes() as u32, Ordering::Relaxed);
    slot.receive_ring_len.store(rmbe.bytes() as u32, Ordering::Relaxed);
}

/// A message of ours contradicts itself, or is too long for its place: that is no fault of the peer's.
pub(super) fn unwritten(error: &Error) -> Reason {
    crate::log!(Error, "a message to the peer cannot be written: {error}");
    Lack::Unwritten.into()
}

/// Our receive buffer, as it is told. The kernel is asked for the name of this host only on a first
/// contact.
pub(super) fn buffer(sock: &Sock, group: &Group, is_first_contact: bool) -> Buffer {
    let mut token = [0; 8];
    let _ = sys::random(&mut token);
    let hostname = || Hostname::new(sys::hostname(&mut [0; 64]));
    Buffer {
        token: DmbToken(u64::from_ne_bytes(token)),
        size: sock.rmbe(),
        link_id: group.link_id,
        first_contact: is_first_contact.then(hostname),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_wire::host_control::{Hello, Instance};

    #[test]
    fn a_message_that_cannot_be_written_is_lacking_here() {
        let hello = Hello {
            instance: Instance([7; 16]),
            slot: 5,
            generation: 3,
            token: [9; 16],
            socket_cookie: 1,
            netns_cookie: 1,
            rmbe_len: 65_536,
        };
        let too_short = hello.emit(&mut [0; Hello::LEN - 1]).unwrap_err();
        assert_eq!(unwritten(&too_short), Lack::Unwritten.into());
    }
}
