//! What the library knows of the workers: read from the state that each of them
//! shares, as `sidestep ss` does.

use std::io;

use sidestep_modeler::control::{Evidence, Witness};
use sidestep_socket::inspect::{Snapshot, Totals};

/// Looks at the state of processes of this host.
#[derive(Debug)]
pub(super) struct LibraryWitness;

impl Witness for LibraryWitness {
    fn look(&self, pids: &[u32]) -> io::Result<Evidence> {
        let mut totals = Totals::default();
        for program in &Snapshot::of(pids).programs {
            totals.add(&program.totals);
        }
        Ok(evidence(&totals))
    }
}

fn evidence(totals: &Totals) -> Evidence {
    let reasons = totals.fallbacks.iter().map(|(reason, count)| (reason.to_string(), *count));
    let undecided = (UNDECIDED.to_owned(), totals.undecided);
    let counters = &totals.counters;
    Evidence {
        smc_connections: totals.smc + totals.handed_over,
        tcp_connections: totals.tcp(),
        fallbacks: reasons.chain([undecided]).filter(|(_, count)| *count > 0).collect(),
        spin_ns: counters.spin_ns,
        spins: counters.spins,
        parks: counters.parks,
        wakeups: counters.wakeups,
    }
}

/// The reason of connections that have none.
const UNDECIDED: &str = "ended, or was looked at, before both ends had agreed";
