//! Whose connections `sidestep demote` and `promote` are about.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::subject::Subject;

/// A process, a server's port, or everything, as the user wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// `all`.
    All,
    /// A bare number: a process, or else a port.
    Number(u32),
    /// `pid:4711`.
    Process(u32),
    /// `:6379`.
    Port(u16),
}

/// A word that is none of these.
#[derive(Debug, Error)]
#[error("use a process (4711 or pid:4711), a server's port (6379 or :6379), or all")]
pub(crate) struct NotTarget;

impl FromStr for Target {
    type Err = NotTarget;

    fn from_str(text: &str) -> Result<Self, NotTarget> {
        if text == "all" {
            return Ok(Self::All);
        }
        match text.parse() {
            Ok(Subject::Number(number)) => Ok(Self::Number(number)),
            Ok(Subject::Process(pid)) => Ok(Self::Process(pid)),
            Ok(Subject::Port(port)) => Ok(Self::Port(port)),
            Ok(Subject::Host(_) | Subject::Address(_)) | Err(_) => Err(NotTarget),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Process(pid) => write!(f, "pid:{pid}"),
            Self::Port(port) => write!(f, ":{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_mean_what_they_look_like_and_are_written_as_they_are_read() {
        let all = [
            ("all", Target::All),
            ("6379", Target::Number(6379)),
            ("pid:4711", Target::Process(4711)),
            (":80", Target::Port(80)),
        ];
        for (text, target) in all {
            assert_eq!(text.parse::<Target>().unwrap(), target);
            assert_eq!(target.to_string(), text);
        }
        for text in ["", "every", "pid:", ":", ":65536", "-1", "10.0.0.1"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
