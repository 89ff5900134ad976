//! Waiting: spin, nap, sleep.
//!
//! Where a thread sleeps decides what signals, timeouts and other threads do to it,
//! so each waiter sleeps where Linux would have it sleep:
//!
//! * A reader sleeps in `recv` on the very TCP socket ([`readable`]). A handler
//!   with `SA_RESTART` restarts it, `SO_RCVTIMEO` ends it, `shutdown` by another
//!   thread wakes it, a FIN or RST wakes it, all by the kernel itself; and the
//!   peer wakes it with one byte, because it said that it sleeps.
//! * Before that it *naps*: on the futex in the peer's producer cursor, for some
//!   milliseconds at most ([`NAP_NS`]). Then data wake it for half of what the byte
//!   through TCP costs both sides, and signals act as in `recv`. Of all else it
//!   learns when the nap is over. A reader whose data take longer does not nap. A `poll` for something to
//!   read on one connection is such a reader ([`nap_in_poll`]): so Java's blocking sockets wait.
//! * A writer whose ring is full sleeps on the futex in the peer's consumer cursor
//!   ([`writable`]), and looks at the TCP connection every [`WRITER_NAP`].
//!
//! One thread at a time sleeps on the TCP socket of an end: *the sleeper*. Only it
//! may take bells from the queue, so no thread's bell is taken by another;
//! other readers of the same end queue behind it on a futex.

use crate::Answer;
use crate::connection::bells::{self, BELL};
use crate::connection::sleeper::{self, Alone, Counted, NapArmed, ReadArmed, Sleeper};
use crate::connection::{ends, kept_options, ledger, sleep, spin, switch};
use crate::process::loan;
use crate::process::owner::Held;
use crate::table::conn::Conn;
use crate::table::end::End;
use crate::table::file::{Asleep, File};
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use core::time::Duration;
use sidestep_device::confinement;
use sidestep_device::counts::count;
use sidestep_device::slab::wanted;
use sidestep_device::state::{Slot, flag};
use sidestep_device::sys::{self, Errno, SignalMask, Unbroken};
use sidestep_proto::cursor;
use sidestep_proto::governor::NAP_NS;

/// How long a writer sleeps before it looks whether the peer still lives. A full
/// ring is never an idle connection, so this costs nothing in steady state.
pub(crate) const WRITER_NAP: Duration = Duration::from_millis(20);

/// How long a second reader sleeps before it looks whether the sleeper still lives.
pub(crate) const QUEUE_NAP: Duration = Duration::from_secs(1);

/// How long a thread waits for room before it prods a peer that may be dead, and between two
/// times ([`prod_peer`]).
const PROD_INTERVAL_NS: u64 = 1_000_000_000;

/// After making room (with a sequentially consistent operation): wakes the other
/// side's writers.
#[cold]
pub(crate) fn wake_writers(end: &End<'_>) {
    let waiting = &end.theirs.waiting;
    let wants = waiting.write_wanted.load(Ordering::Relaxed);
    if wants & wanted::FUTEX != 0 {
        count(&end.slot.counters.wakeups, 1);
        sys::futex_wake(sleeper::low_half(&end.mine.receiving.consumer), i32::MAX);
    }
    let mut unreachable = false;
    if wants & wanted::CHANNELS != 0 {
        let channels = waiting.channels.load(Ordering::Relaxed);
        unreachable = bells::mark(end, channels, end.note_cpu());
    }
    if (unreachable || end.slot.write_rung.is_asked(&waiting.write_arm))
        && switch::ensure_bells_only(end)
    {
        ends::ring(end, || end.slot.write_rung.answer(&waiting.write_arm) || unreachable);
    }
}

/// `SO_RCVTIMEO` is for the call as a whole. The first sleep of a call leaves it to the
/// kernel; only a call that sleeps again has to know how much is left. A call that waits
/// once and finds something by then asks for no time at all.
pub(crate) struct Patience {
    has_waited: Cell<bool>,
    /// When the first sleep began, or the second wait, by [`sys::now_ns`].
    since: Cell<Option<u64>>,
}

impl Patience {
    pub(crate) const fn new() -> Self {
        Self { has_waited: Cell::new(false), since: Cell::new(None) }
    }

