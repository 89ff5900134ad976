//! A talk: two programs, one at either end of a connection, that send, receive and end as planned.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use sidestep_engine::{CallError, Host, InPlace, Reset, Sizes};
use sidestep_rdma::memory::Shared;
use sidestep_rdma::soft::Adapter;
use sidestep_wire::AlertToken;

/// What a talk is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The host that accepts it.
    pub(crate) server: usize,
    /// The adapters that it may use, of both hosts, the preferred first.
    pub(crate) adapters: &'static [u8],
    pub(crate) sides: [Side; 2],
}

impl Plan {
    /// The client sends a short message after each pause, for about so long.
    pub(crate) fn chatter(
        server: usize,
        adapters: &'static [u8],
        pause: Duration,
        time: Duration,
    ) -> Self {
        let silent = Side { len: 0, aborts_at: None, sizes: Sizes::default(), pause: None };
        // 25 bytes each, on the average.
        let len = (time.as_micros() / pause.as_micros()) as u64 * 25;
        let talkative = Side { len, pause: Some(pause), ..silent };
        let sides = [0, 1].map(|side| if side == server { silent } else { talkative });
        Self { server, adapters, sides }
    }
}

/// What one side of a talk wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    /// Bytes to send.
    pub(crate) len: u64,
    /// After how many, sent and received, to abort.
    pub(crate) aborts_at: Option<u64>,
    pub(crate) sizes: Sizes,
    /// Between two short messages, instead of as fast as it goes.
    pub(crate) pause: Option<Duration>,
}

/// What may have become of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// All that was sent has come, unless one of the two has aborted.
    MustFinish,
    /// Or the connection has stayed TCP: both were told so before it began.
    MayStayTcp,
    /// Or both were told that it has not.
    MayBeReset,
}

/// What a program does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing, until it is told something.
    Wait,
    /// More, at once.
    GoOn,
    /// More, after a pause.
    Pause(Duration),
}

/// The program at one end.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) token: Option<AlertToken>,
    talk: usize,
    side: usize,
    wish: Side,
    /// So many more short messages are sent at once.
    burst: u32,
    sent: u64,
    /// It sends in place, now and then.
    ring: Option<Ring>,
    /// Where urgent bytes are in what it has sent.
    urgents: BTreeSet<u64>,
    /// When the pause is over.
    acts_at: Duration,
    received: u64,
    /// When bytes came last, and the longest time without any.
    received_at: Option<Duration>,
    pub(crate) longest_gap: Duration,
    pub(crate) is_established: bool,
    has_shut: bool,
    has_ended: bool,
    has_aborted: bool,
    pub(crate) has_closed: bool,
    pub(crate) reset: Option<Reset>,
    pub(crate) is_declined: bool,
    pub(crate) is_gone: bool,
    /// Its host has died.
    pub(crate) is_dead: bool,
}

/// The byte at a place of what one side sends.
fn byte(talk: usize, side: usize, at: u64) -> u8 {
    (at * 7 + at / 251 + talk as u64 * 31 + side as u64 * 101) as u8
}

/// Looks at what lies in the RMBE, and takes as much as there is room for.
fn receive_in_place(
    host: &mut Host<Adapter>,
    token: AlertToken,
    buffer: &mut [u8],
    now: Duration,
) -> Result<usize, CallError> {
    let mark = host.urgent_mark(token);
    let readable = host.readable(token)?;
    assert!(!readable.is_urgent || mark == Some(0) && readable.len() == 1, "by itself");
    let copy = Shared::zeroed(readable.len());
    let [first, second] = readable.stretches;
    assert!(copy.copy_in(0, first) && copy.copy_in(first.len(), second));
    let n = readable.len().min(buffer.len());
    assert!(copy.copy_out(0, &mut buffer[..n]));
    host.consume(token, n, now)?;
    Ok(n)
}

/// What a program sends from in place. Of what has arrived nothing is left there.
#[derive(Debug)]
struct Ring {
    memory: Arc<Shared>,
    /// Positions: of the oldest byte that may be under way, and behind the last one.
    oldest: u64,
    end: u64,
}

