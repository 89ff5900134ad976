//! The one epoll set, what its numbers mean, and how the gateway waits for it.
//!
//! A message passes two gateways on its way and two on the way back. Each time that one of them
//! sleeps, the one before it has to wake it, and a CPU that has nothing else to do falls asleep as
//! well; that takes longer than the work. So a gateway *lingers* before it sleeps: for a moment it
//! looks again and again, and gives its CPU to threads that want it in between, so that none of them is
//! slower for it. If nothing comes in that time, it does so less and less often: one that has little
//! to do sleeps at once.
//!
//! Numbers of lines and sessions are never used again, so an event that was reported for one that
//! has gone since is not found.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::{self, Errno};
use sidestep_proto::contention::{Company, Contention};
use sidestep_proto::governor::Bar;

/// Events taken at once.
const EVENTS_MAX: usize = 128;

/// How long it lingers: about what it costs to wake a CPU and the gateway on it.
const LINGER: Duration = Duration::from_micros(50);

/// What has an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The gateway is to end.
    Stop,
    /// Interfaces have changed.
    Interfaces,
    /// Policies of IPsec have changed.
    Policies,
    /// The gateway before this one has something to say, or has ended.
    Predecessor,
    /// The gateway that has this one's place has something to say, or has ended.
    Successor,
    /// A thread has worked on a handshake.
    Handshakes,
    /// A thread hands in what it was late with.
    Returns,
    /// A library connects to the control socket.
    ControlSocket,
    /// A process at the control socket has said something.
    Line(u64),
    /// A library connects to the data listener.
    Listener,
    /// Something has come for an adapter.
    Adapter(u8),
    /// H of a session.
    Program(u64),
    /// N of a session.
    Network(u64),
}

const KIND_BITS: u32 = 3;

impl Source {
    const fn number(self) -> u64 {
        let (kind, of) = match self {
            Self::Stop => (0, 0),
            Self::Interfaces => (1, 0),
            Self::Policies => (1, 1),
            Self::Predecessor => (1, 2),
            Self::Handshakes => (1, 3),
            Self::Successor => (1, 4),
            Self::Returns => (1, 5),
            Self::ControlSocket => (2, 0),
            Self::Line(of) => (3, of),
            Self::Listener => (4, 0),
            Self::Adapter(of) => (5, of as u64),
            Self::Program(of) => (6, of),
            Self::Network(of) => (7, of),
        };
        of << KIND_BITS | kind
    }

    const fn of_number(number: u64) -> Self {
        let of = number >> KIND_BITS;
        match number & ((1 << KIND_BITS) - 1) {
            0 => Self::Stop,
            1 if of == 0 => Self::Interfaces,
            1 if of == 1 => Self::Policies,
            1 if of == 2 => Self::Predecessor,
            1 if of == 3 => Self::Handshakes,
            1 if of == 4 => Self::Successor,
            1 => Self::Returns,
            2 => Self::ControlSocket,
            3 => Self::Line(of),
            4 => Self::Listener,
            5 => Self::Adapter(of as u8),
            6 => Self::Program(of),
            _ => Self::Network(of),
        }
    }
}

/// The epoll set.
#[derive(Debug)]
pub(crate) struct Poller {
    events: Arc<OwnedFd>,
}

/// The same for the thread that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    events: Arc<OwnedFd>,
    /// Up while lingering is not worth it.
    bar: Bar,
    /// What this thread has learned of strangers that want its CPU.
    contention: Contention,
    /// Since when its times count.
    began: Instant,
    /// When it last began to wait.
    waited_ns: u64,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { events: Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?) })
    }

    /// For a thread that has not waited yet.
    pub(crate) fn waiter(&self) -> Waiter {
        let (events, contention) = (Arc::clone(&self.events), Contention::new());
        Waiter { events, bar: Bar::LIFTED, contention, began: Instant::now(), waited_ns: 0 }
    }

    /// Tells of a source as long as there is something to be read.
    pub(crate) fn watch(&self, socket: impl AsFd, source: Source) -> io::Result<()> {
        epoll::add(
            &*self.events,
            socket,
            epoll::EventData::new_u64(source.number()),
            epoll::EventFlags::IN,
        )
    }

    /// Tells of a source whenever there is more to be read, or room, or it has ended.
    pub(crate) fn watch_changes(&self, socket: impl AsFd, source: Source) -> io::Result<()> {
        let both = epoll::EventFlags::IN | epoll::EventFlags::OUT;
        let flags = both | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&*self.events, socket, epoll::EventData::new_u64(source.number()), flags)
    }

    /// Tells of a source when its other end is closed.
    pub(crate) fn watch_end(&self, socket: impl AsFd, source: Source) -> io::Result<()> {
        let data = epoll::EventData::new_u64(source.number());
        epoll::add(&*self.events, socket, data, epoll::EventFlags::empty())
    }

    /// No more. One whose descriptors are not all closed would be told of for ever.
    pub(crate) fn forget(&self, socket: impl AsFd) {
        // It is there: it was watched.
        let _ = epoll::delete(&*self.events, socket);
    }
}

impl Waiter {
    /// Waits until something happens, at most so long; `None`: for ever.
    pub(crate) fn wait(&mut self, at_most: Option<Duration>) -> io::Result<Vec<Source>> {
        let now_ns = self.now_ns();
        let gap_ns = now_ns - std::mem::replace(&mut self.waited_ns, now_ns);
        let company = self.contention.company(now_ns, gap_ns);
        if at_most.is_some_and(|time| time <= LINGER)
            || company == Company::Strangers
            || !self.bar.admits()
        {
            return self.sleep(at_most);
        }
        let begin = Instant::now();
        let found = self.linger(begin)?;
        self.bar.ended(!found.is_empty());
        if !found.is_empty() {
            return Ok(found);
        }
        self.sleep(at_most.map(|time| time.saturating_sub(begin.elapsed())))
    }

    /// Looks and yields by turns, not for long, and not beside strangers.
    fn linger(&mut self, begin: Instant) -> io::Result<Vec<Source>> {
        let mut passed = Duration::ZERO;
        loop {
            let found = self.sleep(Some(Duration::ZERO))?;
            if !found.is_empty() || passed >= LINGER {
                return Ok(found);
            }
            thread::yield_now();
            let before = std::mem::replace(&mut passed, begin.elapsed());
            let late_ns = (passed - before).as_nanos() as u64;
            // A gateway does not spin.
            if self.contention.resumed(self.now_ns(), late_ns, 0) {
                return Ok(found);
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn sleep(&self, at_most: Option<Duration>) -> io::Result<Vec<Source>> {
        let at_most = at_most.map(|time| Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        let mut room = [MaybeUninit::uninit(); EVENTS_MAX];
        match epoll::wait(&*self.events, &mut room, at_most.as_ref()) {
            Ok((events, _)) => Ok(events.iter().map(source_of).collect()),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

fn source_of(event: &epoll::Event) -> Source {
    // The structure is packed.
    let data = event.data;
    Source::of_number(data.u64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_has_a_number_of_its_own() {
        use Source::*;
        let single = [
            Stop,
            Interfaces,
            Policies,
            Predecessor,
            Successor,
            Handshakes,
            ControlSocket,
            Listener,
            Returns,
        ];
        for source in single.into_iter().chain([Line(9), Adapter(255), Program(9), Network(9)]) {
            assert_eq!(Source::of_number(source.number()), source);
        }
    }
}
