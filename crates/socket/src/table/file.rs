//! A call keeps the file that it began with.
//!
//! The kernel resolves a descriptor once, when a call begins, and the call keeps the file for as
//! long as it lasts. Calls of the library make several system calls, each by number: to sleep, to
//! ring, to ask for the peer's end. If another thread closes the number meanwhile, or puts another
//! connection under it, the next of them would take that connection's bytes.
//!
//! So a call never holds a number, only a [`File`], and the side that takes a number away, the
//! *closing side* (`close`, `dup2`, `close_range`), gives way to calls under way:
//!
//! ```text
//!   closing side                                a system call on a File
//!   the table: N is being closed                in_use + 1
//!   calls under way? copies N to K              does the table lead from N to the socket?
//!   waits until in_use is 0                       yes: the system call, by N
//!   the kernel closes N                           no:  the system call, by K
//!   the table: N is nothing                     in_use - 1
//! ```
//!
//! *Law*: a system call on a [`File`] reaches the file with which the program's call began, or
//! none. *Proof*: both sides write first (the count, the table) and read then, with a fence between
//! ([`Names`], checked by loom). So either the caller sees that N goes and takes K, or the closing
//! side sees the count and does not close N yet. K belongs to the socket, and is closed when the
//! last descriptor has gone and the last call has returned, no earlier and no later than the kernel
//! would let go of the file: the FIN is sent then.
//!
//! The counted part is a system call that does not wait, or a step by which two ends agree; never a
//! copy, or a fault in the program's memory. So the closing side waits for microseconds of other
//! threads. A program whose calls are not under way elsewhere pays for none of it.
//!
//! While a connection is on TCP, a call of the program is one system call, for which the kernel
//! holds the file. No copy is made, and what would come after that call is left out. That the system
//! call reaches the file is seen to in [`crate::table::plain`].
//!
//! `exec` puts a bundle under a number, and other threads go on until the kernel ends them. The number then
//! leads to the file by the table and not by the kernel, so they are given the copy ([`before_number_is_packed`]).
//!
//! # Sleeps
//!
//! A sleep by number ([`File::sleep`]) lasts. Once its thread is blocked, the kernel holds the file,
//! so the closing side waits only until it is, which `/proc` tells ([`sys::is_asleep`]). A signal
//! handler with `SA_RESTART` has the kernel resolve the number again, as it does for the program's
//! own call on TCP; so a sleep by number takes nothing ([`crate::connection::wait`]).
//!
//! # What is not exact
//!
//! * A signal handler that closes the very number in whose system call it has interrupted its own
//!   thread: the closing side cannot wait for itself. The call then goes on as one that the kernel
//!   restarts.
//! * A handler that leaves a call by `siglongjmp`: where there is one thread, nothing waits for the
//!   call and nothing is kept for it, nor where the same thread closes what it slept on. Else the
//!   copy stays until the process ends, and if it was in the middle of a system call that does not
//!   wait, the close of that descriptor takes [`PATIENCE`].
//! * A sleep by the copy that a handler with `SA_RESTART` interrupts goes on, where the kernel says
//!   `EBADF` of the number.
//! * Of several threads that sleep in one epoll set, the closing side waits only for one to be
//!   asleep; the others have looked at the table right before.
//! * Without `/proc`, the closing side gives a thread that is about to sleep 10 ms.
//! * Where no copy can be made (`RLIMIT_NOFILE`), calls under way end with `EBADF`, and the peer
//!   sees the end of the connection at once.
//! * A descriptor that is closed past the library, or while a thread runs that was not made by libc.
//! * A call of the program on TCP ([`crate::table::plain`]) that sleeps when its number goes, and is
//!   interrupted by a handler with `SA_RESTART`: the kernel resolves the number again. If a moved
//!   connection has come under it, the call takes what that one's TCP carries: a bell.
//! * The same for a handler that makes calls on TCP between the look of its own thread's call and the
//!   kernel, and for more threads than have places: there the closing side waits for 10 ms.
//! * A call on a number that is no TCP socket's, of a thread that stands still between look and
//!   kernel while `dup2`, or `close` and `accept`, put a moved connection under it. To note such
//!   calls, too, would cost each `read` and `write` of files a fence.

use crate::process::owner;
use crate::table::naming::Naming;
use crate::table::outlast::{self, PATIENCE};
use crate::table::set::Handle;
use crate::table::sock::{Phase, Sock};
use crate::table::{descriptors, plain};
use core::cell::Cell;
use core::sync::atomic::Ordering;
use sidestep_device::names::Names;
use sidestep_device::{confinement, sys};

