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
//! - `poll_…`: what to do ([`poll_command`](LinkGroup::poll_command)), what has happened
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
//! Between them a group is at rest ([`LinkGroup::at_rest`]), and another process can go on with it.
//!
//! The fields of a group stand in `state`, and how far flows have got in `flow`; the modules of the table take
//! their steps.
//!
//! What waits for its turn is not queued but found again: a link in [`LinkState::Deleting`] has to be
//! announced, an RMB in [`RmbState::New`] confirmed. So a wish cannot be lost, and one that has
//! become pointless is not carried out. `LinkGroup::settle`, at the end of every call, begins what
//! can begin.
//!
//! # Where the RFC and Linux differ
//!
//! | Matter | RFC 7609 | Linux | Here |
//! |---|---|---|---|
//! | the client's CONFIRM RKEY during ADD LINK or DELETE LINK | refused, to be repeated | accepted | accepted; a refusal is answered by trying again |
//! | ADD LINK crosses the client's CONFIRM RKEY | taken up at once | parked until the answer | parked: the answer is already on its way, and the pairs are then complete |
//! | no answer to a flow | the link it went over has failed | the flow has failed | TEST LINK at once: a peer that answers that, or says anything else, has a link |
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
//! a link that is made anew costs a second. No implementation is known to send such a message.
//!
//! When a link comes back, new connections go where there are fewest, and some of the old ones move
//! there (`balance`); §2.3 leaves that open, and those of Linux stay where they are.
//!
//! Nothing here does I/O. This module and those below are the only ones of the crate that allocate:
//! a link group is made once for many connections, by an owner that has memory for its queue pairs.
//!
//! *Source*: RFC 7609 §2.2, §3.5, Appendix C.7 and C.8; Linux `net/smc/smc_llc.c`, `smc_core.c`.

use core::time::Duration;

use arrayvec::ArrayVec;
use sidestep_wire::LinkUserId;
use sidestep_wire::llc::DeleteReason;

mod add_link;
mod at_rest;
mod balance;
mod connections;
mod deadlines;
mod delete_link;
mod first_contact;
mod flow;
mod growth;
mod limits;
mod link;
mod output;
mod received;
mod rkeys;
mod rmb;
mod state;
mod test_link;
#[cfg(test)]
mod tests;
mod timers;

pub use at_rest::{AtRest, LinkAtRest};
pub use connections::Refusal;
pub use first_contact::{Agreement, Introduction};
pub use limits::{ADAPTERS_MAX, CONNECTIONS_MAX, LINK_SLOTS, LINKS_MAX, RMBS_MAX};
pub use link::{Adapter, AdapterId, Link, LinkEnd, LinkState, Ticket};
pub use output::{Command, Event};
pub use rkeys::RmbError;
pub use rmb::{PeerRmbId, RmbId, RmbState, Rtoken};
pub use state::{Connection, LinkGroup, Local, Role};
pub use timers::KEEPALIVE;

use flow::{Flow, Phase};

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
