//! CONFIRM RKEY and DELETE RKEY: receive buffers come and go.
//!
//! A side that takes a buffer (RMB) into use in a group that exists tells the peer its keys on all links
//! first, over any of them, and no connection begins with it before the answer. A side that takes one
//! out of use says so, and gives the memory up after the answer.
//!
//! Each side has one such exchange at a time. Those of the two sides do not disturb each other, and
//! the peer's are answered whatever is going on here (RFC 7609 §3.5.5.3).
//!
//! A peer may refuse for the moment: by the RFC a server does while it adds or deletes a link, and
//! Linux does when its table is full. So a refusal is taken as final only after
//! [`RKEY_TRIES`](super::timers) of them.
//!
//! *Source*: RFC 7609 §3.5.5.2, §C.7.1; Linux `net/smc/smc_llc.c`.

use core::time::Duration;

use arrayvec::ArrayVec;
use sidestep_wire::llc::{
    ConfirmRkey, ConfirmRkeyStep, DeleteReason, DeleteRkey, Form, LinkRtoken, RkeyStep,
};
use sidestep_wire::{Diagnosis, LinkUserId, Rkey};

use super::flow::{DELETED_MAX, Phase, RkeyFlow, What};
use super::limits::{LINK_SLOTS, RMBS_MAX};
use super::link::{Link, LinkState};
use super::output::{Command, Event};
use super::rmb::{NotTaken, PeerRmbId, Rmb, RmbId, RmbState, Rtoken};
use super::state::LinkGroup;
use super::timers::{LLC_WAIT, RKEY_RETRY, RKEY_TRIES};

/// Why an RMB was not taken or not given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RmbError {
    /// There are [`RMBS_MAX`] already.
    Full,
    /// There is one with this number, or none.
    Number,
    /// Connections use it.
    InUse,
    /// The group is not there yet, or not any more.
    NotLive,
}

// ---- our RMBs -----------------------------------------------------------------------------------

impl LinkGroup {
    /// Takes another buffer of ours into the group. [`Event::RmbReady`] or [`Event::RmbFailed`]
    /// follows.
    ///
    /// # Errors
    ///
    /// [`RmbError`], but not [`RmbError::InUse`].
    pub fn add_rmb(&mut self, id: RmbId, now: Duration) -> Result<(), RmbError> {
        if !matches!(self.phase, Phase::Live(_)) {
            return Err(RmbError::NotLive);
        }
        if self.rmb_mut(id).is_some() {
            return Err(RmbError::Number);
        }
        if self.rmbs.len() >= RMBS_MAX {
            return Err(RmbError::Full);
        }
        self.rmbs.push(Rmb::new(id, RmbState::New));
        self.settle(now);
        Ok(())
    }

    /// Takes a buffer of ours, that no connection uses, out of the group. [`Event::RmbRemoved`]
    /// follows, unless the group ends before; until then the peer may write into it.
    ///
    /// # Errors
    ///
    /// [`RmbError`], but not [`RmbError::Full`].
    pub fn remove_rmb(&mut self, id: RmbId, now: Duration) -> Result<(), RmbError> {
        if !matches!(self.phase, Phase::Live(_)) {
            return Err(RmbError::NotLive);
        }
        if self.connections.iter().any(|connection| connection.rmb == id) {
            return Err(RmbError::InUse);
        }
        match self.rmb_mut(id) {
            None => return Err(RmbError::Number),
            Some(rmb) if !rmb.is_told => self.removed(id),
            Some(rmb) => {
                rmb.state = RmbState::Leaving;
                rmb.tries = 0;
            }
        }
        self.settle(now);
        Ok(())
    }

    /// The answer to [`Command::Register`]: how the peer reaches the buffer over the link; `None` if
    /// it does not.
    pub fn handle_registered(
        &mut self,
        link: LinkUserId,
        rmb: RmbId,
        registered: Option<Rtoken>,
        now: Duration,
    ) {
        let is_first_contact = matches!(self.phase, Phase::FirstContact(_));
        let is_active = self.link(link).is_some_and(|link| link.state == LinkState::Active);
        let Some(known) = self.rmb_mut(rmb).filter(|rmb| rmb.registering.contains(&link)) else {
            return;
        };
        match registered {
            Some(rtoken) => {
                known.registered(link, rtoken);
                self.advance(now);
            }
            None if is_first_contact => self.decline(Diagnosis::ERR_REGBUF),
            // On a link that is only in the making, the link is what does not come.
            None if !is_active => self.fail_link(link, DeleteReason::LOST_PATH, now),
            None => {
                self.event(Event::RmbFailed(rmb));
                self.removed(rmb);
            }
        }
        self.settle(now);
    }

