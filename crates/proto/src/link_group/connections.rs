//! Connections: which link each one uses, and where it writes to.
//!
//! The server spreads connections over the symmetric links; the client uses the link that the Accept
//! names. When a link goes, each side moves its own connections to another (RFC 7609 §4.6), where
//! the same buffer of the peer has another key; when one has come, so it does with some (`balance`).
//!
//! *Source*: RFC 7609 §2.3, §3.5.2, §4.6; Linux `net/smc/smc_core.c`.

extern crate alloc;

use alloc::vec::Vec;
use core::time::Duration;

use sidestep_wire::clc::{AcceptConfirmR, Version};
use sidestep_wire::{AlertToken, Diagnosis, LinkUserId, Mac, PeerId, RoceGid};

use super::flow::Phase;
use super::limits::RMBS_MAX;
use super::link::{Link, LinkState, symmetric};
use super::output::Event;
use super::rmb::{PeerRmbId, RmbId, RmbState, Rtoken};
use super::state::{Connection, LinkGroup, Role};
use super::timers::{IDLE_CLIENT, IDLE_SERVER};

/// Why the group does not take a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Its first link is not confirmed yet, or it is ending.
    NotLive,
    /// It has as many as were agreed.
    Full,
    /// No active link is called so.
    NoLink,
    /// The peer does not know this buffer of ours.
    NoRmb,
    /// The group has a connection with this token, or none.
    Token,
    /// The peer has told of no such buffer over a link.
    PeerRmb,
    /// Another connection writes into this element of the peer's buffer.
    Taken,
}

impl Refusal {
    /// What to decline with.
    #[must_use]
    pub const fn diagnosis(self) -> Diagnosis {
        match self {
            Self::NotLive => Diagnosis::NOACTLINK,
            Self::Full => Diagnosis::MEM,
            Self::NoLink => Diagnosis::NOSRVLINK,
            Self::NoRmb => Diagnosis::ERR_REGBUF,
            Self::Token => Diagnosis::INTERR,
            Self::PeerRmb | Self::Taken => Diagnosis::ERR_RTOK,
        }
    }
}

impl LinkGroup {
    /// Server: whether a connection with this Proposal can be one of the group. In version 2 the MAC
    /// says nothing, and Linux proposes with a peer ID of zeros: so it must be that of the Proposal
    /// which the group was made for, not the one that the Confirm told.
    ///
    /// A peer that was refused a buffer has 255, and none of the size that it needed: what it needs next is its own to
    /// know, so its next connections begin another group. Linux keeps buffers by their sizes, and frees none
    /// before the group ends.
    #[must_use]
    pub fn fits(&self, proposer: PeerId, gid: RoceGid, mac: Mac, vlan: u16) -> bool {
        let leads_there = |link: &Link| {
            link.peer.is_some_and(|peer| {
                peer.gid == gid && (self.version() == Version::V2 || peer.mac == mac)
            })
        };
        self.role == Role::Server
            && self.is_established()
            && self.proposer == proposer
            && self.local.vlan == vlan
            && self.active().any(leads_there)
            && self.connections.len() < usize::from(self.max_conns)
            && !self.peer_rmbs.has_refused()
    }

    /// Whether the peer can add a receive buffer. It keeps those that its connections have left, for the next ones: where this
    /// is false, most of them are free, but one of another size may be what it needs.
    #[must_use]
    pub fn has_room_for_peer_rmb(&self) -> bool {
        self.peer_rmbs.len() < RMBS_MAX
    }

    /// Client: the link that an Accept of a subsequent contact names.
    ///
    /// # Errors
    ///
    /// [`Diagnosis::SYNCERR`]: this is another group; the Decline says "out of sync" if no group is
    /// the right one. [`Diagnosis::NOSRVLINK`]: it is this one, but it has no such link.
    pub fn link_of(&self, accept: &AcceptConfirmR, vlan: u16) -> Result<LinkUserId, Diagnosis> {
        let is_ours = self.role == Role::Client
            && matches!(self.phase, Phase::Live(_))
            && self.peer_id == accept.peer_id
            && self.version() == accept.version()
            && self.local.vlan == vlan;
        if !is_ours {
            return Err(Diagnosis::SYNCERR);
        }
        let is_named = |link: &&Link| {
            link.peer.is_some_and(|peer| {
                peer.qp == accept.qp_number
                    && peer.gid == accept.gid
                    && (self.version() == Version::V2 || peer.mac == accept.mac)
            })
        };
        let named = self.active().find(is_named).map(Link::user_id);
        named.ok_or(Diagnosis::NOSRVLINK)
    }

    /// Server: the link for the next connection, which is the symmetric one with the fewest. An
    /// asymmetric one only keeps connections alive.
    #[must_use]
    pub fn next_link(&self) -> Option<LinkUserId> {
        let active = |link: &&Link| link.state == LinkState::Active;
        let best = symmetric(&self.links, self.version()).filter(active);
        let best = best.min_by_key(|link| self.connections_on(link.user_id));
        best.or(self.active().next()).map(Link::user_id)
    }

