//! One line of a list.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::protocol::{Icmp, Protocol};
use crate::rule::{Action, Direction, Endpoint, Group, Name, Ports, Rule, User};

/// The words for protocols.
macro_rules! protocols {
    () => {
        "any, tcp, udp, sctp, icmp, icmp6 or a number"
    };
}

/// What a line says.
pub(super) enum Line {
    Rule(Rule),
    Default { action: Action, is_logged: bool },
}

/// What is wrong in a line, and at which of its bytes.
pub(super) struct Fault {
    offset: usize,
    /// A sentence.
    pub(super) message: String,
}

/// `None`: it says nothing.
pub(super) fn parse(line: &str) -> Result<Option<Line>, Fault> {
    let mut words = Words::of(line);
    let Some(first) = words.next() else { return Ok(None) };
    if first.text == "default" {
        let action = words.expect("the action is missing: permit or deny")?;
        let action = action_of(action, "permit or deny")?;
        let is_logged = words.skip("log");
        return words.end().map(|()| Some(Line::Default { action, is_logged }));
    }
    let action = action_of(first, "begin with permit, deny or default")?;
    rule(action, &mut words).map(|rule| Some(Line::Rule(rule)))
}

fn rule(action: Action, words: &mut Words<'_>) -> Result<Rule, Fault> {
    let protocol = words.expect(concat!("the protocol is missing: ", protocols!()))?;
    let protocol_number = protocol_of(protocol)?;
    let from = words.expect("where packets come from is missing: any, or an address")?;
    let to = words.expect("where packets go is missing: any, or an address")?;
    let mut rule = Rule {
        action,
        protocol: protocol_number,
        from: endpoint(from, protocol_number)?,
        to: endpoint(to, protocol_number)?,
        ..Rule::default()
    };
    rule.family().map_err(|message| to.fault(message.to_owned()))?;
    if let Some(tls) = conditions(&mut rule, words)? {
        can_need_tls(&rule).map_err(|message| tls.fault(message.to_owned()))?;
    }
    Ok(rule)
}

/// What stands behind the two ends, in any order, each once. Returns the word `tls`.
fn conditions<'a>(rule: &mut Rule, words: &mut Words<'a>) -> Result<Option<Word<'a>>, Fault> {
    let (mut has_direction, mut tls) = (false, None);
    while let Some(word) = words.next() {
        match word.text {
            "in" | "out" | "both" | "forwarded" => {
                once(has_direction, word, "the direction")?;
                has_direction = true;
                rule.direction = match word.text {
                    "in" => Direction::In,
                    "out" => Direction::Out,
                    "both" => Direction::Both,
                    _ => Direction::Forwarded,
                };
            }
            "on" => {
                once(rule.interface.is_some(), word, "the interface")?;
                rule.interface = Some(interface(words.expect("`on` needs a name behind it")?)?);
            }
            "user" => {
                once(rule.user.is_some(), word, "the user")?;
                rule.user = Some(user(words.expect("`user` needs a name or a number behind it")?)?);
            }
            "cgroup" | "unit" => {
                once(rule.group.is_some(), word, "the control group")?;
                rule.group = Some(group(word, words)?);
            }
            "tls" => {
                once(rule.needs_tls, word, "`tls`")?;
                rule.needs_tls = true;
                tls = Some(word);
            }
            "log" => {
                once(rule.is_logged, word, "`log`")?;
                rule.is_logged = true;
            }
            text => {
                return Err(word.fault(format!(
                    "`{text}` is no condition: use in, out, both, forwarded, on INTERFACE, user NAME, cgroup PATH, unit UNIT, tls, log"
                )));
            }
        }
    }
    Ok(tls)
}

/// Only of a connection of this host it can be said whether it is protected.
fn can_need_tls(rule: &Rule) -> Result<(), &'static str> {
    if rule.action == Action::Deny {
        return Err("what is denied needs no protection: `tls` is for rules that permit");
    }
    if rule.protocol != Protocol::Number(Protocol::TCP) {
        return Err("TLS protects connections of tcp: name that protocol");
    }
    match rule.direction {
        Direction::In | Direction::Out | Direction::Both => Ok(()),
        Direction::Forwarded | Direction::Any => Err(
            "whether a connection is protected is known of this host's sockets: say in, out or both",
        ),
    }
}

