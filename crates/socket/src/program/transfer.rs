//! `sendfile` and `splice` with a connection in shared memory on one side.
//!
//! The file or pipe is read straight into ring memory, or ring memory is written
//! straight into the pipe: one copy, made by the kernel.
//!
//! A pipe may be empty or full for ever, so it is used under a direction lock
//! without waiting, and waited for without the lock.

use crate::connection::ends::EndOfInput;
use crate::connection::ring_send::{LEFT, Unfinished};
use crate::connection::{ends, kept_options, readiness, sleep, switch, urgent, wait, words};
use crate::polling::epoll;
use crate::process::owner::{Held, ITSELF};
use crate::table::descriptors::Use;
use crate::table::end::End;
use crate::{Answer, Errno};
use core::ops::Range;
use core::sync::atomic::Ordering;
use sidestep_device::counts::count;
use sidestep_device::ring;
use sidestep_device::ring::Ring;
use sidestep_device::sys::{self, Unbroken};
use sidestep_proto::cursor;
use sidestep_proto::cut_over;

/// Where bytes for a connection come from.
#[derive(Clone, Copy)]
pub enum Source {
    /// A file, read at a position, or (`None`) at its own.
    File(i32, Option<i64>),
    /// A pipe.
    Pipe(Pipe),
}

/// The pipe of a `splice`.
#[derive(Clone, Copy)]
pub struct Pipe {
    /// Its descriptor.
    pub fd: i32,
    /// `SPLICE_F_NONBLOCK`: not to be waited for.
    pub dont_wait: bool,
}

/// What one step of a transfer came to.
enum Part {
    Moved(usize),
    /// The pipe is empty or full.
    PipeWaits,
    /// The connection has no room, or nothing to read.
    SocketWaits,
    /// The next byte of the connection is an urgent one, which stays there.
    AtMark,
}

/// Sends up to `len` bytes of a file or pipe. The connection sends into its ring. `None`:
/// not any more.
///
/// # Errors
/// As `sendfile` and `splice`.
pub fn send_from(sock: &Use, fd: i32, source: Source, len: usize) -> Option<Answer> {
    let Some(end) = End::of(sock, fd) else { return Some(Err(libc::EBADF)) };
    let slot = end.slot;
    let mut done = 0;
    let unfinished = Unfinished::default();
    let mut deadline = None;
    while done < len {
        let step = match send_part(&end, source, done, len - done, &unfinished) {
            Ok(Part::Moved(0)) => break,
            Ok(Part::Moved(n)) => {
                done += n;
                Ok(())
            }
            // What the pipe held is enough.
            Ok(Part::PipeWaits) if done > 0 => break,
            Ok(Part::PipeWaits) => source.wait(),
            Ok(Part::SocketWaits) if !sock.seems_blocking() => {
                wait::want_room(&end);
                if wait::has_room(&end) { Ok(()) } else { Err(libc::EAGAIN) }
            }
            Ok(Part::AtMark) => break,
            Ok(Part::SocketWaits) => {
                let sleep = || {
                    let deadline =
                        *deadline.get_or_insert_with(|| kept_options::send_deadline(end.file()));
                    wait::Sleep { has_part: done > 0, deadline }
                };
                wait::writable(&end, sleep)
            }
            Err(errno) => Err(errno),
        };
        match step {
            Ok(()) => {}
            Err(_) if done > 0 => break,
            Err(LEFT) => return None,
            Err(errno) => return Some(Err(errno)),
        }
    }
    count(&slot.counters.bytes_sent, done as u64);
    count(&slot.counters.ring_bytes_sent, done as u64);
    count(&slot.counters.messages_sent, 1);
    slot.sent.count(done as u64);
    Some(Ok(done))
}

