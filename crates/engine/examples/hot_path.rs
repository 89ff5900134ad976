//! What a message costs a host: two of them in one thread, with nothing between them.
//!
//! It passes messages over one connection, over one of a hundred in turn, and so on, and tells the
//! nanoseconds of each, of both hosts and their adapters together: into the send buffer, out in
//! packets with their ICRC, into the receive buffer and out of it, and the acknowledgement back.
//!
//!     cargo run --release -p sidestep-engine --example hot_path
//!
//! A figure of one version says little on a machine with other work. To compare two, build both
//! and let them alternate; the ratio of neighbours counts:
//!
//!     cargo run --release -p sidestep-engine --example hot_path -- OLD NEW

use std::process::Command;
use std::time::Instant;

#[path = "../tests/support/pair.rs"]
mod pair;

use pair::{CLIENT, Pair};

/// Messages of one measurement.
const MESSAGES: usize = 50_000;
/// How often two programs alternate.
const ROUNDS: usize = 11;
/// Connections, and bytes of a message.
const CASES: [(usize, usize); 4] = [(1, 64), (1, 2000), (100, 2000), (250, 2000)];

fn measure(connections: usize, len: usize) -> f64 {
    let mut pair = Pair::with_connections(connections);
    let message = vec![7; len];
    let mut pass = |count: usize| {
        (0..count).for_each(|n| pair.pass(n % connections, CLIENT, &message));
    };
    pass(MESSAGES / 10);
    let begin = Instant::now();
    pass(MESSAGES);
    begin.elapsed().as_nanos() as f64 / MESSAGES as f64
}

/// The figures that a program like this one tells.
fn figures(program: &str) -> Vec<f64> {
    let output = Command::new(program).output().expect("a program like this one");
    let text = String::from_utf8(output.stdout).expect("text");
    let figure = |line: &str| line.split_whitespace().next_back()?.parse().ok();
    text.lines().filter_map(figure).collect()
}

fn main() {
    let programs: Vec<String> = std::env::args().skip(1).collect();
    let [old, new] = &programs[..] else {
        for (connections, len) in CASES {
            println!(
                "{connections} connections, {len} bytes, ns: {:.0}",
                measure(connections, len)
            );
        }
        return;
    };
    let mut ratios = vec![Vec::new(); CASES.len()];
    for _ in 0..ROUNDS {
        let (before, after) = (figures(old), figures(new));
        for (ratios, (before, after)) in ratios.iter_mut().zip(before.into_iter().zip(after)) {
            ratios.push(after / before);
        }
    }
    for ((connections, len), mut ratios) in CASES.into_iter().zip(ratios) {
        ratios.sort_unstable_by(f64::total_cmp);
        let median = ratios[ratios.len() / 2];
        println!("{connections} connections, {len} bytes: {median:.2} of the time");
    }
}
