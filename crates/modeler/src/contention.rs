//! What else wants the CPUs while a workload is measured.
//!
//! A transport that is fast on a quiet host may be slow on a busy one, where every sleep
//! may cost the time slice of a stranger. So a measurement can make its own noise:
//! **neighbours**, endless loops in processes of their own
//! ([`neighbours`](crate::neighbours)), which run beside all transports alike. Results
//! under different contention are results of different experiments; each is told apart
//! by its [`Contention`].

use std::fmt;
use std::io;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::affinity::{self, CPUS_MAX};

/// What competes with the measured programs for the CPUs, and how much of these they may
/// use. The default: no program, and all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Contention {
    /// Endless loops beside the measured programs.
    pub neighbours: Neighbours,
    /// CPU time that clients and servers may use together, in percent of one CPU: 1 to
    /// [`CPU_QUOTA_MAX`] (`cpu.max` of their control group).
    pub cpu_quota: Option<u32>,
    /// Weight of clients and servers together against 100 of all neighbours together: 1
    /// to [`CPU_WEIGHT_MAX`] (`cpu.weight` of their control groups).
    pub cpu_weight: Option<u32>,
    /// The CPUs of clients, servers and neighbours.
    pub cpus: CpuList,
}

/// Numbers of CPUs, rising; none: all that this process may use. On the command line
/// `0,2-3`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct CpuList(Vec<usize>);

/// Endless loops, each a process of one thread. On the command line `4`, `4:nice=19` or
/// `4:idle`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Neighbours {
    /// How many: 0 to [`NEIGHBOURS_MAX`].
    pub count: u32,
    /// Their priority.
    pub priority: Priority,
}

/// The priority of neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// That of the measured programs.
    #[default]
    Same,
    /// This nice value: -20, the most CPU time, to 19, the least.
    Nice(i8),
    /// `SCHED_IDLE`: they run when no other program wants the CPU.
    Idle,
}

/// The most neighbours that can be asked for.
pub const NEIGHBOURS_MAX: u32 = 1000;

/// The most percent of one CPU that a quota may be: a hundred CPUs.
pub const CPU_QUOTA_MAX: u32 = 10_000;

/// The largest weight that the kernel knows.
pub const CPU_WEIGHT_MAX: u32 = 10_000;

/// A text is no list of CPUs.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a list of CPUs: write numbers from 0 to {last}, such as 0 or 0,2-3", last = CPUS_MAX - 1)]
pub struct CpuListError(String);

/// Why a text does not say which neighbours are meant.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum NeighboursError {
    #[error(
        "`{0}` is not a number of neighbours: write 0 to {NEIGHBOURS_MAX}, such as 4, 4:nice=19 \
         or 4:idle"
    )]
    Count(String),
    #[error("`{0}` is not a priority: write nice=N, with N from -20 to 19, or idle")]
    Priority(String),
    #[error("`{0}` gives a priority to no neighbour: write 0 alone")]
    PriorityOfNone(String),
}

impl Contention {
    /// No program competes.
    pub const NONE: Self = Self {
        neighbours: Neighbours { count: 0, priority: Priority::Same },
        cpu_quota: None,
        cpu_weight: None,
        cpus: CpuList(Vec::new()),
    };

    /// It takes control groups.
    #[must_use]
    pub fn has_cpu_group(&self) -> bool {
        self.cpu_quota.is_some() || self.cpu_weight.is_some()
    }
}

impl CpuList {
    /// The numbers; none: all that this process may use.
    #[must_use]
    pub fn numbers(&self) -> &[usize] {
        &self.0
    }

    /// The first of them that this thread may not use.
    ///
    /// # Errors
    /// The kernel does not say which it may.
    pub fn first_not_allowed(&self) -> io::Result<Option<usize>> {
        let allowed = affinity::allowed()?;
        Ok(self.0.iter().copied().find(|cpu| !allowed.contains(cpu)))
    }
}

impl FromStr for CpuList {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last && last < CPUS_MAX).then_some(first..=last)
        };
        let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
        let mut numbers: Vec<usize> =
            ranges.ok_or_else(|| CpuListError(text.to_owned()))?.into_iter().flatten().collect();
        numbers.sort_unstable();
        numbers.dedup();
        Ok(Self(numbers))
    }
}

/// The numbers, with commas.
impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

impl FromStr for Neighbours {
    type Err = NeighboursError;

