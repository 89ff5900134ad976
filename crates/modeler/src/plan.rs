//! What is to be measured, and how the clients behave.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contention::Contention;
use crate::figure::Figure;
use crate::workload::Workload;

/// Everything a measurement runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What is measured, in this order.
    pub entries: Vec<Entry>,
    /// Each entry runs over each of these, interleaved; all differ.
    pub transports: Vec<Transport>,
    /// What the others are compared with: one of `transports`.
    pub baseline: Transport,
    /// Runs of each entry over each transport: at least 1.
    pub runs: u32,
}

/// A workload, the model in which it runs, how its clients behave, and beside what.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// What the clients do.
    pub workload: Workload,
    /// How they are made.
    pub model: Model,
    /// How they behave.
    pub conduct: Conduct,
    /// What else wants the CPUs meanwhile.
    pub contention: Contention,
    /// Rules of an IP filter that judges each packet of clients and servers, and of which none matches but
    /// the last: at most [`FILTER_RULES_MAX`]; 0: there is no filter.
    pub filter_rules: u32,
    /// What is required of SMC against TCP, by figure.
    pub required: BTreeMap<Figure, Requirement>,
}

impl Entry {
    /// Nothing else tells it from the other: the runs of such entries take turns, so that what the filter costs is
    /// seen in pairs.
    #[must_use]
    pub fn differs_by_filter_alone(&self, other: &Self) -> bool {
        let filter_rules = other.filter_rules;
        self.filter_rules != filter_rules && Self { filter_rules, ..self.clone() } == *other
    }
}

/// The most rules that a filter may have.
pub const FILTER_RULES_MAX: u32 = 1_000_000;

/// What the ratio of a figure, SMC ÷ TCP, has to be: at least, where more is better,
/// otherwise at most.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// The median over the pairs; more than 0.
    pub ratio: f64,
    /// The worse end of its interval at 95 %; `None`: any.
    pub bound: Option<f64>,
}

/// How the clients of a workload are made, and the server in the same way.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// A thread for each client, and one for each connection of the server.
    Threads,
    /// A process for each client, as IBM does it, and one for each of the server's.
    Processes,
    /// One epoll loop for many connections on either side.
    EventLoop,
}

/// The way bytes travel.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// The kernel's TCP.
    Tcp,
    /// TCP sockets in programs started by `sidestep run`.
    Smc,
    /// AF_UNIX stream sockets.
    Unix,
    /// TCP sockets whose messages a BPF program hands from socket to socket.
    Sockmap,
}

/// How clients and servers behave, in every run of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conduct {
    /// When a run begins to count and when it ends.
    pub extent: Extent,
    /// When a client starts its next transaction.
    pub pace: Pace,
    /// Pause of a client between two transactions.
    pub think: Duration,
    /// Threads wait inside `send` and `recv`; otherwise in `poll`. An event loop
    /// never waits inside them.
    pub blocking: bool,
    /// Receive with `MSG_WAITALL` (blocking threads only).
    pub wait_all: bool,
    /// The most bytes an application gives to one `send` or `recv`: at least 1.
    pub chunk_len: usize,
    /// Event loops serve at most this many connections each; `None`: one loop for all.
    pub connections_per_loop: Option<u32>,
    /// Every byte is compared with what the other side must have sent.
    pub verify: bool,
    /// Connections use IPv6.
    pub ipv6: bool,
    /// Bytes of the receive buffer (RMBE) that Sidestep is configured for.
    pub rmbe_len: Option<u32>,
}

impl Default for Conduct {
    fn default() -> Self {
        Self {
            extent: Extent::Time {
                warmup: Duration::from_millis(300),
                measured: Duration::from_secs(1),
            },
            pace: Pace::Closed,
            think: Duration::ZERO,
            blocking: true,
            wait_all: false,
            chunk_len: 64 << 10,
            connections_per_loop: None,
            verify: false,
            ipv6: false,
            rmbe_len: None,
        }
    }
}

/// How long a run lasts. The warm-up is not measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extent {
    /// For a time.
    Time {
        /// Before the measured time.
        warmup: Duration,
        /// The measured time; more than zero.
        measured: Duration,
    },
    /// For a number of transactions of each client.
    Count {
        /// Transactions of each client before the measured ones.
        warmup: u64,
        /// Measured transactions of each client; at least 1.
        measured: u64,
    },
}

/// When a client starts its next transaction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// Closed loop: when the last one has ended and the think time is over.
    Closed,
    /// Open loop: at fixed moments, this many a second over all clients, whether or
    /// not the last has ended. Response times count from the intended moment, so a
    /// server that stalls cannot hide its delay.
    Open {
        /// Transactions per second over all clients; more than zero.
        per_second: f64,
    },
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Threads => "threads",
            Self::Processes => "processes",
            Self::EventLoop => "event-loop",
        })
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "tcp",
            Self::Smc => "smc",
            Self::Unix => "unix",
            Self::Sockmap => "sockmap",
        })
    }
}
