//! Packages on clean systems: the Debian package is installed, upgraded while a connection is live, and purged;
//! the archive is installed below a prefix and removed.
//!
//! A system is made by `mmdebstrap` once, and kept; each trial has a copy. In it a script
//! (`tests/e2e/packaged.sh`) does what an administrator does, and says what is not as it must be.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::said_by;
use crate::bench::place;
use crate::{debian, user};

/// Debian 12 and Debian 13.
const SUITES: [&str; 2] = ["bookworm", "trixie"];
/// What the script uses, and a system that people administer has.
const INCLUDED: [&str; 2] =
    ["--variant=minbase", "--include=python3-minimal,man-db,systemd,iproute2"];
/// Debian 11: the library is for its glibc 2.31, the command is not.
const OLD_SUITE: &str = "bullseye";
/// A program, and no package manager to keep it.
const OLD_INCLUDED: [&str; 2] =
    ["--variant=extract", "--include=libc6,libgcc-s1,coreutils,python3-minimal"];
/// Which of this machine's sources is Debian's own archive, as apt tells.
const ARCHIVE: [&str; 4] =
    ["Created-By: Packages", "Origin: Debian", "Label: Debian", "Component: main"];

/// What is tried: a package, its upgrade, and the archive.
pub(super) struct Subjects<'a> {
    pub(super) first: &'a Path,
    pub(super) next: &'a Path,
    pub(super) archive: &'a Path,
}

/// Tries them on each system.
///
/// **Errors**: a system cannot be made, or the script has found something wrong.
pub(super) fn run(repo: &Path, subjects: &Subjects<'_>) -> Result<()> {
    ensure!(user::is_root(), "--try needs root: it makes systems, and enters them");
    debian::ensure(&["mmdebstrap", "systemd-container", "lintian"])?;
    lint(subjects.first)?;
    for suite in SUITES {
        let system = System::make(repo, suite, INCLUDED)?;
        system.try_packages(repo, subjects).with_context(|| format!("on Debian {suite}"))?;
        println!("{suite}: installed, upgraded, purged");
    }
    let system = System::make(repo, OLD_SUITE, OLD_INCLUDED)?;
    let glibc = system.try_library(repo, subjects.first).context("on Debian bullseye")?;
    println!("{OLD_SUITE}: two programs of {glibc} talk through shared memory");
    Ok(())
}

/// Where this machine has its own packages from.
fn mirror() -> Result<String> {
    let said = said_by(
        Command::new("apt-get").args(["indextargets", "--format", "$(REPO_URI)"]).args(ARCHIVE),
    )?;
    let first = said.lines().next().map(str::to_owned);
    first.context(
        "apt has no source of Debian's archive here; add one to /etc/apt, and run apt-get update",
    )
}

fn lint(package: &Path) -> Result<()> {
    // Of lintian's own version depends which tags it knows.
    said_by(
        Command::new("lintian")
            .args(["--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"])
            .arg(package),
    )
    .with_context(|| format!("lintian has complaints about {}", package.display()))?;
    println!("lintian: no complaint");
    Ok(())
}

/// A copy of a fresh system, removed in the end.
struct System {
    root: PathBuf,
}

impl System {
    fn make(repo: &Path, suite: &str, included: [&str; 2]) -> Result<Self> {
        let directory = place::scratch_dir(repo, "dist-systems")?;
        let archive = directory.join(format!("{suite}.tar"));
        if !archive.exists() {
            println!("making a Debian {suite} ...");
            let unfinished = archive.with_extension("tar.new");
            said_by(
                Command::new("mmdebstrap")
                    .args(included)
                    .args(["--format=tar", suite])
                    .arg(&unfinished)
                    .arg(mirror()?),
            )?;
            fs::rename(&unfinished, &archive)?;
        }
        let system = Self { root: directory.join(suite) };
        system.clear()?;
        fs::create_dir_all(&system.root)?;
        said_by(
            Command::new("tar")
                .arg("--extract")
                .arg("--directory")
                .arg(&system.root)
                .arg("--file")
                .arg(&archive),
        )?;
        Ok(system)
    }

    fn clear(&self) -> Result<()> {
        match fs::remove_dir_all(&self.root) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", self.root.display()))
            }
            _ => Ok(()),
        }
    }

    /// Has two programs of the system talk, with the library of a package that is not installed there. Returns
    /// which C library that was.
    fn try_library(&self, repo: &Path, package: &Path) -> Result<String> {
        said_by(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&self.root))?;
        for directory in ["proc", "trial"] {
            fs::create_dir_all(self.root.join(directory))?;
        }
        let scripts = repo.join("tests/e2e");
        fs::copy(scripts.join("packaged.py"), self.root.join("trial/packaged.py"))?;
        said_by(
            Command::new("unshare")
                .args(["--mount", "--net", "timeout", "300", "sh"])
                .arg(scripts.join("old_glibc.sh"))
                .arg(&self.root),
        )
    }

    fn try_packages(&self, repo: &Path, subjects: &Subjects<'_>) -> Result<()> {
        let inside = self.root.join("trial");
        fs::create_dir(&inside)?;
        fs::copy(subjects.first, inside.join("first.deb"))?;
        fs::copy(subjects.next, inside.join("next.deb"))?;
        fs::copy(subjects.archive, inside.join("sidestep.tar.gz"))?;
        for script in ["packaged.sh", "packaged.py"] {
            fs::copy(repo.join("tests/e2e").join(script), inside.join(script))?;
        }
        let status = Command::new("systemd-nspawn")
            .env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1")
            .args([
                "--quiet",
                "--register=no",
                "--keep-unit",
                "--as-pid2",
                "--private-network",
                "--console=pipe",
            ])
            .arg(format!("--machine=sidestep-trial-{}", std::process::id()))
            .arg("--directory")
            .arg(&self.root)
            .args(["timeout", "300", "sh", "/trial/packaged.sh"])
            .stdin(Stdio::null())
            .status()
            .context("systemd-nspawn")?;
        ensure!(status.success(), "tests/e2e/packaged.sh has ended with {status}");
        Ok(())
    }
}

impl Drop for System {
    fn drop(&mut self) {
        let _ = self.clear();
    }
}
