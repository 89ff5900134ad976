//! BPF programs of ours: made, loaded and attached without a compiler for BPF.
//!
//! The programs here are short, some dozens of instructions each, and are needed on
//! machines that have neither clang nor the kernel's headers. So they are written with
//! an assembler ([`assembler`]) when they are loaded, put into an object file in memory
//! ([`object_file`]), and given to [aya], which knows `bpf(2)`: maps, the verifier's
//! log, links. What a program may touch the kernel checks at each load, so a mistake
//! here is an error there and nothing worse.
//!
//! | Module | What it is |
//! |---|---|
//! | [`assembler`] | instructions, labels, references to maps |
//! | [`map`] | maps that programs keep things in |
//! | [`object_file`] | the object file of maps and programs |
//! | [`btf`] | the types of maps, where the kernel wants them |
//! | [`loaded`] | programs that the kernel has, by their names |
//! | [`bpf_call`] | what aya does not ask the kernel for |
//! | [`key`] | the addresses of a socket, as programs see them |
//! | [`sockmap`] | [`Sockmap`]: connections whose messages skip TCP, and the programs that do it |
//! | [`tcp_option`] | [`TcpOption`]: the TCP option of SMC, and the programs that write it |
//! | [`filter`] | [`Filter`]: rules for the packets of all sockets, which stay when the process ends |
//! | [`filter`] | [`Enforcement`]: rules for which bytes leave on unmarked sockets, as long as the process lives |
//! | [`detached`] | [`DetachedFileSystem`]: where what is pinned goes with the process |
//! | [`packet`] | where a packet has what |
//! | [`others`] | the programs for packets that others have attached to a cgroup or an interface |
//! | [`tables`] | services, and which of its targets takes what begins |
//! | [`steering`] | [`Steering`]: connections to one address, given to listeners at others |
//! | [`forwarding`] | [`Forwarding`]: packets to one address, sent on to hosts |
//! | [`tunnel`] | [`Tunnel`]: what they wear on their way to hosts that are not on the link |
//! | [`reception`] | [`Reception`]: which takes that off there |
//! | [`cgroup`] | [`Cgroup`]: the group of processes whose sockets are meant |
//!
//! All of this needs privilege (CAP_BPF and CAP_NET_ADMIN, and the right to make a
//! cgroup); [`available`] says in words what is lacking. But for the [`Filter`] with a place nothing outlives
//! the process: programs and links are descriptors, and the cgroup's directory is removed on drop.

// The system calls of `bpf_call`.
#![deny(unsafe_code)]

mod assembler;
mod bpf_call;
mod btf;
mod cgroup;
mod detached;
mod error;
mod filter;
mod forwarding;
mod key;
mod loaded;
mod map;
mod object_file;
mod others;
mod packet;
mod reception;
mod sockmap;
mod steering;
mod tables;
mod tcp_option;
mod tunnel;

pub use cgroup::Cgroup;
pub use detached::DetachedFileSystem;
pub use error::BpfError;
pub use filter::{
    Enforcement, Filter, GroupNumbers, Hits, Identity, LINES_MAX, Log, LogLine, NumberedGroup,
    RuleSet, Totals, is_denied, tell_partner,
};
pub use forwarding::{
    Affinity, FLOWS_MAX, Flow, Forwarding, Hop, Lease, NetnsCookie, Oversized, ROUTES_MAX, Tally,
    XdpMode,
};
pub use others::{PacketProgram, interface_programs, packet_programs};
pub use reception::{Announcement, Received, Reception};
pub use sockmap::{Counters, Sockmap};
pub use steering::{Steering, give_listener};
pub use tables::Whose;
pub use tables::programs::INDICES;
pub use tcp_option::{Sweeper, TcpOption};
pub use tunnel::{PORT as TUNNEL_PORT, SOURCE_PORTS, Tunnel};

/// Whether [`Sockmap`] works here: does all of it once, for a cgroup without processes.
///
/// # Errors
/// What is lacking: privilege, something of the kernel, cgroup2.
pub fn available() -> Result<(), BpfError> {
    let cgroup = Cgroup::create_for_run()?;
    Sockmap::attach(cgroup.path()).map(drop)
}
