//! epoll: the kernel's set for everybody else's descriptors, ours for the rings.
//!
//! The program's epoll descriptor stays a real one. While a socket is on TCP its
//! registration is exactly the program's. When its bytes move, the registration is
//! rewritten once: the kernel then reports only the end of the connection (and
//! bells), edge-triggered, under a tag of ours, and what the program is told comes
//! from the rings.
//!
//! ```text
//!   peer: bit in our channel ──┐
//!   kernel: tagged event ──────┼──> ready list ──> evaluate ──> program's events
//!   epoll_ctl, upgrade ────────┘     (one per set)   level: stays on the list
//!                                                    edge: once per news
//!                                                    one-shot: until MOD
//! ```
//!
//! A socket that has no object yet ([`crate::table::bare`]) has no registration here: the kernel's is
//! the program's, and a [`Watch`] remembers it for the time when there is an object.
//!
//! A one-shot registration reports once until the program arms it again, and that is the kernel's
//! business before the move and ours afterwards. So of a socket on TCP, too, the kernel's registration
//! carries our tag, and each report passes by here: *reported* is one bit, set by the side that reports.
//!
//! A set whose connections are out of its channel's reach (inherited by `fork`, in
//! more than four sets, watched through another set) *arms* them one by one before
//! it sleeps: slower, and always right.

mod nesting;

use crate::Errno;
use crate::connection::{ends, readiness, wait};
use crate::process::claims;
use crate::process::home;
use crate::process::home::Home;
use crate::process::loan;
use crate::process::pool::{Held, Pool, Pooled, SharedLock};
use crate::program::hand_over;
use crate::table::bare;
use crate::table::conn::Conn;
use crate::table::descriptors::Use;
use crate::table::file::File;
use crate::table::learned;
use crate::table::naming::Naming;
use crate::table::places;
use crate::table::sock::Phase;
use crate::table::sock::Sock;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use nesting::Nesting;
use sidestep_device::channel::{Channel, SLOTS};
use sidestep_device::counts::count;
use sidestep_device::program::Argument;
use sidestep_device::reference::AtomicRef;
use sidestep_device::sparse::Sparse;
use sidestep_device::state::{Counters, Slot};
use sidestep_device::sys::{self, SignalMask};
use sidestep_device::valid::{Renew, Zeroable};
use sidestep_device::young::YOUNG_MAX;
use sidestep_proto::fallback::{Lack, Reason};
use sidestep_proto::readiness::mask;

const EPOLLET: u32 = 1 << 31;
const EPOLLONESHOT: u32 = 1 << 30;
const EPOLLEXCLUSIVE: u32 = 1 << 28;
/// Registrations of a process.
const REGISTRATIONS_MAX: usize = 1 << 17;
/// Epoll sets of a process that hold TCP sockets.
const SETS_MAX: usize = 4_096;
/// The end of input, or of the connection: an edge even for those who asked for
/// `EPOLLIN` alone and were told of bytes before.
const END: u32 = mask::RDHUP | mask::HUP | mask::ERR;
/// What the kernel accepts beside `EPOLLEXCLUSIVE`.
const EXCLUSIVE_ALLOWED: u32 = EPOLLEXCLUSIVE
    | EPOLLET
    | mask::IN
    | mask::OUT
    | mask::ERR
    | mask::HUP
    | libc::EPOLLWAKEUP as u32;
/// Every how many waits that find ring events the kernel is asked, too, and first:
/// nobody starves behind a busy connection.
const KERNEL_LOOK_EVERY: u32 = 4;
/// Longest time in nanoseconds for which ring events may keep the kernel waiting.
const KERNEL_LOOK_NS: u64 = 20_000;
/// Events taken from the kernel on behalf of somebody who watches the set from
/// outside, kept for the set's own waiter.
const CARRIED_MAX: usize = 16;

static REGISTRATIONS: Pool<Registration, REGISTRATIONS_MAX> = Pool::new();
static SETS: Pool<Set, SETS_MAX> = Pool::new();
/// Taken to change which registrations exist; before any set's own lock.
static STRUCTURE: SharedLock = SharedLock::new();

/// One descriptor in one set.
#[derive(Renew, Zeroable)]
pub struct Registration {
    /// None: dissolved.
    set: AtomicRef<Set>,
    sock: AtomicRef<Sock>,
    /// Under which the program has registered it.
    fd: AtomicI32,
    /// By which the socket is reached: another one, when that was closed.
    open_fd: AtomicI32,
    events: AtomicU32,
    data: AtomicU64,
    state: AtomicU32,
    /// The kernel's registration carries our tag.
    tagged: AtomicBool,
    /// It has been one-shot while the socket is on TCP: the kernel's registration is the program's
    /// but for its data, in the place of which is our tag. So we learn of a report before the move.
    marked: AtomicBool,
    /// The set's channel does not serve it.
    unreached: AtomicBool,
    /// Bytes that had arrived, and the mask, at the last report.
    seen_arrived: AtomicU64,
    seen_mask: AtomicU32,
    next_ready: AtomicRef<Self>,
    next_of_sock: AtomicRef<Self>,
    next_of_set: AtomicRef<Self>,
    next_of_slot: AtomicRef<Self>,
    next_free: AtomicRef<Self>,
}

impl Pooled for Registration {
    fn next_free(&self) -> &AtomicRef<Self> {
        &self.next_free
    }
}

/// Bits of [`Registration::state`].
const QUEUED: u32 = 1 << 0;
/// One-shot, and reported.
const DISABLED: u32 = 1 << 1;
/// Added or modified since the last report.
const FRESH: u32 = 1 << 2;
/// Taken out of the set while on the ready list.
const DEAD: u32 = 1 << 3;
/// The program has deleted it; the kernel's registration is kept for the next ADD.
/// (Programs add and delete a descriptor around every write; for a connection in
/// shared memory neither is worth a system call.)
const PARKED: u32 = 1 << 4;

/// The cost of waiting in a loop, until it is charged to the connection that ends the
/// wait.
#[derive(Renew, Zeroable)]
struct Owed(Counters);

impl Owed {
    fn add(&self, cost: &wait::Cost) {
        for (debt, n) in cost.parts(&self.0).into_iter().filter(|(_, n)| *n > 0) {
            debt.fetch_add(n, Ordering::Relaxed);
        }
    }

    fn add_park(&self) {
        self.0.parks.fetch_add(1, Ordering::Relaxed);
    }

    fn charge(&self, slot: &Slot) {
        let Counters { waits, parks, .. } = &self.0;
        // No other debt is without one of these.
        if [waits, parks].iter().all(|debt| debt.load(Ordering::Relaxed) == 0) {
            return;
        }
        for (debt, counter) in self.0.all().into_iter().zip(slot.counters.all()) {
            if debt.load(Ordering::Relaxed) != 0 {
                count(counter, debt.swap(0, Ordering::Relaxed));
            }
        }
    }
}

/// See [`CARRIED_MAX`]. Changed under the set's lock.
#[derive(Renew, Zeroable)]
struct Carried {
    count: AtomicUsize,
    events: [CarriedEvent; CARRIED_MAX],
}

#[derive(Renew, Zeroable)]
struct CarriedEvent {
    events: AtomicU32,
    data: AtomicU64,
}

impl Carried {
    fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn has(&self, data: u64) -> bool {
        let known = &self.events[..self.len().min(CARRIED_MAX)];
        known.iter().any(|event| event.data.load(Ordering::Relaxed) == data)
    }

