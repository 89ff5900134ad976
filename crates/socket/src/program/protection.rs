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
//! A connection that a rule has is not offered for SMC.
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
use crate::rendezvous::gateway;
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
    if is_left_to_program(decision) {
        sock.set_for_rule_later();
    } else {
        let Some(at) = admit(decision, to, gateway::is_present)? else { return Ok(false) };
        sock.set_rule(Some(at));
    }
    let _ = sys::set_socket_option(fd, libc::IPPROTO_TCP, FASTOPEN_CONNECT, 0);
    sock.has_tcp_option.store(false, Ordering::Relaxed);
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
pub(super) fn hand_over_by(at: usize, hand_over: HandOver, peer: &Name) -> Option<Protect> {
    let rule = options::current().protection.get(at)?.name;
    let resolved = peer.address().and_then(|peer| RESOLVED.name_of(sys::tid(), peer.ip()));
    Some(Protect { hand_over, rule, resolved })
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

/// Whether a rule may be about connections that a listener gets: those are not offered for SMC.
#[must_use]
pub fn concerns_listener(fd: i32) -> bool {
    let local = || tcp::address(&sys::socket_name(fd, false).ok()?.0);
    concerns_servers()
        && local().is_none_or(|local| options::current().protection.concern_port(local.port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::options::Options;
    use sidestep_proto::protection::Subject;

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
