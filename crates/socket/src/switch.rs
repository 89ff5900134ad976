//! The switch: from which byte on a direction uses the ring.
//!
//! A direction moves in two steps, one on each side:
//!
//! 1. The receiver begins to *read by the ledger* ([`read_by_ledger`]): it knows
//!    how many bytes of the TCP stream it has taken, and from then on takes no more
//!    than belong to the program. It says so with its Accept or Confirm.
//! 2. The sender, at a moment when no plain send is under way, publishes the
//!    offset of its next byte ([`send_into_ring`]) and puts that byte into the ring.
//!
//! After step 2 the sender's TCP direction carries bells only. A bell is sent after
//! the switch offset was published, so a receiver that took bytes from TCP and
//! *then* reads the offset knows which of them were bells: it gives the program the
//! bytes before the offset and forgets the rest, in whatever order things happened.

use crate::account;
use crate::meeting;
use crate::pool::Held;
use crate::sock::{Conn, Phase, Sock};
use crate::urgent;
use core::sync::atomic::{Ordering, fence};
use sidestep_device::state::{Slot, flag};
use sidestep_device::sys;
use sidestep_proto::ledger::Reading;

/// `tcpi_state`: both directions open.
const TCP_ESTABLISHED: u8 = 1;
/// States in which the peer's FIN or a RST has arrived: TIME_WAIT, CLOSE,
/// CLOSE_WAIT, LAST_ACK, CLOSING of `net/tcp_states.h`.
const TCP_PEER_GONE: [u8; 5] = [6, 7, 8, 9, 11];
/// `SIOCINQ` of `linux/sockios.h`.
const SIOCINQ: u64 = 0x541B;
/// Tries for a reading between two arrivals.
const TRIES: usize = 64;

/// The part of the kernel's `struct tcp_info` that the ledger needs (Linux 4.19).
#[repr(C)]
#[derive(Clone, Copy)]
struct TcpInfo {
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

/// The peer's end of the TCP connection is gone: FIN or RST was received.
#[must_use]
pub fn is_peer_gone(fd: i32) -> bool {
    tcp_info(fd).is_some_and(|info| TCP_PEER_GONE.contains(&info.state))
}

/// Bytes in the TCP receive queue.
#[must_use]
pub fn queued(fd: i32) -> usize {
    sys::ioctl_int(fd, SIOCINQ).unwrap_or(0).max(0) as usize
}

/// One consistent reading of the kernel's counters; `None` when the connection is
/// not open in both directions.
fn read_ledger(fd: i32) -> Option<Reading> {
    for _ in 0..TRIES {
        let before = tcp_info(fd)?;
        let still_queued = queued(fd) as u64;
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

/// Begins to read by the ledger: [`Phase::Smc`]. False when a plain receive is
/// under way or the connection is closing; nothing has changed then.
pub(crate) fn read_by_ledger(sock: &Sock, slot: &Slot, fd: i32, conn: Conn) -> bool {
    let _receiving = Held::enter(&slot.receive_lock);
    let before = sock.phase();
    // SAFETY: the agreement runs in one thread at a time and sets the same value
    // when it is tried again.
    unsafe { sock.set_conn(conn) };
    sock.set_phase(Phase::Smc);
    // Pairs with the increment of `plain_receives`: either a plain receiver sees
    // the phase and turns back, or we see it here.
    fence(Ordering::SeqCst);
    let reading = match slot.plain_receives.load(Ordering::SeqCst) {
        0 => {
            urgent::begin_in_line(slot, fd);
            read_ledger(fd).or_else(|| {
                urgent::end_in_line(slot, fd);
                None
            })
        }
        _ => None,
    };
    let Some(reading) = reading else {
        sock.set_phase(before);
        return false;
    };
    slot.tcp_consumed.store(reading.consumed(), Ordering::Relaxed);
    urgent::note_stop_in_tcp(slot, fd);
    if slot.low_water.load(Ordering::Relaxed) != 1 {
        // A bell is one byte: it has to wake whoever sleeps in the kernel.
        let _ = sys::set_socket_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1);
    }
    crate::control::carry_options_over(slot, &conn, fd);
    slot.flags.fetch_or(flag::BY_LEDGER, Ordering::Release);
    meeting::note_smc(slot);
    account::moved(sock);
    true
}

/// Moves our sending direction into the ring if it can be done now. The caller
/// holds the send lock.
pub(crate) fn send_into_ring(sock: &Sock, slot: &Slot, fd: i32, conn: &Conn) -> bool {
    // A thread that receives may be trying to read by the ledger right now, and the
    // phase is `Smc` while it tries: without a Confirm of ours the peer would never
    // look into the ring.
    let settled = slot.flags.load(Ordering::Acquire) & flag::BY_LEDGER != 0;
    if !settled || slot.plain_sends.load(Ordering::SeqCst) != 0 {
        return false;
    }
    if sock.is_server.load(Ordering::Relaxed)
        && !(meeting::is_confirmed(conn) && meeting::check_confirm(sock, conn))
    {
        return false;
    }
    let Some(reading) = read_ledger(fd) else { return false };
    // Release: the ring is empty, and whoever sees the offset looks into it.
    conn.mine.sending.switch.store(reading.sent() + 1, Ordering::Release);
    slot.flags.fetch_or(flag::SEND_SWITCHED, Ordering::Release);
    true
}

/// Whether our TCP direction carries bells only, after switching it if need be. A
/// side that has only received so far still sends by TCP: a bell of its would be
/// a byte of the program's stream to the peer.
///
/// False while a plain send is under way: its bytes wake the peer as a bell would.
pub(crate) fn ensure_bells_only(sock: &Sock, slot: &Slot, fd: i32, conn: &Conn) -> bool {
    if slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED != 0 {
        return true;
    }
    let _sending = Held::enter(&slot.send_lock);
    slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED != 0
        || send_into_ring(sock, slot, fd, conn)
}

/// The offset at which the peer has switched, if it has.
#[inline]
pub(crate) fn peer_switch(conn: &Conn) -> Option<u64> {
    // Acquire: pairs with the Release in `send_into_ring`.
    conn.theirs.sending.switch.load(Ordering::Acquire).checked_sub(1)
}

/// If all of the program's bytes were taken from TCP, the rest comes from the ring.
/// The caller holds the receive lock. True: only the ring is left.
pub(crate) fn receive_from_ring(slot: &Slot, conn: &Conn) -> bool {
    match peer_switch(conn) {
        Some(at) if slot.tcp_consumed.load(Ordering::Relaxed) >= at => {
            slot.flags.fetch_or(flag::RECEIVE_SWITCHED, Ordering::Release);
            true
        }
        _ => false,
    }
}
