//! Two documents set against each other: better, worse, or equivalent.
//!
//! The runs of two measurements have no pairs: they were made on different days. For
//! each figure of each cell that both have, the ratio B / A of geometric means over
//! the runs comes with an interval by Welch's t-test on logarithms
//! ([`LogDifference`]), and with one of four verdicts:
//!
//! ```text
//!             1 / (1 + margin)      1      1 + margin
//! equivalent          |        ├──·──┤        |          TOST: within on both sides
//! better, worse       |            |          |  ├─·─┤   beyond 1, and beyond the margin
//! unclear             |   ├────────·──────────|──┤       the runs do not tell
//! ```
//!
//! The margin keeps what does not matter from being called worse, and the intervals
//! keep noise from it. Neither catches a machine that was in another mood all day:
//! the interval speaks for the scatter *within* the measurements. Hence the warnings.

mod table;

use std::fmt;

use thiserror::Error;

use crate::contention::Contention;
use crate::plan::{Model, Transport};
use crate::result::{self, Cell, Document, Machine, Sample};
use crate::statistics::{LogDifference, median};

/// The margin within which figures are equivalent, unless another is asked for: 5 %.
pub const MARGIN: f64 = 0.05;

/// What changed from A to B.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparisonReport {
    /// Ratios between `1 / (1 + margin)` and `1 + margin` are equivalent.
    pub margin: f64,
    /// Cells that both have, in A's order: at least one.
    pub cells: Vec<CellComparison>,
    /// Cells that only A has.
    pub only_a: Vec<CellKey>,
    /// Cells that only B has.
    pub only_b: Vec<CellKey>,
    /// Why the verdicts may be about something else than a change of the software, in
    /// sentences.
    pub warnings: Vec<String>,
}

/// What a cell is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellKey {
    /// The workload's name.
    pub workload: String,
    /// How the clients were made.
    pub model: Model,
    /// How the bytes were to travel.
    pub transport: Transport,
    /// Receive buffer (RMBE) that was asked for, in bytes; `None`: the default.
    pub rmbe: Option<u32>,
    /// What else wanted the CPUs.
    pub contention: Contention,
    /// Rules of the filter; 0: there was none.
    pub filter_rules: u32,
}

/// One cell in both documents.
#[derive(Clone, Debug, PartialEq)]
pub struct CellComparison {
    /// Which.
    pub key: CellKey,
    /// One for each [`Measure`], in their order.
    pub figures: Vec<FigureComparison>,
}

/// One figure in both documents.
#[derive(Clone, Debug, PartialEq)]
pub struct FigureComparison {
    /// Which.
    pub measure: Measure,
    /// Its median over A's runs.
    pub a: f64,
    /// Its median over B's runs.
    pub b: f64,
    /// B / A; `None` if either has fewer than two runs, or a run in which the figure is
    /// 0.
    pub ratio: Option<UnpairedRatio>,
    /// What that means.
    pub verdict: Verdict,
}

/// A ratio of geometric means over runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnpairedRatio {
    /// B / A. For few runs it differs from that of their medians.
    pub ratio: f64,
    /// Its bounds at 95 %.
    pub ci95: [f64; 2],
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Transactions per second: more is better.
    Throughput,
    /// Mean response time in microseconds: less is better.
    Response,
    /// Its 99th percentile in microseconds: less is better.
    ResponseP99,
    /// CPU time of the clients for one transaction in microseconds: less is better.
    CpuClient,
    /// CPU time of the servers for one transaction in microseconds: less is better.
    CpuServer,
}

/// What a ratio means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It improved by more than the margin, and not by chance.
    Better,
    /// It became worse by more than the margin, and not by chance.
    Worse,
    /// Whatever the change is, it is within the margin.
    Equivalent,
    /// More runs would tell.
    Unclear,
}

/// Why two documents cannot be compared.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum CompareError {
    /// A form that this program does not know.
    #[error(
        "{document} is a document of version {found}, and this program reads version {}: compare \
         with the sidestep that wrote it, or measure again",
        result::VERSION
    )]
    Version {
        /// `A` or `B`.
        document: char,
        /// Its version.
        found: u32,
    },
    /// There is no cell that both have.
    #[error(
        "A and B have no workload, model, transport and RMBE in common under the same \
         neighbours and limits: measure the same workloads again"
    )]
    NothingInCommon,
    /// The margin is not one.
    #[error("a margin of {0} makes no sense: take more than 0 and less than 1, 0.05 for 5 %")]
    Margin(f64),
}

