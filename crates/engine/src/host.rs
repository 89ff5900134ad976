//! The host: its adapters, and what programs call.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rand::rngs::StdRng;
use sidestep_proto::connection::Connection;
use sidestep_proto::link_group::{self, AdapterId, Link, LinkGroup, LinkState};
use sidestep_rdma::device::{Device, Failure};
use sidestep_rdma::memory::Stretch;
use sidestep_wire::llc::DeleteReason;
use sidestep_wire::{AlertToken, LinkUserId, QpNumber};

use crate::event::{CallError, Event};
use crate::group::Group;
use crate::request::Waiting;
use crate::stream::{InPlace, Readable, Stage, Stream};
use crate::usage::{Tally, Usage};

/// How a host keeps its link groups.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a link may be silent before it is tested; `None`: for ever.
    pub keepalive: Option<Duration>,
}

/// CDC messages that no stream took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// They are none, though they begin as one.
    pub malformed: u64,
    /// For no connection of the group of the link.
    pub unknown: u64,
}

/// What a host has, to be counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Link groups.
    pub groups: usize,
    /// Receive buffers in them.
    pub rmbs: usize,
    /// Connections.
    pub connections: usize,
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Keys by which peers write into memory.
    pub registrations: usize,
    /// Permissions of devices to send from memory.
    pub sources: usize,
}

/// An adapter and the links over it.
#[derive(Debug)]
pub(crate) struct Port<D> {
    pub(crate) description: link_group::Adapter,
    pub(crate) is_up: bool,
    pub(crate) device: D,
    pub(crate) links: BTreeMap<QpNumber, (u32, LinkUserId)>,
    /// Of links that have gone.
    pub(crate) past: Usage,
}

/// One host of SMC-R, with adapters of this kind.
///
/// It has the devices, and their owner reaches them by [`device`](Self::device): to let one make
/// progress, and then to say so by [`handle_device`](Self::handle_device). After any call but a
/// getter, poll events until there are none, and let the devices send.
#[derive(Debug)]
pub struct Host<D> {
    pub(crate) settings: Settings,
    pub(crate) ports: BTreeMap<AdapterId, Port<D>>,
    pub(crate) groups: BTreeMap<u32, Group>,
    pub(crate) streams: BTreeMap<AlertToken, Stream>,
    /// Server: Proposals behind a first contact, in their order.
    pub(crate) waiting: VecDeque<Waiting>,
    /// One of those that they may wait for is decided.
    pub(crate) contact_is_over: bool,
    /// Groups with work to do.
    pub(crate) restless: VecDeque<u32>,
    /// Groups with something to send.
    pub(crate) loaded: VecDeque<u32>,
    /// When the patience with the peers of connections ends.
    pub(crate) patience: BTreeSet<(Duration, AlertToken)>,
    pub(crate) last_group: u32,
    /// Alert tokens come from it: a peer that knows those of the past cannot guess the next.
    pub(crate) random: StdRng,
    pub(crate) last_rmb: u32,
    pub(crate) events: VecDeque<Event>,
    /// Links that have broken, for [`poll_broken_link`](Self::poll_broken_link).
    pub(crate) broken_links: VecDeque<(AdapterId, Failure)>,
    pub(crate) drops: Drops,
    pub(crate) tally: Tally,
}

// ---- the host and its adapters ------------------------------------------------------------------

impl<D: Device> Host<D> {
    /// A host without adapters, whose secrets come from this generator.
    #[must_use]
    pub const fn new(settings: Settings, random: StdRng) -> Self {
        Self {
            settings,
            ports: BTreeMap::new(),
            groups: BTreeMap::new(),
            streams: BTreeMap::new(),
            waiting: VecDeque::new(),
            contact_is_over: false,
            restless: VecDeque::new(),
            loaded: VecDeque::new(),
            patience: BTreeSet::new(),
            last_group: 0,
            random,
            last_rmb: 0,
            events: VecDeque::new(),
            broken_links: VecDeque::new(),
            drops: Drops { malformed: 0, unknown: 0 },
            tally: Tally { failovers: 0, rmbe_full: 0 },
        }
    }

    /// An adapter has come, and this is its device. An earlier one of this number was
    /// [removed](Self::remove_adapter).
    pub fn add_adapter(&mut self, description: link_group::Adapter, device: D, now: Duration) {
        let links = BTreeMap::new();
        let port = Port { description, is_up: true, device, links, past: Usage::default() };
        let before = self.ports.insert(description.id, port);
        debug_assert!(before.is_none(), "two adapters of one number");
        self.handle_adapter_up(description.id, now);
    }

