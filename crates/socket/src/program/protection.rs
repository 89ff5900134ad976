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
//! | time: a SYN with data in it (`MSG_FASTOPEN`) | EOPNOTSUPP, as where the host has no fast open |
//!
//! A connection that a rule has is not offered for SMC.

use crate::process::options;
use crate::process::tcp::{self, Name};
use crate::rendezvous::gateway;
use crate::table::sock::Sock;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use sidestep_device::sys::{self, Errno};
use sidestep_proto::protection::{Role, RuleName, Subject};

/// `TCP_FASTOPEN_CONNECT` of `linux/tcp.h`: `connect` returns before it has connected.
const FASTOPEN_CONNECT: i32 = 30;

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
/// A rule has it, and there is no gateway.
pub fn before_connect(
    sock: &Sock,
    fd: i32,
    to: impl FnOnce() -> Option<SocketAddr>,
) -> Result<bool, Errno> {
    sock.set_rule(None);
    let Some(to) = concerns_clients().then(to).flatten() else { return Ok(false) };
    let Some(at) = find(Role::Outbound, to.port(), to) else { return Ok(false) };
    if !gateway::is_present() {
        crate::log!(
            Error,
            "a rule wants TLS with {to}, and there is no gateway: ECONNREFUSED; sidestep gateway"
        );
        return Err(Errno(libc::ECONNREFUSED));
    }
    let _ = sys::set_socket_option(fd, libc::IPPROTO_TCP, FASTOPEN_CONNECT, 0);
    sock.has_tcp_option.store(false, Ordering::Relaxed);
    sock.set_rule(Some(at));
    Ok(true)
}

/// A connection was accepted. True: a rule has it.
pub(super) fn accepted(sock: &Sock, fd: i32) -> bool {
    if !concerns_servers() {
        return false;
    }
    let address = |peer| Name::of(fd, peer).and_then(|name| name.address());
    let Some((local, peer)) = address(false).zip(address(true)) else {
        // It has ended, and no byte goes by it.
        return false;
    };
    let at = find(Role::Inbound, local.port(), peer);
    if at.is_some() {
        sock.set_rule(at);
    }
    at.is_some()
}

/// The name of the rule at this place. Where rules have changed since, it may be another one; the gateway looks whether
/// that has the connection. `None`: there are fewer rules now.
pub(super) fn name(at: usize) -> Option<RuleName> {
    options::current().protection.get(at).map(|scope| scope.name)
}

fn find(role: Role, port: u16, peer: SocketAddr) -> Option<usize> {
    let subject =
        Subject { role, port, peer: peer.ip().to_canonical(), user: sys::effective_uid() };
    options::current().protection.position(&subject)
}

/// Whether a rule may be about connections that a listener gets: those are not offered for SMC.
#[must_use]
pub fn concerns_listener(fd: i32) -> bool {
    let local = || tcp::address(&sys::socket_name(fd, false).ok()?.0);
    concerns_servers()
        && local().is_none_or(|local| options::current().protection.concern_port(local.port()))
}
