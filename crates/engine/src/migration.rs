//! A link group goes on in another process, and its peer notices nothing.
//!
//! ```text
//!   predecessor                                           successor
//!   freeze     its connections send nothing more
//!      │ ... what they have sent arrives
//!   emigrate ── Migrant: plain values, and buffers ─────> immigrate
//!      │                                                     │ the same queue pairs and keys
//!   thaw, if it does not come to rest in time                v
//! ```
//!
//! A queue pair of a soft RNIC is a few numbers once all has arrived ([`AtRest`]), and so is a link group between two
//! exchanges and a connection between two messages. So a group waits a round trip until it is all of that. What the
//! peer sends meanwhile is carried out, or is lost and comes again: packets that are not acknowledged do not exist.
//!
//! Nothing that is still to be written for the peer is in the way: what programs have sent and the peer has no room
//! for goes along, out of the send buffer or the ring that it lies in.
//!
//! A queue pair of hardware belongs to the process that has made it. A group with one is never at rest.
//!
//! What comes from the other process is checked as a whole before anything of it is used: a group, its queue pairs and
//! its connections fit each other, and nothing of them is here already. It can still be untrue; so it is to be taken
//! from a process of the same user only.
//!
//! A group keeps the identity that it was made with, and so do the Accepts and Confirms of further connections, which name
//! it by that. A client that has such a group [proposes](Host::known_as) under its identity.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sidestep_proto::connection::{self, Connection};
use sidestep_proto::link_group::{self, Adapter, AdapterId, Link, LinkGroup, RmbId, Role};
use sidestep_proto::rendezvous::hosts::Wording;
use sidestep_rdma::device::{AtRest, Device};
use sidestep_rdma::memory::{Registration, Shared};
use sidestep_wire::{AlertToken, LinkUserId, QpNumber, Rkey, RmbeSize};

use crate::carrier::Carrier;
use crate::event::{Event, Reset};
use crate::group::{Group, Rmb, address_of};
use crate::host::Host;
use crate::request::Caller;
use crate::stream::{Beginning, PeerEnd, SendBuffer, Stage, Stream};

/// A link group between two processes.
#[derive(Clone, Debug)]
pub struct Migrant {
    /// What proto knows of it.
    pub group: link_group::AtRest,
    /// The addresses of the TCP connection that it was made beside.
    pub founder: Caller,
    /// The queue pairs of its links.
    pub queue_pairs: Vec<AtRest>,
    /// Its receive buffers.
    pub buffers: Vec<MigrantBuffer>,
    /// Its connections.
    pub streams: Vec<MigrantStream>,
}

/// A receive buffer between two processes.
#[derive(Clone, Debug)]
pub struct MigrantBuffer {
    /// Our number for it.
    pub id: RmbId,
    /// How long it is.
    pub size: RmbeSize,
    /// The user whose connections have it.
    pub uid: u32,
    /// All of it: what the peer has written there it may not have told yet.
    pub memory: Arc<Shared>,
}

/// A connection between two processes.
#[derive(Clone, Debug)]
pub struct MigrantStream {
    /// Our name for it.
    pub token: AlertToken,
    /// Our role when it was made.
    pub role: Role,
    /// The peer's end.
    pub peer: PeerEnd,
    /// How far it has got.
    pub connection: connection::AtRest,
    /// The link that the peer sends over.
    pub heard_over: Option<LinkUserId>,
    /// Its receive buffer.
    pub rmb: RmbId,
    /// Bytes that its send buffer has room for.
    pub send_buffer_len: u32,
    /// What the program has sent and the peer had no room for.
    pub unsent: Vec<u8>,
    /// The program has it still.
    pub is_held: bool,
    /// How much longer a word of the peer is waited for.
    pub patience: Option<Duration>,
    /// The peer's RMBE had no room, as the last message has told.
    pub is_blocked: bool,
    /// CDC messages sent and received, and how often it has changed links.
    pub counts: [u64; 3],
}

