//! Where `libsidestep.so` is, and how it gets into `LD_PRELOAD`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The environment variable by which the dynamic loader is told to load us first.
pub(crate) const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// The environment variable that names another library than the one installed beside us.
const LIBRARY_VARIABLE: &str = "SIDESTEP_LIBRARY";

const LIBRARY_NAME: &str = "libsidestep.so";

/// Why there is no library to preload.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum LibraryError {
    /// None of the usual places has it.
    #[error("libsidestep.so not found; looked for {}", list(looked_at))]
    NotFound { looked_at: Vec<PathBuf> },
    /// `$SIDESTEP_LIBRARY` is set and wrong.
    #[error("${LIBRARY_VARIABLE} names {}, which is not a file", .0.display())]
    OverrideMissing(PathBuf),
    /// `LD_PRELOAD` has no way to quote these characters.
    #[error("{} has a space, a colon or a `$` in its path, which LD_PRELOAD cannot hold", .0.display())]
    Unspeakable(PathBuf),
}

impl LibraryError {
    /// What to do about it.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => {
                "in the source tree, build it with `cargo build --release`; otherwise install \
                 sidestep again, or name the library in $SIDESTEP_LIBRARY"
            }
            Self::OverrideMissing(_) => {
                "correct the variable, or unset it to use the library that belongs to sidestep"
            }
            Self::Unspeakable(_) => "move it, or name a copy elsewhere in $SIDESTEP_LIBRARY",
        }
    }
}

/// The absolute path of the library to preload.
///
/// # Errors
///
/// See [`LibraryError`].
pub(crate) fn find() -> Result<PathBuf, LibraryError> {
    // Without /proc the executable is unknown, and only $SIDESTEP_LIBRARY can help.
    let executable = std::env::current_exe().unwrap_or_default();
    let directory = executable.parent().unwrap_or(Path::new("/"));
    find_from(std::env::var_os(LIBRARY_VARIABLE), directory)
}

/// The library that `override_path` names, or else the one for the program in
/// `executable_directory`.
fn find_from(
    override_path: Option<OsString>,
    executable_directory: &Path,
) -> Result<PathBuf, LibraryError> {
    let library = match override_path.filter(|path| !path.is_empty()) {
        Some(path) => {
            let path = PathBuf::from(path);
            // Relative paths would change their meaning when the program changes directory.
            let path = std::path::absolute(&path).unwrap_or(path);
            if !path.is_file() {
                return Err(LibraryError::OverrideMissing(path));
            }
            path
        }
        None => {
            let places = usual_places(executable_directory);
            let found = places.iter().find(|path| path.is_file()).cloned();
            found.ok_or(LibraryError::NotFound { looked_at: places })?
        }
    };
    let speakable = |&byte: &u8| byte > b' ' && byte != b':' && byte != b'$';
    if !library.as_os_str().as_bytes().iter().all(speakable) {
        return Err(LibraryError::Unspeakable(library));
    }
    Ok(library)
}

/// The build tree first, then the prefix of an installation.
fn usual_places(executable_directory: &Path) -> Vec<PathBuf> {
    let prefix = executable_directory.parent();
    let installed = prefix.into_iter().flat_map(|prefix| {
        let lib = prefix.join("lib");
        [lib.join("sidestep").join(LIBRARY_NAME), lib.join(LIBRARY_NAME)]
    });
    [executable_directory.join(LIBRARY_NAME)].into_iter().chain(installed).collect()
}

/// The value of `LD_PRELOAD` that loads `library` before everything in `existing`.
///
/// Another Sidestep library in `existing` is left out: two of them in one process would both
/// answer for the same descriptors.
pub(crate) fn preload_value(library: &Path, existing: Option<&OsStr>) -> OsString {
    let existing = existing.unwrap_or_default().as_bytes();
    let is_separator = |byte: &u8| matches!(byte, b':' | b' ');
    let separator = existing.iter().copied().find(is_separator).unwrap_or(b':');

    let mut value = library.as_os_str().to_owned();
    for entry in existing.split(is_separator) {
        let entry = OsStr::from_bytes(entry);
        if entry.is_empty() || Path::new(entry).file_name() == Some(LIBRARY_NAME.as_ref()) {
            continue;
        }
        value.push(OsStr::from_bytes(&[separator]));
        value.push(entry);
    }
    value
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with `bin/` and the library in `place`, if any.
    fn prefix(place: Option<&str>) -> tempfile::TempDir {
        let prefix = tempfile::tempdir().unwrap();
        std::fs::create_dir(prefix.path().join("bin")).unwrap();
        if let Some(place) = place {
            let directory = prefix.path().join(place);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join(LIBRARY_NAME), "").unwrap();
        }
        prefix
    }

    #[test]
    fn build_tree_and_installed_prefixes_are_searched() {
        for place in ["bin", "lib/sidestep", "lib"] {
            let prefix = prefix(Some(place));
            let found = find_from(None, &prefix.path().join("bin"));
            assert_eq!(found, Ok(prefix.path().join(place).join(LIBRARY_NAME)));
        }
    }

    #[test]
    fn a_missing_library_says_where_it_was_looked_for() {
        let prefix = prefix(None);
        let text = find_from(None, &prefix.path().join("bin")).unwrap_err().to_string();
        for place in ["bin", "lib/sidestep", "lib"] {
            let path = prefix.path().join(place).join(LIBRARY_NAME);
            assert!(text.contains(path.to_str().unwrap()), "{text}");
        }
    }

    #[test]
    fn an_override_must_exist() {
        let prefix = prefix(Some("bin"));
        let bin = prefix.path().join("bin");
        let other = prefix.path().join("other.so");
        let missing = find_from(Some(other.clone().into()), &bin);
        assert_eq!(missing, Err(LibraryError::OverrideMissing(other.clone())));
        std::fs::write(&other, "").unwrap();
        assert_eq!(find_from(Some(other.clone().into()), &bin), Ok(other));
        assert!(find_from(Some("".into()), &bin).is_ok());
    }

    #[test]
    fn a_path_that_ld_preload_would_split_is_refused() {
        for name in ["a b.so", "a:b.so", "$LIB.so"] {
            let prefix = prefix(None);
            let path = prefix.path().join(name);
            std::fs::write(&path, "").unwrap();
            let found = find_from(Some(path.clone().into()), prefix.path());
            assert_eq!(found, Err(LibraryError::Unspeakable(path)));
        }
    }

    #[test]
    fn other_preloads_are_kept_behind_ours() {
        let value = |existing: &str| {
            let value = preload_value(Path::new("/l/libsidestep.so"), Some(existing.as_ref()));
            value.into_string().unwrap()
        };
        assert_eq!(value(""), "/l/libsidestep.so");
        assert_eq!(value("/a.so"), "/l/libsidestep.so:/a.so");
        assert_eq!(value("/a.so:b.so"), "/l/libsidestep.so:/a.so:b.so");
        assert_eq!(value("/a.so b.so"), "/l/libsidestep.so /a.so b.so");
        assert_eq!(value(":/a.so::"), "/l/libsidestep.so:/a.so");
        assert_eq!(value("/l/libsidestep.so:/a.so:/old/libsidestep.so"), "/l/libsidestep.so:/a.so");
    }
}
