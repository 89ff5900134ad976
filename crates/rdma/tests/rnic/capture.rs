//! What really passes over a cable.

use std::fs;
use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use sidestep_wire::roce::PORT;
use sidestep_wire::roce::icrc::{Addresses, Envelope};

const ETHERNET_LEN: usize = 14;
const UDP_LEN: usize = 8;
const ICRC_LEN: usize = 4;
/// Longer than any frame.
const FRAME_MAX: usize = 1 << 17;

/// Sees all frames of an interface of the namespace in which it is made.
pub(crate) struct Capture(OwnedFd);

impl Capture {
    pub(crate) fn begin() -> Self {
        let all = i32::from((libc::ETH_P_ALL as u16).to_be());
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: three integers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, all) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: new, and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let room: libc::c_int = 64 << 20;
        let option = (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE);
        // SAFETY: the value is there, with its length.
        let result = unsafe {
            let len = size_of_val(&room) as u32;
            libc::setsockopt(fd, option.0, option.1, (&raw const room).cast(), len)
        };
        assert_eq!(result, 0);
        Self(socket)
    }

    /// The frames with RoCE in them that have passed.
    pub(crate) fn frames(&self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut buffer = vec![0; FRAME_MAX];
        loop {
            let fd = self.0.as_raw_fd();
            // SAFETY: the kernel writes at most as many bytes as there are.
            let len = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
            let Ok(len) = usize::try_from(len) else { return frames };
            frames.push(buffer[..len].to_vec());
            if Seen::new(&buffer[..len]).is_none() {
                frames.pop();
            }
        }
    }
}

/// A RoCEv2 packet over IPv4, as it has passed.
pub(crate) struct Seen {
    pub(crate) identification: u16,
    pub(crate) flags: u8,
    pub(crate) udp_checksum: u16,
    /// Whether the ICRC is that of the identification that it really has.
    pub(crate) is_intact: bool,
}

impl Seen {
    pub(crate) fn new(frame: &[u8]) -> Option<Self> {
        let ip = frame.get(ETHERNET_LEN..).filter(|ip| ip.len() > 28 && ip[0] == 0x45)?;
        let number = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
        let address = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).unwrap().into();
        let (udp, rest) = (20, ip.get(20 + UDP_LEN..usize::from(number(2)))?);
        if ip[9] != 17 || number(udp + 2) != PORT {
            return None;
        }
        let envelope = Envelope {
            addresses: Addresses::V4(address(12), address(16)),
            source_port: number(udp),
            destination_port: PORT,
        };
        let (packet, icrc) = rest.split_last_chunk::<ICRC_LEN>()?;
        let identification = number(4);
        Some(Self {
            identification,
            flags: ip[6],
            udp_checksum: number(udp + 6),
            is_intact: envelope.icrc(packet, identification) == *icrc,
        })
    }
}

/// Writes frames for other programs to read.
pub(crate) fn write_pcap(path: &Path, frames: &[Vec<u8>]) {
    const ETHERNET: u32 = 1;
    let mut file = Vec::new();
    for word in [0xA1B2_C3D4, 0x0004_0002, 0, 0, FRAME_MAX as u32, ETHERNET] {
        file.extend(u32::to_ne_bytes(word));
    }
    for (index, frame) in frames.iter().enumerate() {
        for word in [0, index as u32, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_ne_bytes());
        }
        file.extend(frame);
    }
    fs::write(path, file).unwrap();
}
