//! How connections end, carried out: [`sidestep_proto::ends`] decides.
//!
//! The machines run here on shared memory ([`OwnWords`]), the kernel ([`Tcp`]) and the locks of a socket
//! ([`Program`]). All bits of an end, in the slot and in the record, are written in this file, and
//! each is looked at here or in a check that only asks whether an end may be near: warm sends and
//! receives come here when such a check says so, and not before.

use crate::connection::{socket_options, switch, urgent, wait};
use crate::process::pool::Held;
use crate::table::conn::Conn;
use crate::table::descriptors::Use;
use crate::table::file::File;
use crate::table::sock::Phase;
use crate::table::sock::Sock;
use crate::{Answer, Errno};
use core::cell::Cell;
use core::fmt::Display;
use core::sync::atomic::Ordering;
use sidestep_device::slab::flag as said;
use sidestep_device::state::{Slot, flag};
use sidestep_device::sys;
use sidestep_proto::cursor;
use sidestep_proto::ends::{
    Breach, Breaking, Call, Closing, Hearing, Kernel, Leaving, Note, Output, Own, Polled, Reset,
    Said, Say, Seen, Shutting, State, Telling, Told, What, Words, errno,
};

const _: () = assert!(
    errno::EBADF == libc::EBADF
        && errno::EPIPE == libc::EPIPE
        && errno::ENOTSOCK == libc::ENOTSOCK
        && errno::ECONNRESET == libc::ECONNRESET
        && errno::ENOTCONN == libc::ENOTCONN
);

/// With one of these flags a send is for [`send_after_end`].
pub(crate) const SEND_OVER: u32 =
    flag::WRITE_SHUT | flag::RESET | flag::PEER_GONE | flag::PEER_REFUSES;

/// How input ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer sends no more: `recv` returns 0.
    Input,
    /// The connection was reset; the error is reported once.
    Reset(Errno),
}

// ---- what the machines run on ----------------------------------------------

/// The words of one end in shared memory.
struct OwnWords<'a> {
    slot: &'a Slot,
    conn: &'a Conn,
    /// Bytes that the caller has looked past: what is unread lies behind them.
    passed: u64,
}

impl<'a> OwnWords<'a> {
    const fn new(slot: &'a Slot, conn: &'a Conn) -> Self {
        Self { slot, conn, passed: 0 }
    }
}

impl OwnWords<'_> {
    /// Changes the reset, if it may be changed so. SeqCst: as in [`Self::note`].
    fn change_reset(&self, change: impl Fn(Reset) -> Option<Reset>) -> Option<Reset> {
        let word = |reset: Reset| reset.word();
        let before = self.slot.reset.fetch_update(Ordering::SeqCst, Ordering::Acquire, |now| {
            change(Reset::from_word(now)).map(word)
        });
        // Behind the word: a thread that sees the bit sees what it is about.
        if self.slot.flags.load(Ordering::Relaxed) & flag::RESET == 0 {
            self.slot.flags.fetch_or(flag::RESET, Ordering::SeqCst);
        }
        before.ok().map(Reset::from_word)
    }
}

