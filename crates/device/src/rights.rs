//! Descriptors beside messages (`SCM_RIGHTS`), where strangers can send them.
//!
//! A message in an AF_UNIX socket brings open files, and with the last reference to a file its holder
//! has to close it. That can take as long as its owner likes: the last close of a TCP socket with
//! unsent data sleeps for its `SO_LINGER`, in the thread that drops the message, or that closes the
//! socket in whose queue the message lies. So no thread of a program may be the one that drops what
//! a stranger has sent.
//!
//! ```text
//!   the next message   a look (MSG_PEEK), without room for descriptors
//!     of a friend        ──> taken, with what is beside it
//!     without any        ──> taken
//!     of a stranger,
//!     with descriptors   ──> stays where it is, for good
//! ```
//!
//! A look takes references of its own and drops them again; these are never the last, because the
//! message has still those it came with. A socket with such a message in it is of no use any more: it is
//! left open until the process ends (an exiting task does not wait for `SO_LINGER`), and what would
//! have come by it comes not at all. [`LEFT_OPEN_MAX`] bounds how many there can be. Where the kernel lets a
//! socket refuse descriptors ([`refuse`], Linux 6.16), the sender gets `EPERM` and there are none.
//!
//! *Source*: Linux `net/unix/af_unix.c` (`unix_dgram_recvmsg`), `net/core/scm.c`, `net/ipv4/af_inet.c`
//! (`inet_release`); unix(7), socket(7).

use crate::sys::{self, Errno, Received, Result};
use core::sync::atomic::{AtomicU32, Ordering};

/// Sockets that may be left open with a stranger's descriptors in them. Each costs the program a
/// descriptor, of which it has 1024 at least.
pub const LEFT_OPEN_MAX: u32 = 16;

/// `SO_PASSRIGHTS` of `asm-generic/socket.h`; Linux 6.16.
const SO_PASSRIGHTS: i32 = 83;

/// The user whose number says least.
const ROOT: u32 = 0;

static LEFT_OPEN: AtomicU32 = AtomicU32::new(0);

/// What a look at the next message shows, or why there is none to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// There is no message, or the call has failed.
    Errno(Errno),
    /// The next message is a stranger's and has descriptors. No other will be had.
    Foreign,
}

/// From now on this socket takes no descriptors, if the kernel knows how to refuse them.
pub fn refuse(fd: i32) {
    // Older kernels say ENOPROTOOPT; there a look has to do.
    let _ = sys::set_socket_option(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, 0);
}

/// From now on descriptors can be sent to this socket, which has inherited the refusal of the listening
/// socket that it came by.
pub fn admit(fd: i32) {
    let _ = sys::set_socket_option(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, 1);
}

/// The next message of a socket that tells its senders (`SO_PASSCRED`), without waiting. Descriptors
/// come only with those of friends. One thread at a time may call it for a socket: between the look
/// and the call that takes, the next message must stay the next.
///
/// # Errors
/// [`NotTaken`].
pub fn receive(
    fd: i32,
    bytes: &mut [u8],
    is_friend: impl FnOnce(&Received) -> bool,
) -> core::result::Result<Received, NotTaken> {
    let (first, has_descriptors) = sys::peek_sender(fd).map_err(NotTaken::Errno)?;
    if has_descriptors && !is_friend(&first) {
        return Err(NotTaken::Foreign);
    }
    // Root is more than its number: where it sends from, the kernel tells of the process itself.
    let is_root = first.sender.is_some_and(|sender| sender.uid == ROOT);
    if is_root {
        sys::pass_pidfd(fd, true);
    }
    let received = sys::recv_with_fds(fd, bytes).map_err(NotTaken::Errno);
    if is_root {
        sys::pass_pidfd(fd, false);
    }
    received
}

