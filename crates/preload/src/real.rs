//! The libc behind us.
//!
//! The program's own calls go on to the next object that defines the name
//! (`RTLD_NEXT`), so that other preloaded libraries keep working. Names are looked
//! up when the library starts; one that is called even before is looked up then.
//!
//! It is glibc or musl. Both have the kernel's numbers and, but for what [`is_musl`] is asked about, the same structs.

use crate::errno::set_errno;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

static IS_MUSL: AtomicBool = AtomicBool::new(false);

/// Whether the program has musl.
#[inline]
pub(crate) fn is_musl() -> bool {
    IS_MUSL.load(Ordering::Relaxed)
}

/// Finds out which libc the program has, and where its names are.
pub(crate) fn find() {
    let is_glibc = !Name::new(c"gnu_get_libc_version").find().is_null();
    IS_MUSL.store(!is_glibc, Ordering::Relaxed);
    find_all();
}

/// One name of libc.
pub(crate) struct Name {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Name {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Its address; null when this libc does not have it.
    #[inline]
    pub(crate) fn address(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.find() } else { address }
    }

    #[cold]
    pub(crate) fn find(&self) -> *mut c_void {
        // SAFETY: the name is NUL-terminated.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// The answer of a function that this libc lacks: the system call's, if Linux has one, else -1 with `ENOSYS`.
macro_rules! lacking {
    ($result:ty) => {{
        set_errno(libc::ENOSYS);
        -1i8 as $result
    }};
    ($result:ty, $number:ident($($word:expr),*)) => {{
        let words = [$($word as usize),*];
        let word = |place: usize| words.get(place).copied().unwrap_or(0);
        // SAFETY: the caller's promise.
        unsafe { syscall(libc::$number, word(0), word(1), word(2), word(3), word(4), word(5)) as $result }
    }};
}

/// Declares libc functions: `real::send(fd, …)` calls the next `send`. For one that this libc lacks it makes the
/// system call behind `=`.
macro_rules! names {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty $(= $number:ident$words:tt)?;)*) => {
        #[allow(non_upper_case_globals)]
        mod table {
            use super::Name;
            $(pub(super) static $name: Name = {
                // SAFETY: concat! adds the only NUL.
                Name::new(unsafe {
                    core::ffi::CStr::from_bytes_with_nul_unchecked(
                        concat!(stringify!($name), "\0").as_bytes(),
                    )
                })
            };)*
        }

        /// Looks every name up.
        fn find_all() {
            $(table::$name.find();)*
        }

        $(
            /// The next definition of this name.
            ///
            /// # Safety
            /// As libc's function.
            #[inline]
            #[allow(non_snake_case, reason = "libc has a `_Fork`")]
            pub(crate) unsafe fn $name($($arg: $type),*) -> $result {
                let address = table::$name.address();
                if address.is_null() {
                    return lacking!($result $(, $number$words)?);
                }
                type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
                // SAFETY: libc defines the name with this signature.
                let function: Function = unsafe { core::mem::transmute(address) };
                // SAFETY: the caller's promise.
                unsafe { function($($arg),*) }
            }
        )*
    };
}

type Fds = *mut libc::pollfd;
type Bits = *mut c_void;
type Iov = *const libc::iovec;
type Message = *mut libc::msghdr;
type Messages = *mut libc::mmsghdr;
type Address = *mut libc::sockaddr;
type Length = *mut libc::socklen_t;
type Time = *const libc::timespec;
type Mask = *const c_void;
type Events = *mut libc::epoll_event;
type Path = *const libc::c_char;
type Listed = *const libc::posix_spawn_file_actions_t;
type Attributes = *const libc::posix_spawnattr_t;
type Texts = *const *const libc::c_char;
type Text = *const libc::c_char;
type Host = *mut libc::hostent;

/// The function with which a child of `clone` begins; its result is the exit code.
pub(crate) type Begin = unsafe extern "C" fn(*mut c_void) -> i32;

