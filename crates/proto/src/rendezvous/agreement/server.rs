//! The server's end: it finds the client that shows the connection, greets it, and accepts.

use super::answer::{Answer, Begun, Call, Greeting, Illegal, Moment};
use super::ending::{Declining, Failure, Traces};
use super::other_end::{Seen, Shown, Token};
use super::pace::{LOOKS_AT_MAILBOX, LOOKS_FOR_GIVER, Pace};
use super::seek::{Looking, Step};
use crate::fallback::{Field, Lack, OperatorSaid, PeerCannot, ProgramDid, Reason};
use crate::rendezvous::refusal::Refusal;
use crate::rendezvous::wait::MESSAGES_MAX;
use sidestep_wire::rmbe_size::RmbeSize;

/// The next step to carry out, or to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Rests until a call of a moment and number that is worth a look. Nothing is done yet.
    Start,
    /// Asks whether the attempt may begin: the questions of [`Begin`](super::Begin).
    Begins,
    /// Counts the processes with which no memory can be shared, before the client can learn of us.
    CountsRefusals(Token),
    /// Looks for a claim on the connection: follows the hint at the place of the token.
    LooksForClaim(Greets),
    /// Leaves a greeting: shows the token in its record, and its slot in the client's cell.
    GreetsClient(Greets),
    /// Do descriptors of strangers lie in the mailbox? The client's introduction would not be read.
    LooksWhetherBeset(Greets),
    /// They do: gives back what belongs to dead peers, as no new peer comes that would see to it.
    Buries,
    /// Sends a hello to the client's name.
    SendsHello(Greets),
    /// Writes down why the connection is on TCP as things stand.
    NotesReason(Reason),
    /// Counts the attempt: it is under way.
    Engages(Greets),
    /// Rests. The other end cannot be found by its name.
    AwaitsClaim,
    /// Is this the only process that may use the connection, and its slot its own?
    LooksWhetherAlone,
    /// It is not: takes back its greeting, and begins anew.
    Withdraws,
    /// Looks for a claim from there.
    LooksAfar,
    /// Looks for the other end by the agent.
    Seeks(Step),
    /// Rests. The client is to propose.
    AwaitsReply(Greets),
    /// Reads what the hint in its cell leads to.
    LooksForProposal(Greets),
    /// Reads its mailbox if the mail flag says that there is something.
    ReadsMailIfAny(Greets),
    /// Reads its mailbox: a client that it does not know yet introduces itself before it proposes. Counts the processes
    /// with which no memory can be shared.
    ReadsMail(Greets),
    /// The client does not propose: has something else come in place of its Introduction?
    LooksForBreach {
        /// How often it had before the client could learn of us.
        breaches: u16,
    },
    /// One more of them. Why?
    ReadsRefusal(Greets),
    /// Does another thread sleep in a plain receive?
    LooksForReaders(Greets),
    /// Reads the client's CLC box.
    ReadsProposal(Greets),
    /// May memory still be shared with the client's user?
    AsksRules(Greets),
    /// Does the IP filter of the host object?
    AsksFilter(Greets),
    /// Reads how long a ring the client wishes to receive from.
    ReadsSize(Greets),
    /// Is there a ring where the client's record says, of the size that was wished?
    LooksAtRing(Accepts),
    /// May the client name this ring as well?
    AdmitsRing(Accepts),
    /// Takes a ring of this size, for the client to read.
    TakesRing(Accepts),
    /// Fills the record: ring, peer's slot.
    FillsRecord(Accepts),
    /// Puts the Accept into the CLC box.
    PutsAccept(Accepts),
    /// Asks the kernel whether the connection is established.
    LooksWhetherOpen(Accepts),
    /// Begins to read by the ledger: possible only while no thread is in a plain receive.
    ReadsByLedger(Accepts),
    /// It was not possible: gives the ring back, of which the client has not been told.
    GivesRingBack(Greets),
    /// Shows that it has accepted. What was put is visible with it.
    ShowsAccepted,
    /// Puts a Decline into the CLC box.
    PutsDecline(Declining),
    /// Shows that it has declined.
    ShowsDeclined(Reason),
    /// It has ended: the connection is in shared memory.
    Moved,
    /// It has ended: the connection stays on TCP.
    Stays(Failure),
    /// It has ended with the connection.
    Abandoned,
}

