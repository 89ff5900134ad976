//! `cargo xtask fuzz`: hostile bytes and lists of operations, guided by coverage.
//!
//! Each target of `fuzz/fuzz_targets` is a program with libFuzzer, whose sources come with the crate
//! `libfuzzer-sys`; a C++ compiler builds them. The compiler that builds everything else counts the
//! coverage, so neither a nightly Rust nor cargo-fuzz is needed. AddressSanitizer joins where its
//! run-time library came with the compiler, which is so with rustup and mostly not with a distribution.
//!
//! A run begins with the committed inputs of `fuzz/seeds` and with what earlier runs on this machine
//! have found (`fuzz/corpus`, not committed). An input that fails is kept in `fuzz/artifacts`.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, str};

use anyhow::{Context, Result, bail, ensure};

use crate::bench::place;
use crate::debian;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only the targets with one of these in their name
    targets: Vec<String>,
    /// Seconds for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

impl Options {
    /// All targets, long enough to see the committed inputs and some thousand others.
    pub(crate) fn short() -> Self {
        Self { targets: Vec::new(), seconds: 2 }
    }
}

/// The targets, and whose seeds each begins with.
const TARGETS: &[(&str, &[&str])] = &[
    ("clc", &["clc"]),
    ("llc", &["llc"]),
    ("cdc", &["cdc"]),
    ("host_control", &["host_control"]),
    ("roce", &["roce"]),
    ("responder", &["responder"]),
    ("connection", &["connection"]),
    ("link_group", &["link_group"]),
    ("rendezvous", &["rendezvous"]),
    ("canonical", &["clc", "host_control"]),
    ("tcp_option", &["tcp_option"]),
    ("options", &["options"]),
    ("ring", &["ring"]),
    ("operations", &["operations"]),
    ("filter_list", &["filter_list"]),
    ("filter_graph", &["filter_graph"]),
    ("tls_session", &["tls_session"]),
];

/// Counters at each edge, where comparisons are told as well: libFuzzer reads all of them.
const COVERAGE: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    // Branches that are folded away have no edge.
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "-Ccodegen-units=1",
    "--cfg=fuzzing",
];

/// Seconds after which an input counts as one that hangs.
const HANG_S: u32 = 120;

/// Builds the targets, and runs them one after the other.
///
/// **Errors**: a target cannot be built, or an input makes it fail: the text says where that lies.
pub(crate) fn run(options: &Options) -> Result<()> {
    let root = place::repo_root()?;
    let chosen: Vec<_> = TARGETS.iter().filter(|it| is_wanted(it.0, &options.targets)).collect();
    ensure!(!chosen.is_empty(), "no target has {:?} in its name", options.targets);
    let programs = build(&root)?;
    let fuzz = root.join("fuzz");
    for (target, seeds) in &chosen {
        let program = programs.join(target);
        attack(&fuzz, target, seeds, &program, options.seconds)?;
    }
    println!("{} targets, {} s each", chosen.len(), options.seconds);
    Ok(())
}

fn is_wanted(target: &str, names: &[String]) -> bool {
    names.is_empty() || names.iter().any(|name| target.contains(name.as_str()))
}

/// All targets, so that none goes stale unseen: the folder where they are.
fn build(root: &Path) -> Result<PathBuf> {
    debian::ensure(&["g++"])?;
    let into = root.join("target/fuzz");
    let triple = format!("{ARCH}-unknown-linux-gnu");
    let mut flags = COVERAGE.to_vec();
    if has_address_sanitizer()? {
        flags.push("-Zsanitizer=address");
    } else {
        println!("fuzz: without AddressSanitizer, which did not come with this compiler");
    }
    crate::run(
        Command::new("cargo")
            .args(["build", "--quiet", "--release", "--bins", "--target-dir"])
            .arg(&into)
            // Named, or build scripts would be compiled with the sanitizer, too.
            .args(["--target", &triple])
            .current_dir(root.join("fuzz"))
            .env("RUSTFLAGS", flags.join(" "))
            // `-Z` on the compiler that is there: a test needs no promise that it stays.
            .env("RUSTC_BOOTSTRAP", "1"),
    )?;
    Ok(into.join(triple).join("release"))
}

