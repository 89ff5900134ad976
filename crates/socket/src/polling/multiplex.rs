//! `poll` and `select` over any mixture of descriptors.
//!
//! Rings are looked at first (a few nanoseconds each). If one has something to
//! tell, the kernel is still asked about the rest, without waiting, so that the
//! answer is complete. Else every connection in shared memory is *armed*: its peer
//! then sends one byte on the TCP connection when there is news, and the real
//! `ppoll` on the very descriptors wakes. A poll for one connection to read from
//! naps on the ring's futex before, as a reader does.
//!
//! A connection that is still undecided may move while a thread sleeps here, by another
//! thread's call. So the sleeper is counted before ([`sleeper::ask_for_readers_once_moved`]), and the end that
//! moves asks for a bell in its place.

use crate::Errno;
use crate::connection::{ends, readiness, sleep, sleeper, spin, wait};
use crate::polling::set;
use crate::process::claims;
use crate::table::conn::Conn;
use crate::table::descriptors::{self, Use};
use crate::table::end::End;
use crate::table::sock;
use core::sync::atomic::Ordering;
use core::time::Duration;
use sidestep_device::map::Scratch;
use sidestep_device::program::Argument;
use sidestep_device::slab::Record;
use sidestep_device::state::Slot;
use sidestep_device::sys::{self, SignalMask};
use sidestep_proto::governor::SpinPolicy;
use sidestep_proto::readiness::mask;

/// Arrays up to this length are copied to the stack.
const ON_STACK: usize = 64;

/// Always reported by `poll`.
const ALWAYS: u32 = mask::ERR | mask::HUP;

/// The same, and a descriptor that is none.
const ALWAYS_REPORTED: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

/// The program's array, if any descriptor in it needs us: a connection in shared memory, one that
/// may move there while we wait, or an epoll set that holds one. `None` for the kernel to answer, `EFAULT` included.
///
/// `array` makes a slice of the array; it is asked when the kernel has said that there is memory.
pub fn entries<'a>(
    fds: *const libc::pollfd,
    count: u64,
    array: impl FnOnce() -> &'a mut [libc::pollfd],
) -> Option<&'a mut [libc::pollfd]> {
    if !sock::has_begun() || count > i32::MAX as u64 {
        return None;
    }
    let len = count as usize * size_of::<libc::pollfd>();
    if !claims::holds(claims::Of::Entries, fds, len) {
        return None;
    }
    let entries = array();
    entries.iter().any(|entry| concerns(entry.fd)).then_some(entries)
}

/// Whether a descriptor needs us.
#[must_use]
pub fn concerns(fd: i32) -> bool {
    if !descriptors::is_ours(fd) {
        return false;
    }
    set::set(fd).is_some_and(set::Set::is_tagged)
        || descriptors::sock(fd).is_some_and(|sock| {
            // It may also move to shared memory while we wait.
            sock.is_beyond_tcp() || sock.is_undecided()
        })
}

/// The program's `poll` or `ppoll`. Fills `revents`; returns how many are not 0.
///
/// # Errors
/// As `ppoll`.
pub fn poll(
    entries: &mut [libc::pollfd],
    timeout: Option<Duration>,
    sigmask: SignalMask,
) -> Result<usize, Errno> {
    let deadline = timeout.map(sys::deadline);
    loop {
        let ours = look(entries);
        let busy = if timeout == Some(Duration::ZERO) { None } else { first_busy(entries) };
        if busy.as_ref().is_some_and(|sock| !sock.poll_streak.is_look_due()) {
            return Ok(ours);
        }
        let left = || match deadline {
            _ if ours > 0 => Some(Duration::ZERO),
            Some(at) => Some(Duration::from_nanos(at.saturating_sub(sys::now_ns()))),
            None => None,
        };
        let waits = left() != Some(Duration::ZERO);
        if waits && linger(entries) {
            continue;
        }
        if waits && sigmask.is_none() {
            match doze(entries, left()) {
                Ok(true) => continue,
                Ok(false) => {}
                // As in the kernel: what there is to tell goes before the signal.
                Err(errno) => return Some(look(entries)).filter(|ours| *ours > 0).ok_or(errno),
            }
        }
        let nap = [nap(entries), left()].into_iter().flatten().min();
        let count = ask_kernel(entries, nap, sigmask, ours == 0)?;
        if let Some(sock) = busy {
            sock.poll_streak.note(count > ours);
        }
        if count > 0 || !waits {
            return Ok(count);
        }
    }
}

