//! The table `vip`: a table for each VIP, with a table for each of its targets.
//!
//! A VIP with a mistake spoils the set: what is in force is all that the files say or nothing new.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use jiff::SignedDuration;
use sidestep_distributor::terms::{
    Method, OptLocal, Probe, ProbeKind, Protocol, SmcUse, Target, TargetKind, TermsError,
};
use sidestep_distributor::{Vip, VipSet};
use toml::de::{DeTable, DeValue};

use super::value::{boolean, list, shown as shown_value, unknown};

/// What the table is called.
pub(super) const VIP: &str = "vip";

/// The names of all VIPs.
pub(super) fn shown(set: &VipSet) -> String {
    let names: Vec<&str> = set.vips().iter().map(|vip| vip.name.as_str()).collect();
    names.join(", ")
}

/// Reads the table; `fault` takes what is wrong in it.
pub(super) fn set(table: &DeTable<'_>, fault: &mut impl FnMut(usize, String)) -> Option<VipSet> {
    let (mut vips, mut is_right) = (Vec::new(), true);
    for (name, value) in table {
        let path = format!("{VIP}.{}", name.get_ref());
        let mut fault = |at, message: String| {
            is_right = false;
            fault(at, format!("{path}{message}"));
        };
        let DeValue::Table(table) = value.get_ref() else {
            fault(name.span().start, format!(": expected a table: [{path}]"));
            continue;
        };
        vips.extend(vip(name.get_ref(), table, name.span().start, &mut fault));
    }
    if !is_right {
        return None;
    }
    VipSet::new(vips).map_err(|error| fault(place_of(table, &error), error.to_string())).ok()
}

/// Where the VIP stands that is refused.
fn place_of(table: &DeTable<'_>, error: &TermsError) -> usize {
    let of = |vip: &str| {
        table.iter().find(|(name, _)| name.get_ref() == vip).map(|(name, _)| name.span().start)
    };
    match error {
        TermsError::Vip { vip, .. } => of(vip).unwrap_or_default(),
        TermsError::TooManyVips => {
            table.iter().map(|(name, _)| name.span().start).max().unwrap_or(0)
        }
    }
}

const KEYS: [&str; 13] = [
    "address",
    "protocol",
    "method",
    "timedaffinity",
    "switch_back",
    "probe",
    "probe_interval",
    "probe_timeout",
    "rise",
    "fall",
    "smc",
    "optlocal",
    "targets",
];

fn vip(
    name: &str,
    table: &DeTable<'_>,
    at: usize,
    fault: &mut impl FnMut(usize, String),
) -> Option<Vip> {
    let (mut found, mut is_right) = (Found::default(), true);
    for (key, value) in table {
        let key_name = key.get_ref().as_ref();
        if key_name == "targets" {
            let Some(targets) = targets(value.get_ref(), key.span().start, fault) else {
                is_right = false;
                continue;
            };
            found.targets = targets;
            continue;
        }
        let Some(read) = found.read(key_name, value.get_ref()) else {
            is_right = false;
            fault(key.span().start, format!(".{}", unknown("key", key_name, KEYS.into_iter())));
            continue;
        };
        if let Err(message) = read {
            is_right = false;
            fault(value.span().start, format!(".{key_name}: {message}"));
        }
    }
    let address = found.address.filter(|_| is_right);
    if found.address.is_none() && is_right {
        fault(
            at,
            ": has no address; add address = \"ADDRESS:PORT\", where clients connect".to_owned(),
        );
    }
    let (kind, targets) = match placed(&found.targets, address?.port()) {
        Ok(placed) => placed,
        Err(message) => {
            fault(at, message);
            return None;
        }
    };
    Some(Vip {
        name: name.to_owned(),
        address: address?,
        protocol: found.protocol,
        kind,
        method: found.method,
        affinity: found.affinity,
        switch_back: found.switch_back,
        probe: Probe {
            kind: found.probe_kind.unwrap_or(default_probe(kind, found.protocol)),
            ..found.probe
        },
        smc: found.smc,
        opt_local: found.opt_local,
        targets,
    })
}

/// Who serves if a VIP says no probe: a listener that listens, a host that answers as its clients want.
fn default_probe(kind: TargetKind, protocol: Protocol) -> ProbeKind {
    match (kind, protocol) {
        (TargetKind::Hosts, Protocol::Tcp) => ProbeKind::Tcp,
        _ => ProbeKind::Listens,
    }
}

/// What targets are written as.
struct Written {
    name: String,
    ip: IpAddr,
    /// `None`: the target is a host, and its port the VIP's.
    port: Option<u16>,
    weight: u16,
}

