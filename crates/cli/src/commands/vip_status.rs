//! What commands ask of the daemons that look after VIPs, and what these answer.
//!
//! The names are abstract, so they belong to the network namespace: who binds one looks after VIPs of that
//! namespace, and a second one cannot. A question is a line of JSON, and so is the answer; the asking side
//! closes behind the question. Every user may look, as at the kernel's own list of sockets; changes
//! are for root and for the user that the daemon runs as.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use thiserror::Error;

/// Who looks after VIPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Daemon {
    /// Of those whose targets are listeners of this host.
    Listeners,
    /// Of those whose targets are hosts.
    Hosts,
    /// Of those that this host serves as a target, as far as their packets come by tunnels. It is asked for [`Tunnelled`] alone.
    Target,
}

impl Daemon {
    /// Who has VIPs in force.
    const ALL: [Self; 2] = [Self::Listeners, Self::Hosts];

    fn name(self) -> &'static [u8] {
        match self {
            Self::Listeners => b"sidestep/1/vip",
            Self::Hosts => b"sidestep/1/distributor",
            Self::Target => b"sidestep/1/distributor-target",
        }
    }

    /// The command that it is.
    pub(super) fn command(self) -> &'static str {
        match self {
            Self::Listeners => "sidestep vip run",
            Self::Hosts => "sidestep distributor run",
            Self::Target => "sidestep distributor target",
        }
    }
}

/// How long the other side is waited for. Half of it a change may wait until it can be taken.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// A question is not longer.
pub(super) const QUESTION_LEN_MAX: u64 = 4096;
/// An answer is not longer: some hundred bytes for each connection.
const ANSWER_LEN_MAX: u64 = 256 << 20;

/// Why there is no answer.
#[derive(Debug, Error)]
pub(super) enum AskError {
    #[error(
        "neither `sidestep vip run` nor `sidestep distributor run` is at work in this network namespace; they put \
         the VIPs of the configuration into force"
    )]
    NotRunning,
    #[error("who answers in the name of `{}` is user {user}, who is not to be believed", daemon.command())]
    Stranger { daemon: Daemon, user: u32 },
    #[error("cannot ask who looks after the VIPs: {0}")]
    System(#[from] io::Error),
}

/// A question.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Apply,
    Status,
    Connections,
    /// Of a target.
    Tunnelled,
    Drain(String),
    Resume(String),
    Remove(String),
    /// To another distributor.
    Move(String),
}

impl Request {
    /// Whether it leaves everything as it is.
    pub(super) fn only_looks(&self) -> bool {
        matches!(self, Self::Status | Self::Connections | Self::Tunnelled)
    }
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// What was changed, in words.
    Done(String),
    Status(Status),
    Connections(Vec<Connection>),
    Tunnelled(Tunnelled),
    /// Why not.
    Refused(String),
}

/// The VIPs in force.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Status {
    pub(super) vips: Vec<VipStatus>,
}

/// A VIP; the names are part of the commands' interface.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct VipStatus {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    pub(super) protocol: String,
    pub(super) method: String,
    pub(super) timedaffinity_s: f64,
    pub(super) switch_back: bool,
    pub(super) probe: String,
    pub(super) probe_interval_s: f64,
    pub(super) probe_timeout_s: f64,
    pub(super) rise: u32,
    pub(super) fall: u32,
    /// Whether targets have to speak SMC: "prefer" or "require".
    pub(super) smc: String,
    /// How much this host keeps of its own connections to it, where the targets are hosts; `None`: all.
    pub(super) optlocal: Option<u8>,
    /// Clients under Sidestep look for the targets' programs.
    pub(super) has_marker: bool,
    /// And ask by the TCP option of SMC.
    pub(super) is_announced: bool,
    /// Where the targets are hosts: what their link has seen.
    pub(super) link: Option<VipLink>,
    pub(super) targets: Vec<TargetStatus>,
}

/// The address of a VIP on its link; the counters are of all VIPs at this address.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct VipLink {
    pub(super) interface: String,
    /// By which program packets are sent on.
    pub(super) path: String,
    /// This host answers for the address: clients can reach it here.
    pub(super) is_taken: bool,
    /// Of several distributors: the one that owns the VIPs, its backups, and why their store is not at hand.
    pub(super) owner: Option<IpAddr>,
    pub(super) backups: Vec<IpAddr>,
    pub(super) store_fault: Option<String>,
    pub(super) fragments: u64,
    pub(super) options: u64,
    pub(super) extension_headers: u64,
    pub(super) icmp_errors: u64,
    pub(super) without_target: u64,
    /// Packets that did not fit into a tunnel.
    pub(super) too_big: u64,
    /// Packets that XDP has left to traffic control, because their checksums are open.
    pub(super) open_checksums: u64,
}

