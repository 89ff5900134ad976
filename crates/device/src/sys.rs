//! System calls, made directly.
//!
//! The library must never come back into its own hooks or into another library's,
//! must not touch the program's `errno`, and may run before libc is ready. So its
//! own calls are inline system calls; only what the program itself asked for goes
//! through libc. Every function returns the kernel's answer or [`Errno`].

use crate::confinement::{self, Confinement};
use core::ffi::c_void;
use core::marker::PhantomData;
use core::mem::{MaybeUninit, size_of};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use syscalls::{Sysno, syscall};

/// An error number of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// The kernel's answer.
pub type Result<T = usize> = core::result::Result<T, Errno>;

/// Makes a system call; arguments as in its manual page. Under a filter it is made only if it is an
/// ordinary one ([`confinement`]); others fail with `ENOSYS`.
macro_rules! call {
    ($name:ident $(, $arg:expr)* $(,)?) => {
        if confinement::permits(Sysno::$name) {
            syscall!(Sysno::$name $(, $arg)*).map_err(|e| Errno(e.into_raw()))
        } else {
            Err(Errno(libc::ENOSYS))
        }
    };
}

/// A message of [`send_with_fds`] or [`recv_with_fds`] carries at most this many
/// descriptors.
pub const FDS_MAX: usize = 8;

/// Address of an AF_UNIX socket and its length.
pub struct UnixName {
    address: libc::sockaddr_un,
    len: u32,
}

impl UnixName {
    /// `name`: the bytes after the leading NUL, at most 107.
    #[must_use]
    pub fn new(name: &[u8]) -> Self {
        // SAFETY: all-zero is a valid sockaddr_un.
        let mut address: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
        address.sun_family = libc::AF_UNIX as u16;
        let len = name.len().min(address.sun_path.len() - 1);
        for (to, from) in address.sun_path[1..].iter_mut().zip(&name[..len]) {
            *to = *from as libc::c_char;
        }
        Self { address, len: (size_of::<u16>() + 1 + len) as u32 }
    }

    /// That of a socket that is a file: its path, at most 107 bytes.
    #[must_use]
    pub fn of_file(path: &[u8]) -> Self {
        let mut name = Self::new(&[]);
        let len = path.len().min(name.address.sun_path.len() - 1);
        for (to, from) in name.address.sun_path.iter_mut().zip(&path[..len]) {
            *to = *from as libc::c_char;
        }
        name.len = (size_of::<u16>() + len + 1) as u32;
        name
    }

    /// The abstract name in an address of the kernel, the bytes after the leading NUL.
    #[must_use]
    pub fn in_storage(storage: &libc::sockaddr_storage, len: u32) -> Option<&[u8]> {
        let start = size_of::<libc::sa_family_t>() + 1;
        // SAFETY: every byte of the storage is initialised.
        let bytes = unsafe {
            let at = core::ptr::from_ref(storage).cast::<u8>();
            core::slice::from_raw_parts(at, size_of::<libc::sockaddr_storage>())
        };
        let name = bytes.get(start..len as usize)?;
        let is_abstract = i32::from(storage.ss_family) == libc::AF_UNIX && bytes[start - 1] == 0;
        is_abstract.then_some(name)
    }
}

/// One bit for each descriptor number that belongs to the library.
static HIDDEN: [AtomicU64; HIDDEN_MAX / 64] = [const { AtomicU64::new(0) }; HIDDEN_MAX / 64];
/// Hidden descriptors have numbers below this.
const HIDDEN_MAX: usize = 1 << 16;

/// Whether a descriptor belongs to the library: the program must not see it.
#[inline]
#[must_use]
pub fn is_hidden(fd: i32) -> bool {
    let word = HIDDEN.get(fd as usize / 64);
    word.is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (fd % 64)) != 0)
}

/// The first hidden descriptor from `first` on.
#[must_use]
pub fn next_hidden(first: usize) -> Option<usize> {
    let above = |at: usize| if at == first / 64 { u64::MAX << (first % 64) } else { u64::MAX };
    let mut words = HIDDEN.iter().enumerate().skip(first / 64);
    words.find_map(|(at, word)| {
        let bits = word.load(Ordering::Relaxed) & above(at);
        (bits != 0).then(|| at * 64 + bits.trailing_zeros() as usize)
    })
}

fn hide(fd: i32, hidden: bool) {
    let Some(word) = HIDDEN.get(fd as usize / 64) else { return };
    let bit = 1 << (fd % 64);
    if hidden {
        word.fetch_or(bit, Ordering::Relaxed);
    } else {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Descriptors that had to make way: the number by which the library knows one in
/// the high half, the number it has now in the low half; 0 = free.
static MOVED: [AtomicU64; MOVED_MAX] = [const { AtomicU64::new(0) }; MOVED_MAX];
/// Descriptors that can have made way at once.
const MOVED_MAX: usize = 64;
/// Whether any ever has.
static ANY_MOVED: AtomicBool = AtomicBool::new(false);

const fn moved(known_as: i32, now: i32) -> u64 {
    (known_as as u64) << 32 | now as u64
}

/// The number that a descriptor of ours has now. The functions below that are for
/// descriptors of ours alone ask it themselves.
#[inline]
#[must_use]
pub fn seat(fd: i32) -> i32 {
    if ANY_MOVED.load(Ordering::Relaxed) { moved_seat(fd) } else { fd }
}

#[cold]
fn moved_seat(fd: i32) -> i32 {
    let mut entries = MOVED.iter().map(|entry| entry.load(Ordering::Acquire));
    let found = entries.find(|entry| *entry != 0 && (entry >> 32) as i32 == fd);
    found.map_or(fd, |entry| entry as u32 as i32)
}

/// The program puts something else under a number that is ours: our descriptor
/// moves to another, and those who know it by the old number find it by [`seat`].
/// False: it cannot.
#[must_use]
pub fn make_way(number: i32) -> bool {
    let Ok(next) = fcntl(number, libc::F_DUPFD_CLOEXEC, number as usize + 1) else {
        return false;
    };
    let next = next as i32;
    let place = MOVED
        .iter()
        .find(|entry| entry.load(Ordering::Relaxed) as u32 as i32 == number)
        .or_else(|| MOVED.iter().find(|entry| entry.load(Ordering::Relaxed) == 0));
    let Some(place) = place else {
        close_number(next);
        return false;
    };
    let known_as = match place.load(Ordering::Relaxed) {
        0 => number,
        entry => (entry >> 32) as i32,
    };
    hide(next, true);
    // Release: pairs with the Acquire in `moved_seat`.
    place.store(moved(known_as, next), Ordering::Release);
    ANY_MOVED.store(true, Ordering::Relaxed);
    hide(number, false);
    true
}

/// Whether a hidden descriptor is known by this number though it sits elsewhere.
fn is_name_of_moved(fd: i32) -> bool {
    ANY_MOVED.load(Ordering::Relaxed) && moved_seat(fd) != fd
}

/// Closes a descriptor of ours; errors mean that it was closed already.
pub fn close(fd: i32) {
    let known_as = fd;
    let fd = seat(known_as);
    if fd != known_as {
        let entry = MOVED.iter().find(|entry| entry.load(Ordering::Relaxed) == moved(known_as, fd));
        entry.inspect(|entry| entry.store(0, Ordering::Relaxed));
    }
    hide(fd, false);
    close_number(fd);
}

/// Closes a descriptor that has not been hidden yet.
pub fn close_number(fd: i32) {
    // SAFETY: close has no memory operands.
    let _ = unsafe { call!(close, fd) };
}

/// Creates an anonymous memory file that accepts seals.
pub fn memfd(name: &core::ffi::CStr) -> Result<i32> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: name is NUL-terminated and outlives the call.
    unsafe { call!(memfd_create, name.as_ptr(), flags) }.map(|fd| fd as i32)
}

/// Sets the length of a file in bytes.
pub fn set_len(fd: i32, len: usize) -> Result {
    // SAFETY: no memory operands.
    unsafe { call!(ftruncate, fd, len) }
}

/// `fcntl` with an integer argument.
pub fn fcntl(fd: i32, command: i32, argument: usize) -> Result {
    // SAFETY: callers pass commands with integer arguments only.
    unsafe { call!(fcntl, fd, command, argument) }
}

/// Changes the mode bits of an open file.
pub fn chmod(fd: i32, mode: u32) -> Result {
    // SAFETY: no memory operands.
    unsafe { call!(fchmod, fd, mode) }
}

/// Opens the file behind `fd` once more, read-only, through `/proc`.
pub fn reopen_read_only(fd: i32) -> Result<i32> {
    open_again(fd, libc::O_RDONLY)
}

/// Opens a memory file of ours once more, to read and write, through `/proc`.
pub fn reopen(fd: i32) -> Result<i32> {
    open_again(seat(fd), libc::O_RDWR)
}

fn open_again(fd: i32, access: i32) -> Result<i32> {
    let path = path_of(fd);
    // SAFETY: path is NUL-terminated and outlives the call.
    let opened =
        unsafe { call!(openat, libc::AT_FDCWD, path.as_ptr(), access | libc::O_CLOEXEC, 0) };
    opened.map(|fd| fd as i32)
}

/// Locks one byte of a file of ours against all others, without waiting; `command` says
/// whose the lock is, the description's (`F_OFD_SETLK`) or the process's (`F_SETLK`).
pub fn lock_byte(fd: i32, command: i32, at: u64) -> Result {
    let mut range = range(at, 1);
    // SAFETY: the kernel reads one flock.
    unsafe { call!(fcntl, seat(fd), command, &raw mut range) }
}

/// Whether another open file description than this has locked a byte of this range of a
/// file of ours. A length of 0 goes to the end of all offsets.
pub fn is_locked(fd: i32, at: u64, len: u64) -> Result<bool> {
    let mut range = range(at, len);
    // SAFETY: the kernel reads and writes one flock.
    unsafe { call!(fcntl, seat(fd), libc::F_OFD_GETLK, &raw mut range) }?;
    Ok(i32::from(range.l_type) != libc::F_UNLCK)
}

fn range(at: u64, len: u64) -> libc::flock {
    // SAFETY: all-zero is valid for integers; `l_pid` has to be 0.
    let mut range: libc::flock = unsafe { core::mem::zeroed() };
    range.l_type = libc::F_WRLCK as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    (range.l_start, range.l_len) = (at as i64, len as i64);
    range
}

/// Whether a descriptor is an event counter, as `/proc` says.
#[must_use]
pub fn is_eventfd(fd: i32) -> bool {
    const NAME: &[u8] = b"anon_inode:[eventfd]";
    let (path, mut target) = (path_of(fd), [0u8; 2 * NAME.len()]);
    // SAFETY: path is NUL-terminated, target writable; both outlive the call.
    let len = unsafe {
        call!(readlinkat, libc::AT_FDCWD, path.as_ptr(), target.as_mut_ptr(), target.len())
    };
    len.is_ok_and(|len| &target[..len] == NAME)
}

/// The name of a descriptor of this process.
fn path_of(fd: i32) -> ProcPath {
    proc_path(b"/proc/self/fd/", fd as u32, b"")
}

/// A path in `/proc` with NULs behind it.
type ProcPath = [u8; 40];

/// The path of an entry with a number, below a directory and with a name behind it, both short.
fn proc_path(directory: &[u8], number: u32, name: &[u8]) -> ProcPath {
    let mut path = [0; size_of::<ProcPath>()];
    let start = directory.len();
    path[..start].copy_from_slice(directory);
    let end = start + write_decimal(number, &mut path[start..]);
    path[end..end + name.len()].copy_from_slice(name);
    path
}

/// Whether a file lies on tmpfs, as memory files of ordinary pages do.
pub fn is_on_tmpfs(fd: i32) -> Result<bool> {
    let mut stat = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the kernel fills at most size_of::<statfs>() bytes.
    unsafe { call!(fstatfs, fd, stat.as_mut_ptr()) }?;
    // SAFETY: zeroed and then filled.
    Ok(unsafe { stat.assume_init() }.f_type == libc::TMPFS_MAGIC)
}

/// The number of an open file's inode.
pub fn inode(fd: i32) -> Result<u64> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel fills at most size_of::<stat>() bytes.
    unsafe { call!(fstat, fd, stat.as_mut_ptr()) }?;
    // SAFETY: zeroed and then filled.
    Ok(unsafe { stat.assume_init() }.st_ino)
}

