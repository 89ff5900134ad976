//! Accept and Confirm: how a connection begins.
//!
//! ```text
//!   server                                        client
//!   accept ──> Event::Introduce (Accept) ───────> connect
//!   handle_confirm <─────── (Confirm) Event::Introduce
//!   Event::Established                            Event::Established
//! ```
//!
//! At *first contact* a link group is made with it, and both are established when the group is; until
//! then the server lets further Proposals of this client wait. Any
//! further connection is one of a group that exists: it takes a buffer that an earlier one has left,
//! or a new one, of which the peer is told first; the client can then begin when it has sent its
//! Confirm, and the server when it has that. What the client has said meanwhile is kept.
//!
//! # What TCP does not prove
//!
//! CLC messages come over a TCP connection, and any local user of the peer's host, or of ours, can
//! be at the other end of one and repeat what it has seen in another exchange. So none of them is
//! believed where it could harm other connections:
//!
//! - a connection joins a group only if its TCP connection goes to an address of the group's peer
//!   ([`Group::leads_to`]), as the kernel tells it;
//! - it writes only into a buffer that the peer has told of over a link ([`LinkGroup::peer_rmb`]) and that
//!   no other connection writes into;
//! - what the peer's host is to be told by CDC bears the peer's alert token, which is random, so a
//!   program that has not seen that very exchange cannot name the connection of another;
//! - a buffer keeps its key as long as it belongs to one user, and no longer, so the keys that a
//!   local user has seen open no other user's memory;
//! - "out of sync" is a reason to ask over the links, not to end them.
//!
//! *Source*: RFC 7609 §3.5.1, §3.5.2, §4.4.2.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use rand::RngExt;
use sidestep_proto::connection::Connection;
use sidestep_proto::link_group::{
    ADAPTERS_MAX, AdapterId, Introduction, LINK_SLOTS, Link, LinkGroup, LinkState, Local, Refusal,
    RmbError, RmbId, RmbState, Role,
};
use sidestep_proto::rendezvous::hosts::{Proposer, Terms};
use sidestep_rdma::device::Device;
use sidestep_rdma::memory::Shared;
use sidestep_wire::clc::{AcceptConfirmR, Role as ClcRole};
use sidestep_wire::llc::DeleteReason;
use sidestep_wire::{AlertToken, Diagnosis, LinkUserId, PeerId, RmbeSize};

use crate::event::{Event, Reset};
use crate::group::{Group, Rmb};
use crate::host::Host;
use crate::request::{Caller, Proposal, Request, Waiting};
use crate::stream::{Beginning, PeerEnd, Stage, Stream};

/// How long a Proposal waits for the first contact before it. A client waits six seconds for its
/// Accept, and the preparations for that take time, too.
pub const FIRST_CONTACT_PATIENCE: Duration = Duration::from_secs(3);

/// Link groups of a host, but for those that are ending: one for each peer, and as many again where
/// both are each other's clients. A peer that says with each connection that it is another one gets no
/// more of our memory.
pub const GROUPS_MAX: usize = 1024;

/// Of these, groups that were made beside TCP connections with one address: enough for 16 000
/// connections with that host. So a host that says with each connection that it is another one
/// leaves room for the others.
pub const GROUPS_OF_ADDRESS_MAX: usize = 64;

/// Of these, groups of clients that have not shown yet that they speak RDMA. For another one, the oldest
/// first contact ends, and its connection stays TCP. So a client that only proposes, from as many addresses as
/// it likes, has half of the groups at most, and none for long.
pub const FIRST_CONTACTS_MAX: usize = GROUPS_MAX / 2;

/// What becomes of a Proposal.
enum Place {
    /// Its connection begins: in this group, or in one of its own.
    Served(Option<u32>),
    /// It waits: there will soon be a group for it, or no such group.
    BehindFirstContact,
}

// ---- CLC ----------------------------------------------------------------------------------------

