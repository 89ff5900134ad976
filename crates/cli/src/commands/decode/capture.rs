//! Reads a packet capture, pcap or pcapng, and hands on what matters: TCP segments and the datagrams
//! of RoCEv2.
//!
//! What else is in it is passed over, and so is a packet that does not make sense: a capture may
//! begin and end anywhere, and the recorder may have kept only the first bytes of each packet.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, TcpSlice, TransportSlice};
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader};
use sidestep_wire::roce;
use thiserror::Error;

/// A packet that matters.
pub(super) struct Packet<'a> {
    /// Its number in the capture, from 1, as other tools count.
    pub(super) number: u64,
    /// Nanoseconds since 1970.
    pub(super) at: u64,
    pub(super) content: Content<'a>,
}

pub(super) enum Content<'a> {
    Tcp(Segment<'a>),
    Roce(Datagram<'a>),
}

/// A TCP segment.
pub(super) struct Segment<'a> {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) tcp: TcpSlice<'a>,
}

/// A UDP datagram of RoCEv2.
pub(super) struct Datagram<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) source_port: u16,
    /// Of IPv4; 0 by IPv6.
    pub(super) identification: u16,
    /// Bytes of the payload as it was sent. The capture may have fewer.
    pub(super) len: usize,
    pub(super) payload: &'a [u8],
}

/// How far a capture could be read.
pub(super) struct Extent {
    /// Packets of all kinds.
    pub(super) packets: u64,
    /// Why it could not be read to its end.
    pub(super) broken: Option<Broken>,
}

/// Why a capture ends too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum Broken {
    #[error("is cut short")]
    CutShort,
    #[error("is damaged")]
    Damaged,
    #[error("cannot be read any further")]
    Unreadable,
}

/// Why nothing of a file could be read.
#[derive(Debug, Error)]
pub(super) enum CaptureError {
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("is empty; was the program that records still running? Stop it, then copy the file")]
    Empty,
    #[error("is cut short within its header; record it again, or copy it whole")]
    CutShort,
    #[error("is compressed; unpack it first, as with `{0}`")]
    Compressed(&'static str),
    #[error(
        "is no packet capture, neither pcap nor pcapng; record one with\n  \
         tcpdump -i any -w FILE 'tcp or udp port 4791'"
    )]
    Foreign,
}

/// Hands the packets of the capture at `path` to `each`, in their order.
pub(super) fn read(path: &Path, mut each: impl FnMut(Packet<'_>)) -> Result<Extent, CaptureError> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory).into());
    }
    let mut blocks = open(file)?;
    let mut clocks = Clocks::default();
    let mut packets = 0;
    let broken = loop {
        match blocks.next() {
            Ok((len, block)) => {
                if let Some((linktype, at, bytes)) = clocks.packet(&block) {
                    packets += 1;
                    if let Some(content) = dissect(linktype, bytes) {
                        each(Packet { number: packets, at, content });
                    }
                }
                blocks.consume(len);
            }
            Err(PcapError::Eof) => break None,
            Err(PcapError::Incomplete(_)) => {
                if blocks.refill().is_err() {
                    break Some(Broken::Unreadable);
                }
            }
            Err(PcapError::UnexpectedEof) => break Some(Broken::CutShort),
            Err(_) => break Some(Broken::Damaged),
        }
    };
    Ok(Extent { packets, broken })
}

/// Longest block that is read. No program records packets of nearly this size.
const BLOCK_LEN_MAX: usize = 4 << 20;

fn open(mut file: File) -> Result<Box<dyn PcapReaderIterator + Send>, CaptureError> {
    let mut first = Vec::new();
    (&mut file).take(4).read_to_end(&mut first)?;
    match first[..] {
        [] => return Err(CaptureError::Empty),
        [0x1F, 0x8B, ..] => return Err(CaptureError::Compressed("gunzip")),
        [0x28, 0xB5, 0x2F, 0xFD] => return Err(CaptureError::Compressed("unzstd")),
        [0xFD, b'7', b'z', b'X'] => return Err(CaptureError::Compressed("unxz")),
        _ => {}
    }
    let is_long_enough = first.len() == 4;
    let whole = Whole(io::Cursor::new(first).chain(file));
    create_reader(BLOCK_LEN_MAX, whole).map_err(|error| match error {
        PcapError::ReadError => io::Error::other("it is there, but its medium fails").into(),
        PcapError::Incomplete(_) if is_long_enough => CaptureError::CutShort,
        _ => CaptureError::Foreign,
    })
}

