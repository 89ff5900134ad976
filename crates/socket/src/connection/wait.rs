//! Waiting: spin, yield, sleep; and waking the other side.
//!
//! Where a thread sleeps decides what signals, timeouts and other threads do to it,
//! so each waiter sleeps where Linux would have it sleep:
//!
//! * A reader sleeps in `recv` on the very TCP socket ([`readable`]). A handler
//!   with `SA_RESTART` restarts it, `SO_RCVTIMEO` ends it, `shutdown` by another
//!   thread wakes it, a FIN or RST wakes it, all by the kernel itself; and the
//!   peer wakes it with one byte, because it said that it sleeps.
//! * Before that it *naps*: on the futex in the peer's producer cursor, for some
//!   milliseconds at most ([`NAP_NS`]). Then data wake it for half of what the byte
//!   through TCP costs both sides, and signals act as in `recv`. Of all else it
//!   learns when the nap is over. A reader whose data take longer does not nap. A `poll` for something to
//!   read on one connection is such a reader ([`nap_in_poll`]): so Java's blocking sockets wait.
//! * A writer whose ring is full sleeps on the futex in the peer's consumer cursor
//!   ([`writable`]), and looks at the TCP connection every [`WRITER_NAP`].
//!
//! One thread at a time sleeps on the TCP socket of an end: *the sleeper*. Only it
//! may take bells from the queue, so nobody's bell is taken by somebody else;
//! other readers of the same end queue behind it on a futex.

use crate::Answer;
use crate::connection::switch;
use crate::connection::urgent;
use crate::connection::{ends, socket_options};
use crate::process::loan;
use crate::process::mail;
use crate::process::options;
use crate::process::owner;
use crate::process::pool::Held;
use crate::table::conn::Conn;
use crate::table::file::{Asleep, File};
use crate::table::learned::Learned;
use crate::table::sock::Sock;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use core::time::Duration;
use sidestep_device::confinement;
use sidestep_device::counts::count;
use sidestep_device::cursor::Cursor;
use sidestep_device::lock::Owner;
use sidestep_device::slab::{Record, wanted};
use sidestep_device::state::{Counters, Slot, flag};
use sidestep_device::sys::{self, Errno, SignalMask};
use sidestep_proto::contention::{Company, Contention, DEAR_NS};
use sidestep_proto::cursor;
use sidestep_proto::cut_over::{Answer as Said, Bell};
use sidestep_proto::governor::{Circumstances, NAP_NS, SpinPolicy, Step};
use std::sync::OnceLock;

/// How long a writer sleeps before it looks whether the peer still lives. A full
/// ring is never an idle connection, so this costs nothing in steady state.
pub(crate) const WRITER_NAP: Duration = Duration::from_millis(20);

/// How long a second reader sleeps before it looks whether the sleeper still lives.
pub(crate) const QUEUE_NAP: Duration = Duration::from_secs(1);

/// How long somebody waits for room before he prods a peer that may be dead, and between two
/// times ([`prod_peer`]).
const PROD_INTERVAL_NS: u64 = 1_000_000_000;

/// Looks at the cursor between two looks at clock and CPU.
const LOOKS: u32 = 32;

/// The byte that is a bell. Whatever else comes by TCP, no library has sent.
const BELL: [u8; 1] = [b'!'];

/// Threads of this process that spin now, and above them the spins that were ever begun.
static SPINS: AtomicU64 = AtomicU64::new(0);

/// In that word, a spin that begins.
const SPIN_BEGUN: u64 = 1 << 32 | 1;

fn spinning() -> u32 {
    SPINS.load(Ordering::Relaxed) as u32
}

/// Spins begun; what was begun between two answers is their difference.
fn spins_begun() -> u32 {
    (SPINS.load(Ordering::Relaxed) >> 32) as u32
}

/// The functions of libc in which threads sleep on the program's descriptors. They
/// are cancellation points: `pthread_cancel` ends them by unwinding the stack, and
/// what a sleeper holds is therefore held by guards.
#[derive(Clone, Copy)]
pub struct Sleeps {
    /// `recv`.
    pub recv: fn(i32, &mut [u8], i32) -> isize,
    /// `ppoll`.
    pub ppoll: fn(&mut [libc::pollfd], Option<&libc::timespec>, SignalMask) -> i32,
}

static SLEEPS: OnceLock<Sleeps> = OnceLock::new();

/// Says where to sleep, once, before the first call. Without it, sleeps are plain
/// system calls.
pub fn sleep_in(sleeps: Sleeps) {
    let _ = SLEEPS.set(sleeps);
}

/// `recv` of one byte, `None` at the end; the program's `errno` stays as it was.
fn recv_byte(fd: i32, flags: i32) -> sys::Result<Option<u8>> {
    let mut byte = [0u8];
    let received = match SLEEPS.get().filter(|_| !confinement::is_strict()) {
        Some(sleeps) => {
            let before = sys::libc_errno();
            let n = (sleeps.recv)(fd, &mut byte, flags);
            usize::try_from(n).map_err(|_| Errno(sys::replace_libc_errno(before)))
        }
        None => sys::recv_into(fd, &mut byte, flags),
    };
    received.map(|n| (n > 0).then_some(byte[0]))
}

/// `ppoll` with no more than the rest of `timeout`; the program's `errno` stays as it
/// was.
pub(crate) fn ppoll(
    entries: &mut [libc::pollfd],
    timeout: Option<Duration>,
    sigmask: SignalMask,
) -> sys::Result {
    let by_poll = sigmask.is_none() && confinement::is_confined();
    let Some(sleeps) = SLEEPS.get().filter(|_| !by_poll) else {
        return sys::ppoll(entries, timeout, sigmask);
    };
    let time = timeout.map(sys::timespec);
    let before = sys::libc_errno();
    let n = (sleeps.ppoll)(entries, time.as_ref(), sigmask);
    usize::try_from(n).map_err(|_| Errno(sys::replace_libc_errno(before)))
}

/// What the process has learned of strangers that want its CPUs.
struct Neighbours(AtomicU64);

