//! Redis's own tests: a Tcl program that starts servers and talks to them.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};

use super::{Part, Suite, Verdicts, numbered, source, version_of};
use crate::bench::{launch, place};
use crate::debian;

pub(super) const NAME: &str = "redis";

/// Where the tests expect the programs: those of the package are put there.
const PROGRAMS: [&str; 3] = ["redis-server", "redis-cli", "redis-benchmark"];

/// Units of a few seconds, with many connections that move.
const SHORT: &[&str] = &[
    "unit/protocol",
    "unit/pubsub",
    "unit/limits",
    "unit/tracking",
    "integration/redis-benchmark",
];

/// The others in which connections matter, and the types for the sake of large and odd
/// payloads. What needs modules built for it is not among them.
const LONG: &[&str] = &[
    "unit/auth",
    "unit/networking",
    "unit/pubsubshard",
    "unit/multi",
    "unit/quit",
    "unit/type/incr",
    "unit/type/string",
    "unit/type/list",
    "unit/type/list-2",
    "unit/type/set",
    "unit/type/hash",
    "unit/type/zset",
    "unit/type/stream-cgroups",
    "unit/scan",
    "unit/info",
    "unit/querybuf",
    "unit/obuf-limits",
    "unit/replybufsize",
    "unit/client-eviction",
    "unit/introspection",
    "unit/introspection-2",
    "unit/pause",
    "unit/wait",
    "unit/shutdown",
    "unit/cluster",
    "unit/cluster-scripting",
    "unit/cluster/announced-endpoints",
    "unit/cluster/links",
    "unit/cluster/misc",
    "unit/cluster/packet",
    "integration/redis-cli",
    "integration/block-repl",
    "integration/replication",
    "integration/replication-2",
    "integration/replication-3",
    "integration/replication-4",
    "integration/replication-buffer",
    "integration/replication-psync",
    "integration/psync2",
    "integration/psync2-master-restart",
    "integration/psync2-pingoff",
    "integration/psync2-reg",
    "integration/failover",
    "integration/shutdown",
];

/// Units that play with chance: what their tests are called has numbers from it, and how
/// many they are, too.
const BY_CHANCE: [&str; 2] = ["integration/psync2", "integration/psync2-reg"];

pub(super) fn suite(scratch: &Path, short: bool) -> Result<Suite> {
    debian::ensure(&["redis-server", "tcl", "dpkg-dev"])?;
    let version = version_of("redis-server")?;
    let tree = source::unpacked("redis-server", &version, scratch)?;
    for program in PROGRAMS {
        let known = place::find_command(program).with_context(|| format!("no {program}"))?;
        let expected = tree.join("src").join(program);
        if fs::symlink_metadata(&expected).is_err() {
            symlink(known, expected)?;
        }
    }
    shorten_names(&tree)?;
    let long = if short { &[][..] } else { LONG };
    let parts = SHORT.iter().chain(long).map(|unit| part(unit, &tree)).collect::<Result<_>>()?;
    Ok(Suite { name: "redis", version, parts })
}

/// Lets what the tests write lie where its name is short: among it are UNIX sockets, of
/// which the hundredth of a unit would have a name that is too long.
fn shorten_names(tree: &Path) -> Result<()> {
    let (written, short) = (tree.join("tests/tmp"), env::temp_dir().join("suite-redis"));
    fs::create_dir_all(&short)?;
    if fs::read_link(&written).is_ok_and(|link| link == short) {
        return Ok(());
    }
    if written.is_dir() {
        fs::remove_dir_all(&written)?;
    }
    Ok(symlink(short, written)?)
}

fn part(unit: &str, tree: &Path) -> Result<Part> {
    // Its servers get ports from this one on, and so do their cluster buses 10 000
    // further: below the ephemeral ones.
    let port = launch::free_port()?.min(22_000).to_string();
    let words = ["tests/test_helper.tcl", "--single", unit, "--clients", "1", "--baseport", &port];
    Ok(Part {
        name: unit.to_owned(),
        program: place::find_command("tclsh").context("no tclsh")?,
        arguments: words.map(str::to_owned).to_vec(),
        directory: tree.to_owned(),
        user: None,
        read: if BY_CHANCE.contains(&unit) { parse_by_chance } else { parse },
        results: None,
    })
}

/// `[ok]: NAME (3 ms)` and the like, in colours.
fn parse(printed: &str, _: &Path) -> Verdicts {
    let mut verdicts = Verdicts::new();
    for line in printed.lines().map(without_colours) {
        let Some((verdict, test)) = line.strip_prefix('[').and_then(|it| it.split_once("]: "))
        else {
            continue;
        };
        if !["ok", "err", "exception", "ignore", "skip", "timeout"].contains(&verdict) {
            continue;
        }
        // After the name comes what differs from run to run: the time, or why.
        let end = match verdict {
            "ok" => test.rfind(" ("),
            _ => test.rfind(" in tests/"),
        };
        verdicts
            .insert(numbered(&test[..end.unwrap_or(test.len())], &verdicts), verdict.to_owned());
    }
    verdicts
}

fn parse_by_chance(printed: &str, directory: &Path) -> Verdicts {
    super::without_numbers(parse(printed, directory))
}

fn without_colours(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let before = parts.next().unwrap_or_default().to_owned();
    parts.fold(before, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read_without_colours_and_times() {
        let printed = "\
[\u{1b}[0;32;49mok\u{1b}[0m]: PING (now) (12 ms)
[ok]: PING (now) (3 ms)
[\u{1b}[0;31;49merr\u{1b}[0m]: PUBLISH in tests/unit/pubsub.tcl
[ignore]: needs modules: moduleapi
[1/1 \u{1b}[0;33;49mdone\u{1b}[0m]: unit/pubsub (1 seconds)
*** [err]: PUBLISH in tests/unit/pubsub.tcl
";
        let verdicts = parse(printed, Path::new(""));
        assert_eq!(verdicts["PING (now)"], "ok");
        assert_eq!(verdicts["PING (now) #2"], "ok");
        assert_eq!(verdicts["PUBLISH"], "err");
        assert_eq!(verdicts.len(), 4);
    }
}
