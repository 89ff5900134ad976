//! Send: one screen.
//!
//! ```text
//!   window  = ring - (producer - consumer)
//!   copy into the ring
//!   publish the producer cursor
//!   does the reader sleep? wake it
//!   no room: EAGAIN or wait
//! ```
//!
//! Under the direction lock no other thread does so. A signal handler that has interrupted its own thread in the middle
//! of the copy finishes that one first ([`Deposits`](ring::Deposits)).

use crate::connection::sleeper::Counted;
use crate::connection::wait::{self, Sleep};
use crate::connection::{ends, kept_options, words};
use crate::process::owner::{Held, ITSELF};
use crate::table::end::End;
use crate::{Answer, Errno};
use core::cell::Cell;
use core::sync::atomic::Ordering;
use sidestep_device::copy::{self, Choice, LONG_MIN, Manner};
use sidestep_device::counts::count;
use sidestep_device::program::{Buffers, Sent};
use sidestep_device::ring;
use sidestep_device::state::{Slot, flag};
use sidestep_device::sys;
use sidestep_proto::cursor;
use sidestep_proto::cut_over;

/// What a send into the ring has come to.
pub(crate) struct RingSent {
    /// `None`: the direction has left the ring.
    pub(crate) answer: Option<Answer>,
    /// It has found the connection over for sending, which may be news to event loops.
    pub(crate) is_over: bool,
}

/// Sends through the ring.
// Inlined, with `all` and `some`: what makes up a `RingSend` stays in registers. Where it goes through memory a warm
// send and receive take 1.2 times as long.
#[inline(always)]
pub(crate) fn send(end: &End<'_>, buffers: &Buffers<'_, Sent>, flags: i32) -> RingSent {
    let is_urgent = flags & libc::MSG_OOB != 0 && !buffers.is_empty();
    let is_over = Cell::new(false);
    let send = RingSend { end, urgent: is_urgent, is_over: &is_over };
    let answer = send.all(buffers, flags & libc::MSG_DONTWAIT != 0);
    if is_urgent && answer == Some(Ok(buffers.len())) {
        send.ring_urgently();
    }
    RingSent { answer, is_over: is_over.get() }
}

/// The direction has left the ring: not an error number of any system.
pub(crate) const LEFT: Errno = -1;

/// A send that has put a part into the ring keeps its direction there until it has put in
/// the rest, or has given up.
#[derive(Default)]
pub(crate) struct Unfinished<'a>(Cell<Option<Counted<'a>>>);

impl<'a> Unfinished<'a> {
    /// A part is in the ring. Under the send lock.
    #[cold]
    pub(crate) fn begin(&self, slot: &'a Slot) {
        let counted = self.0.take().unwrap_or_else(|| Counted::new(&slot.unfinished));
        self.0.set(Some(counted));
    }
}

/// A call that sends into the ring of one connection.
pub(crate) struct RingSend<'a> {
    end: &'a End<'a>,
    /// The last byte is urgent.
    urgent: bool,
    /// See [`RingSent::is_over`].
    is_over: &'a Cell<bool>,
}

