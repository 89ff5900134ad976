//! What the IP filter of the host says of a connection that is about to move.
//!
//! `sidestep filter` judges packets, and a connection in shared memory has none but bells. So each end asks
//! about its own before it moves. It is one system call where no filter is in force, and three where one is. A later
//! change of the rules is told by the command that makes it: [`crate::connection::denial`].
//!
//! It asks as the last thing: most short connections end before that and cost nothing. A process that knows of a
//! filter asks when an attempt begins, too, so that a connection whose packets do not pass any more, and of which
//! the other end will never hear, says why it stays on TCP.
//!
//! The order makes that certain. A filter is in force before the slots are looked at whose connections it may
//! deny, and a connection has its slot before it asks: so it is denied here, or its slot is seen there. For the
//! look there the slot holds what the addresses do not tell, the interface, from the beginning of the attempt.

use crate::connection::denial::IS_KNOWN;
use crate::rendezvous::pnet;
use core::net::IpAddr;
use core::sync::atomic::Ordering;
use sidestep_device::state::Slot;
use sidestep_device::sys::{self, Errno};
use sidestep_proto::fallback::{OperatorSaid, Reason};
use sidestep_wire::verdict::{self, Question};

/// Index of the loopback interface, in every network namespace (`LOOPBACK_IFINDEX`): packets of a connection
/// within one take it, whatever its addresses are.
const LOOPBACK: u32 = 1;

/// Writes down which interface the packets of a connection take.
pub(super) fn note_interface(slot: &Slot, fd: i32, local: IpAddr, is_distant: bool) {
    let interface = match is_distant {
        false => LOOPBACK,
        true => pnet::interface_number(fd, local).unwrap_or(0),
    };
    slot.interface.store(interface, Ordering::Relaxed);
}

/// What speaks against a connection whose attempt begins, by a filter of which this process knows.
pub(super) fn early_objection(slot: &Slot, fd: i32) -> Option<Reason> {
    if IS_KNOWN.load(Ordering::Relaxed) { objection(slot, fd) } else { None }
}

/// What speaks against a connection that is about to move: the packets that it has now, one way or the other.
pub(super) fn objection(slot: &Slot, fd: i32) -> Option<Reason> {
    let interface = slot.interface.load(Ordering::Relaxed);
    is_denied(fd, interface).then_some(Reason::Operator(OperatorSaid::Denied))
}

fn is_denied(fd: i32, interface: u32) -> bool {
    let ask = |what, user| {
        let value = Question { user, interface }.to_bytes();
        sys::set_option(fd, verdict::LEVEL, what, &value)
    };
    // Whose the socket is means something to a filter alone, and costs a system call.
    if !IS_KNOWN.load(Ordering::Relaxed) && ask(verdict::OUT, 0) == Err(NO_FILTER) {
        return false;
    }
    let user = sys::file_user(fd).unwrap_or(0);
    let out = ask(verdict::OUT, user);
    IS_KNOWN.store(out != Err(NO_FILTER), Ordering::Relaxed);
    match out {
        Err(Errno(libc::EPERM)) => true,
        Ok(_) => ask(verdict::IN, user) == Err(Errno(libc::EPERM)),
        // No filter is in force any more, or it does not know the question.
        Err(_) => false,
    }
}

/// The kernel answers: no filter is in force for the socket.
const NO_FILTER: Errno = Errno(libc::ENOPROTOOPT);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    #[test]
    fn without_a_filter_nothing_speaks_against_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let value = Question { user: 0, interface: 0 }.to_bytes();
        let answer = sys::set_option(listener.as_raw_fd(), verdict::LEVEL, verdict::OUT, &value);
        if answer.is_ok() || answer == Err(Errno(libc::EPERM)) {
            return println!("skipped: a filter is in force here");
        }
        assert_eq!(answer, Err(NO_FILTER));
        assert!(!is_denied(listener.as_raw_fd(), LOOPBACK));
        // A filter that was in force lately is asked with the socket's user, and forgotten.
        IS_KNOWN.store(true, Ordering::Relaxed);
        assert!(!is_denied(listener.as_raw_fd(), LOOPBACK));
        assert!(!IS_KNOWN.load(Ordering::Relaxed));
    }
}