    fn add(&self, event: libc::epoll_event) {
        if let Some(place) = self.events.get(self.len()) {
            place.set(event);
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Gives out what was carried first.
    fn take(&self, into: &mut [libc::epoll_event]) -> usize {
        let len = self.len().min(CARRIED_MAX);
        let n = len.min(into.len());
        for (at, place) in self.events[..len].iter().enumerate() {
            match at.checked_sub(n) {
                None => into[at] = place.get(),
                Some(to) => self.events[to].set(place.get()),
            }
        }
        self.count.store(len - n, Ordering::Relaxed);
        n
    }
}

impl CarriedEvent {
    fn get(&self) -> libc::epoll_event {
        let events = self.events.load(Ordering::Relaxed);
        libc::epoll_event { events, u64: self.data.load(Ordering::Relaxed) }
    }

    fn set(&self, event: libc::epoll_event) {
        self.events.store(event.events, Ordering::Relaxed);
        self.data.store(event.u64, Ordering::Relaxed);
    }
}

/// An epoll descriptor of the program.
#[derive(Renew, Zeroable)]
pub struct Set {
    /// Descriptors of this process that refer to it.
    pub descriptors: AtomicU32,
    /// Calls that may sleep in it, plus one for all descriptors together; 0 = dissolved.
    uses: AtomicU32,
    /// By which numbers it is named, and by what else.
    pub(crate) naming: Naming,
    /// The first of them.
    epfd: AtomicI32,
    /// In which process it was made: [`loan::forks`].
    forks: AtomicU32,
    lock: SharedLock,
    home: AtomicRef<Home>,
    /// Channel number + 1.
    channel: AtomicU32,
    bell: AtomicI32,
    /// The kernel's set has held a tag of ours, and may hold it for longer than we: while
    /// another process has the connection open (`epoll(7)`, question 6). A tag must never
    /// reach the program.
    tagged: AtomicBool,
    sleepers: AtomicU32,
    looks_saved: AtomicU32,
    last_look_ns: AtomicU64,
    last_round_ns: AtomicU64,
    ready_first: AtomicRef<Registration>,
    ready_last: AtomicRef<Registration>,
    ready_len: AtomicUsize,
    registrations: AtomicRef<Registration>,
    learned: learned::Learned,
    /// What waiting in this set has cost since it was charged to a connection last.
    owed: Owed,
    /// It has sockets out of the channel's reach: arm them before sleeping.
    arms: AtomicBool,
    /// Somebody sleeps on the epoll descriptor itself, so that the kernel object
    /// must tell what the rings have.
    observed: AtomicBool,
    /// The sets in this one.
    nestings: AtomicRef<Nesting>,
    /// In how many places this one is in others.
    outers: AtomicU32,
    /// Under `lock`.
    carried: Carried,
    next_free: AtomicRef<Self>,
    /// Empty whenever the set is in the pool: each registration has taken itself out.
    #[renew(kept)]
    by_slot: [AtomicRef<Registration>; SLOTS],
}

impl Pooled for Set {
    fn next_free(&self) -> &AtomicRef<Self> {
        &self.next_free
    }
}

/// Makes room for the sets and registrations of a program that confines itself. Connections
/// that have moved are in them, or will be.
pub(crate) fn make_room() {
    SETS.make_room(SETS_AHEAD);
    REGISTRATIONS.make_room(REGISTRATIONS_AHEAD);
    nesting::make_room(SETS_AHEAD);
}

/// Sets that a confined program can make and have moved connections in, 2 MiB.
const SETS_AHEAD: usize = 16;
/// And registrations, 128 KiB.
const REGISTRATIONS_AHEAD: usize = 1024;

/// Makes an epoll descriptor known.
pub fn register(epfd: i32) -> Option<&'static Set> {
    let has_place = crate::table::descriptors::has_place(epfd);
    let set = Some(()).filter(|()| has_place).and_then(|()| SETS.take())?;
    set.epfd.store(epfd, Ordering::Relaxed);
    set.forks.store(loan::forks(), Ordering::Relaxed);
    set.learned.begin();
    // Release: a late `enter` of a caller that met the set before fails as long as `uses` is 0, and
    // finds the rest made when it is not.
    set.uses.store(1, Ordering::Release);
    crate::table::descriptors::note_highest(epfd);
    crate::program::life::forget_entry(crate::table::descriptors::insert_set(epfd, set), -1);
    Some(set)
}

fn set_of(epfd: i32) -> Option<&'static Set> {
    crate::table::descriptors::set(epfd).or_else(|| register(epfd))
}

/// The program's `epoll_ctl`. `None`: the kernel alone answers.
pub fn control(
    epfd: i32,
    operation: i32,
    fd: i32,
    event: Argument<'_, libc::epoll_event>,
) -> Option<Result<usize, Errno>> {
    if let Some(inner) = crate::table::descriptors::set(fd) {
        return Some(nesting::control(epfd, operation, (fd, inner), event));
    }
    if !crate::table::descriptors::is_ours(fd)
        || operation != libc::EPOLL_CTL_DEL && event.is_null()
    {
        return None;
    }
    let wish = Wish(event);
    let answer = match watch(epfd, operation, fd, wish) {
        Some(answer) => answer,
        None => {
            let sock = crate::table::descriptors::sock(fd)?;
            let _structure = Held::enter(STRUCTURE.get());
            match operation {
                libc::EPOLL_CTL_ADD => add(epfd, fd, sock.sock(), wish),
                libc::EPOLL_CTL_MOD => modify(epfd, fd, sock.sock(), wish),
                libc::EPOLL_CTL_DEL => remove(epfd, fd, sock.sock()),
                _ => Err(libc::EINVAL),
            }
        }
    };
    Some(if answer == Err(UNTRACKED) { leave_untracked(epfd, fd) } else { answer })
}

/// What the program wants to be told, where it says so. DEL never looks there.
#[derive(Clone, Copy)]
struct Wish<'a>(Argument<'a, libc::epoll_event>);

impl Wish<'_> {
    /// The kernel's answer: it looks first, and refuses a bad pointer.
    fn ask_kernel(self, epfd: i32, operation: i32, fd: i32) -> Result<usize, Errno> {
        sys::epoll_ctl_at(epfd, operation, fd, self.0.address()).map_err(|errno| errno.0)
    }

    /// Whether it is to be told once. What cannot be read the kernel refuses.
    fn is_one_shot(self, operation: i32) -> bool {
        operation != libc::EPOLL_CTL_DEL
            && self.claimed_events().is_some_and(|events| events & EPOLLONESHOT != 0)
    }

    /// What it is to be told of, if that can be read.
    fn claimed_events(self) -> Option<u32> {
        claims::first_number(self.0)
    }

    /// What is there: the kernel has looked, or is not asked.
    fn read(self) -> libc::epoll_event {
        self.0.get(0)
    }
}

/// The kernel has accepted a registration, and there is no room to remember it: not an error
/// number of any system.
const UNTRACKED: Errno = -1;

/// Rings could not wake a loop that waits for this socket: it stays on TCP. One that has moved
/// is not in the set, for the program as if the kernel had no memory.
#[cold]
fn leave_untracked(epfd: i32, fd: i32) -> Result<usize, Errno> {
    let Some(sock) = crate::table::descriptors::sock(fd) else { return Ok(0) };
    keep_on_tcp(sock.sock());
    if matches!(sock.phase(), Phase::Smc | Phase::Offered) {
        let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, 0, 0);
        return Err(libc::ENOMEM);
    }
    Ok(0)
}

fn keep_on_tcp(sock: &'static Sock) {
    // One that is not connected yet does not begin to agree.
    sock.tcp_only.store(true, Ordering::Relaxed);
    sock.keep_plain(Reason::Lack(Lack::NoMemory));
}

/// What a program waits for on a socket that has no object.
#[derive(Zeroable)]
#[repr(align(64))]
struct Watch {
    /// The only set that has it.
    set: AtomicRef<Set>,
    data: AtomicU64,
    events: AtomicU32,
}

/// By descriptor. Changed under the lock of whoever [makes its object](crate::table::bare::growing),
/// but forgotten without.
static WATCHES: Sparse<Watch, YOUNG_MAX> = Sparse::new();

impl Watch {
    /// Where it is kept what a program waits for on a descriptor.
    fn place(fd: i32) -> Option<&'static Self> {
        WATCHES.writable(fd as usize)
    }

    /// What a program waits for on a descriptor, if it ever has.
    fn of(fd: i32) -> Option<&'static Self> {
        WATCHES.get(fd as usize)
    }

    fn is_of(&self, set: Option<&Set>) -> bool {
        set.is_some_and(|set| self.set.is(set))
    }

    fn wish_for(&self, wish: libc::epoll_event) {
        self.events.store(wish.events, Ordering::Relaxed);
        self.data.store(wish.u64, Ordering::Relaxed);
    }

    fn forget(&self) {
        // Mostly there is none, and the line stays as it is.
        if !self.set.is_none() {
            self.set.clear();
        }
    }
}