impl Ring {
    fn new() -> Self {
        Self { memory: Arc::new(Shared::zeroed(1 << 15)), oldest: 77, end: 77 }
    }

    /// Puts bytes at a position, in both laps around the end.
    fn put(&self, position: u64, bytes: &[u8]) {
        let len = self.memory.len();
        let at = (position % len as u64) as usize;
        let (first, second) = bytes.split_at(bytes.len().min(len - at));
        assert!(self.memory.copy_in(at, first) && self.memory.copy_in(0, second));
    }

    fn release(&mut self, kept: u64) {
        let oldest = self.oldest.max(self.end.saturating_sub(kept));
        self.put(self.oldest, &vec![0xEE; (oldest - self.oldest) as usize]);
        self.oldest = oldest;
    }

    /// Sends as many of these bytes as there is room for, or copies of them.
    fn send(
        &mut self,
        host: &mut Host<Adapter>,
        token: AlertToken,
        (bytes, is_urgent): (&[u8], bool),
        now: Duration,
    ) -> Result<usize, CallError> {
        self.release(host.kept(token)?);
        let len = bytes.len().min(self.memory.len() - (self.end - self.oldest) as usize);
        if len == 0 {
            return Err(CallError::WouldBlock);
        }
        self.put(self.end, &bytes[..len]);
        let is_urgent = is_urgent && len == bytes.len();
        let bytes = InPlace { ring: &self.memory, position: self.end, len, is_urgent };
        if !host.send_in_place(token, &bytes, now)? {
            return Err(CallError::WouldBlock);
        }
        self.end += len as u64;
        Ok(len)
    }
}

impl Program {
    pub(crate) fn new(talk: usize, side: usize, wish: Side) -> Self {
        let is_bursty = (talk + side) % 4 == 3 && wish.pause.is_none();
        Self {
            token: None,
            talk,
            side,
            wish,
            burst: if is_bursty { 400 } else { 0 },
            sent: 0,
            ring: (!(talk + side).is_multiple_of(3)).then(Ring::new),
            urgents: BTreeSet::new(),
            acts_at: Duration::ZERO,
            received: 0,
            received_at: None,
            longest_gap: Duration::ZERO,
            is_established: false,
            has_shut: false,
            has_ended: false,
            has_aborted: false,
            has_closed: false,
            reset: None,
            is_declined: false,
            is_gone: false,
            is_dead: false,
        }
    }

    pub(crate) const fn sizes(&self) -> Sizes {
        self.wish.sizes
    }

    /// Does what it can.
    pub(crate) fn act(
        &mut self,
        host: &mut Host<Adapter>,
        random: &mut StdRng,
        now: Duration,
    ) -> Next {
        let has_begun = self.is_established || self.reset.is_some();
        let Some(token) = self.token.filter(|_| has_begun && !self.has_closed) else {
            return Next::Wait;
        };
        if self.reset.is_some() {
            self.has_closed = true;
            host.close(token, now);
            return Next::Wait;
        }
        if self.wish.aborts_at.is_some_and(|at| self.sent + self.received >= at) {
            (self.has_closed, self.has_aborted) = (true, true);
            host.abort(token, now);
            return Next::Wait;
        }
        let mut has_sent = now >= self.acts_at && self.send(host, token, random, now);
        for _ in 0..self.burst {
            has_sent &= self.send(host, token, random, now);
        }
        let has_received = self.receive(host, token, random, now);
        if self.has_shut && self.has_ended && self.reset.is_none() {
            self.has_closed = true;
            host.close(token, now);
        }
        match self.wish.pause {
            Some(_) if now < self.acts_at => Next::Wait,
            Some(pause) if has_sent => {
                self.acts_at = now + pause;
                Next::Pause(pause)
            }
            _ if has_sent || has_received => Next::GoOn,
            _ => Next::Wait,
        }
    }

