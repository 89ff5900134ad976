//! What displays show of a host: its adapters, links and connections.

use sidestep_proto::connection::Connection;
use sidestep_proto::link_group::{Adapter, Link, LinkGroup, Role};
use sidestep_rdma::device::Device;
use sidestep_wire::{AlertToken, LinkUserId};

use crate::host::{Host, Port};
use crate::stream::{Stage, Stream};
use crate::usage::{Traffic, Usage};

/// An adapter.
#[derive(Clone, Copy, Debug)]
pub struct AdapterView {
    /// Which.
    pub description: Adapter,
    /// Whether it can be used.
    pub is_up: bool,
    /// Queue pairs on it.
    pub links: usize,
    /// Of all links over it, also of those that have gone.
    pub usage: Usage,
}

/// A link that has a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct LinkView<'a> {
    /// Our number for its group.
    pub group_number: u32,
    /// Its group.
    pub group: &'a LinkGroup,
    /// The link.
    pub link: &'a Link,
    /// Connections that send over it.
    pub connections: usize,
    /// How much it was used.
    pub usage: Usage,
}

/// A connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionView {
    /// Our name for it.
    pub token: AlertToken,
    /// The peer's, once it is known.
    pub peer_token: Option<AlertToken>,
    /// Our number for its group.
    pub group_number: u32,
    /// Our role when it was made.
    pub role: Role,
    /// Whether it carries bytes: it has begun, and is not over.
    pub is_open: bool,
    /// The link that it sends over.
    pub link: Option<LinkUserId>,
    /// Bytes that the peer may write ahead of what the program reads.
    pub rmbe_len: usize,
    /// The same of the peer, once it is known.
    pub peer_rmbe_len: Option<usize>,
    /// What the program has sent and received.
    pub traffic: Traffic,
    /// How often it has gone over to another link.
    pub moves: u64,
}

impl<D: Device> Host<D> {
    /// Its adapters.
    pub fn adapters(&self) -> impl Iterator<Item = AdapterView> {
        self.ports.values().map(|port| AdapterView {
            description: port.description,
            is_up: port.is_up,
            links: port.links.len(),
            usage: self.usage_of(port),
        })
    }

    fn usage_of(&self, port: &Port<D>) -> Usage {
        let mut usage = port.past;
        for (group, link) in port.links.values() {
            let carrier = self.groups.get(group).and_then(|group| group.carriers.get(link));
            usage += carrier.map(|carrier| carrier.usage(&port.device)).unwrap_or_default();
        }
        usage
    }

    /// Links of all its groups.
    pub fn links(&self) -> impl Iterator<Item = LinkView<'_>> {
        self.groups.iter().flat_map(|(number, group)| {
            group.carriers.iter().filter_map(|(id, carrier)| {
                let device = &self.ports.get(&carrier.adapter)?.device;
                Some(LinkView {
                    group_number: *number,
                    group: &group.engine,
                    link: group.engine.link(*id)?,
                    connections: group.engine.connections_on(*id),
                    usage: carrier.usage(device),
                })
            })
        })
    }

    /// Its connections, also those in the making and those that are over but not forgotten.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionView> {
        self.streams.iter().map(|(token, stream)| stream.view(*token))
    }

    /// One of them.
    #[must_use]
    pub fn connection(&self, token: AlertToken) -> Option<ConnectionView> {
        self.streams.get(&token).map(|stream| stream.view(token))
    }
}

impl Stream {
    fn view(&self, token: AlertToken) -> ConnectionView {
        let bytes_received = self.connection.as_ref().map_or(0, Connection::read_position);
        ConnectionView {
            token,
            peer_token: self.peer.map(|peer| peer.token),
            group_number: self.group,
            role: self.role,
            is_open: self.stage == Stage::Open,
            link: self.to.map(|(link, _)| link),
            rmbe_len: self.incoming.len(),
            peer_rmbe_len: self.peer.map(|peer| peer.size.bytes()),
            traffic: Traffic {
                bytes_sent: self.queued,
                messages_sent: self.messages_sent,
                bytes_received,
                messages_received: self.messages_received,
            },
            moves: self.moves,
        }
    }
}
