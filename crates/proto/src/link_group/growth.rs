//! Growth: when another link is tried, and why.

use core::time::Duration;

use super::link::AdapterId;
use super::timers::{ADD_LINK_RETRY_FIRST, ADD_LINK_RETRY_MAX, ADD_LINK_SOON};

/// When another link is tried.
#[derive(Debug, Clone, Default)]
pub(super) struct Growth {
    /// Server: not before then; `None`: not until something happens.
    pub(super) due: Option<Duration>,
    /// Tries in a row that came to nothing.
    pub(super) failures: u32,
    /// Server: the client's hints bring nothing about before then.
    pub(super) deaf_until: Duration,
    /// Client: an adapter of which the server has to be told.
    pub(super) fresh: Option<AdapterId>,
}

impl Growth {
    pub(super) fn first_contact(&mut self, now: Duration) {
        self.due = Some(now);
    }

    pub(super) fn adapter_up(&mut self, adapter: AdapterId, now: Duration) {
        self.fresh = Some(adapter);
        self.due = Some(now);
    }

    /// RFC 7609 §C.8: the retry timer, the longer the more often it was in vain. What has happened
    /// during the try may be a reason for an earlier one.
    pub(super) fn failed(&mut self, now: Duration) {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let wait = ADD_LINK_RETRY_FIRST.saturating_mul(factor).min(ADD_LINK_RETRY_MAX);
        self.failures = self.failures.saturating_add(1);
        self.due = Some(self.due.map_or(now + wait, |due| due.min(now + wait)));
    }

    pub(super) fn begun(&mut self, now: Duration) {
        self.due = None;
        self.deaf_until = now + ADD_LINK_SOON;
    }

    /// A client that hints and rejects, and hints and rejects, does not keep us busy.
    pub(super) fn hinted(&mut self, now: Duration) {
        self.due = Some(now.max(self.deaf_until));
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Unless it is tried sooner anyway. Not at once: a link that comes and fails again and again
    /// is not to keep both hosts busy.
    pub(super) fn link_lost(&mut self, now: Duration) {
        let soon = now + ADD_LINK_SOON;
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }

    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    pub(super) const fn due(&self) -> Option<Duration> {
        self.due
    }
}
