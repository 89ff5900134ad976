//! Two ends of a connection in shared memory, in one process, and a process without system calls.
//!
//! The ends are made as a program's calls would make them.

use sidestep_device::lent::Lent;
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
pub(crate) const MESSAGE: [u8; 2048] = [7; 2048];

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
pub(crate) struct Pair {
    pub(crate) sender: i32,
    pub(crate) reader: i32,
}

impl Pair {
    pub(crate) fn new() -> Self {
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
    pub(crate) fn fresh() -> Self {
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

    pub(crate) fn send(&self, bytes: &[u8], flags: i32) -> Answer {
        send(self.sender, bytes, flags)
    }

    pub(crate) fn look(&self) -> Result<Lent, Errno> {
        lending::look(self.reader, 0)
    }

    /// Takes the next bytes: a copy of them, and whether they are urgent.
    pub(crate) fn take(&self) -> Result<(Vec<u8>, bool), Errno> {
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

pub(crate) fn bytes_of(lent: &Lent) -> Vec<u8> {
    let stretch = |(base, len): (*const u8, usize)| match len {
        0 => &[][..],
        // SAFETY: the ring is mapped, and the sender, which is this thread, writes nothing now.
        _ => unsafe { std::slice::from_raw_parts(base, len) },
    };
    lent.stretches.map(stretch).concat()
}

pub(crate) fn send(fd: i32, bytes: &[u8], flags: i32) -> Answer {
    let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let flags = flags | DONT_WAIT;
    // SAFETY: one buffer, which is only read.
    let plain = || unsafe { libc::send(fd, part.iov_base, part.iov_len, flags) };
    // SAFETY: the same buffer.
    let buffers = || unsafe { Buffers::new(&raw const part, 1) };
    answer(stream::send(fd, buffers, flags, plain))
}

pub(crate) fn receive(fd: i32, len: usize) -> Answer {
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

/// Runs the test of this name in a process of its own, where `warm` is called first, and then `rest`, during which the
/// kernel ends the process at any system call. What `rest` says is whether the test has passed.
pub(crate) fn without_system_calls<T>(
    name: &str,
    warm: impl Fn() -> T,
    rest: impl Fn(&mut T) -> bool,
) {
    const INSIDE: &str = "WITHOUT_SYSTEM_CALLS";
    if std::env::var_os(INSIDE).is_none() {
        let mut inside = Command::new(std::env::current_exe().unwrap());
        let status = inside.args(["--exact", name]).env(INSIDE, "").status().unwrap();
        assert_eq!((status.signal(), status.code()), (None, Some(PASSED)));
        return;
    }
    let mut warmed = warm();
    forbid_system_calls();
    let has_passed = rest(&mut warmed);
    // SAFETY: nothing is left to be done.
    unsafe { libc::_exit(if has_passed { PASSED } else { 1 }) };
}
