//! What must not grow in a process that is attacked: its descriptors, threads,
//! shared mappings and memory, as `/proc` shows them.

use std::fmt;
use std::fs;

use anyhow::{Context, Result, ensure};

/// A part of the name of every memory file of ours.
const MEMORY_FILES: &str = "memfd:sidestep";

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vitals {
    descriptors: usize,
    threads: u64,
    /// Mappings of our memory files.
    mappings: usize,
    resident_kb: u64,
}

impl Vitals {
    /// Those of a living process.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let read = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            fs::read_to_string(&path).with_context(|| path)
        };
        let (maps, status) = (read("maps")?, read("status")?);
        let descriptors = format!("/proc/{pid}/fd");
        Ok(Self {
            descriptors: fs::read_dir(&descriptors).context(descriptors)?.count(),
            threads: number(&status, "Threads:")?,
            mappings: maps.lines().filter(|line| line.contains(MEMORY_FILES)).count(),
            resident_kb: number(&status, "VmRSS:")?,
        })
    }

    /// **Errors**: there is more of something than `before`; of memory, more by
    /// over `growth_kb`.
    pub(crate) fn must_not_exceed(&self, before: &Self, growth_kb: u64) -> Result<()> {
        let is_well = self.descriptors <= before.descriptors
            && self.threads <= before.threads
            && self.mappings <= before.mappings
            && self.resident_kb <= before.resident_kb + growth_kb;
        ensure!(is_well, "grown from {before} to {self}");
        Ok(())
    }
}

impl fmt::Display for Vitals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { descriptors, threads, mappings, resident_kb } = self;
        write!(f, "{descriptors} fds, {threads} threads, {mappings} mappings, {resident_kb} KB")
    }
}

/// The number behind a word at the begin of a line of `/proc/PID/status`.
fn number(status: &str, word: &str) -> Result<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(word));
    let number = rest.and_then(|rest| rest.split_whitespace().next());
    Ok(number.with_context(|| format!("no {word}"))?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    const WELL: Vitals = Vitals { descriptors: 9, threads: 2, mappings: 4, resident_kb: 2000 };

    #[test]
    fn an_open_file_is_a_descriptor_more() -> Result<()> {
        // Other tests open and close files meanwhile: many, to be seen for certain.
        let before = Vitals::of(std::process::id())?;
        let files: Vec<File> =
            (0..200).map(|_| File::open("/dev/null")).collect::<Result<_, _>>()?;
        let with = Vitals::of(std::process::id())?;
        assert!(with.descriptors >= before.descriptors + files.len() / 2);
        assert!(with.must_not_exceed(&before, u64::MAX / 2).is_err());
        assert!(with.threads > 0 && with.resident_kb > 0);
        Ok(())
    }

    #[test]
    fn only_memory_may_grow_a_little() {
        let grown = |change: fn(&mut Vitals)| {
            let mut vitals = WELL;
            change(&mut vitals);
            vitals.must_not_exceed(&WELL, 100).is_err()
        };
        assert!(!grown(|vitals| vitals.resident_kb += 100));
        assert!(!grown(|vitals| vitals.descriptors -= 1));
        assert!(grown(|vitals| vitals.resident_kb += 101));
        assert!(grown(|vitals| vitals.descriptors += 1));
        assert!(grown(|vitals| vitals.threads += 1));
        assert!(grown(|vitals| vitals.mappings += 1));
    }
}
