//! Bundles: a connection in shared memory goes to another program.
//!
//! `exec` leaves a program its descriptors and takes its memory away, and a program
//! that gets a descriptor by `SCM_RIGHTS` never had the memory. The TCP socket alone
//! carries nothing but bells. So what is handed over in its place is a *bundle*: a UNIX
//! socket in whose queue lie the TCP socket and the files of the connection.
//!
//! ```text
//!   fd ──> bundle, bound to "sidestep/1/bundle/<slot>/<peer>/<number>"
//!            └── queue: one message without a byte, and beside it
//!                TCP socket | state, wake | our slab, the peer's slab, its wake
//! ```
//!
//! * A program with this library unpacks it before its own first instruction
//!   ([`adopt_inherited`]) or before `recvmsg` returns ([`receive_rights`]): the TCP
//!   socket takes its number back, and the connection goes on.
//! * A program without it has a socket that says ECONNRESET to a call that reads or
//!   writes, because its other end was closed with a byte unread.
//! * The sender need not know which of the two it will be, nor live until then. The
//!   kernel counts references as it would have counted those of the TCP socket: when
//!   the last program that has the bundle closes it, the connection ends.
//!
//! The name is free again at that moment. So a process that lets go of a connection can ask
//! whether it is under way ([`Home::is_under_way`]), and keep its slot.

use crate::connection::{kept_options, sleeper, urgent, words};
use crate::process::groups::{self, Look};
use crate::process::home::Home;
use crate::process::owner::Held;
use crate::process::pool::SharedLock;
use crate::process::tcp::{self, socket_cookie};
use crate::process::{loan, past_libc, unseen};
use crate::program::{dead_end, hand_over, life, tracking};
use crate::rendezvous::passed;
use crate::table::conn::Conn;
use crate::table::session::Session;
use crate::table::sock::{Phase, Sock};
use crate::table::{descriptors, file};
use arrayvec::ArrayVec;
use core::sync::atomic::{AtomicBool, Ordering};
use sidestep_device::channel::SLOTS;
use sidestep_device::program::{self, Argument};
use sidestep_device::stamp::OTHER_VERSION;
use sidestep_device::state::{Slot, flag, mode};
use sidestep_device::sys::{self, Errno, Received, UnixName};
use sidestep_proto::fallback::{ProgramDid, Reason};
use sidestep_wire::host_control::Bundle;

/// Descriptors beside a message: `SCM_MAX_FD` of the kernel.
const RIGHTS_MAX: usize = 253;
/// Bytes of control messages that are looked into: those descriptors, and credentials.
const CONTROL_MAX: usize = 1280;

/// Makes a bundle of a connection; `fd` is one of its descriptors. A socket that only
/// says ECONNRESET if that cannot be done.
fn pack(sock: &Sock, conn: &Conn, fd: i32) -> Option<i32> {
    dead_end::dead_end(|pair| {
        if fill(sock, conn, pair, fd).is_none() {
            crate::log!(Warn, "a connection cannot go to another program, and is reset there");
        }
    })
}

fn fill(sock: &Sock, conn: &Conn, [bundle, other]: [i32; 2], fd: i32) -> Option<()> {
    let home = sock.home()?;
    let [our_slab, their_slab, their_wake] = conn.group.files()?;
    let files = [home.state_fd, home.wake_fd, our_slab, their_slab, their_wake];
    if files.iter().any(|fd| *fd < 0) {
        return None;
    }
    let mut beside: ArrayVec<i32, { sys::FDS_MAX }> = [fd].into_iter().collect();
    beside.extend(files.map(sys::seat));
    // Only a peer in another network namespace has one.
    beside.extend(conn.group.line().map(sys::seat));
    let mut number = [0; 8];
    sys::random(&mut number).ok()?;
    let number = u64::from_ne_bytes(number) | 1;
    let label = Bundle { slot: sock.slot_index() as u32, peer: conn.group.peer, number };
    sys::bind_unix(bundle, &UnixName::new(&label.name())).ok()?;
    sys::send_fds(other, &beside).ok()?;
    conn.slot.bundle.store(number, Ordering::Release);
    Some(())
}

