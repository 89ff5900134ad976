//! Send and receive, by whichever path the connection uses.
//!
//! ```text
//!   send, receive ──> untracked?      the program's own call, counted in a cache line
//!                 ──> on TCP?     a look whether the ends agree, the program's own call, another look
//!                 ──> in memory?  the ring: see ring_send and ring_receive in the room of the connection
//! ```

use crate::Answer;
use crate::connection::sleeper::Counted;
use crate::connection::{ends, ring_receive, ring_send, switch, wait};
use crate::polling::epoll;
use crate::process::owner::Held;
use crate::program::hand_over;
use crate::program::protection::controlled;
use crate::rendezvous::agreement::{self, Moment};
use crate::table::conn::Conn;
use crate::table::descriptors::{self, Lead, Use};
use crate::table::end::End;
use crate::table::sock::Phase;
use crate::table::{candidate, plain, untracked};
use core::sync::atomic::Ordering;
use sidestep_device::program::{Buffers, Received, Sent};
use sidestep_device::state::flag;
use sidestep_proto::cut_over;

/// What became of a call.
pub enum Outcome {
    /// libc was called and has answered, `errno` included.
    Plain(isize),
    /// We have answered.
    Ours(Answer),
}

/// Why a call of the program was not made as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// Its bytes go through the ring.
    Ring,
    /// The number leads to another file since the call was looked up: it begins anew.
    Anew,
}

/// Sends the buffers, by whichever path the connection uses. `plain` makes the
/// program's own call. The buffers are asked for when they are to be copied, so what goes by
/// TCP is looked at by the kernel alone; `None`: it would refuse them, or has nothing to do
/// with them, and answers itself. The answer is `None` where the descriptor is none of ours.
#[inline]
pub fn send<'a>(
    fd: i32,
    buffers: impl Fn() -> Option<Buffers<'a, Sent>>,
    flags: i32,
    plain: impl Fn() -> isize,
) -> Option<Outcome> {
    loop {
        let sock = match descriptors::lead(fd) {
            Lead::Sock(sock) => sock,
            Lead::Nowhere => return None,
            Lead::Place => match untracked::send(fd, &plain) {
                Some(n) => return Some(Outcome::Plain(n)),
                None => descriptors::sock(fd)?,
            },
        };
        let end = match End::of(&sock, fd).filter(|end| sends_by_ring(end)) {
            Some(end) => end,
            None => match send_by_tcp(&sock, fd, &plain) {
                Ok(n) => return Some(Outcome::Plain(n)),
                Err(Instead::Anew) => continue,
                Err(Instead::Ring) => match End::of(&sock, fd) {
                    Some(end) => end,
                    None => continue,
                },
            },
        };
        let Some(buffers) = buffers() else { return Some(Outcome::Plain(plain())) };
        if let Some(answer) = smc_send(&end, &buffers, flags) {
            return Some(Outcome::Ours(answer));
        }
    }
}

/// Whether the next byte of this end goes into its ring, without any other look.
#[inline]
fn sends_by_ring(conn: &Conn) -> bool {
    const BOTH: u32 = flag::SEND_SWITCHED | flag::LEAVES_RING;
    conn.slot.flags.load(Ordering::Acquire) & BOTH == flag::SEND_SWITCHED
}

/// Makes the program's own call if its bytes still go by TCP, and takes part in the
/// agreement.
///
/// # Errors
/// It was not made.
pub fn send_by_tcp(sock: &Use, fd: i32, plain: &dyn Fn() -> isize) -> Result<isize, Instead> {
    let word = descriptors::word_of(sock);
    let plain = || plain::by_number(fd, word, plain);
    loop {
        match sock.phase() {
            Phase::Smc => {
                let end = End::of(sock, fd).ok_or(Instead::Ring)?;
                // After a reset TCP has nothing more to say: its error was taken.
                let is_reset = end.slot.flags.load(Ordering::Acquire) & flag::RESET != 0;
                if sends_by_ring(&end) || is_reset {
                    return Err(Instead::Ring);
                }
                return send_beside_ring(&end, &plain);
            }
            Phase::Candidate | Phase::Rendezvous => {
                let may_move = agreement::look(sock.sock(), fd, Moment::BeforeSend);
                if let Some(n) = plain_send(sock, &plain) {
                    let n = n?;
                    if may_move {
                        agreement::look(sock.sock(), fd, Moment::AfterSend);
                    }
                    return Ok(n);
                }
            }
            _ => {
                let n = call_on_tcp(sock, fd, false, plain)?;
                candidate::count_plain(sock, true, n);
                return Ok(n);
            }
        }
    }
}

/// The program's own call while nothing is decided; `None` when it has been
/// decided meanwhile.
fn plain_send(sock: &Use, plain: &impl Fn() -> Option<isize>) -> Option<Result<isize, Instead>> {
    let n = match sock.slot() {
        None => return Some(plain().ok_or(Instead::Anew)),
        Some(slot) => {
            let _sending = Counted::new(&slot.plain_sends);
            (sock.phase() != Phase::Smc).then(plain)?
        }
    };
    if let Some(n) = n {
        candidate::count_plain(sock, true, n);
    }
    Some(n.ok_or(Instead::Anew))
}

