//! Accept and Confirm: how a connection begins.
//!
//! ```text
//!   server                                        client
//!   accept ──> Event::Introduce (Accept) ───────> connect
//!   handle_confirm <─────── (Confirm) Event::Introduce
//!   Event::Established                            Event::Established
//! ```
//!
//! At *first contact* a link group is made with it, and both are established when the group is. Any
//! further connection is one of a group that exists: it takes a buffer that an earlier one has left,
//! or a new one, of which the peer is told first; the client can then begin when it has sent its
//! Confirm, and the server when it has that. What the client has said meanwhile is kept.
//!
//! *Source*: RFC 7609 §3.5.1, §3.5.2.

use std::sync::Arc;
use std::time::Duration;

use sidestep_proto::connection::Connection;
use sidestep_proto::link_group::{
    Agreement, Introduction, LinkGroup, Local, Refusal, RmbId, RmbState, Role,
};
use sidestep_rdma::device::Device;
use sidestep_rdma::memory::Shared;
use sidestep_wire::clc::{AcceptConfirmR, FirstContactR, FormR, Role as ClcRole, Version};
use sidestep_wire::llc::DeleteReason;
use sidestep_wire::{AlertToken, Diagnosis, Eid, LinkUserId, Mac, PeerId, RmbeSize, RoceGid};

use crate::event::{Event, Reset};
use crate::group::{Group, Rmb};
use crate::host::Host;
use crate::stream::{Beginning, PeerEnd, Stage, Stream};

/// The client, as its Proposal tells.
#[derive(Clone, Copy, Debug)]
pub struct Proposer {
    /// Who it is.
    pub peer_id: PeerId,
    /// Its adapter.
    pub gid: RoceGid,
    /// The same.
    pub mac: Mac,
}

/// How long the buffers of a connection are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// What the peer writes into.
    pub rmbe: RmbeSize,
    /// What the program sends into.
    pub send_buffer: RmbeSize,
}

/// What Accept and Confirm say beyond links and buffers.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each connection")]
pub enum Wording {
    /// Nothing.
    V1,
    /// In version 2.
    V2 {
        /// The EID that both sides have.
        eid: Eid,
        /// What is said at first contact. A server's limits hold, and a client says the same.
        hello: FirstContactR,
    },
}

impl Wording {
    const fn version(&self) -> Version {
        match self {
            Self::V1 => Version::V1,
            Self::V2 { .. } => Version::V2,
        }
    }

    fn agreement(&self) -> Agreement {
        let standard = Agreement::standard(self.version());
        match self {
            Self::V1 => standard,
            Self::V2 { hello, .. } => {
                Agreement { max_conns: hello.max_conns, max_links: hello.max_links, ..standard }
            }
        }
    }

    fn form(&self, is_first: bool, group: &LinkGroup) -> FormR {
        let (max_conns, max_links) = (group.max_conns(), group.max_links());
        match self {
            Self::V1 => FormR::V1 { first_contact: is_first },
            Self::V2 { eid, hello } => FormR::V2 {
                eid: *eid,
                first_contact: is_first.then(|| FirstContactR {
                    max_conns,
                    max_links,
                    ..hello.clone()
                }),
            },
        }
    }
}

// ---- CLC ----------------------------------------------------------------------------------------

impl<D: Device> Host<D> {
    /// Server: a connection for this Proposal. [`Event::Introduce`] with the Accept follows, or
    /// [`Event::Declined`].
    ///
    /// # Errors
    ///
    /// What to decline with.
    pub fn accept(
        &mut self,
        proposer: Proposer,
        wording: Wording,
        sizes: Sizes,
        now: Duration,
    ) -> Result<AlertToken, Diagnosis> {
        let Proposer { peer_id, gid, mac } = proposer;
        let vlan = self.settings.vlan;
        let fits = |group: &Group| {
            group.engine.version() == wording.version()
                && group.engine.fits(peer_id, gid, mac, vlan)
        };
        let known = self.groups.iter().find(|(_, group)| fits(group)).map(|(id, _)| *id);
        if let Some(group) = known {
            let begins = (group, Role::Server, LinkUserId(0), None);
            return self.join(begins, wording, sizes, now);
        }
        let local = self.local();
        let agreement = wording.agreement();
        let make = |rmb| LinkGroup::server(local, agreement, peer_id, rmb);
        self.found(make, (Role::Server, None), wording, sizes, now)
    }

    /// Client: a connection by this Accept. [`Event::Introduce`] with the Confirm follows, or
    /// [`Event::Declined`].
    ///
    /// # Errors
    ///
    /// What to decline with.
    pub fn connect(
        &mut self,
        accept: &AcceptConfirmR,
        wording: Wording,
        sizes: Sizes,
        now: Duration,
    ) -> Result<AlertToken, Diagnosis> {
        let peer = PeerEnd::of(accept).ok_or(Diagnosis::ERR_RTOK)?;
        if accept.is_first_contact() {
            let local = self.local();
            let make = |rmb| LinkGroup::client(local, accept, rmb);
            return self.found(make, (Role::Client, Some(peer)), wording, sizes, now);
        }
        let mut refused = Diagnosis::SYNCERR;
        for (id, group) in &self.groups {
            match group.engine.link_of(accept, self.settings.vlan) {
                Ok(link) => {
                    let begins = (*id, Role::Client, link, Some(peer));
                    return self.join(begins, wording, sizes, now);
                }
                Err(Diagnosis::SYNCERR) => {}
                Err(nearer) => refused = nearer,
            }
        }
        Err(refused)
    }

