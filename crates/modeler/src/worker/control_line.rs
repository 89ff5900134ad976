//! The worker's end of the lines of [`control`](crate::control).
//!
//! One thread reads commands, others measure; all that they have to say arrives here
//! as [`Note`]s, and the thread that owns this writes all events.

use std::convert::Infallible;
use std::io::{BufRead, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use super::clock;
use super::failure::Failure;
use super::record::Recorder;
use super::resources;
use super::shares::STACK_LEN;
use crate::control::{Command, Event, Job};

/// Reads commands, writes events.
pub(crate) struct ControlLine<W> {
    output: W,
    notes: Receiver<Note>,
    desk: Sender<Note>,
}

/// Why a worker ends.
#[derive(Debug)]
pub(crate) enum Ending {
    /// Its input has ended, as it should.
    InputEnded,
    /// It gives up.
    Failed(Failure),
}

/// What a thread tells the one that owns the line.
#[derive(Debug)]
pub(crate) enum Note {
    /// A command has come.
    Command(Command),
    /// A thread's clients have connected.
    Ready,
    /// A thread has run a stage.
    Done(Box<Recorder>),
    /// It is over.
    Over(Ending),
}

impl<W: Write> ControlLine<W> {
    pub(crate) fn new(output: W) -> Self {
        let (desk, notes) = mpsc::channel();
        Self { output, notes, desk }
    }

    /// Reads the job, and lets a thread read the rest.
    ///
    /// # Errors
    /// There is no job; the input has ended.
    pub(crate) fn hear(&mut self, mut input: impl BufRead + Send + 'static) -> Result<Job, Ending> {
        let mut first = String::new();
        if input.read_line(&mut first).map_err(Failure::Input)? == 0 {
            return Err(Ending::InputEnded);
        }
        let job = serde_json::from_str(&first)
            .map_err(|error| Failure::NotAJob(format!("{error}: {}", first.trim_end())))?;
        let desk = self.desk();
        thread::Builder::new()
            .name("commands".into())
            .stack_size(STACK_LEN)
            .spawn(move || read_commands(input, &desk))
            .map_err(|source| Failure::Thread { number: 1, of: 1, source })?;
        Ok(job)
    }

    /// Where threads leave their notes.
    pub(crate) fn desk(&self) -> Sender<Note> {
        self.desk.clone()
    }

    /// Writes an event.
    ///
    /// # Errors
    /// There is no reader.
    pub(crate) fn say(&mut self, event: &Event) -> Result<(), Ending> {
        let mut line = serde_json::to_string(event).expect("events have a text form");
        line.push('\n');
        let written = self.output.write_all(line.as_bytes()).and_then(|()| self.output.flush());
        Ok(written.map_err(Failure::Output)?)
    }

    /// Waits for the next note until a moment, or without end. Answers
    /// [`Command::Sample`] by itself.
    ///
    /// # Errors
    /// The input has ended, or a thread has failed.
    pub(crate) fn next(&mut self, until_ns: Option<u64>) -> Result<Option<Note>, Ending> {
        loop {
            let Some(note) = self.receive(until_ns) else { return Ok(None) };
            match note {
                Note::Over(ending) => return Err(ending),
                Note::Command(Command::Sample) => self.say(&Event::Usage(resources::usage()))?,
                note => return Ok(Some(note)),
            }
        }
    }

    /// Answers [`Command::Sample`] to the end of the input.
    ///
    /// # Errors
    /// The input has ended, a thread has failed, or there was another command.
    pub(crate) fn serve(&mut self) -> Result<Infallible, Ending> {
        loop {
            if let Some(Note::Command(Command::Go { .. })) = self.next(None)? {
                return Err(Failure::Unexpected("go").into());
            }
        }
    }

    fn receive(&self, until_ns: Option<u64>) -> Option<Note> {
        let Some(until_ns) = until_ns else {
            return Some(self.notes.recv().expect("`desk` is a sender of ours"));
        };
        let left = Duration::from_nanos(until_ns.saturating_sub(clock::now_ns()));
        match self.notes.recv_timeout(left) {
            Ok(note) => Some(note),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => unreachable!("`desk` is a sender of ours"),
        }
    }
}

/// A failure is the end.
impl From<Failure> for Ending {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

fn read_commands(input: impl BufRead, desk: &Sender<Note>) {
    for line in input.lines() {
        let note = match line.map(|line| (serde_json::from_str(&line), line)) {
            Ok((Ok(command), _)) => Note::Command(command),
            Ok((Err(error), line)) => {
                Note::Over(Failure::NotACommand(format!("{error}: {line}")).into())
            }
            Err(error) => Note::Over(Failure::Input(error).into()),
        };
        if desk.send(note).is_err() {
            return;
        }
    }
    // When there is no reader, the worker has ended for another reason.
    let _ = desk.send(Note::Over(Ending::InputEnded));
}
