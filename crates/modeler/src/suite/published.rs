//! What IBM has published, beside what we have measured.
//!
//! The figures lie in the suites, next to the workload for which they were published:
//!
//! ```toml
//! [[entry.published]]
//! source = "IBM, against TCP/IP over OSA"
//! changes = { throughput = +7.32, response = -0.88, cpu = -0.09 }
//! ```
//!
//! All are changes of SMC against TCP: +7.32 is +732 %. So they say something about a
//! measurement of ours only when that, too, sets SMC against TCP, on the same workload
//! and, if the figure names a receive buffer, with that buffer. It need not have been
//! asked for by the suite: who measures `RR10(2KB/2KB)` by name gets the same verdicts.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::{Suite, builtins, file};
use crate::plan::{Conduct, Pace, Transport};
use crate::result::{Figure, Published};
use crate::workload::Workload;

/// Figures that were published together for a workload.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publication {
    /// Where, and against what.
    pub source: String,
    /// The receive buffer with which they were measured, in bytes; `None`: they hold
    /// for any.
    #[serde(rename = "rmbe", default, deserialize_with = "file::rmbe_len")]
    pub rmbe_len: Option<u32>,
    /// The changes: at least -1, finite.
    #[serde(deserialize_with = "file::changes")]
    pub changes: BTreeMap<Figure, f64>,
}

/// What the suites that come with the program have for a measurement of `workload`
/// with the receive buffer `rmbe_len` over transport `a` against `b`, with a verdict on
/// `ours`: the change of each figure that was measured.
///
/// Nothing unless `a` is SMC and `b` is TCP. Ask only for a [`comparable`] conduct, and
/// not when connections fell back to TCP.
#[must_use]
pub fn verdicts(
    workload: Workload,
    rmbe_len: Option<u32>,
    a: Transport,
    b: Transport,
    ours: &[(Figure, f64)],
) -> Vec<Published> {
    let of = |suite: &Suite| suite.verdicts(workload, rmbe_len, a, b, ours);
    builtins().iter().flat_map(of).collect()
}

/// Whether a measurement of this conduct can be set beside published figures. Those
/// are of clients that start again at once: a think time or a rate decides the
/// throughput, whatever the transport.
#[must_use]
pub fn comparable(conduct: &Conduct) -> bool {
    conduct.pace == Pace::Closed && conduct.think == Duration::ZERO
}

impl Suite {
    /// [`verdicts`] from the figures of this suite alone: for one that does not come
    /// with the program.
    #[must_use]
    pub fn verdicts(
        &self,
        workload: Workload,
        rmbe_len: Option<u32>,
        a: Transport,
        b: Transport,
        ours: &[(Figure, f64)],
    ) -> Vec<Published> {
        if (a, b) != (Transport::Smc, Transport::Tcp) {
            return Vec::new();
        }
        self.entries
            .iter()
            .filter(|entry| entry.workload == workload)
            .flat_map(|entry| &entry.published)
            .filter(|publication| {
                publication.rmbe_len.is_none() || publication.rmbe_len == rmbe_len
            })
            .flat_map(|publication| publication.verdicts(ours))
            .collect()
    }
}

impl Publication {
    /// One for each figure that was published and measured.
    fn verdicts(&self, ours: &[(Figure, f64)]) -> impl Iterator<Item = Published> {
        self.changes.iter().filter_map(|(&figure, &theirs)| {
            let &(_, ours) = ours.iter().find(|(measured, _)| *measured == figure)?;
            ours.is_finite().then(|| Published {
                figure,
                source: self.source.clone(),
                theirs,
                ours,
                beaten: if figure.more_is_better() { ours >= theirs } else { ours <= theirs },
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(Figure, f64); 5] = [
        (Figure::Throughput, 7.32),
        (Figure::Response, -0.9),
        (Figure::Cpu, 0.2),
        (Figure::CpuClient, -0.5),
        (Figure::CpuServer, f64::NAN),
    ];

    fn published(workload: &str, a: Transport, b: Transport) -> Vec<Published> {
        verdicts(workload.parse().unwrap(), None, a, b, &ALL)
    }

    /// Figure, published change, verdict.
    fn short(published: &[Published]) -> Vec<(Figure, f64, bool)> {
        published.iter().map(|one| (one.figure, one.theirs, one.beaten)).collect()
    }

    #[test]
    fn a_workload_by_name_is_set_beside_what_was_published_for_it() {
        let published = published("RR10(2KB/2KB)", Transport::Smc, Transport::Tcp);
        assert_eq!(
            short(&published),
            [
                (Figure::Throughput, 7.32, true),
                (Figure::Response, -0.88, true),
                (Figure::Cpu, -0.09, false),
            ]
        );
        assert_eq!(published[1].ours, -0.9);
        assert_eq!(published[1].source, "IBM, against TCP/IP over OSA");
    }

    #[test]
    fn only_smc_against_tcp_gets_a_verdict() {
        for (a, b) in [
            (Transport::Tcp, Transport::Smc),
            (Transport::Unix, Transport::Tcp),
            (Transport::Smc, Transport::Unix),
        ] {
            assert_eq!(published("RR10(2KB/2KB)", a, b), []);
        }
    }

    #[test]
    fn another_workload_has_no_published_figures() {
        assert_eq!(published("RR11(2KB/2KB)", Transport::Smc, Transport::Tcp), []);
    }

    #[test]
    fn a_figure_that_names_an_rmbe_holds_for_that_one_alone() {
        let suite = Suite::parse(
            r#"
            name = "mine"
            title = "Mine"
            [[entry]]
            workload = "STR1(1B/20MB)"
            published = [
                { source = "any", changes = { throughput = 1 } },
                { source = "1 MB", rmbe = "1MB", changes = { throughput = 2, cpu-server = -0.5 } },
            ]
            "#,
        )
        .unwrap();
        let ours = [(Figure::Throughput, 1.0), (Figure::CpuServer, f64::NAN)];
        let sources = |rmbe_len| -> Vec<(String, bool)> {
            let workload = "STR1(1B/20MB)".parse().unwrap();
            let verdicts =
                suite.verdicts(workload, rmbe_len, Transport::Smc, Transport::Tcp, &ours);
            verdicts.into_iter().map(|one| (one.source, one.beaten)).collect()
        };
        let any = || ("any".to_owned(), true);
        assert_eq!(sources(None), [any()]);
        assert_eq!(sources(Some(256 << 10)), [any()]);
        assert_eq!(sources(Some(1 << 20)), [any(), ("1 MB".to_owned(), false)]);
    }

    #[test]
    fn a_pause_or_a_rate_is_not_comparable() {
        let closed = Conduct::default();
        let paused = Conduct { think: Duration::from_millis(1), ..closed.clone() };
        let open = Conduct { pace: Pace::Open { per_second: 1.0 }, ..closed.clone() };
        assert_eq!(
            [closed, paused, open].map(|conduct| comparable(&conduct)),
            [true, false, false]
        );
    }

    #[test]
    fn every_figure_is_in_one_suite_only() {
        for workload in builtins().iter().flat_map(|suite| &suite.entries) {
            let mut figures: Vec<_> =
                verdicts(workload.workload, None, Transport::Smc, Transport::Tcp, &ALL)
                    .into_iter()
                    .map(|one| (one.figure, one.source))
                    .collect();
            let all = figures.len();
            figures.sort();
            figures.dedup();
            assert_eq!(figures.len(), all, "{}", workload.workload);
        }
    }
}
