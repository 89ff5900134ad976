//! ADD LINK: the group gets another link.
//!
//! ```text
//!   server                                                     client
//!   Preparing: queue pair, RMBs on it
//!      ---- ADD LINK request [v2: keys] ---------------------->   Preparing: queue pair, RMBs on it,
//!   Answering                                                     ready to receive
//!      <--- ADD LINK response [v2: keys], or reject -----------
//!      ---- v1: ADD LINK CONTINUATION request, keys ---------->   Exchanging
//!   Exchanging
//!      <--- v1: ADD LINK CONTINUATION response, keys ----------   (until neither has more)
//!   Connecting: ready to receive, to send
//!      ==== CONFIRM LINK request, over the new link ==========>   Confirming
//!   Confirming
//!      <=== CONFIRM LINK response =============================
//! ```
//!
//! All but CONFIRM LINK goes *over* one link that exists.
//!
//! Which adapters: the server takes one that no symmetric link uses, else that of its only link. The
//! client does the same, so that one of these comes out:
//!
//! | server has | client has | new link |
//! |---|---|---|
//! | a second adapter | a second adapter | symmetric: no failure of one adapter takes both |
//! | a second adapter | one adapter | asymmetric, the client's adapter is shared |
//! | one adapter | a second adapter | asymmetric, the server's adapter is shared |
//! | one adapter | one adapter | none: it would be parallel, and is rejected |
//!
//! A group has one asymmetric link at most, and gives it up when there are two symmetric ones.
//!
//! *Source*: RFC 7609 §3.5.1.6, §3.5.5.1.1, §3.5.5.2.3, §C.7.1, §C.8.

use core::time::Duration;

use arrayvec::ArrayVec;
use sidestep_wire::clc::Version;
use sidestep_wire::llc::{
    self, AddLink, AddLinkContinuation, AddLinkExtension, AddLinkForm, AddLinkStep, ConfirmLink,
    DeleteReason, Form, RejectReason, RequestAddLink, RtokenPair,
};
use sidestep_wire::{LinkNumber, LinkUserId, Mtu, Psn, QpNumber};

use super::flow::{AddLinkFlow, Exchange, Flow, Live, Phase, Step};
use super::limits::{LINK_SLOTS, RMBS_MAX};
use super::link::{Adapter, AdapterId, Link, LinkEnd, LinkState, symmetric};
use super::rmb::{RmbState, Rtoken};
use super::state::{LinkGroup, Role};
use super::timers::{CONFIRM_LINK_WAIT, CONFIRM_LINK_WAIT_CLIENT, DEVICE_WAIT, LLC_WAIT};

// ---- both sides ---------------------------------------------------------------------------------

impl LinkGroup {
    fn add_link_flow(&mut self) -> Option<&mut AddLinkFlow> {
        match &mut self.flow {
            Some(Flow::AddLink(flow)) => Some(flow),
            _ => None,
        }
    }

    /// The flow in which a message over the link `via` about the link `number` has a place.
    fn add_link_flow_of(
        &mut self,
        via: LinkUserId,
        number: LinkNumber,
    ) -> Option<&mut AddLinkFlow> {
        let new = self.link_numbered(number).map(Link::user_id)?;
        self.add_link_flow().filter(|flow| flow.over == via && flow.new == new)
    }

    fn step_add_link(&mut self, step: Step, until: Duration) {
        if let Some(flow) = self.add_link_flow() {
            flow.step = step;
            flow.until = until;
        }
    }

    /// The device has done something for the new link.
    pub(super) fn advance_add_link(&mut self, now: Duration) {
        let Some(flow) = self.add_link_flow() else { return };
        let (over, new) = (flow.over, flow.new);
        let (is_preparing, is_connecting) =
            (matches!(flow.step, Step::Preparing), matches!(flow.step, Step::Connecting));
        let Some(link) = self.link(new) else { return };
        let is_receiving = link.is_receiving;
        let is_prepared = link.qp.is_some() && self.is_registered_on(new);
        match self.role {
            Role::Server if is_preparing && is_prepared => {
                self.send_add_link(AddLinkStep::Request, over, new);
                self.step_add_link(Step::Answering, now + LLC_WAIT);
            }
            Role::Client if is_preparing && is_prepared && is_receiving => {
                self.send_add_link(AddLinkStep::Response, over, new);
                match self.version() {
                    Version::V1 => self.begin_exchange(over, new, now),
                    Version::V2 => {
                        self.step_add_link(Step::Confirming, now + CONFIRM_LINK_WAIT_CLIENT);
                    }
                }
            }
            Role::Server if is_connecting && is_receiving => {
                self.ready_to_send(new);
                self.confirm_link(new, llc::Role::Request);
                self.step_add_link(Step::Confirming, now + CONFIRM_LINK_WAIT);
            }
            _ => {}
        }
    }

