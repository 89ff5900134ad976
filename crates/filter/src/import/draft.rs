//! A statement of others on its way to being rules.

use ipnet::IpNet;

use crate::protocol::Protocol;
use crate::rule::{Endpoint, Group, Ports, Rule};

/// The alternatives of a statement; each combination is a rule.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) rule: Rule,
    pub(super) is_v6: Option<bool>,
    pub(super) sources: Vec<Option<IpNet>>,
    pub(super) destinations: Vec<Option<IpNet>>,
    pub(super) source_ports: Vec<Ports>,
    pub(super) destination_ports: Vec<Ports>,
}

/// Rules that one statement may become.
const RULES_OF_ONE_MAX: usize = 1000;

impl Draft {
    pub(super) fn new(rule: Rule, is_v6: Option<bool>) -> Self {
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
    pub(super) fn rules(&self) -> Result<Vec<Rule>, String> {
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

/// A control group, whose path is written with or without the first slash.
pub(super) fn cgroup(path: &str) -> Result<Group, String> {
    let path = path.trim_matches('/');
    Group::path(&format!("/{path}")).ok_or_else(|| format!("`{path}` is no control group"))
}

/// All addresses of a family.
pub(super) fn everything(is_v6: bool) -> IpNet {
    let text = if is_v6 { "::/0" } else { "0.0.0.0/0" };
    text.parse().expect("a prefix of length 0")
}

/// An address, or one with a length; bits behind the length are dropped, as those do who wrote it.
pub(super) fn prefix(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<std::net::IpAddr>().ok().map(IpNet::from);
    let prefix = text.parse::<IpNet>().ok().or_else(address);
    prefix.map(|prefix| prefix.trunc()).ok_or_else(|| format!("`{text}` is no address"))
}

pub(super) fn protocol(name: &str) -> Result<Option<u8>, String> {
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
pub(super) fn ports(low: &str, high: &str) -> Result<Ports, String> {
    let port = |text: &str| text.parse::<u16>().map_err(|_| format!("`{text}` is no port"));
    let ports = Ports { low: port(low)?, high: port(high)? };
    if ports.low > ports.high {
        return Err(format!("the ports {low} to {high} end before they begin"));
    }
    Ok(ports)
}
