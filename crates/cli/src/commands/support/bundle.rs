//! The archive: a tar, compressed by gzip, with one directory.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, Header};

/// A bundle that is being written.
pub(super) struct Bundle {
    archive: Builder<GzEncoder<File>>,
    directory: String,
    time: u64,
}

impl Bundle {
    /// Begins one, which its owner alone may read. What is there already stays.
    ///
    /// # Errors
    /// There is such a file, or there can be none.
    pub(super) fn create(path: &Path, directory: &str) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let archive = Builder::new(GzEncoder::new(file, Compression::default()));
        Ok(Self { archive, directory: directory.to_owned(), time: time.as_secs() })
    }

    /// Adds a file.
    pub(super) fn add(&mut self, name: &str, text: &str) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.time);
        let path = format!("{}/{name}", self.directory);
        self.archive.append_data(&mut header, path, text.as_bytes())
    }

    /// Ends it.
    pub(super) fn finish(self) -> io::Result<()> {
        self.archive.into_inner()?.finish()?.sync_all()
    }
}
