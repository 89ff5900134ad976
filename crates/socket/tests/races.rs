//! Many threads on one socket: for a detector of data races, and right without one.
//!
//! Both ends of a connection lie in this process, which is then its own peer: it maps
//! its rings and records once, so one thread's store and another's load have one
//! address, whichever end they work for, and ThreadSanitizer sees the pair.
//! `cargo xtask races` runs this under it; `cargo test` runs it as a stress test.
//!
//! ```text
//!   writer 0 ──┐                                        ┌── reader 0
//!   writer 1 ──┴── end ══════ two rings ══════ end ──────┴── reader 1
//!              ┌──                                      ──┐
//!   readers, writers of the other direction, at the same time
//! ```
//!
//! A record is as long as a power of two, so a ring has room for whole records or
//! for none, and what a reader gets is one record. Each must come once, unchanged,
//! and in the order of its writer as far as one reader sees it.
//!
//! Behind that come calls that stand right before the kernel, and are kept there, while another
//! connection is put under their number.
//!
//! Nothing here orders the threads but the stream itself: what they share is counted
//! by relaxed atomics, which for the detector are no order at all. With the argument
//! `--with-a-race` there is one to be found, or the detector is not at work.

use sidestep_device::program::Buffers;
use sidestep_device::sys;
use sidestep_socket::process::loan;
use sidestep_socket::process::options::{self, Options};
use sidestep_socket::program::stream::{self, Outcome};
use sidestep_socket::program::{fresh, life};
use sidestep_socket::rendezvous::listeners;
use sidestep_socket::table::descriptors::{self, Use};
use sidestep_socket::table::sock::Phase;
use std::cell::UnsafeCell;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32};
use std::thread;

/// Bytes of a record: one that fits into a cache line, an ordinary one, and one that
/// is long enough to be copied in either manner.
const RECORD_LENS: [usize; 3] = [64, 1024, 16 << 10];

/// Bytes that each writer sends in a round.
const VOLUME: usize = 2 << 20;

/// Writers of each direction, and readers.
const THREADS: u32 = 2;

/// Small messages each way, after which a connection has moved.
const WARM_ROUNDS: u32 = 16;

/// Threads that open and close connections beside each other, and how many each.
const VISITORS: u32 = 3;
const VISITS: u32 = 40;

/// No run takes longer on a busy machine, in seconds.
const PATIENCE_S: u32 = 300;

fn main() {
    if std::env::args().any(|argument| argument == "--with-a-race") {
        return race();
    }
    // Whoever waits for bytes that are lost would wait for ever.
    // SAFETY: sets a timer that ends the process.
    unsafe { libc::alarm(PATIENCE_S) };
    loan::note_owner();
    options::configure(Options::default());
    let listener = Listener::new();
    for len in RECORD_LENS {
        let (client, server) = listener.pair();
        warm_up(&client, &server);
        crowd(&client, &server, len);
    }
    visits();
    for start in [Listener::pair, Listener::untracked_pair] {
        late_receive(&listener, start);
        late_send(&listener, start);
    }
    call_beside_the_kernel(&listener);
    calls_between_dup2(&listener);
    println!("every record came once, unchanged and in order");
}

/// Two threads add to one number without a word between them.
fn race() {
    struct Number(UnsafeCell<u32>);
    // SAFETY: none. That it is wrong is what it is for.
    unsafe impl Sync for Number {}
    let number = Number(UnsafeCell::new(0));
    let add = |number: &Number| {
        for _ in 0..1000 {
            // SAFETY: none, as above.
            unsafe { number.0.get().write_volatile(number.0.get().read_volatile() + 1) };
        }
    };
    together((0..2).map(|_| || add(&number)));
}

/// Two writers and two readers on each end of one connection.
fn crowd(client: &End, server: &End, len: usize) {
    let (there, back) = (Delivery::of(len), Delivery::of(len));
    together((0..4 * THREADS).map(|thread| {
        let (there, back) = (&there, &back);
        move || match (thread % 4, thread / 4) {
            (0, writer) => there.send(client, writer),
            (1, writer) => back.send(server, writer),
            (2, _) => there.receive(server),
            _ => back.receive(client),
        }
    }));
}

/// Runs threads beside each other.
fn together<F: FnOnce() + Send>(threads: impl Iterator<Item = F>) {
    thread::scope(|scope| {
        let running: Vec<_> = threads.map(|thread| scope.spawn(thread)).collect();
        // Joined, because the detector does not see how a scope ends.
        for thread in running {
            thread.join().expect("a thread found something wrong");
        }
    });
}

