//! An attempt to agree: what one look for progress has at hand, and does for either end.

use crate::process::home::Home;
use crate::process::{clc, groups, tcp};
use crate::rendezvous::claim;
use crate::table::account;
use crate::table::conn::Conn;
use crate::table::rendezvous::{Held, Peer};
use crate::table::sock::{Phase, Sock};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use sidestep_device::ring::Ring;
use sidestep_device::state::{Slot, mode};
use sidestep_device::sys;
use sidestep_proto::fallback::{Lack, PeerCannot, Reason};
use sidestep_proto::rendezvous::agreement::{Answer, Call, Failure, Moment};
use sidestep_wire::clc::AcceptConfirmD;

/// One look for progress, and what it has read so far.
pub(crate) struct Look {
    pub(super) sock: &'static Sock,
    pub(super) fd: i32,
    pub(super) is_server: bool,
    /// As this end sees them: its own, and the peer's.
    pub(super) addresses: Option<(SocketAddr, SocketAddr)>,
    /// Both ends are in this network namespace, and see the same addresses.
    pub(super) is_by_loopback: bool,
    /// They see others, although those are this namespace's.
    pub(super) is_translated: bool,
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
pub(crate) enum Outcome {
    /// Nothing yet, or it was decided before.
    Rests,
    Moved,
    Stays(Failure),
}

/// Attempts that have begun and are not over.
pub(crate) static PENDING: AtomicU32 = AtomicU32::new(0);

impl Look {
    pub(super) fn new(sock: &'static Sock, fd: i32, is_server: bool) -> Self {
        let (addresses, groups, accept, incoming) = (None, None, None, None);
        let (is_by_loopback, is_translated) = (false, false);
        Self {
            sock,
            fd,
            is_server,
            addresses,
            is_by_loopback,
            is_translated,
            groups,
            ring_at: 0,
            accept,
            incoming,
        }
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
        sock.set_phase(Phase::Rendezvous);
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
            slot: self.slot()?,
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
