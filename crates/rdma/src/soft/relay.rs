//! Two processes with queue pairs at one UDP port, of which the newer one has the socket.
//!
//! ```text
//!   network ──> receiver ──> the newest: its own queue pairs
//!                               ├── lane 1 ──> relay ──> the one before: its own, until they have ended
//!                               └── lane 0 ──> relay ──> the one before that
//!   network <── sender of each
//! ```
//!
//! The kernel knows a port, and not whose queue pair a datagram is for. So the process that takes a place takes all
//! that comes, and passes on what is for other ones. Each has a lane: the numbers of the queue pairs that it makes are
//! equal modulo [`LANES`]. A queue pair that was [taken out](Adapter::take_out) of a predecessor keeps its number, so a
//! process may have some of several lanes, and is passed on what comes for each of them. A predecessor keeps the
//! receiver open and looks at its relay alone, of which each process after it has the other end; if that ends, all of
//! them have gone, and it receives by itself again.
//!
//! A relay that is full loses what is to be passed on, as a network would. Where there are as many predecessors as
//! lanes are left, the oldest is passed on nothing more by one of its own.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use sidestep_wire::relayed::Relayed;

use super::adapter::{self, Adapter, LANES};
use super::port::RECEIVE_BUFFER;
use super::port::batch::{Inbox, Joined};
use super::sys;

/// What a process needs to take the place of an adapter of another one.
#[derive(Debug)]
pub struct Succession {
    /// The socket at the UDP port.
    pub receiver: OwnedFd,
    /// Where what is for others' queue pairs goes: by their lanes, the oldest first.
    pub relays: Vec<(u8, OwnedFd)>,
}

/// Those that have queue pairs at the same port still, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Predecessors(Vec<Predecessor>);

/// The end of a relay by which a process passes on what is not for it.
#[derive(Debug)]
struct Predecessor {
    lane: u8,
    relay: OwnedFd,
}

impl Predecessors {
    /// And the lane of the one that comes after them.
    pub(super) fn new(relays: Vec<(u8, OwnedFd)>) -> (Self, u8) {
        let mut all: Vec<_> =
            relays.into_iter().map(|(lane, relay)| Predecessor::new(lane % LANES, relay)).collect();
        let lane = loop {
            let is_free = |lane: &u8| all.iter().all(|it: &Predecessor| it.lane != *lane);
            match (0..LANES).find(is_free) {
                Some(lane) => break lane,
                None => drop(all.remove(0)),
            }
        };
        (Self(all), lane)
    }

    /// For the one that comes next: to those that are left.
    pub(super) fn relays(&mut self) -> io::Result<Vec<(u8, OwnedFd)>> {
        self.0.retain(|it| !sys::is_hung_up(it.relay.as_fd()));
        self.0.iter().map(|it| Ok((it.lane, it.relay.try_clone()?))).collect()
    }

    /// To each process with queue pairs of this lane: some of its own may have gone on in another one.
    fn pass_on(&mut self, message: &Joined<'_>, stretch: Range<usize>, lane: u8) {
        self.0.retain(|it| it.lane != lane || it.pass_on(message, stretch.clone()));
    }
}

impl Predecessor {
    fn new(lane: u8, relay: OwnedFd) -> Self {
        // Those of bursts that find no room are sent again by the peer; it does well with what there is.
        let _ = sys::set_option(
            relay.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDBUFFORCE,
            (RECEIVE_BUFFER / 2) as i32,
        );
        Self { lane, relay }
    }

    /// False: the predecessor is gone.
    fn pass_on(&self, message: &Joined<'_>, stretch: Range<usize>) -> bool {
        let Some(bytes) = message.bytes.get(stretch).filter(|bytes| !bytes.is_empty()) else {
            return true;
        };
        // The kernel joins no more than one datagram of IP has room for.
        let segment_len = message.segment_len.min(bytes.len()) as u16;
        let Joined { from, port, .. } = *message;
        let Ok(header) = (Relayed { from, port, segment_len }).emit() else { return true };
        match sys::send_packet(self.relay.as_fd(), [&header, bytes]) {
            Ok(()) => true,
            Err(error) => !is_end(&error),
        }
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN))
}

/// Gives an adapter what has come, and what is not for it to its predecessors.
pub(super) fn deliver(
    inbox: &Inbox,
    adapter: &mut Adapter,
    predecessors: &mut Predecessors,
    now: Duration,
) {
    for message in inbox.messages() {
        let mut begin = 0;
        // Those behind one another that are for the same process go together.
        let mut foreign: Option<(u8, Range<usize>)> = None;
        for datagram in message.datagrams() {
            let end = begin + datagram.bytes.len();
            let lane = match adapter.handle_datagram(&datagram, now) {
                true => None,
                false => adapter::lane_of(datagram.bytes),
            };
            match &mut foreign {
                Some((its, stretch)) if lane == Some(*its) => stretch.end = end,
                _ => {
                    let next = lane.map(|lane| (lane, begin..end));
                    if let Some((lane, stretch)) = std::mem::replace(&mut foreign, next) {
                        predecessors.pass_on(&message, stretch, lane);
                    }
                }
            }
            begin = end;
        }
        if let Some((lane, stretch)) = foreign {
            predecessors.pass_on(&message, stretch, lane);
        }
    }
}

/// The end of a relay by which a process that has given its place away receives.
#[derive(Debug)]
pub(super) struct Successor(OwnedFd);

impl Successor {
    /// And the other end.
    pub(super) fn new() -> io::Result<(Self, OwnedFd)> {
        let [ours, theirs] = sys::packet_pair()?;
        Ok((Self(ours), theirs))
    }

    /// As [`Inbox::receive_relayed`].
    pub(super) fn receive(&self, inbox: &mut Inbox) -> Option<bool> {
        match inbox.receive_relayed(self.0.as_fd()) {
            Ok(received) => received,
            Err(error) if is_end(&error) => None,
            Err(_) => Some(false),
        }
    }
}

impl AsFd for Successor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_a_lane_of_its_own_and_those_of_what_it_has_taken_over() {
        let mut kept = Vec::new();
        let mut relay = |lane| {
            let [ours, theirs] = sys::packet_pair().unwrap();
            kept.push(theirs);
            (lane, ours)
        };
        // The second has queue pairs of the first one's lane, too.
        let (mut all, lane) = Predecessors::new(vec![relay(0), relay(0), relay(1)]);
        assert_eq!((lane, all.0.len()), (2, 3));
        assert_eq!(all.relays().unwrap().len(), 3);
        let (_, lane) = Predecessors::new((0..LANES).map(&mut relay).collect());
        assert_eq!(lane, 0, "the oldest is passed on nothing more");
        kept.remove(0);
        assert_eq!(all.relays().unwrap().len(), 2, "one has ended");
    }
}
