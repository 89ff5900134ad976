//! Why rules cannot be compiled.

use thiserror::Error;

use crate::graph::STEPS_MAX;
use crate::region::Unknown;

/// Why a list has no graph. Rules are told by their place in the list, from 0.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CompileError {
    /// An interface that this machine does not have.
    #[error("there is no interface {name} here: make it before the rules, or leave the rule out")]
    UnknownInterface {
        /// The first rule with it.
        rule: usize,
        /// Its name.
        name: String,
    },
    /// A user that this machine does not know.
    #[error("there is no user {name} here: use a number, or leave the rule out")]
    UnknownUser {
        /// The first rule with it.
        rule: usize,
        /// Its name.
        name: String,
    },
    /// A control group that has no number.
    #[error("there are no control groups here to find {group} in: leave the rule out")]
    UnknownGroup {
        /// The first rule with it.
        rule: usize,
        /// As the rule has it.
        group: String,
    },
    /// Rules overlap so much that some packets would have to be compared with too many.
    #[error(
        "the rules overlap in so many ways that a packet could need {steps} steps, and up to \
         {STEPS_MAX} are possible: make the rules that are named narrower"
    )]
    Steps {
        /// How many.
        steps: u32,
        /// The first of those that no cut could part.
        rules: Vec<usize>,
    },
}

impl From<(usize, Unknown)> for CompileError {
    fn from((rule, unknown): (usize, Unknown)) -> Self {
        match unknown {
            Unknown::Interface(name) => {
                Self::UnknownInterface { rule, name: name.as_str().to_owned() }
            }
            Unknown::User(name) => Self::UnknownUser { rule, name: name.as_str().to_owned() },
            Unknown::Group(group) => Self::UnknownGroup { rule, group: group.to_string() },
        }
    }
}
