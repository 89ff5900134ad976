//! What the rules of TLS say of a connection of this process.

use crate::process::options;
use core::net::SocketAddr;
use sidestep_device::sys;
use sidestep_proto::protection::{Begin, Decision, Role, Subject};

/// Of one with its server at this port, and its peer there.
pub(super) fn decide(role: Role, port: u16, peer: SocketAddr) -> Decision {
    let subject =
        Subject { role, port, peer: peer.ip().to_canonical(), user: sys::effective_uid() };
    options::current().protection.decide(&subject)
}

/// Of one with these ends, if this host has that role.
pub(super) fn decide_as(role: Role, local: SocketAddr, peer: SocketAddr) -> Decision {
    let server = if role == Role::Outbound { peer } else { local };
    decide(role, server.port(), peer)
}

/// Whether a rule has the connection that leaves to the program when TLS begins.
pub(super) fn is_left_to_program(decision: Decision) -> bool {
    let Decision::Rule(at) = decision else { return false };
    options::current().protection.get(at).is_some_and(|scope| scope.begin == Begin::Asked)
}