fn once(is_there: bool, word: Word<'_>, what: &str) -> Result<(), Fault> {
    if is_there { Err(word.fault(format!("{what} is there twice"))) } else { Ok(()) }
}

fn action_of(word: Word<'_>, use_these: &str) -> Result<Action, Fault> {
    match word.text {
        "permit" => Ok(Action::Permit),
        "deny" => Ok(Action::Deny),
        other => Err(word.fault(format!("{use_these}, not `{other}`"))),
    }
}

fn protocol_of(word: Word<'_>) -> Result<Protocol, Fault> {
    let (name, kind) = match word.text.split_once(':') {
        Some((name, kind)) => (name, Some(kind)),
        None => (word.text, None),
    };
    let number = match name {
        "any" => None,
        "tcp" => Some(Protocol::TCP),
        "udp" => Some(Protocol::UDP),
        "sctp" => Some(Protocol::SCTP),
        "icmp" => Some(Protocol::ICMP),
        "icmp6" => Some(Protocol::ICMP6),
        number => Some(number.parse().map_err(|_| {
            word.fault(format!(concat!("`{}` is no protocol: use ", protocols!()), number))
        })?),
    };
    let Some(kind) = kind else { return Ok(number.map_or(Protocol::Any, Protocol::Number)) };
    let icmp = icmp(kind)
        .ok_or_else(|| word.fault(format!("`{kind}` is no type of ICMP, nor TYPE/CODE")))?;
    match number {
        Some(Protocol::ICMP) => Ok(Protocol::Icmp(icmp)),
        Some(Protocol::ICMP6) => Ok(Protocol::Icmp6(icmp)),
        _ => Err(word.fault(format!("only icmp and icmp6 have a type, not `{name}`"))),
    }
}

fn icmp(text: &str) -> Option<Icmp> {
    match text.split_once('/') {
        None => Some(Icmp { kind: text.parse().ok()?, code: None }),
        Some((kind, code)) => {
            Some(Icmp { kind: kind.parse().ok()?, code: Some(code.parse().ok()?) })
        }
    }
}

fn endpoint(word: Word<'_>, protocol: Protocol) -> Result<Endpoint, Fault> {
    let (address, behind) = split_ports(word)?;
    let prefix = match address {
        "any" => None,
        address => Some(prefix(word, address)?),
    };
    let Some(behind) = behind else { return Ok(Endpoint { prefix, ports: Ports::ANY }) };
    if !protocol.has_ports() {
        return Err(word.fault("only tcp, udp and sctp have ports: name the protocol".into()));
    }
    let ports = ports(behind).map_err(|message| Fault {
        offset: word.offset + word.text.len() - behind.len(),
        message,
    })?;
    Ok(Endpoint { prefix, ports })
}

/// The address without its brackets, and the ports behind it.
fn split_ports(word: Word<'_>) -> Result<(&str, Option<&str>), Fault> {
    let text = word.text;
    if let Some(inner) = text.strip_prefix('[') {
        let (address, behind) =
            inner.split_once(']').ok_or_else(|| word.fault("the bracket is not closed".into()))?;
        return match (behind, behind.strip_prefix(':')) {
            ("", _) => Ok((address, None)),
            (_, Some(ports)) => Ok((address, Some(ports))),
            _ => Err(word.fault(format!("`{behind}` behind the bracket: `:PORTS` is meant"))),
        };
    }
    match text.split_once(':') {
        // A second colon: an address of IPv6, which has no ports without brackets.
        Some((_, behind)) if behind.contains(':') => Ok((text, None)),
        Some((address, behind)) => Ok((address, Some(behind))),
        None => Ok((text, None)),
    }
}

fn prefix(word: Word<'_>, text: &str) -> Result<IpNet, Fault> {
    let address: Option<IpNet> =
        text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    let prefix = address.ok_or_else(|| {
        word.fault(format!(
            "`{text}` is no address, nor one with a length such as 10.0.0.0/8 or 2001:db8::/32"
        ))
    })?;
    if prefix.trunc() != prefix {
        return Err(word.fault(format!(
            "{prefix} has bits behind its length: {} is meant, or {}",
            prefix.trunc(),
            prefix.addr()
        )));
    }
    Ok(prefix)
}