impl<D: Device> Host<D> {
    /// Server: a connection for this Proposal. [`Event::Introduce`] with the Accept follows, or
    /// [`Event::Declined`].
    ///
    /// If there is no group for it, and a first contact with a client at this address is under way, that
    /// comes first: for [`FIRST_CONTACT_PATIENCE`] at most, after which the connection is declined.
    ///
    /// # Errors
    ///
    /// What to decline with.
    pub fn accept(
        &mut self,
        proposer: Proposer,
        request: Request,
        now: Duration,
    ) -> Result<AlertToken, Diagnosis> {
        let token = self.next_token();
        let proposal = Proposal { token, proposer, request };
        match self.place_for(&proposal, &self.groups_at(proposal.request.caller.remote)) {
            Place::BehindFirstContact => {
                let until = now + FIRST_CONTACT_PATIENCE;
                self.waiting.push_back(Waiting { proposal, until });
            }
            Place::Served(in_group) => {
                let served = self.serve(proposal, in_group, now);
                self.settle(now);
                served?;
            }
        }
        Ok(token)
    }

    /// Client: the identity by which the server at this address knows a link group that has room for a further connection.
    /// The Proposal is to bear it. `None`: there is no such group.
    #[must_use]
    pub fn known_as(&self, remote: IpAddr) -> Option<PeerId> {
        let has_room = |group: &&Group| {
            group.engine.role() == Role::Client
                && !group.is_doubted
                && group.leads_to(remote)
                && group.active().next().is_some()
                && group.users() < usize::from(group.engine.max_conns())
        };
        self.groups.values().find(has_room).map(|group| group.engine.own_id())
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
        request: Request,
        now: Duration,
    ) -> Result<AlertToken, Diagnosis> {
        let peer = PeerEnd::of(accept).ok_or(Diagnosis::ERR_RTOK)?;
        let token = self.next_token();
        if accept.is_first_contact() {
            // The server waits for the adapter that the Proposal has named, and for no other.
            let terms = &request.terms;
            let is_there = terms.adapters.first().is_some_and(|named| self.is_up(*named));
            let local = is_there.then(|| self.local(terms)).ok_or(Diagnosis::NOSMCRDEV)?;
            let make = |rmb| LinkGroup::client(local, accept, rmb);
            self.found(token, make, (Role::Client, Some(peer)), request, now)?;
            self.settle(now);
        } else {
            self.hear_devices(now);
            let (group, link) = self.group_of(accept, &request)?;
            let joined = self.join(token, (group, Role::Client, link, Some(peer)), request, now);
            self.settle(now);
            joined?;
        }
        Ok(token)
    }

    /// What devices have to tell is heard before a further connection begins. The peer gives a buffer
    /// to the next connection when it knows that our last word about the one before has arrived, and
    /// it has said its own by then: that word is with our device at the latest.
    fn hear_devices(&mut self, now: Duration) {
        let adapters: ArrayVec<AdapterId, ADAPTERS_MAX> =
            self.ports.keys().copied().take(ADAPTERS_MAX).collect();
        for adapter in adapters {
            self.take_device_events(adapter, now);
        }
        self.settle(now);
    }

    /// Client: which link of which group an Accept names. The group is on the VLAN of the connection, and
    /// its peer at the address of the connection's.
    fn group_of(
        &self,
        accept: &AcceptConfirmR,
        Request { caller, terms, .. }: &Request,
    ) -> Result<(u32, LinkUserId), Diagnosis> {
        let mut refused = Diagnosis::SYNCERR;
        for (id, group) in &self.groups {
            match group.engine.link_of(accept, terms.vlan) {
                Ok(link) if group.leads_to(caller.remote) => return Ok((*id, link)),
                // Of another host, or of one that has another address as well: the group is not to
                // blame, as "out of sync" would say.
                Ok(_) => refused = Diagnosis::NOSRVLINK,
                Err(Diagnosis::SYNCERR) => {}
                Err(nearer) => refused = nearer,
            }
        }
        Err(refused)
    }

