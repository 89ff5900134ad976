//! A TCP stream socket of the program, as this process sees it.
//!
//! ```text
//!   Fresh ── connect, accept ──> Candidate ── first I/O ──> Rendezvous ──> Smc
//!     │                              └──────────┬──────────────┘
//!     └── listen ──> Listener                   └── any doubt ──> Plain
//! ```
//!
//! The object is private to the process (a forked child has its own copy); what
//! two processes must agree on lies in its [`Slot`] and [`Record`](sidestep_device::slab::Record)s.

use crate::process::children;
use crate::process::home::Home;
use crate::process::owner::Held;
use crate::process::pool::{Guarded, Pool, Pooled};
use crate::table::conn::Conn;
use crate::table::mirror::Mirror;
use crate::table::naming::Naming;
use crate::table::rendezvous::Rendezvous;
use crate::table::session::Session;
use crate::table::{learned, streak};
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering,
};
use sidestep_device::copy::Choice;
use sidestep_device::late::Late;
use sidestep_device::reference::AtomicRef;
use sidestep_device::state::{Slot, flag};
use sidestep_device::sys;
use sidestep_device::valid::{Renew, Zeroable};
use sidestep_proto::autosmc::Traffic;
use std::sync::OnceLock;

/// Sockets of a process that are tracked at once.
pub(crate) const SOCKS_MAX: usize = 1 << 17;

static POOL: Pool<Sock, SOCKS_MAX> = Pool::new();

/// How far a socket has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Created, neither connected nor listening.
    Fresh,
    /// Listening.
    Listener,
    /// The gateway may get the connection, and what comes of that is not known yet: a phase of which
    /// [`offer`](crate::table::offer) alone knows.
    Offered,
    /// Connected (or connecting); nothing was decided.
    Candidate,
    /// The two libraries are agreeing.
    Rendezvous,
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
        Self::Rendezvous,
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
    pub(super) uses: AtomicU32,
    /// By which numbers its file is named, and by what else.
    pub(crate) naming: Naming,
    pub(super) phase: AtomicU8,
    /// This side accepted the connection.
    pub is_server: AtomicBool,
    /// `O_NONBLOCK`, as far as this process has set or seen it; with a slot, the slot
    /// has the word: other processes share it.
    pub(super) nonblocking: AtomicBool,
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
    /// What it is to be handed over to the gateway for, in words of [`offer`](crate::table::offer); 0 = nothing.
    pub(super) handed_for: AtomicU8,
    /// The kernel's name of the socket while it is offered.
    pub(super) offered_cookie: AtomicU64,
    /// This process begins another program, and has let go of the slot.
    pub(super) let_go: AtomicBool,
    /// Another process has passed it on to this one: see [`crate::rendezvous::passed`].
    pub(crate) is_received: AtomicBool,
    /// The name of a process that has passed it on, -1 = none.
    pub(crate) given_name: AtomicI32,
    /// A listener's marker (see [`mark`](crate::rendezvous::listeners::mark)), -1 = none.
    pub(crate) marker: AtomicI32,
    pub(super) slot_index: AtomicU32,
    pub(super) home: AtomicRef<Home>,
    pub(super) slot: AtomicRef<Slot>,
    #[renew(kept)]
    pub(super) conn: Late<Conn>,
    /// Producer position up to which the peer is known to have room.
    pub(crate) send_limit: AtomicU64,
    /// How long messages are best copied.
    pub(crate) copy_choice: Choice,
    /// A send found no room: the next room is news to an edge-triggered loop.
    pub(crate) out_blocked: AtomicBool,
    /// When [`prod_peer`](crate::connection::wait::prod_peer) did so last, by [`coarse_ns`](sidestep_device::sys::coarse_ns).
    pub(crate) prodded_ns: AtomicU64,
    /// A receive found nothing: if an edge-triggered loop was told that input has ended,
    /// the peer has taken that back, and the next end is news again.
    found_nothing: AtomicBool,
    /// When a receive that may not wait asked the kernel last, by [`now_ns`](sidestep_device::sys::now_ns).
    pub(crate) kernel_asked_ns: AtomicU64,
    /// What a `poll` that finds something in the ring knows of those before it.
    pub(crate) poll_streak: streak::Streak,
    pub(crate) receive_wait: learned::Learned,
    pub(crate) send_wait: learned::Learned,
    /// The next one replaces it ([`take`]).
    #[renew(kept)]
    pub(super) rendezvous: Guarded<Rendezvous>,
    /// Of a connection to another host: constant, once others know the object.
    #[renew(kept)]
    pub(super) session: Late<Session>,
    /// The descriptor under which it was an untracked connection, as long as a call of that time may
    /// not have returned; else -1.
    was_untracked: AtomicI32,
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

