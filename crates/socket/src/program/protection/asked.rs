//! What the program asks about TLS on its connection ([`protection_status`](sidestep_wire::protection_status)).
//!
//! The gateway knows, and is asked by a line for this one question: on the line of hand-overs, which a forked child shares with
//! its parent, one could hear the answer to the other. So a question costs some system calls; it is none of the calls that move
//! bytes.

use crate::process::options;
use crate::program::protection::later;
use crate::rendezvous::gateway::{self, PATIENCE};
use crate::table::descriptors::{self, Use};
use crate::table::sock::Sock;
use sidestep_device::rights;
use sidestep_device::sys::{self, Errno};
use sidestep_wire::hand_over::{EMITTED_LEN_MAX, Message};
use sidestep_wire::protection_status::{LEVEL, NAME, ProtectionStatus, State};

/// Whether a call of `getsockopt` asks about TLS.
#[must_use]
pub const fn is_asked(level: i32, name: i32) -> bool {
    level == LEVEL && name == NAME
}

/// The answer. `None`: it is no TCP socket, and the kernel says so.
///
/// # Errors
///
/// ESTALE: the gateway that has the connection was replaced. ETIMEDOUT: the gateway does not answer. ENOTCONN: a rule has the
/// connection, and it has come to nothing.
#[must_use]
pub fn status(fd: i32) -> Option<Result<ProtectionStatus, Errno>> {
    if let Some(sock) = descriptors::object(fd) {
        sock.sock().settle_offer(fd);
    }
    // It may be another one now.
    match descriptors::object(fd) {
        Some(sock) => Some(of_object(&sock, fd)),
        None => {
            let is_tcp = sys::socket_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL)
                == Ok(libc::IPPROTO_TCP);
            is_tcp.then(|| Ok(without_tls(None, fd)))
        }
    }
}

/// Of a connection on which there is none, or not yet.
fn without_tls(sock: Option<&Sock>, fd: i32) -> ProtectionStatus {
    let rule = later::rule_name(sock, fd);
    let state = if rule.is_some() { State::NotBegun } else { State::Unprotected };
    ProtectionStatus { state, rule, ..ProtectionStatus::default() }
}

pub(super) fn of_object(sock: &Use, fd: i32) -> Result<ProtectionStatus, Errno> {
    if let Some(session) = sock.session() {
        return ask(session.port);
    }
    if sock.is_for_rule_later() && later::has_begun_elsewhere(sock) {
        return Err(Errno(libc::ENOTCONN));
    }
    let Some(at) = sock.rule() else { return Ok(without_tls(Some(sock), fd)) };
    if !sock.is_offered() {
        return Err(Errno(libc::ENOTCONN));
    }
    let rule = options::current().protection.get(at).map(|scope| scope.name);
    Ok(ProtectionStatus { state: State::Handshake, rule, ..ProtectionStatus::default() })
}

/// Asks the gateway about the connection to it that has this port.
fn ask(port: u16) -> Result<ProtectionStatus, Errno> {
    let line = gateway::call_once().ok_or(Errno(libc::ETIMEDOUT))?;
    let answer = ask_by(line, port);
    rights::close(line);
    match answer {
        Some(Message::Protection(status)) => Ok(status),
        Some(Message::Unknown) => Err(Errno(libc::ESTALE)),
        _ => Err(Errno(libc::ETIMEDOUT)),
    }
}

fn ask_by(line: i32, port: u16) -> Option<Message> {
    let mut bytes = [0; EMITTED_LEN_MAX];
    let len = Message::ProtectionRequest(port).emit(&mut bytes).ok()?;
    sys::send_over(line, &bytes[..len], &[]).ok()?;
    sys::poll_until(sys::seat(line), libc::POLLIN, Some(PATIENCE)).ok()?;
    let received = sys::recv_with_fds(line, &mut bytes).ok()?;
    received.close_fds();
    Message::parse(&bytes[..received.len]).ok()
}
