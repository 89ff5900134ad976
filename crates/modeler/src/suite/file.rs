//! From TOML to a suite, and what is wrong with the TOML.
//!
//! The keys are the fields of [`SuiteEntry`]. serde finds what is wrong but not for whom: it
//! says "expected a time" and an offset. [`Place`] looks up whose value stands there.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::entry::SuiteEntry;
use crate::contention::{CpuList, Neighbours};
use crate::plan::Model;
use crate::workload::Workload;

/// What is wrong with a suite file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {message}")]
pub struct FileFault {
    /// The line of the file, from 1.
    pub line: usize,
    /// Which entry, from 1, which key of it, and what is allowed.
    pub message: String,
}

/// What stands in a file.
pub(super) struct File {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) context: Vec<String>,
    /// At least one, all different.
    pub(super) entries: Vec<SuiteEntry>,
}

/// A whole file, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    title: String,
    #[serde(default)]
    context: Vec<String>,
    #[serde(default)]
    entry: Vec<Spanned<SuiteEntry>>,
}

/// Reads a file, and refuses entries that repeat another or make no sense.
pub(super) fn read(text: &str) -> Result<File, FileFault> {
    let file: Written = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        fault(text, offset, error.message())
    })?;
    if file.entry.is_empty() {
        let message = "a suite has at least one [[entry]] with a workload";
        return Err(fault(text, text.len(), message));
    }
    refuse_repetitions(text, &file.entry)?;
    refuse_mixed_comparisons(text, &file.entry)?;
    let Written { name, title, context, entry } = file;
    let entries = entry.into_iter().map(Spanned::into_inner).collect();
    Ok(File { name, title, context, entries })
}

/// Results are told apart by workload, model, RMBE, contention and filter, so two entries must not have
/// all of these in common.
fn refuse_repetitions(text: &str, entries: &[Spanned<SuiteEntry>]) -> Result<(), FileFault> {
    let mut seen = HashSet::new();
    for entry in entries {
        for run in runs(entry.get_ref()) {
            let (workload, model, ..) = run;
            if !seen.insert(run) {
                let message = format!(
                    "{workload} in model {model} is there already; two runs of a workload \
                     differ in `model`, `rmbe`, `neighbours`, `filter_rules` or limits"
                );
                return Err(fault(text, entry.span().start, &message));
            }
        }
    }
    Ok(())
}

/// What tells a run of an entry from others.
type RunKey<'a> = (Workload, Model, Option<u32>, Option<Neighbours>, Option<u32>, Limits<'a>);

/// What an entry runs. Where it leaves a key to the command line, that is one value, too.
fn runs(entry: &SuiteEntry) -> Vec<RunKey<'_>> {
    let mut runs = Vec::new();
    for &model in &entry.models {
        for rmbe in some_or_none(&entry.rmbe_lens) {
            for level in some_or_none(&entry.neighbours) {
                for filter in some_or_none(&entry.filter_rules) {
                    runs.push((entry.workload, model, rmbe, level, filter, limits(entry)));
                }
            }
        }
    }
    runs
}

fn some_or_none<T: Copy>(values: &[T]) -> Vec<Option<T>> {
    if values.is_empty() { vec![None] } else { values.iter().copied().map(Some).collect() }
}

type Limits<'a> = (Option<u32>, Option<u32>, &'a Option<CpuList>);

/// What an entry says of the CPU time that is left to it.
fn limits(entry: &SuiteEntry) -> Limits<'_> {
    (entry.cpu_quota, entry.cpu_weight, &entry.cpus)
}

/// One receive buffer can only be set against another, and a filter against none.
fn refuse_mixed_comparisons(text: &str, entries: &[Spanned<SuiteEntry>]) -> Result<(), FileFault> {
    for entry in entries {
        let mut published = entry.get_ref().published.iter();
        if published.clone().any(|it| it.against_rmbe_len.is_some() && it.rmbe_len.is_none()) {
            let message = "`against_rmbe` needs an `rmbe` that is set against it";
            return Err(fault(text, entry.span().start, message));
        }
        if published.any(|it| it.filter_rules.is_some() && it.rmbe_len.is_some()) {
            let message = "`filter_rules` is about TCP, which has no `rmbe`";
            return Err(fault(text, entry.span().start, message));
        }
    }
    Ok(())
}