    /// Server: the Confirm of a connection.
    pub fn handle_confirm(&mut self, token: AlertToken, confirm: &AcceptConfirmR, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        if stream.stage != Stage::Introduced || stream.role != Role::Server {
            return;
        }
        stream.peer = PeerEnd::of(confirm);
        let is_sound = stream.peer.is_some()
            && confirm.role == ClcRole::Confirm
            && confirm.is_first_contact() == stream.is_first;
        let id = stream.group;
        let Some(group) = self.groups.get(&id) else { return };
        match (is_sound, stream.is_first) {
            (false, _) => self.decline(token, Diagnosis::ERR_RTOK, now),
            (true, true) => {
                if let Some(engine) = self.engine(id) {
                    engine.handle_confirm(confirm, now);
                }
            }
            (true, false) => match group.link_to(confirm) {
                Some(link) => self.begin(token, link, now),
                None => self.reset(token, Reset::Refused(Refusal::NoLink), now),
            },
        }
        self.settle(now);
    }

    /// The peer has declined, or TCP has failed before Confirm: there will be no such connection.
    /// [`Event::Gone`] follows.
    pub fn abandon(&mut self, token: AlertToken, now: Duration) {
        if self.streams.get(&token).is_some_and(Stream::is_beginning) {
            self.give_up(token, now);
            self.settle(now);
        }
    }

    /// Server: the peer has declined because it is out of sync: it does not know the group of this
    /// connection. It has begun anew, or has ended the group and could not say so; nothing that is
    /// in it can go on.
    pub fn handle_out_of_sync(&mut self, token: AlertToken, now: Duration) {
        let group = self.streams.get(&token).filter(|it| !it.is_first).map(|it| it.group);
        self.abandon(token, now);
        if let Some(engine) = group.and_then(|group| self.engine(group)) {
            engine.end(DeleteReason::LOST_PATH, false, now);
        }
        self.settle(now);
    }
}

// ---- a connection begins ------------------------------------------------------------------------

impl<D: Device> Host<D> {
    fn local(&mut self) -> Local {
        self.last_group = (self.last_group + 1) & GROUP_MASK;
        let up = self.ports.values().filter(|port| port.is_up);
        Local {
            peer_id: self.settings.peer_id,
            vlan: self.settings.vlan,
            group: self.last_group,
            direct: true,
            keepalive: self.settings.keepalive,
            adapters: up
                .map(|port| port.description)
                .take(sidestep_proto::link_group::ADAPTERS_MAX)
                .collect(),
        }
    }

    /// A connection that a group is made for.
    fn found(
        &mut self,
        make: impl FnOnce(RmbId) -> Result<LinkGroup, Diagnosis>,
        (role, peer): (Role, Option<PeerEnd>),
        wording: Wording,
        sizes: Sizes,
        now: Duration,
    ) -> Result<AlertToken, Diagnosis> {
        let rmb = self.next_rmb();
        let mut group = Group::new(make(rmb)?);
        let memory = Arc::new(Shared::zeroed(sizes.rmbe.bytes()));
        let token = self.next_token();
        group.first = Some(token);
        group
            .rmbs
            .insert(rmb, Rmb { memory: Arc::clone(&memory), size: sizes.rmbe, user: Some(token) });
        let id = self.last_group;
        let outgoing = group.take_send_buffer(sizes.send_buffer.bytes());
        group.has_changed = true;
        group.rouse(id, &mut self.restless);
        self.groups.insert(id, group);
        let stream = Stream::new(Beginning {
            group: id,
            role,
            is_first: true,
            wording,
            named: LinkUserId(0),
            peer,
            rmb,
            incoming: memory,
            outgoing,
        });
        self.streams.insert(token, stream);
        self.settle(now);
        Ok(token)
    }

    /// A connection of a group that exists.
    fn join(
        &mut self,
        (group, role, named, peer): (u32, Role, LinkUserId, Option<PeerEnd>),
        wording: Wording,
        sizes: Sizes,
        now: Duration,
    ) -> Result<AlertToken, Diagnosis> {
        let token = self.next_token();
        let number = self.next_rmb();
        let it = self.groups.get_mut(&group).ok_or(Diagnosis::INTERR)?;
        let rmb = match it.free_rmb(sizes.rmbe) {
            Some(rmb) => rmb,
            None => {
                it.engine.add_rmb(number, now).map_err(|_| Diagnosis::MEM)?;
                it.has_changed = true;
                it.rouse(group, &mut self.restless);
                let memory = Arc::new(Shared::zeroed(sizes.rmbe.bytes()));
                it.rmbs.insert(number, Rmb { memory, size: sizes.rmbe, user: None });
                number
            }
        };
        let known = it.rmbs.get_mut(&rmb).ok_or(Diagnosis::INTERR)?;
        known.user = Some(token);
        let incoming = Arc::clone(&known.memory);
        let outgoing = it.take_send_buffer(sizes.send_buffer.bytes());
        let stream = Stream::new(Beginning {
            group,
            role,
            is_first: false,
            wording,
            named,
            peer,
            rmb,
            incoming,
            outgoing,
        });
        self.streams.insert(token, stream);
        self.introduce_joining(token, now);
        self.settle(now);
        Ok(token)
    }

