//! The files of every package, as they lie below `/`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Release, said_by, sbom, site, write};
use crate::bench::place;

/// Units name the program where an installation by hand has it.
const BY_HAND: &str = "/usr/local/bin/";
const PACKAGED: &str = "/usr/bin/";

pub(super) const CONFIGURATION: &str = "etc/sidestep/sidestep.toml";
const DOCUMENTS: &str = "usr/share/doc/sidestep";
/// For programs in C that ask about TLS; in the checkout, and below `/usr`.
const HEADER: &str = "include/sidestep_tls.h";
const SHARED: &str = "usr/share/sidestep";
/// Below `packaging`, and below [`SHARED`].
const EXTRAS: [&str; 6] = [
    "prometheus/sidestep.rules.yml",
    "grafana/sidestep.json",
    "kubernetes/kustomization.yaml",
    "kubernetes/namespace.yaml",
    "kubernetes/daemonset.yaml",
    "kubernetes/sidestep.toml",
];
/// Below [`DOCUMENTS`].
const SITE: &str = "html";

/// Shells, and where each looks for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/sidestep"),
    ("zsh", "usr/share/zsh/vendor-completions/_sidestep"),
    ("fish", "usr/share/fish/vendor_completions.d/sidestep.fish"),
];

/// A directory with all files of a package.
pub(super) struct Tree {
    pub(super) root: PathBuf,
}

impl Tree {
    /// Lays it out anew, from what was built.
    ///
    /// **Errors**: something is not there, or cannot be written.
    pub(super) fn lay(release: &Release) -> Result<Self> {
        let tree = Self { root: release.scratch("tree")? };
        tree.programs(release)?;
        tree.generated()?;
        tree.units(&release.repo)?;
        tree.configuration(&release.repo)?;
        tree.extras(&release.repo)?;
        tree.header(&release.repo)?;
        tree.documents(release)?;
        Ok(tree)
    }

    /// Where a file of the package is now.
    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn programs(&self, release: &Release) -> Result<()> {
        let built = place::target_dir(&release.repo).join("release");
        for (name, to, mode) in [
            ("sidestep", "usr/bin/sidestep", 0o755),
            ("libsidestep.so", "usr/lib/sidestep/libsidestep.so", 0o644),
        ] {
            let to = self.at(to);
            write(
                &to,
                fs::read(built.join(name)).with_context(|| format!("{name} is not built"))?,
            )?;
            said_by(
                Command::new("strip")
                    .args(["--strip-unneeded", "--remove-section=.comment"])
                    .arg(&to),
            )?;
            fs::set_permissions(&to, fs::Permissions::from_mode(mode))?;
        }
        symlink("sidestep", self.at("usr/bin/sidestepd")).context("linking sidestepd")
    }

    fn generated(&self) -> Result<()> {
        let sidestep = self.at("usr/bin/sidestep");
        let pages = self.at("usr/share/man/man1");
        fs::create_dir_all(&pages)?;
        said_by(Command::new(&sidestep).args(["generate", "man"]).arg(&pages))?;
        for page in fs::read_dir(&pages)? {
            compress(&page?.path())?;
        }
        symlink("sidestep-agent.1.gz", pages.join("sidestepd.1.gz"))?;
        for (shell, to) in COMPLETIONS {
            let script = said_by(Command::new(&sidestep).args(["generate", "completions", shell]))?;
            write(&self.at(to), script + "\n")?;
        }
        Ok(())
    }

    fn units(&self, repo: &Path) -> Result<()> {
        for entry in fs::read_dir(repo.join("packaging"))? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let directory = match path.extension().and_then(|it| it.to_str()) {
                Some("service") => "usr/lib/systemd/system",
                Some("preset") => "usr/lib/systemd/system-preset",
                _ => continue,
            };
            write(&self.at(directory).join(name), as_packaged(&fs::read_to_string(&path)?))?;
        }
        Ok(())
    }

    fn configuration(&self, repo: &Path) -> Result<()> {
        write(&self.at(CONFIGURATION), fs::read(repo.join("packaging/sidestep.toml"))?)
    }

    fn extras(&self, repo: &Path) -> Result<()> {
        EXTRAS.iter().try_for_each(|name| {
            let file = fs::read(repo.join("packaging").join(name));
            write(&self.at(SHARED).join(name), file.with_context(|| (*name).to_owned())?)
        })
    }

    fn header(&self, repo: &Path) -> Result<()> {
        write(&self.at("usr").join(HEADER), fs::read(repo.join(HEADER))?)
    }

    fn documents(&self, release: &Release) -> Result<()> {
        let documents = self.at(DOCUMENTS);
        for entry in fs::read_dir(release.repo.join("docs"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == "md") {
                write(&documents.join(path.file_name().unwrap_or_default()), fs::read(&path)?)?;
            }
        }
        let site = site::make(release)?;
        said_by(Command::new("cp").arg("--recursive").arg(site).arg(documents.join(SITE)))?;
        write(&documents.join("changelog"), fs::read(release.repo.join("CHANGELOG.md"))?)?;
        compress(&documents.join("changelog"))?;
        write(
            &documents.join("copyright"),
            fs::read(release.repo.join("packaging/debian/copyright"))?,
        )?;
        write(&documents.join("sidestep.cdx.json"), sbom::of(release)?)
    }
}

/// A unit for the place where a package has the program, without what it says about another one.
fn as_packaged(unit: &str) -> String {
    let lines = unit.lines().filter_map(|line| {
        if line.starts_with("# Install as ") {
            return None;
        }
        let line = line.split_once(" Install as ").map_or(line, |(kept, _)| kept);
        Some(line.replace(BY_HAND, PACKAGED) + "\n")
    });
    lines.collect()
}

/// Puts the file with `.gz` behind its name in its place.
pub(super) fn compress(path: &Path) -> Result<()> {
    said_by(Command::new("gzip").args(["-9", "--no-name", "--force"]).arg(path)).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_name_the_packaged_program_only() {
        let unit = "# The agent (docs/agent.md). Install as /etc/systemd/system/a.service.\n\
                    [Service]\nExecStart=/usr/local/bin/sidestep agent\n";
        let wanted = "# The agent (docs/agent.md).\n[Service]\nExecStart=/usr/bin/sidestep agent\n";
        assert_eq!(as_packaged(unit), wanted);
        assert_eq!(as_packaged("# A host.\n# Install as /etc/x.\n[Unit]\n"), "# A host.\n[Unit]\n");
    }
}
