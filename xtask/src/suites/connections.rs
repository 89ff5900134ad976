//! What became of the connections of a part, from the library's log.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Result;

/// Lines of the log.
const MOVED: &str = "connection is in shared memory";
const STAYED: &str = "connection stays on TCP: ";
const UNDECIDED: &str = "connection ends on TCP before it was decided";

/// Ends of connections: one that a process has to itself counts twice.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Connections {
    pub(super) smc: u64,
    /// How many for which reason.
    pub(super) tcp: BTreeMap<String, u64>,
}

impl Connections {
    /// Counts the lines of a log; none was written if no process had a connection.
    pub(super) fn read(log: &Path) -> Result<Self> {
        match fs::read(log) {
            Ok(bytes) => Ok(Self::parse(&String::from_utf8_lossy(&bytes))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }

    fn parse(log: &str) -> Self {
        let mut counted = Self::default();
        for line in log.lines() {
            if line.ends_with(MOVED) {
                counted.smc += 1;
            } else if let Some((_, reason)) = line.split_once(STAYED) {
                *counted.tcp.entry(reason.to_owned()).or_default() += 1;
            } else if line.ends_with(UNDECIDED) {
                *counted.tcp.entry("ended before it was decided".to_owned()).or_default() += 1;
            }
        }
        counted
    }

    pub(super) fn on_tcp(&self) -> u64 {
        self.tcp.values().sum()
    }
}

impl fmt::Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ends SMC-D, {} TCP", self.smc, self.on_tcp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_is_counted_once_with_its_reason() {
        let log = "\
sidestep[7] Info: instance 00 ready
sidestep[7] Info: connection is in shared memory
sidestep[8] Info: connection is in shared memory
sidestep[7] Info: connection stays on TCP: the peer does not run Sidestep
sidestep[7] Info: connection ends on TCP before it was decided
";
        let counted = Connections::parse(log);
        assert_eq!(counted.smc, 2);
        assert_eq!(counted.on_tcp(), 2);
        assert_eq!(counted.tcp["the peer does not run Sidestep"], 1);
        assert_eq!(counted.to_string(), "2 ends SMC-D, 2 TCP");
    }
}
