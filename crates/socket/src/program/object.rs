//! Socket objects: made when a socket begins, and dissolved when no descriptor and no call leads to them.

use crate::connection::{closing, words};
use crate::polling::epoll;
use crate::process::tcp;
use crate::rendezvous::{agreement, marker};
use crate::table::end::End;
use crate::table::sock::{self, Life, Sock};
use crate::table::{account, descriptors};
use core::sync::atomic::Ordering;
use sidestep_device::sys;
use sidestep_device::untracked::About;

/// How objects end.
static LIFE: Life = Life { drop_descriptor, dissolve };

/// An object of which only the caller knows.
pub(crate) fn new(nonblocking: bool, is_server: bool) -> Option<&'static Sock> {
    sock::take(nonblocking, is_server, &LIFE)
}

/// The object of a socket that had none: of an untracked connection, or of one that is not
/// connected. No other thread knows it yet.
pub(crate) fn grown(fd: i32, about: Option<About>) -> Option<&'static Sock> {
    // A socket that does not wait must not spin for a while before that is found out.
    let sock = new(tcp::is_nonblocking(fd), about.is_some_and(|about| about.is_server))?;
    if let Some(about) = about {
        sock.server_port.store(about.server_port, Ordering::Relaxed);
        sock.note_was_untracked(fd);
    }
    Some(sock)
}

/// The last descriptor of this process is about to be closed, and no call is under way.
fn say_goodbye(sock: &Sock, fd: i32) {
    if let Some(end) = End::certain(sock, fd) {
        closing::before_last_close(&end);
    }
}

/// The kernel has closed it. A peer that is awake need not sleep to learn it.
pub(super) fn tell_of_close(sock: &Sock) {
    if let Some(conn) = sock.conn() {
        words::note_closed(conn);
    }
}

/// Nothing refers to the object: gives its slot back and itself to the pool.
fn dissolve(sock: &'static Sock) {
    // A call that has outlived the descriptors kept the file.
    if sock.naming.let_go(|copy| say_goodbye(sock, copy)) {
        tell_of_close(sock);
    }
    sock.with_last_rendezvous(|rendezvous| agreement::abandon(rendezvous, sock));
    let marker = sock.marker.load(Ordering::Relaxed);
    if marker >= 0 {
        marker::retire_marker(marker);
    }
    let name = sock.given_name.load(Ordering::Relaxed);
    if name >= 0 {
        sys::close(name);
    }
    if sock.is_undecided() && sock.slot().is_some() {
        crate::log!(Info, "connection ends on TCP before it was decided");
        account::undecided(sock);
    }
    // Before it has no slot: until then its channels are marked.
    epoll::forget_sock(sock);
    sock.release_slot();
    sock::give(sock);
}

pub(crate) fn drop_descriptor(sock: &'static Sock, fd: i32) {
    if sock.descriptors.fetch_sub(1, Ordering::AcqRel) == 1 {
        epoll::withdraw_deleted(sock);
        epoll::forget_sock(sock);
        account::complete_tally(sock, fd);
        if !sock.naming.has_copy() {
            say_goodbye(sock, fd);
        }
        sock.leave();
    } else {
        epoll::forget_descriptor(sock, fd);
        forget_descriptor(sock, fd);
    }
}

/// Another descriptor leads to it from now on.
pub(crate) fn forget_descriptor(sock: &Sock, fd: i32) {
    let Some(slot) = sock.slot() else { return };
    if slot.descriptor.load(Ordering::Relaxed) == fd {
        slot.descriptor.store(descriptors::first_of(sock).unwrap_or(-1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::home::tests::alone;
    use crate::rendezvous::attempt::PENDING;
    use crate::table::rendezvous::{Machine, Rendezvous};
    use sidestep_proto::rendezvous::agreement::server::State;
    use sidestep_proto::rendezvous::agreement::{Answer, Begun, Call, Greeting, Moment, Server};
    use std::sync::Barrier;
    use std::thread;
    use std::time::Duration;

    /// A server has said hello, and waits for the client.
    fn under_way() -> Rendezvous {
        let mut server = Server::new();
        let call = Call { moment: Moment::AfterReceive, messages: 20, received: 10, now_ns: 1 };
        server.look(&call).unwrap();
        while !matches!(server.state(), State::AwaitsReply(_)) {
            let answer = match server.state() {
                State::Begins => Answer::Begun(Begun::May { token: [9; 16], is_distant: false }),
                State::LooksWhetherBeset(_) => Answer::Is(false),
                State::CountsRefusals(_) => Answer::Strangers { refusals: 0, breaches: 0 },
                State::LooksForClaim(_) | State::LooksForProposal(_) => Answer::Record(None),
                State::SendsHello(_) => Answer::Hello(Greeting::Sent([9; 16])),
                State::Engages(_) => {
                    PENDING.fetch_add(1, Ordering::Relaxed);
                    Answer::Engaged { messages: 20, now_ns: 1 }
                }
                State::ReadsMail(_) => Answer::Count(0),
                state => panic!("{state:?}"),
            };
            server.answered(&answer).unwrap();
        }
        Rendezvous { machine: Machine::Server(server), ..Rendezvous::new() }
    }

    /// So does a thread that is about to fork.
    #[test]
    fn an_attempt_ends_with_its_connection_although_another_thread_holds_its_lock() {
        let _alone = alone();
        let sock = new(false, true).unwrap();
        let before = PENDING.load(Ordering::Relaxed);
        sock.with_last_rendezvous(|rendezvous| *rendezvous = under_way());
        assert_eq!(PENDING.load(Ordering::Relaxed), before + 1);
        let is_held = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let _held = sock.agreeing();
                is_held.wait();
                thread::sleep(Duration::from_millis(20));
            });
            is_held.wait();
            dissolve(sock);
        });
        assert_eq!(PENDING.load(Ordering::Relaxed), before, "its place among the attempts is free");
    }
}