impl Words for OwnWords<'_> {
    fn look(&self) -> Seen {
        let (slot, conn) = (self.slot, self.conn);
        let theirs = &conn.theirs.sending;
        // Acquire, in this order: see "The words" of `proto::ends`.
        let reset = Reset::from_word(slot.reset.load(Ordering::Acquire));
        let flags = slot.flags.load(Ordering::Acquire);
        let peer = theirs.flags.load(Ordering::Acquire);
        let unread = has_unread(conn, self.passed);
        Seen {
            own: Own {
                read_shut: flags & flag::READ_SHUT != 0,
                write_shut: flags & flag::WRITE_SHUT != 0,
                input_ended: flags & flag::TCP_ENDED != 0,
                peer_gone: flags & flag::PEER_GONE != 0,
                peer_refuses: flags & flag::PEER_REFUSES != 0,
                reset,
                sends_by_tcp: flags & flag::SEND_SWITCHED == 0,
            },
            peer: Said {
                done: peer & said::DONE != 0,
                fin_by_tcp: peer & said::FIN_BY_TCP != 0,
                abort: peer & said::ABORT != 0,
                linger_zero: peer & said::LINGER_ZERO != 0,
                refuses: peer & said::REFUSES != 0,
                read_all: peer & said::READ_ALL != 0,
                closed: peer & said::CLOSED != 0,
            },
            unread,
            is_next: unread && is_next(slot, conn),
            unread_by_peer: conn.theirs.receiving.consumer.claim()
                != conn.mine.sending.producer.position(),
            peer_sends_by_tcp: switch::peer_sends_by_tcp(conn),
        }
    }

    fn note(&self, note: Note) {
        let bit = match note {
            Note::Shut(What::Input) => flag::READ_SHUT,
            Note::Shut(What::Output) => flag::WRITE_SHUT,
            Note::Shut(What::Both) => flag::READ_SHUT | flag::WRITE_SHUT,
            Note::InputEnded => flag::TCP_ENDED,
            Note::PeerGone => flag::PEER_GONE,
            Note::PeerRefuses => flag::PEER_REFUSES,
        };
        // SeqCst: a sleeper that looks afterwards, behind a fence of its own, sees the end.
        self.slot.flags.fetch_or(bit, Ordering::SeqCst);
    }

    fn say(&self, say: Say) {
        let bit = match say {
            Say::Done { refuses: false } => said::DONE,
            Say::Done { refuses: true } => said::DONE | said::REFUSES,
            Say::FinByTcp { refuses: false } => said::FIN_BY_TCP,
            Say::FinByTcp { refuses: true } => said::FIN_BY_TCP | said::REFUSES,
            Say::Abort => said::ABORT,
            Say::Refuses => said::REFUSES,
            Say::ReadAll => said::READ_ALL,
            Say::Closed => said::CLOSED,
        };
        // SeqCst: step b of `sidestep_device::arm`, as for a cursor: a reader that falls asleep sees it, or
        // we see the reader. It releases the producer cursor, which is final for a peer that sees the bit.
        self.conn.mine.sending.flags.fetch_or(bit, Ordering::SeqCst);
    }

    fn note_reset(&self, errno: i32) -> bool {
        self.change_reset(|reset| reset.noted(errno)).is_some()
    }

    fn claim_reset(&self) -> bool {
        self.change_reset(Reset::claimed).is_some()
    }

    fn take_reset(&self) -> Option<i32> {
        match self.change_reset(Reset::taken)? {
            Reset::Pending(errno) => Some(errno),
            Reset::None | Reset::Told => None,
        }
    }

    fn hint(&self) {
        hint(self.conn);
    }
}

/// Release: whoever follows the hint sees what it is about.
fn hint(conn: &Conn) {
    conn.mine.sending.closes.fetch_add(1, Ordering::Release);
}

/// Bytes of the peer lie in the ring, behind those that were passed.
fn has_unread(conn: &Conn, passed: u64) -> bool {
    let consumer = conn.mine.receiving.consumer.position();
    // Acquire: read after the peer's flags, it is the last one if they say so.
    conn.theirs.sending.producer.claim() != consumer.wrapping_add(passed)
}

/// The next receive takes the bytes in the ring: none by TCP come before them, no urgent mark
/// stands among them, and the peer's cursor can be believed.
fn is_next(slot: &Slot, conn: &Conn) -> bool {
    let consumer = conn.mine.receiving.consumer.position();
    let claim = conn.theirs.sending.producer.claim();
    switch::comes_by_ring(slot)
        && !urgent::is_marked(conn)
        && cursor::readable(consumer, claim, conn.incoming.len()).is_ok()
}

/// The TCP connection below one end.
struct Tcp<'a> {
    slot: &'a Slot,
    conn: &'a Conn,
    file: File<'a>,
}

impl Kernel for Tcp<'_> {
    fn take_error(&self) -> i32 {
        self.file.option(libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0)
    }

    fn is_peer_gone(&self) -> bool {
        switch::is_peer_gone(self.file)
    }

    fn peer_runs(&self) -> bool {
        self.conn.group.peer_runs()
    }

    fn is_connected(&self) -> bool {
        is_connected(self.file)
    }

    fn wake_readers(&self) {
        wait::wake_readers(self.slot, self.conn, self.file);
    }
}

