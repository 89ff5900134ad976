//! `iptables-save`: chains INPUT, OUTPUT and FORWARD of table `filter`.

use super::draft::{Draft, cgroup, everything, ports, prefix, protocol};
use super::imported::{Entry, Imported};
use crate::protocol::{Icmp, Protocol};
use crate::rule::{Action, Direction, Endpoint, Name, Ports, Rule, User};

pub(super) fn read(text: &str) -> Result<Imported, String> {
    let is_v6 = text.contains("ip6tables-save") || text.lines().any(has_address_of_v6);
    let mut reader =
        Reader { is_v6, table: String::new(), entries: Vec::new(), policies: Vec::new() };
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if !line.is_empty() && !line.starts_with('#') {
            reader.line(number, line);
        }
    }
    if reader.table.is_empty() {
        return Err(
            "there is no table: `iptables-save` begins one by a line such as `*filter`".into()
        );
    }
    let Reader { mut entries, policies, .. } = reader;
    entries.extend(policies.into_iter().map(Entry::Rule));
    // The policies are those of one family; of the other nothing is said.
    Ok(Imported { entries, default: Action::Permit })
}

fn has_address_of_v6(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let mut is_address = false;
    words.any(|word| {
        let found = is_address && word.contains(':');
        is_address = matches!(word, "-s" | "-d");
        found
    })
}

struct Reader {
    is_v6: bool,
    table: String,
    entries: Vec<Entry>,
    /// A rule for each chain whose policy is to drop, for the end.
    policies: Vec<Rule>,
}

impl Reader {
    fn line(&mut self, number: usize, line: &str) {
        if let Some(table) = line.strip_prefix('*') {
            table.clone_into(&mut self.table);
            return;
        }
        if line == "COMMIT" {
            return;
        }
        let read = if self.table == "filter" {
            self.statement(line)
        } else {
            Err(format!("it is of table `{}`", self.table))
        };
        match read {
            Ok(rules) => self.entries.extend(rules.into_iter().map(Entry::Rule)),
            Err(reason) => {
                let place = format!("line {number}: {line}");
                self.entries.push(Entry::LeftOut { place, reason });
            }
        }
    }

    fn statement(&mut self, line: &str) -> Result<Vec<Rule>, String> {
        if let Some(policy) = line.strip_prefix(':') {
            return self.policy(policy).map(|()| Vec::new());
        }
        // `[packets:bytes]`, with --counters.
        let counted = line.strip_prefix('[').and_then(|line| line.split_once(']'));
        let words = words(counted.map_or(line, |(_, rule)| rule.trim()));
        let mut words = words.iter().map(String::as_str);
        if words.next() != Some("-A") {
            return Err("it is no rule".to_owned());
        }
        let direction = direction(words.next().unwrap_or_default())?;
        rule(direction, self.is_v6, &mut words)?.rules()
    }

    fn policy(&mut self, text: &str) -> Result<(), String> {
        let mut words = text.split_whitespace();
        let (chain, policy) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if policy == "DROP" {
            let from = Endpoint { prefix: Some(everything(self.is_v6)), ports: Ports::ANY };
            let direction = direction(chain)?;
            self.policies.push(Rule { action: Action::Deny, from, direction, ..Rule::default() });
        }
        Ok(())
    }
}

fn direction(chain: &str) -> Result<Direction, String> {
    match chain {
        "INPUT" => Ok(Direction::In),
        "OUTPUT" => Ok(Direction::Out),
        "FORWARD" => Ok(Direction::Forwarded),
        other => Err(format!("it is of chain `{other}`, which others jump to")),
    }
}

