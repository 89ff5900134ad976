//! The half of a queue pair that asks: what was posted, and what became of it.
//!
//! Each message gets its PSNs when it is posted, one for each packet, and a packet that is sent
//! again is the same packet. So four numbers say everything:
//!
//! ```text
//!   una          next            reached             tail
//!    │ on their way │ sent before,   │ posted, never    │
//!    │              │ to be repeated │ sent             │
//! ```
//!
//! A WRITE of several packets leaves as so many WRITEs of one: each says where its bytes go, and
//! needs none before it. They are all of one length, and so are those of the next WRITE that is as
//! long, so the kernel takes them as one run; and none of them is lost because the first was.
//!
//! * `una <= next <= reached <= tail`, modulo 2^24.
//! * An answer speaks about `una .. reached` only; any other is not believed.
//! * A gap is told by the responder (NAK "sequence error"): the packet that is missing is sent again,
//!   alone, and new ones go on. Its answer says whether those behind it were kept. If it alone has
//!   arrived, they were dropped (`rdma_rxe` does so), and are all sent again.
//! * When an answer is [late](pace), the oldest packet is sent again in the same way: its answer says
//!   how far the responder is, and a mere lost acknowledgement costs one packet. In silence nothing
//!   else is sent.
//! * Silence is told: after [`SUSPICIOUS`] times a user with another way to the peer may look there.
//! * Silence ends: [`EXPIRIES_MAX`] probes and [`PATIENCE`] without an answer, and the QP is broken.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use sidestep_wire::roce::{self, Message, Nak, Place, Syndrome};
use sidestep_wire::{Psn, Rkey, RmbAddress};
use smallvec::SmallVec;

use self::pace::{Pace, SILENCE_MAX};
use super::event::{Event, Events, Failure, PostError};
use crate::memory::Shared;

mod pace;

#[cfg(test)]
pub(super) use pace::SILENCE_FIRST;

/// Messages that may be posted and not completed. SMC-R has 16 SENDs on a link, and at most two
/// WRITEs before each.
pub(super) const POSTED_MAX: usize = 256;
/// Packets that are on their way at first, at least, and at most where answers take [`NEARBY`]. A Linux
/// peer's socket or queue takes some hundred; `rdma_rxe` itself sends up to 129.
const WINDOW_FIRST: u32 = 32;
const WINDOW_MIN: u32 = 4;
const WINDOW_NEARBY: u32 = 128;
/// At most where answers take longer: as many more as they take longer, because so many more are on the
/// way itself. With packets of 1024 bytes that is 512 MB a second up to four times as far.
const NEARBY: Duration = Duration::from_micros(250);
pub(super) const WINDOW_MAX: u32 = 512;
/// Of a long message every so many packets ask for an answer.
const ACK_EVERY: u32 = 16;
/// So many times in a row silence lasts as long, and is told from then on; after the next it doubles
/// each time. Where one packet in a hundred is lost, five in a row have no answer by chance once in
/// three hundred million times: that is when it is told for the second time.
const SUSPICIOUS: u32 = 4;
/// When the peer is given up: after so many silences and so much time without progress. A virtual machine
/// stands still for seconds when it moves to another machine, and TCP would outlive that. Where there
/// is another link the wait is shorter ([`Event::Silent`]).
const EXPIRIES_MAX: u32 = 8;
const PATIENCE: Duration = Duration::from_secs(15);
/// A gap that is told so soon after packets from there on were sent again was told of those before;
/// or as long as answers take, if that is more.
const GAP_GUARD: Duration = Duration::from_millis(1);
/// If of each stretch of packets only the first one or two arrive, again and again, that is no
/// chance: where one in twenty is lost, six such stretches in a row come once in a hundred thousand.
const STUMBLE_PACKETS_MAX: i32 = 2;
const STUMBLES_MAX: u32 = 6;

