//! `xtask suites`: the test suites of other projects, plain and under Sidestep.
//!
//! ```text
//!   suite      CPython's own, redis's, memcached's, PostgreSQL's, libuv's ...
//!     part     a module, a unit, a script: one command, run plain, then under Sidestep
//!       test   compared one by one: what differs is a defect of the library
//! ```
//!
//! That the connections of a part were SMC-D is read from the library's log, which
//! has a line when one moves and when one stays on TCP. (`sidestep ss` sees running
//! programs only, and those of a test suite come and go.)
//!
//! Where root runs this, the programs have a network of their own, with loopback alone: ports
//! that a suite has chosen are free there, and what it sends elsewhere does not leave the machine.

mod connections;
mod cpython;
mod erlang;
mod gevent;
mod haproxy;
mod junit;
mod libuv;
mod memcached;
mod netty;
mod node;
mod postgresql;
mod redis;
mod ruby;
mod source;
mod table;
mod tap;
mod tcl;
mod twisted;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::bench::launch::{LaunchOptions, Launcher, Program, Transport};
use crate::bench::place;
use crate::enclosure::Namespace;
use crate::suite::{Lacking, Outcome, Summary};
use connections::Connections;

/// No part takes longer on a machine that is not busy with something else.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often a part that differs is run plain again: a test that fails by itself one time in two has then
/// shown it in seven series of eight.
const AGAIN: usize = 2;
/// How often a running part is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What `xtask suites` can be told.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Only parts whose "SUITE PART" contains one of these, as in `redis` or `test_ssl`
    filters: Vec<String>,

    /// Only parts of a few seconds in which connections move: a minute
    #[arg(long)]
    short: bool,

    /// Write what was run into the table of docs/suites.md; without filters, anew
    #[arg(long, conflicts_with = "short")]
    write: bool,
}

/// A suite, ready to be run.
struct Suite {
    name: &'static str,
    version: String,
    parts: Vec<Part>,
}

/// What is run and compared at a time.
struct Part {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    directory: PathBuf,
    /// Who runs it, if that is somebody else.
    user: Option<u32>,
    /// Reads what the command printed and left in its directory for results.
    read: fn(&str, &Path) -> Verdicts,
    /// Where it leaves something, if it is asked to by an argument.
    results: Option<fn(&Path) -> Vec<String>>,
}

/// What a suite said of each of its tests, in its own words.
type Verdicts = BTreeMap<String, String>;

/// Tests of which chance decides how many there are: numbers in their names do not count,
/// and those of one name are one test, which has to end in one way.
fn without_numbers(verdicts: Verdicts) -> Verdicts {
    let mut kinds = Verdicts::new();
    for (test, verdict) in verdicts {
        let words = test.split(|c: char| c.is_ascii_digit() || c == '#' || c == ' ');
        let kind: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        let known = kinds.entry(kind.join(" ")).or_insert_with(|| verdict.clone());
        if *known != verdict {
            *known = "sometimes wrong".to_owned();
        }
    }
    kinds
}

/// The name of a test, with a number behind it if one of that name is known.
fn numbered(name: &str, known: &Verdicts) -> String {
    let again = |nth: &u32| !known.contains_key(&format!("{name} #{nth}"));
    match known.contains_key(name) {
        false => name.to_owned(),
        true => (2..).find(again).map_or_else(String::new, |nth| format!("{name} #{nth}")),
    }
}

