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

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::Model;
use crate::workload::Workload;

mod cpu;
mod figures;
mod measure;
mod model;
mod table;

pub use figures::{CopyCost, Figures, Places, TcpCost};
pub use measure::{ProbeError, measure};
pub use model::{Element, Estimate, Limit, Prediction, Term, predict};

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
