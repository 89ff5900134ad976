//! A TCP stream socket of the program, as this process sees it.
//!
//! ```text
//!   Fresh ── connect, accept ──> Candidate ── first I/O ──> Meeting ──> Smc
//!     │                              └──────────┬──────────────┘
//!     └── listen ──> Listener                   └── any doubt ──> Plain
//! ```
//!
//! The object is private to the process (a forked child has its own copy); what
//! two processes must agree on lies in its [`Slot`] and its [`Record`]s.

use crate::Errno;
use crate::connection::ends;
use crate::connection::socket_options::Mirror;
use crate::connection::wait;
use crate::polling::epoll::{self, Set};
use crate::polling::multiplex;
use crate::process::group::Group;
use crate::process::home::{self, Process};
use crate::process::options::{Options, Promotion};
use crate::process::pool::{Guarded, Held, Pool, Pooled};
use crate::process::{past_libc, reload};
use crate::program::{seccomp, uring};
use crate::rendezvous::agreement::{self, Meeting};
use crate::rendezvous::gateway;
use crate::rendezvous::marker;
use crate::table::account;
use crate::table::descriptors::{self, Entry, Use};
use crate::table::file::{self, File, Naming};
use crate::table::{plain, young};
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering,
};
use sidestep_device::confinement;
use sidestep_device::copy::Choice;
use sidestep_device::late::Late;
use sidestep_device::reference::AtomicRef;
use sidestep_device::ring::Ring;
use sidestep_device::slab::Record;
use sidestep_device::state::{Slot, flag, mode};
use sidestep_device::sys;
use sidestep_device::valid::{Renew, Zeroable};
use sidestep_device::young::{About, Young};
use sidestep_proto::autosmc::{Patience, Traffic};
use sidestep_proto::fallback::{OperatorSaid, ProgramDid, Reason};
use sidestep_wire::RmbeSize;

/// Sockets of a process that are tracked at once.
const SOCKS_MAX: usize = 1 << 17;

static POOL: Pool<Sock, SOCKS_MAX> = Pool::new();

/// How far a socket has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Created, neither connected nor listening.
    Fresh,
    /// Listening.
    Listener,
    /// Connecting, with the TCP option for another host; what came of it is not known yet.
    /// See [`crate::rendezvous::gateway`].
    Offered,
    /// Connected (or connecting); nothing was decided.
    Candidate,
    /// The two libraries are agreeing.
    Meeting,
    /// Stays on TCP.
    Plain,
    /// Reads by the ledger: shared memory, as far as the ends have switched.
    Smc,
}

impl Phase {
    const ALL: [Self; 7] = [
        Self::Fresh,
        Self::Listener,
        Self::Offered,
        Self::Candidate,
        Self::Meeting,
        Self::Plain,
        Self::Smc,
    ];
}

/// See the [module](self).
///
/// Neighbours share no cache line: they are used on different CPUs.
#[derive(Renew, Zeroable)]
#[repr(align(64))]
pub struct Sock {
    /// Descriptors of this process that refer to it.
    pub descriptors: AtomicU32,
    /// Calls under way, plus one for all descriptors together; 0 = dissolved.
    uses: AtomicU32,
    /// By which numbers its file is named, and by what else.
    pub(crate) naming: Naming,
    phase: AtomicU8,
    /// This side accepted the connection.
    pub is_server: AtomicBool,
    /// `O_NONBLOCK`, as far as this process has set or seen it; with a slot, the slot
    /// has the word: other processes share it.
    nonblocking: AtomicBool,
    /// Set before connecting or listening, 0 = not set.
    pub receive_buffer: AtomicU32,
    /// `SO_RCVTIMEO`, as far as this process has set or seen it.
    pub(crate) receive_time_out: Mirror,
    /// Port of the server's end, 0 = not known.
    pub(crate) server_port: AtomicU16,
    /// An option was used that only TCP has.
    pub tcp_only: AtomicBool,
    /// It, or the listener it comes from, was marked for the TCP option of SMC, and what came
    /// of that was not asked yet (see [`crate::rendezvous::tcp_option`]).
    pub(crate) has_tcp_option: AtomicBool,
    /// The mark was also for other hosts, and whether one of them has agreed was not asked yet.
    pub(crate) is_for_hosts: AtomicBool,
    /// The kernel's name of the socket while it is [`Phase::Offered`].
    pub(crate) cookie: AtomicU64,
    /// This process begins another program, and has let go of the slot.
    let_go: AtomicBool,
    /// Another process has passed it on to this one: see [`crate::rendezvous::passed`].
    pub(crate) is_received: AtomicBool,
    /// The name of one who has passed it on, -1 = none.
    pub(crate) given_name: AtomicI32,
    /// A listener's marker (see [`marker::mark_listener`]), -1 = none.
    pub(crate) marker: AtomicI32,
    slot_index: AtomicU32,
    home: AtomicRef<Process>,
    slot: AtomicRef<Slot>,
    #[renew(kept)]
    conn: Late<Conn>,
    /// Producer position up to which the peer is known to have room.
    pub(crate) send_limit: AtomicU64,
    /// How long messages are best copied.
    pub(crate) copy_choice: Choice,
    /// A send found no room: the next room is news to an edge-triggered loop.
    pub(crate) out_blocked: AtomicBool,
    /// When [`wait::prod_peer`] did so last, by [`sys::coarse_ns`].
    pub(crate) prodded_ns: AtomicU64,
    /// A receive found nothing: if an edge-triggered loop was told that input has ended,
    /// the peer has taken that back, and the next end is news again.
    found_nothing: AtomicBool,
    /// When a receive that may not wait asked the kernel last, by [`sys::now_ns`].
    pub(crate) kernel_asked_ns: AtomicU64,
    /// What a `poll` that finds something in the ring knows of those before it.
    pub(crate) poll_streak: multiplex::Streak,
    pub(crate) receive_wait: wait::Learned,
    pub(crate) send_wait: wait::Learned,
    /// The next one replaces it ([`new`]).
    #[renew(kept)]
    meeting: Guarded<Meeting>,
    /// Of a connection to another host: constant, once others know the object.
    #[renew(kept)]
    passage: Late<Passage>,
    /// The descriptor under which it was a young connection, as long as a call of that time may
    /// not have returned; else -1.
    was_young: AtomicI32,
    /// Epoll registrations of this socket.
    pub(crate) registrations: AtomicRef<epoll::Registration>,
    next_free: AtomicRef<Self>,
}

