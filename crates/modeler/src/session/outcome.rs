//! One run: from what workers and hosts say to its figures.
//!
//! ```text
//! client workers ── ClientReport ──┐
//! clients' host ── evidence, CPUs ─┼──> RunOutcome: a sample, and what has to be
//! server side ──── SideSample ─────┘    merged over runs before it is a figure
//! ```

use hdrhistogram::Histogram;
use thiserror::Error;

use super::histogram::{self, HistogramError, new_histogram};
use crate::agent::{NeighbourUse, RunParts};
use crate::control::{ClientReport, Evidence, MachineCpu, SLICE_MS, Usage};
use crate::result::{CpuCost, Proof, Response, Sample, Waits};

/// One run that has been measured.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutcome {
    /// Its figures. The session gives it the number of its pair.
    pub sample: Sample,
    /// All response times in nanoseconds.
    pub response_ns: Histogram<u64>,
    /// Sum of all response times and sum of their squares, in microseconds.
    pub response_sums_us: (f64, f64),
    /// Transactions per second in each slice of [`SLICE_MS`].
    pub over_time: Vec<f64>,
    /// What the clients' connections were.
    pub proof: Proof,
    /// Open loop: transactions that were due and had not ended.
    pub unfinished: u64,
}

/// Why a run has no figures.
#[derive(Debug, Error)]
pub enum OutcomeError {
    /// Every figure is for one transaction, and there is none.
    #[error(
        "no transaction ended in the measured time of {0:.3} s; measure for longer, or let less \
         travel in each transaction"
    )]
    NoTransaction(f64),
    /// A worker's histogram is none.
    #[error("the response times of client worker {worker} cannot be read: {source}")]
    Histogram {
        /// Its number, from 0.
        worker: usize,
        /// What is wrong with it.
        source: HistogramError,
    },
    /// A worker contradicts itself.
    #[error(
        "client worker {worker} reports {transactions} transactions and {times} response times"
    )]
    TimesMissing {
        /// Its number, from 0.
        worker: usize,
        /// Transactions it counted.
        transactions: u64,
        /// Response times it recorded.
        times: u64,
    },
}

impl RunOutcome {
    /// The figures of a run.
    ///
    /// Workers measure the same time, each by its own clock: transactions are summed
    /// and divided by the longest of their times.
    ///
    /// # Errors
    /// No transaction has ended, or a worker's report makes no sense.
    pub fn from_parts(parts: &RunParts) -> Result<Self, OutcomeError> {
        let reports = &parts.reports;
        let elapsed_ns = reports.iter().map(|report| report.elapsed_ns).max().unwrap_or(0);
        let elapsed_s = elapsed_ns as f64 / 1e9;
        let transactions: u64 = reports.iter().map(|report| report.transactions).sum();
        if transactions == 0 || elapsed_ns == 0 {
            return Err(OutcomeError::NoTransaction(elapsed_s));
        }
        let response_ns = merged_histogram(reports)?;
        let response_sums_us = reports.iter().fold((0.0, 0.0), |(sum, squares), report| {
            (sum + report.response_sums_us.0, squares + report.response_sums_us.1)
        });
        let bytes: u64 = reports.iter().map(|report| report.bytes).sum();
        let per_transaction = PerTransaction(transactions as f64);
        let neighbours_us = parts.neighbours.cpu_ns / 1000;
        let sample = Sample {
            pair: 0,
            transactions,
            elapsed_s,
            tps: transactions as f64 / elapsed_s,
            mb_per_s: bytes as f64 / 1e6 / elapsed_s,
            response_us: response(&response_ns, response_sums_us),
            cpu_us_per_tran: per_transaction.cpu(parts),
            machine_us_per_tran: per_transaction.machine(&parts.client.machine, neighbours_us),
            server_machine_us_per_tran: parts
                .remote
                .then(|| per_transaction.machine(&parts.server.machine, 0)),
            waits_per_tran: per_transaction.waits(parts),
            neighbour_cpus: neighbour_cpus(parts.neighbours),
        };
        Ok(Self {
            sample,
            response_ns,
            response_sums_us,
            over_time: rates_over_time(reports, elapsed_ns),
            proof: proof(&parts.client.evidence),
            unfinished: reports.iter().map(|report| report.unfinished).sum(),
        })
    }
}

