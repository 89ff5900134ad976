//! Sockets as workers use them: TCP of either version, or AF_UNIX.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use socket2::{Domain, SockAddr, Type};

use super::transport::Transport;
use crate::control::{Address, Job};
use crate::plan::Model;
use crate::workload::Kind;

/// A connection.
#[derive(Debug)]
pub(crate) struct Socket {
    inner: socket2::Socket,
    recv_flags: libc::c_int,
}

/// How calls on a connection wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    blocking: bool,
    wait_all: bool,
}

/// Opens a client's connections.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    to: Address,
    manner: Manner,
    /// Connections are established when they are opened, even if no later call waits.
    wait_for_connect: bool,
}

/// Where a server accepts connections.
#[derive(Debug)]
pub(crate) struct Listener {
    inner: socket2::Socket,
    manner: Manner,
    address: Address,
}

impl Manner {
    pub(crate) fn of(job: &Job) -> Self {
        let blocking = job.conduct.blocking && job.model != Model::EventLoop;
        Self { blocking, wait_all: blocking && job.conduct.wait_all }
    }

    pub(crate) fn is_blocking(self) -> bool {
        self.blocking
    }
}

impl Socket {
    fn new(inner: socket2::Socket, manner: Manner) -> Self {
        Self { inner, recv_flags: if manner.wait_all { libc::MSG_WAITALL } else { 0 } }
    }
}

impl Transport for Socket {
    #[inline]
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.send_with_flags(bytes, libc::MSG_NOSIGNAL)
    }

    #[inline]
    fn recv(&mut self, room: &mut [u8]) -> io::Result<usize> {
        // SAFETY: `room` is writable for its length.
        let received = unsafe {
            libc::recv(self.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), self.recv_flags)
        };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

impl Dialer {
    pub(crate) fn new(to: &Address, job: &Job) -> Self {
        let manner = Manner::of(job);
        // A client that connects once does so before the run; one that connects all
        // the time must not keep its loop waiting. AF_UNIX connects at once or, when
        // the server's queue is full, not at all without waiting.
        let wait_for_connect =
            job.workload.kind != Kind::ConnectRequestResponse || matches!(to, Address::Unix(_));
        Self { to: to.clone(), manner, wait_for_connect }
    }

    /// # Errors
    /// As `socket` and `connect`.
    pub(crate) fn dial(&self) -> io::Result<Socket> {
        let (domain, address) = resolve(&self.to)?;
        let socket = stream(domain)?;
        be_prompt(&socket, &self.to)?;
        if !self.manner.blocking && !self.wait_for_connect {
            socket.set_nonblocking(true)?;
        }
        match socket.connect(&address) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(explained(error)),
            Ok(()) if self.manner.blocking => {}
            Ok(()) => socket.set_nonblocking(true)?,
        }
        Ok(Socket::new(socket, self.manner))
    }
}

impl Listener {
    /// Listens at `at`, or at an address of that kind when it leaves the choice.
    ///
    /// # Errors
    /// As `socket`, `bind` and `listen`.
    pub(crate) fn bind(at: &Address, job: &Job) -> io::Result<Self> {
        let manner = Manner::of(job);
        let (inner, address) = match at {
            Address::Unix(name) if name.is_empty() => bind_to_new_name()?,
            named => (bind_to(named)?, named.clone()),
        };
        inner.listen(BACKLOG)?;
        let address = match address {
            Address::Tcp(asked) => Address::Tcp(inner.local_addr()?.as_socket().unwrap_or(asked)),
            named @ Address::Unix(_) => named,
        };
        Ok(Self { inner, manner, address })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Calls of `accept` return at once from now on; these are event loops' listeners.
    ///
    /// # Errors
    /// As `fcntl`.
    pub(crate) fn never_wait(&self) -> io::Result<()> {
        self.inner.set_nonblocking(true)
    }

    /// Takes the next connection. None: it had ended before it was taken.
    ///
    /// # Errors
    /// As `accept`.
    pub(crate) fn accept(&self) -> io::Result<Option<Socket>> {
        let socket = match self.inner.accept() {
            Ok((socket, _)) => socket,
            Err(error) if is_passing(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        be_prompt(&socket, &self.address)?;
        if !self.manner.blocking {
            socket.set_nonblocking(true)?;
        }
        Ok(Some(Socket::new(socket, self.manner)))
    }

    /// Ends all waiting for connections, now and later.
    pub(crate) fn close(&self) {
        // On a listener that is closed already there is nothing to end.
        let _ = self.inner.shutdown(Shutdown::Both);
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

/// An address as people write it.
pub(crate) fn show(address: &Address) -> String {
    match address {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(name) => format!("unix:@{name}"),
    }
}

fn stream(domain: Domain) -> io::Result<socket2::Socket> {
    socket2::Socket::new(domain, Type::STREAM, None)
}

fn resolve(address: &Address) -> io::Result<(Domain, SockAddr)> {
    match address {
        Address::Tcp(address) => Ok((Domain::for_address(*address), (*address).into())),
        // A leading zero byte: the abstract namespace.
        Address::Unix(name) => Ok((Domain::UNIX, SockAddr::unix(format!("\0{name}"))?)),
    }
}

fn bind_to(address: &Address) -> io::Result<socket2::Socket> {
    let (domain, resolved) = resolve(address)?;
    let socket = stream(domain)?;
    // The port of a run before has connections in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(&resolved)?;
    Ok(socket)
}

/// A name that is free: numbers are tried until one is free.
fn bind_to_new_name() -> io::Result<(socket2::Socket, Address)> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("sidestep-bench-{}-{number}", std::process::id());
        match bind_to(&Address::Unix(name.clone())) {
            Ok(socket) => return Ok((socket, Address::Unix(name))),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
}

/// Small messages leave at once.
fn be_prompt(socket: &socket2::Socket, address: &Address) -> io::Result<()> {
    match address {
        Address::Tcp(_) => socket.set_tcp_nodelay(true),
        Address::Unix(_) => Ok(()),
    }
}

/// Errors of `accept` that are the connection's, not the listener's.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}

/// Says what to do, where the system's word for it does not.
fn explained(error: io::Error) -> io::Error {
    let advice = match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => {
            "no local port is left: see net.ipv4.ip_local_port_range, or ask for fewer clients"
        }
        Some(libc::ECONNREFUSED) => "no program listens there",
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error}; {advice}"))
}

/// Connections that may wait to be accepted; the kernel takes no more than
/// `net.core.somaxconn`, which is this by default.
const BACKLOG: i32 = 4096;
