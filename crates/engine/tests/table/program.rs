//! A talk: two programs, one at either end of a connection, that send, receive and end as planned.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use sidestep_engine::{CallError, Host, Reset};
use sidestep_rdma::soft::Adapter;
use sidestep_wire::AlertToken;

/// What the two sides of a talk want: how many bytes to send, and after how many, sent and received,
/// to abort.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) sides: [(u64, Option<u64>); 2],
}

/// What may have become of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// All that was sent has come, unless one of the two has aborted.
    MustFinish,
    /// Or both were told that it has not.
    MayBeReset,
}

/// The program at one end.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) token: Option<AlertToken>,
    pub(crate) talk: usize,
    pub(crate) side: usize,
    len: u64,
    aborts_at: Option<u64>,
    /// So many more short messages are sent at once.
    burst: u32,
    sent: u64,
    received: u64,
    pub(crate) is_established: bool,
    has_shut: bool,
    has_ended: bool,
    pub(crate) has_aborted: bool,
    pub(crate) has_closed: bool,
    pub(crate) reset: Option<Reset>,
    pub(crate) is_declined: bool,
    pub(crate) is_gone: bool,
}

/// The byte at a place of what one side sends.
fn byte(talk: usize, side: usize, at: u64) -> u8 {
    (at * 7 + at / 251 + talk as u64 * 31 + side as u64 * 101) as u8
}

impl Program {
    pub(crate) fn new(talk: usize, side: usize, plan: &Plan) -> Self {
        let (len, aborts_at) = plan.sides[side];
        Self {
            token: None,
            talk,
            side,
            len,
            aborts_at,
            burst: if (talk + side) % 4 == 3 { 400 } else { 0 },
            sent: 0,
            received: 0,
            is_established: false,
            has_shut: false,
            has_ended: false,
            has_aborted: false,
            has_closed: false,
            reset: None,
            is_declined: false,
            is_gone: false,
        }
    }

    /// Does what it can. True: it could do more.
    pub(crate) fn act(
        &mut self,
        host: &mut Host<Adapter>,
        random: &mut StdRng,
        now: Duration,
    ) -> bool {
        let Some(token) = self.token.filter(|_| self.is_established && !self.has_closed) else {
            return false;
        };
        if self.reset.is_some() {
            self.has_closed = true;
            host.close(token, now);
            return false;
        }
        if self.aborts_at.is_some_and(|at| self.sent + self.received >= at) {
            (self.has_closed, self.has_aborted) = (true, true);
            host.abort(token, now);
            return false;
        }
        let mut has_sent = self.send(host, token, random, now);
        for _ in 0..self.burst {
            has_sent &= self.send(host, token, random, now);
        }
        let has_received = self.receive(host, token, random, now);
        if self.has_shut && self.has_ended && self.reset.is_none() {
            self.has_closed = true;
            host.close(token, now);
        }
        has_sent || has_received
    }

    fn send(
        &mut self,
        host: &mut Host<Adapter>,
        token: AlertToken,
        random: &mut StdRng,
        now: Duration,
    ) -> bool {
        if self.sent == self.len {
            if !self.has_shut && host.shut(token, now).is_ok() {
                self.has_shut = true;
            }
            return false;
        }
        let most = if self.burst > 0 { 50 } else { 20_000 };
        let n = random.random_range(1..most).min(self.len - self.sent);
        let bytes: Vec<u8> =
            (self.sent..self.sent + n).map(|at| byte(self.talk, self.side, at)).collect();
        let result = match random.random_bool(0.02) {
            true => host.send_urgent(token, &bytes, now),
            false => host.send(token, &bytes, now),
        };
        match result {
            Ok(sent) => self.sent += sent as u64,
            Err(CallError::WouldBlock | CallError::Reset) => return false,
            Err(error) => panic!("talk {} side {}: {error}", self.talk, self.side),
        }
        true
    }

    fn receive(
        &mut self,
        host: &mut Host<Adapter>,
        token: AlertToken,
        random: &mut StdRng,
        now: Duration,
    ) -> bool {
        if self.has_ended {
            return false;
        }
        let mut buffer = vec![0; random.random_range(1..20_000)];
        match host.receive(token, &mut buffer, now) {
            Ok(0) => self.has_ended = true,
            Ok(n) => {
                for received in &buffer[..n] {
                    let expected = byte(self.talk, 1 - self.side, self.received);
                    let place = (self.talk, self.side, self.received);
                    assert_eq!(*received, expected, "talk, side, place {place:?}");
                    self.received += 1;
                }
            }
            Err(CallError::WouldBlock | CallError::Reset) => return false,
            Err(error) => panic!("talk {} side {}: {error}", self.talk, self.side),
        }
        true
    }

    /// Whether it has received all that `other` wanted to send, and has sent all of its own.
    fn has_finished(&self, other: &Self) -> bool {
        self.has_closed
            && self.reset.is_none()
            && self.has_ended
            && self.received == other.len
            && self.sent == self.len
    }

    /// Compares the ends of a talk.
    pub(crate) fn check(&self, other: &Self, fate: Fate) {
        assert!(self.received <= other.sent, "{self:#?} {other:#?}");
        assert!(self.is_gone, "it has not come to an end: {self:#?} {other:#?}");
        let ended = self.has_finished(other)
            || self.has_aborted
            || other.has_aborted && self.reset == Some(Reset::ByPeer);
        let cut = fate == Fate::MayBeReset && (self.reset.is_some() || self.is_declined);
        assert!(ended || cut, "{self:#?} {other:#?}");
    }
}
