//! `sidestep links` and `sidestep devices`: what the gateway of this network namespace has.

use std::io;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;
use sidestep_gateway::status::{Adapter, Link, Mode, Status, Usage};
use thiserror::Error;

use super::ss::bytes;
use crate::args::StatusArgs;
use crate::output;

/// Why there is nothing to be shown.
#[derive(Debug, Error)]
enum StatusError {
    #[error("there is no gateway in this network namespace; start one: sidestep gateway")]
    NoGateway,
    #[error("cannot ask the gateway: {0}; root may ask any")]
    Ask(io::Error),
    #[error("cannot write the list: {0}")]
    Output(io::Error),
}

impl From<io::Error> for StatusError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::NoGateway,
            _ => Self::Ask(error),
        }
    }
}

/// Prints which process is the gateway, and which ones before it drain: 0, or 1 if there is none.
pub(crate) fn gateways() -> i32 {
    let list = || {
        let newest = Status::ask()?;
        let before = newest.ask_predecessors();
        let text: String = [newest].iter().chain(&before).map(in_words).collect();
        output::print(&text).map_err(StatusError::Output)
    };
    match list() {
        Ok(_) => 0,
        Err(error) => {
            output::complain("gateway", &error);
            1
        }
    }
}

fn in_words(status: &Status) -> String {
    let Status { process, drains, connections, adapters, links, .. } = status;
    let by_smc_r = connections.iter().filter(|it| it.mode == Mode::SmcR).count();
    let up = adapters.iter().filter(|it| it.is_up).count();
    let (what, count) = (if *drains { "drains" } else { "serves" }, connections.len());
    format!(
        "process {process} {what}: connections {count}, of them by SMC-R {by_smc_r}; \
         adapters up {up}, links {}\n",
        links.len()
    )
}

/// Prints the links of all link groups: 0, or 1 if there cannot be a list.
pub(crate) fn links(args: &StatusArgs) -> i32 {
    show("links", args, |status| status.links, |links| table(&LINKS, links, link))
}

/// Prints the adapters: the same.
pub(crate) fn devices(args: &StatusArgs) -> i32 {
    show("devices", args, |status| status.adapters, |adapters| table(&DEVICES, adapters, device))
}

fn show<T: Serialize>(
    command: &str,
    args: &StatusArgs,
    part: impl FnOnce(Status) -> Vec<T>,
    to_text: impl FnOnce(&[T]) -> String,
) -> i32 {
    let list = || {
        let part = part(Status::ask_all().map_err(StatusError::from)?);
        let text = if args.json { to_json(&part) } else { to_text(&part) };
        output::print_as(args.json, &text).map_err(StatusError::Output)
    };
    match list() {
        Ok(_) => 0,
        Err(error) => {
            output::complain(command, &error);
            1
        }
    }
}

fn to_json<T: Serialize>(list: &[T]) -> String {
    let json = serde_json::to_string_pretty(list);
    json.expect("numbers and strings are always JSON") + "\n"
}

const LINKS: [&str; 13] = [
    "Group",
    "Link",
    "Role",
    "SMC",
    "State",
    "Device",
    "Here",
    "There",
    "Peer",
    "Connections",
    "Sent",
    "Received",
    "Sent again",
];

fn link(link: &Link) -> Vec<String> {
    let Link { usage: Usage { traffic, retransmissions }, .. } = link;
    vec![
        link.link_group.to_string(),
        link.link.to_string(),
        link.role.clone(),
        format!("v{}", link.version),
        link.state.clone(),
        kind(link.port.as_deref()),
        link.gid.clone(),
        link.peer_gid.clone().unwrap_or_else(|| "?".to_owned()),
        link.peer_id.clone(),
        link.connections.to_string(),
        format!("{} ({})", bytes(traffic.bytes_sent), traffic.messages_sent),
        format!("{} ({})", bytes(traffic.bytes_received), traffic.messages_received),
        sent_again(*retransmissions),
    ]
}

