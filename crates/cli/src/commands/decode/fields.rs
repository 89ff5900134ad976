//! The fields of a CLC message, in words.
//!
//! What is zero because it is not there is left out.

use sidestep_wire::clc::accept_confirm::FirstContactR;
use sidestep_wire::clc::proposal::{
    GidEntry, IpPrefixes, Proposal, SmcDV2, Types, V1Offer, V2Offer,
};
use sidestep_wire::clc::{
    AcceptConfirm, AcceptConfirmD, AcceptConfirmDV1, AcceptConfirmR, Decline, FEATURE_EMULATED_ISM,
    FirstContact, FormR, Message, OsType, Release,
};
use sidestep_wire::{Gid, Mac, PeerId, RmbeSize, RoceGid};

use crate::commands::ss::bytes;

/// A name and a value.
pub(super) type Field = (&'static str, String);

pub(super) fn of(message: &Message) -> Vec<Field> {
    match message {
        Message::Proposal(proposal) => of_proposal(proposal),
        Message::Accept(message) | Message::Confirm(message) => match message {
            AcceptConfirm::SmcR(message) => of_smc_r(message),
            AcceptConfirm::SmcDV1(message) => of_smc_d_v1(message),
            AcceptConfirm::SmcD(message) => of_smc_d(message),
        },
        Message::Decline(decline) => of_decline(decline),
    }
}

fn of_proposal(proposal: &Proposal) -> Vec<Field> {
    let v1 = proposal.v1.as_ref();
    let v2 = proposal.v2.as_ref();
    let mut fields = vec![("offers", offers(v1, v2))];
    if proposal.peer_id != PeerId::default() {
        fields.push(("peer ID", proposal.peer_id.to_string()));
    }
    if proposal.roce_gid != RoceGid::default() {
        fields.push(("RoCE GID", proposal.roce_gid.to_string()));
    }
    if proposal.mac != Mac::default() {
        fields.push(("MAC", proposal.mac.to_string()));
    }
    if let Some(device) = proposal.smc_d_area.filter(|device| device.gid != Gid(0)) {
        fields.push(("ISM device", format!("{} on {}", device.gid, device.chid)));
    }
    if let Some(v1) = v1 {
        fields.push(("networks", networks(&v1.prefixes)));
    }
    if let Some(v2) = v2 {
        of_v2_offer(v2, proposal, &mut fields);
    }
    fields
}

fn of_v2_offer(offer: &V2Offer, proposal: &Proposal, fields: &mut Vec<Field>) {
    fields.push(("EIDs", listed(&offer.ueids)));
    if let Some(seid) = offer.smc_d().and_then(|smc_d| smc_d.seid) {
        fields.push(("SEID", seid.to_string()));
    }
    if offer.roce_gid != RoceGid::default() {
        fields.push(("RoCEv2 GID", offer.roce_gid.to_string()));
    }
    if offer.release >= Release::V2_1 {
        if offer.types.types().has_smc_r() {
            fields.push(("link group", limits(offer.max_conns, offer.max_links)));
        }
        fields.push(("features", features(offer.feature_mask)));
    }
    if let Some(smc_d) = offer.smc_d() {
        fields.push(("ISM devices", devices(smc_d, proposal)));
    }
}

fn of_smc_r(message: &AcceptConfirmR) -> Vec<Field> {
    let rmbe = format!("index {}, {}", message.rmbe_index, size(message.size));
    let mut fields = vec![
        ("contact", contact(message.is_first_contact())),
        ("MTU", message.mtu.to_string()),
        ("peer ID", message.peer_id.to_string()),
        ("MAC", message.mac.to_string()),
        ("GID", message.gid.to_string()),
        ("QP number", message.qp_number.to_string()),
        ("initial PSN", message.psn.to_string()),
        ("RMBE", rmbe),
        ("RKey", message.rkey.to_string()),
        ("RMB address", message.rmb_address.to_string()),
        ("alert token", message.alert_token.to_string()),
    ];
    if let FormR::V2 { eid, first_contact } = &message.form {
        fields.push(("EID", eid.to_string()));
        if let Some(extension) = first_contact {
            of_first_contact_r(extension, &mut fields);
        }
    }
    fields
}

fn of_first_contact_r(extension: &FirstContactR, fields: &mut Vec<Field>) {
    of_first_contact(&extension.common, fields);
    if extension.common.release >= Release::V2_1 {
        fields.push(("link group", limits(extension.max_conns, extension.max_links)));
    }
    let path = if extension.direct { "direct" } else { "through a gateway" };
    fields.push(("path", path.to_owned()));
    if !extension.gids.is_empty() {
        fields.push(("GIDs", listed(&extension.gids)));
    }
}

fn of_smc_d_v1(message: &AcceptConfirmDV1) -> Vec<Field> {
    vec![
        ("contact", contact(message.first_contact)),
        ("GID", message.gid.to_string()),
        ("DMB token", message.token.to_string()),
        ("DMBE", format!("index {}, {}", message.dmbe_index, size(message.size))),
        ("link ID", message.link_id.to_string()),
    ]
}

fn of_smc_d(message: &AcceptConfirmD) -> Vec<Field> {
    let is_emulated = message.chid.is_emulated();
    let gid = if is_emulated { message.gid.to_string() } else { message.gid.gid.to_string() };
    let kind = if is_emulated { ", emulated" } else { "" };
    let mut fields = vec![
        ("contact", contact(message.first_contact.is_some())),
        ("CHID", format!("{}{kind}", message.chid)),
        ("GID", gid),
        ("DMB token", message.token.to_string()),
        ("DMBE", format!("index {}, {}", message.dmbe_index, size(message.size))),
        ("link ID", message.link_id.to_string()),
        ("EID", message.eid.to_string()),
    ];
    if let Some(extension) = &message.first_contact {
        of_first_contact(extension, &mut fields);
    }
    fields
}

fn of_first_contact(extension: &FirstContact, fields: &mut Vec<Field>) {
    fields.push(("host", format!("{}, {}", extension.hostname, os(extension.os_type))));
    fields.push(("release", extension.release.to_string()));
    if extension.release >= Release::V2_1 {
        fields.push(("features", features(extension.feature_mask)));
    }
}

fn of_decline(decline: &Decline) -> Vec<Field> {
    let mut fields = vec![("diagnosis", decline.diagnosis.to_string())];
    if decline.peer_id != PeerId::default() {
        fields.push(("peer ID", decline.peer_id.to_string()));
    }
    if decline.out_of_sync {
        fields.push(("out of sync", "the link group of the Accept does not exist".into()));
    }
    if let Some(v2) = &decline.v2 {
        fields.push(("system", os(v2.os_type)));
        if v2.further != [0; 4] {
            fields.push(("further", v2.further.map(|word| format!("{word:08x}")).join(" ")));
        }
    }
    fields
}

fn offers(v1: Option<&V1Offer>, v2: Option<&V2Offer>) -> String {
    let words = |types| match types {
        Types::SmcR => "SMC-R",
        Types::SmcD => "SMC-D",
        Types::Both => "SMC-R and SMC-D",
    };
    let v1 = v1.map(|offer| format!("{} version 1", words(offer.types)));
    let v2 = v2.map(|offer| format!("{} version {}", words(offer.types.types()), offer.release));
    match (v1, v2) {
        (Some(v1), Some(v2)) => format!("{v1}; {v2}"),
        (Some(offer), None) | (None, Some(offer)) => offer,
        (None, None) => "nothing".into(),
    }
}

fn networks(prefixes: &IpPrefixes) -> String {
    match prefixes {
        IpPrefixes::V4 { subnet, prefix_len } => format!("{subnet}/{prefix_len}"),
        IpPrefixes::V6(list) => {
            let words = list.iter().map(|it| format!("{}/{}", it.prefix, it.prefix_len));
            words.collect::<Vec<_>>().join(", ")
        }
    }
}

/// Emulated devices in one piece, then the native ones. With halves of devices among them, the
/// entries as they are.
fn devices(smc_d: &SmcDV2, proposal: &Proposal) -> String {
    let entry = |entry: &GidEntry| format!("{} on {}", entry.gid, entry.chid);
    let emulated: Vec<_> = proposal.emulated_devices().collect();
    let native = smc_d.entries.iter().filter(|entry| !entry.chid.is_emulated());
    if 2 * emulated.len() + native.clone().count() < smc_d.entries.len() {
        return or_none(smc_d.entries.iter().map(entry).collect());
    }
    let emulated = emulated.iter().map(|(gid, chid)| format!("{gid} on {chid}"));
    or_none(emulated.chain(native.map(entry)).collect())
}

fn listed<T: ToString>(items: &[T]) -> String {
    or_none(items.iter().map(ToString::to_string).collect())
}

fn or_none(words: Vec<String>) -> String {
    if words.is_empty() { "none".into() } else { words.join(", ") }
}

fn limits(max_conns: u8, max_links: u8) -> String {
    format!("connections {max_conns}, links {max_links}")
}

fn features(mask: u16) -> String {
    let others = mask & !FEATURE_EMULATED_ISM;
    let known = mask & FEATURE_EMULATED_ISM != 0;
    match (known, others) {
        (false, 0) => "none".into(),
        (true, 0) => "Emulated-ISM".into(),
        (true, others) => format!("Emulated-ISM, unknown {others:#06x}"),
        (false, others) => format!("unknown {others:#06x}"),
    }
}

fn contact(is_first: bool) -> String {
    if is_first { "first" } else { "subsequent" }.into()
}

fn size(size: RmbeSize) -> String {
    bytes(size.bytes() as u64)
}

fn os(os_type: OsType) -> String {
    match os_type {
        OsType::NONE => "no system".into(),
        OsType::ZOS => "z/OS".into(),
        OsType::LINUX => "Linux".into(),
        OsType::AIX => "AIX".into(),
        OsType::UNKNOWN => "another system".into(),
        other => format!("system {}", other.code()),
    }
}