/// `epoll_ctl` on a socket that has no object and needs none for it: the kernel's answer.
/// `None`: it is none, or it needs one, as it is to be in a second set or to be told once.
fn watch(epfd: i32, operation: i32, fd: i32, wish: Wish<'_>) -> Option<Result<usize, Errno>> {
    let watch =
        Some(fd).filter(|fd| crate::table::descriptors::is_bare(*fd)).and_then(Watch::place)?;
    if wish.is_one_shot(operation) {
        return None;
    }
    let held = Held::enter(bare::growing(fd));
    let has_object = places::stage(fd).is_none() || !crate::table::descriptors::is_bare(fd);
    if !held.is_outermost() || has_object || loan::is_borrowed_memory() {
        return None;
    }
    let is_watched = !watch.set.is_none();
    let is_here = watch.is_of(crate::table::descriptors::set(epfd));
    if operation == libc::EPOLL_CTL_ADD && is_watched && !is_here {
        return None;
    }
    let answer = wish.ask_kernel(epfd, operation, fd);
    if answer.is_ok() {
        match operation {
            libc::EPOLL_CTL_ADD => {
                let Some(set) = set_of(epfd) else { return Some(Err(UNTRACKED)) };
                watch.wish_for(wish.read());
                watch.set.set(Some(set));
            }
            libc::EPOLL_CTL_MOD if is_here => watch.wish_for(wish.read()),
            libc::EPOLL_CTL_DEL if is_here => watch.forget(),
            _ => {}
        }
    }
    Some(answer)
}

/// A socket gets its object: what was watched is registered. Under the lock of whoever makes
/// it.
pub(crate) fn take_over_watch(fd: i32, sock: &'static Sock) {
    let Some(watch) = Watch::of(fd) else { return };
    if watch.set.is_none() {
        return;
    }
    // Nobody dissolves the set meanwhile.
    let structure = Held::enter(STRUCTURE.get());
    if let Some(set) = watch.set.take() {
        let events = watch.events.load(Ordering::Relaxed);
        let wish = libc::epoll_event { events, u64: watch.data.load(Ordering::Relaxed) };
        let made = Registration::make(set, sock, fd, wish);
        drop(structure);
        if made.is_none() {
            keep_on_tcp(sock);
        }
    }
}

/// A socket without an object is closed: the kernel forgets it, so do we.
pub(crate) fn forget_watch(fd: i32) {
    Watch::of(fd).inspect(|watch| watch.forget());
}

fn add(epfd: i32, fd: i32, sock: &'static Sock, wish: Wish<'_>) -> Result<usize, Errno> {
    if let Some((set, registration)) = find(epfd, fd, sock)
        && registration.is_tagged()
    {
        if registration.state.load(Ordering::Relaxed) & PARKED == 0 {
            return Err(libc::EEXIST);
        }
        let wish = wish.read();
        if wish.events & EPOLLEXCLUSIVE != 0 && wish.events & !EXCLUSIVE_ALLOWED != 0 {
            return Err(libc::EINVAL);
        }
        registration.state.fetch_and(!PARKED, Ordering::Relaxed);
        registration.wish_for(set, wish);
        return Ok(0);
    }
    let (set, registration) = match wish.is_one_shot(libc::EPOLL_CTL_ADD) {
        true => add_one_shot(epfd, fd, sock, wish.read())?,
        false => {
            wish.ask_kernel(epfd, libc::EPOLL_CTL_ADD, fd)?;
            let set = set_of(epfd).ok_or(UNTRACKED)?;
            (set, Registration::make(set, sock, fd, wish.read()).ok_or(UNTRACKED)?)
        }
    };
    match sock.phase() {
        Phase::Smc => registration.take_over(set, sock),
        Phase::Offered => registration.tag(set),
        _ => {}
    }
    Ok(0)
}

/// The kernel may report it as soon as it has it: so it has our tag from the beginning.
fn add_one_shot(
    epfd: i32,
    fd: i32,
    sock: &'static Sock,
    wish: libc::epoll_event,
) -> Result<(&'static Set, &'static Registration), Errno> {
    let mut operation = libc::EPOLL_CTL_ADD;
    if crate::table::descriptors::set(epfd).is_none() {
        // The kernel knows whether it is a set. Asked for nothing, it reports nothing yet.
        let nothing = wish.events & (EPOLLONESHOT | EPOLLEXCLUSIVE);
        kernel_control(epfd, operation, fd, nothing, wish.u64)?;
        operation = libc::EPOLL_CTL_MOD;
    }
    let made = set_of(epfd).and_then(|set| Some((set, Registration::make(set, sock, fd, wish)?)));
    let Some((set, registration)) = made else {
        kernel_control(epfd, operation, fd, wish.events, wish.u64)?;
        return Err(UNTRACKED);
    };
    let added = registration.control_marked(set, epfd, operation);
    added.inspect_err(|_| registration.dissolve())?;
    Ok((set, registration))
}

fn modify(epfd: i32, fd: i32, sock: &'static Sock, wish: Wish<'_>) -> Result<usize, Errno> {
    let Some((set, registration)) = find(epfd, fd, sock) else {
        return wish.ask_kernel(epfd, libc::EPOLL_CTL_MOD, fd);
    };
    let is_tagged = registration.is_tagged();
    if !is_tagged {
        let is_marked =
            registration.marked.load(Ordering::Relaxed) && wish.claimed_events().is_some();
        if is_marked || wish.is_one_shot(libc::EPOLL_CTL_MOD) {
            return registration.modify_marked(set, epfd, wish.read());
        }
        wish.ask_kernel(epfd, libc::EPOLL_CTL_MOD, fd)?;
    }
    let wish = wish.read();
    if is_tagged {
        if registration.state.load(Ordering::Relaxed) & PARKED != 0 {
            return Err(libc::ENOENT);
        }
        let before = registration.events.load(Ordering::Relaxed);
        if (wish.events | before) & EPOLLEXCLUSIVE != 0 {
            return Err(libc::EINVAL);
        }
    }
    registration.wish_for(set, wish);
    Ok(0)
}

fn remove(epfd: i32, fd: i32, sock: &'static Sock) -> Result<usize, Errno> {
    let Some((_, registration)) = find(epfd, fd, sock) else {
        return kernel_control(epfd, libc::EPOLL_CTL_DEL, fd, 0, 0);
    };
    if registration.is_tagged() {
        return match registration.state.fetch_or(PARKED, Ordering::Relaxed) & PARKED {
            0 => Ok(0),
            _ => Err(libc::ENOENT),
        };
    }
    let answer = kernel_control(epfd, libc::EPOLL_CTL_DEL, fd, 0, 0)?;
    registration.dissolve();
    Ok(answer)
}

/// The registration of a descriptor of a socket in a set.
fn find(epfd: i32, fd: i32, sock: &'static Sock) -> Option<(&'static Set, &'static Registration)> {
    let set = crate::table::descriptors::set(epfd)?;
    let is_it = |registration: &&'static Registration| {
        registration.fd.load(Ordering::Relaxed) == fd
            && registration.set().is_some_and(|other| core::ptr::eq(other, set))
    };
    Some((set, of_sock(sock).find(is_it)?))
}

fn kernel_control(
    epfd: i32,
    operation: i32,
    fd: i32,
    events: u32,
    data: u64,
) -> Result<usize, Errno> {
    sys::epoll_ctl(epfd, operation, fd, events, data).map_err(|errno| errno.0)
}

/// The connection of a socket has moved to shared memory: takes over its
/// registrations.
pub fn adopt(sock: &'static Sock) {
    if sock.registrations.is_none() {
        return;
    }
    let _structure = Held::enter(STRUCTURE.get());
    for registration in of_sock(sock) {
        if let Some(set) = registration.set() {
            registration.take_over(set, sock);
        }
    }
}

/// A socket waits to be connected: its sets tell us when it is.
pub(crate) fn watch_connecting(sock: &'static Sock) {
    let _structure = Held::enter(STRUCTURE.get());
    for registration in of_sock(sock) {
        if let Some(set) = registration.set() {
            registration.tag(set);
        }
    }
}

