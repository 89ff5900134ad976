//! What a gateway has, for displays: asked for at the control socket, and told as JSON in a memory file.
//!
//! A memory file, because it has room for any number of connections, and no reader has to be waited for
//! who reads slowly. Root may ask, and the gateway's own user.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::time::{TimeVal, TimeValLike};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::retry_on_intr;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use sidestep_engine::LinkView;
use sidestep_proto::link_group::Role;
use sidestep_proto::rendezvous::hosts::Fallback;
use sidestep_wire::clc::Version;
use sidestep_wire::hand_over::{EMITTED_LEN_MAX, Message, gateway_name, replaced_name};

use crate::foreign::RIGHTS_MAX;

/// How long the answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// A status is not longer: some hundred bytes for each connection that there may be.
const LEN_MAX: u64 = 64 << 20;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The adapters.
    pub adapters: Vec<Adapter>,
    /// The links of all link groups.
    pub links: Vec<Link>,
    /// The connections that were handed over and are not over.
    pub connections: Vec<Connection>,
    /// What has become of all of them, since it began.
    #[serde(default)]
    pub totals: Totals,
    /// What the process has used so far.
    #[serde(default)]
    pub cpu: Cpu,
    /// The rules of TLS, in their order.
    #[serde(default)]
    pub rules: Vec<RuleStatus>,
    /// Connections that were not protected, and so have ended: the latest last.
    #[serde(default)]
    pub refusals: Vec<Refusal>,
    /// Ends of links between which the IP filter of the host lets RoCEv2 pass, and from nowhere else: the own one first.
    #[serde(default)]
    pub partners: Vec<[IpAddr; 2]>,
    /// The process.
    #[serde(default)]
    pub process: u32,
    /// It takes no new connections, and ends with its last one.
    #[serde(default)]
    pub drains: bool,
    /// The processes that were the gateway before and have connections still, the latest first.
    #[serde(default)]
    pub predecessors: Vec<u32>,
}

/// What has become of connections and links since the gateway began; each only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Connections that have come to SMC-R.
    pub smc_r_connections: u64,
    /// Connections that were passed on by TCP.
    pub tcp_connections: u64,
    /// Connections that were reset, in the middle of the rendezvous or later.
    pub resets: u64,
    /// How often a connection has gone over to another link.
    pub failovers: u64,
    /// How often a connection had bytes to send and no room for them in the peer's RMBE.
    pub rmbe_full: u64,
}

/// CPU time and context switches of the gateway's process, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// In user mode, in microseconds.
    pub user_us: u64,
    /// In the kernel, in microseconds.
    pub system_us: u64,
    /// Switches because it waited.
    pub voluntary_switches: u64,
    /// Switches because it had to make way.
    pub involuntary_switches: u64,
}

impl Cpu {
    /// Of this process; nothing where the kernel does not tell.
    pub(crate) fn of_this_process() -> Self {
        let Ok(used) = getrusage(UsageWho::RUSAGE_SELF) else { return Self::default() };
        let us = |time: TimeVal| time.num_microseconds().max(0) as u64;
        Self {
            user_us: us(used.user_time()),
            system_us: us(used.system_time()),
            voluntary_switches: used.voluntary_context_switches().max(0) as u64,
            involuntary_switches: used.involuntary_context_switches().max(0) as u64,
        }
    }
}

/// An adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adapter {
    /// Where it is.
    pub address: IpAddr,
    /// The port of an RDMA device, as `rdma link` names it: `mlx5_0/1`. None: it is a soft RNIC.
    pub port: Option<String>,
    /// The versions of RoCE that it speaks, the preferred first. SMC-Rv1 needs 1, and SMC-Rv2 needs 2.
    pub roce: Vec<u8>,
    /// How peers call it.
    pub gid: String,
    /// Of its interface.
    pub mac: String,
    /// Bytes of the longest payload of a packet.
    pub mtu: Option<u16>,
    /// 0: none.
    pub vlan: u16,
    /// The name of its physical network.
    pub pnet_id: Option<String>,
    /// Its interface, if that is there.
    pub interface: Option<String>,
    /// It can be used.
    pub is_up: bool,
    /// Links over it.
    pub links: usize,
    /// How much it was used.
    #[serde(flatten)]
    pub usage: Usage,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The gateway's number for its group.
    pub link_group: u32,
    /// Its number on this host.
    pub link: u32,
    /// What this host is in the group: `client` or `server`.
    pub role: String,
    /// Of SMC: 1 or 2.
    pub version: u8,
    /// Who is at the other end.
    pub peer_id: String,
    /// The adapter there, once it is known.
    pub peer_gid: Option<String>,
    /// The adapter here.
    pub gid: String,
    /// The port of an RDMA device that the adapter is; none: it is a soft RNIC.
    pub port: Option<String>,
    /// How far it has got, such as `Active`.
    pub state: String,
    /// Connections that send over it.
    pub connections: usize,
    /// How much it was used.
    #[serde(flatten)]
    pub usage: Usage,
}

