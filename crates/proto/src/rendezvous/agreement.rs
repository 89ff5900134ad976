//! Agreement: how the two ends of a TCP connection on one host come to share memory.
//!
//! The ends agree beside the connection, and no end waits: each step is looked for when the
//! program makes its next call. What an end does, in which order, how often it looks, and why it gives up
//! is decided here; the library carries it out with system calls and shared words, and a simulation
//! with neither.
//!
//! ```text
//!   client                                       server
//!   Begin: may the attempt begin?                Begin
//!   claim, or name                               claim found? greeting, else hello
//!   hello or greeting <──────────────────────────
//!   introduction, on first contact ─────────────>
//!   Proposal, shown as PROPOSED ────────────────>
//!                     <────────────────────────── reads by the ledger, then shows ACCEPTED
//!   reads by the ledger, then shows CONFIRMED ──>  checks it before its first byte in the ring
//! ```
//!
//! *The receiver reads by the ledger before the sender may enter the ring.* An end says that it reads so
//! by the phase that it shows, so no byte enters a ring that the peer does not read. A client that is
//! given up meanwhile, or dies, leaves a server that reads by the ledger and goes on sending by TCP.
//!
//! [`Begin`], [`Client`], [`Server`] and [`seek::Step`] are machines. A state is what is to be carried out next,
//! or what is awaited until the program's next call. The owner tells what it has seen ([`Answer`]).
//!
//! | method | what it is |
//! |---|---|
//! | `new` | the first state |
//! | `look` | a call of the program: one look for progress |
//! | `answered` | an event: what was seen when the state was carried out |
//! | `state`, `counts_time` | queries |
//! | `abandon` | the end of the attempt: what has to be taken back |
//!
//! An answer to another question, or a call in the middle of another one, is [`Illegal`]: the owner keeps the
//! connection on TCP and says so. The [`transitions`] are printed from the code.

pub mod begin;
pub mod client;
pub mod confirm;
pub mod seek;
pub mod server;
#[cfg(test)]
mod tests;
#[cfg(doc)]
#[doc = include_str!("agreement/transitions.md")]
pub mod transitions {}

pub use begin::{Begin, Givers, Standing};
pub use client::Client;
pub use confirm::Confirm;
pub use seek::Petitioned;
pub use server::Server;

use super::{AnswerWait, Refusal};
use crate::fallback::{Field, Lack, PeerCannot, Reason};
use seek::Seek;
use sidestep_wire::Error;
use sidestep_wire::clc::Decline;
use sidestep_wire::diagnosis::Diagnosis;
use sidestep_wire::host_control::{ControlMessage, Hello, Instance};
use sidestep_wire::ids::PeerId;
use sidestep_wire::rmbe_size::RmbeSize;

/// Says which connection it is: made from its addresses, or at random for one hello.
pub type Token = [u8; 16];

/// Looks after which not every one asks the kernel any more; of the later ones, those whose number is
/// a power of two do, and one of so many.
pub const LOOKS_BETWEEN: u32 = 1_024;
/// Looks of a client that all read its name.
pub const LOOKS_AT_NAME: u32 = 8;
/// Looks of a server that all read its mailbox, or look for room in the client's.
pub const LOOKS_AT_MAILBOX: u32 = 4_096;
/// Looks of a server before an attempt is given up whose giver still has the connection open: it may
/// never close it, and each look asks the kernel.
pub const LOOKS_FOR_GIVER: u32 = 64;
/// Messages after which the server's end looks for the client no more. Until then it does
/// each time their number has doubled: the other end may think that it has to live longer
/// before it is worth moving.
pub const MESSAGES_MAX: u64 = 4_096;
/// Receives that may have been the answer to the only request. A client that has got it may be about to
/// close: it follows a greeting before its next request, or when more answers come.
pub const ANSWERS: u64 = 4;
/// Connection slots of a process: none has a higher number.
pub const SLOTS: u32 = 16_384;

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
    /// Of the end itself.
    Standing(Standing),
    /// Who else has a connection that was received.
    Givers(Givers),
    /// The other end is in the same network namespace. What the two call the connection.
    Here(Token),
    /// It is not.
    Elsewhere(PeerCannot),
    /// What the ends call a connection between two namespaces; `None`: that cannot be known.
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
    /// Of this size; `None`: of none that a ring can have.
    Size(Option<RmbeSize>),
    /// What became of a petition.
    Petitioned(Petitioned),
    /// What became of a hello.
    Hello(Greeting),
    /// What is in the peer's CLC box, as [`expect_accept`](super::expect_accept) and its like judge it, and the size in it.
    Clc(Result<RmbeSize, Refusal>),
}

/// How far an end shows that it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Client: the CLC box holds a Proposal.
    Proposed,
    /// Server: the CLC box holds an Accept; it reads by the ledger.
    Accepted,
    /// Client: the CLC box holds a Confirm; it reads by the ledger.
    Confirmed,
    /// The CLC box holds a Decline.
    Declined,
    /// Client: looks for the other end of the connection of the token.
    Claimed,
    /// Server: has that end.
    Greeted,
    /// Anything else: it is not agreeing.
    Otherwise,
}

impl Shown {
    /// Whether an end that shows this may read the ring of the end that it names, now or later. An end that has
    /// declined does not.
    #[must_use]
    pub const fn may_need_ring(self) -> bool {
        !matches!(self, Self::Declined | Self::Otherwise)
    }
}

