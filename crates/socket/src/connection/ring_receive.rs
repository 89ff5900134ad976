//! Receive: one screen.
//!
//! ```text
//!   readable = producer - consumer
//!   copy out of the ring
//!   publish the consumer cursor
//!   was the ring nearly full? wake the writer
//!   nothing there: EAGAIN, end or wait
//! ```
//!
//! The consumer cursor is published as the producer's is: see [`ring_send`](crate::connection::ring_send).

use crate::connection::ends::EndOfInput;
use crate::connection::wait::{self, Patience};
use crate::connection::{bells, ends, ledger, readiness, sleeper, switch, turns, urgent, words};
use crate::process::owner::Held;
use crate::table::end::End;
use crate::{Answer, Errno};
use core::sync::atomic::{Ordering, fence};
use sidestep_device::counts::count;
use sidestep_device::map::Scratch;
use sidestep_device::program::{Buffers, Received};
use sidestep_device::ring::Ring;
use sidestep_device::state::flag;
use sidestep_device::sys::{Errno as SysErrno, Unbroken};
use sidestep_proto::cursor;
use sidestep_proto::cut_over::Source;

/// Copies `n` bytes out of the ring from a position, behind the first `skip`.
#[inline]
fn copy_out(
    buffers: &Buffers<'_, Received>,
    (skip, n): (usize, usize),
    ring: &Ring,
    mut position: u64,
) {
    buffers.each_room(skip, n, |room| {
        ring.read(position, room);
        position = position.wrapping_add(room.len() as u64);
    });
}

/// Receives by the ledger: from the ring, or what is left in TCP before it.
pub(crate) fn receive(end: &End<'_>, buffers: &Buffers<'_, Received>, flags: i32) -> Answer {
    let receive = Receive { end, flags };
    if flags & libc::MSG_OOB != 0 {
        return receive.urgent(buffers);
    }
    if end.slot.flags.load(Ordering::Relaxed) & flag::PEEK_OFFSET != 0 {
        return receive.with_peek_offset(buffers);
    }
    receive.counted(buffers)
}

/// Where the reader stands, and how many bytes of the ring lie ahead of it.
///
/// # Errors
/// The peer has broken the protocol, and the connection is reset.
#[inline]
pub(super) fn in_ring(end: &End<'_>) -> Answer<(u64, usize)> {
    let consumer = end.mine.receiving.consumer.position();
    // Acquire: pairs with the peer's publication; the bytes are there.
    let claim = end.theirs.sending.producer.claim();
    cursor::readable(consumer, claim, end.incoming.len())
        .map(|readable| (consumer, readable))
        .map_err(|misbehaved| words::reset(end, &misbehaved))
}

/// The reader moves on, by `n` bytes of the program's. False: it stands elsewhere by now. Under the receive lock.
#[inline]
pub(super) fn publish(end: &End<'_>, (from, to): (u64, u64), n: usize) -> bool {
    let is_published = end.mine.receiving.consumer.publish(from, to);
    if is_published {
        if end.is_marked() {
            urgent::note_seen(end);
        }
        count(&end.slot.counters.ring_bytes_received, n as u64);
    }
    is_published
}

/// A call has received so many bytes.
#[inline]
pub(super) fn note_received(end: &End<'_>, n: usize) {
    count(&end.slot.counters.bytes_received, n as u64);
    count(&end.slot.counters.messages_received, 1);
    end.slot.received.count(n as u64);
}

/// After reading `n` bytes: if the ring was more than half full before, a writer
/// may wait for room.
#[inline]
pub(super) fn make_room_known(end: &End<'_>, n: usize) {
    let len = end.incoming.len();
    let consumer = end.mine.receiving.consumer.position();
    let producer = end.theirs.sending.producer.position();
    let left = producer.wrapping_sub(consumer) as usize;
    if left.saturating_add(n) > len / 2 {
        // Who always finds something to read looks for hints here.
        wait::follow_hint(end);
        end.note_cpu();
        fence(Ordering::SeqCst);
        if len.saturating_sub(left) >= cursor::writable_threshold(len) {
            wait::wake_writers(end);
        }
    }
}

/// What one look into ring or TCP queue has brought.
pub(crate) enum Found {
    /// So many bytes, copied.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// Nothing any more: 0, or the error that ended the connection.
    End(Option<Errno>),
}

/// Bytes that are taken from TCP at once, while some of them may be bells.
const TCP_CHUNK: usize = 16 << 10;