/// How long a sleep may last before the rings are looked at again, if there are any: bells
/// are shared by all who sleep on a connection, and in a race another may take the one that
/// was meant for us. A wait for room in a full ring is not long.
fn nap(entries: &[libc::pollfd]) -> Option<Duration> {
    let wants_room =
        |entry: &libc::pollfd| entry.events & libc::POLLOUT != 0 && connection(entry.fd).is_some();
    if entries.iter().any(wants_room) {
        return Some(wait::WRITER_NAP);
    }
    let is_undecided = |fd| descriptors::object(fd).is_some_and(|sock| sock.is_undecided());
    let has_rings = |entry: &libc::pollfd| concerns(entry.fd) && !is_undecided(entry.fd);
    entries.iter().any(has_rings).then_some(wait::QUEUE_NAP)
}

/// A poll for something to read on one connection, and nothing else, begins like a reader's sleep: the
/// ring's futex costs both sides less than a bell. True: something has happened.
fn doze(entries: &[libc::pollfd], left: Option<Duration>) -> Result<bool, Errno> {
    const READS: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP;
    let [entry] = entries else { return Ok(false) };
    if entry.events & libc::POLLIN == 0 || entry.events & !READS != 0 {
        return Ok(false);
    }
    let naps = |end: &End<'_>| wait::nap_in_poll(end, left, || mask_now(end, entry) != 0);
    with_end(entry.fd, naps).unwrap_or(Ok(false))
}

/// Writes what the rings say into `revents`; returns how many have something.
fn look(entries: &mut [libc::pollfd]) -> usize {
    let mut found = 0;
    for entry in entries {
        entry.revents = 0;
        if let Some(mask) = with_end(entry.fd, |end| mask_now(end, entry)) {
            entry.revents = mask as u16 as i16;
        } else if let Some(set) = set::set(entry.fd) {
            entry.revents = set_mask(set, entry);
        }
        found += usize::from(entry.revents != 0);
    }
    found
}

/// What an epoll descriptor says: readable when its set has something to report.
fn set_mask(set: &'static set::Set, entry: &libc::pollfd) -> i16 {
    let readable = entry.events & libc::POLLIN != 0 && set.is_tagged() && set.is_ready();
    if readable { libc::POLLIN } else { 0 }
}

/// The first connection whose ring has something to report.
fn first_busy(entries: &[libc::pollfd]) -> Option<Use> {
    let mut busy = entries.iter().filter(|entry| entry.revents != 0);
    busy.find_map(|entry| connection(entry.fd))
}

/// The socket behind a descriptor, if it is a connection in shared memory.
fn connection(fd: i32) -> Option<Use> {
    descriptors::sock(fd).filter(|sock| sock.conn().is_some())
}

