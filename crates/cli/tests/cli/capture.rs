//! Packet captures, made by hand: what two hosts send each other, packet by packet.

use std::path::Path;

use etherparse::{PacketBuilder, PacketBuilderStep, TcpHeader};
use sidestep_wire::tcp_option;

/// The hosts of the recorded messages.
const CLIENT: ([u8; 4], u16) = ([10, 0, 0, 2], 40_000);
const SERVER: ([u8; 4], u16) = ([10, 0, 0, 1], 5000);
/// Their first sequence numbers; the client's wraps.
const CLIENT_SYN: u32 = u32::MAX - 20;
const SERVER_SYN: u32 = 1000;
/// 2026-11-20 08:00:00 UTC.
const BEGIN_SECONDS: u32 = 1_795_161_600;

/// Who sends.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Client,
    Server,
}

/// A capture in the making.
pub(crate) struct Capture {
    packets: Vec<Vec<u8>>,
    /// Bytes that each side has sent: client, server.
    sent: [u32; 2],
    /// The client's port. A new connection takes the next one.
    port: u16,
}

impl Capture {
    pub(crate) fn new() -> Self {
        Self { packets: Vec::new(), sent: [0; 2], port: CLIENT.1 }
    }

    /// SYN and SYN-ACK, each with the option or without.
    pub(crate) fn open(&mut self, client: bool, server: bool) -> &mut Self {
        let option = |is_there: bool| if is_there { &tcp_option::BYTES[..] } else { &[] };
        self.open_with(option(client), option(server))
    }

    /// SYN and SYN-ACK with these options.
    pub(crate) fn open_with(&mut self, client: &[u8], server: &[u8]) -> &mut Self {
        // Padding to four bytes; NOPs go in front, as Linux has it.
        let padded = |option: &[u8]| [&[1; 3][..(4 - option.len() % 4) % 4], option].concat();
        let (syn, syn_ack) = (self.client(CLIENT_SYN), self.server(SERVER_SYN));
        self.push(syn.syn().options_raw(&padded(client)).unwrap(), &[]);
        let syn_ack = syn_ack.syn().ack(CLIENT_SYN.wrapping_add(1));
        self.push(syn_ack.options_raw(&padded(server)).unwrap(), &[])
    }

    /// The next bytes of one side, in one segment.
    pub(crate) fn say(&mut self, from: Side, bytes: &[u8]) -> &mut Self {
        let at = self.sent[from as usize];
        self.segment(from, at, bytes);
        self.sent[from as usize] = at + bytes.len() as u32;
        self
    }

    /// Bytes of one side that begin at this offset of its stream.
    pub(crate) fn segment(&mut self, from: Side, offset: u32, bytes: &[u8]) -> &mut Self {
        let packet = match from {
            Side::Client => self.client(CLIENT_SYN.wrapping_add(1).wrapping_add(offset)),
            Side::Server => self.server(SERVER_SYN + 1 + offset),
        };
        self.push(packet.ack(1), bytes)
    }

    /// A packet of RoCEv2 with nothing in it.
    pub(crate) fn roce(&mut self, from: Side) -> &mut Self {
        let (source, destination) = match from {
            Side::Client => (CLIENT.0, SERVER.0),
            Side::Server => (SERVER.0, CLIENT.0),
        };
        let mut packet = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4(source, destination, 64)
            .udp(49_152, 4791)
            .write(&mut packet, &[0; 16])
            .unwrap();
        self.packets.push(packet);
        self
    }

    /// What follows belongs to another connection.
    pub(crate) fn next_connection(&mut self) -> &mut Self {
        self.port += 1;
        self.sent = [0; 2];
        self
    }

    fn client(&self, sequence: u32) -> PacketBuilderStep<TcpHeader> {
        let ip = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(CLIENT.0, SERVER.0, 64);
        ip.tcp(self.port, SERVER.1, sequence, 1000)
    }

    fn server(&self, sequence: u32) -> PacketBuilderStep<TcpHeader> {
        let ip = PacketBuilder::ethernet2([4; 6], [2; 6]).ipv4(SERVER.0, CLIENT.0, 64);
        ip.tcp(SERVER.1, self.port, sequence, 1000)
    }

    fn push(&mut self, packet: PacketBuilderStep<TcpHeader>, payload: &[u8]) -> &mut Self {
        let mut bytes = Vec::new();
        packet.write(&mut bytes, payload).unwrap();
        self.packets.push(bytes);
        self
    }

    /// As a pcap file of Ethernet packets, one each millisecond.
    pub(crate) fn pcap(&self) -> Vec<u8> {
        self.pcap_of(1, <[u8]>::to_vec)
    }

    /// As a pcap file of another kind of network.
    pub(crate) fn pcap_of(&self, linktype: u32, change: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
        let mut file = Vec::new();
        let header = [0xA1B2_C3D4, 0x0004_0002, 0, 0, 65_535, linktype];
        file.extend(header.iter().flat_map(|word: &u32| word.to_le_bytes()));
        for (index, packet) in self.packets.iter().enumerate() {
            let packet = change(packet);
            let len = packet.len() as u32;
            let header = [BEGIN_SECONDS, 1000 * index as u32, len, len];
            file.extend(header.iter().flat_map(|word| word.to_le_bytes()));
            file.extend(packet);
        }
        file
    }

    /// As a pcapng file of Ethernet packets, with the same times.
    pub(crate) fn pcapng(&self) -> Vec<u8> {
        fn block(kind: u32, body: &[u8]) -> Vec<u8> {
            let padding = vec![0; (4 - body.len() % 4) % 4];
            let len = (12 + body.len() + padding.len()) as u32;
            [&kind.to_le_bytes()[..], &len.to_le_bytes(), body, &padding, &len.to_le_bytes()]
                .concat()
        }
        let words = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        let section = words(&[0x1A2B_3C4D, 1, u32::MAX, u32::MAX]);
        let mut file = block(0x0A0D_0D0A, &section);
        file.extend(block(1, &words(&[1, 65_535])));
        for (index, packet) in self.packets.iter().enumerate() {
            let micros = u64::from(BEGIN_SECONDS) * 1_000_000 + 1000 * index as u64;
            let len = packet.len() as u32;
            let mut body = words(&[0, (micros >> 32) as u32, micros as u32, len, len]);
            body.extend(packet);
            file.extend(block(6, &body));
        }
        file
    }
}

/// The bytes of `vectors/<name>.hex`.
pub(crate) fn vector(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors");
    let text = std::fs::read_to_string(folder.join(format!("{name}.hex"))).unwrap();
    let code = text.lines().filter_map(|line| line.split('#').next());
    let digits: Vec<u32> = code.flat_map(str::chars).filter_map(|c| c.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}
