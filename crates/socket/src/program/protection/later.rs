//! A connection that a rule of TLS has, and whose program has not begun TLS: it is in plain text, on TCP.

use crate::process::options;
use crate::process::tcp::Name;
use crate::program::life;
use crate::program::protection::decided::{decide_as, is_left_to_program};
use crate::table::sock::{Phase, Sock};
use core::sync::atomic::Ordering;
use sidestep_device::state::flag;
use sidestep_device::sys::Errno;
use sidestep_proto::fallback::{OperatorSaid, Reason};
use sidestep_proto::protection::{Decision, Role, RuleName};

/// Why it stays on TCP so long.
pub(super) const LATER: Reason = Reason::Operator(OperatorSaid::TlsLater);

/// A connection is begun that such a rule has. Nothing else knows the object yet.
pub(crate) fn begin_in_plain_text(sock: &'static Sock, fd: i32) {
    life::begin(sock, fd);
    sock.stay_plain(LATER);
}

/// Whether another process has begun TLS, which has the connection as this one has it.
pub(super) fn has_begun_elsewhere(sock: &Sock) -> bool {
    // Acquire: pairs with the change in `controlled`.
    sock.slot().is_some_and(|slot| slot.flags.load(Ordering::Acquire) & flag::TLS_BEGUN != 0)
}

/// By which rule the program may begin TLS on a connection that has this object, or none.
pub(super) fn rule_name(sock: Option<&Sock>, fd: i32) -> Option<RuleName> {
    let may_begin = |sock: &Sock| !matches!(sock.phase(), Phase::Rendezvous | Phase::Smc);
    let (at, _) = rule(sock, fd).ok().filter(|_| sock.is_none_or(may_begin))?;
    options::current().protection.get(at).map(|scope| scope.name)
}

/// The place of the rule by which the program may begin TLS, and this end's role.
pub(super) fn rule(sock: Option<&Sock>, fd: i32) -> Result<(usize, Role), Errno> {
    let address = |peer| Name::of(fd, peer).and_then(|name| name.address());
    let (local, peer) = address(false).zip(address(true)).ok_or(Errno(libc::ENOTCONN))?;
    let is_known = sock.is_some_and(Sock::is_for_rule_later);
    let is_server = sock.is_some_and(|sock| sock.is_server.load(Ordering::Relaxed));
    // Which end one is that another program has given, the kernel does not say.
    let roles = match (is_known, is_server) {
        (true, false) => &[Role::Outbound][..],
        (true, true) => &[Role::Inbound],
        (false, _) => &[Role::Inbound, Role::Outbound],
    };
    let found = roles.iter().find_map(|role| match decide_as(*role, local, peer) {
        Decision::Rule(at) if is_known || is_left_to_program(Decision::Rule(at)) => {
            Some(Ok((at, *role)))
        }
        Decision::Unreadable if is_known => Some(Err(Errno(libc::ECONNREFUSED))),
        _ => None,
    });
    found.unwrap_or(Err(Errno(libc::EPERM)))
}
