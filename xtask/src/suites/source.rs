//! Source packages of Debian, where the tests of its programs are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::suite::Lacking;

/// Where a Debian machine says from where its own packages come, and the words in it
/// that become "source packages, please".
const ORIGINS: [(&str, &str, &str); 2] = [
    ("/etc/apt/sources.list.d/debian.sources", "Types: deb\n", "Types: deb-src\n"),
    ("/etc/apt/sources.list", "deb ", "deb-src "),
];

/// The unpacked source of a binary package, of the same version, below `scratch`.
///
/// Fetched once, by a configuration of apt's that is ours alone, so that the
/// machine's is left as it is and nobody needs to be root.
///
/// **Errors**: [`Lacking`], if it cannot be had from here.
pub(super) fn unpacked(package: &str, version: &str, scratch: &Path) -> Result<PathBuf> {
    let place = scratch.join("sources").join(format!("{package}-{version}").replace(':', "-"));
    let source = place.join("source");
    if source.is_dir() {
        return Ok(source);
    }
    fs::create_dir_all(place.join("lists/partial"))?;
    let sources = write_sources(&place)?;
    apt_get(&place, &sources, &["update"])?;
    apt_get(&place, &sources, &["source", &format!("{package}={version}")])?;
    fs::rename(unpacked_in(&place)?, &source)?;
    Ok(source)
}

fn write_sources(place: &Path) -> Result<PathBuf> {
    for (origin, binary, source) in ORIGINS {
        let Ok(text) = fs::read_to_string(origin) else { continue };
        let Some(name) = Path::new(origin).file_name() else { continue };
        let file = place.join(name);
        fs::write(&file, text.replace(binary, source))?;
        return Ok(file);
    }
    Err(Lacking("Debian's list of package sources".to_owned()).into())
}

fn apt_get(place: &Path, sources: &Path, words: &[&str]) -> Result<()> {
    let ours = [
        format!("Dir::Etc::SourceList={}", sources.display()),
        "Dir::Etc::SourceParts=/dev/null".to_owned(),
        format!("Dir::State::Lists={}", place.join("lists").display()),
        format!("Dir::Cache={}", place.display()),
    ];
    let output = Command::new("apt-get")
        .current_dir(place)
        .args(ours.iter().flat_map(|option| ["-o", option]))
        .args(words)
        .output()
        .context("apt-get")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), Lacking(format!("apt-get {}: {errors}", words.join(" "))));
    Ok(())
}

/// The one directory that unpacking has left: it holds a `debian`.
fn unpacked_in(place: &Path) -> Result<PathBuf> {
    fs::read_dir(place)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.join("debian").is_dir())
        .with_context(|| format!("nothing was unpacked in {}", place.display()))
}
