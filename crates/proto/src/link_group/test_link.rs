//! TEST LINK: is somebody there?
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

use sidestep_wire::LinkUserId;
use sidestep_wire::llc::{self, DeleteReason, TestLink};

use super::link::Test;
use super::timers::LLC_WAIT;
use super::{Link, LinkGroup, LinkState};

impl LinkGroup {
    /// Anything has come over a link that is no LLC message: it works.
    pub fn handle_traffic(&mut self, link: LinkUserId, now: Duration) {
        if let Some(link) = self.link_mut(link) {
            link.last_received = now;
        }
    }

    /// When a link that stays silent is tested.
    pub(super) fn test_due(&self, link: &Link) -> Option<Duration> {
        let is_untested = link.state == LinkState::Active && link.test.is_none();
        self.local.keepalive.filter(|_| is_untested).map(|interval| link.last_received + interval)
    }

    /// A flow had no answer over this link.
    pub(super) fn doubt(&mut self, user_id: LinkUserId, now: Duration) {
        let Some(link) = self.link(user_id) else { return };
        if link.state != LinkState::Active || link.test.is_some() {
            return;
        }
        self.tests += 1;
        let mut user_data = [0; 16];
        user_data[8..].copy_from_slice(&self.tests.to_be_bytes());
        self.send(user_id, TestLink { form: self.form, role: llc::Role::Request, user_data });
        if let Some(link) = self.link_mut(user_id) {
            link.test = Some(Test { until: now + LLC_WAIT, user_data });
        }
    }

    pub(super) fn take_test_link(&mut self, via: LinkUserId, message: &TestLink, now: Duration) {
        if message.role == llc::Role::Request {
            let response = TestLink { form: self.form, ..message.response() };
            self.send(via, response);
            return;
        }
        // One that nobody waits for is late.
        let Some(link) = self.link_mut(via) else { return };
        if let Some(test) = link.test.take()
            && test.user_data != message.user_data
        {
            self.fail_link(via, DeleteReason::PROTOCOL_VIOLATION, now);
        }
    }
}
