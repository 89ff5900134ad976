//! z/OS Policy Agent: `IpFilterRule` statements, in the order in which they stand, and the addresses,
//! services and actions that they have or refer to.
//!
//! ```text
//!  IpFilterRule            Web
//!  {
//!    IpSourceAddr          192.0.2.7
//!    IpDestAddr            All
//!    IpService
//!    {
//!      Protocol            TCP
//!      SourcePortRange     443
//!      Direction           BiDirectional
//!      Routing             Local
//!    }
//!    IpGenericFilterActionRef  Permit
//!  }
//! ```
//!
//! What goes both ways is two rules: as it stands for packets that leave, and with its ends exchanged for
//! those that arrive. What is routed is `forwarded` in both forms: it meets a list once, where on z/OS it meets it
//! as it comes and as it goes, so a service for one of these alone is left out. What no rule permits is denied.

use std::collections::HashMap;

use ipnet::IpNet;

use super::draft::{Draft, everything, ports, prefix, protocol};
use super::imported::{Entry, Imported};
use crate::protocol::Protocol;
use crate::rule::{Action, Direction, Ports, Rule};

pub(super) fn read(text: &str) -> Result<Imported, String> {
    let top = parse(text)?;
    let mut named = HashMap::new();
    collect_named(&top, &mut named);
    let mut entries = Vec::new();
    add_rules(&top, &named, &mut entries);
    if entries.is_empty() {
        return Err("there is no IpFilterRule in it".to_owned());
    }
    Ok(Imported { entries, default: Action::Deny })
}

/// A statement, with what stands between its braces.
struct Statement {
    line: usize,
    /// The keyword, in small letters: case does not count.
    keyword: String,
    values: Vec<String>,
    inner: Option<Vec<Self>>,
}

/// Braces in each other: those of a policy have three.
const DEPTH_MAX: usize = 16;

fn parse(text: &str) -> Result<Vec<Statement>, String> {
    let mut open: Vec<Vec<Statement>> = vec![Vec::new()];
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let spaced = line.replace('{', " { ").replace('}', " } ");
        let mut values = Vec::new();
        for word in spaced.split_whitespace() {
            match word {
                "{" => {
                    add(&mut open, number, &mut values);
                    open.push(Vec::new());
                    if open.len() > DEPTH_MAX {
                        return Err(format!("line {number}: too many braces are open"));
                    }
                }
                "}" => {
                    add(&mut open, number, &mut values);
                    let inner = open.pop().expect("one is always open");
                    let outer = open.last_mut().and_then(|outer| outer.last_mut());
                    let Some(outer) = outer else {
                        return Err(format!("line {number}: a brace closes that none has opened"));
                    };
                    outer.inner = Some(inner);
                }
                word => values.push(word.to_owned()),
            }
        }
        add(&mut open, number, &mut values);
    }
    if open.len() > 1 {
        return Err("the last brace is not closed".to_owned());
    }
    Ok(open.remove(0))
}

/// Ends the statement that the words so far are.
fn add(open: &mut [Vec<Statement>], line: usize, values: &mut Vec<String>) {
    if values.is_empty() {
        return;
    }
    let keyword = values.remove(0).to_ascii_lowercase();
    let statement = Statement { line, keyword, values: std::mem::take(values), inner: None };
    open.last_mut().expect("one is always open").push(statement);
}

/// Statements that others refer to, by keyword and name.
type Named<'a> = HashMap<(&'a str, &'a str), &'a [Statement]>;

fn collect_named<'a>(statements: &'a [Statement], named: &mut Named<'a>) {
    for statement in statements {
        let Some(inner) = &statement.inner else { continue };
        if let Some(name) = statement.values.first() {
            named.insert((&statement.keyword, name), inner);
        }
        collect_named(inner, named);
    }
}

