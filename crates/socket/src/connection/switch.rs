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
//! Offsets are exact while no other call on the connection is in the middle of something. Threads keep each other away by
//! locks, and a signal handler, which its own thread's locks let through, is kept away by [`Unbroken`].
//!
//! The receiver reads the ring to its end, forgets the bells before that offset, and
//! goes on with TCP. Whether or not both ends are asked, both directions go: an end that
//! is to leave shows it in its record ([`follow_wishes`]). It stays a connection in
//! [`Phase::Smc`](crate::table::sock::Phase::Smc), which has not switched, or not any more.

use crate::connection::sleeper::{self, Alone};
use crate::connection::{bells, confirm, denial, ends, kept_options, ledger, turns, urgent, words};
use crate::process::owner::Held;
use crate::table::account;
use crate::table::conn::Conn;
use crate::table::end::End;
use crate::table::sock::Sock;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use sidestep_device::slab::flag as said;
use sidestep_device::state::{Slot, flag, mode};
use sidestep_device::sys::Unbroken;
use sidestep_device::{sys, way};
use sidestep_proto::cut_over::{
    self, Answer, BeforeEntering, BeforeLeaving, Enter, Follow, Leave, Permit, Queue, Receiving,
    Source, Wished,
};
use sidestep_proto::fallback::{OperatorSaid, Reason};
use sidestep_proto::ledger::Parts;

