//! Documents for tests: plausible, and clearly nobody's. All figures are made up by
//! formulas; the machine is called what it is.

use std::collections::BTreeMap;

use sidestep_modeler::contention::Contention;
use sidestep_modeler::plan::{Model, Transport};
use sidestep_modeler::result::{
    Cell, Comparison, CpuCost, Document, Figure, Filtered, Machine, Proof, Published, Remark,
    RemarkKind, Required, Response, Sample, Spread, VERSION, Waits,
};

/// A suite with everything a report shows: a workload that gains much, one whose
/// difference cannot be seen, one that loses, one that fell back, several models and
/// several transports.
pub(crate) fn document() -> Document {
    let names = [Transport::Tcp, Transport::Smc, Transport::Unix, Transport::Sockmap];
    let mut document = Document {
        version: VERSION,
        machine: machine(),
        options: ["--pairs", "5", "--over", "tcp,smc"].map(str::to_owned).to_vec(),
        suite: Some("smc-r-2013".to_owned()),
        results: Vec::new(),
        comparisons: Vec::new(),
        filtered: Vec::new(),
    };
    add(&mut document, "RR10(2KB/2KB)", Model::Threads, &names[..2], &[240.0, 26.0]);
    add(&mut document, "RR10(32KB/32KB)", Model::Threads, &names[..2], &[410.0, 150.0]);
    add(&mut document, "STR1(1B/20MB)", Model::Threads, &names[..2], &[9_800.0, 5_100.0]);
    add(&mut document, "RR10(2KB/2KB)", Model::EventLoop, &names, &[130.0, 21.0, 88.0, 71.0]);
    add(&mut document, "CRR40(64B/8kB)", Model::EventLoop, &names[..2], &[310.0, 352.0]);
    add(&mut document, "RR50(256kB/256kB)", Model::Threads, &names[..2], &[5_400.0, 5_310.0]);
    let unclear = document.comparisons.last_mut().expect("the last one");
    (unclear.ci95, unclear.response_ci95) = ([0.94, 1.09], [0.92, 1.06]);
    let noisy = document.results.last_mut().expect("the last one");
    noisy.remarks.push(remark(RemarkKind::Noisy, "The runs differ by 14 %."));
    document.comparisons[0].published = vec![
        published(Figure::Throughput, 7.32, 8.23, true),
        published(Figure::Response, -0.88, -0.89, true),
        published(Figure::Cpu, -0.09, 0.04, false),
    ];
    let lacking = Some("theirs is SMC-R between two hosts".to_owned());
    document.comparisons[2].published =
        vec![Published { lacking, ..published(Figure::Throughput, 0.54, 0.92, false) }];
    document
}

/// [`document`] of another day: a little faster, and one workload fell back.
pub(crate) fn another() -> Document {
    let mut document = document();
    document.machine.began = "2031-02-04T08:00:00Z".to_owned();
    document.machine.warnings = vec!["Other guests took 4.2 % of the CPU time.".to_owned()];
    for cell in &mut document.results {
        cell.tps.median *= 1.1;
        cell.tps.max *= 1.1;
    }
    fall_back(&mut document.results[3]);
    document
}

/// A workload beside none, two and four neighbours, and what is required of it.
pub(crate) fn busy() -> Document {
    let mut document = Document { results: Vec::new(), comparisons: Vec::new(), ..document() };
    let names = [Transport::Tcp, Transport::Smc];
    for (neighbours, means) in
        [("0", [39.0, 10.0]), ("2", [52.0, 40.0]), ("4:nice=-5", [70.0, 900.0])]
    {
        add(&mut document, "RR1(100B/100B)", Model::Threads, &names, &means);
        let neighbours = neighbours.parse().expect("neighbours");
        let contention = Contention { neighbours, ..Contention::NONE };
        for cell in document.results.iter_mut().rev().take(2) {
            cell.contention = contention.clone();
            cell.neighbour_cpus = f64::from(contention.neighbours.count) / 4.0;
        }
        let comparison = document.comparisons.last_mut().expect("the last one");
        comparison.contention = contention;
        let (ours, ours_ci95) = (comparison.throughput_ratio, comparison.ci95);
        let throughput = Required {
            figure: Figure::Throughput,
            ratio: 1.0,
            bound: Some(0.9),
            ours,
            ours_ci95,
            met: ours >= 1.0,
        };
        let p99 = Required {
            figure: Figure::ResponseP99,
            bound: None,
            ours: 1.0 / ours,
            ours_ci95: [0.9 / ours, 1.2 / ours],
            ..throughput.clone()
        };
        comparison.required = vec![throughput, p99];
    }
    document
}

