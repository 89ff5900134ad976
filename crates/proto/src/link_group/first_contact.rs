//! First contact: the first link of a group, from CLC to CONFIRM LINK.
//!
//! ```text
//!   client                                                   server
//!                                                            our queue pair, our RMB
//!      <-------------- Accept, from `introduction` ---------- Event::Introduce
//!   queue pair, ready to receive; RMB
//!   Event::Introduce ------------- Confirm -----------------> handle_confirm
//!                                                            ready to receive, to send
//!      <============= CONFIRM LINK request over the link ====
//!   ready to send
//!      ============== CONFIRM LINK response ================>
//!   active                                                   active
//! ```
//!
//! Until CONFIRM LINK went both ways everything may end in [`Event::Declined`], and the connection
//! stays TCP. (RFC 7609 §C.3 lets that window end with ADD LINK; Linux declines no later than this.)
//! Then the server tries to add a second link, and only after that connections begin.
//!
//! *Source*: RFC 7609 §3.5.1.5, §C.2, §C.3.

use core::time::Duration;

use sidestep_wire::clc::{AcceptConfirmR, OsType, Release, Role as ClcRole, Version};
use sidestep_wire::llc::{self, ConfirmLink, Form, LengthOrder};
use sidestep_wire::{Diagnosis, LinkNumber, LinkUserId, PeerId, Psn, QpNumber};

use super::flow::{FirstContact, Live, Phase};
use super::limits::{CONNECTIONS_MAX, LINKS_MAX};
use super::link::{Adapter, LinkEnd, LinkState, Ticket};
use super::output::{Command, Event};
use super::rmb::{Rmb, RmbId, RmbState, Rtoken};
use super::state::{LinkGroup, Local, Role};
use super::timers::{
    CONFIRM_LINK_REPEAT, DEVICE_WAIT, FIRST_ADD_LINK_WAIT, FIRST_CONFIRM_LINK_WAIT, LLC_WAIT,
};

/// How large a group both sides want, and which version they speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// The version of the Accept.
    pub version: Version,
    /// Connections, 16 to 255.
    pub max_conns: u8,
    /// Links, 1 to [`LINKS_MAX`].
    pub max_links: u8,
}

impl Agreement {
    /// What holds unless something else is said: in version 1, and in release 2.0.
    #[must_use]
    pub const fn standard(version: Version) -> Self {
        Self { version, max_conns: CONNECTIONS_MAX, max_links: LINKS_MAX }
    }

    /// What an Accept or Confirm of a first contact says.
    ///
    /// # Errors
    ///
    /// The diagnosis to decline with: fewer than 16 connections, no link or more than we can have.
    pub fn of(message: &AcceptConfirmR) -> Result<Self, Diagnosis> {
        let standard = Self::standard(message.version());
        match message.first_contact() {
            Some(contact) if contact.common.release >= Release::V2_1 => {
                if contact.max_conns < CONNECTIONS_MIN {
                    return Err(Diagnosis::MAXCONNERR);
                }
                if !(1..=LINKS_MAX).contains(&contact.max_links) {
                    return Err(Diagnosis::MAXLINKERR);
                }
                let (max_conns, max_links) = (contact.max_conns, contact.max_links);
                Ok(Self { max_conns, max_links, ..standard })
            }
            _ => Ok(standard),
        }
    }
}

/// The fewest connections that a group may be restricted to.
const CONNECTIONS_MIN: u8 = 16;

/// What our Accept or Confirm says of a link and of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Introduction {
    /// Our end of the link.
    pub end: LinkEnd,
    /// How the buffer is reached over it.
    pub rtoken: Rtoken,
}

