//! A record: what programs have had, a line of JSON for each interval, in a file that only grows.
//!
//! `sidestep stats --record` writes it and `sidestep report` reads it. A line is whole or not there: one that
//! the disk has no room for is taken back, and what it would have said is in the next one. A line that a
//! crash has cut, or another version has written, costs the reader this line and no other.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::activity::Activity;

/// The form of a line. A reader ignores keys that it does not know; this rises when it would be misled.
const VERSION: u32 = 1;

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    /// The end of the interval: RFC 3339, UTC.
    pub(super) at: String,
    /// Its length.
    pub(super) seconds: f64,
    /// What the programs of each name have had in it; those that have had nothing are absent.
    pub(super) programs: BTreeMap<String, Activity>,
}

/// What a file has.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// In the order of the file.
    pub(super) all: Vec<Record>,
    /// Lines that are none, or of another version.
    pub(super) unread: usize,
}

impl Record {
    /// Of an interval that ends now.
    pub(super) fn now(seconds: f64, programs: BTreeMap<String, Activity>) -> Self {
        Self { version: VERSION, at: Timestamp::now().to_string(), seconds, programs }
    }

    /// Appends it to the file, which is opened by its name each time: one that was moved away, as logrotate
    /// does, is begun anew.
    ///
    /// # Errors
    /// The file cannot be opened, another process is writing to it, or the disk is full. The file is as it was.
    pub(super) fn append(&self, path: &Path) -> io::Result<()> {
        let mut file = open(path)?;
        let len = file.metadata()?.len();
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        // A line that a crash has cut is not made longer.
        let mut last = [b'\n'];
        if len > 0 {
            file.read_exact_at(&mut last, len - 1)?;
        }
        if last != *b"\n" {
            line.insert(0, b'\n');
        }
        let written = file.write_all(&line);
        if written.is_err() {
            // If this fails as well, the reader passes over the line.
            let _ = file.set_len(len);
        }
        written
    }
}

/// Opens the file for a line more; makes it if it is not there.
///
/// # Errors
/// It cannot be opened, is no regular file, or another process is writing to it.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    // Two writers would each take back what the other has written.
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => io::Error::other("another process is writing to it"),
        error => error.into(),
    })?;
    Ok(file)
}

/// Reads a file.
///
/// # Errors
/// It cannot be read.
pub(super) fn read(path: &Path) -> io::Result<Records> {
    let text = std::fs::read(path)?;
    let mut records = Records::default();
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice::<Record>(line) {
            Ok(record) if record.version == VERSION && record.seconds > 0.0 => {
                records.all.push(record);
            }
            Ok(_) | Err(_) => records.unread += 1,
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(smc_connections: u64) -> Record {
        let activity = Activity { smc_connections, ..Activity::default() };
        Record::now(60.0, BTreeMap::from([("a \"b\"\n".to_owned(), activity)]))
    }

    #[test]
    fn lines_are_read_as_they_were_written() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("record");
        for n in [1, 2] {
            record(n).append(&path).unwrap();
        }
        let records = read(&path).unwrap();
        assert_eq!(records.unread, 0);
        let numbers = records.all.iter().map(|it| it.programs["a \"b\"\n"].smc_connections);
        assert_eq!(numbers.collect::<Vec<_>>(), [1, 2]);
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
    }

    #[test]
    fn a_cut_line_and_one_of_a_later_version_cost_no_other() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("record");
        record(1).append(&path).unwrap();
        let line = std::fs::read(&path).unwrap();
        let cut = [&line[..], &line[..20]].concat();
        std::fs::write(&path, cut).unwrap();
        record(2).append(&path).unwrap();
        let later = Record { version: VERSION + 1, ..record(3) };
        later.append(&path).unwrap();
        let records = read(&path).unwrap();
        assert_eq!((records.all.len(), records.unread), (2, 2));
    }

    /// The device has room for nothing, and is no file of which something could be taken back.
    #[test]
    fn what_is_no_file_and_what_another_writes_is_refused() {
        let refused = record(1).append(Path::new("/dev/full")).unwrap_err();
        assert_eq!(refused.to_string(), "it is no regular file");
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("record");
        let _writer = open(&path).unwrap();
        let refused = record(1).append(&path).unwrap_err();
        assert_eq!(refused.to_string(), "another process is writing to it");
    }
}