    /// A wait begins. False: the time is up.
    fn lasts(&self, file: File<'_>) -> bool {
        !self.has_waited.replace(true) || self.deadline(file).is_none_or(|at| sys::now_ns() < at)
    }

    /// When the call gives up; `None`: when the kernel says so.
    fn deadline(&self, file: File<'_>) -> Option<u64> {
        let Some(since) = self.since.get() else {
            self.since.set(Some(sys::now_ns()));
            return None;
        };
        kept_options::time_out(file, libc::SO_RCVTIMEO).map(|ns| since + ns)
    }
}

/// How a writer sleeps.
#[derive(Clone, Copy)]
pub(crate) struct Sleep {
    /// The call has sent something already: a signal ends it, whatever its handler
    /// says of restarting.
    pub(crate) has_part: bool,
    /// When `SO_SNDTIMEO` is over, by [`sys::now_ns`].
    pub(crate) deadline: Option<u64>,
}

/// Waits until `ready`, the connection's end, a signal or `SO_RCVTIMEO`. It returns without
/// having slept, too, if the descriptor turns out not to wait ([`End::may_sleep`]): as long
/// as the peer keeps up, no system call is made. `has_part`: the call has taken something
/// already, and a signal ends it, whatever its handler says of restarting.
///
/// # Errors
/// `EINTR`, and `EAGAIN` when the time is up, as `recv` on TCP.
pub(crate) fn readable(
    end: &End<'_>,
    patience: &Patience,
    has_part: bool,
    ready: impl Fn() -> bool,
) -> Answer<()> {
    if !patience.lasts(end.file()) {
        return Err(libc::EAGAIN);
    }
    let (found, cost) = spin::linger(&end.sock.receive_wait, || Some(end.peer_cpu()), &ready);
    cost.charge(end.slot);
    loan::note_user(end.slot);
    if found { Ok(()) } else { sleep_until_readable(end, patience, has_part, &ready) }
}

/// [`readable`], when a spin was not enough. One for all callers: a call more is nothing beside a sleep.
#[cold]
fn sleep_until_readable(
    end: &End<'_>,
    patience: &Patience,
    has_part: bool,
    ready: &dyn Fn() -> bool,
) -> Answer<()> {
    let _asleep = Asleep::on(end.sock);
    let naps = may_nap(end);
    // A nap is so short that the mirrors' word is enough for it.
    if !(if naps { end.sock.seems_blocking() } else { end.may_sleep() }) {
        return Ok(());
    }
    let deadline = patience.deadline(end.file());
    count(&end.slot.counters.parks, 1);
    let Some(_sleeper) = Sleeper::become_it(end.slot) else {
        return match end.may_sleep() {
            true => queue_behind_sleeper(end.slot, ready),
            false => Ok(()),
        };
    };
    if naps {
        let limit = match deadline {
            Some(at) => Some(at.saturating_sub(sys::now_ns())),
            None => end
                .sock
                .receive_time_out
                .get(|| kept_options::time_out(end.file(), libc::SO_RCVTIMEO)),
        };
        let ends = has_part || limit.is_some();
        if nap(end, limit, ends, ready)? || !end.may_sleep() {
            return Ok(());
        }
    }
    let deadline = if naps { patience.deadline(end.file()) } else { deadline };
    let _armed = ReadArmed::ask(end);
    if ready() {
        return Ok(());
    }
    if confinement::is_strict() {
        return sleep_taking(end);
    }
    if has_part || deadline.is_some() {
        sleep_once(end.file(), deadline)?;
    } else {
        sleep_restarting(end, ready)?;
    }
    take_news(end)?;
    if ready() || !is_kept_awake(end) {
        return Ok(());
    }
    let limit = deadline.map(|at| at.saturating_sub(sys::now_ns()));
    nap(end, limit, has_part || deadline.is_some(), ready).map(drop)
}

/// Before the switch bytes may lie in TCP that are not what the call waits for: a peek stands behind an urgent
/// byte, or wants more than there is. No sleep of the kernel's lasts beside them.
fn is_kept_awake(end: &End<'_>) -> bool {
    end.slot.flags.load(Ordering::Relaxed) & flag::RECEIVE_SWITCHED == 0
        && ledger::queued(end.file()) > 0
}

