//! What was decided about connections in the last hour: by whom they were served, in which
//! role, and why they stayed on TCP, if they did.
//!
//! Connections that have ended leave their slots; `sidestep why` is asked about them
//! afterwards. Each decision counts in one entry, in the counter of the five minutes in which
//! it was made. The counter carries the number of these minutes, so an old one is known as old
//! and begins anew, and nothing has to be cleaned up. The time is the kernel's coarse clock,
//! read without a system call, at decisions only.
//!
//! Threads on several CPUs count the same kind at once, so there are [`LISTS`] tables, and
//! a reader adds them up.

use crate::counts::LISTS;
use crate::keyed::{self, Entry, Key, Label, Server};
use crate::sys;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sidestep_derive::Shared;

/// Decisions of one kind.
#[derive(Shared)]
#[repr(C, align(64))]
pub struct Decided {
    label: Label,
    /// Second of the last one, by [`sys::coarse_seconds`].
    last: AtomicU32,
    /// Each a period and, in its lower half, the decisions of that period.
    counts: [AtomicU64; PERIODS],
}

/// All of them.
#[derive(Shared)]
#[repr(C)]
pub struct History {
    tables: [[Decided; ENTRIES]; LISTS],
    /// Those that found a table full.
    untold: Decided,
}

/// Kinds of decisions that a table tells apart.
pub const ENTRIES: usize = 256;
/// Counters of a kind.
const PERIODS: usize = 12;
/// Length of a period in seconds: all of them are an hour.
pub const PERIOD: u32 = 300;

const _: () = assert!(PERIODS as u32 * PERIOD == 3600);
const _: () = assert!(size_of::<Decided>() == 128);

/// A kind of decisions: all that `sidestep why` tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Address of the server's end, as in a slot.
    pub server_ip: [u64; 2],
    /// Port of the server's end.
    pub server_port: u16,
    /// 4 or 6; 0: the address is not known.
    pub family: u8,
    /// This end accepted.
    pub is_server: bool,
    /// What was decided.
    pub verdict: Verdict,
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Shared memory.
    Moved,
    /// Of another host: it goes by the gateway.
    HandedOver,
    /// Nothing: it ended before.
    Undecided,
    /// TCP, for the reason with this code and this detail.
    Tcp {
        /// `proto::fallback::Reason`; neither 0 nor one of the last two.
        reason: u8,
        /// 0: none.
        detail: u32,
    },
}

/// Where the parts of a verdict lie in the word of its key.
const REASON_AT: u32 = 16;
const DETAIL_AT: u32 = 32;
/// Codes of verdicts that are no reasons.
const MOVED: u8 = 255;
const HANDED_OVER: u8 = 254;
const UNDECIDED: u8 = 0;

impl Kind {
    fn key(&self) -> Key {
        let (reason, detail) = match self.verdict {
            Verdict::Moved => (MOVED, 0),
            Verdict::HandedOver => (HANDED_OVER, 0),
            Verdict::Undecided => (UNDECIDED, 0),
            Verdict::Tcp { reason, detail } => (reason, detail),
        };
        let verdict = u64::from(reason) << REASON_AT | u64::from(detail) << DETAIL_AT;
        let Self { server_ip, server_port, family, is_server, .. } = *self;
        Server { ip: server_ip, port: server_port, family, is_ours: is_server }.key(verdict)
    }

    fn of(key: Key) -> Self {
        let (Server { ip, port, family, is_ours }, word) = (Server::of(&key), key.word);
        Self {
            server_ip: ip,
            server_port: port,
            family,
            is_server: is_ours,
            verdict: match (word >> REASON_AT) as u8 {
                MOVED => Verdict::Moved,
                HANDED_OVER => Verdict::HandedOver,
                UNDECIDED => Verdict::Undecided,
                reason => Verdict::Tcp { reason, detail: (word >> DETAIL_AT) as u32 },
            },
        }
    }
}

/// How often, and when last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    /// Decisions of the last hour, in steps of five minutes.
    pub in_last_hour: u64,
    /// Seconds since the last one.
    pub last_ago: u32,
}

impl History {
    /// Writes a decision down, by a thread on this CPU.
    pub fn note(&self, kind: &Kind, cpu: usize) {
        self.note_all(kind, cpu, (1, sys::coarse_seconds()));
    }

    /// Writes so many decisions down, all of one period; with the second of the last one.
    pub fn note_all(&self, kind: &Kind, cpu: usize, (decisions, last): (u32, u32)) {
        let entry = keyed::enter(&self.tables[cpu % LISTS], &kind.key());
        entry.unwrap_or(&self.untold).count(decisions, last);
    }

    /// What was decided in the last hour; one kind may come several times.
    pub fn recent(&self) -> impl Iterator<Item = (Kind, Recent)> {
        let now = sys::coarse_seconds();
        let told = move |entry: &Decided| Some((Kind::of(entry.label.key()?), entry.recent(now)));
        self.tables
            .as_flattened()
            .iter()
            .filter_map(told)
            .filter(|(_, recent)| recent.in_last_hour > 0)
    }