/// Packets; those of RDMA devices are not known.
fn sent_again(packets: Option<u64>) -> String {
    packets.map_or_else(|| "?".to_owned(), |packets| packets.to_string())
}

/// What an adapter is: the port of an RDMA device, or none of the kernel's.
fn kind(port: Option<&str>) -> String {
    port.unwrap_or("soft RNIC").to_owned()
}

const DEVICES: [&str; 12] = [
    "State",
    "Device",
    "RoCE",
    "Interface",
    "Address",
    "GID",
    "MAC",
    "PNET ID",
    "Links",
    "Sent",
    "Received",
    "Sent again",
];

fn device(adapter: &Adapter) -> Vec<String> {
    let Adapter { usage: Usage { traffic, retransmissions }, .. } = adapter;
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    vec![
        if adapter.is_up { "up" } else { "down" }.to_owned(),
        kind(adapter.port.as_deref()),
        adapter.roce.iter().map(|version| format!("v{version}")).collect::<Vec<_>>().join(", "),
        known(&adapter.interface),
        adapter.address.to_string(),
        adapter.gid.clone(),
        adapter.mac.clone(),
        known(&adapter.pnet_id),
        adapter.links.to_string(),
        format!("{} ({})", bytes(traffic.bytes_sent), traffic.messages_sent),
        format!("{} ({})", bytes(traffic.bytes_received), traffic.messages_received),
        sent_again(*retransmissions),
    ]
}

/// Blanks between columns.
const GAP: u16 = 2;

fn table<T>(header: &[&str], list: &[T], cells: impl Fn(&T) -> Vec<String>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(header.to_vec()).add_rows(list.iter().map(cells));
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
        column.set_cell_alignment(CellAlignment::Left);
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_gateway::status::Traffic;

    fn usage() -> Usage {
        let traffic = Traffic {
            bytes_sent: 2048,
            messages_sent: 3,
            bytes_received: 10,
            messages_received: 1,
        };
        Usage { traffic, retransmissions: Some(7) }
    }

    #[test]
    fn links_are_lines_with_both_ends() {
        let one = Link {
            link_group: 1,
            link: 2,
            role: "server".to_owned(),
            version: 2,
            peer_id: "0001-020000000002".to_owned(),
            peer_gid: None,
            gid: "::ffff:10.0.0.1".to_owned(),
            port: Some("mlx5_0/1".to_owned()),
            state: "Active".to_owned(),
            connections: 5,
            usage: usage(),
        };
        assert_eq!(
            table(&LINKS, &[one], link),
            "Group  Link  Role    SMC  State   Device    Here             There  Peer               Connections  Sent      Received  Sent again\n\
             1      2     server  v2   Active  mlx5_0/1  ::ffff:10.0.0.1  ?      0001-020000000002  5            2 KB (3)  10 B (1)  7\n"
        );
    }

    #[test]
    fn devices_are_lines_with_what_they_are_called() {
        let one = Adapter {
            address: "10.0.0.1".parse().unwrap(),
            port: None,
            roce: vec![2, 1],
            gid: "::ffff:10.0.0.1".to_owned(),
            mac: "02:00:00:00:00:01".to_owned(),
            mtu: Some(1024),
            vlan: 0,
            pnet_id: None,
            interface: Some("eth0".to_owned()),
            is_up: true,
            links: 2,
            usage: usage(),
        };
        let text = table(&DEVICES, &[one], device);
        assert_eq!(text.lines().count(), 2);
        let words: Vec<_> = text
            .lines()
            .nth(1)
            .unwrap()
            .split("  ")
            .filter(|it| !it.is_empty())
            .map(str::trim)
            .collect();
        assert_eq!(
            words,
            [
                "up",
                "soft RNIC",
                "v2, v1",
                "eth0",
                "10.0.0.1",
                "::ffff:10.0.0.1",
                "02:00:00:00:00:01",
                "-",
                "2",
                "2 KB (3)",
                "10 B (1)",
                "7"
            ]
        );
        assert_eq!(table(&DEVICES, &[], device).lines().count(), 1);
    }
}