fn ports(text: &str) -> Result<Ports, String> {
    let wrong = || format!("`{text}` is no port, nor a range such as 6000-6010 or 1024-");
    let port = |text: &str| text.parse::<u16>().map_err(|_| wrong());
    let ports = match text.split_once('-') {
        None => {
            let port = port(text)?;
            Ports { low: port, high: port }
        }
        Some((low, "")) => Ports { low: port(low)?, high: u16::MAX },
        Some((low, high)) => Ports { low: port(low)?, high: port(high)? },
    };
    if ports.low > ports.high {
        return Err(format!("the ports {text} end before they begin"));
    }
    Ok(ports)
}

fn interface(word: Word<'_>) -> Result<Name, Fault> {
    /// `IFNAMSIZ` without the zero byte.
    const LEN_MAX: usize = 15;
    let name = Name::new(word.text).filter(|_| word.text.len() <= LEN_MAX);
    name.ok_or_else(|| {
        word.fault(format!(
            "`{}` is no interface: names have up to {LEN_MAX} characters",
            word.text
        ))
    })
}

fn user(word: Word<'_>) -> Result<User, Fault> {
    if let Ok(id) = word.text.parse() {
        return Ok(User::Id(id));
    }
    let name = Name::new(word.text);
    name.map(User::Name).ok_or_else(|| word.fault(format!("`{}` is no user", word.text)))
}

/// What stands behind `cgroup` or `unit`.
fn group(kind: Word<'_>, words: &mut Words<'_>) -> Result<Group, Fault> {
    if kind.text == "unit" {
        let unit = words.expect("`unit` needs a name behind it")?;
        return Group::unit(unit.text).ok_or_else(|| {
            let name = unit.text;
            unit.fault(format!(
                "`{name}` is no unit with processes: the whole name, as in nginx.service"
            ))
        });
    }
    let path = words.expect("`cgroup` needs a path behind it")?;
    Group::path(path.text).ok_or_else(|| {
        path.fault(format!(
            "`{}` is no control group: a path from the root of all, as in /system.slice/nginx.service",
            path.text
        ))
    })
}

/// The words of a line, in front of a comment.
struct Words<'a> {
    line: &'a str,
    offset: usize,
}

#[derive(Clone, Copy)]
struct Word<'a> {
    text: &'a str,
    offset: usize,
}

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Self {
        let line = line.split_once('#').map_or(line, |(before, _)| before);
        Self { line: line.trim_end(), offset: 0 }
    }

    fn next(&mut self) -> Option<Word<'a>> {
        let rest = &self.line[self.offset..];
        let begin = self.offset + rest.len() - rest.trim_start().len();
        let len = self.line[begin..].find(char::is_whitespace).unwrap_or(self.line.len() - begin);
        self.offset = begin + len;
        (len > 0).then(|| Word { text: &self.line[begin..self.offset], offset: begin })
    }

    /// Goes on behind the next word if it is this one.
    fn skip(&mut self, text: &str) -> bool {
        let begin = self.offset;
        let is_it = self.next().is_some_and(|word| word.text == text);
        if !is_it {
            self.offset = begin;
        }
        is_it
    }

    fn expect(&mut self, missing: &str) -> Result<Word<'a>, Fault> {
        self.next().ok_or_else(|| Fault { offset: self.line.len(), message: missing.to_owned() })
    }

    fn end(&mut self) -> Result<(), Fault> {
        match self.next() {
            None => Ok(()),
            Some(word) => Err(word.fault(format!("`{}` is too much", word.text))),
        }
    }
}

impl Word<'_> {
    fn fault(&self, message: String) -> Fault {
        Fault { offset: self.offset, message }
    }
}

impl Fault {
    pub(super) fn at_begin(message: String) -> Self {
        Self { offset: 0, message }
    }

    /// The character in the line, from 1.
    pub(super) fn column(&self, line: &str) -> usize {
        1 + line[..self.offset].chars().count()
    }
}
