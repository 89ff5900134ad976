//! How fast the generator is by itself: against a responder in its own process.
//!
//! A load generator must not be what limits a measurement. So the same conversations,
//! schedules and recorders that drive sockets are driven here over rings in memory,
//! with a responder that does nothing but answer, in the same thread. What a
//! transaction costs here, it costs in every measurement on top of what is measured:
//! that is the calibration line of a report.

mod ring;

use std::sync::Arc;
use std::time::Duration;

use crate::control::{Address, Job, Role};
use crate::plan::{Conduct, Model};
use crate::worker::clock;
use crate::worker::generator::Generator;
use crate::worker::stage::Stage;
use crate::worker::trouble::Trouble;
use crate::workload::{Kind, Workload};
use ring::Rings;

/// What the generator does on one CPU, and what a transaction costs it. The responder's
/// part is in both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Transactions per second.
    pub transactions_per_s: f64,
    /// CPU time for one transaction, in microseconds.
    pub cpu_us_per_tran: f64,
}

/// Runs `RR1(1B/1B)` in the event-loop model over a ring for this time, more than
/// zero, and a tenth of it before to warm up.
#[must_use]
pub fn calibrate(duration: Duration) -> Calibration {
    let smallest =
        Workload { kind: Kind::RequestResponse, clients: 1, request_len: 1, reply_len: 1 };
    calibrate_with(smallest, duration)
}

fn calibrate_with(workload: Workload, duration: Duration) -> Calibration {
    let job = job(workload);
    let clients = 0..workload.clients;
    let mut generator = Generator::new(Rings::new(&job), &job, clients, Arc::default());
    run(&mut generator, duration).expect("rings in memory do not fail")
}

fn run(generator: &mut Generator<Rings>, duration: Duration) -> Result<Calibration, Trouble> {
    let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    generator.connect()?;
    generator.run(&Stage::timed(clock::now_ns(), 0, ns / 10))?;
    let cpu_before_ns = clock::thread_cpu_ns();
    let recorder = generator.run(&Stage::timed(clock::now_ns(), 0, ns))?;
    let cpu_ns = clock::thread_cpu_ns() - cpu_before_ns;
    let transactions = recorder.transactions().max(1) as f64;
    Ok(Calibration {
        transactions_per_s: transactions / duration.as_secs_f64(),
        cpu_us_per_tran: cpu_ns as f64 * 1e-3 / transactions,
    })
}

fn job(workload: Workload) -> Job {
    Job {
        // No client connects by an address.
        role: Role::Client(Address::Unix(String::new())),
        workload,
        model: Model::EventLoop,
        connections: workload.clients,
        first_client: 0,
        conduct: Conduct::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_has_its_cost() {
        let Calibration { transactions_per_s, cpu_us_per_tran } =
            calibrate(Duration::from_millis(50));
        assert!(transactions_per_s > 0.0 && cpu_us_per_tran > 0.0);
    }

    /// `cargo test --release -p sidestep-modeler calibration -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement: it takes seconds and wants a release build and an idle CPU"]
    fn five_million_transactions_per_second() {
        let measure = |clients, len| {
            let kind = Kind::RequestResponse;
            let workload = Workload { kind, clients, request_len: len, reply_len: len };
            let calibration = calibrate_with(workload, Duration::from_secs(2));
            println!(
                "RR{clients}({len}B/{len}B): {:.2} M transactions/s, {:.4} us each",
                calibration.transactions_per_s / 1e6,
                calibration.cpu_us_per_tran
            );
            calibration.transactions_per_s
        };
        let small = [measure(1, 1), measure(10, 1), measure(10, 100)];
        measure(10, 2048);
        for transactions_per_s in small {
            assert!(transactions_per_s >= 5e6);
        }
    }
}