/// A target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TargetStatus {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    pub(super) state: String,
    pub(super) weight: u16,
    /// Live connections through the VIP.
    pub(super) connections: u64,
    /// Connections that it was given since the VIP is in force.
    pub(super) given: u64,
    /// Clients that meet it again, by `timedaffinity`. Of hosts alone.
    pub(super) affinities: Option<u64>,
    /// Connections that wait to be accepted, and how many may: by whatever address they came.
    pub(super) queue: u32,
    pub(super) queue_max: u32,
    /// 100: it accepts at once; 0: what comes is lost. `None`: it does not listen.
    pub(super) responsiveness: Option<u32>,
    pub(super) pid: Option<u32>,
    pub(super) program: Option<String>,
    /// Its program runs under Sidestep.
    pub(super) is_marked: bool,
    /// Why it is down, if more is known than that it does not listen.
    pub(super) fault: Option<String>,
    /// Of a host.
    pub(super) link: Option<TargetLink>,
}

/// How a target's host is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Via {
    /// It is on the distributor's link.
    Link,
    /// It is not.
    Tunnel,
}

/// A target's host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TargetLink {
    pub(super) via: Via,
    /// The link's address; `None`: the host does not answer, or is not on the link. Of this host itself its own.
    pub(super) address: Option<String>,
    pub(super) is_own: bool,
    /// The longest packet that the way to it carries, headers of the tunnel included; `None`: it is on the link, or does not answer.
    pub(super) mtu: Option<u32>,
    /// Sent on to it.
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

/// Packets that came to a target through tunnels, or as if they did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tunnelled {
    /// Taken out.
    pub(super) taken: u64,
    /// Dropped, as forged ones are.
    pub(super) refused: u64,
}

/// A connection to a VIP.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Connection {
    pub(super) vip: String,
    pub(super) address: SocketAddr,
    pub(super) client: SocketAddr,
    /// `None`: it began before the daemon did.
    pub(super) target: Option<String>,
}

/// The name, if no other process of this network namespace has it.
///
/// # Errors
/// Another process has it ([`ErrorKind::AddrInUse`]).
pub(super) fn listen(daemon: Daemon) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&UnixAddr::from_abstract_name(daemon.name())?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether a user may change something.
pub(super) fn may_change(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

/// The answers of the daemons of this network namespace, those that are at work.
///
/// # Errors
/// None is at work, or one cannot be asked.
pub(super) fn ask_all(request: &Request) -> Result<Vec<(Daemon, Answer)>, AskError> {
    let mut answers = Vec::new();
    for daemon in Daemon::ALL {
        match ask(daemon, request) {
            Ok(answer) => answers.push((daemon, answer)),
            Err(AskError::NotRunning) => {}
            Err(error) => return Err(error),
        }
    }
    if answers.is_empty() { Err(AskError::NotRunning) } else { Ok(answers) }
}

/// Asks one daemon of this network namespace.
pub(super) fn ask(daemon: Daemon, request: &Request) -> Result<Answer, AskError> {
    let name = UnixAddr::from_abstract_name(daemon.name())?;
    let mut stream = UnixStream::connect_addr(&name).map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => AskError::NotRunning,
        _ => AskError::System(error),
    })?;
    let user = getsockopt(&stream, PeerCredentials).map_err(io::Error::from)?.uid();
    if !may_change(user) {
        return Err(AskError::Stranger { daemon, user });
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(request).map_err(io::Error::from)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    stream.shutdown(Shutdown::Write)?;
    Ok(serde_json::from_reader((&mut stream).take(ANSWER_LEN_MAX)).map_err(io::Error::from)?)
}

/// Which target of which VIP live connections are with, for displays of connections.
#[derive(Debug, Default)]
pub(super) struct Steered(HashMap<[SocketAddr; 2], String>);

impl Steered {
    /// Asks. Without an answer no connection is known to be with a target.
    pub(super) fn look() -> Self {
        let answers = ask_all(&Request::Connections).unwrap_or_default();
        let connections = answers.into_iter().flat_map(|(_, answer)| match answer {
            Answer::Connections(connections) => connections,
            _ => Vec::new(),
        });
        let name = |it: Connection| {
            let target = it.target.as_deref().unwrap_or("?");
            ([it.address, it.client], format!("{}/{target}", it.vip))
        };
        Self(connections.map(name).collect())
    }

    /// `VIP/TARGET` of a connection between a server's end and a client's.
    pub(super) fn of(&self, server: SocketAddr, client: SocketAddr) -> Option<&str> {
        self.0.get(&[server, client]).map(String::as_str)
    }

    /// One that knows of one connection.
    #[cfg(test)]
    pub(super) fn with(server: &str, client: &str, target: &str) -> Self {
        let ends = [server, client].map(|end| end.parse().unwrap());
        Self([(ends, target.to_owned())].into())
    }
}

/// The VIPs in force, if a daemon tells them.
pub(super) fn in_force() -> Vec<VipStatus> {
    let answers = ask_all(&Request::Status).unwrap_or_default();
    let vips = answers.into_iter().flat_map(|(_, answer)| match answer {
        Answer::Status(status) => status.vips,
        _ => Vec::new(),
    });
    vips.collect()
}

/// What came through tunnels to this host, if it is a target to which any lead.
pub(super) fn tunnelled() -> Option<Tunnelled> {
    match ask(Daemon::Target, &Request::Tunnelled) {
        Ok(Answer::Tunnelled(tunnelled)) => Some(tunnelled),
        _ => None,
    }
}
