//! The decisions, their layout in memory, the walk.
//!
//! A graph is an array of nodes of four words. A packet walks it from the root of its family and
//! keeps the best verdict it has met; at 0 it is at the end.
//!
//! ```text
//!   node 0    magic    root of IPv4    root of IPv6    verdict of the default
//!
//!   test      field    low             span            other
//!             if key[field] - low <= span, as numbers of 32 bits without a sign:
//!             go on at the next node; otherwise at `other`
//!
//!   accept    16       order           verdict         other
//!             if the order is not higher than the best so far it is that now, and the verdict with it;
//!             go on at `other`
//! ```
//!
//! An order is higher the further down a rule stands in the list, and leaves room between two rules ([`ORDERS`]) for
//! some that are put there later. The best so far is itself a word of the key ([`field::BEST`]), so a test can leave out what cannot be
//! better. A verdict is the number of a rule, times eight, and 1 more if it denies, 2 more if that is told in the log, 4 more if it permits only what TLS protects. The
//! number is the rule's place in the list, and behind the number of all rules for those that came later.
//!
//! Behind the header a compiled graph has [`ROOM`] nodes of nothing, for rules that come later: [`crate::Addition`].
//!
//! `0 < i < other < len` or `other == 0`, for every node `i`: every step leads further on, so a walk
//! ends, and the longest is known beforehand ([`Graph::steps`]). [`Graph::from_nodes`] holds what it
//! is given to that.

use thiserror::Error;

use crate::packet::Packet;
use crate::region::Family;
use crate::rule::{Action, Rule};

pub use crate::region::{KEY_WORDS, Key, field};

/// One decision.
pub type Node = [u32; 4];

/// Decisions that answer like an ordered list of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    nodes: Vec<Node>,
    steps: u32,
}

/// What becomes of a packet, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What becomes of it.
    pub action: Action,
    /// The rule that says so, by its place in the list from 0; `None`: the default.
    pub rule: Option<usize>,
    /// It is told in the log.
    pub is_logged: bool,
    /// The connection has to be protected by TLS. With [`Action::Deny`]: it was not.
    pub needs_tls: bool,
}

/// Why an array is no graph.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum GraphError {
    /// It does not begin as one.
    #[error("this is no filter, or one of another version")]
    Header,
    /// A node leads back, to itself or beyond the end.
    #[error("node {0} of the filter does not lead further on")]
    Jump(usize),
    /// A node looks at what no packet has.
    #[error("node {0} of the filter looks at no field of a packet")]
    Field(usize),
    /// A node accepts a packet by no rule.
    #[error("node {0} of the filter accepts packets, and names no rule")]
    NoRule(usize),
    /// A walk would be longer than programs of the kernel can be made for.
    #[error("a packet could need {0} steps; up to {STEPS_MAX} are possible")]
    Steps(u32),
}

/// In the first word: the letters `SSF` and the version of the layout.
pub const MAGIC: u32 = 0x5353_4605;
/// In the first word of a node that accepts: the number behind those of fields.
pub const ACCEPT: u32 = KEY_WORDS as u32;
/// The verdict's part for a rule, when no rule has matched.
pub const NO_RULE: u32 = u32::MAX >> RULE_SHIFT;
/// Nodes behind the header for rules that come later: with it, sixteen pages.
pub const ROOM: usize = (1 << 12) - 1;
/// Orders from one rule to the next: one more than rules can come later.
pub const ORDERS: u32 = 64;
/// Steps of the longest walk through rules that come later.
pub const ADDED_STEPS: u32 = 128;
/// What stands where there is nothing: it accepts nothing, and leads to the end.
pub(crate) const EMPTY: Node = [ACCEPT, u32::MAX, 0, 0];
/// Where of a verdict the rule begins. Below it are [`DENIES`], [`LOGS`] and [`NEEDS_TLS`].
pub const RULE_SHIFT: u32 = 3;
/// The bit of a verdict that says deny.
pub const DENIES: u32 = 1;
/// The bit of a verdict that says that it is told in the log.
pub const LOGS: u32 = 2;
/// The bit of a verdict that says that the connection has to be protected by TLS.
pub const NEEDS_TLS: u32 = 4;
/// Steps of a walk: a program that makes so many is still one that the verifier of Linux 5.15
/// follows to its end (8192 open branches, of which a step has up to five).
pub const STEPS_MAX: u32 = 1024;
/// Nodes of a graph: as many bytes as an array of the kernel may have, with room to spare.
const NODES_MAX: usize = 1 << 27;

