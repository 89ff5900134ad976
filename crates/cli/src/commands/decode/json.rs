//! Conversations and links as JSON; the names are part of the command's interface.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;
use serde_json::map::Entry;
use serde_json::{Map, Value};

use super::conversation::{Conversation, Outcome};
use super::decoded::Decoded;
use super::fields::{self, Field};
use super::rdma::{self, Link};
use super::step::{Step, What};

#[derive(Serialize)]
struct Document<'a> {
    packets: u64,
    /// Whether the capture could be read to its end.
    complete: bool,
    connections: Vec<Connection<'a>>,
    /// Connections that are not listed: no sign of SMC.
    plain_connections: usize,
    links: Vec<LinkLines<'a>>,
    roce: Vec<Roce>,
    broken_rules: usize,
}

#[derive(Serialize)]
struct Connection<'a> {
    client: SocketAddr,
    server: SocketAddr,
    /// "SMC", "TCP", or null if that was not decided.
    mode: Option<&'static str>,
    result: &'a str,
    /// Only of SMC.
    first_contact: Option<bool>,
    steps: Vec<Line>,
    client_bytes: usize,
    server_bytes: usize,
}

#[derive(Serialize)]
struct Line {
    packet: u64,
    ms: f64,
    from: &'static str,
    kind: String,
    /// Only of SYN and SYN-ACK.
    #[serde(skip_serializing_if = "Option::is_none")]
    smc_option: Option<bool>,
    /// Only of CLC messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    length: Option<u16>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    fields: Map<String, Value>,
    broken_rules: Vec<String>,
}

/// A link of SMC-R.
#[derive(Serialize)]
struct LinkLines<'a> {
    /// Null where CLC is not in the capture: the first end is then just that of the first packet.
    number: Option<u8>,
    ends: [LinkEnd; 2],
    /// Connections of its group.
    connections: Vec<&'a str>,
    packets: u64,
    lines: Vec<LinkLine>,
    /// Lines too many to be listed.
    hidden: u64,
    broken_rules: usize,
}

#[derive(Serialize)]
struct LinkEnd {
    address: IpAddr,
    qp_number: Option<String>,
}

#[derive(Serialize)]
struct LinkLine {
    packet: u64,
    ms: f64,
    from: &'static str,
    psn: String,
    kind: &'static str,
    label: String,
    #[serde(skip_serializing_if = "Map::is_empty")]
    fields: Map<String, Value>,
    broken_rules: Vec<String>,
}

#[derive(Serialize)]
struct Roce {
    hosts: [IpAddr; 2],
    packets: u64,
    /// Packets that belong to no link.
    strange: u64,
}

pub(super) fn document(decoded: &Decoded, shown: &[Conversation<'_>]) -> String {
    let document = Document {
        packets: decoded.extent.packets,
        complete: decoded.extent.broken.is_none(),
        connections: shown.iter().map(connection).collect(),
        plain_connections: decoded.connections.streams().len() - shown.len(),
        links: decoded.rdma.links().map(|it| link(it, decoded.rdma.connections(it))).collect(),
        roce: decoded.rdma.hosts().iter().map(roce).collect(),
        broken_rules: decoded.broken_rules(shown),
    };
    let text = serde_json::to_string_pretty(&document);
    text.expect("numbers and strings are always JSON") + "\n"
}

fn roce((hosts, traffic): (&[IpAddr; 2], &rdma::Traffic)) -> Roce {
    Roce { hosts: *hosts, packets: traffic.packets, strange: traffic.strange }
}

fn link<'a>(link: &'a Link, connections: Vec<&'a str>) -> LinkLines<'a> {
    let started = link.lines.first().map_or(0, |line| line.moment.at);
    let end = |end: &rdma::End| LinkEnd {
        address: end.address,
        qp_number: end.qp_number.map(|it| it.to_string()),
    };
    let line = |line: &rdma::Line| LinkLine {
        packet: line.moment.packet,
        ms: line.moment.at.saturating_sub(started) as f64 / 1e6,
        from: line.from.name(),
        psn: line.psn.to_string(),
        kind: line.kind(),
        label: line.label(),
        fields: keyed(line.fields().to_vec()),
        broken_rules: line.broken.clone(),
    };
    LinkLines {
        number: link.number.map(|number| number.0),
        ends: link.ends.each_ref().map(end),
        connections,
        packets: link.packets,
        lines: link.lines.iter().map(line).collect(),
        hidden: link.hidden,
        broken_rules: link.broken_rules,
    }
}

/// Fields by their names, in the manner of JSON. Those that come several times are a list.
fn keyed(fields: Vec<Field>) -> Map<String, Value> {
    let mut map = Map::new();
    for (name, value) in fields {
        match map.entry(name.to_lowercase().replace(' ', "_")) {
            Entry::Vacant(entry) => {
                entry.insert(value.into());
            }
            Entry::Occupied(mut entry) => match entry.get_mut() {
                Value::Array(list) => list.push(value.into()),
                first => *first = vec![first.take(), value.into()].into(),
            },
        }
    }
    map
}

fn connection<'a>(conversation: &'a Conversation<'_>) -> Connection<'a> {
    let (mode, result, first_contact) = match &conversation.outcome {
        Outcome::Smc { kind, first_contact } => (Some("SMC"), kind, Some(*first_contact)),
        Outcome::Tcp(reason) => (Some("TCP"), reason, None),
        Outcome::Beside(reason) | Outcome::Open(reason) => (None, reason, None),
    };
    let started = conversation.stream.started.at;
    let [client_bytes, server_bytes] = conversation.behind;
    Connection {
        client: conversation.stream.client,
        server: conversation.stream.server,
        mode,
        result,
        first_contact,
        steps: conversation.steps.iter().map(|step| line(step, started)).collect(),
        client_bytes,
        server_bytes,
    }
}

fn line(step: &Step, started: u64) -> Line {
    let header = match &step.what {
        What::Clc { header, .. } => Some(header),
        What::Fragment { header, .. } => header.as_ref(),
        _ => None,
    };
    let (kind, smc_option) = match &step.what {
        What::Syn(option) => ("SYN".into(), Some(option.is_some())),
        What::SynAck(option) => ("SYN-ACK".into(), Some(option.is_some())),
        What::Clc { .. } | What::Fragment { .. } | What::Garbled(_) => {
            let kind = header.map(|header| header.message_type.to_string());
            (kind.unwrap_or_else(|| "CLC".into()), None)
        }
        What::Bytes => ("bytes".into(), None),
    };
    let fields = match &step.what {
        What::Clc { message: Ok(message), .. } => fields::of(message),
        _ => Vec::new(),
    };
    Line {
        packet: step.moment.packet,
        ms: step.moment.at.saturating_sub(started) as f64 / 1e6,
        from: step.from.name(),
        kind,
        smc_option,
        version: header.map(|header| header.version.code()),
        length: header.map(|header| header.length),
        fields: keyed(fields),
        broken_rules: step.broken.clone(),
    }
}
