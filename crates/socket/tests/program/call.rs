//! A program's calls, made as the preloaded library makes them.
//!
//! Each is the library's answer where the descriptor is one of its, and the kernel's where it is not.
//! So a connection of which the library was never told is plain TCP, and the same function plays
//! both. An answer is what libc's function returns, an error its number negated, and what the call
//! has written besides.

use sidestep_device::program::{Argument, Buffers, Received, Sent};
use sidestep_device::sys::SignalMask;
use sidestep_socket::Answer;
use sidestep_socket::polling::multiplex::{self, FdSets};
use sidestep_socket::polling::{epoll, set};
use sidestep_socket::program::socket_options::{self, OptionAnswer};
use sidestep_socket::program::stream::{self, Instead, Outcome};
use sidestep_socket::program::transfer::{self, Pipe, Source};
use sidestep_socket::program::{bundle, life};
use sidestep_socket::table::descriptors;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// What a call has come to.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Returned {
    /// A count or a number, or an error number negated.
    pub(crate) value: i64,
    /// Bytes that were received.
    pub(crate) bytes: Vec<u8>,
}

impl Returned {
    /// An answer without bytes.
    pub(crate) fn number(value: i64) -> Self {
        Self { value, bytes: Vec::new() }
    }
}

/// As a failure shows it.
impl std::fmt::Debug for Returned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.value {
            error @ ..0 => write!(f, "{}", Error::from_raw_os_error(-error as i32)),
            number => write!(f, "{number}"),
        }?;
        match &self.bytes[..] {
            [] => Ok(()),
            [first, .., last] => write!(f, " ({} bytes, {first}..{last})", self.bytes.len()),
            [byte] => write!(f, " (byte {byte})"),
        }
    }
}

/// What libc has returned.
pub(crate) fn plain(n: isize) -> i64 {
    if n >= 0 { n as i64 } else { -i64::from(errno()) }
}

fn errno() -> i32 {
    Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// What the library has answered.
fn ours(answer: Answer) -> i64 {
    answer.map_or_else(|errno| -i64::from(errno), |n| n as i64)
}

fn outcome(outcome: Outcome) -> i64 {
    match outcome {
        Outcome::Plain(n) => plain(n),
        Outcome::Ours(answer) => ours(answer),
    }
}

/// Cuts bytes into parts of these lengths, the last of which has the rest.
fn cut(bytes: &mut [u8], lens: &[usize]) -> Vec<libc::iovec> {
    let mut rest = bytes;
    let mut list = Vec::new();
    for len in lens {
        let (part, behind) = rest.split_at_mut((*len).min(rest.len()));
        list.push(part);
        rest = behind;
    }
    list.push(rest);
    list.into_iter()
        .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() })
        .collect()
}

/// `sendmsg` of bytes that lie in parts of these lengths, and one part more.
pub(crate) fn send(fd: i32, bytes: &[u8], lens: &[usize], flags: i32) -> Returned {
    let flags = flags | libc::MSG_NOSIGNAL;
    let mut bytes = bytes.to_vec();
    let mut list = cut(&mut bytes, lens);
    // SAFETY: zero bytes are a header without anything.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (list.as_mut_ptr(), list.len());
    // SAFETY: the parts lie in `bytes`.
    let call = || unsafe { libc::sendmsg(fd, &raw const header, flags) };
    // SAFETY: the same.
    let buffers = || unsafe { Buffers::<Sent>::new(list.as_ptr(), list.len()) };
    let sent = stream::send(fd, buffers, flags, call);
    Returned::number(sent.map_or_else(|| plain(call()), outcome))
}

/// `recvmsg` into `room` bytes that lie in parts of these lengths, and one part more.
pub(crate) fn receive(fd: i32, room: usize, lens: &[usize], flags: i32) -> Returned {
    let mut bytes = vec![0; room];
    let mut list = cut(&mut bytes, lens);
    let (parts, count) = (list.as_mut_ptr(), list.len());
    let call = || {
        // SAFETY: zero bytes are a header without anything; the parts lie in `bytes`.
        unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            (header.msg_iov, header.msg_iovlen) = (parts, count);
            libc::recvmsg(fd, &raw mut header, flags)
        }
    };
    // SAFETY: the same.
    let buffers = || unsafe { Buffers::<Received>::new(parts, count) };
    let received = stream::receive(fd, buffers, flags, call);
    let value = received.map_or_else(|| plain(call()), outcome);
    // What was thrown away was never written.
    let is_written = flags & libc::MSG_TRUNC == 0;
    bytes.truncate(if is_written { usize::try_from(value).unwrap_or(0) } else { 0 });
    Returned { value, bytes }
}

