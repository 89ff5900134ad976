//! `sidestep filter add`: one rule more, at once.
//!
//! The list in force stays as it is in the kernel, and rules that were added are searched before it, in the order that the rule's place
//! gives them. When there is no room for one more, or it asks for what the programs do not find out, the list is written with them, and
//! compiled and loaded as a whole.

use std::path::Path;
use std::time::Instant;

use serde_json::json;
use sidestep_bpf::{Filter, Identity, RuleSet};
use sidestep_filter::{LaterRule, RuleList, compile};

use super::answer::{FilterError, say, say_json};
use super::in_force::{self, About, PINS, text_of};
use super::source::Machine;
use super::{groups, moved};
use crate::args::FilterAddArgs;

pub(super) fn execute(args: &FilterAddArgs) -> Result<(), FilterError> {
    let line = args.rule.join(" ");
    let list = RuleList::parse(&line)
        .map_err(|errors| FilterError::Rule(line.clone(), errors[0].to_string()))?;
    let [rule] = &list.rules[..] else {
        return Err(FilterError::Rule(line, "a rule is meant, such as deny tcp any any:25".into()));
    };
    let _lock = in_force::lock()?;
    let filter = Filter::find(Path::new(PINS))?.ok_or(FilterError::None)?;
    let identity = filter.identity()?;
    let mut about = About::read(identity)?;
    about.later.push((place(args, identity, about.rules)?, rule.to_string()));
    let later = about.later_rules().ok_or(FilterError::None)?;
    let begin = Instant::now();
    let is_at_once = match rule.group {
        // What number a group has, the whole list says.
        Some(_) => false,
        None => put_later(&filter, identity, &about, &later)?,
    };
    if !is_at_once {
        put_whole(&filter, identity, about, &later)?;
    }
    let took_ms = begin.elapsed().as_secs_f64() * 1e3;
    let reset = moved::reset_denied();
    if args.json {
        return say_json(&json!({
            "rule": rule.to_string(),
            "compiled_whole": !is_at_once,
            "milliseconds": took_ms,
            "reset": reset.to_json(),
        }));
    }
    let how = if is_at_once { "" } else { "; the whole list was compiled with it" };
    say(&format!("in force: {rule}, after {took_ms:.1} ms{how}{}\n", reset.to_text()))
}

/// Before which rule of the list it is to stand.
fn place(args: &FilterAddArgs, identity: Identity, rules: usize) -> Result<usize, FilterError> {
    if args.last {
        return Ok(rules);
    }
    let Some(line) = args.before else { return Ok(0) };
    let list = parsed(identity)?;
    let found = (0..list.rules.len()).find(|&rule| list.line_of(rule) == line);
    found.ok_or(FilterError::NoLine(line))
}

fn parsed(identity: Identity) -> Result<RuleList, FilterError> {
    RuleList::parse(&text_of(identity)?).map_err(|errors| FilterError::List(errors[0].to_string()))
}

/// False: the whole list has to be put.
fn put_later(
    filter: &Filter,
    identity: Identity,
    about: &About,
    later: &[LaterRule],
) -> Result<bool, FilterError> {
    // Groups of rules that were added before have made the list anew, so none is among these.
    match filter.put_later(later, &Machine::default())? {
        None => Ok(false),
        Some(Err(error)) => Err(FilterError::List(error.to_string())),
        Some(Ok(())) => about.write(identity).map(|()| true),
    }
}

/// Writes the list with the rules that were added, and puts it into force.
fn put_whole(
    filter: &Filter,
    before: Identity,
    about: About,
    later: &[LaterRule],
) -> Result<(), FilterError> {
    let text = with_lines(&text_of(before)?, &parsed(before)?, later);
    let list = RuleList::parse(&text).map_err(|errors| FilterError::List(errors[0].to_string()))?;
    let machine = Machine::here(&list)?;
    let graph =
        compile(&list, &machine).map_err(|error| FilterError::List(error.to_string()))?.graph;
    let numbers = groups::numbers(machine.groups(), &about.cgroup)?;
    let (rules, units) = (list.rules.len(), machine.groups().units().clone());
    let identity = in_force::keep(&text, &About { rules, units, later: Vec::new(), ..about })?;
    filter.put(&RuleSet { graph: &graph, rules, identity, groups: &numbers })?;
    in_force::forget_all_but(Some(identity));
    Ok(())
}

/// A list's text with lines for rules that were added, each before the line of its rule.
fn with_lines(text: &str, list: &RuleList, later: &[LaterRule]) -> String {
    let mut written = String::new();
    let add = |line: Option<usize>, written: &mut String| {
        let is_here = |it: &&LaterRule| {
            line == (it.before < list.rules.len()).then(|| list.line_of(it.before))
        };
        later.iter().filter(is_here).for_each(|it| *written += &format!("{}\n", it.rule));
    };
    for (number, line) in (1..).zip(text.lines()) {
        add(Some(number), &mut written);
        written += line;
        written.push('\n');
    }
    add(None, &mut written);
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_written_with_what_was_added() {
        let text = "# a list\npermit tcp any any # all\n\ndeny udp any any\ndefault deny";
        let list = RuleList::parse(text).unwrap();
        let later = |before, rule: &str| LaterRule {
            before,
            rule: RuleList::parse(rule).unwrap().rules[0].clone(),
        };
        let later =
            [later(2, "permit 47 any any"), later(0, "deny 1 any any"), later(0, "deny 2 any any")];
        assert_eq!(
            with_lines(text, &list, &later),
            "# a list\ndeny icmp any any\ndeny 2 any any\npermit tcp any any # all\n\n\
             deny udp any any\ndefault deny\npermit 47 any any\n"
        );
    }
}