/// Closes a socket by which strangers could send, or leaves it open for good if one has sent
/// descriptors. The socket has no other user.
pub fn close(fd: i32) {
    // Nothing more comes from now on. An AF_UNIX socket can be shut even if it is not connected.
    let _ = sys::shutdown(sys::seat(fd), libc::SHUT_RDWR);
    if drain(fd).is_ok() {
        sys::close(fd);
    } else {
        LEFT_OPEN.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether as many sockets are left open as may be: then none is made by which strangers could send.
#[must_use]
pub fn is_beset() -> bool {
    LEFT_OPEN.load(Ordering::Relaxed) >= LEFT_OPEN_MAX
}

/// Drops the messages without descriptors. `Err`: there is one with some.
fn drain(fd: i32) -> Result<()> {
    loop {
        match sys::peek_has_fds(fd) {
            Ok(true) => return Err(Errno(libc::EPERM)),
            Ok(false) => {}
            Err(_) => return Ok(()),
        }
        // Empty because its peer is gone, or an empty message: the end is told again and again.
        match sys::recv_with_fds(fd, &mut [0]) {
            Ok(received) if received.len > 0 => {}
            Ok(_) | Err(_) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Whereabouts;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    use std::time::{Duration, Instant};
    use std::{eprintln, format};

    /// Where all tests of this module count.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// A TCP socket whose last close sleeps for ten minutes, and its peer, which does not read.
    fn sleeper() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        while (&socket).write(&[0; 1 << 16]).is_ok() {}
        let linger = libc::linger { l_onoff: 1, l_linger: 600 };
        sys::set_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &linger).unwrap();
        (socket, peer)
    }

    fn mailbox(name: &str) -> (UnixDatagram, SocketAddr) {
        let name = format!("sidestep-test/{}/{name}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let mailbox = UnixDatagram::bind_addr(&address).unwrap();
        mailbox.set_nonblocking(true).unwrap();
        let fd = mailbox.as_raw_fd();
        sys::set_socket_option(fd, libc::SOL_SOCKET, libc::SO_PASSCRED, 1).unwrap();
        (mailbox, address)
    }

    /// Sends these bytes, and a sleeper that has no other descriptor.
    fn send_sleeper(to: &SocketAddr) -> Result {
        let (socket, peer) = sleeper();
        let name = sys::UnixName::new(to.as_abstract_name().unwrap());
        let sender = UnixDatagram::unbound().unwrap();
        let fds = [socket.as_raw_fd()];
        let sent = sys::send_with_fds(sender.as_raw_fd(), &name, b"here", &fds);
        // The peer lives as long as the process, and never reads.
        let _ = peer.into_raw_fd();
        if sent.is_err() {
            // So that the test itself does not sleep.
            let now = libc::linger { l_onoff: 1, l_linger: 0 };
            sys::set_option(fds[0], libc::SOL_SOCKET, libc::SO_LINGER, &now).unwrap();
        }
        sent
    }

    fn prompt<T>(work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        // A sleep would be ten minutes.
        assert!(start.elapsed() < Duration::from_secs(300), "{:?}", start.elapsed());
        done
    }

    #[test]
    fn what_a_stranger_sends_is_not_taken_and_not_dropped() {
        let _alone = ALONE.lock().unwrap();
        let (mailbox, address) = mailbox("stranger");
        send_sleeper(&address).unwrap();
        let fd = mailbox.into_raw_fd();
        let before = LEFT_OPEN.load(Ordering::Relaxed);
        prompt(|| {
            let refused = receive(fd, &mut [0; 16], |_| false).map(|it| it.len);
            assert_eq!(refused, Err(NotTaken::Foreign));
            close(fd);
        });
        assert_eq!(LEFT_OPEN.load(Ordering::Relaxed), before + 1, "it stays open");
    }

    #[test]
    fn what_a_friend_sends_comes_with_its_descriptors() {
        let (mailbox, address) = mailbox("friend");
        let sender = UnixDatagram::unbound().unwrap();
        let name = sys::UnixName::new(address.as_abstract_name().unwrap());
        sys::send_with_fds(sender.as_raw_fd(), &name, b"here", &[0]).unwrap();
        let received = receive(mailbox.as_raw_fd(), &mut [0; 16], |_| true).unwrap();
        assert_eq!((received.len, received.fds().len()), (4, 1));
        assert_eq!(received.whereabouts(), Whereabouts::Near, "it is this very process");
        received.close_fds();
    }

    /// A client that ends at once has ended before its message is taken.
    #[test]
    fn a_sender_that_has_ended_is_gone_and_not_elsewhere() {
        let _alone = crate::alone_with_descriptors();
        let (mailbox, address) = mailbox("the dead");
        let sender = UnixDatagram::unbound().unwrap();
        let name = sys::UnixName::new(address.as_abstract_name().unwrap());
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let sent = sys::send_with_fds(sender.as_raw_fd(), &name, b"last", &[0]).is_ok();
            // SAFETY: as above.
            unsafe { libc::_exit((!sent).into()) };
        }
        let mut status = -1;
        // SAFETY: a child of ours; one writable number.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        let mut at_first = None;
        let look = |letter: &Received| {
            at_first = Some(letter.whereabouts());
            true
        };
        let received = receive(mailbox.as_raw_fd(), &mut [0; 16], look).unwrap();
        assert_eq!(at_first, Some(Whereabouts::Gone));
        assert_eq!((received.whereabouts(), received.fds().len()), (Whereabouts::Gone, 1));
        received.close_fds();
    }

    #[test]
    fn a_stranger_without_descriptors_is_heard_and_goes_with_the_socket() {
        let _alone = ALONE.lock().unwrap();
        let (mailbox, address) = mailbox("mere bytes");
        let sender = UnixDatagram::unbound().unwrap();
        for word in [&b"one"[..], b"two"] {
            sender.send_to_addr(word, &address).unwrap();
        }
        let fd = mailbox.into_raw_fd();
        let received = receive(fd, &mut [0; 16], |_| false).unwrap();
        assert_eq!((received.len, received.fds().len()), (3, 0));
        let before = LEFT_OPEN.load(Ordering::Relaxed);
        close(fd);
        assert_eq!(LEFT_OPEN.load(Ordering::Relaxed), before);
    }

    #[test]
    fn where_the_kernel_can_it_refuses_descriptors() {
        let (mailbox, address) = mailbox("refused");
        refuse(mailbox.as_raw_fd());
        let option =
            sys::socket_option::<i32>(mailbox.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS);
        if option.is_err() {
            return eprintln!("skipped: the kernel has no SO_PASSRIGHTS (Linux 6.16)");
        }
        assert_eq!(send_sleeper(&address), Err(Errno(libc::EPERM)));
    }
}
