//! From the list to the graph, within bounds.
//!
//! Rules are boxes in a space of [`FIELDS`] dimensions, and they overlap: a packet lies in many of
//! them and wants the first. A tree of binary splits finds it in a few steps, but a rule that is
//! open in the field of a split is on both sides, and with rules that are open in different fields
//! a tree would hold each of them thousands of times. So (as in EffiCuts and CutSplit)
//!
//! * rules are put into up to five groups by what they are narrow in, and each group has its tree;
//! * a packet walks one tree after the other, and leaves out those whose first rule is behind what
//!   it has found, and those none of whose rules reaches to it;
//! * in each part of the space, rules behind one that covers all of the part are dropped;
//! * a part with few rules is a leaf: these are tested in order, and only for what the way there
//!   has not decided already.
//!
//! # Bounds
//!
//! A tree begins with room for twice its rules, which each split divides. Where a split
//! would need more than is there, the rules that cross it go into a tree of their own, which is
//! walked after either side: that costs steps, and no room. If all nodes together would be more
//! than [`NODES_PER_RULE`] times the rules, it is done again with room for each rule once.
//!
//! Then it fits. A split makes two parts at least that are not empty, so there are fewer splits than
//! leaves, and no more leaves than places of rules. A rule takes 15 tests at most in its leaf, one
//! node to accept, and two for a split. Without addresses it is in both families, and has 7 tests.
//! So it is at most `15 + 1 + 2` nodes in one family, or `2 * (7 + 1 + 2)` in both.
//!
//! What an adversary can still make long is a walk: beyond [`STEPS_MAX`](crate::graph::STEPS_MAX) steps the list is refused,
//! with rules that no cut could part.

mod addition;
mod tree;

use crate::compile_error::CompileError;
use crate::graph::{EMPTY, Graph, GraphError, MAGIC, Mark, Node, ROOM, Verdict, field};
use crate::list::RuleList;
use crate::region::{FIELDS, Family, Range, Ranked, regions_of};
use crate::report::Report;
use crate::rule::Names;
pub use addition::Addition;
use tree::{Full, LongestLeaf, Tree};

/// A graph and what is to be said of it.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Answers as the list does.
    pub graph: Graph,
    /// What an operator should know.
    pub report: Report,
}

/// Nodes for each rule, at most: 320 bytes.
const NODES_PER_RULE: usize = 20;
/// Nodes that every list may have besides, such as the heads of the trees.
const NODES_BESIDES: usize = 4096 + ROOM;
/// How many times its rules a tree has room for: what is tried in turn. More than twice makes the
/// graph larger, and on the profiles of this crate no walk shorter by much.
const ROOMS: [u64; 2] = [2, 1];

/// Makes the graph of a list.
///
/// # Errors
/// A name has no meaning, or the rules overlap in too many ways.
pub fn compile(list: &RuleList, names: &impl Names) -> Result<Compiled, CompileError> {
    let families = [Family::V4, Family::V6].map(|family| regions(list, family, names));
    let [v4, v6] = families;
    let families = [v4?, v6?];
    let attempts = ROOMS.iter().find_map(|&room| Attempt::new(list, &families, room).ok());
    let Attempt { nodes, references, longest_leaf } =
        attempts.expect("every list fits where each rule has one place");
    let graph = Graph::from_nodes(nodes).map_err(|error| match error {
        GraphError::Steps(steps) => CompileError::Steps { steps, rules: longest_leaf.first },
        other => unreachable!("the nodes are a graph: {other}"),
    })?;
    let report = Report::of(list, &families, &graph, &references);
    Ok(Compiled { graph, report })
}

fn regions(list: &RuleList, family: Family, names: &impl Names) -> Result<Ranked, CompileError> {
    Ok(regions_of(list.rules.iter().enumerate(), family, names)?)
}

/// What came of the trees with some room.
struct Attempt {
    nodes: Vec<Node>,
    /// In how many leaves each rule is.
    references: Vec<u32>,
    longest_leaf: LongestLeaf,
}

impl Attempt {
    fn new(list: &RuleList, families: &[Ranked; 2], room: u64) -> Result<Self, Full> {
        let (action, is_logged) = (list.default, list.is_default_logged);
        let default = Verdict { action, rule: None, is_logged, needs_tls: false };
        let mut nodes = vec![[MAGIC, 0, 0, default.word()]];
        nodes.resize(1 + ROOM, EMPTY);
        let marks: Vec<Mark> =
            list.rules.iter().enumerate().map(|(place, rule)| Mark::at(place, rule)).collect();
        let mut attempt = Self {
            nodes,
            references: vec![0; list.rules.len()],
            longest_leaf: LongestLeaf::default(),
        };
        for (root, (family, ranked)) in (1..).zip([Family::V4, Family::V6].iter().zip(families)) {
            attempt.add(&marks, *family, ranked, root, room)?;
        }
        Ok(attempt)
    }