// The pool reserves address space for all objects at once: where that is limited, larger ones leave too little for the
// program's threads.
const _: () = assert!(size_of::<Sock>() <= 576);

impl Pooled for Sock {
    fn next_free(&self) -> &AtomicRef<Self> {
        &self.next_free
    }
}

/// The two halves of a connection in shared memory.
#[derive(Clone, Copy)]
pub struct Conn {
    /// What we report.
    pub mine: &'static Record,
    /// What the peer reports: claims.
    pub theirs: &'static Record,
    /// We write into it.
    pub outgoing: Ring,
    /// The peer writes into it.
    pub incoming: Ring,
    /// Whom it belongs to.
    pub group: &'static Group,
    /// The peer's slot.
    pub peer_slot: usize,
}

/// A connection to another host, that goes by the gateway.
#[derive(Clone, Copy)]
pub(crate) struct Passage {
    /// The addresses of its ends, as the kernel has them.
    pub(crate) local: Name,
    pub(crate) peer: Name,
    /// This end has accepted it.
    pub(crate) is_server: bool,
    /// Our port on the way to the gateway.
    pub(crate) port: u16,
}

/// An address as the kernel has it.
#[derive(Clone, Copy)]
pub struct Name {
    bytes: [u8; size_of::<libc::sockaddr_in6>()],
    len: usize,
}

impl Passage {
    /// As it stands in the slot: see [`Slot::passage`].
    fn word(&self) -> u32 {
        u32::from(self.port) | u32::from(self.is_server) << 16
    }

    /// Where it was accepted.
    pub(crate) fn server(&self) -> Option<SocketAddr> {
        if self.is_server { self.local.address() } else { self.peer.address() }
    }
}

impl Name {
    /// One of the addresses of a connected socket.
    pub(crate) fn of(fd: i32, peer: bool) -> Option<Self> {
        let (storage, len) = sys::socket_name(fd, peer).ok()?;
        let mut name = Self { bytes: [0; _], len: (len as usize).min(size_of_val(&storage)) };
        let room = name.bytes.get_mut(..name.len)?;
        room.copy_from_slice(&sys::bytes_of_address(&storage)[..name.len]);
        Some(name)
    }

    /// The bytes of the kernel's struct.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn address(&self) -> Option<SocketAddr> {
        address_in(self.bytes())
    }
}

/// Whether sockets of this kind are ours to serve: TCP over IPv4 or IPv6.
#[must_use]
pub fn is_tcp(domain: i32, kind: i32, protocol: i32) -> bool {
    const KIND: i32 = 0xf;
    matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & KIND == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP)
}

/// Makes a socket object for a TCP socket that was not seen being made: it was inherited or
/// received. `None`: it is something else, or there is no memory.
pub fn register_unseen(fd: i32) -> Option<&'static Sock> {
    let option = |name| sys::socket_option::<i32>(fd, libc::SOL_SOCKET, name).ok();
    let is_one =
        is_tcp(option(libc::SO_DOMAIN)?, option(libc::SO_TYPE)?, option(libc::SO_PROTOCOL)?);
    let flags = Some(fd).filter(|_| is_one).and_then(|fd| sys::fcntl(fd, libc::F_GETFL, 0).ok())?;
    register(fd, flags as i32 & libc::O_NONBLOCK != 0, false)
}

/// Makes a socket object for a new descriptor of the program.
pub fn register(fd: i32, nonblocking: bool, is_server: bool) -> Option<&'static Sock> {
    let has_place = descriptors::has_place(fd);
    let sock = Some(()).filter(|()| has_place).and_then(|()| new(nonblocking, is_server))?;
    enter_descriptor(fd, sock);
    Some(sock)
}

fn new(nonblocking: bool, is_server: bool) -> Option<&'static Sock> {
    // An object with a held lock is passed over for good: the thread that holds it is about to fork, or has stayed
    // behind in the process that did.
    let sock = loop {
        let sock = POOL.take()?;
        if sock.meeting.put(Meeting::new()) {
            break sock;
        }
    };
    // SAFETY: the object was given back by `dissolve`, which `uses` keeps calls from entering, and no
    // table leads to it yet.
    unsafe { sock.passage.replace(None) };
    sock.phase.store(Phase::Fresh as u8, Ordering::Relaxed);
    sock.is_server.store(is_server, Ordering::Relaxed);
    sock.nonblocking.store(nonblocking, Ordering::Relaxed);
    for none in [&sock.given_name, &sock.marker, &sock.was_young] {
        none.store(-1, Ordering::Relaxed);
    }
    sock.slot_index.store(u32::MAX, Ordering::Relaxed);
    for learned in [&sock.receive_wait, &sock.send_wait] {
        learned.begin();
    }
    sock.receive_time_out.forget();
    // Release: a late `enter` of a caller that met the previous object fails as long as `uses` is
    // 0, and finds the rest made when it is not.
    sock.uses.store(1, Ordering::Release);
    Some(sock)
}

/// The table forgot a descriptor: one reference less.
pub fn forget_entry(entry: Entry, fd: i32) {
    match entry {
        Entry::Nothing => {}
        Entry::Bare(place) => _ = young::end(place),
        Entry::Sock(sock) => sock.drop_descriptor(fd),
        Entry::Set(set) => set.drop_descriptor(),
    }
}

/// libc has handed out a number: whatever the table says about it is out of date.
pub fn forget_number(fd: i32) {
    if !home::is_borrowed_memory() {
        // The number is somebody else's now: -1 keeps our hands off it.
        forget_entry(descriptors::remove(fd), -1);
    }
}