/// What a descriptor that another program has made is to us.
enum Found {
    /// Nothing.
    Nothing,
    /// A bundle, or what was meant to be one, and what its name says.
    Bundle(Option<Bundle>),
    /// The TCP socket of a connection in shared memory, out of its bundle.
    Stray,
    /// The TCP socket of a connection that was passed on undecided.
    Given,
    /// A listener. Clients that connect before it accepts from it are to find this process.
    Listener,
}

/// Asks nothing for which the kernel waits for the lock of a TCP socket: another process may keep that.
fn look_at(fd: i32) -> Found {
    match sys::socket_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) {
        Ok(libc::AF_UNIX) => look_for_bundle(fd),
        Ok(libc::AF_INET | libc::AF_INET6) if kept_options::is_marked(fd) => Found::Stray,
        Ok(libc::AF_INET | libc::AF_INET6) if kept_options::is_given(fd) => Found::Given,
        Ok(libc::AF_INET | libc::AF_INET6) if is_listening(fd) => Found::Listener,
        _ => Found::Nothing,
    }
}

fn look_for_bundle(fd: i32) -> Found {
    let Ok((storage, len)) = sys::socket_name(fd, false) else { return Found::Nothing };
    match UnixName::in_storage(&storage, len) {
        Some(name) if Bundle::is_name(name) => Found::Bundle(Bundle::from_name(name)),
        _ => Found::Nothing,
    }
}

