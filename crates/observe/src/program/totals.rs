//! Sums over all connections of a program: those that have ended and those that are open.

use super::counters::{Counters, Handshakes, Rings, Sizes, load};
use super::fallback::Fallback;
use core::sync::atomic::Ordering;
use sidestep_device::state::{RING_SIZES, State, mode};
use sidestep_device::untracked;
use sidestep_proto::fallback::{ProgramDid, Reason};

/// Connections of a program, those that have ended included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections of which bytes went through shared memory.
    pub smc: u64,
    /// Connections to other hosts that were handed to the gateway: by SMC-R, if it came to that.
    pub handed_over: u64,
    /// Connections on TCP for a reason, with their number; the reasons all differ.
    pub fallbacks: Vec<(Fallback, u64)>,
    /// Connections on TCP without a reason: where they go is not decided yet, or no
    /// byte went through shared memory before they ended.
    pub undecided: u64,
    /// Sums over all of them.
    pub counters: Counters,
    /// Lengths of what was sent.
    pub sent: Sizes,
    /// Lengths of what was received.
    pub received: Sizes,
    /// Attempts to move them.
    pub handshakes: Handshakes,
    /// Rings they were given, by length: see [`Rings::len_at`].
    pub rings: [Rings; RING_SIZES],
    /// Nanoseconds for which threads that could run have waited for a CPU: all threads that
    /// the program has now. `None`: the kernel does not say, or
    /// [`Snapshot::find_run_queue_delays`](crate::Snapshot::find_run_queue_delays) was not called.
    pub run_queue_delay_ns: Option<u64>,
}

impl Totals {
    /// Connections whose bytes went, or have gone so far, by TCP alone.
    #[must_use]
    pub fn tcp(&self) -> u64 {
        let fallbacks = self.fallbacks.iter().map(|(_, connections)| *connections);
        fallbacks.fold(self.undecided, u64::saturating_add)
    }

    /// What two programs had together.
    pub fn add(&mut self, other: &Self) {
        self.smc = self.smc.saturating_add(other.smc);
        self.handed_over = self.handed_over.saturating_add(other.handed_over);
        self.undecided = self.undecided.saturating_add(other.undecided);
        for &(fallback, connections) in &other.fallbacks {
            self.add_fallback(fallback, connections);
        }
        self.counters.add(&other.counters);
        self.sent += other.sent;
        self.received += other.received;
        self.handshakes += other.handshakes;
        for (sum, rings) in self.rings.iter_mut().zip(other.rings) {
            *sum += rings;
        }
        let delays = [self.run_queue_delay_ns, other.run_queue_delay_ns];
        self.run_queue_delay_ns = delays.into_iter().flatten().reduce(u64::saturating_add);
    }

    fn add_fallback(&mut self, fallback: Fallback, connections: u64) {
        match self.fallbacks.iter_mut().find(|(known, _)| *known == fallback) {
            Some((_, sum)) => *sum = sum.saturating_add(connections),
            None => self.fallbacks.push((fallback, connections)),
        }
    }

    fn add_tcp(&mut self, reason: Reason, connections: u64) {
        match reason {
            _ if connections == 0 => {}
            Reason::None => self.undecided = self.undecided.saturating_add(connections),
            reason => self.add_fallback(Fallback { reason }, connections),
        }
    }
}

/// Connections that have ended on TCP, by reason. `untracked` is what was seen at the places of
/// connections without a slot.
pub(crate) fn ended_on_tcp(state: &State, untracked: &[untracked::Seen]) -> Vec<(Reason, u64)> {
    let grown = |number: usize| {
        let ended = state.header().ended.iter().map(|ended| &ended.tcp[number]);
        ended.fold(0u64, |sum, n| sum.saturating_add(load(n)))
    };
    let untracked: u64 = untracked
        .iter()
        .flat_map(|(_, ended)| ended)
        .map(|ended| u64::from(ended.connections))
        .sum();
    let ended = (0..=u8::MAX).map(|code| {
        let reason = Reason::of(code, 0);
        let more = if reason == ProgramDid::TooShort.into() { untracked } else { 0 };
        (reason, grown(usize::from(code)).saturating_add(more))
    });
    ended.filter(|(_, connections)| *connections > 0).collect()
}

