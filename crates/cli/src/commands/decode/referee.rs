//! Which rules a handshake breaks: those of RFC 7609, and where it leaves things open, what Linux
//! refuses.
//!
//! One message alone is judged by its parser. Here is what needs more than that: the order of the
//! messages, and that each fits those before it.

use std::net::Ipv6Addr;

use sidestep_wire::clc::proposal::{Proposal, V2Offer};
use sidestep_wire::clc::{
    AcceptConfirm, AcceptConfirmR, Decline, Eyecatcher, Header, Message, MessageType, Release,
    Role, Version,
};
use sidestep_wire::{Chid, Diagnosis, Eid, Mac, QpNumber, RoceGid, tcp_option};

use super::step::{What, kind, release};
use super::streams::{Side, Stream};

/// Fewest connections of a link group that Linux accepts.
const MAX_CONNS_LEAST: u8 = 16;

/// Follows a handshake, step by step.
pub(super) struct Referee {
    /// Who showed the option, as far as the capture tells: client, server.
    options: [Option<bool>; 2],
    due: Due,
    proposal: Option<Proposal>,
    accept: Option<AcceptConfirm>,
    is_declined: bool,
    has_spoken: bool,
    /// A message is not known, so what is due is not, either.
    is_lost: bool,
    /// Programs of Sidestep on one host agree beside the connection.
    may_be_silent: bool,
}

/// The message that comes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    Proposal,
    Accept,
    Confirm,
    /// All is said.
    Nothing,
}

impl Due {
    const fn is(self, message_type: MessageType) -> bool {
        matches!(
            (self, message_type),
            (Self::Proposal, MessageType::Proposal)
                | (Self::Accept, MessageType::Accept)
                | (Self::Confirm, MessageType::Confirm)
        )
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Proposal => "a Proposal",
            Self::Accept => "an Accept",
            Self::Confirm => "a Confirm",
            Self::Nothing => "nothing more",
        }
    }
}

impl Referee {
    pub(super) fn new(stream: &Stream) -> Self {
        let options =
            [stream.syn, stream.syn_ack].map(|opening| opening.map(|it| it.option.is_some()));
        Self {
            options,
            due: Due::Proposal,
            proposal: None,
            accept: None,
            is_declined: false,
            has_spoken: false,
            is_lost: false,
            may_be_silent: stream.is_of_one_host(),
        }
    }

    /// The rules that the next step breaks.
    pub(super) fn judge(&mut self, from: Side, what: &What) -> Vec<String> {
        let mut broken = Vec::new();
        match what {
            What::Syn(option) => broken.extend(option_length(*option)),
            What::SynAck(option) => {
                broken.extend(option_length(*option));
                if option.is_some() && self.options[0] == Some(false) {
                    broken.push("answers an SMC option that the client did not send".into());
                }
            }
            What::Clc { header, message, is_framed_alike } => {
                self.first_words(&mut broken);
                self.order(from, header, &mut broken);
                frame(header, message.as_ref().ok(), *is_framed_alike, &mut broken);
                match message {
                    Err(error) => broken.push(error.to_string()),
                    Ok(message) => self.content(from, message, &mut broken),
                }
                self.is_declined |= header.message_type == MessageType::Decline;
            }
            What::Fragment { .. } => self.is_lost = true,
            What::Garbled(error) => {
                self.is_lost = true;
                self.first_words(&mut broken);
                broken.push(error.to_string());
            }
            What::Bytes => broken.extend(self.bytes()),
        }
        broken
    }

    /// CLC needs the option on both sides; said once.
    fn first_words(&mut self, broken: &mut Vec<String>) {
        if !self.has_spoken && self.options.contains(&Some(false)) {
            let side = if self.options[0] == Some(false) { "client" } else { "server" };
            broken.push(format!("speaks CLC although the {side} showed no SMC option"));
        }
        self.has_spoken = true;
    }