/// The records of one direction, as its readers find them.
struct Delivery {
    /// Bytes of a record.
    len: usize,
    /// Records of each writer.
    count: u32,
    /// Records that no reader has undertaken to read yet.
    left: AtomicU32,
    /// How often each record came.
    came: Vec<AtomicU8>,
}

impl Delivery {
    fn of(len: usize) -> Self {
        let count = (VOLUME / len) as u32;
        let all = THREADS * count;
        let came = (0..all).map(|_| AtomicU8::new(0)).collect();
        Self { len, count, left: AtomicU32::new(all), came }
    }

    /// Sends all records of one writer.
    fn send(&self, end: &End, writer: u32) {
        for number in 0..self.count {
            end.send(&record(writer, number, self.len));
        }
    }

    /// Reads records until none is left.
    fn receive(&self, end: &End) {
        let mut bytes = vec![0; self.len];
        let mut next = [0; THREADS as usize];
        while self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            assert_eq!(end.receive(&mut bytes), self.len, "a part of a record");
            let [writer, number] = [word(&bytes, 0), word(&bytes, 4)];
            assert!(writer < THREADS && number < self.count, "no record: {writer} {number}");
            assert_eq!(bytes, record(writer, number, self.len), "a record is torn");
            assert!(number >= next[writer as usize], "a record overtook another");
            next[writer as usize] = number + 1;
            let before = self.came[(writer * self.count + number) as usize].fetch_add(1, Relaxed);
            assert_eq!(before, 0, "a record came twice");
        }
    }
}

