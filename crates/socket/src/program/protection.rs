//! Connections that TLS is to protect: they go to the gateway, or nowhere.
//!
//! The operator's rules say which ([`proto::protection`](sidestep_proto::protection)). The gateway speaks TLS on the
//! connection (N) and has the keys; the program goes on with a connection to the gateway (H), in plain text, which
//! within the host goes through shared memory. So the hand-over is that of connections to other hosts
//! ([`hand_over`](crate::program::hand_over)), with the name of the rule.
//!
//! It fails closed. No byte of the program's may go by N, whatever is lacking:
//!
//! | What is lacking | What the program sees |
//! |---|---|
//! | the gateway, before `connect` | ECONNREFUSED, and no connection |
//! | the gateway, afterwards or at `accept` | ECONNRESET at its next call |
//! | anything that the gateway finds | the same |
//! | rules that this library can read: `sidestep` is newer | ECONNREFUSED, or at `accept` ECONNRESET |
//! | time: a SYN with data in it (`MSG_FASTOPEN`) | EOPNOTSUPP, as where the host has no fast open |
//!
//! Within the host a connection that a rule has is not offered for SMC. To another host it is: if that agrees, the gateways
//! of both speak CLC first, and TLS protects what goes by SMC-R; if it does not, what goes by TCP.
//!
//! A rule may leave to the program when TLS begins, as STARTTLS has it: then the hand-over is later ([`controlled`]).
//!
//! What the program has asked libc for the address of goes with it ([`resolved`]): a rule may want that name in the
//! server's certificate. A program that knows of all this can ask what protects its connection ([`asked`]).

pub mod asked;
pub mod controlled;
mod decided;
pub(super) mod later;
mod resolved;

use crate::process::options;
use crate::process::tcp::{self, Name};
use crate::rendezvous::{gateway, tcp_option};
use crate::table::sock::Sock;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;
use decided::{decide, is_left_to_program};
use resolved::Resolved;
use sidestep_device::sys::{self, Errno};
use sidestep_proto::protection::{Decision, ResolvedName, Role};
use sidestep_wire::hand_over::{HandOver, Protect};

/// `TCP_FASTOPEN_CONNECT` of `linux/tcp.h`: `connect` returns before it has connected.
const FASTOPEN_CONNECT: i32 = 30;

/// Why a connection is refused that [`Decision::Unreadable`] is said of.
const UNREADABLE: &str =
    "there are rules of TLS that this library cannot read, and one may have the connection";
static RESOLVED: Resolved = Resolved::new();

/// What helps: a program has the library with which it was started.
const RESTART: &str = "restart the program, by the `sidestep` that has written the rules";

/// Whether any rule is about connections that this program begins.
#[must_use]
pub fn concerns_clients() -> bool {
    options::current().protection.concern(Role::Outbound)
}

/// Whether any is about those that it accepts.
#[must_use]
pub fn concerns_servers() -> bool {
    options::current().protection.concern(Role::Inbound)
}

/// A socket is about to connect. True: a rule has the connection, and [`hand_over`](crate::program::hand_over)
/// knows.
///
/// # Errors
///
/// A rule has it, and there is no gateway; or one may have it that could not be read.
pub fn before_connect(
    sock: &Sock,
    fd: i32,
    to: impl FnOnce() -> Option<SocketAddr>,
) -> Result<bool, Errno> {
    sock.set_rule(None);
    let Some(to) = concerns_clients().then(to).flatten() else { return Ok(false) };
    let decision = decide(Role::Outbound, to.port(), to);
    let mut at = None;
    if !is_left_to_program(decision) {
        at = admit(decision, to, gateway::is_present)?;
        if at.is_none() {
            return Ok(false);
        }
    }
    let _ = sys::set_socket_option(fd, libc::IPPROTO_TCP, FASTOPEN_CONNECT, 0);
    sock.has_tcp_option.store(false, Ordering::Relaxed);
    match at {
        None => sock.set_for_rule_later(),
        Some(at) if tcp_option::mark_to_hosts(sock, fd, to) => sock.set_rule_and_for_hosts(at),
        Some(at) => sock.set_rule(Some(at)),
    }
    Ok(true)
}

/// The place of the rule by which a connection may begin; `None`: it may without one.
fn admit(
    decision: Decision,
    to: SocketAddr,
    has_gateway: impl FnOnce() -> bool,
) -> Result<Option<usize>, Errno> {
    match decision {
        Decision::Unprotected => return Ok(None),
        Decision::Rule(at) if has_gateway() => return Ok(Some(at)),
        Decision::Rule(_) => crate::log!(
            Error,
            "a rule wants TLS with {to}, and there is no gateway: ECONNREFUSED; sidestep gateway"
        ),
        Decision::Unreadable => {
            crate::log!(Error, "{UNREADABLE}: ECONNREFUSED for a connection to {to}; {RESTART}");
        }
    }
    Err(Errno(libc::ECONNREFUSED))
}

