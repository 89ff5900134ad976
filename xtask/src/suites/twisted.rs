//! Twisted's own tests of its reactors and of TCP.

use std::path::Path;

use anyhow::Result;

use super::{Part, Suite, Verdicts, version_of};
use crate::bench::place;
use crate::debian;

pub(super) const NAME: &str = "twisted";

const PACKAGE: &str = "python3-twisted";
const PROGRAM: &str = "trial3";

/// Modules in which connections are made, by all reactors that work here: epoll, poll, select
/// and asyncio.
const MODULES: [&str; 3] =
    ["twisted.internet.test.test_tcp", "twisted.test.test_internet", "twisted.test.test_tcp"];

pub(super) fn suite(scratch: &Path, short: bool) -> Result<Suite> {
    debian::ensure(&[PACKAGE])?;
    let modules = if short { &[][..] } else { &MODULES };
    let parts = modules.iter().filter_map(|module| part(module, scratch)).collect();
    Ok(Suite { name: "Twisted", version: version_of(PACKAGE)?, parts })
}

fn part(module: &str, scratch: &Path) -> Option<Part> {
    // It leaves its log in a directory of its own, which two runs cannot have at once.
    let place = format!("--temp-directory={}", scratch.join(NAME).join("trial").display());
    Some(Part {
        name: module.to_owned(),
        program: place::find_command(PROGRAM)?,
        arguments: vec!["--reporter=verbose".to_owned(), place, module.to_owned()],
        directory: scratch.to_owned(),
        user: None,
        read: |printed, _| parse(printed),
        results: None,
    })
}

/// A tree, by its indentation: `MODULE`, `  CLASS`, `    TEST ...   [OK]`.
fn parse(printed: &str) -> Verdicts {
    let mut class = "";
    let mut verdicts = Verdicts::new();
    for line in printed.lines().take_while(|line| !line.starts_with("=====")) {
        match line.strip_suffix(']').and_then(|line| line.rsplit_once(" [")) {
            Some((test, verdict)) => {
                let name = test.trim().split(" ...").next().unwrap_or_default();
                if !name.is_empty() {
                    verdicts.insert(format!("{class}.{name}"), verdict.to_owned());
                }
            }
            None if line.starts_with("  ") && !line.starts_with("   ") => class = line.trim(),
            None => {}
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_read() {
        let verdicts = parse(
            "twisted.test.test_tcp\n  AddressTests\n    test_one ...          [OK]\n  \
             CannotBindTests\n    test_one ...     [ERROR]\n                    [ERROR]\n    \
             test_two ... [SKIPPED]\n\n======\n  Later\n    test_one ... [FAIL]\n",
        );
        assert_eq!(verdicts["AddressTests.test_one"], "OK");
        assert_eq!(verdicts["CannotBindTests.test_one"], "ERROR");
        assert_eq!(verdicts["CannotBindTests.test_two"], "SKIPPED");
        assert_eq!(verdicts.len(), 3);
    }
}
