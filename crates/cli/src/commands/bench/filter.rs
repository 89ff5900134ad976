//! The IP filters under which entries are measured.
//!
//! A filter judges a control group of its own, in which the workers of its entries live, and its list has the shape of IBM's: exact
//! addresses and ports, none of which matches, and a last rule that permits all. It is pinned in a file system of this process
//! alone, so that it goes with it, however it ends; what is left then is an empty control group, which the next
//! measurement removes. The host's own filter, if there is one, judges the packets as well.
//!
//! Filters stay to the end of a measurement, because the runs of their entries take turns.

use std::collections::btree_map::{self, BTreeMap};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use sidestep_bpf::{BpfError, Cgroup, DetachedFileSystem, Filter, GroupNumbers, RuleSet};
use sidestep_filter::{
    Action, CompileError, Endpoint, NoNames, Ports, Protocol, Rule, RuleList, compile,
};
use sidestep_modeler::plan::{Entry, Transport};
use thiserror::Error;

/// Those that were wanted so far, by their rules.
#[derive(Debug, Default)]
pub(super) struct Filters(BTreeMap<u32, Judged>);

/// A control group and its filter.
#[derive(Debug)]
struct Judged {
    // Before the group, which it is attached to: it goes first.
    _pins: DetachedFileSystem,
    cgroup: Cgroup,
}

/// Why there is no filter for an entry.
#[derive(Debug, Error)]
pub(super) enum FilterError {
    #[error("the filter: {0}")]
    Bpf(#[from] BpfError),
    #[error("the filter: {0}")]
    Compile(#[from] CompileError),
    #[error("the filter judges the packets of this host alone: leave --server out")]
    Elsewhere,
    #[error(
        "the filter has a control group of its own: leave --cpu-quota, --cpu-weight and sockmap out"
    )]
    TwoGroups,
}

impl Filters {
    /// The control group whose packets the filter of this entry judges.
    pub(super) fn group(
        &mut self,
        entry: &Entry,
        transport: Transport,
    ) -> Result<&Path, FilterError> {
        if entry.contention.has_cpu_group() || transport == Transport::Sockmap {
            return Err(FilterError::TwoGroups);
        }
        let rules = entry.filter_rules;
        let judged = match self.0.entry(rules) {
            btree_map::Entry::Occupied(it) => it.into_mut(),
            btree_map::Entry::Vacant(it) => it.insert(Judged::make(rules)?),
        };
        Ok(judged.cgroup.path())
    }
}

impl Judged {
    fn make(rules: u32) -> Result<Self, FilterError> {
        let list = list(rules);
        let graph = compile(&list, &NoNames)?.graph;
        let cgroup = Cgroup::create_for_run()?;
        let pins = DetachedFileSystem::make()?;
        let set = RuleSet {
            graph: &graph,
            rules: list.rules.len(),
            identity: [0; 7],
            groups: &GroupNumbers::default(),
        };
        Filter::attach(&pins.directory("filter"), cgroup.path(), &set)?;
        Ok(Self { _pins: pins, cgroup })
    }
}

/// IBM's shape, of so many rules: at least 1.
fn list(rules: u32) -> RuleList {
    let last = Rule { action: Action::Permit, ..Rule::default() };
    RuleList::new((1..rules).map(exact).chain([last]).collect(), Action::Permit)
}

/// The number of TCP.
const TCP: u8 = 6;

/// A rule for two addresses that are not of loopback, and a port.
fn exact(number: u32) -> Rule {
    let host = |network: [u8; 4]| {
        let address = Ipv4Addr::from_bits(u32::from_be_bytes(network) + number);
        Some(IpAddr::from(address).into())
    };
    let port = 1024 + (number % 50_000) as u16;
    Rule {
        action: Action::Deny,
        protocol: Protocol::Number(TCP),
        from: Endpoint { prefix: host([10, 64, 0, 0]), ports: Ports::ANY },
        to: Endpoint { prefix: host([192, 168, 0, 0]), ports: Ports { low: port, high: port } },
        ..Rule::default()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use sidestep_filter::{Packet, Way};

    use super::*;

    #[test]
    fn no_rule_matches_but_the_last() {
        let list = list(1_000);
        let ends: [SocketAddr; 2] =
            ["127.0.0.1:5000".parse().unwrap(), "127.0.0.1:1024".parse().unwrap()];
        for way in [Way::In, Way::Out] {
            let packet = Packet::between(TCP, ends[0], ends[1], way);
            assert_eq!(list.first_match(&packet, &NoNames), Some(999));
        }
        assert_eq!(list.rules[999].action, Action::Permit);
    }
}
