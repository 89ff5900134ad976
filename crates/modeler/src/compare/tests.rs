//! Verdicts on constructed documents.

use super::*;
use crate::contention::Contention;
use crate::result::{CpuCost, Remark, RemarkKind, Response};

/// Five runs that scatter by about 1 %.
const STEADY: [f64; 5] = [0.99, 1.0, 1.01, 1.005, 0.995];

/// Five runs that scatter by about 30 %.
const WILD: [f64; 5] = [0.6, 1.4, 1.0, 0.75, 1.3];

fn cell(workload: &str, transport: Transport, samples: Vec<Sample>) -> Cell {
    Cell {
        workload: workload.into(),
        transport,
        model: Model::Threads,
        rmbe: None,
        contention: Contention::NONE,
        filter_rules: 0,
        runs: samples.len() as u32,
        tps: result::Spread::default(),
        mb_per_s: 0.0,
        response_us: Response::default(),
        cpu_us_per_tran: CpuCost::default(),
        machine_us_per_tran: 0.0,
        server_machine_us_per_tran: None,
        waits_per_tran: result::Waits::default(),
        neighbour_cpus: 0.0,
        transport_proof: result::Proof::default(),
        remarks: Vec::new(),
        percentiles: Vec::new(),
        over_time: Vec::new(),
        slice_ms: 100,
        samples,
    }
}

/// Runs whose figures are these times the scatter.
fn runs(scatter: &[f64], [tps, mean, p99, client, server]: [f64; 5]) -> Vec<Sample> {
    let sample = |by: &f64| Sample {
        tps: tps * by,
        response_us: Response { mean: mean * by, p99: p99 * by, ..Response::default() },
        cpu_us_per_tran: CpuCost { client: client * by, server: server * by, ..CpuCost::default() },
        ..Sample::default()
    };
    scatter.iter().map(sample).collect()
}

/// Transactions per second, mean and p99 of response times, CPU of clients and servers.
const USUAL: [f64; 5] = [100_000.0, 95.0, 310.0, 6.2, 5.1];

fn document(results: Vec<Cell>) -> Document {
    Document {
        version: result::VERSION,
        machine: Machine { cpu_model: "EPYC".into(), cpus: 2, ..Machine::default() },
        options: vec!["--pairs".into(), "5".into()],
        suite: None,
        results,
        comparisons: Vec::new(),
        filtered: Vec::new(),
    }
}

fn rr(scatter: &[f64], figures: [f64; 5]) -> Document {
    document(vec![cell("RR10(2KB/2KB)", Transport::Smc, runs(scatter, figures))])
}

fn verdicts(report: &ComparisonReport) -> Vec<Verdict> {
    report.cells.iter().flat_map(|cell| &cell.figures).map(|figure| figure.verdict).collect()
}

fn compared(a: &Document, b: &Document) -> ComparisonReport {
    compare(a, b, MARGIN).unwrap()
}

#[test]
fn a_release_that_changes_nothing_is_equivalent() {
    let report = compared(&rr(&STEADY, USUAL), &rr(&STEADY, USUAL));
    assert_eq!(verdicts(&report), [Verdict::Equivalent; 5]);
    assert_eq!(report.exit_code(), 0);
    assert_eq!(report.warnings, [] as [&str; 0]);
}

#[test]
fn better_is_more_throughput_and_less_of_everything_else() {
    use Verdict::{Better, Worse};
    let more = USUAL.map(|figure| figure * 1.2);
    let report = compared(&rr(&STEADY, USUAL), &rr(&STEADY, more));
    assert_eq!(verdicts(&report), [Better, Worse, Worse, Worse, Worse]);
    assert_eq!(report.exit_code(), 1);
    let back = compared(&rr(&STEADY, more), &rr(&STEADY, USUAL));
    assert_eq!(verdicts(&back), [Worse, Better, Better, Better, Better]);
}

#[test]
fn the_exit_code_is_0_when_nothing_is_worse() {
    let improved = [150_000.0, 60.0, 200.0, 3.0, 2.0];
    let report = compared(&rr(&STEADY, USUAL), &rr(&STEADY, improved));
    assert_eq!(verdicts(&report), [Verdict::Better; 5]);
    assert_eq!(report.exit_code(), 0);
}

