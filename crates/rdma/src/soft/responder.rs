//! The half of a queue pair that answers.
//!
//! Of all packets only one is ever carried out: the one with the expected PSN. One that comes early
//! is [kept](super::reorder) for its turn; one that comes late was carried out before, and is acknowledged
//! again. So nothing happens twice or out of order, whatever the network does. Packets of one batch
//! get one answer, and the answer to the last one is the answer to all before it.
//!
//! One that comes early shows a gap. Perhaps the missing one was only overtaken, so the gap is told
//! after [some time](patience), and once.
//!
//! What makes no sense, or asks for memory that it may not have, breaks the QP. From then on each
//! request gets the same refusal, not too often: the first one may have been lost, and a peer that
//! hears nothing asks for ever.

use std::time::Duration;

use sidestep_wire::roce::{Aeth, Message, Nak, Opcode, Packet, Place as Part, Syndrome, With};
use sidestep_wire::{Psn, QpNumber};
use smallvec::SmallVec;

use self::patience::Patience;
use super::event::{Event, Events};
use super::reorder::Reorder;
use crate::memory::{Place, Regions};

mod patience;

/// The longest message that is received: LLC of SMC-R version 2.
pub(super) const MESSAGE_LEN_MAX: usize = 8192;
/// Messages that wait to be taken. A Linux peer has 16 on their way.
pub(super) const RECEIVED_MAX: usize = 64;
/// The longest WRITE that the standard knows.
const WRITE_LEN_MAX: u32 = 1 << 31;
/// What a peer waits if there are more: 640 µs.
const NOT_READY_TIMER: u8 = 12;
/// Between two refusals of a broken QP.
const REFUSAL_INTERVAL: Duration = Duration::from_millis(50);

/// The message that is coming in.
#[derive(Debug)]
enum Open {
    None,
    Send(SmallVec<[u8; 64]>),
    /// So much has come, so much is to come.
    Write(Option<Place>, usize, usize),
}

/// What is to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Everything before the packet that is expected then has been carried out.
    Acknowledge,
    /// Something is wrong with the packet of this PSN.
    Complain(Psn, Syndrome),
}

/// Whether the expected packet is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gap {
    /// Not that we know.
    None,
    /// One behind it has come, and the peer is told at this time.
    Seen(Duration),
    /// The peer knows that it has to come again.
    Told,
}

#[derive(Debug)]
pub(super) struct Responder {
    qp: QpNumber,
    mtu: usize,
    expected: Psn,
    /// Messages completed, modulo 2^24.
    completed: u32,
    open: Open,
    answer: Option<Answer>,
    gap: Gap,
    patience: Patience,
    /// Packets behind the gap are kept, if their buffer was not taken away since.
    keeps: bool,
    /// Why the QP is broken, at which PSN, and when that was told last.
    refusal: Option<(Psn, Nak, Duration)>,
}

/// Why a packet is not carried out.
enum Stop {
    /// The QP is broken.
    Refuse(Nak),
    /// There is no room for the message: later.
    NotReady,
}

impl Responder {
    pub(super) const fn new(qp: QpNumber, expected: Psn, mtu: usize) -> Self {
        Self {
            qp,
            mtu,
            expected,
            completed: 0,
            open: Open::None,
            answer: None,
            gap: Gap::None,
            patience: Patience::NEW,
            keeps: false,
            refusal: None,
        }
    }

    /// The expected PSN and how many messages were completed, if none is incomplete. Packets that have come early do
    /// not count: they are not acknowledged, and come again.
    pub(super) fn at_rest(&self) -> Option<(Psn, u32)> {
        matches!(self.open, Open::None).then_some((self.expected, self.completed))
    }

    /// So many messages were completed by another process, which may not have acknowledged the last ones.
    pub(super) const fn resume(&mut self, completed: u32) {
        self.completed = completed & 0x00FF_FFFF;
        self.answer = Some(Answer::Acknowledge);
    }

