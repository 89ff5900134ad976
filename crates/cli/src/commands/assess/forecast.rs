//! What a flow would take over TCP and over SMC, by the figures of `sidestep probe`.
//!
//! A connection with `n` transactions is one of `CRR`, which connects, and `n - 1` of `RR`. How
//! the threads of a program wait is not counted, so both ways are predicted, as threads and
//! as event loops, and the gain is a range.

use std::time::Duration;

use sidestep_modeler::plan::Model;
use sidestep_modeler::probe::{Figures, predict};
use sidestep_modeler::workload::{Kind, Workload};

use super::traffic::Flow;

/// What is predicted for a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Forecast {
    /// Time of a transaction over TCP, its share of the connection included, in microseconds:
    /// the lower and the upper estimate.
    pub(super) tcp_us: [f64; 2],
    /// The same over SMC.
    pub(super) smc_us: [f64; 2],
    /// How many times as many transactions there can be, if the programs do nothing else.
    pub(super) gain: [f64; 2],
}

/// What is recommended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Profits,
    Perhaps,
    TooShort,
    NoGain,
    OtherHosts,
    NoBytes,
}

/// Less than this is within the error of the model.
const GAIN_MIN: f64 = 1.1;
/// Connections with fewer transactions are called short.
const SHORT: f64 = 16.0;

impl Forecast {
    pub(super) fn of(flow: &Flow, figures: &Figures, interval: Duration) -> Self {
        let [request_len, reply_len] = flow.lengths().map(|len| len.min(Workload::LEN_MAX));
        let clients = flow.clients(interval).min(Workload::CLIENTS_MAX);
        let each = flow.transactions_each();
        let times = [Model::Threads, Model::EventLoop].map(|model| {
            let of = |kind| {
                let workload = Workload { kind, clients, request_len, reply_len };
                predict(figures, &workload, model)
            };
            let (first, others) = (of(Kind::ConnectRequestResponse), of(Kind::RequestResponse));
            let mean = |first: f64, other: f64| (first + (each - 1.0) * other) / each;
            let tcp = mean(first.tcp.response_us, others.tcp.response_us);
            let smc = mean(first.smc.response_us, others.smc.response_us);
            (tcp, smc)
        });
        let range = |of: fn((f64, f64)) -> f64| {
            let [one, other] = times.map(of);
            [one.min(other), one.max(other)]
        };
        Self {
            tcp_us: range(|(tcp, _)| tcp),
            smc_us: range(|(_, smc)| smc),
            gain: range(|(tcp, smc)| tcp / smc),
        }
    }
}

impl Verdict {
    pub(super) fn of(flow: &Flow, forecast: Option<&Forecast>) -> Self {
        if !flow.is_here {
            return Self::OtherHosts;
        }
        let Some(Forecast { gain: [low, high], .. }) = forecast else { return Self::NoBytes };
        match () {
            () if *low >= GAIN_MIN => Self::Profits,
            () if *high >= GAIN_MIN => Self::Perhaps,
            () if flow.transactions_each() < SHORT => Self::TooShort,
            () => Self::NoGain,
        }
    }

    pub(super) fn keyword(self) -> &'static str {
        match self {
            Self::Profits => "yes",
            Self::Perhaps => "perhaps",
            Self::TooShort | Self::NoGain | Self::OtherHosts | Self::NoBytes => "no",
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Profits => "yes: run both ends with `sidestep run`",
            Self::Perhaps => "perhaps: it depends on how its threads wait; measure it",
            Self::TooShort => "no: its connections are too short",
            Self::NoGain => "no: TCP is as fast",
            Self::OtherHosts => "no: the peers are on other hosts",
            Self::NoBytes => "no: there were no bytes",
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::traffic::Traffic;
    use super::super::traffic::tests::{program, service};
    use super::*;
    use sidestep_modeler::probe::{CopyCost, Places, TcpCost};
    use sidestep_observe::Service;

    /// A machine with two processors on which waking is dear.
    pub(in crate::commands::assess) fn figures() -> Figures {
        Figures {
            cpus: 2,
            syscall_ns: 165.0,
            wakeup_us: Places { same_cpu: 1.93, other_cpu: Some(19.9) },
            ring_ns: Places { same_cpu: 2590.0, other_cpu: Some(138.0) },
            copies: vec![
                CopyCost { len: 64, hot_ns: 3.5, cold_ns: 42.5, handed_ns: Some(100.0) },
                CopyCost { len: 32 << 10, hot_ns: 588.0, cold_ns: 3020.0, handed_ns: Some(4500.0) },
            ],
            tcp: vec![TcpCost { len: 1, ns: 4450.0 }, TcpCost { len: 32 << 10, ns: 6760.0 }],
            connect_us: 34.0,
            epoll_ns: 480.0,
        }
    }

    fn assess(service: Service) -> (Forecast, Verdict) {
        let interval = Duration::from_secs(1);
        let traffic = Traffic::of(&[program(1, vec![service])], interval);
        let forecast = Forecast::of(&traffic.flows[0], &figures(), interval);
        (forecast, Verdict::of(&traffic.flows[0], Some(&forecast)))
    }

    #[test]
    fn long_connections_with_short_messages_profit() {
        let (forecast, verdict) = assess(Service { round_trips: 100_000, ..service(1) });
        assert_eq!(verdict, Verdict::Profits);
        let [low, high] = forecast.gain;
        assert!(5.0 < low && low <= high, "{forecast:?}");
        assert!(forecast.smc_us[1] < forecast.tcp_us[0], "{forecast:?}");
    }

    #[test]
    fn a_request_for_each_connection_does_not() {
        let one_each = Service { round_trips: 1000, bytes_sent: 64_000, ..service(1000) };
        let (forecast, verdict) = assess(one_each);
        assert_eq!(verdict, Verdict::TooShort);
        assert!(forecast.gain[1] <= 1.0, "{forecast:?}");
    }

    #[test]
    fn more_transactions_in_a_connection_never_gain_less() {
        let gains: Vec<_> = [1, 2, 5, 20, 100, 1000, 100_000]
            .map(|n| {
                let bytes = 64 * n;
                let of = service(1);
                assess(Service { round_trips: n, bytes_sent: bytes, bytes_received: bytes, ..of }).0
            })
            .into_iter()
            .map(|forecast| forecast.gain[0])
            .collect();
        assert!(gains.windows(2).all(|pair| pair[0] <= pair[1] + 1e-9), "{gains:?}");
    }

    #[test]
    fn other_hosts_and_silence_need_no_forecast() {
        let flow = |service| {
            let traffic = Traffic::of(&[program(1, vec![service])], Duration::from_secs(1));
            Verdict::of(&traffic.flows[0], None)
        };
        assert_eq!(flow(Service { is_here: false, ..service(1) }), Verdict::OtherHosts);
        assert_eq!(flow(service(1)), Verdict::NoBytes);
    }
}