#[test]
fn the_ratio_is_b_to_a_with_its_interval() {
    let report = compared(&rr(&STEADY, USUAL), &rr(&STEADY, USUAL.map(|figure| figure * 2.0)));
    let figure = &report.cells[0].figures[0];
    let UnpairedRatio { ratio, ci95: [low, high] } = figure.ratio.unwrap();
    assert!((ratio - 2.0).abs() < 1e-9 && 1.9 < low && low < 2.0 && 2.0 < high && high < 2.1);
    assert_eq!((figure.a, figure.b), (100_000.0, 200_000.0));
}

#[test]
fn noise_is_neither_worse_nor_equivalent() {
    for factor in [0.9, 1.0, 1.1] {
        let report = compared(&rr(&WILD, USUAL), &rr(&WILD, USUAL.map(|figure| figure * factor)));
        assert_eq!(verdicts(&report), [Verdict::Unclear; 5]);
        assert_eq!(report.exit_code(), 0);
    }
}

/// 4 % is certain with this scatter and within a margin of 5 %, but the interval is
/// not within it: nothing is shown.
#[test]
fn a_certain_change_within_the_margin_is_not_called_worse() {
    use Verdict::{Equivalent, Unclear, Worse};
    let slower = [96_100.0, 99.0, 310.0, 6.2, 5.1];
    let report = compared(&rr(&STEADY, USUAL), &rr(&STEADY, slower));
    let [throughput, response, ..] = &report.cells[0].figures[..] else { panic!() };
    assert!(throughput.ratio.unwrap().ci95[1] < 1.0, "it is certain");
    assert!(response.ratio.unwrap().ci95[0] > 1.0, "it is certain");
    assert_eq!(verdicts(&report), [Unclear, Unclear, Equivalent, Equivalent, Equivalent]);
    let strict = compare(&rr(&STEADY, USUAL), &rr(&STEADY, slower), 0.02).unwrap();
    assert_eq!(verdicts(&strict), [Worse, Worse, Equivalent, Equivalent, Equivalent]);
}

#[test]
fn single_runs_have_no_verdict_and_a_warning() {
    let report = compared(&rr(&[1.0], USUAL), &rr(&STEADY, USUAL));
    assert_eq!(verdicts(&report), [Verdict::Unclear; 5]);
    assert_eq!(report.cells[0].figures[0].ratio, None);
    let [warning] = &report.warnings[..] else { panic!("{:?}", report.warnings) };
    assert!(warning.starts_with("A, RR10(2KB/2KB) over smc (threads): fewer"), "{warning}");
}

#[test]
fn cells_without_samples_or_with_zeros_have_no_verdict() {
    let zeros = [100_000.0, 95.0, 310.0, 0.0, 5.1];
    let report = compared(&rr(&STEADY, USUAL), &rr(&STEADY, zeros));
    assert_eq!(report.cells[0].figures[3].verdict, Verdict::Unclear);
    assert_eq!(report.cells[0].figures[4].verdict, Verdict::Equivalent);
    let report = compared(&rr(&STEADY, USUAL), &rr(&[], USUAL));
    assert_eq!(verdicts(&report), [Verdict::Unclear; 5]);
}

#[test]
fn cells_are_matched_by_workload_model_transport_and_rmbe() {
    let of = |workload, transport| cell(workload, transport, runs(&STEADY, USUAL));
    let with_rmbe = Cell { rmbe: Some(1 << 20), ..of("STR1(1B/20MB)", Transport::Smc) };
    let in_loop = Cell { model: Model::EventLoop, ..of("RR1(1B/1B)", Transport::Tcp) };
    let a = document(vec![
        of("RR1(1B/1B)", Transport::Tcp),
        of("RR1(1B/1B)", Transport::Smc),
        with_rmbe.clone(),
    ]);
    let b = document(vec![with_rmbe, in_loop, of("RR1(1B/1B)", Transport::Smc)]);
    let report = compared(&a, &b);
    let names = |keys: Vec<&CellKey>| keys.into_iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        names(report.cells.iter().map(|cell| &cell.key).collect()),
        ["RR1(1B/1B) over smc (threads)", "STR1(1B/20MB) over smc (threads, RMBE 1048576)"]
    );
    assert_eq!(names(report.only_a.iter().collect()), ["RR1(1B/1B) over tcp (threads)"]);
    assert_eq!(names(report.only_b.iter().collect()), ["RR1(1B/1B) over tcp (event-loop)"]);
}

