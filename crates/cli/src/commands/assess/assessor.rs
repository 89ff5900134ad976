//! Being shown what programs count, from their first connection to beyond their end.
//!
//! A state goes with its process, and a short program is gone before anybody has looked into
//! `/proc`. So the `sidestep` that starts one to assess it listens at a name, the library sends its state
//! there as soon as there is one, and what was counted stays as long as we hold it.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use sidestep_observe::Shown;

use crate::commands::ss;

/// A name to which programs send their states.
pub(super) struct Assessor {
    listener: OwnedFd,
    name: String,
}

/// Programs that may have begun since we last looked; more are not counted.
const QUEUE_LEN: i32 = 4096;

/// How long a program may take from its connection to its state.
const PATIENCE: Duration = Duration::from_secs(1);

/// The shortest wait that the kernel takes for one.
const LEAST_WAIT: Duration = Duration::from_millis(1);

impl Assessor {
    /// Listens at a name of its own.
    pub(super) fn bind() -> io::Result<Self> {
        let name = format!("sidestep/1/assess/{}", std::process::id());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        net::bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        net::listen(&listener, QUEUE_LEN)?;
        Ok(Self { listener, name })
    }

    /// Under which programs find it: the option `assessor`.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Readable when a program wants to send a state.
    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// The states that have come since the last time. A stranger's are none.
    pub(super) fn receive(&self) -> Vec<Shown> {
        let mut shown = Vec::new();
        while let Ok(connection) = net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
            shown.extend(receive_from(&connection));
        }
        shown
    }
}

/// What is sent over a connection, of a program of ours: at once, unless it is stopped.
fn receive_from(connection: &OwnedFd) -> Option<Shown> {
    // Not rustix's `UCred`: a process of another PID namespace has the number 0, for which that
    // has no room.
    let sender = getsockopt(connection, PeerCredentials).ok()?;
    if sender.uid() != rustix::process::getuid().as_raw() && !ss::is_root() {
        return None;
    }
    Shown::new(receive_file(connection)?, sender.pid().unsigned_abs())
}

/// The file that comes over a connection within [`PATIENCE`], whatever signals come meanwhile: programs that are assessed
/// end, and each tells so by one.
fn receive_file(connection: &OwnedFd) -> Option<OwnedFd> {
    let deadline = Instant::now() + PATIENCE;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    loop {
        // A limit of zero would be none.
        let left = deadline.saturating_duration_since(Instant::now()).max(LEAST_WAIT);
        sockopt::set_socket_timeout(connection, Timeout::Recv, Some(left)).ok()?;
        let mut byte = [0];
        let mut bytes = [IoSliceMut::new(&mut byte)];
        match net::recvmsg(connection, &mut bytes, &mut beside, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            // Where there is a limit the kernel does not begin the call anew.
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::thread;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

    use super::*;

    fn connect(assessor: &Assessor) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let name = SocketAddrUnix::new_abstract_name(assessor.name().as_bytes()).unwrap();
        net::connect(&socket, &name).unwrap();
        socket
    }

    /// A signal whose handler does nothing comes to this thread until the state is sent.
    #[test]
    fn a_signal_does_not_end_the_wait_for_a_state() {
        const SIGNALS: u32 = 20;
        const PAUSE: Duration = Duration::from_millis(5);
        let _handler = signal_hook::flag::register(libc::SIGUSR2, Arc::default()).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let (program, connection) =
            net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        // SAFETY: it has no preconditions.
        let waiting = unsafe { libc::pthread_self() };
        let received = thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..SIGNALS {
                    thread::sleep(PAUSE);
                    // SAFETY: the thread waits for the end of this one, so it is there.
                    assert_eq!(unsafe { libc::pthread_kill(waiting, libc::SIGUSR2) }, 0);
                }
                let file = tempfile::tempfile().unwrap();
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut beside = SendAncillaryBuffer::new(&mut space);
                let files = [file.as_fd()];
                assert!(beside.push(SendAncillaryMessage::ScmRights(&files)));
                let byte = [IoSlice::new(b"!")];
                net::sendmsg(&program, &byte, &mut beside, SendFlags::empty()).unwrap();
            });
            receive_file(&connection)
        });
        assert!(received.is_some());
    }

    #[test]
    fn what_is_no_state_is_none_and_keeps_nobody_for_long() {
        let assessor = Assessor::bind().unwrap();
        assert!(assessor.receive().is_empty());
        drop(connect(&assessor));
        let silent = connect(&assessor);
        let begun = Instant::now();
        assert!(assessor.receive().is_empty());
        // The kernel counts ticks, and counts at once those that a hypervisor has kept from it: so much is missing.
        assert!(begun.elapsed() >= PATIENCE / 2, "it might still have sent one");
        drop(silent);
    }
}
