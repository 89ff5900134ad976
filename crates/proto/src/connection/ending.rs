//! How a connection ends: what each side has said, and the state that follows.
//!
//! Either side says up to three things, each once, and never takes one back:
//!
//! | Flag | Says | TCP |
//! |---|---|---|
//! | D | I write no more | FIN |
//! | C | I am gone, and touch your RMBE no more | FIN, after which data is answered with RST |
//! | A | it has ended at once | RST |
//!
//! ```text
//!                 D or C                                   D or C
//!   PeerCloseWait1 <────── Active ──────> AppCloseWait1 <── of the peer
//!         │ peer's D          │                 │ D
//!   PeerCloseWait2            │A          AppCloseWait2
//!         │ peer's C          │                 │ C
//!   AppFinCloseWait     PeerAbortWait     PeerFinCloseWait
//!         │ C           ProcessAbort            │ peer's C
//!         └──────────> Closed <─────────────────┘
//! ```
//!
//! After C or A of both sides neither writes into either RMBE any more, and both may be given to
//! other connections.
//!
//! *Source*: RFC 7609 §4.8, figures 22 and 23.

use sidestep_wire::cdc::StateFlags;

/// The states of RFC 7609 §4.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Neither side has said anything.
    Active,
    /// We have said D or C first.
    PeerCloseWait1,
    /// We have said D or C first, then the peer D.
    PeerCloseWait2,
    /// We have said D first, then the peer C: the program has to close.
    AppFinCloseWait,
    /// The peer has said D or C first.
    AppCloseWait1,
    /// The peer has said D or C first, then we D.
    AppCloseWait2,
    /// The peer has said D first, then we C.
    PeerFinCloseWait,
    /// We have said A; the peer has not yet.
    PeerAbortWait,
    /// The peer has said A; we have not yet.
    ProcessAbort,
    /// All is said: the RMBEs are free.
    Closed,
}

/// How the program wants it to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    /// Not yet.
    GoOn,
    /// It sends no more.
    WriteNoMore,
    /// In order.
    Close,
    /// At once.
    Abort,
}

/// What both sides have said.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ending {
    /// What we have said.
    pub(super) ours: StateFlags,
    /// What the peer has.
    pub(super) theirs: StateFlags,
    /// The peer has said something before we had.
    pub(super) is_passive: bool,
}

impl Ending {
    pub(super) const fn new(nothing: StateFlags) -> Self {
        Self { ours: nothing, theirs: nothing, is_passive: false }
    }

    /// We say this now.
    pub(super) fn say(&mut self, flags: StateFlags) {
        add(&mut self.ours, flags);
    }

    /// The peer has said this.
    pub(super) fn hear(&mut self, flags: StateFlags) {
        if self.ours == StateFlags::default() && flags != StateFlags::default() {
            self.is_passive = true;
        }
        add(&mut self.theirs, flags);
    }

    pub(super) const fn state(&self) -> State {
        let (ours, theirs) = (self.ours, self.theirs);
        match (ours.abnormal_close, theirs.abnormal_close) {
            (true, false) if theirs.closed => State::Closed,
            (true, false) => State::PeerAbortWait,
            (false, true) if ours.closed => State::Closed,
            (false, true) => State::ProcessAbort,
            (true, true) => State::Closed,
            (false, false) => self.orderly(),
        }
    }

    const fn orderly(&self) -> State {
        let (ours, theirs) = (self.ours, self.theirs);
        let we_spoke = ours.done_writing || ours.closed;
        let they_spoke = theirs.done_writing || theirs.closed;
        match (we_spoke, they_spoke) {
            (false, false) => State::Active,
            (true, false) => State::PeerCloseWait1,
            (false, true) => State::AppCloseWait1,
            (true, true) if ours.closed && theirs.closed => State::Closed,
            (true, true) if self.is_passive && ours.closed => State::PeerFinCloseWait,
            (true, true) if self.is_passive => State::AppCloseWait2,
            (true, true) if theirs.closed => State::AppFinCloseWait,
            (true, true) => State::PeerCloseWait2,
        }
    }
}

/// What was said once is said for good.
const fn add(said: &mut StateFlags, more: StateFlags) {
    said.done_writing |= more.done_writing;
    said.closed |= more.closed;
    said.abnormal_close |= more.abnormal_close;
}