fn add_rules(statements: &[Statement], named: &Named<'_>, entries: &mut Vec<Entry>) {
    for statement in statements {
        let inner = statement.inner.as_deref().unwrap_or_default();
        let left_out = |reason: String| {
            let name = statement.values.first().map_or("without a name", String::as_str);
            let place = format!("line {}: {} {name}", statement.line, statement.keyword);
            Entry::LeftOut { place, reason }
        };
        match statement.keyword.as_str() {
            "ipfilterrule" => match rules(inner, named) {
                Ok(rules) => entries.extend(rules.into_iter().map(Entry::Rule)),
                Err(reason) => entries.push(left_out(reason)),
            },
            "ipfiltergroupref" | "ipfilterruleref" => {
                let reason = "write out what it refers to: its rules count where they are defined";
                entries.push(left_out(reason.to_owned()));
            }
            _ => add_rules(inner, named, entries),
        }
    }
}

fn rules(statements: &[Statement], named: &Named<'_>) -> Result<Vec<Rule>, String> {
    let (mut sources, mut destinations) = (vec![Address::All], vec![Address::All]);
    let (mut services, mut action) = (Vec::new(), None);
    for statement in statements {
        match statement.keyword.as_str() {
            "ipsourceaddr" => sources = vec![address(value(statement)?)?],
            "ipdestaddr" => destinations = vec![address(value(statement)?)?],
            "ipsourceaddrref" => sources = referred_addresses(statement, named)?,
            "ipdestaddrref" => destinations = referred_addresses(statement, named)?,
            "ipservice" => services.push(service(statement.inner.as_deref().unwrap_or_default())?),
            "ipserviceref" => services.push(service(referred(statement, &["ipservice"], named)?)?),
            "ipgenericfilteractionref" => {
                action = Some(action_of(referred(statement, &["ipgenericfilteraction"], named)?)?);
            }
            "ipgenericfilteraction" => {
                action = Some(action_of(statement.inner.as_deref().unwrap_or_default())?);
            }
            other => return Err(format!("`{other}` has no place here")),
        }
    }
    let action = action.ok_or("it has no action")?;
    if services.is_empty() {
        services.push(Service::default());
    }
    let mut rules = Vec::new();
    for service in services {
        for (source, destination) in
            sources.iter().flat_map(|source| destinations.iter().map(move |it| (*source, *it)))
        {
            rules.extend(of_service(&service, action, source, destination)?);
        }
    }
    Ok(rules)
}

fn of_service(
    service: &Service,
    (action, is_logged): (Action, bool),
    source: Address,
    destination: Address,
) -> Result<Vec<Rule>, String> {
    let draft = |ends: [(Address, Ports); 2], direction| {
        let protocol = service.protocol;
        let rule = Rule { action, protocol, direction, is_logged, ..Rule::default() };
        let mut draft = Draft::new(rule, None);
        draft.sources = vec![ends[0].0.prefix()];
        draft.destinations = vec![ends[1].0.prefix()];
        (draft.source_ports, draft.destination_ports) = (vec![ends[0].1], vec![ends[1].1]);
        draft.rules()
    };
    let ends = [(source, service.source_ports), (destination, service.destination_ports)];
    let exchanged = [ends[1], ends[0]];
    let ways: &[_] = match (service.routing, service.direction) {
        (Routing::Local, Direction::Both) => &[(ends, Direction::Out), (exchanged, Direction::In)],
        (Routing::Local, direction) => &[(ends, direction)],
        (Routing::Routed, Direction::Both) => {
            &[(ends, Direction::Forwarded), (exchanged, Direction::Forwarded)]
        }
        (Routing::Either, Direction::Both) => &[
            (ends, Direction::Out),
            (exchanged, Direction::In),
            (ends, Direction::Forwarded),
            (exchanged, Direction::Forwarded),
        ],
        (_, _) => {
            return Err(
                "it is about routed packets in one direction, and they are judged once".into()
            );
        }
    };
    let mut rules = Vec::new();
    for &(ends, direction) in ways {
        rules.extend(draft(ends, direction)?);
    }
    Ok(rules)
}

/// What one side of a rule may be.
#[derive(Clone, Copy)]
enum Address {
    /// Of both families.
    All,
    Prefix(IpNet),
}

impl Address {
    fn prefix(self) -> Option<IpNet> {
        match self {
            Self::All => None,
            Self::Prefix(prefix) => Some(prefix),
        }
    }
}

fn address(text: &str) -> Result<Address, String> {
    match text.to_ascii_lowercase().as_str() {
        "all" => Ok(Address::All),
        "all4" => Ok(Address::Prefix(everything(false))),
        "all6" => Ok(Address::Prefix(everything(true))),
        _ => prefix(text).map(Address::Prefix),
    }
}