/// The user of a process, as its directory in `/proc` shows it: root for one that may not be looked
/// into.
///
/// # Errors
/// There is no such process, or `/proc` does not show it.
pub fn user_of(pid: u32) -> Result<u32> {
    let path = proc_path(b"/proc/", pid, b"");
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the path ends with a NUL; the kernel fills at most size_of::<stat>() bytes.
    unsafe { call!(newfstatat, libc::AT_FDCWD, path.as_ptr(), stat.as_mut_ptr(), 0) }?;
    // SAFETY: zeroed and then filled.
    Ok(unsafe { stat.assume_init() }.st_uid)
}

/// A number that a file has no more when another one is put in its place, or it is written.
pub fn file_stamp(fd: i32) -> Result<u64> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel fills at most size_of::<stat>() bytes.
    unsafe { call!(fstat, fd, stat.as_mut_ptr()) }?;
    // SAFETY: zeroed and then filled.
    let stat = unsafe { stat.assume_init() };
    let time = (stat.st_mtime as u64).wrapping_mul(1_000_000_000) ^ stat.st_mtime_nsec as u64;
    Ok(time ^ stat.st_ino.rotate_left(32))
}

/// Whose a file is; of a socket, the user who has made or accepted it.
pub fn file_user(fd: i32) -> Result<u32> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel fills at most size_of::<stat>() bytes.
    unsafe { call!(fstat, fd, stat.as_mut_ptr()) }?;
    // SAFETY: zeroed and then filled.
    Ok(unsafe { stat.assume_init() }.st_uid)
}

/// Length of a file in bytes.
pub fn file_len(fd: i32) -> Result {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel fills at most size_of::<stat>() bytes.
    unsafe { call!(fstat, fd, stat.as_mut_ptr()) }?;
    // SAFETY: zeroed and then filled.
    Ok(unsafe { stat.assume_init() }.st_size as usize)
}

/// Maps `len` bytes of `fd` shared, or of anonymous memory when `fd` is `None`.
pub fn map(fd: Option<i32>, len: usize, writable: bool) -> Result<*mut u8> {
    let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let flags = match fd {
        Some(_) => libc::MAP_SHARED | libc::MAP_NORESERVE,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    };
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address =
        unsafe { call!(mmap, 0usize, len, protection, flags, fd.unwrap_or(-1) as isize, 0) }?;
    Ok(address as *mut u8)
}

/// Lets memory that was mapped to be read be written, too.
///
/// # Errors
/// `ENOMEM`: it would exceed `RLIMIT_DATA`, or what the host has promised.
pub fn make_writable(address: *mut u8, len: usize) -> Result {
    // SAFETY: callers pass their own mapping; more rights break no reference into it.
    unsafe { call!(mprotect, address as usize, len, libc::PROT_READ | libc::PROT_WRITE) }
}

/// Unmaps what [`map`] returned.
///
/// # Safety
/// Nothing may refer to the mapping any more.
pub unsafe fn unmap(address: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { call!(munmap, address as usize, len) };
}

/// `madvise`; advice is never needed for correctness, so errors are dropped,
/// except where the caller asks.
pub fn advise(address: *mut u8, len: usize, advice: i32) -> Result {
    // SAFETY: callers pass advice that leaves live bytes alone.
    unsafe { call!(madvise, address as usize, len, advice) }
}

/// Makes sure that memory can be read, whatever the program has made of it.
///
/// # Errors
/// Some of it is not mapped, or not to be read.
pub fn fault_in(address: *const u8, len: usize) -> Result {
    // SAFETY: asks for a constant.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let before = address as usize % page;
    advise(address.wrapping_sub(before).cast_mut(), before + len, libc::MADV_POPULATE_READ)
}

/// A non-blocking AF_UNIX datagram socket.
pub fn unix_datagram() -> Result<i32> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory operands.
    unsafe { call!(socket, libc::AF_UNIX, kind, 0) }.map(|fd| fd as i32)
}

/// A socket that asks the kernel about sockets.
pub fn sock_diag() -> Result<i32> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no memory operands.
    unsafe { call!(socket, libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG) }.map(|fd| fd as i32)
}

/// A non-blocking AF_UNIX socket that connects and keeps messages apart.
pub fn unix_packet() -> Result<i32> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory operands.
    unsafe { call!(socket, libc::AF_UNIX, kind, 0) }.map(|fd| fd as i32)
}

/// A TCP socket of IPv4, or of IPv6.
pub fn tcp_socket(is_ipv6: bool) -> Result<i32> {
    let domain = if is_ipv6 { libc::AF_INET6 } else { libc::AF_INET };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: no memory operands.
    unsafe { call!(socket, domain, kind, 0) }.map(|fd| fd as i32)
}

/// Connects it to a port of 127.0.0.1, and waits for that no longer than `patience`, which stays
/// its `SO_SNDTIMEO`. One of IPv6 gets there, too, also where this host has no address of IPv6.
pub fn connect_to_self(fd: i32, is_ipv6: bool, port: u16, patience: Duration) -> Result {
    set_option(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &timeval(patience))?;
    let localhost = Ipv4Addr::LOCALHOST;
    if is_ipv6 {
        set_socket_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0)?;
        let address = sockaddr_in6(localhost.to_ipv6_mapped(), port);
        // SAFETY: an initialised address of this length.
        return unsafe { call!(connect, fd, &raw const address, size_of_val(&address)) };
    }
    let address = sockaddr_in(localhost, port);
    // SAFETY: an initialised address of this length.
    unsafe { call!(connect, fd, &raw const address, size_of_val(&address)) }
}

const fn timeval(time: Duration) -> libc::timeval {
    libc::timeval { tv_sec: time.as_secs() as i64, tv_usec: time.subsec_micros() as i64 }
}

/// The user at the other end of a connected AF_UNIX socket, as it was when that connected
/// or began to listen.
pub fn peer_user(fd: i32) -> Result<u32> {
    let peer: libc::ucred = socket_option(fd, libc::SOL_SOCKET, libc::SO_PEERCRED)?;
    Ok(peer.uid)
}

/// Two connected AF_UNIX sockets that keep messages apart.
pub fn packet_pair() -> Result<[i32; 2]> {
    let (kind, mut pair) = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, [-1; 2]);
    // SAFETY: room for two descriptors.
    unsafe { call!(socketpair, libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) }?;
    Ok(pair)
}

/// Whether a socket of [`packet_pair`]'s kind is bound to a name.
#[must_use]
pub fn is_bound(name: &UnixName) -> bool {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: no memory operands.
    let Ok(fd) = (unsafe { call!(socket, libc::AF_UNIX, kind, 0) }) else { return true };
    let bound = bind_unix(fd as i32, name);
    close_number(fd as i32);
    bound == Err(Errno(libc::EADDRINUSE))
}

/// Puts what is behind one descriptor under another number as well, whose old meaning
/// is closed.
pub fn dup_onto(fd: i32, number: i32, close_on_exec: bool) -> Result {
    let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: no memory operands.
    unsafe { call!(dup3, fd, number, flags) }
}

/// Calls `f` with every open descriptor of this process, as `/proc` lists them; without
/// it, with the numbers that there may be.
pub fn for_each_open(mut f: impl FnMut(i32)) {
    const NUMBERS_WITHOUT_PROC: i32 = 1024;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the path is NUL-terminated.
    let opened = unsafe { call!(openat, libc::AT_FDCWD, c"/proc/self/fd".as_ptr(), flags, 0) };
    let Ok(listing) = opened else { return (0..NUMBERS_WITHOUT_PROC).for_each(f) };
    let listing = listing as i32;
    let mut entries = Entries([0; 2048]);
    loop {
        let (at, room) = (entries.0.as_mut_ptr(), entries.0.len());
        // SAFETY: `room` writable bytes.
        let Ok(len @ 1..) = (unsafe { call!(getdents64, listing, at, room) }) else { break };
        entries.numbers(len).filter(|fd| *fd != listing).for_each(&mut f);
    }
    close_number(listing);
}

/// Bits in an `fd_set`.
pub const FD_SETSIZE: usize = 1024;

