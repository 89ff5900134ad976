//! Sessions on a mock: no sockets, no processes, no clock.

use std::collections::BTreeMap;

use super::histogram::{new_histogram, to_hex};
use super::*;
use crate::agent::{NeighbourUse, RunParts};
use crate::contention::Contention;
use crate::control::{ClientReport, MachineCpu, SideSample, Usage};
use crate::figure::Figure;
use crate::plan::{Conduct, Requirement};
use crate::result::{Published, RemarkKind, Spread};
use crate::workload::{Kind, Workload};

fn entry(clients: u32) -> Entry {
    Entry {
        workload: Workload {
            kind: Kind::RequestResponse,
            clients,
            request_len: 100,
            reply_len: 100,
        },
        model: Model::Threads,
        conduct: Conduct::default(),
        contention: Contention::NONE,
        filter_rules: 0,
        required: BTreeMap::new(),
    }
}

fn plan(entries: Vec<Entry>, transports: &[Transport], runs: u32) -> Plan {
    Plan { entries, transports: transports.to_vec(), baseline: Transport::Tcp, runs }
}

/// A run of one second in which `transactions` took a microsecond each, and as many of
/// CPU time on either side.
fn measured(transactions: u64) -> RunParts {
    let mut times = new_histogram();
    times.saturating_record_n(1000, transactions);
    let usage = Usage { user_us: transactions, ..Usage::default() };
    RunParts {
        reports: vec![ClientReport {
            transactions,
            bytes: 200 * transactions,
            elapsed_ns: 1_000_000_000,
            response_ns: to_hex(&times),
            response_sums_us: (transactions as f64, transactions as f64),
            over_time: vec![transactions / 10; 10],
            usage,
            unfinished: 0,
        }],
        client: SideSample {
            machine: MachineCpu { busy_us: 3 * transactions, ..MachineCpu::default() },
            ..SideSample::default()
        },
        server: SideSample { usage, ..SideSample::default() },
        remote: false,
        neighbours: NeighbourUse::default(),
    }
}

fn outcome(transactions: u64) -> RunOutcome {
    RunOutcome::from_parts(&measured(transactions)).unwrap()
}

fn smc_outcome(transactions: u64, smc: u64, tcp: u64) -> RunOutcome {
    let mut measured = measured(transactions);
    measured.client.evidence.smc_connections = smc;
    measured.client.evidence.tcp_connections = tcp;
    if tcp > 0 {
        measured.client.evidence.fallbacks = BTreeMap::from([("0x03010000 PEERNOSMC".into(), tcp)]);
    }
    RunOutcome::from_parts(&measured).unwrap()
}

/// Answers with a script, and keeps what it was asked for.
struct Mock<F> {
    script: F,
    asked: Vec<(u32, Transport)>,
}

/// The script is given the number of the call, from 0.
fn mock<F>(script: F) -> Mock<F>
where
    F: FnMut(usize, Transport) -> Result<RunOutcome, RunError>,
{
    Mock { script, asked: Vec::new() }
}

impl<F: FnMut(usize, Transport) -> Result<RunOutcome, RunError>> Executor for Mock<F> {
    fn run(&mut self, entry: &Entry, transport: Transport) -> Result<RunOutcome, RunError> {
        let call = self.asked.len();
        self.asked.push((entry.workload.clients, transport));
        (self.script)(call, transport)
    }
}

/// Writes down what it hears.
#[derive(Default)]
struct Listener {
    estimate: Option<Estimate>,
    lines: Vec<String>,
}

impl Observer for Listener {
    fn session_begins(&mut self, estimate: &Estimate) {
        self.estimate = Some(*estimate);
    }

    fn run_begins(&mut self, run: &Run<'_>) {
        let Run { number, transport, pair, attempt, .. } = run;
        self.lines.push(format!("{number}: {transport}, pair {pair}, attempt {attempt}"));
    }

