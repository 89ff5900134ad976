//! Where a packet has what, in bytes, what programs of traffic control are told of it, and what they and those of XDP return.

/// `struct __sk_buff` of `linux/bpf.h`, and what a program of traffic control returns.
pub(crate) mod skb {
    pub(crate) const LEN: i16 = 0;
    /// For whom the frame is; 0: for this host.
    pub(crate) const PACKET_TYPE: i16 = 4;
    /// In the network's order.
    pub(crate) const PROTOCOL: i16 = 16;
    pub(crate) const IFINDEX: i16 = 40;
    /// Bytes of each segment that the packet is to be cut into; 0: it is one.
    pub(crate) const GSO_SIZE: i16 = 176;

    pub(crate) const IPV4: i32 = u16::to_be(0x0800) as i32;
    pub(crate) const IPV6: i32 = u16::to_be(0x86dd) as i32;
    pub(crate) const ARP: i32 = u16::to_be(0x0806) as i32;

    /// Programs behind this one, and the kernel, go on.
    pub(crate) const NEXT: i32 = -1;
    pub(crate) const DROP: i32 = 2;
}

/// `struct xdp_md` of `linux/bpf.h`, and what a program of XDP returns (`enum xdp_action`).
pub(crate) mod xdp {
    pub(crate) const IFINDEX: i16 = 12;

    pub(crate) const DROP: i32 = 1;
    /// The kernel goes on.
    pub(crate) const PASS: i32 = 2;
    /// The frame leaves by the interface by which it came.
    pub(crate) const TX: i32 = 3;
}

/// Of a frame: its addresses and its type.
pub(crate) const FRAME_LEN: i32 = 14;
pub(crate) const FRAME_ADDRESSES_LEN: i32 = 12;
pub(crate) const FRAME_TYPE: i16 = 12;
pub(crate) const IPV4_LEN: i32 = 20;
pub(crate) const IPV4_TOTAL_LEN: i16 = 2;
pub(crate) const IPV4_FRAGMENT: i16 = 4;
/// Bits of these four bytes: more fragments follow, or this is not the first.
pub(crate) const IPV4_IS_FRAGMENT: i32 = 0x3fff;
pub(crate) const IPV4_PROTOCOL: i16 = 9;
pub(crate) const IPV4_SOURCE: i16 = 12;
pub(crate) const IPV4_DESTINATION: i16 = 16;
pub(crate) const IPV6_LEN: i32 = 40;
pub(crate) const IPV6_PAYLOAD_LEN: i16 = 4;
pub(crate) const IPV6_NEXT: i16 = 6;
pub(crate) const IPV6_SOURCE: i16 = 8;
pub(crate) const IPV6_DESTINATION: i16 = 24;
/// Of an ICMP message, what stands before the packet that it quotes.
pub(crate) const ICMP_LEN: i32 = 8;
pub(crate) const TCP_DATA_OFFSET: i16 = 12;
pub(crate) const TCP_FLAGS: i16 = 13;
pub(crate) const UDP_LEN: i32 = 8;

pub(crate) const ICMP: i32 = 1;
pub(crate) const TCP: i32 = 6;
pub(crate) const UDP: i32 = 17;
pub(crate) const ICMPV6: i32 = 58;
/// Of a neighbour, a type of ICMPv6.
pub(crate) const SOLICITATION: i32 = 135;

pub(crate) const FIN: i32 = 1;
pub(crate) const SYN: i32 = 2;
pub(crate) const RST: i32 = 4;
pub(crate) const ACK: i32 = 16;

#[cfg(test)]
pub(crate) mod tests {
    use aya::Ebpf;
    use aya::programs::{Program, TestRun, TestRunOptions};

    /// What a program returns for a frame, and what it has made of it, of which there are no more bytes than `room`.
    pub(crate) fn run(loaded: &Ebpf, name: &str, frame: &[u8], room: usize) -> (i32, Vec<u8>) {
        let mut out = vec![0; room];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..TestRunOptions::default()
        };
        let ran = match loaded.program(name).unwrap() {
            Program::SchedClassifier(program) => program.test_run(options),
            Program::Xdp(program) => program.test_run(options),
            _ => panic!("{name} gets no packets"),
        };
        let ran = ran.unwrap();
        out.truncate(ran.data_size_out as usize);
        (ran.return_value.cast_signed(), out)
    }
}