#[test]
fn cells_beside_other_neighbours_are_not_compared() {
    let beside = |neighbours: &str| Cell {
        contention: Contention { neighbours: neighbours.parse().unwrap(), ..Contention::NONE },
        ..cell("RR1(1B/1B)", Transport::Smc, runs(&STEADY, USUAL))
    };
    let (a, b) =
        (document(vec![beside("2"), beside("4")]), document(vec![beside("4:idle"), beside("2")]));
    let report = compared(&a, &b);
    let names = |keys: &[CellKey]| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(report.cells.len(), 1);
    assert_eq!(report.cells[0].key.to_string(), "RR1(1B/1B) over smc (threads, 2 neighbours)");
    assert_eq!(names(&report.only_a), ["RR1(1B/1B) over smc (threads, 4 neighbours)"]);
    assert_eq!(
        names(&report.only_b),
        ["RR1(1B/1B) over smc (threads, 4 neighbours of SCHED_IDLE)"]
    );
    assert!(
        report.warnings.contains(
            &"RR1(1B/1B) over smc (threads) is not compared: it was measured under other \
              neighbours, limits or filters, A: `4 neighbours`, B: `4 neighbours of SCHED_IDLE`"
                .to_owned()
        ),
        "{:?}",
        report.warnings
    );
}

#[test]
fn equal_cells_are_matched_in_their_order() {
    let of = |factor: f64| {
        cell("RR1(1B/1B)", Transport::Tcp, runs(&STEADY, USUAL.map(|figure| figure * factor)))
    };
    let report = compared(&document(vec![of(1.0), of(3.0)]), &document(vec![of(1.0), of(3.0)]));
    assert_eq!(verdicts(&report), [Verdict::Equivalent; 10]);
}

#[test]
fn documents_without_anything_in_common_are_an_error() {
    let other = document(vec![cell("RR1(1B/1B)", Transport::Tcp, runs(&STEADY, USUAL))]);
    let error = compare(&rr(&STEADY, USUAL), &other, MARGIN).unwrap_err();
    assert_eq!(error, CompareError::NothingInCommon);
}

#[test]
fn documents_of_another_version_are_an_error() {
    let newer = Document { version: result::VERSION + 1, ..rr(&STEADY, USUAL) };
    let found = result::VERSION + 1;
    let error = compare(&rr(&STEADY, USUAL), &newer, MARGIN).unwrap_err();
    assert_eq!(error, CompareError::Version { document: 'B', found });
    let error = compare(&newer, &newer, MARGIN).unwrap_err();
    assert_eq!(error, CompareError::Version { document: 'A', found }, "even if both have it");
}

#[test]
fn a_margin_must_be_between_nothing_and_all() {
    let (a, b) = (rr(&STEADY, USUAL), rr(&STEADY, USUAL));
    for margin in [0.0, -0.05, 1.0, 5.0, f64::NAN] {
        assert!(matches!(compare(&a, &b, margin), Err(CompareError::Margin(_))), "{margin}");
    }
}

#[test]
fn different_machines_options_and_remarks_are_warned_of() {
    let a = rr(&STEADY, USUAL);
    let mut b = rr(&STEADY, USUAL);
    b.machine.cpus = 8;
    b.machine.kernel = "Linux 6.18".into();
    b.machine.warnings.push("other programs took 12 % of the CPUs".into());
    b.options[1] = "7".into();
    b.results[0].remarks.push(Remark {
        kind: RemarkKind::FellBack,
        text: "2 of 20 connections stayed on TCP".into(),
    });
    assert_eq!(
        compared(&a, &b).warnings,
        [
            "the numbers of CPUs differ, and figures with them: A `2`, B `8`",
            "the kernels differ, and figures with them: A ``, B `Linux 6.18`",
            "the options differ: A `--pairs 5`, B `--pairs 7`",
            "B: other programs took 12 % of the CPUs",
            "B, RR10(2KB/2KB) over smc (threads): 2 of 20 connections stayed on TCP",
        ]
    );
}

#[test]
fn the_terminal_shows_table_rest_warnings_and_sum() {
    let mut a = rr(&STEADY, USUAL);
    a.results.push(cell("CRR9(200B/200B)", Transport::Tcp, runs(&STEADY, USUAL)));
    let mut b = rr(&STEADY, [150_000.0, 63.0, 310.0, 0.75, 6.5]);
    b.machine.cpus = 4;
    insta::assert_snapshot!(compared(&a, &b).to_string());
}