/// The record of a writer: who, which, and bytes that follow from both.
fn record(writer: u32, number: u32, len: usize) -> Vec<u8> {
    let mut state = writer << 31 ^ number;
    let mut bytes = [writer.to_ne_bytes(), number.to_ne_bytes()].concat();
    while bytes.len() < len {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.extend(state.to_ne_bytes());
    }
    bytes
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Connections that begin, move and end beside each other: what all of them share is
/// tables, pools, slots and rings.
fn visits() {
    let visitor = || {
        let listener = Listener::new();
        for _ in 0..VISITS {
            let (client, server) = listener.pair();
            warm_up(&client, &server);
        }
    };
    together((0..VISITORS).map(|_| visitor));
}

/// Exchanges messages until both directions have left TCP.
fn warm_up(client: &End, server: &End) {
    let mut byte = [0];
    for _ in 0..WARM_ROUNDS {
        for (from, to) in [(client, server), (server, client)] {
            from.send(b"x");
            assert_eq!(to.receive(&mut byte), 1);
        }
    }
    for end in [client, server] {
        assert_eq!(end.sock().phase(), Phase::Smc, "the connection has not moved");
    }
}

/// A call was looked up, and stands right before the kernel, when `dup2` puts a connection that has
/// moved under its number: it goes on with the file with which it began.
fn late_receive(listener: &Listener, start: fn(&Listener) -> (End, End)) {
    let (mine, peer) = start(listener);
    peer.send(b"mine");
    let mut bytes = [0; 4];
    let place = bytes.as_mut_ptr() as usize;
    let taken = across_dup2(listener, mine.fd, |number, plain| {
        // SAFETY: a buffer of four bytes, of which nothing else is done meanwhile.
        let call = || unsafe { libc::recv(number, place as *mut _, 4, libc::MSG_DONTWAIT) };
        answered(stream::receive(number, || None, 0, || plain(&call)))
    });
    if let Some(taken) = taken {
        assert_eq!((taken, &bytes), (4, b"mine"));
    }
}

fn late_send(listener: &Listener, start: fn(&Listener) -> (End, End)) {
    let (mine, peer) = start(listener);
    let sent = across_dup2(listener, mine.fd, |number, plain| {
        // SAFETY: a buffer of four bytes.
        let call = || unsafe { libc::send(number, b"mine".as_ptr().cast(), 4, 0) };
        answered(stream::send(number, || None, 0, || plain(&call)))
    });
    if let Some(sent) = sent {
        let mut bytes = [0; 4];
        assert_eq!((sent, peer.receive(&mut bytes), &bytes), (4, 4, b"mine"));
    }
}

/// The program's own call, made at a moment of the test's.
type Plain<'a> = &'a dyn Fn(&dyn Fn() -> isize) -> isize;

/// Has a thread make a call with the number of a connection on TCP, while a moved connection is put
/// over it when that call has been looked up. `None`: it cannot be kept there.
fn across_dup2(
    listener: &Listener,
    number: i32,
    call: impl FnOnce(i32, Plain<'_>) -> usize + Send,
) -> Option<usize> {
    let (moved, peer) = listener.pair();
    warm_up(&moved, &peer);
    let gate = Gate::new()?;
    let is_over = AtomicBool::new(false);
    let closing_side = sys::tid();
    thread::scope(|scope| {
        let (gate, is_over) = (&gate, &is_over);
        let caller = scope.spawn(move || {
            let plain = |call: &dyn Fn() -> isize| {
                gate.pass();
                call()
            };
            call(number, &plain)
        });
        gate.await_guest();
        let porter = scope.spawn(move || {
            // Until it is over, or waits for the call to be.
            while !is_over.load(Relaxed) && sys::is_asleep(closing_side) == Ok(false) {
                thread::yield_now();
            }
            gate.open();
        });
        let closing = life::before_put_over(moved.fd, number);
        // SAFETY: both are open, and the owner of `number` closes what is under it then.
        assert_eq!(unsafe { libc::dup2(moved.fd, number) }, number);
        life::duplicate(moved.fd, number);
        drop(closing);
        is_over.store(true, Relaxed);
        porter.join().expect("it has opened the gate");
        Some(caller.join().expect("the call has found something wrong"))
    })
}

/// A page that is not there until it is said to be: a thread that reads it stands outside of the
/// kernel's calls, and uses no CPU.
struct Gate {
    faults: i32,
    page: usize,
}

impl Gate {
    /// `userfaultfd(2)`: its flag for faults in user mode alone, the version of its protocol, and
    /// the mode of a range that reports pages which are not there.
    const USER_MODE_ONLY: i32 = 1;
    const VERSION: u64 = 0xaa;
    const MISSING: u64 = 1;
    const UFFDIO_API: u64 = 0xc018_aa3f;
    const UFFDIO_REGISTER: u64 = 0xc020_aa00;
    const UFFDIO_ZEROPAGE: u64 = 0xc020_aa04;
    const LEN: usize = 4096;

    /// `None`: this system has no `userfaultfd`, or forbids it.
    fn new() -> Option<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | Self::USER_MODE_ONLY;
        // SAFETY: no memory operands.
        let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as i32;
        if faults < 0 {
            println!("skipped: no userfaultfd: {}", std::io::Error::last_os_error());
            return None;
        }
        let (access, kind) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a mapping at a new place.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), Self::LEN, access, kind, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        let gate = Self { faults, page: page as usize };
        gate.tell(Self::UFFDIO_API, &mut [Self::VERSION, 0, 0]);
        gate.tell(
            Self::UFFDIO_REGISTER,
            &mut [gate.page as u64, Self::LEN as u64, Self::MISSING, 0],
        );
        Some(gate)
    }

    fn tell<const N: usize>(&self, request: u64, words: &mut [u64; N]) {
        // SAFETY: as many words as the request has.
        let told = unsafe { libc::ioctl(self.faults, request, words.as_mut_ptr()) };
        assert_eq!(told, 0, "userfaultfd: {}", std::io::Error::last_os_error());
    }

    /// Waits until it is open.
    fn pass(&self) {
        // SAFETY: a byte of the page, which is never unmapped.
        unsafe { (self.page as *const u8).read_volatile() };
    }

    /// Waits until a thread stands before it.
    fn await_guest(&self) {
        let mut entry = libc::pollfd { fd: self.faults, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        while unsafe { libc::poll(&raw mut entry, 1, -1) } != 1 {}
    }

    fn open(&self) {
        self.tell(Self::UFFDIO_ZEROPAGE, &mut [self.page as u64, Self::LEN as u64, 0, 0]);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // SAFETY: it is this one's.
        unsafe { libc::close(self.faults) };
    }
}

/// The kernel has put a connection that has moved over what is none of ours, and the table does not
/// know yet: a call that begins now is one on that connection.
fn call_beside_the_kernel(listener: &Listener) {
    let (moved, peer) = listener.pair();
    warm_up(&moved, &peer);
    peer.send(b"mine");
    let number = std::fs::File::open("/dev/null").expect("it is there").into_raw_fd();
    let second = End { socket: None, fd: number };
    let closing = life::before_put_over(moved.fd, number);
    // SAFETY: both are open.
    assert_eq!(unsafe { libc::dup2(moved.fd, number) }, number);
    let (tid, mut bytes) = (AtomicU32::new(0), [0; 4]);
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            tid.store(sys::tid(), Relaxed);
            second.receive(&mut bytes)
        });
        let is_waiting =
            || matches!(tid.load(Relaxed), tid @ 1.. if sys::is_asleep(tid) == Ok(true));
        while !is_waiting() && !caller.is_finished() {
            thread::yield_now();
        }
        life::duplicate(moved.fd, number);
        drop(closing);
        assert_eq!(caller.join().expect("a call on the connection"), 4);
    });
    assert_eq!(&bytes, b"mine");
    let closing = life::before_close(number);
    // SAFETY: it is open, and no one's but ours.
    unsafe { libc::close(number) };
    drop(closing);
}

