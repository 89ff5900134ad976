//! The network between guests and host: a bridge in a network namespace of its own.
//!
//! ```text
//!   host's programs          guest 2                  guest 3
//!   10.91.0.1, fd91::1       10.91.0.2, fd91::2       10.91.0.3, fd91::3
//!     bridge "lan" ----------- tap2 ------------------- tap3
//! ```
//!
//! Each member has a second interface in the same network, at the number 100 higher, of which nothing is
//! seen before a case wants it: `lan2` at the host.
//!
//! The namespace has no name: it is gone with the last process in it, however this one ends. Nothing
//! leads out of it.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::bench::launch::{self, Program};
use crate::enclosure;
use crate::suite::{HANG, Lacking};

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The bridge, which is also the host's interface.
pub(super) const BRIDGE: &str = "lan";
/// The host's second interface. Its cable is one that no guest's end pulls: the bridge stays up when the
/// last guest is turned off.
pub(super) const SECOND: &str = "lan2";

/// A member of the network: the host is 1, guests are 2 and more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Member(pub(crate) u8);

impl Member {
    pub(crate) const HOST: Self = Self(1);

    /// A member's second interface.
    pub(crate) fn second(self) -> Self {
        Self(self.0 + 100)
    }

    pub(crate) fn v4(self) -> IpAddr {
        Ipv4Addr::new(10, 91, 0, self.0).into()
    }

    pub(crate) fn v6(self) -> IpAddr {
        Ipv6Addr::new(0xfd91, 0, 0, 0, 0, 0, 0, self.0.into()).into()
    }

    /// The addresses as an interface gets them.
    pub(crate) fn addresses(self) -> [String; 2] {
        [format!("{}/24", self.v4()), format!("{}/64", self.v6())]
    }

    /// The GID of its adapter, as the kernel writes it: the IPv4 address in its mapped form.
    pub(crate) fn gid(self) -> String {
        let mapped = Ipv4Addr::new(10, 91, 0, self.0).to_ipv6_mapped();
        mapped.segments().map(|part| format!("{part:04x}")).join(":")
    }

    pub(crate) fn mac(self) -> String {
        format!("52:54:00:91:00:{:02x}", self.0)
    }

    /// The host's end of a guest's cable.
    pub(crate) fn tap(self) -> String {
        format!("tap{}", self.0)
    }
}

/// The network.
pub(crate) struct Lan {
    namespace: File,
    mtu: u32,
}

impl Lan {
    /// Makes one for some guests. `mtu`: bytes of the longest packet.
    ///
    /// **Errors**: [`Lacking`]: no namespaces, bridges or tap devices here.
    pub(crate) fn make(guests: &[Member], mtu: u32) -> Result<Self> {
        let namespace =
            new_namespace().map_err(|error| Lacking(format!("no network namespace: {error:#}")))?;
        let lan = Self { namespace, mtu };
        lan.build(guests).map_err(|error| Lacking(format!("no bridge or tap: {error:#}")))?;
        Ok(lan)
    }

    fn build(&self, guests: &[Member]) -> Result<()> {
        let mtu = self.mtu.to_string();
        self.ip(&["link", "set", "lo", "up"])?;
        self.ip(&["link", "add", BRIDGE, "address", &Member::HOST.mac(), "type", "bridge"])?;
        for tap in guests.iter().flat_map(|guest| [guest.tap(), guest.second().tap()]) {
            self.ip(&["tuntap", "add", "dev", &tap, "mode", "tap"])?;
            self.ip(&["link", "set", &tap, "mtu", &mtu, "master", BRIDGE, "up"])?;
        }
        self.ip(&["link", "set", BRIDGE, "mtu", &mtu, "up"])?;
        let mac = Member::HOST.second().mac();
        self.ip(&[
            "link", "add", SECOND, "address", &mac, "type", "veth", "peer", "name", "port2",
        ])?;
        self.ip(&["link", "set", "port2", "mtu", &mtu, "master", BRIDGE, "up"])?;
        self.ip(&["link", "set", SECOND, "mtu", &mtu, "up"])?;
        let [v4, _] = Member::HOST.second().addresses();
        self.ip(&["address", "add", &v4, "dev", SECOND])?;
        let [v4, v6] = Member::HOST.addresses();
        self.ip(&["address", "add", &v4, "dev", BRIDGE])?;
        self.ip(&["address", "add", &v6, "dev", BRIDGE, "nodad"])
    }

