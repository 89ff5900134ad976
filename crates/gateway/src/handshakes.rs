//! Handshakes of TLS, by threads of their own.
//!
//! One takes half a millisecond of CPU, most of it a signature. Two in a row are a round of the gateway's one
//! thread, and acknowledgements of all links would wait for them. So a session goes to a thread with each flight of
//! its handshake and comes back when that is worked on; meanwhile it is nowhere else, and nothing is locked but
//! the queue. What comes after the handshake costs microseconds and stays with the gateway's thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::event::{EventfdFlags, eventfd};
use sidestep_tls::{Failure, Peer, Session, Setup};

use crate::limits::HANDSHAKE_THREADS_MAX;

/// What a thread is to do.
enum Work {
    /// To begin a session: a client makes its keys then.
    Begin(Setup, Peer),
    /// To work on what a session has taken.
    Process(Box<Session>),
}

/// A session that a thread has worked on.
#[derive(Debug)]
pub(crate) struct Done {
    /// Of the connection.
    pub(crate) number: u64,
    /// `None`: it could not be begun.
    pub(crate) session: Option<Box<Session>>,
    pub(crate) result: Result<(), Failure>,
}

/// The threads.
#[derive(Debug)]
pub(crate) struct Handshakes {
    work: Sender<(u64, Work)>,
    done: Receiver<Done>,
    /// Can be read when something is done.
    bell: Arc<OwnedFd>,
}

impl Handshakes {
    /// Begins as many threads as there are CPUs for this process, or none where nothing will be for them.
    ///
    /// # Errors
    ///
    /// The kernel gives no thread or no descriptor.
    pub(crate) fn begin(is_needed: bool) -> io::Result<Self> {
        let (work, waiting) = mpsc::channel();
        let (tell, done) = mpsc::channel();
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let waiting = Arc::new(Mutex::new(waiting));
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let count = if is_needed { cpus.min(HANDSHAKE_THREADS_MAX) } else { 0 };
        for _ in 0..count {
            let (waiting, tell, bell) = (Arc::clone(&waiting), tell.clone(), Arc::clone(&bell));
            let builder = thread::Builder::new().name("handshakes".to_owned());
            builder.spawn(move || serve(&waiting, &tell, &bell))?;
        }
        Ok(Self { work, done, bell })
    }

    /// Has a session begun.
    pub(crate) fn start(&self, number: u64, setup: Setup, peer: Peer) {
        // The threads live as long as this.
        let _ = self.work.send((number, Work::Begin(setup, peer)));
    }

    /// Has a session worked on.
    pub(crate) fn process(&self, number: u64, session: Box<Session>) {
        let _ = self.work.send((number, Work::Process(session)));
    }

    /// What is done.
    pub(crate) fn take(&self) -> Vec<Done> {
        // First: what is done later rings again.
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        self.done.try_iter().collect()
    }
}

impl AsFd for Handshakes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Works until the gateway has gone.
fn serve(waiting: &Mutex<Receiver<(u64, Work)>>, tell: &Sender<Done>, bell: &OwnedFd) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((number, work)) = next else { return };
        let (session, result) = match work {
            Work::Begin(setup, peer) => match setup.begin(&peer) {
                Ok(session) => (Some(Box::new(session)), Ok(())),
                Err(failure) => (None, Err(failure)),
            },
            Work::Process(mut session) => {
                let result = session.process();
                (Some(session), result)
            }
        };
        if tell.send(Done { number, session, result }).is_err() {
            return;
        }
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    }
}