/// Whether the sleeper naps first: what wakes it must come through the ring.
fn may_nap(end: &End<'_>) -> bool {
    let mut governor = end.sock.receive_wait.recall();
    let may = end.slot.flags.load(Ordering::Relaxed) & flag::RECEIVE_SWITCHED != 0
        && !confinement::is_strict()
        && governor.may_nap();
    end.sock.receive_wait.keep(governor);
    may
}

/// A `poll` that waits for something to read on this connection alone, and for `limit` at most,
/// naps as a reader does. False: it has not, or nothing ended the nap.
///
/// # Errors
/// `EINTR` when a handler ran, whatever it says of restarting.
pub(crate) fn nap_in_poll(
    end: &End<'_>,
    limit: Option<Duration>,
    ready: impl Fn() -> bool,
) -> Answer<bool> {
    if !may_nap(end) {
        return Ok(false);
    }
    // Another thread that reads here may be asleep: then the kernel's poll it is.
    let Some(_sleeper) = Sleeper::become_it(end.slot) else { return Ok(false) };
    count(&end.slot.counters.parks, 1);
    nap(end, limit.map(sys::nanoseconds), true, &ready)
}

/// The sleeper sleeps on the futex in the peer's producer cursor, for `limit` nanoseconds at most and never
/// for long. `ends`: a signal ends it, whatever its handler says of restarting. True: it was
/// woken, and there is something to look at.
fn nap(end: &End<'_>, limit: Option<u64>, ends: bool, ready: &dyn Fn() -> bool) -> Answer<bool> {
    let time = Duration::from_nanos(limit.unwrap_or(NAP_NS).min(NAP_NS));
    let _armed = NapArmed::ask(end);
    let word = sleeper::low_half(&end.theirs.sending.producer);
    // What is published from here on changes it, and what was before is seen now.
    let seen = word.load(Ordering::Acquire);
    if ready() {
        return Ok(true);
    }
    let slept = match ends {
        true => sys::futex_wait(word, seen, Some(time)),
        false => sleep::restarting_nap(word, seen, time),
    };
    sleep::look_for_cancel()?;
    let is_over = matches!(slept, Err(Errno(libc::ETIMEDOUT)));
    let mut governor = end.sock.receive_wait.recall();
    governor.napped(!is_over);
    end.sock.receive_wait.keep(governor);
    match slept {
        Err(Errno(libc::EINTR)) => Err(libc::EINTR),
        _ => Ok(!is_over),
    }
}

fn queue_behind_sleeper(slot: &Slot, ready: &dyn Fn() -> bool) -> Answer<()> {
    let _queued = Counted::new(&slot.queued);
    let turn = slot.turn.load(Ordering::SeqCst);
    let slept = if slot.sleeper.load(Ordering::SeqCst) == 0 || ready() {
        Ok(0)
    } else {
        sleep::restarting_nap(&slot.turn, turn, QUEUE_NAP)
    };
    sleep::look_for_cancel()?;
    match slept {
        Err(Errno(libc::EINTR)) => Err(libc::EINTR),
        _ => Ok(()),
    }
}

/// Sleeps until the kernel has something to read, by a call that is never restarted.
fn sleep_once(file: File<'_>, deadline: Option<u64>) -> Answer<()> {
    let limit = match deadline {
        Some(at) => Some(Duration::from_nanos(at.saturating_sub(sys::now_ns()))),
        None => kept_options::time_out(file, libc::SO_RCVTIMEO).map(Duration::from_nanos),
    };
    let slept = file.sleep(|fd| {
        let events = libc::POLLIN | libc::POLLRDHUP;
        let mut entry = [libc::pollfd { fd, events, revents: 0 }];
        if fd < 0 {
            return Err(Errno(libc::EBADF));
        }
        sleep::ppoll(&mut entry, limit, SignalMask::NONE)
    });
    match slept {
        Ok(0) => Err(libc::EAGAIN),
        Ok(_) => Ok(()),
        Err(Errno(errno)) => Err(errno),
    }
}

