//! The RPM package, by `rpmbuild`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::tree::{CONFIGURATION, Tree};
use super::{GLIBC, Release, said_by, write};

const ARCHITECTURE: &str = "x86_64";

/// Makes it; returns where it is.
///
/// **Errors**: a file cannot be written, or `rpmbuild` says no.
pub(super) fn make(release: &Release, tree: &Tree) -> Result<PathBuf> {
    let work = release.scratch("rpm")?;
    let specification = work.join("sidestep.spec");
    write(&specification, text(release, tree)?)?;
    said_by(
        release
            .tool("rpmbuild")
            .args(["-bb", "--quiet", "--target", ARCHITECTURE])
            .args(["--define", &format!("_topdir {}", work.display())])
            .args(["--define", "_build_id_links none"])
            .args(["--define", "use_source_date_epoch_as_buildtime 1"])
            .args(["--define", "clamp_mtime_to_source_date_epoch 1"])
            .arg(&specification),
    )?;
    let name = format!("sidestep-{}-{}.{ARCHITECTURE}.rpm", release.version, release.revision);
    let package = release.out.join(&name);
    fs::copy(work.join("RPMS").join(ARCHITECTURE).join(&name), &package)
        .context("rpmbuild has left no package")?;
    Ok(package)
}

/// The specification: the lines of `packaging/rpm/sidestep.spec` between what this run knows.
fn text(release: &Release, tree: &Tree) -> Result<String> {
    let lines = fs::read_to_string(release.repo.join("packaging/rpm/sidestep.spec"))?;
    Ok(lines
        .replace("@VERSION@", &release.version)
        .replace("@REVISION@", &release.revision.to_string())
        .replace("@GLIBC@", GLIBC)
        .replace("@CONFIGURATION@", CONFIGURATION)
        .replace("@TREE@", &tree.root.display().to_string()))
}
