//! Which file a command name means, found the way a shell finds it.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a command name leads to nothing that can be executed.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum ProgramError {
    /// The name has no slash, and no directory of PATH has such a file.
    #[error("{}: not found in PATH ({}){}", name.display(), path_variable.display(), unquoted(name))]
    NotInPath { name: OsString, path_variable: OsString },
    /// The name is a path, and there is nothing.
    #[error("{}: no such file", .0.display())]
    NoSuchFile(PathBuf),
    /// There is something, but not for executing, or not for this user.
    #[error("{}: {reason}", path.display())]
    NotExecutable { path: PathBuf, reason: &'static str },
}

/// What to say of a name that is a whole command line.
fn unquoted(name: &OsStr) -> &'static str {
    match name.as_bytes().contains(&b' ') {
        true => "; without quotation marks around it, its words are the program and its arguments",
        false => "",
    }
}

/// The file that `name` means: itself if it has a slash, else the first executable one in the
/// directories of `path_variable`, the value of PATH.
///
/// # Errors
///
/// [`ProgramError::NotExecutable`] if a file was found but none that may be executed; the other
/// two if none was found.
pub(crate) fn find(name: &OsStr, path_variable: Option<&OsStr>) -> Result<PathBuf, ProgramError> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match refusal(&path) {
            None => Ok(path),
            Some(Refusal::Absent) => Err(ProgramError::NoSuchFile(path)),
            Some(Refusal::Unreachable) => Err(ProgramError::NotExecutable {
                path,
                reason: "a directory on the way to it may not be searched",
            }),
            Some(Refusal::NotExecutable(reason)) => {
                Err(ProgramError::NotExecutable { path, reason })
            }
        };
    }

    // What the C library searches when PATH is not set.
    let path_variable = path_variable.unwrap_or(OsStr::new("/bin:/usr/bin"));
    let mut not_executable = None;
    for directory in std::env::split_paths(path_variable) {
        // An empty entry is the working directory; the path needs a slash to be taken as one.
        let path = if directory.as_os_str().is_empty() {
            Path::new(".").join(name)
        } else {
            directory.join(name)
        };
        match refusal(&path) {
            None => return Ok(path),
            // A directory of another user in PATH says nothing about the name.
            Some(Refusal::Absent | Refusal::Unreachable) => {}
            Some(Refusal::NotExecutable(reason)) => {
                not_executable.get_or_insert(ProgramError::NotExecutable { path, reason });
            }
        }
    }
    Err(not_executable.unwrap_or_else(|| ProgramError::NotInPath {
        name: name.to_owned(),
        path_variable: path_variable.to_owned(),
    }))
}

enum Refusal {
    Absent,
    Unreachable,
    NotExecutable(&'static str),
}

fn refusal(path: &Path) -> Option<Refusal> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Some(Refusal::Unreachable)
        }
        Err(_) => Some(Refusal::Absent),
        Ok(metadata) if metadata.is_dir() => Some(Refusal::NotExecutable("is a directory")),
        Ok(_) if !may_execute(path) => Some(Refusal::NotExecutable(
            "is not executable; allow it with `chmod +x`, or name the interpreter first",
        )),
        Ok(_) => None,
    }
}

fn may_execute(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: `path` is a C string that outlives the call.
    let result =
        unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) };
    result == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(directory: &Path, name: &str, mode: u32) -> PathBuf {
        let path = directory.join(name);
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn the_first_executable_file_in_path_wins() {
        let first = tempfile::tempdir().unwrap();
        let second = tempfile::tempdir().unwrap();
        let path_variable = std::env::join_paths([first.path(), second.path()]).unwrap();
        let find = |name: &str| find(name.as_ref(), Some(&path_variable));

        let plain = file(first.path(), "a", 0o644);
        assert!(matches!(
            find("a"),
            Err(ProgramError::NotExecutable { path, .. }) if path == plain
        ));
        let executable = file(second.path(), "a", 0o755);
        assert_eq!(find("a"), Ok(executable));
        assert!(matches!(find("b"), Err(ProgramError::NotInPath { .. })));
    }

    #[test]
    fn a_name_with_a_slash_is_a_path() {
        let directory = tempfile::tempdir().unwrap();
        let executable = file(directory.path(), "a", 0o755);
        let find = |path: &Path| find(path.as_os_str(), None);
        assert_eq!(find(&executable), Ok(executable.clone()));
        let missing = directory.path().join("b");
        assert_eq!(find(&missing), Err(ProgramError::NoSuchFile(missing)));
        assert!(matches!(
            find(directory.path()),
            Err(ProgramError::NotExecutable { reason: "is a directory", .. })
        ));
    }

    #[test]
    fn an_unset_path_means_the_standard_directories() {
        assert!(find("sh".as_ref(), None).is_ok());
    }
}