impl LinkGroup {
    /// The server of a new group, for the Proposal of `peer_id`. Its first link is on the first of
    /// the `local` adapters, and `rmb` is the buffer of the connection that it is made for.
    ///
    /// The `agreement` is what the Accept will say.
    ///
    /// # Errors
    ///
    /// [`Diagnosis::NOSMCRDEV`]: there is no adapter.
    pub fn server(
        local: Local,
        agreement: Agreement,
        peer_id: PeerId,
        rmb: RmbId,
    ) -> Result<Self, Diagnosis> {
        let mut group = Self::new(Role::Server, local, agreement, peer_id, rmb);
        let number = group.next_number();
        group.allocate_first(number)?;
        Ok(group)
    }

    /// The client of a new group, which the server has asked for by this Accept.
    ///
    /// # Errors
    ///
    /// The diagnosis to decline with: the Accept is of no first contact, or tells limits or an end
    /// of a link that cannot be, or there is no adapter.
    pub fn client(local: Local, accept: &AcceptConfirmR, rmb: RmbId) -> Result<Self, Diagnosis> {
        if accept.role != ClcRole::Accept || !accept.is_first_contact() {
            return Err(Diagnosis::MODEUNSUPP);
        }
        let agreement = Agreement::of(accept)?;
        let mut group = Self::new(Role::Client, local, agreement, accept.peer_id, rmb);
        let link = group.allocate_first(LinkNumber(0))?;
        group.meet(link, accept)?;
        Ok(group)
    }

    pub(super) fn new(
        role: Role,
        local: Local,
        agreement: Agreement,
        peer_id: PeerId,
        rmb: RmbId,
    ) -> Self {
        Self {
            role,
            form: match agreement.version {
                Version::V1 => Form::V1,
                Version::V2 => Form::V2(LengthOrder::BigEndian),
            },
            max_conns: agreement.max_conns,
            max_links: agreement.max_links.clamp(1, LINKS_MAX),
            peer_id,
            proposer: peer_id,
            phase: Phase::FirstContact(FirstContact::Preparing),
            links: Default::default(),
            last_number: 0,
            last_user_id: 0,
            rmbs: [Rmb::new(rmb, RmbState::Announced)].into(),
            peer_rmbs: Default::default(),
            connections: Default::default(),
            flow: None,
            rkey_flow: None,
            parked: None,
            growth: Default::default(),
            balance_due: None,
            idle_until: None,
            tests: 0,
            tickets: 0,
            commands: Default::default(),
            events: Default::default(),
            local,
        }
    }

    fn allocate_first(&mut self, number: LinkNumber) -> Result<LinkUserId, Diagnosis> {
        let adapter: Adapter = *self.local.adapters.first().ok_or(Diagnosis::NOSMCRDEV)?;
        self.allocate_link(number, adapter).ok_or(Diagnosis::NOSMCRDEV)
    }

    /// Takes the peer's end of the first link, and its buffer, from its Accept or Confirm.
    fn meet(&mut self, link: LinkUserId, message: &AcceptConfirmR) -> Result<(), Diagnosis> {
        let peer = LinkEnd {
            gid: message.gid,
            mac: message.mac,
            qp: message.qp_number,
            psn: message.psn,
            mtu: message.mtu,
        };
        if !self.is_plausible(&peer) {
            return Err(Diagnosis::ERR_RDYLNK);
        }
        if let (Form::V2(order), Some(contact)) = (&mut self.form, message.first_contact()) {
            *order = length_order(contact.common.os_type);
        }
        self.peer_id = message.peer_id;
        let rtoken = Rtoken { rkey: message.rkey, address: message.rmb_address };
        self.peer_rmbs.learn(link, rtoken).map_err(|_| Diagnosis::ERR_RTOK)?;
        if let Some(link) = self.link_mut(link) {
            link.peer = Some(peer);
        }
        Ok(())
    }

    /// Whether the peer may have this end of a link.
    pub(super) fn is_plausible(&self, peer: &LinkEnd) -> bool {
        peer.is_plausible(&self.local.adapters, self.version())
    }

    /// What Accept and Confirm say of this link and this buffer. `None` until both are known to the
    /// device.
    #[must_use]
    pub fn introduction(&self, rmb: RmbId, link: LinkUserId) -> Option<Introduction> {
        let end = self.link(link)?.end()?;
        Some(Introduction { end, rtoken: self.rtoken(rmb, link)? })
    }

