//! One connection: what to send, what to expect, and what went wrong.
//!
//! Both sides know from their [`Job`] how long a request and its
//! reply are; nothing in the bytes says so. The server never asks for more than what
//! is left of the request, so it cannot read into the next one.
//!
//! ```text
//!            client                          server
//!        [ greeting ]  ───────────────>                   once, with --verify
//!          request     ───────────────>                 ┐
//!                      <───────────────    reply        ┘ over and over
//!                      <───────────────  ( end )          CRR: once, then both close
//! ```
//!
//! **Who closes first.** After the reply of a `CRR` the server closes, and the client
//! waits for that end before it closes, as in HTTP/1.0. The side that closes first keeps
//! the connection's two ports for a minute (TIME_WAIT). At the client these would be
//! its own ephemeral ports: 28 000 of them last for a second of `CRR` on the
//! loopback and for a run to another host. The server has a single port anyway, and Linux
//! accepts a new SYN from a port whose old connection rests in TIME_WAIT there
//! (RFC 6191). The order costs nothing: with the other one, the server would wait
//! for the client's end in the same way.
//!
//! **The greeting** tells the server whose bytes it has to expect: the client's number
//! and that of its next transaction. It is no payload and counted nowhere.

use std::fmt;
use std::io;

use super::pattern::Pattern;
use super::poller::Interest;
use super::transport::Transport;
use crate::control::Job;
use crate::workload::Kind;

/// What both sides know before the first byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Bytes from client to server.
    pub(crate) request_len: u64,
    /// Bytes from server to client.
    pub(crate) reply_len: u64,
    /// The connection ends with the reply.
    pub(crate) one_transaction: bool,
    /// Bytes are compared.
    pub(crate) verify: bool,
}

impl Terms {
    pub(crate) fn of(job: &Job) -> Self {
        Self {
            request_len: job.workload.request_len,
            reply_len: job.workload.reply_len,
            one_transaction: job.workload.kind == Kind::ConnectRequestResponse,
            verify: job.conduct.verify,
        }
    }

    /// Memory for the conversations of one thread: as much as a call can take.
    pub(crate) fn buffer(&self, chunk_len: usize) -> Vec<u8> {
        let longest = self.request_len.max(self.reply_len);
        let len = usize::try_from(longest).map_or(chunk_len, |longest| longest.min(chunk_len));
        // Not zeros: pages that were never written are all the same page, and reading
        // it is cheaper than what an application pays.
        (0..len).map(|i| i as u8).collect()
    }
}

/// One end of a connection, between two steps.
#[derive(Debug)]
pub(crate) struct Conversation {
    terms: Terms,
    side: Side,
    part: Part,
    /// Bytes of the part that have passed: less than its length.
    done: u64,
    /// A server learns it from the greeting; without one it stays 0.
    client: u32,
    /// Of this client, from 0.
    transaction: u64,
    greeting: [u8; GREETING_LEN],
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The next step may succeed at once.
    More,
    /// The next step would have to wait.
    Wait(Interest),
    /// A transaction is over.
    Ended,
    /// The client has closed between two transactions.
    Left,
}

