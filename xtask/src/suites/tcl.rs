//! Tcl's own tests of sockets and of its HTTP library.

use std::path::Path;

use anyhow::Result;

use super::{Part, Suite, Verdicts, source, version_of};
use crate::bench::place;
use crate::debian;

pub(super) const NAME: &str = "tcl";

const PACKAGE: &str = "tcl8.6";
const PROGRAM: &str = "tclsh8.6";

/// Files of tests in which connections are made.
const FILES: [&str; 4] = ["http", "http11", "httpold", "socket"];

pub(super) fn suite(scratch: &Path, short: bool) -> Result<Suite> {
    debian::ensure(&[PACKAGE, "dpkg-dev"])?;
    let version = version_of(PACKAGE)?;
    let tests = source::unpacked(PACKAGE, &version, scratch)?.join("tests");
    let files = if short { &[][..] } else { &FILES };
    let parts = files.iter().filter_map(|file| part(file, &tests)).collect();
    Ok(Suite { name: "Tcl", version, parts })
}

fn part(file: &str, tests: &Path) -> Option<Part> {
    let pattern = format!("{file}.test");
    let arguments = ["all.tcl", "-file", &pattern, "-verbose", "pass skip error"];
    Some(Part {
        name: pattern.clone(),
        program: place::find_command(PROGRAM)?,
        arguments: arguments.map(str::to_owned).to_vec(),
        directory: tests.to_owned(),
        user: None,
        read: |printed, _| parse(printed),
        results: None,
    })
}

/// `++++ NAME PASSED`, `++++ NAME SKIPPED: WHY`, `==== NAME WHAT IT IS ABOUT FAILED`.
fn parse(printed: &str) -> Verdicts {
    printed.lines().filter_map(verdict).collect()
}

fn verdict(line: &str) -> Option<(String, String)> {
    let said = |name: &str, verdict: &str| Some((name.to_owned(), verdict.to_owned()));
    if let Some(rest) = line.strip_prefix("==== ") {
        let (name, _) = rest.split_once(' ')?;
        return if line.ends_with(" FAILED") { said(name, "failed") } else { None };
    }
    let (name, rest) = line.strip_prefix("++++ ")?.split_once(' ')?;
    match rest {
        "PASSED" => said(name, "passed"),
        _ if rest.starts_with("SKIPPED") => said(name, "skipped"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_tests_are_read() {
        let verdicts = parse(
            "Tests began at noon\n++++ socket-1.1 PASSED\n++++ socket-1.2 SKIPPED: win\n\n\n\
             ==== socket-2.1 tcp connection FAILED\n==== Contents of test case:\n\
             ---- Result was:\n==== socket-2.1 FAILED\n",
        );
        assert_eq!(verdicts["socket-1.1"], "passed");
        assert_eq!(verdicts["socket-1.2"], "skipped");
        assert_eq!(verdicts["socket-2.1"], "failed");
        assert_eq!(verdicts.len(), 3);
    }
}
