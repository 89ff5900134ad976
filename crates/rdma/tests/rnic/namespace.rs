//! Two network namespaces with a cable between them.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

/// Of the first and of the second end.
const ADDRESSES: [[&str; 2]; 2] = [["10.92.1.1", "fd92::1"], ["10.92.1.2", "fd92::2"]];

pub(crate) struct Cable {
    names: [String; 2],
}

impl Cable {
    /// `None`, and a line that says why, where there can be none.
    pub(crate) fn lay(mtu: u32) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|end| format!("rnic-{end}-{}-{count}", std::process::id()));
        // What was made is deleted, whatever fails.
        let this = Self { names };
        let [first, second] = this.names.each_ref().map(String::as_str);
        let made = ip(&["netns", "add", first]) && ip(&["netns", "add", second]);
        let peer = ["type", "veth", "peer", "cable", "netns", second];
        if !made || !ip(&[&["-n", first, "link", "add", "cable"][..], &peer].concat()) {
            eprintln!("skipped: network namespaces need root and iproute2");
            return None;
        }
        for (name, addresses) in [first, second].into_iter().zip(ADDRESSES) {
            let mtu = mtu.to_string();
            assert!(ip(&["-n", name, "link", "set", "lo", "up"]));
            assert!(ip(&["-n", name, "link", "set", "cable", "mtu", &mtu, "up"]));
            for (address, tail) in addresses.into_iter().zip([&[][..], &["nodad"]]) {
                let length = if address.contains(':') { 64 } else { 24 };
                let address = format!("{address}/{length}");
                let words = ["-n", name, "address", "add", &address, "dev", "cable"];
                // Without IPv6 there are the others.
                let _ = ip(&[&words[..], tail].concat());
            }
        }
        Some(this)
    }

    /// Changes this end of the cable.
    pub(crate) fn set(&self, end: usize, words: &[&str]) -> bool {
        ip(&[&["-n", &self.names[end], "link", "set", "cable"][..], words].concat())
    }

    /// Lets a program of the system's do its work at one end. False, and a line that says so, if
    /// it is not there or cannot.
    pub(crate) fn command(&self, end: usize, words: &[&str]) -> bool {
        let done = ip(&[&["netns", "exec", &self.names[end]][..], words].concat());
        if !done {
            eprintln!("skipped: this system does not know {words:?}");
        }
        done
    }

    /// Does something at one end, with its addresses. Sockets that are made there stay there.
    pub(crate) fn at<T: Send>(&self, end: usize, act: impl FnOnce([IpAddr; 2]) -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.names[end])).unwrap();
        let work = move || {
            // SAFETY: two integers; the file is open.
            assert_eq!(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
            act(addresses(end))
        };
        thread::scope(|scope| scope.spawn(work).join().unwrap())
    }
}

/// By IPv4 and by IPv6.
pub(crate) fn addresses(end: usize) -> [IpAddr; 2] {
    ADDRESSES[end].map(|address| address.parse().unwrap())
}

impl Drop for Cable {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "delete", name]);
        }
    }
}

fn ip(words: &[&str]) -> bool {
    Command::new("ip").args(words).output().is_ok_and(|output| output.status.success())
}