fn is_listening(fd: i32) -> bool {
    sys::socket_option::<i32>(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(1)
}

/// The descriptors in a bundle. Its sender must be of our user, or root.
fn open(fd: i32) -> Option<Received> {
    let sender: libc::ucred = sys::socket_option(fd, libc::SOL_SOCKET, libc::SO_PEERCRED).ok()?;
    if ![sys::uid(), sys::effective_uid(), 0].contains(&sender.uid) {
        crate::log!(Warn, "a bundle of user {} is not opened", sender.uid);
        return None;
    }
    match sys::peek_fds(fd) {
        // Said once, and before what is in the queue.
        Err(Errno(libc::ECONNRESET)) => sys::peek_fds(fd).ok(),
        other => other.ok(),
    }
}

/// Puts the connection in the place of its bundle. It stays a bundle in a program that
/// would use it unseen, and wait for ever: better a reset.
fn unpack(fd: i32, label: Option<Bundle>) {
    if past_libc::is_found() {
        return crate::log!(Warn, "descriptor {fd} would be used past libc, and is reset");
    }
    let Some(content) = open(fd) else { return };
    let adopted = match (label, content.fds()) {
        (Some(label), &[tcp, ref files @ ..]) => adopt(&label, tcp, files).map(|sock| (tcp, sock)),
        _ => Err(Errno(libc::EINVAL)),
    };
    match adopted {
        Ok((tcp, sock)) => take_place(fd, tcp, Some(sock)),
        Err(errno) => {
            if errno == OTHER_VERSION {
                crate::log!(
                    Warn,
                    "descriptor {fd} is of another version of Sidestep, and is reset"
                );
            } else {
                let errno = errno.0;
                crate::log!(Warn, "descriptor {fd} has no memory (errno {errno}), and is reset");
            }
            put_dead_end(fd);
        }
    }
    content.close_fds();
}

/// Puts a socket that says ECONNRESET under a number. (A bundle that was looked into has said it
/// already, to us.)
fn put_dead_end(fd: i32) {
    if let Some(end) = dead_end::dead_end(|_| ()) {
        take_place(fd, end, None);
        sys::close_number(end);
    }
}

/// The TCP socket of a connection in shared memory that has come to us without a bundle:
/// by calls that the library does not see, or with one beside it. It is served if we know the
/// connection; what it carries is no stream of bytes, so otherwise it is no more.
fn settle_stray(fd: i32) {
    if let Some(sock) = sock_behind(fd, true) {
        life::enter_descriptor(fd, sock);
    } else {
        crate::log!(Info, "descriptor {fd} came without its memory, and is reset");
        put_dead_end(fd);
    }
}

/// In the child of a fork: a connection that it has inherited is reset there.
pub(crate) fn give_up(fd: i32) {
    let _closing = life::before_close(fd);
    put_dead_end(fd);
}

/// Puts a TCP socket under the number of the bundle it came in.
fn take_place(fd: i32, tcp: i32, sock: Option<&'static Sock>) {
    let flags = sys::fcntl(fd, libc::F_GETFD, 0).unwrap_or(0) as i32;
    if sys::dup_onto(tcp, fd, flags & libc::FD_CLOEXEC != 0).is_ok()
        && let Some(sock) = sock
    {
        life::enter_descriptor(fd, sock);
    }
}

/// Taken by a thread that looks whether a connection is known, and makes it so.
static ADOPTING: SharedLock = SharedLock::new();

/// For a child process: the thread that held the lock does not exist here.
pub(crate) fn reset_lock() {
    ADOPTING.get().reset();
}

/// The connection whose files these are, if they are what they are said to be. What
/// the kernel vouches for is that a program of our user has packed them; a word that a
/// flaw of it has put there is to cost this connection and nothing else.
///
/// # Errors
/// [`OTHER_VERSION`], or `EINVAL` where they are not, or as the kernel says.
fn adopt(label: &Bundle, tcp: i32, files: &[i32]) -> sys::Result<&'static Sock> {
    const NOT_IT: Errno = Errno(libc::EINVAL);
    let (&[state, wake, our_slab, their_slab, their_wake], line) =
        files.split_first_chunk().ok_or(NOT_IT)?;
    let index = Some(label.slot as usize).filter(|index| *index < SLOTS).ok_or(NOT_IT)?;
    let _adopting = Held::enter(ADOPTING.get());
    let home = Home::of_giver(state, wake)?;
    let look = Look::at(home);
    let group = groups::inherit(
        &look,
        label.peer,
        [our_slab, their_slab, their_wake],
        line.first().copied(),
    )?;
    let (mine, slot) = (group.record(index), home.state.slot(index));
    let cookie = Some(socket_cookie(tcp)).filter(|cookie| *cookie != 0).ok_or(NOT_IT)?;
    let is_it = mine.identity.cookie.load(Ordering::Relaxed) == cookie
        && slot.flags.load(Ordering::Acquire) & flag::BY_LEDGER != 0
        && slot.mode.load(Ordering::Acquire) == mode::SMC_D;
    if !is_it {
        return Err(NOT_IT);
    }
    if let Some(known) = known(slot) {
        return Ok(known);
    }
    let peer_slot = mine.identity.peer_slot.load(Ordering::Relaxed) as usize;
    let (theirs, _) = group.theirs().filter(|_| peer_slot < SLOTS).ok_or(NOT_IT)?;
    let peer = theirs.record(peer_slot);
    let outgoing = (&mine.identity.ring_at, &slot.send_ring_len, group.slab());
    let incoming = (&peer.identity.ring_at, &slot.receive_ring_len, theirs);
    let [outgoing, incoming] = [outgoing, incoming]
        .map(|(at, len, slab)| slab.ring(at.load(Ordering::Relaxed), len.load(Ordering::Relaxed)));
    let (Some(outgoing), Some(incoming)) = (outgoing, incoming) else { return Err(NOT_IT) };
    let is_first = slot.holders.load(Ordering::SeqCst) == 0;
    let conn = Conn { slot, mine, theirs: peer, outgoing, incoming, group, peer_slot };
    let sock = life::receive(home, index, conn).ok_or(Errno(libc::ENOMEM))?;
    if let Some(session) = Session::of_slot(slot, tcp) {
        sock.set_session(session);
    }
    settle_in(&conn, tcp, is_first);
    Ok(sock)
}

/// A socket of this process that has the slot.
fn known(slot: &Slot) -> Option<&'static Sock> {
    let mut known = None;
    descriptors::for_each_sock(|_, sock| {
        if sock.slot().is_some_and(|other| core::ptr::eq(other, slot)) {
            known = Some(sock);
        }
    });
    known
}

/// Clears away what threads have left that `exec` has ended in the middle of something. (Their
/// locks are taken over when they are needed, as from the dead.) `is_first`: no other process
/// holds the connection.
fn settle_in(conn: &Conn, tcp: i32, is_first: bool) {
    let slot = conn.slot;
    if is_first {
        for counter in [&slot.read_waiters, &slot.queued, &slot.plain_sends] {
            counter.store(0, Ordering::Relaxed);
        }
        sleeper::withdraw_readers(conn);
    }
    words::follow_linger_option(conn, tcp);
    loan::note_user(slot);
}