/// How many bits of its sets `select` may look at, of `nfds`. The kernel looks no further than its
/// table of descriptors is long, which it doubles when a number lies beyond; many a program names more
/// bits than its sets have, and relies on it. Hidden descriptors make the table longer, and `select`
/// would read and write what is behind the sets. So this is what it would look at without them,
/// `known` being a number that may be open.
#[must_use]
pub fn bits_of_select(nfds: usize, known: usize) -> usize {
    const IN_A_PAGE: usize = FD_SETSIZE / size_of::<usize>();
    let last = nfds as i32 - 1;
    if nfds <= FD_SETSIZE || (!is_hidden(last) && fcntl(last, libc::F_GETFD, 0).is_ok()) {
        return nfds;
    }
    let mut highest = known;
    for_each_open(|fd| {
        if !is_hidden(fd) {
            highest = highest.max(fd as usize);
        }
    });
    // `alloc_fdtable` of the kernel's fs/file.c.
    let table = (highest / IN_A_PAGE + 1).next_power_of_two() * IN_A_PAGE;
    nfds.min(table.max(FD_SETSIZE))
}

/// As [`for_each_open`], for numbers from 0 on, and for those of the hidden ones, each time up to
/// [`GAP`] numbers in a row that are not open: three microseconds each, where `/proc`
/// takes fifty.
pub fn for_each_open_before_gap(mut f: impl FnMut(i32)) {
    let limit = soft_limit(libc::RLIMIT_NOFILE).min(i32::MAX as u64) as i32;
    let hidden = (hidden_fd_floor() as i32).min(limit);
    open_before_gap(0, hidden, &mut f);
    open_before_gap(hidden, limit, &mut f);
}

fn open_before_gap(first: i32, limit: i32, f: &mut impl FnMut(i32)) {
    for first in (first..limit).step_by(GAP) {
        let mut entries = [libc::pollfd { fd: -1, events: 0, revents: 0 }; GAP];
        for (fd, entry) in (first..limit).zip(&mut entries) {
            entry.fd = fd;
        }
        let count = entries.len().min((limit - first) as usize);
        let now = Some(Duration::ZERO);
        let asked = ppoll(&mut entries[..count], now, SignalMask::NONE);
        let is_open = |entry: &&libc::pollfd| entry.revents & libc::POLLNVAL == 0;
        let open = || entries[..count].iter().filter(is_open);
        if asked.is_err() || open().next().is_none() {
            return;
        }
        open().for_each(|entry| f(entry.fd));
    }
}

/// See [`for_each_open_before_gap`].
pub const GAP: usize = 256;

/// Room for `struct linux_dirent64`s.
#[repr(C, align(8))]
struct Entries([u8; 2048]);

impl Entries {
    /// The names among the first `len` bytes that are numbers.
    fn numbers(&self, len: usize) -> impl Iterator<Item = i32> {
        const LEN_AT: usize = 16;
        const NAME_AT: usize = 19;
        let mut rest = &self.0[..len];
        core::iter::from_fn(move || {
            let entry_len = u16::from_ne_bytes([*rest.get(LEN_AT)?, *rest.get(LEN_AT + 1)?]);
            let (entry, behind) = rest.split_at_checked(usize::from(entry_len))?;
            rest = behind;
            entry.get(NAME_AT..)
        })
        .filter_map(|name| {
            let digits = name.split(|byte| *byte == 0).next()?;
            core::str::from_utf8(digits).ok()?.parse().ok()
        })
    }
}

/// Binds a socket to an abstract name; the name vanishes with the socket.
pub fn bind_unix(fd: i32, name: &UnixName) -> Result {
    // SAFETY: address and length describe one initialised sockaddr_un.
    unsafe { call!(bind, fd, &raw const name.address, name.len) }
}

/// Connects a socket: tells whether a socket is bound to `name`.
pub fn connect_unix(fd: i32, name: &UnixName) -> Result {
    // SAFETY: as in `bind_unix`.
    unsafe { call!(connect, seat(fd), &raw const name.address, name.len) }
}

/// Whether `address` belongs to this host: only such an address can be bound.
pub fn is_local(address: IpAddr) -> bool {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no memory operands.
    let Ok(fd) = (unsafe { call!(socket, family, kind, 0) }) else {
        return false;
    };
    let bound = match address {
        IpAddr::V4(v4) => {
            let address = sockaddr_in(v4, 0);
            // SAFETY: an initialised address of this length.
            unsafe { call!(bind, fd, &raw const address, size_of_val(&address)) }
        }
        IpAddr::V6(v6) => {
            let address = sockaddr_in6(v6, 0);
            // SAFETY: as above.
            unsafe { call!(bind, fd, &raw const address, size_of_val(&address)) }
        }
    };
    close_number(fd as i32);
    bound.is_ok()
}

fn sockaddr_in(address: Ipv4Addr, port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(address).to_be() },
        sin_zero: [0; 8],
    }
}

fn sockaddr_in6(address: Ipv6Addr, port: u16) -> libc::sockaddr_in6 {
    libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: port.to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: address.octets() },
        sin6_scope_id: 0,
    }
}

/// Sends one datagram to `name`, with descriptors beside it.
pub fn send_with_fds(fd: i32, name: &UnixName, bytes: &[u8], fds: &[i32]) -> Result {
    let mut seats = [-1; FDS_MAX];
    for (place, fd) in seats.iter_mut().zip(fds) {
        *place = seat(*fd);
    }
    send_message(seat(fd), Some(name), bytes, &seats[..fds.len().min(FDS_MAX)])
}

/// Sends one message over a connected AF_UNIX socket, with descriptors beside it.
pub fn send_over(fd: i32, bytes: &[u8], fds: &[i32]) -> Result {
    let mut seats = [-1; FDS_MAX];
    for (place, fd) in seats.iter_mut().zip(fds) {
        *place = seat(*fd);
    }
    send_message(seat(fd), None, bytes, &seats[..fds.len().min(FDS_MAX)])
}

/// Whether the other end of a connected AF_UNIX socket is closed.
#[must_use]
pub fn is_hung_up(fd: i32) -> bool {
    poll_now(seat(fd), 0).is_ok_and(|events| events & libc::POLLHUP as u32 != 0)
}

/// Sends descriptors, and no byte, over a connected AF_UNIX socket; all are named by the
/// numbers under which they sit.
pub fn send_fds(fd: i32, fds: &[i32]) -> Result {
    send_message(fd, None, &[], fds)
}

fn send_message(fd: i32, name: Option<&UnixName>, bytes: &[u8], fds: &[i32]) -> Result {
    let mut control = ControlBuffer::default();
    let mut iov = libc::iovec { iov_base: bytes.as_ptr() as *mut c_void, iov_len: bytes.len() };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    if let Some(name) = name {
        message.msg_name = (&raw const name.address) as *mut c_void;
        message.msg_namelen = name.len;
    }
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        let payload = size_of_val(fds);
        control.header.cmsg_level = libc::SOL_SOCKET;
        control.header.cmsg_type = libc::SCM_RIGHTS;
        control.header.cmsg_len = size_of::<libc::cmsghdr>() + payload;
        for (word, fd) in control.words.iter_mut().zip(fds) {
            *word = *fd;
        }
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = (size_of::<libc::cmsghdr>() + payload).next_multiple_of(8);
    }
    // SAFETY: every pointer in message refers to a live local.
    unsafe { call!(sendmsg, fd, &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) }
}

/// What [`recv_with_fds`] found beside the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Bytes of the datagram.
    pub len: usize,
    /// Who sent it, as the kernel says.
    pub sender: Option<Sender>,
    /// Process that sent it, as this process knows it; 0 = it does not.
    pub pid: u32,
    /// Where it was when the message was taken, if that was asked ([`pass_pidfd`]).
    whereabouts: Option<Whereabouts>,
    fds: [i32; FDS_MAX],
    fd_count: usize,
}

/// The user and the group of a sender, the real ones at the time of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "their numbers")]
pub struct Sender {
    pub uid: u32,
    pub gid: u32,
}

/// `SCM_PIDFD` of `linux/socket.h`.
const SCM_PIDFD: i32 = 4;

impl Received {
    const fn of_bytes(len: usize) -> Self {
        Self { len, sender: None, pid: 0, whereabouts: None, fds: [-1; FDS_MAX], fd_count: 0 }
    }

    /// The descriptors that came; the receiver owns them.
    #[must_use]
    pub fn fds(&self) -> &[i32] {
        &self.fds[..self.fd_count]
    }

    /// Closes whatever descriptors came.
    pub fn close_fds(&self) {
        self.fds().iter().copied().for_each(close_number);
    }

    /// Where the sender is, as the kernel says. Before Linux 6.5 the process is looked for by its
    /// number, which another one may have by then.
    #[must_use]
    pub fn whereabouts(&self) -> Whereabouts {
        if self.pid == 0 {
            // Above or beside our PID namespace, where we see no process.
            return Whereabouts::Elsewhere;
        }
        self.whereabouts.unwrap_or_else(|| {
            // SAFETY: no memory operands.
            match unsafe { call!(pidfd_open, self.pid, 0) } {
                Ok(pidfd) => whereabouts_of(pidfd as i32, self.pid),
                Err(Errno(libc::ESRCH)) => Whereabouts::Gone,
                // Under Valgrind, which does not know the call.
                Err(_) => whereabouts_by_number(self.pid),
            }
        })
    }
}

#[repr(C, align(8))]
struct ControlBuffer {
    header: libc::cmsghdr,
    /// Room for the descriptors, then for one SCM_CREDENTIALS message and one SCM_PIDFD.
    words: [i32; 24],
}

impl Default for ControlBuffer {
    fn default() -> Self {
        // SAFETY: all-zero is valid for integers.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }
}

/// Where the sender of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// In our own PID namespace: it could stop and trace us if it is our user.
    Near,
    /// In one above, beside or below ours, or the kernel does not say.
    Elsewhere,
    /// It has ended since, and the kernel has forgotten where it was.
    Gone,
}

/// Where the process of a pidfd is, by what the kernel tells of the descriptor, which is closed. A process
/// that is near has one number here and no other one below. The kernel tells of the PID namespace that
/// `/proc` was mounted for; if that is not ours, the number is another one, or there are more.
fn whereabouts_of(pidfd: i32, pid: u32) -> Whereabouts {
    let path = proc_path(b"/proc/self/fdinfo/", pidfd as u32, b"");
    let whereabouts = whereabouts_in(&path, pid);
    close_number(pidfd);
    whereabouts
}

/// The same of whatever process has the number now.
fn whereabouts_by_number(pid: u32) -> Whereabouts {
    if !exists(pid) {
        return Whereabouts::Gone;
    }
    whereabouts_in(&proc_path(b"/proc/", pid, b"/status"), pid)
}