    /// Whether a further connection of a group may write where the peer's message says.
    ///
    /// # Errors
    ///
    /// [`Refusal::PeerRmb`], [`Refusal::Taken`].
    fn check_target(&self, token: AlertToken, link: LinkUserId) -> Result<(), Refusal> {
        let stream = self.streams.get(&token).ok_or(Refusal::Token)?;
        let group = self.groups.get(&stream.group).ok_or(Refusal::NotLive)?;
        let peer = stream.peer.ok_or(Refusal::PeerRmb)?;
        let rmb = group.engine.peer_rmb(link, peer.rtoken).ok_or(Refusal::PeerRmb)?;
        // One that has said its last word writes no more, though the peer's may not have come.
        let writes_there = |other: &Stream| {
            other.peer.is_some_and(|end| end.offset == peer.offset)
                && !other.connection.as_ref().is_some_and(Connection::has_left)
        };
        let mut others = group.engine.connections().iter().filter(|other| {
            other.token != token
                && other.peer_rmb == Some(rmb)
                && self.streams.get(&other.token).is_some_and(writes_there)
        });
        others.next().map_or(Ok(()), |_| Err(Refusal::Taken))
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
            (true, false) => {
                let link = group.link_to(confirm);
                self.begin_further(token, link, now);
            }
        }
        self.settle(now);
    }

    /// Server: a further connection of a group begins, if its Confirm names what there is.
    fn begin_further(&mut self, token: AlertToken, link: Option<LinkUserId>, now: Duration) {
        self.hear_devices(now);
        let link = link.ok_or(Refusal::NoLink);
        match link.and_then(|link| self.check_target(token, link).map(|()| link)) {
            Ok(link) => self.begin(token, link, now),
            Err(refusal) => self.reset(token, Reset::Refused(refusal), now),
        }
    }

    /// The peer has declined, or TCP has failed before Confirm: there will be no such connection.
    /// [`Event::Gone`] follows.
    pub fn abandon(&mut self, token: AlertToken, now: Duration) {
        if self.streams.get(&token).is_some_and(Stream::is_beginning) {
            self.give_up(token, now);
            self.settle(now);
        }
        self.withdraw(token);
    }

    /// Server: the peer has declined because it is out of sync: it does not know the group of this
    /// connection. It has begun anew, or has ended the group and could not say so; or a local user
    /// there says so in its name. The links know: if the peer does not answer over one, it fails, and
    /// the group ends with its last link. Meanwhile the next connection is another first contact.
    pub fn handle_out_of_sync(&mut self, token: AlertToken, now: Duration) {
        let id = self.streams.get(&token).filter(|it| !it.is_first).map(|it| it.group);
        self.abandon(token, now);
        if let Some(id) = id
            && let Some(group) = self.groups.get_mut(&id)
        {
            group.is_doubted = true;
            let links: ArrayVec<LinkUserId, LINK_SLOTS> =
                group.active().map(Link::user_id).collect();
            if let Some(engine) = self.engine(id) {
                links.into_iter().for_each(|link| engine.probe(link, now));
            }
        }
        self.settle(now);
    }
}

// ---- first contacts, one after the other --------------------------------------------------------

impl<D: Device> Host<D> {
    /// Where the connection of a Proposal belongs now; `near` are the groups at its client's address.
    ///
    /// Two first contacts at once would make two groups. So they are made one after the other, as by
    /// Linux: the second connection joins the first one's group, or begins it if that has failed. It
    /// waits for nothing but that one exchange with its own client: hosts that are clients of
    /// each other do not wait for each other.
    ///
    /// A client is told by its address. What a Proposal says of itself any host can repeat, and the
    /// client would wait behind that host. A local user of the client's host has its address, and can begin
    /// first contacts that come to nothing; but a connection for which there is a group waits for none.
    ///
    /// A group whose peer can add no buffer comes last, but before a new one: the peer has a free buffer for each connection that
    /// the group has room for. Else a group that was full once would never be joined again, and each burst leave one behind. One
    /// whose peer has wanted another buffer all the same, of a size that it has none of, does not fit.
    fn place_for(&self, proposal: &Proposal, near: &[u32]) -> Place {
        let near = || near.iter().filter_map(|id| Some((*id, self.groups.get(id)?)));
        let fitting = near()
            .filter(|(_, group)| self.fits(group, proposal))
            .min_by_key(|(_, group)| !group.engine.has_room_for_peer_rmb());
        let Request { caller, terms, stays, .. } = &proposal.request;
        let is_under_way = |group: &Group| {
            group.first.is_some()
                && group.stays == *stays
                && group.proposer.is_some()
                && group.founder.remote == caller.remote
                && group.engine.version() == terms.wording.version()
        };
        match fitting {
            None if near().any(|(_, group)| is_under_way(group)) => Place::BehindFirstContact,
            fitting => Place::Served(fitting.map(|(id, _)| id)),
        }
    }

