//! The link group of SMC-R: links, receive buffers, and the LLC messages that keep them.
//!
//! Two hosts that talk SMC-R have a *link group*: one link, or better two over different RDMA
//! adapters, and all connections between them. It is made at the first connection (*first contact*)
//! and ends some time after the last one. One side is its server, by the role of the TCP connection
//! that made it, and the server alone changes the set of links.
//!
//! ```text
//!     CLC (Accept, Confirm)          device                        device of the peer
//!        │          ▲                │    ▲
//!        │          │    handle_…    │    │ poll_command
//!        v          │                v    │
//!   ┌──────────────────────────────────────────┐
//!   │ LinkGroup                                │     LLC messages over links
//!   │   links   RMBs   connections   one flow  │ <─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─>
//!   └──────────────────────────────────────────┘
//!        │ poll_event: introduce, established, moved, ended …
//!        v
//!     connections
//! ```
//!
//! # Using it
//!
//! The methods of [`LinkGroup`] are of four kinds:
//!
//! - *getters*, for displays and decisions;
//! - *verbs* of the program: [`add_rmb`](LinkGroup::add_rmb), [`open`](LinkGroup::open),
//!   [`close`](LinkGroup::close), [`end`](LinkGroup::end) …;
//! - `handle_…`: what the device, the clock or the peer has done;
//! - `poll_…`: what is to be done ([`poll_command`](LinkGroup::poll_command)), what has happened
//!   ([`poll_event`](LinkGroup::poll_event)), and when to call
//!   [`handle_timeout`](LinkGroup::handle_timeout).
//!
//! After any verb or `handle_…`, poll commands and events until there are none. Commands are carried
//! out in their order. Those that have an answer ([`Command`] tells which) may be answered at once,
//! as by a device in the same process, or later, as by hardware: answers may come in any order, and
//! one that comes too late, for a link that has gone, does nothing. `now` is the time since any
//! moment, the same for all calls.
//!
//! # Flows
//!
//! An exchange of LLC messages is a *flow*. RFC 7609 §3.5.5.3 lets these run at any time: TEST LINK,
//! the end of the whole group, and the client's wishes (a link to be added, a link to be deleted).
//! All others change the configuration, and of those each side begins one only when it knows of no
//! other:
//!
//! | Flow | Begun by | Module |
//! |---|---|---|
//! | CONFIRM LINK of the first link | server | `first_contact` |
//! | ADD LINK … CONFIRM LINK | server | `add_link` |
//! | DELETE LINK of one link | server | `delete_link` |
//! | CONFIRM RKEY, DELETE RKEY | either, for its own RMBs | `rkeys` |
//! | TEST LINK | either, at any time | `test_link` |
//!
//! What waits for its turn is not queued but found again: a link in [`LinkState::Deleting`] is to be
//! announced, an RMB in [`RmbState::New`] to be confirmed. So a wish cannot be lost, and one that has
//! become pointless is not carried out. `LinkGroup::settle`, at the end of every call, begins what
//! can begin.
//!
//! # Where the RFC and Linux differ
//!
//! | Matter | RFC 7609 | Linux | Here |
//! |---|---|---|---|
//! | the client's CONFIRM RKEY during ADD LINK or DELETE LINK | refused, to be repeated | accepted | accepted; a refusal is answered by trying again |
//! | ADD LINK crosses the client's CONFIRM RKEY | taken up at once | parked until the answer | parked: the answer is already on its way, and the pairs are then complete |
//! | no answer to a flow | the link it went over has failed | the flow has failed | TEST LINK at once: whoever answers that, or says anything else, has a link |
//! | the client's DELETE LINK is not obeyed | the link it went over has failed, too | waits for what it has sent over the broken link, if need be for ever | asked again, and TEST LINK |
//! | a link is silent, another is not | – | – | it has failed, without waiting for the queue pair to break |
//! | no ADD LINK at first contact | the TCP connection is reset | one link is enough | one link is enough, and is tried again (C.8) |
//! | unknown type, wrong length | the link has failed (A.3) | ignored | the link has failed |
//! | a client is told that the group ends | it complies | it also sends DELETE LINK | as Linux |
//! | CONFIRM LINK comes before the client has looked | – | lost | repeated at first contact |
//!
//! An unknown type breaks the link although Linux lives without: §A.3 has a whole range of types for
//! what may be ignored, so what is outside of it may have changed the peer's idea of the group. Two
//! sides that disagree about links and keys cannot keep the promise that a WRITE goes where it should;
//! a link that is made anew costs a second. Nobody is known to send such a message.
//!
//! When a link comes back, new connections go where there are fewest, and some of the old ones move
//! there (`balance`); §2.3 leaves that open, and those of Linux stay where they are.
//!
//! Nothing here does I/O. This module and those below are the only ones of the crate that allocate:
//! a link group is made once for many connections, by whoever has memory for its queue pairs.
//!
//! *Source*: RFC 7609 §2.2, §3.5, Appendix C.7 and C.8; Linux `net/smc/smc_llc.c`, `smc_core.c`.