/// Whether the kernel still knows a peer, or the number leads nowhere any more.
fn is_connected(file: File<'_>) -> bool {
    !matches!(file.call(|fd| sys::socket_name(fd, true)), Err(sys::Errno(libc::ENOTCONN)))
}

/// The socket, for a program that ends a direction.
struct Program<'a> {
    sock: &'a Sock,
    slot: &'a Slot,
    conn: &'a Conn,
    file: File<'a>,
    /// The send lock, while it is held.
    sending: Cell<Option<Held<'a>>>,
}

impl<'a> Program<'a> {
    fn new(sock: &'a Sock, slot: &'a Slot, conn: &'a Conn, file: File<'a>) -> Self {
        Self { sock, slot, conn, file, sending: Cell::new(None) }
    }

    fn kernel_shutdown(&self, how: i32) {
        let _ = self.file.call(|fd| sys::shutdown(fd, how));
    }
}

impl Output for Program<'_> {
    fn lock(&self) -> bool {
        let sending = Held::enter(&self.slot.send_lock);
        let switched = self.slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED != 0;
        let is_in_ring = switched
            || switch::send_into_ring(self.sock, self.slot, self.file, self.conn, &sending);
        self.sending.set(Some(sending));
        is_in_ring
    }

    fn unlock(&self) {
        self.sending.set(None);
    }

    fn send_fin(&self, what: What) {
        let how = if what == What::Both { libc::SHUT_RDWR } else { libc::SHUT_WR };
        self.kernel_shutdown(how);
    }

    fn stop_reading(&self) {
        // Wakes everybody who sleeps in `recv`, `poll` or `epoll_wait` on it.
        self.kernel_shutdown(libc::SHUT_RD);
        sys::futex_wake(&self.slot.turn, i32::MAX);
    }

    fn drain_bells(&self) {
        wait::drain_bells(self.slot, self.conn, self.file);
    }
}

// ---- what the kernel and the peer say --------------------------------------

/// Carries out what follows from an event.
#[cold]
fn hear(slot: &Slot, conn: &Conn, file: File<'_>, event: Hearing) {
    let (words, tcp) = (OwnWords::new(slot, conn), Tcp { slot, conn, file });
    let mut next = Some(event);
    while let Some(hearing) = next {
        next = hearing.step(&words, &tcp);
    }
}

/// The peer has left a hint, or may have: asks what it is about.
pub(crate) fn follow_hint(slot: &Slot, conn: &Conn, file: File<'_>) {
    hear(slot, conn, file, Hearing::Hinted);
}

/// A timer says: asks the kernel whether the peer's end is gone.
pub(crate) fn ask_kernel(slot: &Slot, conn: &Conn, file: File<'_>) {
    hear(slot, conn, file, Hearing::AsksWhetherGone);
}

/// TCP has nothing more for us: the peer has closed, or shut down its sending side
/// before it switched, or we have shut down our receiving side.
pub(crate) fn tcp_ended(slot: &Slot, conn: &Conn, file: File<'_>) {
    hear(slot, conn, file, Hearing::TcpEnded);
}

/// TCP has told a call of ours an error. It tells each to one call only, and this was it.
pub(crate) fn note_tcp_error(slot: &Slot, conn: &Conn, file: File<'_>, errno: Errno) {
    if let Some(event) = Hearing::failed(errno) {
        hear(slot, conn, file, event);
    }
}

/// The peer's end of the TCP connection is gone, as a call has found that can tell no more.
pub(crate) fn peer_gone(slot: &Slot, conn: &Conn, file: File<'_>) {
    hear(slot, conn, file, Hearing::NotesGone);
}

/// A call by TCP has failed: if that was a reset, the program knows of it now.
pub(crate) fn note_reset_by_tcp(slot: &Slot, conn: &Conn, file: File<'_>) {
    if sends_by_tcp(slot) && !is_connected(file) {
        hear(slot, conn, file, Hearing::OwnCallFailed);
    }
}

/// Our direction has not switched: what comes back for it, a reset, is TCP's own.
fn sends_by_tcp(slot: &Slot) -> bool {
    slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED == 0
}