impl Graph {
    /// From the nodes, the header first.
    ///
    /// # Errors
    /// They are no graph: what is wrong first.
    pub fn from_nodes(nodes: Vec<Node>) -> Result<Self, GraphError> {
        let Some(&[MAGIC, root_4, root_6, default]) = nodes.first() else {
            return Err(GraphError::Header);
        };
        let len = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        if root_4.max(root_6) >= len || default >> RULE_SHIFT != NO_RULE || nodes.len() > NODES_MAX
        {
            return Err(GraphError::Header);
        }
        let longest = longest_walks(&nodes)?;
        let steps = [root_4, root_6].map(|root| longest[root as usize]);
        match steps[0].max(steps[1]) {
            steps @ 0..=STEPS_MAX => Ok(Self { nodes, steps }),
            steps => Err(GraphError::Steps(steps)),
        }
    }

    /// The nodes, the header first.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Steps of the longest walk.
    #[must_use]
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// What becomes of packets that no rule matches.
    #[must_use]
    pub fn default(&self) -> Action {
        Verdict::of_word(self.nodes[0][3]).action
    }

    /// Whether a test looks at a field; what none looks at need not be found out.
    #[must_use]
    pub fn looks_at(&self, field: usize) -> bool {
        self.nodes[1..].iter().any(|node| node[0] as usize == field)
    }

    /// Whether any verdict has one of these bits: [`LOGS`], [`NEEDS_TLS`].
    #[must_use]
    pub fn has(&self, bits: u32) -> bool {
        let accepts = self.nodes[1..].iter().filter(|node| node[0] == ACCEPT);
        accepts.map(|node| node[2]).chain([self.nodes[0][3]]).any(|verdict| verdict & bits != 0)
    }

    /// What becomes of a packet.
    #[must_use]
    pub fn lookup(&self, packet: &Packet) -> Verdict {
        self.lookup_key(packet.family(), packet.key())
    }

    pub(crate) fn lookup_key(&self, family: Family, mut key: Key) -> Verdict {
        let [_, root_4, root_6, default] = self.nodes[0];
        let root = match family {
            Family::V4 => root_4,
            Family::V6 => root_6,
        };
        key[field::BEST] = default;
        Verdict::of_word(self.walk(root, &mut key, default))
    }

    fn walk(&self, root: u32, key: &mut Key, default: u32) -> u32 {
        let (mut at, mut verdict) = (root, default);
        while at != 0 {
            let [field, low, span, other] = self.nodes[at as usize];
            if field == ACCEPT {
                if low <= key[field::BEST] {
                    (key[field::BEST], verdict) = (low, span);
                }
                at = other;
            } else if key[field as usize].wrapping_sub(low) <= span {
                at += 1;
            } else {
                at = other;
            }
        }
        verdict
    }
}

/// What a rule is where it is accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    order: u32,
    verdict: u32,
}

impl Mark {
    /// That of a rule at this place of a list.
    pub(crate) fn at(place: usize, rule: &Rule) -> Self {
        Self::new((place as u32 + 1) * ORDERS, place, rule)
    }

    /// That of rule `number`, which came later, and is the so many'th before a place of the list, from 1.
    pub(crate) fn before(place: usize, nth: u32, number: usize, rule: &Rule) -> Self {
        Self::new(place as u32 * ORDERS + nth, number, rule)
    }

    fn new(order: u32, number: usize, rule: &Rule) -> Self {
        let Rule { action, is_logged, needs_tls, .. } = *rule;
        let verdict = Verdict { action, rule: Some(number), is_logged, needs_tls };
        Self { order, verdict: verdict.word() }
    }