    /// A request has come in. `Err`: it breaks the QP.
    pub(super) fn handle_request(
        &mut self,
        packet: &Packet<'_>,
        regions: &Regions,
        early: &mut Reorder<'_>,
        events: &mut Events,
        now: Duration,
    ) -> Result<(), Nak> {
        match packet.headers.bth.psn.since(self.expected) {
            0 => self.go_on(packet, regions, early, events, now),
            ahead @ 1.. => {
                self.keep(packet, ahead as usize, early, now);
                Ok(())
            }
            _ => {
                self.patience.learn(packet.headers.bth.psn);
                // A complaint says as much.
                self.answer.get_or_insert(Answer::Acknowledge);
                Ok(())
            }
        }
    }

    /// The expected packet has come.
    fn go_on(
        &mut self,
        packet: &Packet<'_>,
        regions: &Regions,
        early: &mut Reorder<'_>,
        events: &mut Events,
        now: Duration,
    ) -> Result<(), Nak> {
        // The requester that was told of the gap wants to hear that it is closed.
        let is_awaited = self.gap == Gap::Told;
        self.gap = Gap::None;
        let has_gone_on = self.take_turn(packet, is_awaited, regions, events, now)?;
        if has_gone_on && self.keeps {
            self.catch_up(early, regions, events, now)?;
        }
        Ok(())
    }

    /// Carries out those that have come early, up to the next gap.
    fn catch_up(
        &mut self,
        early: &mut Reorder<'_>,
        regions: &Regions,
        events: &mut Events,
        now: Duration,
    ) -> Result<(), Nak> {
        while let Some(packet) = early.take(self.expected)
            && self.take_turn(&packet, false, regions, events, now)?
        {}
        self.keeps = !early.is_over();
        if self.gap == Gap::None && self.keeps {
            self.gap = Gap::Seen(now + self.patience.time());
        }
        Ok(())
    }

    /// Carries out the packet whose turn it is. `Ok(false)`: it has to come again.
    fn take_turn(
        &mut self,
        packet: &Packet<'_>,
        is_awaited: bool,
        regions: &Regions,
        events: &mut Events,
        now: Duration,
    ) -> Result<bool, Nak> {
        let psn = self.expected;
        match self.carry_out(packet, regions, events) {
            Ok(is_end) => {
                self.expected = psn.plus(1);
                self.completed = (self.completed + u32::from(is_end)) & 0x00FF_FFFF;
                if packet.headers.bth.ack_request || is_awaited {
                    self.answer = Some(Answer::Acknowledge);
                }
                Ok(true)
            }
            Err(Stop::NotReady) => {
                let not_ready = Syndrome::ReceiverNotReady { timer: NOT_READY_TIMER };
                self.answer = Some(Answer::Complain(psn, not_ready));
                self.gap = Gap::Told;
                Ok(false)
            }
            Err(Stop::Refuse(nak)) => {
                self.refuse(psn, nak, now);
                Err(nak)
            }
        }
    }

    /// A packet has come before its turn.
    fn keep(&mut self, packet: &Packet<'_>, ahead: usize, early: &mut Reorder<'_>, now: Duration) {
        early.keep(packet, ahead, self.mtu);
        self.keeps = true;
        if self.gap == Gap::None {
            self.gap = Gap::Seen(now + self.patience.time());
        }
    }

    /// When it wants to be called next.
    pub(super) const fn deadline(&self) -> Option<Duration> {
        match self.gap {
            Gap::Seen(until) => Some(until),
            Gap::None | Gap::Told => None,
        }
    }

