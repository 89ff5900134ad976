//! libuv's own tests: one program, each test in a process of its own.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{Part, Suite, Verdicts, prepare, source};
use crate::bench::place;
use crate::debian;

pub(super) const NAME: &str = "libuv";

const PACKAGE: &str = "libuv1";
const VERSION: &str = "1.44.2";
const PROGRAM: &str = "uv_run_tests";

pub(super) fn suite(scratch: &Path, short: bool) -> Result<Suite> {
    let name = "libuv";
    // Its only part takes half a minute each way.
    if short {
        return Ok(Suite { name, version: String::new(), parts: Vec::new() });
    }
    debian::ensure(&["cmake", "make", "gcc", "dpkg-dev"])?;
    let tree = source::upstream(PACKAGE, VERSION, scratch)?;
    let build = tree.join("build");
    if !build.join(PROGRAM).is_file() {
        let cmake = |words: &[&str]| prepare(Command::new("cmake").args(words).current_dir(&tree));
        cmake(&["-B", "build", "-DLIBUV_BUILD_BENCH=OFF", "."])?;
        cmake(&["--build", "build", "--target", PROGRAM])?;
    }
    Ok(Suite { name, version: VERSION.to_owned(), parts: vec![part(&tree)?] })
}

fn part(tree: &Path) -> Result<Part> {
    Ok(Part {
        name: PROGRAM.to_owned(),
        program: place::find_command("env").context("no env")?,
        // Else the tests refuse to be run by root.
        arguments: vec!["UV_RUN_AS_ROOT=1".to_owned(), format!("build/{PROGRAM}")],
        directory: tree.to_owned(),
        user: None,
        read: |printed, _| parse(printed),
        results: None,
    })
}

/// `ok 7 - NAME`, `not ok 8 - NAME`, `ok 9 - NAME # SKIP REASON`.
fn parse(printed: &str) -> Verdicts {
    printed.lines().filter_map(verdict).collect()
}

fn verdict(line: &str) -> Option<(String, String)> {
    let (verdict, rest) = match line.strip_prefix("not ok ") {
        Some(rest) => ("failed", rest),
        None => ("passed", line.strip_prefix("ok ")?),
    };
    let (_, test) = rest.split_once(" - ")?;
    let (name, verdict) = match test.split_once(" # ") {
        Some((name, _)) => (name, "skipped"),
        None => (test, verdict),
    };
    Some((name.to_owned(), verdict.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_tests() {
        let verdicts = parse(
            "1..3\nok 1 - tcp_open\nnot ok 2 - tcp_rst\n# exit code 6\n# not ok 9 - in a test's words\n\
             ok 3 - tty # SKIP Cannot open /dev/tty\n",
        );
        assert_eq!(verdicts["tcp_open"], "passed");
        assert_eq!(verdicts["tcp_rst"], "failed");
        assert_eq!(verdicts["tty"], "skipped");
        assert_eq!(verdicts.len(), 3);
    }
}