    fn from_str(text: &str) -> Result<Self, NeighboursError> {
        let (count, priority) = match text.split_once(':') {
            Some((count, priority)) => (count, priority.parse()?),
            None => (text, Priority::Same),
        };
        let count = count.parse().ok().filter(|count| *count <= NEIGHBOURS_MAX);
        match count {
            None => Err(NeighboursError::Count(text.to_owned())),
            Some(0) if priority != Priority::Same => {
                Err(NeighboursError::PriorityOfNone(text.to_owned()))
            }
            Some(count) => Ok(Self { count, priority }),
        }
    }
}

impl FromStr for Priority {
    type Err = NeighboursError;

    fn from_str(text: &str) -> Result<Self, NeighboursError> {
        let nice = text.strip_prefix("nice=").and_then(|nice| nice.parse().ok());
        match (text, nice) {
            ("idle", _) => Ok(Self::Idle),
            (_, Some(nice @ -20..=19)) => Ok(Self::Nice(nice)),
            _ => Err(NeighboursError::Priority(text.to_owned())),
        }
    }
}

/// As on the command line.
impl fmt::Display for Neighbours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.priority {
            Priority::Same => write!(f, "{}", self.count),
            Priority::Nice(nice) => write!(f, "{}:nice={nice}", self.count),
            Priority::Idle => write!(f, "{}:idle", self.count),
        }
    }
}

/// For a reader: `4 neighbours at nice 19, CPU quota 50 %, CPUs 0`.
impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Neighbours { count, priority } = self.neighbours;
        match count {
            0 => f.write_str("no neighbours")?,
            1 => f.write_str("1 neighbour")?,
            _ => write!(f, "{count} neighbours")?,
        }
        match priority {
            Priority::Same => {}
            Priority::Nice(nice) => write!(f, " at nice {nice}")?,
            Priority::Idle => f.write_str(" of SCHED_IDLE")?,
        }
        if let Some(percent) = self.cpu_quota {
            write!(f, ", CPU quota {percent} %")?;
        }
        if let Some(weight) = self.cpu_weight {
            write!(f, ", CPU weight {weight}")?;
        }
        match self.cpus.numbers() {
            [] => Ok(()),
            [cpu] => write!(f, ", CPU {cpu}"),
            _ => write!(f, ", CPUs {}", self.cpus),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_shown() {
        for text in ["0", "1", "4", "1000", "4:nice=19", "4:nice=-20", "2:nice=0", "8:idle"] {
            assert_eq!(text.parse::<Neighbours>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn mistakes_are_told_with_what_is_allowed() {
        let refusal = |text: &str| text.parse::<Neighbours>().unwrap_err().to_string();
        for text in ["", "x", "-1", "1001", "4294967296", "1.5", ":idle", "2 "] {
            assert!(refusal(text).contains("write 0 to 1000"), "{text}: {}", refusal(text));
        }
        for text in ["4:", "4:nice", "4:nice=", "4:nice=20", "4:nice=-21", "4:nice=300", "4:busy"] {
            assert!(refusal(text).contains("from -20 to 19"), "{text}: {}", refusal(text));
        }
        assert!(refusal("0:idle").contains("no neighbour"));
    }

    #[test]
    fn cpus_are_numbers_and_ranges() {
        let numbers = |text: &str| text.parse::<CpuList>().map(|it| it.numbers().to_vec());
        assert_eq!(numbers("0"), Ok(vec![0]));
        assert_eq!(numbers("5,0,2-4,3"), Ok(vec![0, 2, 3, 4, 5]));
        for text in ["", ",", "a", "-1", "1-", "3-2", "1024", "0-1024", "0 1"] {
            let error = numbers(text).unwrap_err().to_string();
            assert!(error.contains("from 0 to 1023, such as 0 or 0,2-3"), "{text}: {error}");
        }
    }

    #[test]
    fn readers_see_words() {
        let beside =
            |text: &str| Contention { neighbours: text.parse().unwrap(), ..Contention::NONE };
        assert_eq!(beside("0").to_string(), "no neighbours");
        assert_eq!(beside("1").to_string(), "1 neighbour");
        assert_eq!(beside("4:nice=-5").to_string(), "4 neighbours at nice -5");
        assert_eq!(beside("2:idle").to_string(), "2 neighbours of SCHED_IDLE");
        let narrow = Contention {
            cpu_quota: Some(50),
            cpu_weight: Some(1),
            cpus: "0".parse().unwrap(),
            ..beside("2")
        };
        assert_eq!(narrow.to_string(), "2 neighbours, CPU quota 50 %, CPU weight 1, CPU 0");
        let narrow = Contention { cpus: "1,2".parse().unwrap(), ..Contention::NONE };
        assert_eq!(narrow.to_string(), "no neighbours, CPUs 1,2");
    }
}