/// Begins to read by the ledger: [`Phase::Smc`](crate::table::sock::Phase::Smc). False when a plain receive is
/// under way or the connection is closing; nothing has changed then.
pub(crate) fn read_by_ledger(sock: &Sock, fd: i32, conn: Conn) -> bool {
    let slot = conn.slot;
    let _receiving = Held::enter(&slot.receive_lock);
    let _unbroken = Unbroken::begin();
    let before = sock.phase();
    if !sock.move_to(conn) {
        return false;
    }
    let Some(end) = End::of(sock, fd) else { return false };
    // Pairs with the increments of `plain_receives` and `read_waiters`: either a plain
    // receiver (or a sleeper in `poll`) sees the phase and turns back, or we see it here.
    fence(Ordering::SeqCst);
    let reading = match slot.plain_receives.load(Ordering::SeqCst) {
        0 => {
            urgent::begin_in_line(&end);
            ledger::read_ledger(end.file()).or_else(|| {
                urgent::end_in_line(&end);
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
    urgent::note_stop_in_tcp(&end);
    if slot.low_water.load(Ordering::Relaxed) != 1 {
        // A bell is one byte: it has to wake the thread that sleeps in the kernel.
        let _ = end.file().set_option(libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1);
    }
    kept_options::carry_options_over(&end);
    sleeper::ring_who_waits(&end);
    slot.flags.fetch_or(flag::BY_LEDGER, Ordering::Release);
    note_smc(slot);
    account::moved(sock);
    denial::obey_when_moved(&conn);
    true
}

/// Moves our sending direction into the ring if it can be done now. The caller
/// holds the send lock.
pub(crate) fn send_into_ring(end: &End<'_>) -> bool {
    if before_entering(end) == Enter::Stays {
        return false;
    }
    let way = &end.mine.sending.way;
    // A handler may have entered by now: what was seen is asked for again. Most sends that stay on TCP are spared both calls.
    let _unbroken = Unbroken::begin();
    let turns = way.turns();
    let state = turns::carry_out(before_entering(end), |enter| match enter {
        Enter::Measures { .. } => Some(Answer::Ledger(ledger::read_ledger(end.file()))),
        Enter::Turns { turn, at } => turns::done(|| way.turn(turn, at)),
        Enter::Opens => turns::done(|| allow_bells(end.slot)),
        Enter::Repays => Some(Answer::Is(takes_debt(end.slot))),
        Enter::Rings => turns::done(|| ends::ring(end, || true)),
        Enter::Entered | Enter::Stays => None,
    });
    if way.turns() != turns {
        note_ways(end);
    }
    state == Some(Enter::Entered)
}

/// Whether it can be done now, as far as that is known without a look at the TCP stream.
fn before_entering(end: &End<'_>) -> Enter {
    let turns = end.mine.sending.way.turns();
    let seen = BeforeEntering {
        turns,
        // A thread that receives may be trying to read by the ledger right now, and the
        // phase is `Smc` while it tries: without a Confirm of ours the peer would never
        // look into the ring.
        is_settled: end.slot.flags.load(Ordering::Acquire) & flag::BY_LEDGER != 0,
        plain_sends: end.slot.plain_sends.load(Ordering::SeqCst),
        is_held: end.slot.held.load(Ordering::Relaxed) != 0,
        is_permitted: end.theirs.receiving.permit.allows(turns + 1),
    };
    Enter::begin(&seen, || {
        let is_server = end.sock.is_server.load(Ordering::Relaxed);
        !is_server || confirm::is_confirmed(end.sock, end)
    })
}

/// Moves our sending direction out of the ring, if the peer permits it and it can be done
/// now. The caller holds the send lock, and has interrupted no call that does.
#[cold]
pub(crate) fn leave_ring(end: &End<'_>) -> bool {
    let _unbroken = Unbroken::begin();
    let way = &end.mine.sending.way;
    let turns = way.turns();
    let flags = end.slot.flags.load(Ordering::Acquire);
    let leave = Leave::begin(&BeforeLeaving {
        turns,
        is_open: flags & flag::SEND_SWITCHED != 0,
        is_over: flags & words::SEND_OVER != 0,
        is_permitted: end.theirs.receiving.permit.allows(turns + 1),
        is_marked: has_sent_urgently(end),
        unfinished: end.slot.unfinished.load(Ordering::SeqCst),
    });
    let state = turns::carry_out(leave, |leave| match leave {
        Leave::Wakes { .. } => turns::done(|| ends::wake_readers(end, end.note_cpu())),
        Leave::Closes { .. } => turns::done(|| clear(end.slot, flag::SEND_SWITCHED)),
        Leave::Looks { .. } => Some(Answer::Is(end.slot.bells.load(Ordering::SeqCst) != 0)),
        Leave::Measures { .. } => Some(Answer::Ledger(ledger::read_ledger(end.file()))),
        Leave::Turns { turn, at } => turns::done(|| way.turn(turn, at)),
        Leave::Forgets => turns::done(|| clear(end.slot, flag::LEAVES_RING | flag::BELL_OWED)),
        Leave::Reopens => turns::done(|| allow_bells(end.slot)),
        Leave::Repays => Some(Answer::Is(takes_debt(end.slot))),
        Leave::Rings => turns::done(|| ends::ring(end, || true)),
        Leave::Stays | Leave::Left => None,
    });
    let has_left = state == Some(Leave::Left);
    if has_left {
        note_ways(end);
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
pub(super) fn follow_wishes(conn: &Conn) {
    let mine = &conn.mine.sending;
    let turns = mine.way.turns();
    let peer = conn.theirs.sending.flags.load(Ordering::Acquire);
    let wishes = cut_over::wishes(&Wished {
        is_held: conn.slot.held.load(Ordering::Relaxed) != 0,
        peer_wants_tcp: peer & said::WANTS_TCP != 0,
        takes_unasked: conn.slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0,
        followed: conn.slot.followed.load(Ordering::Relaxed),
        turns,
        is_permitted: conn.theirs.receiving.permit.allows(turns + 1),
    });
    let mut has_news = set(&mine.flags, said::WANTS_TCP, wishes.says_tcp);
    set(&conn.slot.flags, flag::TURN_WANTED, wishes.wants_permit);
    if let Some(turn) = wishes.grants {
        has_news |= conn.mine.receiving.permit.grant(turn);
    }
    set(&conn.slot.flags, flag::LEAVES_RING, wishes.leaves);
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
fn note_ways(conn: &Conn) {
    let (sent, followed) =
        (conn.mine.sending.way.turns(), conn.slot.followed.load(Ordering::Relaxed));
    if sent.max(followed) < 2 {
        return;
    }
    let is_on_tcp = !cut_over::is_ring(sent) && !cut_over::is_ring(followed);
    let reason = if is_on_tcp { Reason::Operator(OperatorSaid::Demoted) } else { Reason::None };
    if conn.slot.reason.swap(reason.word(), Ordering::Relaxed) != reason.word() {
        let path = if is_on_tcp { "by TCP" } else { "through shared memory" };
        crate::log!(Info, "connection goes {path} again");
    }
}

/// Whether our TCP direction carries bells only, after switching it if need be. A
/// side that has only received so far still sends by TCP: a bell of its would be
/// a byte of the program's stream to the peer.
///
/// False while a plain send is under way: its bytes wake the peer as a bell would.
pub(super) fn ensure_bells_only(end: &End<'_>) -> bool {
    if end.slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED != 0 {
        return true;
    }
    let _sending = Held::enter(&end.slot.send_lock);
    end.slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED != 0 || send_into_ring(end)
}

/// The turn that the peer has taken and we have not followed yet: its offset in TCP.
pub(super) fn peer_turn(conn: &Conn) -> Option<u64> {
    let followed = conn.slot.followed.load(Ordering::Relaxed);
    conn.theirs.sending.way.next(followed).unwrap_or_else(|lost| {
        words::reset_untold(conn, &lost);
        None
    })
}

/// What `n` bytes at the front of the TCP queue are. The caller has looked at them before:
/// see [`sidestep_device::way`].
pub(crate) fn parts_of_queue(conn: &Conn, n: usize) -> Parts {
    let queue = Queue {
        consumed: conn.slot.tcp_consumed.load(Ordering::Relaxed),
        followed: conn.slot.followed.load(Ordering::Relaxed),
        from: conn.slot.tcp_from.load(Ordering::Relaxed),
        turn: peer_turn(conn),
    };
    cut_over::parts(n as u64, &queue)
}

/// Bytes of the program in the TCP queue.
pub(super) fn data_queued(end: &End<'_>) -> usize {
    match ledger::queued(end.file()) {
        0 => 0,
        n => parts_of_queue(end, n).data as usize,
    }
}

/// Where the next bytes of the program are, after following the turns of the peer that
/// are due, and permitting the next. The caller holds the receive lock.
#[cold]
pub(crate) fn settle(end: &End<'_>, unbroken: &Unbroken) -> Source {
    if end.slot.flags.load(Ordering::Acquire) & flag::TURN_WANTED != 0 {
        permit_tcp(end, unbroken);
    }
    loop {
        if end.slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0 {
            return Source::Ring;
        }
        skip_bells_unless_asleep(end, unbroken);
        let turn = peer_turn(end);
        let seen = Receiving {
            consumed: end.slot.tcp_consumed.load(Ordering::Relaxed),
            followed: end.slot.followed.load(Ordering::Relaxed),
            turn,
            is_ring_empty: is_ring_empty(end),
        };
        match cut_over::follow(&seen) {
            Follow::Reads(source) => return source,
            Follow::Breaks => {
                words::reset_untold(end, &way::Lost);
                return Source::Ring;
            }
            Follow::IntoRing => {
                end.slot.followed.fetch_add(1, Ordering::Relaxed);
                end.slot.flags.fetch_or(flag::RECEIVE_SWITCHED, Ordering::Release);
            }
            Follow::IntoTcp { from } => {
                end.slot.tcp_from.store(from, Ordering::Relaxed);
                end.slot.followed.fetch_add(1, Ordering::Release);
            }
        }
        note_ways(end);
        follow_wishes(end);
    }
}

/// After the peer's turn was seen: its producer cursor is final.
fn is_ring_empty(conn: &Conn) -> bool {
    conn.theirs.sending.producer.claim() == conn.mine.receiving.consumer.position()
}

/// Permits the peer to send by TCP, if no thread takes bytes from there as bells: from now on
/// they are taken by the ledger. The caller holds the receive lock.
fn permit_tcp(end: &End<'_>, _: &Unbroken) {
    let mut alone = None;
    let permit = Permit::begin(end.slot.followed.load(Ordering::Relaxed), end.is_marked());
    let _ = turns::carry_out(permit, |permit| match permit {
        Permit::Drops => turns::done(|| set(&end.slot.flags, flag::TURN_WANTED, false)),
        Permit::Secludes => {
            alone = Alone::on_tcp(end.slot);
            Some(Answer::Is(alone.is_some()))
        }
        Permit::Measures => Some(Answer::Ledger(ledger::read_ledger(end.file()))),
        Permit::Counts { consumed } => turns::done(|| {
            let before = end.slot.tcp_consumed.swap(consumed, Ordering::Relaxed);
            end.slot.tcp_bells.fetch_add(consumed.saturating_sub(before), Ordering::Relaxed);
        }),
        Permit::Asks => turns::done(|| clear(end.slot, flag::RECEIVE_SWITCHED | flag::TURN_WANTED)),
        Permit::Grants => turns::done(|| {
            let turn = end.slot.followed.load(Ordering::Relaxed) + 1;
            end.mine.receiving.permit.grant(turn);
            end.mine.sending.closes.fetch_add(1, Ordering::Release);
        }),
        Permit::Returns | Permit::Resigns => turns::done(|| alone.take()),
        Permit::Permitted | Permit::Withheld => None,
    });
}

/// Takes the bells at the front of the TCP queue out of it, and nothing else: looks first.
/// The caller holds the receive lock, and no other thread sleeps on the TCP socket.
pub(super) fn skip_bells(end: &End<'_>, _: &Unbroken) {
    let mut bytes = [0u8; 64];
    let may_have_bells = || {
        let consumed = end.slot.tcp_consumed.load(Ordering::Relaxed);
        turns::comes_by_ring(end.slot) || consumed < end.slot.tcp_from.load(Ordering::Relaxed)
    };
    while may_have_bells() {
        let peek = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        let seen = match end.file().recv(&mut bytes, peek) {
            Ok(0) => return ends::tcp_ended(end),
            Ok(n) => n,
            Err(sys::Errno(libc::EAGAIN | libc::EINTR)) => return,
            Err(sys::Errno(errno)) => return ends::note_tcp_error(end, errno),
        };
        let bells = parts_of_queue(end, seen).bells as usize;
        if bells == 0 {
            return;
        }
        // They are there: under the lock no other thread takes them.
        let taken = end.file().recv(&mut bytes[..bells], libc::MSG_DONTWAIT);
        let Ok(taken @ 1..) = taken else { return };
        end.slot.tcp_consumed.fetch_add(taken as u64, Ordering::Relaxed);
        end.slot.tcp_bells.fetch_add(taken as u64, Ordering::Relaxed);
        bells::check_bells(end, &bytes[..taken]);
    }
}

/// Writes down that the connection is in shared memory.
fn note_smc(slot: &Slot) {
    let messages = slot.counters.traffic().0;
    slot.moved_after.store(messages + 1, Ordering::Relaxed);
    slot.reason.store(Reason::None.word(), Ordering::Relaxed);
    slot.mode.store(mode::SMC_D, Ordering::Release);
    crate::log!(Info, "connection is in shared memory");
}

/// As [`skip_bells`], by a thread that does not sleep. Bells are for the sleeper, if there is one: it
/// would not be woken again for what they were rung for. It comes and takes them itself.
/// The caller holds the receive lock.
pub(super) fn skip_bells_unless_asleep(end: &End<'_>, unbroken: &Unbroken) {
    if let Some(_alone) = Alone::on_tcp(end.slot) {
        skip_bells(end, unbroken);
    }
}
