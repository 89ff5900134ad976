//! How long things take, and what follows when they do not come.
//!
//! There is no list of timers: each deadline stands where what is waited for does, and the next one
//! is the earliest of them.

use core::time::Duration;

use arrayvec::ArrayVec;
use sidestep_wire::llc::{self, DeleteReason};
use sidestep_wire::{Diagnosis, LinkUserId};

use super::first_contact::FirstContact;
use super::link::Farewell;
use super::{Flow, LINK_SLOTS, Link, LinkGroup, Live, Phase, Role};

/// For the answer to an LLC message, as in Linux.
pub(super) const LLC_WAIT: Duration = Duration::from_secs(2);
/// For the answer to TEST LINK over the only link: a host that stands still for some seconds, as a virtual
/// machine that moves to another machine does, is not gone. Linux gives it [`LLC_WAIT`].
pub(super) const ONLY_LINK_WAIT: Duration = Duration::from_secs(15);
/// Client: for the CONFIRM LINK of a first contact. Longer than the server may need to notice that
/// it cannot send it, and to decline (RFC 7609 §C.7).
pub(super) const FIRST_CONFIRM_LINK_WAIT: Duration = Duration::from_secs(4);
/// Server: the CONFIRM LINK of a first contact is sent again after this, for it may have come while
/// the client was still busy with its Confirm. Linux does not look before.
pub(super) const CONFIRM_LINK_REPEAT: Duration = Duration::from_millis(500);
/// Client: for the server's first ADD LINK. Without it the group begins with one link.
pub(super) const FIRST_ADD_LINK_WAIT: Duration = Duration::from_secs(2);
/// Server: for the response to CONFIRM LINK over an added link, as in Linux.
pub(super) const CONFIRM_LINK_WAIT: Duration = Duration::from_secs(5);
/// Client: for that CONFIRM LINK. Longer than the server's, so that its DELETE LINK comes first.
pub(super) const CONFIRM_LINK_WAIT_CLIENT: Duration = Duration::from_secs(7);
/// For a device to make a queue pair, or to register memory.
pub(super) const DEVICE_WAIT: Duration = Duration::from_secs(5);
/// Client: for the server to delete a link when asked. The server may have another flow under way,
/// and Linux gives those that wait for their turn as long.
pub(super) const ASK_WAIT: Duration = Duration::from_secs(20);
/// How often DELETE LINK is sent before the link it goes over is taken for failed …
pub(super) const DELETE_LINK_TRIES: u8 = 2;
/// … and if other messages come over it. On a slow path an answer waits behind the data.
pub(super) const DELETE_LINK_TRIES_HEARD: u8 = 10;
/// How often a peer is told of an RMB, or of its end.
pub(super) const RKEY_TRIES: u8 = 3;
/// Between two of these, when it refused.
pub(super) const RKEY_RETRY: Duration = Duration::from_millis(250);
/// Server: after a link was lost, until another is tried.
pub(super) const ADD_LINK_SOON: Duration = Duration::from_secs(1);
/// Server: after a try in vain; twice as long after each further one …
pub(super) const ADD_LINK_RETRY_FIRST: Duration = Duration::from_secs(60);
/// … up to this.
pub(super) const ADD_LINK_RETRY_MAX: Duration = Duration::from_secs(3600);
/// A link has come: until connections move to it. Longer than [`ADD_LINK_SOON`], so a link that fails
/// and comes again and again is not used by more than the new ones.
pub(super) const BALANCE_AFTER: Duration = Duration::from_secs(2);
/// Connections that move at once …
pub(super) const BALANCE_STEP: usize = 8;
/// … and until the next do.
pub(super) const BALANCE_PAUSE: Duration = Duration::from_millis(100);
/// How long a group lives without connections at the server, as in Linux.
pub(super) const IDLE_SERVER: Duration = Duration::from_secs(600);
/// At the client: a little longer, so that the server ends it.
pub(super) const IDLE_CLIENT: Duration = Duration::from_secs(610);

const _: () = assert!(CONFIRM_LINK_WAIT_CLIENT.as_secs() > CONFIRM_LINK_WAIT.as_secs());
const _: () = assert!(BALANCE_AFTER.as_secs() > ADD_LINK_SOON.as_secs());
const _: () = assert!(IDLE_CLIENT.as_secs() > IDLE_SERVER.as_secs());
const _: () = assert!(
    ASK_WAIT.as_secs()
        > DEVICE_WAIT.as_secs() + 2 * LLC_WAIT.as_secs() + CONFIRM_LINK_WAIT.as_secs(),
    "a server that is adding a link gets to it"
);

/// How long a link of a group is silent before it is tested, unless an operator wants it otherwise.
pub const KEEPALIVE: Duration = Duration::from_secs(30);

