//! System calls of a socket, by libc's names.
//!
//! Adapters are in the gateway, which is itself a program with the library in front: that has to see
//! by which calls a program reaches its sockets, and moves nothing of one that has calls of its own.
//! What becomes of an adapter's own sockets it passes on, as no concern of it. Every function returns
//! the kernel's answer or its error.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Makes a system call; arguments as in its manual page.
macro_rules! call {
    ($name:ident $(, $arg:expr)* $(,)?) => {
        match libc::$name($($arg),*) {
            -1 => Err(io::Error::last_os_error()),
            answer => Ok(answer as usize),
        }
    };
}

/// The address of a UDP socket, as the kernel has it.
#[derive(Clone, Copy)]
pub(super) struct SocketName {
    /// Has room for the one of IPv4, which begins with the same field.
    name: libc::sockaddr_in6,
    len: u32,
}

impl SocketName {
    /// To be written to by the kernel.
    pub(super) const EMPTY: Self = {
        let name = libc::sockaddr_in6 {
            sin6_family: 0,
            sin6_port: 0,
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
            sin6_scope_id: 0,
        };
        Self { name, len: size_of::<libc::sockaddr_in6>() as u32 }
    };

    pub(super) fn new(address: SocketAddr) -> Self {
        let mut this = Self::EMPTY;
        match address {
            SocketAddr::V4(address) => {
                let name = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                this.len = size_of::<libc::sockaddr_in>() as u32;
                // SAFETY: the place is longer, and no less aligned; any bytes are a value of it.
                unsafe { (&raw mut this.name).cast::<libc::sockaddr_in>().write(name) };
            }
            SocketAddr::V6(address) => {
                this.name.sin6_family = libc::AF_INET6 as u16;
                this.name.sin6_port = address.port().to_be();
                this.name.sin6_addr.s6_addr = address.ip().octets();
            }
        }
        this
    }

    /// Address and port; `None` of another family.
    pub(super) fn read(&self) -> Option<(IpAddr, u16)> {
        match i32::from(self.name.sin6_family) {
            libc::AF_INET => {
                // SAFETY: as long, and the kernel says that it is one.
                let name = unsafe { (&raw const self.name).cast::<libc::sockaddr_in>().read() };
                let address = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
                Some((address.into(), u16::from_be(name.sin_port)))
            }
            libc::AF_INET6 => {
                let address = Ipv6Addr::from(self.name.sin6_addr.s6_addr);
                Some((address.into(), u16::from_be(self.name.sin6_port)))
            }
            _ => None,
        }
    }

    pub(super) const fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.name).cast()
    }

    pub(super) const fn as_mut_ptr(&mut self) -> *mut c_void {
        (&raw mut self.name).cast()
    }

    pub(super) const fn len(&self) -> u32 {
        self.len
    }
}

/// A new socket that does not block and does not outlive `exec`.
pub(super) fn socket(family: c_int, kind: c_int) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: three integers.
    let fd = unsafe { call!(socket, family, kind, 0) }?;
    // SAFETY: new, and owned here alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub(super) fn bind(socket: BorrowedFd<'_>, name: &SocketName) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes of the name as it has.
    unsafe { call!(bind, socket.as_raw_fd(), name.as_ptr(), name.len()) }.map(drop)
}

pub(super) fn connect(socket: BorrowedFd<'_>, name: &SocketName) -> io::Result<()> {
    // SAFETY: as in `bind`.
    unsafe { call!(connect, socket.as_raw_fd(), name.as_ptr(), name.len()) }.map(drop)
}

/// Sets an option whose value is these bytes.
pub(super) fn set_option_bytes(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &[u8],
) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    let (value, len) = (value.as_ptr().cast(), value.len() as u32);
    // SAFETY: the kernel reads as many bytes of the value as it has.
    unsafe { call!(setsockopt, fd, level, name, value, len) }.map(drop)
}

/// Sets an option whose value is a number.
pub(super) fn set_option(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    set_option_bytes(socket, level, name, &value.to_ne_bytes())
}

