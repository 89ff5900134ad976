//! The two ends of a connection in this process, of which the library knows or not.
//!
//! Whether bytes, a FIN or a RST have arrived is the kernel's to say, later than the call that sent
//! them if the machine is busy. So nothing here waits for a time: [`settle`] waits until the
//! counters of both TCP sockets agree.

use crate::call;
use sidestep_device::state::flag;
use sidestep_socket::process::loan;
use sidestep_socket::process::options::{self, Options};
use sidestep_socket::program::{fresh, life};
use sidestep_socket::rendezvous::listeners;
use sidestep_socket::table::descriptors;
use sidestep_socket::table::sock::Phase;
use sidestep_wire::RmbeSize;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a ring: few, so that lists of calls go round it.
pub(crate) const RING: usize = 32 << 10;

/// Messages each way after which both directions of a connection have moved.
pub(crate) const MOVED: u32 = 17;

/// Only what hangs takes so long.
const HANG: Duration = Duration::from_secs(60);

/// A listener of which the library knows, one of which it does not, and no other test beside this one:
/// descriptors have numbers, of which a process has one set.
pub(crate) struct Stage {
    known: TcpListener,
    plain: TcpListener,
    _alone: MutexGuard<'static, ()>,
}

impl Stage {
    pub(crate) fn enter() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        loan::note_owner();
        let rmbe = RmbeSize::from_bytes(RING).expect("the smallest ring");
        options::configure(Options { autosmc: false, rmbe, ..Options::default() });
        let [known, plain] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let fd = call::forget(known.as_raw_fd());
        life::register(fd, false, false).expect("room").set_phase(Phase::Listener);
        listeners::mark(&descriptors::sock(fd).expect("just registered"), fd);
        Self { known, plain, _alone: alone }
    }

    /// A connection of the kernel's alone.
    pub(crate) fn plain(&self) -> Pair {
        let ends = connect(&self.plain).map(|socket| End::new(socket.into_raw_fd()));
        Pair { ends: ends.map(Some), is_known: false }
    }

    /// A connection that the library knows from its beginning: with an object, or untracked.
    pub(crate) fn known(&self, is_untracked: bool) -> Pair {
        let [client, server] =
            connect(&self.known).map(|socket| call::forget(socket.into_raw_fd()));
        if is_untracked {
            fresh::note_fresh(client);
            let port = self.known.local_addr().expect("bound").port();
            // The first connection of a process makes its state, and has an object.
            if !fresh::begin_client(client, port) {
                begin(client, false);
            }
            let listener = self.known.as_raw_fd();
            if !fresh::begin_server(server, descriptors::peek(listener), listener) {
                begin(server, true);
            }
        } else {
            begin(client, false);
            begin(server, true);
        }
        Pair { ends: [client, server].map(|fd| Some(End::new(fd))), is_known: true }
    }

    /// A connection in shared memory, both directions.
    pub(crate) fn moved(&self) -> Pair {
        let pair = self.known(false);
        pair.warm_up(MOVED);
        pair.assert_moved();
        pair
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        drop(life::before_close(self.known.as_raw_fd()));
    }
}

/// The two ends of a new connection, the one that connected first.
fn connect(listener: &TcpListener) -> [TcpStream; 2] {
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("a connection");
    let (server, _) = listener.accept().expect("its other end");
    [client, server].map(|socket| {
        socket.set_nodelay(true).expect("a TCP socket");
        socket
    })
}

fn begin(fd: i32, is_server: bool) {
    let sock = match descriptors::sock(fd) {
        Some(sock) => sock.sock(),
        None => life::register(fd, false, is_server).expect("room"),
    };
    sock.set_phase(Phase::Candidate);
    life::begin(sock, fd);
}

/// One end: a descriptor, and all that a program has beside it.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) fd: i32,
}

impl End {
    fn new(fd: i32) -> Self {
        Self { fd }
    }

    /// Whether its bytes go through the ring, both ways.
    pub(crate) fn has_moved(self) -> bool {
        const BOTH: u32 = flag::SEND_SWITCHED | flag::RECEIVE_SWITCHED;
        descriptors::object(self.fd).is_some_and(|sock| {
            let by_ring = |slot| -> bool { flags_of(slot) & BOTH == BOTH };
            sock.phase() == Phase::Smc && sock.slot().is_some_and(by_ring)
        })
    }

    /// What `sidestep demote` and `sidestep promote` write into the state of a program.
    pub(crate) fn hold(self, on_tcp: bool) {
        let Some(sock) = descriptors::object(self.fd) else { return };
        let Some(slot) = sock.slot() else { return };
        if slot.held.swap(on_tcp.into(), Ordering::AcqRel) == u32::from(on_tcp) {
            return;
        }
        if on_tcp && flags_of(slot) & flag::RECEIVE_SWITCHED != 0 {
            slot.flags.fetch_or(flag::TURN_WANTED, Ordering::SeqCst);
        }
        slot.closes_seen.fetch_xor(1 << 31, Ordering::AcqRel);
    }
}