/// What a file of `/proc` says by its lines `Pid:` and `NSpid:`.
fn whereabouts_in(path: &ProcPath, pid: u32) -> Whereabouts {
    let mut about = [0; 1024];
    let path = core::ffi::CStr::from_bytes_until_nul(path);
    let len = path.map_or(0, |path| read_file(path, &mut about).unwrap_or(0));
    let mut lines = about[..len].split(|byte| *byte == b'\n');
    let number = |line: &[u8], key: &[u8]| {
        let digits = core::str::from_utf8(line.strip_prefix(key)?).ok()?;
        digits.parse::<i64>().ok()
    };
    let pid = i64::from(pid);
    match lines.find_map(|line| number(line, b"Pid:\t")) {
        Some(-1) => Whereabouts::Gone,
        Some(here) if here == pid => {
            // A kernel without PID namespaces has no such line.
            let in_namespaces = lines.find(|line| line.starts_with(b"NSpid:"));
            let is_only_number =
                in_namespaces.is_none_or(|line| number(line, b"NSpid:\t") == Some(pid));
            if is_only_number { Whereabouts::Near } else { Whereabouts::Elsewhere }
        }
        _ => Whereabouts::Elsewhere,
    }
}

/// Has the kernel give a descriptor of the sender with each message of a socket, or not any more: it is
/// of the very process that has sent, whichever process has its number by now. Nothing happens before Linux 6.5.
pub fn pass_pidfd(fd: i32, on: bool) {
    /// `SO_PASSPIDFD` of `asm-generic/socket.h`.
    const SO_PASSPIDFD: i32 = 76;
    let _ = set_socket_option(seat(fd), libc::SOL_SOCKET, SO_PASSPIDFD, on.into());
}

/// Receives one datagram without waiting, its descriptors (close-on-exec) and its
/// sender's credentials (the socket has `SO_PASSCRED`).
pub fn recv_with_fds(fd: i32, bytes: &mut [u8]) -> Result<Received> {
    receive_message(fd, bytes, 0)
}

/// New descriptors for those that lie beside the first message in an AF_UNIX socket,
/// where they stay.
pub fn peek_fds(fd: i32) -> Result<Received> {
    receive_message(fd, &mut [], libc::MSG_PEEK)
}

/// The sender of the first message in an AF_UNIX socket that has `SO_PASSCRED`, and whether descriptors
/// lie beside it. The message stays, and no descriptor is made.
pub fn peek_sender(fd: i32) -> Result<(Received, bool)> {
    // The credentials come first and fill it.
    let mut control = [0u64; room_for(size_of::<libc::ucred>()) / size_of::<u64>()];
    let message = peek(fd, control.as_mut_ptr().cast(), size_of_val(&control))?;
    let mut received = Received::of_bytes(0);
    // SAFETY: the kernel has filled the control buffer, which is alive, with whole messages.
    unsafe {
        let at = libc::CMSG_FIRSTHDR(&raw const message);
        if !at.is_null() {
            read_control(at, &mut received);
        }
    }
    Ok((received, message.msg_flags & libc::MSG_CTRUNC != 0))
}

/// Whether descriptors lie beside the first message in an AF_UNIX socket. The message stays, and no
/// descriptor is made.
pub fn peek_has_fds(fd: i32) -> Result<bool> {
    let pass_credentials = socket_option::<i32>(seat(fd), libc::SOL_SOCKET, libc::SO_PASSCRED)?;
    if pass_credentials != 0 {
        return peek_sender(fd).map(|(_, has_fds)| has_fds);
    }
    Ok(peek(fd, core::ptr::null_mut(), 0)?.msg_flags & libc::MSG_CTRUNC != 0)
}

/// Looks at the first message, of which no byte is copied.
fn peek(fd: i32, control: *mut c_void, len: usize) -> Result<libc::msghdr> {
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    (message.msg_control, message.msg_controllen) = (control, len);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | libc::MSG_PEEK;
    // SAFETY: the control buffer is the caller's, with room for so many bytes; there is no other.
    unsafe { call!(recvmsg, seat(fd), &raw mut message, flags) }?;
    Ok(message)
}

/// Bytes that a control message with so long a payload takes.
const fn room_for(payload: usize) -> usize {
    (size_of::<libc::cmsghdr>() + payload).next_multiple_of(align_of::<libc::cmsghdr>())
}

fn receive_message(fd: i32, bytes: &mut [u8], more_flags: i32) -> Result<Received> {
    let mut control = ControlBuffer::default();
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<ControlBuffer>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | more_flags;
    // SAFETY: every pointer in message refers to a live local.
    let len = unsafe { call!(recvmsg, seat(fd), &raw mut message, flags) }?;
    let mut received = Received::of_bytes(len);
    // SAFETY: the kernel filled message.msg_control with msg_controllen bytes of
    // well-formed control messages; CMSG_* stay inside them.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&raw const message);
        while !at.is_null() {
            read_control(at, &mut received);
            at = libc::CMSG_NXTHDR(&raw const message, at);
        }
    }
    Ok(received)
}

/// # Safety
/// `at` points to a whole control message.
unsafe fn read_control(at: *const libc::cmsghdr, received: &mut Received) {
    // SAFETY: the caller's promise; payload reads are bounded by cmsg_len.
    unsafe {
        let data = libc::CMSG_DATA(at);
        let payload = (*at).cmsg_len.saturating_sub(size_of::<libc::cmsghdr>());
        match ((*at).cmsg_level, (*at).cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for i in 0..payload / size_of::<i32>() {
                    let fd = data.cast::<i32>().add(i).read_unaligned();
                    if received.fd_count < FDS_MAX {
                        received.fds[received.fd_count] = fd;
                        received.fd_count += 1;
                    } else {
                        close_number(fd);
                    }
                }
            }
            (libc::SOL_SOCKET, SCM_PIDFD) if payload >= size_of::<i32>() => {
                // The credentials come first, and the number with them.
                received.whereabouts = Some(match data.cast::<i32>().read_unaligned() {
                    pidfd @ 0.. => whereabouts_of(pidfd, received.pid),
                    errno if errno == -libc::ESRCH => Whereabouts::Gone,
                    _ => Whereabouts::Elsewhere,
                });
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if payload >= size_of::<libc::ucred>() => {
                let libc::ucred { pid, uid, gid } = data.cast::<libc::ucred>().read_unaligned();
                (received.sender, received.pid) = (Some(Sender { uid, gid }), pid as u32);
            }
            _ => {}
        }
    }
}

/// Reads a fixed-size socket option.
pub fn socket_option<T: Copy>(fd: i32, level: i32, name: i32) -> Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as u32;
    // SAFETY: the kernel writes at most len bytes; T is plain data (Copy) and
    // every caller names an integer or a kernel struct.
    unsafe { call!(getsockopt, fd, level, name, value.as_mut_ptr(), &raw mut len) }?;
    // SAFETY: zeroed, then filled with plain data.
    Ok(unsafe { value.assume_init() })
}

/// Sets an integer socket option.
pub fn set_socket_option(fd: i32, level: i32, name: i32, value: i32) -> Result {
    set_option(fd, level, name, &value)
}

/// Sets a socket option that is plain data.
pub fn set_option<T: Copy>(fd: i32, level: i32, name: i32, value: &T) -> Result {
    let at = core::ptr::from_ref(value);
    // SAFETY: the value outlives the call and its length is given.
    unsafe { call!(setsockopt, fd, level, name, at, size_of::<T>()) }
}

/// An address as the kernel fills it in.
pub fn socket_name(fd: i32, peer: bool) -> Result<(libc::sockaddr_storage, u32)> {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut len = size_of::<libc::sockaddr_storage>() as u32;
    let (at, len_at) = (storage.as_mut_ptr(), &raw mut len);
    // SAFETY: the kernel writes at most len bytes.
    unsafe {
        if peer { call!(getpeername, fd, at, len_at) } else { call!(getsockname, fd, at, len_at) }
    }?;
    // SAFETY: zeroed, then filled.
    Ok((unsafe { storage.assume_init() }, len))
}

/// An `ioctl` that returns an `int`.
pub fn ioctl_int(fd: i32, request: u64) -> Result<i32> {
    let mut value = 0i32;
    // SAFETY: requests used here store one int.
    unsafe { call!(ioctl, fd, request, &raw mut value) }?;
    Ok(value)
}

/// The name of a network interface, as the kernel writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceName([u8; libc::IFNAMSIZ]);

impl InterfaceName {
    /// Its bytes, without the NUL at their end.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// The name of the interface with this number, in the network namespace of a socket.
pub fn interface_name(fd: i32, number: u32) -> Result<InterfaceName> {
    /// `SIOCGIFNAME` of `linux/sockios.h`.
    const NAME_OF_INTERFACE: usize = 0x8910;
    /// `struct ifreq`.
    #[repr(C, align(8))]
    struct Request {
        name: [u8; libc::IFNAMSIZ],
        number: u32,
        unused: [u8; 20],
    }
    const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());
    let mut request = Request { name: [0; libc::IFNAMSIZ], number, unused: [0; 20] };
    // SAFETY: the kernel reads and writes one ifreq.
    unsafe { call!(ioctl, fd, NAME_OF_INTERFACE, &raw mut request) }?;
    Ok(InterfaceName(request.name))
}

