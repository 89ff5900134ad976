//! Programs and libraries for guests, which have no disk and no C library: archives, handed out by the
//! host over the network.
//!
//! ```text
//!   host                                                  guest
//!   programs, what they are linked with ── NAME.tar ─ http │
//!   packages of libibverbs ────────────── library.tar ─ http  unpacked at /
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::guest::Guest;
use super::image;
use super::lan::{Lan, Member};
use crate::bench::launch::{self, Program};
use crate::debian;
use crate::suite::{HANG, Lacking};

/// libibverbs, its drivers, and what it uses; none of it is installed on the host.
const PACKAGES: [&str; 4] =
    ["libibverbs1", "ibverbs-providers", "libnl-3-200", "libnl-route-3-200"];

/// libibverbs and its drivers, for [`take`].
pub(super) const LIBRARY: &str = "library";

/// Where the host hands archives out.
const PORT: u16 = 5_001;
/// Archives, in a directory.
pub(super) struct Kit(PathBuf);

impl Kit {
    /// One with [`LIBRARY`], whose packages are fetched unless they are there.
    ///
    /// **Errors**: [`Lacking`], if the packages cannot be had.
    pub(super) fn gather(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let kit = Self(directory.to_owned());
        if !kit.archive(LIBRARY).exists() {
            let fetched = kit.fetch_library();
            fetched.map_err(|error| Lacking(format!("libibverbs for guests: {error:#}")))?;
        }
        Ok(kit)
    }

    /// One without it.
    pub(super) fn bare(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)?;
        Ok(Self(directory.to_owned()))
    }

    fn fetch_library(&self) -> Result<()> {
        let root = self.empty(LIBRARY)?;
        for package in PACKAGES {
            let scratch = self.empty("package")?;
            let file = debian::download(package, &scratch).or_else(|_| {
                debian::update()?;
                debian::download(package, &scratch)
            })?;
            let mut unpack = Command::new("dpkg-deb");
            unpack.arg("-x").arg(&file).arg(&root);
            launch::run(unpack, HANG)?;
        }
        self.pack(LIBRARY)
    }

    /// Adds an archive of files that will be in the directory of its name, with the libraries that
    /// they are linked with.
    pub(super) fn add(&self, name: &str, files: &[PathBuf]) -> Result<()> {
        let root = self.empty(name)?;
        for file in files {
            copy(file, &root.join(name).join(file.file_name().context("a file has a name")?))?;
            for library in image::libraries(file)? {
                copy(&library, &root.join(library.strip_prefix("/")?))?;
            }
        }
        self.pack(name)
    }

    /// A new directory.
    fn empty(&self, name: &str) -> Result<PathBuf> {
        let directory = self.0.join(name);
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir(&directory)?;
        Ok(directory)
    }

    /// Under another name until it is complete.
    fn pack(&self, name: &str) -> Result<()> {
        let unfinished = self.0.join("unfinished.tar");
        let mut pack = Command::new("tar");
        pack.arg("-c").arg("-f").arg(&unfinished).arg("-C").arg(self.0.join(name)).arg(".");
        launch::run(pack, HANG)?;
        Ok(fs::rename(&unfinished, self.archive(name))?)
    }

    fn archive(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.tar"))
    }

    /// Serves the archives to guests, until dropped.
    pub(super) fn hand_out(&self, lan: &Lan) -> Result<Program> {
        let mut command = Command::new("busybox");
        command.args(["httpd", "-f", "-p", &PORT.to_string(), "-h"]).arg(&self.0);
        lan.enclose(&mut command);
        let mut program = Program::start(command, &self.0)?;
        program.await_listener(PORT)?;
        Ok(program)
    }
}

/// Lets a guest fetch and unpack an archive.
pub(super) fn take(guest: &mut Guest, name: &str) -> Result<()> {
    let url = format!("http://{}:{PORT}/{name}.tar", Member::HOST.v4());
    let unpack = format!("busybox wget -q -O - {url} | busybox tar -x -C / -f -");
    let script = format!("export PATH=/bin; set -o pipefail; {unpack}");
    guest.run(&["sh", "-c", &script]).with_context(|| name.to_owned()).map(drop)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file in a directory")?)?;
    // What a link leads to.
    fs::copy(from, to).with_context(|| from.display().to_string()).map(drop)
}
