//! Ruby's own tests of sockets and of the protocols of its library.

use std::path::Path;

use anyhow::{Context, Result};

use super::{Part, Suite, Verdicts, source};
use crate::bench::place;
use crate::debian;

pub(super) const NAME: &str = "ruby";

const PACKAGE: &str = "ruby3.1";
const VERSION: &str = "3.1.2";

/// Files, or directories of them, in which connections are made.
const TESTS: [&str; 8] = [
    "socket",
    "net",
    "drb",
    "rinda",
    "fiber",
    "open-uri",
    "openssl/test_ssl.rb",
    "ruby/test_io.rb",
];

pub(super) fn suite(scratch: &Path, short: bool) -> Result<Suite> {
    let name = "Ruby";
    if short {
        return Ok(Suite { name, version: String::new(), parts: Vec::new() });
    }
    debian::ensure(&[PACKAGE, "dpkg-dev", "xz-utils"])?;
    let tree = source::upstream(PACKAGE, VERSION, scratch)?;
    let parts = TESTS.iter().map(|tests| part(tests, &tree)).collect::<Result<_>>()?;
    Ok(Suite { name, version: VERSION.to_owned(), parts })
}

fn part(tests: &str, tree: &Path) -> Result<Part> {
    // Else each run has the tests in another order.
    let words = ["test/runner.rb", "-v", "--seed=0", &format!("test/{tests}")];
    Ok(Part {
        name: tests.to_owned(),
        program: place::find_command(PACKAGE).with_context(|| format!("no {PACKAGE}"))?,
        arguments: words.map(str::to_owned).to_vec(),
        directory: tree.to_owned(),
        user: None,
        read: |printed, _| parse(printed),
        results: None,
    })
}

/// `[ 3/17] CLASS#TEST = 0.01 s` for each test, and at the end, for each that did not pass,
/// `  1) Failure:` and `CLASS#TEST [WHERE]:`, or `  2) Error:` and `CLASS#TEST:`.
fn parse(printed: &str) -> Verdicts {
    let mut verdicts: Verdicts = printed.lines().filter_map(begun).collect();
    for (heading, test) in printed.lines().zip(printed.lines().skip(1)) {
        let Some(verdict) = heading.split_once(") ").and_then(|(_, it)| verdict_of(it)) else {
            continue;
        };
        let name = test.split_once(" [").map_or_else(|| test.trim_end_matches(':'), |(it, _)| it);
        verdicts.insert(name.to_owned(), verdict.to_owned());
    }
    verdicts
}

fn begun(line: &str) -> Option<(String, String)> {
    let (number, rest) = line.strip_prefix('[')?.split_once("] ")?;
    number.trim_start().split_once('/')?.0.parse::<u32>().ok()?;
    // A thread that dies in a test says so on the line that the test has begun.
    let name = rest.split(" = ").next()?.split("#<").next()?;
    Some((name.to_owned(), "passed".to_owned()))
}

/// A test that fails may end in an error, too.
fn verdict_of(heading: &str) -> Option<&'static str> {
    match heading {
        "Failure:" | "Error:" => Some("failed"),
        "Skipped:" => Some("skipped"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_pass_is_named_at_the_end() {
        let verdicts = parse(
            "# Running tests:\n\n[ 1/4] TestIO#test_gets = 0.00 s\n[ 2/4] A::B#test_x = 0.10 s\n\
             [ 3/4] A::B#test_y = 0.00 s\n[ 4/4] A::B#test_z = 1.00 s\n\n  1) Failure:\n\
             A::B#test_x [/a/b.rb:73]:\n[Errno::X] exception expected.\n\n  2) Error:\n\
             A::B#test_y:\nOpenSSL::SSL::SSLError: connect(2)\n\n  3) Skipped:\nA::B#test_z [/a:1]:\n",
        );
        assert_eq!(verdicts["TestIO#test_gets"], "passed");
        assert_eq!(verdicts["A::B#test_x"], "failed");
        assert_eq!(verdicts["A::B#test_y"], "failed");
        assert_eq!(verdicts["A::B#test_z"], "skipped");
        assert_eq!(verdicts.len(), 4);
    }
}
