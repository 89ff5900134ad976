//! How connections end, carried out: [`sidestep_proto::ends`] decides.
//!
//! The machines run on shared memory ([`OwnWords`]), the kernel ([`End`]) and, where this end is the one that
//! ends something, the locks of a socket ([`closing`](crate::connection::closing)). All bits of an end, in the
//! slot and in the record, are written in [`words`]. Each is looked at here or in a check that only asks
//! whether an end may be near: warm sends and receives come here when such a check says so, and not before.

use crate::connection::words::{self, OwnWords};
use crate::connection::{bells, denial, ledger};
use crate::table::end::End;
use crate::table::file::File;
use crate::{Answer, Errno};
use core::sync::atomic::Ordering;
use sidestep_device::slab::flag as said;
use sidestep_device::state::{Slot, flag};
use sidestep_device::{confinement, sys};
use sidestep_proto::ends::{Call, Hearing, Kernel, Polled, State, Telling, Told, Words, errno};

const _: () = assert!(
    errno::EBADF == libc::EBADF
        && errno::EPIPE == libc::EPIPE
        && errno::ENOTSOCK == libc::ENOTSOCK
        && errno::ECONNRESET == libc::ECONNRESET
        && errno::ENOTCONN == libc::ENOTCONN
);

/// How input ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndOfInput {
    /// The peer sends no more: `recv` returns 0.
    InOrder,
    /// The connection was reset; the error is reported once.
    Reset(Errno),
}

impl Kernel for End<'_> {
    fn take_error(&self) -> i32 {
        self.file().option(libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0)
    }

    fn is_peer_gone(&self) -> bool {
        ledger::is_peer_gone(self.file())
    }

    fn peer_runs(&self) -> bool {
        self.group.peer_runs()
    }

    fn is_connected(&self) -> bool {
        is_connected(self.file())
    }

    fn wake_readers(&self) {
        wake_readers(self, self.note_cpu());
    }
}

/// Whether the kernel still knows a peer, or the number leads nowhere any more.
fn is_connected(file: File<'_>) -> bool {
    if confinement::is_confined() {
        let hung_up = libc::POLLHUP;
        return !file.poll_now(hung_up).is_ok_and(|seen| seen & hung_up as u32 != 0);
    }
    !matches!(file.call(|fd| sys::socket_name(fd, true)), Err(sys::Errno(libc::ENOTCONN)))
}

/// Carries out what follows from an event.
#[cold]
fn hear(end: &End<'_>, event: Hearing) {
    denial::obey(end);
    let words = OwnWords::new(end);
    let mut next = Some(event);
    while let Some(hearing) = next {
        next = hearing.step(&words, end);
    }
}

/// The peer has left a hint, or may have: asks what it is about.
pub(crate) fn follow_hint(end: &End<'_>) {
    hear(end, Hearing::Hinted);
}

/// A timer says: asks the kernel whether the peer's end is gone.
pub(crate) fn ask_kernel(end: &End<'_>) {
    hear(end, Hearing::AsksWhetherGone);
}

/// TCP has nothing more for us: the peer has closed, or shut down its sending side
/// before it switched, or we have shut down our receiving side.
pub(crate) fn tcp_ended(end: &End<'_>) {
    hear(end, Hearing::TcpEnded);
}

/// TCP has told a call of ours an error. It tells each to one call only, and this was it.
pub(crate) fn note_tcp_error(end: &End<'_>, errno: Errno) {
    if let Some(event) = Hearing::failed(errno) {
        hear(end, event);
    }
}

/// The peer's end of the TCP connection is gone, as a call has found that can tell no more.
pub(super) fn peer_gone(end: &End<'_>) {
    hear(end, Hearing::NotesGone);
}

/// A call by TCP has failed: if that was a reset, the program knows of it now.
pub(crate) fn note_reset_by_tcp(end: &End<'_>) {
    if sends_by_tcp(end.slot) && !is_connected(end.file()) {
        hear(end, Hearing::OwnCallFailed);
    }
}

/// Our direction has not switched: what comes back for it, a reset, is TCP's own.
fn sends_by_tcp(slot: &Slot) -> bool {
    slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED == 0
}

#[cold]
fn tell(end: &End<'_>, call: Call) -> Told {
    tell_by(&OwnWords::new(end), end, call)
}

fn tell_by(words: &OwnWords<'_>, end: &End<'_>, call: Call) -> Told {
    let mut telling = Telling::begin(call);
    loop {
        match telling {
            Telling::Answers(told) => return told,
            _ => telling = telling.step(words, end),
        }
    }
}