/// Whether the compiler has the sanitizer's run-time library beside its own libraries.
fn has_address_sanitizer() -> Result<bool> {
    let said =
        Command::new("rustc").args(["--print", "target-libdir"]).output().context("rustc")?;
    let folder = str::from_utf8(&said.stdout)?.trim();
    let is_runtime = |name: &str| name.starts_with("librustc") && name.ends_with("_rt.asan.a");
    let entries = fs::read_dir(folder).with_context(|| folder.to_owned())?;
    Ok(entries.flatten().any(|entry| entry.file_name().to_str().is_some_and(is_runtime)))
}

/// Runs a target. New inputs go into its folder in `fuzz/corpus`.
fn attack(fuzz: &Path, target: &str, seeds: &[&str], program: &Path, seconds: u32) -> Result<()> {
    let corpus = fuzz.join("corpus").join(target);
    let artifacts = fuzz.join("artifacts").join(target);
    fs::create_dir_all(&corpus)?;
    fs::create_dir_all(&artifacts)?;
    let log = artifacts.join("log");
    let output = fs::File::create(&log)?;
    let status = Command::new(program)
        .arg(&corpus)
        .args(seeds.iter().map(|of| fuzz.join("seeds").join(of)))
        .args([&format!("-max_total_time={seconds}"), &format!("-timeout={HANG_S}")])
        .args([&format!("-artifact_prefix={}/", artifacts.display()), "-print_final_stats=1"])
        // `static` memory of the standard library's and of ours looks like two definitions.
        .env("ASAN_OPTIONS", "detect_odr_violation=0")
        .stdout(output.try_clone()?)
        .stderr(output)
        .status()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    if !status.success() {
        bail!(
            "{target}: {status}; the end of {}:\n{}\nagain: {} FILE",
            log.display(),
            last_lines(&said, 40),
            program.display()
        );
    }
    let inputs = figure(&said, "stat::number_of_executed_units:").unwrap_or(0);
    ensure!(inputs > 0, "{target} has tried nothing: {}", log.display());
    println!("{target}: {inputs} inputs, {} edges", edges(&said).unwrap_or(0));
    Ok(())
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// The number behind a word, where it stands last.
fn figure(said: &str, word: &str) -> Option<u64> {
    let (_, behind) = said.rsplit_once(word)?;
    behind.split_whitespace().next()?.parse().ok()
}

/// How many edges of the target were run through, of libFuzzer's last report.
fn edges(said: &str) -> Option<u64> {
    figure(said, " cov: ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A target that is not in the list is never run, and seeds without one say nothing.
    #[test]
    fn every_target_is_run_and_every_folder_of_seeds_is_used() {
        let fuzz = place::repo_root().unwrap().join("fuzz");
        let names = |folder: &str| -> BTreeSet<String> {
            let entries = fs::read_dir(fuzz.join(folder)).unwrap();
            let name = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
            entries.map(|entry| name(entry.unwrap().path())).collect()
        };
        let targets: BTreeSet<String> = TARGETS.iter().map(|it| it.0.to_owned()).collect();
        assert_eq!(names("fuzz_targets"), targets);
        let seeds = TARGETS.iter().flat_map(|it| it.1).map(|&it| it.to_owned()).collect();
        assert_eq!(names("seeds"), seeds);
    }

    #[test]
    fn figures_are_read_from_what_libfuzzer_prints() {
        let said = "#2 INITED cov: 7 ft: 9\n#40 DONE   cov: 12 ft: 30 corp: 4/9b\n\
                    stat::number_of_executed_units: 40\nstat::peak_rss_mb: 3\n";
        assert_eq!(edges(said), Some(12));
        assert_eq!(figure(said, "stat::number_of_executed_units:"), Some(40));
        assert_eq!(figure("nothing", "stat::"), None);
    }

    #[test]
    fn the_end_of_a_log_is_shown() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 2), "a");
    }
}