/// What went wrong on a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{what}, after {done} of {len} bytes: {source}")]
    Io { what: Place, done: u64, len: u64, source: io::Error },
    #[error("the {peer} closed the connection during {what}, after {done} of {len} bytes")]
    Closed { peer: &'static str, what: Place, done: u64, len: u64 },
    #[error("the {peer} closed the connection between two transactions")]
    ClosedIdle { peer: &'static str },
    #[error("the {peer} sent more than {what}")]
    Excess { peer: &'static str, what: Place },
    #[error("{what} is corrupted: byte {offset} is {found:#04x}, not {expected:#04x}")]
    Corrupted { what: Place, offset: u64, expected: u8, found: u8 },
}

/// A part of a conversation, for texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    part: Part,
    client: u32,
    transaction: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Greeting,
    Request,
    Reply,
    End,
}

impl Conversation {
    /// The client's end of a new connection, before its transaction of this number.
    pub(crate) fn of_client(terms: Terms, client: u32, transaction: u64) -> Self {
        let mut greeting = [0; GREETING_LEN];
        greeting[..4].copy_from_slice(&client.to_be_bytes());
        greeting[4..].copy_from_slice(&transaction.to_be_bytes());
        Self { client, transaction, greeting, ..Self::new(terms, Side::Client) }
    }

    /// The server's end of a new connection.
    pub(crate) fn of_server(terms: Terms) -> Self {
        Self::new(terms, Side::Server)
    }

    fn new(terms: Terms, side: Side) -> Self {
        let part = if terms.verify { Part::Greeting } else { Part::Request };
        Self { terms, side, part, done: 0, client: 0, transaction: 0, greeting: [0; GREETING_LEN] }
    }

    /// Makes one call of `transport`. The first step of a client after
    /// [`Step::Ended`] begins its next transaction.
    ///
    /// # Errors
    /// The connection is of no use any more.
    #[inline]
    pub(crate) fn step(
        &mut self,
        transport: &mut impl Transport,
        buffer: &mut [u8],
    ) -> Result<Step, Error> {
        match (self.part, self.side) {
            (Part::End, _) => self.expect_end(transport),
            (Part::Reply, Side::Client) | (Part::Greeting | Part::Request, Side::Server) => {
                self.take(transport, buffer)
            }
            (Part::Reply, Side::Server) | (Part::Greeting | Part::Request, Side::Client) => {
                self.give(transport, buffer)
            }
        }
    }

    /// Looks at a connection on which nothing is due and yet something has happened.
    ///
    /// # Errors
    /// The server has closed it, or has sent what it was not asked for.
    pub(crate) fn look_while_idle(&self, transport: &mut impl Transport) -> Result<(), Error> {
        match transport.recv(&mut [0]) {
            Ok(0) => Err(Error::ClosedIdle { peer: self.peer() }),
            Ok(_) => Err(Error::Excess { peer: self.peer(), what: self.place(Part::Reply) }),
            Err(error) => self.refused(error, Interest::Read).map(drop),
        }
    }

    #[inline]
    fn give(&mut self, transport: &mut impl Transport, buffer: &mut [u8]) -> Result<Step, Error> {
        let len = self.part_len();
        let bytes = chunk(buffer, len - self.done);
        if self.terms.verify {
            self.write(bytes);
        }
        match transport.send(bytes) {
            Ok(sent) => Ok(self.moved(sent, bytes.len(), len, Interest::Write)),
            Err(error) => self.refused(error, Interest::Write),
        }
    }

    #[inline]
    fn take(&mut self, transport: &mut impl Transport, buffer: &mut [u8]) -> Result<Step, Error> {
        let len = self.part_len();
        let room = chunk(buffer, len - self.done);
        match transport.recv(room) {
            Ok(0) => self.left(),
            Ok(received) => {
                if self.terms.verify {
                    self.read(&room[..received])?;
                }
                Ok(self.moved(received, room.len(), len, Interest::Read))
            }
            Err(error) => self.refused(error, Interest::Read),
        }
    }

    #[inline]
    fn moved(&mut self, count: usize, asked: usize, len: u64, interest: Interest) -> Step {
        self.done += count as u64;
        if self.done == len {
            self.turn()
        } else if count < asked {
            // The other side is behind: there is no more now, or no more room.
            Step::Wait(interest)
        } else {
            Step::More
        }
    }

    /// Goes on to the next part.
    #[inline]
    fn turn(&mut self) -> Step {
        self.done = 0;
        match (self.part, self.side) {
            (Part::Greeting, _) => {
                self.part = Part::Request;
                Step::More
            }
            (Part::Request, side) => {
                self.part = Part::Reply;
                // A reply cannot be there yet; to reply, nothing needs to be waited for.
                if side == Side::Client { Step::Wait(Interest::Read) } else { Step::More }
            }
            (Part::Reply, Side::Client) if self.terms.one_transaction => {
                self.part = Part::End;
                // The end follows at the heels of the reply.
                Step::More
            }
            (Part::Reply | Part::End, _) => {
                self.part = Part::Request;
                self.transaction += 1;
                Step::Ended
            }
        }
    }

    fn expect_end(&mut self, transport: &mut impl Transport) -> Result<Step, Error> {
        match transport.recv(&mut [0]) {
            Ok(0) => Ok(self.turn()),
            Ok(_) => Err(Error::Excess { peer: self.peer(), what: self.place(Part::Reply) }),
            Err(error) => self.refused(error, Interest::Read),
        }
    }

    fn left(&self) -> Result<Step, Error> {
        let is_first_byte = self.done == 0 && self.part != Part::Reply;
        if is_first_byte && self.side == Side::Server {
            return Ok(Step::Left);
        }
        Err(Error::Closed {
            peer: self.peer(),
            what: self.place(self.part),
            done: self.done,
            len: self.part_len(),
        })
    }

    fn refused(&self, error: io::Error, interest: Interest) -> Result<Step, Error> {
        match error.kind() {
            io::ErrorKind::WouldBlock => Ok(Step::Wait(interest)),
            io::ErrorKind::Interrupted => Ok(Step::More),
            _ => Err(Error::Io {
                what: self.place(self.part),
                done: self.done,
                len: self.part_len(),
                source: error,
            }),
        }
    }

    /// The bytes that come next.
    fn write(&self, bytes: &mut [u8]) {
        if self.part == Part::Greeting {
            let from = self.done as usize;
            bytes.copy_from_slice(&self.greeting[from..from + bytes.len()]);
        } else {
            self.pattern().fill(self.done, bytes);
        }
    }

    /// Takes note of a greeting's bytes, compares a message's.
    fn read(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.part != Part::Greeting {
            return self.compare(bytes);
        }
        let from = self.done as usize;
        self.greeting[from..from + bytes.len()].copy_from_slice(bytes);
        // These are not asked for before all of the greeting is there.
        let (client, transaction) = self.greeting.split_at(4);
        self.client = client.iter().fold(0, |sum, &byte| sum << 8 | u32::from(byte));
        self.transaction = transaction.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        Ok(())
    }

    fn compare(&self, bytes: &[u8]) -> Result<(), Error> {
        match self.pattern().difference(self.done, bytes) {
            None => Ok(()),
            Some(found) => Err(Error::Corrupted {
                what: self.place(self.part),
                offset: found.offset,
                expected: found.expected,
                found: found.found,
            }),
        }
    }

    fn pattern(&self) -> Pattern {
        Pattern::new(self.client, self.transaction, self.part == Part::Reply)
    }

    #[inline]
    fn part_len(&self) -> u64 {
        match self.part {
            Part::Greeting => GREETING_LEN as u64,
            Part::Request => self.terms.request_len,
            Part::Reply => self.terms.reply_len,
            Part::End => 0,
        }
    }

    fn place(&self, part: Part) -> Place {
        Place { part, client: self.client, transaction: self.transaction }
    }

    fn peer(&self) -> &'static str {
        match self.side {
            Side::Client => "server",
            Side::Server => "client",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self.part {
            Part::Greeting => return f.write_str("the greeting"),
            Part::Request => "the request of",
            Part::Reply => "the reply to",
            Part::End => "the end after",
        };
        write!(f, "{part} transaction {} of client {}", self.transaction, self.client)
    }
}

/// As much of the buffer as the part has left.
#[inline]
fn chunk(buffer: &mut [u8], left: u64) -> &mut [u8] {
    let len = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
    &mut buffer[..len]
}

/// The client's number and that of a transaction, both big-endian.
const GREETING_LEN: usize = size_of::<u32>() + size_of::<u64>();

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::rc::Rc;

    /// A direction of a stream, and how many bytes each call on it may move; 0: it
    /// would block. After these, calls move what they can.
    #[derive(Default)]
    struct Direction {
        bytes: VecDeque<u8>,
        allowed: VecDeque<usize>,
        passed: u64,
        corrupt_at: Option<u64>,
        closed: bool,
    }

    #[derive(Clone)]
    struct Scripted {
        outgoing: Rc<RefCell<Direction>>,
        incoming: Rc<RefCell<Direction>>,
    }

    impl Direction {
        fn permit(&mut self, wanted: usize) -> io::Result<usize> {
            match self.allowed.pop_front() {
                Some(0) => Err(io::ErrorKind::WouldBlock.into()),
                Some(most) => Ok(wanted.min(most)),
                None => Ok(wanted),
            }
        }
    }

    impl Transport for Scripted {
        fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut way = self.outgoing.borrow_mut();
            let count = way.permit(bytes.len())?;
            for &byte in &bytes[..count] {
                let spoilt = way.corrupt_at == Some(way.passed);
                way.bytes.push_back(if spoilt { !byte } else { byte });
                way.passed += 1;
            }
            Ok(count)
        }

        fn recv(&mut self, room: &mut [u8]) -> io::Result<usize> {
            let mut way = self.incoming.borrow_mut();
            if way.bytes.is_empty() {
                return if way.closed { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
            }
            let most = room.len().min(way.bytes.len());
            let count = way.permit(most)?;
            for place in &mut room[..count] {
                *place = way.bytes.pop_front().expect("counted before");
            }
            Ok(count)
        }
    }

    /// Both ends of a connection, their conversations, and what they came to.
    struct Pair {
        client: (Conversation, Scripted),
        server: (Conversation, Scripted),
        chunk_len: usize,
        ended: (u64, u64),
    }

    impl Pair {
        fn new(terms: Terms, chunk_len: usize) -> Self {
            let (up, down) = <(Rc<RefCell<Direction>>, Rc<RefCell<Direction>>)>::default();
            let client = Scripted { outgoing: up.clone(), incoming: down.clone() };
            let server = Scripted { outgoing: down, incoming: up };
            Self {
                client: (Conversation::of_client(terms, 7, 3), client),
                server: (Conversation::of_server(terms), server),
                chunk_len,
                ended: (0, 0),
            }
        }

        fn up(&self) -> std::cell::RefMut<'_, Direction> {
            self.client.1.outgoing.borrow_mut()
        }

        fn down(&self) -> std::cell::RefMut<'_, Direction> {
            self.client.1.incoming.borrow_mut()
        }

        fn client_step(&mut self) -> Result<Step, Error> {
            let (conversation, transport) = &mut self.client;
            let mut buffer = conversation.terms.buffer(self.chunk_len);
            let step = conversation.step(transport, &mut buffer)?;
            self.ended.0 += u64::from(step == Step::Ended);
            Ok(step)
        }

        fn server_step(&mut self) -> Result<Step, Error> {
            let (conversation, transport) = &mut self.server;
            let mut buffer = conversation.terms.buffer(self.chunk_len);
            let step = conversation.step(transport, &mut buffer)?;
            self.ended.1 += u64::from(step == Step::Ended);
            Ok(step)
        }

        /// Steps in turn until the client has ended so many transactions.
        fn drive(&mut self, transactions: u64) -> Result<(), Error> {
            for _ in 0..100_000 {
                if self.ended.0 == transactions {
                    return Ok(());
                }
                self.client_step()?;
                self.server_step()?;
            }
            panic!("no progress: {:?} {:?}", self.client.0, self.server.0);
        }
    }

    fn terms(request_len: u64, reply_len: u64) -> Terms {
        Terms { request_len, reply_len, one_transaction: false, verify: true }
    }

    proptest! {
        #[test]
        fn any_split_of_calls_yields_the_verified_stream(
            request_len in 1u64..400,
            reply_len in 1u64..400,
            chunk_len in 1usize..100,
            up in prop::collection::vec(0usize..50, 0..200),
            down in prop::collection::vec(0usize..50, 0..200),
        ) {
            let mut pair = Pair::new(terms(request_len, reply_len), chunk_len);
            pair.up().allowed = up.into();
            pair.down().allowed = down.into();
            pair.drive(3).expect("verified");
            prop_assert_eq!(pair.ended, (3, 3));
            prop_assert_eq!(pair.up().passed, GREETING_LEN as u64 + 3 * request_len);
            prop_assert_eq!(pair.down().passed, 3 * reply_len);
            prop_assert!(pair.up().bytes.is_empty() && pair.down().bytes.is_empty());
        }

        #[test]
        fn a_spoilt_byte_of_any_message_is_found(
            transaction in 0u64..3, offset in 0u64..200, in_reply: bool, chunk_len in 1usize..300,
        ) {
            let mut pair = Pair::new(terms(200, 200), chunk_len);
            let at = transaction * 200 + offset;
            if in_reply {
                pair.down().corrupt_at = Some(at);
            } else {
                pair.up().corrupt_at = Some(GREETING_LEN as u64 + at);
            }
            let error = pair.drive(3).expect_err("it is spoilt");
            let Error::Corrupted { what, offset: found_at, expected, found } = error else {
                panic!("{error}");
            };
            let part = if in_reply { Part::Reply } else { Part::Request };
            prop_assert_eq!(what, Place { part, client: 7, transaction: 3 + transaction });
            prop_assert_eq!((found_at, found), (offset, !expected));
        }
    }

    #[test]
    fn without_verify_bytes_are_not_looked_at() {
        let mut pair = Pair::new(Terms { verify: false, ..terms(10, 10) }, 4);
        pair.up().corrupt_at = Some(5);
        pair.drive(2).expect("nobody looks");
        assert_eq!(pair.up().passed, 20);
    }

    #[test]
    fn a_server_does_not_read_into_the_next_request() {
        let mut pair = Pair::new(Terms { verify: false, ..terms(10, 1) }, 64);
        pair.up().bytes.extend([0; 25]);
        assert_eq!(pair.server_step().expect("request"), Step::More);
        assert_eq!(pair.up().bytes.len(), 15);
    }

    #[test]
    fn a_client_waits_for_the_reply_and_a_server_replies_at_once() {
        let mut pair = Pair::new(Terms { verify: false, ..terms(10, 10) }, 64);
        assert_eq!(pair.client_step().expect("request"), Step::Wait(Interest::Read));
        assert_eq!(pair.server_step().expect("request"), Step::More);
        assert_eq!(pair.server_step().expect("reply"), Step::Ended);
        assert_eq!(pair.client_step().expect("reply"), Step::Ended);
    }

    #[test]
    fn a_partial_call_says_what_to_wait_for() {
        let mut pair = Pair::new(Terms { verify: false, ..terms(10, 10) }, 64);
        pair.up().allowed = [4, 0].into();
        assert_eq!(pair.client_step().expect("4 bytes"), Step::Wait(Interest::Write));
        assert_eq!(pair.client_step().expect("none"), Step::Wait(Interest::Write));
        assert_eq!(pair.server_step().expect("4 bytes"), Step::Wait(Interest::Read));
    }

    #[test]
    fn one_transaction_ends_with_the_end_of_the_stream() {
        let mut pair = Pair::new(Terms { one_transaction: true, ..terms(5, 5) }, 64);
        while pair.ended.1 == 0 {
            pair.client_step().expect("client");
            pair.server_step().expect("server");
        }
        assert_eq!(pair.client_step().expect("reply"), Step::More);
        assert_eq!(pair.client_step().expect("no end yet"), Step::Wait(Interest::Read));
        pair.down().closed = true;
        assert_eq!(pair.client_step().expect("end"), Step::Ended);
    }

    #[test]
    fn leaving_is_right_between_transactions_only() {
        let mut pair = Pair::new(terms(10, 10), 64);
        pair.up().closed = true;
        assert_eq!(pair.server_step().expect("nobody came"), Step::Left);

        let mut pair = Pair::new(terms(10, 10), 64);
        pair.drive(1).expect("a transaction");
        pair.up().closed = true;
        assert_eq!(pair.server_step().expect("left"), Step::Left);

        pair.up().bytes.push_back(0);
        pair.server.0.terms.verify = false;
        pair.server_step().expect("a byte");
        let error = pair.server_step().expect_err("left too early").to_string();
        assert_eq!(
            error,
            "the client closed the connection during the request of transaction 4 of \
             client 7, after 1 of 10 bytes"
        );
    }

    #[test]
    fn a_server_that_closes_or_talks_between_transactions_is_noticed() {
        let mut pair = Pair::new(terms(10, 10), 64);
        pair.drive(1).expect("a transaction");
        let (conversation, transport) = &mut pair.client;
        conversation.look_while_idle(transport).expect("nothing has happened");
        transport.incoming.borrow_mut().closed = true;
        let error = conversation.look_while_idle(transport).expect_err("closed");
        assert!(matches!(error, Error::ClosedIdle { peer: "server" }), "{error}");
        transport.incoming.borrow_mut().bytes.push_back(0);
        let error = conversation.look_while_idle(transport).expect_err("a byte");
        assert!(matches!(error, Error::Excess { .. }), "{error}");
    }
}