    /// Is it this message's turn, and this side's?
    fn order(&mut self, from: Side, header: &Header, broken: &mut Vec<String>) {
        let message_type = header.message_type;
        if self.is_lost {
            return;
        }
        if self.is_declined {
            broken.push("comes after the Decline, when both ends are plain TCP".into());
            return;
        }
        let by = match message_type {
            MessageType::Proposal | MessageType::Confirm => Some(Side::Client),
            MessageType::Accept => Some(Side::Server),
            MessageType::Decline => None,
        };
        if by.is_some_and(|by| by != from) {
            broken.push(format!("a {} sends no {message_type}", from.name()));
        } else if by.is_some() && !self.due.is(message_type) {
            broken.push(format!("{message_type} where {} was due", self.due.words()));
        } else if message_type == MessageType::Decline {
            broken.extend(self.decline_window(from).map(str::to_owned));
        }
        self.due = match message_type {
            MessageType::Proposal => Due::Accept,
            MessageType::Accept => Due::Confirm,
            MessageType::Confirm | MessageType::Decline => Due::Nothing,
        };
    }

    /// A Decline takes the place of a message that is due. On a first contact the window is open
    /// until the first link is confirmed.
    fn decline_window(&self, from: Side) -> Option<&'static str> {
        let is_subsequent = self.accept.as_ref().is_some_and(|it| !it.is_first_contact());
        match (from, self.due) {
            (Side::Server, Due::Proposal) => Some("declines before there is a Proposal"),
            (Side::Server, Due::Confirm | Due::Nothing) if is_subsequent => {
                Some("declines after its own Accept on a subsequent contact")
            }
            (Side::Client, Due::Nothing) if is_subsequent => {
                Some("declines after its own Confirm on a subsequent contact")
            }
            _ => None,
        }
    }

    fn content(&mut self, from: Side, message: &Message, broken: &mut Vec<String>) {
        match message {
            Message::Proposal(proposal) => {
                check_proposal(proposal, broken);
                self.proposal = Some(proposal.clone());
            }
            Message::Accept(accept) => {
                check_alone(accept, broken);
                if let Some(proposal) = &self.proposal {
                    check_accept(accept, proposal, broken);
                }
                self.accept = Some(accept.clone());
            }
            Message::Confirm(confirm) => {
                check_alone(confirm, broken);
                if let Some(accept) = &self.accept {
                    check_confirm(confirm, accept, self.proposal.as_ref(), broken);
                }
            }
            Message::Decline(decline) => self.check_decline(from, decline, broken),
        }
    }

    fn check_decline(&self, from: Side, decline: &Decline, broken: &mut Vec<String>) {
        let expected = match (from, &self.accept, &self.proposal) {
            (Side::Client, Some(accept), _) => Some(accept.version()),
            (Side::Server, _, Some(proposal)) => Some(proposal.version),
            _ => None,
        };
        if let Some(expected) = expected.filter(|version| *version != decline.version()) {
            let (is, should) = (decline.version().code(), expected.code());
            broken
                .push(format!("a Decline of version {is} where the peer speaks version {should}"));
        }
        let is_out_of_sync = decline.diagnosis == Diagnosis::SYNCERR;
        if decline.out_of_sync && from == Side::Server {
            broken.push("only a client can find its link groups out of sync".into());
        }
        if decline.out_of_sync != is_out_of_sync {
            broken.push("the out-of-sync bit and the diagnosis contradict each other".into());
        }
        let diagnosis = decline.diagnosis;
        if let Some(reason) = wrong_diagnosis(diagnosis, from, self.proposal.as_ref()) {
            broken.push(format!("wrong diagnosis {}: {reason}", diagnosis.name()));
        }
    }

    /// The first bytes of a side that are no CLC message.
    fn bytes(&self) -> Option<String> {
        let is_agreed = self.options.iter().all(|option| *option == Some(true));
        let is_due = is_agreed && !self.may_be_silent || self.has_spoken;
        if self.is_declined || self.is_lost || !is_due {
            return None;
        }
        Some(match self.due {
            Due::Nothing => {
                "bytes by TCP after the Confirm, when those of SMC go another way".into()
            }
            due => format!("no CLC message (no eyecatcher) where {} was due", due.words()),
        })
    }
}