/// Another file is about to come under the descriptors of a socket, which is open elsewhere: the
/// kernel's sets forget it. The registrations wait for [`hand_back`].
pub(crate) fn withdraw(sock: &'static Sock) {
    let _structure = Held::enter(STRUCTURE.get());
    for registration in of_sock(sock) {
        if let Some(set) = registration.set() {
            let _ = set.control(libc::EPOLL_CTL_DEL, registration.open_fd(), 0, 0);
        }
    }
}

/// The last descriptor of a socket goes: the kernel forgets it, so do we.
pub fn forget_sock(sock: &'static Sock) {
    if sock.registrations.is_none() {
        return;
    }
    let _structure = Held::enter(STRUCTURE.get());
    for registration in of_sock(sock) {
        registration.dissolve();
    }
}

/// One of several descriptors of a socket goes. While another lives, the kernel
/// keeps reporting the socket under the old number to the sets it is in, and so do
/// we; but a registration that only we have kept goes now.
pub fn forget_descriptor(sock: &'static Sock, fd: i32) {
    if sock.registrations.is_none() {
        return;
    }
    let _structure = Held::enter(STRUCTURE.get());
    for registration in of_sock(sock) {
        let parked = registration.state.load(Ordering::Relaxed) & PARKED != 0;
        if let Some(set) = registration.set()
            && parked
            && registration.fd.load(Ordering::Relaxed) == fd
        {
            let _ = set.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
            registration.dissolve();
        } else if registration.open_fd() == fd
            && let Some(other) = crate::table::descriptors::first_of(sock)
        {
            registration.open_fd.store(other, Ordering::Relaxed);
        }
    }
}

/// A socket has become a new one (`connect` to nowhere): it stays in its sets, and
/// the kernel answers for it again, as the program has registered it.
pub fn hand_back(old: &'static Sock, new: &'static Sock) {
    if old.registrations.is_none() {
        return;
    }
    let _structure = Held::enter(STRUCTURE.get());
    for registration in of_sock(old) {
        let Some(set) = registration.set() else { continue };
        let fd = registration.fd.load(Ordering::Relaxed);
        let wish = libc::epoll_event {
            events: registration.events.load(Ordering::Relaxed),
            u64: registration.data.load(Ordering::Relaxed),
        };
        if registration.state.load(Ordering::Relaxed) & PARKED != 0 {
            let _ = set.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
            registration.dissolve();
            continue;
        }
        if registration.is_tagged() || registration.marked.load(Ordering::Relaxed) {
            registration.untag(set, fd, wish);
        }
        registration.dissolve();
        Registration::make(set, new, fd, wish);
    }
}

/// Something about a connection changed on our own side (`shutdown`, an option):
/// its sets look at it again.
pub fn note_change(sock: &Sock) {
    if sock.registrations.is_none() {
        return;
    }
    let _structure = Held::enter(STRUCTURE.get());
    for registration in of_sock(sock) {
        if let Some(set) = registration.set().filter(|_| registration.is_tagged()) {
            set.queue_and_wake(registration);
        }
    }
}

/// After what on Linux is an edge whatever there was to report before: `shutdown`, and a
/// low-water mark that is reached when it is set.
pub fn note_edge(sock: &Sock) {
    if sock.registrations.is_none() {
        return;
    }
    {
        let _structure = Held::enter(STRUCTURE.get());
        for registration in of_sock(sock) {
            registration.state.fetch_or(FRESH, Ordering::Relaxed);
        }
    }
    note_change(sock);
}

/// In the child of a fork: what calls of the parent keep.
pub(crate) fn forget_copies() {
    SETS.each(|set| set.naming.after_fork_in_child());
}

/// In the child of a fork.
pub fn after_fork_in_child() {
    STRUCTURE.get().reset();
    REGISTRATIONS.reset_locks();
    SETS.reset_locks();
    nesting::reset_locks();
    crate::table::descriptors::for_each_set(|set| {
        set.lock.get().reset();
        set.uses.store(1, Ordering::Relaxed);
        set.naming.after_fork_in_child();
    });
}

/// What a registration is told of: what it asks for, errors and the end of both.
fn interest_of(events: u32) -> u32 {
    (events & 0xffff) | mask::ERR | mask::HUP
}

fn of_sock(sock: &Sock) -> impl Iterator<Item = &'static Registration> {
    walk(&sock.registrations, |r| &r.next_of_sock)
}

fn walk(
    first: &AtomicRef<Registration>,
    next: fn(&Registration) -> &AtomicRef<Registration>,
) -> impl Iterator<Item = &'static Registration> {
    core::iter::successors(first.get(), move |at| next(at).get())
}

/// Takes `this` out of a singly linked list.
fn unlink(
    first: &AtomicRef<Registration>,
    this: &Registration,
    next: fn(&Registration) -> &AtomicRef<Registration>,
) {
    let mut place = first;
    while let Some(registration) = place.get() {
        if core::ptr::eq(registration, this) {
            return place.set(next(registration).get());
        }
        place = next(registration);
    }
}