    /// Whether the device has registered all RMBs on the link that the peer knows.
    fn is_registered_on(&self, link: LinkUserId) -> bool {
        let mut announced = self.rmbs.iter().filter(|rmb| rmb.state == RmbState::Announced);
        announced.all(|rmb| rmb.key_on(link).is_some())
    }

    /// Our RMBs as the peer knows them on one link, and as they are on another.
    fn pairs(&self, over: LinkUserId, new: LinkUserId) -> impl Iterator<Item = RtokenPair> {
        let announced = self.rmbs.iter().filter(|rmb| rmb.state == RmbState::Announced);
        announced.filter_map(move |rmb| {
            let (known, added) = (rmb.key_on(over)?, rmb.key_on(new)?);
            Some(RtokenPair { reference: known.rkey, rkey: added.rkey, address: added.address })
        })
    }

    /// Takes the peer's RMBs on the new link. One that is not known on the old link may just have
    /// been deleted, which is no error.
    fn learn_pairs(&mut self, over: LinkUserId, new: LinkUserId, pairs: &[RtokenPair]) {
        for pair in pairs {
            let rtoken = Rtoken { rkey: pair.rkey, address: pair.address };
            if let Some(id) = self.peer_rmbs.find(over, pair.reference) {
                // A key that two RMBs shall have is the first one's; connections of the other
                // cannot move.
                let _ = self.peer_rmbs.extend(id, new, rtoken);
            }
        }
    }

    fn send_add_link(&mut self, step: AddLinkStep, over: LinkUserId, new: LinkUserId) {
        let Some(link) = self.link(new) else { return };
        let Some(end) = link.end() else { return };
        let message = AddLink {
            step,
            mac: end.mac,
            gid: end.gid,
            qp_number: end.qp,
            link_number: link.number,
            mtu: link.mtu(),
            psn: end.psn,
            form: match self.form {
                Form::V1 => AddLinkForm::V1,
                Form::V2(order) => AddLinkForm::V2 {
                    order,
                    extension: Some(AddLinkExtension {
                        direct: self.local.direct,
                        target_gid: end.gid,
                        pairs: self.pairs(over, new).take(RMBS_MAX).collect(),
                    }),
                },
            },
        };
        self.send(over, message);
    }

    /// Version 1: from now on CONTINUATIONs tell the keys.
    fn begin_exchange(&mut self, over: LinkUserId, new: LinkUserId, now: Duration) {
        let exchange = Exchange { to_send: self.pairs(over, new).collect(), to_come: None };
        self.step_add_link(Step::Exchanging(exchange), now + LLC_WAIT);
    }

    fn send_continuation(&mut self, role: llc::Role, now: Duration) {
        let Some(flow) = self.add_link_flow() else { return };
        let (over, new) = (flow.over, flow.new);
        let Step::Exchanging(exchange) = &mut flow.step else { return };
        let (remaining, pairs) = exchange.next();
        flow.until = now + LLC_WAIT;
        let Some(link_number) = self.link(new).map(Link::number) else { return };
        self.send(over, AddLinkContinuation { role, link_number, remaining, pairs });
    }

    /// An ADD LINK CONTINUATION has come.
    pub(super) fn take_continuation(
        &mut self,
        via: LinkUserId,
        message: &AddLinkContinuation,
        now: Duration,
    ) {
        let is_expected = (message.role == llc::Role::Request) == (self.role == Role::Client);
        let Some(flow) = self.add_link_flow_of(via, message.link_number) else { return };
        let Step::Exchanging(exchange) = &mut flow.step else { return };
        if !is_expected {
            return;
        }
        let (over, new) = (flow.over, flow.new);
        if exchange.received(message).is_err() {
            // "Treat as if detected link outage", RFC 7609 §C.7.1.
            return self.fail_link(over, DeleteReason::PROTOCOL_VIOLATION, now);
        }
        let is_complete = exchange.is_complete();
        self.learn_pairs(over, new, &message.pairs);
        match self.role {
            Role::Server if is_complete => {
                self.step_add_link(Step::Connecting, now + DEVICE_WAIT);
                self.advance_add_link(now);
            }
            Role::Server => self.send_continuation(llc::Role::Request, now),
            Role::Client => {
                self.send_continuation(llc::Role::Response, now);
                if self.is_exchange_complete() {
                    self.step_add_link(Step::Confirming, now + CONFIRM_LINK_WAIT_CLIENT);
                }
            }
        }
    }