fn option_length(option: Option<u8>) -> Option<String> {
    let length = option.filter(|length| usize::from(*length) != tcp_option::BYTES.len())?;
    Some(format!("an SMC option of {length} bytes; it has {}", tcp_option::BYTES.len()))
}

/// Readers take either eyecatcher; a sender has no choice.
fn frame(
    header: &Header,
    message: Option<&Message>,
    is_framed_alike: bool,
    broken: &mut Vec<String>,
) {
    let expected = match message {
        Some(Message::Accept(AcceptConfirm::SmcD(_) | AcceptConfirm::SmcDV1(_)))
        | Some(Message::Confirm(AcceptConfirm::SmcD(_) | AcceptConfirm::SmcDV1(_))) => {
            Eyecatcher::SmcD
        }
        Some(_) => Eyecatcher::SmcR,
        None => return,
    };
    if header.eyecatcher != expected {
        broken.push("the eyecatcher of the other kind of SMC".into());
    } else if !is_framed_alike {
        broken.push("eyecatcher and trailer differ".into());
    }
}

fn check_proposal(proposal: &Proposal, broken: &mut Vec<String>) {
    if proposal.v1.is_none() && proposal.v2.is_none() {
        broken.push("offers nothing".into());
    }
    let gid = proposal.smc_d_area.map_or(0, |device| device.gid.0);
    if proposal.v1.is_none() && gid & 0xFF > 8 {
        broken.push("Linux takes byte 47, of the ISM GID, for a count of prefixes".into());
    }
    let Some(offer) = &proposal.v2 else { return };
    let has_seid = offer.smc_d().is_some_and(|smc_d| smc_d.seid.is_some());
    if offer.ueids.is_empty() && !has_seid {
        broken.push("offers version 2 without an EID, so none can be in common".into());
    }
    if offer.types.types().has_smc_r() {
        if offer.roce_gid == RoceGid::default() {
            broken.push("offers SMC-R version 2 without a RoCEv2 GID".into());
        }
        if offer.release >= Release::V2_1 {
            check_limits(offer.max_conns, offer.max_links, broken);
        }
    }
    if lone_entries(offer, proposal) > 0 {
        broken.push("an emulated ISM device with one entry of two: Linux skips it".into());
    }
}

/// Entries of emulated devices that have no partner.
fn lone_entries(offer: &V2Offer, proposal: &Proposal) -> usize {
    let entries = offer.smc_d().map_or(&[][..], |smc_d| &smc_d.entries);
    let emulated = entries.iter().filter(|entry| entry.chid.is_emulated()).count();
    emulated - 2 * proposal.emulated_devices().count()
}

fn check_limits(max_conns: u8, max_links: u8, broken: &mut Vec<String>) {
    if max_conns < MAX_CONNS_LEAST {
        let text = format!("{max_conns} connections a link group: fewer than {MAX_CONNS_LEAST}");
        broken.push(text);
    }
    if max_links == 0 {
        broken.push("a link group without links".into());
    }
}

/// What an Accept or Confirm must be, whatever came before.
fn check_alone(message: &AcceptConfirm, broken: &mut Vec<String>) {
    match message {
        AcceptConfirm::SmcR(message) => check_smc_r(message, broken),
        AcceptConfirm::SmcDV1(message) if message.gid.0 == 0 => broken.push("no GID".into()),
        AcceptConfirm::SmcD(message) if message.gid.gid.0 == 0 => broken.push("no GID".into()),
        AcceptConfirm::SmcDV1(_) | AcceptConfirm::SmcD(_) => {}
    }
}

