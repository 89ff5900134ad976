//! A link group at rest: as plain values, for another process to go on with.
//!
//! It is at rest when it has nothing to tell the peer and waits for no answer: all its links are active, and the peer
//! knows all its receive buffers. So there is neither a flow nor a deadline among the values, and what is due by the
//! clock begins anew.

extern crate alloc;

use alloc::vec::Vec;
use core::time::Duration;

use arrayvec::ArrayVec;
use sidestep_wire::llc::Form;
use sidestep_wire::{LinkNumber, LinkUserId, PeerId, Psn, QpNumber, RoceGid};

use super::first_contact::Agreement;
use super::flow::{Live, Phase};
use super::limits::{ADAPTERS_MAX, LINK_SLOTS, LINKS_MAX, RMBS_MAX};
use super::link::{Adapter, Link, LinkEnd, LinkState};
use super::rmb::{PeerRmbId, Rmb, RmbId, RmbState, Rtoken};
use super::state::{Connection, LinkGroup, Local, Role};

/// All that there is to know of a link group at rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtRest {
    /// Which side of it we are.
    pub role: Role,
    /// How LLC messages look.
    pub form: Form,
    /// Connections that it may have.
    pub max_conns: u8,
    /// Links that it may have.
    pub max_links: u8,
    /// The peer's identity.
    pub peer_id: PeerId,
    /// What the Proposal said in its place.
    pub proposer: PeerId,
    /// Our identity in it.
    pub own_id: PeerId,
    /// The VLAN of its links.
    pub vlan: u16,
    /// No gateway lies between the adapters of the two sides.
    pub direct: bool,
    /// The addresses of adapters that its links can use.
    pub adapters: Vec<RoceGid>,
    /// Its links, in the order in which they were made.
    pub links: Vec<LinkAtRest>,
    /// The numbers that were given last: of links, and in our names for them.
    pub last: [u8; 2],
    /// Our receive buffers.
    pub rmbs: Vec<(RmbId, Vec<(LinkUserId, Rtoken)>)>,
    /// The peer's.
    pub peer_rmbs: Vec<(PeerRmbId, Vec<(LinkUserId, Rtoken)>)>,
    /// The peer has wanted one more than there can be.
    pub has_refused_rmb: bool,
    /// Its connections.
    pub connections: Vec<Connection>,
    /// How many tests and messages it has sent.
    pub counts: [u64; 2],
}

/// A link at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAtRest {
    /// Our name for it.
    pub user_id: LinkUserId,
    /// Its number.
    pub number: LinkNumber,
    /// The address of our adapter.
    pub gid: RoceGid,
    /// Our queue pair, and the first PSN that it has sent.
    pub qp: (QpNumber, Psn),
    /// The peer's end.
    pub peer: LinkEnd,
    /// The peer's name for it.
    pub peer_user_id: LinkUserId,
}

impl LinkAtRest {
    /// `None`: it is not at rest.
    fn of(link: &Link) -> Option<Self> {
        let is_at_rest = link.state == LinkState::Active
            && link.test.is_none()
            && !link.probe_is_due
            && link.silent_since.is_none()
            && link.resigns.is_none();
        Some(Self {
            user_id: link.user_id,
            number: link.number,
            gid: link.adapter.gid,
            qp: link.qp.filter(|_| is_at_rest)?,
            peer: link.peer?,
            peer_user_id: link.peer_user_id,
        })
    }

    fn resume(&self, adapter: Adapter, now: Duration) -> Link {
        Link {
            state: LinkState::Active,
            qp: Some(self.qp),
            peer: Some(self.peer),
            peer_user_id: self.peer_user_id,
            is_receiving: true,
            is_sending: true,
            last_received: now,
            ..Link::new(self.user_id, self.number, adapter)
        }
    }
}

impl LinkGroup {
    /// What another process needs to go on with it. `None`: it is not at rest.
    #[must_use]
    pub fn at_rest(&self) -> Option<AtRest> {
        let is_live = matches!(self.phase, Phase::Live(live) if live.is_settled());
        let has_nothing_to_do = self.commands.is_empty() && self.events.is_empty();
        if !is_live || !self.is_quiet() || !has_nothing_to_do {
            return None;
        }
        let of_keys = |keys: &[(LinkUserId, Rtoken)]| keys.to_vec();
        Some(AtRest {
            role: self.role,
            form: self.form,
            max_conns: self.max_conns,
            max_links: self.max_links,
            peer_id: self.peer_id,
            proposer: self.proposer,
            own_id: self.local.peer_id,
            vlan: self.local.vlan,
            direct: self.local.direct,
            adapters: self.local.adapters.iter().map(|it| it.gid).collect(),
            links: self.links.iter().map(LinkAtRest::of).collect::<Option<_>>()?,
            last: [self.last_number, self.last_user_id],
            rmbs: self.rmbs.iter().map(|rmb| (rmb.id, of_keys(&rmb.keys))).collect(),
            peer_rmbs: self.peer_rmbs.iter().map(|(id, keys)| (id, of_keys(keys))).collect(),
            has_refused_rmb: self.peer_rmbs.has_refused(),
            connections: self.connections.clone(),
            counts: [self.tests, self.tickets],
        })
    }

