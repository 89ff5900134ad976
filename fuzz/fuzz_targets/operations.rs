//! A list of socket operations, on a connection of ours and on one of plain TCP beside
//! it: whatever the list, both answer the same.
//!
//! All four ends are in this process, so the coverage of the whole library guides the
//! fuzzer, the meeting and the switch included: a list may begin on a fresh connection
//! or after some messages. No call waits, so one thread can play both sides. At most
//! [`ROOM`] bytes are on their way unread; how much more fits is nobody's promise.
//! What TCP does later than at once is not compared: a list is played again when it
//! seems wrong, and is wrong if it always is.
//!
//! `cargo xtask fuzz operations`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_device::program::Buffers;
use sidestep_device::sys::SignalMask;

use sidestep_socket::polling::multiplex;
use sidestep_socket::process::loan;
use sidestep_socket::process::options::{self, Options};
use sidestep_socket::program::life;
use sidestep_socket::program::socket_options::{self, OptionAnswer};
use sidestep_socket::program::stream::{self, Outcome};
use sidestep_socket::rendezvous::listeners;
use sidestep_socket::table::descriptors::{self, Use};
use sidestep_socket::table::sock::Phase;
use std::io::Error;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::OnceLock;
use std::time::Duration;

/// Bytes that may be unread in one direction.
const ROOM: usize = 12 << 10;

/// Messages that may be on their way unread: of ten, TCP sends the last only when an
/// acknowledgement has come, and of unread bytes that may take a while.
const SEGMENTS: usize = 8;

/// How often a list must be wrong to be called so.
const TRIALS: u32 = 5;

/// Lengths of messages: none, those that fit into a cache line, and longer ones.
const LENS: [usize; 8] = [0, 1, 2, 99, 1000, 4096, 8000, 11_000];

const DONT_WAIT: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

fuzz_target!(|bytes: &[u8]| {
    let Some((&first, list)) = bytes.split_first() else { return };
    let seems_wrong = || play(list, first % 16);
    let Some(mut difference) = seems_wrong() else { return };
    for _ in 1..TRIALS {
        let Some(again) = seems_wrong() else { return };
        difference = again;
    }
    panic!("{difference}");
});

/// Plays a list on two connections after so many messages each way: the first
/// difference.
fn play(list: &[u8], warm_rounds: u8) -> Option<String> {
    static LISTENERS: OnceLock<[TcpListener; 2]> = OnceLock::new();
    let [ours, plain] = LISTENERS.get_or_init(listeners);
    let mut pairs = Pairs {
        ours: pair(ours).map(|socket| Some(End::ours(socket.0, socket.1))),
        plain: pair(plain).map(|socket| Some(End::plain(socket.0))),
        sent: [0; 2],
        received: [0; 2],
        unacknowledged: [0; 2],
    };
    for round in 0..2 * warm_rounds {
        let side = usize::from(round % 2);
        pairs.send(side, 1)?;
        pairs.receive(1 - side, 1, 0)?;
    }
    let mut story = format!("{warm_rounds} messages each way\n");
    for operation in list.chunks_exact(2) {
        let [what, argument] = [operation[0], operation[1]];
        let side = usize::from(what >> 7);
        let len = LENS[usize::from(argument) % LENS.len()];
        let (name, answers) = match what % 16 {
            0..4 => ("send", pairs.send(side, len)),
            4..7 => ("recv", pairs.receive(side, len, 0)),
            7 => ("peek", pairs.receive(side, len, libc::MSG_PEEK)),
            8 => ("recv all of", pairs.receive(side, len, libc::MSG_WAITALL)),
            9 => ("throw away", pairs.receive(side, len, libc::MSG_TRUNC)),
            10 => ("poll", pairs.both(side, End::poll)),
            11 => ("FIONREAD", pairs.both(side, End::unread)),
            12 => ("SO_ERROR", pairs.both(side, End::error)),
            13 => ("linger 0 and", pairs.both(side, End::linger)),
            14 => ("shutdown", pairs.both(side, |end| end.shutdown(i32::from(argument) % 3))),
            _ => ("close", pairs.close(side)),
        };
        if name == "close" {
            story += &format!("end {side}: close\n");
        }
        let Some((ours, plain)) = answers else { continue };
        story += &format!("end {side}: {name} {len} -> {}, by TCP {}\n", ours.0, plain.0);
        if ours != plain {
            return Some(story);
        }
    }
    None
}