/// Compares B with A: what became better or worse from A to B. `margin` is usually
/// [`MARGIN`].
///
/// # Errors
/// The documents are of another version, they have nothing in common, or the margin is
/// not between 0 and 1.
pub fn compare(a: &Document, b: &Document, margin: f64) -> Result<ComparisonReport, CompareError> {
    check_version('A', a)?;
    check_version('B', b)?;
    if !(margin > 0.0 && margin < 1.0) {
        return Err(CompareError::Margin(margin));
    }
    let Matched { both, only_a, only_b } = matched(&a.results, &b.results);
    if both.is_empty() {
        return Err(CompareError::NothingInCommon);
    }
    let warnings = [under_others(&only_a, &only_b), warnings(a, b, &both)].concat();
    Ok(ComparisonReport {
        margin,
        cells: both.iter().map(|(a, b)| compare_cells(a, b, margin)).collect(),
        only_a: only_a.into_iter().map(CellKey::of).collect(),
        only_b: only_b.into_iter().map(CellKey::of).collect(),
        warnings,
    })
}

impl ComparisonReport {
    /// How many figures have this verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        let figures = self.cells.iter().flat_map(|cell| &cell.figures);
        figures.filter(|figure| figure.verdict == verdict).count()
    }

    /// For CI: 1 if any figure became worse, otherwise 0.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        u8::from(self.count(Verdict::Worse) > 0)
    }
}

fn check_version(document: char, Document { version, .. }: &Document) -> Result<(), CompareError> {
    if *version == result::VERSION {
        Ok(())
    } else {
        Err(CompareError::Version { document, found: *version })
    }
}

/// The cells of two documents.
#[derive(Default)]
struct Matched<'d> {
    both: Vec<(&'d Cell, &'d Cell)>,
    only_a: Vec<&'d Cell>,
    only_b: Vec<&'d Cell>,
}

/// Finds cells that belong together. Of equal cells in a document the first belongs to
/// the other's first.
fn matched<'d>(a: &'d [Cell], b: &'d [Cell]) -> Matched<'d> {
    let mut matched = Matched { only_b: b.iter().collect(), ..Matched::default() };
    for cell in a {
        let key = CellKey::of(cell);
        match matched.only_b.iter().position(|other| CellKey::of(other) == key) {
            Some(at) => matched.both.push((cell, matched.only_b.remove(at))),
            None => matched.only_a.push(cell),
        }
    }
    matched
}

fn compare_cells(a: &Cell, b: &Cell, margin: f64) -> CellComparison {
    let figures = Measure::ALL.map(|measure| compare_figures(measure, a, b, margin));
    CellComparison { key: CellKey::of(a), figures: figures.into() }
}

fn compare_figures(measure: Measure, a: &Cell, b: &Cell, margin: f64) -> FigureComparison {
    let of = |cell: &Cell| -> Vec<f64> {
        cell.samples.iter().map(|sample| measure.of(sample)).collect()
    };
    let (a, b) = (of(a), of(b));
    let difference = LogDifference::between(&a, &b);
    FigureComparison {
        measure,
        a: median_or_zero(&a),
        b: median_or_zero(&b),
        ratio: difference.map(|it| UnpairedRatio { ratio: it.ratio(), ci95: it.ci95() }),
        verdict: difference.map_or(Verdict::Unclear, |it| verdict(&it, measure, margin)),
    }
}

/// A document from elsewhere may have cells without samples.
fn median_or_zero(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { median(values) }
}

fn verdict(difference: &LogDifference, measure: Measure, margin: f64) -> Verdict {
    let (ratio, [low, high]) = (difference.ratio(), difference.ci95());
    let rose = low > 1.0 && ratio > 1.0 + margin;
    let fell = high < 1.0 && ratio < 1.0 / (1.0 + margin);
    if difference.equivalent_within(margin) {
        Verdict::Equivalent
    } else if rose == fell {
        Verdict::Unclear
    } else if rose == measure.more_is_better() {
        Verdict::Better
    } else {
        Verdict::Worse
    }
}