/// Targets, all of one kind.
fn placed(written: &[Written], port: u16) -> Result<(TargetKind, Vec<Target>), String> {
    let hosts = written.iter().filter(|target| target.port.is_none()).count();
    if hosts > 0 && hosts < written.len() {
        return Err(": some targets have a port and some have none; with one a target is a listener of this host, \
                    without one it is a host of the link"
            .to_owned());
    }
    let kind = if hosts > 0 { TargetKind::Hosts } else { TargetKind::Listeners };
    let target = |it: &Written| Target {
        name: it.name.clone(),
        address: SocketAddr::new(it.ip, it.port.unwrap_or(port)),
        weight: it.weight,
    };
    Ok((kind, written.iter().map(target).collect()))
}

/// What a table of a VIP has said so far.
struct Found {
    address: Option<SocketAddr>,
    protocol: Protocol,
    method: Method,
    affinity: Duration,
    switch_back: bool,
    probe: Probe,
    probe_kind: Option<ProbeKind>,
    smc: SmcUse,
    opt_local: Option<OptLocal>,
    targets: Vec<Written>,
}

impl Default for Found {
    fn default() -> Self {
        Self {
            address: None,
            protocol: Protocol::default(),
            method: Method::default(),
            affinity: Duration::ZERO,
            switch_back: true,
            probe: Probe::default(),
            probe_kind: None,
            smc: SmcUse::default(),
            opt_local: None,
            targets: Vec::new(),
        }
    }
}

impl Found {
    /// `None`: there is no such key.
    fn read(&mut self, key: &str, value: &DeValue<'_>) -> Option<Result<(), String>> {
        Some(match key {
            "address" => address(value).map(|it| self.address = Some(it)),
            "protocol" => protocol(value).map(|it| self.protocol = it),
            "method" => method(value).map(|it| self.method = it),
            "timedaffinity" => time(value).map(|it| self.affinity = it),
            "switch_back" => boolean(value).map(|it| self.switch_back = it),
            "probe" => probe_kind(value).map(|it| self.probe_kind = Some(it)),
            "probe_interval" => time(value).map(|it| self.probe.interval = it),
            "probe_timeout" => time(value).map(|it| self.probe.timeout = it),
            "rise" => number(value).map(|it| self.probe.rise = it),
            "fall" => number(value).map(|it| self.probe.fall = it),
            "smc" => smc(value).map(|it| self.smc = it),
            "optlocal" => opt_local(value).map(|it| self.opt_local = Some(it)),
            _ => return None,
        })
    }
}

fn targets(
    value: &DeValue<'_>,
    at: usize,
    fault: &mut impl FnMut(usize, String),
) -> Option<Vec<Written>> {
    let DeValue::Table(table) = value else {
        let example = "a = { address = \"127.0.0.1:7001\", weight = 4 }";
        fault(at, format!(".targets: expected a table, such as targets = {{ {example} }}"));
        return None;
    };
    let (mut targets, mut is_right) = (Vec::new(), true);
    for (name, value) in table {
        match target(name.get_ref(), value.get_ref()) {
            Ok(target) => targets.push(target),
            Err(message) => {
                is_right = false;
                fault(value.span().start, format!(".targets.{}{message}", name.get_ref()));
            }
        }
    }
    is_right.then_some(targets)
}

/// A table, or the address alone.
fn target(name: &str, value: &DeValue<'_>) -> Result<Written, String> {
    const KEYS: [&str; 2] = ["address", "weight"];
    let (mut where_to, mut weight) = (None, 1);
    match value {
        DeValue::Table(table) => {
            for (key, value) in table {
                let read = match key.get_ref().as_ref() {
                    "address" => place(value.get_ref()).map(|it| where_to = Some(it)),
                    "weight" => number(value.get_ref()).map(|it| weight = it),
                    other => return Err(format!(".{}", unknown("key", other, KEYS.into_iter()))),
                };
                read.map_err(|message| format!(".{}: {message}", key.get_ref()))?;
            }
        }
        other => where_to = Some(place(other).map_err(|message| format!(": {message}"))?),
    }
    let Some((ip, port)) = where_to else {
        return Err(": has no address; add address = \"ADDRESS:PORT\", where it listens, or the \
                    \"ADDRESS\" of a host"
            .to_owned());
    };
    let weight = u16::try_from(weight).unwrap_or(u16::MAX);
    Ok(Written { name: name.to_owned(), ip, port, weight })
}

/// A listener's address and port, or the address of a host.
fn place(value: &DeValue<'_>) -> Result<(IpAddr, Option<u16>), String> {
    let host: Option<IpAddr> = value.as_str().and_then(|text| text.parse().ok());
    match host {
        Some(host) => Ok((host.to_canonical(), None)),
        None => address(value).map(|it| (it.ip(), Some(it.port()))).map_err(|_| {
            format!(
                "{} is not allowed; use the address and port of a listener, such as \"127.0.0.1:7001\", \
                 or the address of a host, such as \"10.0.0.7\"",
                shown_value(value)
            )
        }),
    }
}