    fn ip(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new("ip");
        command.args(words);
        self.enclose(&mut command);
        launch::run(command, HANG).map(drop)
    }

    /// Pulls the cable of an interface of the host's end, or puts it back.
    pub(crate) fn set_cable(&self, interface: &str, is_up: bool) -> Result<()> {
        self.ip(&["link", "set", interface, if is_up { "up" } else { "down" }])
    }

    /// Lets a program of the host begin in the network.
    pub(crate) fn enclose(&self, command: &mut Command) {
        enclosure::enter(command, &self.namespace);
    }

    /// Bytes of the longest packet.
    pub(crate) fn mtu(&self) -> u32 {
        self.mtu
    }
}

fn new_namespace() -> Result<File> {
    // A thread that has left our namespace: it ends, and the file keeps the new one.
    let made = thread::spawn(|| {
        // SAFETY: unshare() takes an integer.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error());
        }
        File::open("/proc/thread-self/ns/net")
    });
    made.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?.context("unshare")
}

/// What goes through a guest's cable is being written to a file.
pub(crate) struct Capture {
    program: Program,
    directory: PathBuf,
}

impl Capture {
    /// Begins one, in a directory of its own; returns when it sees everything.
    pub(crate) fn start(lan: &Lan, of: Member, directory: PathBuf) -> Result<Self> {
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir(&directory)?;
        let mut command = Command::new("tcpdump");
        // Written packet by packet, and by root, whose directory it may be.
        command.args(["-i", &of.tap(), "-n", "-U", "--immediate-mode", "-Z", "root"]);
        // KiB: a stream comes faster than one core can emulate two machines and write.
        command.args(["-B", "65536", "-w"]).arg(directory.join(PACKETS));
        lan.enclose(&mut command);
        let mut program = Program::start(command, &directory)?;
        let deadline = Instant::now() + HANG;
        while !program.printed().contains("listening on") {
            program.must_be_alive()?;
            ensure!(Instant::now() < deadline, "tcpdump does not listen");
            thread::sleep(POLL_INTERVAL);
        }
        Ok(Self { program, directory })
    }

    /// Ends it.
    ///
    /// **Errors**: packets were missed.
    pub(crate) fn finish(self) -> Result<Captured> {
        let captured = self.end()?;
        let is_complete = captured.said.contains("\n0 packets dropped by kernel");
        ensure!(is_complete, "the capture is not complete: {}", captured.said);
        Ok(captured)
    }

    /// Ends it, be it complete or not.
    pub(crate) fn end(mut self) -> Result<Captured> {
        launch::signal(self.program.pid(), libc::SIGINT)?;
        let deadline = Instant::now() + HANG;
        while !self.program.has_ended()? {
            ensure!(Instant::now() < deadline, "tcpdump does not end");
            thread::sleep(POLL_INTERVAL);
        }
        Ok(Captured { directory: self.directory, said: self.program.printed() })
    }
}

/// The name of the file, in a format that everybody reads (pcap).
const PACKETS: &str = "packets.pcap";

/// What has gone through a guest's cable.
pub(crate) struct Captured {
    directory: PathBuf,
    /// What tcpdump says of it.
    said: String,
}

impl Captured {
    /// The packets.
    pub(crate) fn packets(&self) -> PathBuf {
        self.directory.join(PACKETS)
    }

    /// Removes its directory: nobody needs it any more.
    pub(crate) fn forget(self) -> Result<()> {
        Ok(fs::remove_dir_all(self.directory)?)
    }
}
