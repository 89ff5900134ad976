//! Bytes that are passed on between two sockets, both ways, with urgent bytes and ends.

use super::turn::{Cut, End, Fate, Ready, pass_on};
use crate::bytes::Kept;
use crate::intake::{self, Intake};
use crate::limits::TURN;
use sidestep_rdma::memory::Stretch;
use std::net::{Shutdown, TcpStream};

/// Between two sockets.
#[derive(Debug, Default)]
pub(super) struct Ways {
    outward: Direction,
    inward: Direction,
}

/// From one socket to the other.
#[derive(Debug, Default)]
struct Direction {
    kept: Kept,
    /// The last byte of those that are kept is urgent.
    is_urgent: bool,
    has_ended: bool,
    /// The other side knows that.
    is_told: bool,
}

impl Ways {
    /// Passes on what can be both ways, but for as many bytes of each piece that comes inward as `skip` says.
    pub(super) fn pass(
        &mut self,
        (h, h_is): (&TcpStream, &mut Ready),
        (n, n_is): (&TcpStream, &mut Ready),
        chunk: &mut [u8],
        skip: impl FnMut(&[u8]) -> usize,
    ) -> Fate {
        let Self { outward, inward } = self;
        let moved_outward = outward.pump((h, h_is), (n, n_is), chunk, |_| 0);
        let moved_outward = moved_outward.and_then(|more| outward.tell(n).map(|()| more));
        let moved_inward = inward.pump((n, n_is), (h, h_is), chunk, skip);
        let moved_inward = moved_inward.and_then(|more| inward.tell(h).map(|()| more));
        let (Ok(more_outward), Ok(more_inward)) = (moved_outward, moved_inward) else {
            return Fate::Over(End::ResetBoth);
        };
        if outward.is_told && inward.is_told {
            return Fate::Over(End::InOrder);
        }
        if more_outward || more_inward { Fate::HasMore } else { Fate::Waits }
    }
}

impl Direction {
    /// One side has ended, and the other has all that came before.
    fn is_over(&self) -> bool {
        self.has_ended && self.kept.is_empty()
    }

    /// Ends the other side as well, once it is over.
    fn tell(&mut self, to: &TcpStream) -> Result<(), Cut> {
        if self.is_over() && !self.is_told {
            self.is_told = true;
            to.shutdown(Shutdown::Write).map_err(|_| Cut)?;
        }
        Ok(())
    }

    /// Passes on what can be, but for as many bytes of each piece as `skip` says. True: there is
    /// more.
    fn pump(
        &mut self,
        (from, from_is): (&TcpStream, &mut Ready),
        (to, to_is): (&TcpStream, &mut Ready),
        chunk: &mut [u8],
        mut skip: impl FnMut(&[u8]) -> usize,
    ) -> Result<bool, Cut> {
        let mut moved = 0;
        loop {
            if !self.kept.is_empty() {
                if !to_is.write {
                    return Ok(false);
                }
                let sent =
                    pass_on(to, to_is, [self.kept.left().into(), Stretch::NONE], self.is_urgent)?;
                self.kept.take(sent);
                continue;
            }
            if self.has_ended || !from_is.read {
                return Ok(false);
            }
            if moved >= TURN {
                return Ok(true);
            }
            match intake::take(from, chunk).map_err(|_| Cut)? {
                Intake::Bytes { count, is_urgent } => {
                    moved += count;
                    self.is_urgent = is_urgent;
                    let skipped = skip(&chunk[..count]);
                    self.kept.keep(&chunk[skipped..count]);
                }
                Intake::End => self.has_ended = true,
                Intake::Nothing => from_is.read = false,
            }
        }
    }
}
