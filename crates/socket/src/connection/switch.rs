//! The switch: from which byte on a direction uses the ring, and from which it goes by TCP
//! again.
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
//!
//! An operator may want the connection on TCP (`sidestep demote`). It goes back by the
//! same two steps, and as often as he likes ([`sidestep_device::way`]):
//!
//! 1. The receiver takes no byte from TCP any more without asking what it is, and
//!    permits the turn ([`settle`]).
//! 2. The sender, when it rings no bells, publishes the offset of its next byte in
//!    the TCP stream, and sends that byte by TCP ([`leave_ring`]).
//!
//! The receiver reads the ring to its end, forgets the bells before that offset, and
//! goes on with TCP. Whether or not both ends are asked, both directions go: an end that
//! is to leave shows it in its record ([`follow_wishes`]). It stays a connection in
//! [`Phase::Smc`], which has not switched, or not any more.

use crate::connection::ends;
use crate::connection::socket_options;
use crate::connection::urgent;
use crate::connection::wait;
use crate::process::pool::Held;
use crate::rendezvous::agreement;
use crate::table::account;
use crate::table::conn::Conn;
use crate::table::file::File;
use crate::table::sock::Phase;
use crate::table::sock::Sock;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use sidestep_device::confinement;
use sidestep_device::slab::flag as said;
use sidestep_device::state::{Slot, flag};
use sidestep_device::sys;
use sidestep_device::way;
use sidestep_proto::cut_over::{
    self, Answer, BeforeEntering, BeforeLeaving, Enter, Follow, Leave, Machine, Permit, Queue,
    Receiving, Source, Wished,
};
use sidestep_proto::fallback::{OperatorSaid, Reason};
use sidestep_proto::ledger::{Parts, Reading};

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

/// Its handshake is under way.
#[must_use]
pub fn is_connecting(fd: i32) -> bool {
    tcp_info(fd).is_some_and(|info| info.state == TCP_SYN_SENT)
}