static NEIGHBOURS: Neighbours = Neighbours(AtomicU64::new(Contention::new().to_word()));

impl Neighbours {
    /// Hardly ever news: no write to a line that others read. One of two threads that learn
    /// something at the same time is enough.
    fn change<T>(&self, by: impl FnOnce(&mut Contention) -> T) -> T {
        let word = self.0.load(Ordering::Relaxed);
        let mut contention = Contention::from_word(word);
        let answer = by(&mut contention);
        let new = contention.to_word();
        if new != word {
            let _ = self.0.compare_exchange(word, new, Ordering::Relaxed, Ordering::Relaxed);
        }
        answer
    }

    /// Who takes what a wait that begins now gives away.
    #[inline]
    fn company(&self) -> Company {
        if Contention::from_word(self.0.load(Ordering::Relaxed)).is_settled() {
            return Company::Alone;
        }
        self.change(|contention| contention.company(sys::now_ns()))
    }

    /// A thread runs again `late_ns` after it has yielded, when so many spins had been begun. True:
    /// it has met a stranger.
    #[inline]
    fn resumed(&self, now_ns: u64, late_ns: u64, begun_before: u32) -> bool {
        let spins = || spins_begun().wrapping_sub(begun_before);
        late_ns > DEAR_NS && self.change(|contention| contention.resumed(now_ns, late_ns, spins()))
    }
}

/// What a wait cost, for the counters of a connection.
#[derive(Default)]
pub struct Cost {
    /// It began when strangers were known.
    pub beside_strangers: bool,
    /// It began with spinning.
    pub spun: bool,
    /// And that was in vain.
    pub spun_in_vain: bool,
    /// Nanoseconds spent spinning.
    pub spin_ns: u64,
    /// Yields.
    pub yields: u64,
    /// Yields that have met a stranger.
    pub strangers: u64,
    /// Nanoseconds for which strangers had the CPU.
    pub strangers_ns: u64,
}

impl Cost {
    /// Adds it to a connection's counters.
    pub fn charge(&self, slot: &Slot) {
        for (counter, n) in self.parts(&slot.counters).into_iter().filter(|(_, n)| *n > 0) {
            count(counter, n);
        }
    }

    /// What it adds to each of these counters.
    pub(crate) fn parts<'a>(&self, to: &'a Counters) -> [(&'a AtomicU64, u64); 8] {
        [
            (&to.waits, 1),
            (&to.waits_beside_strangers, u64::from(self.beside_strangers)),
            (&to.spins, u64::from(self.spun)),
            (&to.spins_in_vain, u64::from(self.spun_in_vain)),
            (&to.spin_ns, self.spin_ns),
            (&to.yields, self.yields),
            (&to.strangers, self.strangers),
            (&to.strangers_ns, self.strangers_ns),
        ]
    }

    fn met_stranger(&mut self, late_ns: u64) {
        self.strangers += 1;
        self.strangers_ns += late_ns;
    }
}

/// Spins and yields by the governor's rules until `ready`. False: time to park.
pub fn linger(
    learned: &Learned,
    peer_cpu: impl Fn() -> Option<u32>,
    ready: impl Fn() -> bool,
) -> (bool, Cost) {
    let mut governor = learned.recall();
    let policy = options::current().spin;
    let peer_elsewhere = peer_cpu().is_some_and(|cpu| cpu != sys::cpu());
    let cpu_to_spare = spinning() + 1 < cpus();
    let company = NEIGHBOURS.company();
    let mut cost = Cost { beside_strangers: company != Company::Alone, ..Cost::default() };
    let now = Circumstances { peer_elsewhere, cpu_to_spare, company, policy };
    let mut wait = governor.begin(now);
    let found = loop {
        match wait.next_step() {
            Step::Spin { budget_ns } => {
                let found = spin(u64::from(budget_ns), policy, &peer_cpu, &ready, &mut cost);
                governor.spun(found);
                if found {
                    break true;
                }
            }
            Step::Yield => {
                let (start, begun) = (sys::now_ns(), spins_begun());
                sys::yield_cpu();
                cost.yields += 1;
                let end = sys::now_ns();
                if NEIGHBOURS.resumed(end, end - start, begun) {
                    cost.met_stranger(end - start);
                    wait.stop_yielding();
                }
                if ready() {
                    governor.served_by_yield();
                    break true;
                }
            }
            Step::Park => break ready(),
        }
    };
    learned.keep(governor);
    (found, cost)
}

fn spin(
    budget_ns: u64,
    policy: SpinPolicy,
    peer_cpu: &impl Fn() -> Option<u32>,
    ready: &impl Fn() -> bool,
    cost: &mut Cost,
) -> bool {
    SPINS.fetch_add(SPIN_BEGUN, Ordering::Relaxed);
    let start = sys::now_ns();
    let mut passed = 0;
    let found = 'spinning: loop {
        for _ in 0..LOOKS {
            if ready() {
                break 'spinning true;
            }
            core::hint::spin_loop();
        }
        let late = sys::now_ns() - start - passed;
        passed += late;
        // Else another thread had the CPU: one of ours, or a stranger.
        if late <= DEAR_NS {
            cost.spin_ns += late;
        }
        let on_our_cpu = policy == SpinPolicy::Auto && peer_cpu() == Some(sys::cpu());
        if passed > budget_ns || on_our_cpu {
            break false;
        }
    };
    SPINS.fetch_sub(1, Ordering::Relaxed);
    cost.spun = true;
    cost.spun_in_vain = !found;
    found
}

/// Asks the kernel for them now, if nobody has before.
pub(crate) fn count_cpus() {
    cpus();
}

/// CPUs this process may run on, as of its first wait.
fn cpus() -> u32 {
    static CPUS: OnceLock<u32> = OnceLock::new();
    *CPUS.get_or_init(sys::allowed_cpus)
}

/// The CPU from which the other side moved a cursor last.
pub(crate) fn cpu_of(record: &Record) -> Option<u32> {
    Some(record.sending.cpu.load(Ordering::Relaxed))
}