/// Before the real `close` (or `dup2` over it): takes the descriptor out of the
/// table. The returned guard finishes after the real call.
pub fn before_close(fd: i32) -> Option<Closing> {
    if !descriptors::is_ours(fd) || home::is_borrowed_memory() {
        return None;
    }
    // The word of a bare one stays.
    if descriptors::is_bare(fd) && !young::end(fd) {
        return None;
    }
    let before = descriptors::note_closed_here(fd);
    match descriptors::begin_closing(fd) {
        // While it has descriptors it can be entered.
        Entry::Sock(sock) if sock.enter() => {
            let closing = Closing { what: Closed::Sock(sock), fd, before };
            file::before_number_goes(sock, fd);
            sock.drop_descriptor(fd);
            return Some(closing);
        }
        Entry::Set(set) => {
            let closing = Closing { what: Closed::Set(set), fd, before };
            file::before_number_of_set_goes(set, fd);
            return Some(closing);
        }
        Entry::Nothing | Entry::Bare(_) | Entry::Sock(_) => {}
    }
    let _ = descriptors::note_closed_here(before);
    None
}

/// Before the real `dup2` puts `old` over `new`: the same, and calls that begin now with `new` begin
/// afterwards, whatever it means now, when it is to mean a socket of ours.
pub fn before_put_over(old: i32, new: i32) -> Option<Closing> {
    if !descriptors::is_ours(old) || home::is_borrowed_memory() {
        return before_close(new);
    }
    // Another thread that closes it comes first, and leaves nothing of ours.
    const TRIES: usize = 2;
    (0..TRIES).find_map(|_| hold(new).or_else(|| before_close(new)))
}

/// Keeps calls from beginning with a number that leads to no object.
fn hold(fd: i32) -> Option<Closing> {
    let before = descriptors::note_closed_here(fd);
    let Some(was_bare) = descriptors::hold(fd) else {
        let _ = descriptors::note_closed_here(before);
        return None;
    };
    if was_bare {
        // An object that is being made finds no place in the table.
        young::end(fd);
    }
    Some(Closing { what: Closed::Nothing, fd, before })
}

/// Keeps a socket or an epoll set, and its number in the table as one that is being closed, until
/// the kernel has closed its descriptor.
pub struct Closing {
    what: Closed,
    fd: i32,
    /// Which descriptor this thread was closing before: a handler has interrupted it.
    before: i32,
}