    /// The groups whose peer is at this address, or says so in a first contact.
    fn groups_at(&self, remote: IpAddr) -> Vec<u32> {
        let near = self.groups.iter().filter(|(_, group)| group.leads_to(remote));
        near.map(|(id, _)| *id).collect()
    }

    /// A first contact is decided: each Proposal that is not behind another one now is served.
    ///
    /// A client can have as many of them waiting as it has TCP connections, and end first contacts as
    /// fast as they begin. So for each only the few groups at its address are looked at.
    pub(crate) fn serve_waiting(&mut self, now: Duration) {
        let mut near = BTreeMap::new();
        for waiting in std::mem::take(&mut self.waiting) {
            let (token, remote) = (waiting.proposal.token, waiting.proposal.request.caller.remote);
            let near = near.entry(remote).or_insert_with(|| self.groups_at(remote));
            let Place::Served(in_group) = self.place_for(&waiting.proposal, near) else {
                self.waiting.push_back(waiting);
                continue;
            };
            match self.serve(waiting.proposal, in_group, now) {
                Ok(()) if in_group.is_none() => {
                    near.extend(self.streams.get(&token).map(|it| it.group))
                }
                Ok(()) => {}
                Err(diagnosis) => {
                    self.events.extend([Event::Declined(token, diagnosis), Event::Gone(token)]);
                }
            }
        }
    }

    /// Declines the Proposals that have waited too long.
    pub(crate) fn decline_waiting(&mut self, now: Duration) {
        while self.waiting.front().is_some_and(|waiting| waiting.until <= now)
            && let Some(late) = self.waiting.pop_front()
        {
            let token = late.proposal.token;
            let declined = Event::Declined(token, Diagnosis::TIMEOUT_CL);
            self.events.extend([declined, Event::Gone(token)]);
        }
    }

    /// A Proposal that waits is not to be served any more.
    pub(crate) fn withdraw(&mut self, token: AlertToken) {
        let waits = |waiting: &Waiting| waiting.proposal.token == token;
        if let Some(at) = self.waiting.iter().position(waits) {
            self.waiting.remove(at);
            self.events.push_back(Event::Gone(token));
        }
    }
}

// ---- a connection begins ------------------------------------------------------------------------

impl<D: Device> Host<D> {
    /// Whether the connection of a Proposal can be one of this group.
    fn fits(&self, group: &Group, Proposal { proposer, request, .. }: &Proposal) -> bool {
        let Proposer { peer_id, gid, mac } = *proposer;
        let Request { caller, terms, stays, .. } = request;
        let is_eligible = |link: &Link| {
            link.state() == LinkState::Active && terms.adapters.contains(&link.adapter().id)
        };
        group.engine.version() == terms.wording.version()
            && group.stays == *stays
            && !group.is_doubted
            && group.leads_to(caller.remote)
            && group.is_known_at(caller.local)
            && group.engine.fits(peer_id, gid, mac, terms.vlan)
            && group.users() < usize::from(group.engine.max_conns())
            && group.engine.links().iter().any(is_eligible)
    }

    /// A connection for a Proposal: one of this group, or else of a new one.
    fn serve(
        &mut self,
        Proposal { token, proposer, request }: Proposal,
        in_group: Option<u32>,
        now: Duration,
    ) -> Result<(), Diagnosis> {
        if let Some(group) = in_group {
            let begins = (group, Role::Server, LinkUserId(0), None);
            return self.join(token, begins, request, now);
        }
        let terms = &request.terms;
        let (local, agreement) = (self.local(terms), terms.wording.agreement());
        let make = |rmb| LinkGroup::server(local, agreement, proposer.peer_id, rmb);
        let group = self.found(token, make, (Role::Server, None), request, now)?;
        group.proposer = Some(proposer);
        Ok(())
    }