// ---- what the program is told ----------------------------------------------

#[cold]
fn tell(slot: &Slot, conn: &Conn, file: File<'_>, call: Call) -> Told {
    tell_by(&OwnWords::new(slot, conn), file, call)
}

fn tell_by(words: &OwnWords<'_>, file: File<'_>, call: Call) -> Told {
    let OwnWords { slot, conn, .. } = *words;
    let tcp = Tcp { slot, conn, file };
    let mut telling = Telling::begin(call);
    loop {
        match telling {
            Telling::Answers(told) => return told,
            _ => telling = telling.step(words, &tcp),
        }
    }
}

/// With the ring drained, but for `passed` bytes that the caller has looked past: whether and how input has ended.
pub(crate) fn end_of_input(slot: &Slot, conn: &Conn, file: File<'_>, passed: u64) -> Option<End> {
    let flags = slot.flags.load(Ordering::Relaxed);
    let peer = conn.theirs.sending.flags.load(Ordering::Relaxed);
    if flags & (IS_NEAR | flag::READ_SHUT) == 0 && peer & SAYS_NEAR == 0 {
        return None;
    }
    match tell_by(&OwnWords { slot, conn, passed }, file, Call::Receives) {
        Told::Nothing | Told::Sent(_) | Told::Polled(_) | Told::NotOver => None,
        Told::End => Some(End::Input),
        Told::Errno(errno) => Some(End::Reset(errno)),
    }
}

/// A send on a connection that is over for sending. `len`: bytes it wanted to send.
pub(crate) fn send_after_end(slot: &Slot, conn: &Conn, file: File<'_>, len: usize) -> Answer {
    match tell(slot, conn, file, Call::Sends { len }) {
        Told::Sent(n) => Ok(n),
        Told::Errno(errno) => Err(errno),
        Told::Nothing | Told::End | Told::Polled(_) | Told::NotOver => {
            Err(reset(slot, conn, &"what this end has written down of its end contradicts itself"))
        }
    }
}

/// The same behind a part that this call has sent, which is its answer: a reset is left to the next call, as by
/// Linux (`tcp_sendmsg_locked`, where only a call without any part takes `sk_err`).
#[cold]
pub(crate) fn send_after_part(slot: &Slot, conn: &Conn, file: File<'_>, len: usize) -> Answer {
    let is_reset = || slot.flags.load(Ordering::Acquire) & flag::RESET != 0;
    if is_reset() {
        return Err(libc::EPIPE);
    }
    let answer = send_after_end(slot, conn, file, len);
    if let Err(errno) = answer
        && is_reset()
    {
        keep(slot, errno);
    }
    answer
}

/// `SO_ERROR`: the pending error, once. The kernel's own error on a connection in
/// shared memory is about bells, so it is taken and replaced by ours; before our direction
/// has switched it is about our bytes.
pub(crate) fn take_error(slot: &Slot, conn: &Conn, file: File<'_>) -> Errno {
    match tell(slot, conn, file, Call::AsksError) {
        Told::Errno(errno) => errno,
        Told::Nothing | Told::End | Told::Sent(_) | Told::Polled(_) | Told::NotOver => 0,
    }
}

/// A call that was to tell of a reset has bytes to tell of: the next one does.
pub(crate) fn keep(slot: &Slot, errno: Errno) {
    // SeqCst: as in `OwnWords::note`.
    slot.reset.store(Reset::None.kept(errno).word(), Ordering::SeqCst);
}

/// With one of these flags, or what the peer says with one of [`SAYS_NEAR`], something has ended.
const IS_NEAR: u32 = flag::PEER_GONE | flag::RESET | flag::TCP_ENDED;
const SAYS_NEAR: u32 = said::DONE | said::ABORT;

/// What `poll` has to know of ends.
#[inline]
pub(crate) fn poll(slot: &Slot, conn: &Conn, file: File<'_>) -> Polled {
    let flags = slot.flags.load(Ordering::Acquire);
    let peer = conn.theirs.sending.flags.load(Ordering::Acquire);
    if flags & IS_NEAR == 0 && peer & SAYS_NEAR == 0 {
        return Polled::default();
    }
    poll_near_end(slot, conn, file)
}