std::thread_local! {
    /// System calls on files that this thread is in the middle of: a signal handler has interrupted
    /// them.
    static IN_CALL: Cell<u32> = const { Cell::new(0) };
    /// The socket on which a call of this thread sleeps: a signal handler has interrupted it, or
    /// has left it by `siglongjmp`.
    static ASLEEP_ON: Cell<*const Sock> = const { Cell::new(core::ptr::null()) };
}

/// The file behind a descriptor of a socket or an epoll set: see the [module](self).
#[derive(Clone, Copy)]
pub(crate) struct File<'a> {
    naming: &'a Naming,
    /// What the table has of it.
    word: usize,
    /// By which the program's call has named it.
    number: i32,
    /// The closing side's own: the number cannot go.
    is_certain: bool,
}

impl<'a> File<'a> {
    /// That of a call which has found the socket under this number.
    #[inline]
    pub(crate) fn of(sock: &'a Sock, number: i32) -> Self {
        Self { naming: &sock.naming, word: descriptors::word_of(sock), number, is_certain: false }
    }

    /// The same of an epoll set.
    #[inline]
    pub(crate) fn of_set(set: &'a Handle, number: i32) -> Self {
        let word = descriptors::word_of_set(set);
        Self { naming: &set.naming, word, number, is_certain: false }
    }

    /// For the side that takes the number away, until it has.
    pub(crate) fn certain(sock: &'a Sock, number: i32) -> Self {
        Self { is_certain: true, ..Self::of(sock, number) }
    }

    /// Makes a system call that does not wait; its number is -1, and the answer `EBADF`, when the
    /// file is gone.
    pub(crate) fn call<T>(self, call: impl FnOnce(i32) -> T) -> T {
        let _in_call = InCall::begin(self.naming);
        call(self.current())
    }

    /// Makes a system call that sleeps until the file has something to tell, and takes nothing. At
    /// most one thread of a process sleeps so on one socket.
    pub(crate) fn sleep<T>(self, sleep: impl FnOnce(i32) -> T) -> T {
        let _in_sleep = InSleep::begin(self.naming);
        sleep(self.current())
    }

    /// The same for an epoll set, in which many threads may sleep: a closing side knows of one of
    /// them.
    pub(crate) fn sleep_among_others<T>(self, sleep: impl FnOnce(i32) -> T) -> T {
        let is_known = self.naming.names.begin_only_sleep(owner::me().tid());
        let _in_sleep = is_known.then(|| InSleep { names: &self.naming.names, before: 0 });
        sleep(self.current())
    }

    /// Whether the program's call could not be begun by its number any more.
    pub(crate) fn is_gone(self) -> bool {
        !self.is_certain && !descriptors::is_word_of(self.number, self.word)
    }

    /// The number by which the next system call reaches the file. Counted.
    fn current(self) -> i32 {
        // Acquire: pairs with `is_unpacked`. That it is packed is seen behind the fence of `names`.
        if self.naming.is_packed.load(Ordering::Acquire) {
            return self.copy().unwrap_or(-1);
        }
        if self.is_gone() { self.otherwise() } else { self.number }
    }

    fn copy(self) -> Option<i32> {
        match self.naming.copy.load(Ordering::Acquire) {
            0 => None,
            copy => Some(sys::seat(copy - 1)),
        }
    }

    /// By the copy, or by another descriptor of the socket.
    #[cold]
    fn otherwise(self) -> i32 {
        // The closing side sees this call, and makes a copy right now.
        outlast::outlast(PATIENCE, || descriptors::is_closing_undecided(self.number, self.word));
        self.copy().or_else(|| descriptors::first_with(self.word)).unwrap_or(-1)
    }

    /// `recv` into some bytes.
    pub(crate) fn recv(self, bytes: &mut [u8], flags: i32) -> sys::Result {
        self.call(|fd| sys::recv_into(fd, bytes, flags))
    }

    /// `send` of some bytes.
    pub(crate) fn send(self, bytes: &[u8], flags: i32) -> sys::Result {
        self.call(|fd| sys::send(fd, bytes, flags))
    }

    /// Reads a socket option.
    pub(crate) fn option<T: Copy>(self, level: i32, name: i32) -> sys::Result<T> {
        self.call(|fd| sys::socket_option(fd, level, name))
    }

    /// Sets a socket option.
    pub(crate) fn set_option(self, level: i32, name: i32, value: i32) -> sys::Result {
        self.call(|fd| sys::set_socket_option(fd, level, name, value))
    }

    /// `poll` without waiting: the mask.
    pub(crate) fn poll_now(self, events: i16) -> sys::Result<u32> {
        self.call(|fd| match fd {
            // To `poll` it would be an entry to be left out.
            ..0 => Err(sys::Errno(libc::EBADF)),
            _ => sys::poll_now(fd, events),
        })
    }

    /// What `F_GETFL` says; 0 when the file is gone.
    pub(crate) fn status_flags(self) -> i32 {
        self.call(|fd| sys::fcntl(fd, libc::F_GETFL, 0)).unwrap_or(0) as i32
    }
}