/// All connections of a state: those that have ended and those in its slots.
pub(crate) fn totals(state: &State, untracked: &[untracked::Seen]) -> Totals {
    let mut totals = Totals {
        handshakes: Handshakes::read(&state.header().handshakes),
        rings: Rings::read(&state.header().rings),
        ..Totals::default()
    };
    for ended in &state.header().ended {
        totals.smc = totals.smc.saturating_add(load(&ended.smc));
        totals.handed_over = totals.handed_over.saturating_add(load(&ended.handed_over));
        totals.counters.add(&Counters::read(&ended.counters));
        totals.sent += Sizes::read(&ended.sent);
        totals.received += Sizes::read(&ended.received);
    }
    for (reason, connections) in ended_on_tcp(state, untracked) {
        totals.add_tcp(reason, connections);
    }
    for slot in state.slots() {
        // Acquire: pairs with the Release that sets the mode after what belongs to it.
        if slot.mode.load(Ordering::Acquire) == mode::FREE {
            continue;
        }
        if slot.is_handed_over() {
            totals.handed_over = totals.handed_over.saturating_add(1);
        } else if slot.has_used_rings() {
            totals.smc = totals.smc.saturating_add(1);
        } else if slot.is_counted_here() {
            totals.add_tcp(Reason::of(slot.reason_code(), 0), 1);
        }
        totals.counters.add(&Counters::read(&slot.counters));
        totals.sent += Sizes::read(&slot.sent);
        totals.received += Sizes::read(&slot.received);
    }
    for (open, ended) in untracked {
        if open.is_some() {
            totals.add_tcp(ProgramDid::TooShort.into(), 1);
        }
        let carried = [open.map(|(_, traffic)| traffic), ended.map(|ended| ended.traffic)];
        for traffic in carried.into_iter().flatten() {
            totals.counters.add(&Counters::of_untracked(traffic));
            totals.sent += Sizes::of_untracked(traffic.sent);
            totals.received += Sizes::of_untracked(traffic.received);
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_proto::fallback::{Lack, OperatorSaid};

    fn fallback(reason: Reason) -> Fallback {
        Fallback { reason }
    }

    #[test]
    fn totals_of_two_programs_add_up() {
        let of = |smc, fallbacks: &[(Reason, u64)], spin_ns| Totals {
            smc,
            handed_over: 2 * smc,
            fallbacks: fallbacks.iter().map(|(reason, n)| (fallback(*reason), *n)).collect(),
            undecided: smc,
            counters: Counters { spin_ns, ..Counters::default() },
            run_queue_delay_ns: Some(spin_ns),
            ..Totals::default()
        };
        let mut sum = of(1, &[(Reason::Lack(Lack::NoSlot), 2)], 3);
        sum.add(&of(
            10,
            &[(Reason::Operator(OperatorSaid::OtherUser), 30), (Reason::Lack(Lack::NoSlot), 20)],
            u64::MAX,
        ));
        let both =
            [(Reason::Lack(Lack::NoSlot), 22), (Reason::Operator(OperatorSaid::OtherUser), 30)];
        assert_eq!(sum, of(11, &both, u64::MAX));
        assert_eq!(sum.tcp(), 63);
        sum.add(&Totals::default());
        assert_eq!(sum.run_queue_delay_ns, Some(u64::MAX), "of one nothing is known");
        assert_eq!(
            sum.fallbacks[1].0.to_string(),
            "0x03000000 the peer runs as another user or as root elsewhere, with whom no memory is shared"
        );
    }
}