/// When a program begins: goes on with the connections that it was given. Calls
/// `adopted` with each descriptor. (One that lies beyond a gap of [`sys::GAP`] numbers is
/// not looked for, and stays a bundle: every program begins here, and few find anything.)
pub fn adopt_inherited(mut adopted: impl FnMut(i32)) {
    let mut beside = [-1; BESIDE_MAX];
    let mut free = beside.iter_mut();
    let mut any_strays = false;
    sys::for_each_open_before_gap(|fd| match look_at(fd) {
        Found::Bundle(label) => {
            let is_beside = lies_beside(fd);
            unpack(fd, label);
            match Some(()).filter(|_| is_beside).and_then(|_| free.next()) {
                Some(place) => *place = fd,
                None => adopted(fd),
            }
        }
        Found::Stray => any_strays = true,
        Found::Listener => _ = life::recognise_listener(fd),
        // The process that began this program may have it, too.
        Found::Given | Found::Nothing => {}
    });
    if any_strays {
        sys::for_each_open_before_gap(|fd| {
            if matches!(look_at(fd), Found::Stray) && !descriptors::is_ours(fd) {
                settle_stray(fd);
                adopted(fd);
            }
        });
    }
    for fd in beside.into_iter().filter(|fd| *fd >= 0) {
        let _closing = life::before_close(fd);
        sys::close_number(fd);
    }
}

/// Descriptors that a program begun by `system` or `popen` may use: those that a shell
/// can name by one digit.
const BESIDE_MAX: usize = 10;

/// Bundles that lie beside the descriptors of connections, for the time of a call that
/// begins a program in a way that we do not see. Such a bundle says so by `O_NONBLOCK`.
pub struct Beside([i32; BESIDE_MAX]);

impl Beside {
    /// Lays them out.
    #[must_use]
    pub fn lay_out() -> Self {
        give_all_plain();
        let mut all = [-1; BESIDE_MAX];
        for (fd, place) in (0..).zip(&mut all) {
            if descriptors::is_ours(fd)
                && stays_open(fd)
                && let Some(bundle) = pack_one(fd).and_then(at_hidden_number)
            {
                let _ = sys::fcntl(bundle, libc::F_SETFL, libc::O_NONBLOCK as usize);
                let _ = sys::fcntl(bundle, libc::F_SETFD, 0);
                *place = bundle;
            }
        }
        Self(all)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.0.into_iter().filter(|fd| *fd >= 0).for_each(sys::close);
    }
}

/// Whether a bundle is one of [`Beside`].
fn lies_beside(fd: i32) -> bool {
    sys::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags as i32 & libc::O_NONBLOCK != 0)
}

/// A bundle of the connection behind a descriptor, if it is in shared memory.
fn pack_one(fd: i32) -> Option<i32> {
    let sock = descriptors::sock(fd)?;
    pack(&sock, sock.conn()?, fd)
}

/// What another program is given in the place of a connection, if it is not the TCP socket: a
/// bundle, or a socket that says ECONNRESET if it is not known yet to which end the next byte belongs.
fn stand_in(sock: &Sock, fd: i32) -> Option<i32> {
    if sock.is_offered() {
        crate::log!(Warn, "a connection that is being made cannot go to another program");
        return dead_end::dead_end(|_| ());
    }
    pack(sock, sock.conn()?, fd)
}

/// The same at a hidden number. The caller closes it.
#[must_use]
pub fn stand_in_hidden(fd: i32) -> Option<i32> {
    at_hidden_number(stand_in(&*descriptors::sock(fd)?, fd)?)
}

fn at_hidden_number(fd: i32) -> Option<i32> {
    let hidden = sys::spare_copy(fd);
    sys::close_number(fd);
    hidden
}

/// Another program is given a descriptor: if nothing is decided about its connection, it
/// stays on TCP.
pub fn give_plain(fd: i32) {
    if let Some(sock) = descriptors::sock(fd) {
        leave_to_others(&sock);
    }
}

/// A program begins that is given every descriptor that stays open, whether it wants them or
/// not: what [`give_plain`] says of one.
pub fn give_all_plain() {
    descriptors::for_each_untracked(|fd| {
        if stays_open(fd) {
            tracking::track(fd);
        }
    });
    descriptors::for_each_sock(|fd, sock| {
        if stays_open(fd) {
            leave_to_others(sock);
        }
    });
}