    /// The answer to [`Command::CreateQueuePair`]: its number and the first PSN it sends; `None` if
    /// there is no queue pair.
    pub fn handle_queue_pair(
        &mut self,
        link: LinkUserId,
        made: Option<(QpNumber, Psn)>,
        now: Duration,
    ) {
        let is_first_contact = matches!(self.phase, Phase::FirstContact(_));
        let Some(known) = self.link_mut(link) else { return };
        known.qp = made;
        match made {
            Some(_) => {
                self.connect_if_met(link);
                self.register_announced(link);
                self.advance(now);
            }
            None if is_first_contact => self.decline(Diagnosis::MEM),
            None => self.fail_link(link, llc::DeleteReason::LOST_PATH, now),
        }
        self.settle(now);
    }

    /// Server: the Confirm of the first contact. Whether its EID and release are those of our Accept
    /// is for the rendezvous to check.
    pub fn handle_confirm(&mut self, confirm: &AcceptConfirmR, now: Duration) {
        if !matches!(self.phase, Phase::FirstContact(FirstContact::Introduced)) {
            return;
        }
        let link = self.links[0].user_id;
        match self.check_confirm(confirm).and_then(|()| self.meet(link, confirm)) {
            Ok(()) => {
                let until = now + DEVICE_WAIT;
                self.phase = Phase::FirstContact(FirstContact::Connecting { until });
                self.connect_if_met(link);
                self.advance(now);
            }
            Err(diagnosis) => self.decline(diagnosis),
        }
    }

    fn check_confirm(&self, confirm: &AcceptConfirmR) -> Result<(), Diagnosis> {
        if confirm.role != ClcRole::Confirm || confirm.version() != self.version() {
            return Err(Diagnosis::MODEUNSUPP);
        }
        let echoed = Agreement::of(confirm)?;
        // Version 1 and release 2.0 have no echo.
        let is_echo = |told: Option<u8>, ours| told.is_none_or(|told| told == ours);
        let told = confirm.first_contact().filter(|it| it.common.release >= Release::V2_1);
        if !is_echo(told.map(|_| echoed.max_conns), self.max_conns) {
            return Err(Diagnosis::MAXCONNERR);
        }
        if !is_echo(told.map(|_| echoed.max_links), self.max_links) {
            return Err(Diagnosis::MAXLINKERR);
        }
        Ok(())
    }

    /// First contact: the peer has declined, or the connection has failed in CLC. The group ends at
    /// once and without a word.
    pub fn abandon(&mut self) {
        if matches!(self.phase, Phase::FirstContact(_)) {
            self.finish();
        }
    }

    pub(super) fn decline(&mut self, diagnosis: Diagnosis) {
        self.event(Event::Declined(diagnosis));
        self.finish();
    }

    /// Lets our queue pair take the peer's packets if both ends are known.
    pub(super) fn connect_if_met(&mut self, user_id: LinkUserId) {
        let Some(link) = self.link_mut(user_id) else { return };
        let mtu = link.mtu();
        if let (Some(_), Some(peer)) = (link.qp, link.peer) {
            link.state = LinkState::Activating;
            self.command(Command::ReadyToReceive { link: user_id, peer: LinkEnd { mtu, ..peer } });
        }
    }

