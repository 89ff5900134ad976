//! DELETE LINK: a link goes, or the whole group does.
//!
//! A link goes because it has failed, because a side wants it to, or because it is asymmetric and
//! not needed any more. Its connections move at once, each side for itself (RFC 7609 §4.6); then the
//! two sides agree on it over another link:
//!
//! ```text
//!   client                                            server
//!   [ DELETE LINK request: a wish ] --------------->
//!         <---------------------------- DELETE LINK request
//!   DELETE LINK response -------------------------->
//!   destroys its end                                  destroys its end
//! ```
//!
//! Both may notice at once: then the server's request and the client's wish cross, the request is
//! answered, and the wish finds the link gone. A client that is told of a link it does not have says
//! so in its response, which is as good as any other; so does a server, of a wish.
//!
//! When the last link goes, the group does. While a link is left, that is announced by DELETE LINK
//! of all links, which has no response; but each side sends one, and so both know:
//!
//! ```text
//!   DELETE LINK all ------------------------------->  connections are reset
//!         <-----------------------------------------  DELETE LINK all
//! ```
//!
//! *Source*: RFC 7609 §3.5.4, §3.5.5.1.3, §3.5.5.1.4, §C.7.1; Linux `net/smc/smc_llc.c`.

use core::time::Duration;

use arrayvec::ArrayVec;
use sidestep_wire::llc::{self, DeleteLink, DeleteReason, DeleteScope};
use sidestep_wire::{Diagnosis, LinkUserId};

use super::flow::{DeleteLinkFlow, Ending, Flow, Live, Phase};
use super::limits::LINK_SLOTS;
use super::link::{Farewell, Link, LinkState, Ticket};
use super::output::{Command, Event};
use super::state::{LinkGroup, Role};
use super::timers::{ASK_WAIT, DELETE_LINK_TRIES, DELETE_LINK_TRIES_HEARD, LLC_WAIT};

// ---- the program --------------------------------------------------------------------------------

impl LinkGroup {
    /// Ends a link in order, by wish of an operator. A client asks the server to. False: there is no
    /// such link, or no other for its connections.
    pub fn delete_link(&mut self, link: LinkUserId, now: Duration) -> bool {
        let is_active = self.link(link).is_some_and(|link| link.state == LinkState::Active);
        let Some(over) = self.active_but(link).filter(|_| is_active) else { return false };
        match self.role {
            Role::Server => self.resign(link, DeleteReason::OPERATOR),
            Role::Client => {
                self.send_delete_link(link, over, llc::Role::Request, DeleteReason::OPERATOR, true);
            }
        }
        self.settle(now);
        true
    }

    /// Ends the group with all its connections. In order, if the peer is to think nothing of it.
    pub fn end(&mut self, reason: DeleteReason, is_orderly: bool, now: Duration) {
        match self.phase {
            Phase::FirstContact(_) => self.finish(),
            Phase::Live(_) => self.begin_ending(reason, is_orderly, false, now),
            Phase::Ending(_) | Phase::Ended => {}
        }
    }
}

// ---- a link goes --------------------------------------------------------------------------------

impl LinkGroup {
    /// A link does not work, or its peer does not keep to the protocol.
    pub(super) fn fail_link(&mut self, user_id: LinkUserId, reason: DeleteReason, now: Duration) {
        let Some(link) = self.link(user_id) else { return };
        let (state, farewell) = (link.state, link.farewell);
        match (&self.phase, state) {
            (Phase::FirstContact(_), _) => {
                self.decline(Diagnosis::TIMEOUT_CL);
            }
            (Phase::Ending(_), _) => self.ending_link_failed(user_id),
            (Phase::Ended, _) => {}
            (Phase::Live(_), LinkState::Allocated | LinkState::Activating) => {
                self.abort_add_link(reason, now);
            }
            (Phase::Live(_), LinkState::Active) => {
                self.dismiss(user_id, reason, now);
                self.destroy(user_id);
            }
            (Phase::Live(_), LinkState::Deleting) => {
                // What is agreed over other links goes on. What was to go over this one does not.
                if matches!(farewell, Some(Farewell::Answered { .. })) {
                    self.remove_link(user_id);
                }
            }
        }
    }

    /// Nothing more travels over a link. Connections that have left it need not wait for what they
    /// had posted there, and a peer that still uses it is refused, and learns it so.
    fn destroy(&mut self, user_id: LinkUserId) {
        if let Some(link) = self.link_mut(user_id) {
            (link.is_sending, link.is_destroyed) = (false, true);
            self.command(Command::Destroy { link: user_id });
        }
    }

