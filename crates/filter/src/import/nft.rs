//! `nft -j list ruleset`: base chains of hooks `input`, `output` and `forward`, of families ip, ip6 and inet.

use std::collections::HashMap;

use ipnet::IpNet;
use serde_json::Value;

use super::draft::{Draft, cgroup, everything, ports, prefix, protocol};
use super::imported::{Entry, Imported};
use crate::protocol::{Icmp, Protocol};
use crate::rule::{Action, Direction, Endpoint, Name, Ports, Rule, User};

pub(super) fn read(text: &str) -> Result<Imported, String> {
    let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let objects = document["nftables"].as_array();
    let objects = objects.ok_or("it has no member `nftables`: use `nft -j list ruleset`")?;
    let mut chains: HashMap<[String; 3], Direction> = HashMap::new();
    let mut policies = Vec::new();
    let mut entries = Vec::new();
    for chain in objects.iter().filter_map(|object| object.get("chain")) {
        let Some(direction) = hook(chain) else { continue };
        // A packet has to pass each chain of a hook, and a list ends with the first that matches.
        if chains.iter().any(|(other, hook)| *hook == direction && meets(other, chain)) {
            let [_, table, name] = key(chain, "name");
            let reason = "another chain has the same hook: packets would have to pass both";
            let place = format!("chain {table} {name}");
            entries.push(Entry::LeftOut { place, reason: reason.to_owned() });
            continue;
        }
        chains.insert(key(chain, "name"), direction);
        if chain["policy"] == "drop" {
            policies.push(policy(&chain["family"], direction));
        }
    }
    for rule in objects.iter().filter_map(|object| object.get("rule")) {
        let read = match chains.get(&key(rule, "chain")) {
            Some(direction) => draft(rule, *direction).and_then(|draft| draft.rules()),
            None => {
                Err("its chain is not taken: only hooks input, output and forward are".to_owned())
            }
        };
        match read {
            Ok(rules) => entries.extend(rules.into_iter().map(Entry::Rule)),
            Err(reason) => {
                let [_, table, chain] = key(rule, "chain");
                let place = format!("rule {} of {table} {chain}", rule["handle"]);
                entries.push(Entry::LeftOut { place, reason });
            }
        }
    }
    entries.extend(policies.into_iter().map(Entry::Rule));
    Ok(Imported { entries, default: Action::Permit })
}

/// Whether packets of one family pass both chains.
fn meets(other: &[String; 3], chain: &Value) -> bool {
    let [one, other] = [chain["family"].as_str().unwrap_or_default(), other[0].as_str()];
    one == other || one == "inet" || other == "inet"
}

/// A chain is known by its family, table and name.
fn key(object: &Value, name: &str) -> [String; 3] {
    ["family", "table", name].map(|member| object[member].as_str().unwrap_or_default().to_owned())
}

fn hook(chain: &Value) -> Option<Direction> {
    match chain["hook"].as_str()? {
        "input" => Some(Direction::In),
        "output" => Some(Direction::Out),
        "forward" => Some(Direction::Forwarded),
        _ => None,
    }
}

fn family(family: &Value) -> Option<bool> {
    match family.as_str()? {
        "ip" => Some(false),
        "ip6" => Some(true),
        _ => None,
    }
}

fn policy(family_name: &Value, direction: Direction) -> Rule {
    let prefix = family(family_name).map(everything);
    let from = Endpoint { prefix, ports: Ports::ANY };
    Rule { action: Action::Deny, from, direction, ..Rule::default() }
}

fn draft(rule: &Value, direction: Direction) -> Result<Draft, String> {
    let rule_of = Rule { direction, ..Rule::default() };
    let mut draft = Draft::new(rule_of, family(&rule["family"]));
    let mut action = None;
    for statement in rule["expr"].as_array().into_iter().flatten() {
        let (name, value) = statement
            .as_object()
            .and_then(|object| object.iter().next())
            .ok_or("a statement without a name")?;
        match name.as_str() {
            "match" => condition(&mut draft, value)?,
            "counter" => {}
            "log" => draft.rule.is_logged = true,
            "accept" => action = Some(Action::Permit),
            "drop" | "reject" => action = Some(Action::Deny),
            other => return Err(format!("it has the statement `{other}`")),
        }
    }
    draft.rule.action = action.ok_or("it decides nothing")?;
    Ok(draft)
}