/// `sendfile` from a place in a file.
pub(crate) fn send_file(fd: i32, file: i32, at: usize, len: usize) -> Returned {
    let call = || {
        let mut offset = at as i64;
        // SAFETY: one offset.
        unsafe { libc::sendfile(fd, file, &raw mut offset, len) }
    };
    from(fd, Source::File(file, Some(at as i64)), len, call)
}

/// `splice` out of a pipe, which has so many bytes.
pub(crate) fn splice_in(fd: i32, pipe: i32, len: usize) -> Returned {
    let none = std::ptr::null_mut();
    // SAFETY: no offsets.
    let call = || unsafe { libc::splice(pipe, none, fd, none, len, libc::SPLICE_F_NONBLOCK) };
    from(fd, Source::Pipe(Pipe { fd: pipe, dont_wait: true }), len, call)
}

fn from(fd: i32, source: Source, len: usize, call: impl Fn() -> isize) -> Returned {
    let value = loop {
        let Some(sock) = descriptors::sock(fd).filter(|_| len > 0) else { break plain(call()) };
        match stream::send_by_tcp(&sock, fd, &call) {
            Ok(n) => break plain(n),
            Err(Instead::Anew) => continue,
            Err(Instead::Ring) => {}
        }
        if let Some(answer) = transfer::send_from(&sock, fd, source, len) {
            break ours(answer);
        }
    };
    Returned::number(value)
}

/// `splice` into a pipe, which has room for so many bytes.
pub(crate) fn splice_out(fd: i32, pipe: i32, len: usize) -> Returned {
    let none = std::ptr::null_mut();
    // SAFETY: no offsets.
    let call = || unsafe { libc::splice(fd, none, pipe, none, len, libc::SPLICE_F_NONBLOCK) };
    let value = loop {
        let Some(sock) = descriptors::sock(fd).filter(|_| len > 0) else { break plain(call()) };
        match stream::receive_by_tcp(&sock, fd, 0, &call) {
            Ok(n) => break plain(n),
            Err(Instead::Anew) => continue,
            Err(Instead::Ring) => {
                let pipe = Pipe { fd: pipe, dont_wait: true };
                break ours(transfer::receive_into(&sock, fd, pipe, len));
            }
        }
    };
    Returned::number(value)
}

/// A time-out as the older calls of the kernel take it: 24 days at most.
fn milliseconds(timeout: Duration) -> i32 {
    timeout.as_millis().try_into().unwrap_or(i32::MAX)
}

/// `poll` of one descriptor: what is returned in `revents`.
pub(crate) fn poll(fd: i32, events: i16, timeout: Duration) -> Returned {
    let mut entry = [libc::pollfd { fd, events, revents: 0 }];
    let at = entry.as_mut_ptr();
    let count = if multiplex::concerns(fd) {
        ours(multiplex::poll(&mut entry, Some(timeout), SignalMask::NONE))
    } else {
        // SAFETY: one entry.
        plain(unsafe { libc::poll(at, 1, milliseconds(timeout)) } as isize)
    };
    assert_eq!(count, i64::from(entry[0].revents != 0), "the count is that of the entries");
    Returned::number(entry[0].revents.into())
}

/// `select` of one descriptor in all three sets: whether it may be read, written, has urgent data.
pub(crate) fn select(fd: i32) -> Returned {
    let words = fd as usize / 64 + 1;
    let mut bits = [(); 3].map(|()| vec![0u64; words]);
    bits.iter_mut().for_each(|set| set[words - 1] = 1 << (fd % 64));
    let [read, write, except] = bits.each_mut().map(Vec::as_mut_ptr);
    // SAFETY: as many words as `nfds` says.
    let arguments = [read, write, except].map(|set| unsafe { Argument::new(set, words) });
    let sets = FdSets::new(arguments, fd as usize + 1);
    let count = if sets.concern_us() {
        ours(multiplex::select(sets, Some(Duration::ZERO), SignalMask::NONE))
    } else {
        let mut now = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let [read, write, except] = [read, write, except].map(<*mut u64>::cast);
        // SAFETY: the kernel looks at whole words.
        plain(unsafe { libc::select(fd + 1, read, write, except, &raw mut now) } as isize)
    };
    let found = bits.map(|set| i64::from(set[words - 1] != 0));
    assert!(count < 0 || count == found.iter().sum::<i64>(), "the count is that of the bits");
    Returned::number(found[0] | found[1] << 1 | found[2] << 2)
}

/// `epoll_ctl`.
pub(crate) fn control(epfd: i32, operation: i32, fd: i32, events: u32, data: u64) -> Returned {
    let mut event = libc::epoll_event { events, u64: data };
    let at = &raw mut event;
    // SAFETY: one event.
    let argument = unsafe { Argument::new(at, 1) };
    let answer = epoll::control(epfd, operation, fd, argument);
    // SAFETY: the same.
    let call = || plain(unsafe { libc::epoll_ctl(epfd, operation, fd, at) } as isize);
    Returned::number(answer.map_or_else(call, ours))
}