/// Short connections under none and three filters, over TCP and SMC.
pub(crate) fn filtered() -> Document {
    let mut document = Document { results: Vec::new(), comparisons: Vec::new(), ..document() };
    let names = [Transport::Tcp, Transport::Smc];
    for (rules, mean) in [(0, 2_400.0), (1_000, 2_500.0), (10_000, 2_600.0), (100_000, 2_550.0)] {
        add(&mut document, "CRR40(64B/8KB)", Model::Threads, &names, &[mean, mean * 1.02]);
        document.results.iter_mut().rev().take(2).for_each(|cell| cell.filter_rules = rules);
        document.comparisons.last_mut().expect("the last one").filter_rules = rules;
        if rules == 0 {
            continue;
        }
        let ratio = mean / 2_400.0;
        let filtered = names.map(|transport| Filtered {
            workload: "CRR40(64B/8KB)".to_owned(),
            transport,
            model: Model::Threads,
            rmbe: None,
            contention: Contention::NONE,
            filter_rules: rules,
            throughput_ratio: 1.0 / ratio,
            ci95: [0.97 / ratio, 1.02 / ratio],
            response_ratio: ratio,
            response_ci95: [ratio * 0.98, ratio * 1.03],
            cpu_ratio: ratio * 1.01,
            cpu_ci95: [ratio, ratio * 1.02],
            published: match (transport, rules) {
                (Transport::Tcp, 1_000) => {
                    vec![published(Figure::Response, 0.22, ratio - 1.0, true)]
                }
                (Transport::Tcp, 10_000) => {
                    vec![published(Figure::Response, 4.11, ratio - 1.0, true)]
                }
                _ => Vec::new(),
            },
        });
        document.filtered.extend(filtered);
    }
    document
}

/// Makes a cell what must never pass for SMC.
pub(crate) fn fall_back(cell: &mut Cell) {
    cell.transport_proof.smc_connections = 40;
    cell.transport_proof.tcp_connections = 10;
    let reason = "0x03010000 the peer does not run Sidestep".to_owned();
    cell.transport_proof.fallbacks = BTreeMap::from([(reason, 10)]);
    cell.remarks.push(remark(
        RemarkKind::FellBack,
        "10 of 50 connections stayed on TCP: 0x03010000 the peer does not run Sidestep.",
    ));
}

/// Every text tries to become something else, every figure is one that breaks sums.
pub(crate) fn hostile() -> Document {
    let mut document = document();
    document.suite = Some(ATTACK.to_owned());
    document.options = vec![ATTACK.to_owned()];
    document.machine = Machine {
        sidestep: ATTACK.to_owned(),
        began: ATTACK.to_owned(),
        took_s: f64::NAN,
        cpu_model: ATTACK.to_owned(),
        kernel: ATTACK.to_owned(),
        hypervisor: Some(ATTACK.to_owned()),
        load_average: [f64::INFINITY; 3],
        warnings: vec![ATTACK.to_owned()],
        memory: u64::MAX,
        ..Machine::default()
    };
    let figures = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, f64::MAX, 5e-324];
    for (i, cell) in document.results.iter_mut().enumerate() {
        let bad = |k: usize| figures[(i + k) % figures.len()];
        cell.workload = ATTACK.to_owned();
        cell.tps = Spread { median: bad(0), min: bad(1), max: bad(2) };
        cell.mb_per_s = bad(3);
        cell.response_us.p99 = bad(4);
        cell.percentiles = (0..6).map(|k| (bad(k), bad(k + 3))).collect();
        cell.over_time = vec![(0..5).map(bad).collect(), Vec::new()];
        cell.slice_ms = u64::MAX;
        cell.rmbe = Some(u32::MAX);
        cell.transport_proof.smc_connections = u64::MAX;
        cell.transport_proof.fallbacks = BTreeMap::from([(ATTACK.to_owned(), u64::MAX)]);
        cell.remarks = vec![remark(RemarkKind::Bimodal, ATTACK)];
    }
    document.filtered = filtered().filtered;
    for (i, filtered) in document.filtered.iter_mut().enumerate() {
        let bad = |k: usize| figures[(i + k) % figures.len()];
        filtered.workload = ATTACK.to_owned();
        filtered.filter_rules = u32::MAX - i as u32;
        (filtered.throughput_ratio, filtered.ci95) = (bad(0), [bad(1), bad(2)]);
        (filtered.response_ratio, filtered.response_ci95) = (bad(3), [bad(4), bad(5)]);
        let theirs = |theirs| Published { theirs, ..published(Figure::Response, 0.0, 0.0, true) };
        filtered.published = vec![Published { source: ATTACK.to_owned(), ..theirs(bad(6)) }];
    }
    for (i, comparison) in document.comparisons.iter_mut().enumerate() {
        let bad = |k: usize| figures[(i + k) % figures.len()];
        comparison.workload = ATTACK.to_owned();
        comparison.rmbe = Some(u32::MAX);
        (comparison.throughput_ratio, comparison.ci95) = (bad(0), [bad(1), bad(2)]);
        (comparison.response_ratio, comparison.response_ci95) = (bad(5), [bad(4), bad(3)]);
        (comparison.cpu_ratio_client, comparison.cpu_ratio_server) = (bad(2), bad(6));
        comparison.published = vec![Published {
            figure: Figure::Cpu,
            source: ATTACK.to_owned(),
            compared: ATTACK.to_owned(),
            lacking: (i % 2 == 1).then(|| ATTACK.to_owned()),
            theirs: bad(1),
            ours: bad(2),
            beaten: true,
        }];
    }
    document
}