enum Closed {
    /// What has no object.
    Nothing,
    Sock(&'static Sock),
    Set(&'static Set),
}

impl Drop for Closing {
    fn drop(&mut self) {
        let word = match self.what {
            Closed::Nothing => 0,
            Closed::Sock(sock) => descriptors::word_of(sock),
            Closed::Set(set) => descriptors::word_of_set(set),
        };
        descriptors::end_closing(self.fd, word);
        let _ = descriptors::note_closed_here(self.before);
        match self.what {
            Closed::Nothing => {}
            Closed::Sock(sock) => {
                if sock.descriptors.load(Ordering::Acquire) == 0 && !sock.naming.has_copy() {
                    sock.tell_of_close();
                }
                sock.leave();
            }
            Closed::Set(set) => set.drop_descriptor(),
        }
    }
}

/// `dup`: both descriptors mean the same socket.
pub fn duplicate(old: i32, new: i32) {
    let concerns_us = descriptors::is_ours(old) || descriptors::is_ours(new);
    if old == new || !concerns_us || home::is_borrowed_memory() {
        return;
    }
    if let Some(sock) = descriptors::sock(old) {
        descriptors::note_highest(new);
        forget_entry(descriptors::insert_sock(new, sock.sock()), -1);
    } else if let Some(set) = descriptors::set(old) {
        forget_entry(descriptors::insert_set(new, set), -1);
    } else {
        forget_entry(descriptors::remove(new), -1);
    }
}

/// Makes a socket object for a connection in shared memory that another process of our
/// end has begun, and that this one holds from now on. `None`: no memory, or the slot is
/// another connection's by now.
pub(crate) fn receive(home: &'static Process, index: usize, conn: Conn) -> Option<&'static Sock> {
    let slot = home.state.slot(index);
    let nonblocking = slot.flags.load(Ordering::Relaxed) & flag::NONBLOCKING != 0;
    let sock = new(nonblocking, slot.is_server.load(Ordering::Relaxed) != 0)?;
    if home.is_current() && !home.take_back(index, sock) {
        sock.leave();
        return None;
    }
    slot.holders.fetch_add(1, Ordering::SeqCst);
    home.note_received(index, conn.group);
    sock.slot_index.store(index as u32, Ordering::Relaxed);
    sock.home.set(Some(home));
    sock.slot.set(Some(slot));
    // SAFETY: the object came from `new` above, and no table leads to it yet.
    unsafe { sock.set_conn(conn) };
    sock.set_phase(Phase::Smc);
    Some(sock)
}

/// Enters a descriptor that was found to be one of this socket's.
pub(crate) fn enter_descriptor(fd: i32, sock: &'static Sock) {
    descriptors::note_highest(fd);
    forget_entry(descriptors::insert_sock(fd, sock), -1);
}

/// The kernel has made a socket new (`connect` to nowhere): its descriptors stand for
/// a new object from now on, and the old one ends as by `close`. Calls of other
/// threads that are under way finish with the old one.
pub fn start_anew(old: &Use, fd: i32) {
    let old = old.sock();
    let new = new(old.nonblocking.load(Ordering::Relaxed), false);
    if let Some(new) = new {
        new.inherit(old);
    }
    replace(old, new, fd);
}

/// An object for what the descriptors of another one will mean: a connection that begins now, by
/// the gateway if it has a passage.
pub(crate) fn renewed(old: &Sock, fd: i32, passage: Option<Passage>) -> Option<&'static Sock> {
    let new = new(is_nonblocking(fd), false)?;
    new.inherit(old);
    passage.map(|passage| new.passage.set(passage));
    Some(new)
}

/// The connection of a new object begins, and its descriptors are another one's so far.
pub(crate) fn succeed(old: &'static Sock, new: Option<&'static Sock>, fd: i32) {
    replace(old, new, fd);
    if let Some(new) = new {
        new.set_phase(Phase::Candidate);
        new.begin(fd);
        if let Some(passage) = new.passage()
            && let (Some(local), Some(peer)) = (passage.local.address(), passage.peer.address())
        {
            new.note_addresses(local, peer);
            account::handed_over(new, &passage);
        }
    }
}

/// Puts an open file under all descriptors of a socket, of which this is one.
pub(crate) fn put_under(sock: &Sock, fd: i32, file: i32) {
    each_number(sock, fd, |number| {
        let is_kept = sys::fcntl(number, libc::F_GETFD, 0) == Ok(0);
        let _ = sys::dup_onto(file, number, !is_kept);
    });
}

/// The descriptors of one object, and its places in epoll sets, are another's from now on.
fn replace(old: &'static Sock, new: Option<&'static Sock>, fd: i32) {
    if let Some(new) = new {
        epoll::hand_back(old, new);
    }
    each_number(old, fd, |number| {
        // Without memory for a new object the socket is the kernel's alone.
        let entry = match new {
            Some(new) => descriptors::insert_sock(number, new),
            None => descriptors::remove(number),
        };
        forget_entry(entry, -1);
    });
}

/// Calls `f` with every descriptor of a socket, of which `fd` is one. It mostly has no other, and
/// nobody has to look through the table.
fn each_number(sock: &Sock, fd: i32, mut f: impl FnMut(i32)) {
    if sock.descriptors.load(Ordering::Relaxed) == 1 && descriptors::leads_to(fd, sock) {
        return f(fd);
    }
    descriptors::for_each_sock(|number, other| {
        if core::ptr::eq(sock, other) {
            f(number);
        }
    });
}

impl Sock {
    /// The object of a socket that had none: of a young connection, or of one that is not
    /// connected. Nobody else knows it yet.
    pub(crate) fn grown(fd: i32, about: Option<About>) -> Option<&'static Self> {
        // A socket that does not wait must not spin for a while before that is found out.
        let sock = new(is_nonblocking(fd), about.is_some_and(|about| about.is_server))?;
        if let Some(about) = about {
            sock.server_port.store(about.server_port, Ordering::Relaxed);
            sock.was_young.store(fd, Ordering::Relaxed);
        }
        Some(sock)
    }

    /// Whether calls of the time when it was young have not returned yet: they still send or
    /// receive by TCP.
    pub(crate) fn has_young_calls(&self) -> bool {
        let fd = self.was_young.load(Ordering::Relaxed);
        let Some(young) = self.home().and_then(|home| home.state.young(fd)) else { return false };
        let has_any = young.is_in_use();
        if !has_any {
            // Later ones are of the next connection of this descriptor.
            self.was_young.store(-1, Ordering::Relaxed);
        }
        has_any
    }

    /// A listener's port, if what it was given is nothing that its connections would have to
    /// be told of.
    pub(crate) fn port_without_wishes(&self) -> Option<u16> {
        let has_wishes = self.receive_buffer.load(Ordering::Relaxed) != 0
            || self.tcp_only.load(Ordering::Relaxed)
            || self.has_tcp_option.load(Ordering::Relaxed)
            || self.is_for_hosts.load(Ordering::Relaxed);
        (!has_wishes).then(|| self.server_port.load(Ordering::Relaxed))
    }

    /// Counts one more user; false when the object was dissolved.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        let mut uses = self.uses.load(Ordering::Relaxed);
        while uses != 0 {
            let (old, new) = (uses, uses + 1);
            // SeqCst: see `descriptors::enter`, which looks at the table afterwards.
            match self.uses.compare_exchange_weak(old, new, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => uses = now,
            }
        }
        false
    }

    /// How many calls are under way beside the one that asks, while there is a descriptor.
    pub(crate) fn calls_under_way(&self) -> u32 {
        // SeqCst: see `descriptors::begin_closing`, which has changed the table before.
        self.uses.load(Ordering::SeqCst).saturating_sub(2)
    }

