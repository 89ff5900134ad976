//! Memcached's own tests: Perl scripts that say "ok" and "not ok".

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{Part, Suite, Verdicts, prepare, source, version_of};
use crate::bench::place;
use crate::debian;

pub(super) const NAME: &str = "memcached";

/// What the tests start. It has options that the package's program lacks, so it is
/// built.
const BUILT: [&str; 2] = ["memcached-debug", "timedrun"];

/// Scripts about storage on disk: over plain TCP each takes minutes, of delayed
/// acknowledgements.
const SLOW: &str = "extstore";

/// Scripts with one test for each time that something happens which may not happen.
const BY_CHANCE: &str = "maxconns.t";

/// Scripts of a second, with connections that move.
const SHORT: [&str; 4] = ["ascii-auth.t", "cas.t", "binary-get.t", "noreply.t"];

pub(super) fn suite(scratch: &Path, short: bool) -> Result<Suite> {
    debian::ensure(&["memcached", "libevent-dev", "dpkg-dev", "make", "gcc"])?;
    let version = version_of("memcached")?;
    let tree = source::unpacked("memcached", &version, scratch)?;
    if BUILT.iter().any(|program| !tree.join(program).is_file()) {
        // With UNIX sockets the tests would use hardly anything else.
        let options = ["--quiet", "--disable-unix-socket"];
        prepare(Command::new("./configure").args(options).current_dir(&tree))?;
        prepare(Command::new("make").arg("--silent").args(BUILT).current_dir(&tree))?;
    }
    let mut scripts: Vec<String> = fs::read_dir(tree.join("t"))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| Path::new(name).extension().is_some_and(|it| it == "t"))
        .filter(|name| !name.contains(SLOW) && (!short || SHORT.contains(&name.as_str())))
        .collect();
    scripts.sort_unstable();
    let parts = scripts.iter().filter_map(|script| part(script, &tree)).collect();
    Ok(Suite { name: "memcached", version, parts })
}

fn part(script: &str, tree: &Path) -> Option<Part> {
    Some(Part {
        name: script.to_owned(),
        program: place::find_command("perl")?,
        arguments: vec![format!("t/{script}")],
        directory: tree.to_owned(),
        user: None,
        read: if script == BY_CHANCE { parse_by_chance } else { parse },
        results: None,
    })
}

/// `ok 7 - NAME`, `not ok 8 - NAME`, `1..0 # SKIP REASON`. The number is the test:
/// names may have ports in them.
fn parse(printed: &str, _: &Path) -> Verdicts {
    printed.lines().filter_map(verdict).collect()
}

/// By their names, which have no ports in them here.
fn parse_by_chance(printed: &str, _: &Path) -> Verdicts {
    let named = |line: &str| {
        let (number, verdict) = verdict(line)?;
        Some((format!("{} {number}", line.split_once(" - ")?.1), verdict))
    };
    super::without_numbers(printed.lines().filter_map(named).collect())
}

fn verdict(line: &str) -> Option<(String, String)> {
    if line.starts_with("1..0 ") {
        return Some(("all".to_owned(), "skipped".to_owned()));
    }
    let (verdict, rest) = match line.strip_prefix("not ok ") {
        Some(rest) => ("failed", rest),
        None => ("passed", line.strip_prefix("ok ")?),
    };
    let number = rest.split(' ').next().filter(|word| word.parse::<u32>().is_ok())?;
    let skipped = rest.to_ascii_lowercase().contains("# skip");
    Some((number.to_owned(), if skipped { "skipped" } else { verdict }.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_it(printed: &str) -> Verdicts {
        parse(printed, Path::new(""))
    }

    #[test]
    fn numbers_are_the_tests() {
        let verdicts =
            parse_it("1..4\nok 1 - on port 4711\nnot ok 2 - b\nok 3 # skip no TLS\nok\n");
        assert_eq!(verdicts["1"], "passed");
        assert_eq!(verdicts["2"], "failed");
        assert_eq!(verdicts["3"], "skipped");
        assert_eq!(verdicts.len(), 3);
        assert_eq!(parse_it("1..0 # SKIP no TLS\n")["all"], "skipped");
    }

    #[test]
    fn names_are_the_tests_where_chance_numbers_them() {
        let verdicts =
            parse_by_chance("1..3\nok 1 - is up\nok 2 - went\nok 3 - went\n", Path::new(""));
        assert_eq!(verdicts.keys().collect::<Vec<_>>(), ["is up", "went"]);
    }
}