    /// Adds the trees of a family, and their root to the header.
    fn add(
        &mut self,
        marks: &[Mark],
        family: Family,
        ranked: &Ranked,
        root: usize,
        room: u64,
    ) -> Result<(), Full> {
        let nodes_max = NODES_PER_RULE * marks.len() + NODES_BESIDES;
        let is_open = |field: usize| ranked.iter().all(|(_, region)| region.0[field] == Range::ALL);
        let fields: Vec<usize> = (0..FIELDS).filter(|&field| !is_open(field)).collect();
        let mut groups = groups(family, ranked);
        // The first rule of each is its best.
        groups.sort_unstable_by_key(|group| group[0]);
        let count = groups.len();
        for (number, group) in groups.into_iter().enumerate() {
            let mut exits = Vec::new();
            let head = self.nodes.len();
            if number == 0 {
                self.nodes[0][root] = head as u32;
            } else {
                self.nodes.push(marks[ranked[group[0] as usize].0 as usize].better());
                exits.push(head);
            }
            let mut tree = Tree {
                marks,
                ranked,
                nodes: &mut self.nodes,
                fields: &fields,
                references: &mut self.references,
                longest_leaf: &mut self.longest_leaf,
                nodes_max,
                exits,
            };
            tree.grow(group, room)?;
            let exits = tree.exits;
            let next = if number + 1 == count { 0 } else { self.nodes.len() as u32 };
            exits.into_iter().for_each(|exit| self.nodes[exit][3] = next);
        }
        Ok(())
    }
}

/// The rules, by their places in `ranked`, grouped by what they are narrow in.
fn groups(family: Family, ranked: &Ranked) -> Vec<Vec<u32>> {
    /// Fewer are not worth it.
    const WORTH: usize = 64;
    /// A prefix of 8 bits or more.
    const NARROW_V4: u32 = 1 << 24;
    /// One of 24 bits or more: what is in use begins with the same few bits.
    const NARROW_V6: u32 = 1 << 8;
    /// A quarter of all ports.
    const NARROW_PORTS: u32 = 1 << 14;
    let narrow = match family {
        Family::V4 => NARROW_V4,
        Family::V6 => NARROW_V6,
    };
    if ranked.len() < WORTH {
        let all: Vec<u32> = (0..ranked.len() as u32).collect();
        return if all.is_empty() { Vec::new() } else { vec![all] };
    }
    let mut groups = vec![Vec::new(); 5];
    for (place, (_, region)) in (0..).zip(ranked) {
        let is_narrow = |field: usize, span: u32| region.0[field].span() < span;
        let group = match (is_narrow(field::SOURCE, narrow), is_narrow(field::DESTINATION, narrow))
        {
            (true, true) => 0,
            (true, false) => 1,
            (false, true) => 2,
            (false, false) => {
                let ports = [field::SOURCE_PORT, field::DESTINATION_PORT];
                if ports.iter().any(|&field| is_narrow(field, NARROW_PORTS)) { 3 } else { 4 }
            }
        };
        groups[group].push(place);
    }
    groups.retain(|group| !group.is_empty());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::ACCEPT;
    use crate::packet::{Packet, Way};
    use crate::profiles::Profile;
    use crate::rule::{Direction, NoNames, Rule};

    /// How many nodes a packet of IPv4 meets.
    fn steps(graph: &Graph, packet: &Packet) -> usize {
        let [_, root, _, default] = graph.nodes()[0];
        let mut key = packet.key();
        key[field::BEST] = default;
        let (mut at, mut steps) = (root, 0);
        while at != 0 {
            let [field, low, span, other] = graph.nodes()[at as usize];
            steps += 1;
            let goes_on = field != ACCEPT && key[field as usize].wrapping_sub(low) <= span;
            at = if goes_on { at + 1 } else { other };
        }
        steps
    }

    #[test]
    fn a_packet_that_no_rule_reaches_leaves_a_tree_at_its_head() {
        let packet = |from: &str, way| {
            Packet::between(6, from.parse().unwrap(), "192.168.0.9:1033".parse().unwrap(), way)
        };
        let exact = Profile::Ibm.list(10_000, 2);
        let graph = compile(&exact, &NoNames).unwrap().graph;
        assert_eq!(steps(&graph, &packet("127.0.0.1:1", Way::In)), 1);
        assert!(steps(&graph, &packet("10.64.0.9:1", Way::In)) > 10);
        let arriving = |rule: Rule| Rule { direction: Direction::In, ..rule };
        let arriving: Vec<Rule> = exact.rules.into_iter().map(arriving).collect();
        let graph = compile(&RuleList::new(arriving, exact.default), &NoNames).unwrap().graph;
        assert!(steps(&graph, &packet("10.64.0.9:1", Way::Out)) <= 3);
    }
}