    fn run_ends(&mut self, _: &Run<'_>, result: Result<&RunOutcome, &RunError>) {
        self.lines.push(match result {
            Ok(outcome) => format!("{} transactions", outcome.sample.transactions),
            Err(error) => format!("{error}"),
        });
    }
}

struct Deaf;

impl Observer for Deaf {}

fn nothing_published(
    _: &Workload,
    _: Option<u32>,
    _: Transport,
    _: Transport,
    _: &[(Figure, f64)],
) -> Vec<Published> {
    Vec::new()
}

fn run(plan: &Plan, executor: &mut dyn Executor) -> SessionOutcome {
    Session::new(plan, executor, &mut Deaf).run(&nothing_published)
}

const TCP: Transport = Transport::Tcp;
const SMC: Transport = Transport::Smc;
const UNIX: Transport = Transport::Unix;

fn failed() -> RunError {
    RunError::Failed("the worker died".into())
}

#[test]
fn transports_take_turns_within_each_entry() {
    let mut executor = mock(|_, _| Ok(outcome(1000)));
    let _ = run(&plan(vec![entry(1), entry(2)], &[TCP, SMC, UNIX], 2), &mut executor);
    let turn = |clients| [(clients, TCP), (clients, SMC), (clients, UNIX)];
    assert_eq!(executor.asked, [turn(1), turn(1), turn(2), turn(2)].concat());
}

#[test]
fn the_observer_hears_of_every_run_with_its_number() {
    let mut executor = mock(|call, _| if call == 1 { Err(failed()) } else { Ok(outcome(1000)) });
    let mut listener = Listener::default();
    let plan = plan(vec![entry(1)], &[TCP, SMC], 2);
    let _ = Session::new(&plan, &mut executor, &mut listener).run(&nothing_published);
    assert_eq!(listener.estimate, Some(Estimate::of(&plan)));
    assert_eq!(
        listener.lines,
        [
            "0: tcp, pair 0, attempt 1",
            "1000 transactions",
            "1: smc, pair 0, attempt 1",
            "the worker died",
            "1: smc, pair 0, attempt 2",
            "1000 transactions",
            "2: tcp, pair 1, attempt 1",
            "1000 transactions",
            "3: smc, pair 1, attempt 1",
            "1000 transactions",
        ]
    );
}

#[test]
fn a_plan_s_duration_is_known_unless_it_counts_in_a_closed_loop() {
    let mut plan = plan(vec![entry(4), entry(4)], &[TCP, SMC], 5);
    let run = Duration::from_millis(1300) + START_AND_STOP;
    assert_eq!(Estimate::of(&plan), Estimate { runs: 20, duration: Some(20 * run) });

    plan.entries[1].conduct.extent = Extent::Count { warmup: 10, measured: 90 };
    assert_eq!(Estimate::of(&plan), Estimate { runs: 20, duration: None });

    plan.entries[1].conduct.pace = Pace::Open { per_second: 200.0 };
    let counted = Duration::from_secs(2) + START_AND_STOP;
    assert_eq!(Estimate::of(&plan).duration, Some(10 * run + 10 * counted));
}

#[test]
fn a_run_that_fails_once_is_made_up_for_and_not_forgotten() {
    let mut executor = mock(|call, _| if call == 2 { Err(failed()) } else { Ok(outcome(1000)) });
    let outcome = run(&plan(vec![entry(1)], &[TCP, SMC], 3), &mut executor);
    assert_eq!(executor.asked.len(), 7);
    assert!(outcome.results.iter().all(|cell| cell.runs == 3));
    let [failure] = &outcome.failures[..] else { panic!("{:?}", outcome.failures) };
    assert!(!failure.given_up);
    assert!(
        failure
            .to_string()
            .ends_with("over tcp (threads), run 2: the worker died; it was tried once more")
    );
}

