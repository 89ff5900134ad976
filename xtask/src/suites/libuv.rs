//! libuv's own tests: one program, each test in a process of its own.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{Part, Suite, prepare, source, tap};
use crate::bench::place;
use crate::debian;

pub(super) const NAME: &str = "libuv";

const PACKAGE: &str = "libuv1";
const VERSION: &str = "1.44.2";
const PROGRAM: &str = "uv_run_tests";

pub(super) fn suite(scratch: &Path, short: bool) -> Result<Suite> {
    let name = "libuv";
    // Its only part takes half a minute each way.
    if short {
        return Ok(Suite { name, version: String::new(), parts: Vec::new() });
    }
    debian::ensure(&["cmake", "make", "gcc", "dpkg-dev"])?;
    let tree = source::upstream(PACKAGE, VERSION, scratch)?;
    let build = tree.join("build");
    if !build.join(PROGRAM).is_file() {
        let cmake = |words: &[&str]| prepare(Command::new("cmake").args(words).current_dir(&tree));
        cmake(&["-B", "build", "-DLIBUV_BUILD_BENCH=OFF", "."])?;
        cmake(&["--build", "build", "--target", PROGRAM])?;
    }
    Ok(Suite { name, version: VERSION.to_owned(), parts: vec![part(&tree)?] })
}

fn part(tree: &Path) -> Result<Part> {
    Ok(Part {
        name: PROGRAM.to_owned(),
        program: place::find_command("env").context("no env")?,
        // Else the tests refuse to be run by root.
        arguments: vec!["UV_RUN_AS_ROOT=1".to_owned(), format!("build/{PROGRAM}")],
        directory: tree.to_owned(),
        user: None,
        read: |printed, _| tap::parse(printed),
        results: None,
    })
}