extern crate alloc;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use arrayvec::ArrayVec;
use sidestep_wire::clc::Version;
use sidestep_wire::llc::{self, DeleteReason, Form, Message};
use sidestep_wire::{AlertToken, Diagnosis, LinkNumber, LinkUserId, PeerId};

mod add_link;
mod balance;
mod connections;
mod delete_link;
mod first_contact;
mod link;
mod received;
mod rkeys;
mod rmb;
mod test_link;
#[cfg(test)]
mod tests;
mod timers;

pub use connections::{Connection, Refusal};
pub use first_contact::{Agreement, Introduction};
pub use link::{Adapter, AdapterId, Link, LinkEnd, LinkState};
pub use rkeys::RmbError;
pub use rmb::{PeerRmbId, RmbId, RmbState, Rtoken};
pub use timers::KEEPALIVE;

use add_link::AddLinkFlow;
use delete_link::DeleteLinkFlow;
use first_contact::FirstContact;
use link::{Farewell, symmetric};
use rkeys::RkeyFlow;
use rmb::{PeerRmbs, Rmb};

/// Links that a group asks for, not counting an asymmetric one. RFC 7609 §2.2.2 allows up to 8;
/// Linux has 2, and a second one is what survives a failure.
pub const LINKS_MAX: u8 = 2;

/// Links that exist at once: while a symmetric link takes the place of an asymmetric one, one more.
pub const LINK_SLOTS: usize = LINKS_MAX as usize + 1;

/// Receive buffers of each side, as many as an RMB count on the wire can tell.
pub const RMBS_MAX: usize = 255;

/// Connections of a group that nothing else was agreed for.
pub const CONNECTIONS_MAX: u8 = 255;

/// Adapters that a group knows of.
pub const ADAPTERS_MAX: usize = 8;

const _: () = assert!(LINK_SLOTS - 1 <= 2, "CONFIRM RKEY has room for two other links");
const _: () = assert!(RMBS_MAX <= llc::RKEY_COUNT_MAX);

/// Which side of the group we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// We decide about links.
    Server,
    /// We follow.
    Client,
}

/// What this side brings to a group.
#[derive(Debug, Clone)]
pub struct Local {
    /// Who we are.
    pub peer_id: PeerId,
    /// The VLAN of all its links; 0 for none.
    pub vlan: u16,
    /// Our number for the group, below 2^24. It is in the user IDs of its links.
    pub group: u32,
    /// No gateway lies between the adapters of the two sides.
    pub direct: bool,
    /// How long a link may be silent before it is tested; `None`: for ever.
    pub keepalive: Option<Duration>,
    /// The adapters that its links can use, that of the first link first. One at least.
    pub adapters: ArrayVec<Adapter, ADAPTERS_MAX>,
}

/// Which message a [`Command::Send`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// What the device is to do. Links are named by our user IDs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Make a queue pair. Answered by [`LinkGroup::handle_queue_pair`].
    CreateQueuePair {
        /// The link that it will be an end of.
        link: LinkUserId,
        /// On this adapter.
        adapter: AdapterId,
    },
    /// Let it take the peer's packets, with room for its messages. Answered by
    /// [`LinkGroup::handle_ready_to_receive`].
    ReadyToReceive {
        /// The link.
        link: LinkUserId,
        /// The other end. Its MTU is the smaller of both.
        peer: LinkEnd,
    },
    /// Let it send. Has no answer: what is to be sent waits for it.
    ReadyToSend {
        /// The link.
        link: LinkUserId,
    },
    /// Let the peer write into this buffer over the link. Answered by
    /// [`LinkGroup::handle_registered`].
    Register {
        /// The link.
        link: LinkUserId,
        /// The buffer.
        rmb: RmbId,
    },
    /// Let it no longer. Has no answer.
    Deregister {
        /// The link.
        link: LinkUserId,
        /// The buffer.
        rmb: RmbId,
    },
    /// Send this LLC message. Answered by [`LinkGroup::handle_sent`] when the peer's adapter has it;
    /// if it never will, by [`LinkGroup::handle_link_failed`].
    Send {
        /// Over this link.
        link: LinkUserId,
        /// For the answer.
        ticket: Ticket,
        /// The whole message.
        bytes: Vec<u8>,
    },
    /// Destroy the queue pair, made or in the making, and all its registrations. Has no answer.
    Destroy {
        /// The link, which is gone or has failed.
        link: LinkUserId,
    },
}