fn condition(draft: &mut Draft, condition: &Value) -> Result<(), String> {
    let (left, right) = (&condition["left"], &condition["right"]);
    if left["ct"]["key"] == "state" {
        return Err("it looks at the state of connections".to_owned());
    }
    if condition["op"] != "==" {
        return Err(format!("it compares by `{}`", condition["op"].as_str().unwrap_or("?")));
    }
    let what = match (left.get("payload"), left.get("meta")) {
        (Some(payload), _) => ["protocol", "field"].map(|it| payload[it].as_str().unwrap_or("?")),
        (_, Some(meta)) => ["meta", meta["key"].as_str().unwrap_or("?")],
        _ if left["socket"]["key"] == "cgroupv2" => ["socket", "cgroupv2"],
        _ => return Err("it looks at something that is no part of a packet".to_owned()),
    };
    if let ["ip" | "ip6", _] = what {
        draft.is_v6 = Some(what[0] == "ip6");
    }
    match what {
        ["ip" | "ip6", "saddr"] => draft.sources = several(right, address)?,
        ["ip" | "ip6", "daddr"] => draft.destinations = several(right, address)?,
        [name @ ("tcp" | "udp" | "sctp"), field @ ("sport" | "dport")] => {
            let number = protocol(name)?.expect("a protocol with ports");
            draft.rule.protocol = Protocol::Number(number);
            let ports = several(right, port_range)?;
            if field == "sport" {
                draft.source_ports = ports
            } else {
                draft.destination_ports = ports
            }
        }
        ["icmp", "type"] => draft.rule.protocol = Protocol::Icmp(icmp(right, false)?),
        ["icmpv6", "type"] => draft.rule.protocol = Protocol::Icmp6(icmp(right, true)?),
        ["ip", "protocol"] | ["ip6", "nexthdr"] | ["meta", "l4proto"] => {
            let number = protocol(&text_of(right)?)?;
            // It may stand behind ports, which say more.
            if draft.rule.protocol.number() != number {
                draft.rule.protocol = number.map_or(Protocol::Any, Protocol::Number);
            }
        }
        ["meta", "nfproto"] => draft.is_v6 = Some(right == "ipv6"),
        ["meta", "iifname"] if draft.rule.direction == Direction::Forwarded => {
            return Err("a forwarded packet is judged where it leaves".to_owned());
        }
        ["meta", "iifname" | "oifname"] => {
            let name = text_of(right)?;
            let wrong = format!("`{name}` is no single interface");
            let name = Name::new(&name).filter(|_| !name.contains('*') && name.len() < 16);
            draft.rule.interface = Some(name.ok_or(wrong)?);
        }
        ["meta", "skuid"] => {
            let id = text_of(right)?;
            let id = id.parse().map_err(|_| format!("user `{id}` is no number"))?;
            draft.rule.user = Some(User::Id(id));
        }
        ["socket", "cgroupv2"] => {
            let path = text_of(right)?;
            let level = path.trim_matches('/').split('/').count();
            if left["socket"]["level"] != level {
                return Err(format!("`{path}` is not a control group of the level that it names"));
            }
            draft.rule.group = Some(cgroup(&path)?);
        }
        [layer, field] => return Err(format!("it looks at `{layer} {field}`")),
    }
    Ok(())
}

/// One value, or each of a set that stands in the rule itself.
fn several<T>(value: &Value, read: fn(&Value) -> Result<T, String>) -> Result<Vec<T>, String> {
    match value.get("set").and_then(Value::as_array) {
        Some(values) => values.iter().map(read).collect(),
        None => Ok(vec![read(value)?]),
    }
}

fn address(value: &Value) -> Result<Option<IpNet>, String> {
    if let Some(of) = value.get("prefix") {
        let (address, len) = (text_of(&of["addr"])?, text_of(&of["len"])?);
        return prefix(&format!("{address}/{len}")).map(Some);
    }
    prefix(&text_of(value)?).map(Some)
}

fn port_range(value: &Value) -> Result<Ports, String> {
    match value.get("range").and_then(Value::as_array).map(Vec::as_slice) {
        Some([low, high]) => ports(&text_of(low)?, &text_of(high)?),
        _ => {
            let port = text_of(value)?;
            ports(&port, &port)
        }
    }
}

fn icmp(value: &Value, is_v6: bool) -> Result<Icmp, String> {
    let name = text_of(value)?;
    let kind = match (name.as_str(), is_v6) {
        ("echo-reply", false) => 0,
        ("destination-unreachable", false) => 3,
        ("redirect", false) => 5,
        ("echo-request", false) => 8,
        ("time-exceeded", false) => 11,
        ("parameter-problem", false) => 12,
        ("destination-unreachable", true) => 1,
        ("packet-too-big", true) => 2,
        ("time-exceeded", true) => 3,
        ("parameter-problem", true) => 4,
        ("echo-request", true) => 128,
        ("echo-reply", true) => 129,
        ("nd-router-solicit", true) => 133,
        ("nd-router-advert", true) => 134,
        ("nd-neighbor-solicit", true) => 135,
        ("nd-neighbor-advert", true) => 136,
        (number, _) => number.parse().map_err(|_| format!("type `{name}` of ICMP"))?,
    };
    Ok(Icmp { kind, code: None })
}

/// A string or a number.
fn text_of(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) if text.starts_with('@') => Err(format!("it asks the set `{text}`")),
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(format!("it compares with {other}")),
    }
}