    fn rmb_mut(&mut self, id: RmbId) -> Option<&mut Rmb> {
        self.rmbs.iter_mut().find(|rmb| rmb.id == id)
    }

    /// Withdraws all registrations.
    fn drop_rmb(&mut self, id: RmbId) {
        let Some(at) = self.rmbs.iter().position(|rmb| rmb.id == id) else { return };
        let rmb = self.rmbs.remove(at);
        let links = rmb.keys.iter().map(|(link, _)| *link).chain(rmb.registering);
        self.commands.extend(links.map(|link| Command::Deregister { link, rmb: id }));
    }

    /// Registers on a new link the RMBs that the peer knows.
    pub(super) fn register_announced(&mut self, link: LinkUserId) {
        self.register(link, |state| state == RmbState::Announced);
    }

    /// Registers on all active links the RMBs that the peer does not know yet.
    pub(super) fn register_new_rmbs(&mut self) {
        let active: ArrayVec<_, LINK_SLOTS> = self.active().map(Link::user_id).collect();
        for link in active {
            self.register(link, |state| state == RmbState::New);
        }
    }

    fn register(&mut self, link: LinkUserId, is_wanted: fn(RmbState) -> bool) {
        for rmb in &mut self.rmbs {
            if is_wanted(rmb.state)
                && rmb.is_missing_on(link)
                && rmb.registering.try_push(link).is_ok()
            {
                self.commands.push_back(Command::Register { link, rmb: rmb.id });
            }
        }
    }

    /// Begins the next exchange.
    pub(super) fn begin_rkeys(&mut self, now: Duration) {
        if !self.has_turn() {
            return;
        }
        let Some(over) = self.active().next().map(Link::user_id) else { return };
        let is_next = |rmb: &&Rmb| {
            rmb.state == RmbState::New && rmb.not_before <= now && self.is_registered(rmb)
        };
        if let Some(id) = self.rmbs.iter().find(is_next).map(|rmb| rmb.id) {
            return self.send_confirm_rkey(over, id, now);
        }
        let leaving = self.rmbs.iter().filter(|rmb| rmb.state == RmbState::Leaving);
        let leaving: ArrayVec<_, DELETED_MAX> =
            leaving.map(|rmb| rmb.id).take(DELETED_MAX).collect();
        // Of a link that was added meanwhile the peer knows no key of it.
        let (known, unknown): (ArrayVec<_, DELETED_MAX>, ArrayVec<_, DELETED_MAX>) =
            leaving.into_iter().partition(|id| self.rtoken(*id, over).is_some());
        for id in unknown {
            self.removed(id);
        }
        if !known.is_empty() {
            self.send_delete_rkey(over, known, now);
        }
    }

    /// Whether it has a key on every active link.
    fn is_registered(&self, rmb: &Rmb) -> bool {
        self.active().all(|link| rmb.key_on(link.user_id).is_some())
    }

    fn send_confirm_rkey(&mut self, over: LinkUserId, id: RmbId, now: Duration) {
        let Some(Rtoken { rkey, address }) = self.rtoken(id, over) else { return };
        let others = self.active().filter(|link| link.user_id != over);
        let entries: ArrayVec<LinkRtoken, 2> = others
            .filter_map(|link| {
                let Rtoken { rkey, address } = self.rtoken(id, link.user_id)?;
                Some(LinkRtoken { link_number: link.number, rkey, address })
            })
            .take(2)
            .collect();
        let (form, step, remaining) = (self.form, ConfirmRkeyStep::Request, entries.len() as u8);
        self.send(over, ConfirmRkey { form, step, rkey, address, remaining, entries });
        if let Some(rmb) = self.rmb_mut(id) {
            rmb.is_told = true;
        }
        let what = What::Confirm(id);
        self.rkey_flow = Some(RkeyFlow { over, what, until: now + LLC_WAIT });
    }