/// Cells that would belong together but for what else wanted the CPUs.
fn under_others(only_a: &[&Cell], only_b: &[&Cell]) -> Vec<String> {
    let without = |cell: &Cell| CellKey {
        contention: Contention::NONE,
        filter_rules: 0,
        ..CellKey::of(cell)
    };
    let others = |cell: &Cell| circumstances(&cell.contention, cell.filter_rules);
    let mut warnings = Vec::new();
    for a in only_a {
        let alike = only_b.iter().filter(|b| without(b) == without(a));
        let theirs: Vec<String> = alike.map(|b| others(b)).collect();
        if !theirs.is_empty() {
            warnings.push(format!(
                "{} is not compared: it was measured under other neighbours, limits or filters, \
                 A: `{}`, B: `{}`",
                without(a),
                others(a),
                theirs.join("`, `")
            ));
        }
    }
    warnings
}

/// `2 neighbours`, `no neighbours, 1000 filter rules`.
fn circumstances(contention: &Contention, filter_rules: u32) -> String {
    match filter_rules {
        0 => contention.to_string(),
        rules => format!("{contention}, {rules} filter rules"),
    }
}

fn warnings(a: &Document, b: &Document, both: &[(&Cell, &Cell)]) -> Vec<String> {
    let mut warnings = machine_differences(&a.machine, &b.machine);
    if a.options != b.options {
        let (a, b) = (a.options.join(" "), b.options.join(" "));
        warnings.push(format!("the options differ: A `{a}`, B `{b}`"));
    }
    for (name, document) in [('A', a), ('B', b)] {
        warnings.extend(document.machine.warnings.iter().map(|text| format!("{name}: {text}")));
    }
    for (a, b) in both {
        for (name, cell) in [('A', a), ('B', b)] {
            let key = CellKey::of(cell);
            if cell.samples.len() < 2 {
                warnings.push(format!(
                    "{name}, {key}: fewer than two runs have no scatter, so no change can be told \
                     from chance; measure with several pairs"
                ));
            }
            let remarks = cell.remarks.iter().map(|remark| &remark.text);
            warnings.extend(remarks.map(|text| format!("{name}, {key}: {text}")));
        }
    }
    warnings
}

fn machine_differences(a: &Machine, b: &Machine) -> Vec<String> {
    let hypervisor = |machine: &Machine| machine.hypervisor.clone().unwrap_or("none".into());
    [
        ("processors", a.cpu_model.clone(), b.cpu_model.clone()),
        ("numbers of CPUs", a.cpus.to_string(), b.cpus.to_string()),
        ("kernels", a.kernel.clone(), b.kernel.clone()),
        ("hypervisors", hypervisor(a), hypervisor(b)),
    ]
    .into_iter()
    .filter(|(_, a, b)| a != b)
    .map(|(what, a, b)| format!("the {what} differ, and figures with them: A `{a}`, B `{b}`"))
    .collect()
}

impl CellKey {
    fn of(cell: &Cell) -> Self {
        Self {
            workload: cell.workload.clone(),
            model: cell.model,
            transport: cell.transport,
            rmbe: cell.rmbe,
            contention: cell.contention.clone(),
            filter_rules: cell.filter_rules,
        }
    }
}

impl fmt::Display for CellKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, model, transport, rmbe, contention, filter_rules } = self;
        write!(f, "{workload} over {transport} ({model}")?;
        if let Some(rmbe) = rmbe {
            write!(f, ", RMBE {rmbe}")?;
        }
        if (contention, *filter_rules) != (&Contention::NONE, 0) {
            write!(f, ", {}", circumstances(contention, *filter_rules))?;
        }
        f.write_str(")")
    }
}

impl Measure {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 5] =
        [Self::Throughput, Self::Response, Self::ResponseP99, Self::CpuClient, Self::CpuServer];

    /// Whether a larger value is better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        self == Self::Throughput
    }

    fn of(self, sample: &Sample) -> f64 {
        match self {
            Self::Throughput => sample.tps,
            Self::Response => sample.response_us.mean,
            Self::ResponseP99 => sample.response_us.p99,
            Self::CpuClient => sample.cpu_us_per_tran.client,
            Self::CpuServer => sample.cpu_us_per_tran.server,
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Throughput => "transactions/s",
            Self::Response => "response, µs",
            Self::ResponseP99 => "response p99, µs",
            Self::CpuClient => "client CPU, µs/tran",
            Self::CpuServer => "server CPU, µs/tran",
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Better => "better",
            Self::Worse => "WORSE",
            Self::Equivalent => "equivalent",
            Self::Unclear => "unclear",
        })
    }
}

#[cfg(test)]
mod tests;
