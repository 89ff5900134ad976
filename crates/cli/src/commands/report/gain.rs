//! What connections in shared memory have gained, by a measurement of `sidestep bench`.
//!
//! ```text
//!   moved     = messages sent × ring bytes sent / bytes sent
//!   CPU saved = moved × (CPU time of both ends by TCP − by SMC) / 2
//!   time      = moved × (response time by TCP − by SMC) / 2
//! ```
//!
//! Both are means of a transaction, which is two messages, of the measured request/response workload whose
//! messages are nearest in length. Nothing is said of a program whose messages are more than four times as
//! long, or a quarter as long, as those of any measured workload, nor where the measurement saw no difference.

use std::path::Path;

use serde::Serialize;
use sidestep_modeler::contention::Contention;
use sidestep_modeler::plan::Transport;
use sidestep_modeler::report::json::{self, ReadError};
use sidestep_modeler::result::{Cell, Document};
use sidestep_modeler::workload::{Kind, Units, Workload};

use crate::commands::activity::Activity;

/// What was measured of one workload, for a message.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    /// Its name, as the measurement has it.
    workload: String,
    /// Mean length of its messages, in bytes.
    len: f64,
    /// CPU time of both ends that a message takes less by SMC, in microseconds; negative: more.
    cpu_us: f64,
    /// The same of the time until it is answered; `None`: no difference could be seen.
    time_us: Option<f64>,
}

/// What a program has gained.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Gain {
    pub(super) program: String,
    /// Messages that it has sent through shared memory.
    pub(super) messages: f64,
    /// Their mean length in bytes.
    pub(super) len: f64,
    pub(super) workload: String,
    /// For a message, in microseconds.
    pub(super) cpu_us: f64,
    pub(super) time_us: Option<f64>,
}

impl Gain {
    /// CPU time of both ends, in seconds.
    pub(super) fn cpu_s(&self) -> f64 {
        self.messages * self.cpu_us / 1e6
    }

    /// Time that connections have waited less for answers, together, in seconds.
    pub(super) fn time_s(&self) -> Option<f64> {
        Some(self.messages * self.time_us? / 1e6)
    }
}

/// All that documents have measured.
///
/// # Errors
/// One cannot be read, or is none.
pub(super) fn read(paths: &[impl AsRef<Path>]) -> Result<Vec<Measured>, ReadError> {
    let mut measured = Vec::new();
    for path in paths {
        measured.extend(of_document(&json::read(path.as_ref())?));
    }
    Ok(measured)
}

/// Request and response, SMC beside TCP, while nothing else wanted the CPUs.
fn of_document(document: &Document) -> Vec<Measured> {
    let is_quiet = |cell: &&Cell| cell.contention == Contention::NONE && cell.filter_rules == 0;
    let of_smc = document
        .results
        .iter()
        .filter(is_quiet)
        .filter(|cell| cell.transport == Transport::Smc && !cell.transport_proof.has_failed());
    of_smc
        .filter_map(|smc| {
            let is_same = |cell: &&Cell| {
                (&cell.workload, cell.model, cell.rmbe) == (&smc.workload, smc.model, smc.rmbe)
            };
            let mut of_tcp = document.results.iter().filter(is_quiet).filter(is_same);
            let tcp = of_tcp.find(|cell| cell.transport == Transport::Tcp)?;
            Measured::of(document, smc, tcp)
        })
        .collect()
}

