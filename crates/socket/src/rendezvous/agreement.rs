//! How two libraries meet beside a connection, and agree.
//!
//! *The name of the meeting place is the connection itself.* At its first I/O on a
//! connection the client binds an abstract UNIX datagram socket whose name is the
//! four-tuple; the process that does the first I/O on the accepted side sends a
//! hello to that name. Four-tuples are unique within a network namespace, and
//! abstract names belong to one, so whoever answers holds the other end, whichever
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
use crate::process::clc;
use crate::process::groups;
use crate::process::home::Home;
use crate::process::tcp;
use crate::rendezvous::autocache;
use crate::rendezvous::claim;
use crate::table::account;
use crate::table::conn::Conn;
use crate::table::file::File;
use crate::table::meeting::Held;
use crate::table::meeting::Machine;
use crate::table::meeting::Meeting;
use crate::table::meeting::Peer;
use crate::table::sock::Phase;
use crate::table::sock::Sock;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use sidestep_device::channel::SLOTS;
use sidestep_device::rights;
use sidestep_device::ring::Ring;
use sidestep_device::state::{Slot, mode};
use sidestep_device::sys;
use sidestep_proto::fallback::{Field, Lack, PeerCannot, Reason};
pub use sidestep_proto::rendezvous::agreement::Moment;
use sidestep_proto::rendezvous::agreement::{
    self, Answer, Call, Client, Confirm, Failure, Illegal, Server, Traces,
};
use sidestep_proto::rendezvous::{self, Refusal};
use sidestep_wire::RmbeSize;
use sidestep_wire::clc::{AcceptConfirm, AcceptConfirmD, Message};

/// One look for progress, and what it has read so far.
pub(super) struct Look {
    pub(super) sock: &'static Sock,
    pub(super) fd: i32,
    pub(super) is_server: bool,
    /// As this end sees them: its own, and the peer's.
    pub(super) addresses: Option<(SocketAddr, SocketAddr)>,
    /// Link groups that were found last meanwhile.
    pub(super) groups: Option<groups::Look>,
    /// Where in our slab the ring lies that was taken.
    pub(super) ring_at: u64,
    /// What the server answers, or the client has been answered.
    pub(super) accept: Option<AcceptConfirmD>,
    /// The ring that the peer names, and where in its slab it is.
    pub(super) incoming: Option<(u64, Ring)>,
}

/// What has come of a look.
pub(super) enum Outcome {
    /// Nothing yet, or it was decided before.
    Rests,
    Moved,
    Stays(Failure),
}

const _: () = assert!(SLOTS == agreement::SLOTS as usize);

/// Attempts that have begun and are not over.
pub(super) static PENDING: AtomicU32 = AtomicU32::new(0);

/// The connection ends, or the attempt does.
pub(crate) fn abandon(meeting: &mut Meeting, sock: &Sock) {
    let Traces { claims, name, attempt } = match &mut meeting.machine {
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
        rights::close(meeting.held.name_fd);
        meeting.held.name_fd = -1;
    }
}

/// Looks for progress. Called around every call on a connection that is a
/// candidate or meeting; it never sleeps. False: it is not to move now, so a look after this
/// call would find nothing.
pub fn look(sock: &'static Sock, fd: i32, moment: Moment) -> bool {
    let has_to_stay = || !sock.is_worth_moving() || sock.is_held() || sock.has_young_calls();
    if sock.phase() == Phase::Candidate && has_to_stay() {
        return false;
    }
    // After a sleep the number may be another file's, and then there is nothing to agree on.
    sock.with_meeting(|meeting| {
        File::of(sock, fd).call(|fd| match fd {
            ..0 => {}
            _ => look_with(sock, fd, meeting, moment),
        });
    });
    true
}