fn check_smc_r(message: &AcceptConfirmR, broken: &mut Vec<String>) {
    let gid = Ipv6Addr::from(message.gid.0);
    if gid.is_unspecified() || gid.is_multicast() {
        broken.push(format!("GID {gid} is no address of an RNIC"));
    }
    let Mac([first, ..]) = message.mac;
    if first & 1 != 0 {
        broken.push(format!("MAC {} is a multicast address", message.mac));
    }
    if message.qp_number < QpNumber::FIRST {
        broken.push(format!("QP number {}: 0 and 1 are the adapter's own", message.qp_number));
    }
    if message.rmbe_index == 0 {
        broken.push("RMBE index 0: the first element is 1".into());
    }
    if message.mtu.bytes().is_none() {
        broken.push(format!("MTU: {}", message.mtu));
    }
    let end = u64::from(message.rmbe_index) * message.size.bytes() as u64;
    if message.rmb_address.0.checked_add(end).is_none() {
        broken.push("the RMB reaches beyond the end of the address space".into());
    }
    if let Some(contact) = message.first_contact() {
        if contact.common.release >= Release::V2_1 {
            check_limits(contact.max_conns, contact.max_links, broken);
        }
        let has_list = message.role == Role::Confirm;
        if has_list && contact.gids.first() != Some(&message.gid) {
            broken.push("the GID list does not begin with the GID of the link".into());
        }
    }
}

/// Was it offered?
fn check_accept(accept: &AcceptConfirm, proposal: &Proposal, broken: &mut Vec<String>) {
    let v1 = proposal.v1.as_ref().map(|offer| offer.types);
    let v2 = proposal.v2.as_ref();
    let types = match accept.version() {
        Version::V1 => v1,
        Version::V2 => v2.map(|offer| offer.types.types()),
    };
    let is_offered = types.is_some_and(|types| match accept {
        AcceptConfirm::SmcR(_) => types.has_smc_r(),
        AcceptConfirm::SmcDV1(_) | AcceptConfirm::SmcD(_) => types.has_smc_d(),
    });
    if !is_offered {
        broken.push(format!("{} was not offered", kind(accept, None)));
        return;
    }
    let Some(offer) = v2 else { return };
    if let Some(eid) = eid(accept)
        && !is_offered_eid(&eid, offer, accept)
    {
        broken.push(format!("EID {eid} was not offered"));
    }
    if let Some(release) = release(accept).filter(|release| *release > offer.release) {
        broken.push(format!("release {release}, of {} that was offered", offer.release));
    }
    match accept {
        AcceptConfirm::SmcR(accept) => check_accepted_limits(accept, offer, broken),
        AcceptConfirm::SmcD(accept) if !offers_chid(accept.chid, offer, proposal) => {
            broken.push(format!("CHID {} was not offered", accept.chid));
        }
        AcceptConfirm::SmcDV1(_) | AcceptConfirm::SmcD(_) => {}
    }
}

fn check_accepted_limits(accept: &AcceptConfirmR, offer: &V2Offer, broken: &mut Vec<String>) {
    let Some(contact) = accept.first_contact() else { return };
    if contact.common.release < Release::V2_1 {
        return;
    }
    for (what, is, offered) in [
        ("connections", contact.max_conns, offer.max_conns),
        ("links", contact.max_links, offer.max_links),
    ] {
        if is > offered {
            broken.push(format!("{is} {what} a link group, of {offered} that were offered"));
        }
    }
}

fn is_offered_eid(eid: &Eid, offer: &V2Offer, accept: &AcceptConfirm) -> bool {
    let is_smc_d = matches!(accept, AcceptConfirm::SmcD(_));
    let seid = offer.smc_d().and_then(|smc_d| smc_d.seid.as_ref());
    offer.ueids.contains(eid) || is_smc_d && seid == Some(eid)
}

fn offers_chid(chid: Chid, offer: &V2Offer, proposal: &Proposal) -> bool {
    let entries = offer.smc_d().map_or(&[][..], |smc_d| &smc_d.entries);
    let native = proposal.smc_d_area.map(|device| device.chid).filter(|chid| *chid != Chid(0));
    native == Some(chid) || entries.iter().any(|entry| entry.chid == chid)
}

