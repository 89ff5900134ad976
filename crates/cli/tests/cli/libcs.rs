//! The C libraries that the library is for: what it asks a program's loader for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use goblin::elf::sym::STB_GLOBAL;
use goblin::elf::symver::VerdefSection;
use goblin::elf::{Elf, Sym};

use crate::talk;

/// The oldest release of glibc that has all names, as docs/installing.md says.
const OLDEST_GLIBC: Version = (2, 17);

/// A release of glibc, without the third number.
type Version = (u32, u32);

/// The names that a loader has to find, lest it refuses the program.
fn needed_names(library: &Elf<'_>) -> Vec<String> {
    let needed = library.dynsyms.iter().filter(Sym::is_import);
    let needed = needed.filter(|name| name.st_bind() == STB_GLOBAL);
    needed.map(|name| library.dynstrtab.get_at(name.st_name).unwrap().to_owned()).collect()
}

/// The names that a libc has, each with the release by which it has been there. That of musl is always the same.
fn names_of(libc: &Elf<'_>) -> BTreeMap<String, Version> {
    let text = |at| libc.dynstrtab.get_at(at).unwrap_or_default();
    let versions = libc.verdef.iter().flat_map(VerdefSection::iter);
    let versions: BTreeMap<u16, Version> = versions
        .filter_map(|version| {
            Some((version.vd_ndx, release(text(version.iter().next()?.vda_name))?))
        })
        .collect();
    let mut names = BTreeMap::new();
    for (index, name) in libc.dynsyms.iter().enumerate().filter(|(_, name)| !name.is_import()) {
        let version = libc.versym.as_ref().and_then(|section| section.get_at(index));
        let Some(since) = version.map_or(Some((0, 0)), |own| versions.get(&own.version()).copied())
        else {
            continue;
        };
        let known = names.entry(text(name.st_name).to_owned()).or_insert(since);
        *known = since.min(*known);
    }
    names
}

/// `GLIBC_2.17`, or with a third number.
fn release(version: &str) -> Option<Version> {
    let mut numbers = version.strip_prefix("GLIBC_")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The files of this test's libc, which is glibc: the loader has names, too.
fn glibc() -> Vec<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let files: BTreeSet<&Path> =
        maps.lines().filter_map(|line| line.split_whitespace().last()).map(Path::new).collect();
    let is_of_glibc = |file: &&Path| {
        let name = file.file_name().unwrap_or_default().as_encoded_bytes();
        name == b"libc.so.6" || name.starts_with(b"ld-linux")
    };
    files.into_iter().filter(is_of_glibc).map(PathBuf::from).collect()
}

/// Names that the library needs and a libc of these files does not have, or has not had for long enough.
fn lacking(library: &Path, libc: &[PathBuf], is_had: impl Fn(Version) -> bool) -> Vec<String> {
    let mut had = BTreeMap::new();
    for file in libc {
        had.extend(names_of(&Elf::parse(&fs::read(file).unwrap()).unwrap()));
    }
    let library = fs::read(library).unwrap();
    let needed = needed_names(&Elf::parse(&library).unwrap());
    assert!(needed.iter().any(|name| name == "memmove"), "{needed:?}");
    let lacks = |name: &String| !had.get(name).copied().is_some_and(&is_had);
    needed.into_iter().filter(lacks).collect()
}

#[test]
fn the_library_asks_for_files_that_every_libc_has() {
    let Some(library) = talk::library() else { return };
    let bytes = fs::read(library).unwrap();
    let elf = Elf::parse(&bytes).unwrap();
    assert_eq!(elf.libraries, ["libc.so.6", "libpthread.so.0", "libdl.so.2"]);
    assert!(elf.verneed.is_none(), "it asks for versions of names");
}

#[test]
fn its_names_are_in_old_releases_of_glibc() {
    let Some(library) = talk::library() else { return };
    let missing = lacking(library, &glibc(), |since| since <= OLDEST_GLIBC);
    assert!(missing.is_empty(), "not in glibc {OLDEST_GLIBC:?}: {missing:?}");
}

/// glibc answers a name without a version by its oldest function. That is for programs of the time before it was
/// mended or made faster, so it has to be today's, too.
#[test]
fn the_oldest_function_of_each_name_is_that_of_today() {
    /// Rust's library looks by it for files of debug information, and does without.
    const NOT_MISSED: &str = "realpath";
    let Some(library) = talk::library() else { return };
    let library = fs::read(library).unwrap();
    let needed = needed_names(&Elf::parse(&library).unwrap());
    let is_needed = |name: &str| name != NOT_MISSED && needed.iter().any(|it| it == name);
    for file in glibc() {
        let bytes = fs::read(&file).unwrap();
        let libc = Elf::parse(&bytes).unwrap();
        let mut functions: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
        for function in libc.dynsyms.iter().filter(|it| !it.is_import()) {
            let name = libc.dynstrtab.get_at(function.st_name).unwrap_or_default();
            functions.entry(name).or_default().insert(function.st_value);
        }
        let several = functions.iter().filter(|(name, at)| is_needed(name) && at.len() > 1);
        let several: Vec<_> = several.map(|(name, _)| name).collect();
        assert!(several.is_empty(), "{}: another function of old: {several:?}", file.display());
    }
}

#[test]
fn its_names_are_in_musl() {
    let Some(library) = talk::library() else { return };
    let musl = PathBuf::from("/lib").join(format!("ld-musl-{}.so.1", std::env::consts::ARCH));
    if !musl.exists() {
        println!("skipped: musl is not installed");
        return;
    }
    let missing = lacking(library, &[musl], |_| true);
    assert!(missing.is_empty(), "not in musl: {missing:?}");
}
