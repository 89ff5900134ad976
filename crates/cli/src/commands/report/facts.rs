//! What the page tells, as it was found.

use std::collections::BTreeMap;

use super::advice::Advice;
use super::gain::Gain;
use crate::commands::activity::Activity;
use crate::commands::record::Record;

/// All that the page tells.
pub(super) struct Facts {
    pub(super) host: String,
    pub(super) kernel: String,
    pub(super) at: String,
    /// What each program has had, by its name.
    pub(super) activities: BTreeMap<String, Activity>,
    /// What records say, in the order of time; empty: there are none.
    pub(super) timeline: Vec<Moment>,
    pub(super) gains: Vec<Gain>,
    /// Whether a measurement was given, whatever it fits.
    pub(super) is_measured: bool,
    pub(super) advice: Vec<Advice>,
    /// What is missing on the page.
    pub(super) notes: Vec<String>,
}

/// An interval of a record.
pub(super) struct Moment {
    pub(super) at: String,
    pub(super) seconds: f64,
    pub(super) ring_bytes: u64,
    pub(super) tcp_bytes: u64,
}

impl Moment {
    /// What all programs sent in it.
    pub(super) fn of(record: &Record) -> Self {
        let mut all = Activity::default();
        record.programs.values().for_each(|activity| all.add(activity));
        let ring_bytes = all.ring_bytes_sent;
        let tcp_bytes = all.bytes_sent.saturating_sub(ring_bytes);
        Self { at: record.at.clone(), seconds: record.seconds, ring_bytes, tcp_bytes }
    }
}