/// Calls `f` with every descriptor of a connection that stays open in a program that begins, and
/// for which that is to be given something else.
pub fn for_each_that_stays(mut f: impl FnMut(i32)) {
    descriptors::for_each_sock(|fd, sock| {
        if sock.is_beyond_tcp() && stays_open(fd) {
            f(fd);
        }
    });
}

/// Whether a program that begins has this descriptor, too.
fn stays_open(fd: i32) -> bool {
    sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags == 0)
}

/// Before `exec`: puts bundles in the place of connections that stay open, and lets go of
/// the others. In the child of a `vfork`, too: its descriptors are its own, and its
/// parent's table is left as it is.
pub fn before_exec() {
    if descriptors::is_empty() {
        return;
    }
    let is_borrowed = loan::is_borrowed_memory();
    sys::for_each_open(|fd| {
        if stays_open(fd) && !sys::is_hidden(fd) {
            hand_over(fd, is_borrowed);
        }
    });
    if is_borrowed {
        return;
    }
    descriptors::for_each_sock(|fd, sock| {
        if descriptors::is_first_of(fd, sock) {
            part_with(sock);
        }
    });
}

/// A descriptor stays open in the program that begins.
fn hand_over(fd: i32, is_borrowed: bool) {
    hand_over::conclude(fd);
    let Some(sock) = sock_behind(fd, is_borrowed) else { return };
    if sock.is_beyond_tcp() {
        if let Some(other) = stand_in(sock, fd) {
            // The child of a `vfork` has numbers of its own.
            if !is_borrowed {
                file::before_number_is_packed(sock, fd);
            }
            let _ = sys::dup_onto(other, fd, false);
            sys::close_number(other);
        }
    } else if is_borrowed {
        leave_to_others(sock);
    }
    if !is_borrowed {
        sock.set_stays_open();
    }
}

/// A connection that was not decided is used by another program as well, or alone, which
/// knows it as TCP.
fn leave_to_others(sock: &Sock) {
    if sock.is_undecided() {
        sock.stay_plain(Reason::Program(ProgramDid::HandedOver));
    }
}

/// This image of the process holds a connection no more.
fn part_with(sock: &Sock) {
    let Some(conn) = sock.conn() else {
        if !sock.stays_open() {
            sock.let_go(1);
        }
        return;
    };
    let is_under_way = sock.home().is_some_and(|home| home.is_under_way(sock.slot_index()));
    let left = sock.let_go(u32::from(!is_under_way));
    if sock.stays_open() && matches!(left, None | Some(0)) {
        words::end_by_reset(conn);
    } else if left.is_none() && !is_under_way {
        // The kernel closes it.
        words::note_close(conn);
    }
}

/// `exec` has failed: the connections are this program's again.
pub fn after_failed_exec() {
    if descriptors::is_empty() {
        return;
    }
    sys::for_each_open(|fd| {
        if matches!(look_at(fd), Found::Bundle(_))
            && let Some(content) = open(fd)
        {
            if let Some(tcp) = content.fds().first() {
                take_place(fd, *tcp, None);
            }
            content.close_fds();
        }
    });
    if loan::is_borrowed_memory() {
        return;
    }
    descriptors::for_each_sock(|fd, sock| {
        sock.hold_again();
        sock.naming.is_unpacked();
        if let Some(conn) = sock.conn() {
            words::follow_linger_option(conn, fd);
            words::withdraw_close(conn);
        }
    });
}

/// The socket object of a descriptor. The child of a `vfork` may have duplicated and
/// closed descriptors, which the table does not know: the kernel says which is which.
fn sock_behind(fd: i32, table_is_old: bool) -> Option<&'static Sock> {
    let known = descriptors::sock(fd).map(|sock| sock.sock());
    if !table_is_old && known.is_some() {
        return known;
    }
    let cookie = Some(socket_cookie(fd)).filter(|cookie| *cookie != 0)?;
    let ports = tcp::addresses(fd).map(|(local, peer)| [local.port(), peer.port()]).ok();
    let is_it = |sock: &Sock| match (sock.conn(), sock.slot()) {
        (Some(conn), _) => conn.mine.identity.cookie.load(Ordering::Relaxed) == cookie,
        (None, Some(slot)) => ports.is_some_and(|ports| {
            [&slot.local_port, &slot.peer_port].map(|port| port.load(Ordering::Relaxed))
                == ports.map(u32::from)
        }),
        (None, None) => sock.is_offered_as(cookie),
    };
    let mut found = known.filter(|sock| is_it(sock));
    if found.is_none() {
        descriptors::for_each_sock(|_, sock| {
            if is_it(sock) {
                found = Some(sock);
            }
        });
    }
    found
}