fn send_part<'a>(
    end: &End<'_>,
    source: Source,
    done: usize,
    len: usize,
    unfinished: &Unfinished<'a>,
) -> Answer<Part> {
    let n = {
        let sending = Held::enter(&end.slot.send_lock);
        // What was read from a pipe cannot be read again.
        let _unbroken = Unbroken::begin();
        wait::follow_hint(end);
        let flags = end.slot.flags.load(Ordering::Acquire);
        if flags & words::SEND_OVER != 0 {
            drop(sending);
            return send_after_end(end, source, done, len);
        }
        if !cut_over::is_ring(end.mine.sending.way.turns()) {
            return Err(LEFT);
        }
        let room = ITSELF.with(|it| it.deposits.room(&end.mine.sending.producer, &end.outgoing));
        let producer = end.mine.sending.producer.position();
        let claim = end.theirs.receiving.consumer.claim();
        let window = cursor::window(producer, claim, end.outgoing.len())
            .map_err(|misbehaved| words::reset(end, &misbehaved))?;
        let window = ring::bounded(window, producer, room)?;
        if window == 0 {
            return Ok(Part::SocketWaits);
        }
        let span = end.outgoing.spans(producer, window.min(len)).first;
        let n = match source.read(&end.outgoing, &span, done) {
            Err(libc::EAGAIN) if matches!(source, Source::Pipe(_)) => return Ok(Part::PipeWaits),
            other => other?,
        };
        if !end.mine.sending.producer.publish(producer, producer.wrapping_add(n as u64)) {
            // Another process has written into our own record.
            return Err(libc::EIO);
        }
        if (1..len).contains(&n) {
            unfinished.begin(end.slot);
        }
        n
    };
    if n > 0 {
        ends::wake_readers(end, end.note_cpu());
    }
    Ok(Part::Moved(n))
}

/// The connection is over for sending. What TCP would take, and drop, is taken from the source.
#[cold]
fn send_after_end(end: &End<'_>, source: Source, done: usize, len: usize) -> Answer<Part> {
    if !source.has_more() {
        return Ok(Part::PipeWaits);
    }
    let sent = ends::send_after_end(end, len);
    epoll::note_change(end.sock);
    let n = sent?;
    // Memory in which no bytes of ours lie: a ring has two laps, of which one may be full.
    let producer = end.mine.sending.producer.position();
    let span = end.outgoing.spans(producer, n.min(end.outgoing.len())).first;
    source.read(&end.outgoing, &span, done).map(Part::Moved)
}

impl Source {
    /// Whether a read would not have to wait.
    fn has_more(&self) -> bool {
        match self {
            Self::File(..) => true,
            Self::Pipe(pipe) => sys::poll_now(pipe.fd, libc::POLLIN).is_ok_and(|seen| seen != 0),
        }
    }

    /// Reads into a span of the ring that is ours to write.
    fn read(&self, ring: &Ring, span: &Range<usize>, done: usize) -> Answer {
        let read = match *self {
            Self::File(fd, offset) => {
                ring.fill_from_file(span, fd, offset.map(|offset| offset + done as i64))
            }
            Self::Pipe(pipe) => ring.fill_from_pipe(span, pipe.fd),
        };
        read.map_err(|errno| errno.0)
    }

    fn wait(&self) -> Answer<()> {
        match self {
            Self::File(..) => Ok(()),
            Self::Pipe(pipe) => pipe.wait(libc::POLLIN),
        }
    }
}

impl Pipe {
    fn wait(&self, events: i16) -> Answer<()> {
        if self.dont_wait {
            return Err(libc::EAGAIN);
        }
        match sys::poll_until(self.fd, events, None) {
            Err(sys::Errno(libc::EINTR)) if sleep::handlers_restart() => Ok(()),
            other => other.map(|_| ()).map_err(|errno| errno.0),
        }
    }
}

/// Writes up to `len` received bytes into a pipe. The connection is read by the
/// ledger.
///
/// # Errors
/// As `splice`.
pub fn receive_into(sock: &Use, fd: i32, pipe: Pipe, len: usize) -> Answer {
    let Some(end) = End::of(sock, fd) else { return Err(libc::EBADF) };
    let slot = end.slot;
    let patience = wait::Patience::new();
    loop {
        match receive_part(&end, pipe.fd, len)? {
            Part::Moved(n) => {
                count(&slot.counters.bytes_received, n as u64);
                if n > 0 {
                    count(&slot.counters.messages_received, 1);
                    slot.received.count(n as u64);
                }
                wait::wake_writers(&end);
                return Ok(n);
            }
            Part::PipeWaits => pipe.wait(libc::POLLOUT)?,
            // As in the kernel, which would else look at the same byte again and again.
            Part::AtMark if sock.seems_blocking() => return Ok(0),
            Part::AtMark => return Err(libc::EAGAIN),
            Part::SocketWaits if !sock.seems_blocking() => {
                sock.note_nothing();
                return Err(libc::EAGAIN);
            }
            Part::SocketWaits => {
                let ready = || readiness::has_input(&end);
                wait::readable(&end, &patience, false, ready)?;
            }
        }
    }
}