/// Why a link group of another process does not go on here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// An adapter of it is not here or is down, or no link group could be so.
    #[error("an adapter of it is not up here, or its links and buffers contradict each other")]
    Group,
    /// Its connections are not those of the group, or are here already, or none could be so.
    #[error("its connections contradict each other, or some of ours")]
    Connections,
    /// Its buffers are not those of the group.
    #[error("its buffers are not those of its connections")]
    Buffers,
    /// Its queue pairs are not those of the links, or the adapter does not take them.
    #[error("its queue pairs are not those of its links, or the adapter does not take them")]
    QueuePairs,
}

/// The longest send buffer that is taken over: as long as any ring of a program.
const SEND_BUFFER_LEN_MAX: usize = 1 << 26;

// ---- leaving ------------------------------------------------------------------------------------

impl<D: Device> Host<D> {
    /// Its link groups, by number.
    pub fn group_numbers(&self) -> impl Iterator<Item = u32> {
        self.groups.keys().copied()
    }

    /// The connections of a link group send nothing more until it is [thawed](Self::thaw), so that it comes to rest.
    pub fn freeze(&mut self, group: u32) {
        if let Some(group) = self.groups.get_mut(&group) {
            group.is_frozen = true;
        }
    }

    /// They send again.
    pub fn thaw(&mut self, group: u32, now: Duration) {
        if let Some(it) = self.groups.get_mut(&group) {
            it.is_frozen = false;
            it.rouse(group, &mut self.restless);
        }
        self.settle(now);
    }

    /// Takes a frozen link group out of this host, to [immigrate](Self::immigrate) into another. Its peer is told
    /// nothing, and nothing more is told of its connections. `None`: it is not at rest yet, and all is as before.
    pub fn emigrate(&mut self, group: u32, now: Duration) -> Option<Migrant> {
        self.settle(now);
        let migrant = self.describe(group, now)?;
        self.remove(group, &migrant);
        Some(migrant)
    }

    /// What leaves, if it is at rest and could come back.
    fn describe(&self, id: u32, now: Duration) -> Option<Migrant> {
        let group = self.groups.get(&id).filter(|group| group.is_frozen && group.is_at_rest())?;
        let at_rest = group.engine.at_rest()?;
        LinkGroup::resume(&at_rest, (id, None), &self.adapters_here(), now)?;
        let queue_pairs = group.carriers.values().map(|carrier| {
            let device = &self.ports.get(&carrier.adapter)?.device;
            device.at_rest(carrier.qp)
        });
        let of_group = self.streams.iter().filter(|(_, stream)| stream.group == id);
        let streams = of_group.map(|(token, stream)| stream.describe(*token, now));
        let streams: Vec<MigrantStream> = streams.collect::<Option<_>>()?;
        // One of CLC has a buffer, and no place among them.
        let is_complete =
            streams.len() == group.users() && streams.len() == at_rest.connections.len();
        let buffers = group.rmbs.iter().map(|(id, Rmb { memory, size, uid, .. })| MigrantBuffer {
            id: *id,
            size: *size,
            uid: *uid,
            memory: Arc::clone(memory),
        });
        is_complete.then_some(Migrant {
            group: at_rest,
            founder: group.founder,
            queue_pairs: queue_pairs.collect::<Option<_>>()?,
            buffers: buffers.collect(),
            streams,
        })
    }

    fn adapters_here(&self) -> Vec<Adapter> {
        let up = self.ports.values().filter(|port| port.is_up);
        up.map(|port| port.description).collect()
    }

    /// Gives up all that this host has of a group that goes on elsewhere.
    fn remove(&mut self, id: u32, migrant: &Migrant) {
        for MigrantStream { token, .. } in &migrant.streams {
            self.set_patience(*token, None);
            let Some(mut stream) = self.streams.remove(token) else { continue };
            stream.source = None;
            let rings = stream.lent.take().map(|lent| lent.ring);
            stream.outgoing.take().into_iter().chain(rings).for_each(|it| self.scrap(it));
        }
        let is_of_it =
            |event: &Event| migrant.streams.iter().any(|stream| stream.token == event.connection());
        self.events.retain(|event| !is_of_it(event));
        let Some(group) = self.groups.remove(&id) else { return };
        for carrier in group.carriers.into_values() {
            let Some(port) = self.ports.get_mut(&carrier.adapter) else { continue };
            port.past += carrier.usage(&port.device);
            port.links.remove(&carrier.qp);
            port.device.take_out(carrier.qp);
            carrier.keys.values().for_each(|rkey| port.device.deregister(*rkey));
        }
        group.send_buffers.into_iter().for_each(|it| self.scrap(it));
    }
}

