//! How commands that stay are ended.

use std::io;
use std::os::unix::net::UnixStream;

use libc::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// What can be read from once SIGTERM or SIGINT has come, which end nothing by themselves from now on.
pub(super) fn stop() -> io::Result<UnixStream> {
    let (stop, stopper) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        pipe::register(signal, stopper.try_clone()?)?;
    }
    Ok(stop)
}

/// A client that asks and does not wait for the answer shall end nothing.
pub(super) fn ignore_sigpipe() {
    // SAFETY: no handler, so nothing of ours runs.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}