/// Sleeps until the kernel has something to read, by a call that a signal handler with
/// `SA_RESTART` restarts: the real `recv`. It only looks, because the kernel restarts it by
/// number, as it would the program's own call, and a handler may have put another file under
/// that. Then what it says is of that file, an error is what the program's call would have
/// got, and no byte has been taken.
fn sleep_restarting(end: &End<'_>, ready: &dyn Fn() -> bool) -> Answer<()> {
    match end.file().sleep(|fd| sleep::recv_byte(fd, libc::MSG_PEEK)) {
        Ok(_) => Ok(()),
        Err(Errno(errno @ (libc::EINTR | libc::EAGAIN | libc::ECANCELED))) => Err(errno),
        Err(Errno(errno)) if end.file().is_gone() => {
            if ready() {
                Ok(())
            } else {
                Err(errno)
            }
        }
        Err(Errno(errno)) => {
            ends::note_tcp_error(end, errno);
            Ok(())
        }
    }
}

/// Sleeps under a strict filter, where `read` is the one call that waits, and takes the bell with it. There all
/// bytes of TCP are bells, and no call puts another file under the number.
fn sleep_taking(end: &End<'_>) -> Answer<()> {
    match end.file().sleep(|fd| sleep::recv_byte(fd, 0)) {
        Ok(None) => ends::tcp_ended(end),
        Ok(Some(byte)) => bells::check_bells(end, &[byte]),
        Err(Errno(errno @ (libc::EINTR | libc::EAGAIN))) => return Err(errno),
        Err(Errno(errno)) => ends::note_tcp_error(end, errno),
    }
    Ok(())
}

/// Takes the bell by which a sleep was ended, or only looks while the program's bytes may
/// still come by TCP.
fn take_news(end: &End<'_>) -> Answer<()> {
    let switched = end.slot.flags.load(Ordering::Relaxed) & flag::RECEIVE_SWITCHED != 0;
    let peek = if switched { 0 } else { libc::MSG_PEEK };
    let mut byte = [0u8];
    match end.file().recv(&mut byte, peek | libc::MSG_DONTWAIT) {
        Ok(0) => ends::tcp_ended(end),
        Ok(_) if switched => bells::check_bells(end, &byte),
        // It is still there, and may be a bell: no thread can sleep while it is.
        Ok(_) => skip_bells(end),
        Err(Errno(libc::EAGAIN)) => {}
        Err(Errno(libc::EINTR)) => return Err(libc::EINTR),
        Err(Errno(errno)) => ends::note_tcp_error(end, errno),
    }
    Ok(())
}

/// An event loop, whose bells come another way, was told that there are bytes on TCP. They
/// stay there: they may be bells for another thread.
pub(crate) fn look_at_bells(end: &End<'_>) {
    let are_bells = || end.slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0;
    if !are_bells() {
        let _receiving = Held::enter(&end.slot.receive_lock);
        return switch::skip_bells_unless_asleep(end, &Unbroken::begin());
    }
    let mut bytes = [0u8; 64];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    if let Ok(n) = end.file().recv(&mut bytes, flags)
        // The peer sends bytes of the program only after the flag has gone.
        && are_bells()
    {
        bells::check_bells(end, &bytes[..n]);
    }
}

/// As [`switch::skip_bells`], by the sleeper.
fn skip_bells(end: &End<'_>) {
    let _receiving = Held::enter(&end.slot.receive_lock);
    switch::skip_bells(end, &Unbroken::begin());
}

/// Nothing tells a program that only ever asks without waiting that its peer was
/// killed; so the kernel is asked now and then.
pub(super) fn peer_has_died(end: &End<'_>) -> bool {
    const EVERY_NS: u64 = 5_000_000;
    let (now, asked) = (sys::now_ns(), &end.sock.kernel_asked_ns);
    if now.saturating_sub(asked.load(Ordering::Relaxed)) < EVERY_NS {
        return false;
    }
    asked.store(now, Ordering::Relaxed);
    ends::ask_kernel(end);
    end.slot.flags.load(Ordering::Acquire) & flag::PEER_GONE != 0
}

/// Asks the kernel whether the peer's end is gone, if there is a hint that it may be.
#[inline]
pub(crate) fn follow_hint(end: &End<'_>) {
    if end.is_hinted() {
        ask_kernel(end);
    }
}