/// `epoll_wait` without waiting, or for so long: events by their data.
pub(crate) fn wait(epfd: i32, max: usize, timeout: Duration) -> Result<Vec<(u64, u32)>, i64> {
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; max];
    let (at, max) = (events.as_mut_ptr(), max as i32);
    // SAFETY: room for so many events.
    let call = || plain(unsafe { libc::epoll_wait(epfd, at, max, milliseconds(timeout)) } as isize);
    let in_use = set::set_in_use(epfd);
    let count = match in_use.as_ref().map(set::SetUse::set) {
        None => call(),
        Some(set) if set.is_tagged() => {
            ours(epoll::wait(set, epfd, &mut events, Some(timeout), SignalMask::NONE))
        }
        Some(set) => match call() {
            count @ 1.. if set.is_tagged() => {
                match epoll::sort_out(set, &mut events[..count as usize]) {
                    0 => ours(epoll::wait(set, epfd, &mut events, Some(timeout), SignalMask::NONE)),
                    kept => kept as i64,
                }
            }
            count => count,
        },
    };
    let count = usize::try_from(count).map_err(|_| count)?;
    Ok(events[..count].iter().map(|event| (event.u64, event.events)).collect())
}

/// A set, of which the library knows or not.
pub(crate) fn new_set(is_known: bool) -> i32 {
    // SAFETY: no memory operands.
    let epfd = forget(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
    if is_known {
        epoll::register(epfd).expect("room for a set");
    }
    epfd
}

/// A number that libc has just handed out means what it means now.
pub(crate) fn forget(fd: i32) -> i32 {
    assert!(fd >= 0, "{}", Error::last_os_error());
    if descriptors::is_ours(fd) {
        life::forget_number(fd);
    }
    fd
}

/// `SIOCATMARK` of `asm-generic/sockios.h`.
const SIOCATMARK: u64 = 0x8905;

/// `FIONREAD`: bytes that a receive would find now.
pub(crate) fn unread(fd: i32) -> Returned {
    let ours = descriptors::sock(fd).and_then(|sock| socket_options::readable_bytes(&sock, fd));
    Returned::number(ours.map_or_else(|| ioctl(fd, libc::FIONREAD), |n| n as i64))
}

/// `TIOCOUTQ`: bytes that the peer has not taken.
pub(crate) fn untaken(fd: i32) -> Returned {
    let ours = descriptors::sock(fd).and_then(|sock| socket_options::unread_by_peer(&sock));
    Returned::number(ours.map_or_else(|| ioctl(fd, libc::TIOCOUTQ), |n| n as i64))
}

/// `SIOCATMARK`: whether the next byte is the urgent one.
pub(crate) fn at_mark(fd: i32) -> Returned {
    let ours = descriptors::sock(fd).and_then(|sock| socket_options::at_mark(&sock, fd));
    Returned::number(ours.map_or_else(|| ioctl(fd, SIOCATMARK), i64::from))
}

fn ioctl(fd: i32, request: u64) -> i64 {
    let mut number = 0i32;
    // SAFETY: these requests store one int.
    match plain(unsafe { libc::ioctl(fd, request, &raw mut number) } as isize) {
        0 => number.into(),
        error => error,
    }
}

/// `getsockopt` of one number, or of the first byte of a structure.
pub(crate) fn option(fd: i32, level: i32, name: i32) -> Returned {
    let is_info = (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO);
    let ours = descriptors::object(fd)
        .map_or(OptionAnswer::Kernel, |sock| socket_options::get_option(&sock, fd, level, name));
    let (mut number, mut len) = ([0u8; 4], if is_info { 1 } else { 4 });
    let at = number.as_mut_ptr().cast();
    // SAFETY: at most four bytes.
    let result = unsafe { libc::getsockopt(fd, level, name, at, &raw mut len) } as isize;
    Returned::number(match (plain(result), ours) {
        (0, OptionAnswer::Value(value)) => value.into(),
        (0, OptionAnswer::FirstByte(byte)) => byte.into(),
        (0, _) => i32::from_ne_bytes(number).into(),
        (error, _) => error,
    })
}

/// `setsockopt`, with the one or two words of an option.
pub(crate) fn set_option(fd: i32, level: i32, name: i32, words: &[i32]) -> Returned {
    let concerns_us = socket_options::concerns_us(level, name);
    let sock = if concerns_us { descriptors::sock(fd) } else { descriptors::object(fd) };
    if let Some(sock) = &sock {
        match socket_options::before_set_option(sock, level, name, words[0]) {
            OptionAnswer::Kernel | OptionAnswer::FirstByte(_) => {}
            OptionAnswer::Value(value) => return Returned::number(value.into()),
            OptionAnswer::Refused(errno) => return Returned::number(-i64::from(errno)),
        }
    }
    let len = size_of_val(words) as u32;
    // SAFETY: so many bytes.
    let result = unsafe { libc::setsockopt(fd, level, name, words.as_ptr().cast(), len) };
    if let Some(sock) = sock.filter(|_| result == 0) {
        let second = words.get(1).copied().unwrap_or(0);
        socket_options::after_set_option(&sock, fd, level, name, words[0], second);
    }
    Returned::number(plain(result as isize))
}

/// `F_SETFL`: whether calls wait.
pub(crate) fn set_nonblocking(fd: i32, on: bool) {
    let flags = if on { libc::O_RDWR | libc::O_NONBLOCK } else { libc::O_RDWR };
    // SAFETY: no memory operands.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) }, 0);
    if let Some(sock) = descriptors::object(fd) {
        socket_options::note_status_flags(&sock, flags);
    }
}

/// `getpeername`: 0, or why there is none.
pub(crate) fn peer_name(fd: i32) -> Returned {
    use sidestep_socket::connection::closing;
    if descriptors::object(fd).is_some_and(|sock| closing::has_no_peer(&sock, fd)) {
        return Returned::number(-i64::from(libc::ENOTCONN));
    }
    // SAFETY: zero bytes are an address.
    let mut address: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&address) as u32;
    let at = (&raw mut address).cast();
    // SAFETY: room for any address.
    Returned::number(plain(unsafe { libc::getpeername(fd, at, &raw mut len) } as isize))
}

