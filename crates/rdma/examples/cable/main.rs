//! How fast the soft RNIC is, against TCP over the same cable.
//!
//! ```text
//!   cargo run --release -p sidestep-rdma --example cable [-- seconds [pairs [MTU of the cable]]]
//! ```
//!
//! Two network namespaces with a veth pair between them, a thread in each with a CPU of its own.
//! Runs go TCP, RDMA, TCP, RDMA; what is printed is the median of the ratios of neighbours. Needs
//! root.
//!
//! | Workload | RDMA | TCP |
//! |---|---|---|
//! | STR | WRITEs of 64 KiB over one QP | one connection, writes of 64 KiB |
//! | RR*n* | *n* at once: WRITE of 2 KiB and a SEND of 44 bytes, answered by the same | *n* connections, 2 KiB each way, epoll |

mod rdma;
mod scene;
mod tcp;

use std::time::Duration;

use scene::Scene;

/// What is measured.
#[derive(Clone, Copy)]
enum Workload {
    /// Bytes one way.
    Stream,
    /// So many exchanges at once.
    Exchanges(usize),
}

/// Bytes of one write of a stream.
const BLOCK: usize = 64 << 10;
/// Bytes of a request, and of its answer.
const MESSAGE: usize = 2 << 10;

fn main() {
    let number = |index, default| {
        let word = std::env::args().nth(index);
        word.map_or(default, |word| word.parse().expect("a number"))
    };
    let time = Duration::from_secs_f64(number(1, 1.0));
    let pairs = number(2, 7.0) as usize;
    let scene = Scene::new(number(3, 1500.0) as u32);
    println!("{:<6} {:>14} {:>14} {:>7}   lowest, highest", "", "TCP", "RDMA", "ratio");
    for (name, unit, workload) in [
        ("STR", "MB/s", Workload::Stream),
        ("RR1", "/s", Workload::Exchanges(1)),
        ("RR10", "/s", Workload::Exchanges(10)),
    ] {
        let runs: Vec<(f64, f64)> = (0..pairs)
            .map(|_| (tcp::run(&scene, workload, time), rdma::run(&scene, workload, time)))
            .collect();
        let ratios = sorted(runs.iter().map(|(tcp, rdma)| rdma / tcp));
        let [tcp, rdma] =
            [sorted(runs.iter().map(|run| run.0)), sorted(runs.iter().map(|run| run.1))]
                .map(|all| format!("{:.0} {unit}", all[all.len() / 2]));
        let (lowest, highest) = (ratios[0], ratios[ratios.len() - 1]);
        let median = ratios[ratios.len() / 2];
        println!("{name:<6} {tcp:>14} {rdma:>14} {median:>7.2}   {lowest:.2}, {highest:.2}");
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}
