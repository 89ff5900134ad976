//! Where things are: the repository, the build tree, and the C programs of
//! the benchmarks and tests, compiled on demand.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A file that only the root of this repository has.
const LANDMARK: &str = "bench/rr.c";

/// The repository around the current directory.
pub(crate) fn repo_root() -> Result<PathBuf> {
    let here = env::current_dir().context("the current directory")?;
    here.ancestors()
        .find(|dir| dir.join(LANDMARK).is_file())
        .map(Path::to_path_buf)
        .context("not inside the Sidestep repository: run this from its root")
}

/// Cargo's target directory, which also takes what is built and left here.
pub(crate) fn target_dir(repo: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| repo.join("target"), |dir| repo.join(dir))
}

/// Where `cargo xtask test` says to its stages that it has built for them.
pub(crate) const BUILT: &str = "SIDESTEP_BUILT";

/// Where the command lies with the library beside it: as they are shipped, or as `cargo xtask test` has built them.
pub(crate) fn build_dir(repo: &Path) -> PathBuf {
    env::var_os(BUILT).map_or_else(|| target_dir(repo).join("release"), PathBuf::from)
}

/// A directory of our own below the target directory, created when missing.
pub(crate) fn scratch_dir(repo: &Path, name: &str) -> Result<PathBuf> {
    let dir = target_dir(repo).join(name);
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    Ok(dir)
}

/// Compiles one C program into `dir` and returns its path. Always: it takes
/// less time than finding out whether a header has changed.
pub(crate) fn compile_c(source: &Path, dir: &Path) -> Result<PathBuf> {
    let name = source.file_stem().context("a source file has a name")?;
    compile_with("gcc", source, dir.join(name), &[])
}

/// The same for a library that can be preloaded.
pub(crate) fn compile_c_library(source: &Path, dir: &Path) -> Result<PathBuf> {
    let name = source.file_stem().context("a source file has a name")?;
    let made = dir.join(name).with_extension("so");
    compile_with("gcc", source, made, &["-shared", "-fPIC"])
}

/// The same by any compiler, with flags that follow the source file.
pub(crate) fn compile_with(
    compiler: &str,
    source: &Path,
    made: PathBuf,
    flags: &[&str],
) -> Result<PathBuf> {
    let output = Command::new(compiler)
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .arg("-o")
        .arg(&made)
        .arg(source)
        .args(flags)
        .output()
        .with_context(|| format!("starting {compiler}"))?;
    if !output.status.success() {
        bail!("compiling {}:\n{}", source.display(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(made)
}

/// Where a shell would find `command`, or where Debian keeps daemons, which
/// are not on every user's PATH.
pub(crate) fn find_command(command: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(command))
        .find(|file| file.is_file())
}

/// The first of `commands` that this machine does not have.
pub(crate) fn first_missing<'a>(commands: &[&'a str]) -> Option<&'a str> {
    commands.iter().copied().find(|command| find_command(command).is_none())
}
