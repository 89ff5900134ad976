//! What coordinator, server side and workers say to each other.
//!
//! Every message is one line of JSON. A worker reads commands from its standard
//! input and answers on its standard output; the server side on another host is
//! asked over a TCP connection. None of these carries measured bytes.
//!
//! One run, as lines:
//!
//! ```text
//! coordinator          server worker          client worker
//!     Job ──────────────────>
//!     <───────────── Listening
//!     Job (with addresses) ────────────────────────>
//!     <──────────────────────────────────── Connected
//!     Go ──────────────────────────────────────────>    warm-up
//!     <───────────────────────────────────────── Warm   the measured time begins
//!     Sample ───────────────>
//!     <───────────────── Usage
//!     <─────────────────────────────────────── Report   the measured time is over
//!     Sample ───────────────>
//!     <───────────────── Usage
//!     (end of input) ───────>──────────────────────>    both close and end
//! ```

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

use crate::plan::{Conduct, Model};
use crate::workload::Workload;

/// First line to a worker: what it is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Which side, and where.
    pub role: Role,
    /// What clients do; its number of clients is that of the whole workload.
    pub workload: Workload,
    /// How this worker makes its clients or serves its connections. A worker of
    /// model `Processes` has a single connection.
    pub model: Model,
    /// Connections of this worker: at least 1.
    pub connections: u32,
    /// The number of its first client among those of the workload, from 0.
    pub first_client: u32,
    /// How it behaves.
    pub conduct: Conduct,
}

/// Which side a worker is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Listens, at an address of this kind.
    Server(Address),
    /// Connects to this address.
    Client(Address),
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Address {
    /// A TCP address; port 0 to a server: any.
    Tcp(SocketAddr),
    /// A name in the abstract namespace of AF_UNIX; empty to a server: any.
    Unix(String),
}

/// Later lines to a worker. The end of its input means: close all and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// To clients: begin at this moment of `CLOCK_MONOTONIC`, in nanoseconds.
    Go {
        /// The moment; one in the past means now.
        at_ns: u64,
    },
    /// Say what you have used so far.
    Sample,
}

/// Lines from a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A server is ready.
    Listening(Address),
    /// All clients have connected (`CRR`: have made a first transaction).
    Connected,
    /// The warm-up is over.
    Warm,
    /// The measured time is over.
    Report(Box<ClientReport>),
    /// The answer to [`Command::Sample`].
    Usage(Usage),
    /// The worker gives up; it ends.
    Failed(String),
}

/// What the clients of one worker did in the measured time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientReport {
    /// Transactions that ended in the measured time.
    pub transactions: u64,
    /// Application bytes of these transactions, both ways.
    pub bytes: u64,
    /// Length of the measured time in nanoseconds.
    pub elapsed_ns: u64,
    /// Response times in nanoseconds: an HDR histogram of three digits in the V2
    /// format, in hexadecimal.
    pub response_ns: String,
    /// Sum of the squares and sum of response times, for mean and deviation without
    /// the histogram's rounding: `(Σx, Σx²)` in microseconds.
    pub response_sums_us: (f64, f64),
    /// Transactions that ended in each slice of [`SLICE_MS`] of the measured time.
    pub over_time: Vec<u64>,
    /// What this worker used in the measured time.
    pub usage: Usage,
    /// Open loop: transactions that were due in the measured time and had not ended at
    /// its end.
    pub unfinished: u64,
}

/// Length of a slice of [`ClientReport::over_time`] in milliseconds.
pub const SLICE_MS: u64 = 100;

/// CPU time and context switches of processes (`getrusage`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time in user mode, in microseconds.
    pub user_us: u64,
    /// CPU time in the kernel, in microseconds.
    pub system_us: u64,
    /// Switches because a thread waited.
    pub voluntary_switches: u64,
    /// Switches because a thread had to make way.
    pub involuntary_switches: u64,
}

/// What one side has used since its workers started, and what its host did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SideSample {
    /// All workers of the side.
    pub usage: Usage,
    /// What Sidestep says of them; nothing for other transports.
    pub evidence: Evidence,
    /// The CPUs of its host.
    pub machine: MachineCpu,
}