/// Objects that were ever made: the [number](Sock::index) of each is below it.
pub(crate) fn made() -> usize {
    POOL.used()
}

/// Nothing leads to an object any more.
pub(crate) fn give(sock: &'static Sock) {
    POOL.give(sock);
}

/// In the child of a fork: the locks were those of the parent's threads.
pub(crate) fn reset_locks() {
    POOL.reset_locks();
}

/// Calls `f` with every object that was ever made.
pub(crate) fn each(f: impl FnMut(&Sock)) {
    POOL.each(f);
}

impl Sock {
    /// It was an untracked connection, with this descriptor.
    pub(crate) fn note_was_untracked(&self, fd: i32) {
        self.was_untracked.store(fd, Ordering::Relaxed);
    }

    /// In the child of a fork: the calls under way are the parent's.
    pub(crate) fn after_fork_in_child(&self) {
        self.naming.after_fork_in_child();
        self.was_untracked.store(-1, Ordering::Relaxed);
        self.uses.store(1, Ordering::Relaxed);
        self.rendezvous.reset_lock();
    }

    /// The last look at the agreement, although this process forks.
    pub(crate) fn with_last_rendezvous(&self, f: impl FnOnce(&mut Rendezvous)) {
        // A thread that is about to fork may have the lock; what has begun has to end all the same.
        let _ = self.rendezvous.with(f);
    }

    /// The number of the object, below [`SOCKS_MAX`].
    #[inline]
    pub(crate) fn index(&self) -> usize {
        POOL.index_of(self)
    }

    /// Whether calls of the time when it was untracked have not returned yet: they still send or
    /// receive by TCP.
    pub(crate) fn has_untracked_calls(&self) -> bool {
        let fd = self.was_untracked.load(Ordering::Relaxed);
        let Some(untracked) = self.home().and_then(|home| home.state.untracked(fd)) else {
            return false;
        };
        let has_any = untracked.is_in_use();
        if !has_any {
            // Later ones are of the next connection of this descriptor.
            self.was_untracked.store(-1, Ordering::Relaxed);
        }
        has_any
    }

    /// A listener's port, if what it was given is nothing that its connections would have to
    /// be told of.
    pub(crate) fn port_without_wishes(&self) -> Option<u16> {
        let has_wishes = self.receive_buffer.load(Ordering::Relaxed) != 0
            || self.tcp_only.load(Ordering::Relaxed)
            || self.has_tcp_option.load(Ordering::Relaxed)
            || self.is_for_hosts();
        (!has_wishes).then(|| self.server_port.load(Ordering::Relaxed))
    }

    /// How many calls are under way beside the one that asks, while there is a descriptor.
    pub(crate) fn calls_under_way(&self) -> u32 {
        // SeqCst: see `descriptors::begin_closing`, which has changed the table before.
        self.uses.load(Ordering::SeqCst).saturating_sub(2)
    }

