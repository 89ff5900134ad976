//! A connection whose two ends are programs of this host, and whose rules of TLS leave to the host what stays in its
//! memory (`within_host = "memory"`).
//!
//! ```text
//!   program <── H, in shared memory ──> gateway <── H, in shared memory ──> program
//!      └ ─ ─ ─ ─ ─ ─ ─ ─ ─ N, silent: it keeps the four addresses ─ ─ ─ ─ ─ ─ ─ ┘
//! ```
//!
//! Each end was handed over by its own library, and the kernel says of the two N that they are the ends of one connection:
//! both are of one network namespace and open, and the addresses of one are those of the other. So what joins them is no claim of
//! a program's: a proxy between them, an address that is translated, or a program
//! without Sidestep at the other end leaves one N without the other, and that has TLS.
//!
//! The end that came first has begun its handshake, and the other one has not answered, because the gateway is the other
//! one. So not a byte of a program has been read from H before, and what the handshake has put on N is not read by any program.
//!
//! The session is that of the end that came first. It goes on with the two H as with one H and one N that stay on TCP.

use super::turn::{End, Fate, Ready};
use super::ways::Ways;
use crate::ends::Ends;
use crate::foreign::Foreign;
use crate::status::{self, Mode};
use rustix::net::sockopt;
use sidestep_proto::protection::RuleName;
use sidestep_wire::protection_status::{ProtectionStatus, State};
use std::net::TcpStream;

/// The end that came second, as it was handed over.
#[derive(Debug)]
pub(crate) struct OtherEnd {
    pub(crate) n: Foreign<TcpStream>,
    pub(crate) ends: Ends,
    pub(crate) h: TcpStream,
    /// The program's, of H.
    pub(crate) port: u16,
    pub(crate) rule: RuleName,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Joined {
    /// By which the first end was handed over.
    rule: RuleName,
    other: OtherEnd,
    ways: Ways,
}

impl Joined {
    /// The first end was handed over by this rule.
    pub(super) fn new(rule: RuleName, other: OtherEnd) -> Self {
        Self { rule, other, ways: Ways::default() }
    }

    /// The other N.
    pub(super) fn network(&self) -> &TcpStream {
        &self.other.n
    }

    /// Whose it is.
    pub(super) const fn other_user(&self) -> u32 {
        self.other.n.uid()
    }

    /// What displays show of the other program.
    pub(super) fn other_status(&self) -> status::Connection {
        self.other.status()
    }

    /// Passes on what can be, between this H and the other one.
    pub(super) fn pass(
        &mut self,
        h: (&TcpStream, &mut Ready),
        other_is: &mut Ready,
        chunk: &mut [u8],
    ) -> Fate {
        self.ways.pass(h, (&self.other.h, other_is), chunk, |_| 0)
    }

    pub(super) fn status(&self) -> status::Protection {
        by_rule(self.rule)
    }

    /// The other program's, of its H.
    pub(super) const fn other_port(&self) -> u16 {
        self.other.port
    }

    /// What a program hears that asks about TLS.
    pub(super) fn protection(&self) -> ProtectionStatus {
        within_host(self.rule)
    }

    /// What the other one hears, and whose it is.
    pub(super) fn of_other(&self) -> (u32, ProtectionStatus) {
        (self.other.n.uid(), within_host(self.other.rule))
    }

    /// The other H is closed as the first one is.
    pub(super) fn end(self, end: End) {
        if end == End::InOrder {
            // If it fails, the program sees a reset.
            let _ = sockopt::set_socket_linger(&self.other.h, None);
        }
    }
}

impl OtherEnd {
    fn status(&self) -> status::Connection {
        status::Connection {
            user: self.n.uid(),
            port: self.port,
            local: self.ends.local(),
            remote: self.ends.remote(),
            mode: Mode::WithinHost,
            reason: None,
            protection: Some(by_rule(self.rule)),
            link_group: None,
            link: None,
            traffic: status::Traffic::default(),
            moves: 0,
        }
    }
}

fn within_host(rule: RuleName) -> ProtectionStatus {
    let (state, rule) = (State::WithinHost, Some(rule));
    ProtectionStatus { state, rule, ..ProtectionStatus::default() }
}

/// Nothing protects it: it stays in memory.
fn by_rule(rule: RuleName) -> status::Protection {
    status::Protection { rule: rule.to_string(), version: None, cipher: None }
}