/// Runs `f` on the connection in shared memory behind a descriptor, if it is one.
fn with_end<T>(fd: i32, f: impl FnOnce(&End<'_>) -> T) -> Option<T> {
    let sock = descriptors::sock(fd)?;
    Some(f(&End::of(&sock, fd)?))
}

fn mask_now(end: &End<'_>, entry: &libc::pollfd) -> u32 {
    let interest = u32::from(entry.events as u16) | ALWAYS;
    readiness::mask_of(end, interest) & interest
}

/// A connection that a spinning `poll` watches, and its cursors when it began.
#[derive(Clone, Copy)]
struct Watched {
    theirs: &'static Record,
    producer: u64,
    consumer: Option<u64>,
}

impl Watched {
    fn begin(entry: &libc::pollfd, conn: &Conn) -> Self {
        let theirs = conn.theirs;
        let room = entry.events & libc::POLLOUT != 0;
        Self {
            theirs,
            producer: theirs.sending.producer.claim(),
            consumer: room.then(|| theirs.receiving.consumer.claim()),
        }
    }

    fn has_moved(&self) -> bool {
        self.theirs.sending.producer.position() != self.producer
            || self
                .consumer
                .is_some_and(|before| self.theirs.receiving.consumer.position() != before)
    }
}

/// Spins and yields while the cursors of our connections stand still. True: one has
/// moved. A large array goes to the kernel at once.
fn linger(entries: &[libc::pollfd]) -> bool {
    if crate::process::options::current().spin == SpinPolicy::Never || entries.len() > ON_STACK {
        return false;
    }
    let mut places = [None; ON_STACK];
    let mut count = 0;
    let mut first = None;
    for entry in entries {
        let Some(sock) = connection(entry.fd) else { continue };
        places[count] = sock.conn().map(|conn| Watched::begin(entry, conn));
        count += 1;
        first.get_or_insert(sock);
    }
    let Some((sock, slot)) = first.as_ref().and_then(|sock| Some((sock, sock.slot()?))) else {
        return false;
    };
    let watched = || places[..count].iter().flatten();
    let elsewhere = || {
        let here = sys::cpu();
        let mut cpus = watched().map(|one| one.theirs.sending.cpu.load(Ordering::Relaxed));
        cpus.find(|cpu| *cpu != here).or(Some(here))
    };
    let ready = || watched().any(Watched::has_moved);
    let (found, cost) = spin::linger(&sock.receive_wait, elsewhere, ready);
    cost.charge(slot);
    found
}

/// Asks the kernel about the whole array, our connections armed if we may sleep.
fn ask_kernel(
    entries: &mut [libc::pollfd],
    timeout: Option<Duration>,
    sigmask: SignalMask,
    may_sleep: bool,
) -> Result<usize, Errno> {
    const NOT_ARMED: Option<Waiter> = None;
    let mut entries_here = [NOTHING; ON_STACK];
    let mut waiters_here = [NOT_ARMED; ON_STACK];
    let (mut copy_there, mut waiters_there);
    let (copy, waiters) = if entries.len() > ON_STACK {
        copy_there = scratch(entries.len(), || NOTHING)?;
        waiters_there = scratch(entries.len(), || NOT_ARMED)?;
        (&mut copy_there[..], &mut waiters_there[..])
    } else {
        (&mut entries_here[..entries.len()], &mut waiters_here[..entries.len()])
    };
    let mut armed = Armed { entries, waiters };
    let news = armed.prepare(copy, may_sleep);
    let timeout = if news { Some(Duration::ZERO) } else { timeout };
    let answer = sleep::ppoll(copy, timeout, sigmask);
    drop(armed);
    let count = finish(entries, copy);
    match answer {
        Err(errno) if count == 0 || errno.0 != libc::EINTR => Err(errno.0),
        _ => Ok(count),
    }
}

/// An entry of which the kernel says nothing.
const NOTHING: libc::pollfd = libc::pollfd { fd: -1, events: 0, revents: 0 };

/// Memory for what is too long for the stack.
fn scratch<T>(len: usize, make: impl FnMut() -> T) -> Result<Scratch<T>, Errno> {
    Scratch::filled(len, make).map_err(|errno| errno.0)
}

/// The sleeper for one entry: the socket that the descriptor led to when the sleep began.
struct Waiter {
    sock: Use,
    slot: &'static Slot,
}

/// The connections of an array that are armed, however the sleep ends.
struct Armed<'a> {
    entries: &'a [libc::pollfd],
    waiters: &'a mut [Option<Waiter>],
}

impl Armed<'_> {
    /// Copies the array for the kernel. Our connections are asked for bells and for
    /// the end only. True: something happened while they were armed.
    fn prepare(&mut self, copy: &mut [libc::pollfd], may_sleep: bool) -> bool {
        for ((to, from), waiter) in copy.iter_mut().zip(self.entries).zip(&mut *self.waiters) {
            *to = libc::pollfd { revents: 0, ..*from };
            let known = descriptors::sock(from.fd).and_then(|sock| Some((sock.slot()?, sock)));
            if let Some((slot, sock)) = known {
                if let Some(end) = End::of(&sock, from.fd) {
                    // Even where there is room, and so something to tell, a peer may have died.
                    to.events = libc::POLLRDHUP | if may_sleep { libc::POLLIN } else { 0 };
                    if may_sleep {
                        arm(from, to, &end);
                        *waiter = Some(Waiter { sock, slot });
                    }
                } else if may_sleep && sock.is_undecided() && wants_to_read(from) {
                    sleeper::ask_for_readers_once_moved(&sock, slot);
                    *waiter = Some(Waiter { sock, slot });
                }
            } else if let (Some(set), true) = (set::set(from.fd), may_sleep) {
                set.observe();
            }
            if descriptors::object(from.fd).is_some_and(|sock| sock.is_offered()) {
                // Whatever the program waits for, it comes after this.
                to.events |= libc::POLLOUT;
            }
        }
        may_sleep && has_news(self.entries)
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        for (entry, waiter) in self.entries.iter().zip(&mut *self.waiters) {
            let Some(Waiter { sock, slot }) = waiter.take() else { continue };
            let conn = sock.conn();
            if wants_to_read(entry) {
                sleeper::stop_asking_for_readers(slot, conn);
            }
            if let Some(conn) = conn {
                conn.mine.waiting.write_arm.withdraw();
            }
        }
    }
}