    /// An adapter that is about to come is for the groups that may use one of these: connections are eligible
    /// for it and for them alike. It is for no other group that there is.
    pub fn admit_adapter(&mut self, id: AdapterId, kin: &[AdapterId]) {
        for group in self.groups.values_mut() {
            let is_kin = kin.iter().any(|it| !group.strangers.contains(it));
            group.strangers.retain(|it| *it != id);
            if !is_kin {
                group.strangers.push(id);
            }
        }
    }

    /// An adapter can be used again, by groups whose first contact it was eligible for.
    pub fn handle_adapter_up(&mut self, id: AdapterId, now: Duration) {
        let Some(port) = self.ports.get_mut(&id) else { return };
        port.is_up = true;
        let description = port.description;
        let tell = |group: &mut Group| {
            if !group.strangers.contains(&id) {
                group.engine.handle_adapter_up(description, now);
            }
        };
        self.tell_groups(tell, now);
    }

    /// An adapter cannot be used, as far as the host can tell: its port is down, or its address is
    /// gone. All links over it have failed.
    pub fn handle_adapter_down(&mut self, id: AdapterId, now: Duration) {
        let Some(port) = self.ports.get_mut(&id) else { return };
        port.is_up = false;
        self.tell_groups(|group| group.engine.handle_adapter_down(id, now), now);
    }

    /// An adapter is no more. What the host had of its device is given back, and the device
    /// returned.
    pub fn remove_adapter(&mut self, id: AdapterId, now: Duration) -> Option<D> {
        self.handle_adapter_down(id, now);
        let over_it: Vec<(u32, LinkUserId)> =
            self.ports.get(&id)?.links.values().copied().collect();
        for (group, link) in over_it {
            self.destroy(group, link, now);
        }
        self.settle(now);
        let mut port = self.ports.remove(&id)?;
        let waiting = self.groups.values_mut().flat_map(|group| &mut group.send_buffers);
        let used = self.streams.values_mut().flat_map(Stream::sources);
        for buffer in waiting.chain(used) {
            buffer.part_from(id).into_iter().for_each(|source| port.device.take_back(source));
        }
        Some(port.device)
    }

    /// Takes the links over an adapter out of use, in order, where there are others for their
    /// connections.
    pub fn relieve_adapter(&mut self, id: AdapterId, now: Duration) {
        let relieve = |Group { engine: group, .. }: &mut Group| {
            let active = group.links().iter().filter(|it| it.state() == LinkState::Active);
            let (over_it, others): (Vec<&Link>, Vec<_>) =
                active.partition(|link| link.adapter().id == id);
            if others.is_empty() {
                return;
            }
            let over_it: Vec<LinkUserId> = over_it.into_iter().map(Link::user_id).collect();
            for link in over_it {
                group.delete_link(link, now);
            }
        };
        self.tell_groups(relieve, now);
    }

    /// The device of an adapter, to let it make progress. Queue pairs and keys are the host's.
    pub fn device(&mut self, of: AdapterId) -> Option<&mut D> {
        self.ports.get_mut(&of).map(|port| &mut port.device)
    }

    /// The device of an adapter may have something to tell.
    pub fn handle_device(&mut self, of: AdapterId, now: Duration) {
        self.take_device_events(of, now);
        self.settle(now);
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called. Devices have times of their
    /// own.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let of_groups = self.groups.values().filter_map(|group| group.deadline);
        let of_streams = self.patience.first().map(|(until, _)| *until);
        let of_waiting = self.waiting.front().map(|waiting| waiting.until);
        of_groups.chain(of_streams).chain(of_waiting).min()
    }

    /// The time that [`poll_timeout`](Self::poll_timeout) has told may have come.
    pub fn handle_timeout(&mut self, now: Duration) {
        for (id, group) in &mut self.groups {
            if group.deadline.is_some_and(|due| due <= now) {
                group.engine.handle_timeout(now);
                group.has_changed = true;
                group.rouse(*id, &mut self.restless);
            }
        }
        self.settle(now);
        self.lose_patience(now);
        self.decline_waiting(now);
    }

    fn tell_groups(&mut self, mut tell: impl FnMut(&mut Group), now: Duration) {
        for (id, group) in &mut self.groups {
            tell(group);
            group.has_changed = true;
            group.rouse(*id, &mut self.restless);
        }
        self.settle(now);
    }

