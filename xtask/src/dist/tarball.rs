//! The archive for other systems, with a script that installs below a prefix.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::Result;

use super::tree::Tree;
use super::{Release, said_by, write};

/// Makes it; returns where it is.
///
/// **Errors**: a file cannot be written, or `tar` says no.
pub(super) fn make(release: &Release, tree: &Tree) -> Result<PathBuf> {
    let name = format!("sidestep-{}-linux-x86_64", release.version);
    let work = release.scratch("tarball")?;
    let root = work.join(&name);
    said_by(release.tool("cp").arg("--archive").arg(&tree.root).arg(&root))?;
    for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        write(&root.join(file), fs::read(release.repo.join(file))?)?;
    }
    let script = root.join("install.sh");
    write(&script, fs::read(release.repo.join("packaging/install.sh"))?)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let archive = release.out.join(format!("{name}.tar.gz"));
    said_by(
        release
            .tool("tar")
            .args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
            .args(["--mtime", &format!("@{}", release.time), "--use-compress-program", "gzip -9n"])
            .arg("--directory")
            .arg(&work)
            .arg("--file")
            .arg(&archive)
            .arg(&name),
    )?;
    Ok(archive)
}
