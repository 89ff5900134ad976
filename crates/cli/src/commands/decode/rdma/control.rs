//! LLC messages, in words, and which rules of an exchange they break.
//!
//! A request is answered on its link by a response of the same type. What a response repeats of its
//! request is compared where the standard says so.

use std::net::{IpAddr, Ipv6Addr};

use sidestep_wire::llc::{
    AddLink, AddLinkForm, AddLinkStep, ConfirmRkeyStep, DeleteScope, Form, LengthOrder, Message,
    RkeyStep, Role,
};
use sidestep_wire::{Rkey, RmbAddress, RoceGid};

use super::super::fields::Field;
use super::super::streams::Side;

/// Requests of a link that wait for their response, by the side that asked.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    open: [Vec<Asked>; 2],
}

/// The name of a message, and the user data of a TEST LINK.
type Asked = (&'static str, Option<[u8; 16]>);

/// Requests of one side that are remembered. Linux has at most one under way.
const OPEN_MAX: usize = 64;

impl Exchanges {
    /// The rules that a message from this side breaks.
    pub(super) fn judge(&mut self, from: Side, message: &Message) -> Option<String> {
        let name = name(message);
        let data = match message {
            Message::TestLink(message) => Some(message.user_data),
            _ => None,
        };
        let [client, server] = &mut self.open;
        let (mine, peers) = match from {
            Side::Client => (client, server),
            Side::Server => (server, client),
        };
        if step(message) == Step::Request {
            if mine.len() < OPEN_MAX {
                mine.push((name, data));
            }
            return None;
        }
        let Some(at) = peers.iter().position(|(asked, _)| *asked == name) else {
            return Some(format!("answers a {name} that was not sent (RFC 7609 §A.3)"));
        };
        let (_, asked) = peers.remove(at);
        (asked != data).then(|| "repeats other user data than the request (RFC 7609 §A.3.8)".into())
    }
}

/// Which half of an exchange a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Request,
    Response,
    Negative,
}

fn step(message: &Message) -> Step {
    let of_role = |role| match role {
        Role::Request => Step::Request,
        Role::Response => Step::Response,
    };
    let of_add_link = |step| match step {
        AddLinkStep::Request => Step::Request,
        AddLinkStep::Response => Step::Response,
        AddLinkStep::Reject(_) => Step::Negative,
    };
    let of_rkey = |step| match step {
        RkeyStep::Request => Step::Request,
        RkeyStep::Response => Step::Response,
        RkeyStep::Negative => Step::Negative,
    };
    match message {
        Message::ConfirmLink(it) => of_role(it.role),
        Message::AddLink(it) => of_add_link(it.step),
        Message::AddLinkContinuation(it) => of_role(it.role),
        Message::DeleteLink(it) => of_role(it.role),
        Message::RequestAddLink(it) => of_add_link(it.step),
        Message::ConfirmRkey(it) => match it.step {
            ConfirmRkeyStep::Request => Step::Request,
            ConfirmRkeyStep::Response => Step::Response,
            _ => Step::Negative,
        },
        Message::ConfirmRkeyContinuation(it) => of_rkey(it.step),
        Message::TestLink(it) => of_role(it.role),
        Message::DeleteRkey(it) => of_rkey(it.step),
    }
}

pub(super) fn is_request(message: &Message) -> bool {
    step(message) == Step::Request
}

fn name(message: &Message) -> &'static str {
    match message {
        Message::ConfirmLink(_) => "CONFIRM LINK",
        Message::AddLink(_) => "ADD LINK",
        Message::AddLinkContinuation(_) => "ADD LINK CONTINUATION",
        Message::DeleteLink(_) => "DELETE LINK",
        Message::RequestAddLink(_) => "REQUEST ADD LINK",
        Message::ConfirmRkey(_) => "CONFIRM RKEY",
        Message::ConfirmRkeyContinuation(_) => "CONFIRM RKEY CONTINUATION",
        Message::TestLink(_) => "TEST LINK",
        Message::DeleteRkey(_) => "DELETE RKEY",
    }
}

/// Its name and which half of the exchange it is.
pub(super) fn label(message: &Message) -> String {
    let step = match step(message) {
        Step::Request => "request",
        Step::Response => "response",
        Step::Negative => "negative response",
    };
    format!("{} {step}, version {}", name(message), message.form().version().code())
}