fn protocol(value: &DeValue<'_>) -> Result<Protocol, String> {
    [Protocol::Tcp, Protocol::Udp]
        .into_iter()
        .find(|protocol| value.as_str() == Some(protocol.name()))
        .ok_or_else(|| format!("{} is not allowed; use \"tcp\" or \"udp\"", shown_value(value)))
}

fn smc(value: &DeValue<'_>) -> Result<SmcUse, String> {
    [SmcUse::Prefer, SmcUse::Require]
        .into_iter()
        .find(|smc| value.as_str() == Some(smc.name()))
        .ok_or_else(|| {
            format!("{} is not allowed; use \"prefer\" or \"require\"", shown_value(value))
        })
}

fn opt_local(value: &DeValue<'_>) -> Result<OptLocal, String> {
    number(value).ok().and_then(OptLocal::new).ok_or_else(|| {
        let max = OptLocal::MAX;
        format!("{} is not allowed; use a whole number from 0 to {max}", shown_value(value))
    })
}

fn address(value: &DeValue<'_>) -> Result<SocketAddr, String> {
    let address: Option<SocketAddr> = value.as_str().and_then(|text| text.parse().ok());
    address.map(|address| SocketAddr::new(address.ip().to_canonical(), address.port())).ok_or_else(
        || {
            format!(
                "{} is not allowed; use an address with a port, such as \"127.0.0.10:6379\" or \
             \"[::1]:6379\"",
                shown_value(value)
            )
        },
    )
}

fn method(value: &DeValue<'_>) -> Result<Method, String> {
    let text = value.as_str().unwrap_or_default();
    text.parse().map_err(|error| format!("{} {error}", shown_value(value)))
}

fn time(value: &DeValue<'_>) -> Result<Duration, String> {
    let time: Option<SignedDuration> = value.as_str().and_then(|text| text.parse().ok());
    time.and_then(|time| Duration::try_from(time).ok()).ok_or_else(|| {
        format!(
            "{} is not allowed; use a time, such as \"500ms\", \"30s\" or \"2m\"",
            shown_value(value)
        )
    })
}

fn number(value: &DeValue<'_>) -> Result<u32, String> {
    let number = match value {
        DeValue::Integer(number) => number.to_string().parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| format!("{} is not allowed; use a whole number", shown_value(value)))
}

/// `"listens"`, `"tcp"`, `"http:/PATH"`, or a list: a command and its arguments.
fn probe_kind(value: &DeValue<'_>) -> Result<ProbeKind, String> {
    if matches!(value, DeValue::Array(_)) {
        let word = |value: &DeValue<'_>| {
            value
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| format!("{} is no text", shown_value(value)))
        };
        let command = list(value, word)?;
        return if command.first().is_some_and(|program| program.starts_with('/')) {
            Ok(ProbeKind::Command(command))
        } else {
            Err("a command begins with the absolute path of its program".to_owned())
        };
    }
    match value.as_str() {
        Some("listens") => Ok(ProbeKind::Listens),
        Some("tcp") => Ok(ProbeKind::Tcp),
        Some(text) if text.starts_with("http:/") && is_path(&text[5..]) => {
            Ok(ProbeKind::Http(text[5..].to_owned()))
        }
        _ => Err(format!(
            "{} is not allowed; use \"listens\", \"tcp\", \"http:/PATH\", or a command and its \
             arguments: [\"/path/to/program\", ...]",
            shown_value(value)
        )),
    }
}