#[test]
fn a_transport_that_fails_twice_keeps_what_it_has() {
    // TCP SMC, TCP SMC SMC, TCP: the second pair is where SMC fails.
    let script = |call, _| if call == 3 || call == 4 { Err(failed()) } else { Ok(outcome(1000)) };
    let mut executor = mock(script);
    let outcome = run(&plan(vec![entry(1)], &[TCP, SMC], 3), &mut executor);
    let transports: Vec<_> = executor.asked.iter().map(|asked| asked.1).collect();
    assert_eq!(transports, [TCP, SMC, TCP, SMC, SMC, TCP]);
    let runs: Vec<_> = outcome.results.iter().map(|cell| (cell.transport, cell.runs)).collect();
    assert_eq!(runs, [(TCP, 3), (SMC, 1)]);
    let given_up: Vec<_> = outcome.failures.iter().map(|failure| failure.given_up).collect();
    assert_eq!(given_up, [false, true]);
    assert_eq!(outcome.comparisons.len(), 1, "they still have the first pair");
}

#[test]
fn what_is_hopeless_is_not_tried_again_and_stops_nobody_else() {
    let mut executor = mock(|_, transport| match transport {
        SMC => Err(RunError::Hopeless("sockets are forbidden; ask the administrator".into())),
        _ => Ok(outcome(1000)),
    });
    let outcome = run(&plan(vec![entry(1), entry(2)], &[TCP, SMC], 2), &mut executor);
    let transports: Vec<_> = executor.asked.iter().map(|asked| asked.1).collect();
    assert_eq!(transports, [TCP, SMC, TCP, TCP, SMC, TCP]);
    assert!(outcome.results.iter().all(|cell| cell.transport == TCP));
    assert_eq!(outcome.comparisons, []);
    assert_eq!(outcome.failures.len(), 2);
}

#[test]
fn failures_stand_in_the_document() {
    let mut executor = mock(|_, transport| match transport {
        SMC => Err(RunError::Hopeless("sockets are forbidden; ask the administrator".into())),
        _ => Ok(outcome(1000)),
    });
    let outcome = run(&plan(vec![entry(1)], &[TCP, SMC], 1), &mut executor);
    let machine = Machine { warnings: vec!["it is busy".into()], ..Machine::default() };
    let document = outcome.clone().into_document(machine, vec!["--pairs".into()], None);
    assert_eq!(document.version, result::VERSION);
    assert_eq!(document.results, outcome.results);
    assert_eq!(document.machine.warnings.len(), 2);
    assert!(document.machine.warnings[1].contains("sockets are forbidden"));
}