/// Asks the kernel, hint or not: a peer that was killed leaves none.
#[cold]
pub(crate) fn ask_kernel(end: &End<'_>) {
    // A hint of `close` is left after the kernel has closed, so its answer is final: not
    // gone means that another process of the peer holds the connection, too. One of `exit`
    // is left before; a call that asks too early learns of the end from TCP, as after a death.
    let closes = end.theirs.sending.closes.load(Ordering::Acquire);
    // Acquire: what an operator wishes was written down before he has touched this word.
    let followed = end.slot.closes_seen.load(Ordering::Acquire);
    switch::follow_wishes(end);
    ends::follow_hint(end);
    // Behind it: another thread of this end that finds no hint may take an end that is not noted yet for none. What an
    // operator, or another thread, has written meanwhile stays.
    let _ = end.slot.closes_seen.compare_exchange(
        followed,
        closes,
        Ordering::AcqRel,
        Ordering::Relaxed,
    );
}

/// Takes bells that are needed no more out of the TCP queue, unless a thread
/// sleeps on it.
pub(crate) fn drain_bells(end: &End<'_>) {
    let Some(_alone) = Alone::on_tcp(end.slot) else { return };
    // The thread that clears the flag is alone, too.
    if end.slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED == 0 {
        return skip_bells(end);
    }
    let mut bytes = [0u8; 64];
    loop {
        match end.file().recv(&mut bytes, libc::MSG_DONTWAIT) {
            Ok(0) => {
                ends::tcp_ended(end);
                break;
            }
            Ok(n) => {
                bells::check_bells(end, &bytes[..n]);
                // A read stops at an urgent bell.
                if n < bytes.len() && !end.is_marked() {
                    break;
                }
            }
            Err(Errno(libc::EAGAIN | libc::EINTR)) => break,
            Err(Errno(errno)) => {
                ends::note_tcp_error(end, errno);
                break;
            }
        }
    }
}

/// Whether a send would find room in the ring, or something else to report than a full
/// one.
pub(crate) fn has_room(conn: &Conn) -> bool {
    let producer = conn.mine.sending.producer.position();
    let claim = conn.theirs.receiving.consumer.claim();
    cursor::window(producer, claim, conn.outgoing.len()) != Ok(0)
}

/// A send that may not wait has found the ring full: the next room is news to
/// edge-triggered loops, and the peer marks our channels when there is some. What it
/// has made before it knew, it does not mark: look again ([`has_room`]).
pub(crate) fn want_room(end: &End<'_>) {
    end.sock.out_blocked.store(true, Ordering::Relaxed);
    prod_peer(end);
    if end.mine.waiting.channels.load(Ordering::Relaxed) != 0 {
        ask_for_room(end);
    }
}

/// When [`prod_peer`] was called last for a connection that needs it, by [`sys::coarse_ns`].
static PRODDED_NS: AtomicU64 = AtomicU64::new(0);

/// A thread waits for room in a full ring. While bytes of the peer still come by TCP, its FIN
/// comes behind them, and a thread that waits for room does not read: when the peer is killed, no event
/// would tell. So it is sent a bell now and then: for the dead its kernel answers, with a reset.
pub(crate) fn prod_peer(end: &End<'_>) {
    let flags = end.slot.flags.load(Ordering::Acquire);
    if flags & (flag::SEND_SWITCHED | flag::RECEIVE_SWITCHED) != flag::SEND_SWITCHED {
        return;
    }
    let now = sys::coarse_ns();
    PRODDED_NS.store(now, Ordering::Relaxed);
    let last = end.sock.prodded_ns.load(Ordering::Relaxed);
    if now.saturating_sub(last) < PROD_INTERVAL_NS {
        return;
    }
    end.sock.prodded_ns.store(now, Ordering::Relaxed);
    // The first time it has only begun to wait.
    if last != 0 {
        ends::ring(end, || true);
    }
}

/// Whether peers have to be prodded: an event loop may not sleep for longer than that.
pub(crate) fn prods_peers() -> bool {
    let last = PRODDED_NS.load(Ordering::Relaxed);
    last != 0 && sys::coarse_ns().saturating_sub(last) < 4 * PROD_INTERVAL_NS
}

