//! The CPUs that programs of ours may use, as `taskset` takes them.

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::suite::Lacking;

/// The first of them.
pub(crate) fn first() -> Result<String> {
    Ok(allowed()?.first().context("a process has a CPU")?.to_string())
}

/// Two halves of them.
///
/// **Errors**: [`Lacking`] if there is only one.
pub(crate) fn halves() -> Result<[String; 2]> {
    let cpus = allowed()?;
    if cpus.len() < 2 {
        bail!(Lacking("there is one CPU, and two hosts have more".to_owned()));
    }
    let (first, second) = cpus.split_at(cpus.len() / 2);
    Ok([first, second].map(|half| half.iter().map(usize::to_string).collect::<Vec<_>>().join(",")))
}

fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("which CPUs are ours")?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}
