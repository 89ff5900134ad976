//! Numbers: medians and spreads over pairs of runs, verdicts against a
//! promise, and how quiet the machine was meanwhile.

use std::fmt;
use std::fs;

use anyhow::{Context, Result};

/// How the two transports' samples become the number that is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    /// For latencies: how many times faster.
    TcpOverSmc,
    /// For rates, and for costs where less is better.
    SmcOverTcp,
    /// For what Sidestep adds, in the sample's unit.
    SmcMinusTcp,
}

impl Compare {
    /// The number of one pair.
    pub(crate) fn of(self, tcp: f64, smc: f64) -> f64 {
        match self {
            Self::TcpOverSmc => tcp / smc,
            Self::SmcOverTcp => smc / tcp,
            Self::SmcMinusTcp => smc - tcp,
        }
    }

    /// Whether the number is a ratio, written with a `×`.
    pub(crate) fn is_ratio(self) -> bool {
        self != Self::SmcMinusTcp
    }
}

/// Which side of a promised number is the good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// More is better.
    AtLeast,
    /// Less is better.
    AtMost,
}

impl Bound {
    fn holds(self, measured: f64, limit: f64) -> bool {
        match self {
            Self::AtLeast => measured >= limit,
            Self::AtMost => measured <= limit,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtLeast => "≥",
            Self::AtMost => "≤",
        })
    }
}

/// What a measured number says about a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// As good as we hope for.
    Aim,
    /// As good as it has to be.
    Must,
    /// Worse than promised.
    Missed,
}

impl Verdict {
    /// Judges a number; `aim` is never weaker than `must`.
    pub(crate) fn of(measured: f64, bound: Bound, must: f64, aim: f64) -> Self {
        if bound.holds(measured, aim) {
            Self::Aim
        } else if bound.holds(measured, must) {
            Self::Must
        } else {
            Self::Missed
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Aim => "aim met",
            Self::Must => "must met",
            Self::Missed => "MISSED",
        })
    }
}

/// Median and extremes of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// None when there are no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let upper = sorted.len() / 2;
        let lower = (sorted.len() - 1) / 2;
        Some(Self { median: (sorted[lower] + sorted[upper]) / 2.0, min, max })
    }
}

/// The machine while a benchmark ran: what a reader needs to trust or doubt
/// its numbers.
#[derive(Debug)]
pub(crate) struct Noise {
    pub(crate) kernel: String,
    pub(crate) cpu_model: String,
    pub(crate) cpus: usize,
    pub(crate) load_before: String,
    cpu_times_before: CpuTimes,
}

impl Noise {
    /// Notes the state before the first run.
    pub(crate) fn watch() -> Result<Self> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").context("/proc/cpuinfo")?;
        Ok(Self {
            kernel: first_line("/proc/sys/kernel/osrelease")?,
            cpu_model: cpu_model(&cpuinfo),
            cpus: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            load_before: load_average()?,
            cpu_times_before: CpuTimes::now()?,
        })
    }

    /// CPU time that the hypervisor gave to others since [`Noise::watch`], in
    /// percent of all.
    pub(crate) fn steal_percent(&self) -> Result<f64> {
        let now = CpuTimes::now()?;
        let steal = now.steal - self.cpu_times_before.steal;
        let all = now.all - self.cpu_times_before.all;
        Ok(100.0 * steal as f64 / all.max(1) as f64)
    }
}

/// The three load averages.
pub(crate) fn load_average() -> Result<String> {
    let line = first_line("/proc/loadavg")?;
    Ok(line.split(' ').take(3).collect::<Vec<_>>().join(" "))
}

fn first_line(path: &str) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| path.to_owned())?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn cpu_model(cpuinfo: &str) -> String {
    let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    lines
        .find(|(key, _)| key.trim() == "model name")
        .map_or_else(|| "unknown".to_owned(), |(_, model)| model.trim().to_owned())
}

/// Ticks of all CPUs together since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuTimes {
    steal: u64,
    all: u64,
}

impl CpuTimes {
    fn now() -> Result<Self> {
        Self::parse(&first_line("/proc/stat")?).context("/proc/stat without its line of all CPUs")
    }

    /// `cpu user nice system idle iowait irq softirq steal guest guest_nice`;
    /// the last two are part of the first two.
    fn parse(line: &str) -> Option<Self> {
        const COUNTED: usize = 8;
        let ticks: Vec<u64> =
            line.strip_prefix("cpu ")?.split_whitespace().flat_map(str::parse).collect();
        let counted = ticks.get(..COUNTED)?;
        Some(Self { steal: *counted.last()?, all: counted.iter().sum() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_of_values_lies_between_the_middle_two() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]);
        assert_eq!(spread, Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn latency_ratios_grow_as_smc_gets_faster() {
        assert_eq!(Compare::TcpOverSmc.of(50.0, 0.5), 100.0);
        assert_eq!(Compare::SmcOverTcp.of(100.0, 250.0), 2.5);
        assert_eq!(Compare::SmcMinusTcp.of(150.0, 153.0), 3.0);
    }

    #[test]
    fn a_number_on_the_limit_keeps_the_promise() {
        assert_eq!(Verdict::of(30.0, Bound::AtLeast, 30.0, 100.0), Verdict::Must);
        assert_eq!(Verdict::of(100.0, Bound::AtLeast, 30.0, 100.0), Verdict::Aim);
        assert_eq!(Verdict::of(29.9, Bound::AtLeast, 30.0, 100.0), Verdict::Missed);
        assert_eq!(Verdict::of(0.4, Bound::AtMost, 0.5, 0.3), Verdict::Must);
        assert_eq!(Verdict::of(f64::NAN, Bound::AtMost, 0.5, 0.3), Verdict::Missed);
    }

    #[test]
    fn steal_is_the_eighth_column_and_guests_are_not_counted_twice() {
        let times = CpuTimes::parse("cpu  1 2 3 4 5 6 7 8 90 100");
        assert_eq!(times, Some(CpuTimes { steal: 8, all: 36 }));
    }
}