fn receive_part(end: &End<'_>, pipe: i32, len: usize) -> Answer<Part> {
    let _receiving = Held::enter(&end.slot.receive_lock);
    // What is in the pipe cannot be taken back from there.
    let unbroken = Unbroken::begin();
    while switch::settle(end, &unbroken) == cut_over::Source::Tcp {
        if let Some(part) = receive_tcp_part(end, pipe, len, &unbroken)? {
            return Ok(part);
        }
    }
    let consumer = end.mine.receiving.consumer.position();
    let claim = end.theirs.sending.producer.claim();
    let readable = cursor::readable(consumer, claim, end.incoming.len())
        .map_err(|misbehaved| words::reset(end, &misbehaved))?;
    if readable == 0 {
        wait::follow_hint(end);
        return end_or(end, 0, Part::SocketWaits);
    }
    let (skip, before_mark) = urgent::cut_for_splice(end, consumer, readable);
    if before_mark == 0 {
        wait::follow_hint(end);
        return end_or(end, readable as u64, Part::AtMark);
    }
    let first = consumer.wrapping_add(skip);
    let span = end.incoming.spans(first, before_mark.min(len)).first;
    let wrote = written(end.incoming.drain_into_pipe(&span, pipe))?;
    if let Part::Moved(n) = wrote {
        end.mine.receiving.consumer.publish(consumer, first.wrapping_add(n as u64));
        if end.is_marked() {
            urgent::note_seen(end);
        }
        count(&end.slot.counters.ring_bytes_received, n as u64);
    }
    Ok(wrote)
}

/// The same while bytes may still come by TCP: looks at them first, because the pipe
/// may take fewer. `None`: what was there is for no reader.
#[cold]
fn receive_tcp_part(
    end: &End<'_>,
    pipe: i32,
    len: usize,
    unbroken: &Unbroken,
) -> Answer<Option<Part>> {
    let mut chunk = [0u8; 16 << 10];
    let room = len.min(chunk.len());
    let peek = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    let seen = match end.file().recv(&mut chunk[..room], peek) {
        Ok(0) => {
            ends::tcp_ended(end);
            return match ends::end_of_input(end, 0) {
                Some(EndOfInput::Reset(errno)) => Err(errno),
                _ if switch::settle(end, unbroken) == cut_over::Source::Ring => {
                    Ok(Some(Part::SocketWaits))
                }
                // Also when the peer claims to have sent more by TCP than ever came.
                _ => Ok(Some(Part::Moved(0))),
            };
        }
        Ok(n) => n,
        // TCP may know nothing of a reset that the peer says.
        Err(sys::Errno(libc::EAGAIN | libc::EINTR | libc::EBADF)) => {
            return end_or(end, 0, Part::SocketWaits).map(Some);
        }
        Err(sys::Errno(errno)) => {
            ends::note_tcp_error(end, errno);
            return match ends::end_of_input(end, 0) {
                Some(EndOfInput::Reset(errno)) => Err(errno),
                _ => Ok(Some(Part::Moved(0))),
            };
        }
    };
    let parts = switch::parts_of_queue(end, seen);
    let data = parts.data as usize;
    if parts.bells > 0 || data == 0 {
        return Ok(Some(Part::SocketWaits));
    }
    if readiness::is_at_mark_in_tcp(end) {
        let behind = readiness::in_ring(end) as u64;
        return end_or(end, behind, Part::AtMark).map(Some);
    }
    // One that was marked before another one was.
    let left_out = usize::from(urgent::is_next_left_out(end));
    let wrote = match left_out..data {
        rest if rest.is_empty() => None,
        rest => Some(written(sys::write_now(pipe, &chunk[rest]))?),
    };
    let taken = match wrote {
        Some(Part::Moved(n)) => left_out + n,
        None => left_out,
        Some(Part::PipeWaits | Part::SocketWaits | Part::AtMark) => 0,
    };
    if taken > 0 {
        // They are there: under the lock no other thread takes them.
        let _ = end.file().recv(&mut chunk[..taken], libc::MSG_DONTWAIT);
        end.slot.tcp_consumed.fetch_add(taken as u64, Ordering::Relaxed);
        urgent::note_stop_in_tcp(end);
    }
    Ok(wrote)
}

/// The end of input, behind bytes that stay in the ring; if it has not ended, what else there is to say.
fn end_or(end: &End<'_>, passed: u64, otherwise: Part) -> Answer<Part> {
    match ends::end_of_input(end, passed) {
        Some(EndOfInput::InOrder) => Ok(Part::Moved(0)),
        Some(EndOfInput::Reset(errno)) => Err(errno),
        None => Ok(otherwise),
    }
}

/// What came of writing into a pipe.
fn written(wrote: sys::Result) -> Result<Part, Errno> {
    match wrote {
        Ok(n) => Ok(Part::Moved(n)),
        Err(sys::Errno(libc::EAGAIN)) => Ok(Part::PipeWaits),
        Err(errno) => Err(errno.0),
    }
}