/// A call that receives from one connection.
pub(crate) struct Receive<'a> {
    end: &'a End<'a>,
    flags: i32,
}

impl Receive<'_> {
    fn peeks(&self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }

    /// Receives, and counts what was received.
    #[inline]
    fn counted(&self, buffers: &Buffers<'_, Received>) -> Answer {
        let answer = self.all(buffers);
        if let Ok(n @ 1..) = answer
            && !self.peeks()
        {
            note_received(self.end, n);
        }
        answer
    }

    /// With `SO_PEEK_OFF` each peek goes on where the last one ended, and reading
    /// moves that place back.
    #[cold]
    fn with_peek_offset(&self, buffers: &Buffers<'_, Received>) -> Answer {
        let place = &self.end.slot.peek_offset;
        if !self.peeks() {
            let n = self.counted(buffers)?;
            let moved_back = place.load(Ordering::Relaxed).saturating_sub(n as i32).max(0);
            place.store(moved_back, Ordering::Relaxed);
            return Ok(n);
        }
        let skip = place.load(Ordering::Relaxed).max(0) as usize;
        let n = self.peek_behind(buffers, skip)?;
        place.fetch_add(n as i32, Ordering::Relaxed);
        Ok(n)
    }

    /// Peeks at what lies behind the next `skip` bytes: they go to a place of ours.
    fn peek_behind(&self, buffers: &Buffers<'_, Received>, skip: usize) -> Answer {
        const PIECES_MAX: usize = 64;
        let mut room = Scratch::filled(skip.max(1), || 0u8).map_err(|errno| errno.0)?;
        let mut list = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; PIECES_MAX];
        let longer = buffers.behind(&mut room[..skip], &mut list).ok_or(libc::EINVAL)?;
        self.all_beyond(&longer, skip)
    }

    /// [`Self::all`], but the first `skip` bytes alone do not satisfy the call.
    fn all_beyond(&self, buffers: &Buffers<'_, Received>, skip: usize) -> Answer {
        let seen = self.until(buffers, self.wanted(buffers.len() - skip) + skip);
        if buffers.len() == skip && seen.is_ok_and(|_| readiness::readable(self.end) > skip) {
            // A call without room finds what it has no room for.
            return Ok(0);
        }
        match seen {
            // And says the same when it has waited.
            Ok(_) | Err(libc::EAGAIN) if buffers.len() == skip && self.may_wait() => Ok(0),
            Ok(seen) if seen > skip => Ok(seen - skip),
            Ok(_) => {
                wait::follow_hint(self.end);
                let passed = readiness::in_ring(self.end) as u64;
                match ends::end_of_input(self.end, passed) {
                    Some(EndOfInput::InOrder) => Ok(0),
                    Some(EndOfInput::Reset(errno)) => Err(errno),
                    None => Err(libc::EAGAIN),
                }
            }
            Err(errno) => Err(errno),
        }
    }

    /// Receives until the call is satisfied.
    fn all(&self, buffers: &Buffers<'_, Received>) -> Answer {
        self.until(buffers, self.wanted(buffers.len()))
    }

    /// Receives until there are as many bytes as `wanted`, or something else ends it.
    #[inline]
    fn until(&self, buffers: &Buffers<'_, Received>, wanted: usize) -> Answer {
        let first = self.look(buffers, 0);
        match first {
            (Found::Bytes(n), false) if n >= wanted && !self.peeks() => Ok(n),
            first => self.until_more(buffers, wanted, first),
        }
    }

    /// What a look finds, and whether bytes may still have come by TCP before it.
    #[inline]
    fn look(&self, buffers: &Buffers<'_, Received>, done: usize) -> (Found, bool) {
        let flags = self.end.slot.flags.load(Ordering::Relaxed);
        (self.some(buffers, done), flags & flag::RECEIVE_SWITCHED == 0)
    }

    /// The same when the first look was not enough.
    #[cold]
    fn until_more(
        &self,
        buffers: &Buffers<'_, Received>,
        wanted: usize,
        first: (Found, bool),
    ) -> Answer {
        let mut done = 0;
        let patience = Patience::new();
        let mut first = Some(first);
        loop {
            let (found, by_tcp) = first.take().unwrap_or_else(|| self.look(buffers, done));
            match found {
                Found::Bytes(n) => {
                    done = if self.peeks() { n } else { done + n };
                    // While the stream changes sides, what has arrived lies in two places.
                    let may_go_on = by_tcp && n > 0 && !self.peeks();
                    let is_enough = done >= wanted && !may_go_on;
                    if is_enough || done == buffers.len() || self.stops_at_mark(done) {
                        return Ok(done);
                    }
                    if !self.peeks() {
                        continue;
                    }
                    // What comes after the end is not asked here: that is told once.
                    wait::follow_hint(self.end);
                    if self.may_have_ended() {
                        return Ok(done);
                    }
                }
                Found::End(None) => return Ok(done),
                Found::End(Some(errno)) if done == 0 => return Err(errno),
                Found::End(Some(errno)) => {
                    words::keep(self.end.slot, errno);
                    return Ok(done);
                }
                Found::Nothing if done > 0 && done >= wanted => return Ok(done),
                Found::Nothing => {}
            }
            if !self.may_wait() {
                if done == 0 && wait::peer_has_died(self.end) {
                    continue;
                }
                self.end.sock.note_nothing();
                return if done > 0 { Ok(done) } else { Err(libc::EAGAIN) };
            }
            let slept = self.wait(self.needed(done), done > 0, &patience);
            if buffers.is_empty() {
                // Linux looks no further for a call without room (`tcp_recvmsg_locked`).
                return Ok(0);
            }
            match slept {
                Ok(()) => {}
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn may_wait(&self) -> bool {
        self.flags & libc::MSG_DONTWAIT == 0 && self.end.sock.seems_blocking()
    }

    /// Waits until there are `needed` bytes, which a call may do more than once, or it turns
    /// out that it may not wait.
    fn wait(&self, needed: usize, has_part: bool, patience: &Patience) -> Answer<()> {
        let ready = || self.is_ready(needed);
        loop {
            wait::readable(self.end, patience, has_part, ready)?;
            if ready() || !self.end.sock.seems_blocking() {
                return Ok(());
            }
        }
    }

    /// How many bytes wake a call that has `done` and sleeps. Less than the low-water mark
    /// wakes no call, not even one that would have been content with what was there
    /// (`tcp_data_ready`). What still comes by TCP is taken at once: a sleep would find it
    /// again and again.
    fn needed(&self, done: usize) -> usize {
        let more = if self.peeks() { done + 1 } else { 1 };
        match self.end.slot.flags.load(Ordering::Relaxed) & flag::RECEIVE_SWITCHED {
            0 => more,
            _ => more.max(readiness::low_water(self.end)),
        }
    }

    /// How many bytes a blocking call waits for.
    fn wanted(&self, len: usize) -> usize {
        if self.flags & libc::MSG_WAITALL != 0 {
            return if self.peeks() { len.min(self.most_to_peek()) } else { len };
        }
        let low_water = self.end.slot.low_water.load(Ordering::Relaxed) as usize;
        low_water.min(len).max(1)
    }

    /// A peek cannot wait for more than is ever there at once.
    fn most_to_peek(&self) -> usize {
        let switched = self.end.slot.flags.load(Ordering::Relaxed) & flag::RECEIVE_SWITCHED != 0;
        if switched { self.end.incoming.len() } else { TCP_CHUNK }
    }

    /// One look: the ring, or what is left in TCP before it.
    #[inline]
    fn some(&self, buffers: &Buffers<'_, Received>, done: usize) -> Found {
        const UNUSUAL: u32 = flag::RECEIVE_SWITCHED | flag::ASYNC | flag::TURN_WANTED;
        let receiving = Held::enter(&self.end.slot.receive_lock);
        // A peek sees the same bytes again: it starts over.
        let done = if self.peeks() { 0 } else { done };
        let flags = self.end.slot.flags.load(Ordering::Acquire);
        let mut found = match flags & UNUSUAL {
            flag::RECEIVE_SWITCHED => self.take_from_ring(buffers, done, buffers.len() - done),
            _ => match self.some_from_either(buffers, done) {
                // TCP may know nothing of a reset that the peer says.
                (Found::Nothing, Source::Tcp) if self.is_reset() => Found::Nothing,
                (found, Source::Tcp) => return found,
                (found, Source::Ring) => found,
            },
        };
        if let Found::Nothing = found {
            found = self.end();
        }
        drop(receiving);
        if let Found::Bytes(n) = found {
            make_room_known(self.end, n);
        }
        found
    }

    /// The same while bytes of the program may come by TCP, or bells have to be cleared
    /// away. Under the receive lock.
    #[cold]
    fn some_from_either(&self, buffers: &Buffers<'_, Received>, done: usize) -> (Found, Source) {
        let unbroken = Unbroken::begin();
        let mut source = switch::settle(self.end, &unbroken);
        loop {
            let found = match source {
                Source::Tcp => self.some_from_tcp(buffers, done, &unbroken),
                Source::Ring => {
                    // With `O_ASYNC` every message has left a bell.
                    wait::drain_bells(self.end);
                    self.some_from_ring(buffers, done, &unbroken)
                }
            };
            if self.peeks() || !matches!(found, Found::Nothing) {
                return (found, source);
            }
            let now = switch::settle(self.end, &unbroken);
            let before = core::mem::replace(&mut source, now);
            if before == source {
                return (found, source);
            }
        }
    }

    /// What is in the ring and, for a peek that has seen all of it, in TCP behind it.
    fn some_from_ring(
        &self,
        buffers: &Buffers<'_, Received>,
        done: usize,
        unbroken: &Unbroken,
    ) -> Found {
        let found = self.take_from_ring(buffers, done, buffers.len() - done);
        let Found::Bytes(seen) = found else { return found };
        let is_all = self.peeks() && seen == readiness::in_ring(self.end);
        if is_all && seen < buffers.len() && switch::peer_turn(self.end).is_some() {
            let behind = self.peek_tcp(buffers, seen, unbroken);
            return Found::Bytes(seen + behind);
        }
        found
    }

    /// Peeks at bytes of the program that lie in TCP behind all bells: how many.
    fn peek_tcp(&self, buffers: &Buffers<'_, Received>, skip: usize, unbroken: &Unbroken) -> usize {
        let mut chunk = [0u8; TCP_CHUNK];
        let room = (buffers.len() - skip).min(chunk.len());
        switch::skip_bells_unless_asleep(self.end, unbroken);
        if readiness::is_at_mark_in_tcp(self.end) {
            return 0;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        let seen = self.end.file().recv(&mut chunk[..room], flags).unwrap_or(0);
        let parts = switch::parts_of_queue(self.end, seen);
        if parts.bells > 0 {
            // More have come meanwhile: the next look finds what is behind them.
            return 0;
        }
        buffers.fill(skip, &chunk[..parts.data as usize]);
        parts.data as usize
    }

    #[inline]
    fn take_from_ring(&self, buffers: &Buffers<'_, Received>, done: usize, room: usize) -> Found {
        let end = self.end;
        loop {
            let (consumer, readable) = match in_ring(end) {
                Ok((_, 0)) => return Found::Nothing,
                Ok(ahead) => ahead,
                Err(errno) => return Found::End(Some(errno)),
            };
            if room == 0 {
                // Linux passes nothing then, not even an urgent byte.
                return Found::Bytes(0);
            }
            let (skip, readable) = self.up_to_mark(consumer, readable);
            let n = readable.min(room);
            if n == 0 && (skip == 0 || self.peeks()) {
                return Found::Nothing;
            }
            if self.flags & libc::MSG_TRUNC == 0 {
                copy_out(buffers, (done, n), &end.incoming, consumer.wrapping_add(skip));
            }
            if self.peeks() {
                return Found::Bytes(n);
            }
            let next = consumer.wrapping_add(skip + n as u64);
            if publish(end, (consumer, next), n) && n > 0 {
                return Found::Bytes(n);
            }
        }
    }

    /// An urgent byte ahead cuts a read short, and one that is next is left out
    /// (unless urgent data is read in line): (bytes to skip, bytes to read).
    #[inline]
    fn up_to_mark(&self, consumer: u64, readable: usize) -> (u64, usize) {
        if self.end.is_marked() {
            return urgent::cut(self.end, consumer, readable);
        }
        (0, readable)
    }

    /// A read that has reached the urgent mark returns what it has.
    fn stops_at_mark(&self, done: usize) -> bool {
        let comes_by_ring = turns::comes_by_ring(self.end.slot);
        if !comes_by_ring && !self.has_read_tcp() {
            return readiness::is_at_mark_in_tcp(self.end);
        }
        // What was peeked at in TCP lies before the ring.
        let peeked = if self.peeks() && comes_by_ring { done as u64 } else { 0 };
        let next = self.end.mine.receiving.consumer.position() + peeked;
        urgent::mark(self.end, next) == Some(next)
            || comes_by_ring && !self.peeks() && self.goes_on_at_mark_in_tcp()
    }

    /// Whether the stream goes on by TCP, behind a turn that is followed here, with an urgent byte.
    fn goes_on_at_mark_in_tcp(&self) -> bool {
        if urgent::comes_by_ring_alone(self.end) || switch::peer_turn(self.end).is_none() {
            return false;
        }
        let _receiving = Held::enter(&self.end.slot.receive_lock);
        switch::settle(self.end, &Unbroken::begin()) == Source::Tcp
            && readiness::is_at_mark_in_tcp(self.end)
    }

    /// Whether the stream goes on in the ring, although the turn was not followed yet.
    fn has_read_tcp(&self) -> bool {
        let consumed = self.end.slot.tcp_consumed.load(Ordering::Relaxed);
        switch::peer_turn(self.end).is_some_and(|at| consumed >= at)
    }

    fn is_reset(&self) -> bool {
        self.end.slot.flags.load(Ordering::Relaxed) & flag::RESET != 0
    }

    /// The ring is empty: has the connection ended?
    fn end(&self) -> Found {
        wait::follow_hint(self.end);
        let passed = if self.peeks() { self.passed_byte() } else { 0 };
        match ends::end_of_input(self.end, passed) {
            Some(EndOfInput::InOrder) => Found::End(None),
            Some(EndOfInput::Reset(errno)) => Found::End(Some(errno)),
            None => Found::Nothing,
        }
    }

    /// 1 if an urgent byte is all that is left in the ring: a peek looks past it, and leaves it there.
    fn passed_byte(&self) -> u64 {
        let consumer = self.end.mine.receiving.consumer.position();
        match self.up_to_mark(consumer, readiness::in_ring(self.end)) {
            (passed, 0) => passed,
            _ => 0,
        }
    }

    /// How many bytes of the program are at the front of the TCP queue. Behind them there may be bells for
    /// a thread that sleeps there: this one takes none of them.
    #[cold]
    fn data_before_bells(&self, chunk: &mut [u8]) -> usize {
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        let seen = self.end.file().recv(chunk, flags).unwrap_or(0);
        let parts = switch::parts_of_queue(self.end, seen);
        if parts.bells == 0 { parts.data as usize } else { 0 }
    }

    /// Bytes that the peer sent by TCP before it switched. Under the receive lock.
    #[cold]
    fn some_from_tcp(
        &self,
        buffers: &Buffers<'_, Received>,
        done: usize,
        unbroken: &Unbroken,
    ) -> Found {
        let mut chunk = [0u8; TCP_CHUNK];
        let skip = if self.peeks() { 0 } else { done };
        // An urgent byte that is next is taken and left out.
        let left_out = usize::from(urgent::is_next_left_out(self.end));
        let is_full = buffers.len() == skip;
        if is_full && left_out > 0 {
            let is_more = switch::data_queued(self.end) > 1 || urgent::is_at_mark_in_tcp(self.end);
            return if is_more { Found::Bytes(0) } else { Found::Nothing };
        }
        let mut room = (buffers.len() - skip + left_out).min(chunk.len());
        let alone = sleeper::Alone::on_tcp(self.end.slot);
        if alone.is_none() {
            room = self.data_before_bells(&mut chunk[..room]);
            if room == 0 {
                return Found::Nothing;
            }
        }
        let flags = libc::MSG_DONTWAIT | (self.flags & libc::MSG_PEEK);
        let received = self.end.file().recv(&mut chunk[..room], flags);
        drop(alone);
        let taken = match received {
            // To a call without room the kernel says 0 of bytes as of the end.
            Ok(0) if is_full && ledger::queued(self.end.file()) > 0 => return Found::Bytes(0),
            Ok(0) => {
                ends::tcp_ended(self.end);
                return match switch::settle(self.end, unbroken) {
                    Source::Ring => Found::Bytes(0),
                    Source::Tcp => match self.end() {
                        Found::Nothing => Found::End(None),
                        end => end,
                    },
                };
            }
            Ok(n) => n,
            Err(SysErrno(libc::EAGAIN | libc::EINTR)) => return Found::Nothing,
            Err(SysErrno(errno)) => {
                ends::note_tcp_error(self.end, errno);
                return self.end();
            }
        };
        let consumed = self.end.slot.tcp_consumed.load(Ordering::Relaxed);
        let parts = switch::parts_of_queue(self.end, taken);
        let [before, data] = [parts.bells, parts.data].map(|n| n as usize);
        let end = before + data;
        let turn = switch::peer_turn(self.end);
        let all_of_tcp = turn.is_some_and(|at| consumed + end as u64 >= at);
        bells::check_bells(self.end, &chunk[..before]);
        bells::check_bells(self.end, &chunk[end..taken]);
        let left_out = left_out.min(data);
        let data = data - left_out;
        if self.flags & libc::MSG_TRUNC == 0 {
            buffers.fill(skip, &chunk[end - data..end]);
        }
        if !self.peeks() {
            let (taken, bells) = (taken as u64, (taken - left_out - data) as u64);
            self.end.slot.tcp_consumed.fetch_add(taken, Ordering::Relaxed);
            self.end.slot.tcp_bells.fetch_add(bells, Ordering::Relaxed);
            urgent::note_stop_in_tcp(self.end);
        }
        if self.peeks() && all_of_tcp && skip + data < buffers.len() {
            return self.peek_behind_tcp(buffers, data);
        }
        match (data, left_out) {
            (0, 1) if self.peeks() => return self.end_behind_urgent_byte(),
            // The byte is gone, and what is behind it may be the end.
            (0, 1) => return self.some_from_tcp(buffers, done, unbroken),
            _ => {}
        }
        if data == 0 { Found::Nothing } else { Found::Bytes(data) }
    }

    /// A peek has seen the last `seen` bytes that came by TCP: the rest is in the ring.
    fn peek_behind_tcp(&self, buffers: &Buffers<'_, Received>, seen: usize) -> Found {
        if seen > 0 && urgent::is_at_mark(self.end) {
            return Found::Bytes(seen);
        }
        match self.take_from_ring(buffers, seen, buffers.len() - seen) {
            Found::Bytes(n) => Found::Bytes(seen + n),
            _ if seen > 0 => Found::Bytes(seen),
            Found::Nothing => self.end(),
            end => end,
        }
    }

    /// An urgent byte is all that is in TCP, and a peek leaves it there: is the end behind it?
    #[cold]
    fn end_behind_urgent_byte(&self) -> Found {
        match urgent::peek_behind_in_tcp(self.end.file()) {
            Ok(0) => Found::End(None),
            Ok(_) | Err(SysErrno(libc::EAGAIN | libc::EINTR)) => Found::Nothing,
            Err(SysErrno(errno)) => {
                ends::note_tcp_error(self.end, errno);
                self.end()
            }
        }
    }

    fn is_ready(&self, needed: usize) -> bool {
        // An urgent byte that a peek looks past is no news to it.
        if needed <= 1 && !self.peeks() {
            return readiness::has_input(self.end);
        }
        self.may_have_ended() || readiness::readable(self.end) >= needed
    }

    /// Before the switch the end may stand in TCP behind bytes that a peek leaves there: no call takes it then, so
    /// nothing is noted of it.
    fn may_have_ended(&self) -> bool {
        readiness::may_have_ended(self.end)
            || (self.peeks()
                && self.end.slot.flags.load(Ordering::Relaxed) & flag::RECEIVE_SWITCHED == 0
                && self.end.file().poll_now(libc::POLLRDHUP).is_ok_and(|said| said != 0))
    }

    /// `MSG_OOB`: the urgent byte.
    fn urgent(&self, buffers: &Buffers<'_, Received>) -> Answer {
        let receiving = Held::enter(&self.end.slot.receive_lock);
        if urgent::is_in_line(self.end.slot) {
            return Err(libc::EINVAL);
        }
        if !urgent::comes_by_ring_alone(self.end) && !self.end.is_marked() {
            let byte =
                urgent::take_from_tcp(self.end.file(), self.peeks()).map_err(|errno| errno.0)?;
            let n = buffers.len().min(1);
            buffers.fill(0, &[byte][..n]);
            return Ok(n);
        }
        let at = urgent::waiting(self.end).ok_or(libc::EINVAL)?;
        let n = buffers.len().min(1);
        copy_out(buffers, (0, n), &self.end.incoming, at);
        // Linux takes it for a call without room, too.
        if !self.peeks() {
            urgent::note_taken(self.end, at);
            drop(receiving);
            // The urgent bell has done its work.
            wait::drain_bells(self.end);
        }
        Ok(n)
    }
}