    fn is_exchange_complete(&mut self) -> bool {
        self.add_link_flow()
            .is_some_and(|flow| matches!(&flow.step, Step::Exchanging(it) if it.is_complete()))
    }

    /// A CONFIRM LINK over the new link, of the role that is expected. Wrong information breaks it.
    pub(super) fn new_link_confirmed(
        &mut self,
        via: LinkUserId,
        message: &ConfirmLink,
        now: Duration,
    ) {
        let Some(link) = self.link(via) else { return };
        if message.link_number != link.number || !self.is_of_peer(via, message) {
            return self.abort_add_link(DeleteReason::PROTOCOL_VIOLATION, now);
        }
        if self.role == Role::Client {
            self.ready_to_send(via);
            self.confirm_link(via, llc::Role::Response);
        }
        if let Some(link) = self.link_mut(via) {
            link.peer_user_id = message.link_user_id;
        }
        self.activate(via, now);
        self.flow = None;
        self.growth.succeeded();
        self.balance_soon(now);
    }

    /// Whether CONFIRM LINK is expected over this link.
    pub(super) fn is_confirming(&self, link: LinkUserId) -> bool {
        matches!(&self.flow, Some(Flow::AddLink(flow))
            if flow.new == link && matches!(flow.step, Step::Confirming))
    }

    /// There will be no new link. If the peer knows of it, it is told.
    pub(super) fn abort_add_link(&mut self, reason: DeleteReason, now: Duration) {
        let Some(Flow::AddLink(AddLinkFlow { over, new, step, .. })) = self.flow.take() else {
            return;
        };
        self.growth.failed(now);
        match (self.role, step) {
            (Role::Server, Step::Preparing) => self.remove_link(new),
            (Role::Client, Step::Preparing) => {
                self.reject_prepared(over, new);
                self.remove_link(new);
            }
            _ => self.dismiss(new, reason, now),
        }
    }

    /// Client: the device does not make the link that the server has asked for. A rejection says
    /// again what the request said.
    fn reject_prepared(&mut self, over: LinkUserId, new: LinkUserId) {
        let is_active = self.link(over).is_some_and(|link| link.state == LinkState::Active);
        let Some((number, Some(peer))) = self.link(new).map(|link| (link.number, link.peer)) else {
            return;
        };
        if is_active {
            let message = AddLink {
                step: self.rejection(RejectReason::NO_ALTERNATE_PATH),
                mac: peer.mac,
                gid: peer.gid,
                qp_number: peer.qp,
                link_number: number,
                mtu: peer.mtu,
                psn: peer.psn,
                form: self.bare_form(),
            };
            self.send(over, message);
        }
    }

    /// Time is up.
    pub(super) fn add_link_timed_out(&mut self, now: Duration) {
        let Some(flow) = self.add_link_flow() else { return };
        let over = flow.over;
        let is_over_doubted = matches!(flow.step, Step::Answering | Step::Exchanging(_));
        self.abort_add_link(DeleteReason::LOST_PATH, now);
        if is_over_doubted {
            self.doubt(over, now);
        }
    }

    /// How a rejection is stated. Linux says no reason in version 2, and reads none.
    const fn rejection(&self, reason: RejectReason) -> AddLinkStep {
        AddLinkStep::Reject(match self.form {
            Form::V1 => reason,
            Form::V2(_) => RejectReason::NONE,
        })
    }

    /// Of a message that tells no keys.
    const fn bare_form(&self) -> AddLinkForm {
        match self.form {
            Form::V1 => AddLinkForm::V1,
            Form::V2(order) => AddLinkForm::V2 { order, extension: None },
        }
    }

    /// The adapters that no symmetric link of ours uses.
    fn free_adapters(&self) -> impl Iterator<Item = Adapter> {
        let used: ArrayVec<AdapterId, LINK_SLOTS> =
            symmetric(&self.links, self.version()).map(|link| link.adapter.id).collect();
        self.local.adapters.iter().copied().filter(move |adapter| !used.contains(&adapter.id))
    }

    /// Links that connections use, or will.
    fn live_links(&self) -> impl Iterator<Item = &Link> {
        let is_live = |state| matches!(state, LinkState::Activating | LinkState::Active);
        self.links.iter().filter(move |link| is_live(link.state))
    }

