//! Network namespaces and control groups of a test's own.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::bench::launch;
use crate::suite::{HANG, Lacking};

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A network namespace with a loopback interface.
pub(crate) struct Namespace {
    name: String,
    file: File,
}

impl Namespace {
    pub(crate) fn make(what: &str) -> Result<Self> {
        let name = format!("sidestep-{what}-{}", std::process::id());
        ip(&["netns", "add", &name])
            .map_err(|error| Lacking(format!("no network namespace: {error:#}")))?;
        let file = File::open(Path::new("/run/netns").join(&name))?;
        let namespace = Self { name, file };
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Puts a cable between this one and `other`, a name or the number of a process there.
    /// Both ends have its name.
    pub(crate) fn join(&self, cable: &str, other: &str) -> Result<()> {
        let peer = ["peer", "name", cable, "netns", other];
        self.ip(&[&["link", "add", cable, "type", "veth"][..], &peer].concat())
    }

    /// Gives this end of a cable its addresses.
    pub(crate) fn settle(&self, cable: &str, addresses: &[&str]) -> Result<()> {
        self.ip(&["link", "set", cable, "up"])?;
        addresses.iter().try_for_each(|address| {
            let (network, tail) =
                if address.contains(':') { ("/64", &["nodad"][..]) } else { ("/24", &[][..]) };
            let address = format!("{address}{network}");
            self.ip(&[&["address", "add", &address, "dev", cable][..], tail].concat())
        })
    }

    /// Lays a second cable, to a process in a namespace that has no name, and takes an address. The
    /// process finds the end under the same name with a 2.
    pub(crate) fn lead_to(&self, pid: u32, address: &str) -> Result<()> {
        let (cable, pid) = (format!("{CABLE}2"), pid.to_string());
        let peer = ["peer", "name", &cable, "netns", &pid];
        self.ip(&[&["link", "add", &cable, "type", "veth"][..], &peer].concat())?;
        self.ip(&["address", "add", &format!("{address}/24"), "dev", &cable])?;
        self.ip(&["link", "set", &cable, "up"])
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Lets a program begin in it.
    pub(crate) fn enclose(&self, command: &mut Command) {
        enter(command, &self.file);
    }

    /// Has `ip` do something in it.
    pub(crate) fn ip(&self, words: &[&str]) -> Result<()> {
        ip(&[&["-n", &self.name], words].concat())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // What is still in it keeps it; the name goes.
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

/// Lets a program begin in the network namespace of this file, which has to stay open until then.
pub(crate) fn enter(command: &mut Command, namespace: &File) {
    let namespace = namespace.as_raw_fd();
    let enter = move || {
        // SAFETY: two integers; the file is open as long as the namespace.
        match unsafe { libc::setns(namespace, libc::CLONE_NEWNET) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec the closure makes one system call.
    unsafe { command.pre_exec(enter) };
}

/// The name of a cable where there is one.
pub(crate) const CABLE: &str = "cable";

fn ip(words: &[&str]) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(words);
    launch::run(command, HANG).map(drop)
}

/// A control group of version 2.
pub(crate) struct Group {
    at: PathBuf,
    entrance: File,
}

impl Group {
    pub(crate) fn make() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/mounts")?;
        let mount = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let at = fields.next()?;
            (fields.next()? == "cgroup2").then_some(at)
        });
        let Some(mount) = mount else { bail!(Lacking("no cgroup2 is mounted".to_owned())) };
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let at = Path::new(mount).join(format!("sidestep-e2e-{}-{number}", std::process::id()));
        fs::create_dir(&at).map_err(|error| Lacking(format!("no control group: {error}")))?;
        let entrance = OpenOptions::new().write(true).open(at.join("cgroup.procs"))?;
        Ok(Self { at, entrance })
    }

    pub(crate) fn at(&self) -> &Path {
        &self.at
    }

    /// Lets a program begin in it.
    pub(crate) fn enclose(&self, command: &mut Command) {
        launch::enclose(command, &self.entrance);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = Instant::now() + HANG;
        // The kernel may still be taking its programs apart.
        while fs::remove_dir(&self.at).is_err() && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
    }
}
