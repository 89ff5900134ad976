//! Connections that are rings in memory, and the responder at their other ends.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::rc::Rc;

use crate::control::Job;
use crate::worker::clock;
use crate::worker::conversation::{Conversation, Step, Terms};
use crate::worker::poller::{Interest, Poller};
use crate::worker::transport::Transport;

/// A poller whose connections all end in this thread. To wait is to let the responder
/// work.
pub(super) struct Rings {
    terms: Terms,
    responders: Vec<Responder>,
    buffer: Vec<u8>,
}

/// One end of a connection: a ring each way.
pub(super) struct End {
    outgoing: Rc<Ring>,
    incoming: Rc<Ring>,
}

/// The server's end of a connection.
struct Responder {
    end: End,
    conversation: Conversation,
}

/// Bytes on their way.
struct Ring {
    bytes: RefCell<VecDeque<u8>>,
}

impl Rings {
    pub(super) fn new(job: &Job) -> Self {
        let terms = Terms::of(job);
        Self { terms, responders: Vec::new(), buffer: terms.buffer(job.conduct.chunk_len) }
    }
}

impl Poller for Rings {
    type Transport = End;

    #[inline]
    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }

    fn open(&mut self) -> io::Result<End> {
        let (client, end) = End::pair();
        let conversation = Conversation::of_server(self.terms);
        self.responders.push(Responder { end, conversation });
        Ok(client)
    }

    fn register(&mut self, _: usize, _: &End, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn reregister(&mut self, _: usize, _: &End, _: Interest) -> io::Result<()> {
        Ok(())
    }

    /// Connections are opened once, in the order of their tokens, and each of them can
    /// go on: what one client waits for, its responder has just done.
    #[inline]
    fn wait(&mut self, _: Option<u64>, ready: &mut Vec<usize>) -> io::Result<()> {
        for (token, responder) in self.responders.iter_mut().enumerate() {
            responder.respond(&mut self.buffer)?;
            ready.push(token);
        }
        Ok(())
    }
}

impl Responder {
    #[inline]
    fn respond(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let mut step = Step::More;
        while step == Step::More {
            step = self.conversation.step(&mut self.end, buffer).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

impl End {
    fn pair() -> (Self, Self) {
        let (up, down) = <(Rc<Ring>, Rc<Ring>)>::default();
        let client = Self { outgoing: Rc::clone(&up), incoming: Rc::clone(&down) };
        (client, Self { outgoing: down, incoming: up })
    }
}

impl Transport for End {
    #[inline]
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut ring = self.outgoing.bytes.borrow_mut();
        let room = RING_LEN - ring.len();
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        ring.write(&bytes[..bytes.len().min(room)])
    }

    #[inline]
    fn recv(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let mut ring = self.incoming.bytes.borrow_mut();
        if ring.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        ring.read(room)
    }
}

impl Default for Ring {
    fn default() -> Self {
        Self { bytes: RefCell::new(VecDeque::with_capacity(RING_LEN)) }
    }
}

/// Bytes that a ring holds at most.
const RING_LEN: usize = 64 << 10;
