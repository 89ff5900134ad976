//! Tells clients of packets that do not fit into a tunnel, as a router would: by ICMP.
//!
//! *Source*: RFC 792, RFC 1191 section 4, RFC 4443 section 3.2.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use etherparse::icmpv4::DestUnreachableHeader::FragmentationNeeded;
use etherparse::{Icmpv4Header, Icmpv4Type};
use rustix::net::{
    AddressFamily, Protocol, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with,
};
use sidestep_bpf::{Forwarding, Oversized};

/// Raw sockets of both families, once they are needed.
#[derive(Default)]
pub(super) struct Teller {
    sockets: [Option<OwnedFd>; 2],
    has_complained: bool,
}

impl Teller {
    /// Tells the senders of all packets that were left over since the last time, each once.
    pub(super) fn tell_all(&mut self, forwarding: &mut Forwarding) {
        let mut told = HashSet::new();
        while let Some(packet) = forwarding.take_oversized() {
            let Some((client, message)) = message(&packet) else { continue };
            if told.insert(client)
                && let Err(error) = self.send(client, &message)
                && !std::mem::replace(&mut self.has_complained, true)
            {
                log::warn!(
                    "clients are not told of packets that do not fit into a tunnel, which takes root or CAP_NET_RAW: {error}"
                );
            }
        }
    }

    fn send(&mut self, client: IpAddr, message: &[u8]) -> io::Result<()> {
        let (place, family, protocol) = match client {
            IpAddr::V4(_) => (0, AddressFamily::INET, ipproto::ICMP),
            IpAddr::V6(_) => (1, AddressFamily::INET6, ipproto::ICMPV6),
        };
        let socket = match &mut self.sockets[place] {
            Some(socket) => socket,
            none => none.insert(open(family, protocol)?),
        };
        sendto(socket, message, SendFlags::empty(), &SocketAddr::new(client, 0))?;
        Ok(())
    }
}

fn open(family: AddressFamily, protocol: Protocol) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::RAW, flags, Some(protocol))?)
}

/// Whom to tell of a packet, and what.
fn message(Oversized { fits, packet }: &Oversized) -> Option<(IpAddr, Vec<u8>)> {
    /// Behind the header of IP: the ports, and where in the stream it is.
    const QUOTED: usize = 8;
    match packet[0] >> 4 {
        4 => {
            let client: [u8; 4] = packet[12..16].try_into().ok()?;
            let quoted = packet.get(..usize::from(packet[0] & 15) * 4 + QUOTED)?;
            let next_hop_mtu = u16::try_from(*fits).unwrap_or(u16::MAX);
            let kind = Icmpv4Type::DestinationUnreachable(FragmentationNeeded { next_hop_mtu });
            let header = Icmpv4Header::with_checksum(kind, quoted).to_bytes();
            Some((Ipv4Addr::from(client).into(), [&header[..], quoted].concat()))
        }
        6 => {
            const TOO_BIG: [u8; 2] = [2, 0];
            let client: [u8; 16] = packet[8..24].try_into().ok()?;
            // The kernel fills the checksum in, since it is over the addresses as well.
            let header = [&TOO_BIG[..], &[0; 2], &fits.to_be_bytes()].concat();
            Some((Ipv6Addr::from(client).into(), [&header[..], packet].concat()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{Icmpv4Slice, Icmpv6Slice, Icmpv6Type, PacketBuilder};

    use super::*;

    /// A packet of 1500 bytes as the program in the kernel leaves its beginning.
    fn oversized(
        step: etherparse::PacketBuilderStep<etherparse::IpHeaders>,
        fits: u32,
    ) -> Oversized {
        let mut packet = Vec::new();
        step.tcp(40_000, 80, 0x0102_0304, 1000).write(&mut packet, &[7; 1440]).unwrap();
        Oversized { fits, packet: *packet.first_chunk().unwrap() }
    }

    #[test]
    fn a_client_is_told_what_fits_and_of_which_packet() {
        let four = PacketBuilder::ipv4([10, 0, 0, 7], [10, 0, 0, 100], 64);
        let (client, told) = message(&oversized(four, 1452)).unwrap();
        assert_eq!(client, IpAddr::from([10, 0, 0, 7]));
        let icmp = Icmpv4Slice::from_slice(&told).unwrap();
        let FragmentationNeeded { next_hop_mtu } = (match icmp.icmp_type() {
            Icmpv4Type::DestinationUnreachable(what) => what,
            other => panic!("{other:?}"),
        }) else {
            panic!("another reason")
        };
        assert_eq!(next_hop_mtu, 1452);
        assert_eq!(icmp.payload()[24..28], [1, 2, 3, 4], "where in the stream it was");
        let sum = icmp.icmp_type().calc_checksum(icmp.payload());
        assert_eq!(icmp.checksum(), sum);

        let [from, to]: [Ipv6Addr; 2] = ["fd00::7", "fd00::100"].map(|ip| ip.parse().unwrap());
        let six = PacketBuilder::ipv6(from.octets(), to.octets(), 64);
        let (client, told) = message(&oversized(six, 1432)).unwrap();
        assert_eq!(client, IpAddr::V6(from));
        let icmp = Icmpv6Slice::from_slice(&told).unwrap();
        assert_eq!(icmp.icmp_type(), Icmpv6Type::PacketTooBig { mtu: 1432 });
        assert_eq!(icmp.payload()[44..48], [1, 2, 3, 4]);
    }
}
