//! A link group with what it has of the host: carriers, receive buffers, send buffers.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use sidestep_proto::link_group::{AdapterId, Link, LinkEnd, LinkGroup, LinkState, RmbId, RmbState};
use sidestep_proto::rendezvous::hosts::Proposer;
use sidestep_rdma::memory::Shared;
use sidestep_wire::clc::{AcceptConfirmR, Version};
use sidestep_wire::{AlertToken, LinkUserId, RmbeSize, RoceGid};

use crate::carrier::Carrier;
use crate::request::Caller;
use crate::stream::SendBuffer;

/// A receive buffer (RMB), of one element.
#[derive(Debug)]
pub(crate) struct Rmb {
    pub(crate) memory: Arc<Shared>,
    pub(crate) size: RmbeSize,
    /// The user of the host whose connections have it, one after the other. The peers of these
    /// connections know its keys, so no other user gets it.
    pub(crate) uid: u32,
    /// The connection that has it.
    pub(crate) user: Option<AlertToken>,
}

/// A link group of the host.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) engine: LinkGroup,
    /// The addresses of the TCP connection that it was made beside.
    pub(crate) founder: Caller,
    pub(crate) founded: Duration,
    /// The peer, or a host in its place, has said that it knows no such group: no connection joins
    /// it before the peer has answered over a link.
    pub(crate) is_doubted: bool,
    pub(crate) carriers: BTreeMap<LinkUserId, Carrier>,
    pub(crate) rmbs: BTreeMap<RmbId, Rmb>,
    /// Send buffers that no connection has.
    pub(crate) send_buffers: Vec<SendBuffer>,
    /// The connection that it is made for, until it is established.
    pub(crate) first: Option<AlertToken>,
    /// Server: the Proposal that it was made for.
    pub(crate) proposer: Option<Proposer>,
    /// Adapters that are not among those that it may use.
    pub(crate) strangers: Vec<AdapterId>,
    /// When the engine wants to be called, as of its last change.
    pub(crate) deadline: Option<Duration>,
    /// The engine was told something since.
    pub(crate) has_changed: bool,
    /// Its connections [stay](crate::Request::stays) in this process.
    pub(crate) stays: bool,
    /// Its connections send nothing: it is about to leave.
    pub(crate) is_frozen: bool,
    is_restless: bool,
    /// Connections of it may have something to send, and a place for it.
    is_loaded: bool,
}

impl Group {
    pub(crate) const fn new(engine: LinkGroup, founder: Caller, founded: Duration) -> Self {
        Self {
            engine,
            founder,
            founded,
            is_doubted: false,
            carriers: BTreeMap::new(),
            rmbs: BTreeMap::new(),
            send_buffers: Vec::new(),
            first: None,
            proposer: None,
            strangers: Vec::new(),
            deadline: None,
            has_changed: false,
            stays: false,
            is_frozen: false,
            is_restless: false,
            is_loaded: false,
        }
    }

    /// There is something to be done in it.
    pub(crate) fn rouse(&mut self, id: u32, restless: &mut VecDeque<u32>) {
        if !self.is_restless {
            self.is_restless = true;
            restless.push_back(id);
        }
    }

    /// The host looks at its work.
    pub(crate) const fn attend(&mut self) {
        self.is_restless = false;
    }

    /// There may be something to be sent in it.
    pub(crate) fn load(&mut self, id: u32, loaded: &mut VecDeque<u32>) {
        if !self.is_loaded && !self.is_frozen && self.carriers.values().any(Carrier::may_send) {
            self.is_loaded = true;
            loaded.push_back(id);
        }
    }

    /// The host looks at what it has to send.
    pub(crate) const fn unload(&mut self) {
        self.is_loaded = false;
    }

    /// A send buffer of this length.
    pub(crate) fn take_send_buffer(&mut self, len: usize) -> SendBuffer {
        let free = self.send_buffers.iter().position(|buffer| buffer.memory.len() == len);
        free.map_or_else(|| SendBuffer::new(len), |at| self.send_buffers.swap_remove(at))
    }

    /// A buffer of this user and size that no connection has, and that the peer knows.
    pub(crate) fn free_rmb(&self, uid: u32, size: RmbeSize) -> Option<RmbId> {
        let mut fitting = self.free_rmbs().filter(|(_, rmb)| rmb.uid == uid && rmb.size == size);
        fitting.next().map(|(id, _)| id)
    }

    /// A buffer of this user in a group that can have no more: one of the next longer size that there
    /// is, or else of the next shorter.
    pub(crate) fn free_rmb_instead_of(&self, uid: u32, size: RmbeSize) -> Option<RmbId> {
        let how_far = |its: RmbeSize| (its < size, its.code().abs_diff(size.code()));
        let own = self.free_rmbs().filter(|(_, rmb)| rmb.uid == uid);
        own.min_by_key(|(_, rmb)| how_far(rmb.size)).map(|(id, _)| id)
    }

    /// A free buffer of another user.
    pub(crate) fn free_rmb_of_another(&self, uid: u32) -> Option<RmbId> {
        self.free_rmbs().find(|(_, rmb)| rmb.uid != uid).map(|(id, _)| id)
    }

    fn free_rmbs(&self) -> impl Iterator<Item = (RmbId, &Rmb)> {
        let known = self.engine.rmbs().filter(|(_, state)| *state == RmbState::Announced);
        known.filter_map(|(id, _)| {
            let rmb = self.rmbs.get(&id).filter(|rmb| rmb.user.is_none())?;
            Some((id, rmb))
        })
    }

    /// Whether a TCP connection to this address leads to the peer: the group was made beside one, or
    /// a link of it goes there. What the other end of a connection says of itself proves nothing,
    /// but the kernel knows where it is.
    pub(crate) fn leads_to(&self, remote: IpAddr) -> bool {
        let is_there = |link: &Link| link.peer().is_some_and(|end| address_of(end.gid) == remote);
        self.founder.remote == remote || self.active().any(is_there)
    }

    /// Whether the peer can tell that this address is ours, by the same rule.
    pub(crate) fn is_known_at(&self, local: IpAddr) -> bool {
        let is_here = |link: &Link| address_of(link.adapter().gid) == local;
        self.founder.local == local || self.active().any(is_here)
    }

    pub(crate) fn active(&self) -> impl Iterator<Item = &Link> {
        self.engine.links().iter().filter(|link| link.state() == LinkState::Active)
    }

    /// Connections that have a buffer, also those that CLC is not through with.
    pub(crate) fn users(&self) -> usize {
        self.rmbs.values().filter(|rmb| rmb.user.is_some()).count()
    }

    /// Whether a link carries connections.
    pub(crate) fn has_active(&self, link: LinkUserId) -> bool {
        self.engine.link(link).is_some_and(|link| link.state() == LinkState::Active)
    }

    /// The link whose other end a message of the peer names.
    pub(crate) fn link_to(&self, message: &AcceptConfirmR) -> Option<LinkUserId> {
        let is_named = |end: LinkEnd| {
            end.qp == message.qp_number
                && end.gid == message.gid
                && (message.version() == Version::V2 || end.mac == message.mac)
        };
        let links = self.engine.links().iter();
        links.filter(|link| link.peer().is_some_and(is_named)).map(Link::user_id).next()
    }
}

/// The IP address that a GID of RoCE stands for.
pub(crate) fn address_of(gid: RoceGid) -> IpAddr {
    Ipv6Addr::from(gid.0).to_canonical()
}