impl Group {
    fn is_at_rest(&self) -> bool {
        self.first.is_none() && !self.is_doubted && self.carriers.values().all(Carrier::is_idle)
    }
}

impl Stream {
    /// `None`: it is not at rest.
    fn describe(&self, token: AlertToken, now: Duration) -> Option<MigrantStream> {
        let is_at_rest = self.stage == Stage::Open
            && self.under_way == 0
            && !self.moving
            && self.left.is_empty()
            && self.reset.is_none();
        let connection = self.connection.as_ref().filter(|_| is_at_rest)?.at_rest()?;
        Connection::resume(&connection)?;
        Some(MigrantStream {
            token,
            role: self.role,
            peer: self.peer?,
            connection,
            heard_over: self.heard_over,
            rmb: self.rmb,
            send_buffer_len: self.outgoing.as_ref()?.memory.len() as u32,
            unsent: self.unsent(&connection)?,
            is_held: self.is_held,
            patience: self.patience.map(|until| until.saturating_sub(now)),
            is_blocked: self.is_blocked,
            counts: [self.messages_sent, self.messages_received, self.moves],
        })
    }

    /// The bytes that were not written, from where they lie.
    fn unsent(&self, connection: &connection::AtRest) -> Option<Vec<u8>> {
        let memory = &self.source.as_ref()?.memory;
        let from = self.begin().wrapping_add(connection.written);
        let count = usize::try_from(connection.queued - connection.written).ok()?;
        let mut bytes = vec![0; count];
        let at = (from % memory.len() as u64) as usize;
        let (first, second) = bytes.split_at_mut(count.min(memory.len() - at));
        (memory.copy_out(at, first) && memory.copy_out(0, second)).then_some(bytes)
    }
}

// ---- coming -------------------------------------------------------------------------------------

/// A queue pair of a group, and the keys by which its peer writes over it.
struct Seat {
    link: LinkUserId,
    adapter: AdapterId,
    qp: AtRest,
    keys: Vec<(RmbId, Registration)>,
}

/// What a device has taken, to be undone if it does not take all.
enum Taken {
    QueuePair(QpNumber),
    Key(Rkey),
}

impl<D: Device> Host<D> {
    /// Goes on with a link group that has [emigrated](Self::emigrate) from another host of this address. What can be
    /// done with its connections is told by [`Event::Readable`] and [`Event::Writable`].
    ///
    /// # Errors
    ///
    /// [`Unfit`]; nothing has changed.
    pub fn immigrate(&mut self, migrant: Migrant, now: Duration) -> Result<(), Unfit> {
        let (number, keepalive) = (self.next_group(), self.settings.keepalive);
        let here = self.adapters_here();
        let engine = LinkGroup::resume(&migrant.group, (number, keepalive), &here, now);
        let engine = engine.ok_or(Unfit::Group)?;
        migrant.check_buffers(&engine)?;
        let streams = migrant.streams.iter().map(|it| self.resume_stream(it, number, &migrant));
        let streams: Vec<Stream> = streams.collect::<Result<_, _>>()?;
        migrant.check_tokens(&engine)?;
        let seats = seats(&engine, &migrant.queue_pairs)?;
        self.take_seats(&seats, &migrant.buffers)?;
        self.settle_in(number, engine, &migrant, seats, now);
        for (from, stream) in migrant.streams.iter().zip(streams) {
            self.begin_again(from, stream, now);
        }
        self.settle(now);
        Ok(())
    }