fn has_news(entries: &[libc::pollfd]) -> bool {
    entries
        .iter()
        .any(|entry| with_end(entry.fd, |end| mask_now(end, entry)).is_some_and(|mask| mask != 0))
}

fn wants_to_read(entry: &libc::pollfd) -> bool {
    entry.events & (libc::POLLIN | libc::POLLPRI | libc::POLLRDHUP) != 0
}

fn arm(wish: &libc::pollfd, asked: &mut libc::pollfd, end: &End<'_>) {
    use sidestep_device::state::flag;
    let flags = end.slot.flags.load(Ordering::Acquire);
    if wants_to_read(wish) {
        sleeper::ask_for_readers(end);
    }
    if wish.events & libc::POLLOUT != 0 {
        end.mine.waiting.write_arm.ask(sleeper::next_arm(end.slot));
        wait::prod_peer(end);
        if flags & flag::SEND_SWITCHED == 0 {
            asked.events |= libc::POLLOUT;
        }
    }
    if flags & flag::READ_SHUT != 0 {
        // The kernel calls it readable for ever; only its end can wake us.
        asked.events = 0;
    }
}

/// Puts the kernel's answers into the program's array; for our connections, what
/// the rings say now. Returns how many have something.
fn finish(entries: &mut [libc::pollfd], copy: &[libc::pollfd]) -> usize {
    let mut count = 0;
    for (entry, kernel) in entries.iter_mut().zip(copy) {
        match with_end(entry.fd, |end| mask_after(kernel, end, entry)) {
            Some(mask) => entry.revents = mask as u16 as i16,
            None => {
                if kernel.revents != 0
                    && let Some(sock) = descriptors::sock(entry.fd)
                {
                    sock.sock().settle_offer(entry.fd);
                }
                entry.revents = match set::set(entry.fd).filter(|set| set.is_tagged()) {
                    Some(set) => set_mask(set, entry),
                    None => kernel.revents & (entry.events | ALWAYS_REPORTED),
                };
            }
        }
        count += usize::from(entry.revents != 0);
    }
    count
}

/// What a ring says now, behind what the kernel says.
fn mask_after(kernel: &libc::pollfd, end: &End<'_>, entry: &libc::pollfd) -> u32 {
    note_kernel(kernel, end);
    let now = mask_now(end, entry);
    if now == 0 && kernel.revents & libc::POLLIN != 0 {
        wait::drain_bells(end);
    }
    now
}

fn note_kernel(kernel: &libc::pollfd, end: &End<'_>) {
    let gone = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    if kernel.revents & gone != 0 {
        ends::ask_kernel(end);
    }
}

/// Three sets of descriptors, as `select` takes them.
#[derive(Clone, Copy)]
pub struct FdSets<'a> {
    read: FdSet<'a>,
    write: FdSet<'a>,
    except: FdSet<'a>,
    /// Highest descriptor + 1.
    nfds: usize,
}

/// One set of the program's, in the kernel's words; null: none.
#[derive(Clone, Copy)]
struct FdSet<'a>(Argument<'a, u64>);

impl FdSet<'_> {
    /// Whether a descriptor is in it; [`FdSets::concern_us`] has found that it can be read.
    fn has(self, fd: usize) -> bool {
        !self.0.is_null() && self.0.get(fd / 64) & 1 << (fd % 64) != 0
    }

    /// Changes the bit of a descriptor, if there is a set. The kernel changes whole words, too.
    fn change(self, fd: usize, change: impl FnOnce(u64, u64) -> u64) {
        if !self.0.is_null() {
            self.0.set(fd / 64, change(self.0.get(fd / 64), 1 << (fd % 64)));
        }
    }
}

