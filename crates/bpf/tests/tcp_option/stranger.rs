//! Somebody who makes his own segments.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

/// At the first of two addresses; those whom he asks are at the second.
pub(crate) struct Stranger {
    socket: Socket,
    addresses: [Ipv4Addr; 2],
}

const PORT: u16 = 7777;
const HEADER_LEN: usize = 20;
const SYN: u8 = 0x02;
const SYN_ACK: u8 = 0x12;

impl Stranger {
    pub(crate) fn new(addresses: [Ipv4Addr; 2]) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        Self { socket, addresses }
    }

    /// Sends a SYN with an option, and returns the options of the SYN-ACK.
    pub(crate) fn ask(&mut self, port: u16, option: &[u8]) -> Vec<u8> {
        let to = SocketAddr::from((self.addresses[1], port)).into();
        self.socket.send_to(&self.syn(port, option), &to).unwrap();
        self.receive_answer(port, PORT)
    }

    /// The options of the next SYN-ACK between these ports, whoever has asked.
    pub(crate) fn receive_answer(&self, from: u16, to: u16) -> Vec<u8> {
        loop {
            let packet = self.receive();
            let segment = &packet[usize::from(packet[0] & 0xf) * 4..];
            if segment[..4] == [from.to_be_bytes(), to.to_be_bytes()].concat()
                && segment[13] == SYN_ACK
            {
                let header_len = usize::from(segment[12] >> 4) * 4;
                return segment[HEADER_LEN..header_len].to_vec();
            }
        }
    }

    fn receive(&self) -> Vec<u8> {
        let mut buffer = [MaybeUninit::uninit(); 2048];
        let len = self.socket.recv(&mut buffer).unwrap();
        // SAFETY: the kernel has written so many bytes.
        buffer[..len].iter().map(|byte| unsafe { byte.assume_init() }).collect()
    }

    /// A SYN from [`PORT`], its option padded.
    fn syn(&self, port: u16, option: &[u8]) -> Vec<u8> {
        let mut segment = [PORT.to_be_bytes(), port.to_be_bytes()].concat();
        segment.extend([0, 0, 0, 1, 0, 0, 0, 0]);
        let header_len = HEADER_LEN + option.len().next_multiple_of(4);
        segment.extend([(header_len as u8 / 4) << 4, SYN, 0xff, 0xff, 0, 0, 0, 0]);
        segment.extend(option);
        segment.resize(header_len, 1);
        let sum = checksum(self.addresses, &segment);
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        segment
    }
}

/// Of a segment between these addresses.
fn checksum(addresses: [Ipv4Addr; 2], segment: &[u8]) -> u16 {
    let [from, to] = addresses.map(|address| address.octets());
    let [len_0, len_1] = (segment.len() as u16).to_be_bytes();
    let pseudo_header = [&from[..], &to[..], &[0, 6, len_0, len_1]].concat();
    let words = pseudo_header.chunks(2).chain(segment.chunks(2));
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}
