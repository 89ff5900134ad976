//! What was read: rules, and what is not one.

use std::fmt::{self, Display};

use crate::rule::{Action, Rule};

/// What was read, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Rules, and what is not one.
    pub entries: Vec<Entry>,
    /// What becomes of packets that no rule matches.
    pub default: Action,
}

/// A statement of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It is a rule of ours, or one of several that it comes to.
    Rule(Rule),
    /// It is none.
    LeftOut {
        /// Where it stands: a line, or a rule's handle.
        place: String,
        /// Why.
        reason: String,
    },
}

impl Imported {
    /// What is not in the list, each with its place.
    pub fn left_out(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Rule(_) => None,
            Entry::LeftOut { place, reason } => Some((place.as_str(), reason.as_str())),
        })
    }
}

/// As a list, with a comment where something was left out.
impl Display for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.entries {
            match entry {
                Entry::Rule(rule) => writeln!(f, "{rule}")?,
                Entry::LeftOut { place, reason } => {
                    writeln!(f, "# left out: {}: {}", one_line(place), one_line(reason))?;
                }
            }
        }
        writeln!(f, "default {}", self.default)
    }
}

/// What was quoted from the text may have line feeds, which would end the comment.
fn one_line(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}
