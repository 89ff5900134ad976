//! `sidestep filter test`: what becomes of a packet, by which rule.

use std::path::PathBuf;

use serde_json::json;
use sidestep_bpf::Cgroup;
use sidestep_filter::{
    Action, Endpoint, Group, Icmp, NO_USER, Name, Names, Packet, Protocol, Rule, RuleList, User,
    Verdict, Way,
};

use super::answer::{FilterError, named, say, say_json};
use super::groups::place;
use super::in_force::InForce;
use super::links;
use super::source::{Machine, Source};
use crate::args::FilterTestArgs;

pub(super) fn execute(args: &FilterTestArgs) -> Result<(), FilterError> {
    let (graph, (list, numbers), machine) = match &args.file {
        Some(path) => {
            let source = Source::read(path)?;
            let machine = Machine::here(&source.list)?;
            (source.compile(&machine)?.graph, source.list.with_later(&[]), machine)
        }
        None => {
            let in_force = InForce::find()?.ok_or(FilterError::None)?;
            let machine = Machine::with(in_force.groups());
            (in_force.filter.graph()?, in_force.rules(), machine)
        }
    };
    let packet = packet(args, &machine).map_err(FilterError::Packet)?;
    let Verdict { action, rule, .. } = graph.lookup(&packet);
    let rule = rule.and_then(|rule| numbers.iter().position(|&number| number == rule));
    let derived = if args.file.is_none() { links::rules() } else { Vec::new() };
    let answer = match derived.iter().find(|rule| rule.matches(&packet, &machine)) {
        Some(rule) => Answer::of_derived(&packet, rule, &list, &machine),
        None => Answer::of(&packet, action, rule, &list, &machine),
    };
    if args.json { say_json(&answer.to_json(&packet)) } else { say(&answer.to_text(&packet)) }
}

/// What the graph says, and what stands behind it.
struct Answer {
    action: Action,
    needs_tls: bool,
    /// The rule that decides; `None`: the default.
    by: Option<String>,
    line: Option<usize>,
    /// The first rule behind it that would decide otherwise.
    hides: Option<String>,
}

impl Answer {
    fn of(
        packet: &Packet,
        action: Action,
        rule: Option<usize>,
        list: &RuleList,
        machine: &Machine,
    ) -> Self {
        let behind = rule.map_or(list.rules.len(), |rule| rule + 1);
        Self {
            action,
            needs_tls: rule.is_some_and(|rule| list.rules[rule].needs_tls),
            by: rule.map(|rule| named(list, rule)),
            line: rule.map(|rule| list.line_of(rule)).filter(|&line| line > 0),
            hides: hidden(packet, action, behind, list, machine),
        }
    }

    /// By a rule that stands before the list.
    fn of_derived(packet: &Packet, rule: &Rule, list: &RuleList, machine: &Machine) -> Self {
        Self {
            action: rule.action,
            needs_tls: false,
            by: Some(format!("derived: {rule}")),
            line: None,
            hides: hidden(packet, rule.action, 0, list, machine),
        }
    }

    fn to_text(&self, packet: &Packet) -> String {
        let by = self.by.as_deref().unwrap_or("no rule matches, so the default decides");
        let only = if self.needs_tls { " if TLS protects the connection" } else { "" };
        let mut text = format!("{packet}\n  -> {}{only}: {by}\n", self.action);
        if let Some(hides) = &self.hides {
            text += &format!("  Without it the answer would be another, by {hides}\n");
        }
        text
    }

    fn to_json(&self, packet: &Packet) -> serde_json::Value {
        json!({
            "packet": packet.to_string(),
            "action": self.action.to_string(),
            "needs_tls": self.needs_tls,
            "line": self.line,
            "rule": self.by,
            "hides": self.hides,
        })
    }
}

