//! A container image, made by hand: no registry, and no other tool than `tar` and `sha256sum`.
//!
//! ```text
//!   oci-layout    "this is one"
//!   index.json ──> manifest ──> config      what is run; the layer's digest before it was compressed
//!                          └──> layer       the tree of the packages, and the C library that the command needs
//! ```
//!
//! Each is a file that is called by the digest of its bytes (`blobs/sha256/…`), as the
//! [image layout](https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md) says. The image has no shell and
//! no package manager: the command, the library for other containers, and what these need.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::tree::Tree;
use super::{Release, said_by, write};
use crate::bench::place;
use crate::user;

/// What this architecture is called there.
const ARCHITECTURE: &str = "amd64";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// Of the tree of the packages what a container has no use for: pages, completions, units, headers, the site.
const LEFT_OUT: [&str; 8] = [
    "./usr/share/man",
    "./usr/share/bash-completion",
    "./usr/share/zsh",
    "./usr/share/fish",
    "./usr/share/doc/sidestep/html",
    "./usr/share/sidestep",
    "./usr/include",
    "./usr/lib/systemd",
];
/// The licences of the C library, which every Debian has.
const LICENCES: &str = "usr/share/doc/libc6/copyright";

/// Makes it; returns where it is.
///
/// **Errors**: a file cannot be written, or `tar` says no.
pub(super) fn make(release: &Release, tree: &Tree) -> Result<PathBuf> {
    let work = release.scratch("oci")?;
    let layout = work.join("layout");
    let plain = work.join("layer.tar");
    lay_root(release, tree, &work.join("root"))?;
    pack(release, &work.join("root"), &plain)?;
    let before = digest(&plain)?;
    said_by(release.tool("gzip").args(["-9", "--no-name", "--force"]).arg(&plain))?;
    let layer = Blob::of_file(&layout, &plain.with_extension("tar.gz"), LAYER)?;
    let config = Blob::of_json(&layout, &config(release, &before)?, CONFIG)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.descriptor(),
        "layers": [layer.descriptor()],
    });
    let mut listed = Blob::of_json(&layout, &manifest, MANIFEST)?.descriptor();
    // podman loads it under this name.
    let name = format!("sidestep:{}", release.version);
    listed["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    let index = json!({ "schemaVersion": 2, "manifests": [listed] });
    write(&layout.join("index.json"), index.to_string())?;
    write(&layout.join("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;
    let archive =
        release.out.join(format!("sidestep-{}-linux-{ARCHITECTURE}.oci.tar", release.version));
    pack(release, &layout, &archive)?;
    Ok(archive)
}

/// Runs it by podman.
///
/// **Errors**: it does not run, or does not say what it is.
pub(super) fn run(repo: &Path, version: &str, image: &Path) -> Result<()> {
    if let Some(missing) = place::first_missing(&["podman", "crun", "unshare"]) {
        println!("image: not run, for there is no {missing}");
        return Ok(());
    }
    ensure!(user::is_root(), "--try needs root: it runs an image");
    let scratch = place::scratch_dir(repo, "dist-image")?;
    let mut script = Command::new("unshare");
    script.args(["--mount", "timeout", "120", "sh"]).arg(repo.join("tests/e2e/image.sh"));
    script.arg(image).arg(&scratch).arg(version);
    let said = said_by(&mut script);
    fs::remove_dir_all(&scratch)?;
    println!("image: {}", said?);
    Ok(())
}

/// What the layer has: the packages' files, and the libraries that the command is linked with, where it looks for them.
fn lay_root(release: &Release, tree: &Tree, root: &Path) -> Result<()> {
    said_by(release.tool("cp").arg("--archive").arg(&tree.root).arg(root))?;
    for directory in ["tmp", "run", "proc", "sys", "dev"] {
        fs::create_dir_all(root.join(directory))?;
    }
    for library in libraries(&tree.at("usr/bin/sidestep"))? {
        let to = root.join(library.strip_prefix("/").unwrap_or(&library));
        // What a link leads to, under the name of the link.
        write(&to, fs::read(&library)?)?;
        fs::set_permissions(&to, fs::metadata(&library)?.permissions())?;
    }
    write(
        &root.join("usr/share/doc/sidestep/copyright.libc6"),
        fs::read(Path::new("/").join(LICENCES))?,
    )
}

/// The loader and the libraries of a program.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let said = said_by(Command::new("ldd").arg(program))?;
    let paths = said.split_whitespace().filter(|word| word.starts_with('/'));
    let found: BTreeSet<PathBuf> = paths.map(PathBuf::from).collect();
    ensure!(!found.is_empty(), "ldd names no library: {said}");
    Ok(found)
}

/// The files of a directory in their order, of root, with the time of the release.
fn pack(release: &Release, directory: &Path, archive: &Path) -> Result<()> {
    let left_out = LEFT_OUT.iter().map(|path| format!("--exclude={path}"));
    said_by(
        release
            .tool("tar")
            .args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
            .args(["--mtime", &format!("@{}", release.time)])
            .args(left_out)
            .arg("--directory")
            .arg(directory)
            .arg("--file")
            .arg(archive)
            .arg("."),
    )?;
    Ok(())
}

fn config(release: &Release, layer: &str) -> Result<Value> {
    let time = format!("--date=@{}", release.time);
    let created = said_by(Command::new("date").args(["--utc", &time, "+%Y-%m-%dT%H:%M:%SZ"]))?;
    Ok(json!({
        "created": created,
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/sidestep"],
            "Cmd": ["--help"],
            "Env": ["PATH=/usr/bin"],
            "Labels": {
                "org.opencontainers.image.title": "sidestep",
                "org.opencontainers.image.version": release.version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer}")] },
    }))
}

/// A file that is called by its digest.
struct Blob {
    digest: String,
    len: u64,
    kind: &'static str,
}

impl Blob {
    fn of_file(layout: &Path, file: &Path, kind: &'static str) -> Result<Self> {
        let (digest, content) = (digest(file)?, fs::read(file)?);
        let len = content.len() as u64;
        write(&layout.join("blobs/sha256").join(&digest), content)?;
        Ok(Self { digest, len, kind })
    }

    fn of_json(layout: &Path, content: &Value, kind: &'static str) -> Result<Self> {
        let file = layout.with_extension("json");
        write(&file, content.to_string())?;
        Self::of_file(layout, &file, kind)
    }

    /// How others refer to it.
    fn descriptor(&self) -> Value {
        json!({ "mediaType": self.kind, "digest": format!("sha256:{}", self.digest), "size": self.len })
    }
}

fn digest(file: &Path) -> Result<String> {
    let said = said_by(Command::new("sha256sum").arg(file))?;
    said.split_whitespace().next().map(str::to_owned).context("sha256sum has said nothing")
}
