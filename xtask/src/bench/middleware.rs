//! `cargo xtask macro`: real middleware, as IBM's papers measured SMC with it.
//!
//! Each workload is a file of `bench/macro`, which says what is installed, started and called, and which of the
//! programs run under Sidestep: with one leg of a chain only, that is one program's word. The file is read into a
//! [`Workload`]; a [`Stage`] has its servers running, over TCP or over SMC, and ends them; [`driver`] warms them
//! until their rate is [flat](warm_up) and measures then. The rest is the bench's: runs over TCP and SMC by turns,
//! endless loops beside them, the table and its JSON.
//!
//! A run over SMC in which no connection of the accelerated programs was SMC, by `sidestep ss`, is an error:
//! it would be a figure of TCP.

mod driver;
mod stage;
mod warm_up;
mod workload;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::lab::Lab;
use super::launch::Transport;
use super::place;
use super::report::Measured;
use super::{BenchOptions, has_packages, interleave, tabulate, unmeasured};
use stage::Stage;
use workload::Workload;

/// How long one run measures: garbage collectors and check points have their turn in it.
const SECONDS: f64 = 5.0;

/// Where the workloads are, from the root of the repository.
const FOLDER: &str = "bench/macro";

/// Measures, and prints the table.
///
/// **Errors**: a file of a workload is wrong, a workload could not be run to its end, or nothing matched.
pub(crate) fn run(options: &BenchOptions) -> Result<()> {
    let workloads = workloads_of(&place::repo_root()?.join(FOLDER))?;
    let chosen: Vec<&Workload> = workloads.iter().filter(|it| options.wants(&it.name)).collect();
    ensure!(!chosen.is_empty(), "no workload of that name: see `cargo xtask macro --list`");
    if options.list {
        chosen.iter().for_each(|it| list(it));
        return Ok(());
    }
    let lab = options.lab(SECONDS)?;
    tabulate(options, &lab, &chosen, |it| &it.name, measure)
}

/// All workloads, by their names.
fn workloads_of(folder: &Path) -> Result<Vec<Workload>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files = entries.map(|it| Ok(it?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|it| it == "toml"));
    files.sort();
    files.iter().map(|file| Workload::read(file)).collect()
}

fn list(workload: &Workload) {
    println!("{}: {}", workload.name, workload.title);
    println!(
        "    IBM: {}, {} ({})",
        workload.ibm.workload, workload.ibm.figure, workload.ibm.source
    );
    for row in workload.rows() {
        println!(
            "    {:<34} must {bound} {}, aim {bound} {}",
            row.name,
            row.must,
            row.aim,
            bound = row.bound
        );
    }
}

/// Runs one workload's pairs beside so many endless loops and prints its rows.
fn measure<'a>(
    lab: &Lab,
    workload: &'a Workload,
    neighbours: usize,
    pairs: u32,
) -> Result<Vec<Measured<'a>>> {
    let packages: Vec<&str> = workload.packages.iter().map(String::as_str).collect();
    if !has_packages(&workload.name, &packages) {
        return Ok(Vec::new());
    }
    let mut measured = unmeasured(lab, workload.rows(), neighbours);
    lab.surround(neighbours)?;
    interleave(lab, |lab, transport| run_once(lab, workload, transport), pairs, &mut measured)?;
    lab.surround(0)?;
    measured.iter().for_each(Measured::print);
    Ok(measured)
}

/// One number for each row.
fn run_once(lab: &Lab, workload: &Workload, transport: Transport) -> Result<Vec<f64>> {
    let mut stage = lab.in_peace(|| Stage::set(lab, workload, transport))?;
    let figures = driver::drive(&stage)?;
    stage.check()?;
    workload.rows.iter().map(|row| row.measures.of(&figures)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_workloads_can_be_read_and_their_files_are_there() -> Result<()> {
        let folder = place::repo_root()?.join(FOLDER);
        let workloads = workloads_of(&folder)?;
        assert!(!workloads.is_empty());
        for workload in &workloads {
            for source in &workload.java {
                assert!(folder.join("java").join(source).is_file(), "{}: {source}", workload.name);
            }
            for line in workload.lines() {
                let ours = line.split_whitespace().filter_map(|it| it.split_once("{macro}/"));
                for (_, file) in ours {
                    // pgbench's weight of a script stands behind its name.
                    let file = file.split('@').next().unwrap_or(file);
                    assert!(folder.join(file).exists(), "{}: {file}", workload.name);
                }
            }
        }
        Ok(())
    }
}