    /// One user less; the last one dissolves it.
    #[inline]
    pub(crate) fn leave(&'static self) {
        if self.uses.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.dissolve();
        }
    }

    fn drop_descriptor(&'static self, fd: i32) {
        if self.descriptors.fetch_sub(1, Ordering::AcqRel) == 1 {
            epoll::forget_sock(self);
            account::complete_tally(self, fd);
            if !self.naming.has_copy() {
                self.say_goodbye(fd);
            }
            self.leave();
        } else {
            epoll::forget_descriptor(self, fd);
            self.forget_descriptor(fd);
        }
    }

    /// Another descriptor leads to it from now on.
    fn forget_descriptor(&self, fd: i32) {
        let Some(slot) = self.slot() else { return };
        if slot.descriptor.load(Ordering::Relaxed) == fd {
            slot.descriptor.store(descriptors::first_of(self).unwrap_or(-1), Ordering::Relaxed);
        }
    }

    /// The last descriptor of this process is about to be closed, and no call is under way.
    fn say_goodbye(&self, fd: i32) {
        if let Some(conn) = self.conn() {
            ends::before_last_close(self, &conn, File::certain(self, fd));
        }
    }

    /// The kernel has closed it. A peer that is awake need not sleep to learn it.
    fn tell_of_close(&self) {
        if let Some(conn) = self.conn() {
            ends::note_closed(&conn);
        }
    }

    /// Nobody refers to the object: gives its slot back and itself to the pool.
    fn dissolve(&'static self) {
        // A call that has outlived the descriptors kept the file.
        if self.naming.let_go(|copy| self.say_goodbye(copy)) {
            self.tell_of_close();
        }
        // A thread that is about to fork may have the lock; what has begun has to end all the same.
        let _ = self.meeting.with(|meeting| meeting.abandon(self));
        let marker = self.marker.load(Ordering::Relaxed);
        if marker >= 0 {
            marker::retire_marker(marker);
        }
        let name = self.given_name.load(Ordering::Relaxed);
        if name >= 0 {
            sys::close(name);
        }
        if matches!(self.phase(), Phase::Candidate | Phase::Meeting) && self.slot().is_some() {
            crate::log!(Info, "connection ends on TCP before it was decided");
            account::undecided(self);
        }
        self.release_slot();
        POOL.give(self);
    }

    fn release_slot(&self) {
        let Some(slot) = self.slot() else { return };
        self.slot.set(None);
        let index = self.slot_index();
        let Some(home) = self.home() else { return };
        // As long as we hold it, nobody gives it to another connection. If two let go
        // at once, the home finds that nobody is left.
        if slot.holders.load(Ordering::Acquire) == 1 && !home.is_under_way(index) {
            home.detach(index);
        }
        slot.holders.fetch_sub(1, Ordering::AcqRel);
        home.forget_received(index);
        if self.is_at_home() {
            home.release_slot(index);
        }
    }

    /// A descriptor stays open in the program that is about to begin in this process.
    pub(crate) fn set_stays_open(&self) {
        self.naming.stays_open.store(true, Ordering::Relaxed);
    }

    /// Whether one does.
    pub(crate) fn stays_open(&self) -> bool {
        self.naming.stays_open.load(Ordering::Relaxed)
    }

    /// Another program is about to begin in this process, which is no holder any more if
    /// at least so many others are left: how many are.
    pub(crate) fn let_go(&self, others_least: u32) -> Option<u32> {
        let less = |holders: u32| holders.checked_sub(1).filter(|left| *left >= others_least);
        let holders = &self.slot()?.holders;
        let before = holders.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less).ok()?;
        self.let_go.store(true, Ordering::Relaxed);
        Some(before - 1)
    }

    /// The other program could not be begun.
    pub(crate) fn hold_again(&self) {
        self.naming.stays_open.store(false, Ordering::Relaxed);
        if let Some(slot) = self.slot().filter(|_| self.let_go.swap(false, Ordering::Relaxed)) {
            slot.holders.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether its slot belongs to the process that runs, not to a forebear.
    pub fn is_at_home(&self) -> bool {
        self.home().is_some_and(Process::is_current)
    }

    /// How far it has come.
    #[inline]
    pub fn phase(&self) -> Phase {
        // Acquire: pairs with the Release in `set_phase`; `conn` is visible with
        // `Smc`.
        let number = usize::from(self.phase.load(Ordering::Acquire));
        Phase::ALL.get(number).copied().unwrap_or(Phase::Plain)
    }

    /// Moves on.
    pub fn set_phase(&self, phase: Phase) {
        if !matches!(phase, Phase::Fresh | Phase::Listener | Phase::Plain) {
            multiplex::begin();
        }
        self.phase.store(phase as u8, Ordering::SeqCst);
    }

    /// The connection in shared memory, if it is there.
    #[inline]
    pub fn conn(&self) -> Option<Conn> {
        if self.phase() != Phase::Smc {
            return None;
        }
        // SAFETY: `set_conn` comes before `set_phase(Smc)`, whose Release `phase` has acquired.
        Some(unsafe { self.conn.get_unchecked() })
    }

    /// # Safety
    /// The phase is not [`Phase::Smc`], and becomes it next, by this thread; or the same value is
    /// there already.
    pub(crate) unsafe fn set_conn(&self, conn: Conn) {
        // SAFETY: `conn` looks only when the phase is `Smc`, which it is not before the call has
        // returned; or what it sees is the same before and after.
        unsafe { self.conn.replace(Some(conn)) };
    }

    /// Its slot, once it has one.
    #[inline]
    pub fn slot(&self) -> Option<&'static Slot> {
        self.slot.get()
    }

    /// Number of its slot in its home.
    #[inline]
    pub fn slot_index(&self) -> usize {
        self.slot_index.load(Ordering::Relaxed) as usize
    }

    /// The process object its slot belongs to.
    pub fn home(&self) -> Option<&'static Process> {
        self.home.get()
    }

    /// Why it stays on TCP.
    pub fn stay_plain(&self, reason: Reason) {
        account::stays(self, reason);
        if let Some(slot) = self.slot() {
            slot.reason.store(reason.word(), Ordering::Relaxed);
            slot.mode.store(mode::TCP, Ordering::Release);
        }
        self.set_phase(Phase::Plain);
        crate::log!(Info, "connection stays on TCP: {reason}");
    }

    /// Whatever the ends are about to agree on, it stays on TCP, if it has not moved yet.
    pub(crate) fn keep_plain(&self, reason: Reason) {
        // Whoever is in the middle of it finishes first.
        let _meeting = self.meeting.enter();
        match self.phase() {
            Phase::Candidate | Phase::Meeting => self.stay_plain(reason),
            Phase::Listener => marker::withdraw_marker(self),
            // The other host waits for CLC.
            Phase::Offered | Phase::Fresh | Phase::Plain | Phase::Smc => {}
        }
    }

    /// Gives a connected socket its slot and writes down its addresses. Called
    /// when `connect` or `accept` has done its work.
    pub fn begin(&'static self, fd: i32) {
        self.begin_with(fd, None);
    }

    /// The same; the slot goes on with what a young connection has carried.
    pub(crate) fn begin_with(&'static self, fd: i32, young: Option<&Young>) {
        if self.slot().is_some() {
            return;
        }
        reload::look();
        let Some(process) = home::current() else { return self.set_phase(Phase::Plain) };
        if process.take_slot(self, young).is_none() {
            account::without_slot(process, self, fd);
            return self.set_phase(Phase::Plain);
        }
        if let Some(slot) = self.slot() {
            slot.descriptor.store(fd, Ordering::Relaxed);
            if home::options().promotion == Promotion::Lazy {
                self.note_reason(Reason::Program(ProgramDid::TooShort));
            }
        }
        if let Some(reason) = self.objection(fd) {
            if reason == Reason::Operator(OperatorSaid::ModeTcp) {
                let addresses = self.learn_addresses(fd);
                self.slot().inspect(|slot| account::begin_tally(slot, addresses));
            }
            self.stay_plain(reason);
        }
    }

    /// Why the connection may not move, by the operator's rules or by what the program does.
    /// Without rules about ports and peers nobody has to know its addresses yet.
    fn objection(&self, fd: i32) -> Option<Reason> {
        let Options { smc, policy, .. } = home::options();
        if !smc {
            return Some(Reason::Operator(OperatorSaid::ModeTcp));
        }
        let by_policy = || {
            let (local, peer) = self.learn_addresses(fd)?;
            self.objection_by_policy(local, peer)
        };
        let by_policy = if policy.is_empty() { None } else { by_policy() };
        by_policy.or_else(unseen_use)
    }

    /// What the operator has against it.
    pub(crate) fn objection_by_policy(
        &self,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Option<Reason> {
        let is_server = self.is_server.load(Ordering::Relaxed);
        let server_port = if is_server { local.port() } else { peer.port() };
        home::options().policy.objection(server_port, peer.ip())
    }

    /// Its addresses, which from now on stand in its slot. `None` while it is not connected.
    pub(crate) fn learn_addresses(&self, fd: i32) -> Option<(SocketAddr, SocketAddr)> {
        let (local, peer) = addresses(fd).ok()?;
        // What is shown of one by the gateway is where it leads.
        if self.passage().is_none() {
            self.note_addresses(local, peer);
        }
        Some((local, peer))
    }

    /// If it goes by the gateway.
    pub(crate) fn passage(&self) -> Option<Passage> {
        self.passage.get()
    }

    /// Held by whoever finds out what becomes of it.
    pub(crate) fn agreeing(&self) -> Held<'_> {
        self.meeting.enter()
    }

    /// A slot was taken for it. Under the lock of a list of free slots.
    pub(crate) fn settle(&self, process: &'static Process, index: usize) {
        let slot = process.state.slot(index);
        let port = self.server_port.load(Ordering::Relaxed);
        slot.server_port.store(u32::from(port), Ordering::Relaxed);
        slot.is_server.store(u8::from(self.is_server.load(Ordering::Relaxed)), Ordering::Relaxed);
        slot.held.store(u32::from(process.state.header().holds.has(port)), Ordering::Relaxed);
        slot.passage.store(self.passage().map_or(0, |passage| passage.word()), Ordering::Relaxed);
        self.slot_index.store(index as u32, Ordering::Relaxed);
        self.home.set(Some(process));
        let nonblocking = self.nonblocking.load(Ordering::Relaxed);
        slot.flags.store(if nonblocking { flag::NONBLOCKING } else { 0 }, Ordering::Relaxed);
        self.slot.set(Some(slot));
        // Whoever changes it from now on finds the slot.
        let is_now = self.nonblocking.load(Ordering::Relaxed);
        if is_now != nonblocking {
            self.set_nonblocking(is_now);
        }
    }

    /// Writes its addresses down for `sidestep ss`.
    fn note_addresses(&self, local: SocketAddr, peer: SocketAddr) {
        let Some(slot) = self.slot() else { return };
        let places = [(local.ip(), &slot.local_ip), (peer.ip(), &slot.peer_ip)];
        for (ip, place) in places {
            let ([first, second], _) = words(ip);
            place[0].store(first, Ordering::Relaxed);
            place[1].store(second, Ordering::Relaxed);
        }
        slot.local_port.store(u32::from(local.port()), Ordering::Relaxed);
        slot.peer_port.store(u32::from(peer.port()), Ordering::Relaxed);
        let (_, family) = words(peer.ip());
        slot.family.store(family, Ordering::Release);
    }

    /// A forked child continues alone with a connection that was not decided when
    /// its parent forked: with a slot of its own.
    pub fn move_home(&'static self, fd: i32) {
        if self.is_at_home() || self.slot().is_none() {
            return;
        }
        let server = self.is_server.load(Ordering::Relaxed);
        self.nonblocking.store(self.is_known_nonblocking(), Ordering::Relaxed);
        self.slot().inspect(|slot| slot.is_elsewhere.store(1, Ordering::Relaxed));
        self.release_slot();
        self.is_server.store(server, Ordering::Relaxed);
        self.begin(fd);
    }

    /// Runs `f` on the state of the agreement, unless another thread does.
    pub(crate) fn with_meeting(&self, f: impl FnOnce(&mut Meeting)) {
        let _ = self.meeting.try_with(|meeting| {
            if !home::is_forking() {
                f(meeting);
            }
        });
    }

    /// An accepted socket gets what its listener was given.
    pub fn inherit(&self, listener: &Self) {
        let receive_buffer = listener.receive_buffer.load(Ordering::Relaxed);
        self.receive_buffer.store(receive_buffer, Ordering::Relaxed);
        self.tcp_only.store(listener.tcp_only.load(Ordering::Relaxed), Ordering::Relaxed);
        let has_tcp_option = listener.has_tcp_option.load(Ordering::Relaxed);
        self.has_tcp_option.store(has_tcp_option, Ordering::Relaxed);
        let is_for_hosts = listener.is_for_hosts.load(Ordering::Relaxed);
        self.is_for_hosts.store(is_for_hosts, Ordering::Relaxed);
        let port = listener.server_port.load(Ordering::Relaxed);
        self.server_port.store(port, Ordering::Relaxed);
    }

    /// A listener: it has its marker (see [`marker::mark_listener`]).
    pub fn is_marked(&self) -> bool {
        self.marker.load(Ordering::Relaxed) >= 0
    }

    /// The program connects to a server at this port.
    pub fn note_server(&self, port: u16) {
        self.server_port.store(port, Ordering::Relaxed);
    }

    /// Our receive buffer: by z/OS's rule ([`RmbeSize::for_receive_buffer`]) if the program set
    /// `SO_RCVBUF` before connecting or listening, else the configured default.
    pub(crate) fn rmbe(&self) -> RmbeSize {
        match self.receive_buffer.load(Ordering::Relaxed) {
            0 => home::options().rmbe,
            bytes => RmbeSize::for_receive_buffer(bytes as usize),
        }
    }

    /// What has passed on it.
    pub(crate) fn traffic(&self) -> Traffic {
        let (messages, bytes) = self.slot().map_or((0, 0), |slot| slot.counters.traffic());
        Traffic { messages, bytes }
    }

    /// Receives that moved something.
    pub(crate) fn messages_received(&self) -> u64 {
        let count = |slot: &Slot| slot.counters.messages_received.load(Ordering::Relaxed);
        self.slot().map_or(0, count)
    }

    /// Whether it has lived long enough: see [`sidestep_proto::autosmc`].
    #[inline]
    pub(crate) fn is_worth_moving(&self) -> bool {
        let options = home::options();
        if options.promotion != Promotion::Lazy {
            return true;
        }
        let traffic = self.traffic();
        if !Patience::default().is_over(traffic) {
            return false;
        }
        let port = self.server_port.load(Ordering::Relaxed);
        let doublings = match self.home() {
            Some(home) if options.autosmc => home.state.header().patience(port),
            _ => 0,
        };
        Patience::new(doublings).is_over(traffic)
    }

    /// Whether an operator keeps it on TCP for now.
    pub(crate) fn is_held(&self) -> bool {
        let is_held = self.slot().is_some_and(|slot| slot.held.load(Ordering::Relaxed) != 0);
        if is_held {
            self.note_reason(Reason::Operator(OperatorSaid::Demoted));
        }
        is_held
    }

    /// Why it is on TCP as things stand.
    pub(crate) fn note_reason(&self, reason: Reason) {
        self.slot().inspect(|slot| slot.reason.store(reason.word(), Ordering::Relaxed));
    }

    /// Mirrors `O_NONBLOCK`.
    pub fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
        let Some(slot) = self.slot() else { return };
        if on {
            slot.flags.fetch_or(flag::NONBLOCKING, Ordering::Relaxed);
        } else {
            slot.flags.fetch_and(!flag::NONBLOCKING, Ordering::Relaxed);
        }
    }

    fn is_known_nonblocking(&self) -> bool {
        match self.slot() {
            Some(slot) => slot.flags.load(Ordering::Relaxed) & flag::NONBLOCKING != 0,
            None => self.nonblocking.load(Ordering::Relaxed),
        }
    }

    /// Mirrors what `F_SETFL` has set.
    pub fn note_status_flags(&self, flags: i32) {
        self.set_nonblocking(flags & libc::O_NONBLOCK != 0);
        self.set_async(flags & libc::O_ASYNC != 0);
    }

    /// Mirrors `O_ASYNC`: the kernel raises SIGIO when a bell arrives, so the peer
    /// is asked to ring for every message.
    pub fn set_async(&self, on: bool) {
        let Some(slot) = self.slot() else { return };
        let was_on = if on {
            slot.flags.fetch_or(flag::ASYNC, Ordering::SeqCst)
        } else {
            slot.flags.fetch_and(!flag::ASYNC, Ordering::SeqCst)
        };
        if let Some(conn) = self.conn().filter(|_| on != (was_on & flag::ASYNC != 0)) {
            wait::withdraw_readers(slot, &conn);
        }
    }

    /// A receive that may not wait has found nothing, not even the end.
    #[inline]
    pub(crate) fn note_nothing(&self) {
        // Hardly ever news: no write to a line that others read.
        if !self.has_found_nothing() {
            self.found_nothing.store(true, Ordering::Relaxed);
        }
    }

    /// Whether one has since the last [`Self::forget_nothing`].
    pub(crate) fn has_found_nothing(&self) -> bool {
        self.found_nothing.load(Ordering::Relaxed)
    }

    /// Whether one has; not any more.
    pub(crate) fn forget_nothing(&self) -> bool {
        self.found_nothing.swap(false, Ordering::Relaxed)
    }

    /// Whether a call may wait, as far as the mirror knows: enough to spin and to yield.
    #[inline]
    pub(crate) fn seems_blocking(&self) -> bool {
        !self.is_known_nonblocking()
    }

    /// Whether a call may sleep: the kernel has the last word, and the mirror has it
    /// afterwards.
    pub(crate) fn may_sleep(&self, file: File<'_>) -> bool {
        if confinement::is_confined() {
            return self.seems_blocking();
        }
        let nonblocking = file.status_flags() & libc::O_NONBLOCK != 0;
        if nonblocking {
            self.set_nonblocking(true);
        }
        !nonblocking
    }
}

