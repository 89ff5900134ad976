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
//!
//! Where theirs was measured decides what ours can be compared with: SMC-R between two hosts is not
//! SMC-D on one, and a distributor that SMC leaves out has to be there for TCP. A figure says so
//! with `setup`, and where ours was measured in another set-up there is no verdict: it is *not
//! measured*, whatever ours is.
//!
//! With `filter_rules` they are changes of TCP under an IP filter against TCP without ([`judge_filters`]).
//!
//! With `against_rmbe` they are changes of SMC with one receive buffer against SMC with
//! another, and say something when both were measured ([`compare_buffers`]).

use std::time::Duration;

pub use super::publication::{Publication, Setup};
use super::{Suite, builtins};
use crate::contention::Contention;
use crate::figure::Figure;
use crate::plan::{Conduct, Pace, Transport};
use crate::result::{Cell, Comparison, Document, Filtered, Published, RemarkKind};
use crate::workload::Workload;

/// Between what ours was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Both ends on this host: SMC-D, and TCP by loopback.
    OneHost,
    /// The server is elsewhere (`--server`).
    TwoHosts,
}

impl Setup {
    /// What theirs had and a measurement at this place has not.
    fn lacking(self, place: Place) -> Option<&'static str> {
        match (self, place) {
            (Self::TwoHosts, Place::TwoHosts) => None,
            (Self::TwoHosts, Place::OneHost) => Some("theirs is SMC-R between two hosts"),
            (Self::Distributor, _) => Some("their TCP passed a distributor"),
        }
    }
}

impl Place {
    /// What was set against what.
    fn compared(self) -> &'static str {
        match self {
            Self::OneHost => "SMC-D against TCP by loopback, on one host",
            Self::TwoHosts => "SMC against TCP, between two hosts",
        }
    }
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
    place: Place,
    ours: &[(Figure, f64)],
) -> Vec<Published> {
    let of = |suite: &Suite| suite.verdicts(workload, rmbe_len, a, b, place, ours);
    builtins().iter().flat_map(of).collect()
}

/// Adds what the suites that come with the program have about SMC with one receive buffer
/// against SMC with another, where `document` has both, to the comparison of the former
/// with TCP. Ask only for a [`comparable`] conduct.
pub fn compare_buffers(document: &mut Document, place: Place) {
    builtins().iter().for_each(|suite| suite.compare_buffers(document, place));
}

