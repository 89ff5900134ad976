//! The host: its adapters, and what programs call.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use sidestep_proto::connection::Connection;
use sidestep_proto::link_group::{self, AdapterId, Link, LinkGroup};
use sidestep_rdma::soft::adapter::{Adapter, Datagram, Run};
use sidestep_wire::llc::DeleteReason;
use sidestep_wire::{AlertToken, LinkUserId, PeerId, QpNumber};

use crate::event::{CallError, Event};
use crate::group::{Group, address_of};
use crate::stream::{Stage, Stream};

/// Who a host is.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// As it is told to peers.
    pub peer_id: PeerId,
    /// The VLAN of all links; 0 for none.
    pub vlan: u16,
    /// How long a link may be silent before it is tested; `None`: for ever.
    pub keepalive: Option<Duration>,
}

/// CDC messages that nobody took.
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
    /// Registrations of memory.
    pub registrations: usize,
}

/// An adapter and the links over it.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) description: link_group::Adapter,
    pub(crate) is_up: bool,
    pub(crate) device: Adapter,
    pub(crate) links: HashMap<QpNumber, (u32, LinkUserId)>,
}

/// One host of SMC-R.
///
/// After any call but a getter, poll datagrams of each adapter and events until there are none.
#[derive(Debug)]
pub struct Host {
    pub(crate) settings: Settings,
    pub(crate) ports: BTreeMap<AdapterId, Port>,
    pub(crate) groups: BTreeMap<u32, Group>,
    pub(crate) streams: BTreeMap<AlertToken, Stream>,
    pub(crate) last_group: u32,
    pub(crate) last_token: u32,
    pub(crate) last_rmb: u32,
    pub(crate) events: VecDeque<Event>,
    pub(crate) drops: Drops,
}

// ---- the host and its adapters ------------------------------------------------------------------

impl Host {
    /// A host without adapters.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        Self {
            settings,
            ports: BTreeMap::new(),
            groups: BTreeMap::new(),
            streams: BTreeMap::new(),
            last_group: 0,
            last_token: 0,
            last_rmb: 0,
            events: VecDeque::new(),
            drops: Drops { malformed: 0, unknown: 0 },
        }
    }

    /// An adapter has come, which sends from this UDP port; or it has come back.
    pub fn handle_adapter_up(
        &mut self,
        description: link_group::Adapter,
        source_port: u16,
        now: Duration,
    ) {
        let port = self.ports.entry(description.id).or_insert_with(|| Port {
            description,
            is_up: true,
            device: Adapter::new(address_of(description.gid), source_port),
            links: HashMap::new(),
        });
        port.is_up = true;
        for group in self.groups.values_mut() {
            group.engine.handle_adapter_up(description, now);
        }
        self.settle(now);
    }

    /// An adapter has gone, as far as anybody can tell.
    pub fn handle_adapter_down(&mut self, id: AdapterId, now: Duration) {
        if let Some(port) = self.ports.get_mut(&id) {
            port.is_up = false;
        }
        for group in self.groups.values_mut() {
            group.engine.handle_adapter_down(id, now);
        }
        self.settle(now);
    }

    /// Takes the links over an adapter out of use, in order, where there are others for their
    /// connections.
    pub fn relieve_adapter(&mut self, id: AdapterId, now: Duration) {
        for group in self.groups.values_mut() {
            let links = group.engine.links().iter();
            let over_it: Vec<LinkUserId> =
                links.filter(|it| it.adapter().id == id).map(Link::user_id).collect();
            for link in over_it {
                group.engine.delete_link(link, now);
            }
        }
        self.settle(now);
    }

    /// A datagram has come in for an adapter.
    pub fn handle_datagram(&mut self, at: AdapterId, datagram: &Datagram<'_>, now: Duration) {
        if let Some(port) = self.ports.get_mut(&at) {
            port.device.handle_datagram(datagram, now);
            self.settle(now);
        }
    }

    /// Writes the next run of datagrams of an adapter to the front of `out`, as
    /// [`Adapter::poll_transmit`] does.
    pub fn poll_transmit(
        &mut self,
        from: AdapterId,
        out: &mut [u8],
        segments_max: usize,
        now: Duration,
    ) -> Option<Run> {
        self.ports.get_mut(&from)?.device.poll_transmit(out, segments_max, now)
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let of_ports = self.ports.values().filter_map(|port| port.device.poll_timeout());
        let of_groups = self.groups.values().filter_map(|group| group.engine.poll_timeout());
        let of_streams = self.streams.values().filter_map(|stream| stream.patience);
        of_ports.chain(of_groups).chain(of_streams).min()
    }

    /// The time that [`poll_timeout`](Self::poll_timeout) has told may have come.
    pub fn handle_timeout(&mut self, now: Duration) {
        for port in self.ports.values_mut() {
            port.device.handle_timeout(now);
        }
        for group in self.groups.values_mut() {
            if group.engine.poll_timeout().is_some_and(|due| due <= now) {
                group.engine.handle_timeout(now);
            }
        }
        self.settle(now);
        self.lose_patience(now);
        self.settle(now);
    }

    /// What has happened next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Ends all link groups, and with them their connections. In order, if the peers are to think
    /// nothing of it.
    pub fn end(&mut self, is_orderly: bool, now: Duration) {
        for group in self.groups.values_mut() {
            group.engine.end(DeleteReason::OPERATOR, is_orderly, now);
        }
        self.settle(now);
    }

    /// What was dropped so far.
    #[must_use]
    pub const fn drops(&self) -> Drops {
        self.drops
    }

    /// What it has now.
    #[must_use]
    pub fn holdings(&self) -> Holdings {
        let mut holdings = Holdings {
            groups: self.groups.len(),
            rmbs: self.groups.values().map(|group| group.rmbs.len()).sum(),
            connections: self.streams.len(),
            ..Holdings::default()
        };
        for port in self.ports.values() {
            let (queue_pairs, registrations) = port.device.holdings();
            holdings.queue_pairs += queue_pairs;
            holdings.registrations += registrations;
        }
        holdings
    }

    /// Its link groups.
    pub fn groups(&self) -> impl Iterator<Item = &LinkGroup> {
        self.groups.values().map(|group| &group.engine)
    }
}

// ---- what programs call -------------------------------------------------------------------------

impl Host {
    /// Sends bytes, as many as there is room for, and tells how many.
    ///
    /// # Errors
    ///
    /// [`CallError`]; after [`CallError::WouldBlock`] follows [`Event::Writable`].
    pub fn send(
        &mut self,
        connection: AlertToken,
        bytes: &[u8],
        now: Duration,
    ) -> Result<usize, CallError> {
        self.queue(connection, bytes, false, now)
    }

    /// The same. If there is room for all of them, the last is urgent.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_urgent(
        &mut self,
        connection: AlertToken,
        bytes: &[u8],
        now: Duration,
    ) -> Result<usize, CallError> {
        self.queue(connection, bytes, true, now)
    }

    fn queue(
        &mut self,
        token: AlertToken,
        bytes: &[u8],
        is_urgent: bool,
        now: Duration,
    ) -> Result<usize, CallError> {
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
