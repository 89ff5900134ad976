//! The files of the agent's sockets: made where nothing is lost, and gone with the agent.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The file of a socket of ours; a call there would find no agent, so it goes with this.
pub(super) struct SocketFile(pub(super) PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// What is there is not ours to replace.
#[derive(Debug, Error)]
#[error("there is a file of this name that is no socket; use another path")]
pub(super) struct NoSocket;

/// Removes the socket of an agent that was killed. One that an agent serves stays: binding
/// tells.
pub(super) fn make_room(path: &Path) -> Result<(), NoSocket> {
    let Ok(facts) = fs::symlink_metadata(path) else { return Ok(()) };
    if !facts.file_type().is_socket() {
        return Err(NoSocket);
    }
    let answer = UnixStream::connect(path);
    if answer.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
        let _ = fs::remove_file(path);
    }
    Ok(())
}