/// Why the program's sockets are used without our seeing it, if they are: then none of its
/// connections may move.
pub(crate) fn unseen_use() -> Option<Reason> {
    if seccomp::is_in_the_way() {
        Some(Reason::Program(ProgramDid::Filtered))
    } else if uring::is_used() {
        Some(Reason::Program(ProgramDid::IoUring))
    } else if past_libc::is_found() {
        Some(Reason::Program(ProgramDid::PastLibc))
    } else {
        None
    }
}

/// `O_NONBLOCK`, as the kernel has it.
fn is_nonblocking(fd: i32) -> bool {
    let flags = sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0);
    flags as i32 & libc::O_NONBLOCK != 0
}

/// An address as it stands in the state: two words and the family, 4 or 6.
pub(crate) fn words(ip: IpAddr) -> ([u64; 2], u8) {
    match ip {
        IpAddr::V4(v4) => ([u64::from(u32::from(v4)), 0], 4),
        IpAddr::V6(v6) => (home::halves(&v6.octets()), 6),
    }
}

/// Both addresses of a connected socket.
///
/// # Errors
/// `ENOTCONN` while it is not connected.
pub fn addresses(fd: i32) -> Result<(SocketAddr, SocketAddr), Errno> {
    let (peer, _) = sys::socket_name(fd, true).map_err(|errno| errno.0)?;
    let (local, _) = sys::socket_name(fd, false).map_err(|errno| errno.0)?;
    match (address(&local), address(&peer)) {
        (Some(local), Some(peer)) => Ok((local, peer)),
        _ => Err(libc::EAFNOSUPPORT),
    }
}