impl<'a> FdSets<'a> {
    /// Those of a call: to read from, to write to, with urgent data; each may be null, and has else
    /// a bit for each descriptor below `nfds`.
    #[must_use]
    pub fn new([read, write, except]: [Argument<'a, u64>; 3], nfds: usize) -> Self {
        Self { read: FdSet(read), write: FdSet(write), except: FdSet(except), nfds }
    }

    /// Highest descriptor + 1.
    #[must_use]
    pub fn nfds(&self) -> usize {
        self.nfds
    }

    /// Whether they are shorter than the call says.
    #[must_use]
    pub fn are_cut(&self, nfds: i32) -> bool {
        self.nfds < nfds as usize
    }

    /// Whether any descriptor in them needs us. No for the kernel to answer, `EFAULT` included.
    #[must_use]
    pub fn concern_us(&self) -> bool {
        // The kernel looks no further than there are descriptors, and so do we.
        let nfds = self.nfds.min(descriptors::highest() + 1);
        let len = nfds.div_ceil(64) * size_of::<u64>();
        let holds =
            |of, FdSet(set): FdSet<'_>| set.is_null() || claims::holds(of, set.address(), len);
        sock::has_begun()
            && holds(claims::Of::Read, self.read)
            && holds(claims::Of::Write, self.write)
            && holds(claims::Of::Except, self.except)
            && (0..nfds).any(|fd| self.events(fd) != 0 && concerns(fd as i32))
    }

    fn events(&self, fd: usize) -> i16 {
        let [read, write, except] = [self.read, self.write, self.except].map(|set| set.has(fd));
        let flag = |is: bool, events: i16| if is { events } else { 0 };
        flag(read, libc::POLLIN) | flag(write, libc::POLLOUT) | flag(except, libc::POLLPRI)
    }

    fn answer(&self, entry: &libc::pollfd) -> usize {
        const READABLE: i16 = libc::POLLIN | libc::POLLHUP | libc::POLLERR;
        const WRITABLE: i16 = libc::POLLOUT | libc::POLLERR;
        let fd = entry.fd as usize;
        let mut count = 0;
        let sets = [
            (self.read, READABLE, libc::POLLIN),
            (self.write, WRITABLE, libc::POLLOUT),
            (self.except, libc::POLLPRI, libc::POLLPRI),
        ];
        for (set, means, asked) in sets {
            if !set.0.is_null() && entry.events & asked != 0 && entry.revents & means != 0 {
                set.change(fd, |word, bit| word | bit);
                count += 1;
            }
        }
        count
    }

    fn clear(&self) {
        for set in [self.read, self.write, self.except] {
            (0..self.nfds).step_by(64).for_each(|fd| set.change(fd, |_, _| 0));
        }
    }
}

/// The program's `select` or `pselect`: through [`poll`].
///
/// # Errors
/// As `pselect`; `EBADF` when a descriptor in a set is not open.
pub fn select(
    sets: FdSets<'_>,
    timeout: Option<Duration>,
    sigmask: SignalMask,
) -> Result<usize, Errno> {
    let mut here = [NOTHING; ON_STACK];
    let mut there;
    let room = match sets.nfds {
        0..=ON_STACK => &mut here[..],
        nfds => {
            there = scratch(nfds, || NOTHING)?;
            &mut there[..]
        }
    };
    let watched = (0..sets.nfds).map(|fd| (fd, sets.events(fd))).filter(|(_, events)| *events != 0);
    let mut count = 0;
    for ((fd, events), entry) in watched.zip(room.iter_mut()) {
        *entry = libc::pollfd { fd: fd as i32, events, revents: 0 };
        count += 1;
    }
    let entries = &mut room[..count];
    let polled = poll(entries, timeout, sigmask);
    match polled {
        Ok(_) if entries.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) => {
            Err(libc::EBADF)
        }
        Ok(_) => {
            sets.clear();
            Ok(entries.iter().map(|entry| sets.answer(entry)).sum())
        }
        Err(errno) => Err(errno),
    }
}