    /// A live link that is not a symmetric one.
    pub(super) fn asymmetric_link(&self) -> Option<LinkUserId> {
        self.live_links().map(Link::user_id).find(|link| self.is_asymmetric(*link))
    }

    /// Whether one more link may be made: there are too few, or it would take the place of an
    /// asymmetric one.
    fn has_room(&self, would_be_symmetric: bool) -> bool {
        let live = self.live_links().count();
        let replaces = would_be_symmetric && self.asymmetric_link().is_some();
        let limit = usize::from(self.max_links);
        limit > 1 && !self.links.is_full() && live < limit + usize::from(replaces)
    }
}

// ---- server -------------------------------------------------------------------------------------

impl LinkGroup {
    /// Server: begins ADD LINK if it is time, and there is an adapter for it.
    pub(super) fn grow(&mut self, now: Duration) {
        if self.role == Role::Client || !self.growth.is_due(now) || !self.has_turn() {
            return;
        }
        self.growth.begun(now);
        let Some((over, adapter)) = self.prospect() else { return };
        let number = self.next_number();
        if let Some(new) = self.allocate_link(number, adapter) {
            let until = now + DEVICE_WAIT;
            self.flow =
                Some(Flow::AddLink(AddLinkFlow { over, new, step: Step::Preparing, until }));
        }
    }

    /// Over which link to ask, and for which adapter.
    fn prospect(&self) -> Option<(LinkUserId, Adapter)> {
        let over = self.active().next()?;
        if let Some(free) = self.free_adapters().next() {
            return self.has_room(true).then_some((over.user_id, free));
        }
        let is_up = self.local.adapters.iter().any(|known| known.id == over.adapter.id);
        let is_alone = self.asymmetric_link().is_none();
        (is_up && is_alone && self.has_room(false)).then_some((over.user_id, over.adapter))
    }

    /// Server: the client has another adapter. In version 1 it says so by ADD LINK, and does not
    /// expect an answer; in version 2 by REQUEST ADD LINK, and gets one if there will be no link.
    pub(super) fn take_hint(&mut self, via: LinkUserId, now: Duration) {
        if self.add_link_flow().is_some() {
            // Our own ADD LINK is the answer (RFC 7609 §3.5.5.3.1). But it may have been for another
            // adapter, and come to nothing.
            return self.growth.hinted(now);
        }
        if self.prospect().is_some() {
            // Now or after the flow under way.
            self.growth.hinted(now);
        } else if let Form::V2(order) = self.form {
            let step = self.rejection(RejectReason::NO_ALTERNATE_PATH);
            self.send(via, RequestAddLink { order, step, gids: Default::default() });
        }
    }

    /// Server: the client's answer to our ADD LINK.
    pub(super) fn take_add_link_answer(
        &mut self,
        via: LinkUserId,
        message: &AddLink,
        now: Duration,
    ) {
        let Some(flow) = self.add_link_flow_of(via, message.link_number) else { return };
        if !matches!(flow.step, Step::Answering) {
            return;
        }
        let (over, new) = (flow.over, flow.new);
        if matches!(message.step, AddLinkStep::Reject(_)) {
            self.flow = None;
            self.growth.failed(now);
            return self.remove_link(new);
        }
        let peer = end_of(message);
        if !self.is_plausible(&peer) || self.would_be_parallel(new, &peer) {
            return self.abort_add_link(DeleteReason::PROTOCOL_VIOLATION, now);
        }
        if let Some(link) = self.link_mut(new) {
            link.peer = Some(peer);
        }
        self.connect_if_met(new);
        match &message.form {
            AddLinkForm::V1 => {
                self.begin_exchange(over, new, now);
                self.send_continuation(llc::Role::Request, now);
            }
            AddLinkForm::V2 { extension, .. } => {
                let pairs = extension.as_ref().map_or(&[][..], |extension| &extension.pairs);
                self.learn_pairs(over, new, pairs);
                self.step_add_link(Step::Connecting, now + DEVICE_WAIT);
            }
        }
        self.advance_add_link(now);
    }

    /// Whether another link already joins our adapter of the link to this one of the peer.
    fn would_be_parallel(&self, new: LinkUserId, peer: &LinkEnd) -> bool {
        let Some(adapter) = self.link(new).map(|link| link.adapter.id) else { return true };
        self.live_links().any(|link| {
            link.adapter.id == adapter
                && link.peer.is_some_and(|known| known.shares_adapter(peer, self.version()))
        })
    }
}

// ---- client -------------------------------------------------------------------------------------

