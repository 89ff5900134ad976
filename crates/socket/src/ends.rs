//! How connections end.

use crate::descriptors::Use;
use crate::file::File;
use crate::pool::Held;
use crate::sock::{Conn, Phase, Sock};
use crate::{Answer, Errno, socket_options, switch, wait};
use core::fmt::Display;
use core::sync::atomic::Ordering;
use sidestep_device::slab::flag as said;
use sidestep_device::state::{Slot, flag};
use sidestep_device::sys;

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

/// The peer broke the protocol: the connection is reset on both sides.
#[cold]
pub fn reset(slot: &Slot, conn: &Conn, what: &dyn Display) -> Errno {
    crate::log!(Error, "{}: {what}; connection reset", conn.group.peer);
    conn.mine.sending.flags.fetch_or(said::ABORT, Ordering::SeqCst);
    slot.flags.fetch_or(flag::RESET, Ordering::AcqRel);
    libc::ECONNRESET
}

/// The peer says that the connection was torn down. What our own kernel says of that comes
/// first: it may have been this end.
fn follow_abort(slot: &Slot, conn: &Conn, file: File<'_>) {
    let peer = conn.theirs.sending.flags.load(Ordering::Acquire);
    if peer & said::ABORT != 0 && slot.flags.load(Ordering::Acquire) & flag::RESET == 0 {
        take_tcp_error(slot, conn, file);
    }
}

/// With the ring drained: whether and how input has ended.
pub(crate) fn end_of_input(slot: &Slot, conn: &Conn, file: File<'_>) -> Option<End> {
    follow_abort(slot, conn, file);
    let flags = slot.flags.load(Ordering::Acquire);
    let error = slot.error.load(Ordering::Relaxed) as Errno;
    let theirs = &conn.theirs.sending;
    // What comes behind the peer's FIN is for whoever sends (`tcp_recvmsg`, `SOCK_DONE`).
    let has_fin = has_sent_fin(theirs.flags.load(Ordering::Acquire), flags);
    let is_for_readers = error != 0 && error != libc::EPIPE && !has_fin;
    if is_for_readers && slot.error.swap(0, Ordering::Relaxed) != 0 {
        return Some(End::Reset(error));
    }
    // Acquire: the producer cursor read afterwards is the last one.
    let peer = theirs.flags.load(Ordering::Acquire);
    let consumer = conn.mine.receiving.consumer.position();
    if theirs.producer.claim() != consumer && flags & flag::RESET == 0 {
        return None;
    }
    if flags & flag::RESET != 0 || flags & flag::LATE_WRITE != 0 {
        return Some(End::Input);
    }
    if has_finished(peer, flags) {
        return Some(End::Input);
    }
    if peer & said::ABORT != 0 || (flags & flag::PEER_GONE != 0 && was_aborted(conn)) {
        slot.flags.fetch_or(flag::RESET, Ordering::AcqRel);
        return Some(End::Reset(libc::ECONNRESET));
    }
    (flags & (flag::PEER_GONE | flag::READ_SHUT) != 0).then_some(End::Input)
}

/// The peer sends no more, and all that it has sent is in the ring: its FIN, as it said
/// itself or as the slot's flags have it.
fn has_finished(peer: u32, flags: u32) -> bool {
    peer & said::DONE != 0 || flags & flag::TCP_ENDED != 0
}

/// The peer has sent its FIN, whether or not everything before it was read.
fn has_sent_fin(peer: u32, flags: u32) -> bool {
    peer & said::FIN_BY_TCP != 0 || has_finished(peer, flags)
}

/// What a reset by the peer is reported as. Behind its FIN the end of input stays what it
/// was, and only whoever sends hears of it (`tcp_reset` in CLOSE_WAIT).
fn error_of_reset(slot: &Slot, conn: &Conn) -> Errno {
    let peer = conn.theirs.sending.flags.load(Ordering::Acquire);
    let flags = slot.flags.load(Ordering::Acquire);
    if has_sent_fin(peer, flags) { libc::EPIPE } else { libc::ECONNRESET }
}

/// The peer's end is gone; TCP would have sent RST instead of FIN if bytes of ours
/// were left unread, or if it had asked for that with `SO_LINGER`.
fn was_aborted(conn: &Conn) -> bool {
    let peer = conn.theirs.sending.flags.load(Ordering::Acquire);
    let unread = is_unread_by_peer(conn) && peer & said::READ_ALL == 0;
    unread || peer & (said::LINGER_ZERO | said::ABORT) != 0
}

/// Bytes of ours lie in the ring.
fn is_unread_by_peer(conn: &Conn) -> bool {
    conn.theirs.receiving.consumer.claim() != conn.mine.sending.producer.position()
}