fn flags_of(slot: &sidestep_device::state::Slot) -> u32 {
    slot.flags.load(Ordering::Acquire)
}

/// A connection: its ends, as long as they are open.
pub(crate) struct Pair {
    pub(crate) ends: [Option<End>; 2],
    pub(crate) is_known: bool,
}

impl Pair {
    pub(crate) fn fd(&self, side: usize) -> Option<i32> {
        self.ends[side].map(|end| end.fd)
    }

    pub(crate) fn fds(&self) -> [i32; 2] {
        self.ends.map(|end| end.expect("open").fd)
    }

    /// So many messages of a byte each way.
    pub(crate) fn warm_up(&self, rounds: u32) {
        let fds = self.fds();
        for round in 0..2 * rounds {
            let [from, to] = if round % 2 == 0 { fds } else { [fds[1], fds[0]] };
            assert_eq!(call::send(from, b"w", &[], 0).value, 1);
            assert_eq!(call::receive(to, 1, &[], 0).bytes, b"w");
        }
    }

    pub(crate) fn assert_moved(&self) {
        assert!(self.ends.iter().flatten().all(|end| end.has_moved()), "it has not moved");
    }

    pub(crate) fn close(&mut self, side: usize) {
        if let Some(end) = self.ends[side].take() {
            call::close(end.fd);
        }
    }

    /// Waits until everything that was sent by TCP has arrived.
    pub(crate) fn settle(&self) {
        settle(|| [self.tcp()]);
    }

    /// What the kernel says of those that are open.
    pub(crate) fn tcp(&self) -> Ends {
        self.ends.map(|end| end.map(|end| Tcp::of(end.fd)))
    }
}

/// The TCP sockets of a connection, as far as they are open.
pub(crate) type Ends = [Option<Tcp>; 2];

/// Waits until everything that was sent by TCP has arrived, as the kernel says of these connections.
pub(crate) fn settle<const N: usize>(mut ask: impl FnMut() -> [Ends; N]) {
    let begin = Instant::now();
    loop {
        let seen = ask();
        if seen.iter().all(is_settled) {
            return;
        }
        assert!(begin.elapsed() < HANG, "TCP has not delivered: {seen:?}");
        thread::yield_now();
    }
}

fn is_settled(ends: &Ends) -> bool {
    match ends {
        [Some(one), Some(other)] => one.has_reached(other) && other.has_reached(one),
        [Some(left), None] | [None, Some(left)] => left.is_told_of_end(),
        [None, None] => true,
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // A reset leaves no TIME_WAIT behind, of which there is room for some thousands.
        for side in 0..2 {
            if let Some(fd) = self.fd(side) {
                call::set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &[1, 0]);
            }
            self.close(side);
        }
    }
}

/// What the kernel says of one TCP socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tcp {
    pub(crate) state: u8,
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

impl Tcp {
    /// `net/tcp_states.h`.
    const CLOSED: u8 = 7;
    /// The peer's FIN or RST has arrived: TIME_WAIT, CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING.
    const PEER_ENDED: [u8; 5] = [6, 7, 8, 9, 11];
    /// A FIN was sent, or there is nothing left to send it on: all but ESTABLISHED and CLOSE_WAIT.
    const ENDED: [u8; 7] = [4, 5, 6, 7, 9, 11, 12];

    fn of(fd: i32) -> Self {
        let mut info = [0u8; 232];
        let mut len = info.len() as u32;
        let at = info.as_mut_ptr().cast();
        // SAFETY: room for what Linux 4.19 tells.
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, at, &raw mut len) };
        let long = |at: usize| u64::from_ne_bytes(info[at..at + 8].try_into().expect("8 bytes"));
        let not_sent = u32::from_ne_bytes(info[144..148].try_into().expect("4 bytes"));
        Self {
            state: info[0],
            sent: long(200) - long(208) + u64::from(not_sent),
            received: long(128),
        }
    }

    fn has_reached(&self, other: &Self) -> bool {
        let is_over = self.state == Self::CLOSED || other.state == Self::CLOSED;
        // A FIN is counted by the receiver alone.
        let all_bytes = is_over || other.received >= self.sent;
        all_bytes && (!Self::ENDED.contains(&self.state) || other.is_told_of_end())
    }

    fn is_told_of_end(&self) -> bool {
        Self::PEER_ENDED.contains(&self.state)
    }
}
