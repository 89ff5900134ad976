//! Connections in shared memory are looked at by a process of its own.
//!
//! A program may hold the lock of its socket for as long as it likes. A thread that asks the kernel about that socket
//! sleeps as long, and no signal ends it. So a second process looks, and names each program before it asks it:
//!
//! ```text
//!   sidestep filter apply ──starts──> sidestep filter end-denied
//!                         <──line by line── {"GoesTo":4711} {"GoesTo":4712} … {"Ended":{…}}
//! ```
//!
//! A second process that is silent for [`PATIENCE`] is left behind, for as long as the program it has named likes, and a third
//! looks without that program: see [`Held`].

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::fd::BorrowedFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sidestep_observe::{Denied, Held};

use crate::args::FilterEndDeniedArgs;

/// For one program. Its sockets take microseconds each.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the process says that looks.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    GoesTo(u32),
    Ended(#[serde(with = "Told")] Denied),
    Failed(String),
}

/// What is told of [`Denied`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Denied")]
struct Told {
    connections: usize,
    namespaces: Vec<u32>,
    incompatible: Vec<u32>,
    curtailed: Vec<u32>,
}

/// How a look has ended.
enum Outcome {
    Ended(Denied),
    /// This program has not answered.
    HeldBy(u32),
}

/// Ends the connections that are denied. Returns also the programs whose sockets were not asked.
///
/// # Errors
/// The look could not be taken.
pub(super) fn end_denied() -> io::Result<(Denied, Held)> {
    let mut held = Held::default();
    loop {
        match Look::begin(&held)?.outcome(PATIENCE)? {
            Outcome::Ended(denied) => return Ok((denied, held)),
            Outcome::HeldBy(pid) => held.add(pid),
        }
    }
}

/// `sidestep filter end-denied`: looks, and says so line by line.
///
/// # Errors
/// What is said cannot be written.
pub(in crate::commands::filter) fn execute(args: &FilterEndDeniedArgs) -> io::Result<()> {
    let held = Held { processes: args.process.clone(), users: args.user.clone() };
    let is_denied = |socket: BorrowedFd<'_>, interface| {
        // A socket that cannot be asked has ended.
        sidestep_bpf::is_denied(socket, interface).unwrap_or(false)
    };
    // If the command has gone, the look goes on without a reader.
    let goes_to = |pid| _ = say(&Line::GoesTo(pid));
    say(&match sidestep_observe::end_denied(&held, is_denied, goes_to) {
        Ok(denied) => Line::Ended(denied),
        Err(error) => Line::Failed(error.to_string()),
    })
}

fn say(line: &Line) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, line)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// A process that looks.
struct Look {
    process: Child,
    lines: Receiver<io::Result<Line>>,
}

impl Look {
    fn begin(held: &Held) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["filter", "end-denied"]).stdin(Stdio::null()).stdout(Stdio::piped());
        for (option, numbers) in [("--process", &held.processes), ("--user", &held.users)] {
            for number in numbers {
                command.args([option, &number.to_string()]);
            }
        }
        Self::of(command)
    }

    fn of(mut command: Command) -> io::Result<Self> {
        let mut process = command.spawn()?;
        let out = process.stdout.take().ok_or(ErrorKind::BrokenPipe)?;
        let (sender, lines) = mpsc::channel();
        thread::Builder::new().name("look".to_owned()).spawn(move || {
            read(out, |line| {
                _ = sender.send(line);
            })
        })?;
        Ok(Self { process, lines })
    }

    fn outcome(mut self, patience: Duration) -> io::Result<Outcome> {
        let mut at = None;
        loop {
            match self.lines.recv_timeout(patience) {
                Ok(Ok(Line::GoesTo(pid))) => at = Some(pid),
                Ok(Ok(Line::Ended(denied))) => {
                    self.process.wait()?;
                    return Ok(Outcome::Ended(denied));
                }
                Ok(Ok(Line::Failed(error))) => return Err(io::Error::other(error)),
                Ok(Err(error)) => return Err(error),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.process.wait()?;
                    return Err(io::Error::other(format!(
                        "the process that looks has ended: {status}"
                    )));
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(pid) = at {
                        // It ends when that program lets go.
                        self.process.kill()?;
                        return Ok(Outcome::HeldBy(pid));
                    }
                }
            }
        }
    }
}

/// Reads lines until there are no more.
fn read(out: ChildStdout, take: impl Fn(io::Result<Line>)) {
    for line in BufReader::new(out).lines() {
        take(line.and_then(|line| Ok(serde_json::from_str(&line)?)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(script: &str) -> Look {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        Look::of(command).unwrap()
    }

    #[test]
    fn what_the_process_says_is_what_has_come_of_it() {
        let ended =
            r#"{"Ended":{"connections":3,"namespaces":[7],"incompatible":[8],"curtailed":[9]}}"#;
        let said = look(&format!(r#"echo '{{"GoesTo":7}}'; echo '{ended}'"#));
        let Ok(Outcome::Ended(denied)) = said.outcome(PATIENCE) else { panic!() };
        let due = Denied {
            connections: 3,
            namespaces: vec![7],
            incompatible: vec![8],
            curtailed: vec![9],
        };
        assert_eq!(denied, due);
    }

    #[test]
    fn one_that_is_silent_is_left_behind_with_the_program_it_went_to() {
        let silent = look(r#"echo '{"GoesTo":8}'; exec sleep 1000"#);
        let outcome = silent.outcome(Duration::from_millis(300));
        assert!(matches!(outcome, Ok(Outcome::HeldBy(8))));
    }

    #[test]
    fn one_that_has_gone_nowhere_yet_is_waited_for() {
        let slow = look(r#"sleep 0.2; echo '{"Failed":"no /proc"}'"#);
        let outcome = slow.outcome(Duration::from_millis(10));
        assert!(outcome.is_err_and(|error| error.to_string() == "no /proc"));
    }

    #[test]
    fn one_that_dies_is_an_error() {
        let outcome = look("kill -9 $$").outcome(PATIENCE);
        assert!(outcome.is_err_and(|error| error.to_string().contains("has ended: signal: 9")));
    }
}