/// Says from which CPU we move cursors, if that has changed.
#[inline]
pub(crate) fn note_cpu(record: &Record) -> u32 {
    let cpu = sys::cpu();
    if record.sending.cpu.load(Ordering::Relaxed) != cpu {
        record.sending.cpu.store(cpu, Ordering::Relaxed);
    }
    cpu
}

/// After publishing something to read (with a sequentially consistent operation):
/// wakes the other side's readers and loops if they sleep.
#[inline]
pub(crate) fn wake_readers(slot: &Slot, conn: &Conn, file: File<'_>) {
    let cpu = note_cpu(conn.mine);
    let waiting = &conn.theirs.waiting;
    let channels = waiting.channels.load(Ordering::Relaxed);
    let mut unreachable = false;
    if channels != 0 {
        unreachable = mark(slot, conn, channels, cpu);
    }
    if slot.nap_rung.answer(&waiting.nap_arm) {
        end_nap(slot, conn);
    }
    if unreachable || slot.read_rung.is_asked(&waiting.read_arm) {
        ring(slot, conn, file, || slot.read_rung.answer(&waiting.read_arm) || unreachable);
    }
}

#[cold]
fn end_nap(slot: &Slot, conn: &Conn) {
    count(&slot.counters.wakeups, 1);
    sys::futex_wake(low_half(&conn.mine.sending.producer), 1);
}

/// After making room (with a sequentially consistent operation): wakes the other
/// side's writers.
#[cold]
pub(crate) fn wake_writers(sock: &Sock, slot: &Slot, conn: &Conn, file: File<'_>) {
    let waiting = &conn.theirs.waiting;
    let wants = waiting.write_wanted.load(Ordering::Relaxed);
    if wants & wanted::FUTEX != 0 {
        count(&slot.counters.wakeups, 1);
        sys::futex_wake(low_half(&conn.mine.receiving.consumer), i32::MAX);
    }
    let mut unreachable = false;
    if wants & wanted::CHANNELS != 0 {
        let channels = waiting.channels.load(Ordering::Relaxed);
        unreachable = mark(slot, conn, channels, note_cpu(conn.mine));
    }
    if (unreachable || slot.write_rung.is_asked(&waiting.write_arm))
        && switch::ensure_bells_only(sock, slot, file, conn)
    {
        ring(slot, conn, file, || slot.write_rung.answer(&waiting.write_arm) || unreachable);
    }
}

/// Marks news in each of up to four channels. True: one sleeps out of our reach.
fn mark(slot: &Slot, conn: &Conn, channels: u32, cpu: u32) -> bool {
    use crate::process::group::Marked;
    let mut unreachable = false;
    for channel in channels.to_ne_bytes().into_iter().filter(|channel| *channel != 0) {
        match mail::mark(conn.group, usize::from(channel) - 1, conn.peer_slot, cpu) {
            Marked::Awake => {}
            Marked::Rung => count(&slot.counters.wakeups, 1),
            Marked::Unreachable => unreachable = true,
        }
    }
    unreachable
}

/// Rings the universal bell: one byte on the TCP connection, if that carries bells only.
/// If it does not, the bytes of the program that it carries wake as well. `claims`: whether the
/// bell is this thread's to ring; asked when it can be rung.
#[cold]
pub(crate) fn ring(slot: &Slot, conn: &Conn, file: File<'_>, claims: impl Fn() -> bool) {
    let mut ringing = None;
    let _ = switch::carry_out(Bell::begin(), |bell| match bell {
        Bell::Begins => switch::done(|| ringing = Some(Counted::new(&slot.bells))),
        Bell::Looks | Bell::LooksAgain => {
            Some(Said::Is(slot.flags.load(Ordering::SeqCst) & flag::SEND_SWITCHED != 0))
        }
        Bell::Owes => switch::done(|| slot.flags.fetch_or(flag::BELL_OWED, Ordering::SeqCst)),
        Bell::Claims => Some(Said::Is(claims())),
        Bell::Sends => switch::done(|| {
            count(&slot.counters.wakeups, 1);
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            note_rung(slot, conn, file, file.send(&BELL, flags));
        }),
        Bell::Ends => switch::done(|| ringing.take()),
        Bell::Over => None,
    });
}

/// What a bell was answered with: an error of the connection is told to one call only, and
/// this was it.
pub(crate) fn note_rung(slot: &Slot, conn: &Conn, file: File<'_>, rung: sys::Result) {
    match rung {
        Ok(_) => {}
        // No room for one more: the peer will find those before it.
        Err(Errno(libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::ENOBUFS)) => {}
        Err(Errno(errno)) => ends::note_tcp_error(slot, conn, file, errno),
    }
}

/// The futex behind a cursor.
fn low_half(cursor: &Cursor) -> &AtomicU32 {
    sys::low_half(cursor.word())
}

/// `SO_RCVTIMEO` is for the call as a whole. The first sleep of a call leaves it to the
/// kernel; only a call that sleeps again has to know how much is left. A call that waits
/// once and finds something by then asks for no time at all.
pub(crate) struct Patience {
    has_waited: Cell<bool>,
    /// When the first sleep began, or the second wait, by [`sys::now_ns`].
    since: Cell<Option<u64>>,
}

impl Patience {
    pub(crate) const fn new() -> Self {
        Self { has_waited: Cell::new(false), since: Cell::new(None) }
    }

    /// A wait begins. False: the time is up.
    fn lasts(&self, file: File<'_>) -> bool {
        !self.has_waited.replace(true) || self.deadline(file).is_none_or(|at| sys::now_ns() < at)
    }

    /// When the call gives up; `None`: when the kernel says so.
    fn deadline(&self, file: File<'_>) -> Option<u64> {
        let Some(since) = self.since.get() else {
            self.since.set(Some(sys::now_ns()));
            return None;
        };
        socket_options::time_out(file, libc::SO_RCVTIMEO).map(|ns| since + ns)
    }
}

