//! A gateway that is told to end leaves what can move to one that begins later, where there is a place to keep it: the
//! descriptor store of systemd.
//!
//! ```text
//!   ends                                 queue of a socket            begins
//!    │ takes no new connections                 ┃
//!    │ ── names, lines, halves ───────────────> ┃
//!    │ link groups come to rest, and leave      ┃
//!    │ ── receivers of soft RNICs ────────────> ┃
//!    │ ── link groups, with H and N of each ──> ┃ ── as from a successor's line ──> │
//! ```
//!
//! What lies in the queue are the messages by which a gateway takes the place of one that lives
//! ([`succession`](crate::succession)), but for its answers. The kernel keeps the sockets in them: programs connect and
//! wait, what they send stays in their rings, and what peers send waits at the UDP ports or comes again. Each is reset
//! if the queue is closed before a gateway reads it: when the service is stopped, and not started again.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{SndBuf, SndBufForce};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sidestep_wire::hand_over::Message;

use super::Gateway;
use crate::limits::{FREEZE_PATIENCE, STORE_LEN};
use crate::succession::{Gone, Storing, send};

impl Gateway {
    /// From now on new connections wait for the next gateway. False: that cannot be, and nothing has changed.
    pub(super) fn begin_storing(&mut self, now: Duration) -> bool {
        let begun = queue().and_then(|(to, stored)| {
            self.part_with_names(|this| this.give_names(None, to.as_fd()))?;
            let until = now + FREEZE_PATIENCE;
            self.storing = Some(Storing { to, stored, gone: Vec::new(), until });
            Ok(())
        });
        match &begun {
            Ok(()) => log::info!("is told to end; what can move waits for the next gateway"),
            Err(error) => log::warn!("nothing can be left to the next gateway: {error}"),
        }
        begun.is_ok()
    }

    /// Link groups that have come to rest leave this process. True: all have, or it has taken too long.
    pub(super) fn store(&mut self, now: Duration) -> bool {
        let Some(until) = self.storing.as_ref().map(|storing| storing.until) else { return false };
        let mut groups: BTreeSet<u32> = self.host.connections().map(|it| it.group_number).collect();
        let staying = self.staying_groups();
        groups.retain(|group| !staying.contains(group));
        let mut is_complete = true;
        for group in &groups {
            self.host.freeze(*group);
            let gone = self.leave(*group, now);
            is_complete &= gone.is_some();
            if let Some(storing) = &mut self.storing {
                storing.gone.extend(gone);
            }
        }
        let is_over = is_complete || until <= now;
        if is_over {
            // Their peers are told of their end.
            groups.iter().for_each(|group| self.host.thaw(*group, now));
        }
        is_over
    }

    /// What the next gateway is to read; `None`: nothing is left to it.
    pub(super) fn stored(&mut self) -> Option<OwnedFd> {
        let Storing { to, stored, gone, .. } = self.storing.take()?;
        let count: usize = gone.iter().map(|it| it.sessions.len()).sum();
        match self.fill_store(&gone, to.as_fd()) {
            Ok(()) => log::info!("{count} connections wait for the next gateway"),
            Err(error) => log::warn!("not all of {count} connections are kept: {error}"),
        }
        Some(stored)
    }

    fn fill_store(&mut self, gone: &[Gone], to: BorrowedFd<'_>) -> io::Result<()> {
        self.give_receivers(to)?;
        send(to, Message::Replaced, &[])?;
        gone.iter().try_for_each(|gone| gone.send(to))
    }
}

/// A queue that is written at one end and read at the other, with room for all that a gateway has.
fn queue() -> io::Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (to, stored) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
    // Beyond net.core.wmem_max with CAP_NET_ADMIN only.
    setsockopt(&to, SndBufForce, &STORE_LEN).or_else(|_| setsockopt(&to, SndBuf, &STORE_LEN))?;
    Ok((to, stored))
}