fn merged_histogram(reports: &[ClientReport]) -> Result<Histogram<u64>, OutcomeError> {
    let mut merged = new_histogram();
    for (worker, report) in reports.iter().enumerate() {
        let times = histogram::from_hex(&report.response_ns)
            .map_err(|source| OutcomeError::Histogram { worker, source })?;
        if times.len() != report.transactions {
            return Err(OutcomeError::TimesMissing {
                worker,
                transactions: report.transactions,
                times: times.len(),
            });
        }
        merged.add(&times).expect("from_hex accepts a single shape");
    }
    Ok(merged)
}

/// Response times in microseconds. Mean and deviation come from the sums, without the
/// histogram's rounding; percentiles are at most 0.1 % too large.
pub(super) fn response(times_ns: &Histogram<u64>, (sum, squares): (f64, f64)) -> Response {
    let count = times_ns.len() as f64;
    let mean = sum / count;
    // Of nearly equal times rounding may leave less than nothing.
    let variance = (squares / count - mean * mean).max(0.0);
    let at = |quantile| times_ns.value_at_quantile(quantile) as f64 / 1e3;
    Response {
        mean,
        stddev: variance.sqrt(),
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p999: at(0.999),
        max: at(1.0),
    }
}

/// Transactions per second in each slice. The last may be shorter than the others: its
/// rate is for its own length, and shorter than half a slice it is left out, because
/// there the rate would be chance.
fn rates_over_time(reports: &[ClientReport], elapsed_ns: u64) -> Vec<f64> {
    let (whole, rest_ns) = (elapsed_ns / SLICE_NS, elapsed_ns % SLICE_NS);
    let slices = whole + u64::from(rest_ns >= SLICE_NS / 2);
    (0..slices)
        .map(|slice| {
            let ended = |report: &ClientReport| report.over_time.get(slice as usize).copied();
            let transactions: u64 = reports.iter().filter_map(ended).sum();
            let length_ns = if slice < whole { SLICE_NS } else { rest_ns };
            transactions as f64 * 1e9 / length_ns as f64
        })
        .collect()
}

fn proof(evidence: &Evidence) -> Proof {
    Proof {
        smc_connections: evidence.smc_connections,
        tcp_connections: evidence.tcp_connections,
        too_short: evidence.too_short,
        fallbacks: evidence.fallbacks.clone(),
    }
}

/// Divides by the number of transactions: at least 1.
struct PerTransaction(f64);

impl PerTransaction {
    /// By process accounting. The gateway of a side works for it as the kernel does for TCP, in a process
    /// of its own.
    fn cpu(&self, parts: &RunParts) -> CpuCost {
        let [of_clients, of_servers] = [&parts.client, &parts.server].map(|it| it.evidence.gateway);
        let client = client_usage(parts) + of_clients;
        let server = parts.server.usage + of_servers;
        let all = |usage: Usage| self.of(usage.user_us + usage.system_us);
        CpuCost {
            client: all(client),
            server: all(server),
            client_gateway: all(of_clients),
            server_gateway: all(of_servers),
            client_user: self.of(client.user_us),
            client_system: self.of(client.system_us),
            client_spin: self.spin(&parts.client.evidence, client),
            server_user: self.of(server.user_us),
            server_system: self.of(server.system_us),
            server_spin: self.spin(&parts.server.evidence, server),
        }
    }

    /// Looking for the peer's next word happens in user mode and is a part of that
    /// time. Both are read by different clocks: the part cannot exceed the whole.
    fn spin(&self, evidence: &Evidence, usage: Usage) -> f64 {
        (evidence.spin_ns as f64 / 1e3).min(usage.user_us as f64) / self.0
    }

