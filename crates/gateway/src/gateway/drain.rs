//! A gateway that gives its place away, or is told to end, and drains; and those before it that drain.
//!
//! What is handed over, and why, says [`succession`](crate::succession).

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use sidestep_rdma::soft::Succession;
use sidestep_wire::hand_over::{Message, Relay};

use super::Gateway;
use crate::control::ControlSocket;
use crate::foreign::RIGHTS_MAX;
use crate::lessons::Lessons;
use crate::nic::Nic;
use crate::poller::Source;
use crate::succession::{Departure, Drain, Predecessor, Progress, send};

impl Gateway {
    /// Forgets the gateways before this one that have ended.
    pub(super) fn look_at_predecessors(&mut self) {
        self.predecessors.retain(|predecessor| {
            let lives = !predecessor.has_ended();
            if !lives {
                // Those that come after this one have it, too: closing ours would not take it out of the set.
                self.poller.forget(predecessor);
                log::info!("process {}, a gateway before this one, has ended", predecessor.process);
            }
            lives
        });
        // It may have spoken to the one that has ended.
        if let Some(latest) = self.predecessors.first() {
            self.poller.forget(latest);
            let _ = self.poller.watch(latest, Source::Predecessor);
        }
    }
}

impl Gateway {
    /// Gives this place to who calls by this line of the control socket. If that fails, nothing has changed.
    pub(super) fn give_way(&mut self, number: u64, now: Duration) {
        if let Err(error) = self.try_give_way(number, now) {
            log::warn!("stays the gateway of this network namespace: {error}");
            self.control.dismiss(number);
        }
    }

    fn try_give_way(&mut self, number: u64, now: Duration) -> io::Result<()> {
        let line = self.control.line(number).ok_or(io::ErrorKind::NotConnected)?;
        if !self.control.is_own(number) {
            return Err(io::Error::other("who wants to replace it is another user"));
        }
        let successor = line.try_clone_to_owned()?;
        self.poller.watch(&successor, Source::Successor)?;
        self.part_with_names(|this| {
            this.give_names(Some(number), successor.as_fd())?;
            this.give_receivers(successor.as_fd())?;
            send(successor.as_fd(), Message::Replaced, &[])
        })?;
        self.begin_drain(self.settings.drain_limit.map(|limit| now + limit), Some(successor));
        Ok(())
    }

    /// Has no names any more, once they are given. If that fails, nothing has changed.
    pub(super) fn part_with_names(
        &mut self,
        give: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        let control = ControlSocket::open_replaced(&self.poller)?;
        let lessons = Lessons::new()?;
        if let Err(error) = give(self) {
            control.leave(&self.poller);
            return Err(error);
        }
        std::mem::replace(&mut self.control, control).leave(&self.poller);
        if let Some(listener) = self.listener.take() {
            listener.leave(&self.poller);
        }
        self.lessons = lessons;
        Ok(())
    }

    /// Gives away where programs come to, and who has come. The lines of all go, but that of this caller.
    pub(super) fn give_names(&mut self, caller: Option<u64>, to: BorrowedFd<'_>) -> io::Result<()> {
        let listener = self.listener.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let names = [
            self.control.listener(),
            listener.listener(),
            self.lessons.file(),
            self.lessons.read_only(),
        ];
        send(to, Message::Names(std::process::id()), &names)?;
        for Predecessor { line, process, .. } in &self.predecessors {
            send(to, Message::Before(*process), &[line.as_fd()])?;
        }
        let lines: Vec<_> = self.control.lines_but(caller).collect();
        for some in lines.chunks(RIGHTS_MAX) {
            send(to, Message::Lines, some)?;
        }
        let callers: Vec<_> = listener.callers().collect();
        for some in callers.chunks(RIGHTS_MAX) {
            send(to, Message::Callers, some)?;
        }
        for offer in listener.offers() {
            let message = Message::Waiting(offer.hand_over(), offer.uid);
            send(to, message, &[offer.connection.as_fd()])?;
        }
        Ok(())
    }

    /// Gives away what comes for soft RNICs.
    pub(super) fn give_receivers(&mut self, to: BorrowedFd<'_>) -> io::Result<()> {
        for place in &self.places {
            let Some(Nic::Soft(rnic, _)) = self.host.device(place.id) else { continue };
            let (address, Succession { receiver, relays }) = (place.address, rnic.give_way()?);
            send(to, Message::Receiver(address), &[receiver.as_fd()])?;
            for (lane, relay) in &relays {
                send(to, Message::Relay(Relay { address, lane: *lane }), &[relay.as_fd()])?;
            }
        }
        Ok(())
    }

    /// From now on there are no new connections by SMC-R.
    pub(super) fn begin_drain(&mut self, until: Option<Duration>, successor: Option<OwnedFd>) {
        let left = self.sessions.len();
        match &successor {
            Some(_) => log::info!(
                "another process is the gateway now; drains: {left} connections are left"
            ),
            None => log::info!("is told to end; drains: {left} connections are left"),
        }
        self.drain = Some(Drain {
            until,
            successor,
            told: usize::MAX,
            logged: left,
            departure: Departure::Unasked,
            behind: 0,
            refused: BTreeSet::new(),
        });
    }

    /// Tells how far draining has come.
    pub(super) fn tell_drain(&mut self, tell: &mut dyn FnMut(Progress)) {
        let left = self.sessions.len();
        let Some(drain) = &mut self.drain else { return };
        if drain.told != left {
            drain.told = left;
            tell(Progress { left, is_replaced: drain.successor.is_some() });
        }
        if left <= drain.logged / 2 && drain.logged > 0 {
            drain.logged = left;
            log::info!("drains: {left} connections are left");
        }
    }

    /// Whether another process has its place.
    pub(super) fn is_replaced(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.successor.is_some())
    }

    /// Whether draining is over: nothing is left, or it has taken too long.
    pub(super) fn is_drained(&self, now: Duration) -> bool {
        let Some(drain) = &self.drain else { return false };
        let is_none_left = self.sessions.is_empty() && !self.is_something_away();
        is_none_left || drain.until.is_some_and(|until| until <= now)
    }
}
