//! The state of a link group: its fields, and what reads and changes them one by one.
//!
//! The exchanges with the peer, which take several of these steps, are in the modules above.

extern crate alloc;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use arrayvec::ArrayVec;
use sidestep_wire::clc::Version;
use sidestep_wire::llc::{self, Form, Message};
use sidestep_wire::{AlertToken, LinkNumber, LinkUserId, PeerId};

use super::flow::{Flow, Live, Phase, RkeyFlow};
use super::growth::Growth;
use super::limits::{ADAPTERS_MAX, LINK_SLOTS};
use super::link::{Adapter, Link, LinkState, Ticket, symmetric};
use super::output::{Command, Event};
use super::rmb::{PeerRmbId, PeerRmbs, Rmb, RmbId, RmbState, Rtoken};

/// Which side of the group we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// We decide about links.
    Server,
    /// We follow.
    Client,
}

/// What this side brings to a group.
#[derive(Debug, Clone)]
pub struct Local {
    /// Our identity.
    pub peer_id: PeerId,
    /// The VLAN of all its links; 0 for none.
    pub vlan: u16,
    /// Our number for the group, below 2^24. It is in the user IDs of its links.
    pub group: u32,
    /// No gateway lies between the adapters of the two sides.
    pub direct: bool,
    /// How long a link may be silent before it is tested; `None`: for ever.
    pub keepalive: Option<Duration>,
    /// The adapters that its links can use, that of the first link first. One at least.
    pub adapters: ArrayVec<Adapter, ADAPTERS_MAX>,
}

/// A connection of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// Our name for it, which the peer's CDC messages bear.
    pub token: AlertToken,
    /// Our buffer that it reads from.
    pub rmb: RmbId,
    /// The link that it sends over.
    pub link: LinkUserId,
    /// The buffer that it writes to; `None` before the peer has told it, or after it was withdrawn.
    pub peer_rmb: Option<PeerRmbId>,
}

/// A link group, as one side sees it.
#[derive(Debug, Clone)]
pub struct LinkGroup {
    pub(super) role: Role,
    pub(super) local: Local,
    pub(super) form: Form,
    pub(super) max_conns: u8,
    pub(super) max_links: u8,
    pub(super) peer_id: PeerId,
    /// Server: what the Proposal said in its place, which may be nothing.
    pub(super) proposer: PeerId,
    pub(super) phase: Phase,
    /// In the order in which they were made, which tells the symmetric ones.
    pub(super) links: ArrayVec<Link, LINK_SLOTS>,
    pub(super) last_number: u8,
    pub(super) last_user_id: u8,
    pub(super) rmbs: Vec<Rmb>,
    pub(super) peer_rmbs: PeerRmbs,
    pub(super) connections: Vec<Connection>,
    pub(super) flow: Option<Flow>,
    /// Our own CONFIRM RKEY or DELETE RKEY. There is none while there is a `flow` of ours.
    pub(super) rkey_flow: Option<RkeyFlow>,
    /// Client: an ADD LINK that came while `rkey_flow` was open, and the link it came over.
    pub(super) parked: Option<(LinkUserId, llc::AddLink)>,
    pub(super) growth: Growth,
    /// When connections move to a link that has come.
    pub(super) balance_due: Option<Duration>,
    /// When the group ends unless there is a connection.
    pub(super) idle_until: Option<Duration>,
    pub(super) tests: u64,
    pub(super) tickets: u64,
    pub(super) commands: VecDeque<Command>,
    pub(super) events: VecDeque<Event>,
}

impl LinkGroup {
    /// What the device is to do next.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// What has happened next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

impl LinkGroup {
    /// Which side we are.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The identity that the peer claims.
    #[must_use]
    pub const fn peer_id(&self) -> PeerId {
        self.peer_id
    }

    /// Our identity in it, as the peer was told. Another process may have begun it, under another one.
    #[must_use]
    pub const fn own_id(&self) -> PeerId {
        self.local.peer_id
    }

    /// The VLAN of its links.
    #[must_use]
    pub const fn vlan(&self) -> u16 {
        self.local.vlan
    }

    /// The version of the protocol.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.form.version()
    }

    /// Connections that it may have.
    #[must_use]
    pub const fn max_conns(&self) -> u8 {
        self.max_conns
    }

    /// Links that it may have, not counting an asymmetric one.
    #[must_use]
    pub const fn max_links(&self) -> u8 {
        self.max_links
    }

    /// Its links.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The link that we call so.
    #[must_use]
    pub fn link(&self, user_id: LinkUserId) -> Option<&Link> {
        self.links.iter().find(|link| link.user_id == user_id)
    }

    /// Whether no failure of one adapter ends it.
    #[must_use]
    pub fn is_redundant(&self) -> bool {
        let active = |link: &&Link| link.state == LinkState::Active;
        symmetric(&self.links, self.version()).filter(active).count() > 1
    }

    /// Whether a link shares an adapter, of either side, with an earlier one.
    #[must_use]
    pub fn is_asymmetric(&self, user_id: LinkUserId) -> bool {
        let counts = |link: &Link| matches!(link.state, LinkState::Activating | LinkState::Active);
        self.link(user_id).is_some_and(counts)
            && !symmetric(&self.links, self.version()).any(|link| link.user_id == user_id)
    }