#[cold]
fn poll_near_end(slot: &Slot, conn: &Conn, file: File<'_>) -> Polled {
    match tell(slot, conn, file, Call::Polls) {
        Told::Polled(polled) => polled,
        Told::Nothing | Told::End | Told::Sent(_) | Told::Errno(_) | Told::NotOver => {
            Polled::default()
        }
    }
}

/// What both directions amount to. A reset that this shows is noted: the program's next call is told.
pub(crate) fn state(slot: &Slot, conn: &Conn, file: File<'_>) -> State {
    poll(slot, conn, file);
    State::of(&OwnWords::new(slot, conn).look())
}

/// Whether the connection has ended and `getpeername` says `ENOTCONN`.
pub fn has_no_peer(sock: &Use, fd: i32) -> bool {
    let (Some(conn), Some(slot)) = (sock.conn(), sock.slot()) else { return false };
    let file = File::of(sock, fd);
    wait::ask_kernel(slot, &conn, file);
    state(slot, &conn, file).is_closed()
}

// ---- what this end does ----------------------------------------------------

#[cold]
fn break_off(slot: &Slot, conn: &Conn, breach: Breach) {
    let mut next = Some(Breaking::begin(breach));
    while let Some(breaking) = next {
        next = breaking.step(&OwnWords::new(slot, conn));
    }
}

/// The peer broke the protocol: the connection is reset on both sides, and the caller tells the program.
#[cold]
pub fn reset(slot: &Slot, conn: &Conn, what: &dyn Display) -> Errno {
    crate::log!(Error, "{}: {what}; connection reset", conn.group.peer);
    break_off(slot, conn, Breach::Answered);
    libc::ECONNRESET
}

/// The same where there is no call to tell the program: its next one does.
#[cold]
pub(crate) fn reset_untold(slot: &Slot, conn: &Conn, what: &dyn Display) {
    crate::log!(Error, "{}: {what}; connection reset", conn.group.peer);
    break_off(slot, conn, Breach::Untold);
}

/// `shutdown`. `None`: let the kernel do it alone.
pub fn shutdown(sock: &Use, fd: i32, how: i32) -> Option<Answer> {
    let slot = sock.slot()?;
    let Some(conn) = sock.conn() else {
        // Should the connection move, the 0 of the kernel is not the peer's end.
        if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
            slot.flags.fetch_or(flag::READ_SHUT, Ordering::SeqCst);
        }
        return None;
    };
    let what = match how {
        libc::SHUT_RD => What::Input,
        libc::SHUT_WR => What::Output,
        libc::SHUT_RDWR => What::Both,
        _ => return Some(Err(libc::EINVAL)),
    };
    let file = File::of(sock, fd);
    wait::ask_kernel(slot, &conn, file);
    poll(slot, &conn, file);
    let (words, tcp) = (OwnWords::new(slot, &conn), Tcp { slot, conn: &conn, file });
    let program = Program::new(sock, slot, &conn, file);
    let mut shutting = Shutting::begin(what);
    loop {
        match shutting {
            Shutting::Refused => return Some(Err(libc::ENOTCONN)),
            Shutting::Shut => break,
            _ => shutting = shutting.step(&words, &tcp, &program),
        }
    }
    crate::polling::epoll::note_edge(sock);
    Some(Ok(0))
}

/// Before `connect` to nowhere (`AF_UNSPEC`), which resets a connection: the peer will
/// find the reset of its TCP end explained. True: the connection had ended before, so
/// nobody is to see a reset.
pub fn before_disconnect(sock: &Use) -> bool {
    let (Some(conn), Some(slot)) = (sock.conn(), sock.slot()) else { return false };
    let had_ended = State::of(&OwnWords::new(slot, &conn).look()).is_closed();
    if !had_ended {
        break_off(slot, &conn, Breach::Disconnects);
    }
    had_ended
}