/// A record of the peer, each word read once: claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// How far its owner shows that it has come.
    pub shown: Shown,
    /// Generation of the peer's slot, 24 bits.
    pub generation: u32,
    /// The token in it.
    pub token: Token,
    /// The peer names our slot as the other end's.
    pub is_for_us: bool,
}

impl Seen {
    /// Whether it shows this of the connection of this token.
    #[must_use]
    pub fn shows(&self, shown: Shown, token: &Token) -> bool {
        self.shown == shown && self.token == *token
    }
}

/// A datagram under the connection's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Letter {
    /// What it says.
    pub message: Result<ControlMessage, Error>,
    /// The network namespace of the name, by its cookie.
    pub netns_cookie: u64,
    /// By the kernel's word memory may be shared with its sender.
    pub is_friend: bool,
    /// Its sender is another user, who may not want to share memory with us.
    pub is_stranger: bool,
}

impl Letter {
    /// The hello that it is, if it is one that leads on in this network namespace.
    ///
    /// # Errors
    /// Why not.
    pub fn hello(&self) -> Result<Hello, Reason> {
        match self.message {
            Ok(ControlMessage::Hello(hello)) if hello.netns_cookie != self.netns_cookie => {
                Err(PeerCannot::OtherNamespace.into())
            }
            Ok(ControlMessage::Hello(hello)) if hello.slot >= SLOTS => {
                Err(Reason::PeerBroke(Field::HELLO_SLOT))
            }
            Ok(ControlMessage::Hello(hello)) => Ok(hello),
            Ok(_) => Err(Reason::PeerBroke(Field::CONTROL_KIND)),
            Err(Error::Unsupported { .. }) => Err(PeerCannot::OtherVersion.into()),
            Err(error) => Err(Reason::of_unread(&error)),
        }
    }
}

/// The server's process that has left a greeting or sent a hello: what of it is needed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeter {
    /// Its process.
    pub instance: Instance,
    /// What the proposal has to show.
    pub token: Token,
    /// Its slot.
    pub slot: u32,
    /// Which use of that slot it is.
    pub generation: u32,
    /// Bytes of its receive buffer.
    pub rmbe_len: u32,
}

impl From<Hello> for Greeter {
    fn from(hello: Hello) -> Self {
        let Hello { instance, slot, generation, token, rmbe_len, .. } = hello;
        Self { instance, token, slot, generation, rmbe_len }
    }
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

/// What an end says in place of its next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declining {
    diagnosis: Diagnosis,
    out_of_sync: bool,
    /// Why.
    pub reason: Reason,
}

impl Declining {
    const fn of(decline: &Decline, reason: Reason) -> Self {
        let Decline { diagnosis, out_of_sync, .. } = *decline;
        Self { diagnosis, out_of_sync, reason }
    }

    /// In the standard's words.
    #[must_use]
    pub fn message(&self) -> Decline {
        let Self { diagnosis, out_of_sync, .. } = *self;
        Decline { out_of_sync, ..Decline::v2(PeerId::default(), diagnosis) }
    }
}

/// How an attempt has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why the connection stays on TCP.
    pub reason: Reason,
    /// Client: the next attempt with this server would come to the same.
    pub is_likely_to_recur: bool,
    /// The peer's process, if it has said who it is.
    pub peer: Option<Instance>,
}

/// What an end has left behind that has to be taken back when the attempt is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traces {
    /// Claims or greetings in the memory of acquaintances.
    pub claims: bool,
    /// The connection's name.
    pub name: bool,
    /// It counts as an attempt that is under way.
    pub attempt: bool,
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

/// How often an end looks, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    looks: u32,
    stage: Stage,
}

/// What an end counts besides. It seeks before the attempt is under way, and waits after that.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Nothing,
    Seeks(Seek),
    Waits(AnswerWait),
}

impl Pace {
    pub(crate) const NEW: Self = Self { looks: 0, stage: Stage::Nothing };

    /// The other end is in another namespace.
    fn seek(&mut self) {
        self.stage = Stage::Seeks(Seek::NEW);
    }

    fn seeks(&mut self) -> Result<&mut Seek, Illegal> {
        match &mut self.stage {
            Stage::Seeks(seek) => Ok(seek),
            Stage::Nothing | Stage::Waits(_) => Err(Illegal),
        }
    }

    /// The attempt is under way, and so waits for an answer.
    fn begin(messages: u64, now_ns: u64) -> Self {
        Self { looks: 0, stage: Stage::Waits(AnswerWait::begin(messages, now_ns)) }
    }

    fn look(&mut self, now_ns: u64) {
        self.looks = self.looks.saturating_add(1);
        if let Stage::Waits(wait) = &mut self.stage {
            wait.look(now_ns);
        }
    }

    /// Whether this look asks the kernel: so many first ones do.
    fn is_due(&self, first: u32) -> bool {
        self.looks <= first
            || self.looks.is_power_of_two()
            || self.looks.is_multiple_of(LOOKS_BETWEEN)
    }

    fn is_late(&self) -> bool {
        matches!(self.stage, Stage::Waits(wait) if wait.is_late())
    }

    fn is_under_way(&self) -> bool {
        matches!(self.stage, Stage::Waits(_))
    }
}