/// A send on a connection that is over for sending. `len`: bytes it wanted to send.
pub(crate) fn send_after_end(slot: &Slot, conn: &Conn, file: File<'_>, len: usize) -> Answer {
    follow_abort(slot, conn, file);
    let error = slot.error.swap(0, Ordering::AcqRel) as Errno;
    if error != 0 {
        return Err(error);
    }
    let flags = slot.flags.load(Ordering::Acquire);
    if flags & flag::RESET == 0 && ended_by_reset(slot, conn) {
        // Told once, and before all else: also to a send of nothing, and to one behind
        // our own FIN.
        slot.flags.fetch_or(flag::RESET, Ordering::AcqRel);
        return Err(error_of_reset(slot, conn));
    }
    if flags & (flag::WRITE_SHUT | flag::RESET) != 0 {
        return Err(libc::EPIPE);
    }
    if len == 0 {
        return Ok(0);
    }
    if flags & flag::PEER_GONE == 0 {
        // The peer refuses it: the reset that its TCP would answer with is for both.
        conn.mine.sending.flags.fetch_or(said::ABORT, Ordering::SeqCst);
        wait::wake_readers(slot, conn, file);
    }
    note_late_write(slot);
    Ok(len)
}

/// TCP takes the first write after the peer's end, and learns from the answer.
fn note_late_write(slot: &Slot) {
    slot.flags.fetch_or(flag::LATE_WRITE | flag::RESET, Ordering::AcqRel);
    slot.error.store(libc::EPIPE as u32, Ordering::Release);
}

/// The peer's end of the TCP connection is gone.
pub(crate) fn peer_gone(slot: &Slot, conn: &Conn) {
    let before = slot.flags.fetch_or(flag::PEER_GONE, Ordering::AcqRel);
    let read_all = conn.theirs.sending.flags.load(Ordering::Acquire) & said::READ_ALL != 0;
    if before & flag::RESET == 0 && read_all && is_unread_by_peer(conn) {
        note_late_write(slot);
    }
}

/// Our direction goes by TCP and the peer's has ended: what we sent after that is
/// answered with a reset, as a late write is by [`send_after_end`].
pub(crate) fn follow_late_reset(slot: &Slot, conn: &Conn, file: File<'_>) {
    let flags = slot.flags.load(Ordering::Acquire);
    if flags & (flag::TCP_ENDED | flag::PEER_GONE) != 0 && sends_by_tcp(slot) {
        take_tcp_error(slot, conn, file);
    }
}

/// Takes the error of the TCP connection for the program's next call. True: there was one.
pub(crate) fn take_tcp_error(slot: &Slot, conn: &Conn, file: File<'_>) -> bool {
    if slot.flags.load(Ordering::Acquire) & flag::RESET != 0 {
        return false;
    }
    let error = file.option(libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0);
    if error != 0 {
        note_tcp_error(slot, conn, error);
    }
    error != 0
}

/// TCP has told us an error: the connection is over. Unless that is how an end in order looks
/// once bells go by TCP, it is the program's, for its next call; and the peer, whose TCP may
/// know nothing of it, finds a reset.
pub(crate) fn note_tcp_error(slot: &Slot, conn: &Conn, errno: Errno) {
    if errno == libc::EBADF {
        // The number is gone, which says nothing of the connection.
        return;
    }
    if !sends_by_tcp(slot) {
        if is_end_in_order(slot, conn, errno) {
            return peer_gone(slot, conn);
        }
        conn.mine.sending.flags.fetch_or(said::ABORT, Ordering::SeqCst);
    }
    peer_gone(slot, conn);
    // Of a FIN that went by the ring, TCP does not know.
    let errno = if errno == libc::ECONNRESET { error_of_reset(slot, conn) } else { errno };
    let before = slot.flags.fetch_or(flag::LATE_WRITE | flag::RESET, Ordering::AcqRel);
    // A reset that both TCP and the rings know of is told once.
    if before & flag::RESET == 0 {
        slot.error.store(errno as u32, Ordering::Release);
    }
}

/// Whether an error of TCP says no more than that the peer has ended, and the rings say how.
///
/// A peer that closes or dies with a bell unread ends with a reset. So does one whose connection
/// was torn down from outside (`ss -K`, BPF, a forged RST), in which a program could take the
/// half of a message for the whole. The first has said that it closes, or is no more; the
/// second runs, and has said nothing. All other errors are our own kernel's: our end was torn
/// down (`ECONNABORTED`), or the peer's did not answer (`ETIMEDOUT`).
#[cold]
fn is_end_in_order(slot: &Slot, conn: &Conn, errno: Errno) -> bool {
    let flags = slot.flags.load(Ordering::Acquire);
    let peer = conn.theirs.sending.flags.load(Ordering::Acquire);
    if has_sent_fin(peer, flags) && flags & flag::WRITE_SHUT != 0 {
        return true;
    }
    match errno {
        // Behind a FIN; or no word about the connection.
        libc::EPIPE | libc::ENOTSOCK | libc::ENOTCONN => true,
        libc::ECONNRESET => peer & said::CLOSED != 0 || !conn.group.peer_runs(),
        _ => false,
    }
}

