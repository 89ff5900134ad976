//! What two ends share and what the kernel has of them: words, a ring, a TCP stream.
//!
//! Only one direction carries data. Every look at a word and every change of one is a step of its
//! own, so all orders of steps can happen that threads can have. Words are sequentially
//! consistent here; that the orderings of the real ones are enough, loom checks beside them.

use std::collections::{BTreeSet, VecDeque};

use sidestep_proto::cut_over::{self, Answer, Bell, Enter, Leave, Permit, Wished};
use sidestep_proto::ledger::Reading;

use crate::threads::Thread;

/// A byte of the TCP stream or of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Byte {
    /// The program's, by its place in what it sends.
    Data(u64),
    Bell,
}

/// Why a thread rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The receiver has asked for a bell.
    Asked,
    /// A bell is owed, or it is for another thread.
    Anyway,
}

/// A mistake that is planted, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Bells are allowed before the turn is published.
    AllowsBellsBeforeTurning,
    /// The thread that leaves the ring does not forbid bells.
    LeavesWithoutForbiddingBells,
    /// It does not look for threads that are about to ring.
    OverlooksRingers,
    /// It does not wake readers of what is in the ring.
    LeavesReadersAsleep,
    /// It forgets what is owed when it stays.
    ForgetsDebts,
    /// It leaves without the peer's permission.
    LeavesUnpermitted,
    /// It leaves in the middle of a send.
    LeavesInTheMiddle,
    /// The turn is published after bytes were sent by TCP.
    TurnsTooLate,
    /// A ringer claims a request before it is counted.
    ClaimsUnseen,
    /// A ringer that may not ring does not say so.
    OwesNothing,
    /// A ringer that has said so does not look again.
    LooksOnce,
    /// A thread enters the ring while another one sends by TCP.
    OverlooksPlainSends,
    /// A thread enters the ring again without the peer's permission.
    EntersUnpermitted,
    /// The receiver lets other threads sleep again before it asks of each byte.
    ReturnsBeforeAsking,
    /// It does not count the bells that were taken without asking.
    LosesCount,
    /// It permits the turn while a thread sleeps in the kernel.
    PermitsBesideSleepers,
    /// A thread takes bells while another one sleeps that waits for them.
    TakesBellsOfSleepers,
    /// It follows into TCP before the ring is empty.
    LeavesBytesInTheRing,
    /// It asks whether the ring is empty before it looks for the turn.
    LooksAtTheRingFirst,
    /// It looks for the turn before it looks at the queue.
    LooksForTheTurnFirst,
    /// It follows into the ring before TCP is read to the turn.
    LeavesBytesInTcp,
    /// A signal handler interrupts its thread on the way into the ring.
    BreaksEntering,
    /// The same on the way out of it.
    BreaksLeaving,
    /// The same where it follows turns, and takes bytes of the TCP stream.
    BreaksReceiving,
    /// A handler leaves the ring although it has interrupted a send.
    LeavesInAHandler,
    /// A send by TCP does not look whether a handler has entered the ring meanwhile.
    SendsUnasked,
    /// The direction leaves the ring although a byte there is urgent, and the receiver permits it.
    LeavesItsMark,
}

/// All of them, each with a world that finds it.
pub(crate) const FAULTS: [(Fault, u64); 27] = [
    (Fault::AllowsBellsBeforeTurning, 2),
    (Fault::LeavesWithoutForbiddingBells, 0),
    (Fault::OverlooksRingers, 96),
    (Fault::LeavesReadersAsleep, 10_151),
    (Fault::ForgetsDebts, 137),
    (Fault::LeavesUnpermitted, 11),
    (Fault::LeavesInTheMiddle, 1),
    (Fault::TurnsTooLate, 0),
    (Fault::ClaimsUnseen, 1911),
    (Fault::OwesNothing, 137),
    (Fault::LooksOnce, 3751),
    (Fault::OverlooksPlainSends, 3),
    (Fault::EntersUnpermitted, 0),
    (Fault::ReturnsBeforeAsking, 9181),
    (Fault::LosesCount, 0),
    (Fault::PermitsBesideSleepers, 12),
    (Fault::TakesBellsOfSleepers, 836),
    (Fault::LeavesBytesInTheRing, 1),
    (Fault::LooksAtTheRingFirst, 21),
    (Fault::LooksForTheTurnFirst, 48),
    (Fault::LeavesBytesInTcp, 1),
    (Fault::BreaksEntering, 16),
    (Fault::BreaksLeaving, 16),
    (Fault::BreaksReceiving, 10),
    (Fault::LeavesInAHandler, 92),
    (Fault::SendsUnasked, 84),
    (Fault::LeavesItsMark, 0),
];