/// A socket that asks the kernel about routes and interfaces.
pub fn rtnetlink() -> Result<i32> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no memory operands.
    let fd = unsafe { call!(socket, libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    fd.map(|fd| fd as i32)
}

/// `recv` into `len` bytes at `at`.
///
/// # Safety
/// `at` is valid for writes of `len` bytes.
pub unsafe fn recv(fd: i32, at: *mut u8, len: usize, flags: i32) -> Result {
    if confinement::is_strict() {
        if flags != 0 {
            // Who would look, or not wait, finds nothing.
            return Err(Errno(libc::EAGAIN));
        }
        // SAFETY: the caller's promise. Without flags `read` does the same.
        return unsafe { read(fd, at, len, None) };
    }
    // SAFETY: the caller's promise.
    unsafe { call!(recvfrom, fd, at, len, flags, 0usize, 0usize) }
}

/// `recv` into some bytes.
pub fn recv_into(fd: i32, bytes: &mut [u8], flags: i32) -> Result {
    // SAFETY: the slice is writable.
    unsafe { recv(fd, bytes.as_mut_ptr(), bytes.len(), flags) }
}

/// `read` into some bytes.
pub fn read_into(fd: i32, bytes: &mut [u8]) -> Result {
    // SAFETY: the slice is writable.
    unsafe { read(fd, bytes.as_mut_ptr(), bytes.len(), None) }
}

/// How many bytes a `recv` of TCP would find, as `FIONREAD` tells: counted, and not copied.
#[must_use]
pub fn count_queued(fd: i32) -> usize {
    let flags = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: with MSG_TRUNC TCP copies nothing, so there need be no place for it.
    unsafe { recv(fd, core::ptr::null_mut(), i32::MAX as usize, flags) }.unwrap_or(0)
}

/// `send` of some bytes.
pub fn send(fd: i32, bytes: &[u8], flags: i32) -> Result {
    if confinement::is_strict() {
        // SAFETY: the slice is readable.
        return unsafe { write(fd, bytes.as_ptr(), bytes.len()) };
    }
    // SAFETY: the slice is readable.
    unsafe { call!(sendto, fd, bytes.as_ptr(), bytes.len(), flags, 0usize, 0usize) }
}

/// `pread` or, without an offset, `read` into `len` bytes at `at`.
///
/// # Safety
/// `at` is valid for writes of `len` bytes.
pub(crate) unsafe fn read(fd: i32, at: *mut u8, len: usize, offset: Option<i64>) -> Result {
    // SAFETY: the caller's promise.
    unsafe {
        match offset {
            Some(offset) => pread(fd, at, len, offset),
            None => call!(read, fd, at, len),
        }
    }
}

/// `pread` into `len` bytes at `at`. For itself, because a program that only reads files is to have
/// no instruction that could read a socket.
///
/// # Safety
/// `at` is valid for writes of `len` bytes.
pub unsafe fn pread(fd: i32, at: *mut u8, len: usize, offset: i64) -> Result {
    // SAFETY: the caller's promise.
    unsafe { call!(pread64, fd, at, len, offset) }
}

/// Where the first byte of a file at or behind `at` lies that was ever written (a page of it);
/// `None`: nothing was.
pub fn next_data(fd: i32, at: usize) -> Result<Option<usize>> {
    // SAFETY: no memory operands.
    match unsafe { call!(lseek, fd, at, libc::SEEK_DATA) } {
        Err(Errno(libc::ENXIO)) => Ok(None),
        other => other.map(Some),
    }
}

/// Reads what a file has at an offset: how many bytes.
pub fn read_at(fd: i32, bytes: &mut [u8], offset: u64) -> Result {
    // SAFETY: a live buffer.
    unsafe { read(seat(fd), bytes.as_mut_ptr(), bytes.len(), Some(offset as i64)) }
}

/// `write` of `len` bytes at `at`.
///
/// # Safety
/// `at` is valid for reads of `len` bytes.
unsafe fn write(fd: i32, at: *const u8, len: usize) -> Result {
    // SAFETY: the caller's promise.
    unsafe { call!(write, fd, at, len) }
}

/// Reads from a pipe without waiting, whatever its flags say: `EAGAIN` when it is
/// empty.
///
/// # Safety
/// `at` is valid for writes of `len` bytes.
pub(crate) unsafe fn read_now(fd: i32, at: *mut u8, len: usize) -> Result {
    let part = libc::iovec { iov_base: at.cast(), iov_len: len };
    // SAFETY: one iovec; the caller's promise about its bytes.
    match unsafe { call!(preadv2, fd, &raw const part, 1, -1isize, -1isize, libc::RWF_NOWAIT) } {
        // Before Linux 6.4.
        Err(Errno(libc::EOPNOTSUPP)) => {
            wait_not(fd, libc::POLLIN)?;
            // SAFETY: the caller's promise.
            unsafe { read(fd, at, len, None) }
        }
        other => other,
    }
}

/// Writes into a pipe without waiting, whatever its flags say: `EAGAIN` when it is
/// full.
pub fn write_now(fd: i32, bytes: &[u8]) -> Result {
    // SAFETY: a slice.
    unsafe { write_memory_now(fd, bytes.as_ptr(), bytes.len()) }
}

/// The same for bytes that another process may change meanwhile.
///
/// # Safety
/// `at` is valid for reads of `len` bytes.
pub(crate) unsafe fn write_memory_now(fd: i32, at: *const u8, len: usize) -> Result {
    let part = libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len };
    // SAFETY: as above.
    match unsafe { call!(pwritev2, fd, &raw const part, 1, -1isize, -1isize, libc::RWF_NOWAIT) } {
        Err(Errno(libc::EOPNOTSUPP)) => {
            wait_not(fd, libc::POLLOUT)?;
            // SAFETY: the caller's promise.
            unsafe { write(fd, at, len.min(libc::PIPE_BUF)) }
        }
        other => other,
    }
}

/// Writes a short line, of at most `PIPE_BUF` bytes, that may be lost and must not be
/// felt: it waits for no reader (`EAGAIN`) and raises no signal.
pub fn write_unnoticed(fd: i32, bytes: &[u8]) -> Result {
    wait_not(fd, libc::POLLOUT)?;
    let write = || {
        // SAFETY: the slice is readable.
        unsafe { write(fd, bytes.as_ptr(), bytes.len()) }
    };
    without_signals(&[libc::SIGPIPE, libc::SIGXFSZ], write)
}

/// Makes a call that may raise one of `signals` at this thread, and takes that back.
fn without_signals(signals: &[i32], act: impl FnOnce() -> Result) -> Result {
    let set: u64 = signals.iter().map(|signal| 1 << (signal - 1)).sum();
    let (mut mask, mut pending, size) = (0u64, 0u64, size_of::<u64>());
    let (now, none) = (libc::timespec { tv_sec: 0, tv_nsec: 0 }, 0usize);
    // SAFETY: sets of `size` bytes.
    unsafe { call!(rt_sigprocmask, libc::SIG_BLOCK, &raw const set, &raw mut mask, size) }?;
    // SAFETY: the same.
    let _ = unsafe { call!(rt_sigpending, &raw mut pending, size) };
    let answer = act();
    // What was pending before is not ours.
    let raised = set & !pending;
    if answer.is_err() && raised != 0 {
        // SAFETY: the same, one timespec, and nothing to be filled.
        let _ = unsafe { call!(rt_sigtimedwait, &raw const raised, none, &raw const now, size) };
    }
    // SAFETY: the same.
    let _ = unsafe { call!(rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, none, size) };
    answer
}

/// Whether the caller is a signal handler on a stack of its own (`SA_ONSTACK`), or called by one.
pub fn is_on_alternate_stack() -> bool {
    let mut stack = libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: room for a stack's description, and none that is to be set.
    let known = unsafe { call!(sigaltstack, 0usize, &raw mut stack) };
    known.is_ok() && stack.ss_flags & libc::SS_ONSTACK != 0
}

/// No signal handler interrupts this thread until it is dropped, but those for faults of its own. Signals that come
/// meanwhile are delivered then.
pub struct Unbroken {
    /// The mask of before.
    mask: u64,
    /// A mask is its thread's.
    _thread: PhantomData<*const ()>,
}

impl Unbroken {
    /// From here on.
    pub fn begin() -> Self {
        // Memory of the program may be made of faults that it handles.
        const FAULTS: [i32; 6] =
            [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
        let faults: u64 = FAULTS.iter().map(|signal| 1 << (signal - 1)).sum();
        let (set, mut mask) = (!faults, 0u64);
        // SAFETY: sets of the size that is said. It cannot fail.
        let _ = unsafe {
            call!(rt_sigprocmask, libc::SIG_BLOCK, &raw const set, &raw mut mask, size_of::<u64>())
        };
        Self { mask, _thread: PhantomData }
    }
}

impl Drop for Unbroken {
    fn drop(&mut self) {
        let none = 0usize;
        // SAFETY: the same, and nothing to be filled.
        let _ = unsafe {
            call!(rt_sigprocmask, libc::SIG_SETMASK, &raw const self.mask, none, size_of::<u64>())
        };
    }
}

/// `EAGAIN` if a pipe would make us wait. A writable one has room for at least
/// `PIPE_BUF` bytes.
fn wait_not(fd: i32, events: i16) -> Result<()> {
    match poll_now(fd, events)? {
        0 => Err(Errno(libc::EAGAIN)),
        _ => Ok(()),
    }
}

/// Sleeps until a descriptor shows one of the events, has ended, or the time is up.
///
/// # Errors
/// `EINTR` after any signal handler.
pub fn poll_until(fd: i32, events: i16, timeout: Option<Duration>) -> Result {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    ppoll(core::slice::from_mut(&mut entry), timeout, SignalMask::NONE)
}

/// A bell: an event counter that is readable for ever. A thread that waits for it
/// edge-triggered is woken by every [`ring_eventfd`].
pub fn eventfd() -> Result<i32> {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    // SAFETY: no memory operands.
    unsafe { call!(eventfd2, 1, flags) }.map(|fd| fd as i32)
}

/// Adds nothing to an event counter, which wakes the threads that wait for it. (Were it to add
/// something, a peer could hand over a counter that is full, without `O_NONBLOCK`, and
/// we would wait for room in it.)
pub fn ring_eventfd(fd: i32) -> Result {
    let nothing = 0u64;
    // SAFETY: eight readable bytes.
    unsafe { write(seat(fd), (&raw const nothing).cast(), 8) }
}

/// Moves a descriptor of ours to a high number, out of the program's sight.
/// Keeps the old number when there is none free up there.
#[must_use]
pub fn move_up(fd: i32) -> i32 {
    match copy_up(fd) {
        Ok(high) => {
            close_number(fd);
            high
        }
        Err(_) => {
            hide(fd, true);
            fd
        }
    }
}

/// A copy of a descriptor at a high number, out of the program's sight.
///
/// # Errors
/// `EINVAL` or `EMFILE` where there is none free up there.
pub fn copy_up(fd: i32) -> Result<i32> {
    let mut floor = hidden_fd_floor();
    loop {
        let high = fcntl(fd, libc::F_DUPFD_CLOEXEC, floor)? as i32;
        if !is_name_of_moved(high) {
            hide(high, true);
            return Ok(high);
        }
        close_number(high);
        floor = high as usize + 1;
    }
}

/// A copy of a descriptor at a high number that is not needed in any case: `None` where
/// it could stand in the way of those that are, or of the program's.
#[must_use]
pub fn spare_copy(fd: i32) -> Option<i32> {
    let floor = hidden_fd_floor();
    let ceiling = floor + (soft_limit(libc::RLIMIT_NOFILE) as usize).saturating_sub(floor) / 2;
    let copy = fcntl(seat(fd), libc::F_DUPFD_CLOEXEC, floor).ok()? as i32;
    if copy as usize >= ceiling || is_name_of_moved(copy) {
        close_number(copy);
        return None;
    }
    hide(copy, true);
    Some(copy)
}

/// Lowest number for descriptors of ours: beyond `select`, and beyond what a
/// program that counts on the next free number would notice.
fn hidden_fd_floor() -> usize {
    const FLOOR: usize = 4_096;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let none = 0usize;
    // SAFETY: the kernel fills one rlimit.
    let asked = unsafe { call!(prlimit64, 0, libc::RLIMIT_NOFILE, none, &raw mut limit) };
    match asked {
        Ok(_) if (limit.rlim_cur as usize) < 2 * FLOOR => limit.rlim_cur as usize / 4 * 3,
        _ => FLOOR,
    }
}

/// Soft limit of a resource.
pub fn soft_limit(resource: u32) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let none = 0usize;
    // SAFETY: the kernel fills one rlimit.
    match unsafe { call!(prlimit64, 0, resource, none, &raw mut limit) } {
        Ok(_) => limit.rlim_cur,
        Err(_) => u64::MAX,
    }
}