/// The value of an option that is a number.
pub(super) fn option(socket: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as u32;
    let fd = socket.as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes, which are there.
    unsafe { call!(getsockopt, fd, level, name, (&raw mut value).cast(), &raw mut len) }?;
    Ok(value)
}

/// Sends messages, and returns how many; an error is that of the first one.
///
/// # Safety
///
/// What the headers point to is there, and long enough.
pub(super) unsafe fn send_many(
    socket: BorrowedFd<'_>,
    messages: &mut [libc::mmsghdr],
) -> io::Result<usize> {
    let (fd, len) = (socket.as_raw_fd(), messages.len() as u32);
    // SAFETY: the headers are the caller's word, and there are so many.
    unsafe { call!(sendmmsg, fd, messages.as_mut_ptr(), len, libc::MSG_DONTWAIT) }
}

/// Receives messages that have come already, and returns how many; at least one.
///
/// # Safety
///
/// What the headers point to is there, long enough, and used here alone.
pub(super) unsafe fn receive_many(
    socket: BorrowedFd<'_>,
    messages: &mut [libc::mmsghdr],
) -> io::Result<usize> {
    let (fd, len) = (socket.as_raw_fd(), messages.len() as u32);
    let no_limit = std::ptr::null_mut();
    // SAFETY: the headers are the caller's word, and there are so many.
    unsafe { call!(recvmmsg, fd, messages.as_mut_ptr(), len, libc::MSG_DONTWAIT, no_limit) }
}

/// The two ends of a connection of packets within the host, with room for as much as the kernel lets us have.
pub(super) fn packet_pair() -> io::Result<[OwnedFd; 2]> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let mut fds = [-1; 2];
    // SAFETY: the kernel writes two numbers.
    unsafe { call!(socketpair, libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) }?;
    // SAFETY: new, and owned here alone.
    Ok(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Sends these bytes one behind the other as one packet.
pub(super) fn send_packet(socket: BorrowedFd<'_>, parts: [&[u8]; 2]) -> io::Result<()> {
    let mut iovecs = parts
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    let header = libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: iovecs.as_mut_ptr(),
        msg_iovlen: iovecs.len(),
        msg_control: std::ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the parts are read during the call, and have these lengths.
    unsafe { call!(sendmsg, socket.as_raw_fd(), &raw const header, flags) }.map(drop)
}

/// Whether the other end of a connection is closed.
pub(super) fn is_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut looked_at = libc::pollfd { fd: socket.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: the kernel writes one of these, and does not wait.
    let found = unsafe { call!(poll, &raw mut looked_at, 1, 0) };
    // It is told whether or not it is asked for.
    found.is_ok() && looked_at.revents & libc::POLLHUP != 0
}

/// A descriptor that is readable when one of those that were [watched](watch) is ready.
pub(crate) fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: an integer.
    let fd = unsafe { call!(epoll_create1, libc::EPOLL_CLOEXEC) }?;
    // SAFETY: new, and owned here alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// From now on a descriptor counts, if one of these events is there; for none it does not.
pub(crate) fn watch(epoll: BorrowedFd<'_>, of: BorrowedFd<'_>, events: c_int) -> io::Result<()> {
    let action = if events == 0 { libc::EPOLL_CTL_DEL } else { libc::EPOLL_CTL_ADD };
    let mut event = libc::epoll_event { events: events as u32, u64: 0 };
    let fd = epoll.as_raw_fd();
    // SAFETY: the event is read during the call.
    unsafe { call!(epoll_ctl, fd, action, of.as_raw_fd(), &raw mut event) }.map(drop)
}

/// Calls on a descriptor fail from now on where they would wait.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: integers.
    let flags = unsafe { call!(fcntl, fd.as_raw_fd(), libc::F_GETFL) }?;
    let flags = flags as c_int | libc::O_NONBLOCK;
    // SAFETY: integers.
    unsafe { call!(fcntl, fd.as_raw_fd(), libc::F_SETFL, flags) }.map(drop)
}
