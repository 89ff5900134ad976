//! One connection as TCP segments: what a capture would have if its bytes had gone by TCP.
//!
//! Addresses, bytes, directions, times and ends are those of the connection. Sequence numbers begin at 0, and count the
//! bytes that the program has sent, whichever way they went: what went by TCP, or was overwritten before it could be read,
//! is a gap, with a comment on the packet behind it. Acknowledgements say what the other program has read. Of what one look
//! has found in both directions the order is not known: that of the end which has opened the connection comes first, because
//! such ends ask, and others answer.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use etherparse::{PacketBuilder, TcpHeader, TcpOptionElement};
use sidestep_observe::{Begin, Connection, Counters, End, Look, Tap, TapId};

use super::pcapng::Capture;
use crate::args::canonical;
use crate::output::Escaped;

/// Payload of one segment at most: what an IPv4 packet has room for.
const SEGMENT_MAX: usize = u16::MAX as usize - 40;
/// The window that every segment tells: it is never full.
const WINDOW: u16 = u16::MAX;
/// The largest scale, so that it is a gigabyte.
const WINDOW_SCALE: u8 = 14;
/// What a peer that was not seen is called.
const UNSEEN: &str = "a program that was not seen";

/// See the [module](self). Ends are numbered as those of its [`Tap`].
#[derive(Debug)]
pub(super) struct Stream {
    ends: [StreamEnd; 2],
    /// The end that has opened the connection, if it was followed from its beginning.
    opener: Option<usize>,
    is_begun: bool,
    lost: u64,
    fate: Fate,
}

/// One end.
#[derive(Debug)]
struct StreamEnd {
    id: Option<TapId>,
    address: SocketAddr,
    /// Name and number of its program.
    program: String,
    /// Bytes that it has sent, as far as they were told or lost.
    sent: u64,
    /// Bytes that it has read of the other end's.
    read: u64,
    has_ended: bool,
    /// What its next packet says.
    comments: Vec<String>,
    /// What it had counted when a packet said so last, and what it has counted by now.
    counters: [Option<Counters>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lives,
    /// No process has it any more.
    Gone,
    /// Nothing more is written of it.
    Over,
}

/// What a segment says besides its bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    syn: bool,
    ack: bool,
    psh: bool,
    fin: bool,
    rst: bool,
}

impl Stream {
    /// `None`: its addresses are not known, or of two families.
    pub(super) fn of(tap: &Tap) -> Option<Self> {
        let seen = tap.ends();
        let traced = seen[0]?;
        let addresses = [canonical(traced.local?), canonical(traced.peer?)];
        if addresses[0].is_ipv4() != addresses[1].is_ipv4() {
            return None;
        }
        let before = tap.before();
        let end = |at: usize| StreamEnd {
            id: seen[at].and_then(TapId::of),
            address: addresses[at],
            program: seen[at].map_or_else(|| UNSEEN.to_owned(), name),
            sent: before[at],
            read: 0,
            has_ended: false,
            comments: Vec::new(),
            counters: [seen[at].map(|it| it.counters), None],
        };
        let mut ends = [end(0), end(1)];
        for at in [0, 1] {
            ends[at].read = ends[1 - at].sent;
        }
        let opener = (tap.begin() == Begin::Start).then_some(tap.opener());
        let about = about(&ends, traced, tap.begin());
        ends.iter_mut().for_each(|end| end.comments.push(about.clone()));
        Some(Self { ends, opener, is_begun: false, lost: 0, fate: Fate::Lives })
    }