/// With the ring drained, but for `passed` bytes that the caller has looked past: whether and how input has ended.
pub(crate) fn end_of_input(end: &End<'_>, passed: u64) -> Option<EndOfInput> {
    let flags = end.slot.flags.load(Ordering::Relaxed);
    let peer = end.theirs.sending.flags.load(Ordering::Relaxed);
    if flags & (IS_NEAR | flag::READ_SHUT) == 0 && peer & SAYS_NEAR == 0 {
        return None;
    }
    match tell_by(&OwnWords { conn: end, passed }, end, Call::Receives) {
        Told::Nothing | Told::Sent(_) | Told::Polled(_) | Told::NotOver => None,
        Told::End => Some(EndOfInput::InOrder),
        Told::Errno(errno) => Some(EndOfInput::Reset(errno)),
    }
}

/// A send on a connection that is over for sending. `len`: bytes it wanted to send.
pub(crate) fn send_after_end(end: &End<'_>, len: usize) -> Answer {
    match tell(end, Call::Sends { len }) {
        Told::Sent(n) => Ok(n),
        Told::Errno(errno) => Err(errno),
        Told::Nothing | Told::End | Told::Polled(_) | Told::NotOver => {
            Err(words::reset(end, &"what this end has written down of its end contradicts itself"))
        }
    }
}

/// The same behind a part that this call has sent, which is its answer: a reset is left to the next call, as by
/// Linux (`tcp_sendmsg_locked`, where only a call without any part takes `sk_err`).
#[cold]
pub(super) fn send_after_part(end: &End<'_>, len: usize) -> Answer {
    let is_reset = || end.slot.flags.load(Ordering::Acquire) & flag::RESET != 0;
    if is_reset() {
        return Err(libc::EPIPE);
    }
    let answer = send_after_end(end, len);
    if let Err(errno) = answer
        && is_reset()
    {
        words::keep(end.slot, errno);
    }
    answer
}

/// `SO_ERROR`: the pending error, once. The kernel's own error on a connection in
/// shared memory is about bells, so it is taken and replaced by ours; before our direction
/// has switched it is about our bytes.
pub(crate) fn take_error(end: &End<'_>) -> Errno {
    match tell(end, Call::AsksError) {
        Told::Errno(errno) => errno,
        Told::Nothing | Told::End | Told::Sent(_) | Told::Polled(_) | Told::NotOver => 0,
    }
}

/// With one of these flags, or what the peer says with one of [`SAYS_NEAR`], something has ended.
const IS_NEAR: u32 = flag::PEER_GONE | flag::RESET | flag::TCP_ENDED;

const SAYS_NEAR: u32 = said::DONE | said::ABORT;

/// What `poll` has to know of ends.
#[inline]
pub(crate) fn poll(end: &End<'_>) -> Polled {
    let flags = end.slot.flags.load(Ordering::Acquire);
    let peer = end.theirs.sending.flags.load(Ordering::Acquire);
    if flags & IS_NEAR == 0 && peer & SAYS_NEAR == 0 {
        return Polled::default();
    }
    poll_near_end(end)
}

#[cold]
fn poll_near_end(end: &End<'_>) -> Polled {
    match tell(end, Call::Polls) {
        Told::Polled(polled) => polled,
        Told::Nothing | Told::End | Told::Sent(_) | Told::Errno(_) | Told::NotOver => {
            Polled::default()
        }
    }
}

/// What both directions amount to. A reset that this shows is noted: the program's next call is told.
pub(crate) fn state(end: &End<'_>) -> State {
    poll(end);
    State::of(&OwnWords::new(end).look())
}

/// What a bell was answered with: an error of the connection is told to one call only, and
/// this was it.
pub(super) fn note_rung(end: &End<'_>, rung: sys::Result) {
    if let Some(errno) = bells::error_of(rung) {
        note_tcp_error(end, errno);
    }
}

/// After publishing something to read (with a sequentially consistent operation):
/// wakes the other side's readers and loops if they sleep. `cpu`: where this thread runs.
pub(crate) fn wake_readers(end: &End<'_>, cpu: u32) {
    if let Some(errno) = bells::wake_readers(end, cpu) {
        note_tcp_error(end, errno);
    }
}

/// Rings the universal bell: one byte on the TCP connection, if that carries bells only. `claims`: whether the
/// bell is this thread's to ring; asked when it can be rung.
#[cold]
pub(crate) fn ring(end: &End<'_>, claims: impl Fn() -> bool) {
    if let Some(errno) = bells::ring(end, claims) {
        note_tcp_error(end, errno);
    }
}