/// The addresses of an IpAddr or an IpAddrSet.
fn referred_addresses(statement: &Statement, named: &Named<'_>) -> Result<Vec<Address>, String> {
    let inner = referred(statement, &["ipaddr", "ipaddrset"], named)?;
    let one = |statement: &Statement| match statement.keyword.as_str() {
        "addr" | "prefix" => address(value(statement)?),
        other => Err(format!("`{other}` in its addresses has no place here")),
    };
    inner.iter().map(one).collect()
}

fn referred<'a>(
    statement: &Statement,
    keywords: &[&str],
    named: &Named<'a>,
) -> Result<&'a [Statement], String> {
    let name = value(statement)?;
    let found = keywords.iter().find_map(|&keyword| named.get(&(keyword, name)));
    found.copied().ok_or_else(|| format!("there is no {} {name}", keywords[0]))
}

fn value(statement: &Statement) -> Result<&str, String> {
    let value = statement.values.first().map(String::as_str);
    value.ok_or_else(|| format!("`{}` has no value", statement.keyword))
}

struct Service {
    protocol: Protocol,
    source_ports: Ports,
    destination_ports: Ports,
    direction: Direction,
    routing: Routing,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            protocol: Protocol::Any,
            source_ports: Ports::ANY,
            destination_ports: Ports::ANY,
            direction: Direction::Both,
            routing: Routing::Local,
        }
    }
}

/// Whether the packets are this host's own.
#[derive(Clone, Copy)]
enum Routing {
    Local,
    Routed,
    Either,
}

fn service(statements: &[Statement]) -> Result<Service, String> {
    let mut service = Service::default();
    for statement in statements {
        match statement.keyword.as_str() {
            "protocol" => {
                let number = protocol(value(statement)?)?;
                service.protocol = number.map_or(Protocol::Any, Protocol::Number);
            }
            "sourceportrange" => service.source_ports = port_range(statement)?,
            "destinationportrange" => service.destination_ports = port_range(statement)?,
            "direction" => service.direction = direction(statement)?,
            "routing" => {
                service.routing = match value(statement)?.to_ascii_lowercase().as_str() {
                    "local" => Routing::Local,
                    "routed" => Routing::Routed,
                    "either" => Routing::Either,
                    other => return Err(format!("routing `{other}`")),
                };
            }
            other => return Err(format!("`{other}` in its service has no place here")),
        }
    }
    Ok(service)
}

fn direction(statement: &Statement) -> Result<Direction, String> {
    if let Some(who) = statement.values.get(1) {
        return Err(format!("it is about who connects: `{who}`"));
    }
    match value(statement)?.to_ascii_lowercase().as_str() {
        "inbound" => Ok(Direction::In),
        "outbound" => Ok(Direction::Out),
        "bidirectional" => Ok(Direction::Both),
        other => Err(format!("direction `{other}`")),
    }
}

/// `443`, or `1024 65535`; 0 is any.
fn port_range(statement: &Statement) -> Result<Ports, String> {
    let low = value(statement)?;
    match statement.values.get(1) {
        None if low == "0" => Ok(Ports::ANY),
        high => ports(low, high.map_or(low, String::as_str)),
    }
}

/// What it does, and whether that is told in the log.
fn action_of(statements: &[Statement]) -> Result<(Action, bool), String> {
    let (mut action, mut is_logged) = (None, false);
    for statement in statements {
        match (statement.keyword.as_str(), value(statement)?.to_ascii_lowercase().as_str()) {
            ("ipfilteraction", "permit") => action = Some(Action::Permit),
            ("ipfilteraction", "deny") => action = Some(Action::Deny),
            ("ipfilteraction", other) => return Err(format!("its action is `{other}`")),
            ("ipfilterlogging", "yes") => is_logged = true,
            ("ipfilterlogging", "no") => is_logged = false,
            ("ipfilterlogging", other) => return Err(format!("its logging is `{other}`")),
            (other, _) => return Err(format!("`{other}` in its action has no place here")),
        }
    }
    let action = action.ok_or("its action says neither Permit nor Deny")?;
    Ok((action, is_logged))
}
