//! What else wants the CPUs while a workload is measured.
//!
//! A transport that is fast on a quiet host may be slow on a busy one, where every sleep
//! may cost the time slice of a stranger. So a measurement can make its own noise:
//! **neighbours**, endless loops in processes of their own
//! ([`neighbours`](crate::neighbours)), which run beside all transports alike. Results
//! under different contention are results of different experiments; each is told apart
//! by its [`Contention`].

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Who competes with the measured programs for the CPUs. The default: no one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Contention {
    /// Endless loops beside the measured programs.
    pub neighbours: Neighbours,
}

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
    /// No one competes.
    pub const NONE: Self = Self { neighbours: Neighbours { count: 0, priority: Priority::Same } };
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

/// For a reader: `4 neighbours at nice 19`.
impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Neighbours { count, priority } = self.neighbours;
        match count {
            0 => f.write_str("no neighbours")?,
            1 => f.write_str("1 neighbour")?,
            _ => write!(f, "{count} neighbours")?,
        }
        match priority {
            Priority::Same => Ok(()),
            Priority::Nice(nice) => write!(f, " at nice {nice}"),
            Priority::Idle => f.write_str(" of SCHED_IDLE"),
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
    fn readers_see_words() {
        let shown = |text: &str| Contention { neighbours: text.parse().unwrap() }.to_string();
        assert_eq!(shown("0"), "no neighbours");
        assert_eq!(shown("1"), "1 neighbour");
        assert_eq!(shown("4:nice=-5"), "4 neighbours at nice -5");
        assert_eq!(shown("2:idle"), "2 neighbours of SCHED_IDLE");
    }
}
