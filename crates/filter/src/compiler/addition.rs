//! Rules that come later, without compiling the list again.
//!
//! A list of a hundred thousand rules takes a second of CPU time to compile and to load. So a few more rules are a graph of
//! their own, in the room that a compiled graph has in front ([`crate::graph`]): a packet walks them first, goes on in the list, and the
//! first rule of both decides, by the orders between those of the list. Each addition is all rules that have come
//! later, and begins where nothing was before, so a packet that is on its way through an older one is not disturbed. When the room is used
//! up, the list is compiled with them.

use super::tree::{LongestLeaf, Tree};
use crate::compile_error::CompileError;
use crate::graph::{ADDED_STEPS, EMPTY, Mark, Node, ORDERS, ROOM, longest_walks};
use crate::region::{FIELDS, Family, regions_of};
use crate::rule::{LaterRule, Names};

/// Rules that come later, as nodes for a graph that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addition {
    /// Where the nodes belong.
    pub at: usize,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// From here on the graph is walked by packets of IPv4 and of IPv6.
    pub roots: [u32; 2],
}

impl Addition {
    /// From all that have come later to a list of so many rules, whose graph has these roots and is used up to node `at`;
    /// `None`: there is no room for them. The first is the rule whose number is one beyond that of the list's default, `rules`.
    ///
    /// # Errors
    /// A name has no meaning; rules are told by their place among the later ones.
    pub fn compile(
        later: &[LaterRule],
        rules: usize,
        list_roots: [u32; 2],
        at: usize,
        names: &impl Names,
    ) -> Result<Option<Self>, CompileError> {
        if later.len() >= ORDERS as usize || at > ROOM {
            return Ok(None);
        }
        let marks = marks(later, rules);
        let mut nodes = vec![EMPTY; at];
        let mut roots = list_roots;
        for (root, family) in roots.iter_mut().zip([Family::V4, Family::V6]) {
            let ordered = in_order(later).map(|place| (place, &later[place].rule));
            let ranked = regions_of(ordered, family, names)?;
            if ranked.is_empty() {
                continue;
            }
            let mut tree = Tree {
                marks: &marks,
                ranked: &ranked,
                nodes: &mut nodes,
                fields: &std::array::from_fn::<usize, FIELDS, _>(|field| field),
                references: &mut vec![0; later.len()],
                longest_leaf: &mut LongestLeaf::default(),
                nodes_max: 1 + ROOM,
                exits: Vec::new(),
            };
            let list_root = std::mem::replace(root, tree.nodes.len() as u32);
            if tree.grow((0..ranked.len() as u32).collect(), 2).is_err() {
                return Ok(None);
            }
            let exits = tree.exits;
            exits.into_iter().for_each(|exit| nodes[exit][3] = list_root);
        }
        let is_short = is_short(&nodes, roots);
        Ok(is_short.then(|| Self { at, nodes: nodes.split_off(at), roots }))
    }

    /// The fields that its nodes look at, a bit for each.
    #[must_use]
    pub fn fields(&self) -> u32 {
        self.nodes.iter().fold(0, |fields, node| fields | 1 << node[0])
    }
}

/// By their places: what each is where it is accepted.
fn marks(later: &[LaterRule], rules: usize) -> Vec<Mark> {
    let mark = |(place, it): (usize, &LaterRule)| {
        let earlier = later[..place].iter().filter(|other| other.before == it.before);
        Mark::before(it.before, 1 + earlier.count() as u32, rules + 1 + place, &it.rule)
    };
    later.iter().enumerate().map(mark).collect()
}

/// Their places, the first in the list first.
fn in_order(later: &[LaterRule]) -> impl Iterator<Item = usize> {
    let mut places: Vec<usize> = (0..later.len()).collect();
    places.sort_by_key(|&place| later[place].before);
    places.into_iter()
}

/// Whether a walk from the roots to the list is. What leads to the list leads to the end here.
fn is_short(nodes: &[Node], roots: [u32; 2]) -> bool {
    let within = |node: &Node| {
        let [field, low, span, other] = *node;
        [field, low, span, if (other as usize) < nodes.len() { other } else { 0 }]
    };
    let nodes: Vec<Node> = nodes.iter().map(within).collect();
    let longest = longest_walks(&nodes).expect("a tree leads further on");
    roots.iter().all(|&root| longest.get(root as usize).is_none_or(|&it| it <= ADDED_STEPS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use crate::list::RuleList;
    use crate::profiles::{Packets, Profile};
    use crate::{Group, compile};

    struct Machine;

    impl Names for Machine {
        fn interface(&self, _: &str) -> Option<u32> {
            Some(1)
        }

        fn user(&self, _: &str) -> Option<u32> {
            Some(2)
        }

        fn group(&self, group: &Group) -> Option<std::ops::RangeInclusive<u32>> {
            Some(if group.to_string().ends_with("/a") { 1..=2 } else { 2..=2 })
        }
    }

    /// The graph with an addition in its room, as the kernel has it.
    fn with(graph: &Graph, addition: &Addition) -> Graph {
        let mut nodes = graph.nodes().to_vec();
        nodes[addition.at..][..addition.nodes.len()].copy_from_slice(&addition.nodes);
        [nodes[0][1], nodes[0][2]] = addition.roots;
        Graph::from_nodes(nodes).unwrap()
    }

    fn agree(graph: &Graph, list: &RuleList, numbers: &[usize], what: &str) {
        for packet in Packets::new(list, 3).take(2_000) {
            let wanted = list.first_match(&packet, &Machine).map(|place| numbers[place]);
            assert_eq!(graph.lookup(&packet).rule, wanted, "{what}: {packet}");
        }
    }

    /// One after the other, at all places, each in nodes of its own, while what was there before stays.
    #[test]
    fn rules_that_come_later_answer_as_if_they_had_been_in_the_list() {
        for profile in Profile::ALL {
            for rules in [0, 1, 40, 400] {
                let list = profile.list(rules, 5);
                let graph = compile(&list, &Machine).unwrap().graph;
                let roots = [graph.nodes()[0][1], graph.nodes()[0][2]];
                let more = profile.list(40, 6).rules;
                let (mut later, mut at, mut rounds) = (Vec::new(), 1, 0);
                let mut nodes = graph.clone();
                for (n, rule) in more.into_iter().enumerate() {
                    later.push(LaterRule { before: n * 7919 % (rules + 1), rule });
                    let added = Addition::compile(&later, rules, roots, at, &Machine).unwrap();
                    let Some(added) = added else { break };
                    at += added.nodes.len();
                    nodes = with(&nodes, &added);
                    if n % 9 == 0 {
                        let (merged, numbers) = list.with_later(&later);
                        agree(&nodes, &merged, &numbers, &format!("{profile:?} {rules} {n}"));
                    }
                    rounds += 1;
                }
                assert!(rounds >= 10, "{profile:?} {rules}: {rounds}");
            }
        }
    }

    #[test]
    fn what_has_no_room_is_not_taken() {
        let rules = Profile::Ibm.list(ORDERS as usize, 1).rules;
        let later: Vec<LaterRule> =
            rules.into_iter().map(|rule| LaterRule { before: 0, rule }).collect();
        let compile = |later: &[LaterRule], at| {
            Addition::compile(later, 7, [0, 0], at, &Machine).unwrap().is_some()
        };
        assert!(compile(&later[1..], 1) && !compile(&later, 1), "there is no order for it");
        assert!(!compile(&later[1..2], ROOM) && !compile(&later[1..2], ROOM + 9));
    }
}
