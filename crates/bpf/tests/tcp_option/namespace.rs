//! A network namespace for one thread.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::process::Command;

/// One that can be entered again.
pub(crate) struct Namespace(File);

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

    /// Addresses at the two ends of the wire between a [`Self::pair`].
    pub(crate) const PAIR: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 5, 0, 1), Ipv4Addr::new(10, 5, 0, 2)];
    pub(crate) const PAIR_6: [Ipv6Addr; 2] =
        [Ipv6Addr::new(0xfd05, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd05, 0, 0, 0, 0, 0, 0, 2)];

    /// Two new ones with a wire between them; this thread is in one of them.
    pub(crate) fn pair() -> io::Result<[Self; 2]> {
        let make = || {
            Self::enter()?;
            File::open("/proc/thread-self/ns/net").map(Self)
        };
        let pair = [make()?, make()?];
        // This thread is in the second one.
        let other = format!("/proc/{}/fd/{}", std::process::id(), pair[0].0.as_raw_fd());
        ip(&format!("link add wire type veth peer name wire netns {other}"))?;
        for (namespace, (v4, v6)) in pair.iter().zip(Self::PAIR.iter().zip(Self::PAIR_6)) {
            namespace.enter_again();
            ip(&format!("address add {v4}/24 dev wire"))?;
            ip(&format!("address add {v6}/64 dev wire nodad"))?;
            ip("link set wire up")?;
        }
        Ok(pair)
    }

    /// Moves this thread into it.
    pub(crate) fn enter_again(&self) {
        // SAFETY: integers; only this thread is concerned.
        let result = unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
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
