//! What the kernel counts of a TCP connection: the ledger by which the ends tell bytes of the program from
//! bells ([`sidestep_proto::ledger`]).

use crate::table::file::File;
use sidestep_device::{confinement, sys};
use sidestep_proto::ledger::Reading;

/// `tcpi_state`: both directions open.
const TCP_ESTABLISHED: u8 = 1;

/// The client waits for SYN-ACK.
const TCP_SYN_SENT: u8 = 2;

/// States in which the peer's FIN or a RST has arrived: TIME_WAIT, CLOSE,
/// CLOSE_WAIT, LAST_ACK, CLOSING of `net/tcp_states.h`.
const TCP_PEER_GONE: [u8; 5] = [6, 7, 8, 9, 11];

/// `SIOCINQ` of `linux/sockios.h`.
const SIOCINQ: u64 = 0x541B;

/// Tries for a reading between two arrivals.
pub(crate) const TRIES: usize = 64;

/// The part of the kernel's `struct tcp_info` that the ledger needs (Linux 4.19).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TcpInfo {
    state: u8,
    to_bytes_received: [u8; 127],
    bytes_received: u64,
    segments: [u32; 2],
    notsent_bytes: u32,
    to_bytes_sent: [u32; 13],
    bytes_sent: u64,
    bytes_retrans: u64,
}

const _: () = assert!(core::mem::offset_of!(TcpInfo, bytes_received) == 128);
const _: () = assert!(core::mem::offset_of!(TcpInfo, notsent_bytes) == 144);
const _: () = assert!(core::mem::offset_of!(TcpInfo, bytes_sent) == 200);

fn tcp_info(fd: i32) -> Option<TcpInfo> {
    sys::socket_option(fd, libc::IPPROTO_TCP, libc::TCP_INFO).ok()
}

/// Both directions of the TCP connection are open.
#[must_use]
pub fn is_established(fd: i32) -> bool {
    tcp_info(fd).is_some_and(|info| info.state == TCP_ESTABLISHED)
}

/// Its handshake is under way.
#[must_use]
pub fn is_connecting(fd: i32) -> bool {
    tcp_info(fd).is_some_and(|info| info.state == TCP_SYN_SENT)
}

/// The peer's end of the TCP connection is gone: FIN or RST was received.
#[must_use]
pub(super) fn is_peer_gone(file: File<'_>) -> bool {
    if confinement::is_confined() {
        let gone = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        return file.poll_now(gone).is_ok_and(|seen| seen & gone as u32 != 0);
    }
    file.call(tcp_info).is_some_and(|info| TCP_PEER_GONE.contains(&info.state))
}

/// Bytes in the TCP receive queue.
#[must_use]
pub(crate) fn queued(file: File<'_>) -> usize {
    file.call(queued_in)
}

fn queued_in(fd: i32) -> usize {
    if confinement::is_confined() {
        return sys::count_queued(fd);
    }
    sys::ioctl_int(fd, SIOCINQ).unwrap_or(0).max(0) as usize
}

/// One consistent reading of the kernel's counters; `None` when the connection is
/// not open in both directions.
pub(super) fn read_ledger(file: File<'_>) -> Option<Reading> {
    file.call(read_ledger_of)
}

fn read_ledger_of(fd: i32) -> Option<Reading> {
    for _ in 0..TRIES {
        let before = tcp_info(fd)?;
        let still_queued = queued_in(fd) as u64;
        let after = tcp_info(fd)?;
        if after.state != TCP_ESTABLISHED {
            return None;
        }
        if before.bytes_received == after.bytes_received {
            return Some(Reading {
                bytes_sent: after.bytes_sent,
                bytes_retransmitted: after.bytes_retrans,
                not_yet_sent: u64::from(after.notsent_bytes),
                bytes_received: after.bytes_received,
                still_queued,
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn the_kernel_counts_what_was_sent_received_and_not_taken() {
        let (mut client, mut server) = pair();
        client.write_all(&[1; 1000]).unwrap();
        let mut taken = [0; 400];
        server.read_exact(&mut taken).unwrap();
        let sent = read_ledger_of(client.as_raw_fd()).unwrap();
        assert_eq!((sent.bytes_sent - sent.bytes_retransmitted, sent.bytes_received), (1000, 0));
        let received = read_ledger_of(server.as_raw_fd()).unwrap();
        assert_eq!((received.bytes_received, received.still_queued), (1000, 600));
        assert_eq!(received.bytes_sent, 0);
        assert_eq!(queued_in(server.as_raw_fd()), 600);
    }

    #[test]
    fn a_connection_is_read_while_both_directions_are_open() {
        let (client, mut server) = pair();
        assert!(is_established(client.as_raw_fd()) && !is_connecting(client.as_raw_fd()));
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(server.read(&mut [0; 8]).unwrap(), 0);
        assert!(
            !is_established(server.as_raw_fd()) && read_ledger_of(server.as_raw_fd()).is_none()
        );
        let gone = |stream: &TcpStream| {
            tcp_info(stream.as_raw_fd()).is_some_and(|info| TCP_PEER_GONE.contains(&info.state))
        };
        assert!(gone(&server) && !gone(&client), "the server has not closed its end");
        drop(server);
        assert_eq!((&client).read(&mut [0; 8]).unwrap(), 0);
        assert!(gone(&client));
    }
}