/// The sender's words: those that the peer sees, and its own.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// The turn that was taken last, and its offset.
    pub(crate) turns: u32,
    pub(crate) at: u64,
    pub(crate) wants_tcp: bool,
    pub(crate) is_held: bool,
    pub(crate) may_ring: bool,
    pub(crate) leaves: bool,
    pub(crate) owes: bool,
    pub(crate) ringers: u32,
    pub(crate) plain_sends: u32,
    pub(crate) unfinished: u32,
    pub(crate) locked_by: Option<Thread>,
    /// Sends that have ended in the ring.
    ring_sends: u64,
    /// A byte of the ring is urgent: its mark is a place there.
    pub(crate) is_marked: bool,
    /// The request for a bell that was answered last.
    pub(crate) answered: u32,
}

/// The receiver's words: those that the peer sees, and its own.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    pub(crate) permit: u32,
    /// The number of a request for a bell; 0: none.
    pub(crate) arm: u32,
    pub(crate) arms: u32,
    pub(crate) is_held: bool,
    pub(crate) followed: u32,
    pub(crate) consumed: u64,
    pub(crate) from: u64,
    pub(crate) takes_unasked: bool,
    pub(crate) wants_permit: bool,
    /// A thread sleeps in the kernel, or takes bytes of TCP for itself alone.
    pub(crate) is_secluded: bool,
    pub(crate) locked_by: Option<Thread>,
}

/// The kernel's TCP stream from the sender to the receiver.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) sent: u64,
    on_its_way: VecDeque<Byte>,
    received: u64,
    pub(crate) queue: VecDeque<Byte>,
}

impl Stream {
    pub(crate) fn send(&mut self, byte: Byte) {
        self.sent += 1;
        self.on_its_way.push_back(byte);
    }

    /// The next byte arrives, if there is one.
    pub(crate) fn deliver(&mut self) {
        let Some(byte) = self.on_its_way.pop_front() else { return };
        self.received += 1;
        self.queue.push_back(byte);
    }
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) tcp: Stream,
    pub(crate) ring: VecDeque<Byte>,
    pub(crate) fault: Option<Fault>,
    /// Threads that are in something in which no signal handler interrupts them.
    pub(crate) unbroken: BTreeSet<Thread>,
    /// Bytes that the sending program has to send, those that it has begun to send, and those that have gone.
    pub(crate) bytes: u64,
    pub(crate) promised: u64,
    pub(crate) gone: u64,
    /// What the receiving program has got.
    pub(crate) got: u64,
    /// Bells that threads have begun to ring for others, and of which nothing came yet.
    pub(crate) expected: u32,
    /// What came to pass, if that was asked for.
    pub(crate) trace: Option<Vec<String>>,
    /// Bytes of the program that were sent or received.
    pub(crate) moved: u64,
    pub(crate) turns_taken: u32,
}