/// Whether a call may sleep: the kernel has the last word, and the mirror has it
/// afterwards.
pub(crate) fn may_sleep(sock: &Sock, file: File<'_>) -> bool {
    if confinement::is_confined() {
        return sock.seems_blocking();
    }
    let nonblocking = file.status_flags() & libc::O_NONBLOCK != 0;
    if nonblocking {
        sock.set_nonblocking(true);
    }
    !nonblocking
}

/// A call of this thread may sleep on a socket until this is dropped.
pub(crate) struct Asleep(*const Sock);

impl Asleep {
    pub(crate) fn on(sock: &Sock) -> Self {
        Self(ASLEEP_ON.replace(sock))
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        ASLEEP_ON.set(self.0);
    }
}

/// A system call is under way, or about to be, until this is dropped.
struct InCall<'a>(&'a Names);

impl<'a> InCall<'a> {
    fn begin(naming: &'a Naming) -> Self {
        IN_CALL.set(IN_CALL.get() + 1);
        naming.names.begin();
        Self(&naming.names)
    }
}

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        self.0.end();
        IN_CALL.set(IN_CALL.get() - 1);
    }
}

/// A thread sleeps by number, or is about to, until this is dropped.
struct InSleep<'a> {
    names: &'a Names,
    /// The same thread's, when a handler sleeps in the middle of a sleep.
    before: u32,
}

impl<'a> InSleep<'a> {
    fn begin(naming: &'a Naming) -> Self {
        let before = naming.names.begin_sleep(owner::me().tid());
        Self { names: &naming.names, before }
    }
}

impl Drop for InSleep<'_> {
    fn drop(&mut self) {
        self.names.end_sleep(self.before);
    }
}

/// The closing side, before the kernel closes a number that the table shows as being closed: keeps
/// the file for calls under way, and waits until no system call can still mean the number.
pub(crate) fn before_number_goes(sock: &Sock, fd: i32) {
    // A call by TCP is one system call, and the kernel holds the file for it.
    let is_kept = sock.phase() == Phase::Smc && are_others_under_way(sock);
    give_way(File::of(sock, fd), is_kept);
    if !sys::is_single_threaded() && sock.calls_under_way() > 0 {
        plain::outlast(fd);
    }
}

/// The same for the number of an untracked connection that has ended, inside of which calls are.
pub(crate) fn before_number_of_untracked_goes(fd: i32) {
    if !sys::is_single_threaded() {
        plain::outlast(fd);
    }
}

/// The same for the number of an epoll set.
pub(crate) fn before_number_of_set_goes(set: &Handle, fd: i32) {
    give_way(File::of_set(set, fd), !sys::is_single_threaded() && set.calls_under_way() > 0);
}

fn give_way(file: File<'_>, is_kept: bool) {
    if is_kept {
        file.naming.keep(file.number);
    }
    descriptors::decide_closing(file.number, file.word);
    if !sys::is_single_threaded() {
        outlast_calls(&file.naming.names);
    }
}

/// `exec` is about to put a bundle under a number, which other threads would take for the file until they
/// are ended, and would receive what is for the next program. They go on by a copy.
pub(crate) fn before_number_is_packed(sock: &Sock, fd: i32) {
    if sys::is_single_threaded() {
        return;
    }
    sock.naming.keep(fd);
    // The fence is that of `outlast_calls`.
    sock.naming.is_packed.store(true, Ordering::Relaxed);
    outlast_calls(&sock.naming.names);
}

/// Waits until no system call of another thread can still mean a number that was taken away.
fn outlast_calls(names: &Names) {
    // A handler that has interrupted a system call of its own thread would wait for itself.
    if IN_CALL.get() == 0 {
        outlast::outlast(PATIENCE, || !names.are_quiet());
    }
    let sleeper = names.sleeper();
    if sleeper != 0 && sleeper != owner::me().tid() {
        outlast_sleeper(names, sleeper);
    }
}

/// Whether other threads are in calls. One of this thread was interrupted by a signal handler, and
/// goes on by number as the kernel restarts a call, or was left by `siglongjmp`, and never returns:
/// it must not keep the file.
fn are_others_under_way(sock: &Sock) -> bool {
    let is_ours = core::ptr::eq(ASLEEP_ON.get(), sock);
    if is_ours {
        ASLEEP_ON.set(core::ptr::null());
    }
    !sys::is_single_threaded() && sock.calls_under_way() > u32::from(is_ours)
}

/// Waits until a thread is asleep, or sleeps by number no more.
fn outlast_sleeper(names: &Names, sleeper: u32) {
    outlast::outlast_thread(sleeper, || names.sleeper() == sleeper, sys::is_asleep);
}