    /// Bytes that were overwritten before they could be read.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn is_gone(&self) -> bool {
        self.fate == Fate::Gone
    }

    pub(super) fn is_over(&self) -> bool {
        self.fate == Fate::Over
    }

    /// What its ends have counted by now.
    pub(super) fn note_counters(&mut self, counters: &HashMap<TapId, Counters>) {
        for end in &mut self.ends {
            let counted = end.id.and_then(|id| counters.get(&id)).copied();
            end.counters[1] = counted.or(end.counters[1]);
        }
    }

    /// No process has the connection any more.
    pub(super) fn note_gone(&mut self) {
        self.fate = Fate::Gone;
    }

    /// Writes what a look at the direction from an end has found.
    pub(super) fn write(
        &mut self,
        from: usize,
        look: &Look<'_>,
        capture: &mut Capture<impl Write>,
    ) -> io::Result<()> {
        self.begin(capture)?;
        let end = &mut self.ends[from];
        if look.by_tcp > 0 {
            end.comments.push(format!(
                "{} bytes before these went by TCP, and are not in this file: tcpdump has them",
                look.by_tcp
            ));
        }
        if look.lost > 0 {
            self.lost += look.lost;
            end.comments.push(format!(
                "{} bytes before these were overwritten before sidestep could read them, and are lost to this file",
                look.lost
            ));
        }
        end.sent = look.offset;
        end.read = end.read.max(look.read);
        for bytes in look.bytes.chunks(SEGMENT_MAX) {
            let flags = Flags { ack: true, psh: true, ..Flags::default() };
            self.segment(from, flags, bytes, capture)?;
        }
        match look.end {
            Some(end) => self.end_of(from, end, capture),
            None => Ok(()),
        }
    }

    /// Both directions have ended, or no process has the connection any more.
    pub(super) fn end(&mut self, capture: &mut Capture<impl Write>) -> io::Result<()> {
        for from in [0, 1] {
            let end = &mut self.ends[from];
            if self.is_begun && !end.has_ended {
                end.has_ended = true;
                end.comments.push(
                    "no program has this end any more; how it ended, shared memory does not say"
                        .into(),
                );
                self.segment(from, Flags { ack: true, ..Flags::default() }, &[], capture)?;
            }
        }
        self.fate = Fate::Over;
        Ok(())
    }

    /// Before the first packet: the handshake, if it was followed from its beginning.
    fn begin(&mut self, capture: &mut Capture<impl Write>) -> io::Result<()> {
        if std::mem::replace(&mut self.is_begun, true) {
            return Ok(());
        }
        let Some(opener) = self.opener else { return Ok(()) };
        let (syn, ack) = (true, true);
        self.segment(opener, Flags { syn, ..Flags::default() }, &[], capture)?;
        self.segment(1 - opener, Flags { syn, ack, ..Flags::default() }, &[], capture)?;
        self.segment(opener, Flags { ack, ..Flags::default() }, &[], capture)
    }

    fn end_of(
        &mut self,
        from: usize,
        how: End,
        capture: &mut Capture<impl Write>,
    ) -> io::Result<()> {
        let (fin, rst) = (how == End::InOrder, how == End::Reset);
        let said = match how {
            End::InOrder | End::Reset => None,
            End::Unseen => Some("what this end sent last, and how it ended, was not seen"),
            End::Strayed => {
                Some("the words of this end contradict each other, so it is followed no further")
            }
        };
        self.ends[from].comments.extend(said.map(str::to_owned));
        self.segment(from, Flags { fin, rst, ack: true, ..Flags::default() }, &[], capture)?;
        self.ends[from].has_ended = true;
        Ok(())
    }

    /// Writes one segment from an end.
    fn segment(
        &mut self,
        from: usize,
        flags: Flags,
        bytes: &[u8],
        capture: &mut Capture<impl Write>,
    ) -> io::Result<()> {
        let [end, other] = self.both(from);
        let (source, destination) = (end.address, other.address);
        let mut header =
            TcpHeader::new(source.port(), destination.port(), end.sequence(flags.syn), WINDOW);
        (header.syn, header.ack, header.psh) = (flags.syn, flags.ack, flags.psh);
        (header.fin, header.rst) = (flags.fin, flags.rst);
        if flags.ack {
            header.acknowledgment_number = end.acknowledged(other);
        }
        if flags.syn {
            let scale = [TcpOptionElement::WindowScale(WINDOW_SCALE)];
            header.set_options(&scale).map_err(io::Error::other)?;
        }
        let packet = packet(source.ip(), destination.ip(), header, bytes)?;
        let end = &mut self.ends[from];
        let waits = end.waits();
        end.comments.extend(waits);
        let comments = std::mem::take(&mut end.comments);
        end.sent += bytes.len() as u64;
        capture.packet(now(), &packet, &comments)
    }

    fn both(&self, from: usize) -> [&StreamEnd; 2] {
        [&self.ends[from], &self.ends[1 - from]]
    }
}