fn look_with(sock: &'static Sock, fd: i32, meeting: &mut Meeting, moment: Moment) {
    let undecided = matches!(sock.phase(), Phase::Candidate | Phase::Meeting);
    if !undecided {
        return abandon(meeting, sock);
    }
    let is_server = sock.is_server.load(Ordering::Relaxed);
    if let Machine::None = meeting.machine {
        meeting.machine = match is_server {
            true => Machine::Server(Server::new()),
            false => Machine::Client(Client::new()),
        };
    }
    let mut look = Look::new(sock, fd, is_server);
    let outcome = match &mut meeting.machine {
        Machine::None => Ok(Outcome::Rests),
        Machine::Client(client) => client::look(client, &mut meeting.held, &mut look, moment),
        Machine::Server(server) => server::look(server, &mut meeting.held, &mut look, moment),
    };
    let outcome = outcome.unwrap_or_else(|illegal| contradicted(sock, illegal));
    match outcome {
        Outcome::Rests => {}
        Outcome::Moved => {
            abandon(meeting, sock);
            autocache::note_success(sock, fd);
        }
        Outcome::Stays(failure) => {
            if failure.is_likely_to_recur {
                remember(sock, fd, &failure);
            }
            abandon(meeting, sock);
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

impl Look {
    pub(super) fn new(sock: &'static Sock, fd: i32, is_server: bool) -> Self {
        let (addresses, groups, accept, incoming) = (None, None, None, None);
        Self { sock, fd, is_server, addresses, groups, ring_at: 0, accept, incoming }
    }

    /// The call of the program that it is made in.
    pub(super) fn call(&self, moment: Moment, counts_time: bool) -> Call {
        Call {
            moment,
            messages: self.sock.traffic().messages,
            received: self.sock.messages_received(),
            now_ns: if counts_time { sys::coarse_ns() } else { 0 },
        }
    }

    pub(super) fn process(&self) -> Result<&'static Home, Reason> {
        self.sock.home().ok_or(Reason::Lack(Lack::NoSlot))
    }

    pub(super) fn slot(&self) -> Result<&'static Slot, Reason> {
        self.sock.slot().ok_or(Reason::Lack(Lack::NoSlot))
    }

    /// Both addresses, our own first.
    pub(super) fn addresses(&mut self) -> Result<(SocketAddr, SocketAddr), Reason> {
        if self.addresses.is_none() {
            self.addresses = tcp::addresses(self.fd).ok();
        }
        self.addresses.ok_or(Reason::Peer(PeerCannot::Unanswered))
    }

    /// Both addresses, the client's first.
    pub(super) fn client_and_server(&mut self) -> Result<(SocketAddr, SocketAddr), Reason> {
        let (local, peer) = self.addresses()?;
        Ok(if self.is_server { (peer, local) } else { (local, peer) })
    }

    /// A look at the link groups of the process, as long as this look lasts or until they
    /// are forgotten.
    pub(super) fn groups(&mut self) -> Result<&groups::Look, Reason> {
        let process = self.process()?;
        Ok(self.groups.get_or_insert_with(|| groups::Look::at(process)))
    }

    /// The attempt is under way.
    pub(super) fn engage(&self) -> Answer {
        let sock = self.sock;
        PENDING.fetch_add(1, Ordering::Relaxed);
        sock.note_reason(Reason::None);
        account::attempted(sock);
        sock.set_phase(Phase::Meeting);
        sock.slot().inspect(|slot| slot.mode.store(mode::NEGOTIATING, Ordering::Release));
        Answer::Engaged { messages: sock.traffic().messages, now_ns: sys::coarse_ns() }
    }

    /// Whether no other process may use the connection, and its slot is this one's.
    pub(super) fn is_alone(&self) -> bool {
        let holders = self.sock.slot().map_or(0, |slot| slot.holders.load(Ordering::Acquire));
        holders == 1 && self.sock.is_at_home()
    }

    pub(super) fn withdraw(&self) -> Result<Answer, Reason> {
        claim::withdraw(self.process()?, self.sock);
        Ok(Answer::Done)
    }

    /// Is there a ring where the peer's record says, of the size that was wished?
    pub(super) fn find_ring(&mut self, peer: Peer) -> Result<Answer, Reason> {
        let (theirs, _) = peer.group.theirs().ok_or(Reason::Lack(Lack::NoMemory))?;
        let ring_at = theirs.record(peer.slot).identity.ring_at.load(Ordering::Relaxed);
        let ring = theirs.ring(ring_at, self.sock.rmbe().bytes() as u32);
        self.incoming = ring.map(|ring| (ring_at, ring));
        Ok(Answer::Is(self.incoming.is_some()))
    }

    pub(super) fn admit_ring(&self, peer: Peer) -> Result<Answer, Reason> {
        let (ring_at, ring) = self.incoming.as_ref().ok_or(Reason::Lack(Lack::Contradiction))?;
        peer.group.admit(*ring_at, ring)?;
        Ok(Answer::Done)
    }

    /// The two halves of the connection that is about to be.
    pub(super) fn conn(&self, held: &Held, peer: Peer) -> Result<Conn, Reason> {
        let missing = Reason::Lack(Lack::Contradiction);
        let (theirs, _) = peer.group.theirs().ok_or(missing)?;
        Ok(Conn {
            mine: peer.group.record(self.sock.slot_index()),
            theirs: theirs.record(peer.slot),
            outgoing: Some(held.outgoing).filter(|ring| !ring.is_empty()).ok_or(missing)?,
            incoming: self.incoming.ok_or(missing)?.1,
            group: peer.group,
            peer_slot: peer.slot,
        })
    }

    /// Publishes a phase of the own record.
    pub(super) fn show(&self, peer: Peer, phase: u32) -> Result<Answer, Reason> {
        clc::turn(peer.group.record(self.sock.slot_index()), self.slot()?, phase);
        Ok(Answer::Done)
    }
}

/// Server: whether the client has confirmed what was accepted, so that it reads by the ledger. Asked before
/// the first byte goes into the ring. What is wrong is written down: this direction stays on TCP.
pub(crate) fn is_confirmed(sock: &Sock, conn: &Conn) -> bool {
    let shown = clc::shown(conn.theirs.identity.phase.load(Ordering::Acquire));
    let Some(ring) = RmbeSize::from_bytes(conn.outgoing.len()) else { return false };
    match Confirm::of(shown, ring, || read_confirm(sock, conn)) {
        Confirm::Awaited => false,
        Confirm::Right => true,
        Confirm::Wrong(reason) => {
            let before = sock.slot().map(|slot| slot.reason.swap(reason.word(), Ordering::Relaxed));
            if before != Some(reason.word()) {
                crate::log!(Warn, "what the peer receives stays on TCP: {reason}");
            }
            false
        }
    }
}

fn read_confirm(sock: &Sock, conn: &Conn) -> Result<RmbeSize, Refusal> {
    let message = clc::read_clc(conn.group, conn.peer_slot);
    match clc::own_clc(conn.group, sock.slot_index()) {
        Some(Message::Accept(AcceptConfirm::SmcD(accept))) => {
            rendezvous::expect_confirm(message, conn.group.peer.into(), &accept)
        }
        // Another process of our user has written into our slab.
        _ => Err(Refusal::Protocol(Field::CLC_TYPE)),
    }
}

/// Writes down that the connection is in shared memory.
pub(crate) fn note_smc(slot: &Slot) {
    let messages = slot.counters.traffic().0;
    slot.moved_after.store(messages + 1, Ordering::Relaxed);
    slot.reason.store(Reason::None.word(), Ordering::Relaxed);
    slot.mode.store(mode::SMC_D, Ordering::Release);
    crate::log!(Info, "connection is in shared memory");
}