/// How a writer sleeps.
#[derive(Clone, Copy)]
pub(crate) struct Sleep {
    /// The call has sent something already: a signal ends it, whatever its handler
    /// says of restarting.
    pub(crate) has_part: bool,
    /// When `SO_SNDTIMEO` is over, by [`sys::now_ns`].
    pub(crate) deadline: Option<u64>,
}

/// Waits until `ready`, the connection's end, a signal or `SO_RCVTIMEO`. It returns without
/// having slept, too, if the descriptor turns out not to wait ([`Sock::may_sleep`]): as long
/// as the peer keeps up, no system call is made. `has_part`: the call has taken something
/// already, and a signal ends it, whatever its handler says of restarting.
///
/// # Errors
/// `EINTR`, and `EAGAIN` when the time is up, as `recv` on TCP.
pub(crate) fn readable(
    sock: &Sock,
    slot: &Slot,
    conn: &Conn,
    file: File<'_>,
    patience: &Patience,
    has_part: bool,
    ready: impl Fn() -> bool,
) -> Answer<()> {
    if !patience.lasts(file) {
        return Err(libc::EAGAIN);
    }
    let (found, cost) = linger(&sock.receive_wait, || cpu_of(conn.theirs), &ready);
    cost.charge(slot);
    loan::note_user(slot);
    if found {
        return Ok(());
    }
    let _asleep = Asleep::on(sock);
    let naps = may_nap(sock, slot);
    // A nap is so short that the mirrors' word is enough for it.
    if !(if naps { sock.seems_blocking() } else { sock.may_sleep(file) }) {
        return Ok(());
    }
    let deadline = patience.deadline(file);
    count(&slot.counters.parks, 1);
    let Some(_sleeper) = Sleeper::become_it(slot) else {
        return match sock.may_sleep(file) {
            true => queue_behind_sleeper(slot, &ready),
            false => Ok(()),
        };
    };
    if naps {
        let limit = match deadline {
            Some(at) => Some(at.saturating_sub(sys::now_ns())),
            None => sock.receive_time_out.get(file, libc::SO_RCVTIMEO),
        };
        let ends = has_part || limit.is_some();
        if nap(sock, slot, conn, limit, ends, &ready)? || !sock.may_sleep(file) {
            return Ok(());
        }
    }
    let deadline = if naps { patience.deadline(file) } else { deadline };
    let _armed = ReadArmed::ask(slot, conn);
    if ready() {
        return Ok(());
    }
    if confinement::is_strict() {
        return sleep_taking(slot, conn, file);
    }
    if has_part || deadline.is_some() {
        sleep_once(file, deadline)?;
    } else {
        sleep_restarting(slot, conn, file, &ready)?;
    }
    take_news(slot, conn, file)
}

/// Whether the sleeper naps first: what wakes it must come through the ring.
fn may_nap(sock: &Sock, slot: &Slot) -> bool {
    let mut governor = sock.receive_wait.recall();
    let may = slot.flags.load(Ordering::Relaxed) & flag::RECEIVE_SWITCHED != 0
        && !confinement::is_strict()
        && governor.may_nap();
    sock.receive_wait.keep(governor);
    may
}

/// A `poll` that waits for something to read on this connection alone, and for `limit` at most,
/// naps as a reader does. False: it has not, or nothing ended the nap.
///
/// # Errors
/// `EINTR` when a handler ran, whatever it says of restarting.
pub(crate) fn nap_in_poll(
    sock: &Sock,
    slot: &Slot,
    conn: &Conn,
    limit: Option<Duration>,
    ready: impl Fn() -> bool,
) -> Answer<bool> {
    if !may_nap(sock, slot) {
        return Ok(false);
    }
    // Another thread that reads here may be asleep: then the kernel's poll it is.
    let Some(_sleeper) = Sleeper::become_it(slot) else { return Ok(false) };
    count(&slot.counters.parks, 1);
    nap(sock, slot, conn, limit.map(|time| time.as_nanos() as u64), true, &ready)
}

/// The sleeper sleeps on the futex in the peer's producer cursor, for `limit` nanoseconds at most and never
/// for long. `ends`: a signal ends it, whatever its handler says of restarting. True: it was
/// woken, and there is something to look at.
fn nap(
    sock: &Sock,
    slot: &Slot,
    conn: &Conn,
    limit: Option<u64>,
    ends: bool,
    ready: &impl Fn() -> bool,
) -> Answer<bool> {
    let time = Duration::from_nanos(limit.unwrap_or(NAP_NS).min(NAP_NS));
    let _armed = NapArmed::ask(slot, conn);
    let word = low_half(&conn.theirs.sending.producer);
    // What is published from here on changes it, and what was before is seen now.
    let seen = word.load(Ordering::Acquire);
    if ready() {
        return Ok(true);
    }
    let slept = match ends {
        true => sys::futex_wait(word, seen, Some(time)),
        false => restarting_nap(word, seen, time),
    };
    sys::test_cancel();
    let is_over = matches!(slept, Err(Errno(libc::ETIMEDOUT)));
    let mut governor = sock.receive_wait.recall();
    governor.napped(!is_over);
    sock.receive_wait.keep(governor);
    match slept {
        Err(Errno(libc::EINTR)) => Err(libc::EINTR),
        _ => Ok(!is_over),
    }
}

/// A wake-up from the nap is asked for when there is something to read, until it is dropped.
struct NapArmed<'a>(&'a Conn);

impl<'a> NapArmed<'a> {
    fn ask(slot: &Slot, conn: &'a Conn) -> Self {
        conn.mine.waiting.nap_arm.ask(next_arm(slot));
        Self(conn)
    }
}

impl Drop for NapArmed<'_> {
    fn drop(&mut self) {
        self.0.mine.waiting.nap_arm.withdraw();
    }
}

/// The role of the sleeper, until it is dropped.
struct Sleeper<'a> {
    slot: &'a Slot,
    /// A call further up this thread's stack has the role, too, and keeps it.
    nested: bool,
}