impl Registration {
    fn make(
        set: &'static Set,
        sock: &'static Sock,
        fd: i32,
        wish: libc::epoll_event,
    ) -> Option<&'static Self> {
        let this = REGISTRATIONS.take()?;
        this.fd.store(fd, Ordering::Relaxed);
        this.open_fd.store(fd, Ordering::Relaxed);
        this.events.store(wish.events, Ordering::Relaxed);
        this.data.store(wish.u64, Ordering::Relaxed);
        this.state.store(FRESH, Ordering::Relaxed);
        this.sock.set(Some(sock));
        this.set.set(Some(set));
        this.next_of_sock.set(sock.registrations.get());
        sock.registrations.set(Some(this));
        let _held = Held::enter(set.lock.get());
        this.next_of_set.set(set.registrations.get());
        set.registrations.set(Some(this));
        Some(this)
    }

    fn set(&self) -> Option<&'static Set> {
        self.set.get()
    }

    /// A dissolved registration has none.
    fn sock(&self) -> Option<&'static Sock> {
        self.sock.get()
    }

    fn is_tagged(&self) -> bool {
        self.tagged.load(Ordering::Relaxed)
    }

    /// The kernel's registration carries our tag, and reports to the program.
    fn is_marked_only(&self) -> bool {
        self.marked.load(Ordering::Acquire) && !self.tagged.load(Ordering::Acquire)
    }

    fn open_fd(&self) -> i32 {
        self.open_fd.load(Ordering::Relaxed)
    }

    /// By which its socket is reached.
    fn file<'a>(&self, sock: &'a Sock) -> File<'a> {
        File::of(sock, self.open_fd())
    }

    /// Its socket, in use: without the set's lock another thread may dissolve both.
    fn sock_in_use(&self) -> Option<Use> {
        let sock = self.sock().and_then(Use::of)?;
        // It may have been another's room when it was entered.
        self.sock().is_some_and(|now| core::ptr::eq(now, sock.sock())).then_some(sock)
    }

    /// The program adds or modifies it.
    fn wish_for(&'static self, set: &'static Set, wish: libc::epoll_event) {
        self.events.store(wish.events, Ordering::Relaxed);
        self.data.store(wish.u64, Ordering::Relaxed);
        self.state.fetch_and(!DISABLED, Ordering::Relaxed);
        self.state.fetch_or(FRESH, Ordering::Relaxed);
        if self.is_tagged() {
            set.queue_if_worth_it(self);
        }
    }

    /// Whether a look at it would find something to report, or has something to do.
    fn is_worth_a_look(&self, set: &Set) -> bool {
        let events = self.events.load(Ordering::Relaxed);
        // The look asks the peer for room, or the sleep for a bell on TCP.
        let asks = events & mask::OUT != 0 || self.unreached.load(Ordering::Relaxed);
        let Some(sock) = self.sock().filter(|_| !asks && set.is_at_home()) else { return true };
        let (Some(conn), Some(slot)) = (sock.conn(), sock.slot()) else { return true };
        let interest = interest_of(events);
        readiness::mask_of(slot, &conn, self.file(sock), interest) & interest != 0
    }

    /// `epoll_ctl` with what the program wishes, and our tag in the place of its data.
    fn control_marked(&self, set: &Set, epfd: i32, operation: i32) -> Result<usize, Errno> {
        // Before the kernel has the tag, which a thread in the set may be given at once.
        set.tagged.store(true, Ordering::SeqCst);
        self.marked.store(true, Ordering::SeqCst);
        let (fd, events) = (self.fd.load(Ordering::Relaxed), self.events.load(Ordering::Relaxed));
        kernel_control(epfd, operation, fd, events, core::ptr::from_ref(self) as u64)
    }

    /// The program modifies it, which is or was one-shot, while the socket is on TCP. It is armed here
    /// before it is there, or what the kernel reports at once would be taken for a second report.
    fn modify_marked(&self, set: &Set, epfd: i32, wish: libc::epoll_event) -> Result<usize, Errno> {
        let before = (self.events.load(Ordering::Relaxed), self.data.load(Ordering::Relaxed));
        let put = |(events, data): (u32, u64)| {
            self.events.store(events, Ordering::Relaxed);
            self.data.store(data, Ordering::Relaxed);
        };
        put((wish.events, wish.u64));
        // AcqRel: who sees it armed sees with what.
        let state = self.state.fetch_and(!DISABLED, Ordering::AcqRel);
        self.state.fetch_or(FRESH, Ordering::Relaxed);
        self.control_marked(set, epfd, libc::EPOLL_CTL_MOD).inspect_err(|_| {
            put(before);
            self.state.fetch_or(state & DISABLED, Ordering::Relaxed);
        })
    }

    /// Whether a report is the first since it was armed, if it is one-shot.
    fn is_first_report(&self, events: u32) -> bool {
        events & EPOLLONESHOT == 0
            || self.state.fetch_or(DISABLED, Ordering::AcqRel) & DISABLED == 0
    }

    /// What the kernel has reported of a socket on TCP, for the program. `None`: that is none of it,
    /// or it was told before.
    fn report_of_kernel(&self, set: &Set, events: u32) -> Option<libc::epoll_event> {
        let is_here = self.set().is_some_and(|of| core::ptr::eq(of, set));
        let is_told = is_here && self.is_first_report(self.events.load(Ordering::Relaxed));
        let u64 = self.data.load(Ordering::Relaxed);
        is_told.then_some(libc::epoll_event { events, u64 })
    }

    /// The connection has moved: tags the kernel's registration and subscribes the
    /// set's channel. Under the structure lock.
    fn take_over(&'static self, set: &'static Set, sock: &'static Sock) {
        if self.is_tagged() {
            return;
        }
        self.tag(set);
        let index = sock.slot_index();
        {
            let _held = Held::enter(set.lock.get());
            self.next_of_slot.set(set.by_slot[index].get());
            set.by_slot[index].set(Some(self));
        }
        if let Some(conn) = sock.conn() {
            let reached = set.subscribe(sock, &conn);
            self.unreached.store(!reached, Ordering::Relaxed);
            if !reached {
                set.arms.store(true, Ordering::Relaxed);
            }
        }
        set.queue_and_wake(self);
    }

    /// From now on the kernel reports to us what happens to the socket. Under the structure lock.
    fn tag(&self, set: &Set) {
        let tag = core::ptr::from_ref(self) as u64;
        let fd = self.fd.load(Ordering::Relaxed);
        // Before the tag: a thread that sleeps in the kernel's set may wake by it at once.
        set.tagged.store(true, Ordering::SeqCst);
        // OUT matters only until we have switched; edge-triggered it costs nothing.
        let events = mask::IN | mask::OUT | mask::RDHUP | mask::PRI | EPOLLET;
        if fd != self.open_fd() {
            // The number was closed, or is another socket's: what the kernel has under it
            // nobody can change any more.
            let _ = set.control(libc::EPOLL_CTL_ADD, self.open_fd(), events, tag);
        } else if set.control(libc::EPOLL_CTL_MOD, fd, events, tag).is_err() {
            // An exclusive registration cannot be modified.
            let _ = set.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
            let _ = set.control(libc::EPOLL_CTL_ADD, fd, events, tag);
        }
        self.tagged.store(true, Ordering::Release);
    }

    /// Gives the kernel's registration back to the program.
    fn untag(&self, set: &Set, fd: i32, wish: libc::epoll_event) {
        let reported = self.state.load(Ordering::Relaxed) & DISABLED != 0;
        let events = if reported { EPOLLONESHOT } else { wish.events };
        if set.control(libc::EPOLL_CTL_MOD, fd, events, wish.u64).is_err() {
            // An exclusive registration cannot be modified into one.
            let _ = set.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
            let _ = set.control(libc::EPOLL_CTL_ADD, fd, events, wish.u64);
        }
    }

    /// Leaves set and socket. Under the structure lock.
    fn dissolve(&'static self) {
        let (Some(set), Some(sock)) = (self.set(), self.sock()) else {
            return;
        };
        unlink(&sock.registrations, self, |r| &r.next_of_sock);
        let _held = Held::enter(set.lock.get());
        unlink(&set.registrations, self, |r| &r.next_of_set);
        // One that is only connecting has no slot.
        if let Some(of_slot) = set.by_slot.get(sock.slot_index()).filter(|_| self.is_tagged()) {
            unlink(of_slot, self, |r| &r.next_of_slot);
        }
        self.set.set(None);
        self.sock.set(None);
        let state = self.state.fetch_or(DEAD, Ordering::AcqRel);
        if state & QUEUED == 0 {
            self.free();
        }
    }

    fn free(&'static self) {
        REGISTRATIONS.give(self);
    }

    /// What to report now, 0 = nothing. `true`: keep it on the ready list.
    fn evaluate(&self) -> (u32, bool) {
        let Some(sock) = self.sock() else {
            return (0, false);
        };
        let (Some(conn), Some(slot)) = (sock.conn(), sock.slot()) else {
            return (0, false);
        };
        if self.state.load(Ordering::Relaxed) & (DISABLED | PARKED) != 0 {
            return (0, false);
        }
        let events = self.events.load(Ordering::Relaxed);
        let file = self.file(sock);
        let interest = interest_of(events);
        let mut full = readiness::mask_of(slot, &conn, file, interest);
        if events & mask::OUT != 0 && full & mask::OUT == 0 {
            wait::ask_for_room(&conn);
            wait::prod_peer(sock, slot, &conn, file);
            full = readiness::mask_of(slot, &conn, file, interest);
        }
        let mask = full & interest;
        if events & EPOLLET != 0 && !self.is_news(sock, slot, &conn, mask | full & END) {
            return (0, false);
        }
        if mask == 0 {
            return (0, false);
        }
        if !self.is_first_report(events) {
            return (0, false);
        }
        (mask, events & (EPOLLET | EPOLLONESHOT) == 0)
    }

    /// Whether it is level-triggered, alive, and has nothing to report any more.
    fn is_spent(&self) -> bool {
        self.state.load(Ordering::Acquire) & DEAD == 0
            && self.events.load(Ordering::Relaxed) & (EPOLLET | EPOLLONESHOT) == 0
            && self.evaluate().0 == 0
    }

    /// Edge-triggered: has anything arrived or become possible since the last time?
    fn is_news(&self, sock: &Sock, slot: &Slot, conn: &Conn, now: u32) -> bool {
        let arrived = readiness::arrived(slot, conn, self.file(sock));
        let mut seen = self.seen_mask.load(Ordering::Relaxed);
        if now & mask::OUT != 0 && sock.out_blocked.swap(false, Ordering::Relaxed) {
            seen &= !mask::OUT;
        }
        if now & END & !seen != 0 {
            // What was found before has nothing to do with this end.
            sock.forget_nothing();
        } else if seen & END != 0 && sock.forget_nothing() {
            seen &= !END;
        }
        let fresh = self.state.fetch_and(!FRESH, Ordering::Relaxed) & FRESH != 0;
        let more = arrived != self.seen_arrived.swap(arrived, Ordering::Relaxed);
        self.seen_mask.store(now, Ordering::Relaxed);
        fresh || more || now & !seen != 0
    }
}