/// What a call returned, or its error number negated, and what it received.
type Answer = (i64, Vec<u8>);

/// The same two ends, twice.
struct Pairs {
    ours: [Option<End>; 2],
    plain: [Option<End>; 2],
    /// Bytes that each side has sent, and received from the other.
    sent: [usize; 2],
    received: [usize; 2],
    /// Messages that each side has sent since the other had read them all.
    unacknowledged: [usize; 2],
}

impl Pairs {
    /// The answers of both; `None` when that end was closed.
    fn both(&self, side: usize, call: impl Fn(&End) -> Answer) -> Option<(Answer, Answer)> {
        Some((call(self.ours[side].as_ref()?), call(self.plain[side].as_ref()?)))
    }

    fn send(&mut self, side: usize, len: usize) -> Option<(Answer, Answer)> {
        if self.unacknowledged[side] == SEGMENTS {
            return None;
        }
        let unread = self.sent[side] - self.received[1 - side];
        let first = self.sent[side];
        let end = first + len.min(ROOM - unread);
        let bytes: Vec<u8> = (first..end).map(|at| (at % 251) as u8).collect();
        let answers = self.both(side, |end| end.send(&bytes))?;
        self.sent[side] += usize::try_from(answers.1.0).unwrap_or(0);
        self.unacknowledged[side] += 1;
        Some(answers)
    }

    fn receive(&mut self, side: usize, len: usize, flags: i32) -> Option<(Answer, Answer)> {
        let mut answers = self.both(side, |end| end.receive(len, flags))?;
        if flags & libc::MSG_PEEK == 0 {
            let (ours, plain) = &mut answers;
            // A read may end early, as it does at the byte from which on a direction
            // uses the ring. The rest is there at once.
            self.ours[side].as_ref()?.receive_rest(ours, plain.0, flags);
            self.plain[side].as_ref()?.receive_rest(plain, ours.0, flags);
            self.received[side] += usize::try_from(answers.1.0).unwrap_or(0);
            if self.received[side] == self.sent[1 - side] {
                self.unacknowledged[1 - side] = 0;
            }
        }
        Some(answers)
    }

    fn close(&mut self, side: usize) -> Option<(Answer, Answer)> {
        self.ours[side] = None;
        self.plain[side] = None;
        None
    }
}

impl Drop for Pairs {
    fn drop(&mut self) {
        // A reset leaves no TIME_WAIT behind, of which there is room for some thousands.
        for end in self.ours.iter().chain(&self.plain).flatten() {
            end.linger();
        }
    }
}

/// One end. Of ours each call is made as the preloaded library makes it.
struct End {
    fd: i32,
    is_ours: bool,
}

impl End {
    fn plain(socket: TcpStream) -> Self {
        Self { fd: socket.into_raw_fd(), is_ours: false }
    }

    fn ours(socket: TcpStream, is_server: bool) -> Self {
        let fd = socket.into_raw_fd();
        let sock = life::register(fd, false, is_server).expect("room");
        sock.set_phase(Phase::Candidate);
        life::begin(sock, fd);
        Self { fd, is_ours: true }
    }

    fn sock(&self) -> Option<Use> {
        descriptors::sock(self.fd).filter(|_| self.is_ours)
    }

    fn send(&self, bytes: &[u8]) -> Answer {
        let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: one buffer, which is only read.
        let plain = || unsafe { libc::send(self.fd, part.iov_base, part.iov_len, DONT_WAIT) };
        // SAFETY: the same buffer.
        let buffers = || unsafe { Buffers::new(&raw const part, 1) };
        let sent = stream::send(self.fd, buffers, DONT_WAIT, plain);
        (sent.map_or_else(|| returned(plain()), answered), Vec::new())
    }

    fn receive(&self, len: usize, flags: i32) -> Answer {
        let mut bytes = vec![0; len];
        let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
        let flags = flags | DONT_WAIT;
        // SAFETY: one buffer, writable.
        let plain = || unsafe { libc::recv(self.fd, part.iov_base, part.iov_len, flags) };
        // SAFETY: the same buffer.
        let buffers = || unsafe { Buffers::new(&raw const part, 1) };
        let received = stream::receive(self.fd, buffers, flags, plain);
        let n = received.map_or_else(|| returned(plain()), answered);
        bytes.truncate(usize::try_from(n).unwrap_or(0));
        (n, bytes)
    }

