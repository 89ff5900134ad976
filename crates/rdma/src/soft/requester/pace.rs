//! How long answers take, and so how long their absence is ordinary.
//!
//! ```text
//!   sent ──── answers take so long ───── hurry ───── 2 hurries ─── … ──── silence
//!                                          ask         ask                 counted, told
//! ```
//!
//! Answers to packets that were sent once are timed, as in RFC 6298. When one is late by that, the
//! oldest packet is sent again, in the manner of RFC 8985 §7: it may have been the last one and lost,
//! and then no answer would say so. That costs one packet. Silence is long beyond doubt, since it is what
//! a link is given up for.

use std::time::Duration;

use sidestep_wire::Psn;

/// The time after which silence means loss: before the first answer, and at least and at most what
/// is learnt from answers. One of Linux may take 55 ms.
pub(in super::super) const SILENCE_FIRST: Duration = Duration::from_millis(40);
const SILENCE_MIN: Duration = Duration::from_millis(30);
pub(super) const SILENCE_MAX: Duration = Duration::from_millis(640);
/// What is added to the time that answers take, at least.
const SILENCE_MARGIN: Duration = Duration::from_millis(10);
/// The same before it is asked for the first time. A peer may have to wait so long for a processor.
const HURRY_MARGIN: Duration = Duration::from_millis(2);
/// As long as silence lasts at most.
const HURRY_DOUBLINGS_MAX: u32 = 9;

/// How long answers take, as far as is known.
#[derive(Debug)]
pub(super) struct Pace {
    /// Smoothed, and how much they differ.
    known: Option<(Duration, Duration)>,
    /// What counts instead, until an answer can be timed again.
    doubted: Option<Duration>,
    /// How often it was asked since an answer was timed.
    asked: u32,
    /// The packet that is being timed, and when it was sent.
    timed: Option<(Psn, Duration)>,
}

impl Pace {
    /// Nothing was timed.
    pub(super) const UNKNOWN: Self = Self { known: None, doubted: None, asked: 0, timed: None };

    /// A packet that asks for an answer leaves for the first time.
    pub(super) const fn begin(&mut self, psn: Psn, now: Duration) {
        if self.timed.is_none() {
            self.timed = Some((psn, now));
        }
    }

    /// Everything before this PSN has arrived.
    pub(super) fn answered(&mut self, psn: Psn, now: Duration) {
        let Some((_, sent)) = self.timed.take_if(|(timed, _)| timed.since(psn) < 0) else { return };
        let took = now.saturating_sub(sent);
        self.doubted = None;
        self.asked = 0;
        self.known = Some(match self.known {
            None => (took, took / 2),
            Some((mean, deviation)) => {
                ((mean * 7 + took) / 8, (deviation * 3 + mean.abs_diff(took)) / 4)
            }
        });
    }

    /// Packets are sent again, and which one an answer is for cannot be known.
    pub(super) const fn give_up(&mut self) {
        self.timed = None;
    }

    /// An answer has come only after a probe. It was lost, or it takes longer than was thought; if
    /// nothing changed, none could ever be timed.
    pub(super) fn doubt(&mut self) {
        self.doubted = Some((self.silence() * 3 / 2).min(SILENCE_MAX));
    }

    pub(super) fn silence(&self) -> Duration {
        let learnt = self.known.map_or(SILENCE_FIRST, |(mean, deviation)| {
            let silence = mean + (deviation * 4).max(SILENCE_MARGIN);
            silence.clamp(SILENCE_MIN, SILENCE_MAX)
        });
        self.doubted.unwrap_or(learnt)
    }

    /// The oldest packet is sent again because an answer is late. If it was only late, the next one is
    /// given more time.
    pub(super) const fn ask(&mut self) {
        self.asked += 1;
    }

    /// After this time an answer is late; `None`: unknown.
    pub(super) fn hurry(&self) -> Option<Duration> {
        let (mean, deviation) = self.known?;
        let hurry = mean + (deviation * 4).max(HURRY_MARGIN);
        Some(hurry * 2u32.pow(self.asked.min(HURRY_DOUBLINGS_MAX)))
    }

    /// How long answers take.
    pub(super) fn mean(&self) -> Option<Duration> {
        self.known.map(|(mean, _)| mean)
    }
}