/// The first rule from there on that would decide otherwise.
fn hidden(
    packet: &Packet,
    action: Action,
    from: usize,
    list: &RuleList,
    machine: &Machine,
) -> Option<String> {
    let is_other = |rule: &Rule| rule.action != action && rule.matches(packet, machine);
    let other = (from..list.rules.len()).find(|&it| is_other(&list.rules[it]));
    other.map(|it| named(list, it))
}

/// The words are those of a rule, but for what a packet cannot leave open.
fn packet(args: &FilterTestArgs, machine: &Machine) -> Result<Packet, String> {
    let line = format!("permit {} {} {}", args.protocol, args.from, args.to);
    let rule = RuleList::parse(&line).map_err(|errors| errors[0].message.clone())?;
    let rule = rule.rules.first().ok_or("a packet has a protocol and two addresses")?;
    let (protocol, icmp) = match rule.protocol {
        Protocol::Any => return Err("a packet has one protocol: tcp, udp, icmp, …".to_owned()),
        Protocol::Number(number @ (1 | 58)) => {
            let name = if number == 1 { "icmp" } else { "icmp6" };
            return Err(format!("a packet of {name} has a type: {name}:8, or {name}:3/1"));
        }
        Protocol::Number(number) => (number, (0, 0)),
        Protocol::Icmp(Icmp { kind, code }) => (1, (kind, code.unwrap_or(0))),
        Protocol::Icmp6(Icmp { kind, code }) => (58, (kind, code.unwrap_or(0))),
    };
    let interface = args.interface.as_deref().map_or(Ok(0), |name| {
        machine.interface(name).ok_or_else(|| format!("there is no interface {name} here"))
    })?;
    let way = args.way.into();
    let user = match (&args.user, way) {
        (None, Way::Forwarded) => NO_USER,
        (Some(_), Way::Forwarded) => return Err("a forwarded packet has no user".to_owned()),
        (None, _) => 0,
        (Some(name), _) => user(name, machine)?,
    };
    let end = |end: &Endpoint| {
        let prefix = end.prefix.filter(|it| it.prefix_len() == it.max_prefix_len());
        prefix.map(|it| it.addr()).ok_or("a packet has an address at each end, not a range")
    };
    let port = |end: &Endpoint| match (rule.protocol.has_ports(), end.ports.low == end.ports.high) {
        (false, _) => Ok(0),
        (true, true) => Ok(end.ports.low),
        (true, false) => Err("a packet of this protocol has a port at each end: ADDRESS:PORT"),
    };
    Ok(Packet {
        way,
        protocol,
        source: end(&rule.from)?,
        destination: end(&rule.to)?,
        ports: (port(&rule.from)?, port(&rule.to)?),
        icmp,
        interface,
        user,
        group: group(args, machine, way)?,
    })
}

/// The number of the control group that is asked about; without one, of none.
fn group(args: &FilterTestArgs, machine: &Machine, way: Way) -> Result<u32, String> {
    let groups = machine.groups();
    let path = match (&args.cgroup, &args.unit) {
        (None, None) => return Ok(0),
        _ if way == Way::Forwarded => {
            return Err("a forwarded packet has no control group".to_owned());
        }
        (Some(path), _) => match Group::path(path) {
            Some(_) => PathBuf::from(path),
            None => {
                return Err(format!("`{path}` is no control group: a path from the root of all"));
            }
        },
        (None, Some(unit)) if Group::unit(unit).is_none() => {
            return Err(format!(
                "`{unit}` is no unit with processes: the whole name, as in nginx.service"
            ));
        }
        (None, Some(unit)) => match groups.units().get(unit) {
            Some(path) => path.clone(),
            None => place(unit, &Cgroup::root().map_err(|error| error.to_string())?),
        },
    };
    Ok(groups.number(&path))
}

fn user(name: &str, machine: &Machine) -> Result<u32, String> {
    let user = name.parse().ok().map(User::Id).or_else(|| Name::new(name).map(User::Name));
    match user {
        Some(User::Id(id)) => Some(id),
        Some(User::Name(name)) => machine.user(name.as_str()),
        None => None,
    }
    .ok_or_else(|| format!("there is no user {name} here"))
}
