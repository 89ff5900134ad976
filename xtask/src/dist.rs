//! What users install: packages, made from a checkout, and tried on clean systems.
//!
//! ```text
//!   cargo build --release ──> one tree, as it will lie below /  ──> .deb, .rpm, .tar.gz, .oci.tar
//!   sidestep generate     ──>   (tree.rs)                            (deb.rs, rpm.rs, tarball.rs, oci.rs)
//!   docs/*.md             ──>   (site.rs)
//!   cargo metadata        ──> sidestep.cdx.json (sbom.rs)       ──> SHA256SUMS
//!                                                                    │
//!   mmdebstrap: Debian 12, Debian 13 ──> installed, upgraded with a connection live, purged (trial.rs)
//! ```
//!
//! Times in what is made are those of the last commit, so the same checkout and tools make the same bytes.

mod deb;
mod oci;
mod rpm;
mod sbom;
mod site;
mod tarball;
mod tree;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::bench::place;
use crate::debian;
use tree::Tree;

/// What Debian calls the only processor for which all is tested.
const DEBIAN_ARCHITECTURE: &str = "amd64";
/// The oldest C library that has every symbol which the library and the command need.
const GLIBC: &str = "2.34";

/// The arguments of `cargo xtask dist`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where the packages go [default: target/dist]
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
    /// Also install, upgrade and purge the Debian package in clean systems (needs root)
    #[arg(long = "try")]
    is_tried: bool,
    /// Number of the package among those of the same version
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    revision: u32,
}

/// What all packages of one run have in common.
struct Release {
    repo: PathBuf,
    version: String,
    revision: u32,
    /// Seconds since 1970: the time of the last commit.
    time: u64,
    out: PathBuf,
}

/// Makes all packages, and tries them if that was asked for.
///
/// **Errors**: a tool is missing or says no; a package does not do on a clean system what it must.
pub(crate) fn run(options: &Options) -> Result<()> {
    debian::ensure(&["dpkg-dev", "rpm"])?;
    super::build()?;
    let release = Release::of(options)?;
    let tree = Tree::lay(&release)?;
    let package = deb::make(&release, &tree)?;
    let archive = tarball::make(&release, &tree)?;
    let image = oci::make(&release, &tree)?;
    let packages = [package.clone(), rpm::make(&release, &tree)?, archive.clone(), image.clone()];
    sum(&release, &packages)?;
    for package in &packages {
        println!("{}", package.display());
    }
    if options.is_tried {
        oci::run(&release.repo, &release.version, &image)?;
        let next =
            Release { revision: release.revision + 1, out: release.scratch("next")?, ..release };
        let upgrade = deb::make(&next, &tree)?;
        let subjects = trial::Subjects { first: &package, next: &upgrade, archive: &archive };
        trial::run(&next.repo, &subjects)?;
    }
    Ok(())
}

impl Release {
    fn of(options: &Options) -> Result<Self> {
        let repo = place::repo_root()?;
        let out = match &options.out {
            Some(out) => out.clone(),
            None => place::scratch_dir(&repo, "dist")?,
        };
        fs::create_dir_all(&out).with_context(|| format!("creating {}", out.display()))?;
        let time =
            said_by(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(&repo))?;
        let time = time.parse().context("git has told a time that is none")?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Self { repo, version, revision: options.revision, time, out })
    }

    /// An empty directory for what is in between.
    fn scratch(&self, name: &str) -> Result<PathBuf> {
        let directory = place::target_dir(&self.repo).join("dist-work").join(name);
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir_all(&directory)
            .with_context(|| format!("creating {}", directory.display()))?;
        Ok(directory)
    }

    /// A command that takes its times from the release.
    fn tool(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env("SOURCE_DATE_EPOCH", self.time.to_string());
        command
    }
}

/// `SHA256SUMS`, as `sha256sum --check` reads it.
fn sum(release: &Release, packages: &[PathBuf]) -> Result<()> {
    let names = packages.iter().filter_map(|package| package.file_name());
    let sums = said_by(Command::new("sha256sum").args(names).current_dir(&release.out))?;
    fs::write(release.out.join("SHA256SUMS"), sums + "\n").context("writing SHA256SUMS")
}

/// What a command has printed, without space at its ends.
fn said_by(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", errors.trim());
    Ok(String::from_utf8(output.stdout).context("it has printed no text")?.trim().to_owned())
}

/// Writes a file of a package, with its directories.
fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)
            .with_context(|| format!("creating {}", directory.display()))?;
    }
    fs::write(path, content).with_context(|| format!("writing {}", path.display()))
}
