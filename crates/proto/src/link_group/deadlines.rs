//! When something is due, and what follows when what is waited for does not come.
//!
//! There is no list of timers: each deadline stands where what is waited for does, and the next one
//! is the earliest of them.

use core::time::Duration;

use arrayvec::ArrayVec;
use sidestep_wire::llc::{self, DeleteReason};
use sidestep_wire::{Diagnosis, LinkUserId};

use super::flow::{FirstContact, Flow, Live, Phase};
use super::limits::LINK_SLOTS;
use super::link::{Farewell, Link};
use super::state::{LinkGroup, Role};
use super::timers::CONFIRM_LINK_REPEAT;

impl LinkGroup {
    /// When [`handle_timeout`](Self::handle_timeout) must be called; `None`: not before something
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