fn is_path(text: &str) -> bool {
    text.bytes().all(|c| c.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        parse(text).1.into_iter().map(|fault| fault.message).collect()
    }

    #[test]
    fn a_vip_has_all_its_keys() {
        let (settings, faults) = parse(
            r#"
            [vip.redis]
            address = "127.0.0.10:6379"
            method = "WEIGHTEDACTIVE"
            timedaffinity = "30s"
            switch_back = false
            probe = "http:/health"
            probe_interval = "500ms"
            probe_timeout = "2s"
            rise = 1
            fall = 5
            smc = "require"
            [vip.redis.targets]
            a = { address = "127.0.0.1:7001", weight = 4 }
            b = "[::1]:7002"
            "#,
        );
        assert!(faults.is_empty(), "{faults:?}");
        let target = |name: &str, address: &str, weight| Target {
            name: name.to_owned(),
            address: address.parse().unwrap(),
            weight,
        };
        let vip = Vip {
            name: "redis".to_owned(),
            address: "127.0.0.10:6379".parse().unwrap(),
            protocol: Protocol::Tcp,
            kind: TargetKind::Listeners,
            method: Method::WeightedActive,
            affinity: Duration::from_secs(30),
            switch_back: false,
            probe: Probe {
                kind: ProbeKind::Http("/health".to_owned()),
                interval: Duration::from_millis(500),
                timeout: Duration::from_secs(2),
                rise: 1,
                fall: 5,
            },
            smc: SmcUse::Require,
            opt_local: None,
            targets: vec![target("a", "127.0.0.1:7001", 4), target("b", "[::1]:7002", 1)],
        };
        assert_eq!(settings.vips, VipSet::new(vec![vip]).ok());
    }

    #[test]
    fn mistakes_are_named_with_their_key() {
        let first = |text: &str| faults(text).remove(0);
        let vip = |line: &str| first(&format!("[vip.a]\naddress = \"127.0.0.1:1\"\n{line}\n"));
        assert_eq!(
            vip("adress = 1"),
            "vip.a.adress: unknown key; did you mean `address`? (known: address, protocol, \
             method, timedaffinity, switch_back, probe, probe_interval, probe_timeout, rise, fall, smc, optlocal, targets)"
        );
        assert_eq!(
            vip("method = \"random\""),
            "vip.a.method: `random` is not one of: basewlm, roundrobin, weightedactive, hotstandby"
        );
        assert!(
            vip("timedaffinity = 3")
                .starts_with("vip.a.timedaffinity: 3 is not allowed; use a time")
        );
        assert!(vip("probe = \"http\"").starts_with("vip.a.probe: `http` is not allowed; use"));
        assert!(
            vip("smc = true")
                .starts_with("vip.a.smc: true is not allowed; use \"prefer\" or \"require\"")
        );
        for number in ["17", "-1", "true", "1.5"] {
            let due =
                format!("vip.a.optlocal: {number} is not allowed; use a whole number from 0 to 16");
            assert_eq!(vip(&format!("optlocal = {number}")), due);
        }
        assert!(vip("probe = [\"sh\"]").ends_with("the absolute path of its program"));
        assert!(vip("").starts_with("vip.a: has no targets"));
        assert_eq!(
            vip("targets = { t = { addr = \"127.0.0.1:2\" } }"),
            "vip.a.targets.t.addr: unknown key; did you mean `address`? (known: address, weight)"
        );
        assert!(
            vip("targets = { t = \"7001\" }").starts_with("vip.a.targets.t: `7001` is not allowed")
        );
        assert!(first("[vip]\na = 1\n").starts_with("vip.a: expected a table: [vip.a]"));
        assert!(first("[vip.a]\n").starts_with("vip.a: has no address"));
    }

    #[test]
    fn targets_without_a_port_are_hosts() {
        let text = "[vip.dns]\naddress = \"10.0.0.9:53\"\nprotocol = \"udp\"\n\
                    targets = { a = \"10.0.0.1\", b = { address = \"10.0.0.2\", weight = 3 } }\n";
        let vips = parse(text).0.vips.unwrap();
        let vip = &vips.vips()[0];
        assert_eq!((vip.kind, vip.protocol), (TargetKind::Hosts, Protocol::Udp));
        assert_eq!(
            vip.probe.kind,
            ProbeKind::Listens,
            "no connection shows that a server of UDP serves"
        );
        assert_eq!(vip.targets[1].address, "10.0.0.2:53".parse().unwrap());
        let local = parse(&text.replace("protocol", "optlocal = 16\nprotocol")).0.vips.unwrap();
        assert_eq!(local.vips()[0].opt_local, OptLocal::new(16));
        let tcp = parse(&text.replace("udp", "tcp")).0.vips.unwrap();
        assert_eq!(tcp.vips()[0].probe.kind, ProbeKind::Tcp);
        let mixed = faults(&text.replace("10.0.0.1", "10.0.0.1:53"));
        assert!(mixed[0].starts_with("vip.dns: some targets have a port"), "{mixed:?}");
        assert!(
            faults(&text.replace("udp", "sctp"))[0].starts_with("vip.dns.protocol: `sctp` is not")
        );
        let listener = "[vip.a]\naddress = \"127.0.0.1:1\"\nprotocol = \"udp\"\ntargets = { t = \"127.0.0.1:2\" }";
        assert!(faults(listener)[0].contains("takes targets that are hosts"));
    }

    #[test]
    fn one_mistake_spoils_the_set() {
        let good = "[vip.a]\naddress = \"127.0.0.1:1\"\ntargets = { t = \"127.0.0.1:2\" }\n";
        assert!(parse(good).0.vips.is_some());
        let (settings, faults) = parse(&good.replace("targets", "target"));
        assert_eq!((settings.vips, faults.len()), (None, 1));
        let twice = format!("{good}{}", good.replace("vip.a", "vip.b"));
        let (settings, faults) = parse(&twice);
        assert_eq!(settings.vips, None);
        assert!(
            faults[0].message.starts_with("vip.b: 127.0.0.1:1 is the address of vip.a already")
        );
    }
}