    fn send_delete_rkey(
        &mut self,
        over: LinkUserId,
        leaving: ArrayVec<RmbId, DELETED_MAX>,
        now: Duration,
    ) {
        let keys = leaving.iter().filter_map(|id| self.rtoken(*id, over));
        let rkeys = keys.map(|rtoken| rtoken.rkey).collect();
        let (form, step) = (self.form, RkeyStep::Request);
        self.send(over, DeleteRkey { form, step, rkeys, errors: 0 });
        let what = What::Delete(leaving);
        self.rkey_flow = Some(RkeyFlow { over, what, until: now + LLC_WAIT });
    }

    /// The link of the exchange has failed: it will begin again over another.
    pub(super) fn leave_rkey_flow(&mut self, link: LinkUserId) {
        self.rkey_flow.take_if(|flow| flow.over == link);
    }

    /// No answer. The exchange begins again; the link has to show that the peer still answers.
    ///
    /// A buffer that goes is given up after [`RKEY_TRIES`], because a peer that talks and does not answer will not. One
    /// that says nothing at all may stand still, with WRITEs under way from before: they would find no door, and that
    /// breaks the link with all its connections. How long it is waited for the test of the link decides.
    pub(super) fn rkeys_timed_out(&mut self, now: Duration) {
        let Some(flow) = self.rkey_flow.take() else { return };
        match flow.what {
            What::Confirm(id) => self.not_confirmed(id, now),
            What::Delete(ids) if self.is_heard_since_begun(flow.over, flow.until) => {
                ids.into_iter().for_each(|id| self.not_deleted(id));
            }
            What::Delete(_) => {}
        }
        self.doubt(flow.over, now);
    }

    /// Whether anything has come over a link since an exchange has begun there that was to end by then.
    fn is_heard_since_begun(&self, over: LinkUserId, until: Duration) -> bool {
        self.link(over).is_some_and(|link| link.was_heard_since(until.saturating_sub(LLC_WAIT)))
    }

    fn not_deleted(&mut self, id: RmbId) {
        let Some(rmb) = self.rmb_mut(id) else { return };
        rmb.tries += 1;
        // A peer that writes into it from now on breaks the link.
        if rmb.tries >= RKEY_TRIES {
            self.removed(id);
        }
    }

    fn removed(&mut self, id: RmbId) {
        self.drop_rmb(id);
        self.event(Event::RmbRemoved(id));
    }

    fn not_confirmed(&mut self, id: RmbId, now: Duration) {
        let Some(rmb) = self.rmb_mut(id) else { return };
        rmb.tries += 1;
        rmb.not_before = now + RKEY_RETRY;
        if rmb.tries >= RKEY_TRIES && rmb.state == RmbState::New {
            // It may know it by now, if only its answers were lost.
            rmb.state = RmbState::Leaving;
            rmb.tries = 0;
            self.event(Event::RmbFailed(id));
        }
    }

    /// The answer to our CONFIRM RKEY.
    fn confirm_rkey_answered(&mut self, via: LinkUserId, message: &ConfirmRkey, now: Duration) {
        let Some(RkeyFlow { over, what: What::Confirm(id), .. }) = self.rkey_flow else { return };
        let is_it = self.rtoken(id, over).is_some_and(|rtoken| rtoken.rkey == message.rkey);
        if over != via || !is_it {
            return;
        }
        self.rkey_flow = None;
        if message.step != ConfirmRkeyStep::Response {
            return self.not_confirmed(id, now);
        }
        // It may have been removed meanwhile.
        if let Some(rmb) = self.rmb_mut(id).filter(|rmb| rmb.state == RmbState::New) {
            rmb.state = RmbState::Announced;
            self.event(Event::RmbReady(id));
        }
    }

    /// The answer to our DELETE RKEY. What the peer did not know it does not use either.
    fn delete_rkey_answered(&mut self, via: LinkUserId) {
        let is_it = |flow: &mut RkeyFlow| flow.over == via && matches!(flow.what, What::Delete(_));
        if let Some(RkeyFlow { what: What::Delete(ids), .. }) = self.rkey_flow.take_if(is_it) {
            for id in ids {
                self.removed(id);
            }
        }
    }

    /// When an exchange that was refused begins again.
    pub(super) fn next_rkey_retry(&self) -> Option<Duration> {
        let is_refused =
            |rmb: &&Rmb| rmb.state == RmbState::New && rmb.tries > 0 && self.is_registered(rmb);
        let refused = self.rmbs.iter().filter(is_refused).map(|rmb| rmb.not_before);
        refused.min().filter(|_| self.has_turn())
    }
}

