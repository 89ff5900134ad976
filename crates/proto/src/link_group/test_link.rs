//! TEST LINK: does the peer still answer?
//!
//! A link over which nothing came for some time is tested, and so is one over which a flow had no
//! answer. The answer bears the same bytes, and comes soon, or the link has failed.
//!
//! RFC 7609 §C.7.1 takes a link for failed as soon as a flow over it has no answer. But Linux drops
//! requests that come while it is busy with another flow, over links that work; so here the link
//! gets this one more chance.
//!
//! *Source*: RFC 7609 §3.5.5.3, §A.3.8, §C.7.1.

use core::time::Duration;

use arrayvec::ArrayVec;
use sidestep_wire::LinkUserId;
use sidestep_wire::llc::{self, DeleteReason, TestLink};

use super::flow::Phase;
use super::limits::LINK_SLOTS;
use super::link::{Link, LinkState, Test};
use super::output::Event;
use super::state::LinkGroup;
use super::timers::{LLC_WAIT, ONLY_LINK_WAIT};

/// What a call bears, and no test does: they are numbered from 1 on.
const CALL: u64 = 0;

/// What is sent and comes back.
fn user_data(number: u64) -> [u8; 16] {
    u128::from(number).to_be_bytes()
}

/// Of which test that is, if it is of any.
fn number(user_data: &[u8; 16]) -> Option<u64> {
    u128::from_be_bytes(*user_data).try_into().ok()
}

impl LinkGroup {
    /// Anything has come over a link that is no LLC message: it works.
    pub fn handle_traffic(&mut self, link: LinkUserId, now: Duration) {
        if let Some(link) = self.link_mut(link) {
            link.heard(now);
        }
    }

    /// The device hears nothing over a link, though it has asked several times; it says so each time
    /// that it asks again.
    ///
    /// Either the path is cut, or the peer is busy or gone, and only where there is another link can
    /// the two be told apart: over that one the peer is called. If it is heard there while this one
    /// stays silent, this one has failed. So a cut path costs a fraction of a second and not the
    /// patience that the only link deserves.
    pub fn handle_silence(&mut self, link: LinkUserId, now: Duration) {
        let is_live = matches!(self.phase, Phase::Live(_));
        let is_active = |it: &&mut Link| is_live && it.state == LinkState::Active;
        let Some(silent) = self.link_mut(link).filter(is_active) else { return };
        let since = *silent.silent_since.get_or_insert(now);
        let others = self.active().filter(|other| other.user_id != link);
        let others: ArrayVec<_, LINK_SLOTS> =
            others.map(|other| (other.user_id, other.was_heard_since(since))).collect();
        match others.iter().any(|(_, was_heard)| *was_heard) {
            true => self.fail_link(link, DeleteReason::LOST_PATH, now),
            false => others.iter().for_each(|(other, _)| self.call(*other)),
        }
        self.settle(now);
    }

    /// Asks whether the peer still answers. Nothing follows if there is no answer.
    fn call(&mut self, link: LinkUserId) {
        let (form, role) = (self.form, llc::Role::Request);
        self.send(link, TestLink { form, role, user_data: user_data(CALL) });
    }

    /// When a link that stays silent is tested.
    pub(super) fn test_due(&self, link: &Link) -> Option<Duration> {
        let is_untested = link.state == LinkState::Active && link.test.is_none();
        self.local.keepalive.filter(|_| is_untested).map(|interval| link.last_received + interval)
    }

    /// Asks the peer over a link that works, to know that it has understood all that has come to its
    /// adapter over this link before: messages of one link are taken in their order, those of two are
    /// not. [`Event::Answered`] follows, or [`Event::LinkDown`].
    ///
    /// If there is no answer, but other messages come, that counts as one: a peer that has had
    /// [`LLC_WAIT`](super::timers) for it has understood it.
    pub fn probe(&mut self, link: LinkUserId, now: Duration) {
        if let Some(link) = self.link_mut(link) {
            link.probe_is_due = true;
        }
        self.doubt(link, now);
    }

    /// A flow had no answer over this link.
    pub(super) fn doubt(&mut self, user_id: LinkUserId, now: Duration) {
        let Some(link) = self.link(user_id) else { return };
        if link.state != LinkState::Active || link.test.is_some() {
            return;
        }
        self.tests += 1;
        let (form, role, number) = (self.form, llc::Role::Request, self.tests);
        self.send(user_id, TestLink { form, role, user_data: user_data(number) });
        if let Some(link) = self.link_mut(user_id) {
            let is_probe = core::mem::take(&mut link.probe_is_due);
            link.test = Some(Test { sent: now, until: now + LLC_WAIT, number, is_probe });
        }
    }

    /// A test is over, and the link works.
    fn tested(&mut self, user_id: LinkUserId, test: Test, now: Duration) {
        if test.is_probe {
            self.event(Event::Answered(user_id));
        }
        let Some(link) = self.link_mut(user_id) else { return };
        link.test = None;
        if link.probe_is_due {
            self.doubt(user_id, now);
        }
    }

    /// A test had no answer. If other messages came, the link works, and the answer waits behind
    /// them. The only link gets more time, unless a flow waits for the answer.
    pub(super) fn test_timed_out(&mut self, user_id: LinkUserId, test: Test, now: Duration) {
        let is_only = self.active().all(|link| link.user_id == user_id);
        let Some(link) = self.link_mut(user_id) else { return };
        let until = test.sent + ONLY_LINK_WAIT;
        if link.was_heard_since(test.sent) {
            self.tested(user_id, test, now);
        } else if is_only && !test.is_probe && now < until {
            link.test = Some(Test { until, ..test });
        } else {
            self.fail_link(user_id, DeleteReason::LOST_PATH, now);
        }
    }

    pub(super) fn take_test_link(&mut self, via: LinkUserId, message: &TestLink, now: Duration) {
        if message.role == llc::Role::Request {
            let response = TestLink { form: self.form, ..message.response() };
            self.send(via, response);
            return;
        }
        // One that no test waits for is late.
        let Some(test) = self.link(via).and_then(|link| link.test) else { return };
        match number(&message.user_data) {
            Some(answered) if answered == test.number => self.tested(via, test, now),
            Some(earlier) if earlier < test.number => {}
            _ => self.fail_link(via, DeleteReason::PROTOCOL_VIOLATION, now),
        }
    }
}
