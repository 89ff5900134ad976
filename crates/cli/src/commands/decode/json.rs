//! Conversations as JSON; the names are part of the command's interface.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;
use serde_json::{Map, Value};

use super::conversation::{Conversation, Outcome, Step, What};
use super::{Decoded, fields};

#[derive(Serialize)]
struct Document<'a> {
    packets: u64,
    /// Whether the capture could be read to its end.
    complete: bool,
    connections: Vec<Connection<'a>>,
    /// Connections that are not listed: no sign of SMC.
    plain_connections: usize,
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

#[derive(Serialize)]
struct Roce {
    hosts: [IpAddr; 2],
    packets: u64,
}

pub(super) fn document(decoded: &Decoded, shown: &[Conversation<'_>]) -> String {
    let document = Document {
        packets: decoded.extent.packets,
        complete: decoded.extent.broken.is_none(),
        connections: shown.iter().map(connection).collect(),
        plain_connections: decoded.connections.streams().len() - shown.len(),
        roce: roce(&decoded.roce),
        broken_rules: shown.iter().map(Conversation::broken_rules).sum(),
    };
    let text = serde_json::to_string_pretty(&document);
    text.expect("numbers and strings are always JSON") + "\n"
}

fn roce(counts: &BTreeMap<[IpAddr; 2], u64>) -> Vec<Roce> {
    counts.iter().map(|(hosts, packets)| Roce { hosts: *hosts, packets: *packets }).collect()
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
    let key = |name: &str| name.to_lowercase().replace(' ', "_");
    Line {
        packet: step.moment.packet,
        ms: step.moment.at.saturating_sub(started) as f64 / 1e6,
        from: step.from.name(),
        kind,
        smc_option,
        version: header.map(|header| header.version.code()),
        length: header.map(|header| header.length),
        fields: fields.into_iter().map(|(name, value)| (key(name), value.into())).collect(),
        broken_rules: step.broken.clone(),
    }
}