    /// Goes on where another process has left it, under a number of ours, with those of its adapters that are here.
    /// `None`: an adapter of its links is not, or no group could be so.
    #[must_use]
    pub fn resume(
        from: &AtRest,
        (group, keepalive): (u32, Option<Duration>),
        here: &[Adapter],
        now: Duration,
    ) -> Option<Self> {
        let links = from.resume_links(here, now)?;
        let [last_number, last_user_id] = from.last;
        let [tests, tickets] = from.counts;
        let local = Local {
            peer_id: from.own_id,
            vlan: from.vlan,
            group,
            direct: from.direct,
            keepalive,
            adapters: here
                .iter()
                .filter(|adapter| from.adapters.contains(&adapter.gid))
                .copied()
                .take(ADAPTERS_MAX)
                .collect(),
        };
        let AtRest { max_conns, max_links, .. } = *from;
        let agreement = Agreement { version: from.form.version(), max_conns, max_links };
        let mut group = Self {
            form: from.form,
            proposer: from.proposer,
            phase: Phase::Live(Live { is_established: true, patience: None, unsent: None }),
            links,
            last_number,
            last_user_id,
            rmbs: Vec::new(),
            tests,
            tickets,
            ..Self::new(from.role, local, agreement, from.peer_id, RmbId(0))
        };
        let is_possible = !group.links.is_empty()
            && (1..=LINKS_MAX).contains(&from.max_links)
            && group.resume_rmbs(from)
            && group.resume_connections(from);
        // Another adapter may be here than was there.
        group.growth.link_lost(now);
        group.note_use(now);
        is_possible.then_some(group)
    }

    fn resume_rmbs(&mut self, from: &AtRest) -> bool {
        for (id, keys) in &from.rmbs {
            let is_new = self.rmbs.iter().all(|rmb| rmb.id != *id);
            let has_all = self
                .links
                .iter()
                .all(|link| keys.iter().filter(|(on, _)| *on == link.user_id).count() == 1);
            if !is_new || !has_all || keys.len() != self.links.len() {
                return false;
            }
            let mut rmb = Rmb::new(*id, RmbState::Announced);
            keys.iter().for_each(|(link, rtoken)| rmb.registered(*link, *rtoken));
            self.rmbs.push(rmb);
        }
        let are_known = from.peer_rmbs.iter().all(|(id, keys)| {
            keys.iter().all(|(link, _)| self.link(*link).is_some())
                && self.peer_rmbs.resume(*id, keys)
        });
        self.peer_rmbs.set_refused(from.has_refused_rmb);
        are_known && self.rmbs.len() <= RMBS_MAX
    }

    fn resume_connections(&mut self, from: &AtRest) -> bool {
        let are_possible = from.connections.iter().all(|it| {
            self.link(it.link).is_some()
                && self.rmbs.iter().any(|rmb| rmb.id == it.rmb)
                && it.peer_rmb.is_none_or(|id| self.peer_rmbs.rtoken(id, it.link).is_some())
        });
        self.connections.clone_from(&from.connections);
        let mut tokens: Vec<_> = self.connections.iter().map(|it| it.token).collect();
        tokens.sort_unstable();
        are_possible
            && tokens.windows(2).all(|two| two[0] != two[1])
            && tokens.len() <= usize::from(from.max_conns)
    }
}

impl AtRest {
    /// `None`: an adapter of a link is not here, or two links have one name, or one leads to where none can.
    fn resume_links(&self, here: &[Adapter], now: Duration) -> Option<ArrayVec<Link, LINK_SLOTS>> {
        let mut links = ArrayVec::<Link, LINK_SLOTS>::new();
        for link in &self.links {
            let is_other = |it: &Link| it.user_id != link.user_id && it.number != link.number;
            if !links.iter().all(is_other) || !link.peer.is_plausible(here, self.form.version()) {
                return None;
            }
            links.try_push(link.resume(at(here, link.gid)?, now)).ok()?;
        }
        Some(links)
    }
}

/// The adapter of this address.
fn at(here: &[Adapter], gid: RoceGid) -> Option<Adapter> {
    here.iter().find(|adapter| adapter.gid == gid).copied()
}

impl Live {
    /// Whether nothing of the first contact is left.
    const fn is_settled(self) -> bool {
        self.is_established && self.patience.is_none() && self.unsent.is_none()
    }
}