/// Every field, as the standard names it.
pub(super) fn fields(message: &Message) -> Vec<Field> {
    let mut fields = match message {
        Message::ConfirmLink(it) => {
            let mut fields = vec![
                ("MAC", it.mac.to_string()),
                ("GID", it.gid.to_string()),
                ("QP number", it.qp_number.to_string()),
                ("link number", it.link_number.to_string()),
                ("link user ID", it.link_user_id.to_string()),
                ("max links", it.max_links.to_string()),
            ];
            if it.max_conns != 0 {
                fields.push(("max conns", it.max_conns.to_string()));
            }
            let eyecatcher = if it.no_eyecatcher { "none" } else { "in front of each RMBE" };
            fields.push(("eyecatcher", eyecatcher.into()));
            fields
        }
        Message::AddLink(it) => of_add_link(it),
        Message::AddLinkContinuation(it) => {
            let mut fields = vec![
                ("link number", it.link_number.to_string()),
                ("remaining", it.remaining.to_string()),
            ];
            fields.extend(it.pairs.iter().map(|it| pair(it.reference, it.rkey, it.address)));
            fields
        }
        Message::DeleteLink(it) => {
            let scope = match it.scope {
                DeleteScope::Link(number) => format!("link {number}"),
                DeleteScope::All => "all links of the group".into(),
            };
            let order = if it.orderly { "orderly" } else { "at once" };
            vec![("ends", scope), ("how", order.into()), ("reason", it.reason.to_string())]
        }
        Message::RequestAddLink(it) => {
            let gids: Vec<_> = it.gids.iter().map(ToString::to_string).collect();
            let mut fields = vec![("GIDs", gids.join(", "))];
            fields.extend(rejection(it.step));
            fields
        }
        Message::ConfirmRkey(it) => {
            let mut fields =
                vec![("RKey", it.rkey.to_string()), ("RMB address", it.address.to_string())];
            if it.remaining != 0 {
                fields.push(("other links", it.remaining.to_string()));
            }
            fields.extend(it.entries.iter().map(|it| {
                ("entry", format!("link {}: RKey {} at {}", it.link_number, it.rkey, it.address))
            }));
            if it.step == ConfirmRkeyStep::RetryLater {
                fields.push(("answer", "retry later".into()));
            }
            fields
        }
        Message::ConfirmRkeyContinuation(it) => {
            let mut fields = vec![("remaining", it.remaining.to_string())];
            fields.extend(it.entries.iter().map(|it| {
                ("entry", format!("link {}: RKey {} at {}", it.link_number, it.rkey, it.address))
            }));
            fields
        }
        Message::TestLink(it) => {
            let data: String = it.user_data.iter().map(|byte| format!("{byte:02x}")).collect();
            vec![("user data", data)]
        }
        Message::DeleteRkey(it) => {
            let keys: Vec<_> = it.rkeys.iter().map(ToString::to_string).collect();
            let mut fields = Vec::new();
            // A response of version 2 has zeros there.
            if it.step == RkeyStep::Request || it.form == Form::V1 {
                fields.push(("RKeys", keys.join(", ")));
            }
            if it.errors != 0 {
                fields.push(("error mask", format!("{:#04x}", it.errors)));
            }
            fields
        }
    };
    if let Form::V2(order) = message.form() {
        let order = match order {
            LengthOrder::BigEndian => "big-endian",
            LengthOrder::LittleEndian => "little-endian, as of Linux on x86",
        };
        fields.push(("length", order.into()));
    }
    fields
}

fn of_add_link(message: &AddLink) -> Vec<Field> {
    let mut fields = vec![
        ("MAC", message.mac.to_string()),
        ("GID", message.gid.to_string()),
        ("QP number", message.qp_number.to_string()),
        ("link number", message.link_number.to_string()),
        ("MTU", message.mtu.to_string()),
        ("initial PSN", message.psn.to_string()),
    ];
    if let AddLinkForm::V2 { extension: Some(extension), .. } = &message.form {
        let path = if extension.direct { "direct" } else { "through a gateway" };
        fields.push(("path", path.into()));
        fields.push(("target GID", extension.target_gid.to_string()));
        fields.extend(extension.pairs.iter().map(|it| pair(it.reference, it.rkey, it.address)));
    }
    fields.extend(rejection(message.step));
    fields
}

fn pair(reference: Rkey, rkey: Rkey, address: RmbAddress) -> Field {
    ("pair", format!("RKey {reference} is {rkey} at {address} there"))
}

fn rejection(step: AddLinkStep) -> Option<Field> {
    let AddLinkStep::Reject(reason) = step else { return None };
    let words = match reason.code() {
        0 => "not stated, as from Linux".into(),
        1 => "no alternate path".into(),
        2 => "invalid MTU".into(),
        code => format!("unknown, {code}"),
    };
    Some(("reason", words))
}

/// The address that a GID of RoCEv2 stands for.
pub(super) fn address(gid: RoceGid) -> IpAddr {
    Ipv6Addr::from(gid.0).to_canonical()
}