    /// By RMF's arithmetic: utilisation × CPUs × interval / transactions. Utilisation
    /// is the busy part of all CPUs' time, which is CPUs × interval; what remains is
    /// busy time / transactions. Neighbours are busy too, and not for a transaction.
    fn machine(&self, machine: &MachineCpu, neighbours_us: u64) -> f64 {
        self.of(machine.busy_us.saturating_sub(neighbours_us))
    }

    fn waits(&self, parts: &RunParts) -> Waits {
        let switches = |usage: Usage| usage.voluntary_switches + usage.involuntary_switches;
        let (client, server) = (&parts.client.evidence, &parts.server.evidence);
        Waits {
            client_switches: self.of(switches(client_usage(parts) + client.gateway)),
            server_switches: self.of(switches(parts.server.usage + server.gateway)),
            parks: self.of(client.parks + server.parks),
            wakeups: self.of(client.wakeups + server.wakeups),
        }
    }

    fn of(&self, amount: u64) -> f64 {
        amount as f64 / self.0
    }
}

/// How many CPUs the neighbours had, on average.
fn neighbour_cpus(used: NeighbourUse) -> f64 {
    if used.elapsed_ns == 0 { 0.0 } else { used.cpu_ns as f64 / used.elapsed_ns as f64 }
}

fn client_usage(parts: &RunParts) -> Usage {
    parts.reports.iter().map(|report| report.usage).fold(Usage::default(), |sum, usage| sum + usage)
}

