//! How far the agreement about one connection has come, from one call of the program to the next: see
//! [`agreement`](crate::rendezvous::agreement).

use crate::process::group::Group;
use sidestep_device::channel::SLOTS;
use sidestep_device::ring::Ring;
use sidestep_proto::fallback::{Lack, Reason};
use sidestep_proto::rendezvous::agreement::{Client, Server};

/// How far the agreement about one connection has come.
pub struct Rendezvous {
    pub(crate) machine: Machine,
    pub(crate) held: Held,
}

/// Made at the first look, when it is known which end this is.
pub(crate) enum Machine {
    None,
    Client(Client),
    Server(Server),
}

/// What an end has for its machine from one look to the next.
pub(crate) struct Held {
    /// The socket that has the connection's name, -1 = none.
    pub(crate) name_fd: i32,
    /// Port of the server's end.
    pub(crate) server_port: u16,
    /// Of the peer, and below [`SLOTS`].
    pub(crate) peer_slot: u16,
    pub(crate) group: Option<&'static Group>,
    /// The ring that the peer reads, if its length is not 0.
    pub(crate) outgoing: Ring,
}

const _: () = assert!(SLOTS <= u16::MAX as usize);

/// With whom it agrees: its link group, and its slot.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) group: &'static Group,
    pub(crate) slot: usize,
}

impl Rendezvous {
    pub(crate) const fn new() -> Self {
        let held =
            Held { name_fd: -1, server_port: 0, peer_slot: 0, group: None, outgoing: Ring::NONE };
        Self { machine: Machine::None, held }
    }
}

impl Held {
    /// The peer is known from now on, or not any more.
    pub(crate) fn follow(&mut self, peer: Option<Peer>) {
        self.group = peer.map(|peer| peer.group);
        self.peer_slot = peer.map_or(0, |peer| peer.slot as u16);
    }

    pub(crate) fn peer(&self) -> Result<Peer, Reason> {
        let group = self.group.ok_or(Reason::Lack(Lack::Contradiction))?;
        Ok(Peer { group, slot: self.peer_slot.into() })
    }
}
