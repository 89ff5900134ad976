//! `sidestep filter diff`: by which rules a list differs from the one in force.
//!
//! Rules are compared as they are meant, not as they are written: comments, white space and line
//! numbers make no difference. The order does, and is told if it alone differs.

use std::collections::HashMap;

use serde_json::json;
use sidestep_filter::{Rule, RuleList};

use super::answer::{FilterError, counted, say, say_json};
use super::in_force::InForce;
use super::source::Source;
use crate::args::FilterCheckArgs;

pub(super) fn execute(args: &FilterCheckArgs) -> Result<(), FilterError> {
    let source = Source::named(&args.list)?;
    let (list, _) = InForce::find()?.ok_or(FilterError::None)?.rules();
    let difference = Difference::between(&list, &source.list);
    if args.json {
        return say_json(&difference.to_json());
    }
    say(&difference.to_text())
}

/// What becomes of a list that is to be another one.
struct Difference {
    /// Lines and rules that are in force and not in the other list.
    gone: Vec<(usize, String)>,
    /// Those that are not in force and are in the other list.
    new: Vec<(usize, String)>,
    /// What stays stands in another order.
    is_reordered: bool,
    /// The default in force and the other, if they differ.
    default: Option<(String, String)>,
}

impl Difference {
    fn between(old: &RuleList, new: &RuleList) -> Self {
        let old_stays = stays(&old.rules, &new.rules);
        let new_stays = stays(&new.rules, &old.rules);
        let is_reordered = !of(old, &old_stays, true)
            .map(|(_, rule)| rule)
            .eq(of(new, &new_stays, true).map(|(_, rule)| rule));
        let others = |list: &RuleList, stays: &[bool]| {
            of(list, stays, false).map(|(line, rule)| (line, rule.to_string())).collect()
        };
        Self {
            is_reordered,
            gone: others(old, &old_stays),
            new: others(new, &new_stays),
            default: (old.default_words() != new.default_words())
                .then(|| (old.default_words(), new.default_words())),
        }
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        let lines = [('-', &self.gone), ('+', &self.new)];
        for (sign, rules) in lines {
            for (line, rule) in rules {
                text += &match line {
                    0 => format!("{sign} added: {rule}\n"),
                    line => format!("{sign} line {line}: {rule}\n"),
                };
            }
        }
        if let Some((old, new)) = &self.default {
            text += &format!("- default {old}\n+ default {new}\n");
        }
        if self.is_reordered {
            text +=
                "The rules that stay are in another order, which can change what matches first.\n";
        }
        if text.is_empty() { "The list in force is the same.\n".to_owned() } else { text }
    }

    fn to_json(&self) -> serde_json::Value {
        let rules = |rules: &[(usize, String)]| {
            rules
                .iter()
                .map(|(line, rule)| json!({ "line": line, "rule": rule }))
                .collect::<Vec<_>>()
        };
        json!({
            "gone": rules(&self.gone),
            "new": rules(&self.new),
            "is_reordered": self.is_reordered,
            "default": self.default.as_ref().map(|(old, new)| json!({ "old": old, "new": new })),
        })
    }
}

/// The rules that stay, or those that do not, with their lines.
fn of<'a>(
    list: &'a RuleList,
    stays: &'a [bool],
    wanted: bool,
) -> impl Iterator<Item = (usize, &'a Rule)> {
    let rules = list.rules.iter().zip(stays).enumerate();
    let wanted = rules.filter(move |(_, (_, stays))| **stays == wanted);
    wanted.map(|(number, (rule, _))| (list.line_of(number), rule))
}

/// Which of the rules are also in the other list, each as often as it is there.
fn stays(rules: &[Rule], others: &[Rule]) -> Vec<bool> {
    let mut left: HashMap<&Rule, usize> = HashMap::with_capacity(others.len());
    others.iter().for_each(|rule| *left.entry(rule).or_default() += 1);
    rules
        .iter()
        .map(|rule| match left.get_mut(rule) {
            Some(count) if *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        })
        .collect()
}

/// `3 rules gone, 1 rule new`, for `apply`.
pub(super) fn in_short(old: &RuleList, new: &RuleList) -> String {
    let Difference { gone, new: added, is_reordered, .. } = Difference::between(old, new);
    let order = if is_reordered { ", another order" } else { "" };
    format!("{} new, {} gone{order}; before {}", added.len(), gone.len(), counted(&old.rules))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(old: &str, new: &str) -> String {
        let list = |text: &str| RuleList::parse(text).unwrap();
        Difference::between(&list(old), &list(new)).to_text()
    }

    #[test]
    fn rules_are_compared_as_they_are_meant() {
        let old = "permit tcp any any\ndeny udp any any:53\ndeny any any any\n";
        let same = "# the same\npermit  tcp   any any\n\ndeny udp any any:53-53\ndeny any any any";
        assert_eq!(difference(old, same), "The list in force is the same.\n");
        let new = "permit tcp any any\npermit tcp any any\ndeny any any any\ndefault deny\n";
        let expected = "- line 2: deny udp any any:53\n+ line 2: permit tcp any any\n\
                        - default permit\n+ default deny\n";
        assert_eq!(difference(old, new), expected);
        let reordered = "deny any any any\npermit tcp any any\ndeny udp any any:53\n";
        assert!(difference(old, reordered).starts_with("The rules that stay are in another order"));
    }
}