/// The half of a word that a futex has room for.
#[must_use]
pub fn low_half(word: &AtomicU64) -> &AtomicU32 {
    let half = if cfg!(target_endian = "big") { 1 } else { 0 };
    // SAFETY: both halves of an aligned 64-bit atomic are aligned 32-bit words; the
    // kernel only compares it, and we only ever name its address.
    unsafe { &*word.as_ptr().cast::<AtomicU32>().add(half) }
}

/// Sleeps while `word == value`, at most `timeout`; shared between processes.
pub fn futex_wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) -> Result {
    let time = timeout.map(timespec);
    let time_at = time.as_ref().map_or(0, |t| core::ptr::from_ref(t) as usize);
    // SAFETY: the word and the timespec outlive the call.
    unsafe { call!(futex, word.as_ptr(), libc::FUTEX_WAIT, value, time_at, 0usize, 0usize) }
}

/// The same, except that a signal handler with `SA_RESTART` does not end it, as it does
/// not end a sleep in a socket call; [`futex_wait`] ends with `EINTR` for any handler.
///
/// # Errors
/// As [`futex_wait`]; `ENOSYS` before Linux 5.16, `EPERM` under a filter of system calls.
pub fn futex_wait_restarting(word: &AtomicU32, value: u32, timeout: Duration) -> Result {
    /// `FUTEX2_SIZE_U32`; without `FUTEX2_PRIVATE`: shared between processes.
    const WORD_OF_32_BITS: u32 = 2;
    /// The call for one word is there: since Linux 6.7, and a filter may not know it.
    static IS_KNOWN: AtomicBool = AtomicBool::new(true);

    let any_bit = u64::from(u32::MAX);
    // A point in time, which does not move when the call is restarted.
    let end = timespec(Duration::from_nanos(now_ns()).saturating_add(timeout));
    let (end, clock) = (&raw const end, libc::CLOCK_MONOTONIC);
    if IS_KNOWN.load(Ordering::Relaxed) {
        // SAFETY: the word and the timespec outlive the call.
        match unsafe {
            call!(futex_wait, word.as_ptr(), value, any_bit, WORD_OF_32_BITS, end, clock)
        } {
            Err(Errno(libc::ENOSYS | libc::EPERM)) => IS_KNOWN.store(false, Ordering::Relaxed),
            slept => return slept,
        }
    }
    futex_wait_for_one(word, value, WORD_OF_32_BITS, end, clock)
}

/// The call for many words, with one: it allocates, and copies more.
#[cold]
fn futex_wait_for_one(
    word: &AtomicU32,
    value: u32,
    flags: u32,
    end: *const libc::timespec,
    clock: libc::clockid_t,
) -> Result {
    /// `struct futex_waitv` of `linux/futex.h`.
    #[repr(C)]
    struct Waiter {
        value: u64,
        word: u64,
        flags: u32,
        reserved: u32,
    }
    let word = word.as_ptr() as u64;
    let waiter = Waiter { value: value.into(), word, flags, reserved: 0 };
    // SAFETY: the word, the waiter and the timespec outlive the call.
    unsafe { call!(futex_waitv, &raw const waiter, 1, 0, end, clock) }
}

/// Wakes up to `count` sleepers of [`futex_wait`].
pub fn futex_wake(word: &AtomicU32, count: i32) {
    // SAFETY: the word outlives the call.
    let _ = unsafe { call!(futex, word.as_ptr(), libc::FUTEX_WAKE, count, 0usize, 0usize, 0usize) };
}

/// Time as the kernel wants it.
#[must_use]
pub fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// `poll` of one descriptor without waiting: its mask.
pub fn poll_now(fd: i32, events: i16) -> Result<u32> {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    if confinement::is_confined() {
        // SAFETY: one live entry.
        unsafe { poll(&raw mut entry, 1, Some(Duration::ZERO)) }?;
        return Ok(u32::from(entry.revents as u16));
    }
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one pollfd and one timespec, both live.
    unsafe { call!(ppoll, &raw mut entry, 1, &raw const now, 0usize, 8usize) }?;
    Ok(u32::from(entry.revents as u16))
}

/// `epoll_ctl`; `event` is ignored by `EPOLL_CTL_DEL`.
pub fn epoll_ctl(epfd: i32, operation: i32, fd: i32, events: u32, data: u64) -> Result {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: one live epoll_event.
    unsafe { call!(epoll_ctl, epfd, operation, fd, &raw mut event) }
}

/// `epoll_ctl` with an event that only the kernel reads: a pointer that leads nowhere is `EFAULT`.
///
/// # Errors
/// As the system call.
pub fn epoll_ctl_at(epfd: i32, operation: i32, fd: i32, event: *const libc::epoll_event) -> Result {
    // SAFETY: the kernel only reads the event, and checks where it is.
    unsafe { call!(epoll_ctl, epfd, operation, fd, event) }
}

/// libc's `errno` of this thread.
#[must_use]
pub fn libc_errno() -> i32 {
    // SAFETY: libc's own thread-local word.
    unsafe { *libc::__errno_location() }
}

/// Puts another value into libc's `errno`; returns what was there.
#[must_use]
pub fn replace_libc_errno(errno: i32) -> i32 {
    // SAFETY: as above.
    unsafe { core::mem::replace(&mut *libc::__errno_location(), errno) }
}

/// Gives the CPU to a thread that waits for it.
pub fn yield_cpu() {
    // SAFETY: no memory operands.
    let _ = unsafe { call!(sched_yield) };
}

/// This process.
#[must_use]
pub fn pid() -> u32 {
    // SAFETY: no memory operands; getpid cannot fail.
    unsafe { call!(getpid) }.unwrap_or(0) as u32
}

/// This process as `/proc` numbers it: in one PID namespace, whichever the process is in. 0
/// without `/proc`.
#[must_use]
pub fn number_in_proc() -> u32 {
    let (path, mut target) = (c"/proc/self", [0u8; 16]);
    // SAFETY: path is NUL-terminated, target writable; both outlive the call.
    let len = unsafe {
        call!(readlinkat, libc::AT_FDCWD, path.as_ptr(), target.as_mut_ptr(), target.len())
    };
    let digits = &target[..len.unwrap_or(0)];
    digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit.wrapping_sub(b'0')))
}

/// This thread.
#[must_use]
pub fn tid() -> u32 {
    // SAFETY: no memory operands; gettid cannot fail.
    unsafe { call!(gettid) }.unwrap_or(0) as u32
}

/// Real user of this process: whom the kernel names with its datagrams.
#[must_use]
pub fn uid() -> u32 {
    // SAFETY: no memory operands; getuid cannot fail.
    unsafe { call!(getuid) }.unwrap_or(u32::MAX as usize) as u32
}

/// Effective user of this process.
#[must_use]
pub fn effective_uid() -> u32 {
    // SAFETY: no memory operands; geteuid cannot fail.
    unsafe { call!(geteuid) }.unwrap_or(u32::MAX as usize) as u32
}

/// Whether a thread or process of this number exists (zombies do).
#[must_use]
pub fn exists(id: u32) -> bool {
    // SAFETY: signal 0 sends nothing.
    let asked = unsafe { call!(kill, id, 0) };
    asked != Err(Errno(libc::ESRCH))
}

/// Whether this process has a thread of this number.
#[must_use]
pub fn has_thread(tid: u32) -> bool {
    // SAFETY: signal 0 sends nothing.
    let asked = unsafe { call!(tgkill, pid(), tid, 0) };
    asked != Err(Errno(libc::ESRCH))
}

/// CPU time that a thread of this process has used, in nanoseconds.
///
/// # Errors
/// `EINVAL` if there is no such thread.
pub fn thread_ns(tid: u32) -> Result<u64> {
    /// `CPUCLOCK_SCHED`, and `CPUCLOCK_PERTHREAD_MASK`: `linux/posix-timers.h`.
    const RUN_TIME_OF_THREAD: i32 = 2 | 4;
    let clock = !(tid as i32) << 3 | RUN_TIME_OF_THREAD;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills one timespec.
    unsafe { call!(clock_gettime, clock, &raw mut time) }?;
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Whether a thread of this process is blocked in the kernel, in a sleep that signals end.
///
/// # Errors
/// There is no such thread, or no `/proc`.
pub fn is_asleep(tid: u32) -> Result<bool> {
    let path = proc_path(b"/proc/self/task/", tid, b"/stat");
    let mut stat = [0; 128];
    let path = core::ffi::CStr::from_bytes_until_nul(&path).map_err(|_| Errno(libc::EINVAL))?;
    let len = read_file(path, &mut stat)?;
    // The name of the thread comes before its state, in parentheses, and may hold some.
    let name_end = stat[..len].iter().rposition(|byte| *byte == b')');
    Ok(name_end.and_then(|at| stat.get(at + 2)) == Some(&b'S'))
}

/// Whether a thread of this process is blocked inside a system call, in whatever sleep: not while it
/// waits for a page of its program.
///
/// # Errors
/// There is no such thread, or nothing that tells.
pub fn is_in_call(tid: u32) -> Result<bool> {
    let path = proc_path(b"/proc/self/task/", tid, b"/syscall");
    let mut begin = [0; 8];
    let path = core::ffi::CStr::from_bytes_until_nul(&path).map_err(|_| Errno(libc::EINVAL))?;
    // The number of the call, `running`, or -1.
    let len = read_file(path, &mut begin)?;
    Ok(begin[..len].first().is_some_and(u8::is_ascii_digit))
}

/// Writes a number in decimal: how many digits.
fn write_decimal(number: u32, into: &mut [u8]) -> usize {
    let len = number.checked_ilog10().unwrap_or(0) as usize + 1;
    let mut rest = number;
    for place in into[..len].iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    len
}

/// Sends `signal` to the calling thread, as the kernel does with SIGPIPE.
pub fn raise_here(signal: i32) {
    // SAFETY: no memory operands.
    let _ = unsafe { call!(tgkill, pid(), tid(), signal) };
}

/// Fills `bytes` with randomness.
pub fn random(bytes: &mut [u8]) -> Result {
    // SAFETY: the slice is writable.
    unsafe { call!(getrandom, bytes.as_mut_ptr(), bytes.len(), 0) }
}

/// Monotonic time in nanoseconds (vDSO, no system call). Under a strict filter the processor's clock is
/// out of bounds, too, and the kernel's last tick has to do.
#[inline]
#[must_use]
pub fn now_ns() -> u64 {
    if confinement::is_strict() {
        return coarse_ns();
    }
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one live timespec; libc's clock_gettime is not hooked.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds of a time, as far as the kernel's clock counts (`ktime_t`): 292 years. [`now_ns`] and as many more
/// are a number still.
#[must_use]
pub fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos().min(i64::MAX as u128) as u64
}

/// When so much time has passed from now on, by [`now_ns`].
#[must_use]
pub fn deadline(time: Duration) -> u64 {
    now_ns() + nanoseconds(time)
}

/// Monotonic time of the kernel's last tick: four milliseconds old at most, and a
/// fraction of the price of [`now_ns`].
fn coarse() -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one live timespec; libc's clock_gettime is not hooked.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now
}