/// Adds what the suites that come with the program have about TCP under a filter. Ask only for a
/// [`comparable`] conduct.
pub fn judge_filters(document: &mut Document, place: Place) {
    builtins().iter().for_each(|suite| suite.judge_filters(document, place));
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
        place: Place,
        ours: &[(Figure, f64)],
    ) -> Vec<Published> {
        if (a, b) != SMC_AGAINST_TCP {
            return Vec::new();
        }
        self.entries
            .iter()
            .filter(|entry| entry.workload == workload)
            .flat_map(|entry| &entry.published)
            .filter(|publication| publication.against_rmbe_len.is_none())
            .filter(|publication| publication.filter_rules.is_none())
            .filter(|publication| {
                publication.rmbe_len.is_none() || publication.rmbe_len == rmbe_len
            })
            .flat_map(|publication| publication.verdicts(place.compared(), place, ours))
            .collect()
    }

    /// [`compare_buffers`] from the figures of this suite alone.
    pub fn compare_buffers(&self, document: &mut Document, place: Place) {
        let Document { results, comparisons, .. } = document;
        let of_quiet =
            |it: &&mut Comparison| it.contention == Contention::NONE && it.filter_rules == 0;
        let of_smc = |it: &&mut Comparison| (it.a, it.b) == SMC_AGAINST_TCP;
        for comparison in comparisons.iter_mut().filter(of_smc).filter(of_quiet) {
            let of_workload =
                self.entries.iter().filter(|it| it.workload.to_string() == comparison.workload);
            for publication in of_workload.flat_map(|entry| &entry.published) {
                let Some(other) = publication.against_rmbe_len else { continue };
                if publication.rmbe_len == comparison.rmbe {
                    let cell = |rmbe| smc_cell(results, comparison, rmbe);
                    let pair = cell(comparison.rmbe).zip(cell(Some(other)));
                    let ours = pair.map_or_else(Vec::new, |(one, other)| changes(one, other));
                    let compared = "SMC with this receive buffer against SMC with another";
                    comparison.published.extend(publication.verdicts(compared, place, &ours));
                }
            }
        }
    }

    /// [`judge_filters`] from the figures of this suite alone.
    pub fn judge_filters(&self, document: &mut Document, place: Place) {
        let of_quiet = |it: &&mut Filtered| it.contention == Contention::NONE;
        let of_tcp = |it: &&mut Filtered| it.transport == Transport::Tcp;
        for filtered in document.filtered.iter_mut().filter(of_tcp).filter(of_quiet) {
            let ours = [
                (Figure::Throughput, filtered.throughput_ratio - 1.0),
                (Figure::Response, filtered.response_ratio - 1.0),
                (Figure::Cpu, filtered.cpu_ratio - 1.0),
            ];
            let of_workload =
                self.entries.iter().filter(|it| it.workload.to_string() == filtered.workload);
            let publications = of_workload.flat_map(|entry| &entry.published);
            for publication in
                publications.filter(|it| it.filter_rules == Some(filtered.filter_rules))
            {
                let compared = "TCP under this filter against TCP without";
                filtered.published.extend(publication.verdicts(compared, place, &ours));
            }
        }
    }
}

const SMC_AGAINST_TCP: (Transport, Transport) = (Transport::Smc, Transport::Tcp);

/// What was measured over SMC like the comparison, with this receive buffer; unless
/// it was not SMC.
fn smc_cell<'a>(results: &'a [Cell], like: &Comparison, rmbe: Option<u32>) -> Option<&'a Cell> {
    let is_alike = |cell: &&Cell| {
        cell.transport == Transport::Smc
            && (&cell.workload, cell.model, cell.rmbe) == (&like.workload, like.model, rmbe)
            && cell.contention == like.contention
            && cell.filter_rules == like.filter_rules
    };
    let cell = results.iter().find(is_alike)?;
    cell.remarks.iter().all(|remark| remark.kind != RemarkKind::FellBack).then_some(cell)
}

/// The change of each figure from `other` to `one`.
fn changes(one: &Cell, other: &Cell) -> Vec<(Figure, f64)> {
    let change = |of: fn(&Cell) -> f64| of(one) / of(other) - 1.0;
    vec![
        (Figure::Throughput, change(|cell| cell.tps.median)),
        (Figure::Response, change(|cell| cell.response_us.mean)),
        (Figure::ResponseP99, change(|cell| cell.response_us.p99)),
        (Figure::Cpu, change(|cell| cell.cpu_us_per_tran.client + cell.cpu_us_per_tran.server)),
        (Figure::CpuClient, change(|cell| cell.cpu_us_per_tran.client)),
        (Figure::CpuServer, change(|cell| cell.cpu_us_per_tran.server)),
    ]
}