impl LinkGroup {
    /// Client: the server wants to add a link.
    pub(super) fn take_add_link(&mut self, via: LinkUserId, message: AddLink, now: Duration) {
        if self.rkey_flow.is_some() {
            self.parked = Some((via, message));
            return;
        }
        if let Some(flow) = self.add_link_flow() {
            let new = flow.new;
            if self.link(new).is_some_and(|link| link.number == message.link_number) {
                return;
            }
            // The server has one at a time: it has given the other up.
            self.flow = None;
            self.remove_link(new);
        }
        if let Phase::Live(live) = &mut self.phase {
            // It has our CONFIRM LINK response.
            (live.patience, live.unsent) = (None, None);
        }
        match self.choose_adapter(via, &message) {
            Ok(adapter) => self.accept_link(via, &message, adapter, now),
            Err(reason) => {
                let (step, form) = (self.rejection(reason), self.bare_form());
                self.send(via, AddLink { step, form, ..message });
            }
        }
    }

    /// The ADD LINK that had to wait is taken up.
    pub(super) fn take_parked(&mut self, now: Duration) {
        if self.rkey_flow.is_none()
            && let Some((via, message)) = self.parked.take()
        {
            self.take_add_link(via, message, now);
        }
    }

    fn choose_adapter(&self, via: LinkUserId, message: &AddLink) -> Result<Adapter, RejectReason> {
        let none = RejectReason::NO_ALTERNATE_PATH;
        let peer = end_of(message);
        if message.mtu.bytes().is_none() {
            return Err(RejectReason::INVALID_MTU);
        }
        let is_number_free = message.link_number != LinkNumber(0)
            && self.link_numbered(message.link_number).is_none();
        if !self.is_plausible(&peer) || !is_number_free {
            return Err(none);
        }
        let is_shared_there = symmetric(&self.links, self.version())
            .filter_map(|link| link.peer)
            .any(|known| known.shares_adapter(&peer, self.version()));
        let free = self.free_adapters().next();
        let shared_here = self.link(via).map(|link| link.adapter);
        let (adapter, is_symmetric) = match (is_shared_there, free) {
            (false, Some(free)) => (free, true),
            (true, Some(free)) => (free, false),
            (false, None) => (shared_here.ok_or(none)?, false),
            (true, None) => return Err(none),
        };
        let may_be = is_symmetric || self.asymmetric_link().is_none();
        if may_be && self.has_room(is_symmetric) { Ok(adapter) } else { Err(none) }
    }

    fn accept_link(&mut self, via: LinkUserId, message: &AddLink, adapter: Adapter, now: Duration) {
        let Some(new) = self.allocate_link(message.link_number, adapter) else { return };
        if let Some(link) = self.link_mut(new) {
            link.peer = Some(end_of(message));
        }
        if let AddLinkForm::V2 { extension: Some(extension), .. } = &message.form {
            self.learn_pairs(via, new, &extension.pairs);
        }
        let (step, until) = (Step::Preparing, now + LLC_WAIT);
        self.flow = Some(Flow::AddLink(AddLinkFlow { over: via, new, step, until }));
    }

    /// Client: tells the server of an adapter that has come, if a link over it would help.
    pub(super) fn hint(&mut self) {
        let Some(fresh) = self.growth.fresh else { return };
        if !self.has_turn() || !matches!(self.phase, Phase::Live(Live { patience: None, .. })) {
            return;
        }
        // If there are links enough now, it may help later.
        if !self.has_room(true) {
            return;
        }
        self.growth.fresh = None;
        let is_free = |adapter: &Adapter| adapter.id == fresh;
        let Some(adapter) = self.free_adapters().find(is_free) else { return };
        let Some(over) = self.active().next() else { return };
        let (over, used) = (over.user_id, over.adapter.gid);
        match self.form {
            Form::V1 => self.send(
                over,
                AddLink {
                    step: AddLinkStep::Request,
                    mac: adapter.mac,
                    gid: adapter.gid,
                    qp_number: QpNumber::default(),
                    link_number: LinkNumber(0),
                    mtu: Mtu::default(),
                    psn: Psn::default(),
                    form: AddLinkForm::V1,
                },
            ),
            Form::V2(order) => {
                let gids = [used, adapter.gid].into_iter().collect();
                self.send(over, RequestAddLink { order, step: AddLinkStep::Request, gids })
            }
        };
    }
}

/// The sender's end of the new link.
fn end_of(message: &AddLink) -> LinkEnd {
    let AddLink { gid, mac, qp_number: qp, psn, mtu, .. } = *message;
    LinkEnd { gid, mac, qp, psn, mtu }
}