/// What a message carries.
#[derive(Debug)]
pub(super) enum Content {
    /// Bytes of its own.
    Send(SmallVec<[u8; 64]>),
    /// Bytes that lie in memory and stay as they are until the message is completed.
    Write { from: Arc<Shared>, at: usize, len: u32, to: RmbAddress, rkey: Rkey },
}

#[derive(Debug)]
struct Work {
    id: u64,
    content: Content,
    first: Psn,
    packets: u32,
}

/// A packet to be sent: everything but the bytes, which [`Requester::copy_payload`] gets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) psn: Psn,
    pub(super) message: Message,
    pub(super) place: Place,
    pub(super) reth: Option<roce::Reth>,
    pub(super) ack_request: bool,
    work: usize,
    offset: usize,
    pub(super) len: usize,
}

impl Part {
    /// Bytes of the packet, without its ICRC.
    pub(super) const fn packet_len(&self) -> usize {
        let reth = if self.reth.is_some() { roce::RETH_LEN } else { 0 };
        roce::BTH_LEN + reth + self.len + roce::pad_len(self.len)
    }
}

#[derive(Debug)]
pub(super) struct Requester {
    mtu: usize,
    posted: VecDeque<Work>,
    una: Psn,
    next: Psn,
    reached: Psn,
    tail: Psn,
    window: u32,
    /// Packets acknowledged since the window has grown.
    acknowledged: u32,
    silence: Silence,
    pace: Pace,
    /// The receiver was not ready: nothing is sent before.
    pause_until: Option<Duration>,
    question: Option<Question>,
    /// The peer keeps packets that come early, as far as we know.
    peer_keeps: bool,
    /// The window was narrowed, and of the packets that were on their way then some still are.
    slowed_until: Option<Psn>,
    /// Where it has gone back to last, and when.
    went_back: Option<(Psn, Duration)>,
    /// Where packets were last sent again from, and how often in a row that was hardly any further
    /// than the time before.
    stumbled_at: Psn,
    stumbles: u32,
    /// Packets that were sent again.
    repeated: u64,
}

/// Why the oldest packet is sent again, alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// The responder has told that it is missing.
    Gap,
    /// Its answer is late.
    Late,
    /// Nothing was heard for too long. Nothing else is sent before something is.
    Silence,
}

/// The oldest packet is sent again: how far is the responder?
#[derive(Clone, Copy, Debug)]
struct Question {
    reason: Reason,
    is_sent: bool,
}

/// How long nothing was heard.
#[derive(Debug)]
struct Silence {
    /// When it has lasted too long; `None`: nothing is on its way.
    deadline: Option<Duration>,
    /// When it is asked before that.
    hurry: Option<Duration>,
    expiries: u32,
    /// When the first of them began.
    since: Duration,
}

impl Silence {
    const NONE: Self = Self { deadline: None, hurry: None, expiries: 0, since: Duration::ZERO };

    /// The next time it has lasted too long.
    fn limit(&self, pace: &Pace) -> Duration {
        let doublings = self.expiries.saturating_sub(SUSPICIOUS).min(8);
        (pace.silence() * 2u32.pow(doublings)).min(SILENCE_MAX)
    }

    fn arm(&mut self, pace: &Pace, now: Duration) {
        if self.expiries == 0 {
            self.since = now;
        }
        self.deadline = Some(now + self.limit(pace));
        self.arm_hurry(pace, now);
    }

    /// As long as silence is not near: then it is asked anyway.
    fn arm_hurry(&mut self, pace: &Pace, now: Duration) {
        let (is_open, deadline) = (self.expiries == 0, self.deadline);
        let hurry = pace.hurry().filter(|_| is_open).map(|hurry| now + hurry);
        self.hurry = hurry.filter(|hurry| deadline.is_some_and(|deadline| *hurry < deadline));
    }
}

