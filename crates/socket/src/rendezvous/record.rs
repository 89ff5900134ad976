//! Records and CLC boxes: what an end shows its peer, and reads of it.

use super::agreement::{Look, Peer};
use crate::process::group::Group;
use crate::process::home::{self, socket_cookie};
use crate::table::sock::Sock;
use core::sync::atomic::Ordering;
use sidestep_device::slab::{CLC_LEN_MAX, Identity, Record, phase};
use sidestep_device::state::Slot;
use sidestep_device::sys;
use sidestep_proto::fallback::{Lack, Reason};
use sidestep_proto::rendezvous::Buffer;
use sidestep_proto::rendezvous::agreement::{Seen, Shown};
use sidestep_wire::clc::{AcceptConfirmD, Decline, Message};
use sidestep_wire::{DmbToken, Error, RmbeSize};

/// What a peer's record shows, each word read once. `own`: our slot.
pub(crate) fn read(identity: &Identity, own: usize) -> Seen {
    // Acquire: pairs with the Release of `turn`; what its owner has prepared is visible.
    let word = identity.phase.load(Ordering::Acquire);
    let halves = identity.token.each_ref().map(|half| half.load(Ordering::Relaxed));
    Seen {
        shown: shown(word),
        generation: word >> 8,
        token: home::joined(halves),
        is_for_us: identity.peer_slot.load(Ordering::Relaxed) as usize == own,
    }
}

/// The phase in the word of a record.
pub(crate) fn shown(word: u32) -> Shown {
    match word & phase::MASK {
        phase::PROPOSED => Shown::Proposed,
        phase::ACCEPTED => Shown::Accepted,
        phase::CONFIRMED => Shown::Confirmed,
        phase::DECLINED => Shown::Declined,
        phase::CLAIMED => Shown::Claimed,
        phase::GREETED => Shown::Greeted,
        _ => Shown::Otherwise,
    }
}

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
    turn(record, slot, phase::FREE);
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

/// Publishes a phase together with the generation of the slot.
pub(super) fn turn(record: &Record, slot: &Slot, to: u32) {
    let generation = slot.generation.load(Ordering::Relaxed) << 8;
    // Release: pairs with the Acquire of whoever reads the phase; everything
    // prepared before is visible with it.
    record.identity.phase.store(generation | to, Ordering::Release);
}

/// A message of ours contradicts itself, or is too long for its place: that is no fault of the peer's.
pub(super) fn unwritten(error: &Error) -> Reason {
    crate::log!(Error, "a message to the peer cannot be written: {error}");
    Lack::Unwritten.into()
}

pub(super) fn buffer(sock: &Sock, group: &Group, asks_contact: bool) -> Buffer {
    let mut token = [0; 8];
    let _ = sys::random(&mut token);
    Buffer {
        token: DmbToken(u64::from_ne_bytes(token)),
        size: sock.rmbe(),
        link_id: group.link_id,
        first_contact: asks_contact && group.is_first_contact(),
    }
}

/// What is in the CLC box of the peer: nothing, as long as it has not introduced itself.
pub(super) fn read_clc(group: &Group, peer_slot: usize) -> Result<Message, Error> {
    let mut bytes = [0; CLC_LEN_MAX];
    let len = group.theirs().map_or(0, |(theirs, _)| theirs.clc(peer_slot).take(&mut bytes));
    let message = Message::parse(&bytes[..len]);
    if let Err(error) = &message {
        crate::log!(Warn, "CLC message of {} refused: {error}", group.peer);
    }
    message
}

/// What we have put into our CLC box.
pub(super) fn own_clc(group: &Group, index: usize) -> Option<Message> {
    let mut bytes = [0; CLC_LEN_MAX];
    let len = group.slab().clc(index).take(&mut bytes);
    Message::parse(&bytes[..len]).ok()
}

pub(super) fn put_clc(group: &Group, index: usize, message: &AcceptConfirmD) {
    let mut bytes = [0; CLC_LEN_MAX];
    if let Ok(len) = message.emit(&mut bytes) {
        group.slab().clc(index).put(&bytes[..len]);
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