    /// Takes a link that the peer knows out of use, and sees to it that the peer learns that.
    pub(super) fn dismiss(&mut self, user_id: LinkUserId, reason: DeleteReason, now: Duration) {
        if let Some(link) = self.link_mut(user_id) {
            let was_active = link.state == LinkState::Active;
            link.state = LinkState::Deleting;
            link.farewell = Some(Farewell::Due(reason));
            link.test = None;
            if was_active {
                self.growth.link_lost(now);
                self.event(Event::LinkDown(user_id));
                self.move_connections(user_id);
            }
        }
        if self.active().next().is_none() {
            return self.die(reason);
        }
        if self.role == Role::Client {
            self.ask(user_id, reason, now);
        }
        self.leave_flows(user_id, now);
    }

    /// Server: takes a link out of use when it is time.
    fn resign(&mut self, user_id: LinkUserId, reason: DeleteReason) {
        if let Some(link) = self.link_mut(user_id) {
            link.resigns = Some(reason);
        }
    }

    /// What went over a link that does not work begins again over another.
    fn leave_flows(&mut self, user_id: LinkUserId, now: Duration) {
        match &self.flow {
            Some(Flow::AddLink(flow)) if flow.over == user_id || flow.new == user_id => {
                self.abort_add_link(DeleteReason::LOST_PATH, now);
            }
            // The link that was to be deleted is still to be announced.
            Some(Flow::DeleteLink(flow)) if flow.over == user_id => self.flow = None,
            _ => {}
        }
        self.leave_rkey_flow(user_id);
        self.parked.take_if(|(via, _)| *via == user_id);
        let asked_over = |link: &Link| match link.farewell {
            Some(Farewell::Asked { over, reason, .. }) if over == user_id => {
                Some((link.user_id, reason))
            }
            _ => None,
        };
        let unheard: ArrayVec<_, LINK_SLOTS> = self.links.iter().filter_map(asked_over).collect();
        for (link, reason) in unheard {
            self.ask(link, reason, now);
        }
    }

    /// Client: asks the server to delete a link that is out of use.
    fn ask(&mut self, user_id: LinkUserId, reason: DeleteReason, now: Duration) {
        let Some(over) = self.active_but(user_id) else { return };
        self.send_delete_link(user_id, over, llc::Role::Request, reason, false);
        if let Some(link) = self.link_mut(user_id) {
            link.farewell = Some(Farewell::Asked { over, until: now + ASK_WAIT, reason });
        }
    }

    /// Client: the server was asked to delete this link, and did not.
    ///
    /// RFC 7609 §C.7.1 takes the link over which it was asked for failed, too. But a server of Linux
    /// deletes a link only when it knows what became of all that it has sent over it, and where the path
    /// is cut its soft adapter repeats that for ever; meanwhile it answers over the other link. So it is
    /// asked again, and that link has failed if it does not answer a test either.
    pub(super) fn ask_timed_out(&mut self, user_id: LinkUserId, now: Duration) {
        if let Some(Farewell::Asked { over, reason, .. }) =
            self.link(user_id).and_then(|it| it.farewell)
        {
            self.ask(user_id, reason, now);
            self.doubt(over, now);
        }
    }

    fn send_delete_link(
        &mut self,
        link: LinkUserId,
        over: LinkUserId,
        role: llc::Role,
        reason: DeleteReason,
        orderly: bool,
    ) -> Option<Ticket> {
        let scope = DeleteScope::Link(self.link(link)?.number);
        Some(self.send(over, DeleteLink { form: self.form, role, scope, orderly, reason }))
    }

    /// Server: announces the next link that goes.
    pub(super) fn delete_next(&mut self, now: Duration) {
        if !self.has_turn() {
            return;
        }
        self.retire_next(now);
        let due = self.links.iter().find_map(|link| match link.farewell {
            Some(Farewell::Due(reason)) => Some((link.user_id, reason)),
            _ => None,
        });
        if let (Some((link, reason)), true) = (due, self.has_turn()) {
            self.announce(link, reason, 1, now);
        }
    }

    /// Server: a link that is no longer wanted goes out of use, if another can take its place.
    fn retire_next(&mut self, now: Duration) {
        let resigns = |link: &Link| {
            link.resigns.filter(|_| link.state == LinkState::Active).map(|it| (link.user_id, it))
        };
        let wanted = self.links.iter().find_map(resigns);
        let surplus = self.asymmetric_link().filter(|_| self.is_redundant());
        let next = wanted.or(surplus.map(|link| (link, DeleteReason::ASYMMETRIC)));
        let Some((link, reason)) = next else { return };
        match self.active_but(link) {
            Some(_) => self.dismiss(link, reason, now),
            // The last link is the group.
            None => self.begin_ending(reason, true, false, now),
        }
    }

