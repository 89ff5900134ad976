//! What the owner tells a machine: the calls of the program, and what was seen in answer to a state.

use super::other_end::{Letter, Seen, Token};
use crate::fallback::{Lack, Reason};
use crate::rendezvous::refusal::Refusal;
use sidestep_wire::host_control::Hello;
use sidestep_wire::rmbe_size::RmbeSize;

/// Where in a call the library looks for progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before bytes are given to TCP.
    BeforeSend,
    /// After bytes were given to TCP.
    AfterSend,
    /// Before bytes are taken from TCP.
    BeforeReceive,
    /// After bytes were taken from TCP: the peer has done I/O, so its name exists.
    AfterReceive,
}

/// A call of the program, as an end sees it that looks for progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Where in the call.
    pub moment: Moment,
    /// Calls that moved something, both directions together.
    pub messages: u64,
    /// Receives that moved something.
    pub received: u64,
    /// By a clock that never goes back, in nanoseconds. It counts while a machine
    /// counts time, and may be 0 before.
    pub now_ns: u64,
}

/// What was seen when a state was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// What was looked for is so, or is not; what was tried was possible, or not.
    Is(bool),
    /// Not now: a later look may find it.
    NotYet,
    /// The same, and something has come in its place that makes no sense. Another process may have sent it in the
    /// peer's name, so it is waited on.
    Instead(Reason),
    /// It cannot be done.
    Failed(Reason),
    /// Why it may not be, if so.
    Objection(Option<Reason>),
    /// What has come of the questions before an attempt.
    Begun(Begun),
    /// Of the end itself.
    Standing(Standing),
    /// Which other processes have a connection that was received.
    Givers(Givers),
    /// The other end can be found by its name. What the two call the connection.
    Here(Token),
    /// It cannot, for this reason.
    Elsewhere(Reason),
    /// What the ends call a connection that has no name; `None`: that cannot be known.
    Token(Option<Token>),
    /// The attempt is under way.
    Engaged {
        /// Calls that have moved something so far.
        messages: u64,
        /// As in [`Call`].
        now_ns: u64,
    },
    /// What a hint leads to; `None`: there is no hint, or it leads nowhere.
    Record(Option<Seen>),
    /// The same, and the hello that a greeting stands for.
    Greeting(Option<(Seen, Hello)>),
    /// What lies under the connection's name.
    Letter(Option<Letter>),
    /// What an end that seeks has to know at each look.
    News {
        /// Processes are about to show each other their memory.
        is_acquainting: bool,
        /// The other end is known to belong to a user with whom none is shared.
        is_strangers: bool,
        /// As in [`Call`].
        now_ns: u64,
    },
    /// So many.
    Count(u32),
    /// So many were refused, and so often something else came in place of an Introduction.
    Strangers {
        /// Processes with which no memory can be shared.
        refusals: u32,
        /// Messages, by the last bits of their number.
        breaches: u16,
    },
    /// Of this size; `None`: of none that a ring can have.
    Size(Option<RmbeSize>),
    /// What became of a lookup.
    LookedUp(LookedUp),
    /// What became of a hello.
    Hello(Greeting),
    /// What is in the peer's CLC box, as [`expect_accept`](crate::rendezvous::expect_accept) and its like judge it, and the size in it.
    Clc(Result<RmbeSize, Refusal>),
}

/// What has come of the questions before an attempt ([`Begin`](super::Begin)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The attempt may begin.
    May {
        /// What both ends call the connection.
        token: Token,
        /// The other end cannot be found by its name.
        is_distant: bool,
    },
    /// Not yet.
    NotYet,
    /// Not yet: the process that has passed the connection on still has it.
    AwaitsGiver,
    /// Never.
    MayNot(Reason),
}

/// What an end knows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// It has a slot.
    pub has_slot: bool,
    /// `promotion = "never"`.
    pub is_never_promoted: bool,
    /// The program has used an option that only TCP has.
    pub is_tcp_only: bool,
    /// A touch of shared memory could fail.
    pub is_memory_strict: bool,
    /// As many attempts are under way as the operator allows.
    pub is_congested: bool,
    /// Another process may use the connection as well.
    pub is_shared: bool,
    /// Another process has passed it on to this one, and may still have it.
    pub is_received: bool,
}

/// Which other processes have a connection that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Givers {
    /// No other process.
    Gone,
    /// One still has it open.
    Here,
    /// It was given to others as well.
    Many,
}

/// What became of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookedUp {
    /// The agent has it.
    Sent,
    /// There is no agent at its socket.
    Away,
    /// Not now: there were too many, or another thread is at it.
    Later,
}

/// What became of a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// It waits under the client's name, with this token.
    Sent(Token),
    /// No client has bound that name.
    NobodyThere,
    /// The buffer of our mailbox is full of hellos that other clients have not read: some 280
    /// connections had their first bytes at once.
    NoRoom,
}

/// An answer to another question than the one that was asked, or a call in the middle of another one.
/// The machine is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Illegal;

impl From<Illegal> for Reason {
    fn from(_: Illegal) -> Self {
        Lack::Contradiction.into()
    }
}
