//! epoll: the kernel's set for descriptors that are not ours, ours for the rings.
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
//! A socket that has no object yet ([`crate::table::untracked`]) has no registration here: the kernel's is
//! the program's, and a [`Watch`] remembers it for the time when there is an object.
//!
//! A one-shot registration reports once until the program arms it again, and that is the kernel's
//! business before the move and ours afterwards. So of a socket on TCP, too, the kernel's registration
//! carries our tag, and each report passes by here: *reported* is one bit, set by the side that reports.
//!
//! A set whose connections are out of its channel's reach (inherited by `fork`, in
//! more than four sets, watched through another set) *arms* them one by one before
//! it sleeps: slower, and always right.

use crate::Errno;
use crate::connection::{sleep, spin};
use crate::polling::set::{
    self, EPOLLET, EPOLLEXCLUSIVE, EPOLLONESHOT, FRESH, OF_SOCK, PARKED, REGISTRATIONS,
    Registration, SETS, STRUCTURE, Set,
};
use crate::polling::watch::Watch;
use crate::polling::{nesting, registration};
use crate::process::owner::Held;
use crate::process::{claims, loan};
use crate::table::file::File;
use crate::table::set::Handle;
use crate::table::sock::{self, Phase, SOCKS_MAX, Sock};
use crate::table::{descriptors, places, untracked};
use core::sync::atomic::Ordering;
use core::time::Duration;
use sidestep_device::program::Argument;
use sidestep_device::sys::{self, SignalMask};
use sidestep_proto::fallback::{Lack, Reason};
use sidestep_proto::readiness::mask;

/// What the kernel accepts beside `EPOLLEXCLUSIVE`.
const EXCLUSIVE_ALLOWED: u32 = EPOLLEXCLUSIVE
    | EPOLLET
    | mask::IN
    | mask::OUT
    | mask::ERR
    | mask::HUP
    | libc::EPOLLWAKEUP as u32;

/// Makes room for the sets and registrations of a program that confines itself. Connections
/// that have moved are in them, or will be.
pub(crate) fn make_room() {
    SETS.make_room(SETS_AHEAD);
    REGISTRATIONS.make_room(REGISTRATIONS_AHEAD);
    let last_sock = (sock::made() + REGISTRATIONS_AHEAD).min(SOCKS_MAX) - 1;
    let _ = OF_SOCK.writable(last_sock);
    nesting::make_room(SETS_AHEAD);
}

/// Sets that a confined program can make and have moved connections in, 2 MiB.
const SETS_AHEAD: usize = 16;

/// And registrations, 128 KiB.
const REGISTRATIONS_AHEAD: usize = 1024;

/// Makes an epoll descriptor known.
pub fn register(epfd: i32) -> Option<&'static Set> {
    let has_place = descriptors::has_place(epfd);
    let set = Some(()).filter(|()| has_place).and_then(|()| SETS.take())?;
    set.epfd.store(epfd, Ordering::Relaxed);
    set.forks.store(loan::forks(), Ordering::Relaxed);
    set.learned.begin();
    set.handle.begin(dissolve);
    descriptors::note_highest(epfd);
    descriptors::forget_entry(descriptors::insert_set(epfd, &set.handle), -1);
    Some(set)
}

/// No descriptor refers to a set, and no call waits in it.
pub(crate) fn dissolve(handle: &'static Handle) {
    if let Some(set) = Set::of(handle) {
        set.dissolve();
    }
}

fn set_of(epfd: i32) -> Option<&'static Set> {
    set::set(epfd).or_else(|| register(epfd))
}