    fn announce(&mut self, link: LinkUserId, reason: DeleteReason, tries: u8, now: Duration) {
        let Some(over) = self.active_but(link) else { return };
        let is_orderly =
            reason != DeleteReason::LOST_PATH && reason != DeleteReason::PROTOCOL_VIOLATION;
        self.send_delete_link(link, over, llc::Role::Request, reason, is_orderly);
        let until = now + LLC_WAIT;
        self.flow = Some(Flow::DeleteLink(DeleteLinkFlow { link, over, until, tries }));
    }

    /// Server: no response.
    pub(super) fn delete_link_timed_out(&mut self, now: Duration) {
        let Some(Flow::DeleteLink(DeleteLinkFlow { link, over, tries, until })) = self.flow else {
            return;
        };
        self.flow = None;
        let sent = until.saturating_sub(LLC_WAIT);
        let is_heard = self.link(over).is_some_and(|over| over.was_heard_since(sent));
        let is_only = self.active().all(|link| link.user_id == over);
        let tries_max = match is_heard {
            true => DELETE_LINK_TRIES_HEARD,
            false => DELETE_LINK_TRIES,
        };
        // Of the only link its test decides, which waits longer: the peer may stand still.
        let counts = is_heard || !is_only;
        if counts && tries >= tries_max {
            // "The link over which the server sent the DELETE LINK is no longer usable either",
            // RFC 7609 §C.7.1.
            return self.fail_link(over, DeleteReason::LOST_PATH, now);
        }
        if let Some(Farewell::Due(reason)) = self.link(link).and_then(|link| link.farewell) {
            self.announce(link, reason, tries + u8::from(counts), now);
        }
        self.doubt(over, now);
    }

    /// A DELETE LINK of one link has come.
    pub(super) fn take_delete_link(
        &mut self,
        via: LinkUserId,
        message: &DeleteLink,
        now: Duration,
    ) {
        let DeleteScope::Link(number) = message.scope else { return };
        let link = self.link_numbered(number).map(|link| (link.user_id, link.state));
        match (message.role, self.role) {
            (llc::Role::Request, Role::Client) => match link {
                Some((link, _)) => self.comply(via, link, message, now),
                None => self.answer_delete_link(via, message, DeleteReason::UNKNOWN_LINK),
            },
            (llc::Role::Request, Role::Server) => match link {
                // It goes already, and the client will hear of it.
                Some((_, LinkState::Deleting)) => {}
                // In order, it has time until the flow under way is over. Linux calls even the end
                // of a link orderly that it has lost.
                Some((link, LinkState::Active))
                    if message.orderly && message.reason != DeleteReason::LOST_PATH =>
                {
                    self.resign(link, message.reason);
                }
                Some((link, _)) => self.fail_link(link, message.reason, now),
                None => self.answer_delete_link(via, message, DeleteReason::UNKNOWN_LINK),
            },
            (llc::Role::Response, role) => {
                if let Some((link, LinkState::Deleting)) = link {
                    self.deleted(link, role);
                }
            }
        }
    }

    /// The peer has answered that a link is gone.
    fn deleted(&mut self, link: LinkUserId, role: Role) {
        let is_ours = match (role, &self.flow) {
            (Role::Server, Some(Flow::DeleteLink(flow))) => flow.link == link,
            // To a wish the server responds only if it has no such link.
            (Role::Client, _) => true,
            _ => false,
        };
        if is_ours {
            if role == Role::Server {
                self.flow = None;
            }
            self.remove_link(link);
        }
    }

    fn answer_delete_link(&mut self, via: LinkUserId, message: &DeleteLink, reason: DeleteReason) {
        let role = llc::Role::Response;
        self.send(via, DeleteLink { form: self.form, role, reason, ..*message });
    }

    /// Client: the server deletes a link. It cannot be refused.
    fn comply(&mut self, via: LinkUserId, link: LinkUserId, message: &DeleteLink, now: Duration) {
        let (form, role, reason) = (self.form, llc::Role::Response, DeleteReason::NONE);
        let ticket = self.send(via, DeleteLink { form, role, reason, ..*message });
        let was_active = self.link(link).is_some_and(|it| it.state == LinkState::Active);
        if was_active && self.active_but(link).is_none() {
            // The last link is the group. The answer is on its way; nothing else needs saying.
            return self.begin_ending_with((via, ticket), message.reason, now);
        }
        if let Some(link) = self.link_mut(link) {
            link.state = LinkState::Deleting;
            link.farewell = Some(Farewell::Answered { until: now + LLC_WAIT, ticket });
            link.test = None;
        }
        if was_active {
            self.event(Event::LinkDown(link));
            self.move_connections(link);
        }
        if matches!(&self.flow, Some(Flow::AddLink(flow)) if flow.new == link) {
            self.flow = None;
        }
        self.leave_flows(link, now);
        if via != link {
            self.remove_link(link);
        }
    }

