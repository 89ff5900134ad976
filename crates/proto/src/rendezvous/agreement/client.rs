//! The client's end: it shows the connection, hears which process has the other end, proposes and confirms.

use super::answer::{Answer, Begun, Call, Illegal, Moment};
use super::ending::{Declining, Failure, Traces};
use super::other_end::{Greeter, Seen, Shown, Token};
use super::pace::{ANSWERS, LOOKS_AT_NAME, Pace};
use super::seek::{Looking, Step};
use crate::fallback::{Field, OperatorSaid, PeerCannot, ProgramDid, Reason};
use crate::rendezvous::refusal::Refusal;
use sidestep_wire::host_control::Instance;
use sidestep_wire::rmbe_size::RmbeSize;

/// The next step to carry out, or to wait for. A token: what both ends call the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Rests until the next call. Nothing is done yet.
    Start,
    /// Asks whether the attempt may begin: the questions of [`Begin`](super::Begin).
    Begins,
    /// Rests. The other end cannot be found by its name.
    AwaitsGreeting(Token),
    /// Is this the only process that may use the connection, and its slot its own?
    LooksWhetherAlone(Token),
    /// It is not: takes back its claims, and begins anew.
    Withdraws,
    /// Looks for a greeting from there: follows the hint in the own cell.
    LooksAfar(Token),
    /// Looks for the other end by the agent.
    Seeks(Token, Step),
    /// Leaves a claim with each server that the process has met at the port. Is there one?
    Claims(Token),
    /// Is the server's port marked: does a process that listens there know us?
    LooksForMarker(Token),
    /// Binds the connection's name.
    BindsName(Token),
    /// Counts the attempt: it is under way.
    Engages(Token),
    /// Rests. The server's process is to leave a greeting, or to send a hello.
    AwaitsHello(Token),
    /// Looks for a greeting: follows the hint in the own cell.
    LooksForGreeting(Token),
    /// Reads a datagram from the connection's name.
    ReadsName(Token),
    /// Asks the kernel whether the connection is established. The hello that it is about to follow
    /// is the other end's only then.
    LooksWhetherOpen(Greeter),
    /// The same, of a greeting from an end that has no name.
    LooksWhetherOpenAfar(Greeter),
    /// Counts the attempt that such a greeting has begun.
    EngagesAfar(Greeter),
    /// Rests. The server's process has to introduce itself first.
    AwaitsIntroduction(Greeter),
    /// Introduces this process, if need be, and looks whether the other one has.
    Introduces(Greeter),
    /// Tells the server's process that no memory is shared: it waits for a proposal, too.
    TellsRefusal {
        /// Of the server.
        hello: Greeter,
        /// Why.
        reason: Reason,
    },
    /// Takes a ring of this size, for the server to read.
    TakesRing(Proposing),
    /// Puts the Proposal into the CLC box.
    PutsProposal(Proposing),
    /// Fills the record: ring, peer's slot, token.
    FillsRecord(Proposing),
    /// Shows that it has proposed. What was prepared is visible with it.
    ShowsProposed(Proposing),
    /// Leaves its slot in the server's cell.
    LeavesHint(Proposing),
    /// Rests. The server is to answer.
    AwaitsAccept(Proposing),
    /// Reads how far the server shows that it has come.
    ReadsRecord(Proposing),
    /// Reads the server's CLC box.
    ReadsAnswer(Proposing),
    /// Is there a ring where the server's record says, of the size that was wished?
    LooksAtRing {
        /// As before.
        to: Proposing,
        /// Size of the ring that the server has understood.
        size: RmbeSize,
    },
    /// Does the IP filter of the host object?
    AsksFilter(Proposing),
    /// May the server name this ring as well?
    AdmitsRing(Proposing),
    /// Begins to read by the ledger: possible only while no thread is in a plain receive.
    ReadsByLedger(Proposing),
    /// Puts the Confirm into the CLC box.
    PutsConfirm,
    /// Shows that it has confirmed. What was put is visible with it.
    ShowsConfirmed,
    /// Puts a Decline into the CLC box.
    PutsDecline {
        /// Process of the server.
        server: Instance,
        /// What is put.
        declining: Declining,
    },
    /// Shows that it has declined.
    ShowsDeclined {
        /// As before.
        server: Instance,
        /// Why.
        reason: Reason,
    },
    /// It has ended: the connection is in shared memory.
    Moved,
    /// It has ended: the connection stays on TCP.
    Stays(Failure),
    /// It has ended with the connection.
    Abandoned,
}

/// The server has that end of the connection of this token, and names our slot.
fn is_greeting(seen: &Seen, token: &Token) -> bool {
    seen.shows(Shown::Greeted, token) && seen.is_for_us
}

