//! A worker: an ordinary program with sockets, on either side of a measurement.
//!
//! It reads a [`Job`], then [commands](crate::control::Command), and answers with
//! [events](crate::control::Event), a line each. What it does in between it does
//! with the calls that any program makes (`socket`, `connect`, `accept`, `send`,
//! `recv`, `poll`, `epoll`, `close`), so a library that intercepts these sees nothing
//! special.
//!
//! ```text
//!   control lines ── client / server ────── starts threads, keeps the time, reports
//!                        │
//!                    generator ───────────── which client does what when
//!                  ┌─────┼──────────┐
//!             schedule   │       recorder    when a transaction is due; how long it took
//!                  conversation              one connection: what to send, what to expect
//!                        │
//!         poller + transport                 blocking socket · poll · epoll · a ring
//! ```
//!
//! The upper half reads no clock and opens no socket: it gets both from a
//! [`poller`]. The three client models, the tests with a clock of their own, and
//! the [calibration](crate::calibration) are pollers to the same
//! [`generator`].

pub(crate) mod clock;
pub(crate) mod conversation;
pub(crate) mod generator;
pub(crate) mod poller;
pub(crate) mod record;
pub(crate) mod resources;
pub(crate) mod stage;
pub(crate) mod transport;
pub(crate) mod trouble;

mod client;
mod control_line;
mod event_loop;
mod failure;
mod pace;
mod pattern;
mod server;
mod shares;
mod socket;
#[cfg(test)]
mod tests;
mod threads;

use std::convert::Infallible;
use std::io::{BufRead, Write};

use crate::control::{Event, Job, Role};
use crate::plan::Model;
use control_line::{ControlLine, Ending};
use failure::Failure;

/// Is a worker until `input` ends: success; or until it fails and has said so in
/// its last event: failure.
///
/// It returns without waiting for its threads, some of which may be asleep in a
/// socket: the process is expected to end.
pub fn run(input: impl BufRead + Send + 'static, output: impl Write) -> i32 {
    let mut line = ControlLine::new(output);
    match work(input, &mut line) {
        Ending::InputEnded => 0,
        Ending::Failed(failure) => {
            // A parent that does not listen any more needs no explanation either.
            let _ = line.say(&Event::Failed(failure.to_string()));
            1
        }
    }
}

fn work<W: Write>(input: impl BufRead + Send + 'static, line: &mut ControlLine<W>) -> Ending {
    match line.hear(input).and_then(|job| begin(job, line)) {
        Ok(never) => match never {},
        Err(ending) => ending,
    }
}

fn begin<W: Write>(job: Job, line: &mut ControlLine<W>) -> Result<Infallible, Ending> {
    check(&job)?;
    resources::make_room(&job)?;
    clock::be_punctual();
    match job.role.clone() {
        Role::Server(at) => server::run(&job, &at, line),
        Role::Client(to) => client::run(&job, &to, line),
    }
}

/// What [`Job`] promises and its type does not.
fn check(job: &Job) -> Result<(), Failure> {
    let loops_are_void =
        job.model == Model::EventLoop && job.conduct.connections_per_loop == Some(0);
    let void = [
        ("connections", job.connections == 0),
        ("request_len", job.workload.request_len == 0),
        ("reply_len", job.workload.reply_len == 0),
        ("chunk_len", job.conduct.chunk_len == 0),
        ("connections_per_loop", loops_are_void),
    ];
    match void.iter().find(|(_, is_void)| *is_void) {
        Some((name, _)) => Err(Failure::VoidJob(name)),
        None => Ok(()),
    }
}
