//! Rules that were written for others.
//!
//! | Format | From |
//! |---|---|
//! | [`Format::IptablesSave`] | `iptables-save`, `ip6tables-save` |
//! | [`Format::Nft`] | `nft -j list ruleset` |
//! | [`Format::PolicyAgent`] | z/OS Communications Server's Policy Agent: `IpFilterRule` and what it refers to |
//!
//! What has the shape of our rules is taken, in its order. What has not is named, with its place and the
//! reason, where it stood: to leave it out changes what the list means, and an operator has to judge that.
//! A rule of a table for one family is one for that family here: `0.0.0.0/0` or `::/0` says so where it
//! has no address. Several ports or addresses in one rule become several rules.

mod iptables;
mod nft;
mod policy_agent;

use std::fmt::{self, Display};

use ipnet::IpNet;

use crate::rule::{Action, Endpoint, Ports, Protocol, Rule};

/// Who has written the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The lines of `iptables-save` or `ip6tables-save`.
    IptablesSave,
    /// The JSON of `nft -j list ruleset`.
    Nft,
    /// The statements of z/OS Policy Agent.
    PolicyAgent,
}

/// What was read, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Rules, and what is not one.
    pub entries: Vec<Entry>,
    /// What becomes of packets that no rule matches.
    pub default: Action,
}

/// A statement of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It is a rule of ours, or one of several that it comes to.
    Rule(Rule),
    /// It is none.
    LeftOut {
        /// Where it stands: a line, or a rule's handle.
        place: String,
        /// Why.
        reason: String,
    },
}

impl Imported {
    /// Reads the text.
    ///
    /// # Errors
    /// It is not of this format at all: why.
    pub fn read(format: Format, text: &str) -> Result<Self, String> {
        match format {
            Format::IptablesSave => iptables::read(text),
            Format::Nft => nft::read(text),
            Format::PolicyAgent => policy_agent::read(text),
        }
    }

    /// What is not in the list, each with its place.
    pub fn left_out(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Rule(_) => None,
            Entry::LeftOut { place, reason } => Some((place.as_str(), reason.as_str())),
        })
    }
}

/// As a list, with a comment where something was left out.
impl Display for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.entries {
            match entry {
                Entry::Rule(rule) => writeln!(f, "{rule}")?,
                Entry::LeftOut { place, reason } => {
                    writeln!(f, "# left out: {}: {}", one_line(place), one_line(reason))?;
                }
            }
        }
        writeln!(f, "default {}", self.default)
    }
}

/// What was quoted from the text may have line feeds, which would end the comment.
fn one_line(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

/// The alternatives of a statement; each combination is a rule.
#[derive(Clone, Debug)]
struct Draft {
    rule: Rule,
    is_v6: Option<bool>,
    sources: Vec<Option<IpNet>>,
    destinations: Vec<Option<IpNet>>,
    source_ports: Vec<Ports>,
    destination_ports: Vec<Ports>,
}

/// Rules that one statement may become.
const RULES_OF_ONE_MAX: usize = 1000;

impl Draft {
    fn new(rule: Rule, is_v6: Option<bool>) -> Self {
        Self {
            rule,
            is_v6,
            sources: vec![None],
            destinations: vec![None],
            source_ports: vec![Ports::ANY],
            destination_ports: vec![Ports::ANY],
        }
    }

    /// **Errors**: why they are no rules.
    fn rules(&self) -> Result<Vec<Rule>, String> {
        let has_ports = self.source_ports != [Ports::ANY] || self.destination_ports != [Ports::ANY];
        if has_ports && !self.rule.protocol.has_ports() {
            return Err("it has ports and no protocol that has them".to_owned());
        }
        let counts = [
            self.sources.len(),
            self.destinations.len(),
            self.source_ports.len(),
            self.destination_ports.len(),
        ];
        if counts
            .into_iter()
            .try_fold(1, usize::checked_mul)
            .is_none_or(|all| all > RULES_OF_ONE_MAX)
        {
            return Err(format!("it would become more than {RULES_OF_ONE_MAX} rules"));
        }
        let rules = self.combinations();
        for rule in &rules {
            // What the source says of the family, the addresses may contradict.
            let family = rule.family()?;
            if family.is_some() && self.is_v6.is_some() && family != self.is_v6 {
                return Err("its addresses are of another family than its table".to_owned());
            }
        }
        Ok(rules)
    }

    fn combinations(&self) -> Vec<Rule> {
        let mut rules = Vec::new();
        for &source in &self.sources {
            for &destination in &self.destinations {
                // One address says the family; without one the source says it.
                let all = self.is_v6.filter(|_| source.or(destination).is_none()).map(everything);
                let source = source.or(all);
                for &source_ports in &self.source_ports {
                    for &destination_ports in &self.destination_ports {
                        rules.push(Rule {
                            from: Endpoint { prefix: source, ports: source_ports },
                            to: Endpoint { prefix: destination, ports: destination_ports },
                            ..self.rule.clone()
                        });
                    }
                }
            }
        }
        rules
    }
}

/// All addresses of a family.
fn everything(is_v6: bool) -> IpNet {
    let text = if is_v6 { "::/0" } else { "0.0.0.0/0" };
    text.parse().expect("a prefix of length 0")
}

/// An address, or one with a length; bits behind the length are dropped, as those do who wrote it.
fn prefix(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<std::net::IpAddr>().ok().map(IpNet::from);
    let prefix = text.parse::<IpNet>().ok().or_else(address);
    prefix.map(|prefix| prefix.trunc()).ok_or_else(|| format!("`{text}` is no address"))
}

fn protocol(name: &str) -> Result<Option<u8>, String> {
    match name.to_ascii_lowercase().as_str() {
        "all" | "any" | "ip" => Ok(None),
        "icmp" => Ok(Some(Protocol::ICMP)),
        "igmp" => Ok(Some(2)),
        "tcp" => Ok(Some(Protocol::TCP)),
        "udp" => Ok(Some(Protocol::UDP)),
        "gre" => Ok(Some(47)),
        "esp" => Ok(Some(50)),
        "ah" => Ok(Some(51)),
        "icmpv6" | "ipv6-icmp" => Ok(Some(Protocol::ICMP6)),
        "ospf" | "ospfigp" => Ok(Some(89)),
        "sctp" => Ok(Some(Protocol::SCTP)),
        number => number.parse().map(Some).map_err(|_| format!("protocol `{name}`")),
    }
}

/// `low` to `high`, both there.
fn ports(low: &str, high: &str) -> Result<Ports, String> {
    let port = |text: &str| text.parse::<u16>().map_err(|_| format!("`{text}` is no port"));
    let ports = Ports { low: port(low)?, high: port(high)? };
    if ports.low > ports.high {
        return Err(format!("the ports {low} to {high} end before they begin"));
    }
    Ok(ports)
}

#[cfg(test)]
mod tests;
