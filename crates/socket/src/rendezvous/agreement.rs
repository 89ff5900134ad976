//! How two libraries meet beside a connection, and agree.
//!
//! *The name of the meeting place is the connection itself.* At its first I/O on a
//! connection the client binds an abstract UNIX datagram socket whose name is the
//! four-tuple; the process that does the first I/O on the accepted side sends a
//! hello to that name. Four-tuples are unique within a network namespace, and
//! abstract names belong to one, so the process that answers holds the other end, whichever
//! worker of whichever `SO_REUSEPORT` group accepted it. A plain program on either
//! side sees nothing: the client finds no listener marked as ours and does not
//! bind, or the server's hello finds no such name.
//!
//! ```text
//!   client                                        server
//!   is the listening port marked as ours?
//!   bind "<four-tuple>"
//!         ---------------- first bytes by TCP -------------->
//!         <------- Hello (instance, slot, token) ------------   datagram to the name
//!   first contact only:
//!         -------- Introduction (slab, wake) --------------->   datagrams between
//!         <------- Introduction (slab, wake) ----------------   mailboxes
//!   Proposal in the CLC box, slot in the server's reply cell
//!                                          Accept in the CLC box; reads by ledger
//!   Confirm in the CLC box; reads by ledger
//! ```
//!
//! Processes that have met before do without the name and the hello: they leave the same
//! in the memory that they share ([`crate::rendezvous::claim`]). So do the ends of a connection between
//! two network namespaces, which have no name in common ([`afar`](super::afar)).
//!
//! Neither end waits: each arrow is looked for when the program makes its next call on
//! the connection ([`Moment`]), and until then bytes flow by TCP as ever. The
//! kernel tells the sender's user with every datagram; both sides check that the
//! TCP socket is established and lives in the namespace of the name.
//!
//! What an end does next, how often it looks and when it gives up, the machines of
//! [`sidestep_proto::rendezvous::agreement`] decide. Here their states are carried out: [`begin`](super::begin) asks the
//! questions before an attempt, [`client`] and [`server`] act for the two ends, [`afar`](super::afar) for one whose peer is in
//! another network namespace, and [`record`](super::record) holds what the ends show each other.

use super::{client, server};
use crate::process::tcp;
use crate::rendezvous::attempt::{Look, Outcome, PENDING};
use crate::rendezvous::{autocache, claim};
use crate::table::file::File;
use crate::table::rendezvous::{Machine, Rendezvous};
use crate::table::sock::{Phase, Sock};
use core::sync::atomic::Ordering;
use sidestep_device::channel::SLOTS;
use sidestep_device::rights;
pub use sidestep_proto::rendezvous::agreement::Moment;
use sidestep_proto::rendezvous::agreement::{self, Client, Failure, Illegal, Server, Traces};

const _: () = assert!(SLOTS == agreement::SLOTS as usize);

/// The connection ends, or the attempt does.
pub(crate) fn abandon(rendezvous: &mut Rendezvous, sock: &Sock) {
    let Traces { claims, name, attempt } = match &mut rendezvous.machine {
        Machine::None => Traces::default(),
        Machine::Client(client) => client.abandon(),
        Machine::Server(server) => server.abandon(),
    };
    if claims && let Some(process) = sock.home() {
        claim::withdraw(process, sock);
    }
    if attempt {
        PENDING.fetch_sub(1, Ordering::Relaxed);
    }
    if name {
        rights::close(rendezvous.held.name_fd);
        rendezvous.held.name_fd = -1;
    }
}

/// Looks for progress. Called around every call on a connection that is a
/// candidate or rendezvous; it never sleeps. False: it is not to move now, so a look after this
/// call would find nothing.
pub fn look(sock: &'static Sock, fd: i32, moment: Moment) -> bool {
    let has_to_stay = || !sock.is_worth_moving() || sock.is_held() || sock.has_untracked_calls();
    if sock.phase() == Phase::Candidate && has_to_stay() {
        return false;
    }
    // After a sleep the number may be another file's, and then there is nothing to agree on.
    sock.with_rendezvous(|rendezvous| {
        File::of(sock, fd).call(|fd| match fd {
            ..0 => {}
            _ => look_with(sock, fd, rendezvous, moment),
        });
    });
    true
}

fn look_with(sock: &'static Sock, fd: i32, rendezvous: &mut Rendezvous, moment: Moment) {
    if !sock.is_undecided() {
        return abandon(rendezvous, sock);
    }
    let is_server = sock.is_server.load(Ordering::Relaxed);
    if let Machine::None = rendezvous.machine {
        rendezvous.machine = match is_server {
            true => Machine::Server(Server::new()),
            false => Machine::Client(Client::new()),
        };
    }
    let mut look = Look::new(sock, fd, is_server);
    let outcome = match &mut rendezvous.machine {
        Machine::None => Ok(Outcome::Rests),
        Machine::Client(client) => client::look(client, &mut rendezvous.held, &mut look, moment),
        Machine::Server(server) => server::look(server, &mut rendezvous.held, &mut look, moment),
    };
    let outcome = outcome.unwrap_or_else(|illegal| contradicted(sock, illegal));
    match outcome {
        Outcome::Rests => {}
        Outcome::Moved => {
            abandon(rendezvous, sock);
            autocache::note_success(sock, fd);
        }
        Outcome::Stays(failure) => {
            if failure.is_likely_to_recur {
                remember(sock, fd, &failure);
            }
            abandon(rendezvous, sock);
            sock.stay_plain(failure.reason);
        }
    }
}

/// What was carried out is no answer to what was asked: an error of this library.
#[cold]
fn contradicted(sock: &Sock, illegal: Illegal) -> Outcome {
    crate::log!(Error, "the agreement about a connection contradicts itself");
    match sock.phase() {
        Phase::Smc => Outcome::Moved,
        _ => Outcome::Stays(Failure {
            reason: illegal.into(),
            is_likely_to_recur: false,
            peer: None,
        }),
    }
}

/// Client: remembers with whom it has failed.
fn remember(sock: &Sock, fd: i32, failure: &Failure) {
    if let (Some(process), Ok((_, server))) = (sock.home(), tcp::addresses(fd)) {
        autocache::note_failure(process, server, failure.peer, failure.reason);
    }
}
