//! Peers are looked for, and the gateway does not wait.
//!
//! Before a queue pair can hear its peer, the kernel has to know whose MAC address is behind the
//! peer's address, and asks the network. Where no answer comes, that call of the library returns after
//! a second or more; and a peer may name any address. So each such call is made by a thread of its
//! own:
//!
//! ```text
//!   owner ── begin ──> thread: call, tell, ring ──> bell is readable ──> owner: next
//! ```
//!
//! The thread has the queue pair as well meanwhile, and hands it back with the result. So it is the
//! owner who destroys one that is not wanted any more.

use std::ffi::c_int;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::abi::QpAttr;
use super::objects::Pair;
use crate::soft::sys;

/// Searches at a time: a user that has us look for many absent peers gets no more threads.
const SEARCHES_MAX: usize = 64;

/// Searches that are under way, and those that are over.
#[derive(Debug)]
pub(super) struct Searches {
    tell: Sender<Found>,
    found: Receiver<Found>,
    bell: PipeReader,
    ring: Arc<PipeWriter>,
    /// Threads that have not rung, or whose ring was not heard.
    under_way: usize,
}

/// What has become of a search.
#[derive(Debug)]
pub(super) struct Found {
    /// As it was begun with.
    pub(super) token: usize,
    /// The library's answer.
    pub(super) result: io::Result<()>,
    /// To be let go by the owner.
    _pair: Arc<Pair>,
}

impl Searches {
    pub(super) fn new() -> io::Result<Self> {
        let (tell, found) = channel();
        let (bell, ring) = io::pipe()?;
        sys::set_nonblocking(bell.as_fd())?;
        Ok(Self { tell, found, bell, ring: Arc::new(ring), under_way: 0 })
    }

    /// Readable when [`Self::next`] has something to tell.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Has a queue pair changed as [`Pair::modify`] does.
    ///
    /// # Errors
    ///
    /// There are too many, or there is no thread for it.
    pub(super) fn begin(
        &mut self,
        token: usize,
        pair: &Arc<Pair>,
        (attributes, mask): (QpAttr, c_int),
    ) -> io::Result<()> {
        if self.under_way == SEARCHES_MAX {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let (tell, ring, pair) = (self.tell.clone(), Arc::clone(&self.ring), Arc::clone(pair));
        let search = move || {
            let result = pair.modify(attributes, mask);
            // If the receiver is gone, the answer is not wanted.
            if tell.send(Found { token, result, _pair: pair }).is_ok() {
                // There is room for it: for each search there is one byte.
                let _ = (&*ring).write(&[0]);
            }
        };
        thread::Builder::new().name("search".to_owned()).spawn(search)?;
        self.under_way += 1;
        Ok(())
    }

    /// One that is over.
    pub(super) fn next(&mut self) -> Option<Found> {
        let mut rings = [0; SEARCHES_MAX];
        // Before it looks: who rings afterwards is heard the next time.
        if self.under_way > 0
            && let Ok(heard) = self.bell.read(&mut rings)
        {
            self.under_way -= heard;
        }
        self.found.try_recv().ok()
    }
}