/// The program's own call on a connection that does not move, as soon as it is known that the gateway does not get it.
#[inline]
fn call_on_tcp(
    sock: &Use,
    fd: i32,
    dont_wait: bool,
    plain: impl Fn() -> Option<isize>,
) -> Result<isize, Instead> {
    let n = if sock.is_offered() {
        hand_over::settled(sock, fd, dont_wait, plain)
    } else {
        controlled::obey(sock, fd);
        plain()
    };
    n.ok_or(Instead::Anew)
}

fn smc_send(end: &End<'_>, buffers: &Buffers<'_, Sent>, flags: i32) -> Option<Answer> {
    let sent = ring_send::send(end, buffers, flags);
    if sent.is_over {
        epoll::note_change(end.sock);
    }
    sent.answer
}

/// Switches if it can be done now, or leaves the ring if that is wished; bytes that do not
/// go through the ring then go by TCP: their number.
#[cold]
fn send_beside_ring(end: &End<'_>, plain: &impl Fn() -> Option<isize>) -> Result<isize, Instead> {
    let slot = end.slot;
    wait::follow_hint(end);
    if slot.flags.load(Ordering::Acquire) & flag::RESET != 0 {
        return Err(Instead::Ring);
    }
    let under_way = {
        let sending = Held::enter(&slot.send_lock);
        let flags = slot.flags.load(Ordering::Acquire);
        let stays = || {
            let may_leave = flags & flag::LEAVES_RING != 0 && sending.is_outermost();
            !(may_leave && switch::leave_ring(end))
        };
        let goes_by_ring = match flags & flag::SEND_SWITCHED {
            0 => switch::send_into_ring(end),
            _ => stays(),
        };
        if goes_by_ring {
            return Err(Instead::Ring);
        }
        // Under the lock: no thread switches while this call is under way.
        let under_way = Counted::new(&slot.plain_sends);
        if cut_over::is_ring(end.mine.sending.way.turns()) {
            // A signal handler has sent on the same socket before it was.
            return Err(Instead::Ring);
        }
        under_way
    };
    let n = plain().ok_or(Instead::Anew)?;
    if n < 0 {
        ends::note_reset_by_tcp(end);
    }
    // TCP may have taken a part or nothing. The loop of the program was told of room
    // by us, so the kernel's next word about it counts as news.
    end.sock.out_blocked.store(true, Ordering::Relaxed);
    drop(under_way);
    candidate::count_plain(end.sock, true, n);
    Ok(n)
}

/// Receives into the buffers, by whichever path the connection uses. They are asked for, and the
/// answer is `None`, as in [`send`].
#[inline]
pub fn receive<'a>(
    fd: i32,
    buffers: impl Fn() -> Option<Buffers<'a, Received>>,
    flags: i32,
    plain: impl Fn() -> isize,
) -> Option<Outcome> {
    loop {
        let sock = match descriptors::lead(fd) {
            Lead::Sock(sock) => sock,
            Lead::Nowhere => return None,
            Lead::Place => match untracked::receive(fd, flags, &plain) {
                Some(n) => return Some(Outcome::Plain(n)),
                None => descriptors::sock(fd)?,
            },
        };
        let by_ledger = || End::of(&sock, fd).filter(|_| flags & libc::MSG_ERRQUEUE == 0);
        let end = match by_ledger() {
            Some(end) => end,
            None => match receive_by_tcp(&sock, fd, flags, &plain) {
                Ok(n) => return Some(Outcome::Plain(n)),
                Err(Instead::Anew) => continue,
                Err(Instead::Ring) => match by_ledger() {
                    Some(end) => end,
                    None => continue,
                },
            },
        };
        let Some(buffers) = buffers() else { return Some(Outcome::Plain(plain())) };
        return Some(Outcome::Ours(ring_receive::receive(&end, &buffers, flags)));
    }
}

/// Makes the program's own call if its bytes still come by TCP alone, and takes part
/// in the agreement.
///
/// # Errors
/// It was not made.
pub fn receive_by_tcp(
    sock: &Use,
    fd: i32,
    flags: i32,
    plain: &dyn Fn() -> isize,
) -> Result<isize, Instead> {
    let word = descriptors::word_of(sock);
    let plain = || plain::by_number(fd, word, plain);
    match sock.phase() {
        Phase::Smc if flags & libc::MSG_ERRQUEUE != 0 => plain().ok_or(Instead::Anew),
        Phase::Smc => Err(Instead::Ring),
        Phase::Candidate | Phase::Rendezvous => {
            let may_move = agreement::look(sock.sock(), fd, Moment::BeforeReceive);
            let n = plain_receive(sock, flags, &plain)?;
            if n > 0 && may_move {
                agreement::look(sock.sock(), fd, Moment::AfterReceive);
            }
            Ok(n)
        }
        _ => {
            let n = call_on_tcp(sock, fd, flags & libc::MSG_DONTWAIT != 0, plain)?;
            if flags & libc::MSG_PEEK == 0 {
                candidate::count_plain(sock, false, n);
            }
            Ok(n)
        }
    }
}

fn plain_receive(
    sock: &Use,
    flags: i32,
    plain: &impl Fn() -> Option<isize>,
) -> Result<isize, Instead> {
    let Some(slot) = sock.slot() else { return plain().ok_or(Instead::Anew) };
    let n = {
        let _receiving = Counted::new(&slot.plain_receives);
        (sock.phase() != Phase::Smc).then(plain).ok_or(Instead::Ring)?
    };
    if let Some(n) = n.filter(|_| flags & libc::MSG_PEEK == 0) {
        candidate::count_plain(sock, false, n);
    }
    n.ok_or(Instead::Anew)
}
