//! Where packets enter the graph: at once, or by way of rules that came later.
//!
//! A set has one value that says it. What comes later is written to nodes and to a pair of roots that nothing leads to yet, and then
//! one byte names that pair: each packet goes by the old roots or by the new ones, and no program is loaded. Nothing is written to
//! twice, so when the pairs or the nodes are used up, the list is compiled anew.
//!
//! | Off | Len | Field, in the machine's order |
//! |---|---|---|
//! | 0 | 1 | which pair is in force |
//! | 4 | 4 | the first node of the room in front of the graph that is free |
//! | 8 | 4 | the fields that the programs find out, a bit for each, and above them whether they know of TLS, and tell the log |
//! | 12 | 4 | how many rules the list has |
//! | 16 | 8 × 64 | pairs of roots: of IPv4, of IPv6 |

use sidestep_filter::Graph;
use sidestep_filter::graph::{self, ACCEPT, Node, ORDERS};

use super::frame::{HEADER, PLACE};
use crate::assembler::Register::{R0, R1, R2, R7, R10};
use crate::assembler::{Assembler, Helper};
use crate::map::{MapDefinition, MapKind};

pub(super) const ENTRY: &str = "entry";
/// Pairs of roots: the list's own, and one for each addition.
const PAIRS: usize = ORDERS as usize;
const PAIRS_AT: i16 = 16;
const WORDS: usize = PAIRS_AT as usize / 4 + 2 * PAIRS;

/// Where the stack has which pair the packet has gone by.
pub(super) const PAIR: i16 = HEADER - 8;

/// The value.
pub(super) type Words = [u32; WORDS];

pub(super) const MAP: MapDefinition = MapDefinition {
    name: ENTRY,
    kind: MapKind::Array,
    key_len: 4,
    value_len: 4 * WORDS as u32,
    entries_max: 1,
    on_demand: false,
};

/// What the value says.
pub(super) struct Entry(pub(super) Words);

impl Entry {
    /// Of a set that is loaded.
    pub(super) fn of(graph: &Graph, rules: usize) -> Self {
        let [_, root_4, root_6, _] = graph.nodes()[0];
        let mut words = [0; WORDS];
        words[1] = 1;
        words[2] = told_fields(graph.nodes().iter().skip(1).map(|node| node[0]))
            | if graph.has(graph::LOGS) { LOGS } else { 0 }
            | if graph.has(graph::NEEDS_TLS) { NEEDS_TLS } else { 0 };
        words[3] = rules as u32;
        (words[4], words[5]) = (root_4, root_6);
        Self(words)
    }

    /// The pair that is in force.
    pub(super) fn pair(&self) -> usize {
        (self.0[0] & 0xff) as usize
    }

    pub(super) fn roots(&self, pair: usize) -> [u32; 2] {
        [self.0[4 + 2 * pair], self.0[5 + 2 * pair]]
    }

    pub(super) fn free_node(&self) -> usize {
        self.0[1] as usize
    }

    pub(super) fn rules(&self) -> usize {
        self.0[3] as usize
    }

    /// Whether the programs find out all that these nodes look at and their verdicts ask for, and tell what they want told.
    pub(super) fn serves(&self, nodes: &[Node]) -> bool {
        let verdicts =
            nodes.iter().filter(|node| node[0] == ACCEPT).fold(0, |bits, it| bits | it[2]);
        let wanted = told_fields(nodes.iter().map(|node| node[0]))
            | if verdicts & graph::LOGS != 0 { LOGS } else { 0 }
            | if verdicts & graph::NEEDS_TLS != 0 { NEEDS_TLS } else { 0 };
        wanted & !self.0[2] == 0
    }

    /// A pair that is not in force; `None`: all have been.
    pub(super) fn add(&mut self, roots: [u32; 2], nodes: usize) -> Option<usize> {
        // The last pair that was written says how far they are used.
        let used = (0..PAIRS).rposition(|pair| self.roots(pair) != [0; 2]).unwrap_or(0);
        let pair = used.max(self.pair()) + 1;
        if pair >= PAIRS {
            return None;
        }
        (self.0[4 + 2 * pair], self.0[5 + 2 * pair]) = (roots[0], roots[1]);
        self.0[1] += nodes as u32;
        Some(pair)
    }

    pub(super) fn put_into_force(&mut self, pair: usize) {
        self.0[0] = pair as u32;
    }
}

/// Above the bits of fields: the programs tell the log.
const LOGS: u32 = 1 << 31;
/// ... and find out whether a connection is protected.
const NEEDS_TLS: u32 = 1 << 30;

/// Fields that programs find out only if a rule looks at them.
fn told_fields(fields: impl Iterator<Item = u32>) -> u32 {
    use sidestep_filter::graph::field::{GROUP, INTERFACE, USER};
    let asked = [INTERFACE, USER, GROUP].map(|field| field as u32);
    fields
        .filter(|field| *field < ACCEPT && asked.contains(field))
        .fold(0, |bits, it| bits | 1 << it)
}

/// `R0` = where the value is.
pub(super) fn load(a: &mut Assembler) {
    a.store_immediate_32(R10, PLACE, 0);
    a.load_map(R1, ENTRY);
    a.address(R2, R10, PLACE);
    a.call(Helper::MapLookup);
    a.jump_if_equal(R0, 0, "drop");
}

/// `R7` = the root of packets of IPv4 or of IPv6.
pub(super) fn load_root(a: &mut Assembler, is_v6: bool) {
    load(a);
    a.load_8(R1, R0, 0);
    a.and_immediate(R1, PAIRS as i32 - 1);
    a.store_64(R10, PAIR, R1);
    a.shift_left_immediate(R1, 3);
    a.add(R0, R1);
    a.load_32(R7, R0, PAIRS_AT + if is_v6 { 4 } else { 0 });
}
