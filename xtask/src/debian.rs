//! Debian packages of the programs that tests, demo and benchmarks run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::bench::place::find_command;
use crate::user;

/// Where PostgreSQL's own commands are; those on PATH are wrappers.
pub(crate) const POSTGRESQL: &str = "/usr/lib/postgresql/15/bin";

/// Every package that any of our commands uses.
pub(crate) const ALL: &[&str] =
    &["redis-server", "sockperf", "iperf3", "nginx-light", "curl", "gcc"];

/// What some end-to-end tests need, and not every machine can have.
const FOR_SOME: [&str; 9] = [
    "musl-tools",
    "liburing-dev",
    "gcc-multilib",
    "caddy",
    "iproute2",
    "nftables",
    "systemd-container",
    "tshark",
    "wrk",
];

/// Installs what the end-to-end tests need; without some of it, some are skipped.
///
/// **Errors**: as for [`ensure`].
pub(crate) fn ensure_for_e2e() -> Result<()> {
    for package in FOR_SOME {
        if let Err(error) = ensure(&[package]) {
            println!("{error:#}");
        }
    }
    ensure(ALL)
}

/// Installs those of `packages` whose commands are missing; does and says
/// nothing when there are none.
///
/// **Errors**: they cannot be installed from here; the text says what to do.
pub(crate) fn ensure(packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> =
        packages.iter().copied().filter(|it| find_command(command_of(it)).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("installing {} ...", missing.join(" "));
    if let Err(error) = install(&missing) {
        bail!("{error:#}; as root, run: apt-get install {}", missing.join(" "));
    }
    Ok(())
}

/// The command, or the whole path of a file, by which a package's presence is
/// seen, whoever installed it.
fn command_of(package: &str) -> &str {
    match package {
        "bsdutils" => "script",
        "busybox-static" => "busybox",
        "dpkg-dev" => "dpkg-source",
        "libmemcached-tools" => "memcaslap",
        "erlang-base" => "erlc",
        "erlang-common-test" => "ct_run",
        "gcc-multilib" => "/usr/lib32/libc.so",
        "iproute2" => "ip",
        "iputils-ping" => "ping",
        "libevent-dev" => "/usr/include/event.h",
        "libpostgresql-jdbc-java" => "/usr/share/java/postgresql.jar",
        "libpython3.11-testsuite" => "/usr/lib/python3.11/test/__main__.py",
        "mariadb-client" => "mariadb",
        "mariadb-server" => "mariadbd",
        "liburing-dev" => "/usr/include/liburing.h",
        "maven" => "mvn",
        "mosquitto-clients" => "mosquitto_pub",
        "musl-tools" => "musl-gcc",
        "netcat-openbsd" => "nc.openbsd",
        "nftables" => "nft",
        "nginx-light" => "nginx",
        "nodejs" => "node",
        "openjdk-17-jdk-headless" => "javac",
        "openssh-client" => "scp",
        "openssh-server" => "sshd",
        "postgresql-15" => "/usr/lib/postgresql/15/bin/postgres",
        "python3-pip" => "/usr/lib/python3/dist-packages/pip/__main__.py",
        "python3-pyftpdlib" => "/usr/lib/python3/dist-packages/pyftpdlib/__main__.py",
        "qemu-system-x86" => "qemu-system-x86_64",
        "redis-tools" => "redis-benchmark",
        "python3-twisted" => "trial3",
        "gnutls-bin" => "gnutls-cli",
        "rsyslog" => "rsyslogd",
        "rsyslog-gnutls" => "/usr/lib/x86_64-linux-gnu/rsyslog/lmnsd_gtls.so",
        "rsyslog-openssl" => "/usr/lib/x86_64-linux-gnu/rsyslog/lmnsd_ossl.so",
        "rsyslog-relp" => "/usr/lib/x86_64-linux-gnu/rsyslog/omrelp.so",
        "systemd-container" => "systemd-nspawn",
        "thrift-compiler" => "thrift",
        "tcl" => "tclsh",
        "tcl8.6" => "tclsh8.6",
        "varnish" => "varnishtest",
        "xz-utils" => "xz",
        same_name => same_name,
    }
}

/// The version of a package, if it was installed as one.
pub(crate) fn version(package: &str) -> Option<String> {
    let output = Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]).output();
    let output = output.ok().filter(|output| output.status.success())?;
    let version = String::from_utf8(output.stdout).ok()?;
    (!version.is_empty()).then_some(version)
}

/// The newest package whose name matches a regular expression of apt's and contains none of `not`:
/// the one of the highest number behind `prefix`. With package lists absent, none.
pub(crate) fn newest(prefix: &str, suffix: &str, not: &[&str]) -> Option<String> {
    let pattern = format!("^{}[0-9]+.*{suffix}$", prefix.replace('.', "[.]"));
    let output = Command::new("apt-cache").args(["search", "--names-only", &pattern]).output();
    let names = String::from_utf8(output.ok()?.stdout).ok()?;
    let names = names.lines().filter_map(|line| line.split(' ').next());
    let wanted = names.filter(|name| not.iter().all(|it| !name.contains(it)));
    wanted.max_by_key(|name| number_behind(prefix, name)).map(str::to_owned)
}

/// 107 for `linux-image-6.12.107+deb12-amd64` behind `linux-image-6.12.`.
pub(crate) fn number_behind(prefix: &str, name: &str) -> Option<u32> {
    let rest = name.strip_prefix(prefix)?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Fetches a package into a directory, without installing it.
///
/// **Errors**: apt's.
pub(crate) fn download(package: &str, directory: &Path) -> Result<PathBuf> {
    let output = Command::new("apt-get")
        .args(["-q", "download", package])
        .current_dir(directory)
        .output()
        .context("apt-get")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("apt-get download {package}: {}", errors.trim());
    }
    let files = fs::read_dir(directory)?.flatten().map(|entry| entry.path());
    let mut packages = files.filter(|file| file.extension().is_some_and(|it| it == "deb"));
    packages.next().with_context(|| format!("apt-get has left no {package}"))
}

/// Brings the lists of packages up to date.
///
/// **Errors**: we may not, or nothing can be reached.
pub(crate) fn update() -> Result<()> {
    apt_get(root_prefix()?, &["update"])
}

fn install(packages: &[&str]) -> Result<()> {
    if find_command("apt-get").is_none() {
        bail!("this machine has no apt-get");
    }
    let prefix = root_prefix()?;
    // --no-remove: what stands in the way of a package is worth more than a test.
    // Another job that installs something is waited for.
    let options = [
        "install",
        "-y",
        "--no-install-recommends",
        "--no-remove",
        "-o",
        "DPkg::Lock::Timeout=300",
    ];
    let mut install = [&options, packages].concat();
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
    if user::is_root() {
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
    fn kernels_are_compared_by_their_numbers() {
        let number = |name| number_behind("linux-image-6.12.", name);
        assert_eq!(number("linux-image-6.12.107+deb12-amd64-unsigned"), Some(107));
        assert!(number("linux-image-6.12.9-amd64") < number("linux-image-6.12.48+deb13-amd64"));
        assert_eq!(number("linux-image-6.12-amd64"), None);
    }

    #[test]
    fn what_is_there_needs_no_installing() {
        // There is no package of this name: trying to install it would fail.
        assert!(ensure(&["sh"]).is_ok());
    }
}
