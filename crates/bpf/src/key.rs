//! The addresses of a socket, as the key of a map.
//!
//! Programs meet a socket in several structs of the kernel ([`Context`] has their
//! offsets) and put its key on their stack. These structs are part of the kernel's
//! interface to user space, so their offsets hold on every kernel and nothing has to be
//! relocated when a program is loaded.

use crate::assembler::Register::{R0, R1, R6, R10};
use crate::assembler::{Assembler, Helper, Register};

/// Bytes of a key.
pub(crate) const LEN: i16 = 48;

// A key has no gap. Addresses are those of IPv6, with IPv4 in its mapped form
// (`::ffff:a.b.c.d`): a connection may be IPv4 at one end and IPv6 at the other. The
// cookie keeps the same addresses in two network namespaces apart.
pub(crate) const NETNS_COOKIE: i16 = 0;
pub(crate) const LOCAL_ADDRESS: i16 = 8;
pub(crate) const REMOTE_ADDRESS: i16 = 24;
pub(crate) const LOCAL_PORT: i16 = 40;
pub(crate) const REMOTE_PORT: i16 = 44;

/// Where the stack holds the key of the own end, and that of the other.
pub(crate) const OWN: i16 = -LEN;
pub(crate) const PEER: i16 = OWN - LEN;

/// What stands before the four bytes of IPv4 in a mapped address, as the number that a
/// program loads.
pub(crate) const MAPPED: i32 = i32::from_ne_bytes([0, 0, 0xff, 0xff]);

/// Offsets in what a program gets as its argument.
pub(crate) struct Context {
    pub(crate) family: i16,
    pub(crate) remote_ip4: i16,
    pub(crate) local_ip4: i16,
    pub(crate) remote_ip6: i16,
    pub(crate) local_ip6: i16,
    /// In the network's order.
    pub(crate) remote_port: i16,
    /// In the machine's order.
    pub(crate) local_port: i16,
}

/// `struct bpf_sock_ops` of `linux/bpf.h`.
pub(crate) mod sock_ops {
    use super::Context;

    pub(crate) const OP: i16 = 0;
    /// `args`: with a change of state the old one and the new one.
    pub(crate) const ARGS: [i16; 2] = [4, 8];
    pub(crate) const IS_FULLSOCK: i16 = 72;
    pub(crate) const CB_FLAGS: i16 = 84;
    pub(crate) const RCV_NXT: i16 = 100;
    pub(crate) const SK: i16 = 184;
    /// The header of a packet that is about to be sent, up to its options.
    pub(crate) const SKB_DATA: i16 = 192;
    pub(crate) const SKB_DATA_END: i16 = 200;
    /// Flags of the packet that is about to be sent.
    pub(crate) const SKB_TCP_FLAGS: i16 = 212;
    pub(crate) const CONTEXT: Context = Context {
        family: 20,
        remote_ip4: 24,
        local_ip4: 28,
        remote_ip6: 32,
        local_ip6: 48,
        remote_port: 64,
        local_port: 68,
    };

    pub(crate) const CONNECT: i32 = 3;
    pub(crate) const ACTIVE_ESTABLISHED: i32 = 4;
    pub(crate) const PASSIVE_ESTABLISHED: i32 = 5;
    pub(crate) const STATE_CHANGED: i32 = 10;
    pub(crate) const LISTEN: i32 = 11;
    /// How many bytes of options does this packet need?
    pub(crate) const HEADER_LEN: i32 = 14;
    /// Write them.
    pub(crate) const WRITE_HEADER: i32 = 15;

    /// `BPF_SOCK_OPS_STATE_CB_FLAG`: the socket reports changes of its state.
    pub(crate) const REPORT_STATE: i32 = 4;
    /// `BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG`: it asks for options of each packet.
    pub(crate) const REPORT_HEADER: i32 = 64;
    /// States of a socket.
    pub(crate) const TCP_CLOSE: i32 = 7;
    pub(crate) const TCP_LISTEN: i32 = 10;
    /// What a program of this kind returns when it has nothing to say.
    pub(crate) const OK: i32 = 1;
}

/// `struct bpf_sockopt` of `linux/bpf.h`, and the `struct bpf_sock` it points at.
pub(crate) mod sockopt {
    use super::Context;

    pub(crate) const SK: i16 = 0;
    pub(crate) const LEVEL: i16 = 24;
    pub(crate) const OPTNAME: i16 = 28;
    pub(crate) const OPTLEN: i16 = 32;
    /// The option's value, and where it ends.
    pub(crate) const VALUE: i16 = 8;
    pub(crate) const VALUE_END: i16 = 16;

    pub(crate) const SOCKET_STATE: i16 = 72;
    pub(crate) const SOCKET: Context = Context {
        family: 4,
        local_ip4: 24,
        local_ip6: 28,
        local_port: 44,
        remote_port: 48,
        remote_ip4: 52,
        remote_ip6: 56,
    };

