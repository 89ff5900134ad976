//! The Debian package, by `dpkg-deb`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::tree::{CONFIGURATION, Tree, compress};
use super::{DEBIAN_ARCHITECTURE, GLIBC, Release, said_by, write};

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Makes it; returns where it is.
///
/// **Errors**: a file cannot be written, or `dpkg-deb` says no.
pub(super) fn make(release: &Release, tree: &Tree) -> Result<PathBuf> {
    let version = format!("{}-{}", release.version, release.revision);
    let root = release.scratch("deb")?.join("root");
    said_by(release.tool("cp").arg("--archive").arg(&tree.root).arg(&root))?;
    let changelog = root.join("usr/share/doc/sidestep/changelog.Debian");
    write(&changelog, changes(release, &version)?)?;
    compress(&changelog)?;
    let overrides = fs::read(release.repo.join("packaging/debian/lintian-overrides"))?;
    write(&root.join("usr/share/lintian/overrides/sidestep"), overrides)?;

    let kib = said_by(
        release.tool("du").args(["--summarize", "--apparent-size", "--block-size=1024"]).arg(&root),
    )?;
    let kib = kib.split_whitespace().next().context("du has told no size")?;
    let control = root.join("DEBIAN");
    write(&control.join("control"), fields(&version, kib))?;
    write(&control.join("conffiles"), format!("/{CONFIGURATION}\n"))?;
    for script in SCRIPTS {
        let to = control.join(script);
        write(&to, fs::read(release.repo.join("packaging/debian").join(script))?)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    }
    let package = release.out.join(format!("sidestep_{version}_{DEBIAN_ARCHITECTURE}.deb"));
    said_by(
        release.tool("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&root).arg(&package),
    )?;
    Ok(package)
}

fn fields(version: &str, kib: &str) -> String {
    format!(
        "Package: sidestep\n\
         Version: {version}\n\
         Architecture: {DEBIAN_ARCHITECTURE}\n\
         Maintainer: Sidestep maintainers <maintainers@sidestep.invalid>\n\
         Installed-Size: {kib}\n\
         Depends: libc6 (>= {GLIBC}), libgcc-s1\n\
         Suggests: libibverbs1\n\
         Section: net\n\
         Priority: optional\n\
         Description: TCP programs over shared memory and RDMA, unmodified\n\
         \x20Sidestep moves the TCP connections of unmodified programs to shared memory\n\
         \x20within a host (SMC-D) and to RDMA between hosts (SMC-R, RFC 7609), with plain\n\
         \x20TCP wherever that is not possible. It needs no kernel module.\n\
         \x20.\n\
         \x20This package has the command, the library that it preloads, and units for the\n\
         \x20agent, the gateway, IP filters and VIPs. None of them is enabled.\n"
    )
}

fn changes(release: &Release, version: &str) -> Result<String> {
    let date = said_by(
        release
            .tool("date")
            .args(["--utc", "--rfc-email", "--date"])
            .arg(format!("@{}", release.time)),
    )?;
    Ok(format!(
        "sidestep ({version}) unstable; urgency=medium\n\n  * Changes of this version: \
         /usr/share/doc/sidestep/changelog.gz\n\n -- Sidestep maintainers <maintainers@sidestep.invalid>  {date}\n"
    ))
}