/// After it: the socket is as new, with the options that the program has given it.
pub fn after_disconnect(sock: &Use, fd: i32, had_ended: bool) {
    if matches!(sock.phase(), Phase::Fresh | Phase::Listener) {
        return;
    }
    if let (Some(_), Some(slot)) = (sock.conn(), sock.slot()) {
        socket_options::give_options_back(slot, File::of(sock, fd));
        if had_ended {
            // The kernel's connection was open still, so it reports a reset that the
            // program's was beyond.
            let _ = File::of(sock, fd).option::<i32>(libc::SOL_SOCKET, libc::SO_ERROR);
        }
    }
    crate::program::life::start_anew(sock, fd);
}

/// The last descriptor of this process goes, and no call is under way. What TCP would do with unread bytes,
/// the record says; stale bells are taken so that the kernel can send FIN.
pub(crate) fn before_last_close(sock: &Sock, conn: &Conn, file: File<'_>) {
    let Some(slot) = sock.slot() else { return };
    if slot.holders.load(Ordering::Acquire) > 1 {
        return;
    }
    if sock.home().is_some_and(|home| home.is_under_way(sock.slot_index())) {
        return file.call(|fd| end_by_reset_unless_received(slot, conn, fd));
    }
    let by_ring = switch::comes_by_ring(slot);
    let blind = slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0;
    let leaves_unread =
        (by_ring && has_unread(conn, 0)) || (!blind && switch::data_queued(slot, conn, file) > 0);
    let (words, program) = (OwnWords::new(slot, conn), Program::new(sock, slot, conn, file));
    let mut next = Some(Closing::begin(leaves_unread));
    while let Some(closing) = next {
        next = closing.step(&words, &program);
    }
}

fn leave(slot: &Slot, conn: &Conn, leaving: Leaving) {
    let mut next = Some(leaving);
    while let Some(leaving) = next {
        next = leaving.step(&OwnWords::new(slot, conn));
    }
}

/// The kernel is about to close the last descriptor: how, the record says from now on, and not TCP. Of
/// a connection that was torn down before, it says that.
pub(crate) fn note_close(slot: &Slot, conn: &Conn) {
    leave(slot, conn, Leaving::by_close());
}

/// It is not closed after all.
pub(crate) fn withdraw_close(conn: &Conn) {
    conn.mine.sending.flags.fetch_and(!said::CLOSED, Ordering::SeqCst);
}

/// The process is about to end with this connection open. A bell that lies unread makes TCP's end a reset,
/// and the process whose connection it was at first, by which the peer knows us, may live on.
pub(crate) fn before_exit(slot: &Slot, conn: &Conn) {
    let by_ring = slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0;
    if by_ring && slot.holders.load(Ordering::Acquire) <= 1 {
        leave(slot, conn, Leaving::by_exit(has_unread(conn, 0)));
    }
}

/// The kernel has closed the last descriptor. A peer that is awake need not sleep to learn it.
pub(crate) fn note_closed(conn: &Conn) {
    hint(conn);
}

/// The last who knows how to go on with a connection lets go of it while it is under way
/// to another program. If that one cannot either, its end is a reset.
pub(crate) fn end_by_reset_unless_received(slot: &Slot, conn: &Conn, fd: i32) {
    // SeqCst: pairs with the count of holders in `sock::receive`. Either we see that it
    // was received, or the receiver, who looks at the option afterwards, undoes this.
    end_by_reset(conn);
    if slot.holders.load(Ordering::SeqCst) > 1 {
        follow_linger_option(conn, fd);
    }
}

/// Whatever ends the connection from now on is a reset to the peer.
pub(crate) fn end_by_reset(conn: &Conn) {
    note_linger(conn, true);
}

/// Tells the peer what `SO_LINGER` says.
pub(crate) fn follow_linger_option(conn: &Conn, fd: i32) {
    let linger: Result<libc::linger, _> = sys::socket_option(fd, libc::SOL_SOCKET, libc::SO_LINGER);
    note_linger(conn, linger.is_ok_and(|linger| linger.l_onoff != 0 && linger.l_linger == 0));
}

/// The peer learns how the end of this connection is to be read.
pub(crate) fn note_linger(conn: &Conn, zero: bool) {
    let flags = &conn.mine.sending.flags;
    if zero {
        flags.fetch_or(said::LINGER_ZERO, Ordering::SeqCst);
    } else {
        flags.fetch_and(!said::LINGER_ZERO, Ordering::SeqCst);
    }
}
