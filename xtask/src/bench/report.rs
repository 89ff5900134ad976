//! The table of results, a line as soon as it is known, and the same as JSON.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::measure::{Noise, Spread, Verdict, load_average};
use super::workloads::Row;

/// Samples of the two transports, taken one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) tcp: f64,
    pub(crate) smc: f64,
}

/// A row with what was measured.
#[derive(Debug)]
pub(crate) struct Measured<'a> {
    pub(crate) row: Row<'a>,
    /// Endless loops beside it.
    pub(crate) neighbours: usize,
    pub(crate) pairs: Vec<Pair>,
}

impl Measured<'_> {
    fn spread(&self) -> Option<Spread> {
        Spread::of(self.pairs.iter().map(|pair| self.row.compare.of(pair.tcp, pair.smc)))
    }

    fn medians(&self) -> Option<Pair> {
        let tcp = Spread::of(self.pairs.iter().map(|pair| pair.tcp))?.median;
        let smc = Spread::of(self.pairs.iter().map(|pair| pair.smc))?.median;
        Some(Pair { tcp, smc })
    }

    /// The verdict on the median.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let Row { bound, must, aim, .. } = self.row;
        Some(Verdict::of(self.spread()?.median, bound, must, aim))
    }

    /// Prints the row's line of the table.
    pub(crate) fn print(&self) {
        let (Some(spread), Some(medians), Some(verdict)) =
            (self.spread(), self.medians(), self.verdict())
        else {
            return print_remark(self.row.name, "no figures");
        };
        let Row { name, unit, compare, bound, must, aim } = self.row;
        let sign = if compare.is_ratio() { "×" } else { unit };
        let limit = |value| format!("{bound} {} {sign}", short(value));
        let range = format!("{} … {}", short(spread.min), short(spread.max));
        let sample = |value| format!("{} {unit}", short(value));
        print_line([
            name,
            &limit(must),
            &limit(aim),
            &format!("{} {sign}", short(spread.median)),
            &range,
            &sample(medians.tcp),
            &sample(medians.smc),
            &verdict.to_string(),
        ]);
    }

    fn to_json(&self) -> Value {
        let Row { name, unit, bound, must, aim, .. } = self.row;
        let pairs: Vec<Value> = self
            .pairs
            .iter()
            .map(|pair| {
                let compared = self.row.compare.of(pair.tcp, pair.smc);
                json!({ "tcp": pair.tcp, "smc": pair.smc, "compared": compared })
            })
            .collect();
        let spread = self.spread();
        json!({
            "name": name,
            "neighbours": self.neighbours,
            "sample_unit": unit,
            "compared": format!("{:?}", self.row.compare),
            "bound": bound.to_string(),
            "must": must,
            "aim": aim,
            "median": spread.map(|it| it.median),
            "min": spread.map(|it| it.min),
            "max": spread.map(|it| it.max),
            "verdict": self.verdict().map(|it| it.to_string()),
            "pairs": pairs,
        })
    }
}

/// Prints the heading of the table; `sides` are what is compared.
pub(crate) fn print_heading([first, second]: [&str; 2]) {
    print_line(["what", "must", "aim", "median", "min … max", first, second, "verdict"]);
}

/// Prints beside how many endless loops the following lines are.
pub(crate) fn print_neighbours(count: usize) {
    match count {
        0 => println!("no neighbours"),
        1 => println!("1 neighbour"),
        _ => println!("{count} neighbours"),
    }
}

/// Prints a line for a workload without numbers.
pub(crate) fn print_remark(name: &str, remark: &str) {
    println!("{name:<32} {remark}");
}

fn print_line([what, must, aim, median, range, tcp, smc, verdict]: [&str; 8]) {
    println!(
        "{what:<32} {must:>11} {aim:>11} {median:>11} {range:>19} {tcp:>14} {smc:>14}  {verdict}"
    );
}

/// Three digits that matter, and no more than a reader wants.
fn short(value: f64) -> String {
    // -0.00 would look like a measurement.
    let value = if value.abs() < 0.005 { 0.0 } else { value };
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Prints what the machine was like.
pub(crate) fn print_noise(noise: &Noise) -> Result<()> {
    println!(
        "machine: kernel {}, {} × {}; load average {} → {}; steal {:.2} %",
        noise.kernel,
        noise.cpus,
        noise.cpu_model,
        noise.load_before,
        load_average()?,
        noise.steal_percent()?,
    );
    Ok(())
}

/// Writes everything to `file`.
pub(crate) fn write_json(file: &Path, noise: &Noise, rows: &[Measured<'_>]) -> Result<()> {
    let report = json!({
        "machine": {
            "kernel": noise.kernel,
            "cpu_model": noise.cpu_model,
            "cpus": noise.cpus,
            "load_before": noise.load_before,
            "load_after": load_average()?,
            "steal_percent": noise.steal_percent()?,
        },
        "rows": rows.iter().map(Measured::to_json).collect::<Vec<_>>(),
    });
    let text = serde_json::to_string_pretty(&report)?;
    fs::write(file, text + "\n").with_context(|| format!("writing {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::workloads::WORKLOADS;

    #[test]
    fn numbers_keep_three_digits() {
        let shown = [123_456.7, 54.48, 1.234, -0.001].map(short);
        assert_eq!(shown, ["123457", "54.5", "1.23", "0.00"]);
    }

    #[test]
    fn the_verdict_is_on_the_median_of_the_pairs_own_ratios() {
        let row = WORKLOADS[0].rows[0];
        let pairs = [(50.0, 1.0), (90.0, 1.0), (40.0, 4.0)];
        let pairs = pairs.map(|(tcp, smc)| Pair { tcp, smc }).to_vec();
        let measured = Measured { row, neighbours: 0, pairs };
        assert_eq!(measured.spread().map(|it| it.median), Some(50.0));
        assert_eq!(measured.verdict(), Some(Verdict::Must));
    }
}
