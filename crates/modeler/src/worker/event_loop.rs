//! The model `event-loop`: many connections to a thread, level-triggered epoll.
//!
//! Timers are a timerfd in the same set. `epoll_wait` counts in milliseconds, and
//! `epoll_pwait2`, which counts in nanoseconds, is missing from the C library of
//! systems that are still in use (glibc before 2.35).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::clock::{self, checked};
use super::conversation::{Conversation, Step, Terms};
use super::poller::{Interest, Poller};
use super::socket::{Dialer, Listener, Socket};
use super::trouble::Trouble;
use crate::control::Job;

/// The poller of a client's loop.
pub(crate) struct Epoll {
    set: Set,
    dialer: Dialer,
    timer: OwnedFd,
    /// When the timer rings; none: it is off.
    rings_ns: Option<u64>,
}

impl Epoll {
    /// # Errors
    /// The system refuses.
    pub(crate) fn new(dialer: Dialer) -> io::Result<Self> {
        // SAFETY: no operands.
        let timer = owned(unsafe {
            libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK)
        })?;
        let set = Set::new()?;
        set.add(timer.as_raw_fd(), TIMER, libc::EPOLLIN)?;
        Ok(Self { set, dialer, timer, rings_ns: None })
    }

    /// Sets the timer, if it is not set so. One that has rung goes on ringing until it
    /// is set again.
    fn ring_at(&mut self, at_ns: Option<u64>) -> io::Result<()> {
        if self.rings_ns == at_ns {
            return Ok(());
        }
        let time = libc::itimerspec {
            it_interval: clock::timespec(0),
            // Zero would turn it off.
            it_value: clock::timespec(at_ns.map_or(0, |at_ns| at_ns.max(1))),
        };
        // SAFETY: `time` lives through the call; the old value is not asked for.
        checked(unsafe {
            libc::timerfd_settime(
                self.timer.as_raw_fd(),
                libc::TFD_TIMER_ABSTIME,
                &raw const time,
                std::ptr::null_mut(),
            )
        })?;
        self.rings_ns = at_ns;
        Ok(())
    }
}

impl Poller for Epoll {
    type Transport = Socket;

    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }

    fn open(&mut self) -> io::Result<Socket> {
        self.dialer.dial()
    }

    fn register(&mut self, token: usize, socket: &Socket, interest: Interest) -> io::Result<()> {
        self.set.add(socket.as_raw_fd(), token as u64, events_of(interest))
    }

    fn reregister(&mut self, token: usize, socket: &Socket, interest: Interest) -> io::Result<()> {
        self.set.modify(socket.as_raw_fd(), token as u64, events_of(interest))
    }

    fn wait(&mut self, until_ns: Option<u64>, ready: &mut Vec<usize>) -> io::Result<()> {
        self.ring_at(until_ns)?;
        let tokens = self.set.wait()?;
        ready.extend(tokens.filter(|token| *token != TIMER).map(|token| token as usize));
        Ok(())
    }
}

/// Serves up to `most` connections at a time, all in one loop, until the listener is
/// closed.
///
/// # Errors
/// The listener fails or was closed; a client misbehaves.
pub(crate) fn serve(listener: &Listener, job: &Job, most: u32) -> Result<(), Trouble> {
    Server::new(listener, job, most)?.run()
}

struct Server<'a> {
    set: Set,
    listener: &'a Listener,
    terms: Terms,
    /// By token; none: free.
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Connections it may still accept now. At zero it does not listen, so that other
    /// loops get theirs.
    room: u32,
    buffer: Vec<u8>,
}

struct Connection {
    socket: Socket,
    conversation: Conversation,
    interest: Interest,
}

impl<'a> Server<'a> {
    fn new(listener: &'a Listener, job: &Job, most: u32) -> io::Result<Self> {
        let terms = Terms::of(job);
        let server = Self {
            set: Set::new()?,
            listener,
            terms,
            connections: (0..most).map(|_| None).collect(),
            free: (0..most as usize).rev().collect(),
            room: most,
            buffer: terms.buffer(job.conduct.chunk_len),
        };
        server.listen()?;
        Ok(server)
    }

