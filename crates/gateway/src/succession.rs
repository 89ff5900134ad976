//! One gateway takes the place of another, which goes on until its last connection has ended: it *drains*.
//!
//! ```text
//!   successor                                       predecessor
//!      │ ── Replace, at the control socket ──────────────────────> │
//!      │ <── listening sockets, lessons, lines, halves ── │  no new connections from here on
//!      │ <── for each soft RNIC: receiver, relays ─────── │  drains: asked by its process number
//!      │ <── the lines to those before it ─────────────── │
//!      │      …                                           │
//!      │ <── the line ends ────────────────────────────── │  its last connection has ended
//! ```
//!
//! What there can be only one of is handed over as it is: the kernel keeps what waits in these sockets, so no
//! program notices, and no moment is without a gateway. A soft RNIC's datagrams for the predecessor are passed on
//! (`soft/relay.rs` of `sidestep-rdma`); RDMA devices have queue pairs of several processes anyway. To peers the
//! successor is another host: its peer ID is new.
//!
//! A gateway that is told to end drains as well, if it has a limit for it. It keeps its names, says to libraries that
//! there is no adapter, and passes on by TCP what is handed over all the same.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sidestep_rdma::soft::Succession;
use sidestep_wire::hand_over::{Message, Relay, gateway_name};

use crate::control::Offer;
use crate::error::OpenError;
use crate::foreign::Foreign;
use crate::lessons::Lessons;
use crate::limits::SUCCESSION_PATIENCE;
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
}

/// A gateway before this one, as long as it drains.
#[derive(Debug)]
pub(crate) struct Predecessor {
    /// It ends with that.
    pub(crate) line: OwnedFd,
    pub(crate) process: u32,
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

    fn receive(line: OwnedFd) -> io::Result<Self> {
        let mut this = loop {
            match receive(&line)? {
                (Message::Greeting(_), _) => {}
                (Message::Names(process), rights) => {
                    break Self::begin(Predecessor { line, process }, exactly(rights)?);
                }
                (other, _) => return Err(nonsense(&other)),
            }
        };
        loop {
            match receive(&this.predecessors[0].line)? {
                (Message::Before(process), rights) => {
                    let [line] = exactly(rights)?;
                    this.predecessors.push(Predecessor { line, process });
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

fn exactly<const N: usize>(rights: Vec<OwnedFd>) -> io::Result<[OwnedFd; N]> {
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
    pub(crate) fn has_ended(&self) -> bool {
        let mut line = [PollFd::new(&self.line, PollFlags::empty())];
        // It is told whether or not it is asked for.
        poll(&mut line, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
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
                let ready =
                    poll(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)], Some(&patience))?;
                if ready == 0 {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            done => return done,
        }
    }
}