impl<'a> Sleeper<'a> {
    /// A signal handler may come here in the middle of a sleep of its own thread: it
    /// shares the role. A thread that left its sleep by `siglongjmp` has the role
    /// still, though its sleep is no more: then this call lies no deeper on the stack
    /// than that one, and the role is taken as if it were free.
    fn become_it(slot: &'a Slot) -> Option<Self> {
        let here = 0u8;
        let (me, depth) = (owner::me(), (&raw const here) as u64);
        let is_it = slot.sleeper.load(Ordering::Relaxed) == me.word();
        let nested = is_it && depth < slot.sleeper_at.load(Ordering::Relaxed);
        if !is_it && !become_sleeper(slot, me) {
            return None;
        }
        if !nested {
            slot.sleeper_at.store(depth, Ordering::Relaxed);
        }
        Some(Self { slot, nested })
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        if !self.nested {
            leave_sleeper(self.slot);
        }
    }
}

/// A bell is asked for when there is something to read, until it is dropped.
struct ReadArmed<'a> {
    slot: &'a Slot,
    conn: &'a Conn,
}

impl<'a> ReadArmed<'a> {
    fn ask(slot: &'a Slot, conn: &'a Conn) -> Self {
        ask_for_readers(slot, conn);
        Self { slot, conn }
    }
}

impl Drop for ReadArmed<'_> {
    fn drop(&mut self) {
        stop_asking_for_readers(self.slot, Some(self.conn));
    }
}

/// Asks for a bell when there is something to read.
pub(crate) fn ask_for_readers(slot: &Slot, conn: &Conn) {
    slot.read_waiters.fetch_add(1, Ordering::SeqCst);
    conn.mine.waiting.read_arm.ask(next_arm(slot));
}

/// The same for a connection that may move while the caller sleeps: [`ring_who_waits`] asks
/// then.
pub(crate) fn ask_for_readers_once_moved(sock: &Sock, slot: &Slot) {
    slot.read_waiters.fetch_add(1, Ordering::SeqCst);
    // Pairs with the fence in `switch::read_by_ledger`: either the end that moves sees the
    // count, or we see that it has moved.
    fence(Ordering::SeqCst);
    if let Some(conn) = sock.conn() {
        conn.mine.waiting.read_arm.ask(next_arm(slot));
    }
}

/// The connection has moved: the threads that have been sleeping since before need a bell for
/// the first byte in the ring. The peer is not told before this that it may use the ring.
pub(crate) fn ring_who_waits(slot: &Slot, conn: &Conn) {
    if slot.read_waiters.load(Ordering::SeqCst) != 0 {
        conn.mine.waiting.read_arm.ask(next_arm(slot));
    }
}

/// The end of [`ask_for_readers`], and of [`ask_for_readers_once_moved`] if it has not moved.
pub(crate) fn stop_asking_for_readers(slot: &Slot, conn: Option<&Conn>) {
    // The slot of a connection that came from another process was set to 0: never below.
    let less = |count: u32| count.checked_sub(1);
    let _ = slot.read_waiters.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less);
    if let Some(conn) = conn {
        withdraw_readers(slot, conn);
    }
}

/// A number for an arm, never 0.
pub(crate) fn next_arm(slot: &Slot) -> u32 {
    const NUMBERS: u32 = 1 << 31;
    (slot.arm_numbers.fetch_add(1, Ordering::Relaxed) % NUMBERS) + 1
}

/// One who waited for something to read does so no more: withdraws the request for
/// a bell if no other waits. With `O_ASYNC` the kernel goes on waiting.
pub(crate) fn withdraw_readers(slot: &Slot, conn: &Conn) {
    let arm = &conn.mine.waiting.read_arm;
    if slot.flags.load(Ordering::Relaxed) & flag::ASYNC != 0 {
        arm.ask_always();
    } else if slot.read_waiters.load(Ordering::SeqCst) != 0 {
        arm.ask(next_arm(slot));
    } else {
        arm.withdraw();
    }
}

fn become_sleeper(slot: &Slot, me: Owner) -> bool {
    let place = &slot.sleeper;
    let replace = |old| {
        // AcqRel: what the last sleeper has done is seen, and what we do comes after.
        place.compare_exchange(old, me.word(), Ordering::AcqRel, Ordering::Relaxed)
    };
    replace(0).is_ok_and(|_| true) || {
        let other = place.load(Ordering::Relaxed);
        let has_died = |owner| !owner::is_alive(core::ptr::from_ref(place).cast(), owner);
        Owner::from_word(other).is_some_and(has_died) && replace(other).is_ok()
    }
}

fn leave_sleeper(slot: &Slot) {
    slot.sleeper.store(0, Ordering::Release);
    slot.turn.fetch_add(1, Ordering::SeqCst);
    if slot.queued.load(Ordering::SeqCst) != 0 {
        sys::futex_wake(&slot.turn, 1);
    }
}

/// The certainty that nobody takes bytes from the TCP connection without asking what they
/// are, until it is dropped.
pub(crate) struct Alone<'a>(&'a Slot);

impl<'a> Alone<'a> {
    /// `None`: somebody sleeps there.
    pub(crate) fn on_tcp(slot: &'a Slot) -> Option<Self> {
        become_sleeper(slot, owner::me()).then_some(Self(slot))
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        leave_sleeper(self.0);
    }
}