/// CPU time of a whole machine since its start, in microseconds (`/proc/stat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineCpu {
    /// Spent on anything but idling: user, system, interrupts.
    pub busy_us: u64,
    /// Idle, waiting for disks included.
    pub idle_us: u64,
    /// Taken by other guests of the hypervisor.
    pub steal_us: u64,
}

/// What the library knows about processes: totals since their start, closed
/// connections included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Connections whose bytes went through shared memory, or between hosts by SMC-R.
    pub smc_connections: u64,
    /// Connections whose bytes went by TCP, or of which nothing else is known.
    pub tcp_connections: u64,
    /// Those among them that were too short to be worth moving, as AUTOSMC has it.
    #[serde(default)]
    pub too_short: u64,
    /// Why connections stayed on TCP, each with their number: the standard's code and
    /// words.
    pub fallbacks: BTreeMap<String, u64>,
    /// CPU nanoseconds spent looking for the peer's next word.
    pub spin_ns: u64,
    /// Waits that began with looking.
    pub spins: u64,
    /// Waits that ended in a sleep.
    pub parks: u64,
    /// How often the peer was woken.
    pub wakeups: u64,
    /// What the gateway of their host has used, for all its programs; nothing if none of their connections
    /// was ever given to it.
    #[serde(default)]
    pub gateway: Usage,
}

/// A witness that can tell what the library did. `sidestep` reads its shared state;
/// this crate cannot.
pub trait Witness {
    /// The sum over these processes since their start.
    ///
    /// # Errors
    /// The state of a process cannot be read.
    fn look(&self, pids: &[u32]) -> io::Result<Evidence>;
}

/// The other end of a measurement: starts and stops server workers, reads their
/// clocks. It is here or on another host.
pub trait ServerSide {
    /// Starts workers: one for each job. Returns where they listen, in their order.
    ///
    /// # Errors
    /// A worker does not start; none is left running.
    fn start(
        &mut self,
        transport: crate::plan::Transport,
        jobs: &[Job],
    ) -> io::Result<Vec<Address>>;

    /// What they have used so far.
    ///
    /// # Errors
    /// A worker does not answer.
    fn sample(&mut self) -> io::Result<SideSample>;

    /// Ends them.
    ///
    /// # Errors
    /// One had failed; the text is its own.
    fn stop(&mut self) -> io::Result<()>;

    /// Whether it is on another host, whose CPUs are not those of the clients.
    fn is_remote(&self) -> bool {
        false
    }
}

impl Evidence {
    /// What was spun, parked and woken, and used by the gateway, since an earlier look. Connections stay what
    /// they are, those since the start: what they became was settled before anything
    /// was measured, or is settled again and again.
    #[must_use]
    pub fn waits_since(self, earlier: &Self) -> Self {
        let less = u64::saturating_sub;
        Self {
            spin_ns: less(self.spin_ns, earlier.spin_ns),
            spins: less(self.spins, earlier.spins),
            parks: less(self.parks, earlier.parks),
            wakeups: less(self.wakeups, earlier.wakeups),
            gateway: self.gateway - earlier.gateway,
            ..self
        }
    }
}

/// Later minus earlier; a counter that went backwards counts as unchanged.
impl Sub for MachineCpu {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        let less = u64::saturating_sub;
        Self {
            busy_us: less(self.busy_us, earlier.busy_us),
            idle_us: less(self.idle_us, earlier.idle_us),
            steal_us: less(self.steal_us, earlier.steal_us),
        }
    }
}

impl Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            user_us: self.user_us + other.user_us,
            system_us: self.system_us + other.system_us,
            voluntary_switches: self.voluntary_switches + other.voluntary_switches,
            involuntary_switches: self.involuntary_switches + other.involuntary_switches,
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Later minus earlier; a counter that went backwards counts as unchanged.
impl Sub for Usage {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        let less = u64::saturating_sub;
        Self {
            user_us: less(self.user_us, earlier.user_us),
            system_us: less(self.system_us, earlier.system_us),
            voluntary_switches: less(self.voluntary_switches, earlier.voluntary_switches),
            involuntary_switches: less(self.involuntary_switches, earlier.involuntary_switches),
        }
    }
}