/// So many bits of a generation stand in a record.
const GENERATIONS: u32 = 0x00ff_ffff;

/// To whom it proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposing {
    /// Of the server.
    pub hello: Greeter,
    /// Of the ring that the server reads.
    pub size: RmbeSize,
}

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Client {
    state: State,
    pub(super) pace: Pace,
    pub(super) traces: Traces,
    /// The call that is under way.
    pub(super) now: Looking,
    /// Why it stays on TCP if it waits for too long.
    if_late: Reason,
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

impl Client {
    /// Of a connection about which nothing is decided.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: State::Start,
            pace: Pace::NEW,
            traces: Traces { claims: false, name: false, attempt: false },
            now: Looking {
                messages: 0,
                now_ns: 0,
                claims: true,
                has_received: false,
                may_follow: false,
            },
            if_late: Reason::Peer(PeerCannot::Unanswered),
        }
    }

    /// The next step to carry out, or to wait for.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether the next look has to know the time.
    #[must_use]
    pub fn counts_time(&self) -> bool {
        self.pace.is_under_way()
    }

    /// A call of the program.
    ///
    /// # Errors
    /// Another one is under way.
    pub fn look(&mut self, call: &Call) -> Result<(), Illegal> {
        let next = match self.state {
            State::Start => State::Begins,
            State::AwaitsGreeting(token) => State::LooksWhetherAlone(token),
            State::AwaitsHello(token) => State::LooksForGreeting(token),
            State::AwaitsIntroduction(hello) => State::Introduces(hello),
            State::AwaitsAccept(to) => State::ReadsRecord(to),
            State::Moved | State::Stays(_) | State::Abandoned => return Ok(()),
            _ => return Err(Illegal),
        };
        let has_received = call.moment == Moment::AfterReceive;
        self.now = Looking {
            now_ns: 0,
            messages: Looking::count(call.messages),
            claims: true,
            has_received,
            may_follow: !has_received || call.received >= ANSWERS,
        };
        self.pace.look(call.now_ns);
        if self.pace.is_late() {
            self.stay(self.if_late);
        } else {
            self.state = match next {
                State::LooksForGreeting(token) => self.hears(token),
                next => next,
            };
        }
        Ok(())
    }

    /// The state was carried out.
    ///
    /// # Errors
    /// Something else was.
    pub fn answered(&mut self, answer: &Answer) -> Result<(), Illegal> {
        match (&self.state, answer) {
            (&State::Begins, &Answer::Begun(what)) => self.begun(what),
            (&State::LooksWhetherAlone(token), &Answer::Is(true)) => {
                self.state = State::LooksAfar(token)
            }
            (&State::LooksWhetherAlone(_), &Answer::Is(false)) => self.state = State::Withdraws,
            (&State::Withdraws, &Answer::Done) => {
                self.traces.claims = false;
                self.state = State::Begins;
            }
            (&State::LooksAfar(token), &Answer::Greeting(found)) => {
                self.state = match found.filter(|(seen, _)| is_greeting(seen, &token)) {
                    Some((_, hello)) if self.now.may_follow => {
                        State::LooksWhetherOpenAfar(hello.into())
                    }
                    Some(_) => State::AwaitsGreeting(token),
                    None => State::Seeks(token, Step::LooksForNews),
                };
            }
            (&State::Seeks(token, step), answer) => {
                let seek = self.pace.seeks()?;
                let step = seek.answered(step, answer, &mut self.now)?;
                self.traces.claims |= seek.has_claimed;
                match step {
                    Step::Rests => self.state = State::AwaitsGreeting(token),
                    Step::GivesUp(reason) => self.stay(reason),
                    step => self.state = State::Seeks(token, step),
                }
            }
            (&State::LooksWhetherOpenAfar(hello), &Answer::Is(true)) => {
                self.state = State::EngagesAfar(hello);
            }
            (&State::EngagesAfar(hello), &Answer::Engaged { messages, now_ns }) => {
                self.pace = Pace::begin(messages, now_ns);
                (self.traces.claims, self.traces.attempt) = (true, true);
                self.state = State::Introduces(hello);
            }
            (&State::Claims(token), &Answer::Is(any)) => {
                self.traces.claims = any;
                self.state = if any { State::Engages(token) } else { State::LooksForMarker(token) };
            }
            (&State::LooksForMarker(token), &Answer::Is(true)) => {
                self.state = State::BindsName(token)
            }
            (&State::LooksForMarker(_), &Answer::Is(false)) => {
                self.stay(PeerCannot::PeerNotSmc.into())
            }
            (&State::BindsName(token), &Answer::Done) => {
                self.traces.name = true;
                self.state = match self.pace.is_under_way() {
                    true => self.after_greeting(token),
                    false => State::Engages(token),
                };
            }
            (&State::Engages(token), &Answer::Engaged { messages, now_ns }) => {
                self.pace = Pace::begin(messages, now_ns);
                self.traces.attempt = true;
                self.state = self.hears(token);
            }
            (&State::LooksForGreeting(token), &Answer::Greeting(found)) => {
                self.state = match found.filter(|(seen, _)| is_greeting(seen, &token)) {
                    Some((_, hello)) if self.now.may_follow => {
                        State::LooksWhetherOpen(hello.into())
                    }
                    Some(_) => State::AwaitsHello(token),
                    None => self.after_greeting(token),
                };
            }
            (&State::ReadsName(token), &Answer::Letter(None)) => {
                self.state = State::AwaitsHello(token)
            }
            (&State::ReadsName(_), &Answer::Letter(Some(letter))) => {
                if !letter.is_friend {
                    self.stay(OperatorSaid::OtherUser.into());
                    return Ok(());
                }
                match letter.hello() {
                    Ok(hello) => {
                        if letter.is_stranger {
                            // It may not want to share memory with us.
                            self.if_late = OperatorSaid::OtherUser.into();
                        }
                        self.state = State::LooksWhetherOpen(hello.into());
                    }
                    Err(reason) => self.stay(reason),
                }
            }
            (&State::LooksWhetherOpen(hello), &Answer::Is(true)) => {
                self.state = State::Introduces(hello);
            }
            (
                &(State::LooksWhetherOpen(_) | State::LooksWhetherOpenAfar(_)),
                &Answer::Is(false),
            ) => {
                self.stay(ProgramDid::EndedMeanwhile.into());
            }
            (&State::Introduces(hello), &Answer::NotYet) => {
                self.state = State::AwaitsIntroduction(hello);
            }
            (&State::Introduces(hello), &Answer::Instead(reason)) => {
                self.if_late = reason;
                self.state = State::AwaitsIntroduction(hello);
            }
            (&State::Introduces(hello), &Answer::Done) => self.propose(hello),
            (&State::Introduces(hello), &Answer::Failed(reason)) => {
                self.state = State::TellsRefusal { hello, reason };
            }
            (&State::TellsRefusal { reason, .. }, &Answer::Done) => self.stay(reason),
            (&State::TakesRing(to), &Answer::Done) => self.state = State::PutsProposal(to),
            (&State::PutsProposal(to), &Answer::Done) => self.state = State::FillsRecord(to),
            (&State::FillsRecord(to), &Answer::Done) => self.state = State::ShowsProposed(to),
            (&State::ShowsProposed(to), &Answer::Done) => self.state = State::LeavesHint(to),
            // The answer may be there already: the server's process makes calls of its own.
            (&State::LeavesHint(to), &Answer::Done) => self.state = State::ReadsRecord(to),
            (&State::ReadsRecord(to), &Answer::Record(seen)) => {
                let is_answered = seen.is_some_and(|seen| Self::is_answer(&seen, &to.hello));
                self.state =
                    if is_answered { State::ReadsAnswer(to) } else { State::AwaitsAccept(to) };
            }
            (&State::ReadsAnswer(to), &Answer::Clc(answer)) => match answer {
                Ok(size) => self.state = State::LooksAtRing { to, size },
                Err(Refusal::Decline(decline, reason)) => {
                    self.state = State::PutsDecline {
                        server: to.hello.instance,
                        declining: Declining::of(&decline, reason),
                    };
                }
                Err(refusal) => self.stay(refusal.reason()),
            },
            (&State::LooksAtRing { .. }, &Answer::Is(false)) => {
                self.stay(Reason::PeerBroke(Field::RECORD_RING_AT));
            }
            (&State::LooksAtRing { to, size }, &Answer::Is(true)) => match size == to.size {
                true => self.state = State::AsksFilter(to),
                false => self.stay(Reason::PeerBroke(Field::SIZE_CODE)),
            },
            (&State::AsksFilter(to), &Answer::Objection(None)) => {
                self.state = State::AdmitsRing(to)
            }
            (&State::AsksFilter(to), &Answer::Objection(Some(reason))) => {
                self.declines(to.hello.instance, reason)
            }
            (&State::AdmitsRing(to), &Answer::Done) => self.state = State::ReadsByLedger(to),
            // Another thread sleeps in a plain receive: when it returns, look again.
            (&State::ReadsByLedger(to), &Answer::Is(false)) => self.state = State::AwaitsAccept(to),
            (&State::ReadsByLedger(_), &Answer::Is(true)) => self.state = State::PutsConfirm,
            (&State::PutsConfirm, &Answer::Done) => self.state = State::ShowsConfirmed,
            (&State::ShowsConfirmed, &Answer::Done) => self.state = State::Moved,
            (&State::PutsDecline { server, declining }, &Answer::Done) => {
                self.state = State::ShowsDeclined { server, reason: declining.reason };
            }
            (&State::ShowsDeclined { reason, .. }, &Answer::Done) => self.stay(reason),
            (
                &(State::Claims(_)
                | State::LooksAfar(_)
                | State::LooksForMarker(_)
                | State::BindsName(_)
                | State::LooksForGreeting(_)
                | State::ReadsName(_)
                | State::TakesRing(_)
                | State::PutsProposal(_)
                | State::FillsRecord(_)
                | State::ReadsRecord(_)
                | State::ReadsAnswer(_)
                | State::LooksAtRing { .. }
                | State::AdmitsRing(_)),
                &Answer::Failed(reason),
            ) => self.stay(reason),
            _ => return Err(Illegal),
        }
        Ok(())
    }

    /// The attempt is over, or the connection: what has to be taken back. Nothing is left of it
    /// after that.
    pub fn abandon(&mut self) -> Traces {
        if !matches!(self.state, State::Moved | State::Stays(_)) {
            self.state = State::Abandoned;
        }
        core::mem::take(&mut self.traces)
    }

    fn begun(&mut self, what: Begun) {
        match what {
            Begun::NotYet | Begun::AwaitsGiver => self.state = State::Start,
            Begun::MayNot(reason) => self.stay(reason),
            Begun::May { token, is_distant } => {
                if is_distant {
                    self.pace.seek();
                }
                self.state =
                    if is_distant { State::LooksAfar(token) } else { State::Claims(token) };
            }
        }
    }

    /// Where a greeting or a hello could be. A server that has not been shown a claim leaves no greeting.
    fn hears(&self, token: Token) -> State {
        if self.traces.claims { State::LooksForGreeting(token) } else { self.after_greeting(token) }
    }

    /// There is no greeting: where else a hello could be.
    fn after_greeting(&self, token: Token) -> State {
        if !self.traces.name && self.now.has_received {
            // The server that has sent this would have left a greeting, if the two knew each other.
            State::LooksForMarker(token)
        } else if self.traces.name && self.pace.is_due(LOOKS_AT_NAME) {
            State::ReadsName(token)
        } else {
            State::AwaitsHello(token)
        }
    }

    /// What the server has said is the answer to our proposal: of this use of its slot, and to us. Another client
    /// may have been told of the same slot.
    fn is_answer(seen: &Seen, hello: &Greeter) -> bool {
        seen.generation == hello.generation & GENERATIONS
            && matches!(seen.shown, Shown::Accepted | Shown::Declined)
            && seen.is_for_us
    }

    fn propose(&mut self, hello: Greeter) {
        match RmbeSize::from_bytes(hello.rmbe_len as usize) {
            Some(size) => self.state = State::TakesRing(Proposing { hello, size }),
            None => self.stay(Reason::PeerBroke(Field::HELLO_RMBE_LEN)),
        }
    }

    /// Says why not, if the standard has words for it.
    fn declines(&mut self, server: Instance, reason: Reason) {
        match Declining::for_reason(reason) {
            Some(declining) => self.state = State::PutsDecline { server, declining },
            None => self.stay(reason),
        }
    }

    fn stay(&mut self, reason: Reason) {
        // What is known before the server was asked says nothing new about it. Nor does a connection
        // that ends before there is an answer.
        let was_asked = !matches!(self.state, State::Start | State::Begins);
        let is_answered = reason != Reason::Peer(PeerCannot::Unanswered) || self.pace.is_late();
        self.state = State::Stays(Failure {
            reason,
            is_likely_to_recur: was_asked && is_answered && reason.is_likely_to_recur(),
            peer: self.peer(),
        });
    }

    /// The server's process, once it has introduced itself.
    fn peer(&self) -> Option<Instance> {
        match &self.state {
            State::AwaitsIntroduction(hello)
            | State::Introduces(hello)
            | State::EngagesAfar(hello)
            | State::TellsRefusal { hello, .. } => Some(hello.instance),
            State::TakesRing(to)
            | State::PutsProposal(to)
            | State::FillsRecord(to)
            | State::ShowsProposed(to)
            | State::LeavesHint(to)
            | State::AwaitsAccept(to)
            | State::ReadsRecord(to)
            | State::ReadsAnswer(to)
            | State::LooksAtRing { to, .. }
            | State::AdmitsRing(to)
            | State::AsksFilter(to)
            | State::ReadsByLedger(to) => Some(to.hello.instance),
            State::PutsDecline { server, .. } | State::ShowsDeclined { server, .. } => {
                Some(*server)
            }
            _ => None,
        }
    }
}
