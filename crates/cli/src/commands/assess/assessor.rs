//! Being shown what programs count, from their first connection to beyond their end.
//!
//! A state goes with its process, and a short program is gone before anybody has looked into
//! `/proc`. So the `sidestep` that starts one to assess it listens at a name, the library sends its state
//! there as soon as there is one, and what was counted stays as long as we hold it.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
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
    sockopt::set_socket_timeout(connection, Timeout::Recv, Some(PATIENCE)).ok()?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    net::recvmsg(connection, &mut bytes, &mut beside, RecvFlags::CMSG_CLOEXEC).ok()?;
    let file = beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Shown::new(file?, sender.pid().unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(assessor: &Assessor) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let name = SocketAddrUnix::new_abstract_name(assessor.name().as_bytes()).unwrap();
        net::connect(&socket, &name).unwrap();
        socket
    }

    #[test]
    fn what_is_no_state_is_none_and_keeps_nobody_for_long() {
        let assessor = Assessor::bind().unwrap();
        assert!(assessor.receive().is_empty());
        drop(connect(&assessor));
        let silent = connect(&assessor);
        let begun = std::time::Instant::now();
        assert!(assessor.receive().is_empty());
        // The kernel counts ticks, and counts at once those that a hypervisor has kept from it: so much is missing.
        assert!(begun.elapsed() >= PATIENCE / 2, "it might still have sent one");
        drop(silent);
    }
}