impl RingSend<'_> {
    /// Sends everything, waiting for room unless the socket or the call says not to.
    /// `None`: the direction has left the ring.
    #[inline(always)]
    fn all(&self, buffers: &Buffers<'_, Sent>, dont_wait: bool) -> Option<Answer> {
        let unfinished = Unfinished::default();
        let done = match self.some(buffers, 0, &unfinished) {
            Ok(n) if n == buffers.len() => n,
            first => match self.rest(buffers, first, &unfinished, dont_wait) {
                (0, Err(LEFT)) => return None,
                (0, Err(errno)) => return Some(Err(errno)),
                (n, _) => n,
            },
        };
        let slot = self.end.slot;
        count(&slot.counters.bytes_sent, done as u64);
        count(&slot.counters.ring_bytes_sent, done as u64);
        count(&slot.counters.messages_sent, 1);
        slot.sent.count(done as u64);
        Some(Ok(done))
    }

    /// Sends what a first look had no room for, as far as it goes: what is sent in all, and what has ended it.
    #[cold]
    fn rest<'a>(
        &'a self,
        buffers: &Buffers<'_, Sent>,
        first: Answer,
        unfinished: &Unfinished<'a>,
        dont_wait: bool,
    ) -> (usize, Answer<()>) {
        let (mut done, deadline) = (0, Cell::new(None));
        let mut look = first;
        loop {
            match look {
                Ok(n) => done += n,
                Err(errno) => return (done, Err(errno)),
            }
            if done == buffers.len() {
                return (done, Ok(()));
            }
            if let Err(errno) = self.until_room(done, dont_wait, &deadline) {
                return (done, Err(errno));
            }
            look = self.some(buffers, done, unfinished);
        }
    }

    /// A look has found no room for all: waits for more, if the call may.
    fn until_room(&self, done: usize, dont_wait: bool, deadline: &Cell<Option<u64>>) -> Answer<()> {
        let end = self.end;
        if wait::has_room(end) {
            return Ok(());
        }
        if !dont_wait && end.sock.seems_blocking() {
            return self.wait(done > 0, deadline);
        }
        // Also after a part: many loops take a short write for EAGAIN.
        wait::want_room(end);
        if wait::has_room(end) || (done == 0 && wait::peer_has_died(end)) {
            return Ok(());
        }
        Err(libc::EAGAIN)
    }

    /// Sends what there is room for, and no other call's bytes come between: as Linux
    /// does, which gives its lock back only to wait for room.
    #[inline(always)]
    fn some<'a>(
        &'a self,
        buffers: &Buffers<'_, Sent>,
        done: usize,
        unfinished: &Unfinished<'a>,
    ) -> Answer {
        let end = self.end;
        let sending = Held::enter(&end.slot.send_lock);
        if end.is_hinted() {
            wait::ask_kernel(end);
        }
        let flags = end.slot.flags.load(Ordering::Acquire);
        if flags & (words::SEND_OVER | flag::SEND_SWITCHED) != flag::SEND_SWITCHED {
            if flags & words::SEND_OVER != 0 {
                drop(sending);
                return self.after_end(buffers.len() - done, done > 0);
            }
            // A thread may be between the two words of a turn: see `cut_over::Enter`.
            if !cut_over::is_ring(end.mine.sending.way.turns()) {
                return Err(LEFT);
            }
        }
        let mut sent = match self.part(buffers, done) {
            Err(errno) if done > 0 && errno != libc::EAGAIN => return Err(self.keep(errno)),
            sent => sent?,
        };
        // A long send is published in parts, so that the reader copies out while we
        // copy in.
        while sent > 0 && done + sent < buffers.len() {
            self.wake_readers();
            match self.part(buffers, done + sent) {
                Ok(n @ 1..) => sent += n,
                Ok(0) | Err(libc::EAGAIN) => break,
                Err(errno) => {
                    self.keep(errno);
                    break;
                }
            }
        }
        if (1..buffers.len()).contains(&(done + sent)) {
            unfinished.begin(end.slot);
        }
        drop(sending);
        if sent > 0 {
            self.wake_readers();
        }
        Ok(sent)
    }

    /// After a publication: wakes what sleeps over there until there is something to read.
    #[inline]
    fn wake_readers(&self) {
        let cpu = self.end.note_cpu();
        let waiting = &self.end.theirs.waiting;
        let channels = waiting.channels.load(Ordering::Relaxed);
        if channels | waiting.nap_arm.number() | waiting.read_arm.number() != 0 {
            ends::wake_readers(self.end, cpu);
        }
    }

    /// The connection is over for sending.
    #[cold]
    fn after_end(&self, rest: usize, has_part: bool) -> Answer {
        let answer = match has_part {
            false => ends::send_after_end(self.end, rest),
            true => ends::send_after_part(self.end, rest),
        };
        self.is_over.set(true);
        answer
    }

    /// The peer has broken the protocol behind a part that was sent: the part is the answer, and the next call is told (as
    /// by Linux, which leaves `sk_err` where it is).
    #[cold]
    fn keep(&self, errno: Errno) -> Errno {
        words::keep(self.end.slot, errno);
        errno
    }

    /// One copy, one publication. Under the send lock.
    #[inline]
    fn part(&self, buffers: &Buffers<'_, Sent>, done: usize) -> Answer {
        let end = self.end;
        let cursor = &end.mine.sending.producer;
        let room = ITSELF.with(|it| it.deposits.room(cursor, &end.outgoing));
        let producer = cursor.position();
        let window = ring::bounded(self.window_from(producer)?, producer, room)?;
        let part = (end.outgoing.len() / 4).max(window / 2);
        let n = window.min(buffers.len() - done).min(part);
        if n == 0 {
            return Ok(0);
        }
        let choice = self.choice(n);
        let manner = choice.map_or(Manner::Cached, Choice::manner);
        if self.urgent && done + n == buffers.len() {
            // Wrapping: also our own record is only as good as those that can write to it.
            end.mine.sending.urgent.store(producer.wrapping_add(n as u64), Ordering::Release);
        }
        let published = ITSELF.with(|it| {
            it.deposits.put((cursor, &end.outgoing), buffers, (done, n), producer, manner)
        });
        if let Some(choice) = choice {
            choice.note(n, copy::ticks());
        }
        Ok(if published { n } else { 0 })
    }

    /// How `n` bytes are best left for the reader; `None`: there is nothing to choose.
    #[inline]
    fn choice(&self, n: usize) -> Option<&Choice> {
        let is_elsewhere = || self.end.peer_cpu() != sys::cpu();
        (n >= LONG_MIN && is_elsewhere()).then_some(&self.end.sock.copy_choice)
    }

    /// Room in the ring; the peer's cursor is read only when the last one known
    /// leaves less than a quarter of it.
    #[inline]
    fn window_from(&self, producer: u64) -> Answer {
        let len = self.end.outgoing.len();
        let known =
            self.end.sock.send_limit.load(Ordering::Relaxed).saturating_sub(producer) as usize;
        if known >= len / 4 && known <= len {
            return Ok(known);
        }
        // Acquire: the peer has read the bytes that we are about to overwrite.
        let claim = self.end.theirs.receiving.consumer.claim();
        let window = cursor::window(producer, claim, len)
            .map_err(|misbehaved| words::reset(self.end, &misbehaved))?;
        self.end.sock.send_limit.store(claim.wrapping_add(len as u64), Ordering::Relaxed);
        Ok(window)
    }

    fn wait(&self, has_part: bool, deadline: &Cell<Option<u64>>) -> Answer<()> {
        let sleep = || {
            if deadline.get().is_none() {
                deadline.set(kept_options::send_deadline(self.end.file()));
            }
            Sleep { has_part, deadline: deadline.get() }
        };
        wait::writable(self.end, sleep)
    }

    /// Lets the kernel raise SIGURG on the other side: an urgent bell.
    #[cold]
    fn ring_urgently(&self) {
        let flags = libc::MSG_OOB | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        ends::note_rung(self.end, self.end.file().send(b"!", flags));
    }
}
