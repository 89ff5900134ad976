//! Two network namespaces and the cable between them.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Barrier;
use std::thread;

/// Server and client.
const ADDRESSES: [&str; 2] = ["10.91.1.1", "10.91.1.2"];

pub(crate) struct Scene {
    names: [String; 2],
}

impl Scene {
    pub(crate) fn new(mtu: u32) -> Self {
        let names = ["near", "far"].map(|end| format!("rnic-{end}-{}", std::process::id()));
        names.iter().for_each(|name| ip(&["netns", "add", name]));
        let [near, far] = names.each_ref().map(String::as_str);
        ip(&["-n", near, "link", "add", "cable", "type", "veth", "peer", "cable", "netns", far]);
        for (name, address) in [near, far].into_iter().zip(ADDRESSES) {
            let (mtu, address) = (mtu.to_string(), format!("{address}/24"));
            ip(&["-n", name, "link", "set", "lo", "up"]);
            ip(&["-n", name, "address", "add", &address, "dev", "cable"]);
            ip(&["-n", name, "link", "set", "cable", "mtu", &mtu, "up"]);
        }
        Self { names }
    }

    /// Lets a server and a client run, each in its namespace on its CPU, and returns what the
    /// client does. Both get their address and the other's, and a barrier for the two of them.
    pub(crate) fn run<T: Send>(
        &self,
        server: impl FnOnce([IpAddr; 2], &Barrier) + Send,
        client: impl FnOnce([IpAddr; 2], &Barrier) -> T + Send,
    ) -> T {
        let [first, second] = ADDRESSES.map(|address| address.parse().expect("an address"));
        let barrier = &Barrier::new(2);
        thread::scope(|scope| {
            let server = scope.spawn(move || {
                self.settle(0);
                server([first, second], barrier);
            });
            let client = scope.spawn(move || {
                self.settle(1);
                client([second, first], barrier)
            });
            server.join().expect("a server that ends");
            client.join().expect("a client that ends")
        })
    }

    /// Puts this thread into a namespace, and onto the CPU with its number.
    fn settle(&self, index: usize) {
        let file = File::open(format!("/run/netns/{}", self.names[index])).expect("a namespace");
        // SAFETY: integers; the set is all of it, and only read.
        unsafe {
            assert_eq!(libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET), 0, "needs root");
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(index, &mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| ip(&["netns", "delete", name]));
    }
}

fn ip(words: &[&str]) {
    let status = Command::new("ip").args(words).status().expect("ip");
    assert!(status.success(), "ip {words:?}");
}