/// A connection of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Whose program it is.
    pub user: u32,
    /// The program's port of its connection to the gateway.
    pub port: u16,
    /// The program's address on the way to its peer.
    pub local: Option<SocketAddr>,
    /// The peer's.
    pub remote: Option<SocketAddr>,
    /// How its bytes travel.
    pub mode: Mode,
    /// Why they travel by TCP.
    pub reason: Option<Reason>,
    /// What TLS protects it by.
    #[serde(default)]
    pub protection: Option<Protection>,
    /// The gateway's number for its group.
    pub link_group: Option<u32>,
    /// The link that it sends over.
    pub link: Option<u32>,
    /// What its program has sent and received by SMC-R.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// How often it has gone over to another link.
    pub moves: u64,
}

/// Why a connection travels by TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The standard's code for it.
    pub diagnosis: u32,
    /// In words.
    pub text: String,
    /// The peer has declined, and not this host.
    pub by_peer: bool,
}

/// How the bytes of a connection travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// That is not known yet.
    Deciding,
    /// By SMC-R.
    #[serde(rename = "SMC-R")]
    SmcR,
    /// By TCP.
    #[serde(rename = "TCP")]
    Tcp,
    /// By TLS over TCP.
    #[serde(rename = "TLS")]
    Tls,
    /// By the memory of this host, to another program whose connection goes by this gateway as well.
    #[serde(rename = "SMC-D")]
    WithinHost,
}

/// What protects a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protection {
    /// The name of the rule that says so.
    pub rule: String,
    /// `TLS 1.2` or `TLS 1.3`; `None`: the handshake goes on.
    pub version: Option<String>,
    /// IANA's name of the cipher suite.
    pub cipher: Option<String>,
}

/// A rule of TLS, and what has become of its connections since the gateway began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleStatus {
    /// Its name.
    pub name: String,
    /// It is about connections that programs accept.
    pub is_server: bool,
    /// Connections that have come to be protected.
    pub handshakes: u64,
    /// Those of them with keys of an earlier connection.
    pub resumed: u64,
    /// Connections that were refused, or have failed later.
    pub failed: u64,
    /// Until when its certificate is valid, in seconds since 1970.
    pub valid_until: Option<i64>,
    /// Why it refuses all of its connections.
    pub trouble: Option<String>,
}

/// A connection that was to be protected, and has ended because it was not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Whose program it was.
    pub user: u32,
    /// The program's address.
    pub local: Option<SocketAddr>,
    /// The peer's.
    pub remote: Option<SocketAddr>,
    /// The name of the rule.
    pub rule: String,
    /// The program has accepted it.
    pub is_server: bool,
    /// Why.
    pub words: String,
    /// The alert of TLS by which one end has told the other.
    pub alert: Option<u8>,
    /// When, in seconds since 1970.
    pub at: i64,
}

/// What has gone to and fro.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as of the engine's")]
pub struct Traffic {
    pub bytes_sent: u64,
    pub messages_sent: u64,
    pub bytes_received: u64,
    pub messages_received: u64,
}

/// The same of a link or an adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// What has gone over it.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Packets that were sent again, if that is known.
    pub retransmissions: Option<u64>,
}

impl From<&Fallback> for Reason {
    fn from(fallback: &Fallback) -> Self {
        Self {
            diagnosis: fallback.diagnosis().0,
            text: fallback.to_string(),
            by_peer: matches!(fallback, Fallback::Peers(_)),
        }
    }
}

impl From<sidestep_engine::Traffic> for Traffic {
    fn from(traffic: sidestep_engine::Traffic) -> Self {
        let sidestep_engine::Traffic {
            bytes_sent,
            messages_sent,
            bytes_received,
            messages_received,
        } = traffic;
        Self { bytes_sent, messages_sent, bytes_received, messages_received }
    }
}

impl From<sidestep_engine::Usage> for Usage {
    fn from(usage: sidestep_engine::Usage) -> Self {
        Self { traffic: usage.traffic.into(), retransmissions: usage.retransmissions }
    }
}

impl Link {
    pub(crate) fn of(view: &LinkView<'_>, port: Option<String>) -> Self {
        let LinkView { group, link, .. } = view;
        Self {
            link_group: view.group_number,
            link: link.user_id().0,
            role: match group.role() {
                Role::Client => "client",
                Role::Server => "server",
            }
            .to_owned(),
            version: match group.version() {
                Version::V1 => 1,
                Version::V2 => 2,
            },
            peer_id: group.peer_id().to_string(),
            peer_gid: link.peer().map(|peer| peer.gid.to_string()),
            gid: link.adapter().gid.to_string(),
            port,
            state: format!("{:?}", link.state()),
            connections: view.connections,
            usage: view.usage.into(),
        }
    }
}

impl Status {
    /// Packets that its adapters have sent again; `None`: none of them tells.
    #[must_use]
    pub fn sent_again(&self) -> Option<u64> {
        let told = self.adapters.iter().filter_map(|adapter| adapter.usage.retransmissions);
        told.reduce(|sum, more| sum + more)
    }

