//! The models `threads` and `processes`: one connection to a thread.
//!
//! The thread waits inside `send` and `recv`, or, with non-blocking sockets, in
//! `poll`.

use std::io;
use std::os::fd::AsRawFd;

use super::clock;
use super::conversation::{Conversation, Step, Terms};
use super::poller::{Interest, Poller};
use super::socket::{Dialer, Listener, Manner, Socket};
use super::trouble::Trouble;
use crate::control::Job;

/// A single client that waits inside `send` and `recv`.
pub(crate) struct Blocking {
    dialer: Dialer,
}

/// A single client that waits in `poll`.
pub(crate) struct Polling {
    dialer: Dialer,
    watched: libc::pollfd,
}

impl Blocking {
    pub(crate) fn new(dialer: Dialer) -> Self {
        Self { dialer }
    }
}

impl Poller for Blocking {
    type Transport = Socket;

    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }

    fn open(&mut self) -> io::Result<Socket> {
        self.dialer.dial()
    }

    fn register(&mut self, _: usize, _: &Socket, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn reregister(&mut self, _: usize, _: &Socket, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, until_ns: Option<u64>, ready: &mut Vec<usize>) -> io::Result<()> {
        match until_ns {
            Some(at_ns) => clock::sleep_until(at_ns),
            None => ready.push(0),
        }
        Ok(())
    }
}

impl Polling {
    pub(crate) fn new(dialer: Dialer) -> Self {
        Self { dialer, watched: watched(-1, Interest::Read) }
    }
}

impl Poller for Polling {
    type Transport = Socket;

    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }

    fn open(&mut self) -> io::Result<Socket> {
        self.dialer.dial()
    }

    fn register(&mut self, _: usize, socket: &Socket, interest: Interest) -> io::Result<()> {
        self.watched = watched(socket.as_raw_fd(), interest);
        Ok(())
    }

    fn reregister(&mut self, _: usize, socket: &Socket, interest: Interest) -> io::Result<()> {
        self.watched = watched(socket.as_raw_fd(), interest);
        Ok(())
    }

    fn wait(&mut self, until_ns: Option<u64>, ready: &mut Vec<usize>) -> io::Result<()> {
        match until_ns {
            Some(at_ns) => clock::sleep_until(at_ns),
            None => {
                poll(&mut self.watched)?;
                ready.push(0);
            }
        }
        Ok(())
    }
}

/// Accepts a connection and serves it to its end; over and over for `CRR`. The
/// server has as many such threads as clients, so each finds one free.
///
/// # Errors
/// The listener fails or was closed; a client misbehaves.
pub(crate) fn serve(listener: &Listener, job: &Job) -> Result<(), Trouble> {
    let terms = Terms::of(job);
    let manner = Manner::of(job);
    let mut buffer = terms.buffer(job.conduct.chunk_len);
    loop {
        let Some(mut socket) = listener.accept()? else { continue };
        serve_one(&mut socket, terms, manner, &mut buffer)?;
        if !terms.one_transaction {
            return Ok(());
        }
    }
}

fn serve_one(
    socket: &mut Socket,
    terms: Terms,
    manner: Manner,
    buffer: &mut [u8],
) -> Result<(), Trouble> {
    let mut conversation = Conversation::of_server(terms);
    loop {
        let interest = match conversation.step(socket, buffer)? {
            Step::More => continue,
            Step::Left => return Ok(()),
            Step::Ended if terms.one_transaction => return Ok(()),
            Step::Ended => Interest::Read,
            Step::Wait(interest) => interest,
        };
        if !manner.is_blocking() {
            poll(&mut watched(socket.as_raw_fd(), interest))?;
        }
    }
}

fn watched(fd: i32, interest: Interest) -> libc::pollfd {
    let events = match interest {
        Interest::Read => libc::POLLIN,
        Interest::Write => libc::POLLOUT,
    };
    libc::pollfd { fd, events, revents: 0 }
}

fn poll(watched: &mut libc::pollfd) -> io::Result<()> {
    // SAFETY: one valid entry.
    match clock::checked(unsafe { libc::poll(watched, 1, -1) }) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}
