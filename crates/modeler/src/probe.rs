//! `sidestep probe`: what this machine would gain.
//!
//! Two halves that know nothing of each other but [`Figures`]:
//!
//! * [`measure()`] takes about two seconds to find what transactions are made of on this
//!   machine: wake-ups, cache lines on their way, copies, system calls, TCP.
//! * [`predict`] puts these elements together as a workload would, over TCP and over
//!   SMC, and says what follows for throughput and response time. It is arithmetic: no
//!   clock, no machine.
//!
//! A [`Report`] is both, for people and as JSON. `docs/probe.md` has the formulas and
//! how far predictions were from measurements.

use std::io;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::plan::Model;
use crate::workload::Workload;

mod cpu;
mod measure;
mod model;
mod table;

pub use measure::measure;
pub use model::{Element, Estimate, Limit, Prediction, Term, predict};

/// What the elements of a transaction cost on a machine.
///
/// Each is the first quartile of many trials: what other programs on the machine do
/// only ever adds. Figures for two processors are `null` where there is one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Figures {
    /// Processors that may be used: at least 1.
    pub cpus: u32,
    /// A system call that does nothing, in nanoseconds.
    pub syscall_ns: f64,
    /// Half a round trip of two threads that sleep until the other wakes them, in
    /// microseconds: the call that wakes, the way to the sleeper, and falling asleep.
    pub wakeup_us: Places,
    /// A round trip of one cache line between two threads, in nanoseconds. On another
    /// CPU both look without a pause; on the same CPU each yields when it sees nothing.
    pub ring_ns: Places,
    /// Copies of several lengths, from the shortest to the longest: at least one.
    pub copies: Vec<CopyCost>,
    /// TCP over loopback with messages of several lengths, from the shortest to the
    /// longest: at least one.
    pub tcp: Vec<TcpCost>,
    /// To connect and accept over loopback and close both ends, in microseconds.
    pub connect_us: f64,
    /// `epoll_wait` that returns one event at once, in nanoseconds.
    pub epoll_ns: f64,
}

/// A figure on one processor and between two.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Places {
    /// Both threads on one CPU.
    pub same_cpu: f64,
    /// On two CPUs, of two cores if there are two.
    pub other_cpu: Option<f64>,
}

/// A copy of some bytes, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CopyCost {
    /// Bytes.
    pub len: u64,
    /// The same bytes again and again.
    pub hot_ns: f64,
    /// Bytes that no cache holds, to a place that no cache holds.
    pub cold_ns: f64,
    /// Handed to a thread on another CPU: one copy into a ring that both have, and one
    /// out of it.
    pub handed_ns: Option<f64>,
}

/// A message over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TcpCost {
    /// Bytes.
    pub len: u64,
    /// One send and one receive in one thread, in nanoseconds: nobody is woken.
    pub ns: f64,
}

/// Why a machine could not be measured.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The processors could not be told.
    #[error("cannot tell which processors may be used: {0}")]
    Processors(#[source] io::Error),
    /// TCP to 127.0.0.1 does not work.
    #[error("TCP over loopback does not work: {0}; is the interface up (`ip link set lo up`)?")]
    Loopback(#[source] io::Error),
}

/// What `sidestep probe` says. Its text form is tables for a terminal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// The machine.
    pub figures: Figures,
    /// One for each workload asked for.
    pub forecasts: Vec<Forecast>,
}

/// What is predicted for a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Forecast {
    /// Its name, such as `RR10(2KB/2KB)`.
    pub workload: String,
    /// How its clients are made.
    pub model: Model,
    /// What is predicted.
    pub prediction: Prediction,
}

impl Report {
    /// Without forecasts yet.
    #[must_use]
    pub fn new(figures: Figures) -> Self {
        Self { figures, forecasts: Vec::new() }
    }

    /// Adds the forecast for a workload of this name.
    pub fn forecast(&mut self, name: impl Into<String>, workload: &Workload, model: Model) {
        let prediction = predict(&self.figures, workload, model);
        self.forecasts.push(Forecast { workload: name.into(), model, prediction });
    }
}

/// Bytes of a ring (RMBE) of Sidestep's by default, and of an application's call.
const RING_LEN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;

    /// The machine of `docs/probe.md`.
    pub(super) fn documented_machine() -> Figures {
        let copy = |len, hot_ns, cold_ns, handed_ns| CopyCost {
            len,
            hot_ns,
            cold_ns,
            handed_ns: Some(handed_ns),
        };
        let tcp = |len, ns| TcpCost { len, ns };
        Figures {
            cpus: 2,
            syscall_ns: 165.0,
            wakeup_us: Places { same_cpu: 1.93, other_cpu: Some(19.9) },
            ring_ns: Places { same_cpu: 2590.0, other_cpu: Some(138.0) },
            copies: vec![
                copy(64, 3.5, 42.5, 100.0),
                copy(2 << 10, 20.0, 430.0, 340.0),
                copy(32 << 10, 588.0, 3020.0, 4500.0),
                copy(1 << 20, 21_900.0, 82_500.0, 69_000.0),
            ],
            tcp: vec![tcp(1, 4450.0), tcp(2 << 10, 4700.0), tcp(32 << 10, 6760.0)],
            connect_us: 34.0,
            epoll_ns: 480.0,
        }
    }

    pub(super) fn workload(kind: Kind, clients: u32, request_len: u64, reply_len: u64) -> Workload {
        Workload { kind, clients, request_len, reply_len }
    }

    fn report() -> Report {
        let mut report = Report::new(documented_machine());
        let rr = workload(Kind::RequestResponse, 10, 2048, 2048);
        report.forecast("RR10(2KB/2KB)", &rr, Model::EventLoop);
        let stream = workload(Kind::Streaming, 1, 1, 20_000_000);
        report.forecast("STR1(1B/20MB)", &stream, Model::Threads);
        let crr = workload(Kind::ConnectRequestResponse, 1, 64, 64);
        report.forecast("CRR1(64B/64B)", &crr, Model::Threads);
        report
    }

    #[test]
    fn tables_for_a_terminal() {
        insta::assert_snapshot!(report());
    }

    #[test]
    fn a_report_survives_json() {
        let json = serde_json::to_string(&report()).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report());
    }
}