/// What has happened to the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// First contact: [`LinkGroup::introduction`] has what our Accept or Confirm says of this link.
    Introduce(LinkUserId),
    /// First contact has failed. Unless the peer declines, decline with this; the group is ending.
    Declined(Diagnosis),
    /// The group takes connections; that of the first contact can begin.
    Established,
    /// The peer knows this buffer of ours.
    RmbReady(RmbId),
    /// The buffer could not be registered, or the peer does not take it. [`Event::RmbRemoved`] will
    /// follow.
    RmbFailed(RmbId),
    /// The buffer is in no group: the peer has let go of it.
    RmbRemoved(RmbId),
    /// The link carries connections from now on.
    LinkUp(LinkUserId),
    /// The link carries none any more.
    LinkDown(LinkUserId),
    /// The peer has answered [`LinkGroup::probe`]: whatever had come to its adapter over the link it has
    /// understood.
    Answered(LinkUserId),
    /// What this connection sends goes over another link from now on (RFC 7609 §4.6).
    Moved {
        /// The connection.
        connection: AlertToken,
        /// The link that is gone; or, if it is active, has too many.
        from: LinkUserId,
        /// The one to use.
        to: LinkUserId,
    },
    /// This connection cannot go on: there is no link or no buffer of the peer for it. It is to be
    /// reset and closed.
    Lost(AlertToken),
    /// The group is ending: every connection is to be reset.
    Ending(DeleteReason),
    /// The group is gone, and so is all that it had of the device.
    Ended,
}

/// What the group as a whole is doing.
#[derive(Debug, Clone)]
enum Phase {
    FirstContact(FirstContact),
    Live(Live),
    Ending(delete_link::Ending),
    Ended,
}

/// The first link is confirmed.
#[derive(Debug, Clone, Copy)]
struct Live {
    /// [`Event::Established`] was told.
    is_established: bool,
    /// Client: until when the server's first ADD LINK is waited for.
    patience: Option<Duration>,
    /// Client: our CONFIRM LINK response, until it is known to have arrived.
    unsent: Option<Ticket>,
}

/// The one flow that is changing the set of links.
#[derive(Debug, Clone)]
enum Flow {
    AddLink(AddLinkFlow),
    DeleteLink(DeleteLinkFlow),
}

/// A link group, as one side sees it.
#[derive(Debug, Clone)]
pub struct LinkGroup {
    role: Role,
    local: Local,
    form: Form,
    max_conns: u8,
    max_links: u8,
    peer_id: PeerId,
    /// Server: what the Proposal said in its place, which may be nothing.
    proposer: PeerId,
    phase: Phase,
    /// In the order in which they were made, which tells the symmetric ones.
    links: ArrayVec<Link, LINK_SLOTS>,
    last_number: u8,
    last_user_id: u8,
    rmbs: Vec<Rmb>,
    peer_rmbs: PeerRmbs,
    connections: Vec<Connection>,
    flow: Option<Flow>,
    /// Our own CONFIRM RKEY or DELETE RKEY. There is none while there is a `flow` of ours.
    rkey_flow: Option<RkeyFlow>,
    /// Client: an ADD LINK that came while `rkey_flow` was open, and the link it came over.
    parked: Option<(LinkUserId, llc::AddLink)>,
    growth: add_link::Growth,
    /// When connections move to a link that has come.
    balance_due: Option<Duration>,
    /// When the group ends unless there is a connection.
    idle_until: Option<Duration>,
    tests: u64,
    tickets: u64,
    commands: VecDeque<Command>,
    events: VecDeque<Event>,
}

// ---- polls --------------------------------------------------------------------------------------

impl LinkGroup {
    /// What the device is to do next.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// What has happened next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

// ---- getters ------------------------------------------------------------------------------------

impl LinkGroup {
    /// Which side we are.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Who the peer says it is.
    #[must_use]
    pub const fn peer_id(&self) -> PeerId {
        self.peer_id
    }

    /// The VLAN of its links.
    #[must_use]
    pub const fn vlan(&self) -> u16 {
        self.local.vlan
    }

    /// The version of the protocol.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.form.version()
    }

    /// Connections that it may have.
    #[must_use]
    pub const fn max_conns(&self) -> u8 {
        self.max_conns
    }

    /// Links that it may have, not counting an asymmetric one.
    #[must_use]
    pub const fn max_links(&self) -> u8 {
        self.max_links
    }

