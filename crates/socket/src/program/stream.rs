//! Send and receive: the two screens.
//!
//! ```text
//!   send                                     receive
//!   window  = ring - (producer - consumer)   readable = producer - consumer
//!   copy into the ring                       copy out of the ring
//!   publish the producer cursor              publish the consumer cursor
//!   does the reader sleep? wake it           was the ring nearly full? wake the writer
//!   no room: EAGAIN or wait                  nothing there: EAGAIN, end or wait
//! ```
//!
//! Cursors are published by compare-and-exchange. Under the direction lock nobody
//! else moves them, except a signal handler of the same thread that uses the same
//! socket in the middle of our copy: then the exchange fails, and the copy is made
//! again behind the handler's bytes.

use crate::connection::wait::{Counted, Patience, Sleep};
use crate::connection::{ends, readiness, socket_options, switch, urgent, wait};
use crate::process::pool::Held;
use crate::program::hand_over;
use crate::rendezvous::agreement::{self, Moment};
use crate::table::candidate;
use crate::table::conn::Conn;
use crate::table::descriptors::{self, Use};
use crate::table::file::File;
use crate::table::sock::Phase;
use crate::table::sock::Sock;
use crate::table::{bare, plain};
use crate::{Answer, Errno};
use core::cell::Cell;
use core::sync::atomic::{Ordering, fence};
use sidestep_device::copy::{self, Choice, LONG_MIN, Manner};
use sidestep_device::counts::count;
use sidestep_device::map::Scratch;
use sidestep_device::program::{Buffers, Received, Sent};
use sidestep_device::ring::Ring;
use sidestep_device::state::{Slot, flag};
use sidestep_device::sys::{self, Errno as SysErrno};
use sidestep_proto::cursor::{self, Spans};
use sidestep_proto::cut_over::{self, Source};

/// What became of a call.
pub enum Outcome {
    /// libc was called and has answered, `errno` included.
    Plain(isize),
    /// We have answered.
    Ours(Answer),
}

/// Copies `n` bytes, after the first `skip`, into the ring at a position.
#[inline]
fn copy_in(
    buffers: &Buffers<'_, Sent>,
    (skip, n): (usize, usize),
    ring: &Ring,
    mut position: u64,
    manner: Manner,
) {
    buffers.each_sent(skip, n, |bytes| {
        let spans = Spans::cut(position, bytes.len(), ring.memory_len());
        let (first, second) = bytes.split_at(spans.first.len());
        ring.write(spans.first, first, manner);
        if !second.is_empty() {
            ring.write(spans.second, second, manner);
        }
        position = position.wrapping_add(bytes.len() as u64);
    });
}

/// Copies `n` bytes out of the ring from a position, behind the first `skip`.
#[inline]
fn copy_out(
    buffers: &Buffers<'_, Received>,
    (skip, n): (usize, usize),
    ring: &Ring,
    mut position: u64,
) {
    buffers.each_room(skip, n, |room| {
        let spans = Spans::cut(position, room.len(), ring.memory_len());
        let (first, second) = room.split_at_mut(spans.first.len());
        ring.read(spans.first, first);
        if !second.is_empty() {
            ring.read(spans.second, second);
        }
        position = position.wrapping_add(room.len() as u64);
    });
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
        if let Some(n) = bare::send(fd, &plain) {
            return Some(Outcome::Plain(n));
        }
        let sock = descriptors::sock_to_transfer(fd)?;
        match send_by_tcp(&sock, fd, &plain) {
            Ok(n) => return Some(Outcome::Plain(n)),
            Err(Instead::Anew) => continue,
            Err(Instead::Ring) => {}
        }
        let Some(buffers) = buffers() else { return Some(Outcome::Plain(plain())) };
        if let Some(answer) = smc_send(&sock, fd, &buffers, flags) {
            return Some(Outcome::Ours(answer));
        }
    }
}