/// Does it agree to the Accept?
fn check_confirm(
    confirm: &AcceptConfirm,
    accept: &AcceptConfirm,
    proposal: Option<&Proposal>,
    broken: &mut Vec<String>,
) {
    let (ours, theirs) = (kind(confirm, None), kind(accept, None));
    if ours != theirs {
        broken.push(format!("confirms {ours}; {theirs} was accepted"));
        return;
    }
    if eid(confirm) != eid(accept) {
        broken.push("another EID than in the Accept".into());
    }
    // RFC 7609 has no such bit in the Confirm; in version 2 it announces the extension.
    if confirm.version() == Version::V2 && confirm.is_first_contact() != accept.is_first_contact() {
        broken.push("says another contact, first or subsequent, than the Accept".into());
    }
    if release(confirm) != release(accept) {
        broken.push("another release than in the Accept".into());
    }
    match (confirm, accept) {
        (AcceptConfirm::SmcR(confirm), AcceptConfirm::SmcR(accept)) => {
            if confirm.mtu > accept.mtu {
                broken.push("a larger MTU than in the Accept".into());
            }
            let limits = |message: &AcceptConfirmR| {
                message.first_contact().map(|it| (it.max_conns, it.max_links))
            };
            if limits(confirm) != limits(accept) {
                broken.push("other limits of the link group than in the Accept".into());
            }
        }
        (AcceptConfirm::SmcD(confirm), AcceptConfirm::SmcD(accept))
            if confirm.chid != accept.chid =>
        {
            broken.push("another CHID than in the Accept".into());
        }
        _ => {}
    }
    let offered = proposal.and_then(|it| it.v2.as_ref()).map_or(u16::MAX, |it| it.feature_mask);
    if features(confirm) & !(features(accept) & offered) != 0 {
        broken.push("features that are not in both the Proposal and the Accept".into());
    }
}

fn features(message: &AcceptConfirm) -> u16 {
    match message {
        AcceptConfirm::SmcR(it) => it.first_contact().map_or(0, |it| it.common.feature_mask),
        AcceptConfirm::SmcDV1(_) => 0,
        AcceptConfirm::SmcD(it) => it.first_contact.as_ref().map_or(0, |it| it.feature_mask),
    }
}

fn eid(message: &AcceptConfirm) -> Option<Eid> {
    match message {
        AcceptConfirm::SmcR(message) => message.eid(),
        AcceptConfirm::SmcDV1(_) => None,
        AcceptConfirm::SmcD(message) => Some(message.eid),
    }
}

/// Why `from` cannot mean this diagnosis, if it cannot. RFC 7609 leaves the codes to each
/// implementation, so an unknown one is no reason.
fn wrong_diagnosis(
    diagnosis: Diagnosis,
    from: Side,
    proposal: Option<&Proposal>,
) -> Option<&'static str> {
    let v2 = proposal.and_then(|proposal| proposal.v2.as_ref());
    let is_lie = |is_contradicted: bool, reason| is_contradicted.then_some(reason);
    match diagnosis {
        Diagnosis::PEERDECL | Diagnosis::OPTUNSUPP => Some("it is never sent, only noted"),
        Diagnosis::MODEUNSUPP
        | Diagnosis::NOSRVLINK
        | Diagnosis::NOROUTE
        | Diagnosis::NOINDIRECT
        | Diagnosis::SYNCERR => is_lie(from == Side::Server, "only a client can have it"),
        Diagnosis::NOSMCDDEV
        | Diagnosis::NOSMCRDEV
        | Diagnosis::NOISM2SUPP
        | Diagnosis::NOSMCD2DEV
        | Diagnosis::RELEASEERR
        | Diagnosis::DIFFPREFIX
            if from == Side::Client =>
        {
            Some("only a server can have it")
        }
        Diagnosis::NOV2EXT => is_lie(v2.is_some(), "the Proposal has a version 2 extension"),
        Diagnosis::NOV2DEXT => is_lie(
            v2.and_then(V2Offer::smc_d).is_some(),
            "the Proposal has an SMC-D version 2 extension",
        ),
        Diagnosis::DIFFPREFIX => is_lie(
            proposal.is_some_and(|proposal| proposal.v1.is_none()),
            "the Proposal names no subnet",
        ),
        _ => None,
    }
}
