//! The checks of another host: an adapter for it, a way for RDMA, and whether it speaks SMC.
//!
//! A host says by a TCP option, and then by CLC, that it speaks SMC, and only to a connection. So the answer is
//! what connections of the gateway have come to. What stands in the way of RDMA alone is looked for beside: a
//! datagram to UDP port 4791 is an error where nothing listens, and where a firewall refuses it. One that drops it
//! says nothing, as an adapter does.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use sidestep_gateway::status::{Mode, Status};

use super::check::Check;
use crate::commands::filter;

/// Of RoCEv2.
const ROCE_PORT: u16 = 4791;
/// For an error to come back.
const PATIENCE: Duration = Duration::from_millis(500);

/// All of them, in the order of the report.
pub(super) fn checks(peer: IpAddr) -> Vec<Check> {
    let way = way_to(peer);
    let status = Status::ask();
    let local = way.as_ref().ok().map(|way| way.from);
    let mut checks = vec![path(peer, &way)];
    if let (Ok(status), Some(local)) = (&status, local) {
        checks.push(adapter(status, local));
    }
    let gateway = status.as_ref().ok();
    checks.extend(local.and_then(|local| denial(local, peer, gateway)));
    checks.push(speaks_smc(peer, status));
    checks
}

/// Does the IP filter here deny what links to the peer send? `None`: no filter is in force, or it cannot be seen.
fn denial(local: IpAddr, peer: IpAddr, gateway: Option<&Status>) -> Option<Check> {
    const NAME: &str = "IP filter to the peer";
    /// The number of UDP, and one of the ports that packets of RoCE come from.
    const UDP: u8 = 17;
    const FROM: u16 = 0xc000;
    let denied = |from, to| {
        let ends = [SocketAddr::new(local, from), SocketAddr::new(peer, to)];
        // Packets of soft RNICs are the gateway's, whose unit no rule is for.
        let owner = filter::Owner { user: 0, cgroup: Path::new("/") };
        filter::denial(UDP, ends, owner).ok()?
    };
    filter::summary().ok()??;
    match denied(FROM, ROCE_PORT).or_else(|| denied(ROCE_PORT, FROM)) {
        Some(rule) if gateway.is_some_and(is_of_root) => Some(Check::ok(
            NAME,
            format!(
                "UDP port {ROCE_PORT} is denied by {rule}, and permitted between the ends of the gateway's links"
            ),
        )),
        Some(rule) => Some(Check::warn(
            NAME,
            format!("UDP port {ROCE_PORT} is denied by {rule}"),
            "permit it both ways between the two hosts, or links by soft RNICs carry nothing",
        )),
        None => Some(Check::ok(NAME, format!("UDP port {ROCE_PORT} is permitted"))),
    }
}

/// Whether the filter believes what the gateway says of its links. One that has ended is of no user.
fn is_of_root(gateway: &Status) -> bool {
    fs::metadata(format!("/proc/{}", gateway.process)).is_ok_and(|process| process.uid() == 0)
}

/// How packets get to a host.
struct Way {
    /// The address they leave from.
    from: IpAddr,
    /// What has come back from its port.
    answer: io::Result<()>,
}

