//! A network namespace for one thread.

use std::io;
use std::net::Ipv4Addr;
use std::process::Command;

pub(crate) struct Namespace;

impl Namespace {
    /// Addresses of its loopback interface, beside 127.0.0.1.
    pub(crate) const ADDRESSES: [Ipv4Addr; 2] =
        [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

    /// Moves this thread into a new one, which ends with it and its sockets.
    pub(crate) fn enter() -> io::Result<()> {
        // SAFETY: an integer; only this thread is concerned.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error());
        }
        ip("link set lo up")?;
        Self::ADDRESSES.iter().try_for_each(|address| ip(&format!("address add {address} dev lo")))
    }
}

fn ip(words: &str) -> io::Result<()> {
    let status = Command::new("ip").args(words.split(' ')).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(io::Error::other(format!("ip {words}: {status}"))),
        Err(error) => Err(io::Error::new(error.kind(), format!("ip {words}: {error}"))),
    }
}