    pub(super) fn advance_first_contact(&mut self, now: Duration) {
        let Phase::FirstContact(stage) = self.phase else { return };
        let Some(link) = self.links.first() else { return };
        let (user_id, is_receiving) = (link.user_id, link.is_receiving);
        let is_known = self.rmbs.iter().all(|rmb| self.introduction(rmb.id, user_id).is_some());
        let next = match (stage, self.role) {
            (FirstContact::Preparing, Role::Server) if is_known => {
                self.event(Event::Introduce(user_id));
                FirstContact::Introduced
            }
            (FirstContact::Preparing, Role::Client) if is_known && is_receiving => {
                self.event(Event::Introduce(user_id));
                FirstContact::Confirming { until: now + FIRST_CONFIRM_LINK_WAIT, repeat: None }
            }
            (FirstContact::Connecting { .. }, _) if is_receiving => {
                self.ready_to_send(user_id);
                self.confirm_link(user_id, llc::Role::Request);
                let repeat = Some(now + CONFIRM_LINK_REPEAT);
                FirstContact::Confirming { until: now + LLC_WAIT, repeat }
            }
            _ => return,
        };
        self.phase = Phase::FirstContact(next);
    }

    /// A CONFIRM LINK during first contact that is the expected one, by its role.
    pub(super) fn first_link_confirmed(&mut self, message: &ConfirmLink, now: Duration) {
        let Some(link) = self.links.first() else { return };
        let user_id = link.user_id;
        if !message.no_eyecatcher {
            return self.decline(Diagnosis::RMBE_EC);
        }
        let is_number = match self.role {
            Role::Server => message.link_number == link.number,
            Role::Client => message.link_number != LinkNumber(0),
        };
        // "Incorrect link information", RFC 7609 §C.7.1.
        if !is_number || !self.is_of_peer(user_id, message) {
            return self.decline(Diagnosis::SYNCERR);
        }
        let (mut patience, mut unsent) = (None, None);
        // A client that tells no limit takes the server's (RFC 7609 §2.2.2).
        if message.max_links > 0 {
            self.max_links = self.max_links.min(message.max_links);
        }
        if self.role == Role::Client {
            self.links[0].number = message.link_number;
            self.ready_to_send(user_id);
            unsent = self.confirm_link(user_id, llc::Role::Response);
            patience = Some(now + FIRST_ADD_LINK_WAIT).filter(|_| self.max_links > 1);
        }
        self.links[0].peer_user_id = message.link_user_id;
        self.activate(user_id, now);
        self.growth.first_contact(now);
        self.phase = Phase::Live(Live { is_established: false, patience, unsent });
    }

    /// Whether a CONFIRM LINK names the peer's end of the link as CLC or ADD LINK did.
    pub(super) fn is_of_peer(&self, link: LinkUserId, message: &ConfirmLink) -> bool {
        let Some(peer) = self.link(link).and_then(|link| link.peer) else { return false };
        message.qp_number == peer.qp
            && message.gid == peer.gid
            && (self.version() == Version::V2 || message.mac == peer.mac)
    }

    /// Sends CONFIRM LINK over the link that it is about.
    pub(super) fn confirm_link(&mut self, user_id: LinkUserId, role: llc::Role) -> Option<Ticket> {
        let link = self.link(user_id)?;
        let end = link.end()?;
        let message = ConfirmLink {
            form: self.form,
            role,
            no_eyecatcher: true,
            mac: end.mac,
            gid: end.gid,
            qp_number: end.qp,
            link_number: link.number,
            link_user_id: user_id,
            max_links: self.max_links,
            max_conns: self.max_conns,
        };
        Some(self.send(user_id, message))
    }

    /// Tells that connections can begin, once the first try to add a link is over.
    pub(super) fn establish(&mut self, now: Duration) {
        let will_grow = self.role == Role::Server && self.growth.is_due(now);
        let is_waiting = self.flow.is_some() || will_grow;
        if let Phase::Live(live) = &mut self.phase
            && !live.is_established
            && live.patience.is_none()
            && live.unsent.is_none()
            && !is_waiting
        {
            live.is_established = true;
            self.event(Event::Established);
            self.note_use(now);
        }
    }
}

/// How a system of this type writes lengths. Linux does as its processor does, which nearly always
/// is the little end first; what the peer sends shows it for certain.
fn length_order(os_type: OsType) -> LengthOrder {
    if os_type == OsType::LINUX { LengthOrder::LittleEndian } else { LengthOrder::BigEndian }
}
