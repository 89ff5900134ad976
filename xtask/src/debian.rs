//! Debian packages of the programs that tests, demo and benchmarks run.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::bench::place::find_command;

/// Every package that any of our commands uses.
pub(crate) const ALL: &[&str] =
    &["redis-server", "sockperf", "iperf3", "nginx-light", "curl", "gcc"];

/// Installs those of `packages` whose commands are missing; does and says
/// nothing when there are none.
///
/// **Errors**: they cannot be installed from here; the text says what to do.
pub(crate) fn ensure(packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = packages.iter().copied().filter(|it| !is_there(it)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("installing {} ...", missing.join(" "));
    if let Err(error) = install(&missing) {
        bail!("{error:#}; as root, run: apt-get install {}", missing.join(" "));
    }
    Ok(())
}

/// A package's presence is seen by its command, whoever installed it, or by a file.
fn is_there(package: &str) -> bool {
    match package {
        "libpython3.11-testsuite" => Path::new("/usr/lib/python3.11/test/__main__.py").is_file(),
        "libevent-dev" => Path::new("/usr/include/event.h").is_file(),
        "dpkg-dev" => find_command("dpkg-source").is_some(),
        "nginx-light" => find_command("nginx").is_some(),
        "tcl" => find_command("tclsh").is_some(),
        same_name => find_command(same_name).is_some(),
    }
}

fn install(packages: &[&str]) -> Result<()> {
    if find_command("apt-get").is_none() {
        bail!("this machine has no apt-get");
    }
    let prefix = root_prefix()?;
    let mut install = [&["install", "-y", "--no-install-recommends"], packages].concat();
    if packages.contains(&"gcc") {
        // Only a recommendation of gcc, but nothing compiles without it.
        install.push("libc6-dev");
    }
    // With package lists too old or absent the first try fails.
    if apt_get(prefix, &install).is_err() {
        apt_get(prefix, &["update"])?;
        apt_get(prefix, &install)?;
    }
    Ok(())
}

/// The words that make a command run as root.
fn root_prefix() -> Result<&'static [&'static str]> {
    // SAFETY: geteuid() takes nothing and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        return Ok(&[]);
    }
    // -n: never asks for a password; a test that waits for one would hang.
    let sudo = Command::new("sudo").args(["-n", "true"]).output();
    if sudo.is_ok_and(|output| output.status.success()) {
        return Ok(&["sudo", "-n"]);
    }
    bail!("installing packages needs root or sudo without a password")
}

fn apt_get(prefix: &[&str], args: &[&str]) -> Result<()> {
    // RUNLEVEL=1 keeps freshly installed servers from being started where
    // invoke-rc.d does it: only their programs are wanted.
    let environment = ["env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get", "-q"];
    let words = [prefix, &environment, args].concat();
    let output = Command::new(words[0]).args(&words[1..]).output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("apt-get {}: {}", args.join(" "), errors.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_needs_no_installing() {
        // There is no package of this name: trying to install it would fail.
        assert!(ensure(&["sh"]).is_ok());
    }
}
