//! The document as a file: written at the end of a measurement, read by
//! `sidestep bench report` and `sidestep bench compare`.
//!
//! The form is documented in `docs/bench-json.md`; `docs/bench-schema.json` is its
//! schema, kept equal to [`schema`] by a test.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use schemars::Schema;
use serde::Deserialize;

use crate::report::{Output, OutputError};
use crate::result::{Document, VERSION};

/// Reads a document.
///
/// # Errors
/// The file cannot be read, is not JSON, is JSON of another kind, or was written by a
/// newer Sidestep whose form this one would misread.
pub fn read(path: &Path) -> Result<Document, ReadError> {
    let text = fs::read_to_string(path)
        .map_err(|source| ReadError::Unreadable { path: path.to_owned(), source })?;
    parse(&text).map_err(|fault| fault.of(path))
}

/// Writes a document.
///
/// # Errors
/// The file cannot be written; its old contents stay.
pub fn write(document: &Document, output: &Output) -> Result<(), OutputError> {
    let mut text = serde_json::to_string_pretty(document)
        .expect("every map of a document has texts as its keys");
    text.push('\n');
    output.write(text.as_bytes())
}

/// The JSON schema of a document.
#[must_use]
pub fn schema() -> Schema {
    schemars::schema_for!(Document)
}

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum ReadError {
    #[error("{} cannot be read: {source}. Give a file written by `sidestep bench --json FILE`", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} is not valid JSON: {source}. It may have been cut short: measure again, or copy it again", .path.display())]
    NotJson { path: PathBuf, source: serde_json::Error },
    #[error("{} is JSON, but no result of a measurement: it has no `version` beside `machine` and `results`. Give a file written by `sidestep bench --json FILE`", .path.display())]
    NotADocument { path: PathBuf },
    #[error("{} is a result of version {found}, written by a newer Sidestep; this one reads version {VERSION}. Install that Sidestep, or measure again with this one", .path.display())]
    Newer { path: PathBuf, found: u64 },
    #[error("{} is a result of version {VERSION}, but not as it should be: {source}. Was it edited? docs/bench-json.md describes its form", .path.display())]
    Damaged { path: PathBuf, source: serde_json::Error },
}

/// A [`ReadError`] that does not know its file.
#[derive(Debug)]
enum Fault {
    NotJson(serde_json::Error),
    NotADocument,
    Newer(u64),
    Damaged(serde_json::Error),
}

impl Fault {
    fn of(self, path: &Path) -> ReadError {
        let path = path.to_owned();
        match self {
            Self::NotJson(source) => ReadError::NotJson { path, source },
            Self::NotADocument => ReadError::NotADocument { path },
            Self::Newer(found) => ReadError::Newer { path, found },
            Self::Damaged(source) => ReadError::Damaged { path, source },
        }
    }
}

/// The keys that tell a result from other JSON, whatever its version.
#[derive(Deserialize)]
struct Label {
    version: u64,
    #[serde(rename = "machine")]
    _machine: serde::de::IgnoredAny,
    #[serde(rename = "results")]
    _results: serde::de::IgnoredAny,
}

/// The version comes first: what is wrong in the form of a newer one is not the
/// file's fault.
fn parse(text: &str) -> Result<Document, Fault> {
    let label: Label = serde_json::from_str(text).map_err(|error| {
        if error.is_data() { Fault::NotADocument } else { Fault::NotJson(error) }
    })?;
    match label.version {
        0 => Err(Fault::NotADocument),
        version if version > u64::from(VERSION) => Err(Fault::Newer(version)),
        _ => serde_json::from_str(text).map_err(Fault::Damaged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(text: &str) -> String {
        parse(text).expect_err("not a document").of(Path::new("A.json")).to_string()
    }

    #[test]
    fn errors_name_the_file_and_say_what_to_do() {
        let cases = [
            ("", "not valid JSON"),
            ("{\"version\":1,", "not valid JSON"),
            ("[1,2]", "no result of a measurement"),
            ("{\"name\":\"package\"}", "no result of a measurement"),
            ("{\"version\":\"1\",\"machine\":{},\"results\":[]}", "no result of a measurement"),
            ("{\"version\":0,\"machine\":{},\"results\":[]}", "no result of a measurement"),
            ("{\"version\":7,\"machine\":7,\"results\":7}", "version 7, written by a newer"),
            ("{\"version\":1,\"machine\":{},\"results\":[]}", "missing field"),
        ];
        for (text, expected) in cases {
            let complaint = complaint(text);
            assert!(complaint.contains(expected), "{text}: {complaint}");
            assert!(complaint.starts_with("A.json"), "{complaint}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let complaint = read(Path::new("/nonexistent/A.json")).expect_err("absent").to_string();
        assert!(complaint.starts_with("/nonexistent/A.json cannot be read"), "{complaint}");
    }

    #[test]
    fn what_is_written_can_be_read_again() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("A.json");
        let document = Document {
            version: VERSION,
            machine: crate::result::Machine { cpus: 8, ..Default::default() },
            options: vec!["--pairs".to_owned(), "5".to_owned()],
            suite: None,
            results: Vec::new(),
            comparisons: Vec::new(),
            filtered: Vec::new(),
        };
        let output = Output::open(&path).expect("writable");
        write(&document, &output).expect("written");
        assert_eq!(read(&path).expect("read"), document);
        let with_more = fs::read_to_string(&path).expect("read").replacen('{', "{\"new\":1,", 1);
        assert_eq!(parse(&with_more).expect("what is not known is ignored"), document);
    }
}