    fn is_up(&self, adapter: AdapterId) -> bool {
        self.ports.get(&adapter).is_some_and(|port| port.is_up)
    }

    /// What this host brings to a new group: the adapters that it may use, in that order.
    fn local(&mut self, terms: &Terms) -> Local {
        let group = self.next_group();
        let ports = terms.adapters.iter().filter_map(|id| self.ports.get(id));
        Local {
            peer_id: terms.own_id,
            vlan: terms.vlan,
            group,
            direct: true,
            keepalive: self.settings.keepalive,
            adapters: ports.filter(|port| port.is_up).map(|port| port.description).collect(),
        }
    }

    /// Room for another group. Where there are as many as there can be, in all or of one holder, the one
    /// of them that was idle longest ends for it.
    ///
    /// A holder is the host at the other end or, as the client, the user of this one. It has no more
    /// groups than it leaves free: *n* holders that take all they can get leave one part in *n* + 1, so
    /// there is room for the first group of every other holder.
    fn make_room(&mut self, role: Role, caller: &Caller, now: Duration) -> Result<(), Diagnosis> {
        let free = GROUPS_MAX.saturating_sub(self.groups.len());
        let is_of_address = |group: &&Group| group.founder.remote == caller.remote;
        let is_of_user =
            |group: &&Group| group.proposer.is_none() && group.founder.uid == caller.uid;
        let of_address = self.groups.values().filter(is_of_address).count();
        let of_user = self.groups.values().filter(is_of_user).count();
        let has_address_enough = of_address >= GROUPS_OF_ADDRESS_MAX || of_address > free;
        let has_user_enough = role == Role::Client && of_user > free;
        if free > 0 && !has_address_enough && !has_user_enough {
            return Ok(());
        }
        let may_go = self.groups.iter().filter(|(_, group)| {
            (!has_address_enough || is_of_address(group)) && (!has_user_enough || is_of_user(group))
        });
        let idle = may_go.filter_map(|(id, it)| Some((it.engine.idle_until()?, *id)));
        let (_, longest) = idle.min().ok_or(Diagnosis::MEM)?;
        if let Some(engine) = self.engine(longest) {
            engine.end(DeleteReason::PROGRAM, true, now);
        }
        Ok(())
    }

    /// Room for another first contact of a client.
    fn limit_first_contacts(&mut self, now: Duration) {
        let is_under_way = |group: &Group| group.first.is_some() && group.proposer.is_some();
        let under_way = self.groups.iter().filter(|(_, group)| is_under_way(group));
        let under_way = under_way.map(|(id, group)| (group.founded, *id));
        if under_way.clone().count() >= FIRST_CONTACTS_MAX
            && let Some((_, oldest)) = under_way.min()
        {
            self.first_contact_failed(oldest, Diagnosis::MEM, now);
        }
    }

    /// A connection that a group is made for.
    fn found(
        &mut self,
        token: AlertToken,
        make: impl FnOnce(RmbId) -> Result<LinkGroup, Diagnosis>,
        (role, peer): (Role, Option<PeerEnd>),
        Request { caller, terms, sizes, stays }: Request,
        now: Duration,
    ) -> Result<&mut Group, Diagnosis> {
        self.make_room(role, &caller, now)?;
        let (id, rmb) = (self.last_group, self.next_rmb());
        let mut group = Group::new(make(rmb)?, caller, now);
        if role == Role::Server {
            self.limit_first_contacts(now);
        }
        let memory = Arc::new(Shared::zeroed(sizes.rmbe.bytes()));
        let (uid, user) = (caller.uid, Some(token));
        group.rmbs.insert(rmb, Rmb { memory: Arc::clone(&memory), size: sizes.rmbe, uid, user });
        group.first = Some(token);
        group.stays = stays;
        let known = self.ports.keys().copied();
        group.strangers = known.filter(|id| !terms.adapters.contains(id)).collect();
        let outgoing = group.take_send_buffer(sizes.send_buffer.bytes());
        group.has_changed = true;
        group.rouse(id, &mut self.restless);
        let stream = Stream::new(Beginning {
            group: id,
            role,
            is_first: true,
            wording: terms.wording,
            named: LinkUserId(0),
            peer,
            rmb,
            incoming: memory,
            outgoing,
        });
        self.streams.insert(token, stream);
        Ok(self.groups.entry(id).or_insert(group))
    }

