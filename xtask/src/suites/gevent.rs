//! gevent's own tests of its sockets and servers: modules of the package, which brings them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{Part, Suite, Verdicts, prepare};
use crate::debian;
use crate::suite::Lacking;

pub(super) const NAME: &str = "gevent";

const PYTHON: &str = "/usr/bin/python3.11";
const VERSION: &str = "22.10.2";

/// The package and what it needs, with the digests of what was tried.
const REQUIREMENTS: &str = "\
gevent==22.10.2 --hash=sha256:877abdb3a669576b1d51ce6a49b7260b2a96f6b2424eb93287e779a3219d20ba
greenlet==3.5.6 --hash=sha256:1c20ea32a73d17b9b60e3371240e17b0068120c98a5ec01a224a7dd8c89733ba
zope.event==6.2 --hash=sha256:5e755153ac4faf64c10a4b6dd3307680166a3edf65b38df22df592610f8fa874
zope.interface==8.7 --hash=sha256:1613beb1fb1b4f457818c5443e985142ec9e71af391bfb26e583e0353f206792
";

/// Modules in which connections are made.
const MODULES: [&str; 10] = [
    "test__socket",
    "test__socket_ex",
    "test__socket_send_memoryview",
    "test__makefile_ref",
    "test__greenio",
    "test__backdoor",
    "test__select",
    "test__server",
    "test__pywsgi",
    "test__ssl",
];

pub(super) fn suite(scratch: &Path, short: bool) -> Result<Suite> {
    let name = "gevent";
    if short {
        return Ok(Suite { name, version: String::new(), parts: Vec::new() });
    }
    debian::ensure(&["python3-pip"])?;
    let installed = scratch.join("sources").join(format!("gevent-{VERSION}"));
    if !installed.is_dir() {
        install(&installed)?;
    }
    let parts = MODULES.iter().map(|module| part(module, &installed)).collect();
    Ok(Suite { name, version: VERSION.to_owned(), parts })
}

/// Puts the packages into a directory of their own.
///
/// **Errors**: [`Lacking`], if they cannot be had from here for this machine.
fn install(installed: &Path) -> Result<()> {
    let half = installed.with_extension("half");
    fs::create_dir_all(&half)?;
    let requirements = half.with_extension("txt");
    fs::write(&requirements, REQUIREMENTS)?;
    let options = ["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"];
    let mut pip = Command::new(PYTHON);
    pip.args(options).args(["--require-hashes", "--requirement"]).arg(requirements);
    prepare(pip.arg("--target").arg(&half)).map_err(|error| Lacking(format!("{error:#}")))?;
    Ok(fs::rename(half, installed)?)
}

fn part(module: &str, installed: &Path) -> Part {
    // The module's name has to find the packages, and no others of that name.
    let program = "import sys, runpy; sys.path.insert(0, sys.argv.pop(1)); \
                   runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)";
    let module_name = format!("gevent.tests.{module}");
    Part {
        name: module.to_owned(),
        program: PathBuf::from(PYTHON),
        arguments: ["-c", program, &installed.display().to_string(), &module_name, "-v"]
            .map(str::to_owned)
            .to_vec(),
        directory: installed.to_owned(),
        user: None,
        read: |printed, _| parse(printed),
        results: None,
    }
}

/// `NAME (CLASS.NAME) ... ok`, where a test's own words may stand before the verdict, which then has a line
/// of its own.
fn parse(printed: &str) -> Verdicts {
    let mut verdicts = Verdicts::new();
    let mut test = None;
    for line in printed.lines() {
        if line.starts_with("test") && line.contains(" (") {
            test = line.split_once(" (").and_then(|(_, rest)| rest.split_once(')'));
        }
        let said = line.rsplit_once(" ... ").map_or(line, |(_, said)| said);
        let said = said.split([' ', ':']).next().unwrap_or_default();
        if ["ok", "FAIL", "ERROR", "skipped", "expected", "unexpected"].contains(&said)
            && let Some((name, _)) = test.take()
        {
            verdicts.insert(name.trim_start_matches("__main__.").to_owned(), said.to_owned());
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_behind_a_name_or_on_a_line_of_their_own() {
        let verdicts = parse(
            "test_a (__main__.TestTCP.test_a) ... ok\ntest_b (__main__.TestTCP.test_b) ... \n\
             \t -> 40610.05 accepting\nFAIL\ntest_c (__main__.TestTCP.test_c) ... skipped 'Not sure'\n\
             test_d (__main__.TestTCP.test_d)\nWhat it is about ... ERROR\n\n\
             ======\nFAIL: test_b (__main__.TestTCP.test_b)\n",
        );
        assert_eq!(verdicts["TestTCP.test_a"], "ok");
        assert_eq!(verdicts["TestTCP.test_b"], "FAIL");
        assert_eq!(verdicts["TestTCP.test_c"], "skipped");
        assert_eq!(verdicts["TestTCP.test_d"], "ERROR");
        assert_eq!(verdicts.len(), 4);
    }
}