/// What is wrong at an offset, with the entry and key to which it belongs.
fn fault(text: &str, offset: usize, message: &str) -> FileFault {
    let line = 1 + text.bytes().take(offset).filter(|&byte| byte == b'\n').count();
    let place = Place::at(text, offset).unwrap_or_default();
    FileFault { line, message: format!("{place}{message}") }
}

/// Whose value stands at an offset of a file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Place {
    /// The number of the entry, from 1; 0: outside of them.
    entry: usize,
    /// The keys that lead to the value; none at a key: a fault there names it.
    keys: Vec<String>,
}

impl Place {
    /// `None`: the text is not TOML, so nothing in it has a place.
    fn at(text: &str, offset: usize) -> Option<Self> {
        let table = DeTable::parse(text).ok()?;
        let table = table.get_ref();
        if table.keys().any(|key| key.span().contains(&offset)) {
            return Some(Self::default());
        }
        let mut keys = keys_to(table, offset).unwrap_or_default();
        if keys.first().is_some_and(|key| key == "entry") {
            keys.remove(0);
        }
        let entry = match table.get("entry").map(Spanned::get_ref) {
            // The span of a table is that of its header: the last that has begun is the
            // one. Keys outside of entries can only stand before them.
            Some(DeValue::Array(entries)) => {
                entries.iter().take_while(|entry| entry.span().start <= offset).count()
            }
            _ => 0,
        };
        Some(Self { entry, keys })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.keys.join(".");
        match (self.entry, keys.is_empty()) {
            (0, true) => Ok(()),
            (0, false) => write!(f, "{keys}: "),
            (entry, true) => write!(f, "entry {entry}: "),
            (entry, false) => write!(f, "entry {entry}, {keys}: "),
        }
    }
}

/// The keys that lead from a table to the value at an offset.
fn keys_to(table: &DeTable<'_>, offset: usize) -> Option<Vec<String>> {
    table.iter().find_map(|(key, value)| {
        let mut keys = keys_within(value, offset)?;
        keys.insert(0, key.get_ref().to_string());
        Some(keys)
    })
}

