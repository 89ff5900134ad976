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

/// How long `accept` waits for all of a Proposal. A client that proposes nothing, or a byte now and then, holds a server up
/// for no longer, and only while there is no gateway.
const PROPOSAL_PATIENCE: Duration = Duration::from_millis(500);

/// Bytes of a Proposal that are read over at once.
const CHUNK_LEN: usize = 256;

/// False: the connection cannot be used.
pub(super) fn decline(fd: i32, side: Side) -> bool {
    match side {
        Side::Client => send_decline(fd),
        Side::Server => match read_over_message(fd, sys::deadline(PROPOSAL_PATIENCE)) {
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

/// The first message that comes, which is as long as it says. `None`: it is none, or not all of it is there at the `end`, by
/// [`sys::now_ns`].
fn read_over_message(fd: i32, end: u64) -> Option<MessageType> {
    let mut header = [0; Header::LEN];
    read_all(fd, &mut header, end)?;
    let (message_type, len) = Header::extent(&header).ok()?;
    let mut left = usize::from(len) - Header::LEN;
    while left > 0 {
        let mut chunk = [0; CHUNK_LEN];
        let len = left.min(CHUNK_LEN);
        read_all(fd, &mut chunk[..len], end)?;
        left -= len;
    }
    Some(message_type)
}

/// Not a byte more than there is room for: what is behind them is the program's.
fn read_all(fd: i32, mut room: &mut [u8], end: u64) -> Option<()> {
    while !room.is_empty() {
        match sys::recv_into(fd, room, libc::MSG_DONTWAIT) {
            Ok(0) => return None,
            Ok(len) => room = &mut room[len..],
            Err(Errno(libc::EAGAIN)) => comes(fd, libc::POLLIN, end).then_some(())?,
            Err(Errno(libc::EINTR)) => {}
            Err(_) => return None,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::thread;

    /// Time enough for anything.
    const LONG: Duration = Duration::from_secs(60);

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn message() -> [u8; DECLINE_LEN] {
        let mut bytes = [0; DECLINE_LEN];
        let decline = Decline::v1(PeerId::default(), Diagnosis::MEM);
        assert_eq!(decline.emit(&mut bytes).unwrap(), DECLINE_LEN);
        bytes
    }

    #[test]
    fn a_message_that_comes_byte_by_byte_is_read_over() {
        let (mut client, server) = connection();
        client.set_nodelay(true).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| message().chunks(1).for_each(|byte| client.write_all(byte).unwrap()));
            let read = read_over_message(server.as_raw_fd(), sys::deadline(LONG));
            assert_eq!(read, Some(MessageType::Decline));
        });
    }

    /// Patience has one end, however many bytes come.
    #[test]
    fn the_rest_of_a_message_is_not_waited_for_beyond_the_end() {
        let (mut client, server) = connection();
        client.write_all(&message()[..DECLINE_LEN - 1]).unwrap();
        assert!(comes(server.as_raw_fd(), libc::POLLIN, sys::deadline(LONG)));
        assert_eq!(read_over_message(server.as_raw_fd(), sys::now_ns()), None);
    }
}