fn rule<'a>(
    direction: Direction,
    is_v6: bool,
    words: &mut impl Iterator<Item = &'a str>,
) -> Result<Draft, String> {
    let mut draft = Draft::new(Rule { direction, ..Rule::default() }, Some(is_v6));
    let mut action = None;
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("`{word}` has no value"));
        match word {
            "-s" => draft.sources = vec![Some(prefix(value()?)?)],
            "-d" => draft.destinations = vec![Some(prefix(value()?)?)],
            "-p" => {
                let number = protocol(value()?)?;
                draft.rule.protocol = number.map_or(Protocol::Any, Protocol::Number);
            }
            "-i" if direction == Direction::Forwarded => {
                return Err("a forwarded packet is judged where it leaves".to_owned());
            }
            "-i" | "-o" => draft.rule.interface = Some(interface(value()?)?),
            "--sport" => draft.source_ports = vec![range(value()?)?],
            "--dport" => draft.destination_ports = vec![range(value()?)?],
            "--sports" => draft.source_ports = ranges(value()?)?,
            "--dports" => draft.destination_ports = ranges(value()?)?,
            "--icmp-type" => draft.rule.protocol = Protocol::Icmp(icmp(value()?)?),
            "--icmpv6-type" => draft.rule.protocol = Protocol::Icmp6(icmp(value()?)?),
            "--uid-owner" => {
                let id = value()?;
                let id = id.parse().map_err(|_| format!("user `{id}` is no number"))?;
                draft.rule.user = Some(User::Id(id));
            }
            "--path" => draft.rule.group = Some(cgroup(value()?)?),
            "-m" => known_match(value()?)?,
            "--comment" => drop(value()?),
            "-j" => action = Some(target(value()?)?),
            // What an answer says has no place here.
            "--reject-with" if action == Some(Action::Deny) => drop(value()?),
            "!" => return Err("it has a negation".to_owned()),
            other => return Err(format!("`{other}` is no condition of ours")),
        }
    }
    draft.rule.action = action.ok_or("it has no target")?;
    Ok(draft)
}

/// Matches whose options are among the above.
fn known_match(name: &str) -> Result<(), String> {
    match name {
        "tcp" | "udp" | "sctp" | "icmp" | "icmp6" | "multiport" | "owner" | "cgroup"
        | "comment" => Ok(()),
        "conntrack" | "state" => Err("it looks at the state of connections".to_owned()),
        other => Err(format!("it uses the match `{other}`")),
    }
}

fn target(name: &str) -> Result<Action, String> {
    match name {
        "ACCEPT" => Ok(Action::Permit),
        "DROP" | "REJECT" => Ok(Action::Deny),
        other => Err(format!("its target is `{other}`")),
    }
}

fn interface(name: &str) -> Result<Name, String> {
    if name.ends_with('+') {
        return Err(format!("`{name}` means several interfaces"));
    }
    Name::new(name).filter(|_| name.len() < 16).ok_or_else(|| format!("`{name}` is no interface"))
}

/// `80`, `1024:2000`, `:80` or `1024:`.
fn range(text: &str) -> Result<Ports, String> {
    match text.split_once(':') {
        None => ports(text, text),
        Some((low, high)) => {
            let or =
                |text: &str, other: &str| if text.is_empty() { other } else { text }.to_owned();
            ports(&or(low, "0"), &or(high, "65535"))
        }
    }
}

fn ranges(text: &str) -> Result<Vec<Ports>, String> {
    text.split(',').map(range).collect()
}

/// `8` or `3/1`: `iptables-save` writes numbers.
fn icmp(text: &str) -> Result<Icmp, String> {
    let number = |text: &str| text.parse().map_err(|_| format!("type `{text}` of ICMP"));
    match text.split_once('/') {
        None => Ok(Icmp { kind: number(text)?, code: None }),
        Some((kind, code)) => Ok(Icmp { kind: number(kind)?, code: Some(number(code)?) }),
    }
}

/// Words, of which some are in quotes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match c {
            '"' => is_quoted = !is_quoted,
            '\\' if is_quoted => word.extend(characters.next()),
            c if c.is_whitespace() && !is_quoted => {
                words.push(std::mem::take(&mut word));
            }
            c => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}
