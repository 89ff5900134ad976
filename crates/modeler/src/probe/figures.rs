//! What transactions are made of, and what each element costs on a machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// One send and one receive in one thread, in nanoseconds: no thread is woken.
    pub ns: f64,
}

/// Bytes of a ring (RMBE) of Sidestep's by default, and of an application's call.
pub(super) const RING_LEN: usize = 64 << 10;
