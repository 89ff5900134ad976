//! What the commands beside `run` print.

use std::net::IpAddr;

use comfy_table::Table;
use serde::Serialize;

use super::error::VipError;
use crate::args::VipShowArgs;
use crate::commands::ss::aligned;
use crate::commands::vip_status::{
    Answer, Connection, Daemon, Request, Status, TargetLink, TargetStatus, Via, VipLink, VipStatus,
    ask, ask_all,
};
use crate::output::{self, Escaped};
use crate::terminal;

/// A change, which is told in words, or as `{"done": [...]}`.
pub(super) fn change(request: &Request, is_json: bool) -> Result<(), VipError> {
    let mut done = Vec::new();
    for daemon in concerned(request)? {
        match ask(daemon, request)? {
            Answer::Done(lines) => done.extend(lines.lines().map(str::to_owned)),
            other => return Err(unexpected(other)),
        }
    }
    if is_json {
        return say_json(&serde_json::json!({ "done": done }));
    }
    say(&done.iter().map(|line| format!("{line}\n")).collect::<String>())
}

/// Whom a change is for: all, or who has the target or VIP of this name.
fn concerned(request: &Request) -> Result<Vec<Daemon>, VipError> {
    let is_known = |vip: &VipStatus| match request {
        Request::Remove(name) => vip.name == *name,
        Request::Drain(name) | Request::Resume(name) => {
            let (of, target) = name.split_once('/').unwrap_or((&vip.name, name));
            vip.name == of && vip.targets.iter().any(|it| it.name == target)
        }
        _ => true,
    };
    let answers = ask_all(&Request::Status)?;
    let knows =
        |answer: &Answer| matches!(answer, Answer::Status(it) if it.vips.iter().any(is_known));
    let known: Vec<Daemon> =
        answers.iter().filter(|(_, answer)| knows(answer)).map(|(daemon, _)| *daemon).collect();
    match (request, &known[..]) {
        (Request::Move(_), _) => Ok(vec![Daemon::Hosts]),
        (Request::Apply, _) => Ok(answers.iter().map(|(daemon, _)| *daemon).collect()),
        (Request::Drain(name) | Request::Resume(name), [_, _]) => {
            Err(VipError::Refused(format!("several VIPs have a target {name}; say VIP/{name}")))
        }
        // None knows it: the first says so.
        (_, []) => Ok(vec![answers[0].0]),
        _ => Ok(known),
    }
}

pub(super) fn list(args: &VipShowArgs) -> Result<(), VipError> {
    let status = status()?;
    if args.json {
        return say_json(&status);
    }
    say(&status.vips.iter().map(terms).collect::<String>())
}

pub(super) fn targets(args: &VipShowArgs) -> Result<(), VipError> {
    let status = status()?;
    if args.json {
        return say_json(&status);
    }
    let mut table = Table::new();
    table.set_header(TARGETS);
    let of = |vip: &VipStatus| -> Vec<_> {
        vip.targets.iter().map(|target| cells(&vip.name, target)).collect()
    };
    table.add_rows(status.vips.iter().flat_map(of));
    say(&aligned(table, NUMBERS, terminal::width()))
}

pub(super) fn connections(args: &VipShowArgs) -> Result<(), VipError> {
    let mut connections = Vec::new();
    for (_, answer) in ask_all(&Request::Connections)? {
        match answer {
            Answer::Connections(more) => connections.extend(more),
            other => return Err(unexpected(other)),
        }
    }
    if args.json {
        return say_json(&serde_json::json!({ "connections": connections }));
    }
    let mut table = Table::new();
    table.set_header(["VIP", "Address", "Client", "Target"]);
    table.add_rows(connections.iter().map(|it| {
        let Connection { vip, address, client, target } = it;
        let target = target.as_deref().unwrap_or("from before");
        [vip.clone(), address.to_string(), client.to_string(), target.to_owned()]
    }));
    let count = connections.len();
    say(&format!("{}Connections: {count}\n", aligned(table, NO_NUMBERS, terminal::width())))
}

/// Of the four columns of connections none has numbers.
const NO_NUMBERS: std::ops::RangeInclusive<usize> = 4..=4;

fn status() -> Result<Status, VipError> {
    let mut all = Status::default();
    for (_, answer) in ask_all(&Request::Status)? {
        match answer {
            Answer::Status(status) => all.vips.extend(status.vips),
            other => return Err(unexpected(other)),
        }
    }
    Ok(all)
}

fn unexpected(answer: Answer) -> VipError {
    VipError::Refused(match answer {
        Answer::Refused(reason) => reason,
        other => format!("an answer to another question: {other:?}"),
    })
}

