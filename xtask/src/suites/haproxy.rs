//! HAProxy's own tests: scripts of clients and servers around it, each a program of its own.
//!
//! They are played by the program that Varnish brings for its own.

use std::env;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::{Part, Suite, Verdicts, source};
use crate::bench::place;
use crate::debian;

pub(super) const NAME: &str = "haproxy";

const PACKAGE: &str = "haproxy";
const VERSION: &str = "2.6.12";

/// The package with the program that plays the scripts, and how it is told of a machine with
/// other work: a script may take a minute.
const PLAYER: &str = "varnish";
const PATIENT: &str = "-t 60";

pub(super) fn suite(scratch: &Path, short: bool) -> Result<Suite> {
    let name = "HAProxy";
    // Its only part takes a minute each way.
    if short {
        return Ok(Suite { name, version: String::new(), parts: Vec::new() });
    }
    debian::ensure(&[PACKAGE, PLAYER, "dpkg-dev"])?;
    let tree = source::upstream(PACKAGE, VERSION, scratch)?;
    Ok(Suite { name, version: VERSION.to_owned(), parts: vec![part(&tree)?] })
}

fn part(tree: &Path) -> Result<Part> {
    let program = |name: &str| {
        let path = place::find_command(name).with_context(|| format!("no {name}"))?;
        Ok::<_, anyhow::Error>(path.display().to_string())
    };
    // What a failed script leaves lies where its name is short: UNIX sockets are among it.
    let left = env::temp_dir().join("suite-haproxy");
    if left.is_dir() {
        fs::remove_dir_all(&left)?;
    }
    let settings = [
        format!("HAPROXY_PROGRAM={}", program("haproxy")?),
        format!("VTEST_PROGRAM={}", program("varnishtest")?),
        format!("TESTDIR={}", left.display()),
    ];
    let words =
        ["sh", "scripts/run-regtests.sh", "--v", "--vtestparams", PATIENT, "--type", EVERY_KIND];
    Ok(Part {
        name: "reg-tests".to_owned(),
        program: place::find_command("env").context("no env")?,
        arguments: settings.into_iter().chain(words.map(str::to_owned)).collect(),
        directory: tree.to_owned(),
        user: None,
        read: |printed, _| parse(printed),
        results: None,
    })
}

/// Of scripts: those that are about to be mended as well.
const EVERY_KIND: &str = "reg,default,bug,devel,slow";

/// `#    top  TEST reg-tests/NAME passed (0.159)`, `... FAILED (0.2) exit=2`.
fn parse(printed: &str) -> Verdicts {
    printed.lines().filter_map(verdict).collect()
}

fn verdict(line: &str) -> Option<(String, String)> {
    let (_, rest) = line.strip_prefix('#')?.split_once(" TEST reg-tests/")?;
    let mut words = rest.split(' ');
    Some((words.next()?.to_owned(), words.next()?.to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_scripts_are_read() {
        let verdicts = parse(
            "  Add test: reg-tests/ssl/a.vtc\n**** dT 0.01\n#    top  TEST reg-tests/ssl/a.vtc passed (0.159)\n\
             #    top  TEST reg-tests/http-rules/b.vtc FAILED (0.161) exit=2\n1 tests failed\n",
        );
        assert_eq!(verdicts["ssl/a.vtc"], "passed");
        assert_eq!(verdicts["http-rules/b.vtc"], "failed");
        assert_eq!(verdicts.len(), 2);
    }
}