    /// The time that [`Self::deadline`] has told may have come.
    pub(super) fn handle_timeout(&mut self, now: Duration) {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            let missing = Syndrome::Nak(Nak::SequenceError);
            self.answer = Some(Answer::Complain(self.expected, missing));
            self.gap = Gap::Told;
            self.patience.tell(self.expected);
        }
    }

    /// Breaks the QP.
    pub(super) fn refuse(&mut self, psn: Psn, nak: Nak, now: Duration) {
        self.open = Open::None;
        self.refusal = Some((psn, nak, now));
        self.answer = Some(Answer::Complain(psn, Syndrome::Nak(nak)));
    }

    /// A request has come for a broken QP.
    pub(super) fn repeat_refusal(&mut self, now: Duration) {
        let (psn, nak, told) = self.refusal.get_or_insert((
            self.expected,
            Nak::InvalidRequest,
            // Not told yet.
            now.saturating_sub(REFUSAL_INTERVAL),
        ));
        if now >= *told + REFUSAL_INTERVAL {
            *told = now;
            self.answer = Some(Answer::Complain(*psn, Syndrome::Nak(*nak)));
        }
    }

    /// Whether there is something to answer.
    pub(super) const fn has_answer(&self) -> bool {
        self.answer.is_some()
    }

    /// What is to be answered, once.
    pub(super) fn take_answer(&mut self) -> Option<(Psn, Aeth)> {
        let (psn, syndrome) = match self.answer.take()? {
            Answer::Acknowledge => (self.expected.minus(1), Syndrome::ACK),
            Answer::Complain(psn, syndrome) => (psn, syndrome),
        };
        Some((psn, Aeth { syndrome, msn: self.completed }))
    }

    /// The expected PSN: everything before it has been carried out.
    pub(super) const fn expected(&self) -> Psn {
        self.expected
    }

    /// Carries a packet out. `Ok(true)`: it was the last one of its message.
    fn carry_out(
        &mut self,
        packet: &Packet<'_>,
        regions: &Regions,
        events: &mut Events,
    ) -> Result<bool, Stop> {
        let Opcode::Part(message, part, With::Nothing) = packet.headers.bth.opcode else {
            return Err(Stop::Refuse(Nak::InvalidRequest));
        };
        let begins = matches!(part, Part::First | Part::Only);
        let goes_on = match self.open {
            Open::None => false,
            Open::Send(_) => message == Message::Send,
            Open::Write(..) => message == Message::Write,
        };
        let is_in_sequence = if begins { matches!(self.open, Open::None) } else { goes_on };
        if !is_in_sequence || !self.is_of_right_len(part, packet.payload.len()) {
            return Err(Stop::Refuse(Nak::InvalidRequest));
        }
        match message {
            Message::Send => self.receive(part, packet.payload, events),
            Message::Write => self.write(packet, part, regions),
        }
    }

    fn is_of_right_len(&self, part: Part, len: usize) -> bool {
        match part {
            Part::First | Part::Middle => len == self.mtu,
            Part::Last => (1..=self.mtu).contains(&len),
            Part::Only => len <= self.mtu,
        }
    }

    fn receive(&mut self, part: Part, payload: &[u8], events: &mut Events) -> Result<bool, Stop> {
        if matches!(part, Part::First | Part::Only) {
            if events.received() >= RECEIVED_MAX {
                return Err(Stop::NotReady);
            }
            self.open = Open::Send(SmallVec::new());
        }
        let Open::Send(bytes) = &mut self.open else {
            return Err(Stop::Refuse(Nak::InvalidRequest));
        };
        if bytes.len() + payload.len() > MESSAGE_LEN_MAX {
            return Err(Stop::Refuse(Nak::RemoteOperationalError));
        }
        bytes.extend_from_slice(payload);
        let is_end = matches!(part, Part::Last | Part::Only);
        if is_end {
            events.push(Event::Received(std::mem::take(bytes)));
            self.open = Open::None;
        }
        Ok(is_end)
    }

    fn write(&mut self, packet: &Packet<'_>, part: Part, regions: &Regions) -> Result<bool, Stop> {
        let refused = |_| Stop::Refuse(Nak::RemoteAccessError);
        if let Some(reth) = packet.headers.reth {
            if reth.len > WRITE_LEN_MAX {
                return Err(Stop::Refuse(Nak::InvalidRequest));
            }
            // Nothing is written nowhere: such a WRITE needs no key.
            let place = (reth.len > 0)
                .then(|| regions.place(self.qp, reth.rkey, reth.address, reth.len))
                .transpose()
                .map_err(refused)?;
            self.open = Open::Write(place, 0, reth.len as usize);
        }
        let Open::Write(place, done, owed) = &mut self.open else {
            return Err(Stop::Refuse(Nak::InvalidRequest));
        };
        let is_end = matches!(part, Part::Last | Part::Only);
        let len = packet.payload.len();
        let is_what_is_owed = if is_end { len == *owed } else { len < *owed };
        if !is_what_is_owed {
            return Err(Stop::Refuse(Nak::InvalidRequest));
        }
        if let Some(place) = place {
            place.write(*done, packet.payload).map_err(refused)?;
        }
        *done += len;
        *owed -= len;
        if is_end {
            self.open = Open::None;
        }
        Ok(is_end)
    }
}