/// A number leads to one moved connection or another, and again and again to the next: a call that
/// waits for one `dup2` may come to itself in the middle of another, and is on one of them all the same.
fn calls_between_dup2(listener: &Listener) {
    const ROUNDS: usize = 40_000;
    const CALLERS: usize = 8;
    let pairs = [listener.pair(), listener.pair()];
    pairs.iter().for_each(|(client, server)| warm_up(client, server));
    // SAFETY: it is open.
    let number = unsafe { libc::dup(pairs[0].0.fd) };
    life::duplicate(pairs[0].0.fd, number);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let call = || {
            let mut byte = 0u8;
            let part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
            while !is_over.load(Relaxed) {
                // SAFETY: one buffer, writable.
                let buffers = || unsafe { Buffers::new(&raw const part, 1) };
                let plain = || panic!("it has moved");
                let outcome = stream::receive(number, buffers, libc::MSG_DONTWAIT, plain);
                assert!(matches!(outcome, Some(Outcome::Ours(Err(libc::EAGAIN)))), "a stranger's");
            }
        };
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(call)).collect();
        for round in 0..ROUNDS {
            let fd = pairs[round % 2].0.fd;
            let closing = life::before_put_over(fd, number);
            // SAFETY: both are open.
            assert_eq!(unsafe { libc::dup2(fd, number) }, number);
            life::duplicate(fd, number);
            drop(closing);
        }
        is_over.store(true, Relaxed);
        for caller in callers {
            caller.join().expect("each call is on one of the two");
        }
    });
    let closing = life::before_close(number);
    // SAFETY: it is open, and no one's but ours.
    unsafe { libc::close(number) };
    drop(closing);
}

/// A listening socket, as the library sees one that it was told of.
struct Listener(TcpListener);

impl Listener {
    fn new() -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a port of the loopback");
        let fd = socket.as_raw_fd();
        life::register(fd, false, false).expect("room").set_phase(Phase::Listener);
        listeners::mark(&descriptors::sock(fd).expect("just registered"), fd);
        Self(socket)
    }

    /// The two ends of a new connection.
    fn pair(&self) -> (End, End) {
        let address = self.0.local_addr().expect("bound");
        let client = TcpStream::connect(address).expect("a connection");
        let (server, _) = self.0.accept().expect("its other end");
        (End::new(client, false), End::new(server, true))
    }

    /// The same, the client's of which nothing is decided yet.
    fn untracked_pair(&self) -> (End, End) {
        let address = self.0.local_addr().expect("bound");
        let client = TcpStream::connect(address).expect("a connection");
        let (server, _) = self.0.accept().expect("its other end");
        let fd = client.as_raw_fd();
        fresh::note_fresh(fd);
        assert!(fresh::begin_client(fd, address.port()), "it has an object");
        (End { socket: Some(client), fd }, End::new(server, true))
    }
}

/// One end of a connection, called as the preloaded library calls it.
struct End {
    socket: Option<TcpStream>,
    fd: i32,
}

impl End {
    fn new(socket: TcpStream, is_server: bool) -> Self {
        socket.set_nodelay(true).expect("a TCP socket");
        let fd = socket.as_raw_fd();
        let sock = life::register(fd, false, is_server).expect("room");
        sock.set_phase(Phase::Candidate);
        life::begin(sock, fd);
        Self { socket: Some(socket), fd }
    }

    fn sock(&self) -> Use {
        descriptors::sock(self.fd).expect("registered")
    }

    fn send(&self, bytes: &[u8]) {
        let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: one buffer, which is only read.
        let buffers = || unsafe { Buffers::new(&raw const part, 1) };
        // SAFETY: the same buffer.
        let plain = || unsafe { libc::send(self.fd, part.iov_base, part.iov_len, 0) };
        let sent = answered(stream::send(self.fd, buffers, 0, plain));
        assert_eq!(sent, bytes.len(), "a blocking send sends all");
    }

    fn receive(&self, bytes: &mut [u8]) -> usize {
        let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: one buffer, writable.
        let buffers = || unsafe { Buffers::new(&raw const part, 1) };
        // SAFETY: the same buffer.
        let plain = || unsafe { libc::recv(self.fd, part.iov_base, part.iov_len, 0) };
        answered(stream::receive(self.fd, buffers, 0, plain))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let closing = life::before_close(self.fd);
        self.socket = None;
        drop(closing);
    }
}

fn answered(outcome: Option<Outcome>) -> usize {
    match outcome.expect("a socket of ours") {
        Outcome::Plain(n) => usize::try_from(n).expect("TCP moves bytes"),
        Outcome::Ours(answer) => answer.expect("the ring moves bytes"),
    }
}