impl Set {
    /// A descriptor of this process that referred to it is gone.
    pub fn drop_descriptor(&'static self) {
        if self.descriptors.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.leave();
        }
    }

    /// Counts one more call; false when the set was dissolved.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        let one_more = |uses: u32| (uses != 0).then_some(uses + 1);
        // SeqCst: see `descriptors::set_in_use`, which looks at the table afterwards.
        self.uses.fetch_update(Ordering::SeqCst, Ordering::Relaxed, one_more).is_ok()
    }

    /// One call less; the last one dissolves it.
    #[inline]
    pub(crate) fn leave(&'static self) {
        if self.uses.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.dissolve();
        }
    }

    /// How many calls are in it, while there is a descriptor.
    pub(crate) fn calls_under_way(&self) -> u32 {
        // SeqCst: see `descriptors::begin_closing`, which has changed the table before.
        self.uses.load(Ordering::SeqCst).saturating_sub(1)
    }

    /// The kernel's set.
    fn file(&self) -> File<'_> {
        File::of_set(self, self.epfd.load(Ordering::Relaxed))
    }

    /// `epoll_ctl` on the kernel's set.
    fn control(&self, operation: i32, fd: i32, events: u32, data: u64) -> sys::Result {
        self.file().call(|epfd| sys::epoll_ctl(epfd, operation, fd, events, data))
    }

    /// No descriptor refers to it, and no call waits in it.
    fn dissolve(&'static self) {
        self.naming.let_go(|_| {});
        let _structure = Held::enter(STRUCTURE.get());
        crate::table::descriptors::for_each_bare(|fd| {
            Watch::of(fd).filter(|watch| watch.is_of(Some(self))).inspect(|watch| watch.forget());
        });
        for registration in walk(&self.registrations, |r| &r.next_of_set) {
            if let Some(sock) = registration.sock() {
                self.unsubscribe(sock);
            }
            registration.dissolve();
        }
        self.drop_dead();
        self.leave_nestings();
        if let (Some(home), Some(channel), true) =
            (self.home(), self.channel_number(), self.is_at_home())
        {
            home.give_channel(channel);
        }
        SETS.give(self);
    }

    fn drop_dead(&'static self) {
        let _held = Held::enter(self.lock.get());
        while let Some(registration) = self.pop() {
            if registration.state.load(Ordering::Acquire) & DEAD != 0 {
                registration.free();
            }
        }
    }

    fn is_at_home(&self) -> bool {
        self.forks.load(Ordering::Relaxed) == loan::forks()
    }

    fn home(&self) -> Option<&'static Home> {
        self.home.get()
    }

    fn channel_number(&self) -> Option<usize> {
        self.channel.load(Ordering::Acquire).checked_sub(1).map(|number| number as usize)
    }

    fn channel(&self) -> Option<&'static Channel> {
        Some(self.home()?.wake.channel(self.channel_number()?))
    }

    /// Whether the kernel's set may hold anything of ours: a tagged registration, our
    /// eventfd, or another epoll set.
    #[inline]
    pub fn is_tagged(&self) -> bool {
        self.tagged.load(Ordering::Acquire)
            || self.channel.load(Ordering::Relaxed) != 0
            || self.has_nested()
    }

    /// Whether `epoll_wait` on the set would report something now: for `poll` on the
    /// epoll descriptor, and for a set around it. What the kernel reports meanwhile
    /// is kept for whoever waits in the set.
    pub(crate) fn is_ready(&'static self) -> bool {
        self.is_ready_within(nesting::DEPTH_MAX)
    }

    /// At most so many sets deep; beyond, the kernel is believed.
    fn is_ready_within(&'static self, depth: u32) -> bool {
        let Some(depth) = depth.checked_sub(1) else { return true };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; CARRIED_MAX];
        let room = {
            let _held = Held::enter(self.lock.get());
            CARRIED_MAX.saturating_sub(self.carried.len())
        };
        let mut kept = 0;
        if room > 0 {
            let (events, now) = (&mut events[..room], Some(Duration::ZERO));
            let ask = |epfd| sys::epoll_wait(epfd, events, now, SignalMask::NONE);
            let asked = self.file().call(ask);
            kept = self.translate_within(&mut events[..asked.unwrap_or(0)], depth);
            self.carry(&events[..kept]);
        }
        let held = Held::enter(self.lock.get());
        let carries = self.carried.len() > 0;
        drop(held);
        kept > 0 || carries || self.has_something()
    }

    fn carry(&self, events: &[libc::epoll_event]) {
        let _held = Held::enter(self.lock.get());
        for event in events {
            let known = self.carried.has(event.u64);
            let comes_again = self.is_level_triggered(event.u64);
            if !known && !comes_again {
                self.carried.add(*event);
            }
        }
    }

    /// Whether `data` is that of a socket on TCP whose level-triggered event the kernel
    /// reports again as long as it holds. (What is not a TCP socket is not known here,
    /// and carried: better twice than never.) Under the lock.
    fn is_level_triggered(&self, data: u64) -> bool {
        self.nested_as(data).is_some()
            || walk(&self.registrations, |r| &r.next_of_set).any(|registration| {
                registration.data.load(Ordering::Relaxed) == data
                    && registration.events.load(Ordering::Relaxed) & (EPOLLET | EPOLLONESHOT) == 0
            })
    }

    /// Gives out what was carried. Under the lock.
    fn uncarry(&self, events: &mut [libc::epoll_event]) -> usize {
        self.carried.take(events)
    }

    /// Somebody is about to sleep on the epoll descriptor itself (`poll`, a set
    /// around it): from now on news ring its eventfd, which is in the kernel's set
    /// and makes the descriptor readable.
    pub(crate) fn observe(&'static self) {
        self.observe_within(nesting::DEPTH_MAX);
    }

    fn observe_within(&'static self, depth: u32) {
        let Some(depth) = depth.checked_sub(1) else { return };
        if !self.tagged.load(Ordering::Acquire) && !self.has_nested() {
            return;
        }
        self.observed.store(true, Ordering::Relaxed);
        if self.arms.load(Ordering::Relaxed) {
            self.arm();
        }
        let mut news = false;
        if let Some(channel) = self.channel() {
            channel.fall_asleep();
            news = channel.is_marked();
        }
        if news || self.has_something() {
            let _ = sys::ring_eventfd(self.bell.load(Ordering::Relaxed));
        }
        self.nested().for_each(|inner| inner.observe_within(depth));
    }

    /// The same for the sets in this one.
    fn observe_nested(&self) {
        self.nested().for_each(|inner| inner.observe_within(nesting::DEPTH_MAX - 1));
    }

    /// Makes the peer mark our channel. False: out of reach, arm it.
    fn subscribe(&'static self, sock: &Sock, conn: &Conn) -> bool {
        if !sock.is_at_home() || !self.is_at_home() || !self.take_channel() {
            return false;
        }
        let Some(number) = self.channel_number() else {
            return false;
        };
        if !conn.group.share_channel(number) {
            return false;
        }
        let channels = &conn.mine.waiting.channels;
        let byte = number as u8 + 1;
        let added = channels.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |word| {
            let mut bytes = word.to_ne_bytes();
            if !bytes.contains(&byte) {
                *bytes.iter_mut().find(|place| **place == 0)? = byte;
            }
            Some(u32::from_ne_bytes(bytes))
        });
        added.is_ok()
    }

    fn unsubscribe(&self, sock: &Sock) {
        let (Some(conn), Some(number)) = (sock.conn(), self.channel_number()) else {
            return;
        };
        let _ =
            conn.mine.waiting.channels.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |word| {
                let mut bytes = word.to_ne_bytes();
                let place = bytes.iter_mut().find(|byte| usize::from(**byte) == number + 1)?;
                *place = 0;
                Some(u32::from_ne_bytes(bytes))
            });
    }

    /// Gets a channel for this set; its eventfd joins the kernel's set.
    fn take_channel(&'static self) -> bool {
        if self.channel.load(Ordering::Acquire) != 0 {
            return true;
        }
        let Some(process) = home::current() else {
            return false;
        };
        let Some((number, bell)) = process.take_channel() else {
            return false;
        };
        let tag = core::ptr::from_ref(self) as u64;
        let events = mask::IN | EPOLLET;
        let added = self.control(libc::EPOLL_CTL_ADD, sys::seat(bell), events, tag);
        if added.is_err() {
            process.give_channel(number);
            return false;
        }
        self.bell.store(bell, Ordering::Relaxed);
        self.home.set(Some(process));
        self.channel.store(number as u32 + 1, Ordering::Release);
        true
    }

    fn push(&self, registration: &'static Registration) {
        if registration.state.fetch_or(QUEUED, Ordering::AcqRel) & QUEUED != 0 {
            return;
        }
        registration.next_ready.clear();
        match self.ready_last.get() {
            Some(last) => last.next_ready.set(Some(registration)),
            None => self.ready_first.set(Some(registration)),
        }
        self.ready_last.set(Some(registration));
        self.ready_len.fetch_add(1, Ordering::Relaxed);
    }

    fn pop(&self) -> Option<&'static Registration> {
        let first = self.ready_first.get()?;
        let next = first.next_ready.get();
        self.ready_first.set(next);
        if next.is_none() {
            self.ready_last.clear();
        }
        self.ready_len.fetch_sub(1, Ordering::Relaxed);
        first.state.fetch_and(!QUEUED, Ordering::AcqRel);
        Some(first)
    }

    /// How long a sleep may last at most. With several peers one of them may have
    /// taken away, in the memory they share, what another has left there; and a peer that
    /// has died may have to be prodded to say so.
    fn nap(&self) -> Option<Duration> {
        let partners = self.home().map_or(0, |home| home.partners.load(Ordering::Relaxed));
        (partners > 1 || wait::prods_peers()).then_some(wait::QUEUE_NAP)
    }

    /// Now and then looks at all members, whether or not somebody has said that they
    /// have news: see [`Self::nap`].
    fn look_around(&'static self) {
        let Some(nap) = self.nap() else { return };
        let now = sys::now_ns();
        let past = now.saturating_sub(self.last_round_ns.load(Ordering::Relaxed));
        if Duration::from_nanos(past) < nap {
            return;
        }
        self.last_round_ns.store(now, Ordering::Relaxed);
        let _held = Held::enter(self.lock.get());
        for registration in walk(&self.registrations, |r| &r.next_of_set) {
            if registration.is_tagged() {
                self.push(registration);
            }
        }
    }

    /// Puts a registration on the ready list, and wakes a thread that sleeps.
    fn queue_and_wake(&'static self, registration: &'static Registration) {
        {
            let _held = Held::enter(self.lock.get());
            self.push(registration);
        }
        self.wake();
    }

    /// Wakes a thread that sleeps, for what is on the ready list.
    fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            let _ = sys::ring_eventfd(self.bell.load(Ordering::Relaxed));
        }
    }

    /// The program has changed what a registration is told of. If nothing of it is there, it need not be
    /// looked at, and a thread that sleeps sleeps on: who reports later news does so under the lock, and
    /// sees the change; news from before are seen here.
    fn queue_if_worth_it(&'static self, registration: &'static Registration) {
        let is_worth_it = {
            let _held = Held::enter(self.lock.get());
            let is_worth_it = registration.is_worth_a_look(self);
            if is_worth_it {
                self.push(registration);
            }
            is_worth_it
        };
        if is_worth_it {
            self.wake();
        }
    }

    /// Puts what peers have marked on the ready list, in the order in which they have.
    /// Under the lock.
    fn take_news(&self) {
        let Some(channel) = self.channel() else { return };
        channel.collect(|slot| {
            for registration in walk(&self.by_slot[slot], |r| &r.next_of_slot) {
                self.push(registration);
            }
        });
    }

    /// Takes news from the channel, evaluates what is on the ready list and writes
    /// what is to be reported.
    fn collect(&'static self, events: &mut [libc::epoll_event]) -> usize {
        let _held = Held::enter(self.lock.get());
        self.take_news();
        if self.arms.load(Ordering::Relaxed) || !self.is_at_home() {
            self.push_unreached();
        }
        let mut found = self.uncarry(events);
        for _ in 0..self.ready_len.load(Ordering::Relaxed) {
            if found == events.len() {
                break;
            }
            let Some(registration) = self.pop() else {
                break;
            };
            if registration.state.load(Ordering::Acquire) & DEAD != 0 {
                registration.free();
                continue;
            }
            let (mask, stays) = registration.evaluate();
            if mask != 0 {
                if let Some(slot) = registration.sock().and_then(Sock::slot) {
                    self.owed.charge(slot);
                }
                let data = registration.data.load(Ordering::Relaxed);
                events[found] = libc::epoll_event { events: mask, u64: data };
                found += 1;
            }
            if stays {
                self.push(registration);
            }
        }
        found
    }

    fn push_unreached(&self) {
        let inherited = !self.is_at_home();
        for registration in walk(&self.registrations, |r| &r.next_of_set) {
            let unreached = inherited || registration.unreached.load(Ordering::Relaxed);
            if registration.is_tagged() && unreached {
                self.push(registration);
            }
        }
    }

    /// Whether a report could be made now, without making it: for `poll` on the
    /// epoll descriptor and for sets in sets.
    pub(crate) fn has_something(&'static self) -> bool {
        let _held = Held::enter(self.lock.get());
        walk(&self.registrations, |r| &r.next_of_set).any(|registration| {
            let (Some(sock), true) = (registration.sock(), registration.is_tagged()) else {
                return false;
            };
            let (Some(conn), Some(slot)) = (sock.conn(), sock.slot()) else {
                return false;
            };
            if registration.state.load(Ordering::Relaxed) & (DISABLED | PARKED) != 0 {
                return false;
            }
            let events = registration.events.load(Ordering::Relaxed);
            let file = registration.file(sock);
            let interest = interest_of(events);
            let full = readiness::mask_of(slot, &conn, file, interest);
            let now = full & interest;
            let edge = events & EPOLLET != 0;
            let arrived = readiness::arrived(slot, &conn, file);
            let mut seen = registration.seen_mask.load(Ordering::Relaxed);
            if sock.has_found_nothing() {
                seen &= !END;
            }
            now != 0
                && (!edge
                    || registration.state.load(Ordering::Relaxed) & FRESH != 0
                    || arrived != registration.seen_arrived.load(Ordering::Relaxed)
                    || (now | full & END) & !seen != 0)
        })
    }

    /// Asks for TCP bells for the members out of the channel's reach.
    fn arm(&'static self) {
        let inherited = !self.is_at_home();
        for (_, slot, conn, registration) in self.members() {
            if inherited || registration.unreached.load(Ordering::Relaxed) {
                conn.mine.waiting.read_arm.ask(wait::next_arm(slot));
                if registration.events.load(Ordering::Relaxed) & mask::OUT != 0 {
                    conn.mine.waiting.write_arm.ask(wait::next_arm(slot));
                }
            }
        }
    }

    /// Withdraws what [`Self::arm`] has asked for, and clears stale bells.
    fn disarm(&'static self) {
        let inherited = !self.is_at_home();
        for (sock, slot, conn, registration) in self.members() {
            if inherited || registration.unreached.load(Ordering::Relaxed) {
                wait::withdraw_readers(slot, &conn);
                conn.mine.waiting.write_arm.withdraw();
                wait::drain_bells(slot, &conn, registration.file(&sock));
            }
        }
    }

    fn members(&self) -> impl Iterator<Item = (Use, &'static Slot, Conn, &'static Registration)> {
        let all = walk(&self.registrations, |r| &r.next_of_set);
        all.filter(|registration| registration.is_tagged()).filter_map(|registration| {
            let sock = registration.sock_in_use()?;
            let (slot, conn) = (sock.slot()?, sock.conn()?);
            Some((sock, slot, conn, registration))
        })
    }

    /// Sorts what the kernel reported: ours goes on the ready list, the rest stays
    /// in `events`; returns how many.
    fn translate(&'static self, events: &mut [libc::epoll_event]) -> usize {
        self.translate_within(events, nesting::DEPTH_MAX - 1)
    }

    /// Asks sets in this one that are at most so deep.
    fn translate_within(&'static self, events: &mut [libc::epoll_event], depth: u32) -> usize {
        let mut kept = 0;
        for i in 0..events.len() {
            let event = events[i];
            if event.u64 == core::ptr::from_ref(self) as u64 {
                continue;
            }
            match registration_of(event.u64) {
                Some(registration) if registration.is_marked_only() => {
                    if let Some(event) = registration.report_of_kernel(self, event.events) {
                        events[kept] = event;
                        kept += 1;
                    }
                }
                Some(registration) => self.on_kernel_event(registration, event.events),
                None if self.is_quiet(event.u64, depth) => {}
                None => {
                    events[kept] = event;
                    kept += 1;
                }
            }
        }
        kept
    }

    /// Whether it is a set in this one that has nothing to report any more.
    fn is_quiet(&self, data: u64, depth: u32) -> bool {
        self.nested_as(data).is_some_and(|inner| !inner.is_ready_within(depth))
    }

    fn on_kernel_event(&'static self, registration: &'static Registration, events: u32) {
        let ours = registration.set().is_some_and(|set| core::ptr::eq(set, self));
        let Some(sock) = registration.sock_in_use().filter(|_| ours) else {
            return;
        };
        if sock.phase() == Phase::Offered {
            // The kernel has more to say of what becomes of it.
            return hand_over::settle(sock.sock(), registration.open_fd());
        }
        if let (Some(conn), Some(slot)) = (sock.conn(), sock.slot()) {
            let file = registration.file(&sock);
            if events & (mask::RDHUP | mask::HUP | mask::ERR) == 0 {
                wait::look_at_bells(slot, &conn, file);
            } else {
                ends::ask_kernel(slot, &conn, file);
            }
        }
        let _held = Held::enter(self.lock.get());
        self.push(registration);
    }

    fn is_kernel_look_due(&self) -> bool {
        let now = sys::now_ns();
        let saved = self.looks_saved.fetch_add(1, Ordering::Relaxed) + 1;
        let past = now.saturating_sub(self.last_look_ns.load(Ordering::Relaxed));
        if saved < KERNEL_LOOK_EVERY && past < KERNEL_LOOK_NS {
            return false;
        }
        self.looks_saved.store(0, Ordering::Relaxed);
        self.last_look_ns.store(now, Ordering::Relaxed);
        true
    }
}