/// The peer's end of the TCP connection is gone: FIN or RST was received.
#[must_use]
pub(crate) fn is_peer_gone(file: File<'_>) -> bool {
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
fn read_ledger(file: File<'_>) -> Option<Reading> {
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

/// Begins to read by the ledger: [`Phase::Smc`]. False when a plain receive is
/// under way or the connection is closing; nothing has changed then.
pub(crate) fn read_by_ledger(sock: &Sock, slot: &Slot, fd: i32, conn: Conn) -> bool {
    let file = File::of(sock, fd);
    let _receiving = Held::enter(&slot.receive_lock);
    let before = sock.phase();
    // SAFETY: the agreement runs in one thread at a time and sets the same value
    // when it is tried again.
    unsafe { sock.set_conn(conn) };
    sock.set_phase(Phase::Smc);
    // Pairs with the increments of `plain_receives` and `read_waiters`: either a plain
    // receiver (or a sleeper in `poll`) sees the phase and turns back, or we see it here.
    fence(Ordering::SeqCst);
    let reading = match slot.plain_receives.load(Ordering::SeqCst) {
        0 => {
            urgent::begin_in_line(slot, file);
            read_ledger(file).or_else(|| {
                urgent::end_in_line(slot, file);
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
    urgent::note_stop_in_tcp(slot, file);
    if slot.low_water.load(Ordering::Relaxed) != 1 {
        // A bell is one byte: it has to wake whoever sleeps in the kernel.
        let _ = file.set_option(libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1);
    }
    socket_options::carry_options_over(slot, &conn, file);
    wait::ring_who_waits(slot, &conn);
    slot.flags.fetch_or(flag::BY_LEDGER, Ordering::Release);
    agreement::note_smc(slot);
    account::moved(sock);
    true
}

/// Moves our sending direction into the ring if it can be done now. The caller
/// holds the send lock.
pub(crate) fn send_into_ring(
    sock: &Sock,
    slot: &Slot,
    file: File<'_>,
    conn: &Conn,
    sending: &Held<'_>,
) -> bool {
    let way = &conn.mine.sending.way;
    let turns = way.turns();
    let seen = BeforeEntering {
        turns,
        is_interrupting: !sending.is_outermost(),
        // A thread that receives may be trying to read by the ledger right now, and the
        // phase is `Smc` while it tries: without a Confirm of ours the peer would never
        // look into the ring.
        is_settled: slot.flags.load(Ordering::Acquire) & flag::BY_LEDGER != 0,
        plain_sends: slot.plain_sends.load(Ordering::SeqCst),
        is_held: slot.held.load(Ordering::Relaxed) != 0,
        is_permitted: conn.theirs.receiving.permit.allows(turns + 1),
    };
    let enter = Enter::begin(&seen, || {
        let is_server = sock.is_server.load(Ordering::Relaxed);
        !is_server || agreement::is_confirmed(sock, conn)
    });
    let end = carry_out(enter, |enter| match enter {
        Enter::Measures { .. } => Some(Answer::Ledger(read_ledger(file))),
        Enter::Turns { turn, at } => done(|| way.turn(turn, at)),
        Enter::Opens => done(|| allow_bells(slot)),
        Enter::Repays => Some(Answer::Is(takes_debt(slot))),
        Enter::Rings => done(|| wait::ring(slot, conn, file, || true)),
        Enter::Entered | Enter::Stays => None,
    });
    if way.turns() != turns {
        note_ways(slot, conn);
    }
    end == Some(Enter::Entered)
}

/// Moves our sending direction out of the ring, if the peer permits it and it can be done
/// now. The caller holds the send lock, and has interrupted nobody who does.
#[cold]
pub(crate) fn leave_ring(slot: &Slot, file: File<'_>, conn: &Conn) -> bool {
    let way = &conn.mine.sending.way;
    let turns = way.turns();
    let flags = slot.flags.load(Ordering::Acquire);
    let leave = Leave::begin(&BeforeLeaving {
        turns,
        is_open: flags & flag::SEND_SWITCHED != 0,
        is_over: flags & ends::SEND_OVER != 0,
        is_permitted: conn.theirs.receiving.permit.allows(turns + 1),
        is_marked: has_sent_urgently(conn),
        unfinished: slot.unfinished.load(Ordering::SeqCst),
    });
    let end = carry_out(leave, |leave| match leave {
        Leave::Wakes { .. } => done(|| wait::wake_readers(slot, conn, file)),
        Leave::Closes { .. } => done(|| clear(slot, flag::SEND_SWITCHED)),
        Leave::Looks { .. } => Some(Answer::Is(slot.bells.load(Ordering::SeqCst) != 0)),
        Leave::Measures { .. } => Some(Answer::Ledger(read_ledger(file))),
        Leave::Turns { turn, at } => done(|| way.turn(turn, at)),
        Leave::Forgets => done(|| clear(slot, flag::LEAVES_RING | flag::BELL_OWED)),
        Leave::Reopens => done(|| allow_bells(slot)),
        Leave::Repays => Some(Answer::Is(takes_debt(slot))),
        Leave::Rings => done(|| wait::ring(slot, conn, file, || true)),
        Leave::Stays | Leave::Left => None,
    });
    let has_left = end == Some(Leave::Left);
    if has_left {
        note_ways(slot, conn);
    }
    has_left
}

/// SeqCst: a thread that rings writes its own word before it reads the flags, and the thread that
/// forbids bells reads that word after it has written them ([`cut_over::Bell`]).
fn clear(slot: &Slot, bits: u32) -> bool {
    slot.flags.fetch_and(!bits, Ordering::SeqCst) & bits != 0
}

/// Whether threads have left a bell to the one that allows bells again.
fn takes_debt(slot: &Slot) -> bool {
    clear(slot, flag::BELL_OWED)
}

/// As [`clear`].
fn allow_bells(slot: &Slot) {
    slot.flags.fetch_or(flag::SEND_SWITCHED, Ordering::SeqCst);
}

/// An urgent mark is a place in the ring, or in TCP: a direction that has marked a byte of
/// its ring stays there.
fn has_sent_urgently(conn: &Conn) -> bool {
    conn.mine.sending.urgent.load(Ordering::Relaxed) != 0
}

/// What the operator wishes, here and over there, and what the peer permits: to be called
/// when there is a hint that it has changed.
pub(crate) fn follow_wishes(slot: &Slot, conn: &Conn) {
    let mine = &conn.mine.sending;
    let turns = mine.way.turns();
    let peer = conn.theirs.sending.flags.load(Ordering::Acquire);
    let wishes = cut_over::wishes(&Wished {
        is_held: slot.held.load(Ordering::Relaxed) != 0,
        peer_wants_tcp: peer & said::WANTS_TCP != 0,
        takes_unasked: slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0,
        followed: slot.followed.load(Ordering::Relaxed),
        turns,
        is_permitted: conn.theirs.receiving.permit.allows(turns + 1),
    });
    let mut has_news = set(&mine.flags, said::WANTS_TCP, wishes.says_tcp);
    set(&slot.flags, flag::TURN_WANTED, wishes.wants_permit);
    if let Some(turn) = wishes.grants {
        has_news |= conn.mine.receiving.permit.grant(turn);
    }
    set(&slot.flags, flag::LEAVES_RING, wishes.leaves);
    if has_news {
        mine.closes.fetch_add(1, Ordering::Release);
    }
}

/// Sets or clears a flag. True: it was not so before.
fn set(flags: &AtomicU32, bit: u32, on: bool) -> bool {
    if (flags.load(Ordering::Relaxed) & bit != 0) == on {
        return false;
    }
    match on {
        true => flags.fetch_or(bit, Ordering::SeqCst),
        false => flags.fetch_and(!bit, Ordering::SeqCst),
    };
    true
}

/// Writes down which way the connection goes: it has come back from the ring, or gone
/// there again.
fn note_ways(slot: &Slot, conn: &Conn) {
    let (sent, followed) = (conn.mine.sending.way.turns(), slot.followed.load(Ordering::Relaxed));
    if sent.max(followed) < 2 {
        return;
    }
    let is_on_tcp = !cut_over::is_ring(sent) && !cut_over::is_ring(followed);
    let reason = if is_on_tcp { Reason::Operator(OperatorSaid::Demoted) } else { Reason::None };
    if slot.reason.swap(reason.word(), Ordering::Relaxed) != reason.word() {
        let path = if is_on_tcp { "by TCP" } else { "through shared memory" };
        crate::log!(Info, "connection goes {path} again");
    }
}

/// Whether our TCP direction carries bells only, after switching it if need be. A
/// side that has only received so far still sends by TCP: a bell of its would be
/// a byte of the program's stream to the peer.
///
/// False while a plain send is under way: its bytes wake the peer as a bell would.
pub(crate) fn ensure_bells_only(sock: &Sock, slot: &Slot, file: File<'_>, conn: &Conn) -> bool {
    if slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED != 0 {
        return true;
    }
    let sending = Held::enter(&slot.send_lock);
    slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED != 0
        || send_into_ring(sock, slot, file, conn, &sending)
}

/// Whether the next bytes of the peer are in its ring, as far as we have followed it.
#[inline]
pub(crate) fn comes_by_ring(slot: &Slot) -> bool {
    cut_over::is_ring(slot.followed.load(Ordering::Relaxed))
}

/// The turn that the peer has taken and we have not followed yet: its offset in TCP.
pub(crate) fn peer_turn(slot: &Slot, conn: &Conn) -> Option<u64> {
    let followed = slot.followed.load(Ordering::Relaxed);
    conn.theirs.sending.way.next(followed).unwrap_or_else(|lost| {
        ends::reset_untold(slot, conn, &lost);
        None
    })
}

/// Whether the peer has been sending by TCP when it turned last.
pub(crate) fn peer_sends_by_tcp(conn: &Conn) -> bool {
    !cut_over::is_ring(conn.theirs.sending.way.turns())
}

/// What `n` bytes at the front of the TCP queue are. Whoever asks has looked at them before:
/// see [`sidestep_device::way`].
pub(crate) fn parts_of_queue(slot: &Slot, conn: &Conn, n: usize) -> Parts {
    let queue = Queue {
        consumed: slot.tcp_consumed.load(Ordering::Relaxed),
        followed: slot.followed.load(Ordering::Relaxed),
        from: slot.tcp_from.load(Ordering::Relaxed),
        turn: peer_turn(slot, conn),
    };
    cut_over::parts(n as u64, &queue)
}

/// Bytes of the program in the TCP queue.
pub(crate) fn data_queued(slot: &Slot, conn: &Conn, file: File<'_>) -> usize {
    match queued(file) {
        0 => 0,
        n => parts_of_queue(slot, conn, n).data as usize,
    }
}

/// Where the next bytes of the program are, after following the turns of the peer that
/// are due, and permitting the next. The caller holds the receive lock.
#[cold]
pub(crate) fn settle(slot: &Slot, conn: &Conn, file: File<'_>) -> Source {
    if slot.flags.load(Ordering::Acquire) & flag::TURN_WANTED != 0 {
        permit_tcp(slot, conn, file);
    }
    loop {
        if slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0 {
            return Source::Ring;
        }
        wait::skip_bells_unless_asleep(slot, conn, file);
        let turn = peer_turn(slot, conn);
        let seen = Receiving {
            consumed: slot.tcp_consumed.load(Ordering::Relaxed),
            followed: slot.followed.load(Ordering::Relaxed),
            turn,
            is_ring_empty: is_ring_empty(conn),
        };
        match cut_over::follow(&seen) {
            Follow::Reads(source) => return source,
            Follow::Breaks => {
                ends::reset_untold(slot, conn, &way::Lost);
                return Source::Ring;
            }
            Follow::IntoRing => {
                slot.followed.fetch_add(1, Ordering::Relaxed);
                slot.flags.fetch_or(flag::RECEIVE_SWITCHED, Ordering::Release);
            }
            Follow::IntoTcp { from } => {
                slot.tcp_from.store(from, Ordering::Relaxed);
                slot.followed.fetch_add(1, Ordering::Release);
            }
        }
        note_ways(slot, conn);
        follow_wishes(slot, conn);
    }
}

/// After the peer's turn was seen: its producer cursor is final.
fn is_ring_empty(conn: &Conn) -> bool {
    conn.theirs.sending.producer.claim() == conn.mine.receiving.consumer.position()
}

/// Permits the peer to send by TCP, if nobody takes bytes from there as bells: from now on
/// they are taken by the ledger. The caller holds the receive lock.
fn permit_tcp(slot: &Slot, conn: &Conn, file: File<'_>) {
    let mut alone = None;
    let permit = Permit::begin(slot.followed.load(Ordering::Relaxed), urgent::is_marked(conn));
    let _ = carry_out(permit, |permit| match permit {
        Permit::Drops => done(|| set(&slot.flags, flag::TURN_WANTED, false)),
        Permit::Secludes => {
            alone = wait::Alone::on_tcp(slot);
            Some(Answer::Is(alone.is_some()))
        }
        Permit::Measures => Some(Answer::Ledger(read_ledger(file))),
        Permit::Counts { consumed } => done(|| {
            let before = slot.tcp_consumed.swap(consumed, Ordering::Relaxed);
            slot.tcp_bells.fetch_add(consumed.saturating_sub(before), Ordering::Relaxed);
        }),
        Permit::Asks => done(|| clear(slot, flag::RECEIVE_SWITCHED | flag::TURN_WANTED)),
        Permit::Grants => done(|| {
            let turn = slot.followed.load(Ordering::Relaxed) + 1;
            conn.mine.receiving.permit.grant(turn);
            conn.mine.sending.closes.fetch_add(1, Ordering::Release);
        }),
        Permit::Returns | Permit::Resigns => done(|| alone.take()),
        Permit::Permitted | Permit::Withheld => None,
    });
}

/// Takes a machine to its last state. `None`: it was told what it had not asked, which is a fault of
/// this library; the direction stays where it is, and the next call begins anew.
pub(crate) fn carry_out<M: Machine>(
    first: M,
    carry_out: impl FnMut(M) -> Option<Answer>,
) -> Option<M> {
    let end = cut_over::carry_out(first, carry_out);
    end.inspect_err(|unasked| crate::log!(Error, "cut-over: {unasked}")).ok()
}

/// Does what has no answer.
pub(crate) fn done<T>(carry_out: impl FnOnce() -> T) -> Option<Answer> {
    carry_out();
    Some(Answer::Done)
}

/// Takes the bells at the front of the TCP queue out of it, and nothing else: looks first.
/// The caller holds the receive lock, and no other thread sleeps on the TCP socket.
pub(crate) fn skip_bells(slot: &Slot, conn: &Conn, file: File<'_>) {
    let mut bytes = [0u8; 64];
    let may_have_bells = || {
        let consumed = slot.tcp_consumed.load(Ordering::Relaxed);
        comes_by_ring(slot) || consumed < slot.tcp_from.load(Ordering::Relaxed)
    };
    while may_have_bells() {
        let peek = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        let seen = match file.recv(&mut bytes, peek) {
            Ok(0) => return ends::tcp_ended(slot, conn, file),
            Ok(n) => n,
            Err(sys::Errno(libc::EAGAIN | libc::EINTR)) => return,
            Err(sys::Errno(errno)) => return ends::note_tcp_error(slot, conn, file, errno),
        };
        let bells = parts_of_queue(slot, conn, seen).bells as usize;
        if bells == 0 {
            return;
        }
        // They are there: under the lock nobody else takes them.
        let taken = file.recv(&mut bytes[..bells], libc::MSG_DONTWAIT);
        let Ok(taken @ 1..) = taken else { return };
        slot.tcp_consumed.fetch_add(taken as u64, Ordering::Relaxed);
        slot.tcp_bells.fetch_add(taken as u64, Ordering::Relaxed);
        wait::check_bells(slot, conn, file, &bytes[..taken]);
    }
}