impl Publication {
    /// One for each figure that was published and measured.
    fn verdicts(
        &self,
        compared: &str,
        place: Place,
        ours: &[(Figure, f64)],
    ) -> impl Iterator<Item = Published> {
        let lacking = self.setup.and_then(|setup| setup.lacking(place));
        self.changes.iter().filter_map(move |(&figure, &theirs)| {
            let &(_, ours) = ours.iter().find(|(measured, _)| *measured == figure)?;
            let is_as_good = if figure.more_is_better() { ours >= theirs } else { ours <= theirs };
            ours.is_finite().then(|| Published {
                figure,
                source: self.source.clone(),
                compared: compared.to_owned(),
                lacking: lacking.map(str::to_owned),
                theirs,
                ours,
                beaten: lacking.is_none() && is_as_good,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Model;
    use crate::result::{CpuCost, Machine, Proof, Remark, Response, Spread, VERSION, Waits};

    const ALL: [(Figure, f64); 5] = [
        (Figure::Throughput, 7.32),
        (Figure::Response, -0.9),
        (Figure::Cpu, 0.2),
        (Figure::CpuClient, -0.5),
        (Figure::CpuServer, f64::NAN),
    ];

    fn published(workload: &str, a: Transport, b: Transport) -> Vec<Published> {
        verdicts(workload.parse().unwrap(), None, a, b, Place::TwoHosts, &ALL)
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

    /// Not even where ours is as good: it is another thing.
    #[test]
    fn what_was_published_of_two_hosts_is_not_measured_on_one() {
        let workload = "RR10(2KB/2KB)".parse().unwrap();
        let (smc, tcp) = SMC_AGAINST_TCP;
        let at = |place| verdicts(workload, None, smc, tcp, place, &ALL).swap_remove(0);
        let here = at(Place::OneHost);
        assert_eq!(here.lacking.as_deref(), Some("theirs is SMC-R between two hosts"));
        assert_eq!((here.ours, here.beaten), (7.32, false));
        assert_eq!(here.compared, "SMC-D against TCP by loopback, on one host");
        let elsewhere = at(Place::TwoHosts);
        assert_eq!((elsewhere.lacking, elsewhere.beaten), (None, true));
        assert_eq!(elsewhere.compared, "SMC against TCP, between two hosts");
    }

    #[test]
    fn nothing_is_measured_through_a_distributor() {
        let workload = "RR20(100B/800B)".parse().unwrap();
        let (smc, tcp) = SMC_AGAINST_TCP;
        for place in [Place::OneHost, Place::TwoHosts] {
            let all = verdicts(workload, None, smc, tcp, place, &ALL);
            assert_eq!(all.len(), 2);
            assert!(all.iter().all(|one| one.lacking.is_some() && !one.beaten));
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
            let (smc, tcp) = SMC_AGAINST_TCP;
            let verdicts = suite.verdicts(workload, rmbe_len, smc, tcp, Place::OneHost, &ours);
            verdicts.into_iter().map(|one| (one.source, one.beaten)).collect()
        };
        let any = || ("any".to_owned(), true);
        assert_eq!(sources(None), [any()]);
        assert_eq!(sources(Some(256 << 10)), [any()]);
        assert_eq!(sources(Some(1 << 20)), [any(), ("1 MB".to_owned(), false)]);
    }

    const STREAM: &str = "STR1(1B/20MB)";

    /// What a server spent on a transaction with this receive buffer.
    fn stream(rmbe: u32, server: f64) -> Cell {
        Cell {
            workload: STREAM.to_owned(),
            transport: Transport::Smc,
            model: Model::Threads,
            rmbe: Some(rmbe),
            contention: Contention::NONE,
            filter_rules: 0,
            runs: 5,
            tps: Spread::default(),
            mb_per_s: 0.0,
            response_us: Response::default(),
            cpu_us_per_tran: CpuCost { server, ..CpuCost::default() },
            machine_us_per_tran: 0.0,
            server_machine_us_per_tran: None,
            waits_per_tran: Waits::default(),
            neighbour_cpus: 0.0,
            transport_proof: Proof::default(),
            remarks: Vec::new(),
            percentiles: Vec::new(),
            over_time: Vec::new(),
            slice_ms: 100,
            samples: Vec::new(),
        }
    }

    /// The verdicts on SMC with 1 MB after these measurements.
    fn verdicts_on_a_megabyte(results: Vec<Cell>) -> Vec<(Figure, f64, bool)> {
        let against_tcp = |rmbe| Comparison {
            workload: STREAM.to_owned(),
            model: Model::Threads,
            rmbe: Some(rmbe),
            contention: Contention::NONE,
            filter_rules: 0,
            a: Transport::Smc,
            b: Transport::Tcp,
            throughput_ratio: 1.0,
            ci95: [1.0; 2],
            response_ratio: 1.0,
            response_ci95: [1.0; 2],
            p99_ratio: None,
            p99_ci95: None,
            cpu_ratio: None,
            cpu_ci95: None,
            cpu_ratio_client: 1.0,
            cpu_ci95_client: [1.0; 2],
            cpu_ratio_server: 1.0,
            cpu_ci95_server: [1.0; 2],
            published: Vec::new(),
            required: Vec::new(),
        };
        let mut document = Document {
            version: VERSION,
            machine: Machine::default(),
            options: Vec::new(),
            suite: None,
            results,
            comparisons: [1 << 20, 256 << 10].map(against_tcp).to_vec(),
            filtered: Vec::new(),
        };
        compare_buffers(&mut document, Place::TwoHosts);
        assert_eq!(document.comparisons[1].published, []);
        short(&document.comparisons[0].published)
    }

    #[test]
    fn one_buffer_is_set_against_another_where_both_were_measured() {
        let (large, small) = (stream(1 << 20, 75.0), stream(256 << 10, 100.0));
        let both = verdicts_on_a_megabyte(vec![small.clone(), large.clone()]);
        assert_eq!(both, [(Figure::CpuServer, -0.18, true)]);
        let dearer = stream(1 << 20, 90.0);
        let both = verdicts_on_a_megabyte(vec![small.clone(), dearer]);
        assert_eq!(both, [(Figure::CpuServer, -0.18, false)]);
        assert_eq!(verdicts_on_a_megabyte(vec![large.clone()]), []);
        let remark = Remark { kind: RemarkKind::FellBack, text: String::new() };
        let not_smc = Cell { remarks: vec![remark], ..small };
        assert_eq!(verdicts_on_a_megabyte(vec![not_smc, large]), []);
    }

    #[test]
    fn a_filter_is_judged_by_what_was_published_for_as_many_rules() {
        let filtered = |transport, filter_rules, response_ratio| Filtered {
            workload: "CRR40(64B/8KB)".to_owned(),
            transport,
            model: Model::Threads,
            rmbe: None,
            contention: Contention::NONE,
            filter_rules,
            throughput_ratio: 1.0 / response_ratio,
            ci95: [1.0; 2],
            response_ratio,
            response_ci95: [1.0; 2],
            cpu_ratio: 1.0,
            cpu_ci95: [1.0; 2],
            published: Vec::new(),
        };
        let mut document = Document {
            version: VERSION,
            machine: Machine::default(),
            options: Vec::new(),
            suite: None,
            results: Vec::new(),
            comparisons: Vec::new(),
            filtered: vec![
                filtered(Transport::Tcp, 1_000, 1.25),
                filtered(Transport::Tcp, 10_000, 1.5),
                filtered(Transport::Tcp, 100_000, 1.5),
                filtered(Transport::Smc, 10_000, 1.5),
            ],
        };
        judge_filters(&mut document, Place::OneHost);
        let verdicts: Vec<_> = document.filtered.iter().map(|it| short(&it.published)).collect();
        let response = Figure::Response;
        assert_eq!(
            verdicts,
            [vec![(response, 0.22, false)], vec![(response, 4.11, true)], vec![], vec![]]
        );
        let (smc, tcp) = SMC_AGAINST_TCP;
        let workload = "CRR40(64B/8KB)".parse().unwrap();
        assert_eq!(verdicts_of_transports(workload, smc, tcp), []);
    }

    fn verdicts_of_transports(workload: Workload, a: Transport, b: Transport) -> Vec<Published> {
        verdicts(workload, None, a, b, Place::OneHost, &ALL)
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
            let mut figures: Vec<_> = verdicts(
                workload.workload,
                None,
                Transport::Smc,
                Transport::Tcp,
                Place::OneHost,
                &ALL,
            )
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
