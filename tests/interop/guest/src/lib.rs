//! What `cargo xtask interop` and the program in its guests say to each other.
//!
//! A *guest* is a virtual machine with Debian's kernel and one program, ours, as its first process. It
//! is told what to do through a serial port, not through the network, which is what is being tried.
//! Each [`Request`] of the host and each [`Reply`] of the guest is one line of JSON:
//!
//! ```text
//!   host                                          guest
//!                        <--  {"job":0,"event":"Ready"}
//!   {"job":1,"order":{"Equip":…}}  -->
//!                        <--  {"job":1,"event":{"Done":"Nothing"}}
//!   {"job":2,"order":{"Talk":…}}   -->
//!                        <--  {"job":2,"event":"Listening"}
//!                        <--  {"job":2,"event":{"Done":{"Talk":…}}}
//! ```
//!
//! Jobs run beside each other. A *talk* ([`Talk`]) is what an application does: one end of some
//! connections, played by a process of its own, which can be killed. The same program plays it on the
//! host when it is started as `sidestep-guest talk '<JSON of a Talk>'`.

#![forbid(unsafe_code)]

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// What begins a job.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Request {
    /// Chosen by the host, never used twice; not 0, which is what nobody asked for.
    pub job: u32,
    /// What is to be done.
    pub order: Order,
}

/// What a guest can be told to do.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum Order {
    /// Set up a network interface, its RDMA device and SMC: [`Answer::Nothing`], once they are usable.
    Equip(Equipment),
    /// Belong to a network of SMC-Rv2 as well: a UEID, at most 32 characters.
    AddUeid(String),
    /// Belong to it no more.
    RemoveUeid(String),
    /// Drop, delay and duplicate what the interface sends from now on; `None`: no more.
    Impair(Option<Impairment>),
    /// Play one end of some connections: [`Event::Listening`] if it is the server's, then [`Answer::Talk`].
    Talk(Talk),
    /// Kill the process of another job's talk, which then fails.
    Kill {
        /// The job of the talk.
        job: u32,
    },
    /// List the sockets of SMC: [`Answer::Sockets`].
    Sockets,
    /// List the link groups of SMC-R: [`Answer::LinkGroups`].
    LinkGroups,
    /// Run one of busybox's commands: [`Answer::Text`], what it printed.
    Run(Vec<String>),
    /// What the kernel has logged since its start: [`Answer::Text`].
    KernelLog,
    /// Turn the machine off. There is no answer.
    PowerOff,
}

/// What the guest needs before it can speak SMC-R.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Equipment {
    /// Which network card: 0 is `eth0`, above which the RDMA device is `rxe0`.
    pub card: u8,
    /// Addresses of the interface, with the lengths of their prefixes: `10.0.0.2/24`, `fd00::2/64`.
    pub addresses: Vec<String>,
    /// The longest packet of the interface, in bytes; 68 to what the machine's card can do.
    pub mtu: u32,
    /// Whether there is an RDMA device (soft RoCEv2) above the interface.
    pub has_rdma: bool,
    /// The PNET ID of the interface and of the RDMA device: 1 to 16 of `A-Z` and `0-9`.
    pub pnet_id: Option<String>,
    /// The networks of SMC-Rv2 that the guest belongs to: at most 4.
    pub ueids: Vec<String>,
}

/// A bad network, as `tc-netem(8)` makes it, in the direction from the guest.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Impairment {
    /// Packets lost, in thousandths, at random.
    pub loss_permille: u32,
    /// Packets sent twice, in thousandths, at random.
    pub duplicate_permille: u32,
    /// How much later each packet leaves, in microseconds.
    pub delay_us: u32,
}

/// What a job has to say.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Reply {
    /// Of the request; 0 for [`Event::Ready`].
    pub job: u32,
    /// What has happened.
    pub event: Event,
}

/// A step of a job.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum Event {
    /// The guest has started and waits for requests.
    Ready,
    /// A talk's server can be connected to.
    Listening,
    /// The job is done.
    Done(Answer),
    /// The job is over without success, and why.
    Failed(String),
}

/// What came out of a job.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum Answer {
    /// It was done, and there is nothing to say of it.
    Nothing,
    /// Lines for people.
    Text(String),
    /// What an end of a talk has seen.
    Talk(Report),
    /// The sockets of SMC.
    Sockets(Vec<SmcSocket>),
    /// The link groups of SMC-R.
    LinkGroups(Vec<LinkGroup>),
}