/// What a capture says about the clock and the kind of network of its packets.
#[derive(Default)]
struct Clocks {
    /// Of a pcap file: one for all packets.
    legacy: Option<Interface>,
    /// Of a pcapng file: those of the present section.
    interfaces: Vec<Interface>,
}

#[derive(Clone, Copy)]
struct Interface {
    linktype: Linktype,
    /// Ticks of its clock in a second.
    resolution: u64,
    /// Seconds to be added.
    offset: i64,
}

impl Clocks {
    /// The kind of network, time and bytes of `block`, if it is a packet.
    fn packet<'a>(&mut self, block: &'a PcapBlockOwned<'_>) -> Option<(Linktype, u64, &'a [u8])> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                let resolution =
                    if header.is_nanosecond_precision() { NANOS } else { NANOS / 1000 };
                self.legacy = Some(Interface { linktype: header.network, resolution, offset: 0 });
                None
            }
            PcapBlockOwned::Legacy(packet) => {
                let interface = self.legacy?;
                let fraction = u64::from(packet.ts_usec) * (NANOS / interface.resolution);
                let at = u64::from(packet.ts_sec) * NANOS + fraction;
                Some((interface.linktype, at, packet.data))
            }
            PcapBlockOwned::NG(Block::SectionHeader(_)) => {
                self.interfaces.clear();
                None
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(description)) => {
                self.interfaces.push(Interface {
                    linktype: description.linktype,
                    resolution: description.ts_resolution().unwrap_or(NANOS / 1000).max(1),
                    offset: description.ts_offset(),
                });
                None
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                let interface = self.interfaces.get(usize::try_from(packet.if_id).ok()?)?;
                let ticks = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                Some((interface.linktype, interface.time(ticks), packet.packet_data()))
            }
            PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
                let interface = self.interfaces.first()?;
                Some((interface.linktype, 0, packet.packet_data()))
            }
            PcapBlockOwned::NG(_) => None,
        }
    }
}

impl Interface {
    fn time(&self, ticks: u64) -> u64 {
        let nanos = u128::from(ticks) * u128::from(NANOS) / u128::from(self.resolution);
        let shift = i128::from(self.offset) * i128::from(NANOS);
        u64::try_from(nanos as i128 + shift).unwrap_or(0)
    }
}

/// Nanoseconds in a second.
const NANOS: u64 = 1_000_000_000;

/// A reader that fills what it is given as far as it can: the header must come in one piece.
struct Whole<R>(R);

impl<R: Read> Read for Whole<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.0.read(&mut buffer[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }
}

/// What matters of a packet.
fn dissect(linktype: Linktype, bytes: &[u8]) -> Option<Content<'_>> {
    let packet = below_ip(linktype, bytes)?;
    let (source, destination, identification): (IpAddr, IpAddr, u16) = match packet.net? {
        LaxNetSlice::Ipv4(ip) => {
            let header = ip.header();
            (header.source_addr().into(), header.destination_addr().into(), header.identification())
        }
        LaxNetSlice::Ipv6(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into(), 0)
        }
        LaxNetSlice::Arp(_) => return None,
    };
    match packet.transport? {
        TransportSlice::Tcp(tcp) => Some(Content::Tcp(Segment {
            source: SocketAddr::new(source, tcp.source_port()),
            destination: SocketAddr::new(destination, tcp.destination_port()),
            tcp,
        })),
        TransportSlice::Udp(udp) if udp.destination_port() == roce::PORT => {
            Some(Content::Roce(Datagram {
                source,
                destination,
                source_port: udp.source_port(),
                identification,
                len: usize::from(udp.length()).saturating_sub(UDP_HEADER_LEN),
                payload: udp.payload(),
            }))
        }
        _ => None,
    }
}

const UDP_HEADER_LEN: usize = 8;

/// Takes off what the network put in front.
fn below_ip(linktype: Linktype, bytes: &[u8]) -> Option<LaxSlicedPacket<'_>> {
    let behind = |type_at: usize, payload_at: usize| {
        let ether_type = bytes.get(type_at..)?.first_chunk().copied().map(u16::from_be_bytes)?;
        let payload = bytes.get(payload_at..)?;
        Some(LaxSlicedPacket::from_ether_type(EtherType(ether_type), payload))
    };
    match linktype {
        Linktype::ETHERNET => LaxSlicedPacket::from_ethernet(bytes).ok(),
        // As `tcpdump -i any` records.
        Linktype::LINUX_SLL => behind(14, 16),
        Linktype::LINUX_SLL2 => behind(0, 20),
        Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 => LaxSlicedPacket::from_ip(bytes).ok(),
        Linktype::NULL | Linktype::LOOP => LaxSlicedPacket::from_ip(bytes.get(4..)?).ok(),
        _ => None,
    }
}