/// **Errors**: no way leads there.
fn way_to(peer: IpAddr) -> io::Result<Way> {
    let any: IpAddr = match peer {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect((peer, ROCE_PORT))?;
    let from = socket.local_addr()?.ip();
    socket.set_read_timeout(Some(PATIENCE))?;
    // Shorter than any packet of RoCE, so to an adapter it is none.
    let answer = socket.send(&[]).and_then(|_| socket.recv(&mut [0; 1])).map(drop);
    Ok(Way { from, answer })
}

fn path(peer: IpAddr, way: &io::Result<Way>) -> Check {
    const NAME: &str = "way to the peer";
    let way = match way {
        Ok(way) => way,
        Err(error) => {
            return Check::warn(
                NAME,
                format!("none leads to {peer}: {error}"),
                "add a route to it",
            );
        }
    };
    let found = |what: &str| format!("from {}; UDP port {ROCE_PORT} there: {what}", way.from);
    match way.answer.as_ref().map_err(io::Error::kind) {
        Err(ErrorKind::ConnectionRefused) => Check::warn(
            NAME,
            found("nothing listens, or a firewall refuses it"),
            "start a gateway there with an adapter, and let its firewall pass that port; a device of \
             hardware, which takes its packets before the kernel, may be there all the same",
        ),
        Err(ErrorKind::WouldBlock | ErrorKind::TimedOut) | Ok(()) => Check::ok(
            NAME,
            found("no refusal, so it is open, or a firewall drops what comes without a word"),
        ),
        Err(_) => Check::warn(
            NAME,
            found(&way.answer.as_ref().map_or_else(io::Error::to_string, |()| String::new())),
            "see `ip route get`, and the firewalls on the way",
        ),
    }
}

/// Is there an adapter where packets to the peer leave?
fn adapter(status: &Status, local: IpAddr) -> Check {
    const NAME: &str = "adapter to the peer";
    let mut up = status.adapters.iter().filter(|adapter| adapter.is_up);
    match up.find(|adapter| adapter.address == local) {
        Some(adapter) => {
            let device = adapter.port.as_deref().unwrap_or("soft RNIC");
            Check::ok(NAME, format!("{device} at {local}"))
        }
        None => Check::warn(
            NAME,
            format!("none is at {local}, from which connections to the peer begin"),
            "name one in smc-r.adapters, unless another one has the same PNET ID",
        ),
    }
}

fn speaks_smc(peer: IpAddr, status: io::Result<Status>) -> Check {
    const NAME: &str = "the peer and SMC";
    let status = match status {
        Ok(status) => status,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            return Check::warn(
                NAME,
                "no gateway is here to ask it",
                "start one: sidestep gateway",
            );
        }
        Err(error) => {
            let finding = format!("the gateway here does not tell: {error}");
            return Check::warn(NAME, finding, "ask as root, or as its user");
        }
    };
    let of_peer = |it: &&sidestep_gateway::status::Connection| {
        it.remote.is_some_and(|remote| remote.ip().to_canonical() == peer.to_canonical())
    };
    let connections: Vec<_> = status.connections.iter().filter(of_peer).collect();
    let by_smc = connections.iter().filter(|it| it.mode == Mode::SmcR).count();
    let reason = connections.iter().find_map(|it| it.reason.as_ref());
    match (by_smc, reason) {
        (0, Some(reason)) => Check::warn(
            NAME,
            format!(
                "it knows the option, and a connection stays TCP all the same: {}",
                reason.text
            ),
            "`sidestep why` with its address says what to change",
        ),
        (0, None) => Check::ok(
            NAME,
            "not known: no connection to it is open that was handed to the gateway. One shows it: connect to \
             a server there by `sidestep run`, and ask again meanwhile",
        ),
        (count, _) => Check::ok(NAME, format!("it speaks SMC-R: connections with it now: {count}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Status as Outcome;
    use super::*;
    use sidestep_gateway::status::{Connection, Reason, Traffic};

    fn connection(mode: Mode, reason: Option<&str>) -> Connection {
        let reason =
            reason.map(|text| Reason { diagnosis: 0, text: text.to_owned(), by_peer: true });
        let remote = Some("10.0.0.2:80".parse().unwrap());
        let traffic = Traffic::default();
        let (local, link_group, link) = (None, None, None);
        Connection {
            user: 0,
            port: 1,
            local,
            remote,
            mode,
            protection: None,
            reason,
            link_group,
            link,
            traffic,
            moves: 0,
        }
    }

    fn told(connections: Vec<Connection>) -> Check {
        let peer = "10.0.0.2".parse().unwrap();
        speaks_smc(peer, Ok(Status { connections, ..Status::default() }))
    }

    #[test]
    fn what_connections_have_come_to_is_the_answer() {
        let by_smc =
            told(vec![connection(Mode::SmcR, None), connection(Mode::Tcp, Some("no UEID"))]);
        assert!(by_smc.finding.starts_with("it speaks SMC-R"), "{by_smc:?}");
        let declined = told(vec![connection(Mode::Tcp, Some("no UEID"))]);
        assert!(declined.status == Outcome::Warn && declined.finding.ends_with("no UEID"));
        assert!(told(Vec::new()).finding.starts_with("not known"));
        let other = Connection {
            remote: Some("10.0.0.3:80".parse().unwrap()),
            ..connection(Mode::SmcR, None)
        };
        assert!(told(vec![other]).finding.starts_with("not known"));
    }

    /// On this host nothing need be there: the kernel says so at once.
    #[test]
    fn a_port_at_which_nothing_listens_is_told() {
        let peer = "127.0.0.1".parse().unwrap();
        let way = Way { from: peer, answer: Err(ErrorKind::ConnectionRefused.into()) };
        let refused = path(peer, &Ok(way));
        assert!(refused.status == Outcome::Warn && refused.finding.contains("nothing listens"));
        assert!(way_to(peer).is_ok_and(|way| way.from == peer));
        let silent = Way { from: peer, answer: Err(ErrorKind::WouldBlock.into()) };
        assert_eq!(path(peer, &Ok(silent)).status, Outcome::Ok);
    }
}
