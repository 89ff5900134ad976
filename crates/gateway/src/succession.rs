//! One gateway takes the place of another, which gives it what can move and goes on with the rest until its last
//! connection has ended: it *drains*.
//!
//! ```text
//!   successor                                       predecessor
//!      │ ── Replace, at the control socket ──────────────────────> │
//!      │ <── listening sockets, lessons, lines, halves ── │  no new connections from here on
//!      │ <── for each soft RNIC: receiver, relays ─────── │  drains: asked by its process number
//!      │ <── the lines to those before it ─────────────── │
//!      │ ── Admits: the version of the state it knows ──> │
//!      │ <── link groups, each with its connections ───── │  see `gateway/migrate.rs`
//!      │      …                                           │
//!      │ <── the line ends ────────────────────────────── │  its last connection has ended
//! ```
//!
//! What there can be only one of is handed over as it is: the kernel keeps what waits in these sockets, so no
//! program notices, and no moment is without a gateway. A soft RNIC's datagrams for the predecessor are passed on
//! (`soft/relay.rs` of `sidestep-rdma`); RDMA devices have queue pairs of several processes anyway. The successor has a
//! peer ID of its own, and link groups that come to it keep theirs: so no peer takes one of them for one that has stayed.
//!
//! Where no successor is there yet, the same messages wait for it in a socket: see `gateway/store.rs`.
//!
//! A gateway that is told to end drains as well, if it has a limit for it. It keeps its names, says to libraries that
//! there is no adapter, and passes on by TCP what is handed over all the same.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use sidestep_engine::Migrant;
use sidestep_rdma::soft::Succession;
use sidestep_wire::hand_over::{Message, Relay, gateway_name};

use crate::control::Offer;
use crate::error::OpenError;
use crate::foreign::Foreign;
use crate::lessons::Lessons;
use crate::limits::SUCCESSION_PATIENCE;
use crate::session::{Session, SessionAtRest};
use crate::status::{call, receive, say};

/// How far a gateway has come that takes no new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// So many are left.
    pub left: usize,
    /// New ones go by another process.
    pub is_replaced: bool,
}

/// A gateway takes no new connections and ends with its last one.
#[derive(Debug)]
pub(crate) struct Drain {
    /// When what is left then is reset; `None`: nothing is.
    pub(crate) until: Option<Duration>,
    /// The line to who has its place. It ends with this process.
    pub(crate) successor: Option<OwnedFd>,
    /// As many were left when that was told.
    pub(crate) told: usize,
    /// The same in the log.
    pub(crate) logged: usize,
    /// What goes to the successor.
    pub(crate) departure: Departure,
    /// The link group that was tried last; 0: the first is the next.
    pub(crate) behind: u32,
    /// Link groups that the successor does not take.
    pub(crate) refused: BTreeSet<u32>,
}

/// How link groups go to the successor, one after the other.
#[derive(Debug)]
pub(crate) enum Departure {
    /// Not: there is no successor, or none that has said that it knows the state.
    Unasked,
    /// The next one, when this time has come.
    Due(Duration),
    /// This one comes to rest, or is let go on at that time.
    Frozen {
        /// Its number.
        group: u32,
        until: Duration,
    },
    /// The successor has not said whether it takes it.
    Sent(Box<Gone>),
}

/// What has left this process, and may come back.
#[derive(Debug)]
pub(crate) struct Gone {
    pub(crate) migrant: Migrant,
    /// One for each of the sessions.
    pub(crate) at_rest: Vec<SessionAtRest>,
    pub(crate) sessions: Vec<Session>,
    /// When an answer is waited for no more.
    pub(crate) until: Duration,
}

impl Drain {
    /// When it goes on though nothing has happened.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        let of_departure = match &self.departure {
            Departure::Unasked => None,
            Departure::Due(at) => Some(*at),
            Departure::Frozen { until, .. } => Some(*until),
            Departure::Sent(gone) => Some(gone.until),
        };
        self.until.into_iter().chain(of_departure).min()
    }
}

/// What is on its way into a store, for a gateway that begins later.
#[derive(Debug)]
pub(crate) struct Storing {
    /// Where it is written.
    pub(crate) to: OwnedFd,
    /// The other end, to be read by the next gateway.
    pub(crate) stored: OwnedFd,
    /// Link groups that have left this process.
    pub(crate) gone: Vec<Gone>,
    /// When it is waited no longer for others to come to rest.
    pub(crate) until: Duration,
}

/// A gateway before this one, as long as it drains.
#[derive(Debug)]
pub(crate) struct Predecessor {
    /// It ends with that.
    pub(crate) line: OwnedFd,
    pub(crate) process: u32,
    /// It lives, and is answered. One that does not has left all it had in the line.
    pub(crate) hears: bool,
    /// H and N of sessions of the link group that it will name next.
    pub(crate) ends: Vec<OwnedFd>,
}

