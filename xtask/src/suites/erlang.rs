//! Erlang's own tests of its sockets: suites of its kernel application.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Part, Suite, Verdicts, numbered, prepare, source};
use crate::bench::{launch, place};
use crate::debian;

pub(super) const NAME: &str = "erlang";

/// The packages whose commands run suites and compile them; the second has the authors' source.
const PACKAGES: [&str; 2] = ["erlang-common-test", "erlang-base"];
const SOURCE: &str = "erlang";
const VERSION: &str = "25.2.3";

/// Suites in which connections are made, and what descriptors and options are like.
const SUITES: [&str; 5] = [
    "gen_tcp_api_SUITE",
    "gen_tcp_echo_SUITE",
    "gen_tcp_misc_SUITE",
    "inet_SUITE",
    "inet_sockopt_SUITE",
];

/// What these suites call, below the libraries.
const HELPERS: [&str; 5] = [
    "kernel/test/kernel_test_lib",
    "kernel/test/kernel_test_sys_monitor",
    "kernel/test/kernel_test_global_sys_monitor",
    "common_test/test_server/ts_install_cth",
    "common_test/test_server/ts_lib",
];

/// A program that says what the kernel's numbers of options are.
const OPTIONS: &str = "inet_sockopt_SUITE_data/sockopt_helper";

/// Erlang's programs find each other by a server that the first one starts and that stays: ours
/// has a port of its own, and ends with the run.
const RUN: &str = "ct_run \"$@\"; epmd -kill > /dev/null";

pub(super) fn suite(scratch: &Path, short: bool) -> Result<Suite> {
    let name = "Erlang";
    if short {
        return Ok(Suite { name, version: String::new(), parts: Vec::new() });
    }
    debian::ensure(&PACKAGES)?;
    debian::ensure(&["gcc", "dpkg-dev", "xz-utils"])?;
    let libraries = source::upstream(SOURCE, VERSION, scratch)?.join("lib");
    let built = libraries.join("kernel/test/built");
    if !built.is_dir() {
        build(&libraries, &built)?;
    }
    let parts = SUITES.iter().map(|suite| part(suite, &built)).collect::<Result<_>>()?;
    Ok(Suite { name, version: VERSION.to_owned(), parts })
}

/// Compiles the suites into a directory of their own, with their data beside them.
fn build(libraries: &Path, built: &Path) -> Result<()> {
    let half = built.with_extension("half");
    fs::create_dir_all(&half)?;
    let tests = libraries.join("kernel/test");
    let suites = SUITES.iter().map(|suite| tests.join(suite));
    let helpers = HELPERS.iter().map(|helper| libraries.join(helper));
    let modules: Vec<PathBuf> = suites.chain(helpers).map(|it| it.with_extension("erl")).collect();
    prepare(
        // In the libraries' directory they find headers of kernel that no package has.
        Command::new("erlc").arg("-I").arg(libraries).args(["-W0", "-o"]).arg(&half).args(&modules),
    )?;
    for suite in SUITES {
        let data = tests.join(format!("{suite}_data"));
        if data.is_dir() {
            prepare(Command::new("cp").arg("--recursive").args([&data, &half]))?;
        }
    }
    let options = half.join(OPTIONS);
    prepare(
        Command::new("gcc").arg("-w").arg("-o").args([&options, &options.with_extension("c")]),
    )?;
    Ok(fs::rename(half, built)?)
}

fn part(suite: &str, built: &Path) -> Result<Part> {
    let port = format!("ERL_EPMD_PORT={}", launch::free_port()?);
    let words = [&port, "sh", "-c", RUN, "sh", "-noshell", "-noinput", "-no_auto_compile"];
    let which = ["-suite", suite, "-dir", &built.display().to_string()].map(str::to_owned);
    Ok(Part {
        name: suite.to_owned(),
        program: place::find_command("env").context("no env")?,
        arguments: words.map(str::to_owned).into_iter().chain(which).collect(),
        directory: built.to_owned(),
        user: None,
        read: |_, directory| read(directory),
        results: Some(|directory| vec!["-logdir".to_owned(), directory.display().to_string()]),
    })
}

/// Reads the log of the one suite that was run, some directories below.
fn read(directory: &Path) -> Verdicts {
    let mut verdicts = Verdicts::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            verdicts.extend(read(&path));
        } else if path.file_name().is_some_and(|name| name == "suite.log") {
            verdicts.extend(parse(&fs::read_to_string(path).unwrap_or_default()));
        }
    }
    verdicts
}

/// `=case SUITE:NAME` and, some lines further, `=result ok`, `failed: ...` or `skipped: ...`. What is done
/// before and after groups of cases is there, too. A case that is in several groups is numbered.
fn parse(log: &str) -> Verdicts {
    let mut verdicts = Verdicts::new();
    let mut case = None;
    for line in log.lines() {
        if let Some(name) = line.strip_prefix("=case ").map(str::trim) {
            let is_test = !name.contains(":init_per_") && !name.contains(":end_per_");
            case = is_test.then(|| numbered(name, &verdicts));
        } else if let Some(said) = line.strip_prefix("=result ")
            && let Some(name) = case.take()
        {
            let verdict = said.trim_start().split([':', ' ']).next().unwrap_or_default();
            verdicts.insert(name, verdict.to_owned());
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_of_a_log_are_read() {
        let verdicts = parse(
            "=cases         28\n=case          a_SUITE:init_per_suite\n=result        ok\n=case          a_SUITE:t_accept\n=started       2026\n\
             =result        ok\n=case          a_SUITE:t_accept\n=result        failed: {badmatch,1}, line 3\n\
             =case          a_SUITE:t_udp\n=result        skipped: \"Not tested\"\n=finished\n",
        );
        assert_eq!(verdicts["a_SUITE:t_accept"], "ok");
        assert_eq!(verdicts["a_SUITE:t_accept #2"], "failed");
        assert_eq!(verdicts["a_SUITE:t_udp"], "skipped");
        assert_eq!(verdicts.len(), 3);
    }
}