impl LinkGroup {
    /// When [`handle_timeout`](Self::handle_timeout) is to be called; `None`: not before something
    /// else happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let of_phase = match self.phase {
            Phase::FirstContact(FirstContact::Confirming { until, repeat }) => {
                Some(repeat.map_or(until, |repeat| repeat.min(until)))
            }
            Phase::FirstContact(FirstContact::Connecting { until }) => Some(until),
            Phase::Ending(ending) => Some(ending.until),
            Phase::Live(Live { patience, .. }) => patience,
            Phase::FirstContact(_) | Phase::Ended => None,
        };
        if !matches!(self.phase, Phase::Live(_)) {
            return of_phase;
        }
        let of_flow = match &self.flow {
            Some(Flow::AddLink(flow)) => Some(flow.until),
            Some(Flow::DeleteLink(flow)) => Some(flow.until),
            None => None,
        };
        let of_links = self.links.iter().filter_map(|link| self.deadline_of(link)).min();
        let of_rkeys = self.rkey_flow.as_ref().map(|flow| flow.until).or(self.next_rkey_retry());
        let of_growth = self.growth.due().filter(|_| self.role == Role::Server && self.has_turn());
        [of_phase, of_flow, of_links, of_rkeys, of_growth, self.balance_due, self.idle_until]
            .into_iter()
            .flatten()
            .min()
    }

    fn deadline_of(&self, link: &Link) -> Option<Duration> {
        let of_farewell = match link.farewell {
            Some(Farewell::Asked { until, .. } | Farewell::Answered { until, .. }) => Some(until),
            Some(Farewell::Due(_)) | None => None,
        };
        let of_test = link.test.map(|test| test.until);
        of_farewell.or(of_test).or(self.test_due(link))
    }

    /// The time that [`poll_timeout`](Self::poll_timeout) has told may have come.
    pub fn handle_timeout(&mut self, now: Duration) {
        match self.phase {
            Phase::FirstContact(stage) => self.first_contact_timeout(stage, now),
            Phase::Ending(ending) if ending.until <= now => self.finish(),
            Phase::Live(_) => self.live_timeout(now),
            Phase::Ending(_) | Phase::Ended => {}
        }
        self.settle(now);
    }

    fn first_contact_timeout(&mut self, stage: FirstContact, now: Duration) {
        let (until, repeat) = match stage {
            FirstContact::Connecting { until } if until <= now => {
                return self.decline(Diagnosis::ERR_RDYLNK);
            }
            FirstContact::Confirming { until, .. } if until <= now => {
                return self.decline(Diagnosis::TIMEOUT_CL);
            }
            FirstContact::Confirming { until, repeat } => (until, repeat),
            _ => return,
        };
        let link = self.links.first().map(Link::user_id);
        if let (Some(link), Some(at)) = (link, repeat)
            && at <= now
        {
            self.confirm_link(link, llc::Role::Request);
            let repeat = Some(now + CONFIRM_LINK_REPEAT);
            self.phase = Phase::FirstContact(FirstContact::Confirming { until, repeat });
        }
    }

    fn live_timeout(&mut self, now: Duration) {
        if let Phase::Live(Live { patience, .. }) = &mut self.phase {
            patience.take_if(|until| *until <= now);
        }
        match &self.flow {
            Some(Flow::AddLink(flow)) if flow.until <= now => self.add_link_timed_out(now),
            Some(Flow::DeleteLink(flow)) if flow.until <= now => self.delete_link_timed_out(now),
            _ => {}
        }
        if self.rkey_flow.as_ref().is_some_and(|flow| flow.until <= now) {
            self.rkeys_timed_out(now);
        }
        let links: ArrayVec<_, LINK_SLOTS> = self.links.iter().map(Link::user_id).collect();
        for link in links {
            self.link_timeout(link, now);
        }
        if matches!(self.phase, Phase::Live(_)) {
            self.balance(now);
        }
        if self.idle_until.is_some_and(|until| until <= now) {
            self.begin_ending(DeleteReason::PROGRAM, true, false, now);
        }
    }

    fn link_timeout(&mut self, user_id: LinkUserId, now: Duration) {
        if !matches!(self.phase, Phase::Live(_)) {
            return;
        }
        let Some(link) = self.link(user_id) else { return };
        let is_test_due = self.test_due(link).is_some_and(|due| due <= now);
        match (link.farewell, link.test) {
            (Some(Farewell::Asked { until, .. }), _) if until <= now => {
                self.ask_timed_out(user_id, now);
            }
            (Some(Farewell::Answered { until, .. }), _) if until <= now => {
                self.remove_link(user_id);
            }
            (None, Some(test)) if test.until <= now => self.test_timed_out(user_id, test, now),
            (None, None) if is_test_due => self.doubt(user_id, now),
            _ => {}
        }
    }
}
