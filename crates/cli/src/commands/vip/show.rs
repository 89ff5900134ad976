//! What the commands beside `run` print.

use comfy_table::Table;
use serde::Serialize;

use super::error::VipError;
use crate::args::VipShowArgs;
use crate::commands::ss::aligned;
use crate::commands::vip_status::{
    Answer, Connection, Request, Status, TargetStatus, VipStatus, ask,
};
use crate::output::{self, Escaped};
use crate::terminal;

/// A change, which is told in words, or as `{"done": [...]}`.
pub(super) fn change(request: &Request, is_json: bool) -> Result<(), VipError> {
    match ask(request)? {
        Answer::Done(lines) if is_json => {
            say_json(&serde_json::json!({ "done": lines.lines().collect::<Vec<_>>() }))
        }
        Answer::Done(lines) => say(&format!("{lines}\n")),
        other => Err(unexpected(other)),
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
    let connections = match ask(&Request::Connections)? {
        Answer::Connections(connections) => connections,
        other => return Err(unexpected(other)),
    };
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
    match ask(&Request::Status)? {
        Answer::Status(status) => Ok(status),
        other => Err(unexpected(other)),
    }
}

fn unexpected(answer: Answer) -> VipError {
    VipError::Refused(match answer {
        Answer::Refused(reason) => reason,
        other => format!("an answer to another question: {other:?}"),
    })
}

/// What the configuration says of a VIP, as one would write it.
fn terms(vip: &VipStatus) -> String {
    let mut text = format!("{} at {}: {}", vip.name, vip.address, vip.method);
    if vip.timedaffinity_s > 0.0 {
        text += &format!(", timedaffinity {} s", vip.timedaffinity_s);
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
    text += match (vip.has_marker, vip.is_announced) {
        (false, _) => "  no target takes connections under Sidestep: all stay on TCP\n",
        (true, false) => "  clients under Sidestep may move to shared memory\n",
        (true, true) => {
            "  clients under Sidestep may move to shared memory, by the TCP option as well\n"
        }
    };
    for target in &vip.targets {
        text += &format!("  {} at {}, weight {}\n", target.name, target.address, target.weight);
    }
    text
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

fn say(text: &str) -> Result<(), VipError> {
    output::print(text).map(drop).map_err(VipError::of("cannot write the result"))
}

fn say_json(value: &impl Serialize) -> Result<(), VipError> {
    let text = serde_json::to_string_pretty(value).expect("names and numbers are always JSON");
    output::print_json(&(text + "\n")).map(drop).map_err(VipError::of("cannot write the result"))
}
