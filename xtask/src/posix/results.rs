//! docs/posix.md: what each test of the POSIX programs came to, both ways.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::suite;

const PAGE: &str = "docs/posix.md";

const OPENING: &str = "\
# POSIX programs: results

Every test of [`tests/posix`](../tests/posix/README.md), run plain and with `libsidestep.so` preloaded; written by
`cargo xtask posix --write`. A case is a test in one setting: where the peer lives, a fresh connection or one
that has moved, the connecting or the accepting end, the address family.
";

/// One test of a program.
#[derive(Debug, Default, PartialEq, Eq)]
struct Test {
    name: String,
    cases: usize,
    failed: usize,
}

/// A program's output, each way, as it was with `-v`.
#[derive(Debug)]
pub(crate) struct Tried {
    pub(crate) name: String,
    pub(crate) plain: String,
    pub(crate) preloaded: String,
}

/// Writes the page.
pub(crate) fn write(root: &Path, tried: &[Tried]) -> Result<()> {
    let mut page = format!("{OPENING}\nLast run: {}.\n", suite::host()?);
    for program in tried {
        let source = root.join(format!("tests/posix/{}.c", program.name));
        let source = fs::read_to_string(&source).with_context(|| source.display().to_string())?;
        page += &section(program, &purpose(&source))?;
    }
    fs::write(root.join(PAGE), page).with_context(|| format!("writing {PAGE}"))
}

fn section(program: &Tried, purpose: &str) -> Result<String> {
    let Tried { name, plain, preloaded } = program;
    let mut text = format!("\n## {name}\n\n{purpose}\n\n| Test | Cases | Plain | Preloaded |\n");
    text += "|---|---|---|---|\n";
    let preloaded = tests(preloaded);
    for test in tests(plain) {
        let with_us = preloaded.iter().find(|it| it.name == test.name);
        let with_us = with_us.map_or_else(|| "not run".to_owned(), Test::verdict);
        writeln!(text, "| {} | {} | {} | {with_us} |", test.name, test.cases, test.verdict())?;
    }
    Ok(text)
}

impl Test {
    fn verdict(&self) -> String {
        match self.failed {
            0 => "passed".to_owned(),
            failed => format!("**{failed} failed**"),
        }
    }
}

/// From lines such as `edge_in [same thread, cold, server, v4]`, one for each case,
/// and `epoll.c:12: edge_in [...]: ...`, one for each check that failed.
fn tests(output: &str) -> Vec<Test> {
    let mut tests: Vec<Test> = Vec::new();
    let mut has_failed = false;
    for line in output.lines() {
        let Some((words, _)) = line.split_once(" [") else { continue };
        let (is_failure, name) = match words.rsplit_once(": ") {
            Some((_, name)) => (true, name),
            None => (false, words),
        };
        if !is_failure {
            has_failed = false;
            if tests.last().is_none_or(|last| last.name != name) {
                tests.push(Test { name: name.to_owned(), ..Test::default() });
            }
        }
        let Some(last) = tests.last_mut() else { continue };
        last.cases += usize::from(!is_failure);
        last.failed += usize::from(is_failure && !has_failed);
        has_failed |= is_failure;
    }
    tests
}

/// The first sentences of a program's opening comment.
fn purpose(source: &str) -> String {
    let comment = source.trim_start().trim_start_matches("/*");
    let (comment, _) = comment.split_once("*/").unwrap_or((comment, ""));
    let lines = comment.lines().map(|line| line.trim().trim_start_matches('*').trim());
    let mut words = lines.skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty());
    let paragraph = words.by_ref().collect::<Vec<_>>().join(" ");
    // Behind the name of the file.
    let text = paragraph.split_once(".c: ").map_or(paragraph.as_str(), |(_, text)| text);
    let mut letters = text.trim().chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_counted_and_a_failed_one_once() {
        let output = "a [same thread]\n    0 ms\na [other thread]\n\
                      x.c:1: a [other thread]: one is 2, not 1\n\
                      x.c:2: a [other thread]: two is 3, not 2\nb [alone]\n5 passed, 2 failed\n";
        let found = tests(output);
        let expected = [("a", 2, 1), ("b", 1, 0)];
        let expected =
            expected.map(|(name, cases, failed)| Test { name: name.to_owned(), cases, failed });
        assert_eq!(found, expected);
    }

    #[test]
    fn the_purpose_is_the_first_paragraph_behind_the_name() {
        let source = "/*\n * a.c: what it\n * is for.\n *\n * More.\n */\nint x;";
        assert_eq!(purpose(source), "What it is for.");
        assert_eq!(purpose("/* b.c: short. */"), "Short.");
    }
}
