//! The graph answers like the list, over ten profiles.
//!
//! A quarter of a million packets here; `SIDESTEP_FILTER_PACKETS=10000000 cargo test --release -p
//! sidestep-filter --test linear` for as many as are wanted.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use sidestep_filter::graph::ROOM;
use sidestep_filter::profiles::{Packets, Profile};
use sidestep_filter::{
    Action, CompileError, Compiled, Graph, Group, Names, Packet, Rule, RuleList, compile,
};

/// A machine with one interface, one user and three control groups.
struct Machine;

impl Names for Machine {
    fn interface(&self, name: &str) -> Option<u32> {
        (name == "eth0").then_some(1)
    }

    fn user(&self, name: &str) -> Option<u32> {
        (name == "alice").then_some(2)
    }

    fn group(&self, group: &Group) -> Option<RangeInclusive<u32>> {
        match group.to_string().as_str() {
            "cgroup /a" => Some(1..=2),
            "cgroup /a/b" => Some(2..=2),
            "cgroup /c" => Some(3..=3),
            _ => None,
        }
    }
}

fn packets() -> usize {
    let wanted = std::env::var("SIDESTEP_FILTER_PACKETS").ok();
    wanted.map_or(250_000, |count| count.parse().expect("a number of packets"))
}

/// Compares the two on packets for the list.
fn agree(list: &RuleList, graph: &Graph, packets: usize, what: &str) {
    let mut matched = 0;
    for packet in Packets::new(list, 7).take(packets) {
        let verdict = graph.lookup(&packet);
        let rule = list.first_match(&packet, &Machine);
        assert_eq!(verdict.rule, rule, "{what}: {packet}");
        let action = rule.map_or(list.default, |rule| list.rules[rule].action);
        assert_eq!(verdict.action, action, "{what}: {packet}");
        let is_logged = rule.map_or(list.is_default_logged, |rule| list.rules[rule].is_logged);
        assert_eq!(verdict.is_logged, is_logged, "{what}: {packet}");
        let needs_tls = rule.is_some_and(|rule| list.rules[rule].needs_tls);
        assert_eq!(verdict.needs_tls, needs_tls, "{what}: {packet}");
        assert_eq!(Packet::of_key(&packet.key(), packet.source.is_ipv6()), packet);
        matched += usize::from(rule.is_some());
    }
    assert!(list.rules.is_empty() || matched * 8 > packets, "{what}: {matched} of {packets}");
}

#[test]
fn the_graph_answers_like_the_list() {
    let lists = [1, 5, 30, 100, 400, 1000];
    let share = packets() / (Profile::ALL.len() * lists.len());
    for profile in Profile::ALL {
        for (seed, rules) in (1..).zip(lists) {
            let list = profile.list(rules, seed);
            let what = format!("{profile:?} of {rules}");
            match compile(&list, &Machine) {
                Ok(compiled) => {
                    agree(&list, &compiled.graph, share, &what);
                    unreached_rules_match_nothing(&list, &compiled, &what);
                }
                Err(CompileError::Steps { .. }) if profile.is_adversarial() && rules == 1000 => {
                    println!("{what} is refused");
                }
                Err(other) => panic!("{what}: {other}"),
            }
        }
    }
}

fn unreached_rules_match_nothing(list: &RuleList, compiled: &Compiled, what: &str) {
    let packets = Packets::new(list, 9).take(2_000);
    let hit: BTreeSet<_> = packets.filter_map(|it| list.first_match(&it, &Machine)).collect();
    for it in &compiled.report.unreached {
        assert!(!hit.contains(&it.rule), "{what}: rule {} is said to be unreached", it.rule);
    }
}

#[test]
fn a_list_is_read_as_it_is_written() {
    for profile in Profile::ALL {
        let list = profile.list(500, 4);
        let read = RuleList::parse(&list.to_string()).unwrap();
        assert_eq!((read.rules, read.default), (list.rules, list.default), "{profile:?}");
    }
}

#[test]
fn the_same_list_gives_the_same_graph() {
    for profile in Profile::ALL {
        let graphs = [(); 2].map(|()| compile(&profile.list(500, 3), &Machine).unwrap().graph);
        assert_eq!(graphs[0], graphs[1]);
        let again = Graph::from_nodes(graphs[0].nodes().to_vec()).unwrap();
        assert_eq!(again, graphs[0]);
    }
}

/// What the bounds promise, for a hundred times the rules of the test above.
#[test]
fn long_lists_stay_within_bounds() {
    for profile in [Profile::Acl, Profile::Fw, Profile::Ipc, Profile::Ibm, Profile::Fw6] {
        let list = profile.list(20_000, 5);
        let Compiled { graph, report } = compile(&list, &Machine).unwrap();
        assert!(report.bytes <= 20_000 * 320 + 65_536, "{profile:?}: {} bytes", report.bytes);
        assert!(report.steps <= 1024, "{profile:?}: {} steps", report.steps);
        agree(&list, &graph, 500, &format!("{profile:?} of 20 000"));
    }
}

/// Rules that are open in different fields and cross each other: no cut parts them.
#[test]
fn an_adversary_is_refused_or_served_within_bounds() {
    for rules in [2_000, 20_000] {
        let list = Profile::Crossed.list(rules, 5);
        match compile(&list, &Machine) {
            Ok(Compiled { graph, report }) => {
                assert!(report.bytes <= rules * 320 + 65_536, "{} bytes", report.bytes);
                agree(&list, &graph, 1_000, "crossed");
            }
            Err(CompileError::Steps { steps, rules }) => {
                assert!(steps > 1024 && !rules.is_empty());
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn what_hides_and_what_contradicts_is_told() {
    let text = "\
permit tcp 10.0.0.0/8 any:80
deny tcp 10.1.0.0/16 any:80
permit tcp 10.1.2.0/24 any:80-81
permit tcp any any:0-100
deny tcp any any:101-
";
    let list = RuleList::parse(text).unwrap();
    let report = compile(&list, &Machine).unwrap().report;
    let told: Vec<_> = report.unreached.iter().map(|it| (it.rule, it.by, it.contradicts)).collect();
    assert_eq!(told, [(1, Some(0), true)]);
    assert!(report.is_complete);
}

#[test]
fn names_without_a_meaning_are_refused() {
    let compiled = |text: &str| compile(&RuleList::parse(text).unwrap(), &Machine).map(drop);
    assert_eq!(compiled("permit any any any on eth0 user alice"), Ok(()));
    let error = compiled("permit any any any\npermit any any any on eth1").unwrap_err();
    assert_eq!(error, CompileError::UnknownInterface { rule: 1, name: "eth1".into() });
    let error = compiled("permit any any any user bob").unwrap_err();
    assert_eq!(error, CompileError::UnknownUser { rule: 0, name: "bob".into() });
}

#[test]
fn a_list_without_rules_is_its_default() {
    let list = RuleList::new(Vec::<Rule>::new(), Action::Deny);
    let Compiled { graph, report } = compile(&list, &Machine).unwrap();
    // The header, and the room for rules that come later.
    assert_eq!((graph.nodes().len(), graph.default(), report.steps), (1 + ROOM, Action::Deny, 0));
    agree(&list, &graph, 100, "no rules");
}
