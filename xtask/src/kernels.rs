//! `cargo xtask kernels`: the BPF programs of the IP filter load in older kernels, and do there what they do here.
//!
//! What the verifier takes differs from kernel to kernel. So the tests of the filter run in virtual machines with
//! Debian's kernels, one after the other, emulated as those of [`crate::interop`] are, but without a network
//! and with a script as process 1. Of other series there are no packages for this machine, and a name of one is an
//! argument: `cargo xtask kernels 5.15`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::bench::launch;
use crate::bench::place::{self, find_command};
use crate::debian;
use crate::interop::image;
use crate::interop::kernel::Kernel;
use crate::suite::{self, Lacking, Summary};

/// Options of `cargo xtask kernels`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Series of kernels
    #[arg(value_name = "SERIES", default_values = ["6.1", "6.12"])]
    series: Vec<String>,
}

/// The tests, by what their file begins with, and which of them.
const TESTS: [(&str, &str); 2] = [("sidestep_bpf-", "filter"), ("filter-", "")];

/// What the tests of forwarded packets make hosts' interfaces of.
const MODULES: [&str; 1] = ["veth"];

/// A test that takes seconds takes minutes on a processor that is emulated.
const PATIENCE: Duration = Duration::from_secs(1200);

/// Runs the tests in each; the last line is `N passed, N failed, N skipped`.
///
/// **Errors**: one failed.
pub(crate) fn run(options: &Options) -> Result<()> {
    let repo = place::repo_root()?;
    let scratch = place::scratch_dir(&repo, "sidestep-interop")?;
    let tests = build_tests()?;
    let mut summary = Summary::default();
    for series in &options.series {
        let outcome = suite::play(&[], || run_in(series, &scratch, &tests));
        summary.add("filter", series, outcome);
    }
    summary.conclude("kernel", None)
}

/// Their files, in the order of [`TESTS`].
fn build_tests() -> Result<Vec<PathBuf>> {
    let output = Command::new("cargo")
        .args(["test", "--package", "sidestep-bpf", "--lib", "--test", "filter", "--no-run"])
        .args(["--quiet", "--message-format", "json"])
        .output()
        .context("cargo")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout)?;
    let files: Vec<PathBuf> = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
        .collect();
    let of = |(begin, _): (&str, &str)| {
        let is_it = |file: &&PathBuf| {
            file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begin))
        };
        files.iter().find(is_it).cloned().with_context(|| format!("no {begin}… was built"))
    };
    TESTS.into_iter().map(of).collect()
}

fn run_in(series: &str, scratch: &Path, tests: &[PathBuf]) -> Result<String> {
    debian::ensure(&["qemu-system-x86", "busybox-static", "xz-utils"])
        .map_err(|error| Lacking(format!("{error:#}")))?;
    let kernel = Kernel::get(series, scratch)?;
    let busybox = find_command("busybox").context("no busybox")?;
    let names = ["tests-0", "tests-1"];
    // That of busybox makes no pairs of interfaces.
    let ip = find_command("ip").context("no ip")?;
    let tests = names.into_iter().zip(tests.iter().map(PathBuf::as_path));
    let programs: Vec<(&str, &Path)> = tests.chain([("ip", ip.as_path())]).collect();
    let initramfs = scratch.join("kernels.cpio");
    image::write_plain(&initramfs, &kernel, &MODULES, &busybox, &programs, &script(&names))?;
    let console = scratch.join(format!("kernels-{series}.console"));
    launch::run(machine(&kernel.image, &initramfs, &console), PATIENCE)?;
    let said = String::from_utf8_lossy(&fs::read(&console)?).into_owned();
    let (passed, skipped) =
        passed(&said).map_err(|error| error.context(console.display().to_string()))?;
    Ok(format!("{}: {passed} tests, of which {skipped} need a later kernel", kernel.package))
}

/// What process 1 does.
fn script(names: &[&str]) -> String {
    let tests = names.iter().zip(TESTS);
    let tests: String = tests
        .map(|(name, (_, only))| format!("/{name} {only} --test-threads=1 --nocapture\n"))
        .collect();
    format!(
        "#!/bin/busybox sh\n\
         /bin/busybox --install -s /bin\n\
         export PATH=/:/bin\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sys /sys\n\
         mount -t devtmpfs dev /dev\n\
         mount -t tmpfs tmp /tmp\n\
         mount -t cgroup2 none /sys/fs/cgroup\n\
         for module in $(cat /modules/list); do insmod /modules/$module; done\n\
         ip link set lo up\n\
         {tests}\
         poweroff -f\n"
    )
}

fn machine(kernel: &Path, initramfs: &Path, console: &Path) -> Command {
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-accel", "tcg", "-machine", "pc", "-cpu", "max", "-m", "1024", "-smp", "1"])
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", "console=ttyS0 quiet panic=-1 no_timer_check"]);
    command
}

/// How many tests have passed, if all have, and how many of them only said that forwarded packets need a later kernel. Where
/// another was skipped, something was lacking that a kernel should have.
fn passed(console: &str) -> Result<(usize, usize)> {
    let (later, lacking): (Vec<&str>, Vec<&str>) = console
        .lines()
        .filter_map(|line| line.split_once("skipped: ").map(|(_, reason)| reason))
        .partition(|reason| reason.contains("Linux 6.6"));
    if let Some(reason) = lacking.first() {
        bail!("skipped: {reason}");
    }
    let results: Vec<&str> =
        console.lines().filter_map(|line| line.trim().strip_prefix("test result: ")).collect();
    ensure!(results.len() == TESTS.len(), "it has not come to its end");
    let counts = results.iter().map(|result| {
        let count = result.strip_prefix("ok. ").and_then(|rest| rest.split(' ').next());
        count.and_then(|count| count.parse::<usize>().ok()).with_context(|| (*result).to_owned())
    });
    Ok((counts.sum::<Result<usize>>()?, later.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_stopped_or_skipped_has_not_passed() {
        let ok = "test result: ok. 3 passed; 0 failed; 0 ignored";
        assert_eq!(passed(&format!("x\r\n{ok}\r\n{ok}\r\n")).unwrap(), (6, 0));
        let later = "test a ... skipped: forwarded packets need Linux 6.6";
        assert_eq!(passed(&format!("{later}\n{ok}\n{ok}")).unwrap(), (6, 1));
        assert!(passed(ok).is_err());
        assert!(passed(&format!("{ok}\ntest result: FAILED. 2 passed; 1 failed")).is_err());
        assert!(passed(&format!("skipped: no cgroup2\n{ok}\n{ok}")).is_err());
    }
}