/// Ends elements, attributes, comments and styles, begins others, and commands a
/// terminal.
pub(crate) const ATTACK: &str = "</style></title><script>alert(1)</script><img src=x onerror=alert(2)>\
    \"' onload=\"alert(3)\" --><!-- ]]> &amp; javascript:alert(4) url(//evil.example) \x1b[31m\x07\u{202e}\r\n";

fn machine() -> Machine {
    Machine {
        sidestep: "0.0.0-fixture".to_owned(),
        began: "2031-02-03T10:15:00Z".to_owned(),
        took_s: 200.0,
        cpu_model: "Imaginary 9000 (fixture)".to_owned(),
        cpus: 8,
        memory: 32 << 30,
        kernel: "Linux 9.9.9-fixture".to_owned(),
        hypervisor: Some("KVM".to_owned()),
        load_average: [0.42, 0.51, 0.6],
        steal_percent: 0.1,
        foreign_percent: 0.7,
        wakeup_same_cpu_us: 1.9,
        wakeup_other_cpu_us: 4.6,
        generator_us_per_tran: 0.07,
        warnings: Vec::new(),
    }
}

/// A workload over some transports with these mean response times in microseconds;
/// the first is the baseline.
fn add(
    document: &mut Document,
    workload: &str,
    model: Model,
    transports: &[Transport],
    response_us: &[f64],
) {
    for (transport, mean) in transports.iter().zip(response_us) {
        document.results.push(cell(workload, model, *transport, *mean));
    }
    for (transport, mean) in transports.iter().zip(response_us).skip(1) {
        let ratio = response_us[0] / mean;
        document.comparisons.push(Comparison {
            workload: workload.to_owned(),
            model,
            rmbe: None,
            contention: Contention::NONE,
            filter_rules: 0,
            a: *transport,
            b: transports[0],
            throughput_ratio: ratio,
            ci95: [ratio * 0.97, ratio * 1.04],
            response_ratio: 1.0 / ratio,
            response_ci95: [0.96 / ratio, 1.05 / ratio],
            p99_ratio: Some(1.1 / ratio),
            p99_ci95: Some([0.98 / ratio, 1.3 / ratio]),
            cpu_ratio: Some(ratio.powf(-0.35)),
            cpu_ci95: Some([ratio.powf(-0.35) * 0.95, ratio.powf(-0.35) * 1.06]),
            cpu_ratio_client: ratio.powf(-0.4),
            cpu_ci95_client: [ratio.powf(-0.4) * 0.95, ratio.powf(-0.4) * 1.06],
            cpu_ratio_server: ratio.powf(-0.3),
            cpu_ci95_server: [ratio.powf(-0.3) * 0.95, ratio.powf(-0.3) * 1.06],
            published: Vec::new(),
            required: Vec::new(),
        });
    }
}