/// Makes the program's own call if its bytes still go by TCP, and takes part in the
/// agreement.
///
/// # Errors
/// It was not made.
#[inline]
pub fn send_by_tcp(sock: &Use, fd: i32, plain: impl Fn() -> isize) -> Result<isize, Instead> {
    let word = descriptors::word_of(sock);
    let plain = || plain::by_number(fd, word, &plain);
    loop {
        match sock.phase() {
            Phase::Smc => {
                let slot = sock.slot().ok_or(Instead::Ring)?;
                const BY_RING: u32 = flag::SEND_SWITCHED;
                // After a reset TCP has nothing more to say: its error was taken.
                match slot.flags.load(Ordering::Acquire) {
                    flags if flags & (BY_RING | flag::LEAVES_RING) == BY_RING => {
                        return Err(Instead::Ring);
                    }
                    flags if flags & flag::RESET != 0 => return Err(Instead::Ring),
                    _ => {
                        let conn = sock.conn().ok_or(Instead::Ring)?;
                        return send_beside_ring(sock, slot, fd, &conn, &plain);
                    }
                }
            }
            Phase::Candidate | Phase::Meeting => {
                let may_move = agreement::look(sock.sock(), fd, Moment::BeforeSend);
                if let Some(n) = plain_send(sock, &plain) {
                    let n = n?;
                    if may_move {
                        agreement::look(sock.sock(), fd, Moment::AfterSend);
                    }
                    return Ok(n);
                }
            }
            Phase::Offered => {
                return hand_over::settled(sock, fd, false, plain).ok_or(Instead::Anew);
            }
            _ => {
                let n = plain().ok_or(Instead::Anew)?;
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

fn smc_send(sock: &Use, fd: i32, buffers: &Buffers<'_, Sent>, flags: i32) -> Option<Answer> {
    let (conn, slot) = (sock.conn()?, sock.slot()?);
    let urgent = flags & libc::MSG_OOB != 0 && !buffers.is_empty();
    let send = RingSend { sock, slot, conn: &conn, file: File::of(sock, fd), urgent };
    let answer = send.all(buffers, flags & libc::MSG_DONTWAIT != 0)?;
    if urgent && answer == Ok(buffers.len()) {
        send.ring_urgently();
    }
    Some(answer)
}

/// Switches if it can be done now, or leaves the ring if that is wished; bytes that do not
/// go through the ring then go by TCP: their number.
#[cold]
fn send_beside_ring(
    sock: &Use,
    slot: &Slot,
    fd: i32,
    conn: &Conn,
    plain: &impl Fn() -> Option<isize>,
) -> Result<isize, Instead> {
    let file = File::of(sock, fd);
    wait::follow_hint(slot, conn, file);
    if slot.flags.load(Ordering::Acquire) & flag::RESET != 0 {
        return Err(Instead::Ring);
    }
    let under_way = {
        let sending = Held::enter(&slot.send_lock);
        let flags = slot.flags.load(Ordering::Acquire);
        let stays = || {
            let may_leave = flags & flag::LEAVES_RING != 0 && sending.is_outermost();
            !(may_leave && switch::leave_ring(slot, file, conn))
        };
        let goes_by_ring = match flags & flag::SEND_SWITCHED {
            0 => switch::send_into_ring(sock, slot, file, conn, &sending),
            _ => stays(),
        };
        if goes_by_ring {
            return Err(Instead::Ring);
        }
        // Under the lock: nobody switches while this call is under way.
        Counted::new(&slot.plain_sends)
    };
    let n = plain().ok_or(Instead::Anew)?;
    if n < 0 {
        ends::note_reset_by_tcp(slot, conn, file);
    }
    // TCP may have taken a part or nothing. The loop of the program was told of room
    // by us, so the kernel's next word about it counts as news.
    sock.out_blocked.store(true, Ordering::Relaxed);
    drop(under_way);
    candidate::count_plain(sock, true, n);
    Ok(n)
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

/// Whoever sends into the ring of one connection.
struct RingSend<'a> {
    sock: &'a Sock,
    slot: &'a Slot,
    conn: &'a Conn,
    file: File<'a>,
    /// The last byte is urgent.
    urgent: bool,
}

impl RingSend<'_> {
    /// Sends everything, waiting for room unless the socket or the call says not to.
    /// `None`: the direction has left the ring.
    fn all(&self, buffers: &Buffers<'_, Sent>, dont_wait: bool) -> Option<Answer> {
        let mut done = 0;
        let unfinished = Unfinished::default();
        match self.rest(buffers, &mut done, &unfinished, dont_wait) {
            Err(LEFT) if done == 0 => return None,
            Err(errno) if done == 0 => return Some(Err(errno)),
            _ => {}
        }
        let counters = &self.slot.counters;
        count(&counters.bytes_sent, done as u64);
        count(&counters.ring_bytes_sent, done as u64);
        count(&counters.messages_sent, 1);
        self.slot.sent.count(done as u64);
        Some(Ok(done))
    }

    /// Sends what is not `done`, as far as it goes.
    fn rest<'a>(
        &'a self,
        buffers: &Buffers<'_, Sent>,
        done: &mut usize,
        unfinished: &Unfinished<'a>,
        dont_wait: bool,
    ) -> Answer<()> {
        let deadline = Cell::new(None);
        loop {
            *done += self.some(buffers, *done, unfinished)?;
            if *done == buffers.len() {
                return Ok(());
            }
            if wait::has_room(self.conn) {
                continue;
            }
            if dont_wait || !self.sock.seems_blocking() {
                // Also after a part: many loops take a short write for EAGAIN.
                wait::want_room(self.sock, self.slot, self.conn, self.file);
                if wait::has_room(self.conn) {
                    continue;
                }
                if *done == 0 && wait::peer_has_died(self.sock, self.slot, self.conn, self.file) {
                    continue;
                }
                return Err(libc::EAGAIN);
            }
            self.wait(*done > 0, &deadline)?;
        }
    }

    /// Sends what there is room for, and nobody else's bytes come between: as Linux
    /// does, which gives its lock back only to wait for room.
    #[inline]
    fn some<'a>(
        &'a self,
        buffers: &Buffers<'_, Sent>,
        done: usize,
        unfinished: &Unfinished<'a>,
    ) -> Answer {
        let conn = self.conn;
        let sending = Held::enter(&self.slot.send_lock);
        wait::follow_hint(self.slot, conn, self.file);
        let flags = self.slot.flags.load(Ordering::Acquire);
        if flags & ends::SEND_OVER != 0 {
            drop(sending);
            let rest = buffers.len() - done;
            let answer = match done {
                0 => ends::send_after_end(self.slot, conn, self.file, rest),
                _ => ends::send_after_part(self.slot, conn, self.file, rest),
            };
            crate::polling::epoll::note_change(self.sock);
            return answer;
        }
        if !cut_over::is_ring(conn.mine.sending.way.turns()) {
            return Err(LEFT);
        }
        let mut sent = match self.part(buffers, done) {
            Err(errno) if done > 0 => return Err(self.keep(errno)),
            sent => sent?,
        };
        // A long send is published in parts, so that the reader copies out while we
        // copy in.
        while sent > 0 && done + sent < buffers.len() {
            wait::wake_readers(self.slot, conn, self.file);
            match self.part(buffers, done + sent) {
                Ok(n @ 1..) => sent += n,
                Ok(0) => break,
                Err(errno) => {
                    self.keep(errno);
                    break;
                }
            }
        }
        if (1..buffers.len()).contains(&(done + sent)) {
            unfinished.begin(self.slot);
        }
        drop(sending);
        if sent > 0 {
            wait::wake_readers(self.slot, conn, self.file);
        }
        Ok(sent)
    }

    /// The peer has broken the protocol behind a part that was sent: the part is the answer, and the next call is told (as
    /// by Linux, which leaves `sk_err` where it is).
    #[cold]
    fn keep(&self, errno: Errno) -> Errno {
        ends::keep(self.slot, errno);
        errno
    }

    /// One copy, one publication. Under the send lock.
    #[inline]
    fn part(&self, buffers: &Buffers<'_, Sent>, done: usize) -> Answer {
        let conn = self.conn;
        let producer = conn.mine.sending.producer.position();
        let window = self.window_from(producer)?;
        let part = (conn.outgoing.len() / 4).max(window / 2);
        let n = window.min(buffers.len() - done).min(part);
        if n == 0 {
            return Ok(0);
        }
        let choice = self.choice(n);
        let manner = choice.map_or(Manner::Cached, Choice::manner);
        copy_in(buffers, (done, n), &conn.outgoing, producer, manner);
        if self.urgent && done + n == buffers.len() {
            conn.mine.sending.urgent.store(producer.wrapping_add(n as u64), Ordering::Release);
        }
        // Wrapping: also our own record is only as good as who can write to it.
        let published =
            conn.mine.sending.producer.publish(producer, producer.wrapping_add(n as u64));
        if let Some(choice) = choice {
            choice.note(n, copy::ticks());
        }
        Ok(if published { n } else { 0 })
    }

    /// How `n` bytes are best left for the reader; `None`: there is nothing to choose.
    #[inline]
    fn choice(&self, n: usize) -> Option<&Choice> {
        let is_elsewhere = || wait::cpu_of(self.conn.theirs) != Some(sys::cpu());
        (n >= LONG_MIN && is_elsewhere()).then_some(&self.sock.copy_choice)
    }

    /// Room in the ring; the peer's cursor is read only when the last one known
    /// leaves less than a quarter of it.
    #[inline]
    fn window_from(&self, producer: u64) -> Answer {
        let len = self.conn.outgoing.len();
        let known = self.sock.send_limit.load(Ordering::Relaxed).saturating_sub(producer) as usize;
        if known >= len / 4 && known <= len {
            return Ok(known);
        }
        // Acquire: the peer has read the bytes that we are about to overwrite.
        let claim = self.conn.theirs.receiving.consumer.claim();
        let window = cursor::window(producer, claim, len)
            .map_err(|misbehaved| ends::reset(self.slot, self.conn, &misbehaved))?;
        self.sock.send_limit.store(claim.wrapping_add(len as u64), Ordering::Relaxed);
        Ok(window)
    }

    fn wait(&self, has_part: bool, deadline: &Cell<Option<u64>>) -> Answer<()> {
        let sleep = || {
            if deadline.get().is_none() {
                deadline.set(socket_options::send_deadline(self.file));
            }
            Sleep { has_part, deadline: deadline.get() }
        };
        wait::writable(self.sock, self.slot, self.conn, self.file, sleep)
    }

    /// Lets the kernel raise SIGURG on the other side: an urgent bell.
    #[cold]
    fn ring_urgently(&self) {
        let flags = libc::MSG_OOB | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        wait::note_rung(self.slot, self.conn, self.file, self.file.send(b"!", flags));
    }
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
        if let Some(n) = bare::receive(fd, flags, &plain) {
            return Some(Outcome::Plain(n));
        }
        let sock = descriptors::sock_to_transfer(fd)?;
        match receive_by_tcp(&sock, fd, flags, &plain) {
            Ok(n) => return Some(Outcome::Plain(n)),
            Err(Instead::Anew) => continue,
            Err(Instead::Ring) => {}
        }
        let Some(buffers) = buffers() else { return Some(Outcome::Plain(plain())) };
        if let Some(answer) = smc_receive(&sock, fd, &buffers, flags) {
            return Some(Outcome::Ours(answer));
        }
    }
}

