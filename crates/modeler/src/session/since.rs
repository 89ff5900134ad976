//! What happened between two looks at a host.

use crate::control::{Evidence, MachineCpu, SideSample};

impl SideSample {
    /// What was used since an earlier sample of the same workers.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            usage: self.usage - earlier.usage,
            evidence: self.evidence.since(&earlier.evidence),
            machine: self.machine.since(&earlier.machine),
        }
    }
}

impl Evidence {
    /// Spinning, sleeping and waking since an earlier look at the same processes.
    ///
    /// Connections and the reasons for fallbacks stay whole: they say what the workers
    /// of this run are connected by, and they were connected before the measured time
    /// began.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            smc_connections: self.smc_connections,
            tcp_connections: self.tcp_connections,
            fallbacks: self.fallbacks.clone(),
            spin_ns: self.spin_ns.saturating_sub(earlier.spin_ns),
            spins: self.spins.saturating_sub(earlier.spins),
            parks: self.parks.saturating_sub(earlier.parks),
            wakeups: self.wakeups.saturating_sub(earlier.wakeups),
        }
    }
}

impl MachineCpu {
    /// CPU time since an earlier look at the same machine. The kernel's counters of
    /// idling and stealing can go backwards a little: that counts as unchanged.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            busy_us: self.busy_us.saturating_sub(earlier.busy_us),
            idle_us: self.idle_us.saturating_sub(earlier.idle_us),
            steal_us: self.steal_us.saturating_sub(earlier.steal_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::control::Usage;

    #[test]
    fn times_are_differences_and_connections_are_not() {
        let usage = |user_us| Usage { user_us, ..Usage::default() };
        let evidence = |smc_connections, spin_ns, parks| Evidence {
            smc_connections,
            tcp_connections: 1,
            fallbacks: BTreeMap::from([("0x03010000 the peer does not run Sidestep".into(), 1)]),
            spin_ns,
            spins: parks + 7,
            parks,
            wakeups: parks + 9,
        };
        let machine = |busy_us, idle_us| MachineCpu { busy_us, idle_us, steal_us: busy_us };
        let earlier = SideSample {
            usage: usage(10),
            evidence: evidence(10, 100, 3),
            machine: machine(100, 100),
        };
        let later = SideSample {
            usage: usage(15),
            evidence: evidence(10, 250, 4),
            machine: machine(130, 99),
        };
        let between = later.since(&earlier);
        assert_eq!(between.usage, usage(5));
        assert_eq!(between.machine, MachineCpu { busy_us: 30, idle_us: 0, steal_us: 30 });
        assert_eq!(
            between.evidence,
            Evidence { spins: 1, wakeups: 1, ..evidence(10, 150, 1) },
            "the connections were made before the measured time"
        );
    }
}
