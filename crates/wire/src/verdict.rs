//! What Sidestep asks the IP filter of the host, and what it tells it, of which no packet would tell.
//!
//! # Questions
//!
//! The filter judges packets (`sidestep filter` is a
//! set of BPF programs on a control group). What goes by shared memory or RDMA has none, so one of the programs
//! answers for the connection: an option of `setsockopt` on its TCP socket, whose value is a
//! [`Question`]. The program hears it before the kernel does, and walks the same rules as for a packet.
//!
//! | Answer | Means |
//! |---|---|
//! | 0 | the rules permit packets that go this way |
//! | `EPERM` | they deny them |
//! | `ENOPROTOOPT` | the kernel answers: no filter is in force for this socket |
//!
//! The addresses, the ports and the control group are the socket's, so one process may ask about another's. What
//! the program cannot see it is told:
//!
//! | Off | Len | Field |
//! |---|---|---|
//! | 0 | 4 | the user whose the socket is, in the machine's order |
//! | 4 | 4 | the index of the interface that its packets take, in the machine's order; 0: not known |
//!
//! # Link partners
//!
//! The gateway has links to adapters of other hosts, and their packets go by two UDP sockets of each soft RNIC: one at port
//! 4791 receives, the other sends. Of each link it tells both sockets the [`Partner`]. As long as it has one, the socket at port
//! 4791 hears partners alone.
//!
//! # TLS
//!
//! Rules may ask for TLS. A connection that it protects, the gateway marks (`SO_MARK`) by [`GATEWAY_MARK`], before its first record. The
//! kernel keeps the mark with the socket, so filters that come later know of it as well.
//!
//! # What is told
//!
//! | Answer | Means |
//! |---|---|
//! | 0 | the filter has noted it |
//! | `EPERM` | the caller is not root, or there is no room for the partner |
//! | `ENOPROTOOPT` | the kernel answers: no filter is in force for this socket |
//!
//! What was told goes with the socket. The filter believes root. The value about a partner:
//!
//! | Off | Len | Field, in the machine's order |
//! |---|---|---|
//! | 0 | 16 | the address, as four numbers: those of IPv6, or IPv4's and three times 0 |
//! | 16 | 8 | the process that tells it, which is not 0: a gateway and the one that replaces it share a socket |

use core::net::IpAddr;

/// "SMCF". No protocol of Linux has this level.
pub const LEVEL: i32 = i32::from_be_bytes(*b"SMCF");
/// The option: what of packets that leave by the connection?
pub const OUT: i32 = 1;
/// The option: what of those that arrive?
pub const IN: i32 = 2;
/// The option: the gateway has links to this partner.
pub const LINKED: i32 = 3;
/// The option: it has none any more.
pub const UNLINKED: i32 = 4;
/// The mark (`SO_MARK`) of connections on which a gateway speaks TLS and nothing else. It takes CAP_NET_ADMIN or CAP_NET_RAW to set
/// one. Of its bits none is used by kube-proxy, Calico, Cilium or Tailscale.
pub const GATEWAY_MARK: u32 = 0x53;

/// The value of the option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// The user whose the socket is.
    pub user: u32,
    /// The index of the interface that its packets take; 0: not known.
    pub interface: u32,
}

impl Question {
    /// Bytes of a value.
    pub const LEN: usize = 8;
    /// Where the user stands in it.
    pub const USER_AT: usize = 0;
    /// Where the interface stands in it.
    pub const INTERFACE_AT: usize = 4;

    /// As the program reads it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[Self::USER_AT..][..4].copy_from_slice(&self.user.to_ne_bytes());
        bytes[Self::INTERFACE_AT..][..4].copy_from_slice(&self.interface.to_ne_bytes());
        bytes
    }
}

/// The value of [`LINKED`] and [`UNLINKED`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partner {
    /// Where the adapter is.
    pub address: IpAddr,
    /// The process that has the links.
    pub process: u32,
}

impl Partner {
    /// Bytes of a value.
    pub const LEN: usize = 24;
    /// Where the process stands in it.
    pub const PROCESS_AT: usize = 16;

    /// As the program reads it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let number = match self.address {
            IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
            IpAddr::V6(address) => address.to_bits(),
        };
        let mut bytes = [0; Self::LEN];
        for (word, shift) in [96, 64, 32, 0].into_iter().enumerate() {
            bytes[4 * word..][..4].copy_from_slice(&((number >> shift) as u32).to_ne_bytes());
        }
        bytes[Self::PROCESS_AT..].copy_from_slice(&u64::from(self.process).to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partner_stands_as_a_packet_s_key_has_it() {
        let words = |address: &str| {
            let bytes = Partner { address: address.parse().unwrap(), process: 7 }.to_bytes();
            std::array::from_fn(|at| u32::from_ne_bytes(bytes[4 * at..][..4].try_into().unwrap()))
        };
        let process = u64::from(7u32).to_ne_bytes();
        let half = |at: usize| u32::from_ne_bytes(process[at..at + 4].try_into().unwrap());
        assert_eq!(words("10.1.2.3"), [0x0a01_0203, 0, 0, 0, half(0), half(4)]);
        let of_ipv6 = [0x2001_0db8, 0, 1, 2, half(0), half(4)];
        assert_eq!(words("2001:db8::1:0:2"), of_ipv6);
    }

    #[test]
    fn both_numbers_stand_where_the_program_reads_them() {
        let bytes = Question { user: 1000, interface: 7 }.to_bytes();
        let number = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!([number(Question::USER_AT), number(Question::INTERFACE_AT)], [1000, 7]);
    }
}
