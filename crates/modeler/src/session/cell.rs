//! The runs of one workload over one transport, and the cell they make.

use hdrhistogram::Histogram;

use super::histogram::new_histogram;
use super::outcome::{RunOutcome, response};
use crate::control::SLICE_MS;
use crate::plan::{Entry, Pace, Transport};
use crate::result::{Cell, CpuCost, Proof, Remark, RemarkKind, Sample, Waits};
use crate::statistics::{median, remarks, spread};

/// Runs as they come in. Histograms are merged at once: a hundred runs take no more
/// memory than one.
pub(super) struct Series<'a> {
    entry: &'a Entry,
    transport: Transport,
    samples: Vec<Sample>,
    response_ns: Histogram<u64>,
    response_sums_us: (f64, f64),
    over_time: Vec<Vec<f64>>,
    proof: Proof,
    /// One number for each sample.
    unfinished: Vec<u64>,
    given_up: bool,
}

impl<'a> Series<'a> {
    pub(super) fn new(entry: &'a Entry, transport: Transport) -> Self {
        Self {
            entry,
            transport,
            samples: Vec::new(),
            response_ns: new_histogram(),
            response_sums_us: (0.0, 0.0),
            over_time: Vec::new(),
            proof: Proof::default(),
            unfinished: Vec::new(),
            given_up: false,
        }
    }

