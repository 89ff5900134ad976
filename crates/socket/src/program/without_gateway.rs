//! Connections that were to go to the gateway, and there is none: the library declines for it.
//!
//! The two hosts have agreed by the option, so the other one speaks CLC before its program's first byte. A host may
//! answer each message of CLC by a Decline, and from then on the connection is an ordinary one (RFC 7609 §3.5.1.3):
//!
//! ```text
//!   a client    Decline, in the place of its Proposal ──>
//!   a server    <── Proposal, or a Decline                  Decline ──>
//! ```
//!
//! A client says so at once. A server has to read the Proposal, of which nothing may be left to the program; it
//! comes right behind the handshake, as soon as the client's host has handed the connection over, so `accept` waits for it.

use crate::rendezvous::gateway::comes;
use core::time::Duration;
use sidestep_device::sys::{self, Errno};
use sidestep_wire::clc::{Decline, Header, MessageType};
use sidestep_wire::host_control::Side;
use sidestep_wire::{Diagnosis, PeerId};

/// A Decline of version 1.
pub(super) const DECLINE_LEN: usize = 28;

/// How long `accept` waits for a Proposal, or for the rest of one. A client that proposes nothing holds a server up so
/// long as there is no gateway.
pub(super) const PROPOSAL_PATIENCE: Duration = Duration::from_millis(500);

/// Bytes of a Proposal that are read over at once.
const CHUNK_LEN: usize = 256;

/// False: the connection cannot be used.
pub(super) fn decline(fd: i32, side: Side) -> bool {
    match side {
        Side::Client => send_decline(fd),
        Side::Server => match read_over_message(fd) {
            Some(MessageType::Proposal) => send_decline(fd),
            // Its host has no gateway either.
            Some(MessageType::Decline) => true,
            Some(MessageType::Accept | MessageType::Confirm) | None => false,
        },
    }
}

fn send_decline(fd: i32) -> bool {
    let mut bytes = [0; DECLINE_LEN];
    let decline = Decline::v1(PeerId::default(), Diagnosis::MEM);
    let Ok(len) = decline.emit(&mut bytes) else { return false };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    sys::send(fd, &bytes[..len], flags).is_ok_and(|sent| sent == len)
}

/// The first message that comes, which is as long as it says. `None`: it is none, or not all of it comes in time.
fn read_over_message(fd: i32) -> Option<MessageType> {
    let mut header = [0; Header::LEN];
    read_all(fd, &mut header)?;
    let (message_type, len) = Header::extent(&header).ok()?;
    let mut left = usize::from(len) - Header::LEN;
    while left > 0 {
        let mut chunk = [0; CHUNK_LEN];
        let len = left.min(CHUNK_LEN);
        read_all(fd, &mut chunk[..len])?;
        left -= len;
    }
    Some(message_type)
}

/// Not a byte more than there is room for: what is behind them is the program's.
fn read_all(fd: i32, mut room: &mut [u8]) -> Option<()> {
    while !room.is_empty() {
        match sys::recv_into(fd, room, libc::MSG_DONTWAIT) {
            Ok(0) => return None,
            Ok(len) => room = &mut room[len..],
            Err(Errno(libc::EAGAIN)) => {
                comes(fd, libc::POLLIN, PROPOSAL_PATIENCE).then_some(())?;
            }
            Err(Errno(libc::EINTR)) => {}
            Err(_) => return None,
        }
    }
    Some(())
}