/// What it has told the client, or is about to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greets {
    /// What the client's proposal has to show.
    pub token: Token,
    /// Processes with which no memory could be shared, before the client could learn of us.
    pub refusals: u32,
    /// How often something had come in place of an Introduction by then.
    pub breaches: u16,
    /// The client has claimed the connection, so the two share memory already.
    pub knows_client: bool,
}

/// What it is about to accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepts {
    /// As before.
    pub to: Greets,
    /// Of the ring that the client reads.
    pub size: RmbeSize,
}

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Server {
    state: State,
    pub(super) pace: Pace,
    pub(super) traces: Traces,
    /// What both ends call the connection if it has no name.
    token: Token,
    /// The call that is under way.
    pub(super) now: Looking,
    /// Messages after which it looks for the client again.
    next_attempt: u32,
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// Of a connection about which nothing is decided.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: State::Start,
            pace: Pace::NEW,
            traces: Traces { claims: false, name: false, attempt: false },
            token: [0; 16],
            now: Looking {
                messages: 0,
                now_ns: 0,
                claims: false,
                has_received: false,
                may_follow: false,
            },
            next_attempt: 0,
        }
    }

    /// The next step to carry out, or to wait for.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// What both ends call a connection that has no name.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.token
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
        // The client's name or claim exists when bytes of it have come. A server that speaks first tries
        // before its first send as well.
        let is_moment = matches!(call.moment, Moment::AfterReceive | Moment::BeforeSend);
        let next = match self.state {
            State::Start if !is_moment || call.messages < self.next_attempt.into() => State::Start,
            State::Start => State::Begins,
            State::AwaitsClaim if !is_moment => State::AwaitsClaim,
            State::AwaitsClaim => State::LooksWhetherAlone,
            State::AwaitsReply(to) => State::LooksForProposal(to),
            State::Moved | State::Stays(_) | State::Abandoned => return Ok(()),
            _ => return Err(Illegal),
        };
        self.now = Looking {
            now_ns: 0,
            messages: Looking::count(call.messages),
            claims: false,
            has_received: call.moment == Moment::AfterReceive,
            may_follow: false,
        };
        self.pace.look(call.now_ns);
        if self.pace.is_late() {
            self.late();
        } else {
            self.state = next;
        }
        Ok(())
    }

    /// The state was carried out.
    ///
    /// # Errors
    /// Something else was.
    pub fn answered(&mut self, answer: &Answer) -> Result<(), Illegal> {
        self.state = match (&self.state, answer) {
            (&State::Begins, &Answer::Begun(what)) => match what {
                // The giver may never close it, and each look asks the kernel.
                Begun::AwaitsGiver if self.pace.looks > LOOKS_FOR_GIVER => {
                    stays(ProgramDid::HandedOver)
                }
                Begun::NotYet | Begun::AwaitsGiver => State::Start,
                Begun::MayNot(reason) => stays(reason),
                Begun::May { token, is_distant: true } => {
                    self.token = token;
                    self.pace.seek();
                    State::LooksAfar
                }
                Begun::May { token, is_distant: false } => State::CountsRefusals(token),
            },
            (&State::CountsRefusals(token), &Answer::Strangers { refusals, breaches }) => {
                State::LooksForClaim(Greets { token, refusals, breaches, knows_client: false })
            }
            (&State::LooksForClaim(to), &Answer::Record(seen)) => {
                match seen.is_some_and(|seen| seen.shows(Shown::Claimed, &to.token)) {
                    true => State::GreetsClient(Greets { knows_client: true, ..to }),
                    false => State::LooksWhetherBeset(to),
                }
            }
            (&State::GreetsClient(to), &Answer::Done) => {
                self.traces.claims = true;
                State::Engages(to)
            }
            (&State::LooksWhetherBeset(_), &Answer::Is(true)) => State::Buries,
            (&State::LooksWhetherBeset(to), &Answer::Is(false)) => State::SendsHello(to),
            (&State::Buries, &Answer::Done) => stays(Lack::Beset),
            (&State::SendsHello(to), &Answer::Hello(Greeting::Sent(token))) => {
                State::Engages(Greets { token, ..to })
            }
            (&State::SendsHello(_), &Answer::Hello(Greeting::NobodyThere)) => {
                let reason = PeerCannot::PeerNotSmc.into();
                if u64::from(self.now.messages) >= MESSAGES_MAX {
                    stays(reason)
                } else {
                    self.next_attempt = (2 * self.now.messages).max(1);
                    State::NotesReason(reason)
                }
            }
            (&State::SendsHello(_), &Answer::Hello(Greeting::NoRoom)) => {
                if self.pace.looks >= LOOKS_AT_MAILBOX {
                    stays(PeerCannot::Unanswered)
                } else {
                    State::Start
                }
            }
            (&State::NotesReason(_), &Answer::Done) => State::Start,
            (&State::Engages(to), &Answer::Engaged { messages, now_ns }) => {
                self.pace = Pace::begin(messages, now_ns);
                self.traces.attempt = true;
                State::LooksForProposal(to)
            }
            (&State::LooksWhetherAlone, &Answer::Is(true)) => State::LooksAfar,
            (&State::LooksWhetherAlone, &Answer::Is(false)) => State::Withdraws,
            (&State::Withdraws, &Answer::Done) => {
                self.traces.claims = false;
                State::Begins
            }
            (&State::LooksAfar, &Answer::Record(seen)) => {
                match seen.is_some_and(|seen| seen.shows(Shown::Claimed, &self.token)) {
                    true => State::GreetsClient(Greets {
                        token: self.token,
                        refusals: 0,
                        breaches: 0,
                        knows_client: true,
                    }),
                    false => State::Seeks(Step::LooksForNews),
                }
            }
            (&State::Seeks(step), answer) => {
                match self.pace.seeks()?.answered(step, answer, &mut self.now)? {
                    Step::Rests => State::AwaitsClaim,
                    Step::GivesUp(reason) => stays(reason),
                    step => State::Seeks(step),
                }
            }
            (&State::LooksForProposal(to), &Answer::Record(seen)) => self.proposed(seen, to),
            (&State::ReadsMailIfAny(to), &Answer::Done) => State::AwaitsReply(to),
            (&State::ReadsMail(to), &Answer::Count(refusals)) => {
                if refusals == to.refusals {
                    State::AwaitsReply(to)
                } else {
                    State::ReadsRefusal(to)
                }
            }
            (&State::LooksForBreach { .. }, &Answer::NotYet) => stays(PeerCannot::Unanswered),
            (&State::LooksForBreach { .. }, &Answer::Instead(reason)) => stays(reason),
            // The proposal would have said which client it is: it is taken for this one.
            (&State::ReadsRefusal(_), &Answer::Failed(reason)) => stays(reason),
            // When that thread returns, look again.
            (&State::LooksForReaders(to), &Answer::Is(true)) => State::AwaitsReply(to),
            (&State::LooksForReaders(to), &Answer::Is(false)) => State::ReadsProposal(to),
            (&State::ReadsProposal(to), &Answer::Clc(judged)) => match judged {
                Ok(_) => State::AsksRules(to),
                Err(Refusal::Decline(decline, reason)) => {
                    State::PutsDecline(Declining::of(&decline, reason))
                }
                Err(refusal) => stays(refusal.reason()),
            },
            (&State::AsksRules(to), &Answer::Is(true)) => State::AsksFilter(to),
            (&State::AsksRules(_), &Answer::Is(false)) => declines(OperatorSaid::OtherUser.into()),
            (&State::AsksFilter(to), &Answer::Objection(None)) => State::ReadsSize(to),
            (&State::AsksFilter(_), &Answer::Objection(Some(reason))) => declines(reason),
            (&State::ReadsSize(to), &Answer::Size(Some(size))) => {
                State::LooksAtRing(Accepts { to, size })
            }
            (&State::ReadsSize(_), &Answer::Size(None)) => {
                declines(Reason::PeerBroke(Field::RECORD_RMBE_LEN))
            }
            (&State::LooksAtRing(it), &Answer::Is(true)) => State::AdmitsRing(it),
            (&State::LooksAtRing(_), &Answer::Is(false)) => {
                declines(Reason::PeerBroke(Field::RECORD_RING_AT))
            }
            (&State::AdmitsRing(it), &Answer::Done) => State::TakesRing(it),
            (&State::TakesRing(it), &Answer::Done) => State::FillsRecord(it),
            (&(State::AdmitsRing(_) | State::TakesRing(_)), &Answer::Failed(reason)) => {
                declines(reason)
            }
            (&State::FillsRecord(it), &Answer::Done) => State::PutsAccept(it),
            (&State::PutsAccept(it), &Answer::Done) => State::LooksWhetherOpen(it),
            (&State::LooksWhetherOpen(it), &Answer::Is(true)) => State::ReadsByLedger(it),
            (&State::LooksWhetherOpen(_), &Answer::Is(false)) => {
                declines(ProgramDid::EndedMeanwhile.into())
            }
            (&State::ReadsByLedger(_), &Answer::Is(true)) => State::ShowsAccepted,
            // Another thread has begun a plain receive: the proposal stays where it is, for a later look.
            (&State::ReadsByLedger(it), &Answer::Is(false)) => State::GivesRingBack(it.to),
            (&State::GivesRingBack(to), &Answer::Done) => State::AwaitsReply(to),
            (&State::ShowsAccepted, &Answer::Done) => State::Moved,
            (&State::PutsDecline(it), &Answer::Done) => State::ShowsDeclined(it.reason),
            (&State::ShowsDeclined(reason), &Answer::Done) => stays(reason),
            (
                &(State::LooksForClaim(_)
                | State::GreetsClient(_)
                | State::LooksAfar
                | State::SendsHello(_)
                | State::LooksForProposal(_)
                | State::ReadsProposal(_)),
                &Answer::Failed(reason),
            ) => stays(reason),
            _ => return Err(Illegal),
        };
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

    /// Any peer can write the cell. A hint that does not lead to our token says nothing, and the right one
    /// may still come.
    fn proposed(&self, seen: Option<Seen>, to: Greets) -> State {
        if seen.is_some_and(|seen| seen.shows(Shown::Proposed, &to.token)) {
            State::LooksForReaders(to)
        } else if !to.knows_client && self.pace.is_due(LOOKS_AT_MAILBOX) {
            State::ReadsMail(to)
        } else {
            State::ReadsMailIfAny(to)
        }
    }

    /// Only now, and not when something wrong has come: it may have been another process, or one in the client's name, and
    /// the true Introduction could still come.
    fn late(&mut self) {
        match self.state {
            State::AwaitsReply(Greets { knows_client: false, breaches, .. }) => {
                self.state = State::LooksForBreach { breaches };
            }
            _ => self.state = stays(PeerCannot::Unanswered),
        }
    }
}

/// A server remembers no client: the next connection is another's.
fn stays(reason: impl Into<Reason>) -> State {
    State::Stays(Failure { reason: reason.into(), is_likely_to_recur: false, peer: None })
}

/// Says why not, if the standard has words for it.
fn declines(reason: Reason) -> State {
    Declining::for_reason(reason).map_or_else(|| stays(reason), State::PutsDecline)
}