/// What becomes of a connection that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// No rule has it.
    Unprotected,
    /// A rule has it, and it goes to the gateway.
    Protected,
    /// A rule has it, and it goes there when the program asks for TLS.
    ProtectedLater,
    /// A rule may have it that could not be read: it goes nowhere.
    Refused,
}

/// A connection was accepted.
pub(super) fn accepted(sock: &Sock, fd: i32) -> Accepted {
    if !concerns_servers() {
        return Accepted::Unprotected;
    }
    let address = |peer| Name::of(fd, peer).and_then(|name| name.address());
    let Some((local, peer)) = address(false).zip(address(true)) else {
        // It has ended, and no byte goes by it.
        return Accepted::Unprotected;
    };
    match decide(Role::Inbound, local.port(), peer) {
        Decision::Unprotected => Accepted::Unprotected,
        decision if is_left_to_program(decision) => {
            sock.set_for_rule_later();
            Accepted::ProtectedLater
        }
        Decision::Rule(at) => {
            sock.set_rule(Some(at));
            Accepted::Protected
        }
        Decision::Unreadable => {
            crate::log!(Error, "{UNREADABLE}: a connection from {peer} is reset; {RESTART}");
            Accepted::Refused
        }
    }
}

/// What the gateway is told of a connection that the rule at this place has. Where rules have changed since, it may be
/// another one; the gateway looks whether that has the connection. `None`: there are fewer rules now.
pub(super) fn hand_over_by(
    at: usize,
    hand_over: HandOver,
    is_agreed: bool,
    peer: &Name,
) -> Option<Protect> {
    let rule = options::current().protection.get(at)?.name;
    let resolved = peer.address().and_then(|peer| RESOLVED.name_of(sys::tid(), peer.ip()));
    Some(Protect { hand_over, is_agreed, rule, resolved })
}

/// libc has told the program that this name, as the program has written it, has these addresses.
pub fn note_resolved(name: &[u8], addresses: impl Iterator<Item = IpAddr>) {
    let name = || core::str::from_utf8(name).ok()?.parse::<ResolvedName>().ok();
    if let Some(name) = concerns_clients().then(name).flatten() {
        addresses.for_each(|address| RESOLVED.note(sys::tid(), address.to_canonical(), &name));
    }
}

/// In the child of a fork: the thread that had the lock is the parent's.
pub(crate) fn after_fork_in_child() {
    RESOLVED.reset_lock();
}

/// A socket listens: clients may be told to ask for SMC, or those of other hosts alone may be answered where a rule may be
/// about them. If the program says when TLS begins, no client may: what comes before that is the program's.
pub fn after_listen(sock: &Sock, fd: i32) {
    let local = || tcp::address(&sys::socket_name(fd, false).ok()?.0);
    let rules = &options::current().protection;
    match concerns_servers().then(local) {
        None => tcp_option::after_listen(sock, fd),
        Some(Some(local)) if !rules.concern_port(local.port()) => {
            tcp_option::after_listen(sock, fd);
        }
        Some(Some(local)) if rules.begin_at_once(local.port()) => {
            tcp_option::after_listen_to_hosts(sock, fd);
        }
        Some(_) => sock.set_for_hosts(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::options::Options;
    use crate::program::life;
    use sidestep_proto::protection::{RULES_MAX, Subject};
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_rule_stays_when_it_was_asked_whether_another_host_has_agreed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = listener.as_raw_fd();
        let sock = life::register(fd, false, false).unwrap();
        for at in [0, RULES_MAX - 1] {
            sock.set_rule_and_for_hosts(at);
            assert_eq!((sock.rule(), sock.is_for_hosts()), (Some(at), true));
            assert!(sock.take_for_hosts() && !sock.take_for_hosts());
            assert_eq!((sock.rule(), sock.is_for_hosts()), (Some(at), false));
            sock.set_rule(Some(at));
            assert_eq!((sock.rule(), sock.take_for_hosts()), (Some(at), false));
        }
        sock.set_for_hosts(true);
        assert_eq!((sock.rule(), sock.take_for_hosts()), (None, true));
        sock.set_for_rule_later();
        assert!(sock.is_for_rule_later() && sock.rule().is_none() && !sock.take_for_hosts());
        life::forget_number(fd);
    }

    #[test]
    fn what_cannot_be_read_or_carried_out_is_refused() {
        let to: SocketAddr = "10.0.0.7:6514".parse().unwrap();
        let subject = Subject { role: Role::Outbound, port: 6514, peer: to.ip(), user: 0 };
        let admitted = |word: &str, has_gateway| {
            let decision = Options::parse(word, "logger").protection.decide(&subject);
            admit(decision, to, || has_gateway)
        };
        let refused = Err(Errno(libc::ECONNREFUSED));
        for unreadable in ["tls=out|logs|6514||||new|", "tls=out|other|1|||;sideways|logs|6514|||"]
        {
            assert_eq!(admitted(unreadable, true), refused, "{unreadable}");
        }
        assert_eq!(admitted("tls=out|logs|6514|||", false), refused);
        assert_eq!(admitted("tls=out|logs|6514|||", true), Ok(Some(0)));
        assert_eq!(admitted("tls=out|other|1|||", false), Ok(None));
    }
}