    /// A connection as it was, without a place to write to yet.
    fn resume_stream(
        &self,
        from: &MigrantStream,
        group: u32,
        migrant: &Migrant,
    ) -> Result<Stream, Unfit> {
        let is_known = self.streams.contains_key(&from.token)
            || self.waiting.iter().any(|it| it.proposal.token == from.token);
        let rmb = migrant.buffers.iter().find(|it| it.id == from.rmb).ok_or(Unfit::Buffers)?;
        let connection = Connection::resume(&from.connection);
        let connection = connection.filter(|_| from.fits(rmb) && !is_known);
        let connection = connection.ok_or(Unfit::Connections)?;
        let len = from.unsent.len().max(from.send_buffer_len as usize);
        let [messages_sent, messages_received, moves] = from.counts;
        let mut stream = Stream::new(Beginning {
            group,
            role: from.role,
            is_first: false,
            // It has introduced itself.
            wording: Wording::V1,
            named: LinkUserId(0),
            peer: Some(from.peer),
            rmb: from.rmb,
            incoming: Arc::clone(&rmb.memory),
            outgoing: SendBuffer::new(len),
        });
        stream.stage = Stage::Open;
        stream.heard_over = from.heard_over;
        stream.is_held = from.is_held;
        stream.is_blocked = from.is_blocked;
        stream.connection = Some(connection);
        stream.put_back(from.connection.written, &from.unsent);
        (stream.messages_sent, stream.messages_received) = (messages_sent, messages_received);
        stream.moves = moves;
        Ok(stream)
    }

    /// The devices go on with the queue pairs and keys, with all of them or none.
    fn take_seats(&mut self, seats: &[Seat], buffers: &[MigrantBuffer]) -> Result<(), Unfit> {
        let mut taken = Vec::new();
        let is_done = seats.iter().all(|seat| self.take_seat(seat, buffers, &mut taken));
        if !is_done {
            for (adapter, what) in taken {
                let Some(port) = self.ports.get_mut(&adapter) else { continue };
                match what {
                    Taken::QueuePair(qp) => port.device.take_out(qp),
                    Taken::Key(rkey) => port.device.deregister(rkey),
                }
            }
        }
        is_done.then_some(()).ok_or(Unfit::QueuePairs)
    }

    fn take_seat(
        &mut self,
        Seat { adapter, qp, keys, .. }: &Seat,
        buffers: &[MigrantBuffer],
        taken: &mut Vec<(AdapterId, Taken)>,
    ) -> bool {
        let Some(port) = self.ports.get_mut(adapter) else { return false };
        if !port.device.put_in(qp) {
            return false;
        }
        taken.push((*adapter, Taken::QueuePair(qp.number)));
        keys.iter().all(|(rmb, told)| {
            let Some(buffer) = buffers.iter().find(|it| it.id == *rmb) else { return false };
            let is_new = port.device.register_as(*told, &buffer.memory, qp.number);
            if is_new {
                taken.push((*adapter, Taken::Key(told.rkey)));
            }
            is_new
        })
    }

    fn settle_in(
        &mut self,
        number: u32,
        engine: LinkGroup,
        migrant: &Migrant,
        seats: Vec<Seat>,
        now: Duration,
    ) {
        let usable = migrant.group.adapters.clone();
        let mut group = Group::new(engine, migrant.founder, now);
        for MigrantBuffer { id, size, uid, memory } in &migrant.buffers {
            let user = migrant.streams.iter().find(|it| it.rmb == *id).map(|it| it.token);
            let memory = Arc::clone(memory);
            group.rmbs.insert(*id, Rmb { memory, size: *size, uid: *uid, user });
            self.last_rmb = self.last_rmb.max(id.0);
        }
        for Seat { link, adapter, qp, keys } in seats {
            let mut carrier = Carrier::new(adapter, qp.number);
            carrier.keys.extend(keys.into_iter().map(|(rmb, told)| (rmb, told.rkey)));
            group.carriers.insert(link, carrier);
            if let Some(port) = self.ports.get_mut(&adapter) {
                port.links.insert(qp.number, (number, link));
            }
        }
        let strange = self.ports.values().filter(|it| !usable.contains(&it.description.gid));
        group.strangers = strange.map(|it| it.description.id).collect();
        group.has_changed = true;
        group.rouse(number, &mut self.restless);
        self.groups.insert(number, group);
    }