fn keys_within(value: &Spanned<DeValue<'_>>, offset: usize) -> Option<Vec<String>> {
    let inner = match value.get_ref() {
        DeValue::Table(table) => keys_to(table, offset),
        DeValue::Array(array) => array.iter().find_map(|value| keys_within(value, offset)),
        _ => None,
    };
    inner.or_else(|| value.span().contains(&offset).then(Vec::new))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use crate::suite::Suite;

    /// What is wrong with a suite of one good entry and then these lines, which begin
    /// at line 6.
    fn error(lines: &str) -> String {
        let text = format!(
            "name = \"mine\"\ntitle = \"Mine\"\n[[entry]]\nworkload = \"RR1(1B/1B)\"\n\n{lines}\n"
        );
        Suite::parse(&text).unwrap_err().to_string()
    }

    /// The same of a second entry with this key, in line 8.
    fn key_error(key: &str) -> String {
        error(&format!("[[entry]]\nworkload = \"RR2(1B/1B)\"\n{key}"))
    }

    #[test]
    fn an_error_names_line_entry_key_and_what_is_allowed() {
        let errors = [
            r#"rmbe = "2MB""#,
            r#"rmbe = ["1MB", "48KB"]"#,
            r#"rmbe = 65536"#,
            r#"model = "fibers""#,
            r#"model = ["threads", "fibers"]"#,
            r#"model = []"#,
            r#"connections_per_loop = 0"#,
            r#"chunk = "2GB""#,
            r#"chunk = 65536"#,
            r#"think = "10""#,
            r#"think = "-1s""#,
            r#"warmup = "2h""#,
            r#"duration = "0s""#,
            r#"rate = 0"#,
            r#"rate = nan"#,
            r#"wait_all = "yes""#,
        ];
        assert_snapshot!(errors.map(key_error).join("\n"), @r#"
        line 8: entry 2, rmbe: invalid value: string "2MB", expected "32KB", "64KB", "128KB", "256KB", "512KB" or "1MB"
        line 8: entry 2, rmbe: invalid value: string "48KB", expected "32KB", "64KB", "128KB", "256KB", "512KB" or "1MB"
        line 8: entry 2, rmbe: invalid type: integer `65536`, expected a length from "32KB" to "1MB" or a list of some
        line 8: entry 2, model: unknown variant `fibers`, expected one of `threads`, `processes`, `event-loop`
        line 8: entry 2, model: unknown variant `fibers`, expected one of `threads`, `processes`, `event-loop`
        line 8: entry 2, model: invalid length 0, expected "threads", "processes", "event-loop" or a list of some
        line 8: entry 2, connections_per_loop: invalid value: integer `0`, expected a nonzero u32
        line 8: entry 2, chunk: invalid value: string "2GB", expected a length such as "64KB", from "1B" to "1GB"
        line 8: entry 2, chunk: invalid type: integer `65536`, expected a length such as "64KB", from "1B" to "1GB"
        line 8: entry 2, think: invalid value: string "10", expected a time such as "10ms", at most "1h"
        line 8: entry 2, think: invalid value: string "-1s", expected a time such as "10ms", at most "1h"
        line 8: entry 2, warmup: invalid value: string "2h", expected a time such as "10ms", at most "1h"
        line 8: entry 2, duration: invalid value: string "0s", expected a time such as "2s", more than 0 and at most "1h"
        line 8: entry 2, rate: invalid value: floating point `0.0`, expected transactions per second, more than 0 and at most 1e9
        line 8: entry 2, rate: invalid value: floating point `NaN`, expected transactions per second, more than 0 and at most 1e9
        line 8: entry 2, wait_all: invalid type: string "yes", expected a boolean
        "#);
    }

    #[test]
    fn an_unknown_key_is_told_with_those_that_are_known() {
        let errors = [
            key_error(r#"modle = "threads""#),
            key_error(r#"published = [{ source = "a", changes = {}, year = 1 }]"#),
            error("[[entries]]\nworkload = \"RR2(1B/1B)\""),
        ];
        assert_snapshot!(errors.join("\n"), @r"
        line 8: entry 2: unknown field `modle`, expected one of `workload`, `model`, `rmbe`, `connections_per_loop`, `chunk`, `think`, `rate`, `wait_all`, `blocking`, `warmup`, `duration`, `neighbours`, `cpu_quota`, `cpu_weight`, `cpus`, `filter_rules`, `required`, `published`
        line 8: entry 2, published: unknown field `year`, expected one of `source`, `rmbe`, `against_rmbe`, `filter_rules`, `setup`, `changes`
        line 6: unknown field `entries`, expected one of `name`, `title`, `context`, `entry`
        ");
    }

    #[test]
    fn a_wrong_name_comes_with_its_own_explanation() {
        assert_snapshot!(error("[[entry]]\nworkload = \"RR10(2KX/2KB)\""), @r"
        line 7: entry 2, workload: not the name of a workload:

            RR10(2KX/2KB)
                   ^ expected a unit: B, KB, MB, GB, KiB, MiB or GiB

        A name is RRn(y/z), CRRn(y/z) or STRn(y/z): n clients, 1 to 100000, send y and receive z,
        1B to 1GB each. A KB is 1024 bytes, a MB 1000000, a KiB 1024; [RR][n](y/z) is the same.
        ");
    }

    #[test]
    fn what_is_missing_is_named() {
        let errors = [
            error("[[entry]]\nmodel = \"threads\""),
            error("[[entry.published]]\nchanges = {}"),
            Suite::parse("title = \"a\"").unwrap_err().to_string(),
            Suite::parse("name = \"a\"\ntitle = \"a\"").unwrap_err().to_string(),
        ];
        assert_snapshot!(errors.join("\n"), @r"
        line 6: entry 2: missing field `workload`
        line 6: entry 1, published: missing field `source`
        line 1: missing field `name`
        line 2: a suite has at least one [[entry]] with a workload
        ");
    }

    #[test]
    fn published_figures_are_checked_where_they_stand() {
        let errors = [
            "changes = { speed = 1 }",
            "changes = { cpu = -88 }",
            "changes = { cpu = inf }",
            "changes = {}\nrmbe = \"2MB\"",
            "changes = {}\nagainst_rmbe = \"1MB\"",
            "changes = {}\nfilter_rules = 0",
            "changes = {}\nrmbe = \"1MB\"\nfilter_rules = 1000",
        ]
        .map(|lines| error(&format!("[[entry.published]]\nsource = \"a\"\n{lines}")));
        assert_snapshot!(errors.join("\n"), @r#"
        line 8: entry 1, published.changes: unknown variant `speed`, expected one of `throughput`, `response`, `response-p99`, `cpu`, `cpu-client`, `cpu-server`
        line 8: entry 1, published.changes.cpu: invalid value: floating point `-88.0`, expected a change such as +7.32 for +732 % or -0.88 for -88 %
        line 8: entry 1, published.changes.cpu: invalid value: floating point `inf`, expected a change such as +7.32 for +732 % or -0.88 for -88 %
        line 9: entry 1, published.rmbe: invalid value: string "2MB", expected "32KB", "64KB", "128KB", "256KB", "512KB" or "1MB"
        line 3: entry 1: `against_rmbe` needs an `rmbe` that is set against it
        line 9: entry 1, published.filter_rules: invalid value: integer `0`, expected a number from 1 to 1000000
        line 3: entry 1: `filter_rules` is about TCP, which has no `rmbe`
        "#);
    }

    #[test]
    fn contention_and_requirements_are_checked_where_they_stand() {
        let errors = [
            "neighbours = [-1]",
            "neighbours = [\"2:nice=20\"]",
            "neighbours = 2",
            "cpu_quota = 0",
            "cpu_weight = 10001",
            "cpus = \"1-0\"",
            "filter_rules = 1000",
            "filter_rules = [0, 1000001]",
            "required = { throughput = 0 }",
            "required = { throughput = \"1\" }",
        ]
        .map(key_error);
        assert_snapshot!(errors.join("\n"), @r#"
        line 8: entry 2, neighbours: expected neighbours such as 4, "4:nice=19" or "4:idle"
        line 8: entry 2, neighbours: `nice=20` is not a priority: write nice=N, with N from -20 to 19, or idle
        line 8: entry 2, neighbours: invalid type: integer `2`, expected a sequence
        line 8: entry 2, cpu_quota: invalid value: integer `0`, expected a number from 1 to 10000
        line 8: entry 2, cpu_weight: invalid value: integer `10001`, expected a number from 1 to 10000
        line 8: entry 2, cpus: `1-0` is not a list of CPUs: write numbers from 0 to 1023, such as 0 or 0,2-3
        line 8: entry 2, filter_rules: invalid type: integer `1000`, expected a sequence
        line 8: entry 2, filter_rules: invalid value: integer `1000001`, expected a number from 0 to 1000000
        line 8: entry 2, required: invalid value: floating point `0.0`, expected a ratio above 0 such as 1.0, or { ratio = 1.0, bound = 0.9 }
        line 8: entry 2, required.throughput: expected a ratio above 0 such as 1.0, or { ratio = 1.0, bound = 0.9 }
        "#);
    }

    #[test]
    fn an_entry_that_repeats_another_is_refused() {
        let errors = [
            error("[[entry]]\nworkload = \"[rr][1](1/1)\"\nthink = \"1s\""),
            key_error(r#"model = ["threads", "threads"]"#),
            key_error(r#"rmbe = ["1MB", "1mb"]"#),
            key_error("filter_rules = [0, 10, 10]"),
        ];
        assert_snapshot!(errors.join("\n"), @r"
        line 6: entry 2: RR1(1B/1B) in model threads is there already; two runs of a workload differ in `model`, `rmbe`, `neighbours`, `filter_rules` or limits
        line 6: entry 2: RR2(1B/1B) in model threads is there already; two runs of a workload differ in `model`, `rmbe`, `neighbours`, `filter_rules` or limits
        line 6: entry 2: RR2(1B/1B) in model threads is there already; two runs of a workload differ in `model`, `rmbe`, `neighbours`, `filter_rules` or limits
        line 6: entry 2: RR2(1B/1B) in model threads is there already; two runs of a workload differ in `model`, `rmbe`, `neighbours`, `filter_rules` or limits
        ");
    }

    #[test]
    fn what_is_not_toml_is_told_with_its_line() {
        let errors = [error("think \"1s\""), key_error("think = \"1s\"\nthink = \"2s\"")];
        assert_snapshot!(errors.join("\n"), @r"
        line 6: key with no value, expected `=`
        line 9: duplicate key
        ");
    }
}
