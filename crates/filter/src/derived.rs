//! Rules that no list says: they follow from the links of a gateway.
//!
//! A soft RNIC speaks RoCEv2 with the adapters of other hosts to which it has links, and with no others. So these rules come and
//! go with the links, and stand before every list.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::protocol::Protocol;
use crate::rule::{Action, Direction, Endpoint, Ports, Rule};

/// The UDP port of RoCEv2.
const ROCE: Ports = Ports { low: 4791, high: 4791 };

/// The rules that follow from links between these pairs of addresses, the own one first: RoCEv2 passes between the two, and
/// arrives at the own one from nowhere else. They are about the gateway's sockets.
#[must_use]
pub fn rules_of_links(links: &[[IpAddr; 2]]) -> Vec<Rule> {
    let mut links = links.to_vec();
    links.sort_unstable();
    links.dedup();
    let permitted = links.iter().flat_map(|&[own, partner]| {
        [
            rule(Action::Permit, Some(own), partner, Direction::Out),
            rule(Action::Permit, Some(partner), own, Direction::In),
        ]
    });
    let mut owns: Vec<IpAddr> = links.iter().map(|&[own, _]| own).collect();
    owns.dedup();
    let denied = owns.into_iter().map(|own| rule(Action::Deny, None, own, Direction::In));
    permitted.chain(denied).collect()
}

fn rule(action: Action, from: Option<IpAddr>, to: IpAddr, direction: Direction) -> Rule {
    Rule {
        action,
        protocol: Protocol::Number(Protocol::UDP),
        from: Endpoint { prefix: from.map(IpNet::from), ports: Ports::ANY },
        to: Endpoint { prefix: Some(IpNet::from(to)), ports: ROCE },
        direction,
        ..Rule::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_link_is_open_between_its_ends_and_the_own_ones_are_closed_once() {
        let links = [
            ["10.0.0.1", "10.0.0.2"],
            ["10.0.0.1", "10.0.0.3"],
            ["fd00::1", "fd00::2"],
            ["10.0.0.1", "10.0.0.2"],
        ];
        let links = links.map(|ends| ends.map(|it| it.parse().unwrap()));
        let rules: Vec<String> = rules_of_links(&links).iter().map(ToString::to_string).collect();
        assert_eq!(
            rules,
            [
                "permit udp 10.0.0.1 10.0.0.2:4791 out",
                "permit udp 10.0.0.2 10.0.0.1:4791 in",
                "permit udp 10.0.0.1 10.0.0.3:4791 out",
                "permit udp 10.0.0.3 10.0.0.1:4791 in",
                "permit udp fd00::1 [fd00::2]:4791 out",
                "permit udp fd00::2 [fd00::1]:4791 in",
                "deny udp any 10.0.0.1:4791 in",
                "deny udp any [fd00::1]:4791 in",
            ]
        );
        assert_eq!(rules_of_links(&[]), []);
    }
}