    /// Receives what another read got beyond this one.
    fn receive_rest(&self, answer: &mut Answer, len: i64, flags: i32) {
        if (1..len).contains(&answer.0) {
            let rest = self.receive((len - answer.0) as usize, flags);
            answer.0 += rest.0;
            answer.1.extend(rest.1);
        }
    }

    fn poll(&self) -> Answer {
        let events = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI;
        let mut entry = [libc::pollfd { fd: self.fd, events, revents: 0 }];
        if multiplex::concerns(self.fd) {
            let _ = multiplex::poll(&mut entry, Some(Duration::ZERO), SignalMask::NONE);
        } else {
            // SAFETY: one entry.
            unsafe { libc::poll(entry.as_mut_ptr(), 1, 0) };
        }
        (entry[0].revents.into(), Vec::new())
    }

    fn unread(&self) -> Answer {
        if let Some(ours) =
            self.sock().and_then(|sock| socket_options::readable_bytes(&sock, self.fd))
        {
            return (ours as i64, Vec::new());
        }
        let mut number = 0i32;
        // SAFETY: the request stores one int.
        unsafe { libc::ioctl(self.fd, libc::FIONREAD, &raw mut number) };
        (number.into(), Vec::new())
    }

    fn error(&self) -> Answer {
        let ours = self.sock().map(|sock| {
            socket_options::get_option(&sock, self.fd, libc::SOL_SOCKET, libc::SO_ERROR)
        });
        let (mut number, mut len) = (0i32, 4);
        let at = (&raw mut number).cast();
        // SAFETY: the option is one int.
        unsafe { libc::getsockopt(self.fd, libc::SOL_SOCKET, libc::SO_ERROR, at, &raw mut len) };
        if let Some(OptionAnswer::Value(value)) = ours {
            number = value;
        }
        (number.into(), Vec::new())
    }

    /// Closing will be a reset.
    fn linger(&self) -> Answer {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
        let len = size_of_val(&linger) as u32;
        // SAFETY: the option's own structure.
        unsafe { libc::setsockopt(self.fd, level, name, (&raw const linger).cast(), len) };
        if let Some(sock) = self.sock() {
            socket_options::after_set_option(&sock, self.fd, level, name, 1, 0);
        }
        (0, Vec::new())
    }

    fn shutdown(&self, how: i32) -> Answer {
        let n = match self.sock().and_then(|sock| life::shutdown(&sock, self.fd, how)) {
            Some(ours) => ours.map_or_else(|errno| -i64::from(errno), |n| n as i64),
            // SAFETY: no memory.
            None => returned(unsafe { libc::shutdown(self.fd, how) } as isize),
        };
        (n, Vec::new())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let closing = if self.is_ours { life::before_close(self.fd) } else { None };
        // SAFETY: ours alone.
        unsafe { libc::close(self.fd) };
        drop(closing);
    }
}

fn returned(n: isize) -> i64 {
    if n >= 0 { n as i64 } else { -i64::from(Error::last_os_error().raw_os_error().unwrap_or(0)) }
}

fn answered(outcome: Outcome) -> i64 {
    match outcome {
        Outcome::Plain(n) => returned(n),
        Outcome::Ours(answer) => answer.map_or_else(|errno| -i64::from(errno), |n| n as i64),
    }
}

/// One for connections of ours, of which the library knows, and one for plain ones.
fn listeners() -> [TcpListener; 2] {
    loan::note_owner();
    options::configure(Options::default());
    let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let fd = sockets[0].as_raw_fd();
    life::register(fd, false, false).expect("room").set_phase(Phase::Listener);
    listeners::mark(&descriptors::sock(fd).expect("just registered"), fd);
    sockets
}

/// The two ends of a new connection, the one that connected first.
fn pair(listener: &TcpListener) -> [(TcpStream, bool); 2] {
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("a connection");
    let (server, _) = listener.accept().expect("its other end");
    for socket in [&client, &server] {
        socket.set_nodelay(true).expect("a TCP socket");
    }
    [(client, false), (server, true)]
}