fn cell(workload: &str, model: Model, transport: Transport, mean: f64) -> Cell {
    let smc = transport == Transport::Smc;
    let tps = round(10.0 / mean * 1e6);
    let cpu = CpuCost {
        client: round(mean * 0.12),
        server: round(mean * 0.1),
        client_user: round(mean * 0.04),
        client_system: round(mean * 0.08),
        client_spin: if smc { round(mean * 0.02) } else { 0.0 },
        server_user: round(mean * 0.03),
        server_system: round(mean * 0.07),
        server_spin: if smc { round(mean * 0.01) } else { 0.0 },
        client_gateway: 0.0,
        server_gateway: 0.0,
    };
    let response = response(mean);
    let samples = (0..RUNS).map(|pair| sample(pair, tps, response, cpu));
    Cell {
        workload: workload.to_owned(),
        transport,
        model,
        rmbe: None,
        contention: Contention::NONE,
        filter_rules: 0,
        runs: RUNS,
        tps: Spread { median: tps, min: round(tps * 0.97), max: round(tps * 1.02) },
        mb_per_s: round(tps * 0.004),
        response_us: response,
        cpu_us_per_tran: cpu,
        machine_us_per_tran: round(mean * 0.25),
        server_machine_us_per_tran: None,
        waits_per_tran: Waits {
            client_switches: if smc { 0.02 } else { 1.01 },
            server_switches: if smc { 0.03 } else { 1.0 },
            parks: if smc { 0.04 } else { 0.0 },
            wakeups: if smc { 0.04 } else { 0.0 },
        },
        neighbour_cpus: 0.0,
        transport_proof: Proof {
            smc_connections: if smc { 50 } else { 0 },
            tcp_connections: if smc || transport == Transport::Unix { 0 } else { 50 },
            too_short: 0,
            fallbacks: BTreeMap::new(),
        },
        remarks: Vec::new(),
        percentiles: percentiles(mean),
        over_time: (0..RUNS).map(|run| slices(tps, run)).collect(),
        slice_ms: 100,
        samples: samples.collect(),
    }
}

fn sample(pair: u32, tps: f64, response_us: Response, cpu_us_per_tran: CpuCost) -> Sample {
    let tps = round(tps * (0.98 + 0.01 * f64::from(pair)));
    let transactions = tps as u64;
    Sample {
        pair,
        transactions,
        elapsed_s: 1.0,
        tps,
        mb_per_s: round(tps * 0.004),
        response_us,
        cpu_us_per_tran,
        machine_us_per_tran: round(response_us.mean * 0.25),
        server_machine_us_per_tran: None,
        waits_per_tran: Waits::default(),
        neighbour_cpus: 0.0,
    }
}

fn response(mean: f64) -> Response {
    Response {
        mean,
        stddev: round(mean * 0.3),
        p50: round(mean * 0.94),
        p90: round(mean * 1.3),
        p99: round(mean * 2.1),
        p999: round(mean * 4.4),
        max: round(mean * 11.0),
    }
}

/// A tail that grows with each nine.
fn percentiles(mean: f64) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = (0..50)
        .map(|i| {
            let nines = f64::from(i) / 10.0;
            let percentile = 100.0 * (1.0 - 10_f64.powf(-nines));
            (
                (percentile * 1e4).round() / 1e4,
                round(mean * (0.7 + 0.12 * nines.powi(3) + 0.2 * nines)),
            )
        })
        .collect();
    points.push((100.0, round(mean * 19.0)));
    points
}

/// Throughput with a ripple.
fn slices(tps: f64, run: u32) -> Vec<f64> {
    (0..10)
        .map(|slice| {
            let ripple = (f64::from(slice) * 1.7 + f64::from(run) * 2.3).sin();
            round(tps * (0.99 + 0.025 * ripple))
        })
        .collect()
}

fn published(figure: Figure, theirs: f64, ours: f64, beaten: bool) -> Published {
    Published {
        figure,
        source: "IBM, a paper of the fixture".to_owned(),
        compared: "SMC against TCP, between two hosts".to_owned(),
        lacking: None,
        theirs,
        ours,
        beaten,
    }
}

fn remark(kind: RemarkKind, text: &str) -> Remark {
    Remark { kind, text: text.to_owned() }
}

/// To four digits: figures in files stay short, and survive being written and read.
fn round(value: f64) -> f64 {
    if value == 0.0 {
        return 0.0;
    }
    let step = 10_f64.powf(value.abs().log10().floor() - 3.0);
    format!("{:.6}", (value / step).round() * step).parse().expect("a number")
}

const RUNS: u32 = 5;