    /// The engine of a group, to be told something. What that leads to is done when the call
    /// [settles](Self::settle).
    pub(crate) fn engine(&mut self, group: u32) -> Option<&mut LinkGroup> {
        let it = self.groups.get_mut(&group)?;
        it.has_changed = true;
        it.rouse(group, &mut self.restless);
        Some(&mut it.engine)
    }

    /// What has happened next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next link that has broken, for the operator: its adapter, and why. What becomes of its connections
    /// [`poll_event`](Self::poll_event) tells.
    pub fn poll_broken_link(&mut self) -> Option<(AdapterId, Failure)> {
        self.broken_links.pop_front()
    }

    /// Ends all link groups, and with them their connections. In order, if the peers are to think
    /// nothing of it.
    pub fn end(&mut self, is_orderly: bool, now: Duration) {
        self.decline_waiting(Duration::MAX);
        self.tell_groups(|group| group.engine.end(DeleteReason::OPERATOR, is_orderly, now), now);
    }

    /// What was dropped so far.
    #[must_use]
    pub const fn drops(&self) -> Drops {
        self.drops
    }

    /// What has happened so far.
    #[must_use]
    pub const fn tally(&self) -> Tally {
        self.tally
    }

    /// What it has now.
    #[must_use]
    pub fn holdings(&self) -> Holdings {
        let mut holdings = Holdings {
            groups: self.groups.len(),
            rmbs: self.groups.values().map(|group| group.rmbs.len()).sum(),
            connections: self.streams.len() + self.waiting.len(),
            ..Holdings::default()
        };
        for port in self.ports.values() {
            let of_device = port.device.holdings();
            holdings.queue_pairs += of_device.queue_pairs;
            holdings.registrations += of_device.registrations;
            holdings.sources += of_device.sources;
        }
        holdings
    }

    /// Its link groups.
    pub fn groups(&self) -> impl Iterator<Item = &LinkGroup> {
        self.groups.values().map(|group| &group.engine)
    }
}

// ---- what programs call -------------------------------------------------------------------------

