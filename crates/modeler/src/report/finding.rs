//! What a document says, in one sentence and a handful of figures.
//!
//! The sentence speaks of the workload that gained most. So that this is not taken
//! for the whole, [`Summary`] stands beside it: the geometric mean over all
//! workloads (the mean for ratios: twice as fast and half as fast cancel out), and
//! the least. What fell back to TCP counts in neither.

use crate::contention::Contention;
use crate::plan::Transport;
use crate::report::block::{Block, Key, Row};
use crate::report::units;
use crate::result::{Comparison, Document};

/// The sentence, in parts, so that a page can set its figures apart.
#[derive(Debug, Default)]
pub(super) struct Finding {
    pub(super) parts: Vec<Part>,
}

/// A piece of a sentence.
#[derive(Debug)]
pub(super) enum Part {
    Words(String),
    Figure(String),
    /// Foreign text.
    Workload(String),
}

/// The ratios of one transport to the baseline, over all workloads.
#[derive(Debug)]
pub(super) struct Summary<'a> {
    pub(super) subject: Transport,
    pub(super) baseline: Transport,
    /// Comparisons counted here: at least 1.
    pub(super) count: usize,
    /// Comparisons left out because connections fell back.
    pub(super) left_out: usize,
    pub(super) throughput: Overall,
    /// `None` if no ratio of these could be measured.
    pub(super) response: Option<Overall>,
    pub(super) cpu_client: Option<Overall>,
    pub(super) cpu_server: Option<Overall>,
    /// The comparison with the highest throughput ratio, and the one with the lowest.
    pub(super) best: &'a Comparison,
    pub(super) worst: &'a Comparison,
}

/// Ratios over several workloads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Overall {
    /// Geometric mean.
    pub(super) mean: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Finding {
    pub(super) fn of(document: &Document) -> Self {
        let blocks = Block::all(document);
        if let Some(summary) = Summary::of(&blocks) {
            return Self::compare(summary.best, several_models(document));
        }
        let fell_back = blocks.iter().flat_map(|block| &block.rows).any(Row::fell_back);
        if fell_back {
            return Self::words("SMC was not measured: its connections fell back to TCP");
        }
        match blocks.first().and_then(|block| block.rows.first()) {
            Some(row) => Self {
                parts: vec![
                    Part::Words(format!("{} carries ", units::name(row.cell.transport))),
                    Part::Figure(units::count(row.cell.tps.median)),
                    Part::Words(" transactions per second of ".to_owned()),
                    Part::Workload(row.cell.workload.clone()),
                ],
            },
            None => Self::words("Nothing was measured"),
        }
    }

    fn compare(best: &Comparison, name_model: bool) -> Self {
        let (a, b) = (units::name(best.a), units::name(best.b));
        let mut parts =
            vec![Part::Words(format!("{a} moves ")), Part::Workload(best.workload.clone())];
        if name_model {
            parts.push(Part::Words(format!(" ({})", best.model)));
        }
        if best.contention != Contention::NONE {
            parts.push(Part::Words(format!(" beside {}", best.contention)));
        }
        if best.filter_rules > 0 {
            parts.push(Part::Words(format!(" under {}", units::filter_rules(best.filter_rules))));
        }
        let throughput = Effect::of(best.throughput_ratio, best.ci95);
        let response = Effect::of(best.response_ratio, best.response_ci95);
        parts.extend(match throughput {
            Effect::More if best.throughput_ratio >= FACTOR_FROM => {
                figure(" ", units::times(best.throughput_ratio), &format!(" as fast as {b}"))
            }
            Effect::More => figure(" ", size(best.throughput_ratio), &format!(" faster than {b}")),
            Effect::Less => figure(" ", size(best.throughput_ratio), &format!(" slower than {b}")),
            Effect::None => vec![Part::Words(format!(" as fast as {b}"))],
        });
        parts.extend(match response {
            Effect::None => Vec::new(),
            Effect::Less => {
                let and = if throughput == Effect::Less { "but" } else { "and" };
                figure(&format!(" {and} cuts response time by "), size(best.response_ratio), "")
            }
            Effect::More => {
                let and = if throughput == Effect::Less { "and" } else { "but" };
                figure(&format!(" {and} adds "), size(best.response_ratio), " to response time")
            }
        });
        Self { parts }
    }

    fn words(words: &str) -> Self {
        Self { parts: vec![Part::Words(words.to_owned())] }
    }

    /// The sentence without a full stop.
    pub(super) fn text(&self) -> String {
        let texts = self.parts.iter().map(|part| match part {
            Part::Words(text) | Part::Figure(text) | Part::Workload(text) => text.as_str(),
        });
        texts.collect()
    }
}

