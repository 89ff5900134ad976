//! The threads of a job: how many connections each has, and how much stack.

use crate::control::Job;
use crate::plan::Model;

/// How many connections each thread of this job has. No two differ by more than one.
pub(super) fn shares(job: &Job) -> Vec<u32> {
    let most = match job.model {
        Model::Threads | Model::Processes => 1,
        Model::EventLoop => job.conduct.connections_per_loop.unwrap_or(job.connections),
    };
    let threads = job.connections.div_ceil(most);
    (0..threads)
        .map(|i| job.connections / threads + u32::from(i < job.connections % threads))
        .collect()
}

/// Stack of a thread in bytes: enough for what these threads call, little enough
/// for ten thousand of them.
pub(super) const STACK_LEN: usize = 256 << 10;