impl<D: Device> Host<D> {
    /// Sends bytes, as many as there is room for, and tells how many.
    ///
    /// # Errors
    ///
    /// [`CallError`]; after [`CallError::WouldBlock`] follows [`Event::Writable`].
    pub fn send<'a>(
        &mut self,
        connection: AlertToken,
        bytes: impl Into<Stretch<'a>>,
        now: Duration,
    ) -> Result<usize, CallError> {
        self.queue(connection, bytes.into(), false, now)
    }

    /// The same. If there is room for all of them, the last is urgent.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_urgent<'a>(
        &mut self,
        connection: AlertToken,
        bytes: impl Into<Stretch<'a>>,
        now: Duration,
    ) -> Result<usize, CallError> {
        self.queue(connection, bytes.into(), true, now)
    }

    /// How many bytes it would take now.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn room(&mut self, connection: AlertToken) -> Result<usize, CallError> {
        let stream = self.held(connection)?;
        match stream.room() {
            0 => {
                stream.wants_room = true;
                Err(CallError::WouldBlock)
            }
            room => Ok(room),
        }
    }

    fn queue(
        &mut self,
        token: AlertToken,
        bytes: Stretch<'_>,
        is_urgent: bool,
        now: Duration,
    ) -> Result<usize, CallError> {
        let stream = self.held(token)?;
        if stream.sends_in_place() && stream.kept() == 0 {
            self.send_from_buffer(token);
        }
        let stream = self.held(token)?;
        let sent = stream.queue(bytes, is_urgent)?;
        if sent == 0 && !bytes.is_empty() {
            stream.wants_room = true;
            return Err(CallError::WouldBlock);
        }
        self.rouse(token);
        self.settle(now);
        Ok(sent)
    }

    /// Sends bytes from where they lie. False: not now, because bytes before them lie elsewhere, or because the adapter
    /// cannot read there. They are to be [sent](Self::send) by a copy then.
    ///
    /// They stay as they are until they are not [kept](Self::kept) any more, as [`Event::Sent`] tells, and the memory
    /// until [`Event::Gone`].
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), but it always has room.
    pub fn send_in_place(
        &mut self,
        connection: AlertToken,
        bytes: &InPlace<'_>,
        now: Duration,
    ) -> Result<bool, CallError> {
        let stream = self.held(connection)?;
        if let Some(engine) = &stream.connection {
            engine.may_send()?;
        }
        let goes_on = stream.goes_on_at(bytes.position);
        if !goes_on && (stream.kept() > 0 || !self.send_from_ring(connection, bytes)) {
            return Ok(false);
        }
        self.held(connection)?.queue_in_place(bytes)?;
        self.rouse(connection);
        self.settle(now);
        Ok(true)
    }

    /// Bytes that were sent and are not known to have arrived: the adapter may have to read them again.
    ///
    /// # Errors
    ///
    /// [`CallError::Unknown`], [`CallError::Reset`].
    pub fn kept(&mut self, connection: AlertToken) -> Result<u64, CallError> {
        Ok(self.held(connection)?.kept())
    }

    /// Receives bytes, as many as there are and fit; 0: no more will come.
    ///
    /// # Errors
    ///
    /// [`CallError`]; after [`CallError::WouldBlock`] follows [`Event::Readable`].
    pub fn receive(
        &mut self,
        connection: AlertToken,
        buffer: &mut [u8],
        now: Duration,
    ) -> Result<usize, CallError> {
        let stream = self.held(connection)?;
        let received = stream.take(buffer);
        let has_ended = stream.connection.as_ref().is_some_and(Connection::has_ended);
        if received == 0 && !buffer.is_empty() && !has_ended {
            return Err(CallError::WouldBlock);
        }
        self.rouse(connection);
        self.settle(now);
        Ok(received)
    }

    /// What is to be received next, where it lies; nothing: no more will come. What is
    /// [consumed](Self::consume) of it may be written over.
    ///
    /// # Errors
    ///
    /// [`CallError`]; after [`CallError::WouldBlock`] follows [`Event::Readable`].
    pub fn readable(&mut self, connection: AlertToken) -> Result<Readable<'_>, CallError> {
        let stream = self.held(connection)?;
        let readable = stream.readable();
        let has_ended = stream.connection.as_ref().is_some_and(Connection::has_ended);
        if readable.is_empty() && !has_ended {
            return Err(CallError::WouldBlock);
        }
        Ok(readable)
    }

    /// The first `n` bytes of those that are [readable](Self::readable), and no more, are received.
    ///
    /// # Errors
    ///
    /// As [`readable`](Self::readable).
    pub fn consume(
        &mut self,
        connection: AlertToken,
        n: usize,
        now: Duration,
    ) -> Result<(), CallError> {
        self.held(connection)?.consume(n);
        self.rouse(connection);
        self.settle(now);
        Ok(())
    }

    /// Bytes that may be received before the last urgent byte that has come; `None`: it was
    /// received, or there was none.
    #[must_use]
    pub fn urgent_mark(&self, connection: AlertToken) -> Option<u64> {
        let engine = self.streams.get(&connection)?.connection.as_ref()?;
        engine.urgent_byte()?.checked_sub(engine.read_position())
    }

    /// The program sends no more.
    ///
    /// # Errors
    ///
    /// [`CallError::Unknown`], [`CallError::Reset`].
    pub fn shut(&mut self, connection: AlertToken, now: Duration) -> Result<(), CallError> {
        if let Some(engine) = &mut self.held(connection)?.connection {
            engine.shut();
        }
        self.rouse(connection);
        self.settle(now);
        Ok(())
    }

    /// The program needs the connection no more: what was sent still arrives, and then it ends. If
    /// there is something that was not received, or more comes, it is aborted, as with TCP.
    /// [`Event::Gone`] follows.
    pub fn close(&mut self, connection: AlertToken, now: Duration) {
        self.let_go(connection, false, now);
    }

    /// The connection ends at once, and the peer learns that. [`Event::Gone`] follows.
    pub fn abort(&mut self, connection: AlertToken, now: Duration) {
        self.let_go(connection, true, now);
    }

    /// A connection that the program has, and that has not ended in disorder.
    fn held(&mut self, token: AlertToken) -> Result<&mut Stream, CallError> {
        let stream = self.streams.get_mut(&token).filter(|stream| stream.is_held);
        let stream = stream.ok_or(CallError::Unknown)?;
        match (stream.reset, stream.stage) {
            (Some(_), _) => Err(CallError::Reset),
            (None, Stage::Preparing | Stage::Introduced) => Err(CallError::WouldBlock),
            (None, Stage::Open | Stage::Over) => Ok(stream),
        }
    }
}
