//! How long a missing packet is waited for before the peer is told.
//!
//! It may only have been overtaken: telling that costs a packet, and the peer slows down as if it had
//! been lost. So the network teaches, in the manner of RFC 8985 §6.2: if a packet that was told to be
//! missing comes twice, it was told too soon.

use std::time::Duration;

use sidestep_wire::Psn;

/// What it begins with, and at least is. A host that is busy with a stream is still awake then: with 100 µs
/// all threads of both sides had fallen asleep when the packet was told, and a stream that loses one in a
/// thousand had 0.34 times the bytes of one that loses none, instead of 0.53.
const LEAST: Duration = Duration::from_micros(20);
const MOST: Duration = Duration::from_millis(5);
/// After so many that were really missing less will do.
const CONFIRMED: u32 = 16;

#[derive(Debug)]
pub(super) struct Patience {
    time: Duration,
    /// The packet that was told last.
    told: Option<Psn>,
    /// How many were told, none of them too soon as far as is known.
    count: u32,
}

impl Patience {
    pub(super) const NEW: Self = Self { time: LEAST, told: None, count: 0 };

    pub(super) const fn time(&self) -> Duration {
        self.time
    }

    /// A packet is told to be missing.
    pub(super) fn tell(&mut self, psn: Psn) {
        self.told = Some(psn);
        self.count += 1;
        if self.count >= CONFIRMED {
            self.count = 0;
            self.time = (self.time / 2).max(LEAST);
        }
    }

    /// A packet has come again.
    pub(super) fn learn(&mut self, psn: Psn) {
        if self.told.take_if(|told| *told == psn).is_some() {
            self.count = 0;
            self.time = (self.time * 2).min(MOST);
        }
    }
}
