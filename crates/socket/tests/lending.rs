//! An end that is lent: what the peer has sent is shown where it lies, in both laps of the ring, with its urgent
//! bytes and its end, and neither the sender nor the reader enters the kernel for a message.
//!
//! Both ends are in this process, made as the program's calls would make them.

use sidestep_device::lent::{ELSEWHERE, Lent};
use sidestep_device::program::Buffers;
use sidestep_socket::process::loan;
use sidestep_socket::process::options::{self, Options};
use sidestep_socket::program::stream::{self, Outcome};
use sidestep_socket::program::{lending, life};
use sidestep_socket::rendezvous::listeners;
use sidestep_socket::table::descriptors;
use sidestep_socket::table::sock::Phase;
use sidestep_socket::{Answer, Errno};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Once;

const DONT_WAIT: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Messages each way, after which both directions have moved.
const ROUNDS: usize = 100;

/// A message as it is between hosts.
const MESSAGE: [u8; 2048] = [7; 2048];

fn listen() -> TcpListener {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        loan::note_owner();
        options::configure(Options::default());
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let fd = listener.as_raw_fd();
    life::register(fd, false, false).unwrap().set_phase(Phase::Listener);
    listeners::mark(&descriptors::sock(fd).unwrap(), fd);
    listener
}

/// The ends of a connection in shared memory: one that sends, and one that is lent and has urgent bytes in line.
struct Pair {
    sender: i32,
    reader: i32,
}

impl Pair {
    fn new() -> Self {
        let pair = Self::fresh();
        for _ in 0..ROUNDS {
            assert_eq!(pair.send(b"m", 0), Ok(1));
            assert_eq!(receive(pair.reader, 1), Ok(1));
            assert_eq!(send(pair.reader, b"a", 0), Ok(1));
            assert_eq!(receive(pair.sender, 1), Ok(1));
        }
        assert_eq!(pair.look(), Err(libc::EAGAIN), "it is in shared memory, and nothing is there");
        pair
    }

    /// One on which nothing is decided yet.
    fn fresh() -> Self {
        let listener = listen();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        have_urgent_bytes_in_line(&server);
        let [sender, reader] = [(client, false), (server, true)].map(|(socket, is_server)| {
            socket.set_nodelay(true).unwrap();
            let fd = socket.into_raw_fd();
            let sock = life::register(fd, false, is_server).unwrap();
            sock.set_phase(Phase::Candidate);
            life::begin(sock, fd);
            fd
        });
        let _closing = life::before_close(listener.as_raw_fd());
        drop(listener);
        Self { sender, reader }
    }

    fn send(&self, bytes: &[u8], flags: i32) -> Answer {
        send(self.sender, bytes, flags)
    }

    fn look(&self) -> Result<Lent, Errno> {
        lending::look(self.reader)
    }

    /// Takes the next bytes: a copy of them, and whether they are urgent.
    fn take(&self) -> Result<(Vec<u8>, bool), Errno> {
        let lent = self.look()?;
        lending::pass(self.reader, lent.position, lent.len());
        Ok((bytes_of(&lent), lent.is_urgent))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for fd in [self.sender, self.reader] {
            let _closing = life::before_close(fd);
            // SAFETY: a descriptor of this pair, which nothing else has.
            unsafe { libc::close(fd) };
        }
    }
}

fn have_urgent_bytes_in_line(socket: &TcpStream) {
    let (on, len) = (1i32, size_of::<i32>() as u32);
    let at = (&raw const on).cast();
    // SAFETY: an option of one int.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_OOBINLINE, at, len)
    };
    assert_eq!(set, 0);
}

fn bytes_of(lent: &Lent) -> Vec<u8> {
    let stretch = |(base, len): (*const u8, usize)| match len {
        0 => &[][..],
        // SAFETY: the ring is mapped, and the sender, which is this thread, writes nothing now.
        _ => unsafe { std::slice::from_raw_parts(base, len) },
    };
    lent.stretches.map(stretch).concat()
}

fn send(fd: i32, bytes: &[u8], flags: i32) -> Answer {
    let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let flags = flags | DONT_WAIT;
    // SAFETY: one buffer, which is only read.
    let plain = || unsafe { libc::send(fd, part.iov_base, part.iov_len, flags) };
    // SAFETY: the same buffer.
    let buffers = || unsafe { Buffers::new(&raw const part, 1) };
    answer(stream::send(fd, buffers, flags, plain))
}

fn receive(fd: i32, len: usize) -> Answer {
    let mut bytes = vec![0u8; len];
    let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
    // SAFETY: one buffer, writable.
    let plain = || unsafe { libc::recv(fd, part.iov_base, part.iov_len, DONT_WAIT) };
    // SAFETY: the same buffer.
    let buffers = || unsafe { Buffers::new(&raw const part, 1) };
    answer(stream::receive(fd, buffers, DONT_WAIT, plain))
}

fn answer(outcome: Option<Outcome>) -> Answer {
    match outcome.expect("an object") {
        Outcome::Ours(answer) => answer,
        Outcome::Plain(-1) => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
        Outcome::Plain(n) => Ok(n as usize),
    }
}

