//! The other end cannot be found by its name: how an end finds it.
//!
//! It is in another network namespace, behind a translation of addresses, or of another user, with whom memory is shared
//! only by the policy of the host. The client claims the connection before the servers that its process knows, and
//! an end that finds nothing *looks it up*: it asks the agent of the host which process holds the other end. The
//! answer acquaints the two processes, and then a claim is found as it is within one namespace.
//!
//! Until the end is greeted the connection is an ordinary one. Each end looks it up again when its
//! messages have doubled in number, and when it is in use a second later: the agent keeps a
//! lookup for longer than that, so two ends that both ask meet. An end that nothing answers gives up
//! after so many messages as within one namespace.

pub use super::answer::LookedUp;
use super::answer::{Answer, Illegal};
use crate::fallback::{Lack, OperatorSaid, PeerCannot, Reason};
use crate::rendezvous::wait::MESSAGES_MAX;

/// An end in use looks it up again after this.
pub const AGAIN_NS: u64 = 1_000_000_000;
/// So often; then only with the number of its messages.
pub const TIMES_MAX: u8 = 64;
/// Looks after a lookup that all read its answer; then those whose number is a power of
/// two do, and those that come [`READ_INTERVAL_NS`] after the last.
pub const LOOKS_FOR_ANSWER: u32 = 32;
/// See [`LOOKS_FOR_ANSWER`].
pub const READ_INTERVAL_NS: u64 = 10_000_000;

/// The next step to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Are processes about to show each other their memory? Does the other end belong to a user with whom none is shared?
    LooksForNews,
    /// Takes the answers that have come to the lookups of the process, and what acquaintances to be have sent. The same
    /// question after that.
    ReadsAnswers,
    /// Client: how many processes does this one know?
    CountsAcquaintances,
    /// Client: leaves a claim with each server that can be meant. Is there one?
    Claims,
    /// Asks the agent which process holds the other end.
    Lookups,
    /// Writes down why the connection is on TCP as things stand.
    NotesReason(Reason),
    /// It has ended: nothing more in this call.
    Rests,
    /// It has ended: the connection stays on TCP.
    GivesUp(Reason),
}

/// What the present look is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Looking {
    /// Told with the news.
    pub(crate) now_ns: u64,
    /// More than [`MESSAGES_MAX`] count as many.
    pub(crate) messages: u32,
    /// The end claims the connection: it is the client's.
    pub(crate) claims: bool,
    /// Bytes of the peer have come with this call.
    pub(crate) has_received: bool,
    /// It is a call in which a client follows a greeting.
    pub(crate) may_follow: bool,
}

impl Looking {
    pub(crate) fn count(messages: u64) -> u32 {
        messages.min(MESSAGES_MAX) as u32
    }
}

/// How far one end has come that looks for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seek {
    /// Lookups so far, and looks since the last one.
    times: u8,
    looks: u32,
    read_at: u64,
    /// When it looks it up again: after so many messages, or from this time on.
    next_messages: u32,
    next_at: u64,
    /// Acquaintances of the process when the connection was claimed last, + 1.
    claimed_before: u32,
    /// A claim was left.
    pub(crate) has_claimed: bool,
}

impl Seek {
    pub(crate) const NEW: Self = Self {
        times: 0,
        looks: 0,
        read_at: 0,
        next_messages: 0,
        next_at: u64::MAX,
        claimed_before: 0,
        has_claimed: false,
    };

    pub(crate) fn answered(
        &mut self,
        step: Step,
        answer: &Answer,
        now: &mut Looking,
    ) -> Result<Step, Illegal> {
        Ok(match (step, answer) {
            (Step::LooksForNews, &Answer::News { is_acquainting, is_strangers, now_ns }) => {
                now.now_ns = now_ns;
                self.after_news(is_acquainting, is_strangers, now)
            }
            (Step::ReadsAnswers, &Answer::Is(true)) => {
                Step::GivesUp(OperatorSaid::OtherUser.into())
            }
            (Step::ReadsAnswers, &Answer::Is(false)) => self.after_answers(now),
            (Step::CountsAcquaintances, &Answer::Count(known)) => {
                let known = known.saturating_add(1);
                if core::mem::replace(&mut self.claimed_before, known) == known {
                    self.after_claims(now)
                } else {
                    Step::Claims
                }
            }
            (Step::Claims, &Answer::Is(any)) => {
                self.has_claimed |= any;
                self.after_claims(now)
            }
            (Step::Lookups, &Answer::LookedUp(what)) => self.after_lookup(what, now),
            (Step::NotesReason(_), &Answer::Done) => Step::Rests,
            _ => return Err(Illegal),
        })
    }

    fn after_news(&mut self, is_acquainting: bool, is_strangers: bool, now: &Looking) -> Step {
        if self.times == 0 && !is_acquainting {
            return self.after_answers(now);
        }
        self.looks += 1;
        let is_due = self.looks <= LOOKS_FOR_ANSWER
            || self.looks.is_power_of_two()
            || now.now_ns >= self.read_at + READ_INTERVAL_NS;
        if is_due {
            self.read_at = now.now_ns;
            Step::ReadsAnswers
        } else if is_strangers {
            Step::GivesUp(OperatorSaid::OtherUser.into())
        } else {
            self.after_answers(now)
        }
    }

    fn after_answers(&self, now: &Looking) -> Step {
        if now.claims { Step::CountsAcquaintances } else { self.lookup_if_due(now) }
    }

    fn after_claims(&self, now: &Looking) -> Step {
        // The server that has sent something would have left a greeting, if the two knew each other.
        if now.has_received || !self.has_claimed { self.lookup_if_due(now) } else { Step::Rests }
    }

    fn lookup_if_due(&self, now: &Looking) -> Step {
        let is_late = self.times < TIMES_MAX && now.now_ns >= self.next_at;
        if now.messages >= self.next_messages || is_late { Step::Lookups } else { Step::Rests }
    }

    fn after_lookup(&mut self, what: LookedUp, now: &Looking) -> Step {
        let reason: Reason = match what {
            LookedUp::Sent => PeerCannot::LookupUnanswered.into(),
            LookedUp::Away => Lack::AgentAway.into(),
            LookedUp::Later => return Step::Rests,
        };
        if u64::from(now.messages) >= MESSAGES_MAX {
            return Step::GivesUp(reason);
        }
        (self.times, self.looks) = (self.times.saturating_add(1), 0);
        self.next_messages = (2 * now.messages).max(1);
        self.next_at = now.now_ns + AGAIN_NS;
        Step::NotesReason(reason)
    }
}
