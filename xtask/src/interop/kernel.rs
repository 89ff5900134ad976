//! Debian's kernel of a series, taken out of its package without being installed.
//!
//! Why [`SMC_SERIES`] for SMC: rdma_rxe carries SMC-R since 6.12 or so (that of 6.1 does not), it is the kernel of
//! Debian 13, and Debian 12 has it among its security updates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::debian;
use crate::suite::Lacking;

/// The series whose kernel is a peer.
pub(crate) const SMC_SERIES: &str = "6.12";
/// Signed or not, the files are the same; this package does without the tools for booting securely.
const SUFFIX: &str = "-amd64-unsigned";
/// Kernels for clouds lack RDMA, those for real time behave otherwise.
const NOT: [&str; 2] = ["cloud", "-rt-"];

/// What we take out: the kernel, its list of modules, and the directories in which ours are. Debian 13
/// has them below `usr`.
const WANTED: [&str; 7] = [
    "boot/vmlinuz-*",
    "lib/modules/*/modules.order",
    "lib/modules/*/kernel/crypto/*",
    "lib/modules/*/kernel/drivers/infiniband/*",
    "lib/modules/*/kernel/drivers/net/*net*",
    "lib/modules/*/kernel/drivers/net/veth*",
    "lib/modules/*/kernel/net/*",
];

/// An unpacked kernel.
pub(crate) struct Kernel {
    /// The name of its package.
    pub(crate) package: String,
    /// The file that a machine boots.
    pub(crate) image: PathBuf,
    /// `/lib/modules/VERSION`.
    modules: PathBuf,
}

impl Kernel {
    /// The one of this series (`6.12`) in `cache`, or the newest that apt knows, which is then there.
    ///
    /// **Errors**: [`Lacking`]: there is none to be had.
    pub(crate) fn get(series: &str, cache: &Path) -> Result<Self> {
        let prefix = prefix(series);
        let cached =
            fs::read_dir(cache)?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let cached = cached.filter(|name| name.starts_with(&prefix) && name.ends_with(SUFFIX));
        let package = match cached.max_by_key(|name| debian::number_behind(&prefix, name)) {
            Some(package) => package,
            None => {
                fetch(series, cache).map_err(|error| Lacking(format!("a kernel: {error:#}")))?
            }
        };
        let root = cache.join(&package);
        let image = only_entry(&root.join("boot"))?;
        let merged = root.join("usr/lib/modules");
        let modules = if merged.is_dir() { merged } else { root.join("lib/modules") };
        let modules = only_entry(&modules)?;
        Ok(Self { package, image, modules })
    }

    /// Where the files of all modules are, by what `modules.order` says of each, as in
    /// `kernel/net/smc/smc.ko`.
    pub(crate) fn module_paths(&self) -> Result<Vec<String>> {
        let order = fs::read_to_string(self.modules.join("modules.order"))?;
        Ok(order.lines().map(str::to_owned).collect())
    }

    /// A module's bytes.
    ///
    /// **Errors**: it was not taken out of the package, or cannot be unpacked.
    pub(crate) fn module(&self, path: &str) -> Result<Vec<u8>> {
        // Linux 6.1 of Debian 12 has them as they are.
        let plain = self.modules.join(path);
        if plain.exists() {
            return fs::read(&plain).with_context(|| plain.display().to_string());
        }
        let file = self.modules.join(format!("{path}.xz"));
        let output = Command::new("xz").arg("-dc").arg(&file).output().context("xz")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}", file.display(), errors.trim());
        Ok(output.stdout)
    }
}

fn prefix(series: &str) -> String {
    format!("linux-image-{series}.")
}

/// Downloads and unpacks the newest kernel, and returns its name.
fn fetch(series: &str, cache: &Path) -> Result<String> {
    let newest = || debian::newest(&prefix(series), SUFFIX, &NOT);
    let package = match newest() {
        Some(package) => package,
        None => {
            debian::update()?;
            newest().with_context(|| format!("apt knows no Linux {series}"))?
        }
    };
    println!("downloading {package} (100 MB) ...");
    // Elsewhere until it is complete.
    let scratch = cache.join("unpacking");
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir(&scratch)?;
    let file = debian::download(&package, &scratch)?;
    unpack(&file, &scratch)?;
    fs::remove_file(&file)?;
    fs::rename(&scratch, cache.join(&package))?;
    Ok(package)
}

fn unpack(package: &Path, into: &Path) -> Result<()> {
    let mut reader = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdout(Stdio::piped())
        .spawn()
        .context("dpkg-deb")?;
    let tar = reader.stdout.take().context("dpkg-deb without output")?;
    let unpacked = Command::new("tar")
        .args(["--extract", "--wildcards", "--no-anchored", "--directory"])
        .arg(into)
        .args(WANTED)
        .stdin(tar)
        .output()
        .context("tar")?;
    let read = reader.wait()?;
    let errors = String::from_utf8_lossy(&unpacked.stderr);
    ensure!(unpacked.status.success() && read.success(), "unpacking: {}", errors.trim());
    Ok(())
}

fn only_entry(directory: &Path) -> Result<PathBuf> {
    let mut entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    match (entries.next().transpose()?, entries.next()) {
        (Some(entry), None) => Ok(entry.path()),
        _ => bail!("{} has not exactly one entry; remove it", directory.display()),
    }
}
