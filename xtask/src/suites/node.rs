//! Node's own tests of TCP and of processes that share a listener: scripts, each a program of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Part, Suite, source, tap};
use crate::bench::place;
use crate::debian;

pub(super) const NAME: &str = "nodejs";

const PACKAGE: &str = "nodejs";
/// Of the tests. Machines may have another version of the program.
const VERSION: &str = "18.20.4";
const PYTHON: &str = "/usr/bin/python3";

/// Which scripts, by the beginning of their names.
const SUBJECTS: [&str; 2] = ["net", "cluster"];

pub(super) fn suite(scratch: &Path, short: bool) -> Result<Suite> {
    let name = "Node";
    if short {
        return Ok(Suite { name, version: String::new(), parts: Vec::new() });
    }
    debian::ensure(&[PACKAGE, "dpkg-dev", "xz-utils"])?;
    let tree = source::upstream(PACKAGE, VERSION, scratch)?;
    let program = place::find_command("node").context("no node")?;
    let said = Command::new(&program).arg("--version").output()?;
    let its = String::from_utf8(said.stdout)?;
    let version = match its.trim().trim_start_matches('v') {
        VERSION => VERSION.to_owned(),
        its => format!("{its}, tests of {VERSION}"),
    };
    let parts = SUBJECTS.iter().map(|subject| part(subject, &tree, &program)).collect();
    Ok(Suite { name, version, parts })
}

fn part(subject: &str, tree: &Path, program: &Path) -> Part {
    let scripts = format!("parallel/test-{subject}-*");
    let shell = format!("--shell={}", program.display());
    // One at a time: a script that starts processes has its time by itself.
    let words = ["tools/test.py", &shell, "--progress=tap", "-j", "1", &scripts];
    Part {
        name: scripts.clone(),
        program: PathBuf::from(PYTHON),
        arguments: words.map(str::to_owned).to_vec(),
        directory: tree.to_owned(),
        user: None,
        read: |printed, _| tap::parse(printed),
        results: None,
    }
}