/// One end of some connections.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Talk {
    /// Which end.
    pub role: Role,
    /// What kind of socket it uses.
    pub socket: SocketKind,
    /// Where the server listens.
    pub address: SocketAddr,
    /// How many connections there are, all at the same time; at least 1.
    pub connections: u16,
    /// What happens on each.
    pub play: Play,
    /// The longest time that any call may wait, in milliseconds.
    pub patience_ms: u32,
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Role {
    /// It has accepted.
    Server,
    /// It has connected.
    Client,
}

/// How a program asks the kernel for a connection.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum SocketKind {
    /// `socket(AF_INET, SOCK_STREAM, 0)`
    Tcp,
    /// `socket(AF_SMC, SOCK_STREAM, 0)`
    AfSmc,
    /// `socket(AF_INET, SOCK_STREAM, IPPROTO_SMC)`
    IpprotoSmc,
}

/// What both ends of a connection do. The bytes of each direction are known to both ([`Account`]).
#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum Play {
    /// The client sends messages, each of which the server sends back before the next, and closes.
    Echo {
        /// Bytes of each message.
        sizes: Vec<u32>,
        /// A pause before each message but the first, in milliseconds.
        pause_ms: u32,
    },
    /// One end sends and shuts its direction down; the other reads to the end, and closes.
    Stream {
        /// Who sends.
        sender: Role,
        /// How many bytes.
        bytes: u64,
    },
    /// The client sends and shuts its direction down, the server reads to the end and answers, and closes.
    HalfClose {
        /// Bytes from the client.
        asked: u32,
        /// Bytes from the server.
        answered: u32,
    },
    /// The client sends a byte and an urgent byte; the server sends back what it has received by either way.
    Urgent,
    /// After an echo the client closes with a linger time of 0, and the server reads.
    Abort {
        /// Bytes of the echo.
        bytes: u32,
    },
    /// The server sends bytes that the client closes without reading, and then reads.
    CloseUnread {
        /// How many.
        bytes: u32,
    },
}

/// What an end of a talk has seen.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Report {
    /// One for each connection, in no order.
    pub connections: Vec<Account>,
    /// From the first `connect` or `accept` that has succeeded to the last `close`, in milliseconds.
    pub took_ms: u64,
}

/// What an end of one connection has seen.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Account {
    /// What it has sent.
    pub sent: Tally,
    /// What it has received.
    pub received: Tally,
    /// The byte that came as urgent data.
    pub urgent: Option<u8>,
    /// How it came to its end: `end of file`, or the error of a call.
    pub end: Option<String>,
    /// What the kernel's SMC said of the socket shortly before its end.
    pub smc: Option<SmcSocket>,
}

/// Bytes of one direction.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Tally {
    /// How many.
    pub bytes: u64,
    /// Their SHA-256, in hexadecimal digits.
    pub sha256: String,
}

/// A socket of SMC, as `smcss` would list it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SmcSocket {
    /// Its own port.
    pub local_port: u16,
    /// The peer's; 0 for a listener.
    pub peer_port: u16,
    /// The state's number in the kernel: 1 is active, 10 listens.
    pub state: u8,
    /// What it is.
    pub mode: Mode,
}

/// What became of a socket of SMC.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Mode {
    /// RDMA, or nothing yet: then there are no buffers.
    SmcR(Option<SmcR>),
    /// Shared memory of one machine.
    SmcD,
    /// Plain TCP, and why: diagnosis codes as in a CLC Decline (`smc-wire` §2.9).
    Fallback {
        /// The kernel's own reason.
        reason: u32,
        /// What the peer's Decline said; 0: there was none.
        peer_diagnosis: u32,
    },
}

/// A connection over RDMA.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SmcR {
    /// Bytes of its receive buffer.
    pub rmbe_len: u32,
    /// Bytes of the peer's.
    pub peer_rmbe_len: u32,
    /// The number of its link in the link group.
    pub link: u8,
    /// The RDMA device.
    pub device: String,
    /// The device's GID.
    pub gid: String,
    /// The peer's.
    pub peer_gid: String,
}

/// A link group of SMC-R.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LinkGroup {
    /// The kernel's number for it.
    pub id: u32,
    /// Who the guest is in it.
    pub role: Role,
    /// How many connections use it.
    pub connections: u32,
    /// The PNET ID.
    pub pnet_id: String,
    /// The version of SMC-R: 1 or 2.
    pub version: u8,
    /// The network that both belong to (version 2).
    pub eid: String,
    /// Its links.
    pub links: Vec<Link>,
}

/// A link of a link group.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Link {
    /// Its number in the group.
    pub id: u8,
    /// The RDMA device.
    pub device: String,
    /// The device's GID.
    pub gid: String,
    /// The peer's.
    pub peer_gid: String,
    /// How many connections use it.
    pub connections: u32,
    /// The state's number in the kernel: 3 is active.
    pub state: u32,
}