/// `shutdown`.
pub(crate) fn shutdown(fd: i32, how: i32) -> Returned {
    let sock = match how {
        libc::SHUT_WR => descriptors::object(fd),
        _ => descriptors::sock(fd),
    };
    let ours_alone = sock.and_then(|sock| life::shutdown(&sock, fd, how));
    // SAFETY: no memory operands.
    let call = || plain(unsafe { libc::shutdown(fd, how) } as isize);
    Returned::number(ours_alone.map_or_else(call, ours))
}

/// `close`.
pub(crate) fn close(fd: i32) {
    let closing = life::before_close(fd);
    // SAFETY: the caller's own.
    assert_eq!(unsafe { libc::close(fd) }, 0);
    drop(closing);
}

/// `dup`.
pub(crate) fn duplicate(fd: i32) -> i32 {
    // SAFETY: no memory operands.
    let new = unsafe { libc::dup(fd) };
    assert!(new >= 0, "{}", Error::last_os_error());
    life::duplicate(fd, new);
    new
}

/// Sends a descriptor to this program itself (`SCM_RIGHTS`), closes it, and receives it: its new number.
pub(crate) fn pass_on(fd: i32) -> i32 {
    let (from, to) = UnixStream::pair().expect("two sockets");
    let mut control = Control::around(fd);
    with_control(&mut control, |header, control| {
        bundle::send_rights(header, control, |header| {
            // SAFETY: one byte, and control messages of the length that the header has.
            unsafe { libc::sendmsg(from.as_raw_fd(), header, 0) }
        })
    });
    close(fd);
    let mut control = Control::around(-1);
    with_control(&mut control, |header, _| {
        let mut header = *header;
        // SAFETY: room for a byte and a descriptor.
        unsafe { libc::recvmsg(to.as_raw_fd(), &raw mut header, 0) }
    });
    let bytes = control.bytes();
    bundle::receive_rights(bytes);
    i32::from_ne_bytes(bytes[Control::AT..].try_into().expect("a descriptor"))
}

/// A control message with one descriptor.
#[repr(C, align(8))]
struct Control {
    header: libc::cmsghdr,
    fd: i32,
    padding: i32,
}

impl Control {
    const AT: usize = size_of::<libc::cmsghdr>();
    const LEN: usize = Self::AT + size_of::<i32>();

    fn around(fd: i32) -> Self {
        // SAFETY: numbers.
        let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
        (header.cmsg_level, header.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        header.cmsg_len = Self::LEN;
        Self { header, fd, padding: 0 }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: all of them are numbers.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), Self::LEN) }
    }
}

/// Makes a call with a header of one byte and a control message.
fn with_control(
    control: &mut Control,
    call: impl FnOnce(&libc::msghdr, Argument<'_, u8>) -> isize,
) {
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: zero bytes are a header without anything.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    let at: *mut Control = control;
    (header.msg_control, header.msg_controllen) = (at.cast(), size_of::<Control>());
    // SAFETY: the message.
    let argument = unsafe { Argument::new(at.cast(), Control::LEN) };
    assert_eq!(call(&header, argument), 1, "{}", Error::last_os_error());
}