    pub(super) fn entry(&self) -> &'a Entry {
        self.entry
    }

    pub(super) fn transport(&self) -> Transport {
        self.transport
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up
    }

    pub(super) fn give_up(&mut self) {
        self.given_up = true;
    }

    pub(super) fn push(&mut self, pair: u32, outcome: RunOutcome) {
        self.samples.push(Sample { pair, ..outcome.sample });
        self.response_ns.add(outcome.response_ns).expect("new_histogram is the only shape");
        self.response_sums_us.0 += outcome.response_sums_us.0;
        self.response_sums_us.1 += outcome.response_sums_us.1;
        self.over_time.push(outcome.over_time);
        self.unfinished.push(outcome.unfinished);
        self.proof.smc_connections += outcome.proof.smc_connections;
        self.proof.tcp_connections += outcome.proof.tcp_connections;
        self.proof.too_short += outcome.proof.too_short;
        for (reason, number) in outcome.proof.fallbacks {
            *self.proof.fallbacks.entry(reason).or_default() += number;
        }
    }

    /// The cell; `None` if no run succeeded.
    pub(super) fn into_cell(self) -> Option<Cell> {
        if self.samples.is_empty() {
            return None;
        }
        let server_machine: Vec<f64> =
            self.samples.iter().filter_map(|sample| sample.server_machine_us_per_tran).collect();
        Some(Cell {
            workload: self.entry.workload.to_string(),
            transport: self.transport,
            model: self.entry.model,
            rmbe: self.entry.conduct.rmbe_len,
            contention: self.entry.contention.clone(),
            filter_rules: self.entry.filter_rules,
            runs: self.samples.len() as u32,
            tps: spread(&self.each(|sample| sample.tps)),
            mb_per_s: self.median(|sample| sample.mb_per_s),
            response_us: response(&self.response_ns, self.response_sums_us),
            cpu_us_per_tran: self.cpu(),
            machine_us_per_tran: self.median(|sample| sample.machine_us_per_tran),
            server_machine_us_per_tran: (!server_machine.is_empty())
                .then(|| median(&server_machine)),
            waits_per_tran: self.waits(),
            neighbour_cpus: self.median(|sample| sample.neighbour_cpus),
            remarks: self.remarks(),
            percentiles: self.percentiles(),
            transport_proof: self.proof,
            over_time: self.over_time,
            slice_ms: SLICE_MS,
            samples: self.samples,
        })
    }

    fn each(&self, figure: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.iter().map(figure).collect()
    }

    fn median(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        median(&self.each(figure))
    }

    fn cpu(&self) -> CpuCost {
        let median =
            |figure: fn(&CpuCost) -> f64| self.median(|sample| figure(&sample.cpu_us_per_tran));
        CpuCost {
            client: median(|cpu| cpu.client),
            server: median(|cpu| cpu.server),
            client_user: median(|cpu| cpu.client_user),
            client_system: median(|cpu| cpu.client_system),
            client_spin: median(|cpu| cpu.client_spin),
            server_user: median(|cpu| cpu.server_user),
            server_system: median(|cpu| cpu.server_system),
            server_spin: median(|cpu| cpu.server_spin),
            client_gateway: median(|cpu| cpu.client_gateway),
            server_gateway: median(|cpu| cpu.server_gateway),
        }
    }

    fn waits(&self) -> Waits {
        let median =
            |figure: fn(&Waits) -> f64| self.median(|sample| figure(&sample.waits_per_tran));
        Waits {
            client_switches: median(|waits| waits.client_switches),
            server_switches: median(|waits| waits.server_switches),
            parks: median(|waits| waits.parks),
            wakeups: median(|waits| waits.wakeups),
        }
    }

    fn percentiles(&self) -> Vec<(f64, f64)> {
        let times_ns = self.response_ns.value_at_percentiles(PERCENTILES);
        PERCENTILES.into_iter().zip(times_ns.map(|ns| ns as f64 / 1e3)).collect()
    }

    /// What makes the figures worthless comes first.
    fn remarks(&self) -> Vec<Remark> {
        let clients = f64::from(self.entry.workload.clients);
        let grain = clients * 1e3 / SLICE_MS as f64;
        let series = remarks(&self.each(|sample| sample.tps), &self.over_time, grain);
        self.fell_back().into_iter().chain(self.overloaded()).chain(series).collect()
    }

    /// A run over `smc` of which not every connection was SMC.
    fn fell_back(&self) -> Option<Remark> {
        let Proof { smc_connections: smc, tcp_connections: tcp, too_short, fallbacks } =
            &self.proof;
        if self.transport != Transport::Smc || (*tcp == 0 && *smc > 0) {
            return None;
        }
        let text = if smc + tcp == 0 {
            "Sidestep has seen no connection of these programs: THESE ARE NOT FIGURES OF SMC; see \
             `sidestep doctor`"
                .to_owned()
        } else if !self.proof.has_failed() {
            format!(
                "{too_short} of {} connections were too short to be worth moving, as AUTOSMC has \
                 it, and stayed on TCP: THESE ARE NOT FIGURES OF SMC",
                smc + tcp
            )
        } else {
            let reasons: Vec<String> = fallbacks
                .iter()
                .map(|(reason, number)| format!("{number} because of {reason}"))
                .collect();
            let reasons =
                if reasons.is_empty() { "no reason is known".into() } else { reasons.join(", ") };
            format!(
                "{tcp} of {} connections stayed on TCP: THESE ARE NOT FIGURES OF SMC ({reasons})",
                smc + tcp
            )
        };
        Some(Remark { kind: RemarkKind::FellBack, text })
    }

    /// An open loop in which transactions were still waiting for their turn when a run
    /// ended. One for each client is under way at any moment and proves nothing.
    fn overloaded(&self) -> Option<Remark> {
        let Pace::Open { per_second } = self.entry.conduct.pace else {
            return None;
        };
        let under_way = u64::from(self.entry.workload.clients);
        let behind = self.unfinished.iter().filter(|&&unfinished| unfinished > under_way).count();
        let most = self.unfinished.iter().max().copied().unwrap_or(0);
        (behind > 0).then(|| Remark {
            kind: RemarkKind::Overloaded,
            text: format!(
                "{per_second} transactions per second were not kept up with in {behind} of {} \
                 runs: up to {most} were due and had not ended",
                self.samples.len()
            ),
        })
    }
}

/// Where the curve of response times has its points: dense towards the end, where it
/// bends.
const PERCENTILES: [f64; 26] = [
    0.0, 1.0, 5.0, 10.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 70.0, 75.0, 80.0, 85.0, 90.0, 92.5,
    95.0, 97.5, 99.0, 99.5, 99.75, 99.9, 99.95, 99.99, 99.999, 100.0,
];