impl Requester {
    pub(super) fn new(first: Psn, mtu: usize) -> Self {
        Self {
            mtu,
            posted: VecDeque::new(),
            una: first,
            next: first,
            reached: first,
            tail: first,
            window: WINDOW_FIRST,
            acknowledged: 0,
            silence: Silence::NONE,
            pace: Pace::UNKNOWN,
            pause_until: None,
            question: None,
            peer_keeps: false,
            slowed_until: None,
            went_back: None,
            stumbled_at: first,
            stumbles: 0,
            repeated: 0,
        }
    }

    /// The next PSN and the length of packets, if all that was posted has arrived.
    pub(super) fn at_rest(&self) -> Option<(Psn, usize)> {
        self.posted.is_empty().then_some((self.tail, self.mtu))
    }

    pub(super) fn post(&mut self, id: u64, content: Content) -> Result<(), PostError> {
        if self.posted.len() >= POSTED_MAX {
            return Err(PostError::Full);
        }
        let packets = content.len().div_ceil(self.mtu).max(1) as u32;
        self.posted.push_back(Work { id, content, first: self.tail, packets });
        self.tail = self.tail.plus(packets);
        Ok(())
    }

    /// The next packet that may be sent. It counts as sent when [`Self::sent`] is told.
    pub(super) fn next_part(&self) -> Option<Part> {
        if self.pause_until.is_some() {
            return None;
        }
        match self.question {
            Some(Question { is_sent: false, .. }) => return Some(self.part(self.una, true)),
            Some(Question { reason: Reason::Silence, .. }) => return None,
            _ => {}
        }
        let in_flight = self.next.since(self.una) as u32;
        let is_allowed = self.next != self.tail && in_flight < self.window;
        is_allowed.then(|| self.part(self.next, in_flight + 1 == self.window))
    }

    /// The packet that [`Self::next_part`] has told is on its way.
    pub(super) fn sent(&mut self, part: &Part, now: Duration) {
        if let Some(question) = self.question.as_mut().filter(|question| !question.is_sent) {
            question.is_sent = true;
            self.repeated += 1;
            self.pace.give_up();
            self.silence.arm_hurry(&self.pace, now);
            return;
        }
        self.next = self.next.plus(1);
        match self.next.since(self.reached) > 0 {
            true => {
                self.reached = self.next;
                if part.ack_request {
                    self.pace.begin(part.psn, now);
                }
            }
            false => {
                self.repeated += 1;
                self.pace.give_up();
            }
        }
        if self.silence.deadline.is_none() {
            self.silence.arm(&self.pace, now);
        }
    }

    fn part(&self, psn: Psn, is_last_allowed: bool) -> Part {
        // The works are in the order of their PSNs, and one of them has this one.
        let work = self.posted.partition_point(|work| work.first.since(psn) <= 0) - 1;
        let Work { ref content, first, packets, .. } = self.posted[work];
        let index = psn.since(first) as u32;
        let piece = match content {
            Content::Send(_) => self.mtu,
            Content::Write { len, .. } => len.div_ceil(packets) as usize,
        };
        let offset = index as usize * piece;
        let len = piece.min(content.len() - offset);
        let (place, reth) = match content.reth_of(offset, len) {
            Some(reth) => (Place::Only, Some(reth)),
            None => (Place::of(index, packets), None),
        };
        let is_last = psn.plus(1) == self.tail || is_last_allowed;
        let ack_request = is_last || (index + 1).is_multiple_of(ACK_EVERY);
        Part { psn, message: content.message(), place, reth, ack_request, work, offset, len }
    }

    /// The bytes of a packet.
    pub(super) fn copy_payload(&self, part: &Part, to: &mut [u8]) {
        match &self.posted[part.work].content {
            Content::Send(bytes) => to.copy_from_slice(&bytes[part.offset..][..part.len]),
            Content::Write { from, at, .. } => {
                let is_there = from.copy_out(at + part.offset, to);
                debug_assert!(is_there, "checked when it was posted");
            }
        }
    }