impl Measured {
    fn of(document: &Document, smc: &Cell, tcp: &Cell) -> Option<Self> {
        let workload = Workload::parse(&smc.workload, Units::Ibm).ok()?;
        if workload.kind != Kind::RequestResponse {
            return None;
        }
        let compared = document.comparisons.iter().find(|it| {
            (it.a, it.b) == (Transport::Smc, Transport::Tcp)
                && (&it.workload, it.model, it.rmbe) == (&smc.workload, smc.model, smc.rmbe)
                && it.contention == Contention::NONE
                && it.filter_rules == 0
        })?;
        let [low, high] = compared.response_ci95;
        let is_seen = low > 1.0 || high < 1.0;
        let both = |cell: &Cell| cell.cpu_us_per_tran.client + cell.cpu_us_per_tran.server;
        let [cpu_us, time_us] =
            [both(tcp) - both(smc), tcp.response_us.mean - smc.response_us.mean]
                .map(|of_transaction| of_transaction / 2.0);
        (cpu_us.is_finite() && time_us.is_finite()).then(|| Self {
            workload: format!("{} ({})", smc.workload, smc.model),
            len: (workload.request_len + workload.reply_len) as f64 / 2.0,
            cpu_us,
            time_us: is_seen.then_some(time_us),
        })
    }
}

/// What a program has gained; `None`: nothing was measured that is like it, or it has moved nothing.
pub(super) fn of_program(
    program: &str,
    activity: &Activity,
    measured: &[Measured],
) -> Option<Gain> {
    let Activity { bytes_sent, ring_bytes_sent, messages_sent, .. } = *activity;
    if messages_sent == 0 || bytes_sent == 0 || ring_bytes_sent == 0 {
        return None;
    }
    let len = bytes_sent as f64 / messages_sent as f64;
    let apart = |it: &Measured| (it.len / len).max(len / it.len);
    let nearest = measured.iter().min_by(|a, b| apart(a).total_cmp(&apart(b)))?;
    (apart(nearest) <= APART_MAX).then(|| Gain {
        program: program.to_owned(),
        messages: messages_sent as f64 * ring_bytes_sent.min(bytes_sent) as f64 / bytes_sent as f64,
        len,
        workload: nearest.workload.clone(),
        cpu_us: nearest.cpu_us,
        time_us: nearest.time_us,
    })
}

/// Messages that are so many times as long are another workload: they cost copies, where short ones cost
/// wake-ups.
const APART_MAX: f64 = 4.0;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Messages of 2 KB that take less of both, and some of 64 KB of which only CPU time was seen.
    pub(in crate::commands::report) fn measured() -> Vec<Measured> {
        let of = |workload: &str, len, cpu_us, time_us| Measured {
            workload: workload.to_owned(),
            len,
            cpu_us,
            time_us,
        };
        vec![
            of("RR10(2KB/2KB) (threads)", 2048.0, 3.0, Some(20.0)),
            of("RR1(64KB/64KB) (threads)", 65_536.0, -1.0, None),
        ]
    }

    fn activity(messages_sent: u64, len: u64, ring_part: u64) -> Activity {
        let bytes_sent = messages_sent * len;
        let ring_bytes_sent = bytes_sent * ring_part / 100;
        Activity { bytes_sent, ring_bytes_sent, messages_sent, ..Activity::default() }
    }

    #[test]
    fn messages_that_moved_times_what_was_measured_of_one() {
        let gain = of_program("a", &activity(1_000_000, 1024, 75), &measured()).unwrap();
        assert_eq!((gain.messages, gain.len), (750_000.0, 1024.0));
        assert_eq!((gain.cpu_s(), gain.time_s()), (2.25, Some(15.0)));
        assert!(gain.workload.starts_with("RR10"), "{gain:?}");
        let longer = of_program("a", &activity(1000, 100_000, 100), &measured()).unwrap();
        assert_eq!((longer.cpu_s(), longer.time_s()), (-0.001, None), "a loss is said, too");
    }

    #[test]
    fn without_a_measurement_that_fits_nothing_is_said() {
        assert_eq!(of_program("a", &activity(1000, 1024, 75), &[]), None);
        assert_eq!(of_program("a", &activity(1000, 100, 75), &measured()), None, "too short");
        assert_eq!(of_program("a", &activity(1000, 1024, 0), &measured()), None, "nothing moved");
        assert_eq!(of_program("a", &Activity::default(), &measured()), None);
    }
}