    /// A connection of a group that exists.
    fn join(
        &mut self,
        token: AlertToken,
        (group, role, named, peer): (u32, Role, LinkUserId, Option<PeerEnd>),
        Request { caller, terms, sizes, .. }: Request,
        now: Duration,
    ) -> Result<(), Diagnosis> {
        let rmb = self.rmb_for(group, caller.uid, sizes.rmbe, now)?;
        let it = self.groups.get_mut(&group).ok_or(Diagnosis::INTERR)?;
        let known = it.rmbs.get_mut(&rmb).ok_or(Diagnosis::INTERR)?;
        known.user = Some(token);
        let incoming = Arc::clone(&known.memory);
        let outgoing = it.take_send_buffer(sizes.send_buffer.bytes());
        let stream = Stream::new(Beginning {
            group,
            role,
            is_first: false,
            wording: terms.wording,
            named,
            peer,
            rmb,
            incoming,
            outgoing,
        });
        self.streams.insert(token, stream);
        self.introduce_joining(token, now);
        Ok(())
    }

    /// A buffer for a further connection of a user: one that an earlier connection of the same user has
    /// left, or a new one.
    ///
    /// # Errors
    ///
    /// [`Diagnosis::MEM`]: the group can have no more. If another user's connections have left one, that
    /// one goes, and there is room when the peer has let go of it.
    fn rmb_for(
        &mut self,
        group: u32,
        uid: u32,
        size: RmbeSize,
        now: Duration,
    ) -> Result<RmbId, Diagnosis> {
        let number = self.next_rmb();
        let it = self.groups.get_mut(&group).ok_or(Diagnosis::INTERR)?;
        if let Some(free) = it.free_rmb(uid, size) {
            return Ok(free);
        }
        it.has_changed = true;
        it.rouse(group, &mut self.restless);
        match it.engine.add_rmb(number, now) {
            Ok(()) => {
                let memory = Arc::new(Shared::zeroed(size.bytes()));
                it.rmbs.insert(number, Rmb { memory, size, uid, user: None });
                Ok(number)
            }
            // Those before it have left as many as there can be, of other sizes or other users.
            Err(RmbError::Full) => it.free_rmb_instead_of(uid, size).ok_or_else(|| {
                if let Some(other) = it.free_rmb_of_another(uid) {
                    let _ = it.engine.remove_rmb(other, now);
                }
                Diagnosis::MEM
            }),
            Err(_) => Err(Diagnosis::MEM),
        }
    }

    /// A connection of a group that exists says which one it is, as soon as the peer knows its buffer.
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
        let (link, is_client) = (stream.named, stream.role == Role::Client);
        let opened = group.engine.open(token, stream.rmb, link);
        let checked = opened.and_then(|()| match is_client {
            true => self.check_target(token, link),
            false => Ok(()),
        });
        if let Err(refusal) = checked {
            return self.decline(token, refusal.diagnosis(), now);
        }
        self.introduce(token, link, now);
        if is_client {
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
            peer_id: group.engine.own_id(),
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
            form: stream.wording.form(
                stream.is_first,
                group.engine.max_conns(),
                group.engine.max_links(),
            ),
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

    pub(crate) fn next_token(&mut self) -> AlertToken {
        loop {
            let token = AlertToken(self.random.random());
            let waits = |waiting: &Waiting| waiting.proposal.token == token;
            let is_used = self.streams.contains_key(&token) || self.waiting.iter().any(waits);
            if token != AlertToken(0) && !is_used {
                return token;
            }
        }
    }

    /// A number that no group has.
    pub(crate) fn next_group(&mut self) -> u32 {
        loop {
            self.last_group = (self.last_group + 1) & GROUP_MASK;
            if !self.groups.contains_key(&self.last_group) {
                return self.last_group;
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