    /// An answer has come. `Err`: the QP is broken, and everything is completed.
    pub(super) fn handle_answer(
        &mut self,
        psn: Psn,
        syndrome: Syndrome,
        now: Duration,
        events: &mut Events,
    ) -> Result<(), Failure> {
        let is_about_us = psn.since(self.una) >= 0 && psn.since(self.reached) < 0;
        if !is_about_us {
            return Ok(());
        }
        match syndrome {
            Syndrome::Ack { .. } => {
                let oldest = self.una;
                let question = self.question.filter(|question| question.is_sent);
                self.complete_before(psn.plus(1), now, events);
                if let Some(Question { reason, .. }) = question
                    && self.una != self.reached
                {
                    self.proceed(reason, psn == oldest, now);
                }
            }
            Syndrome::ReceiverNotReady { timer } => {
                self.complete_before(psn, now, events);
                self.question = None;
                self.next = psn;
                self.silence = Silence { deadline: None, hurry: None, ..self.silence };
                let delay = Duration::from_micros(roce::rnr_delay_us(timer).into());
                self.pause_until = Some(now + delay);
            }
            Syndrome::Nak(Nak::SequenceError) => {
                self.complete_before(psn, now, events);
                self.close_gap(now);
            }
            Syndrome::Nak(nak) => {
                self.complete_before(psn, now, events);
                return Err(self.fail(Failure::Refused(nak), events));
            }
        }
        Ok(())
    }

    /// Everything before this PSN has arrived.
    fn complete_before(&mut self, psn: Psn, now: Duration, events: &mut Events) {
        let arrived = psn.since(self.una) as u32;
        self.una = psn;
        self.pace.answered(psn, now);
        if self.next.since(psn) < 0 {
            self.next = psn;
        }
        while let Some(work) = self.posted.front()
            && work.first.plus(work.packets).since(psn) <= 0
        {
            events.push(Event::Completed { id: work.id, result: Ok(()) });
            self.posted.pop_front();
        }
        if arrived > 0 {
            if self.silence.expiries > 0 {
                self.pace.doubt();
            }
            self.silence = Silence::NONE;
            self.question = None;
            self.slowed_until.take_if(|until| psn.since(*until) >= 0);
            self.widen(arrived);
        }
        // A peer that answers without progress is not waited for any longer.
        if self.una != self.reached && self.silence.deadline.is_none() {
            self.silence.arm(&self.pace, now);
        }
    }

    fn widen(&mut self, arrived: u32) {
        self.acknowledged += arrived;
        if self.acknowledged >= self.window {
            self.acknowledged = 0;
            self.window += u32::from(self.window < self.widest());
        }
    }

    /// How wide the window may become, by what answers take now.
    fn widest(&self) -> u32 {
        let taken = self.pace.mean().unwrap_or_default().as_nanos();
        let packets = taken * u128::from(WINDOW_NEARBY) / NEARBY.as_nanos();
        u32::try_from(packets).unwrap_or(WINDOW_MAX).clamp(WINDOW_NEARBY, WINDOW_MAX)
    }

    /// The oldest packet is missing, and others behind it have come.
    fn close_gap(&mut self, now: Duration) {
        // Told of packets that crossed those that are sent again.
        let guard = self.pace.mean().unwrap_or_default().max(GAP_GUARD);
        let is_old = |(psn, at): (Psn, Duration)| psn == self.una && now < at + guard;
        if self.question.is_none() && self.next != self.una && !self.went_back.is_some_and(is_old) {
            self.ask(Reason::Gap);
            self.slow_down();
        }
    }

