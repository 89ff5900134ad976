//! The report: a table for the terminal, a page for all other readers, and the
//! document itself as a file.
//!
//! ```text
//!   result::Document ──┬── table   lines for a terminal
//!                      ├── html    one page, with charts ── chart, scale, page
//!                      └── json    the file that `bench report` reads again
//!          foreign, block, finding, units: what both show in the same words
//! ```
//!
//! Everything here is a function of documents: nothing looks at a clock, a terminal
//! or the environment. A document may come from a stranger's file, so its texts are
//! cleaned and escaped, and its figures may be anything that a number can be.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

mod block;
mod chart;
mod contention;
mod finding;
mod foreign;
pub mod html;
pub mod json;
pub mod page;
mod scale;
pub mod table;
mod units;

/// A file that will be written when the measurement is over.
///
/// That it can be written is found out before: see [`Output::open`].
#[derive(Debug)]
pub struct Output {
    /// Symbolic links resolved, as far as there is a file.
    path: PathBuf,
    /// The file is replaced as a whole; otherwise (a pipe, a terminal) it is written to.
    replace: bool,
}

impl Output {
    /// Makes sure that the file can be written, and leaves it as it is: a file that
    /// exists is neither emptied nor touched, one that does not is not made.
    ///
    /// # Errors
    /// It is a directory, or cannot be written or replaced.
    pub fn open(path: &Path) -> Result<Self, OutputError> {
        let output = Self::aim(path)?;
        if output.replace {
            drop(output.draft()?);
        }
        Ok(output)
    }

    /// Replaces what the file holds. A reader finds the old contents or the new, never
    /// a part of them.
    ///
    /// # Errors
    /// It cannot be written; the old contents stay.
    pub fn write(&self, contents: &[u8]) -> Result<(), OutputError> {
        if !self.replace {
            let written = OpenOptions::new()
                .write(true)
                .open(&self.path)
                .and_then(|mut file| file.write_all(contents));
            return written.map_err(|source| self.unwritable(source));
        }
        let mut draft = self.draft()?;
        draft
            .write_all(contents)
            .and_then(|()| draft.as_file().sync_all())
            .map_err(|source| self.unwritable(source))?;
        draft.persist(&self.path).map_err(|failed| self.unwritable(failed.error))?;
        Ok(())
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn aim(path: &Path) -> Result<Self, OutputError> {
        let unwritable = |source| OutputError::Unwritable { path: path.to_owned(), source };
        let found = match fs::metadata(path) {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { path: path.to_owned(), replace: true });
            }
            found => found.map_err(unwritable)?,
        };
        if found.is_dir() {
            return Err(OutputError::Directory { path: path.to_owned() });
        }
        // A redirected `/dev/stdout` is a regular file too, but one that others have open.
        if !found.is_file() || LIVE_PLACES.iter().any(|place| path.starts_with(place)) {
            return Ok(Self { path: path.to_owned(), replace: false });
        }
        OpenOptions::new().write(true).open(path).map_err(unwritable)?;
        let path = path.canonicalize().map_err(unwritable)?;
        Ok(Self { path, replace: true })
    }

    /// An empty file in the same directory, so that renaming it cannot need a copy.
    fn draft(&self) -> Result<NamedTempFile, OutputError> {
        let directory = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        Builder::new()
            .prefix(".sidestep-bench-")
            .permissions(Permissions::from_mode(BEFORE_UMASK))
            .tempfile_in(directory)
            .map_err(|source| self.unwritable(source))
    }

    fn unwritable(&self, source: io::Error) -> OutputError {
        OutputError::Unwritable { path: self.path.clone(), source }
    }
}

/// Why a file cannot be written.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum OutputError {
    #[error("{} is a directory: name a file in it, such as {}", .path.display(), .path.join("bench.json").display())]
    Directory { path: PathBuf },
    #[error("{} cannot be written: {source}. Name another file, or a directory that exists and is yours", .path.display())]
    Unwritable { path: PathBuf, source: io::Error },
}

/// Files here are names of something that is open elsewhere.
const LIVE_PLACES: [&str; 2] = ["/dev", "/proc"];

/// What `open` gives a new file before the umask.
const BEFORE_UMASK: u32 = 0o666;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_leaves_everything_as_it_is() {
        let place = tempfile::tempdir().expect("a directory");
        let (old, new) = (place.path().join("old"), place.path().join("new"));
        fs::write(&old, "precious").expect("written");
        Output::open(&old).expect("writable");
        Output::open(&new).expect("writable");
        assert_eq!(fs::read(&old).expect("read"), b"precious");
        assert_eq!(fs::read_dir(place.path()).expect("listed").count(), 1);
    }

    #[test]
    fn writing_replaces_the_file_and_leaves_no_draft() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("out");
        fs::write(&path, "something longer than what follows").expect("written");
        Output::open(&path).expect("writable").write(b"short").expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"short");
        assert_eq!(fs::read_dir(place.path()).expect("listed").count(), 1);
    }

    #[test]
    fn a_symbolic_link_stays_one() {
        let place = tempfile::tempdir().expect("a directory");
        let (target, link) = (place.path().join("target"), place.path().join("link"));
        fs::write(&target, "old").expect("written");
        std::os::unix::fs::symlink(&target, &link).expect("linked");
        Output::open(&link).expect("writable").write(b"new").expect("written");
        assert!(link.is_symlink());
        assert_eq!(fs::read(&target).expect("read"), b"new");
    }

    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        use std::os::unix::fs::FileTypeExt as _;
        let output = Output::open(Path::new("/dev/null")).expect("writable");
        output.write(b"gone").expect("written");
        assert!(fs::metadata("/dev/null").expect("there").file_type().is_char_device());
    }

    #[test]
    fn what_cannot_be_written_is_found_before_the_measurement() {
        let place = tempfile::tempdir().expect("a directory");
        let absent = Output::open(&place.path().join("absent/out.json")).expect_err("no directory");
        assert!(absent.to_string().contains("Name another file"), "{absent}");
        let directory = Output::open(place.path()).expect_err("a directory");
        assert!(directory.to_string().contains("bench.json"), "{directory}");
    }
}