/// The registration behind a tag, if the word is one.
fn registration_of(data: u64) -> Option<&'static Registration> {
    REGISTRATIONS.at(usize::try_from(data).ok()?)
}

/// The program's `epoll_wait` family on a set with sockets in shared memory.
///
/// # Errors
/// As `epoll_pwait2`.
pub fn wait(
    set: &'static Set,
    epfd: i32,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
    sigmask: SignalMask,
) -> Result<usize, Errno> {
    let deadline = timeout.map(|time| sys::now_ns().saturating_add(time.as_nanos() as u64));
    let waiter = Waiter { set, file: File::of_set(set, epfd), sigmask };
    loop {
        set.look_around();
        let first = if set.may_report() && set.is_kernel_look_due() && set.has_reports() {
            waiter.ask_kernel(events, Some(Duration::ZERO)).unwrap_or(0)
        } else {
            0
        };
        let found = first + set.collect(&mut events[first..]);
        if found > 0 {
            set.pass_baton();
            return Ok(found);
        }
        let left = deadline.map(|at| Duration::from_nanos(at.saturating_sub(sys::now_ns())));
        let now = left == Some(Duration::ZERO);
        if !now && waiter.linger() {
            continue;
        }
        let kept = if now {
            set.observe_nested();
            waiter.ask_kernel(events, Some(Duration::ZERO))?
        } else {
            waiter.sleep(events, [set.nap(), left].into_iter().flatten().min())?
        };
        let found = kept + set.collect(&mut events[kept..]);
        if found > 0 || now {
            set.pass_baton();
            return Ok(found);
        }
    }
}