/// Makes the program's own call if its bytes still come by TCP alone, and takes part
/// in the agreement.
///
/// # Errors
/// It was not made.
#[inline]
pub fn receive_by_tcp(
    sock: &Use,
    fd: i32,
    flags: i32,
    plain: impl Fn() -> isize,
) -> Result<isize, Instead> {
    let word = descriptors::word_of(sock);
    let plain = || plain::by_number(fd, word, &plain);
    match sock.phase() {
        Phase::Smc if flags & libc::MSG_ERRQUEUE != 0 => plain().ok_or(Instead::Anew),
        Phase::Smc => Err(Instead::Ring),
        Phase::Candidate | Phase::Meeting => {
            let may_move = agreement::look(sock.sock(), fd, Moment::BeforeReceive);
            let n = plain_receive(sock, flags, &plain)?;
            if n > 0 && may_move {
                agreement::look(sock.sock(), fd, Moment::AfterReceive);
            }
            Ok(n)
        }
        Phase::Offered => {
            let dont_wait = flags & libc::MSG_DONTWAIT != 0;
            hand_over::settled(sock, fd, dont_wait, plain).ok_or(Instead::Anew)
        }
        _ => {
            let n = plain().ok_or(Instead::Anew)?;
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

fn smc_receive(sock: &Use, fd: i32, buffers: &Buffers<'_, Received>, flags: i32) -> Option<Answer> {
    let (conn, slot) = (sock.conn()?, sock.slot()?);
    let receive = Receive { sock, slot, conn: &conn, file: File::of(sock, fd), flags };
    if flags & libc::MSG_OOB != 0 {
        return Some(receive.urgent(buffers));
    }
    if slot.flags.load(Ordering::Relaxed) & flag::PEEK_OFFSET != 0 {
        return Some(receive.with_peek_offset(buffers));
    }
    Some(receive.counted(buffers))
}

/// What one look into ring or TCP queue has brought.
enum Found {
    /// So many bytes, copied.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// Nothing any more: 0, or the error that ended the connection.
    End(Option<Errno>),
}

/// Bytes that are taken from TCP at once, while some of them may be bells.
const TCP_CHUNK: usize = 16 << 10;

/// Whoever receives from one connection.
struct Receive<'a> {
    sock: &'a Sock,
    slot: &'a Slot,
    conn: &'a Conn,
    file: File<'a>,
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
            count(&self.slot.counters.bytes_received, n as u64);
            count(&self.slot.counters.messages_received, 1);
            self.slot.received.count(n as u64);
        }
        answer
    }

    /// With `SO_PEEK_OFF` each peek goes on where the last one ended, and reading
    /// moves that place back.
    #[cold]
    fn with_peek_offset(&self, buffers: &Buffers<'_, Received>) -> Answer {
        let place = &self.slot.peek_offset;
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
        let seen = self.until(buffers, self.wanted(buffers.len() - skip) + skip)?;
        match seen.checked_sub(skip) {
            Some(n @ 1..) => Ok(n),
            _ if readiness::may_have_ended(self.slot, self.conn) => Ok(0),
            _ => Err(libc::EAGAIN),
        }
    }

    /// Receives until the call is satisfied.
    fn all(&self, buffers: &Buffers<'_, Received>) -> Answer {
        self.until(buffers, self.wanted(buffers.len()))
    }

    /// Receives until there are as many bytes as `wanted`, or something else ends it.
    fn until(&self, buffers: &Buffers<'_, Received>, wanted: usize) -> Answer {
        let mut done = 0;
        let patience = Patience::new();
        loop {
            let by_tcp = self.slot.flags.load(Ordering::Relaxed) & flag::RECEIVE_SWITCHED == 0;
            match self.some(buffers, done) {
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
                    wait::follow_hint(self.slot, self.conn, self.file);
                    if readiness::may_have_ended(self.slot, self.conn) {
                        return Ok(done);
                    }
                }
                Found::End(None) => return Ok(done),
                Found::End(Some(errno)) if done == 0 => return Err(errno),
                Found::End(Some(errno)) => {
                    ends::keep(self.slot, errno);
                    return Ok(done);
                }
                Found::Nothing if done > 0 && done >= wanted => return Ok(done),
                Found::Nothing => {}
            }
            if self.flags & libc::MSG_DONTWAIT != 0 || !self.sock.seems_blocking() {
                if done == 0 && wait::peer_has_died(self.sock, self.slot, self.conn, self.file) {
                    continue;
                }
                self.sock.note_nothing();
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

    /// Waits until there are `needed` bytes, which a call may do more than once, or it turns
    /// out that it may not wait.
    fn wait(&self, needed: usize, has_part: bool, patience: &Patience) -> Answer<()> {
        let ready = || self.is_ready(needed);
        loop {
            wait::readable(self.sock, self.slot, self.conn, self.file, patience, has_part, ready)?;
            if ready() || !self.sock.seems_blocking() {
                return Ok(());
            }
        }
    }

    /// How many bytes wake a call that has `done` and sleeps. Less than the low-water mark
    /// wakes nobody, not even a call that would have been content with what was there
    /// (`tcp_data_ready`). What still comes by TCP is taken at once: a sleep would find it
    /// again and again.
    fn needed(&self, done: usize) -> usize {
        let more = if self.peeks() { done + 1 } else { 1 };
        match self.slot.flags.load(Ordering::Relaxed) & flag::RECEIVE_SWITCHED {
            0 => more,
            _ => more.max(readiness::low_water(self.slot, self.conn)),
        }
    }

    /// How many bytes a blocking call waits for.
    fn wanted(&self, len: usize) -> usize {
        if self.flags & libc::MSG_WAITALL != 0 {
            return if self.peeks() { len.min(self.most_to_peek()) } else { len };
        }
        let low_water = self.slot.low_water.load(Ordering::Relaxed) as usize;
        low_water.min(len).max(1)
    }

    /// A peek cannot wait for more than is ever there at once.
    fn most_to_peek(&self) -> usize {
        let switched = self.slot.flags.load(Ordering::Relaxed) & flag::RECEIVE_SWITCHED != 0;
        if switched { self.conn.incoming.len() } else { TCP_CHUNK }
    }

    /// One look: the ring, or what is left in TCP before it.
    #[inline]
    fn some(&self, buffers: &Buffers<'_, Received>, done: usize) -> Found {
        const UNUSUAL: u32 = flag::RECEIVE_SWITCHED | flag::ASYNC | flag::TURN_WANTED;
        let receiving = Held::enter(&self.slot.receive_lock);
        // A peek sees the same bytes again: it starts over.
        let done = if self.peeks() { 0 } else { done };
        let flags = self.slot.flags.load(Ordering::Acquire);
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
            self.make_room_known(n);
        }
        found
    }

    /// The same while bytes of the program may come by TCP, or bells have to be cleared
    /// away. Under the receive lock.
    #[cold]
    fn some_from_either(&self, buffers: &Buffers<'_, Received>, done: usize) -> (Found, Source) {
        let mut source = switch::settle(self.slot, self.conn, self.file);
        loop {
            let found = match source {
                Source::Tcp => self.some_from_tcp(buffers, done),
                Source::Ring => {
                    // With `O_ASYNC` every message has left a bell.
                    wait::drain_bells(self.slot, self.conn, self.file);
                    self.some_from_ring(buffers, done)
                }
            };
            if self.peeks() || !matches!(found, Found::Nothing) {
                return (found, source);
            }
            let before =
                core::mem::replace(&mut source, switch::settle(self.slot, self.conn, self.file));
            if before == source {
                return (found, source);
            }
        }
    }

    /// What is in the ring and, for a peek that has seen all of it, in TCP behind it.
    fn some_from_ring(&self, buffers: &Buffers<'_, Received>, done: usize) -> Found {
        let found = self.take_from_ring(buffers, done, buffers.len() - done);
        let Found::Bytes(seen) = found else { return found };
        let is_all = self.peeks() && seen == readiness::in_ring(self.conn);
        if is_all && seen < buffers.len() && switch::peer_turn(self.slot, self.conn).is_some() {
            let behind = self.peek_tcp(buffers, seen);
            return Found::Bytes(seen + behind);
        }
        found
    }

    /// Peeks at bytes of the program that lie in TCP behind all bells: how many.
    fn peek_tcp(&self, buffers: &Buffers<'_, Received>, skip: usize) -> usize {
        let mut chunk = [0u8; TCP_CHUNK];
        let room = (buffers.len() - skip).min(chunk.len());
        wait::skip_bells_unless_asleep(self.slot, self.conn, self.file);
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        let seen = self.file.recv(&mut chunk[..room], flags).unwrap_or(0);
        let parts = switch::parts_of_queue(self.slot, self.conn, seen);
        if parts.bells > 0 {
            // More have come meanwhile: the next look finds what is behind them.
            return 0;
        }
        buffers.fill(skip, &chunk[..parts.data as usize]);
        parts.data as usize
    }

    #[inline]
    fn take_from_ring(&self, buffers: &Buffers<'_, Received>, done: usize, room: usize) -> Found {
        let conn = self.conn;
        loop {
            let consumer = conn.mine.receiving.consumer.position();
            // Acquire: pairs with the peer's publication; the bytes are there.
            let claim = conn.theirs.sending.producer.claim();
            let readable = match cursor::readable(consumer, claim, conn.incoming.len()) {
                Ok(0) => return Found::Nothing,
                Ok(readable) => readable,
                Err(misbehaved) => {
                    return Found::End(Some(ends::reset(self.slot, conn, &misbehaved)));
                }
            };
            let (skip, readable) = self.up_to_mark(consumer, readable);
            let n = readable.min(room);
            if n == 0 && room > 0 && (skip == 0 || self.peeks()) {
                return Found::Nothing;
            }
            if self.flags & libc::MSG_TRUNC == 0 {
                copy_out(buffers, (done, n), &conn.incoming, consumer.wrapping_add(skip));
            }
            if self.peeks() {
                return Found::Bytes(n);
            }
            let next = consumer.wrapping_add(skip + n as u64);
            if conn.mine.receiving.consumer.publish(consumer, next) {
                if urgent::is_marked(conn) {
                    urgent::note_seen(self.slot, conn);
                }
                count(&self.slot.counters.ring_bytes_received, n as u64);
                if n > 0 || room == 0 {
                    return Found::Bytes(n);
                }
            }
        }
    }

    /// An urgent byte ahead cuts a read short, and one that is next is left out
    /// (unless urgent data is read in line): (bytes to skip, bytes to read).
    #[inline]
    fn up_to_mark(&self, consumer: u64, readable: usize) -> (u64, usize) {
        if urgent::is_marked(self.conn) {
            return urgent::cut(self.slot, self.conn, consumer, readable);
        }
        (0, readable)
    }

    /// A read that has reached the urgent mark returns what it has.
    fn stops_at_mark(&self, done: usize) -> bool {
        if !switch::comes_by_ring(self.slot) {
            return switch::queued(self.file) > 0
                && urgent::is_at_mark_in_tcp(self.slot, self.file);
        }
        let peeked = if self.peeks() { done as u64 } else { 0 };
        let next = self.conn.mine.receiving.consumer.position() + peeked;
        urgent::mark(self.conn, next) == Some(next)
    }

    fn is_reset(&self) -> bool {
        self.slot.flags.load(Ordering::Relaxed) & flag::RESET != 0
    }

    /// The ring is empty: has the connection ended?
    fn end(&self) -> Found {
        wait::follow_hint(self.slot, self.conn, self.file);
        let passed = if self.peeks() { self.passed_byte() } else { 0 };
        match ends::end_of_input(self.slot, self.conn, self.file, passed) {
            Some(ends::End::Input) => Found::End(None),
            Some(ends::End::Reset(errno)) => Found::End(Some(errno)),
            None => Found::Nothing,
        }
    }

    /// 1 if an urgent byte is all that is left in the ring: a peek looks past it, and leaves it there.
    fn passed_byte(&self) -> u64 {
        let consumer = self.conn.mine.receiving.consumer.position();
        match self.up_to_mark(consumer, readiness::in_ring(self.conn)) {
            (passed, 0) => passed,
            _ => 0,
        }
    }

    /// How many bytes of the program are at the front of the TCP queue. Behind them there may be bells for
    /// a thread that sleeps there: this one takes none of them.
    #[cold]
    fn data_before_bells(&self, chunk: &mut [u8]) -> usize {
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        let seen = self.file.recv(chunk, flags).unwrap_or(0);
        let parts = switch::parts_of_queue(self.slot, self.conn, seen);
        if parts.bells == 0 { parts.data as usize } else { 0 }
    }

    /// Bytes that the peer sent by TCP before it switched. Under the receive lock.
    #[cold]
    fn some_from_tcp(&self, buffers: &Buffers<'_, Received>, done: usize) -> Found {
        let mut chunk = [0u8; TCP_CHUNK];
        let skip = if self.peeks() { 0 } else { done };
        // An urgent byte that is next is taken and left out.
        let left_out = usize::from(urgent::is_next_left_out(self.slot, self.file));
        let is_full = buffers.len() == skip;
        if is_full && left_out > 0 {
            return Found::Nothing;
        }
        let mut room = (buffers.len() - skip + left_out).min(chunk.len());
        let alone = wait::Alone::on_tcp(self.slot);
        if alone.is_none() {
            room = self.data_before_bells(&mut chunk[..room]);
            if room == 0 {
                return Found::Nothing;
            }
        }
        let flags = libc::MSG_DONTWAIT | (self.flags & libc::MSG_PEEK);
        let received = self.file.recv(&mut chunk[..room], flags);
        drop(alone);
        let taken = match received {
            // To a call without room the kernel says 0 of bytes as of the end.
            Ok(0) if is_full && switch::queued(self.file) > 0 => return Found::Bytes(0),
            Ok(0) => {
                ends::tcp_ended(self.slot, self.conn, self.file);
                return match switch::settle(self.slot, self.conn, self.file) {
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
                ends::note_tcp_error(self.slot, self.conn, self.file, errno);
                return self.end();
            }
        };
        let consumed = self.slot.tcp_consumed.load(Ordering::Relaxed);
        let parts = switch::parts_of_queue(self.slot, self.conn, taken);
        let [before, data] = [parts.bells, parts.data].map(|n| n as usize);
        let end = before + data;
        let turn = switch::peer_turn(self.slot, self.conn);
        let all_of_tcp = turn.is_some_and(|at| consumed + end as u64 >= at);
        wait::check_bells(self.slot, self.conn, self.file, &chunk[..before]);
        wait::check_bells(self.slot, self.conn, self.file, &chunk[end..taken]);
        let left_out = left_out.min(data);
        let data = data - left_out;
        if self.flags & libc::MSG_TRUNC == 0 {
            buffers.fill(skip, &chunk[end - data..end]);
        }
        if !self.peeks() {
            let (taken, bells) = (taken as u64, (taken - left_out - data) as u64);
            self.slot.tcp_consumed.fetch_add(taken, Ordering::Relaxed);
            self.slot.tcp_bells.fetch_add(bells, Ordering::Relaxed);
            urgent::note_stop_in_tcp(self.slot, self.file);
        }
        if self.peeks() && all_of_tcp && skip + data < buffers.len() {
            return self.peek_behind_tcp(buffers, data);
        }
        if data == 0 { Found::Nothing } else { Found::Bytes(data) }
    }

    /// A peek has seen the last `seen` bytes that came by TCP: the rest is in the ring.
    fn peek_behind_tcp(&self, buffers: &Buffers<'_, Received>, seen: usize) -> Found {
        match self.take_from_ring(buffers, seen, buffers.len() - seen) {
            Found::Bytes(n) => Found::Bytes(seen + n),
            _ if seen > 0 => Found::Bytes(seen),
            other => other,
        }
    }

    /// After reading `n` bytes: if the ring was more than half full before, a writer
    /// may wait for room.
    #[inline]
    fn make_room_known(&self, n: usize) {
        let conn = self.conn;
        let len = conn.incoming.len();
        let consumer = conn.mine.receiving.consumer.position();
        let producer = conn.theirs.sending.producer.position();
        let left = producer.wrapping_sub(consumer) as usize;
        if left.saturating_add(n) > len / 2 {
            // Who always finds something to read looks for hints here.
            wait::follow_hint(self.slot, conn, self.file);
            wait::note_cpu(conn.mine);
            fence(Ordering::SeqCst);
            if len.saturating_sub(left) >= cursor::writable_threshold(len) {
                wait::wake_writers(self.sock, self.slot, conn, self.file);
            }
        }
    }

    fn is_ready(&self, needed: usize) -> bool {
        // An urgent byte that a peek looks past is no news to it.
        if needed <= 1 && !self.peeks() {
            return readiness::has_input(self.slot, self.conn, self.file);
        }
        readiness::may_have_ended(self.slot, self.conn)
            || readiness::readable(self.slot, self.conn, self.file) >= needed
    }

    /// `MSG_OOB`: the urgent byte.
    fn urgent(&self, buffers: &Buffers<'_, Received>) -> Answer {
        let receiving = Held::enter(&self.slot.receive_lock);
        if urgent::is_in_line(self.slot) {
            return Err(libc::EINVAL);
        }
        if !switch::comes_by_ring(self.slot) && !urgent::is_marked(self.conn) {
            let byte = urgent::take_from_tcp(self.file, self.peeks()).map_err(|errno| errno.0)?;
            let n = buffers.len().min(1);
            buffers.fill(0, &[byte][..n]);
            return Ok(n);
        }
        let at = urgent::waiting(self.slot, self.conn).ok_or(libc::EINVAL)?;
        let n = buffers.len().min(1);
        copy_out(buffers, (0, n), &self.conn.incoming, at);
        if n > 0 && !self.peeks() {
            urgent::note_taken(self.slot, self.conn, at);
            drop(receiving);
            // The urgent bell has done its work.
            wait::drain_bells(self.slot, self.conn, self.file);
        }
        Ok(n)
    }
}