// ---- the peer's RMBs ----------------------------------------------------------------------------

impl LinkGroup {
    pub(super) fn take_confirm_rkey(
        &mut self,
        via: LinkUserId,
        message: &ConfirmRkey,
        now: Duration,
    ) {
        if message.step != ConfirmRkeyStep::Request {
            return self.confirm_rkey_answered(via, message, now);
        }
        let step = match self.learn_rmb(via, message) {
            Ok(_) => ConfirmRkeyStep::Response,
            Err(NotTaken::Full) => ConfirmRkeyStep::RetryLater,
            Err(NotTaken::Contradiction) => ConfirmRkeyStep::Negative,
        };
        self.send(via, ConfirmRkey { form: self.form, step, ..message.clone() });
        if let (ConfirmRkeyStep::Response, Some(id)) =
            (step, self.peer_rmbs.find(via, message.rkey))
        {
            self.fail_links_without(id, now);
        }
    }

    /// Takes all of its RTokens, or none. Entries of links that we do not have are no use.
    fn learn_rmb(&mut self, via: LinkUserId, message: &ConfirmRkey) -> Result<PeerRmbId, NotTaken> {
        if usize::from(message.remaining) >= LINK_SLOTS {
            return Err(NotTaken::Full);
        }
        let was_known = self.peer_rmbs.find(via, message.rkey).is_some();
        let rtoken = Rtoken { rkey: message.rkey, address: message.address };
        let id = self.peer_rmbs.learn(via, rtoken)?;
        for entry in &message.entries {
            let rtoken = Rtoken { rkey: entry.rkey, address: entry.address };
            let link = self.link_numbered(entry.link_number).map(Link::user_id);
            let Some(link) = link.filter(|link| *link != via) else { continue };
            if let Err(why) = self.peer_rmbs.extend(id, link, rtoken) {
                if !was_known {
                    self.peer_rmbs.remove(id);
                }
                return Err(why);
            }
        }
        Ok(id)
    }

    /// "Treat as if detected failure of the link(s) for which no RKey was provided", RFC 7609
    /// §C.7.1.
    fn fail_links_without(&mut self, id: PeerRmbId, now: Duration) {
        let has_none = |link: &&Link| self.peer_rmbs.rtoken(id, link.user_id).is_none();
        let without: ArrayVec<_, LINK_SLOTS> =
            self.active().filter(has_none).map(Link::user_id).collect();
        for link in without {
            self.fail_link(link, DeleteReason::PROTOCOL_VIOLATION, now);
        }
    }

    pub(super) fn take_delete_rkey(&mut self, via: LinkUserId, message: &DeleteRkey) {
        if message.step != RkeyStep::Request {
            return self.delete_rkey_answered(via);
        }
        let (mut unknown_mask, mut unknown_count) = (0_u8, 0_u8);
        for (index, rkey) in message.rkeys.iter().enumerate() {
            match self.peer_rmbs.find(via, *rkey) {
                Some(id) => self.withdraw(id),
                None => {
                    unknown_mask |= 0x80_u8.checked_shr(index as u32).unwrap_or(0);
                    unknown_count = unknown_count.saturating_add(1);
                }
            }
        }
        let step = if unknown_count == 0 { RkeyStep::Response } else { RkeyStep::Negative };
        let (rkeys, errors) = match self.form {
            Form::V1 => (message.rkeys.clone(), unknown_mask),
            // As many as there were, but they say nothing.
            Form::V2(_) => (message.rkeys.iter().map(|_| Rkey(0)).collect(), unknown_count),
        };
        self.send(via, DeleteRkey { form: self.form, step, rkeys, errors });
    }

    /// The peer has taken a buffer back. A connection that still writes into it ends.
    fn withdraw(&mut self, id: PeerRmbId) {
        self.peer_rmbs.remove(id);
        for connection in &mut self.connections {
            if connection.peer_rmb == Some(id) {
                connection.peer_rmb = None;
                self.events.push_back(Event::Lost(connection.token));
            }
        }
    }
}

const _: () =
    assert!(LINK_SLOTS <= 3, "an RMB has two other links, which fit without CONTINUATION");