impl StreamEnd {
    /// Of its next byte. The handshake has number 0, however much was sent before.
    fn sequence(&self, is_handshake: bool) -> u32 {
        if is_handshake { 0 } else { self.sent.wrapping_add(1) as u32 }
    }

    /// What it acknowledges: all that it has read, and the end behind that.
    fn acknowledged(&self, other: &Self) -> u32 {
        let read = self.read.min(other.sent);
        let end = u64::from(other.has_ended && read == other.sent);
        read.wrapping_add(1 + end) as u32
    }

    /// How it has waited since that was said last, if it has.
    fn waits(&mut self) -> Option<String> {
        let [Some(before), Some(now)] = self.counters else { return None };
        let grown = |of: fn(&Counters) -> u64| of(&now).saturating_sub(of(&before));
        let (waits, wakeups) = (grown(|it| it.waits), grown(|it| it.wakeups));
        if waits == 0 && wakeups == 0 {
            return None;
        }
        self.counters[0] = Some(now);
        let [spins, vain] = [grown(|it| it.spins), grown(|it| it.spins_in_vain)];
        let [yields, sleeps] = [grown(|it| it.yields), grown(|it| it.parks)];
        let spinning = grown(|it| it.spin_ns) / 1000;
        Some(format!(
            "{} since the last such comment: {waits} waits, {spins} began by spinning ({vain} in vain, {spinning} µs), \
             {yields} yields, {sleeps} sleeps; it woke its peer {wakeups} times",
            self.program
        ))
    }
}

/// Mode, programs and rings, for the first packet of each end.
fn about(ends: &[StreamEnd; 2], traced: &Connection, begin: Begin) -> String {
    let [first, second] = ends;
    let mut text = String::from("SMC-D in shared memory");
    if traced.session.is_some() {
        text += ", on the way to the gateway";
    }
    let _ = write!(
        text,
        ": {} at {}, {} at {}; RMBE {} and {} bytes",
        first.program,
        first.address,
        second.program,
        second.address,
        traced.rmbe_local,
        traced.rmbe_peer
    );
    let _ = match begin {
        Begin::Start => Ok(()),
        Begin::Now | Begin::Unread => write!(
            text,
            "; followed from here on: they had sent {} and {} bytes before",
            first.sent, second.sent
        ),
    };
    text
}

fn name(connection: &Connection) -> String {
    format!("{} ({})", Escaped(&connection.program), connection.pid)
}

