//! What carries the records of TLS: the TCP connection to the peer, or SMC-R beside it.

use super::turn::{Cut, Ready, pass_on};
use crate::intake::{self, Intake};
use crate::nic::Nic;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};
use sidestep_engine::{CallError, Host};
use sidestep_rdma::memory::Stretch;
use sidestep_wire::AlertToken;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// A stream of bytes to the peer and from it. Nothing here waits.
pub(super) trait Carrier {
    /// Whether something may have come.
    fn may_receive(&self) -> bool;

    /// Takes what has come, as much as there is room for.
    ///
    /// **Errors**: it is reset.
    fn receive(&mut self, room: &mut [u8]) -> Result<Intake, Cut>;

    /// The first byte of what has come, which stays.
    fn first(&mut self) -> Option<u8>;

    /// Whether something may be taken.
    fn may_send(&self) -> bool;

    /// Returns how many bytes are taken; none, if no more are for now.
    ///
    /// **Errors**: it is reset.
    fn send(&mut self, bytes: &[u8]) -> Result<usize, Cut>;

    /// Nothing more is sent. Where the peer has gone, receiving tells.
    fn end(&mut self);
}

/// N itself, which has urgent bytes in line.
pub(super) struct ByTcp<'a> {
    pub(super) n: &'a TcpStream,
    pub(super) is: &'a mut Ready,
}

impl Carrier for ByTcp<'_> {
    fn may_receive(&self) -> bool {
        self.is.read
    }

    fn receive(&mut self, room: &mut [u8]) -> Result<Intake, Cut> {
        let taken = intake::take_in_line(self.n, room).map_err(|_| Cut)?;
        self.is.read &= taken != Intake::Nothing;
        Ok(taken)
    }

    fn first(&mut self) -> Option<u8> {
        let mut first = [0];
        loop {
            match net::recv(self.n, &mut first, RecvFlags::DONTWAIT | RecvFlags::PEEK) {
                Err(Errno::INTR) => {}
                seen => return seen.is_ok_and(|(_, count)| count > 0).then_some(first[0]),
            }
        }
    }

    fn may_send(&self) -> bool {
        self.is.write
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, Cut> {
        pass_on(self.n, self.is, [bytes.into(), Stretch::NONE], false)
    }

    fn end(&mut self) {
        let _ = self.n.shutdown(Shutdown::Write);
    }
}

/// A connection of the host's.
pub(super) struct BySmcR<'a> {
    pub(super) host: &'a mut Host<Nic>,
    pub(super) token: AlertToken,
    pub(super) is: &'a mut Ready,
    /// The peer has sent something.
    pub(super) has_heard: bool,
    pub(super) now: Duration,
}

impl Carrier for BySmcR<'_> {
    fn may_receive(&self) -> bool {
        self.is.read
    }

    fn receive(&mut self, room: &mut [u8]) -> Result<Intake, Cut> {
        match self.host.receive(self.token, room, self.now) {
            Ok(0) => Ok(Intake::End),
            Ok(count) => {
                self.has_heard = true;
                Ok(Intake::Bytes { count, is_urgent: false })
            }
            Err(CallError::WouldBlock) => {
                self.is.read = false;
                Ok(Intake::Nothing)
            }
            Err(_) => Err(Cut),
        }
    }

    /// TLS begins with the connection here, so nothing lies ahead of it.
    fn first(&mut self) -> Option<u8> {
        None
    }

    fn may_send(&self) -> bool {
        self.is.write
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, Cut> {
        match self.host.send(self.token, bytes, self.now) {
            Ok(count) => Ok(count),
            Err(CallError::WouldBlock) => {
                self.is.write = false;
                Ok(0)
            }
            Err(_) => Err(Cut),
        }
    }

    fn end(&mut self) {
        let _ = self.host.shut(self.token, self.now);
    }
}