#[test]
fn a_cell_gathers_its_runs() {
    let mut executor = mock(|call, _| Ok(outcome(1000 * [5, 1, 3][call])));
    let outcome = run(&plan(vec![entry(1)], &[TCP], 3), &mut executor);
    let [cell] = &outcome.results[..] else { panic!() };
    assert_eq!(cell.tps, Spread { median: 3000.0, min: 1000.0, max: 5000.0 });
    assert_eq!(cell.mb_per_s, 0.6);
    assert_eq!(cell.cpu_us_per_tran.client, 1.0);
    assert_eq!(cell.machine_us_per_tran, 3.0);
    assert_eq!(cell.server_machine_us_per_tran, None);
    assert_eq!((cell.response_us.mean, cell.response_us.stddev), (1.0, 0.0));
    assert_eq!(cell.samples.iter().map(|sample| sample.pair).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(cell.over_time, [vec![5000.0; 10], vec![1000.0; 10], vec![3000.0; 10]]);
}

#[test]
fn the_percentile_curve_rises_from_the_least_to_the_most() {
    let mut executor = mock(|call, _| {
        let mut outcome = outcome(1000);
        outcome.response_ns = new_histogram();
        (1..=1000).for_each(|at| outcome.response_ns.saturating_record(at * 1000 + call as u64));
        Ok(outcome)
    });
    let outcome = run(&plan(vec![entry(1)], &[TCP], 2), &mut executor);
    let curve = &outcome.results[0].percentiles;
    assert!(curve.is_sorted_by(|(p, time), (q, later)| p < q && time <= later));
    assert_eq!((curve[0].0, curve[curve.len() - 1].0), (0.0, 100.0));
    let near = |found: f64, exact: f64| (found / exact - 1.0).abs() < 2e-3;
    for &(percentile, time) in curve {
        let exact = (percentile * 10.0).ceil().max(1.0);
        assert!(near(time, exact), "{percentile} %: {time} instead of {exact}");
    }
}

#[test]
fn ratios_are_those_of_pairs() {
    // TCP becomes slower from pair to pair, and SMC with it: the ratio stays.
    let mut executor = mock(|call, transport| {
        let tcp = [8000, 4000, 2000, 1000, 500][call / 2];
        Ok(outcome(if transport == SMC { 3 * tcp } else { tcp }))
    });
    let outcome = run(&plan(vec![entry(1)], &[TCP, SMC], 5), &mut executor);
    let [comparison] = &outcome.comparisons[..] else { panic!() };
    assert_eq!((comparison.a, comparison.b), (SMC, TCP));
    assert_eq!(comparison.throughput_ratio, 3.0);
    assert_eq!(comparison.ci95, [3.0, 3.0]);
    assert_eq!((comparison.response_ratio, comparison.response_ci95), (1.0, [1.0, 1.0]));
    assert_eq!((comparison.cpu_ratio_client, comparison.cpu_ratio_server), (1.0, 1.0));
}

#[test]
fn pairs_are_told_by_their_number_when_runs_are_missing() {
    // SMC has pairs 0 and 1 only; pairing by position would take others.
    let mut executor = mock(|call, transport| match (call, transport) {
        (5 | 6, SMC) => Err(failed()),
        (_, SMC) => Ok(outcome(2000)),
        (0 | 2, _) => Ok(outcome(1000)),
        _ => Ok(outcome(500)),
    });
    let mut outcome = run(&plan(vec![entry(1)], &[TCP, SMC], 4), &mut executor);
    assert_eq!(outcome.comparisons[0].throughput_ratio, 2.0);

    let smc = outcome.results.pop().unwrap();
    let mut tcp = outcome.results.pop().unwrap();
    tcp.samples.remove(0);
    tcp.samples[0].tps = 4000.0;
    let late = comparison(&entry(1), &smc, &tcp, &nothing_published).unwrap();
    assert_eq!(late.throughput_ratio, 0.5, "pair 1 against pair 1");
    tcp.samples.remove(0);
    assert_eq!(comparison(&entry(1), &smc, &tcp, &nothing_published), None);
}

#[test]
fn cpu_time_below_the_clock_s_tick_still_has_a_ratio() {
    let mut executor = mock(|_, transport| {
        let mut measured = measured(1000);
        measured.reports[0].usage.user_us = if transport == SMC { 0 } else { 50 };
        Ok(RunOutcome::from_parts(&measured).unwrap())
    });
    let outcome = run(&plan(vec![entry(1)], &[TCP, SMC], 1), &mut executor);
    assert_eq!(outcome.results[1].cpu_us_per_tran.client, 0.0);
    assert_eq!(outcome.comparisons[0].cpu_ratio_client, 0.02);
}

#[test]
fn filters_take_turns_and_are_set_against_none() {
    let mut executor = mock(|call, transport| {
        // The runs of a pair: none, both transports; 1000 rules, both transports.
        let by_filter = if call % 4 < 2 { 1000 } else { 800 };
        Ok(outcome(if transport == SMC { 2 * by_filter } else { by_filter }))
    });
    let entries: Vec<Entry> =
        [0, 1_000].map(|filter_rules| Entry { filter_rules, ..entry(1) }).to_vec();
    let outcome = run(&plan([entries, vec![entry(2)]].concat(), &[TCP, SMC], 2), &mut executor);
    assert_eq!(executor.asked.iter().map(|(clients, _)| *clients).sum::<u32>(), 8 + 4 * 2);
    let cells: Vec<_> = outcome.results.iter().map(|it| (it.filter_rules, it.transport)).collect();
    assert_eq!(
        cells,
        [(0, TCP), (0, SMC), (1_000, TCP), (1_000, SMC), (0, TCP), (0, SMC)],
        "in the order of the plan"
    );
    let against_tcp: Vec<_> =
        outcome.comparisons.iter().map(|it| (it.filter_rules, it.throughput_ratio)).collect();
    assert_eq!(against_tcp, [(0, 2.0), (1_000, 2.0), (0, 2.0)]);
    let against_none: Vec<_> = outcome
        .filtered
        .iter()
        .map(|it| (it.filter_rules, it.transport, it.throughput_ratio))
        .collect();
    assert_eq!(against_none, [(1_000, TCP, 0.8), (1_000, SMC, 0.8)]);
}

#[test]
fn what_an_entry_requires_gets_a_verdict_and_what_ibm_published_none() {
    let mut executor = mock(|_, transport| {
        Ok(RunOutcome::from_parts(&measured(if transport == SMC { 1500 } else { 1000 })).unwrap())
    });
    let mut plan = plan(vec![entry(1)], &[TCP, SMC], 2);
    plan.entries[0].contention.neighbours = "2".parse().unwrap();
    let wanted = |ratio, bound| Requirement { ratio, bound };
    let verdicts = |plan: &Plan, executor: &mut dyn Executor| {
        let never = |_: &Workload, _, _, _, _: &[(Figure, f64)]| panic!("theirs was alone");
        let outcome = Session::new(plan, executor, &mut Deaf).run(&never);
        assert_eq!(outcome.comparisons[0].contention, plan.entries[0].contention);
        let required = outcome.comparisons[0].required.iter();
        required.map(|it| (it.figure, it.ours, it.met)).collect::<Vec<_>>()
    };
    plan.entries[0].required = [
        (Figure::Throughput, wanted(1.5, Some(1.5))),
        (Figure::ResponseP99, wanted(1.0, Some(1.0))),
        (Figure::Cpu, wanted(0.9, None)),
    ]
    .into();
    assert_eq!(
        verdicts(&plan, &mut executor),
        [
            (Figure::Throughput, 1.5, true),
            (Figure::ResponseP99, 1.0, true),
            (Figure::Cpu, 1.0, false),
        ]
    );
    plan.entries[0].required = [
        (Figure::Throughput, wanted(1.5, Some(1.6))),
        (Figure::ResponseP99, wanted(1.0, Some(0.9))),
    ]
    .into();
    assert_eq!(
        verdicts(&plan, &mut executor),
        [(Figure::Throughput, 1.5, false), (Figure::ResponseP99, 1.0, false)],
        "the interval counts too"
    );
}

#[test]
fn what_is_published_is_asked_for_with_our_changes() {
    let mut executor = mock(|_, transport| {
        let mut measured = measured(if transport == SMC { 8000 } else { 1000 });
        if transport == SMC {
            measured.reports[0].usage.user_us = 4000; // 0.5 µs for each, beside 1 µs
        }
        Ok(RunOutcome::from_parts(&measured).unwrap())
    });
    let mut plan = plan(vec![entry(10)], &[TCP, SMC], 1);
    plan.entries[0].conduct.rmbe_len = Some(1 << 20);
    let published = |workload: &Workload, rmbe, a, b, changes: &[(Figure, f64)]| {
        assert_eq!((workload.clients, rmbe, a, b), (10, Some(1 << 20), SMC, TCP));
        changes
            .iter()
            .map(|&(figure, ours)| {
                let beaten = figure.more_is_better();
                Published {
                    figure,
                    source: "a paper".into(),
                    compared: String::new(),
                    lacking: None,
                    theirs: 7.32,
                    ours,
                    beaten,
                }
            })
            .collect()
    };
    let outcome = Session::new(&plan, &mut executor, &mut Deaf).run(&published);
    let comparison = &outcome.comparisons[0];
    let ours: Vec<_> = comparison.published.iter().map(|p| (p.figure, p.ours)).collect();
    assert_eq!(
        ours,
        [
            (Figure::Throughput, 7.0),
            (Figure::Response, 0.0),
            (Figure::ResponseP99, 0.0),
            (Figure::Cpu, -0.25),
            (Figure::CpuClient, -0.5),
            (Figure::CpuServer, 0.0),
        ]
    );
    assert_eq!(comparison.rmbe, Some(1 << 20));
}

fn remarks_of(entry: Entry, transport: Transport, run_outcome: RunOutcome) -> Vec<result::Remark> {
    let mut executor = mock(|_, _| Ok(run_outcome.clone()));
    let mut outcome = run(&plan(vec![entry], &[transport], 2), &mut executor);
    outcome.results.remove(0).remarks
}

#[test]
fn connections_that_fell_back_are_remarked_upon_loudly() {
    let remarks = remarks_of(entry(10), SMC, smc_outcome(1000, 9, 1));
    assert_eq!(remarks[0].kind, RemarkKind::FellBack);
    assert_eq!(
        remarks[0].text,
        "2 of 20 connections stayed on TCP: THESE ARE NOT FIGURES OF SMC (2 because of 0x03010000 \
         PEERNOSMC)"
    );
}

#[test]
fn what_autosmc_leaves_on_tcp_is_no_figure_of_smc_and_no_failure() {
    let mut short = smc_outcome(1000, 0, 10);
    short.proof.too_short = 10;
    let mut executor = mock(|_, _| Ok(short.clone()));
    let cell = run(&plan(vec![entry(10)], &[SMC], 2), &mut executor).results.remove(0);
    assert_eq!(cell.remarks[0].kind, RemarkKind::FellBack);
    assert_eq!(
        cell.remarks[0].text,
        "20 of 20 connections were too short to be worth moving, as AUTOSMC has it, and stayed on \
         TCP: THESE ARE NOT FIGURES OF SMC"
    );
    assert!(!cell.transport_proof.has_failed());
}

#[test]
fn one_connection_that_was_to_be_smc_and_is_not_is_a_failure() {
    let proof = |smc_connections, tcp_connections, too_short| result::Proof {
        smc_connections,
        tcp_connections,
        too_short,
        ..result::Proof::default()
    };
    assert!(proof(9, 1, 0).has_failed() && proof(0, 10, 9).has_failed());
    assert!(proof(0, 0, 0).has_failed(), "the library was not there");
    assert!(!proof(10, 0, 0).has_failed() && !proof(5, 5, 5).has_failed());
}

#[test]
fn runs_over_smc_without_any_connection_are_not_believed() {
    let remarks = remarks_of(entry(10), SMC, smc_outcome(1000, 0, 0));
    assert_eq!(remarks[0].kind, RemarkKind::FellBack);
    assert!(remarks[0].text.starts_with("Sidestep has seen no connection"));
}

#[test]
fn runs_that_were_smc_are_not_remarked_upon() {
    assert_eq!(remarks_of(entry(10), SMC, smc_outcome(1000, 10, 0)), []);
    assert_eq!(remarks_of(entry(10), TCP, smc_outcome(1000, 0, 10)), [], "TCP is to be TCP");
}

#[test]
fn an_open_loop_that_falls_behind_is_remarked_upon() {
    let mut open = entry(10);
    open.conduct.pace = Pace::Open { per_second: 5000.0 };
    let with = |unfinished| RunOutcome { unfinished, ..outcome(1000) };
    assert_eq!(remarks_of(open.clone(), TCP, with(10)), [], "one for each is under way");
    let remarks = remarks_of(open, TCP, with(4000));
    assert_eq!(remarks[0].kind, RemarkKind::Overloaded);
    assert_eq!(
        remarks[0].text,
        "5000 transactions per second were not kept up with in 2 of 2 runs: up to 4000 were due \
         and had not ended"
    );
    assert_eq!(remarks_of(entry(10), TCP, with(4000)), [], "a closed loop has nothing due");
}
