//! What the library knows of the workers: read from the state that each of them
//! shares, as `sidestep ss` does.

use std::collections::BTreeMap;
use std::io;

use sidestep_gateway::status::Status;
use sidestep_modeler::control::{Evidence, Usage, Witness};
use sidestep_observe::{Connection, Snapshot, Totals};
use sidestep_proto::fallback::{ProgramDid, Reason};

use crate::commands::beyond::Beyond;

/// Looks at the state of processes of this host, and asks the gateway about what they gave it.
#[derive(Debug)]
pub(super) struct LibraryWitness;

impl Witness for LibraryWitness {
    fn look(&self, pids: &[u32]) -> io::Result<Evidence> {
        let snapshot = Snapshot::of(pids)?;
        let mut totals = Totals::default();
        for program in &snapshot.programs {
            totals.add(&program.totals);
        }
        let beyond = Beyond::of(&snapshot.connections);
        let by_gateway = ByGateway::of(&snapshot.connections, &beyond);
        Ok(Evidence { gateway: used_by_gateway(&totals), ..evidence(&totals, &by_gateway) })
    }
}

/// What the gateway has used that some of these connections were given to.
fn used_by_gateway(totals: &Totals) -> Usage {
    // Who may not ask is told so by the connections, of which nothing is known either.
    let status = (totals.handed_over > 0).then(|| Status::ask().ok()).flatten();
    status.map_or_else(Usage::default, |Status { cpu, .. }| Usage {
        user_us: cpu.user_us,
        system_us: cpu.system_us,
        voluntary_switches: cpu.voluntary_switches,
        involuntary_switches: cpu.involuntary_switches,
    })
}

/// How connections that the gateway has, and knows of, travel to the other host.
#[derive(Debug, Default)]
struct ByGateway {
    smc_r: u64,
    /// Those that it passes on by TCP, by the reason.
    relayed: BTreeMap<String, u64>,
}

impl ByGateway {
    fn of(connections: &[Connection], beyond: &Beyond) -> Self {
        let mut all = Self::default();
        for path in connections.iter().filter_map(|connection| beyond.path(connection)) {
            if path.is_smc_r() {
                all.smc_r += 1;
            } else {
                *all.relayed.entry(path.words().to_owned()).or_default() += 1;
            }
        }
        all
    }
}

/// A connection that was handed over counts as SMC only where the gateway says that it is: it
/// passes others on by TCP, and forgets those that have ended.
fn evidence(totals: &Totals, by_gateway: &ByGateway) -> Evidence {
    let told = by_gateway.relayed.values().fold(by_gateway.smc_r, |sum, count| sum + count);
    let untold = totals.handed_over.saturating_sub(told);
    let relayed: u64 = by_gateway.relayed.values().sum();
    let reasons = totals.fallbacks.iter().map(|(reason, count)| (reason.to_string(), *count));
    let others = [(UNDECIDED, totals.undecided), (UNTOLD, untold)];
    let others = others.map(|(words, count)| (words.to_owned(), count));
    let all = reasons.chain(by_gateway.relayed.clone()).chain(others);
    let counters = &totals.counters;
    Evidence {
        smc_connections: totals.smc + by_gateway.smc_r,
        tcp_connections: totals.tcp() + relayed + untold,
        too_short: too_short(totals),
        fallbacks: all.filter(|(_, count)| *count > 0).collect(),
        spin_ns: counters.spin_ns,
        spins: counters.spins,
        parks: counters.parks,
        wakeups: counters.wakeups,
        gateway: Usage::default(),
    }
}

/// What AUTOSMC leaves on TCP, on this host and to others.
fn too_short(totals: &Totals) -> u64 {
    let is_short = |reason| {
        matches!(
            reason,
            Reason::Program(
                ProgramDid::TooShort
                    | ProgramDid::ShortLately
                    | ProgramDid::NoGain
                    | ProgramDid::Compared
            )
        )
    };
    let short = totals.fallbacks.iter().filter(|(fallback, _)| is_short(fallback.reason));
    short.map(|(_, count)| count).sum()
}

/// The reason of connections that have none.
const UNDECIDED: &str = "ended, or was looked at, before both ends had agreed";

/// Of connections that were handed to a gateway.
const UNTOLD: &str = "went to the gateway, and ended before it was asked how they travelled";

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_gateway::status;
    use sidestep_observe::Fallback;
    use sidestep_proto::fallback::Lack;

    fn fallback(reason: Reason) -> Fallback {
        Fallback { reason }
    }

    #[test]
    fn what_the_gateway_passes_on_by_tcp_is_not_smc() {
        let here = crate::commands::ss::tests::server();
        let reason = status::Reason {
            diagnosis: 0x0301_0000,
            text: "no common UEID".to_owned(),
            by_peer: false,
        };
        let beyond = Beyond::with(7, here.peer, reason);
        let handed_over = Connection { session: Some(7), ..here.clone() };
        let by_gateway = ByGateway::of(&[handed_over, here], &beyond);
        // One is passed on, one has ended, one is shared memory.
        let totals = Totals { smc: 1, handed_over: 2, ..Totals::default() };
        let evidence = evidence(&totals, &by_gateway);
        assert_eq!((evidence.smc_connections, evidence.tcp_connections), (1, 2));
        let fallbacks: Vec<_> = evidence.fallbacks.into_iter().collect();
        assert_eq!(fallbacks, [("no common UEID".to_owned(), 1), (UNTOLD.to_owned(), 1)]);
    }

    #[test]
    fn what_the_gateway_carries_by_smc_r_is_smc() {
        let by_gateway = ByGateway { smc_r: 3, ..ByGateway::default() };
        let totals = Totals { handed_over: 3, ..Totals::default() };
        let evidence = evidence(&totals, &by_gateway);
        assert_eq!((evidence.smc_connections, evidence.tcp_connections), (3, 0));
    }

    #[test]
    fn what_autosmc_leaves_on_tcp_is_told_apart() {
        let fallbacks = vec![
            (fallback(Reason::Program(ProgramDid::TooShort)), 5),
            (fallback(Reason::Program(ProgramDid::ShortLately)), 2),
            (fallback(Reason::Lack(Lack::NoMemory)), 1),
        ];
        let totals = Totals { fallbacks, ..Totals::default() };
        let evidence = evidence(&totals, &ByGateway::default());
        assert_eq!((evidence.tcp_connections, evidence.too_short), (8, 7));
    }
}