/// Whether an address, of which these are the first bytes of the kernel's struct, is `AF_UNSPEC`.
#[must_use]
pub fn is_nowhere(bytes: &[u8]) -> bool {
    family(bytes) == Some(libc::AF_UNSPEC)
}

fn family(bytes: &[u8]) -> Option<i32> {
    let family = bytes.first_chunk()?;
    Some(libc::sa_family_t::from_ne_bytes(*family).into())
}

/// An address of the kernel as Rust knows it; IPv4-mapped ones become IPv4.
#[must_use]
pub fn address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    address_in(sys::bytes_of_address(storage))
}

/// The same in the bytes of the kernel's struct; what is missing behind them is zero.
#[must_use]
pub fn address_in(bytes: &[u8]) -> Option<SocketAddr> {
    const PORT_AT: usize = core::mem::offset_of!(libc::sockaddr_in, sin_port);
    const V4_AT: usize = core::mem::offset_of!(libc::sockaddr_in, sin_addr);
    const V6_AT: usize = core::mem::offset_of!(libc::sockaddr_in6, sin6_addr);
    const _: () = assert!(PORT_AT == core::mem::offset_of!(libc::sockaddr_in6, sin6_port));
    let mut all = [0; size_of::<libc::sockaddr_in6>()];
    let len = bytes.len().min(all.len());
    all[..len].copy_from_slice(&bytes[..len]);
    let port = u16::from_be_bytes(*all[PORT_AT..].first_chunk()?);
    let ip = match family(&all)? {
        libc::AF_INET => IpAddr::from(*all[V4_AT..].first_chunk::<4>()?),
        libc::AF_INET6 => Ipv6Addr::from(*all[V6_AT..].first_chunk::<16>()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// The process is about to end, and the kernel will close its connections.
pub fn before_exit() {
    if home::is_borrowed_memory() {
        return;
    }
    descriptors::for_each_sock(|_, sock| {
        if let (Some(conn), Some(slot)) = (sock.conn(), sock.slot()) {
            ends::before_exit(slot, &conn);
        }
    });
}

/// Before a fork: connections whose ends are agreeing right now stay on TCP, and
/// every connection gets one more holder.
pub fn before_fork() {
    young::grow_all();
    home::about_to_fork();
    descriptors::for_each_sock(|fd, sock| {
        gateway::settle(sock, fd);
        // Whoever is in the middle of it finishes first.
        let _meeting = sock.meeting.enter();
        // Afterwards a descriptor of one process may mean nothing to the other.
        if sock.slot().is_some_and(|slot| slot.family.load(Ordering::Relaxed) == 0) {
            sock.learn_addresses(fd);
        }
        if sock.phase() == Phase::Meeting {
            sock.stay_plain(Reason::Program(ProgramDid::ForkedMeanwhile));
        }
    });
    // After the meetings, which take slots themselves.
    home::count_heir();
    for_each_inherited(|slot| _ = slot.holders.fetch_add(1, Ordering::AcqRel));
}

/// Connections that we have inherited ourselves; those that are ours the process counts.
fn for_each_inherited(f: impl Fn(&Slot)) {
    descriptors::for_each_sock(|fd, sock| {
        let inherited = |_: &&Slot| !sock.is_at_home() && descriptors::is_first_of(fd, sock);
        if let Some(slot) = sock.slot().filter(inherited) {
            f(slot);
        }
    });
}

/// A fork has failed, and before [`home::forked`]: no child holds anything.
pub fn after_failed_fork() {
    let one_less = |holders: u32| holders.checked_sub(1);
    for_each_inherited(|slot| {
        let _ = slot.holders.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less);
    });
    home::discount_heir();
}

/// In the child of a fork.
pub fn after_fork_in_child() {
    POOL.reset_locks();
    crate::program::parcel::reset_lock();
    gateway::after_fork_in_child();
    young::reset_locks();
    descriptors::after_fork_in_child();
    plain::after_fork_in_child();
    if file::are_any_kept() {
        POOL.each(|sock| sock.naming.after_fork_in_child());
        epoll::forget_copies();
    }
    descriptors::for_each_sock(|_, sock| {
        sock.naming.after_fork_in_child();
        sock.was_young.store(-1, Ordering::Relaxed);
        sock.uses.store(1, Ordering::Relaxed);
        sock.meeting.reset_lock();
    });
    descriptors::for_each_sock(|fd, sock| {
        if sock.home().is_some_and(|home| !home.has_entered()) {
            crate::program::parcel::give_up(fd);
        }
    });
}

/// What a plain call has moved, for the counters.
pub fn count_plain(sock: &Use, sent: bool, moved: isize) {
    if let (Some(slot), Ok(bytes)) = (sock.slot(), u64::try_from(moved)) {
        let counters = &slot.counters;
        let (bytes_at, messages_at, sizes) = if sent {
            (&counters.bytes_sent, &counters.messages_sent, &slot.sent)
        } else {
            (&counters.bytes_received, &counters.messages_received, &slot.received)
        };
        if bytes > 0 {
            bytes_at.fetch_add(bytes, Ordering::Relaxed);
            messages_at.fetch_add(1, Ordering::Relaxed);
            sizes.count_among_others(bytes);
            if slot.tally.is_on() {
                slot.tally.note(sock.is_server.load(Ordering::Relaxed), sent);
            }
        }
    }
}

/// What the rendezvous needs to know about a moment in a call.
pub use agreement::Moment;