/// As [`now_ns`], from the last tick.
#[must_use]
pub fn coarse_ns() -> u64 {
    let now = coarse();
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Seconds since the machine started, from the last tick.
#[must_use]
pub fn coarse_seconds() -> u32 {
    coarse().tv_sec as u32
}

/// Milliseconds from the last tick; comes round every 50 days.
#[must_use]
pub fn coarse_ms() -> u32 {
    let now = coarse();
    (now.tv_sec as u32).wrapping_mul(1000).wrapping_add(now.tv_nsec as u32 / 1_000_000)
}

/// The CPU this thread runs on; a hint that may be stale at once. Three
/// nanoseconds through libc's restartable-sequence area.
#[inline]
#[must_use]
pub fn cpu() -> u32 {
    // SAFETY: no arguments; libc's sched_getcpu is not hooked.
    unsafe { libc::sched_getcpu() }.max(0) as u32
}

/// A set of signals that the program gives with a call, as the kernel has it, or none. It is valid for
/// as long as that call lasts.
#[derive(Clone, Copy)]
pub struct SignalMask(*const c_void);

impl SignalMask {
    /// No set: the thread's own mask stays.
    pub const NONE: Self = Self(core::ptr::null());
    /// Bytes of a set.
    const LEN: usize = size_of::<u64>();

    /// The program's.
    ///
    /// # Safety
    /// `at` is null, or 8 bytes can be read there as long as the value or a copy of it is used.
    #[must_use]
    pub const unsafe fn new(at: *const c_void) -> Self {
        Self(at)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.0.is_null()
    }

    /// As the kernel takes it, or null.
    #[must_use]
    pub fn as_ptr(self) -> *const c_void {
        self.0
    }
}

/// `ppoll` over the caller's array; the time is left as it is.
pub fn ppoll(entries: &mut [libc::pollfd], timeout: Option<Duration>, mask: SignalMask) -> Result {
    let (at, count) = (entries.as_mut_ptr(), entries.len());
    if mask.is_none() && confinement::is_confined() {
        // SAFETY: the slice is writable.
        return unsafe { poll(at, count, timeout) };
    }
    let time = timeout.map(timespec);
    let time_at = time.as_ref().map_or(0, |t| core::ptr::from_ref(t) as usize);
    // SAFETY: the slice is writable, the time is ours, and `SignalMask` is null or a set.
    unsafe { call!(ppoll, at, count, time_at, mask.0, SignalMask::LEN) }
}

/// `poll`, which filters of system calls let pass more often than `ppoll`. It may sleep for up to a
/// millisecond longer than `timeout`.
///
/// # Safety
/// `entries` points to `count` pollfds.
pub unsafe fn poll(entries: *mut libc::pollfd, count: usize, timeout: Option<Duration>) -> Result {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    return unsafe { call!(poll, entries, count, in_ms(timeout)) };
    #[cfg(not(target_arch = "x86_64"))]
    {
        let time = timeout.map(timespec);
        let time_at = time.as_ref().map_or(0, |t| core::ptr::from_ref(t) as usize);
        // SAFETY: the caller's promise.
        unsafe { call!(ppoll, entries, count, time_at, 0usize, 0usize) }
    }
}

/// Whole milliseconds, rounded up; -1: for ever.
fn in_ms(timeout: Option<Duration>) -> i32 {
    timeout.map_or(-1, |t| t.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32)
}

/// Whether the kernel knows `epoll_pwait2`, as far as it was asked. Valgrind does not,
/// and says so on the program's standard error each time.
static HAS_EPOLL_PWAIT2: AtomicBool = AtomicBool::new(true);

/// Whether [`epoll_wait`] has not yet found that the kernel lacks `epoll_pwait2`.
#[must_use]
pub fn has_epoll_pwait2() -> bool {
    HAS_EPOLL_PWAIT2.load(Ordering::Relaxed)
}

/// `epoll_pwait2` with `epoll_pwait` for kernels before 5.11.
pub fn epoll_wait(
    epfd: i32,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
    mask: SignalMask,
) -> Result {
    let (events, max) = (events.as_mut_ptr(), events.len().min(i32::MAX as usize) as i32);
    if has_epoll_pwait2() && !confinement::is_confined() {
        let time = timeout.map(timespec);
        let time_at = time.as_ref().map_or(0, |t| core::ptr::from_ref(t) as usize);
        // SAFETY: the slice is writable, the time is ours, and `SignalMask` is null or a set.
        let answer =
            unsafe { call!(epoll_pwait2, epfd, events, max, time_at, mask.0, SignalMask::LEN) };
        if answer != Err(Errno(libc::ENOSYS)) {
            return answer;
        }
        HAS_EPOLL_PWAIT2.store(false, Ordering::Relaxed);
    }
    let ms = in_ms(timeout);
    #[cfg(target_arch = "x86_64")]
    if mask.is_none() && confinement::is_confined() {
        // SAFETY: the slice is writable, the time is ours, and `SignalMask` is null or a set.
        return unsafe { call!(epoll_wait, epfd, events, max, ms) };
    }
    // SAFETY: the slice is writable, the time is ours, and `SignalMask` is null or a set.
    unsafe { call!(epoll_pwait, epfd, events, max, ms, mask.0, SignalMask::LEN) }
}

/// How far this process was confined when it began, by what its parent has left it. It is read from
/// `/proc`, by calls that the loader has made just before: there is no other way to ask that a filter
/// could not kill for.
#[must_use]
pub fn inherited_confinement() -> Confinement {
    /// More than the file has, unless the program is in hundreds of groups.
    const STATUS_LEN_MAX: usize = 8192;
    let mut status = [0; STATUS_LEN_MAX];
    // Without /proc no memory can be shared, and where it is not readable nothing is known.
    let Ok(len) = read_file(c"/proc/self/status", &mut status) else {
        return Confinement::Filtered;
    };
    confinement::mode_in(&status[..len], len == STATUS_LEN_MAX)
}

/// The name of this host, as far as it fits.
#[must_use]
pub fn hostname(into: &mut [u8]) -> &[u8] {
    // SAFETY: the slice is writable for its length, of which the last byte is left out; gethostname is
    // not hooked.
    unsafe { libc::gethostname(into.as_mut_ptr().cast(), into.len().saturating_sub(1)) };
    let len = into.iter().position(|byte| *byte == 0).unwrap_or(0);
    &into[..len]
}

/// CPUs on which this thread may run; 1 where the kernel does not say, or has more than 1024.
///
/// Not libc's function: where a name has no version, glibc gives the oldest, and that one takes no size.
#[must_use]
pub fn allowed_cpus() -> u32 {
    // SAFETY: all-zero is an empty set, which the kernel fills up to its size.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        match call!(sched_getaffinity, 0, size, &raw mut set) {
            Ok(_) => libc::CPU_COUNT(&set).max(1) as u32,
            Err(_) => 1,
        }
    }
}

/// Whether a signal has a handler of the program that does not have calls restarted.
#[must_use]
pub fn interrupts_for_good(signal: i32) -> bool {
    // SAFETY: all-zero is a valid sigaction, which libc fills; not a hooked name.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        libc::sigaction(signal, core::ptr::null(), &raw mut action) == 0
            && !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
            && action.sa_flags & libc::SA_RESTART == 0
    }
}

/// Whether libc says that there has never been a second thread. musl does not say, nor does glibc before 2.32.
#[inline]
#[must_use]
pub fn is_single_threaded() -> bool {
    static SAID_AT: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
    let mut said_at = SAID_AT.load(Ordering::Relaxed);
    if said_at.is_null() {
        said_at = single_threaded_word();
        SAID_AT.store(said_at, Ordering::Relaxed);
    }
    // SAFETY: one byte, that glibc writes before it begins a second thread; or ours.
    unsafe { said_at.read_volatile() != 0 }
}

/// glibc's `__libc_single_threaded`: 0 once there has been a second thread.
#[cold]
fn single_threaded_word() -> *mut u8 {
    static UNSAID: u8 = 0;
    // SAFETY: the name is NUL-terminated.
    let word = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    if word.is_null() { (&raw const UNSAID).cast_mut() } else { word.cast() }
}

/// Reads the begin of a file: how many bytes.
pub fn read_file(path: &core::ffi::CStr, into: &mut [u8]) -> Result {
    let fd = open_read(path)?;
    // SAFETY: the slice is writable.
    let len = unsafe { read(fd, into.as_mut_ptr(), into.len(), None) };
    close(fd);
    len
}

/// The bytes of an address.
#[must_use]
pub fn bytes_of_address(storage: &libc::sockaddr_storage) -> &[u8] {
    // SAFETY: the struct is made of initialised integers and arrays of them, without padding: the
    // family, bytes up to an aligned word, the word, to 128 bytes in all.
    unsafe {
        core::slice::from_raw_parts(core::ptr::from_ref(storage).cast(), size_of_val(storage))
    }
}