    /// Its links.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The link that we call so.
    #[must_use]
    pub fn link(&self, user_id: LinkUserId) -> Option<&Link> {
        self.links.iter().find(|link| link.user_id == user_id)
    }

    /// Whether no failure of one adapter ends it.
    #[must_use]
    pub fn is_redundant(&self) -> bool {
        let active = |link: &&Link| link.state == LinkState::Active;
        symmetric(&self.links, self.version()).filter(active).count() > 1
    }

    /// Whether a link shares an adapter, of either side, with an earlier one.
    #[must_use]
    pub fn is_asymmetric(&self, user_id: LinkUserId) -> bool {
        let counts = |link: &Link| matches!(link.state, LinkState::Activating | LinkState::Active);
        self.link(user_id).is_some_and(counts)
            && !symmetric(&self.links, self.version()).any(|link| link.user_id == user_id)
    }

    /// Whether it takes connections.
    #[must_use]
    pub const fn is_established(&self) -> bool {
        matches!(self.phase, Phase::Live(Live { is_established: true, .. }))
    }

    /// When it ends unless there is a connection; `None`: there is one, or it is not there yet, or ends
    /// already.
    #[must_use]
    pub const fn idle_until(&self) -> Option<Duration> {
        self.idle_until
    }

    /// Whether it is gone. Nothing changes any more.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// Whether no exchange with the peer is under way or waits for its turn.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let is_settled = |link: &Link| link.state == LinkState::Active && link.resigns.is_none();
        match self.phase {
            Phase::Live(live) => {
                live.is_established
                    && self.flow.is_none()
                    && self.rkey_flow.is_none()
                    && self.parked.is_none()
                    && self.links.iter().all(is_settled)
                    && self.rmbs.iter().all(|rmb| rmb.state == RmbState::Announced)
            }
            Phase::Ended => true,
            Phase::FirstContact(_) | Phase::Ending(_) => false,
        }
    }

    /// Our RMBs, and how far they have got.
    pub fn rmbs(&self) -> impl Iterator<Item = (RmbId, RmbState)> {
        self.rmbs.iter().map(|rmb| (rmb.id, rmb.state))
    }

    /// How the peer reaches an RMB of ours over a link.
    #[must_use]
    pub fn rtoken(&self, rmb: RmbId, link: LinkUserId) -> Option<Rtoken> {
        self.rmbs.iter().find(|it| it.id == rmb)?.key_on(link)
    }

    /// The peer's RMBs, each with how we reach it over links.
    pub fn peer_rmbs(&self) -> impl Iterator<Item = (PeerRmbId, &[(LinkUserId, Rtoken)])> {
        self.peer_rmbs.iter().map(|(id, keys)| (id, keys.as_slice()))
    }
}

// ---- what the device has done -------------------------------------------------------------------

impl LinkGroup {
    /// The answer to [`Command::ReadyToReceive`].
    pub fn handle_ready_to_receive(&mut self, link: LinkUserId, now: Duration) {
        if let Some(link) = self.link_mut(link) {
            link.is_receiving = true;
            self.advance(now);
        }
        self.settle(now);
    }

    /// An adapter that links of this group can use has come, or has changed.
    ///
    /// The server tries another link with it; a client tells the server of it. Beyond
    /// [`ADAPTERS_MAX`] it is not used.
    pub fn handle_adapter_up(&mut self, adapter: Adapter, now: Duration) {
        self.local.adapters.retain(|known| known.id != adapter.id);
        if self.local.adapters.try_push(adapter).is_ok() {
            self.growth.adapter_up(adapter.id, now);
        }
        self.settle(now);
    }

    /// An adapter has gone, and all links over it have failed.
    pub fn handle_adapter_down(&mut self, adapter: AdapterId, now: Duration) {
        self.local.adapters.retain(|known| known.id != adapter);
        let uses = |link: &&Link| link.adapter.id == adapter;
        let failed: ArrayVec<_, LINK_SLOTS> =
            self.links.iter().filter(uses).map(|link| link.user_id).collect();
        for link in failed {
            self.fail_link(link, DeleteReason::LOST_PATH, now);
        }
        self.settle(now);
    }

    /// The queue pair of a link has broken, or could not be brought into a state that was asked for.
    pub fn handle_link_failed(&mut self, link: LinkUserId, now: Duration) {
        self.fail_link(link, DeleteReason::LOST_PATH, now);
        self.settle(now);
    }

    /// The peer's adapter has the message that was sent under this ticket.
    pub fn handle_sent(&mut self, ticket: Ticket, now: Duration) {
        self.farewell_sent(ticket);
        self.settle(now);
    }