    fn run(mut self) -> Result<(), Trouble> {
        let mut ready = Vec::new();
        loop {
            ready.clear();
            ready.extend(self.set.wait()?);
            for &token in &ready {
                match token {
                    LISTENER => self.accept()?,
                    _ => self.advance(token as usize)?,
                }
            }
        }
    }

    /// Takes all connections that wait, as far as there is room.
    fn accept(&mut self) -> Result<(), Trouble> {
        while self.room > 0 {
            match self.listener.accept() {
                Ok(Some(socket)) => self.add(socket)?,
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn add(&mut self, socket: Socket) -> Result<(), Trouble> {
        let Some(token) = self.free.pop() else { return Ok(()) };
        let interest = Interest::Read;
        self.set.add(socket.as_raw_fd(), token as u64, events_of(interest))?;
        let conversation = Conversation::of_server(self.terms);
        self.connections[token] = Some(Connection { socket, conversation, interest });
        self.room -= 1;
        if self.room == 0 {
            self.set.remove(self.listener.as_raw_fd())?;
        }
        Ok(())
    }

    /// Lets a connection go on until it has to wait.
    fn advance(&mut self, token: usize) -> Result<(), Trouble> {
        loop {
            let Some(connection) = &mut self.connections[token] else { return Ok(()) };
            let step = connection.conversation.step(&mut connection.socket, &mut self.buffer)?;
            let interest = match step {
                Step::More => continue,
                Step::Left => return self.leave(token),
                Step::Ended if self.terms.one_transaction => return self.leave(token),
                Step::Ended => Interest::Read,
                Step::Wait(interest) => interest,
            };
            if connection.interest != interest {
                let fd = connection.socket.as_raw_fd();
                self.set.modify(fd, token as u64, events_of(interest))?;
                connection.interest = interest;
            }
            return Ok(());
        }
    }

    fn leave(&mut self, token: usize) -> Result<(), Trouble> {
        self.connections[token] = None;
        self.free.push(token);
        // A client of RR does not come back: that room is not for another loop's.
        if self.terms.one_transaction {
            self.room += 1;
            if self.room == 1 {
                self.listen()?;
            }
        }
        Ok(())
    }

    /// Exclusive: of several loops that wait for connections, one is woken.
    fn listen(&self) -> io::Result<()> {
        let events = libc::EPOLLIN | libc::EPOLLEXCLUSIVE;
        self.set.add(self.listener.as_raw_fd(), LISTENER, events)
    }
}

/// An epoll set.
struct Set {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Set {
    fn new() -> io::Result<Self> {
        // SAFETY: no operands.
        let fd = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Self { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX] })
    }

    fn add(&self, fd: RawFd, token: u64, events: i32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, events)
    }

    fn modify(&self, fd: RawFd, token: u64, events: i32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, events)
    }

    fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&self, operation: i32, fd: RawFd, token: u64, events: i32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: `event` lives through the call, which copies it.
        checked(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd, &raw mut event) })?;
        Ok(())
    }

    /// Waits for events; none when a signal came.
    fn wait(&mut self) -> io::Result<impl Iterator<Item = u64> + '_> {
        // SAFETY: `events` has room for EVENTS_MAX events.
        let result = checked(unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                EVENTS_MAX as i32,
                NO_TIMEOUT,
            )
        });
        let count = match result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            other => other? as usize,
        };
        Ok(self.events[..count].iter().map(|event| event.u64))
    }
}

fn events_of(interest: Interest) -> i32 {
    match interest {
        Interest::Read => libc::EPOLLIN,
        Interest::Write => libc::EPOLLOUT,
    }
}

fn owned(result: libc::c_int) -> io::Result<OwnedFd> {
    let fd = checked(result)?;
    // SAFETY: the call that returned it has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Events taken at a time; more of them come with the next call.
const EVENTS_MAX: usize = 256;
const NO_TIMEOUT: i32 = -1;
/// Tokens that are no connection's.
const TIMER: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;