    /// A message has arrived at the peer: perhaps the last one of a link, or of the group.
    pub(super) fn farewell_sent(&mut self, sent: Ticket) {
        let left = self.links.iter().find(
            |link| matches!(link.farewell, Some(Farewell::Answered { ticket, .. }) if ticket == sent),
        );
        if let Some(link) = left.map(Link::user_id) {
            self.remove_link(link);
        }
        match &mut self.phase {
            Phase::Ending(ending) if ending.announced.1 == sent => {
                ending.is_sent = true;
                self.finish_if_both_know();
            }
            Phase::Live(live) => {
                live.unsent.take_if(|ticket| *ticket == sent);
            }
            _ => {}
        }
    }
}

// ---- the group goes -----------------------------------------------------------------------------

impl LinkGroup {
    /// The peer ends the group.
    pub(super) fn take_delete_group(&mut self, message: &DeleteLink, now: Duration) {
        match &mut self.phase {
            Phase::FirstContact(_) => self.decline(Diagnosis::NOACTLINK),
            Phase::Live(_) => self.begin_ending(message.reason, true, true, now),
            Phase::Ending(ending) => {
                ending.is_heard = true;
                self.finish_if_both_know();
            }
            Phase::Ended => {}
        }
    }

    pub(super) fn begin_ending(
        &mut self,
        reason: DeleteReason,
        is_orderly: bool,
        is_heard: bool,
        now: Duration,
    ) {
        let Some(over) = self.active().next().map(Link::user_id) else {
            return self.die(reason);
        };
        let ticket = self.announce_end(over, reason, is_orderly);
        self.begin_ending_with((over, ticket), reason, now);
        if let Phase::Ending(ending) = &mut self.phase {
            ending.is_orderly = is_orderly;
            ending.is_heard = is_heard;
        }
    }

    fn announce_end(&mut self, over: LinkUserId, reason: DeleteReason, orderly: bool) -> Ticket {
        let (role, scope) = (llc::Role::Request, DeleteScope::All);
        self.send(over, DeleteLink { form: self.form, role, scope, orderly, reason })
    }

    fn begin_ending_with(
        &mut self,
        announced: (LinkUserId, Ticket),
        reason: DeleteReason,
        now: Duration,
    ) {
        self.flow = None;
        self.rkey_flow = None;
        self.parked = None;
        self.idle_until = None;
        self.event(Event::Ending(reason));
        self.phase = Phase::Ending(Ending {
            reason,
            is_orderly: true,
            announced,
            is_sent: false,
            is_heard: true,
            until: now + LLC_WAIT,
        });
    }

    /// RFC 7609 §C.7.1: "try resending on other links in the link group".
    fn ending_link_failed(&mut self, user_id: LinkUserId) {
        self.remove_link(user_id);
        let Phase::Ending(ending) = self.phase else { return };
        if ending.announced.0 != user_id || ending.is_sent {
            return;
        }
        let Some(over) = self.active().next().map(Link::user_id) else { return self.finish() };
        let ticket = self.announce_end(over, ending.reason, ending.is_orderly);
        self.phase = Phase::Ending(Ending { announced: (over, ticket), ..ending });
    }

    fn finish_if_both_know(&mut self) {
        if matches!(self.phase, Phase::Ending(Ending { is_sent: true, is_heard: true, .. })) {
            self.finish();
        }
    }

    /// No link is left to say anything over. Over TCP there is, until a client knows that its
    /// CONFIRM LINK response has arrived (RFC 7609 §C.2).
    fn die(&mut self, reason: DeleteReason) {
        if matches!(self.phase, Phase::Live(Live { unsent: Some(_), .. })) {
            return self.decline(Diagnosis::TIMEOUT_CL);
        }
        self.event(Event::Ending(reason));
        self.finish();
    }

    /// Gives everything back to the device.
    pub(super) fn finish(&mut self) {
        while let Some(link) = self.links.last().map(Link::user_id) {
            self.remove_link(link);
        }
        self.flow = None;
        self.rkey_flow = None;
        self.parked = None;
        self.idle_until = None;
        self.rmbs.clear();
        self.peer_rmbs.clear();
        self.connections.clear();
        self.phase = Phase::Ended;
        self.event(Event::Ended);
    }
}