/// What the configuration says of a VIP, as one would write it.
fn terms(vip: &VipStatus) -> String {
    let protocol = if vip.protocol == "tcp" { "" } else { "UDP, " };
    let mut text = format!("{} at {}: {protocol}{}", vip.name, vip.address, vip.method);
    if vip.timedaffinity_s > 0.0 {
        text += &format!(", timedaffinity {} s", vip.timedaffinity_s);
    }
    if let Some(number) = vip.optlocal {
        text += &format!(", optlocal {number}");
    }
    if vip.method == "hotstandby" {
        text += if vip.switch_back { ", switch back" } else { ", no switch back" };
    }
    text += &match vip.probe.as_str() {
        "listens" => ", without probes\n".to_owned(),
        probe => format!(
            ", probe {} each {} s within {} s, rise {}, fall {}\n",
            Escaped(probe),
            vip.probe_interval_s,
            vip.probe_timeout_s,
            vip.rise,
            vip.fall
        ),
    };
    if vip.smc == "require" {
        text += "  targets that speak SMC alone\n";
    }
    if let Some(link) = &vip.link {
        text += &of_link(link);
    }
    text += match (vip.has_marker, vip.is_announced) {
        _ if vip.link.is_some() => "",
        (false, _) => "  no target takes connections under Sidestep: all stay on TCP\n",
        (true, false) => "  clients under Sidestep may move to shared memory\n",
        (true, true) => {
            "  clients under Sidestep may move to shared memory, by the TCP option as well\n"
        }
    };
    for target in &vip.targets {
        let TargetStatus { name, address, weight, link, .. } = target;
        let is_beyond = link.as_ref().is_some_and(|link| link.via == Via::Tunnel);
        let way = if is_beyond { ", by a tunnel" } else { "" };
        text += &format!("  {name} at {address}, weight {weight}{way}\n");
    }
    text
}

/// The link of a VIP whose targets are hosts, and what came there besides packets for them.
fn of_link(link: &VipLink) -> String {
    let taken = match link.owner {
        Some(owner) => owned(owner, link),
        None if link.is_taken => String::new(),
        None => " once its targets are known".to_owned(),
    };
    let counters = [
        (link.fragments, "fragments dropped"),
        (link.options, "packets with options"),
        (link.extension_headers, "packets with extension headers dropped"),
        (link.icmp_errors, "ICMP errors"),
        (link.without_target, "packets without a target"),
        (link.too_big, "packets too big for a tunnel dropped"),
        (link.open_checksums, "packets with open checksums not by XDP"),
    ];
    let seen: Vec<String> = counters
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    let seen = if seen.is_empty() { String::new() } else { format!(": {}", seen.join(", ")) };
    format!("  on {} by {}{taken}{seen}\n", link.interface, link.path)
}

/// Whose it is, of several distributors.
fn owned(owner: IpAddr, link: &VipLink) -> String {
    let backups: Vec<String> = link.backups.iter().map(IpAddr::to_string).collect();
    let backups = if backups.is_empty() { "none".to_owned() } else { backups.join(", ") };
    let fault = link.store_fault.as_ref().map(|fault| format!("; {fault}")).unwrap_or_default();
    format!(", owned by {owner}, backups: {backups}{fault}")
}

const TARGETS: [&str; 9] = [
    "Target",
    "Address",
    "State",
    "Weight",
    "Connections",
    "Given",
    "Queue",
    "Responsive",
    "Program",
];
/// The columns from "Weight" to "Responsive".
const NUMBERS: std::ops::RangeInclusive<usize> = 3..=7;

fn cells(vip: &str, target: &TargetStatus) -> [String; TARGETS.len()] {
    let program = match (&target.fault, target.pid, &target.program) {
        (Some(fault), _, _) => fault.clone(),
        (None, Some(pid), Some(program)) => {
            let under = if target.is_marked { ", Sidestep" } else { "" };
            format!("{pid}/{}{under}", Escaped(program))
        }
        (None, None, _) => target.link.as_ref().map_or_else(|| "-".to_owned(), host),
        _ => "-".to_owned(),
    };
    [
        format!("{vip}/{}", target.name),
        target.address.to_string(),
        target.state.clone(),
        target.weight.to_string(),
        target.connections.to_string(),
        target.given.to_string(),
        format!("{}/{}", target.queue, target.queue_max),
        target.responsiveness.map_or_else(|| "-".to_owned(), |percent| format!("{percent} %")),
        program,
    ]
}

/// What a target's host is called on its link.
fn host(link: &TargetLink) -> String {
    match (link.via, &link.address, link.mtu) {
        _ if link.is_own => "this host".to_owned(),
        (Via::Tunnel, _, Some(mtu)) => format!("host by a tunnel, {mtu} bytes"),
        (_, Some(address), _) => format!("host {address}"),
        _ => "host does not answer".to_owned(),
    }
}

fn say(text: &str) -> Result<(), VipError> {
    output::print(text).map(drop).map_err(VipError::of("cannot write the result"))
}

fn say_json(value: &impl Serialize) -> Result<(), VipError> {
    let text = serde_json::to_string_pretty(value).expect("names and numbers are always JSON");
    output::print_json(&(text + "\n")).map(drop).map_err(VipError::of("cannot write the result"))
}