names! {
    fn socket(domain: i32, kind: i32, protocol: i32) -> i32;
    fn connect(fd: i32, address: *const libc::sockaddr, len: u32) -> i32;
    fn listen(fd: i32, backlog: i32) -> i32;
    fn accept(fd: i32, address: Address, len: Length) -> i32;
    fn accept4(fd: i32, address: Address, len: Length, flags: i32) -> i32;
    fn close(fd: i32) -> i32;
    fn _exit(status: i32) -> i32;
    fn close_range(first: u32, last: u32, flags: i32) -> i32 = SYS_close_range(first, last, flags);
    fn shutdown(fd: i32, how: i32) -> i32;
    fn dup(fd: i32) -> i32;
    fn dup2(old: i32, new: i32) -> i32;
    fn dup3(old: i32, new: i32, flags: i32) -> i32;
    fn fcntl(fd: i32, command: i32, argument: usize) -> i32;
    fn ioctl(fd: i32, request: u64, argument: usize) -> i32;
    fn read(fd: i32, at: *mut c_void, len: usize) -> isize;
    fn write(fd: i32, at: *const c_void, len: usize) -> isize;
    fn readv(fd: i32, list: Iov, count: i32) -> isize;
    fn writev(fd: i32, list: Iov, count: i32) -> isize;
    fn preadv2(fd: i32, list: Iov, count: i32, offset: i64, flags: i32) -> isize
        = SYS_preadv2(fd, list, count, offset, 0, flags);
    fn pwritev2(fd: i32, list: Iov, count: i32, offset: i64, flags: i32) -> isize
        = SYS_pwritev2(fd, list, count, offset, 0, flags);
    fn recv(fd: i32, at: *mut c_void, len: usize, flags: i32) -> isize;
    fn recvfrom(fd: i32, at: *mut c_void, len: usize, flags: i32, from: Address, size: Length)
        -> isize;
    fn recvmsg(fd: i32, message: Message, flags: i32) -> isize;
    fn recvmmsg(fd: i32, list: Messages, count: u32, flags: i32, time: *mut libc::timespec)
        -> i32;
    fn send(fd: i32, at: *const c_void, len: usize, flags: i32) -> isize;
    fn sendto(fd: i32, at: *const c_void, len: usize, flags: i32, to: *const libc::sockaddr, size: u32)
        -> isize;
    fn sendmsg(fd: i32, message: *const libc::msghdr, flags: i32) -> isize;
    fn sendmmsg(fd: i32, list: Messages, count: u32, flags: i32) -> i32;
    fn __read_chk(fd: i32, at: *mut c_void, len: usize, room: usize) -> isize;
    fn __recv_chk(fd: i32, at: *mut c_void, len: usize, room: usize, flags: i32) -> isize;
    fn __recvfrom_chk(fd: i32, at: *mut c_void, len: usize, room: usize, flags: i32, from: Address, size: Length)
        -> isize;
    fn sendfile(out: i32, file: i32, offset: *mut i64, len: usize) -> isize;
    fn splice(input: i32, in_at: *mut i64, out: i32, out_at: *mut i64, len: usize, flags: u32)
        -> isize;
    fn getpeername(fd: i32, peer: Address, size: Length) -> i32;
    fn getsockname(fd: i32, local: Address, size: Length) -> i32;
    fn setsockopt(fd: i32, level: i32, name: i32, value: *const c_void, len: u32) -> i32;
    fn getsockopt(fd: i32, level: i32, name: i32, value: *mut c_void, len: Length) -> i32;
    fn sockatmark(fd: i32) -> i32;
    fn poll(fds: Fds, count: u64, timeout: i32) -> i32;
    fn __poll_chk(fds: Fds, count: u64, timeout: i32, room: usize) -> i32;
    fn ppoll(fds: Fds, count: u64, time: Time, mask: Mask) -> i32;
    fn __ppoll_chk(fds: Fds, count: u64, time: Time, mask: Mask, room: usize) -> i32;
    fn select(nfds: i32, read: Bits, write: Bits, except: Bits, time: *mut libc::timeval) -> i32;
    fn pselect(nfds: i32, read: Bits, write: Bits, except: Bits, time: Time, mask: Mask) -> i32;
    fn epoll_create(size: i32) -> i32;
    fn epoll_create1(flags: i32) -> i32;
    fn epoll_ctl(epfd: i32, operation: i32, fd: i32, event: Events) -> i32;
    fn epoll_wait(epfd: i32, events: Events, max: i32, timeout: i32) -> i32;
    fn epoll_pwait(epfd: i32, events: Events, max: i32, timeout: i32, mask: Mask) -> i32;
    fn epoll_pwait2(epfd: i32, events: Events, max: i32, time: Time, mask: Mask) -> i32
        = SYS_epoll_pwait2(epfd, events, max, time, mask, size_of::<u64>());
    fn pipe(fds: *mut i32) -> i32;
    fn pipe2(fds: *mut i32, flags: i32) -> i32;
    fn socketpair(domain: i32, kind: i32, protocol: i32, fds: *mut i32) -> i32;
    fn eventfd(count: u32, flags: i32) -> i32;
    fn open(path: Path, flags: i32, mode: u32) -> i32;
    fn openat(at: i32, path: Path, flags: i32, mode: u32) -> i32;
    fn timerfd_create(clock: i32, flags: i32) -> i32;
    fn signalfd(fd: i32, mask: Mask, flags: i32) -> i32;
    fn fdopen(fd: i32, mode: Path) -> *mut libc::FILE;
    fn freopen(path: Path, mode: Path, file: *mut libc::FILE) -> *mut libc::FILE;
    fn fclose(file: *mut libc::FILE) -> i32;
    fn fork() -> i32;
    fn _Fork() -> i32;
    fn clone(begin: Begin, stack: *mut c_void, flags: i32, argument: *mut c_void, parent_tid: *mut c_void, tls: *mut c_void, child_tid: *mut c_void)
        -> i32;
    fn execve(path: Path, arguments: Texts, environment: Texts) -> i32;
    fn execv(path: Path, arguments: Texts) -> i32;
    fn execvp(file: Path, arguments: Texts) -> i32;
    fn execvpe(file: Path, arguments: Texts, environment: Texts) -> i32;
    fn fexecve(fd: i32, arguments: Texts, environment: Texts) -> i32;
    fn execveat(at: i32, path: Path, arguments: Texts, environment: Texts, flags: i32) -> i32
        = SYS_execveat(at, path, arguments, environment, flags);
    fn posix_spawn(child: *mut i32, path: Path, actions: Listed, attributes: Attributes, arguments: Texts, environment: Texts)
        -> i32;
    fn posix_spawnp(child: *mut i32, file: Path, actions: Listed, attributes: Attributes, arguments: Texts, environment: Texts)
        -> i32;
    fn posix_spawn_file_actions_addchdir_np(actions: *mut libc::posix_spawn_file_actions_t, path: Path) -> i32;
    fn posix_spawn_file_actions_addfchdir_np(actions: *mut libc::posix_spawn_file_actions_t, fd: i32) -> i32;
    fn system(command: Path) -> i32;
    fn popen(command: Path, kind: Path) -> *mut libc::FILE;
    fn getaddrinfo(name: Text, service: Text, hints: *const libc::addrinfo, found: *mut *mut libc::addrinfo)
        -> i32;
    fn gethostbyname(name: Text) -> Host;
    fn gethostbyname2(name: Text, family: i32) -> Host;
    fn gethostbyname_r(name: Text, room: Host, at: *mut libc::c_char, len: usize, found: *mut Host, error: *mut i32)
        -> i32;
    fn gethostbyname2_r(name: Text, family: i32, room: Host, at: *mut libc::c_char, len: usize, found: *mut Host, error: *mut i32)
        -> i32;
    fn prctl(option: i32, a: usize, b: usize, c: usize, d: usize) -> i32;
    fn syscall(number: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> i64;
}
