//! TCP connections, put together from the segments of a capture.
//!
//! CLC messages are the first bytes of a connection. So of each direction only these are kept, in the
//! order of their sequence numbers: segments may come twice, late, or in other pieces. Of the rest
//! only the length is known.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use sidestep_wire::clc::{Header, MessageType};
use sidestep_wire::tcp_option;

use super::capture::Segment;

/// Bytes of a direction that are kept. CLC messages of a connection take less than a tenth of that.
const KEPT_LEN: usize = 16 << 10;

/// Where and when something was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    /// The number of the packet.
    pub(super) packet: u64,
    /// Nanoseconds since 1970.
    pub(super) at: u64,
}

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

impl Side {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    pub(super) fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// A SYN or SYN-ACK.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opening {
    pub(super) moment: Moment,
    /// The length of the SMC option, if it has one.
    pub(super) option: Option<u8>,
}

/// A TCP connection.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) client: SocketAddr,
    pub(super) server: SocketAddr,
    pub(super) started: Moment,
    pub(super) syn: Option<Opening>,
    pub(super) syn_ack: Option<Opening>,
    pub(super) from_client: Half,
    pub(super) from_server: Half,
}

impl Stream {
    pub(super) fn half(&self, side: Side) -> &Half {
        match side {
            Side::Client => &self.from_client,
            Side::Server => &self.from_server,
        }
    }

    /// Both ends are on one host, by their addresses.
    pub(super) fn is_of_one_host(&self) -> bool {
        let (client, server) = (self.client.ip(), self.server.ip());
        client == server || client.is_loopback() && server.is_loopback()
    }
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Half {
    /// The sequence number of the first byte, once that is known.
    first: Option<u32>,
    /// The first bytes, without a gap.
    bytes: Vec<u8>,
    /// How many of them were there at which moment.
    arrivals: Vec<(usize, Moment)>,
    /// What came before its turn, by its offset.
    early: BTreeMap<usize, Vec<u8>>,
    /// The end of all that was sent, kept or not.
    sent: usize,
}

impl Half {
    /// The first bytes; what a gap in the capture separates from them is not there.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes that were sent in all.
    pub(super) fn sent(&self) -> usize {
        self.sent
    }

    /// When all bytes before the offset `end` had arrived.
    pub(super) fn arrival(&self, end: usize) -> Option<Moment> {
        self.arrivals.iter().find(|(len, _)| *len >= end).map(|(_, moment)| *moment)
    }

    fn take(&mut self, sequence: u32, payload: &[u8], moment: Moment) {
        // Without its SYN, a direction begins with its first segment.
        let offset = sequence.wrapping_sub(*self.first.get_or_insert(sequence));
        // Keep-alives, and what is older than the capture, lie before the first byte.
        if payload.is_empty() || offset > u32::MAX / 2 {
            return;
        }
        let offset = offset as usize;
        self.sent = self.sent.max(offset + payload.len());
        if let Some(room) = KEPT_LEN.checked_sub(offset) {
            let kept = &payload[..payload.len().min(room)];
            let early = self.early.entry(offset).or_default();
            if early.len() < kept.len() {
                *early = kept.to_vec();
            }
            self.join(moment);
        }
    }

    /// Appends what has its turn now.
    fn join(&mut self, moment: Moment) {
        let before = self.bytes.len();
        while let Some(entry) = self.early.first_entry() {
            let offset = *entry.key();
            if offset > self.bytes.len() {
                break;
            }
            let piece = entry.remove();
            let known = self.bytes.len() - offset;
            self.bytes.extend(piece.get(known..).unwrap_or_default());
        }
        if self.bytes.len() > before {
            self.arrivals.push((self.bytes.len(), moment));
        }
    }
}

/// All connections of a capture, in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct Connections {
    streams: Vec<Stream>,
    /// The newest connection between two addresses; ports are used again.
    newest: HashMap<(SocketAddr, SocketAddr), usize>,
}

impl Connections {
    pub(super) fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Takes the next segment, and returns the place of its connection.
    pub(super) fn take(&mut self, moment: Moment, segment: &Segment<'_>) -> usize {
        let tcp = &segment.tcp;
        let index = self.stream(moment, segment);
        let stream = &mut self.streams[index];
        let side = if segment.source == stream.client { Side::Client } else { Side::Server };
        let (opening, half) = match side {
            Side::Client => (&mut stream.syn, &mut stream.from_client),
            Side::Server => (&mut stream.syn_ack, &mut stream.from_server),
        };
        let mut sequence = tcp.sequence_number();
        if tcp.syn() {
            opening.get_or_insert(Opening { moment, option: tcp_option::find(tcp.options()) });
            // The SYN itself counts as one.
            sequence = sequence.wrapping_add(1);
        }
        half.take(sequence, tcp.payload(), moment);
        index
    }

    /// The place of the connection of `segment`, which may be a new one.
    fn stream(&mut self, moment: Moment, segment: &Segment<'_>) -> usize {
        let (source, destination) = (segment.source, segment.destination);
        let addresses = (source.min(destination), source.max(destination));
        let known = self.newest.get(&addresses).copied();
        let index = known.filter(|index| !begins_anew(&self.streams[*index], segment));
        let index = index.unwrap_or_else(|| {
            let is_client = is_from_client(segment);
            let (client, server) =
                if is_client { (source, destination) } else { (destination, source) };
            self.streams.push(Stream {
                client,
                server,
                started: moment,
                syn: None,
                syn_ack: None,
                from_client: Half::default(),
                from_server: Half::default(),
            });
            self.streams.len() - 1
        });
        self.newest.insert(addresses, index);
        index
    }
}

/// Whether `segment` is the SYN of another connection than `stream`.
fn begins_anew(stream: &Stream, segment: &Segment<'_>) -> bool {
    let first = segment.tcp.sequence_number().wrapping_add(1);
    let is_syn = segment.tcp.syn() && !segment.tcp.ack();
    is_syn
        && (segment.source != stream.client
            || stream.from_client.first.is_some_and(|known| known != first))
}

/// Who sent the first segment that is seen of a connection. Without a SYN that is a guess: a client
/// begins with a Proposal, and mostly has the higher port.
fn is_from_client(segment: &Segment<'_>) -> bool {
    if segment.tcp.syn() {
        return !segment.tcp.ack();
    }
    match Header::parse(segment.tcp.payload()) {
        Ok(header) => header.message_type != MessageType::Accept,
        Err(_) => segment.source.port() > segment.destination.port(),
    }
}