/// Control messages that are changed before the kernel sees them.
#[repr(align(8))]
struct Control([u8; CONTROL_MAX]);

/// Sends a message by `send`, with bundles in the place of descriptors of connections in
/// shared memory. `control` is what the header names beside the message.
pub fn send_rights(
    header: &libc::msghdr,
    control: Argument<'_, u8>,
    send: impl Fn(&libc::msghdr) -> isize,
) -> isize {
    let mut copied = Control([0; CONTROL_MAX]);
    let Some(copied) = control.copy_to(&mut copied.0) else { return send(header) };
    let rights = || program::rights(copied);
    let is_ours = |fd| {
        hand_over::conclude(fd);
        descriptors::sock(fd).is_some()
    };
    // Each is asked: what the gateway was to conclude is concluded for all.
    if rights().filter(|(_, fd)| is_ours(*fd)).count() == 0 {
        return send(header);
    }
    let mut changed = Control([0; CONTROL_MAX]);
    changed.0[..copied.len()].copy_from_slice(copied);
    let mut bundles = ArrayVec::<i32, RIGHTS_MAX>::new();
    for (place, fd) in rights() {
        if let Some(bundle) = descriptors::sock(fd).and_then(|sock| stand_in(&sock, fd)) {
            changed.0[place..][..size_of::<i32>()].copy_from_slice(&bundle.to_ne_bytes());
            // The kernel refuses a message with more.
            bundles.try_push(bundle).unwrap_or_else(|_| sys::close_number(bundle));
        } else {
            passed::offer(fd);
        }
    }
    let mut with_bundles = *header;
    with_bundles.msg_control = changed.0.as_mut_ptr().cast();
    let result = send(&with_bundles);
    bundles.into_iter().for_each(sys::close_number);
    let settle = if result >= 0 { give_plain } else { passed::withdraw };
    rights().for_each(|(_, fd)| settle(fd));
    result
}

/// Strangers send this program sockets of theirs: see [`leave_received`].
static LEAVES_RECEIVED: AtomicBool = AtomicBool::new(false);

/// Whether nothing but bundles is looked for beside messages, from now on.
pub fn leave_received(is_left: bool) {
    LEAVES_RECEIVED.store(is_left, Ordering::Relaxed);
}

/// Unpacks what has come beside a message: what the kernel has just written there.
pub fn receive_rights(control: &[u8]) {
    let is_left = LEAVES_RECEIVED.load(Ordering::Relaxed);
    for (_, fd) in program::rights(control) {
        life::forget_number(fd);
        match look_at(fd) {
            Found::Stray | Found::Given | Found::Listener if is_left => {}
            Found::Bundle(label) => unpack(fd, label),
            Found::Stray => settle_stray(fd),
            Found::Given => take_up(fd),
            Found::Listener => _ = life::recognise_listener(fd),
            Found::Nothing => {}
        }
    }
}

/// A marked socket was received: it is one that may move, later.
pub(crate) fn take_up(fd: i32) {
    let sock = match unseen::unseen_use() {
        None => life::register(fd, false, true),
        Some(_) => None,
    };
    let Some(sock) = sock else {
        // Used unseen from now on.
        kept_options::mark_given(fd, false);
        return;
    };
    sock.is_received.store(true, Ordering::Relaxed);
    sock.set_phase(Phase::Candidate);
    life::begin(sock, fd);
    if let Some(slot) = sock.slot() {
        // What the giver has set, it has told its own slot.
        let option = |name| sys::socket_option::<i32>(fd, libc::SOL_SOCKET, name);
        slot.low_water
            .store(option(libc::SO_RCVLOWAT).unwrap_or(1).max(1) as u32, Ordering::Relaxed);
        urgent::note_wish(slot, option(libc::SO_OOBINLINE).unwrap_or(0));
    }
}
