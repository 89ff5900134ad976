//! The server side: threads that accept and serve, until the input ends.
//!
//! All threads accept from one listener. In the models `threads` and `processes` each
//! serves one connection at a time, in `event-loop` its share of them. Connections of
//! `CRR` come for ever; of the others, each thread serves its share once.

use std::convert::Infallible;
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;

use super::control_line::{ControlLine, Ending, Note};
use super::failure::Failure;
use super::shares::{STACK_LEN, shares};
use super::socket::{Listener, show};
use super::{event_loop, threads};
use crate::control::{Address, Event, Job};
use crate::plan::Model;

/// Serves at an address of the kind `at` until the input ends.
///
/// # Errors
/// Always: [`Ending::InputEnded`] is the good one.
pub(super) fn run<W: Write>(
    job: &Job,
    at: &Address,
    line: &mut ControlLine<W>,
) -> Result<Infallible, Ending> {
    let listener = listen(at, job)?;
    let ending = start(&listener, job, line).and_then(|()| {
        line.say(&Event::Listening(listener.address().clone()))?;
        line.serve()
    });
    listener.close();
    ending
}

fn listen(at: &Address, job: &Job) -> Result<Arc<Listener>, Failure> {
    let failed = |source| Failure::Listen { at: show(at), source };
    let listener = Listener::bind(at, job).map_err(failed)?;
    if job.model == Model::EventLoop {
        listener.never_wait().map_err(failed)?;
    }
    Ok(Arc::new(listener))
}

fn start<W: Write>(
    listener: &Arc<Listener>,
    job: &Job,
    line: &ControlLine<W>,
) -> Result<(), Ending> {
    let shares = shares(job);
    for (number, &share) in shares.iter().enumerate() {
        let (listener, job, desk) = (Arc::clone(listener), job.clone(), line.desk());
        thread::Builder::new()
            .name(format!("server {number}"))
            .stack_size(STACK_LEN)
            .spawn(move || serve(&listener, &job, share, &desk))
            .map_err(|source| Failure::Thread { number, of: shares.len(), source })?;
    }
    Ok(())
}

fn serve(listener: &Listener, job: &Job, share: u32, desk: &Sender<Note>) {
    let served = match job.model {
        Model::Threads | Model::Processes => threads::serve(listener, job),
        Model::EventLoop => event_loop::serve(listener, job, share),
    };
    if let Err(source) = served {
        let failure = Failure::Serve { at: show(listener.address()), source };
        // When the listener was closed, this has no reader.
        let _ = desk.send(Note::Over(failure.into()));
    }
}