impl World {
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(what());
        }
    }

    /// The sending program is to send `len` bytes, or what is left to send: how many.
    pub(crate) fn promises(&mut self, len: u64) -> u64 {
        let len = len.min(self.bytes - self.promised);
        self.promised += len;
        len
    }

    /// The sending program's next byte goes.
    pub(crate) fn next_byte(&mut self) -> Byte {
        (self.gone, self.moved) = (self.gone + 1, self.moved + 1);
        Byte::Data(self.gone - 1)
    }

    /// The receiving program gets a byte.
    pub(crate) fn give(&mut self, byte: Byte) {
        assert_eq!(byte, Byte::Data(self.got), "not the next byte of the program");
        self.got += 1;
        self.moved += 1;
    }

    /// The turn after those that the receiver has followed.
    pub(crate) fn peer_turn(&self) -> Option<u64> {
        match self.sender.turns - self.receiver.followed {
            0 => None,
            1 => Some(self.sender.at),
            _ => panic!("a turn without permission"),
        }
    }

    /// The kernel's counters at the sender.
    fn sent(&self) -> Answer {
        Answer::Ledger(Some(Reading { bytes_sent: self.tcp.sent, ..Reading::default() }))
    }

    /// Those at the receiver.
    fn received(&self) -> Answer {
        Answer::Ledger(Some(Reading {
            bytes_received: self.tcp.received,
            still_queued: self.tcp.queue.len() as u64,
            ..Reading::default()
        }))
    }

    /// A send has ended in the ring; the last byte of this one is `urgent`.
    pub(crate) fn sent_into_ring(&mut self, urgent: Option<u64>) {
        self.sender.is_marked |= urgent == Some(self.sender.ring_sends);
        self.sender.ring_sends += 1;
    }

    fn turn(&mut self, turn: u32, at: u64) -> Answer {
        assert!(cut_over::is_ring(turn) || !self.sender.is_marked, "a mark stays behind");
        (self.sender.turns, self.sender.at) = (turn, at);
        self.turns_taken += 1;
        Answer::Done
    }

    /// Whether threads have left a bell to the one that allows bells again.
    fn takes_debt(&mut self) -> Answer {
        let owes = core::mem::take(&mut self.sender.owes);
        Answer::Is(owes && !self.has(Fault::ForgetsDebts))
    }

    /// Carries out a state, but for wakes and rings, which take several steps; `None`: it has ended.
    pub(crate) fn enter(&mut self, state: Enter) -> Option<Answer> {
        let answer = match state {
            Enter::Measures { .. } => self.sent(),
            Enter::Turns { turn, at } => self.turn(turn, at),
            Enter::Opens => {
                self.sender.may_ring = true;
                Answer::Done
            }
            Enter::Repays => self.takes_debt(),
            Enter::Rings => Answer::Done,
            Enter::Entered | Enter::Stays => return None,
        };
        self.note(|| format!("enter {state:?}: {answer:?}"));
        Some(answer)
    }

    /// The same.
    pub(crate) fn leave(&mut self, state: Leave) -> Option<Answer> {
        let fault = self.fault;
        let answer = match state {
            Leave::Wakes { .. } | Leave::Rings => Answer::Done,
            Leave::Closes { .. } => {
                self.sender.may_ring = fault == Some(Fault::LeavesWithoutForbiddingBells);
                Answer::Done
            }
            Leave::Looks { .. } => {
                Answer::Is(self.sender.ringers > 0 && fault != Some(Fault::OverlooksRingers))
            }
            Leave::Measures { .. } => self.sent(),
            Leave::Turns { turn, at } => self.turn(turn, at),
            Leave::Forgets => {
                (self.sender.leaves, self.sender.owes) = (false, false);
                Answer::Done
            }
            Leave::Reopens => {
                self.sender.may_ring = true;
                Answer::Done
            }
            Leave::Repays => self.takes_debt(),
            Leave::Left | Leave::Stays => return None,
        };
        self.note(|| format!("leave {state:?}: {answer:?}"));
        Some(answer)
    }

    /// Carries out a state of a bell; `None`: it has ended.
    pub(crate) fn bell(&mut self, state: Bell, why: Why) -> Option<Answer> {
        let fault = self.fault;
        let sender = &mut self.sender;
        let answer = match state {
            Bell::Begins => {
                sender.ringers += 1;
                Answer::Done
            }
            Bell::LooksAgain if fault == Some(Fault::LooksOnce) => Answer::Is(false),
            Bell::Looks | Bell::LooksAgain => Answer::Is(sender.may_ring),
            Bell::Owes => {
                sender.owes = fault != Some(Fault::OwesNothing);
                Answer::Done
            }
            Bell::Claims => Answer::Is(why == Why::Anyway || self.answers_request()),
            Bell::Sends => {
                self.tcp.send(Byte::Bell);
                Answer::Done
            }
            Bell::Ends => {
                sender.ringers -= 1;
                Answer::Done
            }
            Bell::Over => return None,
        };
        self.note(|| format!("bell {state:?}: {answer:?}"));
        Some(answer)
    }

    /// A thread is about to ring for another one: bytes of the TCP stream before that, and turns.
    pub(crate) fn expects_bell(&mut self) -> (u64, u32) {
        self.expected += 1;
        (self.tcp.sent, self.sender.turns)
    }

    /// Whether the receiver asks for a bell that no thread has claimed.
    pub(crate) fn is_asked(&self) -> bool {
        self.receiver.arm != 0 && self.receiver.arm != self.sender.answered
    }

    /// Claims the request for a bell, if there is one.
    pub(crate) fn answers_request(&mut self) -> bool {
        let is_asked = self.is_asked();
        self.sender.answered = self.receiver.arm;
        is_asked
    }

    /// Carries out a state of a permit; `None`: it has ended.
    pub(crate) fn permit(&mut self, state: Permit) -> Option<Answer> {
        let fault = self.fault;
        let receiver = &mut self.receiver;
        let answer = match state {
            Permit::Drops => {
                receiver.wants_permit = false;
                Answer::Done
            }
            Permit::Secludes => {
                let was = core::mem::replace(&mut receiver.is_secluded, true);
                Answer::Is(!was || fault == Some(Fault::PermitsBesideSleepers))
            }
            Permit::Measures => self.received(),
            Permit::Counts { consumed } => {
                if fault != Some(Fault::LosesCount) {
                    receiver.consumed = consumed;
                }
                Answer::Done
            }
            Permit::Asks => {
                (receiver.takes_unasked, receiver.wants_permit) = (false, false);
                Answer::Done
            }
            Permit::Grants => {
                receiver.permit = receiver.followed + 1;
                Answer::Done
            }
            Permit::Returns | Permit::Resigns => {
                receiver.is_secluded = false;
                Answer::Done
            }
            Permit::Permitted | Permit::Withheld => return None,
        };
        self.note(|| format!("permit {state:?}: {answer:?}"));
        Some(answer)
    }

    /// The sender follows what operators wish, and permits.
    pub(crate) fn follow_wishes_sending(&mut self) {
        let sender = &self.sender;
        let wishes = cut_over::wishes(&Wished {
            is_held: sender.is_held,
            peer_wants_tcp: self.receiver.is_held,
            takes_unasked: false,
            followed: 0,
            turns: sender.turns,
            is_permitted: self.is_permitted(),
        });
        let is_hasty = self.has(Fault::LeavesUnpermitted) && wishes.says_tcp;
        (self.sender.wants_tcp, self.sender.leaves) = (wishes.says_tcp, wishes.leaves || is_hasty);
    }

    /// The receiver does.
    pub(crate) fn follow_wishes_receiving(&mut self) {
        let receiver = &self.receiver;
        let wishes = cut_over::wishes(&Wished {
            is_held: receiver.is_held,
            peer_wants_tcp: self.sender.wants_tcp,
            takes_unasked: receiver.takes_unasked,
            followed: receiver.followed,
            turns: 0,
            is_permitted: false,
        });
        self.receiver.wants_permit = wishes.wants_permit;
        if let Some(turn) = wishes.grants {
            self.receiver.permit = turn;
        }
    }

    /// The peer permits the sender's next turn.
    pub(crate) fn is_permitted(&self) -> bool {
        self.receiver.permit == self.sender.turns + 1
    }
}