    fn send(
        &mut self,
        host: &mut Host<Adapter>,
        token: AlertToken,
        random: &mut StdRng,
        now: Duration,
    ) -> bool {
        if self.sent == self.wish.len {
            if !self.has_shut && host.shut(token, now).is_ok() {
                self.has_shut = true;
            }
            return false;
        }
        let most = if self.burst > 0 || self.wish.pause.is_some() { 50 } else { 20_000 };
        let n = random.random_range(1..most).min(self.wish.len - self.sent);
        let bytes: Vec<u8> =
            (self.sent..self.sent + n).map(|at| byte(self.talk, self.side, at)).collect();
        let is_urgent = random.random_bool(0.02);
        let result = self.send_some(host, token, (&bytes, is_urgent), random.random_bool(0.9), now);
        match result {
            Ok(sent) => {
                self.sent += sent as u64;
                if is_urgent && sent as u64 == n {
                    self.urgents.insert(self.sent - 1);
                }
            }
            Err(CallError::WouldBlock | CallError::Reset) => return false,
            Err(error) => panic!("talk {} side {}: {error}", self.talk, self.side),
        }
        true
    }

    /// Sends in place if it can and is to, or else by a copy, as many as there is room for.
    fn send_some(
        &mut self,
        host: &mut Host<Adapter>,
        token: AlertToken,
        (bytes, is_urgent): (&[u8], bool),
        is_in_place: bool,
        now: Duration,
    ) -> Result<usize, CallError> {
        if let Some(ring) = self.ring.as_mut().filter(|_| is_in_place) {
            match ring.send(host, token, (bytes, is_urgent), now) {
                Err(CallError::WouldBlock) => {}
                result => return result,
            }
        }
        let sent = match is_urgent {
            true => host.send_urgent(token, bytes, now),
            false => host.send(token, bytes, now),
        }?;
        if let Some(ring) = &mut self.ring {
            // A copy follows when nothing is under way in place.
            ring.release(0);
        }
        Ok(sent)
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
        let received = match self.received % 2 {
            0 => host.receive(token, &mut buffer, now),
            _ => receive_in_place(host, token, &mut buffer, now),
        };
        match received {
            Ok(0) => self.has_ended = true,
            Ok(n) => {
                for received in &buffer[..n] {
                    let expected = byte(self.talk, 1 - self.side, self.received);
                    let place = (self.talk, self.side, self.received);
                    assert_eq!(*received, expected, "talk, side, place {place:?}");
                    self.received += 1;
                }
                let gap = now - self.received_at.replace(now).unwrap_or(now);
                self.longest_gap = self.longest_gap.max(gap);
            }
            Err(CallError::WouldBlock | CallError::Reset) => return false,
            Err(error) => panic!("talk {} side {}: {error}", self.talk, self.side),
        }
        true
    }

    /// Whether a byte that is said to be urgent was sent as one by the other side.
    pub(crate) fn check_urgent(&self, other: &Self, host: &Host<Adapter>) {
        if let Some(mark) = self.token.and_then(|token| host.urgent_mark(token)) {
            let place = self.received + mark;
            assert!(other.urgents.contains(&place), "{place} is not urgent: {other:#?}");
        }
    }

    /// Whether it has received all that `other` wanted to send, and has sent all of its own.
    fn has_finished(&self, other: &Self) -> bool {
        self.has_closed
            && self.reset.is_none()
            && self.has_ended
            && self.received == other.wish.len
            && self.sent == self.wish.len
    }

    /// Compares the ends of a talk.
    pub(crate) fn check(&self, other: &Self, fate: Fate) {
        assert!(self.received <= other.sent, "{self:#?} {other:#?}");
        assert!(self.is_gone, "it has not come to an end: {self:#?} {other:#?}");
        let ended = self.has_finished(other)
            || self.has_aborted
            || other.has_aborted && self.reset == Some(Reset::ByPeer);
        let stays_tcp = fate == Fate::MayStayTcp
            && [self, other].iter().all(|it| it.is_declined && !it.is_established);
        let cut = fate == Fate::MayBeReset && (self.reset.is_some() || self.is_declined);
        assert!(ended || stays_tcp || cut, "{self:#?} {other:#?}");
        // An end in order is one on which both agree: nobody hears one that the other has not said,
        // or before the last byte.
        if self.has_ended {
            assert!(other.has_shut && self.received == other.wish.len, "{self:#?} {other:#?}");
        }
    }
}