impl<'a> Summary<'a> {
    /// Of SMC if it was compared, otherwise of what was compared first; `None` if
    /// nothing can be.
    pub(super) fn of(blocks: &[Block<'a>]) -> Option<Self> {
        let compared: Vec<&Comparison> =
            blocks.iter().flat_map(Block::compared).map(|(_, comparison)| comparison).collect();
        let smc = compared.iter().any(|comparison| comparison.a == Transport::Smc);
        let subject = if smc { Transport::Smc } else { compared.first()?.a };
        let ours: Vec<&Comparison> = compared.into_iter().filter(|c| c.a == subject).collect();
        let overall = |ratio: fn(&Comparison) -> f64| Overall::of(ours.iter().map(|c| ratio(c)));
        let by_throughput =
            |a: &&&Comparison, b: &&&Comparison| a.throughput_ratio.total_cmp(&b.throughput_ratio);
        Some(Self {
            subject,
            baseline: ours.first()?.b,
            count: ours.len(),
            left_out: blocks
                .iter()
                .flat_map(|block| &block.rows)
                .filter(|row| row.comparison.is_some_and(|c| c.a == subject) && row.fell_back())
                .count(),
            throughput: overall(|c| c.throughput_ratio)?,
            response: overall(|c| c.response_ratio),
            cpu_client: overall(|c| c.cpu_ratio_client),
            cpu_server: overall(|c| c.cpu_ratio_server),
            best: ours.iter().max_by(by_throughput)?,
            worst: ours.iter().min_by(by_throughput)?,
        })
    }
}

impl Overall {
    /// `None` without a ratio that is a positive number.
    fn of(ratios: impl Iterator<Item = f64>) -> Option<Self> {
        let ratios: Vec<f64> = ratios.filter(|ratio| ratio.is_finite() && *ratio > 0.0).collect();
        if ratios.is_empty() {
            return None;
        }
        let count = ratios.len() as f64;
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / count).exp();
        let min = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let max = ratios.iter().copied().fold(0.0, f64::max);
        Some(Self { mean, min, max })
    }
}

/// What an interval says of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// All of it is above 1.
    More,
    /// All of it is below 1.
    Less,
    /// It includes 1: no difference can be seen.
    None,
}

impl Effect {
    pub(super) fn of(ratio: f64, ci95: [f64; 2]) -> Self {
        if ratio > 1.0 && ci95[0] > 1.0 {
            Self::More
        } else if ratio < 1.0 && ci95[1] < 1.0 {
            Self::Less
        } else {
            Self::None
        }
    }
}

/// Whether a workload's name is not enough to tell its comparisons apart.
pub(super) fn several_models(document: &Document) -> bool {
    let mut models = document.results.iter().map(|cell| Key::of(cell).model);
    let first = models.next();
    models.any(|model| Some(model) != first)
}

fn figure(before: &str, figure: String, after: &str) -> Vec<Part> {
    vec![Part::Words(before.to_owned()), Part::Figure(figure), Part::Words(after.to_owned())]
}

/// The size of a change without its sign: `89 %`.
fn size(ratio: f64) -> String {
    units::change(ratio).trim_start_matches(['+', '−', '±']).to_owned()
}

/// From here on `2.1× as fast` is easier to grasp than `110 % faster`.
const FACTOR_FROM: f64 = 1.5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_ratios_is_geometric() {
        let overall = Overall::of([2.0, 0.5, f64::NAN, 0.0].into_iter()).expect("two ratios");
        assert!((overall.mean - 1.0).abs() < 1e-12);
        assert_eq!((overall.min, overall.max), (0.5, 2.0));
        assert_eq!(Overall::of([f64::INFINITY].into_iter()), None);
    }

    #[test]
    fn an_interval_with_one_in_it_says_nothing() {
        assert_eq!(Effect::of(1.2, [1.1, 1.3]), Effect::More);
        assert_eq!(Effect::of(1.2, [0.9, 1.3]), Effect::None);
        assert_eq!(Effect::of(0.8, [0.7, 0.9]), Effect::Less);
        assert_eq!(Effect::of(f64::NAN, [f64::NAN; 2]), Effect::None);
    }
}
