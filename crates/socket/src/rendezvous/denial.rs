//! What the IP filter of the host says of a connection that is about to move.
//!
//! `sidestep filter` judges packets, and a connection in shared memory has none but bells. So each end asks
//! about its own before it moves ([`verdict`]): one system call where no filter is in force, two more where one
//! is. A later change of the rules is told by the command that makes it: [`crate::connection::denial`].
//!
//! The order makes that certain. A filter is in force before the slots are looked at whose connections it may
//! deny, and a connection has its slot before it asks: so it is denied here, or its slot is seen there.

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

/// What speaks against a connection: the packets that it has now, one way or the other.
pub(super) fn objection(slot: &Slot, fd: i32, local: IpAddr, is_distant: bool) -> Option<Reason> {
    let interface = match is_distant {
        false => LOOPBACK,
        true => pnet::interface_number(fd, local).unwrap_or(0),
    };
    slot.interface.store(interface, Ordering::Relaxed);
    is_denied(fd, interface).then_some(Reason::Operator(OperatorSaid::Denied))
}

fn is_denied(fd: i32, interface: u32) -> bool {
    let ask = |what, user| {
        let value = Question { user, interface }.to_bytes();
        sys::set_option(fd, verdict::LEVEL, what, &value)
    };
    let user = sys::file_user(fd).unwrap_or(0);
    match ask(verdict::OUT, user) {
        Err(Errno(libc::EPERM)) => true,
        Ok(_) => ask(verdict::IN, user) == Err(Errno(libc::EPERM)),
        // No filter is in force, or it does not know the question.
        Err(_) => false,
    }
}

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
        assert_eq!(answer, Err(Errno(libc::ENOPROTOOPT)));
        assert!(!is_denied(listener.as_raw_fd(), LOOPBACK));
    }
}