const SLICE_NS: u64 = SLICE_MS * 1_000_000;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::control::SideSample;
    use crate::session::histogram::to_hex;

    /// A worker whose transactions took these microseconds, in 250 ms.
    fn report(times_us: &[u64]) -> ClientReport {
        let mut histogram = new_histogram();
        times_us.iter().for_each(|time| histogram.saturating_record(time * 1000));
        let squares = |time: &u64| (*time as f64).powi(2);
        ClientReport {
            transactions: times_us.len() as u64,
            bytes: 4096 * times_us.len() as u64,
            elapsed_ns: 250_000_000,
            response_ns: to_hex(&histogram),
            response_sums_us: (
                times_us.iter().sum::<u64>() as f64,
                times_us.iter().map(squares).sum(),
            ),
            over_time: vec![times_us.len() as u64, 0, 0],
            usage: Usage {
                user_us: 30,
                system_us: 10,
                voluntary_switches: 3,
                involuntary_switches: 1,
            },
            unfinished: 2,
        }
    }

    fn measured(reports: Vec<ClientReport>) -> RunParts {
        RunParts {
            reports,
            client: SideSample {
                usage: Usage::default(),
                evidence: Evidence {
                    smc_connections: 2,
                    spin_ns: 16_000,
                    parks: 1,
                    wakeups: 2,
                    ..Evidence::default()
                },
                machine: MachineCpu { busy_us: 200, idle_us: 800, steal_us: 5 },
            },
            server: SideSample {
                usage: Usage {
                    user_us: 12,
                    system_us: 4,
                    voluntary_switches: 8,
                    involuntary_switches: 0,
                },
                evidence: Evidence { spin_ns: 50_000, parks: 3, wakeups: 6, ..Evidence::default() },
                machine: MachineCpu { busy_us: 400, idle_us: 600, steal_us: 0 },
            },
            remote: false,
            neighbours: NeighbourUse::default(),
        }
    }

    #[test]
    fn figures_are_sums_over_workers_for_each_transaction() {
        let parts = measured(vec![report(&[10, 20]), report(&[30, 40])]);
        let outcome = RunOutcome::from_parts(&parts).unwrap();
        let sample = &outcome.sample;
        assert_eq!((sample.transactions, sample.elapsed_s), (4, 0.25));
        assert_eq!(sample.tps, 16.0);
        assert_eq!(sample.mb_per_s, 4.0 * 4096.0 / 1e6 / 0.25);
        assert_eq!(
            sample.cpu_us_per_tran,
            CpuCost {
                client: 20.0,
                server: 4.0,
                client_user: 15.0,
                client_system: 5.0,
                client_spin: 4.0,
                server_user: 3.0,
                server_system: 1.0,
                server_spin: 3.0, // 12.5 by Sidestep's clock, but no more than user time
                client_gateway: 0.0,
                server_gateway: 0.0,
            }
        );
        assert_eq!(
            sample.waits_per_tran,
            Waits { client_switches: 2.0, server_switches: 2.0, parks: 1.0, wakeups: 2.0 }
        );
        assert_eq!(outcome.unfinished, 4);
        assert_eq!(outcome.proof.smc_connections, 2);
    }

    /// What carries the bytes between hosts is no worker, and costs all the same.
    #[test]
    fn the_gateways_are_part_of_their_sides() {
        let mut parts = measured(vec![report(&[10, 20, 30, 40])]);
        let without = RunOutcome::from_parts(&parts).unwrap().sample;
        let used = |us| Usage {
            user_us: us,
            system_us: 4,
            voluntary_switches: 8,
            involuntary_switches: 0,
        };
        (parts.client.evidence.gateway, parts.server.evidence.gateway) = (used(36), used(76));
        let with = RunOutcome::from_parts(&parts).unwrap().sample;
        let (cpu, before) = (with.cpu_us_per_tran, without.cpu_us_per_tran);
        assert_eq!((cpu.client_gateway, cpu.server_gateway), (10.0, 20.0));
        assert_eq!((cpu.client, cpu.server), (before.client + 10.0, before.server + 20.0));
        assert_eq!(
            (cpu.client_system, cpu.server_user),
            (before.client_system + 1.0, before.server_user + 19.0)
        );
        let (waits, before) = (with.waits_per_tran, without.waits_per_tran);
        assert_eq!(waits.client_switches, before.client_switches + 2.0);
    }

    /// 200 µs busy of 1000 µs are a utilisation of 20 %; on 2 CPUs the interval is then
    /// 500 µs: 0.2 × 2 × 500 / 4 = 50.
    #[test]
    fn the_machine_s_cost_is_rmf_s() {
        let mut parts = measured(vec![report(&[10, 20, 30, 40])]);
        let MachineCpu { busy_us, idle_us, .. } = parts.client.machine;
        let (cpus, interval_us) = (2.0, (busy_us + idle_us) as f64 / 2.0);
        let utilisation = busy_us as f64 / (busy_us + idle_us) as f64;
        let sample = RunOutcome::from_parts(&parts).unwrap().sample;
        assert_eq!(sample.machine_us_per_tran, utilisation * cpus * interval_us / 4.0);
        assert_eq!(sample.server_machine_us_per_tran, None, "it is the same machine");

        parts.remote = true;
        let sample = RunOutcome::from_parts(&parts).unwrap().sample;
        assert_eq!(sample.server_machine_us_per_tran, Some(100.0));
    }

    #[test]
    fn neighbours_are_in_no_other_figure() {
        let mut parts = measured(vec![report(&[10, 20, 30, 40])]);
        let without = RunOutcome::from_parts(&parts).unwrap().sample;
        assert_eq!(without.neighbour_cpus, 0.0);
        parts.neighbours = NeighbourUse { cpu_ns: 150_000, elapsed_ns: 100_000 };
        let beside = RunOutcome::from_parts(&parts).unwrap().sample;
        assert_eq!(beside.neighbour_cpus, 1.5);
        assert_eq!(beside.machine_us_per_tran, without.machine_us_per_tran - 150.0 / 4.0);
        assert_eq!(beside.cpu_us_per_tran, without.cpu_us_per_tran);
        // The machine's clock has ticks, and the neighbours' has none.
        parts.neighbours.cpu_ns = 900_000;
        assert_eq!(RunOutcome::from_parts(&parts).unwrap().sample.machine_us_per_tran, 0.0);
    }

    #[test]
    fn response_times_come_from_sums_and_merged_histograms() {
        let parts = measured(vec![report(&[10, 20]), report(&[30, 40])]);
        let outcome = RunOutcome::from_parts(&parts).unwrap();
        let Response { mean, stddev, p50, p999, max, .. } = outcome.sample.response_us;
        assert_eq!(mean, 25.0);
        assert!((stddev - 125f64.sqrt()).abs() < 1e-9);
        let near = |found: f64, exact: f64| (exact..=exact * 1.001).contains(&found);
        assert!(near(p50, 20.0) && near(p999, 40.0) && near(max, 40.0), "{p50} {p999} {max}");
        assert_eq!(outcome.response_ns.len(), 4);
        assert_eq!(outcome.response_sums_us, (100.0, 3000.0));
    }

    #[test]
    fn equal_response_times_have_no_deviation() {
        let parts = measured(vec![report(&[7; 1000])]);
        let response = RunOutcome::from_parts(&parts).unwrap().sample.response_us;
        assert_eq!((response.mean, response.stddev), (7.0, 0.0));
    }

    #[test]
    fn the_last_slice_counts_for_its_own_length() {
        let mut parts = measured(vec![report(&[1; 10]), report(&[1; 10])]);
        parts.reports[0].over_time = vec![4, 3, 3];
        parts.reports[1].over_time = vec![6, 4];
        let rates = |parts: &RunParts| RunOutcome::from_parts(parts).unwrap().over_time;
        assert_eq!(rates(&parts), [100.0, 70.0, 60.0]);

        let elapsed = |parts: &mut RunParts, ns| {
            parts.reports.iter_mut().for_each(|report| report.elapsed_ns = ns);
        };
        elapsed(&mut parts, 249_999_999);
        assert_eq!(rates(&parts), [100.0, 70.0], "too short for a rate");
        elapsed(&mut parts, 400_000_000);
        assert_eq!(rates(&parts), [100.0, 70.0, 30.0, 0.0], "a worker that stalled ends early");
    }

    #[test]
    fn workers_with_different_clocks_are_measured_by_the_longest_time() {
        let mut parts = measured(vec![report(&[10, 20]), report(&[30, 40])]);
        parts.reports[1].elapsed_ns = 500_000_000;
        assert_eq!(RunOutcome::from_parts(&parts).unwrap().sample.tps, 8.0);
    }

    #[test]
    fn the_proof_keeps_the_reasons() {
        let mut parts = measured(vec![report(&[10])]);
        let fallbacks = BTreeMap::from([("0x03010000 the peer does not run Sidestep".into(), 2)]);
        parts.client.evidence.tcp_connections = 2;
        parts.client.evidence.too_short = 1;
        parts.client.evidence.fallbacks = fallbacks.clone();
        let proof = RunOutcome::from_parts(&parts).unwrap().proof;
        let expected = Proof { smc_connections: 2, tcp_connections: 2, too_short: 1, fallbacks };
        assert_eq!(proof, expected);
    }

    #[test]
    fn a_run_without_transactions_has_no_figures() {
        let error = RunOutcome::from_parts(&measured(vec![report(&[])])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no transaction ended in the measured time of 0.250 s; measure for longer, or let \
             less travel in each transaction"
        );
        let error = RunOutcome::from_parts(&measured(Vec::new())).unwrap_err();
        assert!(matches!(error, OutcomeError::NoTransaction(_)));
    }

    #[test]
    fn a_worker_that_contradicts_itself_is_named() {
        let mut parts = measured(vec![report(&[10]), report(&[10])]);
        parts.reports[1].transactions = 3;
        assert_eq!(
            RunOutcome::from_parts(&parts).unwrap_err().to_string(),
            "client worker 1 reports 3 transactions and 1 response times"
        );
        parts.reports[1].response_ns = "zz".into();
        assert!(
            RunOutcome::from_parts(&parts)
                .unwrap_err()
                .to_string()
                .starts_with("the response times of client worker 1 cannot be read: not hex")
        );
    }
}