    /// Decisions for which there was no place.
    pub fn untold(&self) -> Recent {
        self.untold.recent(sys::coarse_seconds())
    }
}

impl Decided {
    fn count(&self, decisions: u32, last: u32) {
        let period = last / PERIOD;
        let counter = &self.counts[period as usize % PERIODS];
        let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
            let (of, n) = ((old >> 32) as u32, old as u32);
            // A later period: another thread's clock was read after ours.
            Some(match of >= period {
                true => u64::from(of) << 32 | u64::from(n.saturating_add(decisions)),
                false => u64::from(period) << 32 | u64::from(decisions),
            })
        });
        // Once a second: what only tells apart stays in the caches of all CPUs meanwhile.
        if self.last.load(Ordering::Relaxed) < last {
            self.last.store(last, Ordering::Relaxed);
        }
    }

    fn recent(&self, now: u32) -> Recent {
        let counts = self.counts.iter().map(|counter| counter.load(Ordering::Relaxed));
        let recent = counts.filter(|count| is_recent(now, (count >> 32) as u32));
        Recent {
            in_last_hour: recent.map(|count| u64::from(count as u32)).sum(),
            last_ago: now.saturating_sub(self.last.load(Ordering::Relaxed)),
        }
    }
}

impl Recent {
    /// Decisions of one period, and the second of the last one.
    #[must_use]
    pub fn of(decisions: u32, last: u32) -> Self {
        let now = sys::coarse_seconds();
        let in_last_hour = if is_recent(now, last / PERIOD) { u64::from(decisions) } else { 0 };
        Self { in_last_hour, last_ago: now.saturating_sub(last) }
    }
}

/// Whether a period is one of the last hour.
fn is_recent(now: u32, period: u32) -> bool {
    (now / PERIOD).saturating_sub(period) < PERIODS as u32
}

impl Entry for Decided {
    fn label(&self) -> &Label {
        &self.label
    }

    fn is_outdated(&self) -> bool {
        self.recent(sys::coarse_seconds()).in_last_hour == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::valid::zeroed;
    use std::boxed::Box;
    use std::vec::Vec;

    fn history() -> Box<History> {
        zeroed()
    }

    fn kind(server_port: u16, verdict: Verdict) -> Kind {
        Kind { server_ip: [0x7f00_0001, 0], server_port, family: 4, is_server: true, verdict }
    }

    #[test]
    fn a_kind_survives_its_key() {
        let declined = Verdict::Tcp { reason: 7, detail: 0xffff_ffff };
        for verdict in [Verdict::Moved, Verdict::HandedOver, Verdict::Undecided, declined] {
            for (family, is_server) in [(4, true), (6, false), (0, true)] {
                let kind = Kind {
                    server_ip: [1 << 63, u64::MAX],
                    server_port: 65_535,
                    family,
                    is_server,
                    verdict,
                };
                assert_eq!(Kind::of(kind.key()), kind);
                assert!(kind.key().word != 0 && kind.key().word != u64::MAX);
            }
        }
    }

    #[test]
    fn decisions_are_counted_by_kind() {
        let history = history();
        let plain = Verdict::Tcp { reason: 3, detail: 0 };
        for (kind, n) in [(kind(80, plain), 5), (kind(80, Verdict::Moved), 2)] {
            (0..n).for_each(|cpu| history.note(&kind, cpu % 2));
        }
        let mut found: Vec<_> =
            history.recent().map(|(kind, recent)| (kind.verdict, recent.in_last_hour)).collect();
        found.sort_by_key(|(_, n)| *n);
        let (moved, plain) = ((Verdict::Moved, 1), [(plain, 2), (plain, 3)]);
        assert_eq!(found, [moved, moved, plain[0], plain[1]]);
        assert_eq!(history.untold().in_last_hour, 0);
    }

    #[test]
    fn an_hour_later_nothing_is_left() {
        let decided = &history().tables[0][0];
        let count = |now| decided.recent(now).in_last_hour;
        let begin = 100 * PERIOD;
        decided.count(1, begin);
        decided.count(1, begin + 7);
        decided.count(1, begin + PERIOD);
        assert_eq!(decided.recent(begin + PERIOD + 9), Recent { in_last_hour: 3, last_ago: 9 });
        assert_eq!(count(begin + 3600 - 1), 3);
        assert_eq!(count(begin + 3600), 1);
        assert_eq!(count(begin + 3600 + PERIOD), 0);
        // The same counter serves again.
        decided.count(1, begin + 3600);
        assert_eq!(count(begin + 3600), 2);
        // A thread that read its clock before that.
        decided.count(1, begin);
        assert_eq!(count(begin + 3600), 3);
    }

    #[test]
    fn what_finds_no_place_is_counted_together() {
        let history = history();
        for port in 0..10_000 {
            history.note(&kind(port, Verdict::Undecided), 0);
        }
        let told: u64 = history.recent().map(|(_, recent)| recent.in_last_hour).sum();
        assert!(told <= ENTRIES as u64);
        assert_eq!(told + history.untold().in_last_hour, 10_000);
    }
}
