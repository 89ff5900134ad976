//! PostgreSQL's regression tests: SQL that `pg_regress` sends by `psql`, many
//! sessions at once, to a server of its own.
//!
//! Programs and `pg_regress` are those of the Debian package. The SQL, what it should
//! answer and three functions in C come from the source package; for these the
//! package of headers is enough, which is unpacked and not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{Part, Suite, Verdicts, prepare, source, version_of};
use crate::bench::launch;
use crate::debian;
use crate::user;

pub(super) const NAME: &str = "postgresql";

const PACKAGE: &str = "postgresql-15";
const HEADERS: &str = "postgresql-server-dev-15";
const PG_REGRESS: &str = "/usr/lib/postgresql/15/lib/pgxs/src/test/regress/pg_regress";

/// The functions in C, each a library beside the tests.
const LIBRARIES: [&str; 3] =
    ["src/test/regress/regress.c", "contrib/spi/refint.c", "contrib/spi/autoinc.c"];

pub(super) fn suite(scratch: &Path, short: bool) -> Result<Suite> {
    let name = "PostgreSQL";
    // Its only part takes a minute each way.
    if short {
        return Ok(Suite { name, version: String::new(), parts: Vec::new() });
    }
    debian::ensure(&[PACKAGE, "dpkg-dev", "gcc"])?;
    let version = version_of(PACKAGE)?;
    let tree = source::unpacked(PACKAGE, &version, scratch)?;
    let headers = source::binary(HEADERS, &version, scratch)?;
    let tests = tree.join("src/test/regress");
    for library in LIBRARIES {
        compile(&tree.join(library), &headers, &tests)?;
    }
    Ok(Suite { name, version, parts: vec![part(&tests)?] })
}

fn compile(source: &Path, headers: &Path, into: &Path) -> Result<()> {
    let library = into.join(source.with_extension("so").file_name().unwrap_or_default());
    if library.is_file() {
        return Ok(());
    }
    // The word lets refint.c say what the tests expect it to.
    prepare(
        Command::new("gcc")
            .args(["-O2", "-w", "-shared", "-fPIC", "-DREFINT_VERBOSE", "-I"])
            .arg(headers.join("usr/include/postgresql/15/server"))
            .arg("-o")
            .args([&library, source]),
    )
}

fn part(tests: &Path) -> Result<Part> {
    let option = |name: &str, value: &Path| format!("--{name}={}", value.display());
    Ok(Part {
        name: "parallel_schedule".to_owned(),
        program: PathBuf::from(PG_REGRESS),
        arguments: vec![
            option("inputdir", tests),
            option("dlpath", tests),
            option("schedule", &tests.join("parallel_schedule")),
            option("bindir", Path::new(debian::POSTGRESQL)),
            // Else the server would be reached by a UNIX socket.
            "--host=127.0.0.1".to_owned(),
            format!("--port={}", launch::free_port()?),
            "--max-concurrent-tests=20".to_owned(),
        ],
        directory: fs::canonicalize(tests)?,
        // PostgreSQL refuses to run as root.
        user: user::unless_root(),
        read: |printed, _| parse(printed),
        results: Some(|directory| {
            let instance = directory.join("instance");
            [("outputdir", directory), ("temp-instance", &instance)]
                .map(|(name, value)| format!("--{name}={}", value.display()))
                .to_vec()
        }),
    })
}

/// `     boolean                      ... ok          104 ms`, and `test` before it for one that
/// runs alone.
fn parse(printed: &str) -> Verdicts {
    printed.lines().filter_map(verdict).collect()
}

fn verdict(line: &str) -> Option<(String, String)> {
    let (test, said) = line.split_once(" ... ")?;
    let name = test.split_whitespace().last()?;
    Some((name.to_owned(), said.split_whitespace().next()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read_without_times() {
        let printed = "\
parallel group (2 tests):  char boolean
     boolean                      ... ok          104 ms
     char                         ... FAILED       61 ms
test tablespace                   ... ok          204 ms
============== shutting down postmaster               ==============
 1 of 3 tests failed.
";
        let verdicts = parse(printed);
        assert_eq!(verdicts["boolean"], "ok");
        assert_eq!(verdicts["char"], "FAILED");
        assert_eq!(verdicts["tablespace"], "ok");
        assert_eq!(verdicts.len(), 3);
    }
}