/// A call by TCP has failed: if that was a reset, the program knows of it now.
pub(crate) fn note_reset_by_tcp(slot: &Slot, file: File<'_>) {
    if sends_by_tcp(slot) && !is_connected(file) {
        slot.flags.fetch_or(flag::RESET | flag::PEER_GONE, Ordering::AcqRel);
    }
}

/// Whether the kernel still knows a peer, or the number leads nowhere any more.
fn is_connected(file: File<'_>) -> bool {
    !matches!(file.call(|fd| sys::socket_name(fd, true)), Err(sys::Errno(libc::ENOTCONN)))
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
    if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
        return Some(Err(libc::EINVAL));
    }
    let file = File::of(sock, fd);
    wait::ask_kernel(slot, &conn, file);
    // A connection that has ended is not connected any more.
    let has_ended_by_tcp = || sends_by_tcp(slot) && !is_connected(file);
    if tcp_state(slot, &conn) == TCP_CLOSE || has_ended_by_tcp() {
        return Some(Err(libc::ENOTCONN));
    }
    if how != libc::SHUT_RD {
        shut_writing(sock, slot, &conn, file);
    }
    if how != libc::SHUT_WR {
        slot.flags.fetch_or(flag::READ_SHUT, Ordering::SeqCst);
        // Wakes everybody who sleeps in `recv`, `poll` or `epoll_wait` on it.
        kernel_shutdown(file, libc::SHUT_RD);
        sys::futex_wake(&slot.turn, i32::MAX);
    }
    let both = flag::READ_SHUT | flag::WRITE_SHUT;
    if slot.flags.load(Ordering::Acquire) & both == both {
        refuse_data(&conn);
    }
    crate::epoll::note_edge(sock);
    Some(Ok(0))
}

/// Before `connect` to nowhere (`AF_UNSPEC`), which resets a connection: the peer will
/// find the reset of its TCP end explained. True: the connection had ended before, so
/// nobody is to see a reset.
pub fn before_disconnect(sock: &Use) -> bool {
    let (Some(conn), Some(slot)) = (sock.conn(), sock.slot()) else { return false };
    if tcp_state(slot, &conn) == TCP_CLOSE {
        return true;
    }
    conn.mine.sending.flags.fetch_or(said::ABORT, Ordering::SeqCst);
    conn.mine.sending.closes.fetch_add(1, Ordering::Release);
    slot.flags.fetch_or(flag::RESET, Ordering::AcqRel);
    false
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
    crate::sock::start_anew(sock, fd);
}

pub(crate) const TCP_ESTABLISHED: u8 = 1;
const TCP_FIN_WAIT2: u8 = 5;
const TCP_CLOSE: u8 = 7;
const TCP_CLOSE_WAIT: u8 = 8;

/// The state in which TCP would be by now (`net/tcp_states.h`). On one host every FIN
/// is acknowledged at once, and who waits in TIME_WAIT shows CLOSE to its program.
pub(crate) fn tcp_state(slot: &Slot, conn: &Conn) -> u8 {
    let flags = slot.flags.load(Ordering::Acquire);
    let peer_done = conn.theirs.sending.flags.load(Ordering::Acquire) & said::DONE != 0
        || flags & (flag::PEER_GONE | flag::TCP_ENDED) != 0;
    match (flags & flag::WRITE_SHUT != 0, peer_done) {
        _ if crate::readiness::is_reset(slot, conn) => TCP_CLOSE,
        (true, true) => TCP_CLOSE,
        (true, false) => TCP_FIN_WAIT2,
        (false, true) => TCP_CLOSE_WAIT,
        (false, false) => TCP_ESTABLISHED,
    }
}

/// Whether the connection has ended and `getpeername` says `ENOTCONN`.
pub fn has_no_peer(sock: &Use, fd: i32) -> bool {
    let (Some(conn), Some(slot)) = (sock.conn(), sock.slot()) else { return false };
    wait::ask_kernel(slot, &conn, File::of(sock, fd));
    tcp_state(slot, &conn) == TCP_CLOSE
}

