//! Compiled filters from memory that is not ours: what is taken for a graph is walked to its end, in no
//! more steps than it says, and is given back as it was.
//!
//! `cargo xtask fuzz filter_graph`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_filter::graph::Node;
use sidestep_filter::profiles::Packets;
use sidestep_filter::{Action, Graph, RuleList};

fuzz_target!(|words: Vec<u32>| {
    let nodes: Vec<Node> = words.as_chunks().0.to_vec();
    let Ok(graph) = Graph::from_nodes(nodes.clone()) else { return };
    assert_eq!(graph.nodes(), nodes);
    let any = RuleList::new(Vec::new(), Action::Permit);
    for packet in Packets::new(&any, 1).take(20) {
        let verdict = graph.lookup(&packet);
        assert!(verdict.rule.is_some() || verdict.action == graph.default());
    }
});