    fn begin_again(&mut self, from: &MigrantStream, mut stream: Stream, now: Duration) {
        let token = from.token;
        let engine = self.groups.get(&stream.group).map(|group| &group.engine);
        stream.to = engine.and_then(|engine| engine.destination(token));
        let is_readable = !stream.readable().is_empty()
            || stream.connection.as_ref().is_some_and(Connection::has_ended);
        let has_room = stream.room() > 0;
        if from.is_held {
            let told = [(is_readable, Event::Readable(token)), (has_room, Event::Writable(token))];
            self.events.extend(told.into_iter().filter_map(|(is, event)| is.then_some(event)));
        }
        self.streams.insert(token, stream);
        self.set_patience(token, from.patience.map(|left| now + left));
        match self.lend(token) {
            true => self.rouse(token),
            false => self.reset(token, Reset::Unreachable, now),
        }
    }
}

impl MigrantStream {
    /// Whether it tells of as many bytes as it has, with this receive buffer.
    fn fits(&self, rmb: &MigrantBuffer) -> bool {
        let [own, peer] = self.connection.lens.map(|len| len as usize);
        let unsent = self.connection.queued.checked_sub(self.connection.written);
        own == rmb.memory.len()
            && peer == self.peer.size.bytes()
            && unsent == Some(self.unsent.len() as u64)
            && (1..=SEND_BUFFER_LEN_MAX).contains(&(self.send_buffer_len as usize))
            && self.unsent.len() <= SEND_BUFFER_LEN_MAX
    }
}

impl Migrant {
    /// Its buffers are those that the peer knows, each as long as it says, and has one connection at most.
    fn check_buffers(&self, engine: &LinkGroup) -> Result<(), Unfit> {
        let known: BTreeSet<RmbId> = engine.rmbs().map(|(id, _)| id).collect();
        let ids: BTreeSet<RmbId> = self.buffers.iter().map(|it| it.id).collect();
        let used: BTreeSet<RmbId> = self.streams.iter().map(|it| it.rmb).collect();
        let is_long = |it: &MigrantBuffer| it.memory.len() == it.size.bytes();
        let is_fit = known == ids
            && ids.len() == self.buffers.len()
            && used.len() == self.streams.len()
            && self.buffers.iter().all(is_long);
        is_fit.then_some(()).ok_or(Unfit::Buffers)
    }

    /// Its connections are those of the group, each with its buffer and a place to write to.
    fn check_tokens(&self, engine: &LinkGroup) -> Result<(), Unfit> {
        let of_group = engine.connections();
        let is_of_group = |stream: &MigrantStream| {
            of_group.iter().any(|it| it.token == stream.token && it.rmb == stream.rmb)
                && engine.destination(stream.token).is_some()
                && stream.heard_over.is_none_or(|link| engine.link(link).is_some())
        };
        // Those of the group differ from each other, so none is missing.
        let is_fit = of_group.len() == self.streams.len() && self.streams.iter().all(is_of_group);
        is_fit.then_some(()).ok_or(Unfit::Connections)
    }
}

/// The queue pair of each link, with the keys by which its peer reaches buffers over it.
fn seats(engine: &LinkGroup, queue_pairs: &[AtRest]) -> Result<Vec<Seat>, Unfit> {
    let numbers: BTreeSet<QpNumber> = queue_pairs.iter().map(|it| it.number).collect();
    let is_each_once =
        numbers.len() == queue_pairs.len() && queue_pairs.len() == engine.links().len();
    let seat = |link: &Link| {
        let (end, peer) = (link.end()?, link.peer()?);
        let leads_there = |it: &&AtRest| {
            it.number == end.qp && it.peer.qp == peer.qp && it.address == address_of(peer.gid)
        };
        let qp = *queue_pairs.iter().find(leads_there)?;
        let (link, adapter) = (link.user_id(), link.adapter().id);
        let keys = engine.rmbs().map(|(rmb, _)| {
            let told = engine.rtoken(rmb, link)?;
            Some((rmb, Registration { rkey: told.rkey, address: told.address }))
        });
        Some(Seat { link, adapter, qp, keys: keys.collect::<Option<_>>()? })
    };
    let seats = engine.links().iter().map(seat).collect::<Option<Vec<_>>>();
    seats.filter(|_| is_each_once).ok_or(Unfit::QueuePairs)
}