    /// A connection of a group that exists says who it is, as soon as the peer knows its buffer.
    pub(crate) fn introduce_joining(&mut self, token: AlertToken, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        let id = stream.group;
        let Some(group) = self.groups.get_mut(&id) else { return };
        let is_known = group.engine.rmbs().any(|rmb| rmb == (stream.rmb, RmbState::Announced));
        if stream.stage != Stage::Preparing || stream.is_first || !is_known {
            return;
        }
        if stream.role == Role::Server {
            let Some(link) = group.engine.next_link() else {
                return self.decline(token, Diagnosis::NOACTLINK, now);
            };
            stream.named = link;
        }
        let link = stream.named;
        if let Err(refusal) = group.engine.open(token, stream.rmb, link) {
            return self.decline(token, refusal.diagnosis(), now);
        }
        self.introduce(token, link, now);
        if self.streams.get(&token).is_some_and(|it| it.role == Role::Client) {
            self.begin(token, link, now);
        }
    }

    /// Tells the Accept or Confirm of a connection.
    pub(crate) fn introduce(&mut self, token: AlertToken, link: LinkUserId, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        let Some(group) = self.groups.get(&stream.group) else { return };
        let Some(Introduction { end, rtoken }) = group.engine.introduction(stream.rmb, link) else {
            return self.decline(token, Diagnosis::ERR_REGBUF, now);
        };
        let size = group.rmbs.get(&stream.rmb).map_or(RmbeSize::MIN, |rmb| rmb.size);
        stream.stage = Stage::Introduced;
        stream.named = link;
        let message = AcceptConfirmR {
            role: match stream.role {
                Role::Server => ClcRole::Accept,
                Role::Client => ClcRole::Confirm,
            },
            peer_id: self.settings.peer_id,
            gid: end.gid,
            mac: end.mac,
            qp_number: end.qp,
            rkey: rtoken.rkey,
            rmbe_index: 1,
            alert_token: token,
            size,
            mtu: end.mtu,
            rmb_address: rtoken.address,
            psn: end.psn,
            form: stream.wording.form(stream.is_first, &group.engine),
        };
        self.events.push_back(Event::Introduce(token, Box::new(message)));
    }

    /// The group of a first contact takes connections: here is the one it was made for.
    pub(crate) fn begin_first(&mut self, token: AlertToken, now: Duration) {
        let Some(stream) = self.streams.get(&token) else { return };
        let Some(group) = self.groups.get_mut(&stream.group) else { return };
        match group.engine.open(token, stream.rmb, stream.named) {
            Ok(()) => self.begin(token, stream.named, now),
            Err(refusal) => self.reset(token, Reset::Refused(refusal), now),
        }
    }

    /// Both sides know each other's buffers: the connection carries bytes. The peer's is reached
    /// over this link as it has said, over others as LLC messages tell.
    fn begin(&mut self, token: AlertToken, link: LinkUserId, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        let Some(group) = self.groups.get_mut(&stream.group) else { return };
        let Some(peer) = stream.peer else { return };
        let (own_len, peer_len) = (stream.incoming.len() as u32, peer.size.bytes() as u32);
        // Made even if it cannot go on: the peer, which may already use it, is told of the end.
        stream.connection = Some(Connection::new(peer.token, own_len, peer_len));
        if let Err(refusal) = group.engine.bind(token, link, peer.rtoken) {
            return self.reset(token, Reset::Refused(refusal), now);
        }
        stream.stage = Stage::Open;
        stream.heard_over = Some(link);
        stream.to = group.engine.destination(token);
        let early = stream.early.take();
        if !self.lend(token) {
            return self.reset(token, Reset::Unreachable, now);
        }
        self.events.push_back(Event::Established(token));
        if let Some((via, message)) = early {
            self.handle_cdc(token, via, &message, now);
        }
        self.rouse(token);
    }

    fn next_token(&mut self) -> AlertToken {
        loop {
            self.last_token = self.last_token.wrapping_add(1);
            let token = AlertToken(self.last_token);
            if self.last_token != 0 && !self.streams.contains_key(&token) {
                return token;
            }
        }
    }

    /// A number that no buffer has had for a long time.
    fn next_rmb(&mut self) -> RmbId {
        self.last_rmb = self.last_rmb.wrapping_add(1);
        RmbId(self.last_rmb)
    }
}

/// The number of a group is in the user IDs of its links, above their own number.
const GROUP_MASK: u32 = 0x00FF_FFFF;