/// How to get a suite: its name, what a machine needs for it, and the rest.
type Source = (&'static str, fn(&Path, bool) -> Result<Suite>);

const SUITES: [Source; 13] = [
    (cpython::NAME, cpython::suite),
    (redis::NAME, redis::suite),
    (memcached::NAME, memcached::suite),
    (postgresql::NAME, postgresql::suite),
    (tcl::NAME, tcl::suite),
    (twisted::NAME, twisted::suite),
    (libuv::NAME, libuv::suite),
    (ruby::NAME, ruby::suite),
    (haproxy::NAME, haproxy::suite),
    (erlang::NAME, erlang::suite),
    (gevent::NAME, gevent::suite),
    (node::NAME, node::suite),
    (netty::NAME, netty::suite),
];

/// Runs the chosen parts of all suites.
///
/// **Errors**: a part differs, did not end, or has no test at all.
pub(crate) fn run(options: &Options) -> Result<()> {
    let repo = place::repo_root()?;
    let launcher = Launcher::new(&LaunchOptions::default(), &repo)?.eager();
    let scratch = place::scratch_dir(&repo, "suites")?;
    let stage = Stage { launcher, network: network()? };
    let mut summary = Summary::default();
    let mut rows = Vec::new();
    for (name, suite) in SUITES {
        if !may_be_chosen(&options.filters, name) {
            continue;
        }
        let suite = match suite(&scratch, options.short) {
            Ok(suite) => suite,
            Err(error) if error.is::<Lacking>() => {
                summary.add(name, "", Outcome::Skipped(error.to_string()));
                continue;
            }
            Err(error) => return Err(error),
        };
        for part in suite.parts.iter().filter(|part| is_chosen(&options.filters, name, &part.name))
        {
            let start = Instant::now();
            let comparison = stage.compare(part, &scratch.join(name).join(part.file_name()));
            let judged = comparison.and_then(|comparison| {
                let row = table::Row::new(&suite, part, &comparison);
                let judged = comparison.judge();
                rows.push(row);
                judged
            });
            summary.add(name, &part.name, Outcome::of(judged, start.elapsed()));
        }
    }
    if options.write {
        table::write(&repo.join("docs/suites.md"), &rows, options.filters.is_empty())?;
    }
    summary.conclude("other projects'", None)
}

/// Whether a filter may mean parts of this suite: it names it, or does not name
/// any other.
fn may_be_chosen(filters: &[String], suite: &str) -> bool {
    let names_another = |filter: &String| {
        SUITES.iter().any(|(name, _)| *name != suite && name.contains(filter.as_str()))
    };
    filters.is_empty() || filters.iter().any(|filter| !names_another(filter))
}

fn is_chosen(filters: &[String], suite: &str, part: &str) -> bool {
    let name = format!("{suite} {part}");
    filters.is_empty() || filters.iter().any(|filter| name.contains(filter))
}

/// A part that was run both ways.
struct Comparison {
    plain: Verdicts,
    /// Further plain runs, if the first one differed.
    again: Vec<Verdicts>,
    sidestep: Verdicts,
    connections: Connections,
}

/// Where parts are run.
struct Stage {
    launcher: Launcher,
    network: Option<Namespace>,
}

/// A network of its own, if we may make one.
fn network() -> Result<Option<Namespace>> {
    match Namespace::make("suites") {
        Ok(network) => Ok(Some(network)),
        Err(error) if error.is::<Lacking>() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The library's log, and the file that asks for it.
const LOG: &str = "sidestep.log";
const CONFIG: &str = "sidestep.toml";

impl Stage {
    /// Runs a part both ways; where they differ, plain again, to see what chance does.
    fn compare(&self, part: &Part, directory: &Path) -> Result<Comparison> {
        let plain = self.play(Transport::Tcp, part, &directory.join("plain"))?;
        let under = directory.join("sidestep");
        let sidestep = self.play(Transport::Smc, part, &under)?;
        let connections = Connections::read(&under.join(LOG))?;
        let mut comparison = Comparison { plain, again: Vec::new(), sidestep, connections };
        while comparison.again.len() < AGAIN && !comparison.differences().is_empty() {
            let place = directory.join(format!("plain-{}", comparison.again.len() + 2));
            comparison.again.push(self.play(Transport::Tcp, part, &place)?);
        }
        Ok(comparison)
    }

    /// Runs a part once. What it prints and the library's log stay in `directory`.
    fn play(&self, way: Transport, part: &Part, directory: &Path) -> Result<Verdicts> {
        if directory.exists() {
            fs::remove_dir_all(directory)?;
        }
        fs::create_dir_all(directory)?;
        let log = directory.join(LOG);
        let config = format!("[log]\nlevel = \"info\"\nfile = \"{}\"\n", log.display());
        fs::write(directory.join(CONFIG), config)?;

        let asked = part.results.map(|ask| ask(directory)).unwrap_or_default();
        let mut command: Command =
            self.launcher.launch(way, &part.program, part.arguments.iter().chain(&asked));
        command.current_dir(&part.directory).env("SIDESTEP_CONFIG", directory.join(CONFIG));
        match (part.user, &self.network) {
            (Some(user), _) => {
                // Only root may enter a network, and this one is root no longer when it could.
                chown(directory, Some(user), Some(user))?;
                command.uid(user).gid(user);
            }
            (None, Some(network)) => network.enclose(&mut command),
            (None, None) => {}
        }
        let mut program = Program::start(command, directory)?;
        let deadline = Instant::now() + PATIENCE;
        while !program.has_ended()? {
            ensure!(Instant::now() < deadline, "{} has not ended within {PATIENCE:?}", part.name);
            thread::sleep(POLL_INTERVAL);
        }
        Ok((part.read)(&program.printed(), directory))
    }
}

impl Part {
    fn file_name(&self) -> String {
        self.name.replace('/', "-")
    }
}

impl Comparison {
    /// Tests that ended in a way in which they have not ended plain, or in one run only.
    fn differences(&self) -> Vec<String> {
        self.tests()
            .filter(|test| self.plain_ways(test).all(|plain| plain != said(&self.sidestep, test)))
            .map(|test| {
                let (plain, sidestep) = (said(&self.plain, test), said(&self.sidestep, test));
                format!("{test}: {plain}, under Sidestep {sidestep}")
            })
            .collect()
    }

    /// Tests that end plain in more than one way.
    fn by_chance(&self) -> Vec<&String> {
        let first = |test| said(&self.plain, test);
        self.tests().filter(|test| self.plain_ways(test).any(|way| way != first(test))).collect()
    }

    fn tests(&self) -> impl Iterator<Item = &String> {
        let runs = [&self.plain, &self.sidestep].into_iter().chain(&self.again);
        runs.flat_map(Verdicts::keys).collect::<BTreeSet<_>>().into_iter()
    }

    fn plain_ways(&self, test: &str) -> impl Iterator<Item = &str> {
        [&self.plain].into_iter().chain(&self.again).map(move |run| said(run, test))
    }

    fn judge(&self) -> Result<String> {
        ensure!(!self.plain.is_empty(), "the plain run has no test");
        let differences = self.differences();
        ensure!(differences.is_empty(), "{}", differences.join("; "));
        let by_chance = match self.by_chance().as_slice() {
            [] => String::new(),
            tests => format!(", but for chance, which decides plain as well: {tests:?}"),
        };
        Ok(format!("{} tests, the same{by_chance}; {}", self.plain.len(), self.connections))
    }
}

fn said<'a>(verdicts: &'a Verdicts, test: &str) -> &'a str {
    verdicts.get(test).map_or("not run", |it| it)
}

/// Runs a command that prepares a suite.
fn prepare(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {errors}");
    Ok(())
}

/// The source of the Redis that Debian has, as its authors published it, below `scratch`.
///
/// **Errors**: as of [`source_of`].
pub(crate) fn redis_source(scratch: &Path) -> Result<PathBuf> {
    source_of("redis-server", redis::NAME, scratch)
}

/// The source of an installed package, as its authors published it, below `scratch`.
///
/// **Errors**: [`Lacking`], if it cannot be had from here.
pub(crate) fn source_of(package: &str, name: &str, scratch: &Path) -> Result<PathBuf> {
    let version = version_of(package)?;
    let without_epoch = version.split_once(':').map_or(version.as_str(), |it| it.1);
    let upstream = without_epoch.split_once('-').map_or(without_epoch, |it| it.0);
    source::upstream(name, upstream, scratch)
}

/// The version of an installed Debian package.
///
/// **Errors**: [`Lacking`], if it is not installed.
fn version_of(package: &str) -> Result<String> {
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${Version}", package])
        .output()
        .context("dpkg-query")?;
    let version = String::from_utf8(output.stdout)?;
    ensure!(output.status.success() && !version.is_empty(), Lacking(format!("package {package}")));
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(pairs: &[(&str, &str)]) -> Verdicts {
        pairs.iter().map(|(test, verdict)| ((*test).to_owned(), (*verdict).to_owned())).collect()
    }

    #[test]
    fn what_ends_otherwise_or_only_once_differs() {
        let comparison = Comparison {
            plain: verdicts(&[("a", "passed"), ("b", "failed"), ("c", "passed")]),
            again: Vec::new(),
            sidestep: verdicts(&[("a", "failed"), ("b", "failed"), ("d", "passed")]),
            connections: Connections::default(),
        };
        assert_eq!(
            comparison.differences(),
            [
                "a: passed, under Sidestep failed",
                "c: passed, under Sidestep not run",
                "d: not run, under Sidestep passed",
            ]
        );
        assert!(comparison.judge().is_err());
    }

    #[test]
    fn what_plain_runs_do_by_chance_is_no_difference() {
        let comparison = Comparison {
            plain: verdicts(&[("a", "failed"), ("b", "passed"), ("c", "passed")]),
            again: vec![verdicts(&[("a", "passed"), ("b", "passed"), ("c", "failed")])],
            sidestep: verdicts(&[("a", "passed"), ("b", "failed"), ("c", "passed")]),
            connections: Connections::default(),
        };
        assert_eq!(comparison.differences(), ["b: passed, under Sidestep failed"]);
        assert_eq!(comparison.by_chance(), ["a", "c"]);
    }

    #[test]
    fn chance_makes_no_difference() {
        let verdicts = |names: &[&str], verdict: &str| -> Verdicts {
            names.iter().map(|name| ((*name).to_owned(), verdict.to_owned())).collect()
        };
        let once = without_numbers(verdicts(&["Set #1 to follow #2", "x (= 77)"], "ok"));
        let again = ["Set #3 to follow #0", "Set #3 to follow #0 #2", "x (= 5)"];
        assert_eq!(once, without_numbers(verdicts(&again, "ok")));
        let mut wrong = verdicts(&again[..2], "ok");
        wrong.extend(verdicts(&["Set #2 to follow #0"], "err"));
        assert_eq!(without_numbers(wrong)["Set to follow"], "sometimes wrong");
    }

    #[test]
    fn a_part_without_tests_is_no_success() {
        let nothing = Comparison {
            plain: Verdicts::new(),
            again: Vec::new(),
            sidestep: Verdicts::new(),
            connections: Connections::default(),
        };
        assert!(nothing.judge().is_err());
    }

    #[test]
    fn filters_choose_suites_and_parts() {
        let only = |filter: &str| [filter.to_owned()];
        assert!(may_be_chosen(&only("redis"), redis::NAME));
        assert!(!may_be_chosen(&only("redis"), cpython::NAME));
        assert!(may_be_chosen(&only("test_ssl"), cpython::NAME));
        assert!(is_chosen(&only("test_ssl"), "cpython", "test_ssl"));
        assert!(!is_chosen(&only("test_ssl"), "cpython", "test_socket"));
        assert!(is_chosen(&[], "cpython", "test_socket"));
    }
}