    /// The test that a packet passes if this rule, or one behind it, can still be its first.
    pub(crate) fn better(self) -> Node {
        [field::BEST as u32, self.order, u32::MAX - self.order, 0]
    }

    /// The node that ends with the verdict of the rule.
    pub(crate) fn accept(self) -> Node {
        [ACCEPT, self.order, self.verdict, 0]
    }
}

/// For each node the steps of the longest walk from it; of 0 there is none.
pub(crate) fn longest_walks(nodes: &[Node]) -> Result<Vec<u32>, GraphError> {
    let mut longest = vec![0; nodes.len()];
    for at in (1..nodes.len()).rev() {
        let [field, _, verdict, other] = nodes[at];
        let other = other as usize;
        if other != 0 && (other <= at || other >= nodes.len()) {
            return Err(GraphError::Jump(at));
        }
        longest[at] = 1 + match field {
            ACCEPT if verdict >> RULE_SHIFT == NO_RULE => return Err(GraphError::NoRule(at)),
            ACCEPT => longest[other],
            field if field as usize <= field::BEST => {
                let next = longest.get(at + 1).ok_or(GraphError::Jump(at))?;
                longest[other].max(*next)
            }
            _ => return Err(GraphError::Field(at)),
        };
    }
    Ok(longest)
}

impl Verdict {
    pub(crate) fn word(self) -> u32 {
        let rule = self.rule.map_or(NO_RULE, |rule| rule as u32);
        let flag = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
        rule << RULE_SHIFT
            | flag(self.action == Action::Deny, DENIES)
            | flag(self.is_logged, LOGS)
            | flag(self.needs_tls, NEEDS_TLS)
    }

    /// What a word of the graph means.
    #[must_use]
    pub fn of_word(word: u32) -> Self {
        let action = if word & DENIES != 0 { Action::Deny } else { Action::Permit };
        let rule = word >> RULE_SHIFT;
        let rule = (rule != NO_RULE).then_some(rule as usize);
        Self { action, rule, is_logged: word & LOGS != 0, needs_tls: word & NEEDS_TLS != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Node = [MAGIC, 1, 0, NO_RULE << RULE_SHIFT];

    #[test]
    fn what_leads_back_or_out_is_refused() {
        let read = |nodes: &[Node]| Graph::from_nodes(nodes.to_vec());
        let accept = [ACCEPT, 0, 0, 0];
        let graph = read(&[HEADER, [2, 7, 0, 0], accept]).unwrap();
        assert_eq!((graph.steps(), graph.looks_at(2), graph.looks_at(3)), (2, true, false));
        assert_eq!(read(&[]), Err(GraphError::Header));
        assert_eq!(
            read(&[[MAGIC + 1, 1, 0, NO_RULE << RULE_SHIFT], accept]),
            Err(GraphError::Header)
        );
        assert_eq!(read(&[[MAGIC, 2, 0, NO_RULE << RULE_SHIFT], accept]), Err(GraphError::Header));
        assert_eq!(read(&[[MAGIC, 1, 0, 0], accept]), Err(GraphError::Header));
        assert_eq!(read(&[HEADER, [2, 7, 0, 1], accept]), Err(GraphError::Jump(1)));
        assert_eq!(read(&[HEADER, [2, 7, 0, 3], accept]), Err(GraphError::Jump(1)));
        assert_eq!(read(&[HEADER, [2, 7, 0, 0]]), Err(GraphError::Jump(1)));
        assert_eq!(read(&[HEADER, [17, 7, 0, 0], accept]), Err(GraphError::Field(1)));
        let by_none = [ACCEPT, 0, NO_RULE << RULE_SHIFT | DENIES, 0];
        assert_eq!(read(&[HEADER, by_none]), Err(GraphError::NoRule(1)));
        let mut long = vec![HEADER];
        long.extend((0..STEPS_MAX).map(|_| [2, 7, 0, 0]));
        long.push(accept);
        assert_eq!(read(&long), Err(GraphError::Steps(STEPS_MAX + 1)));
    }
}