/// One more in a counter, until it is dropped.
pub(crate) struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    pub(crate) fn new(counter: &'a AtomicU32) -> Self {
        counter.fetch_add(1, Ordering::SeqCst);
        Self(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn queue_behind_sleeper(slot: &Slot, ready: &impl Fn() -> bool) -> Answer<()> {
    let _queued = Counted::new(&slot.queued);
    let turn = slot.turn.load(Ordering::SeqCst);
    let slept = if slot.sleeper.load(Ordering::SeqCst) == 0 || ready() {
        Ok(0)
    } else {
        restarting_nap(&slot.turn, turn, QUEUE_NAP)
    };
    sys::test_cancel();
    match slept {
        Err(Errno(libc::EINTR)) => Err(libc::EINTR),
        _ => Ok(()),
    }
}

/// Sleeps until the kernel has something to read, by a call that is never restarted.
fn sleep_once(file: File<'_>, deadline: Option<u64>) -> Answer<()> {
    let limit = match deadline {
        Some(at) => Some(Duration::from_nanos(at.saturating_sub(sys::now_ns()))),
        None => socket_options::time_out(file, libc::SO_RCVTIMEO).map(Duration::from_nanos),
    };
    let slept = file.sleep(|fd| {
        let events = libc::POLLIN | libc::POLLRDHUP;
        let mut entry = [libc::pollfd { fd, events, revents: 0 }];
        if fd < 0 {
            return Err(Errno(libc::EBADF));
        }
        ppoll(&mut entry, limit, SignalMask::NONE)
    });
    match slept {
        Ok(0) => Err(libc::EAGAIN),
        Ok(_) => Ok(()),
        Err(Errno(errno)) => Err(errno),
    }
}

/// Sleeps until the kernel has something to read, by a call that a signal handler with
/// `SA_RESTART` restarts: the real `recv`. It only looks, because the kernel restarts it by
/// number, as it would the program's own call, and a handler may have put another file under
/// that. Then what it says is of that file, an error is what the program's call would have
/// got, and no byte has been taken.
fn sleep_restarting(
    slot: &Slot,
    conn: &Conn,
    file: File<'_>,
    ready: &impl Fn() -> bool,
) -> Answer<()> {
    match file.sleep(|fd| recv_byte(fd, libc::MSG_PEEK)) {
        Ok(_) => Ok(()),
        Err(Errno(errno @ (libc::EINTR | libc::EAGAIN))) => Err(errno),
        Err(Errno(errno)) if file.is_gone() => {
            if ready() {
                Ok(())
            } else {
                Err(errno)
            }
        }
        Err(Errno(errno)) => {
            ends::note_tcp_error(slot, conn, file, errno);
            Ok(())
        }
    }
}

/// Sleeps under a strict filter, where `read` is the one call that waits, and takes the bell with it. There all
/// bytes of TCP are bells, and no call puts another file under the number.
fn sleep_taking(slot: &Slot, conn: &Conn, file: File<'_>) -> Answer<()> {
    match file.sleep(|fd| recv_byte(fd, 0)) {
        Ok(None) => ends::tcp_ended(slot, conn, file),
        Ok(Some(byte)) => check_bells(slot, conn, file, &[byte]),
        Err(Errno(errno @ (libc::EINTR | libc::EAGAIN))) => return Err(errno),
        Err(Errno(errno)) => ends::note_tcp_error(slot, conn, file, errno),
    }
    Ok(())
}

/// Takes the bell by which a sleep was ended, or only looks while the program's bytes may
/// still come by TCP.
fn take_news(slot: &Slot, conn: &Conn, file: File<'_>) -> Answer<()> {
    let switched = slot.flags.load(Ordering::Relaxed) & flag::RECEIVE_SWITCHED != 0;
    let peek = if switched { 0 } else { libc::MSG_PEEK };
    let mut byte = [0u8];
    match file.recv(&mut byte, peek | libc::MSG_DONTWAIT) {
        Ok(0) => ends::tcp_ended(slot, conn, file),
        Ok(_) if switched => check_bells(slot, conn, file, &byte),
        // It is still there, and may be a bell: no thread can sleep while it is.
        Ok(_) => skip_bells(slot, conn, file),
        Err(Errno(libc::EAGAIN)) => {}
        Err(Errno(libc::EINTR)) => return Err(libc::EINTR),
        Err(Errno(errno)) => ends::note_tcp_error(slot, conn, file, errno),
    }
    Ok(())
}

/// Bytes have come by TCP that are no part of the program's stream. If they are no bells
/// either, the peer's program has sent them past its library (by a system call of its
/// own), and they have no place in the stream any more: the connection is reset, and its
/// TCP end closed, for whoever waits for an answer past the library, too.
pub(crate) fn check_bells(slot: &Slot, conn: &Conn, file: File<'_>, bytes: &[u8]) {
    if bytes.iter().any(|byte| *byte != BELL[0]) {
        ends::reset_untold(slot, conn, &"bytes were sent past the library");
        let _ = file.call(|fd| sys::shutdown(fd, libc::SHUT_RDWR));
    }
}

/// An event loop, whose bells come another way, was told that there are bytes on TCP. They
/// stay there: they may be bells for somebody else.
pub(crate) fn look_at_bells(slot: &Slot, conn: &Conn, file: File<'_>) {
    let are_bells = || slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED != 0;
    if !are_bells() {
        let _receiving = Held::enter(&slot.receive_lock);
        return skip_bells_unless_asleep(slot, conn, file);
    }
    let mut bytes = [0u8; 64];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    if let Ok(n) = file.recv(&mut bytes, flags)
        // The peer sends bytes of the program only after the flag has gone.
        && are_bells()
    {
        check_bells(slot, conn, file, &bytes[..n]);
    }
}

/// As [`switch::skip_bells`], by the sleeper.
fn skip_bells(slot: &Slot, conn: &Conn, file: File<'_>) {
    let _receiving = Held::enter(&slot.receive_lock);
    switch::skip_bells(slot, conn, file);
}

/// As [`switch::skip_bells`], by a thread that does not sleep. Bells are for the sleeper, if there is one: it
/// would not be woken again for what they were rung for. It comes and takes them itself.
/// The caller holds the receive lock.
pub(crate) fn skip_bells_unless_asleep(slot: &Slot, conn: &Conn, file: File<'_>) {
    if let Some(_alone) = Alone::on_tcp(slot) {
        switch::skip_bells(slot, conn, file);
    }
}

/// Nothing tells a program that only ever asks without waiting that its peer was
/// killed; so the kernel is asked now and then.
pub(crate) fn peer_has_died(sock: &Sock, slot: &Slot, conn: &Conn, file: File<'_>) -> bool {
    const EVERY_NS: u64 = 5_000_000;
    let (now, asked) = (sys::now_ns(), &sock.kernel_asked_ns);
    if now.saturating_sub(asked.load(Ordering::Relaxed)) < EVERY_NS {
        return false;
    }
    asked.store(now, Ordering::Relaxed);
    ends::ask_kernel(slot, conn, file);
    slot.flags.load(Ordering::Acquire) & flag::PEER_GONE != 0
}

/// Asks the kernel whether the peer's end is gone, if there is a hint that it may
/// be: a process of the peer has closed its descriptor, or shut down both directions.
#[inline]
pub(crate) fn follow_hint(slot: &Slot, conn: &Conn, file: File<'_>) {
    let closes = conn.theirs.sending.closes.load(Ordering::Acquire);
    if closes != slot.closes_seen.load(Ordering::Relaxed) {
        ask_kernel(slot, conn, file);
    }
}

/// Asks the kernel, hint or not: of a peer that was killed nobody leaves one.
#[cold]
pub(crate) fn ask_kernel(slot: &Slot, conn: &Conn, file: File<'_>) {
    // A hint of `close` is left after the kernel has closed, so its answer is final: not
    // gone means that another process of the peer holds the connection, too. One of `exit`
    // is left before; who asks too early learns of the end from TCP, as after a death.
    let closes = conn.theirs.sending.closes.load(Ordering::Acquire);
    // Acquire: what an operator wishes was written down before he has touched this word.
    let followed = slot.closes_seen.load(Ordering::Acquire);
    switch::follow_wishes(slot, conn);
    ends::follow_hint(slot, conn, file);
    // Behind it: another thread of this end that finds no hint may take an end that is not noted yet for none. What an
    // operator, or another thread, has written meanwhile stays.
    let _ =
        slot.closes_seen.compare_exchange(followed, closes, Ordering::AcqRel, Ordering::Relaxed);
}

/// Takes bells that nobody needs any more out of the TCP queue, unless somebody
/// sleeps on it.
pub(crate) fn drain_bells(slot: &Slot, conn: &Conn, file: File<'_>) {
    let Some(_alone) = Alone::on_tcp(slot) else { return };
    // Whoever clears the flag is alone, too.
    if slot.flags.load(Ordering::Acquire) & flag::RECEIVE_SWITCHED == 0 {
        return skip_bells(slot, conn, file);
    }
    let mut bytes = [0u8; 64];
    loop {
        match file.recv(&mut bytes, libc::MSG_DONTWAIT) {
            Ok(0) => {
                ends::tcp_ended(slot, conn, file);
                break;
            }
            Ok(n) => {
                check_bells(slot, conn, file, &bytes[..n]);
                // A read stops at an urgent bell.
                if n < bytes.len() && !urgent::is_marked(conn) {
                    break;
                }
            }
            Err(Errno(libc::EAGAIN | libc::EINTR)) => break,
            Err(Errno(errno)) => {
                ends::note_tcp_error(slot, conn, file, errno);
                break;
            }
        }
    }
}

/// Whether a send would find room in the ring, or something else to report than a full
/// one.
pub(crate) fn has_room(conn: &Conn) -> bool {
    let producer = conn.mine.sending.producer.position();
    let claim = conn.theirs.receiving.consumer.claim();
    cursor::window(producer, claim, conn.outgoing.len()) != Ok(0)
}

/// A send that may not wait has found the ring full: the next room is news to
/// edge-triggered loops, and the peer marks our channels when there is some. What it
/// has made before it knew, it does not mark: look again ([`has_room`]).
pub(crate) fn want_room(sock: &Sock, slot: &Slot, conn: &Conn, file: File<'_>) {
    sock.out_blocked.store(true, Ordering::Relaxed);
    prod_peer(sock, slot, conn, file);
    if conn.mine.waiting.channels.load(Ordering::Relaxed) != 0 {
        ask_for_room(conn);
    }
}

/// When [`prod_peer`] was called last for a connection that needs it, by [`sys::coarse_ns`].
static PRODDED_NS: AtomicU64 = AtomicU64::new(0);

/// Somebody waits for room in a full ring. While bytes of the peer still come by TCP, its FIN
/// comes behind them, and who waits for room does not read: when the peer is killed, no event
/// would tell. So it is sent a bell now and then: for the dead its kernel answers, with a reset.
pub(crate) fn prod_peer(sock: &Sock, slot: &Slot, conn: &Conn, file: File<'_>) {
    let flags = slot.flags.load(Ordering::Acquire);
    if flags & (flag::SEND_SWITCHED | flag::RECEIVE_SWITCHED) != flag::SEND_SWITCHED {
        return;
    }
    let now = sys::coarse_ns();
    PRODDED_NS.store(now, Ordering::Relaxed);
    let last = sock.prodded_ns.load(Ordering::Relaxed);
    if now.saturating_sub(last) < PROD_INTERVAL_NS {
        return;
    }
    sock.prodded_ns.store(now, Ordering::Relaxed);
    // The first time it has only begun to wait.
    if last != 0 {
        ring(slot, conn, file, || true);
    }
}

/// Whether peers have to be prodded: an event loop may not sleep for longer than that.
pub(crate) fn prods_peers() -> bool {
    let last = PRODDED_NS.load(Ordering::Relaxed);
    last != 0 && sys::coarse_ns().saturating_sub(last) < 4 * PROD_INTERVAL_NS
}

/// Has the peer mark our channels when it has made room. Look for some afterwards.
pub(crate) fn ask_for_room(conn: &Conn) {
    conn.mine.waiting.write_wanted.fetch_or(wanted::CHANNELS, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// Waits for room in a full ring. As [`readable`], it may return without having slept; `sleep`
/// is asked when it comes to that.
///
/// # Errors
/// `EINTR` when a handler ran, one with `SA_RESTART` only if there is a part or a
/// deadline; `EAGAIN` past the deadline.
pub(crate) fn writable(
    sock: &Sock,
    slot: &Slot,
    conn: &Conn,
    file: File<'_>,
    sleep: impl FnOnce() -> Sleep,
) -> Answer<()> {
    let producer = conn.mine.sending.producer.position();
    let consumer = &conn.theirs.receiving.consumer;
    let full = |claim: u64| cursor::window(producer, claim, conn.outgoing.len()) == Ok(0);
    let ready = || !full(consumer.position()) || has_ended(slot, conn);
    let (found, cost) = linger(&sock.send_wait, || cpu_of(conn.theirs), ready);
    cost.charge(slot);
    loan::note_user(slot);
    if found || !sock.may_sleep(file) {
        return Ok(());
    }
    let _asleep = Asleep::on(sock);
    let Sleep { has_part, deadline } = sleep();
    count(&slot.counters.parks, 1);
    let wants = &conn.mine.waiting.write_wanted;
    wants.fetch_or(wanted::FUTEX, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let claim = consumer.claim();
    let slept = if full(claim) && !has_ended(slot, conn) {
        let word = low_half(&conn.theirs.receiving.consumer);
        let left = |at: u64| Duration::from_nanos(at.saturating_sub(sys::now_ns()));
        let nap = deadline.map_or(WRITER_NAP, |at| left(at).min(WRITER_NAP));
        if has_part || deadline.is_some() {
            sys::futex_wait(word, claim as u32, Some(nap))
        } else {
            restarting_nap(word, claim as u32, nap)
        }
    } else {
        Ok(0)
    };
    wants.fetch_and(!wanted::FUTEX, Ordering::Relaxed);
    sys::test_cancel();
    match slept {
        Err(Errno(libc::EINTR)) => Err(libc::EINTR),
        // There is no sleep under a strict filter, and no question but a bell, as TCP would be
        // asked by the bytes.
        Err(Errno(libc::ENOSYS)) if confinement::is_strict() => {
            if !bell_is_taken(sock, file) {
                ends::peer_gone(slot, conn, file);
            }
            Ok(())
        }
        Err(Errno(libc::ETIMEDOUT)) => {
            if switch::is_peer_gone(file) {
                ends::tcp_ended(slot, conn, file);
            } else {
                prod_peer(sock, slot, conn, file);
            }
            match deadline {
                Some(at) if sys::now_ns() >= at => Err(libc::EAGAIN),
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Sends the peer a bell, once in [`PROD_INTERVAL_NS`]. False: nobody is there to take it.
fn bell_is_taken(sock: &Sock, file: File<'_>) -> bool {
    let (now, last) = (sys::coarse_ns(), sock.prodded_ns.load(Ordering::Relaxed));
    if now.saturating_sub(last) < PROD_INTERVAL_NS {
        return true;
    }
    sock.prodded_ns.store(now, Ordering::Relaxed);
    file.send(&BELL, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL).is_ok()
}

fn has_ended(slot: &Slot, conn: &Conn) -> bool {
    let over = flag::PEER_GONE | flag::RESET | flag::WRITE_SHUT;
    slot.flags.load(Ordering::Relaxed) & over != 0
        || conn.theirs.sending.closes.load(Ordering::Relaxed)
            != slot.closes_seen.load(Ordering::Relaxed)
}

/// Sleeps on a futex as Linux does in a socket call without a time-out: a handler with
/// `SA_RESTART` lets it sleep on, any other ends it with `EINTR`.
fn restarting_nap(word: &AtomicU32, value: u32, nap: Duration) -> sys::Result {
    match sys::futex_wait_restarting(word, value, nap) {
        // Before Linux 5.16, or under a filter of system calls that does not know it.
        Err(Errno(libc::ENOSYS | libc::EPERM)) => match sys::futex_wait(word, value, Some(nap)) {
            Err(Errno(libc::EINTR)) if handlers_restart() => Ok(0),
            other => other,
        },
        other => other,
    }
}

/// Would Linux restart an interrupted call? It would if the handler that ran has
/// `SA_RESTART`; which one ran is not known where a sleep ends with `EINTR` in any case,
/// so: if all handlers of the process have it.
pub(crate) fn handlers_restart() -> bool {
    // To ask about each is no ordinary call.
    if confinement::is_confined() {
        return true;
    }
    const FAULTS: [i32; 5] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
    let mut signals = (1..=64).filter(|signal| !FAULTS.contains(signal));
    !signals.any(sys::interrupts_for_good)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spun(ready: impl Fn() -> bool) -> Cost {
        let mut cost = Cost::default();
        spin(1, SpinPolicy::Always, &|| None, &ready, &mut cost);
        cost
    }

    #[test]
    fn a_spin_is_fruitful_or_in_vain() {
        let fruitful = spun(|| true);
        assert!(fruitful.spun && !fruitful.spun_in_vain);
        assert_eq!((fruitful.spin_ns, fruitful.strangers), (0, 0));
        let vain = spun(|| false);
        assert!(vain.spun && vain.spun_in_vain);
    }

    #[test]
    fn what_another_thread_took_is_no_spinning() {
        let looks = Cell::new(0);
        let cost = spun(|| {
            // For the spin a look that takes long is no other than one after another thread.
            if looks.replace(looks.get() + 1) == 0 {
                std::thread::sleep(Duration::from_nanos(2 * DEAR_NS));
            }
            false
        });
        assert!(cost.spun_in_vain);
        assert_eq!((cost.spin_ns, looks.get()), (0, LOOKS));
        assert_eq!(cost.strangers, 0, "it may have been one of ours");
    }

    #[test]
    fn each_wait_is_charged_with_all_that_it_cost() {
        // SAFETY: all atomics, for which zero bytes are a value.
        let slot: Box<Slot> = unsafe { Box::new_zeroed().assume_init() };
        let cost = Cost {
            beside_strangers: true,
            spun: true,
            spun_in_vain: false,
            spin_ns: 2,
            yields: 3,
            strangers: 4,
            strangers_ns: 5,
        };
        cost.charge(&slot);
        cost.charge(&slot);
        Cost::default().charge(&slot);
        let counted = slot.counters.all().map(|counter| counter.load(Ordering::Relaxed));
        assert_eq!(counted, [0, 0, 0, 0, 0, 0, 3, 2, 2, 0, 4, 6, 8, 10, 0, 0]);
    }
}