/// What a gateway has given away.
pub(crate) struct Estate {
    /// The latest first.
    pub(crate) predecessors: Vec<Predecessor>,
    pub(crate) control: OwnedFd,
    pub(crate) listener: TcpListener,
    pub(crate) lessons: Lessons,
    pub(crate) successions: HashMap<IpAddr, Succession>,
    pub(crate) lines: Vec<OwnedFd>,
    pub(crate) callers: Vec<TcpStream>,
    pub(crate) offers: Vec<Offer>,
}

impl Estate {
    /// Has the gateway that is there give its place away; `None`: there is none.
    pub(crate) fn claim() -> Result<Option<Self>, OpenError> {
        let line = match call(&gateway_name(), Message::Replace) {
            Ok(line) => line,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Err(error) => return Err(OpenError::Stays(error)),
        };
        Self::receive(line).map(Some).map_err(OpenError::Stays)
    }

    /// What a gateway has left in this line that has ended.
    pub(crate) fn inherit(line: OwnedFd) -> io::Result<Self> {
        let mut this = Self::receive(line)?;
        this.predecessors.iter_mut().take(1).for_each(|latest| latest.hears = false);
        Ok(this)
    }

    fn receive(line: OwnedFd) -> io::Result<Self> {
        let mut this = loop {
            match receive(&line)? {
                (Message::Greeting(_), _) => {}
                (Message::Names(process), rights) => {
                    break Self::begin(Predecessor::new(line, process), exactly(rights)?);
                }
                (other, _) => return Err(nonsense(&other)),
            }
        };
        loop {
            match receive(&this.predecessors[0].line)? {
                (Message::Before(process), rights) => {
                    let [line] = exactly(rights)?;
                    this.predecessors.push(Predecessor::new(line, process));
                }
                (Message::Receiver(address), rights) => {
                    let [receiver] = exactly(rights)?;
                    this.successions.insert(address, Succession { receiver, relays: Vec::new() });
                }
                (Message::Relay(Relay { address, lane }), rights) => {
                    let [relay] = exactly(rights)?;
                    if let Some(its) = this.successions.get_mut(&address) {
                        its.relays.push((lane, relay));
                    }
                }
                (Message::Lines, rights) => this.lines.extend(rights),
                (Message::Callers, rights) => {
                    this.callers.extend(rights.into_iter().map(TcpStream::from));
                }
                (Message::Waiting(hand_over, user), rights) => {
                    let [n] = exactly(rights)?;
                    this.offers.extend(Offer::new(hand_over, Foreign::new(n, user)));
                }
                (Message::Replaced, _) => return Ok(this),
                (other, _) => return Err(nonsense(&other)),
            }
        }
    }

    fn begin(predecessor: Predecessor, names: [OwnedFd; 4]) -> Self {
        let [control, listener, lessons, read_only] = names;
        Self {
            predecessors: vec![predecessor],
            control,
            listener: listener.into(),
            lessons: Lessons::take_over(lessons, read_only),
            successions: HashMap::new(),
            lines: Vec::new(),
            callers: Vec::new(),
            offers: Vec::new(),
        }
    }
}

pub(crate) fn exactly<const N: usize>(rights: Vec<OwnedFd>) -> io::Result<[OwnedFd; N]> {
    let count = rights.len();
    rights.try_into().map_err(|_| io::Error::other(format!("{count} descriptors, not {N}")))
}

fn nonsense(message: &Message) -> io::Error {
    io::Error::other(format!("it says {message:?} in between"))
}

impl AsFd for Predecessor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}

impl Predecessor {
    const fn new(line: OwnedFd, process: u32) -> Self {
        Self { line, process, hears: true, ends: Vec::new() }
    }

    pub(crate) fn has_ended(&self) -> bool {
        let mut line = [PollFd::new(&self.line, PollFlags::empty())];
        // It is told whether or not it is asked for.
        poll(&mut line, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }
}

/// The next message and the descriptors beside it, if one has come.
///
/// # Errors
///
/// The other end is closed, or makes no sense.
pub(crate) fn receive_if_any(line: &OwnedFd) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
    let mut ready = [PollFd::new(line, PollFlags::IN)];
    match retry_on_intr(|| poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })))? {
        0 => Ok(None),
        _ => receive(line).map(Some),
    }
}

/// Says something to the successor, who reads as fast as it can.
pub(crate) fn send(
    to: BorrowedFd<'_>,
    message: Message,
    rights: &[BorrowedFd<'_>],
) -> io::Result<()> {
    loop {
        match say(to, message, rights) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let patience = Timespec::try_from(SUCCESSION_PATIENCE).map_err(io::Error::other)?;
                let mut full = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
                if retry_on_intr(|| poll(&mut full, Some(&patience)))? == 0 {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            done => return done,
        }
    }
}