    /// Asks the gateway of this network namespace.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused`: there is none. Otherwise it is another user's, does not tell this one, or
    /// not in time.
    pub fn ask() -> io::Result<Self> {
        Self::ask_at(&gateway_name())
    }

    /// Asks the gateways before the one of this status that have connections still, the latest first.
    #[must_use]
    pub fn ask_predecessors(&self) -> Vec<Self> {
        // One may have ended meanwhile.
        let ask = |process: &u32| Self::ask_at(&replaced_name(*process)).ok();
        self.predecessors.iter().filter_map(ask).collect()
    }

    /// The same as [`ask`](Self::ask), with the connections, links and partners of the gateways before this one.
    ///
    /// # Errors
    ///
    /// As of [`ask`](Self::ask).
    pub fn ask_all() -> io::Result<Self> {
        let mut all = Self::ask()?;
        for mut one in all.ask_predecessors() {
            all.links.append(&mut one.links);
            all.connections.append(&mut one.connections);
            all.partners.append(&mut one.partners);
        }
        Ok(all)
    }

    fn ask_at(name: &[u8]) -> io::Result<Self> {
        let line = call(name, Message::StatusRequest)?;
        loop {
            let (message, mut files) = receive(&line)?;
            match (message, files.pop()) {
                (Message::Status, Some(file)) => return Self::read(file.into()),
                (Message::Greeting(_), _) => {}
                _ => return Err(io::Error::other("the gateway makes no sense")),
            }
        }
    }

    fn read(mut file: File) -> io::Result<Self> {
        file.rewind()?;
        let mut json = Vec::new();
        file.take(LEN_MAX).read_to_end(&mut json)?;
        Ok(serde_json::from_slice(&json)?)
    }

    /// Sends it to who has asked.
    pub(crate) fn send(&self, line: &OwnedFd) -> io::Result<()> {
        let mut file = File::from(memfd_create("sidestep-status", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        say(line.as_fd(), Message::Status, &[file.as_fd()])
    }
}

/// Says something, with these descriptors beside it, and does not wait.
pub(crate) fn say(
    line: BorrowedFd<'_>,
    message: Message,
    rights: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut bytes = [0; EMITTED_LEN_MAX];
    let len = message.emit(&mut bytes).map_err(io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RIGHTS_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !rights.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(rights));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry_on_intr(|| net::sendmsg(line, &[IoSlice::new(&bytes[..len])], &mut beside, flags))?;
    Ok(())
}

/// Says something to the gateway of this network namespace that has this name.
pub(crate) fn call(name: &[u8], message: Message) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let line = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    net::connect(&line, &SocketAddrUnix::new_abstract_name(name)?)?;
    // Any user may have bound the name.
    // Not rustix's `UCred`: a process of another PID namespace has the number 0, for which
    // that has no room.
    let gateway = getsockopt(&line, PeerCredentials)?.uid();
    if gateway != 0 && gateway != geteuid().as_raw() {
        return Err(io::Error::other(format!("the gateway is of user {gateway}")));
    }
    sockopt::set_socket_timeout(&line, sockopt::Timeout::Recv, Some(PATIENCE))?;
    let mut bytes = [0; EMITTED_LEN_MAX];
    let len = message.emit(&mut bytes).map_err(io::Error::other)?;
    net::send(&line, &bytes[..len], SendFlags::NOSIGNAL)?;
    Ok(line)
}

/// Has the gateway of this network namespace judge its connections by the rules that the IP filter has now: how
/// many are denied. They end by reset, at this host and the other.
///
/// # Errors
///
/// As of [`Status::ask`].
pub fn judge_again() -> io::Result<u32> {
    let denied = judge_again_at(&gateway_name())?;
    // One may have ended meanwhile.
    let judge = |process: &u32| judge_again_at(&replaced_name(*process)).unwrap_or_default();
    Ok(denied + Status::ask()?.predecessors.iter().map(judge).sum::<u32>())
}

fn judge_again_at(name: &[u8]) -> io::Result<u32> {
    let line = call(name, Message::RulesChanged)?;
    loop {
        match receive(&line)? {
            (Message::Judged(denied), _) => return Ok(denied),
            (Message::Greeting(_), _) => {}
            _ => return Err(io::Error::other("the gateway makes no sense")),
        }
    }
}

/// The next message, and the descriptors beside it.
pub(crate) fn receive(line: &OwnedFd) -> io::Result<(Message, Vec<OwnedFd>)> {
    let mut bytes = [0; EMITTED_LEN_MAX + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RIGHTS_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let len = retry_on_intr(|| net::recvmsg(line, &mut parts, &mut beside, flags))?.bytes;
    if len == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it hangs up"));
    }
    let mut descriptors = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok((Message::parse(&bytes[..len]).map_err(io::Error::other)?, descriptors))
}