/// The real `epoll_wait` has returned these events of a set that had nothing of
/// ours when it was called: another thread may have changed that meanwhile. Returns
/// how many are the program's.
pub fn sort_out(set: &'static Set, events: &mut [libc::epoll_event]) -> usize {
    set.translate(events)
}

struct Waiter {
    set: &'static Set,
    file: File<'static>,
    sigmask: SignalMask,
}

impl Waiter {
    fn linger(&self) -> bool {
        let Some(channel) = self.set.channel() else {
            return false;
        };
        let ready = || channel.is_marked();
        let (found, cost) = wait::linger(&self.set.learned, || channel.last_cpu(), ready);
        self.set.owed.add(&cost);
        found
    }

    /// The kernel's events, ours sorted out.
    fn ask_kernel(
        &self,
        events: &mut [libc::epoll_event],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        let ask = |epfd| sys::epoll_wait(epfd, events, timeout, self.sigmask);
        let asked = match timeout {
            Some(Duration::ZERO) => self.file.call(ask),
            _ => self.file.sleep_among_others(ask),
        };
        let count = asked.map_err(|errno| errno.0)?;
        if count > 0 {
            // Before the kernel's bells, which may be old: the channel knows the order.
            let _held = Held::enter(self.set.lock.get());
            self.set.take_news();
        }
        Ok(self.set.translate(&mut events[..count]))
    }

    fn sleep(
        &self,
        events: &mut [libc::epoll_event],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        let set = self.set;
        let arms = set.arms.load(Ordering::Relaxed) || !set.is_at_home();
        if arms {
            set.arm();
        }
        set.observe_nested();
        set.sleepers.fetch_add(1, Ordering::SeqCst);
        set.owed.add_park();
        let news = match set.channel() {
            Some(channel) => {
                channel.fall_asleep();
                channel.is_marked()
            }
            None => false,
        };
        let news = news || (arms && set.has_something());
        let queued = set.ready_len.load(Ordering::SeqCst) != 0;
        let timeout = if news || queued { Some(Duration::ZERO) } else { timeout };
        let kept = self.ask_kernel(events, timeout);
        if set.sleepers.fetch_sub(1, Ordering::SeqCst) == 1
            && let Some(channel) = set.channel()
        {
            channel.wake_up();
        }
        if arms {
            set.disarm();
        }
        kept
    }
}

impl Set {
    /// Something may be there without asking the kernel.
    fn may_report(&self) -> bool {
        self.ready_len.load(Ordering::Relaxed) != 0
            || self.channel().is_some_and(Channel::is_marked)
    }

    /// The same, looked at more closely where that is cheap: a level-triggered
    /// registration stays on the list after its report, because only the next look
    /// shows whether the program has taken what was there. It usually has, and then the
    /// sleep asks the kernel soon enough.
    fn has_reports(&'static self) -> bool {
        const FEW: usize = 8;
        let len = self.ready_len.load(Ordering::Relaxed);
        if len > FEW || self.channel().is_some_and(Channel::is_marked) {
            return true;
        }
        let _held = Held::enter(self.lock.get());
        for registration in (0..len).map_while(|_| self.pop()) {
            if !registration.is_spent() {
                self.push(registration);
            }
        }
        self.ready_len.load(Ordering::Relaxed) != 0
    }

    /// A thread leaves with events: if others sleep in this set, they are rung for
    /// what is left, and peers ring them from now on.
    fn pass_baton(&self) {
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        let Some(channel) = self.channel() else {
            return;
        };
        channel.fall_asleep();
        if channel.is_marked() || self.ready_len.load(Ordering::Relaxed) != 0 {
            let _ = sys::ring_eventfd(self.bell.load(Ordering::Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waiting_in_a_set_has_cost_is_charged_once() {
        // SAFETY: all atomics, for which zero bytes are a value.
        let (owed, slot): (Box<Owed>, Box<Slot>) =
            unsafe { (Box::new_zeroed().assume_init(), Box::new_zeroed().assume_init()) };
        let charged = || {
            owed.charge(&slot);
            let Counters { waits, strangers_ns, parks, .. } = &slot.counters;
            [waits, strangers_ns, parks].map(|counter| counter.load(Ordering::Relaxed))
        };
        assert_eq!(charged(), [0, 0, 0]);
        owed.add(&wait::Cost { strangers_ns: 5, ..wait::Cost::default() });
        owed.add(&wait::Cost { strangers_ns: 6, ..wait::Cost::default() });
        assert_eq!(charged(), [2, 11, 0]);
        owed.add_park();
        assert_eq!(charged(), [2, 11, 1]);
        assert_eq!(charged(), [2, 11, 1]);
    }
}