    /// Takes the flow under way a step further, now that the device has done something for it.
    fn advance(&mut self, now: Duration) {
        match (&self.phase, &self.flow) {
            (Phase::FirstContact(_), _) => self.advance_first_contact(now),
            (Phase::Live(_), Some(Flow::AddLink(_))) => self.advance_add_link(now),
            _ => {}
        }
    }

    /// Begins what can begin. The end of every call.
    fn settle(&mut self, now: Duration) {
        if !matches!(self.phase, Phase::Live(_)) {
            return;
        }
        self.register_new_rmbs();
        self.take_parked(now);
        match self.role {
            Role::Server => self.delete_next(now),
            Role::Client => self.hint(),
        }
        self.grow(now);
        self.begin_rkeys(now);
        self.establish(now);
    }

    /// Whether a flow that changes the configuration could begin.
    const fn has_turn(&self) -> bool {
        matches!(self.phase, Phase::Live(_)) && self.flow.is_none() && self.rkey_flow.is_none()
    }
}

// ---- links --------------------------------------------------------------------------------------

impl LinkGroup {
    fn link_mut(&mut self, user_id: LinkUserId) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.user_id == user_id)
    }

    fn link_numbered(&self, number: LinkNumber) -> Option<&Link> {
        self.links.iter().find(|link| link.number == number)
    }

    fn active(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|link| link.state == LinkState::Active)
    }

    /// An active link for a flow; the first one, if it is not the one to be avoided.
    fn active_but(&self, avoided: LinkUserId) -> Option<LinkUserId> {
        self.active().map(Link::user_id).find(|link| *link != avoided)
    }

    /// A new link on an adapter of ours, whose queue pair is to be made. `None`: there is no place.
    fn allocate_link(&mut self, number: LinkNumber, adapter: Adapter) -> Option<LinkUserId> {
        let user_id = loop {
            self.last_user_id = self.last_user_id.wrapping_add(1);
            let user_id = LinkUserId(self.local.group << 8 | u32::from(self.last_user_id));
            if self.last_user_id != 0 && self.link(user_id).is_none() {
                break user_id;
            }
        };
        self.links.try_push(Link::new(user_id, number, adapter)).ok()?;
        self.command(Command::CreateQueuePair { link: user_id, adapter: adapter.id });
        Some(user_id)
    }

    /// Server: the number of the next link. None is used again before all were (RFC 7609 §2.2.4).
    fn next_number(&mut self) -> LinkNumber {
        loop {
            self.last_number = self.last_number.wrapping_add(1);
            let number = LinkNumber(self.last_number);
            if self.last_number != 0 && self.link_numbered(number).is_none() {
                return number;
            }
        }
    }

    /// A link is confirmed by both sides.
    fn activate(&mut self, user_id: LinkUserId, now: Duration) {
        if let Some(link) = self.link_mut(user_id) {
            link.state = LinkState::Active;
            link.last_received = now;
            self.events.push_back(Event::LinkUp(user_id));
        }
    }

    /// A link of which the peer knows nothing, or no longer, is gone.
    fn remove_link(&mut self, user_id: LinkUserId) {
        let Some(at) = self.links.iter().position(|link| link.user_id == user_id) else { return };
        let link = self.links.remove(at);
        self.peer_rmbs.forget_link(user_id);
        for rmb in &mut self.rmbs {
            rmb.forget_link(user_id);
        }
        if !link.is_destroyed {
            self.command(Command::Destroy { link: user_id });
        }
    }
}

// ---- output -------------------------------------------------------------------------------------

impl LinkGroup {
    fn command(&mut self, command: Command) {
        self.commands.push_back(command);
    }

    fn event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    fn ready_to_send(&mut self, user_id: LinkUserId) {
        if let Some(link) = self.link_mut(user_id) {
            link.is_sending = true;
            self.command(Command::ReadyToSend { link: user_id });
        }
    }

    /// Sends an LLC message over a link. A peer that asks for an answer over one that is still in
    /// the making gets none.
    fn send(&mut self, link: LinkUserId, message: impl Into<Message>) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        if !self.link(link).is_some_and(|link| link.is_sending) {
            return ticket;
        }
        let mut room = [0; llc::EMITTED_LEN_MAX];
        match message.into().emit(&mut room) {
            Ok(len) => {
                let bytes = room[..len].to_vec();
                self.command(Command::Send { link, ticket, bytes });
            }
            // The room is enough for any, and the lists are cut to size where messages are made.
            Err(error) => debug_assert!(false, "{error}"),
        }
        ticket
    }
}
