//! `sendfile` and `splice` with a connection in shared memory on one side.
//!
//! The file or pipe is read straight into ring memory, or ring memory is written
//! straight into the pipe: one copy, made by the kernel.

use crate::descriptors::Use;
use crate::pool::Held;
use crate::{Answer, control, sock::Phase, switch, wait};
use core::sync::atomic::Ordering;
use sidestep_device::state::{count, flag};
use sidestep_device::sys;
use sidestep_proto::cursor::{self, Spans};

/// Where bytes for a connection come from.
pub struct Source {
    /// File or pipe.
    pub fd: i32,
    /// Position to read from; `None`: the file's own.
    pub offset: Option<i64>,
}

/// Sends up to `len` bytes of a file or pipe. `None`: the connection is not (yet)
/// sending into its ring, let the kernel do it.
///
/// # Errors
/// As `sendfile`.
pub fn send_from(sock: &Use, fd: i32, source: &Source, len: usize) -> Option<Answer> {
    if sock.phase() != Phase::Smc {
        return None;
    }
    let (conn, slot) = (sock.conn()?, sock.slot()?);
    {
        let _sending = Held::enter(&slot.send_lock);
        let switched = slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED != 0;
        if !switched && !switch::send_into_ring(sock, slot, fd, &conn) {
            return None;
        }
    }
    let mut done = 0;
    let deadline = control::send_deadline(fd);
    while done < len {
        match send_part(sock, fd, source, done, len - done) {
            Ok(Part::Moved(0)) => break,
            Ok(Part::Moved(n)) => done += n,
            Ok(Part::NoRoom) if !sock.may_block(fd) => {
                sock.out_blocked.store(true, Ordering::Relaxed);
                if done == 0 {
                    return Some(Err(libc::EAGAIN));
                }
                break;
            }
            Ok(Part::NoRoom) => {
                if let Err(errno) = wait::writable(sock, slot, &conn, fd, deadline) {
                    return Some(if done > 0 { Ok(done) } else { Err(errno) });
                }
            }
            Err(errno) => return Some(if done > 0 { Ok(done) } else { Err(errno) }),
        }
    }
    count(&slot.counters.bytes_sent, done as u64);
    count(&slot.counters.ring_bytes_sent, done as u64);
    count(&slot.counters.messages_sent, 1);
    Some(Ok(done))
}

enum Part {
    Moved(usize),
    NoRoom,
}

fn send_part(sock: &Use, fd: i32, source: &Source, done: usize, len: usize) -> Answer<Part> {
    let (Some(conn), Some(slot)) = (sock.conn(), sock.slot()) else { return Err(libc::EBADF) };
    let n = {
        let _sending = Held::enter(&slot.send_lock);
        wait::follow_hint(slot, &conn, fd);
        let over = flag::WRITE_SHUT | flag::RESET | flag::PEER_GONE;
        if slot.flags.load(Ordering::Acquire) & over != 0 {
            return control::send_after_end(slot, &conn, len).map(Part::Moved);
        }
        let producer = conn.mine.sending.producer.load(Ordering::Relaxed);
        let claim = conn.theirs.receiving.consumer.load(Ordering::Acquire);
        let window = cursor::window(producer, claim, conn.outgoing.len())
            .map_err(|misbehaved| control::reset(slot, &conn, &misbehaved))?;
        if window == 0 {
            return Ok(Part::NoRoom);
        }
        let span = Spans::cut(producer, window.min(len), conn.outgoing.len()).first;
        let offset = source.offset.map(|offset| offset + done as i64);
        // SAFETY: the span is ours to write, under the send lock.
        let read = unsafe { sys::read(source.fd, conn.outgoing.address(&span), span.len(), offset) };
        let n = read.map_err(|errno| errno.0)?;
        conn.mine.sending.producer.fetch_add(n as u64, Ordering::SeqCst);
        n
    };
    if n > 0 {
        wait::wake_readers(slot, &conn, fd);
    }
    Ok(Part::Moved(n))
}

/// Writes up to `len` received bytes into a pipe. `None`: bytes may still come by
/// TCP, let the kernel do it.
///
/// # Errors
/// As `splice`.
pub fn receive_into(sock: &Use, fd: i32, pipe: i32, len: usize) -> Option<Answer> {
    let (conn, slot) = (sock.conn()?, sock.slot()?);
    loop {
        {
            let _receiving = Held::enter(&slot.receive_lock);
            let switched = slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0;
            if !switched && !switch::receive_from_ring(slot, &conn) {
                return Some(Err(libc::EINVAL));
            }
            let consumer = conn.mine.receiving.consumer.load(Ordering::Relaxed);
            let claim = conn.theirs.sending.producer.load(Ordering::Acquire);
            let readable = match cursor::readable(consumer, claim, conn.incoming.len()) {
                Ok(readable) => readable,
                Err(misbehaved) => return Some(Err(control::reset(slot, &conn, &misbehaved))),
            };
            if readable > 0 {
                let span = Spans::cut(consumer, readable.min(len), conn.incoming.len()).first;
                // SAFETY: the span lies in the peer's ring, which stays mapped.
                let wrote = unsafe { sys::write(pipe, conn.incoming.address(&span), span.len()) };
                if let Ok(n) = wrote {
                    let next = consumer + n as u64;
                    conn.mine.receiving.consumer.store(next, Ordering::SeqCst);
                    count(&slot.counters.bytes_received, n as u64);
                    count(&slot.counters.ring_bytes_received, n as u64);
                    count(&slot.counters.messages_received, 1);
                    wait::wake_writers(slot, &conn, fd);
                }
                return Some(wrote.map_err(|errno| errno.0));
            }
            match control::end_of_input(slot, &conn) {
                Some(control::End::Input) => return Some(Ok(0)),
                Some(control::End::Reset(errno)) => return Some(Err(errno)),
                None => {}
            }
        }
        if !sock.may_block(fd) {
            return Some(Err(libc::EAGAIN));
        }
        let ready = || {
            let consumer = conn.mine.receiving.consumer.load(Ordering::Relaxed);
            conn.theirs.sending.producer.load(Ordering::Relaxed) != consumer
        };
        if let Err(errno) = wait::readable(sock, slot, &conn, fd, false, ready) {
            return Some(Err(errno));
        }
    }
}