    /// A descriptor led here, and does so no more; `fd` is -1 if its number is another's by now.
    pub(crate) fn drop_descriptor(&'static self, fd: i32) {
        if let Some(life) = LIFE.get() {
            (life.drop_descriptor)(self, fd);
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

    /// Whether its slot belongs to the process that runs, not to an ancestor.
    pub fn is_at_home(&self) -> bool {
        self.home().is_some_and(Home::is_current)
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
            begin();
        }
        self.phase.store(phase as u8, Ordering::SeqCst);
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
    pub fn home(&self) -> Option<&'static Home> {
        self.home.get()
    }

    /// Held by the thread that finds out what becomes of it.
    pub(crate) fn agreeing(&self) -> Held<'_> {
        self.rendezvous.enter()
    }

    /// Runs `f` on the state of the agreement, unless another thread does.
    pub(crate) fn with_rendezvous(&self, f: impl FnOnce(&mut Rendezvous)) {
        let _ = self.rendezvous.try_with(|rendezvous| {
            if !children::is_forking() {
                f(rendezvous);
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
        self.set_for_hosts(listener.is_for_hosts());
        let port = listener.server_port.load(Ordering::Relaxed);
        self.server_port.store(port, Ordering::Relaxed);
    }

    /// A listener: it has its marker (see [`mark`](crate::rendezvous::listeners::mark)).
    pub fn is_marked(&self) -> bool {
        self.marker.load(Ordering::Relaxed) >= 0
    }

    /// The connections of a listener will not meet us.
    pub(crate) fn withdraw_marker(&self) {
        let marker = self.marker.swap(-1, Ordering::Relaxed);
        if marker >= 0 {
            sys::close(marker);
        }
    }

    /// The program connects to a server at this port.
    pub fn note_server(&self, port: u16) {
        self.server_port.store(port, Ordering::Relaxed);
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

    /// The mirror of this process alone: a slot is another connection's.
    pub(crate) fn was_made_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(super) fn is_known_nonblocking(&self) -> bool {
        match self.slot() {
            Some(slot) => slot.flags.load(Ordering::Relaxed) & flag::NONBLOCKING != 0,
            None => self.nonblocking.load(Ordering::Relaxed),
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
}

/// Whether any descriptor may need us: some connection of this process is undecided, has moved, or
/// is connecting to another host. Until then nothing of the program is looked at here.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// A socket is in a phase in which its readiness is not the kernel's, or may cease to be.
pub(crate) fn begin() {
    // Hardly ever: a write would take the line away from all others.
    if !HAS_BEGUN.load(Ordering::Relaxed) {
        HAS_BEGUN.store(true, Ordering::Relaxed);
    }
}

/// Whether any connection of this process has moved, or was to.
pub(crate) fn has_begun() -> bool {
    HAS_BEGUN.load(Ordering::Relaxed)
}

/// How objects end: said by their maker, in a room above this one.
pub(crate) struct Life {
    /// A descriptor led to the object, and does so no more.
    pub(crate) drop_descriptor: fn(&'static Sock, i32),
    /// No descriptor and no call leads to the object any more.
    pub(crate) dissolve: fn(&'static Sock),
}

pub(super) static LIFE: OnceLock<&'static Life> = OnceLock::new();

/// An object of which only the caller knows. In the end `life` gives it [back](give).
pub(crate) fn take(
    nonblocking: bool,
    is_server: bool,
    life: &'static Life,
) -> Option<&'static Sock> {
    let _ = LIFE.set(life);
    // An object with a held lock is passed over for good: the thread that holds it is about to fork, or has stayed
    // behind in the process that did.
    let sock = loop {
        let sock = POOL.take()?;
        if sock.rendezvous.put(Rendezvous::new()) {
            break sock;
        }
    };
    // SAFETY: the object was given back by `dissolve`, which `uses` keeps calls from entering, and no
    // table leads to it yet.
    unsafe {
        sock.conn.replace(None);
        sock.session.replace(None);
    }
    sock.phase.store(Phase::Fresh as u8, Ordering::Relaxed);
    sock.is_server.store(is_server, Ordering::Relaxed);
    sock.nonblocking.store(nonblocking, Ordering::Relaxed);
    for none in [&sock.given_name, &sock.marker, &sock.was_untracked] {
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
