//! `sidestep filter check`: what is wrong or odd in a list.

use serde_json::json;
use sidestep_filter::{Groups, Report, RuleList};

use super::answer::{FilterError, counted, named, say, say_json};
use super::groups;
use super::source::{Machine, Source};
use crate::args::FilterCheckArgs;
use crate::output;

pub(super) fn execute(args: &FilterCheckArgs) -> Result<(), FilterError> {
    let source = Source::named(&args.list)?;
    let machine = Machine::here(&source.list)?;
    let report = source.compile(&machine)?.report;
    complain_of_groups("filter check", machine.groups())?;
    if args.json { say_json(&to_json(&source, &report)) } else { say(&to_text(&source, &report)) }
}

fn to_text(Source { path, list, .. }: &Source, report: &Report) -> String {
    let mut text = format!(
        "{}: {}, default {}; {} KB in the kernel, up to {} steps for a packet\n",
        path.display(),
        counted(&list.rules),
        list.default,
        report.bytes.div_ceil(1024),
        report.steps
    );
    text += &remarks(list, report);
    if report.unreached.is_empty() && report.is_complete {
        text += "No rule is hidden by one before it.\n";
    }
    text
}

/// Says of each control group that is not there that its rules match nothing yet.
pub(super) fn complain_of_groups(command: &str, groups: &Groups) -> Result<(), FilterError> {
    for (path, _) in groups.paths() {
        if !groups::is_there(path)? {
            let path = path.display();
            let what = format_args!(
                "there is no control group {path} now: rules for it match nothing until it is there and `sidestep \
                 filter resolve` has looked"
            );
            output::complain(command, what);
        }
    }
    Ok(())
}

/// What is odd, a line for each.
pub(super) fn remarks(list: &RuleList, report: &Report) -> String {
    let mut text = String::new();
    for it in &report.unreached {
        text += &format!("{}\n  -> never matches: ", named(list, it.rule));
        text += &match (it.by, it.contradicts) {
            (None, _) => "rules before it match all that it would\n".to_owned(),
            (Some(by), true) => format!("it contradicts {}\n", named(list, by)),
            (Some(by), false) => format!("it repeats {}\n", named(list, by)),
        };
    }
    for it in &report.costly {
        text += &format!(
            "{}\n  -> costs memory: it is in {} places, as it overlaps so many others\n",
            named(list, it.rule),
            it.places
        );
    }
    if !report.is_complete {
        text += "Not every rule was compared with all before it: there are too many.\n";
    }
    text
}

fn to_json(source: &Source, report: &Report) -> serde_json::Value {
    let Source { path, list, .. } = source;
    let unreached = report.unreached.iter().map(|it| {
        json!({
            "line": list.line_of(it.rule),
            "rule": list.rules[it.rule].to_string(),
            "hidden_by_line": it.by.map(|by| list.line_of(by)),
            "contradicts": it.contradicts,
        })
    });
    let costly = report.costly.iter().map(|it| {
        json!({
            "line": list.line_of(it.rule),
            "rule": list.rules[it.rule].to_string(),
            "places": it.places,
        })
    });
    json!({
        "file": path,
        "rules": list.rules.len(),
        "default": list.default.to_string(),
        "bytes": report.bytes,
        "steps": report.steps,
        "never_match": unreached.collect::<Vec<_>>(),
        "costly": costly.collect::<Vec<_>>(),
        "is_complete": report.is_complete,
    })
}