/// The program's `epoll_ctl`. `None`: the kernel alone answers.
pub fn control(
    epfd: i32,
    operation: i32,
    fd: i32,
    event: Argument<'_, libc::epoll_event>,
) -> Option<Result<usize, Errno>> {
    if let Some(inner) = set::set(fd) {
        return Some(nesting::control(set_of, epfd, operation, (fd, inner), event));
    }
    if !descriptors::is_ours(fd) || operation != libc::EPOLL_CTL_DEL && event.is_null() {
        return None;
    }
    let wish = Wish(event);
    let answer = match watch(epfd, operation, fd, wish) {
        Some(answer) => answer,
        None => {
            let sock = descriptors::sock(fd)?;
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
    let Some(sock) = descriptors::sock(fd) else { return Ok(0) };
    keep_on_tcp(sock.sock());
    if sock.is_beyond_tcp() {
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

/// `epoll_ctl` on a socket that has no object and needs none for it: the kernel's answer.
/// `None`: it is none, or it needs one, as it is to be in a second set or to be told once.
fn watch(epfd: i32, operation: i32, fd: i32, wish: Wish<'_>) -> Option<Result<usize, Errno>> {
    let watch = Some(fd).filter(|fd| descriptors::is_untracked(*fd)).and_then(Watch::place)?;
    if wish.is_one_shot(operation) {
        return None;
    }
    let held = Held::enter(untracked::growing(fd));
    let has_object = places::stage(fd).is_none() || !descriptors::is_untracked(fd);
    if !held.is_outermost() || has_object || loan::is_borrowed_memory() {
        return None;
    }
    let is_watched = !watch.set.is_none();
    let is_here = watch.is_of(set::set(epfd));
    if operation == libc::EPOLL_CTL_ADD && is_watched && !is_here {
        return None;
    }
    let answer = wish.ask_kernel(epfd, operation, fd);
    if answer.is_ok() {
        if let Some(set) = set::set(epfd).filter(|_| is_here) {
            set.forget_report(watch.data.load(Ordering::Relaxed));
        }
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

/// A socket gets its object: what was watched is registered. Under the lock of the thread that makes
/// it.
pub(crate) fn take_over_watch(fd: i32, sock: &'static Sock) {
    let Some(watch) = Watch::of(fd) else { return };
    if watch.set.is_none() {
        return;
    }
    // The set is not dissolved meanwhile.
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
    if sock.phase() == Phase::Smc {
        registration.take_over(set, sock);
    } else if sock.is_offered() {
        registration.tag(set);
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
    if set::set(epfd).is_none() {
        // The kernel knows whether it is a set. Asked for nothing, it reports nothing yet.
        let nothing = wish.events & (EPOLLONESHOT | EPOLLEXCLUSIVE);
        registration::kernel_control(epfd, operation, fd, nothing, wish.u64)?;
        operation = libc::EPOLL_CTL_MOD;
    }
    let made = set_of(epfd).and_then(|set| Some((set, Registration::make(set, sock, fd, wish)?)));
    let Some((set, registration)) = made else {
        registration::kernel_control(epfd, operation, fd, wish.events, wish.u64)?;
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
    let Some((set, registration)) = find(epfd, fd, sock) else {
        return registration::kernel_control(epfd, libc::EPOLL_CTL_DEL, fd, 0, 0);
    };
    if registration.is_tagged() {
        registration.forget_report(set);
        return match registration.state.fetch_or(PARKED, Ordering::Relaxed) & PARKED {
            0 => Ok(0),
            _ => Err(libc::ENOENT),
        };
    }
    let answer = registration::kernel_control(epfd, libc::EPOLL_CTL_DEL, fd, 0, 0)?;
    registration.dissolve();
    Ok(answer)
}

/// The registration of a descriptor of a socket in a set.
fn find(epfd: i32, fd: i32, sock: &'static Sock) -> Option<(&'static Set, &'static Registration)> {
    let set = set::set(epfd)?;
    let is_it = |registration: &&'static Registration| {
        registration.fd.load(Ordering::Relaxed) == fd
            && registration.set().is_some_and(|other| core::ptr::eq(other, set))
    };
    Some((set, registration::of_sock(sock).find(is_it)?))
}

/// The connection of a socket has moved to shared memory: takes over its
/// registrations.
pub fn adopt(sock: &'static Sock) {
    if !registration::has_registrations(sock) {
        return;
    }
    let _structure = Held::enter(STRUCTURE.get());
    for registration in registration::of_sock(sock) {
        if let Some(set) = registration.set() {
            registration.take_over(set, sock);
        }
    }
}

/// A socket waits to be connected: its sets tell us when it is.
pub(crate) fn watch_connecting(sock: &'static Sock) {
    let _structure = Held::enter(STRUCTURE.get());
    for registration in registration::of_sock(sock) {
        if let Some(set) = registration.set() {
            registration.tag(set);
        }
    }
}

/// Another file is about to come under the descriptors of a socket, which is open elsewhere: the
/// kernel's sets forget it. The registrations wait for [`hand_back`].
pub(crate) fn withdraw(sock: &'static Sock) {
    let _structure = Held::enter(STRUCTURE.get());
    for registration in registration::of_sock(sock) {
        if let Some(set) = registration.set() {
            let _ = set.control(libc::EPOLL_CTL_DEL, registration.open_fd(), 0, 0);
        }
    }
}

/// The last descriptor of this process goes, and the connection is open elsewhere or on its way there: the
/// kernel keeps its registrations, and those that the program has deleted must not be there if it comes back.
pub(crate) fn withdraw_deleted(sock: &'static Sock) {
    let lives_on = || {
        sock.slot().is_some_and(|slot| slot.holders.load(Ordering::Acquire) > 1)
            || sock.home().is_some_and(|home| home.is_under_way(sock.slot_index()))
    };
    if !registration::has_registrations(sock) || !lives_on() {
        return;
    }
    let _structure = Held::enter(STRUCTURE.get());
    for registration in registration::of_sock(sock) {
        if let Some(set) = registration.set()
            && registration.state.load(Ordering::Relaxed) & PARKED != 0
        {
            let _ = set.control(libc::EPOLL_CTL_DEL, registration.open_fd(), 0, 0);
        }
    }
}

/// The last descriptor of a socket goes: the kernel forgets it, so do we.
pub fn forget_sock(sock: &'static Sock) {
    if !registration::has_registrations(sock) {
        return;
    }
    let _structure = Held::enter(STRUCTURE.get());
    for registration in registration::of_sock(sock) {
        registration.dissolve();
    }
}

/// One of several descriptors of a socket goes. While another lives, the kernel
/// keeps reporting the socket under the old number to the sets it is in, and so do
/// we; but a registration that only we have kept goes now.
pub fn forget_descriptor(sock: &'static Sock, fd: i32) {
    if !registration::has_registrations(sock) {
        return;
    }
    let _structure = Held::enter(STRUCTURE.get());
    for registration in registration::of_sock(sock) {
        let parked = registration.state.load(Ordering::Relaxed) & PARKED != 0;
        if let Some(set) = registration.set()
            && parked
            && registration.fd.load(Ordering::Relaxed) == fd
        {
            let _ = set.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
            registration.dissolve();
        } else if registration.open_fd() == fd
            && let Some(other) = descriptors::first_of(sock)
        {
            registration.open_fd.store(other, Ordering::Relaxed);
        }
    }
}

/// A socket has become a new one (`connect` to nowhere): it stays in its sets, and
/// the kernel answers for it again, as the program has registered it.
pub fn hand_back(old: &'static Sock, new: &'static Sock) {
    if !registration::has_registrations(old) {
        return;
    }
    let _structure = Held::enter(STRUCTURE.get());
    for registration in registration::of_sock(old) {
        let Some(set) = registration.set() else { continue };
        let fd = registration.fd.load(Ordering::Relaxed);
        let wish = registration.wish();
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

/// Another file has come under the descriptors of a socket, after [`withdraw`], and none of ours: the kernel reports it to the
/// program as it reports any.
pub(crate) fn give_back(sock: &'static Sock) {
    if !registration::has_registrations(sock) {
        return;
    }
    let _structure = Held::enter(STRUCTURE.get());
    for registration in registration::of_sock(sock) {
        let Some(set) = registration.set() else { continue };
        if registration.state.load(Ordering::Relaxed) & PARKED == 0 {
            registration.untag(set, registration.fd.load(Ordering::Relaxed), registration.wish());
        }
        registration.dissolve();
    }
}

/// Something about a connection changed on our own side (`shutdown`, an option):
/// its sets look at it again.
pub fn note_change(sock: &Sock) {
    if !registration::has_registrations(sock) {
        return;
    }
    let _structure = Held::enter(STRUCTURE.get());
    for registration in registration::of_sock(sock) {
        if let Some(set) = registration.set().filter(|_| registration.is_tagged()) {
            set.queue_and_wake(registration);
        }
    }
}

/// After what on Linux is an edge whatever there was to report before: `shutdown`, and a
/// low-water mark that is reached when it is set.
pub fn note_edge(sock: &Sock) {
    if !registration::has_registrations(sock) {
        return;
    }
    {
        let _structure = Held::enter(STRUCTURE.get());
        for registration in registration::of_sock(sock) {
            registration.state.fetch_or(FRESH, Ordering::Relaxed);
        }
    }
    note_change(sock);
}

/// In the child of a fork: what calls of the parent keep.
pub(crate) fn forget_copies() {
    SETS.each(|set| set.handle.naming.after_fork_in_child());
}

/// In the child of a fork.
pub fn after_fork_in_child() {
    STRUCTURE.get().reset();
    REGISTRATIONS.reset_locks();
    SETS.reset_locks();
    nesting::reset_locks();
    set::for_each_set(|set| {
        set.lock.get().reset();
        set.handle.after_fork_in_child();
    });
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
    let deadline = timeout.map(sys::deadline);
    let waiter = Waiter { set, file: File::of_set(&set.handle, epfd), sigmask };
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
        let (found, cost) = spin::linger(&self.set.learned, || channel.last_cpu(), ready);
        self.set.owed.add(&cost);
        found
    }

    /// The kernel's events, ours sorted out.
    fn ask_kernel(
        &self,
        events: &mut [libc::epoll_event],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        let asked = match timeout {
            Some(Duration::ZERO) => {
                self.file.call(|epfd| sys::epoll_wait(epfd, events, timeout, self.sigmask))
            }
            _ => self
                .file
                .sleep_among_others(|epfd| sleep::epoll_wait(epfd, events, timeout, self.sigmask)),
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
        let mut asleep = Asleep::fall(set);
        let news = asleep.prepare();
        let queued = set.ready_len.load(Ordering::SeqCst) != 0;
        let timeout = if news || queued { Some(Duration::ZERO) } else { timeout };
        let kept = self.ask_kernel(events, timeout);
        asleep.is_awake = true;
        kept
    }
}

/// A thread sleeps in a set. Dropped when it wakes up, and when the stack is unwound because the thread is cancelled.
struct Asleep {
    set: &'static Set,
    arms: bool,
    /// It goes on, and sees to what it was woken for.
    is_awake: bool,
}

impl Asleep {
    fn fall(set: &'static Set) -> Self {
        let arms = set.arms.load(Ordering::Relaxed) || !set.is_at_home();
        if arms {
            set.arm();
        }
        set.observe_nested();
        set.sleepers.fetch_add(1, Ordering::SeqCst);
        Self { set, arms, is_awake: false }
    }

    /// Has peers ring. True: something happened while they did not.
    fn prepare(&self) -> bool {
        let set = self.set;
        set.owed.add_park();
        let news = match set.channel() {
            Some(channel) => {
                channel.fall_asleep();
                channel.is_marked()
            }
            None => false,
        };
        news || (self.arms && set.has_something())
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        let set = self.set;
        if set.sleepers.fetch_sub(1, Ordering::SeqCst) == 1
            && let Some(channel) = set.channel()
        {
            channel.wake_up();
        }
        if self.arms {
            set.disarm();
        }
        if !self.is_awake {
            // The bell that this thread has taken was for all.
            set.pass_baton();
        }
    }
}
