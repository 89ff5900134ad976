//! Packages of Debian that are unpacked and not installed: sources, where the tests of
//! its programs are, and headers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::prepare;
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
    once(package, version, scratch, |place, ours| {
        apt_get(place, &[ours, &["source", &format!("{package}={version}")]].concat())?;
        // The one directory that unpacking has left.
        let source = place.join("source");
        fs::rename(find(place, |path| path.join("debian").is_dir())?, &source)?;
        Ok(source)
    })
}

/// A source that was unpacked before, or else what `fetch` unpacks with options of apt's, after lists were fetched.
fn once(
    package: &str,
    version: &str,
    scratch: &Path,
    fetch: impl FnOnce(&Path, &[&str]) -> Result<PathBuf>,
) -> Result<PathBuf> {
    let place = place_of(package, version, scratch);
    let source = place.join("source");
    if source.is_dir() {
        return Ok(source);
    }
    fs::create_dir_all(place.join("lists/partial"))?;
    let ours = our_configuration(&place)?;
    let ours: Vec<&str> = ours.iter().flat_map(|option| ["-o", option]).collect();
    apt_get(&place, &[&ours[..], &["update"]].concat())?;
    fetch(&place, &ours)
}

/// The unpacked source of a package as its authors published it, without Debian's changes, below `scratch`.
///
/// For tests of which Debian's changes are no part. What authors published as one version Debian has under
/// several of its own, and which of these can still be had changes: the first one that can is taken.
///
/// **Errors**: as of [`unpacked`].
pub(super) fn upstream(package: &str, version: &str, scratch: &Path) -> Result<PathBuf> {
    once(package, version, scratch, |place, ours| {
        let mut refusal = Lacking(format!("source package {package} {version}")).into();
        for theirs in versions(package, version, ours)? {
            let wanted = format!("{package}={theirs}");
            let words = ["source", "--download-only", "--tar-only", &wanted];
            match apt_get(place, &[ours, &words].concat()) {
                Ok(()) => return unpack(place),
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    })
}

/// The versions under which Debian has a version of a package's authors.
fn versions(package: &str, version: &str, ours: &[&str]) -> Result<Vec<String>> {
    let output = Command::new("apt-cache").args(ours).args(["showsrc", package]).output();
    let text = String::from_utf8(output.context("apt-cache")?.stdout)?;
    let all = text.lines().filter_map(|line| line.strip_prefix("Version: "));
    Ok(all.filter(|theirs| is_of(theirs, version)).map(str::to_owned).collect())
}

/// `1:25.2.3+dfsg-1+deb12u4` is of 25.2.3, and so is `3.1.7+really3.1.2-0+deb12u1` of 3.1.2.
fn is_of(theirs: &str, version: &str) -> bool {
    let end = |rest: &str| rest.starts_with(['-', '+']);
    theirs.rsplit_once(version).is_some_and(|(_, rest)| end(rest))
}

/// Unpacks the one archive of the authors' that lies in a place, without the directory around it.
fn unpack(place: &Path) -> Result<PathBuf> {
    let archive = find(place, |path| path.to_string_lossy().contains(".orig.tar."))?;
    let (half, source) = (place.join("half"), place.join("source"));
    fs::create_dir_all(&half)?;
    let strip = "--strip-components=1";
    prepare(
        Command::new("tar")
            .args(["--extract", strip, "--directory"])
            .args([&half])
            .arg("--file")
            .arg(archive),
    )?;
    fs::rename(half, &source)?;
    Ok(source)
}

/// The files of a binary package, in the same way.
///
/// **Errors**: as of [`unpacked`].
pub(super) fn binary(package: &str, version: &str, scratch: &Path) -> Result<PathBuf> {
    let place = place_of(package, version, scratch);
    let files = place.join("files");
    if files.is_dir() {
        return Ok(files);
    }
    fs::create_dir_all(&place)?;
    apt_get(&place, &["download", &format!("{package}={version}")])?;
    let archive = find(&place, |path| path.extension().is_some_and(|it| it == "deb"))?;
    prepare(Command::new("dpkg-deb").arg("--extract").args([&archive, &files]))?;
    Ok(files)
}

fn place_of(package: &str, version: &str, scratch: &Path) -> PathBuf {
    scratch.join("sources").join(format!("{package}-{version}").replace(':', "-"))
}

/// Options that make apt know source packages, and keep what it knows in `place`.
fn our_configuration(place: &Path) -> Result<[String; 4]> {
    Ok([
        format!("Dir::Etc::SourceList={}", write_sources(place)?.display()),
        "Dir::Etc::SourceParts=/dev/null".to_owned(),
        format!("Dir::State::Lists={}", place.join("lists").display()),
        format!("Dir::Cache={}", place.display()),
    ])
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

fn apt_get(place: &Path, words: &[&str]) -> Result<()> {
    let output = Command::new("apt-get").current_dir(place).args(words).output();
    let output = output.context("apt-get")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), Lacking(format!("apt-get {}: {errors}", words.join(" "))));
    Ok(())
}

fn find(place: &Path, is_it: impl Fn(&Path) -> bool) -> Result<PathBuf> {
    fs::read_dir(place)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| is_it(path))
        .with_context(|| format!("nothing was unpacked in {}", place.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_authors() {
        assert!(is_of("1:25.2.3+dfsg-1+deb12u4", "25.2.3"));
        assert!(is_of("3.1.7+really3.1.2-0+deb12u1", "3.1.2"));
        assert!(is_of("2.6.12-1+deb12u3", "2.6.12"));
        assert!(!is_of("2.6.12-1+deb12u3", "2.6.1"));
        assert!(!is_of("2.6.13-1", "2.6.12"));
    }
}