    /// Whether it takes connections.
    #[must_use]
    pub const fn is_established(&self) -> bool {
        matches!(self.phase, Phase::Live(Live { is_established: true, .. }))
    }

    /// When it ends unless there is a connection; `None`: there is one, or it is not there yet, or ends
    /// already.
    #[must_use]
    pub const fn idle_until(&self) -> Option<Duration> {
        self.idle_until
    }

    /// Whether it is gone. Nothing changes any more.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// Whether no exchange with the peer is under way or waits for its turn.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let is_settled = |link: &Link| link.state == LinkState::Active && link.resigns.is_none();
        match self.phase {
            Phase::Live(live) => {
                live.is_established
                    && self.flow.is_none()
                    && self.rkey_flow.is_none()
                    && self.parked.is_none()
                    && self.links.iter().all(is_settled)
                    && self.rmbs.iter().all(|rmb| rmb.state == RmbState::Announced)
            }
            Phase::Ended => true,
            Phase::FirstContact(_) | Phase::Ending(_) => false,
        }
    }

    /// Our RMBs, and how far they have got.
    pub fn rmbs(&self) -> impl Iterator<Item = (RmbId, RmbState)> {
        self.rmbs.iter().map(|rmb| (rmb.id, rmb.state))
    }

    /// How the peer reaches an RMB of ours over a link.
    #[must_use]
    pub fn rtoken(&self, rmb: RmbId, link: LinkUserId) -> Option<Rtoken> {
        self.rmbs.iter().find(|it| it.id == rmb)?.key_on(link)
    }

    /// The peer's RMBs, each with how we reach it over links.
    pub fn peer_rmbs(&self) -> impl Iterator<Item = (PeerRmbId, &[(LinkUserId, Rtoken)])> {
        self.peer_rmbs.iter().map(|(id, keys)| (id, keys.as_slice()))
    }
}

impl LinkGroup {
    pub(super) fn link_mut(&mut self, user_id: LinkUserId) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.user_id == user_id)
    }

    pub(super) fn link_numbered(&self, number: LinkNumber) -> Option<&Link> {
        self.links.iter().find(|link| link.number == number)
    }

    pub(super) fn active(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|link| link.state == LinkState::Active)
    }

    /// An active link for a flow; the first one, if it is not the one to be avoided.
    pub(super) fn active_but(&self, avoided: LinkUserId) -> Option<LinkUserId> {
        self.active().map(Link::user_id).find(|link| *link != avoided)
    }

    /// A new link on an adapter of ours, whose queue pair has to be made. `None`: there is no place.
    pub(super) fn allocate_link(
        &mut self,
        number: LinkNumber,
        adapter: Adapter,
    ) -> Option<LinkUserId> {
        let user_id = loop {
            self.last_user_id = self.last_user_id.wrapping_add(1);
            let user_id = LinkUserId(self.local.group << 8 | u32::from(self.last_user_id));
            if self.last_user_id != 0 && self.link(user_id).is_none() {
                break user_id;
            }
        };
        self.links.try_push(Link::new(user_id, number, adapter)).ok()?;
        self.command(Command::CreateQueuePair { link: user_id, adapter: adapter.id });
        Some(user_id)
    }

    /// Server: the number of the next link. None is used again before all were (RFC 7609 §2.2.4).
    pub(super) fn next_number(&mut self) -> LinkNumber {
        loop {
            self.last_number = self.last_number.wrapping_add(1);
            let number = LinkNumber(self.last_number);
            if self.last_number != 0 && self.link_numbered(number).is_none() {
                return number;
            }
        }
    }

    /// A link is confirmed by both sides.
    pub(super) fn activate(&mut self, user_id: LinkUserId, now: Duration) {
        if let Some(link) = self.link_mut(user_id) {
            link.state = LinkState::Active;
            link.last_received = now;
            self.events.push_back(Event::LinkUp(user_id));
        }
    }

    /// A link of which the peer knows nothing, or no longer, is gone.
    pub(super) fn remove_link(&mut self, user_id: LinkUserId) {
        let Some(at) = self.links.iter().position(|link| link.user_id == user_id) else { return };
        let link = self.links.remove(at);
        self.peer_rmbs.forget_link(user_id);
        for rmb in &mut self.rmbs {
            rmb.forget_link(user_id);
        }
        if !link.is_destroyed {
            self.command(Command::Destroy { link: user_id });
        }
    }
}

impl LinkGroup {
    pub(super) fn command(&mut self, command: Command) {
        self.commands.push_back(command);
    }

    pub(super) fn event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(super) fn ready_to_send(&mut self, user_id: LinkUserId) {
        if let Some(link) = self.link_mut(user_id) {
            link.is_sending = true;
            self.command(Command::ReadyToSend { link: user_id });
        }
    }

    /// Sends an LLC message over a link. A peer that asks for an answer over one that is still in
    /// the making gets none.
    pub(super) fn send(&mut self, link: LinkUserId, message: impl Into<Message>) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        if !self.link(link).is_some_and(|link| link.is_sending) {
            return ticket;
        }
        let mut room = [0; llc::EMITTED_LEN_MAX];
        match message.into().emit(&mut room) {
            Ok(len) => {
                let bytes = room[..len].to_vec();
                self.command(Command::Send { link, ticket, bytes });
            }
            // The room is enough for any, and the lists are cut to size where messages are made.
            Err(error) => debug_assert!(false, "{error}"),
        }
        ticket
    }
}