fn shut_writing(sock: &Sock, slot: &Slot, conn: &Conn, file: File<'_>) {
    {
        let sending = Held::enter(&slot.send_lock);
        let switched = slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED != 0;
        if switched || switch::send_into_ring(sock, slot, file, conn, &sending) {
            // Release: the producer cursor is final for whoever sees the flag.
            conn.mine.sending.flags.fetch_or(said::DONE, Ordering::SeqCst);
        } else {
            // Before the FIN, so that whoever sees the FIN sees the flag.
            conn.mine.sending.flags.fetch_or(said::FIN_BY_TCP, Ordering::SeqCst);
            kernel_shutdown(file, libc::SHUT_WR);
        }
        slot.flags.fetch_or(flag::WRITE_SHUT, Ordering::SeqCst);
    }
    wait::wake_readers(slot, conn, file);
}

/// Both directions are shut down. TCP answers data that still arrives with a reset
/// (`tcp_rcv_state_process`, `TCPABORTONDATA`); here the sender learns it from the
/// hint, which it follows before its next send.
fn refuse_data(conn: &Conn) {
    let sending = &conn.mine.sending;
    sending.flags.fetch_or(said::REFUSES, Ordering::SeqCst);
    sending.closes.fetch_add(1, Ordering::Release);
}

fn kernel_shutdown(file: File<'_>, how: i32) {
    let _ = file.call(|fd| sys::shutdown(fd, how));
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
    if (by_ring && has_unread(conn)) || (!blind && switch::data_queued(slot, conn, file) > 0) {
        conn.mine.sending.flags.fetch_or(said::ABORT, Ordering::SeqCst);
    }
    wait::drain_bells(slot, conn, file);
    note_close(slot, conn);
}

/// The last descriptor is about to be closed: how, the record says from now on, and not TCP. Of
/// a connection that was torn down before, it says that.
pub(crate) fn note_close(slot: &Slot, conn: &Conn) {
    if slot.flags.load(Ordering::Acquire) & flag::RESET == 0 {
        conn.mine.sending.flags.fetch_or(said::CLOSED, Ordering::SeqCst);
    }
}

/// It is not closed after all.
pub(crate) fn withdraw_close(conn: &Conn) {
    conn.mine.sending.flags.fetch_and(!said::CLOSED, Ordering::SeqCst);
}

/// The process is about to end with this connection open. What it has not read in the end
/// decides between FIN and reset, and the peer, who may send before it learns of the end,
/// could take its own bytes for the reason. Nothing ends here yet: libc still writes out
/// its streams.
pub(crate) fn before_exit(slot: &Slot, conn: &Conn) {
    let by_ring = slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0;
    if !by_ring || slot.holders.load(Ordering::Acquire) > 1 {
        return;
    }
    let sending = &conn.mine.sending;
    if !has_unread(conn) {
        sending.flags.fetch_or(said::READ_ALL, Ordering::SeqCst);
    }
    // A bell that lies unread makes TCP's end a reset, and the process whose connection it was at first, by which
    // the peer knows us, may live on.
    note_close(slot, conn);
    sending.closes.fetch_add(1, Ordering::Release);
}

fn has_unread(conn: &Conn) -> bool {
    conn.theirs.sending.producer.claim() != conn.mine.receiving.consumer.position()
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

/// `SO_ERROR`: the pending error, once. The kernel's own error on a connection in
/// shared memory is about bells, so it is taken and replaced by ours; before our direction
/// has switched it is about our bytes.
pub(crate) fn take_error(slot: &Slot, conn: &Conn, file: File<'_>) -> Errno {
    take_tcp_error(slot, conn, file);
    let kernel: i32 = file.option(libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0);
    if kernel != 0 || switch::is_peer_gone(file) {
        wait::tcp_ended(slot, conn, file);
    }
    let ours = slot.error.swap(0, Ordering::AcqRel) as Errno;
    if ours != 0 {
        return ours;
    }
    let flags = slot.flags.load(Ordering::Acquire);
    if flags & flag::RESET == 0 && crate::readiness::is_reset(slot, conn) {
        slot.flags.fetch_or(flag::RESET, Ordering::AcqRel);
        return error_of_reset(slot, conn);
    }
    0
}

/// Our direction has not switched: what comes back for it, a reset, is TCP's own.
fn sends_by_tcp(slot: &Slot) -> bool {
    slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED == 0
}

/// Whether the peer's end is gone and it did not end in order. When both directions
/// have ended before, TCP has nothing left to reset.
pub(crate) fn ended_by_reset(slot: &Slot, conn: &Conn) -> bool {
    let flags = slot.flags.load(Ordering::Acquire);
    let peer = conn.theirs.sending.flags.load(Ordering::Acquire);
    let both_ended = has_sent_fin(peer, flags) && flags & flag::WRITE_SHUT != 0;
    let gone = flags & flag::PEER_GONE != 0;
    !both_ended && (peer & said::ABORT != 0 || (gone && was_aborted(conn)))
}