/// Copies memory of this process that may not be there: `EFAULT` where a load would be a
/// fault. A sandbox may forbid the call: any other error.
pub fn copy_own(from: *const u8, into: &mut [u8]) -> Result<()> {
    let to = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let from = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: into.len() };
    // SAFETY: `to` is the slice; what `from` leads to is the kernel's to find out.
    let copied =
        unsafe { call!(process_vm_readv, pid(), &raw const to, 1, &raw const from, 1, 0)? };
    if copied == into.len() { Ok(()) } else { Err(Errno(libc::EFAULT)) }
}

/// Whether memory of this process can be read: a range that is not empty. The cheapest call that
/// says so is one that reads a word and refuses what is to be done with it; a word of each page
/// stands for the page.
#[must_use]
pub fn is_readable(at: *const u8, len: usize) -> bool {
    const WORD: usize = 8;
    const PAGE: usize = 4096;
    const NO_CHANGE: i32 = -1;
    let first = at as usize;
    let Some(last) = len.checked_sub(1).and_then(|more| first.checked_add(more)) else {
        return false;
    };
    (first / PAGE..=last / PAGE).all(|page| {
        // Not the null, which would be no set of signals.
        let word = (page * PAGE).max(first & !(WORD - 1)).max(WORD);
        // SAFETY: whether the word is there is the kernel's to find out; it knows no change of
        // signal masks of this name.
        let refused = unsafe { call!(rt_sigprocmask, NO_CHANGE, word, 0usize, WORD) };
        refused != Err(Errno(libc::EFAULT))
    })
}

/// Writes memory of this process that may not be there, or is not to be written.
///
/// # Errors
/// `EFAULT`, or what a sandbox says that forbids the call.
pub fn write_own(at: *mut u8, bytes: &[u8]) -> Result<()> {
    let from = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let to = libc::iovec { iov_base: at.cast(), iov_len: bytes.len() };
    // SAFETY: `from` is the slice; what `to` leads to is the program's own to be written.
    let copied =
        unsafe { call!(process_vm_writev, pid(), &raw const from, 1, &raw const to, 1, 0)? };
    if copied == bytes.len() { Ok(()) } else { Err(Errno(libc::EFAULT)) }
}

/// Opens a file to read. A pipe without a writer does not keep us.
pub fn open_read(path: &core::ffi::CStr) -> Result<i32> {
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: path is NUL-terminated and outlives the call.
    unsafe { call!(openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) }.map(|fd| fd as i32)
}

/// Opens a file to append to, creating it for its owner alone.
pub fn open_append(path: &core::ffi::CStr) -> Result<i32> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    // SAFETY: path is NUL-terminated and outlives the call.
    unsafe { call!(openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600) }.map(|fd| fd as i32)
}

/// Whether a process has ended or is ending. The kernel says that it is before it closes the
/// process's descriptors. Where `/proc` does not tell, one that still has its number is not.
#[must_use]
pub fn is_ending(pid: u32) -> bool {
    /// `PF_EXITING` of the kernel's `linux/sched.h`.
    const EXITING: u32 = 4;
    let path = proc_path(b"/proc/", pid, b"/stat");
    let mut stat = [0; 512];
    let read = core::ffi::CStr::from_bytes_until_nul(&path).map(|path| read_file(path, &mut stat));
    let Ok(Ok(len)) = read else { return !exists(pid) };
    // The name comes second, in parentheses, and may hold any letter; behind it stand state,
    // parent, group, session, terminal, its group, and the flags.
    let name_ends = stat[..len].iter().rposition(|byte| *byte == b')').unwrap_or(0);
    let mut words = stat[name_ends..len].split(|byte| *byte == b' ').skip(1);
    let is_dead = words.next().is_some_and(|state| matches!(state, b"Z" | b"X"));
    let flags = words.nth(5).and_then(|word| core::str::from_utf8(word).ok()?.parse::<u32>().ok());
    is_dead || flags.is_some_and(|flags| flags & EXITING != 0)
}

/// Whether a process has ended: it does not exist, or is a zombie child of ours.
#[must_use]
pub fn is_gone(pid: u32) -> bool {
    if !exists(pid) {
        return true;
    }
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the kernel fills one siginfo; WNOWAIT leaves the child to its parent.
    let asked = unsafe { call!(waitid, libc::P_PID, pid, info.as_mut_ptr(), flags, 0usize) };
    // SAFETY: zeroed, then filled.
    asked.is_ok() && unsafe { info.assume_init().si_pid() } != 0
}

/// `shutdown` of a socket.
pub fn shutdown(fd: i32, how: i32) -> Result {
    // SAFETY: no memory operands.
    unsafe { call!(shutdown, fd, how) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, pipe};
    use std::os::fd::AsRawFd;

    static SIGNALS: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_: i32) {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
    }

    fn write_line(fd: i32) -> Result {
        let line = [b'.'; 100];
        write_unnoticed(fd, &line)
    }

    #[test]
    fn a_time_that_no_clock_counts_ends_later_than_any_other() {
        let years = |n: u64| Duration::from_secs(n * 365 * 24 * 60 * 60);
        assert_eq!(nanoseconds(Duration::from_nanos(i64::MAX as u64 - 1)), i64::MAX as u64 - 1);
        for time in [years(293), Duration::from_secs(1 << 55), Duration::MAX] {
            assert!(deadline(years(292)) <= deadline(time), "{time:?}");
        }
    }

    #[test]
    fn a_line_for_nobody_is_lost_without_a_signal() {
        let _alone = crate::alone_with_descriptors();
        // SAFETY: the handler only counts.
        unsafe { libc::signal(libc::SIGPIPE, count as extern "C" fn(i32) as libc::sighandler_t) };
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        assert_eq!(write_line(writer.as_raw_fd()), Err(Errno(libc::EPIPE)));
        assert_eq!(SIGNALS.load(Ordering::Relaxed), 0);
        raise_here(libc::SIGPIPE);
        assert_eq!(SIGNALS.load(Ordering::Relaxed), 1, "signals arrive again");
    }

    #[test]
    fn descriptors_in_a_queue_can_be_had_more_than_once() {
        let _alone = crate::alone_with_descriptors();
        let [end, other] = packet_pair().unwrap();
        let (reader, writer) = pipe().unwrap();
        assert_eq!(send_fds(other, &[reader.as_raw_fd(), writer.as_raw_fd()]), Ok(0));
        assert_eq!(send(end, b"!", 0), Ok(1));
        close_number(other);
        assert_eq!(peek_fds(end).unwrap_err(), Errno(libc::ECONNRESET));
        for _ in 0..2 {
            let received = peek_fds(end).unwrap();
            assert_eq!((received.len, received.fds().len()), (0, 2));
            received.close_fds();
        }
        close_number(end);
    }

    #[test]
    fn a_name_is_bound_as_long_as_its_socket_lives() {
        let _alone = crate::alone_with_descriptors();
        let name = UnixName::new(b"sidestep/test/bound");
        let [end, other] = packet_pair().unwrap();
        assert!(!is_bound(&name));
        bind_unix(end, &name).unwrap();
        assert!(is_bound(&name));
        let (storage, len) = socket_name(end, false).unwrap();
        assert_eq!(UnixName::in_storage(&storage, len), Some(&b"sidestep/test/bound"[..]));
        close_number(end);
        assert!(!is_bound(&name));
        close_number(other);
    }

    #[test]
    fn open_descriptors_are_found_both_ways() {
        let _alone = crate::alone_with_descriptors();
        let (reader, writer) = pipe().unwrap();
        let ours = [reader.as_raw_fd(), writer.as_raw_fd()];
        let (mut listed, mut polled) = (0, 0);
        for_each_open(|fd| listed += usize::from(ours.contains(&fd)));
        for_each_open_before_gap(|fd| polled += usize::from(ours.contains(&fd)));
        assert_eq!((listed, polled), (2, 2));
    }

    #[test]
    fn memory_can_be_read_to_the_end_of_its_last_page_and_no_further() {
        const PAGE: usize = 4096;
        let base = map(None, 3 * PAGE, true).unwrap();
        // SAFETY: no reference into it; its last page is given back.
        unsafe { unmap(base.wrapping_add(2 * PAGE), PAGE) };
        let is_readable = |at: usize, len| is_readable(base.wrapping_add(at), len);
        assert!(is_readable(0, 1) && is_readable(0, 2 * PAGE) && is_readable(PAGE - 1, 2));
        assert!(is_readable(2 * PAGE - 1, 1) && is_readable(2 * PAGE - 3, 3));
        assert!(!is_readable(2 * PAGE - 1, 2) && !is_readable(0, 2 * PAGE + 1));
        assert!(!is_readable(2 * PAGE, 1) && !is_readable(0, 0));
        for nowhere in [0, 1, 7, 8, usize::MAX, usize::MAX - 7] {
            assert!(!super::is_readable(nowhere as *const u8, 4), "{nowhere:#x}");
        }
        // SAFETY: as above.
        unsafe { unmap(base, 2 * PAGE) };
    }

    #[test]
    fn a_process_is_ending_when_it_is_killed_and_not_before() {
        let _alone = crate::alone_with_descriptors();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        assert!(!is_ending(pid()) && !is_ending(child.id()));
        child.kill().unwrap();
        while !is_ending(child.id()) {
            std::thread::yield_now();
        }
        assert!(exists(child.id()), "not reaped yet");
        child.wait().unwrap();
        assert!(is_ending(child.id()) && is_ending(u32::MAX >> 1));
    }

    #[test]
    fn memory_that_is_only_to_be_read_is_not_written() {
        static CONSTANT: u64 = 7;
        let mut variable = 7u64;
        let eight = 8u64.to_ne_bytes();
        assert_eq!(write_own((&raw mut variable).cast(), &eight), Ok(()));
        let refused = write_own((&raw const CONSTANT).cast_mut().cast(), &eight);
        assert_eq!((variable, refused), (8, Err(Errno(libc::EFAULT))));
    }

    #[test]
    fn a_line_waits_for_no_reader() {
        let (mut reader, writer) = pipe().unwrap();
        while write_line(writer.as_raw_fd()).is_ok() {}
        assert_eq!(write_line(writer.as_raw_fd()), Err(Errno(libc::EAGAIN)));
        // Whatever there is.
        assert_ne!(reader.read(&mut [0; 65536]).unwrap(), 0);
        assert_eq!(write_line(writer.as_raw_fd()), Ok(100));
    }
}
