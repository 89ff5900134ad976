//! What the two ends of a connection show each other while they agree: the phase of a record, and a CLC
//! message in the box beside it.

use crate::process::group::{Group, PeerUse};
use crate::process::tcp;
use core::sync::atomic::Ordering;
use sidestep_device::slab::{CLC_LEN_MAX, Identity, Record, phase};
use sidestep_device::state::Slot;
use sidestep_proto::rendezvous::agreement::{Seen, Shown};
use sidestep_wire::Error;
use sidestep_wire::clc::{AcceptConfirmD, Message};

/// What a peer's record shows, each word read once. `own`: our slot.
pub(crate) fn read(identity: &Identity, own: usize) -> Seen {
    // Acquire: pairs with the Release of `turn`; what its owner has prepared is visible.
    let word = identity.phase.load(Ordering::Acquire);
    let halves = identity.token.each_ref().map(|half| half.load(Ordering::Relaxed));
    Seen {
        shown: shown(word),
        generation: word >> 8,
        token: tcp::joined(halves),
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

/// Publishes a phase together with the generation of the slot.
pub(crate) fn turn(record: &Record, slot: &Slot, to: u32) {
    let generation = slot.generation.load(Ordering::Relaxed) << 8;
    // Release: pairs with the Acquire of a reader of the phase; everything
    // prepared before is visible with it.
    record.identity.phase.store(generation | to, Ordering::Release);
}

/// What is in the CLC box of the peer: nothing, as long as it has not introduced itself.
pub(crate) fn read_clc(group: &Group, peer_slot: usize) -> Result<Message, Error> {
    let mut bytes = [0; CLC_LEN_MAX];
    let len = group.theirs().map_or(0, |(theirs, _)| theirs.clc(peer_slot).take(&mut bytes));
    let message = Message::parse(&bytes[..len]);
    if let Err(error) = &message {
        crate::log!(Warn, "CLC message of {} refused: {error}", group.peer);
    }
    message
}

/// What we have put into our CLC box.
pub(crate) fn own_clc(group: &Group, index: usize) -> Option<Message> {
    let mut bytes = [0; CLC_LEN_MAX];
    let len = group.slab().clc(index).take(&mut bytes);
    Message::parse(&bytes[..len]).ok()
}

pub(crate) fn put_clc(group: &Group, index: usize, message: &AcceptConfirmD) {
    let mut bytes = [0; CLC_LEN_MAX];
    if let Ok(len) = message.emit(&mut bytes) {
        group.slab().clc(index).put(&bytes[..len]);
    }
}

/// What the peer still does with our ring of this slot.
pub(super) fn peer_use_of(group: &Group, index: usize) -> PeerUse {
    let needs_ring = group.theirs().is_none_or(|(theirs, _)| {
        let peer_slot = group.record(index).identity.peer_slot.load(Ordering::Relaxed) as usize;
        peer_slot < sidestep_device::channel::SLOTS && {
            let identity = &theirs.record(peer_slot).identity;
            let answers_to_us = identity.peer_slot.load(Ordering::Relaxed) as usize == index;
            answers_to_us && shown(identity.phase.load(Ordering::Acquire)).may_need_ring()
        }
    });
    match needs_ring {
        false => PeerUse::Over,
        true if group.peer_lives() => PeerUse::Reads,
        true => PeerUse::Inherited,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::groups::{self, Look};
    use crate::process::home::{self, tests::alone};
    use sidestep_device::channel::SLOTS;

    #[test]
    fn a_peer_that_has_declined_needs_our_ring_no_more() {
        let _alone = alone();
        let process = home::current().unwrap();
        let group = groups::with(&Look::at(process), process.instance).unwrap();
        let [ours, theirs] = [SLOTS - 1, SLOTS - 2];
        group.record(ours).identity.peer_slot.store(theirs as u32, Ordering::Relaxed);
        let identity = &group.record(theirs).identity;
        identity.peer_slot.store(ours as u32, Ordering::Relaxed);
        let use_at = |at| {
            identity.phase.store(at, Ordering::Relaxed);
            peer_use_of(group, ours)
        };
        for at in [phase::GREETED, phase::PROPOSED, phase::ACCEPTED, phase::CONFIRMED] {
            assert_eq!(use_at(at), PeerUse::Reads, "phase {at}");
        }
        for at in [phase::DECLINED, phase::DETACHED, phase::FREE] {
            assert_eq!(use_at(at), PeerUse::Over, "phase {at}");
        }
    }
}
