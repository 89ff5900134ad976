//! A transport against the baseline, and a workload under a filter against the same without, pair by pair.

use crate::contention::Contention;
use crate::figure::Figure;
use crate::plan::{Entry, Requirement, Transport};
use crate::result::{Cell, Comparison, Filtered, Published, Required, Sample};
use crate::statistics::{Ratio, paired_ratio};
use crate::workload::Workload;

/// What IBM or others have published for a workload, an RMBE, a transport and its
/// baseline, beside our changes: -0.88 is -88 %.
pub type PublishedFor<'a> =
    dyn Fn(&Workload, Option<u32>, Transport, Transport, &[(Figure, f64)]) -> Vec<Published> + 'a;

/// `a` against the baseline `b`; `None` if no pair has both.
pub(super) fn comparison(
    entry: &Entry,
    a: &Cell,
    b: &Cell,
    published: &PublishedFor<'_>,
) -> Option<Comparison> {
    let pairs = Pairs::of(a, b)?;
    let ratio = |figure: Figure| pairs.ratio(figure);
    let throughput = ratio(Figure::Throughput);
    let response = ratio(Figure::Response);
    let p99 = ratio(Figure::ResponseP99);
    let client = ratio(Figure::CpuClient);
    let server = ratio(Figure::CpuServer);
    let both = ratio(Figure::Cpu);
    let ratios = [
        (Figure::Throughput, throughput),
        (Figure::Response, response),
        (Figure::ResponseP99, p99),
        (Figure::Cpu, both),
        (Figure::CpuClient, client),
        (Figure::CpuServer, server),
    ];
    let changes = ratios.map(|(figure, ratio)| (figure, ratio.median - 1.0));
    let is_smc_against_tcp = (a.transport, b.transport) == (Transport::Smc, Transport::Tcp);
    let rmbe = entry.conduct.rmbe_len;
    Some(Comparison {
        workload: a.workload.clone(),
        model: entry.model,
        rmbe,
        contention: entry.contention.clone(),
        filter_rules: entry.filter_rules,
        a: a.transport,
        b: b.transport,
        throughput_ratio: throughput.median,
        ci95: throughput.ci95,
        response_ratio: response.median,
        response_ci95: response.ci95,
        p99_ratio: Some(p99.median),
        p99_ci95: Some(p99.ci95),
        cpu_ratio: Some(both.median),
        cpu_ci95: Some(both.ci95),
        cpu_ratio_client: client.median,
        cpu_ci95_client: client.ci95,
        cpu_ratio_server: server.median,
        cpu_ci95_server: server.ci95,
        // What was published of transports was measured on hosts that did nothing else.
        published: if entry.contention == Contention::NONE && entry.filter_rules == 0 {
            published(&entry.workload, rmbe, a.transport, b.transport, &changes)
        } else {
            Vec::new()
        },
        required: if is_smc_against_tcp { required(entry, &ratios) } else { Vec::new() },
    })
}

/// A workload under a filter against the same `without` one; `None` if no pair has both.
pub(super) fn filtered(with: &Cell, without: &Cell) -> Option<Filtered> {
    let pairs = Pairs::of(with, without)?;
    let throughput = pairs.ratio(Figure::Throughput);
    let response = pairs.ratio(Figure::Response);
    let cpu = pairs.ratio(Figure::Cpu);
    Some(Filtered {
        workload: with.workload.clone(),
        transport: with.transport,
        model: with.model,
        rmbe: with.rmbe,
        contention: with.contention.clone(),
        filter_rules: with.filter_rules,
        throughput_ratio: throughput.median,
        ci95: throughput.ci95,
        response_ratio: response.median,
        response_ci95: response.ci95,
        cpu_ratio: cpu.median,
        cpu_ci95: cpu.ci95,
        published: Vec::new(),
    })
}

/// What is required of the entry beside what was measured.
fn required(entry: &Entry, ratios: &[(Figure, Ratio)]) -> Vec<Required> {
    let of = |(figure, ours): &(Figure, Ratio)| {
        let &Requirement { ratio, bound } = entry.required.get(figure)?;
        let [low, high] = ours.ci95;
        let met = if figure.more_is_better() {
            ours.median >= ratio && bound.is_none_or(|bound| low >= bound)
        } else {
            ours.median <= ratio && bound.is_none_or(|bound| high <= bound)
        };
        let (figure, ours, ours_ci95) = (*figure, ours.median, ours.ci95);
        Some(Required { figure, ratio, bound, ours, ours_ci95, met })
    };
    ratios.iter().filter_map(of).collect()
}

/// Samples of two cells that belong to the same pair: at least one.
struct Pairs<'a>(Vec<(&'a Sample, &'a Sample)>);

impl<'a> Pairs<'a> {
    /// `None` if no pair has both.
    fn of(a: &'a Cell, b: &'a Cell) -> Option<Self> {
        let of_b = |sample: &Sample| b.samples.iter().find(|other| other.pair == sample.pair);
        let pairs = a.samples.iter().filter_map(|sample| Some((sample, of_b(sample)?)));
        let pairs: Vec<_> = pairs.collect();
        (!pairs.is_empty()).then_some(Self(pairs))
    }

    /// The median of a figure's ratios.
    fn ratio(&self, figure: Figure) -> Ratio {
        let figures = self.0.iter().map(|(a, b)| (value(figure, a), value(figure, b)));
        paired_ratio(&figures.collect::<Vec<_>>())
    }
}

/// A figure of a run: more than zero, so that it has a ratio. What is less than the
/// clock can tell counts as the least that it can tell.
fn value(figure: Figure, sample: &Sample) -> f64 {
    let cpu = sample.cpu_us_per_tran;
    let tick = CPU_TICK_US / sample.transactions.max(1) as f64;
    match figure {
        Figure::Throughput => sample.tps,
        Figure::Response => sample.response_us.mean.max(RESPONSE_TICK_US),
        Figure::ResponseP99 => sample.response_us.p99.max(RESPONSE_TICK_US),
        Figure::Cpu => (cpu.client + cpu.server).max(tick),
        Figure::CpuClient => cpu.client.max(tick),
        Figure::CpuServer => cpu.server.max(tick),
    }
}

/// `getrusage` counts microseconds.
const CPU_TICK_US: f64 = 1.0;

/// Response times are read in nanoseconds.
const RESPONSE_TICK_US: f64 = 1e-3;