    /// The question was answered: the oldest packet has arrived, but not all of those behind it. If it
    /// `alone` has, they have not come before it, or the peer keeps none that come early.
    fn proceed(&mut self, reason: Reason, alone: bool, now: Duration) {
        match (reason, alone) {
            (Reason::Gap, true) if self.peer_keeps => {}
            (Reason::Gap, false) => self.peer_keeps = true,
            (_, true) => {
                self.peer_keeps = false;
                self.go_back(now);
            }
            (_, false) => self.ask(Reason::Late),
        }
    }

    const fn ask(&mut self, reason: Reason) {
        self.question = Some(Question { reason, is_sent: false });
    }

    /// Of packets that were on their way, all from the oldest on were lost, or dropped.
    fn go_back(&mut self, now: Duration) {
        let is_stumble = self.una.since(self.stumbled_at) <= STUMBLE_PACKETS_MAX;
        self.stumbles = if is_stumble { self.stumbles + 1 } else { 0 };
        self.stumbled_at = self.una;
        self.next = self.una;
        self.went_back = Some((self.una, now));
        self.slow_down();
    }

    /// Once for all that was on its way together, and by a quarter: CUBIC takes little more (RFC 9438
    /// §4.6), and half would leave little of a window that grows by one packet at a time.
    fn slow_down(&mut self) {
        if self.slowed_until.is_none() {
            self.slowed_until = Some(self.reached);
            self.window = (self.window - self.window / 4).max(WINDOW_MIN);
            self.acknowledged = 0;
        }
    }

    /// The time that [`Self::deadline`] has told may have come.
    pub(super) fn handle_timeout(
        &mut self,
        now: Duration,
        events: &mut Events,
    ) -> Result<(), Failure> {
        if self.pause_until.is_some_and(|until| now >= until) {
            self.pause_until = None;
        }
        if self.silence.hurry.take_if(|hurry| now >= *hurry).is_some() {
            self.pace.ask();
            self.ask(Reason::Late);
        }
        if self.silence.deadline.is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        let silence = &mut self.silence;
        silence.expiries += 1;
        if silence.expiries >= EXPIRIES_MAX && now >= silence.since + PATIENCE {
            return Err(self.fail(Failure::PeerSilent, events));
        }
        silence.deadline = Some(now + silence.limit(&self.pace));
        silence.hurry = None;
        if silence.expiries >= SUSPICIOUS {
            events.push(Event::Silent);
        }
        self.ask(Reason::Silence);
        Ok(())
    }

    /// Packets that were sent again.
    pub(super) const fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Whether of what is sent together only the first arrives.
    pub(super) const fn stumbles(&self) -> bool {
        self.stumbles >= STUMBLES_MAX
    }

    /// When it wants to be called next.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let Silence { deadline, hurry, .. } = self.silence;
        [self.pause_until, hurry, deadline].into_iter().flatten().min()
    }

    /// Completes the oldest message with this failure and the others as flushed.
    pub(super) fn fail(&mut self, failure: Failure, events: &mut Events) -> Failure {
        let mut result = failure;
        for work in self.posted.drain(..) {
            events.push(Event::Completed { id: work.id, result: Err(result) });
            result = Failure::Flushed;
        }
        (self.next, self.una, self.reached) = (self.tail, self.tail, self.tail);
        self.silence = Silence::NONE;
        self.question = None;
        self.pause_until = None;
        failure
    }
}

impl Content {
    fn len(&self) -> usize {
        match self {
            Self::Send(bytes) => bytes.len(),
            Self::Write { len, .. } => *len as usize,
        }
    }

    const fn message(&self) -> Message {
        match self {
            Self::Send(_) => Message::Send,
            Self::Write { .. } => Message::Write,
        }
    }

    /// Where so many bytes at this place of a WRITE go.
    fn reth_of(&self, offset: usize, len: usize) -> Option<roce::Reth> {
        match *self {
            Self::Send(_) => None,
            Self::Write { to, rkey, .. } => {
                let address = RmbAddress(to.0.wrapping_add(offset as u64));
                Some(roce::Reth { address, rkey, len: len as u32 })
            }
        }
    }
}
