//! IP filter rules: ordered lists of them, and the decision graph that answers like the list.
//!
//! A filter is a list of rules that is searched from top to bottom: the first that matches a
//! packet decides, and if none does, the default. That is how operators think and what z/OS
//! and netfilter do; there it costs time for each rule. Here the list is compiled to a graph
//! of small decisions, which a packet walks in some dozens of steps however long the list is.
//!
//! ```text
//!   text ──[list]──> RuleList ──[compiler]──> Graph ──> kernel (crates/bpf), lookup
//!                                      └────> Report: never matches, contradicts, costs
//! ```
//!
//! | Module | What it is |
//! |---|---|
//! | [`protocol`] | protocols, and the messages of ICMP |
//! | [`rule`] | [`Rule`]: what an operator says about packets |
//! | [`list`] | [`RuleList`]: the order, the default, and one line of text for each rule |
//! | [`mod@import`] | [`Imported`]: rules that were written for iptables, nftables or z/OS |
//! | [`groups`] | [`Groups`]: control groups as numbers |
//! | [`packet`] | [`Packet`]: what a rule looks at |
//! | [`region`] | a rule as ranges of numbers, and a packet as a point in them |
//! | [`derived`] | [`rules_of_links`]: rules that follow from the links of a gateway |
//! | [`compiler`] | [`compile`]: from the list to the graph, within bounds |
//! | [`graph`] | [`Graph`]: the decisions, their layout in memory, the walk |
//! | [`report`] | [`Report`]: what an operator should know of a list |
//!
//! Nothing here reads a clock, a file or a socket: the same list gives the same graph on
//! every machine. What names mean on a machine (interfaces, users, control groups) comes in by [`Names`].

#![forbid(unsafe_code)]

mod compile_error;
mod compiler;
mod derived;
pub mod graph;
mod groups;
mod import;
mod list;
mod packet;
#[cfg(feature = "profiles")]
pub mod profiles;
mod protocol;
mod region;
mod report;
mod rule;

pub use compile_error::CompileError;
pub use compiler::{Addition, Compiled, compile};
pub use derived::rules_of_links;
pub use graph::{Graph, GraphError, Verdict};
pub use groups::Groups;
pub use import::{Entry, Format, Imported, import};
pub use list::{ListError, RULES_MAX, RuleList};
pub use packet::{NO_USER, Packet, Way};
pub use protocol::{Icmp, Protocol};
pub use report::{Costly, Report, Unreached};
pub use rule::{
    Action, Direction, Endpoint, Group, LaterRule, Name, Names, NoNames, Ports, Rule, User,
};