#[test]
fn bytes_stay_where_they_lie_until_they_are_passed() {
    let pair = Pair::new();
    assert_eq!(pair.send(b"abcdef", 0), Ok(6));
    let first = pair.look().unwrap();
    assert_eq!((bytes_of(&first), first.is_urgent), (b"abcdef".to_vec(), false));
    assert_eq!(pair.look(), Ok(first), "a look takes nothing");
    lending::pass(pair.reader, first.position, 2);
    // The reader has moved on from there: nothing is passed twice.
    lending::pass(pair.reader, first.position, 2);
    assert_eq!(bytes_of(&pair.look().unwrap()), b"cdef");
    assert_eq!(receive(pair.reader, 9), Ok(4), "recv and pass are one stream");
    assert_eq!(pair.look(), Err(libc::EAGAIN));
}

#[test]
fn all_laps_of_the_ring_are_shown_in_order() {
    let pair = Pair::new();
    let (mut sent, mut seen) = (0u8, 0u8);
    let mut wraps = 0;
    for _ in 0..4000 {
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            sent = sent.wrapping_add(1);
            sent
        })
        .take(1999)
        .collect();
        assert_eq!(pair.send(&bytes, 0), Ok(bytes.len()));
        wraps += usize::from(pair.look().unwrap().stretches[1].1 > 0);
        for byte in pair.take().unwrap().0 {
            seen = seen.wrapping_add(1);
            assert_eq!(byte, seen);
        }
    }
    assert!(wraps > 3, "{wraps}");
}

#[test]
fn a_full_ring_has_room_again_for_what_was_passed() {
    let pair = Pair::new();
    let mut len = 0;
    while let Ok(n) = pair.send(&MESSAGE, 0) {
        len += n;
    }
    let full = pair.look().unwrap();
    assert_eq!(full.len(), len);
    lending::pass(pair.reader, full.position, len - 5);
    assert_eq!(pair.send(&vec![8; len], 0), Ok(len - 5));
    assert_eq!(pair.look().map(|it| it.len()), Ok(len));
}

#[test]
fn an_urgent_byte_is_shown_by_itself() {
    let pair = Pair::new();
    assert_eq!(pair.send(b"ab!", libc::MSG_OOB), Ok(3));
    assert_eq!(pair.send(b"cd", 0), Ok(2));
    let parts = [(b"ab".to_vec(), false), (b"!".to_vec(), true), (b"cd".to_vec(), false)];
    assert_eq!([pair.take(), pair.take(), pair.take()], parts.map(Ok));
}

#[test]
fn the_end_comes_behind_the_last_byte() {
    let pair = Pair::new();
    assert_eq!(pair.send(b"bye", 0), Ok(3));
    let sender = descriptors::sock(pair.sender).unwrap();
    assert_eq!(life::shutdown(&sender, pair.sender, libc::SHUT_WR), Some(Ok(0)));
    assert_eq!(pair.take(), Ok((b"bye".to_vec(), false)));
    assert_eq!([pair.look(), pair.look()], [Ok(Lent::NOTHING); 2]);
}

#[test]
fn what_comes_by_tcp_is_not_lent() {
    let pair = Pair::fresh();
    assert_eq!(pair.send(b"x", 0), Ok(1));
    assert_eq!(pair.look(), Err(ELSEWHERE.0));
    assert_eq!(lending::look(-1), Err(ELSEWHERE.0));
}

/// A process of its own, which the kernel ends at the first system call but its exit.
#[test]
fn a_message_that_is_lent_takes_no_system_call() {
    const NAME: &str = "a_message_that_is_lent_takes_no_system_call";
    const INSIDE: &str = "WITHOUT_SYSTEM_CALLS";
    if std::env::var_os(INSIDE).is_none() {
        let mut inside = Command::new(std::env::current_exe().unwrap());
        let status = inside.args(["--exact", NAME]).env(INSIDE, "").status().unwrap();
        assert_eq!((status.signal(), status.code()), (None, Some(PASSED)));
        return;
    }
    let pair = Pair::new();
    assert!(pass_message(&pair));
    forbid_system_calls();
    let are_passed = (0..1000).all(|_| pass_message(&pair));
    // SAFETY: nothing is left to be done.
    unsafe { libc::_exit(if are_passed { PASSED } else { 1 }) };
}

/// An exit status that no test harness has.
const PASSED: i32 = 77;

/// From now on the kernel ends the process when this thread calls it, but to exit.
fn forbid_system_calls() {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_exit_group as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let filter = libc::sock_fprog { len: 4, filter: program.as_ptr().cast_mut() };
    // SAFETY: a program of four steps, which the kernel copies.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            + libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
    };
    assert_eq!(installed, 0);
}

/// No allocation: it may need memory of the kernel's.
fn pass_message(pair: &Pair) -> bool {
    let is_sent = pair.send(&MESSAGE, 0) == Ok(MESSAGE.len());
    let Ok(lent) = pair.look() else { return false };
    lending::pass(pair.reader, lent.position, lent.len());
    is_sent && lent.len() == MESSAGE.len() && pair.look() == Err(libc::EAGAIN)
}