    /// Takes a connection into the group: `token` is ours, and so is the buffer. It is one of the
    /// group from now on, even if CLC is not through with it.
    ///
    /// The connection of a first contact has the buffer that the group was made with, and nothing is
    /// sent over it before [`Event::Established`].
    ///
    /// # Errors
    ///
    /// [`Refusal`].
    pub fn open(&mut self, token: AlertToken, rmb: RmbId, link: LinkUserId) -> Result<(), Refusal> {
        if !matches!(self.phase, Phase::Live(_)) {
            return Err(Refusal::NotLive);
        }
        if self.connections.len() >= usize::from(self.max_conns) {
            return Err(Refusal::Full);
        }
        if self.connections.iter().any(|connection| connection.token == token) {
            return Err(Refusal::Token);
        }
        if !self.active().any(|active| active.user_id == link) {
            return Err(Refusal::NoLink);
        }
        if !self.rmbs().any(|known| known == (rmb, RmbState::Announced)) {
            return Err(Refusal::NoRmb);
        }
        self.connections.push(Connection { token, rmb, link, peer_rmb: None });
        self.idle_until = None;
        Ok(())
    }

    /// The buffer of the peer with this RToken, if the peer has told of it over a link, or has made the
    /// group with it.
    #[must_use]
    pub fn peer_rmb(&self, link: LinkUserId, rtoken: Rtoken) -> Option<PeerRmbId> {
        self.peer_rmbs.known_as(link, rtoken)
    }

    /// The peer's buffer for a connection, as its Accept or Confirm names it, with the link that
    /// this message names. A link that has failed since still tells which buffer it is, and the
    /// connection has moved already.
    ///
    /// A name is all that the message gives. TCP does not prove that the peer's host speaks, so a
    /// buffer of which no link has told is none: a write with a wrong key would break the link for
    /// all connections.
    ///
    /// # Errors
    ///
    /// [`Refusal::Token`], [`Refusal::NoLink`], [`Refusal::PeerRmb`].
    pub fn bind(
        &mut self,
        token: AlertToken,
        link: LinkUserId,
        rtoken: Rtoken,
    ) -> Result<(), Refusal> {
        let is_known = |link: &Link| matches!(link.state, LinkState::Active | LinkState::Deleting);
        if !self.link(link).is_some_and(is_known) {
            return Err(Refusal::NoLink);
        }
        let id = self.peer_rmb(link, rtoken);
        let connection = self.connections.iter_mut().find(|it| it.token == token);
        let connection = connection.ok_or(Refusal::Token)?;
        connection.peer_rmb = Some(id.ok_or(Refusal::PeerRmb)?);
        Ok(())
    }

    /// Where a connection writes to: over which link, and by which key. `None`: it has no such place
    /// (any more).
    #[must_use]
    pub fn destination(&self, token: AlertToken) -> Option<(LinkUserId, Rtoken)> {
        let connection = self.connections.iter().find(|it| it.token == token)?;
        Some((connection.link, self.peer_rmbs.rtoken(connection.peer_rmb?, connection.link)?))
    }

    /// A connection is over. Its buffer stays in the group.
    pub fn close(&mut self, token: AlertToken, now: Duration) {
        self.connections.retain(|connection| connection.token != token);
        self.note_use(now);
    }

    /// Its connections.
    #[must_use]
    pub fn connections(&self) -> &[Connection] {
        &self.connections
    }

    /// How many of them send over a link.
    #[must_use]
    pub fn connections_on(&self, link: LinkUserId) -> usize {
        self.connections.iter().filter(|connection| connection.link == link).count()
    }

    /// A group without connections ends after some time, the server's first.
    pub(super) fn note_use(&mut self, now: Duration) {
        let life = match self.role {
            Role::Server => IDLE_SERVER,
            Role::Client => IDLE_CLIENT,
        };
        let is_idle = self.connections.is_empty() && matches!(self.phase, Phase::Live(_));
        self.idle_until = is_idle.then_some(self.idle_until.unwrap_or(now + life));
    }

    /// The link does not carry connections any more. Each goes to the one with the fewest of those
    /// that lead to its buffer.
    pub(super) fn move_connections(&mut self, from: LinkUserId) {
        let moved: Vec<Connection> =
            self.connections.iter().filter(|it| it.link == from).copied().collect();
        for Connection { token, peer_rmb, .. } in moved {
            let leads_there = |link: &&Link| {
                peer_rmb.is_none_or(|rmb| self.peer_rmbs.rtoken(rmb, link.user_id).is_some())
            };
            let fewest = self.active().filter(leads_there);
            let fewest = fewest.min_by_key(|link| self.connections_on(link.user_id));
            match fewest.map(Link::user_id) {
                Some(to) => {
                    self.move_connection(token, to);
                    self.event(Event::Moved { connection: token, from, to });
                }
                // If there is no link at all, the end of the group says it for all of them.
                None if self.active().next().is_some() => self.event(Event::Lost(token)),
                None => {}
            }
        }
    }

    pub(super) fn move_connection(&mut self, token: AlertToken, to: LinkUserId) {
        for connection in &mut self.connections {
            if connection.token == token {
                connection.link = to;
            }
        }
    }
}