/// Has the peer mark our channels when it has made room. Look for some afterwards.
pub(crate) fn ask_for_room(conn: &Conn) {
    conn.mine.waiting.write_wanted.fetch_or(wanted::CHANNELS, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// Waits for room in a full ring. As [`readable`], it may return without having slept; `sleep`
/// is asked when it comes to that.
///
/// # Errors
/// `EINTR` when a handler ran, one with `SA_RESTART` only if there is a part or a
/// deadline; `EAGAIN` past the deadline.
pub(crate) fn writable(end: &End<'_>, sleep: impl FnOnce() -> Sleep) -> Answer<()> {
    let producer = end.mine.sending.producer.position();
    let consumer = &end.theirs.receiving.consumer;
    let full = |claim: u64| cursor::window(producer, claim, end.outgoing.len()) == Ok(0);
    let ready = || !full(consumer.position()) || has_ended(end);
    let (found, cost) = spin::linger(&end.sock.send_wait, || Some(end.peer_cpu()), ready);
    cost.charge(end.slot);
    loan::note_user(end.slot);
    if found || !end.may_sleep() {
        return Ok(());
    }
    sleep_until_room(end, producer, sleep())
}

/// [`writable`], when a spin was not enough: one sleep.
#[cold]
fn sleep_until_room(end: &End<'_>, producer: u64, sleep: Sleep) -> Answer<()> {
    let Sleep { has_part, deadline } = sleep;
    let consumer = &end.theirs.receiving.consumer;
    let full = |claim: u64| cursor::window(producer, claim, end.outgoing.len()) == Ok(0);
    let _asleep = Asleep::on(end.sock);
    count(&end.slot.counters.parks, 1);
    let wants = &end.mine.waiting.write_wanted;
    wants.fetch_or(wanted::FUTEX, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let claim = consumer.claim();
    let slept = if full(claim) && !has_ended(end) {
        let word = sleeper::low_half(&end.theirs.receiving.consumer);
        let left = |at: u64| Duration::from_nanos(at.saturating_sub(sys::now_ns()));
        let nap = deadline.map_or(WRITER_NAP, |at| left(at).min(WRITER_NAP));
        if has_part || deadline.is_some() {
            sys::futex_wait(word, claim as u32, Some(nap))
        } else {
            sleep::restarting_nap(word, claim as u32, nap)
        }
    } else {
        Ok(0)
    };
    wants.fetch_and(!wanted::FUTEX, Ordering::Relaxed);
    sleep::look_for_cancel()?;
    match slept {
        Err(Errno(libc::EINTR)) => Err(libc::EINTR),
        // There is no sleep under a strict filter, and no question but a bell, as TCP would be
        // asked by the bytes.
        Err(Errno(libc::ENOSYS)) if confinement::is_strict() => {
            if !bell_is_taken(end) {
                ends::peer_gone(end);
            }
            Ok(())
        }
        Err(Errno(libc::ETIMEDOUT)) => {
            if ledger::is_peer_gone(end.file()) {
                ends::tcp_ended(end);
            } else {
                prod_peer(end);
            }
            match deadline {
                Some(at) if sys::now_ns() >= at => Err(libc::EAGAIN),
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Sends the peer a bell, once in [`PROD_INTERVAL_NS`]. False: there is no peer to take it.
fn bell_is_taken(end: &End<'_>) -> bool {
    let (now, last) = (sys::coarse_ns(), end.sock.prodded_ns.load(Ordering::Relaxed));
    if now.saturating_sub(last) < PROD_INTERVAL_NS {
        return true;
    }
    end.sock.prodded_ns.store(now, Ordering::Relaxed);
    end.file().send(&BELL, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL).is_ok()
}

fn has_ended(conn: &Conn) -> bool {
    let over = flag::PEER_GONE | flag::RESET | flag::WRITE_SHUT;
    conn.slot.flags.load(Ordering::Relaxed) & over != 0
        || conn.theirs.sending.closes.load(Ordering::Relaxed)
            != conn.slot.closes_seen.load(Ordering::Relaxed)
}