    /// The length by which a program says that the kernel need not look at the option.
    pub(crate) const DONE: i32 = -1;
    /// What a program returns: the kernel goes on, or the call fails, with EPERM if the
    /// program has set no other error.
    pub(crate) const GO_ON: i32 = 1;
    pub(crate) const REFUSE: i32 = 0;
}

/// `AF_INET` and `AF_INET6`.
pub(crate) const IPV4: i32 = 2;
pub(crate) const IPV6: i32 = 10;

/// Puts the key of the socket in context `R6` on the stack. A socket of another family
/// goes to the label `end`.
pub(crate) fn store_own(a: &mut Assembler, context: &Context) {
    store_netns_cookie(a, OWN + NETNS_COOKIE);
    a.load_32(R1, R6, context.local_port);
    a.store_32(R10, OWN + LOCAL_PORT, R1);
    a.load_32(R1, R6, context.remote_port);
    a.swap_to_big_endian_32(R1);
    a.store_32(R10, OWN + REMOTE_PORT, R1);
    a.load_32(R1, R6, context.family);
    a.jump_if_equal(R1, IPV4, "ipv4");
    a.jump_if_not_equal(R1, IPV6, "end");
    store_ipv6(a, OWN + LOCAL_ADDRESS, R6, context.local_ip6);
    store_ipv6(a, OWN + REMOTE_ADDRESS, R6, context.remote_ip6);
    a.jump("key");
    a.label("ipv4");
    store_mapped_ipv4(a, OWN + LOCAL_ADDRESS, R6, context.local_ip4);
    store_mapped_ipv4(a, OWN + REMOTE_ADDRESS, R6, context.remote_ip4);
    a.label("key");
}

/// Puts the key of the other end on the stack: the own key with its sides swapped.
pub(crate) fn store_peer(a: &mut Assembler) {
    copy_64(a, PEER + NETNS_COOKIE, OWN + NETNS_COOKIE);
    copy_128(a, PEER + LOCAL_ADDRESS, OWN + REMOTE_ADDRESS);
    copy_128(a, PEER + REMOTE_ADDRESS, OWN + LOCAL_ADDRESS);
    copy_32(a, PEER + LOCAL_PORT, OWN + REMOTE_PORT);
    copy_32(a, PEER + REMOTE_PORT, OWN + LOCAL_PORT);
}

/// Makes the key on the stack one of all network namespaces: a socket with the same addresses
/// finds it.
pub(crate) fn leave_netns(a: &mut Assembler, key: i16) {
    a.mov_immediate(R1, 0);
    a.store_64(R10, key + NETNS_COOKIE, R1);
}

/// The network namespace of context `R6`.
pub(crate) fn store_netns_cookie(a: &mut Assembler, to: i16) {
    a.mov(R1, R6);
    a.call(Helper::NetnsCookie);
    a.store_64(R10, to, R0);
}

/// Puts the own address of the socket that `socket` points at on the stack. One of
/// another family goes to the label `end`.
pub(crate) fn store_local_address(a: &mut Assembler, to: i16, socket: Register, context: &Context) {
    a.load_32(R1, socket, context.family);
    a.jump_if_equal(R1, IPV4, "ipv4");
    a.jump_if_not_equal(R1, IPV6, "end");
    store_ipv6(a, to, socket, context.local_ip6);
    a.jump("address");
    a.label("ipv4");
    store_mapped_ipv4(a, to, socket, context.local_ip4);
    a.label("address");
}

pub(crate) fn store_ipv6(a: &mut Assembler, to: i16, socket: Register, from: i16) {
    for word in [0, 4, 8, 12] {
        a.load_32(R1, socket, from + word);
        a.store_32(R10, to + word, R1);
    }
}

pub(crate) fn store_mapped_ipv4(a: &mut Assembler, to: i16, socket: Register, from: i16) {
    a.mov_immediate(R1, 0);
    a.store_64(R10, to, R1);
    a.mov_immediate(R1, MAPPED);
    a.store_32(R10, to + 8, R1);
    a.load_32(R1, socket, from);
    a.store_32(R10, to + 12, R1);
}

/// Copies within the stack.
pub(crate) fn copy_128(a: &mut Assembler, to: i16, from: i16) {
    copy_64(a, to, from);
    copy_64(a, to + 8, from + 8);
}

pub(crate) fn copy_64(a: &mut Assembler, to: i16, from: i16) {
    a.load_64(R1, R10, from);
    a.store_64(R10, to, R1);
}

pub(crate) fn copy_32(a: &mut Assembler, to: i16, from: i16) {
    a.load_32(R1, R10, from);
    a.store_32(R10, to, R1);
}