fn packet(from: IpAddr, to: IpAddr, header: TcpHeader, bytes: &[u8]) -> io::Result<Vec<u8>> {
    const HOPS: u8 = 64;
    let step = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), HOPS),
        (from, to) => {
            let [from, to] = [from, to].map(|ip| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            });
            PacketBuilder::ipv6(from.octets(), to.octets(), HOPS)
        }
    };
    let step = step.tcp_header(header);
    let mut packet = Vec::with_capacity(step.size(bytes.len()));
    step.write(&mut packet, bytes).map_err(io::Error::other)?;
    Ok(packet)
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
    use pcap_parser::{Block, PcapBlockOwned, PcapError, PcapNGReader};

    fn end(address: &str, program: &str, sent: u64) -> StreamEnd {
        StreamEnd {
            id: None,
            address: address.parse().unwrap(),
            program: program.to_owned(),
            sent,
            read: 0,
            has_ended: false,
            comments: Vec::new(),
            counters: [None; 2],
        }
    }

    fn stream(opener: Option<usize>, sent: [u64; 2]) -> Stream {
        let ends = [
            end("10.0.0.1:6379", "redis-server (7)", sent[0]),
            end("10.0.0.2:40000", "python3 (8)", sent[1]),
        ];
        Stream { ends, opener, is_begun: false, lost: 0, fate: Fate::Lives }
    }

    fn look(offset: u64, bytes: &[u8]) -> Look<'_> {
        Look { by_tcp: 0, lost: 0, offset, bytes, read: 0, end: None, is_all: true }
    }

    /// A packet as a reader of the file finds it.
    #[derive(Debug, PartialEq)]
    struct Read {
        from: u16,
        sequence: u32,
        acknowledged: Option<u32>,
        /// SYN, FIN, RST.
        flags: [bool; 3],
        bytes: Vec<u8>,
        comments: Vec<String>,
    }

    /// What `write` puts into a file, read back by a parser; each checksum is right.
    fn written(write: impl FnOnce(&mut Capture<&mut Vec<u8>>) -> io::Result<()>) -> Vec<Read> {
        let mut file = Vec::new();
        let mut capture = Capture::begin(&mut file).unwrap();
        write(&mut capture).unwrap();
        let count = capture.packets();
        let mut blocks = PcapNGReader::new(1 << 20, &file[..]).unwrap();
        let (mut packets, mut before) = (Vec::new(), 0);
        loop {
            match blocks.next() {
                Ok((len, PcapBlockOwned::NG(block))) => {
                    if let Block::EnhancedPacket(block) = &block {
                        let at = u64::from(block.ts_high) << 32 | u64::from(block.ts_low);
                        assert!(at >= before && at <= now());
                        before = at;
                        packets.push(read(block));
                    }
                    blocks.consume(len);
                }
                Ok(_) => panic!("no pcapng"),
                Err(PcapError::Eof) => break,
                Err(PcapError::Incomplete(_)) => blocks.refill().unwrap(),
                Err(error) => panic!("{error:?}"),
            }
        }
        assert_eq!(packets.len() as u64, count);
        packets
    }

    fn read(block: &pcap_parser::EnhancedPacketBlock<'_>) -> Read {
        let packet = SlicedPacket::from_ip(block.packet_data()).unwrap();
        let Some(TransportSlice::Tcp(tcp)) = packet.transport else { panic!("no TCP") };
        let checksum = match packet.net {
            Some(NetSlice::Ipv4(ip)) => {
                let (source, destination) = (ip.header().source(), ip.header().destination());
                tcp.calc_checksum_ipv4(source, destination).unwrap()
            }
            Some(NetSlice::Ipv6(ip)) => {
                let (source, destination) = (ip.header().source(), ip.header().destination());
                tcp.calc_checksum_ipv6(source, destination).unwrap()
            }
            _ => panic!("no IP"),
        };
        assert_eq!(tcp.checksum(), checksum);
        let comments = block.options.iter().filter(|option| option.code.0 == 1);
        Read {
            from: tcp.source_port(),
            sequence: tcp.sequence_number(),
            acknowledged: tcp.ack().then(|| tcp.acknowledgment_number()),
            flags: [tcp.syn(), tcp.fin(), tcp.rst()],
            bytes: tcp.payload().to_vec(),
            comments: comments.map(|it| it.as_str().unwrap().to_owned()).collect(),
        }
    }

    #[test]
    fn a_connection_has_its_handshake_bytes_and_ends() {
        let mut stream = stream(Some(1), [0, 0]);
        let packets = written(|capture| {
            stream.write(1, &look(0, b"GET"), capture)?;
            stream.write(0, &Look { read: 3, ..look(0, b"value") }, capture)?;
            let end = Some(End::InOrder);
            stream.write(1, &Look { read: 5, end, ..look(3, b"") }, capture)?;
            stream.write(0, &Look { read: 3, end, ..look(5, b"") }, capture)?;
            stream.end(capture)
        });
        let brief = |it: &Read| (it.from, it.sequence, it.acknowledged, it.flags, it.bytes.len());
        let (syn, fin, none) = ([true, false, false], [false, true, false], [false; 3]);
        let expected = [
            (40_000, 0, None, syn, 0),
            (6379, 0, Some(1), syn, 0),
            (40_000, 1, Some(1), none, 0),
            (40_000, 1, Some(1), none, 3),
            (6379, 1, Some(4), none, 5),
            (40_000, 4, Some(6), fin, 0),
            (6379, 6, Some(5), fin, 0),
        ];
        assert_eq!(packets.iter().map(brief).collect::<Vec<_>>(), expected);
        assert!(stream.is_over());
    }

    #[test]
    fn what_is_not_in_the_file_is_a_gap_and_a_comment() {
        let mut stream = stream(None, [1000, 0]);
        let packets = written(|capture| {
            stream.write(0, &Look { lost: 50, ..look(1050, b"abc") }, capture)?;
            stream.write(0, &Look { by_tcp: 7, ..look(1060, b"d") }, capture)
        });
        let [first, second] = packets.try_into().unwrap();
        assert_eq!((first.sequence, second.sequence), (1051, 1061));
        assert!(first.comments[0].starts_with("50 bytes before these were overwritten"));
        assert!(second.comments[0].starts_with("7 bytes before these went by TCP"));
        assert_eq!(stream.lost(), 50);
    }

    #[test]
    fn nothing_is_acknowledged_that_the_file_does_not_tell() {
        let mut stream = stream(None, [0, 10]);
        let packets =
            written(|capture| stream.write(0, &Look { read: 4_000_000, ..look(0, b"a") }, capture));
        assert_eq!(packets[0].acknowledged, Some(11));
    }

    #[test]
    fn long_looks_are_several_segments_and_sequence_numbers_wrap() {
        let start = u64::from(u32::MAX) - 10;
        let bytes = vec![7; SEGMENT_MAX + 1];
        let mut stream = stream(None, [start, 0]);
        let packets = written(|capture| stream.write(0, &look(start, &bytes), capture));
        let [first, second] = packets.try_into().unwrap();
        assert_eq!((first.bytes.len(), second.bytes.len()), (SEGMENT_MAX, 1));
        assert_eq!(first.sequence, u32::MAX - 9);
        assert_eq!(second.sequence, first.sequence.wrapping_add(SEGMENT_MAX as u32));
    }

    #[test]
    fn an_end_that_was_not_seen_is_not_made_up() {
        let mut stream = stream(None, [0, 0]);
        let packets = written(|capture| {
            stream.write(0, &Look { end: Some(End::Unseen), ..look(0, b"") }, capture)?;
            stream.end(capture)
        });
        assert!(packets.iter().all(|packet| packet.flags == [false; 3]));
        assert!(packets[0].comments[0].ends_with("was not seen"));
        assert!(packets[1].comments[0].starts_with("no program has this end any more"));
    }

    #[test]
    fn waits_are_said_once_by_the_end_that_has_waited() {
        let mut stream = stream(None, [0, 0]);
        let waited =
            Counters { waits: 5, spins: 4, spins_in_vain: 1, parks: 2, ..Counters::default() };
        stream.ends[0].counters = [Some(Counters::default()), Some(waited)];
        let packets = written(|capture| {
            stream.write(0, &look(0, b"a"), capture)?;
            stream.write(0, &look(1, b"b"), capture)
        });
        assert!(
            packets[0].comments[0]
                .starts_with("redis-server (7) since the last such comment: 5 waits, 4 began")
        );
        assert!(packets[1].comments.is_empty());
    }

    #[test]
    fn ipv6_has_its_own_header() {
        let mut stream = stream(None, [0, 0]);
        stream.ends[0].address = "[::1]:80".parse().unwrap();
        stream.ends[1].address = "[fd00::2]:1".parse().unwrap();
        let packets = written(|capture| stream.write(0, &look(0, b"six"), capture));
        assert_eq!((packets[0].from, &packets[0].bytes[..]), (80, &b"six"[..]));
    }
}
