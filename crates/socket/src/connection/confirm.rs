//! Whether the client has confirmed what the server has accepted.

use crate::process::clc;
use crate::table::conn::Conn;
use crate::table::sock::Sock;
use core::sync::atomic::Ordering;
use sidestep_proto::fallback::Field;
use sidestep_proto::rendezvous::agreement::Confirm;
use sidestep_proto::rendezvous::{self, Refusal};
use sidestep_wire::RmbeSize;
use sidestep_wire::clc::{AcceptConfirm, Message};

/// Server: whether the client has confirmed what was accepted, so that it reads by the ledger. Asked before
/// the first byte goes into the ring. What is wrong is written down: this direction stays on TCP.
pub(super) fn is_confirmed(sock: &Sock, conn: &Conn) -> bool {
    let shown = clc::shown(conn.theirs.identity.phase.load(Ordering::Acquire));
    let Some(ring) = RmbeSize::from_bytes(conn.outgoing.len()) else { return false };
    match Confirm::of(shown, ring, || read_confirm(sock, conn)) {
        Confirm::Awaited => false,
        Confirm::Right => true,
        Confirm::Wrong(reason) => {
            let before = sock.slot().map(|slot| slot.reason.swap(reason.word(), Ordering::Relaxed));
            if before != Some(reason.word()) {
                crate::log!(Warn, "what the peer receives stays on TCP: {reason}");
            }
            false
        }
    }
}

fn read_confirm(sock: &Sock, conn: &Conn) -> Result<RmbeSize, Refusal> {
    let message = clc::read_clc(conn.group, conn.peer_slot);
    match clc::own_clc(conn.group, sock.slot_index()) {
        Some(Message::Accept(AcceptConfirm::SmcD(accept))) => {
            rendezvous::expect_confirm(message, conn.group.peer.into(), &accept)
        }
        // Another process of our user has written into our slab.
        _ => Err(Refusal::Protocol(Field::CLC_TYPE)),
    }
}
