//! Network namespaces and control groups of a test's own.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::bench::launch;
use crate::suite::Lacking;

/// For one of the tools to do its work.
const PATIENCE: Duration = Duration::from_secs(20);
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

/// CPUs on which programs are to run.
#[derive(Clone, Copy)]
pub(crate) struct Cpus(libc::cpu_set_t);

impl Cpus {
    /// Two halves of those that we may use.
    ///
    /// **Errors**: [`Lacking`] if there is only one.
    pub(crate) fn halves() -> Result<[Self; 2]> {
        // SAFETY: all bits zero is the empty set.
        let empty: libc::cpu_set_t = unsafe { mem::zeroed() };
        let mut ours = empty;
        // SAFETY: `ours` has as many bytes as are told.
        let got = unsafe { libc::sched_getaffinity(0, size_of_val(&ours), &raw mut ours) };
        ensure!(got == 0, "which CPUs are ours: {}", io::Error::last_os_error());
        // SAFETY: the numbers are below the size of a set, here and in the loop.
        let is_ours = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &ours) };
        let ours: Vec<usize> = (0..libc::CPU_SETSIZE as usize).filter(is_ours).collect();
        if ours.len() < 2 {
            bail!(Lacking("there is one CPU, and two hosts have more".to_owned()));
        }
        let (first, second) = ours.split_at(ours.len() / 2);
        Ok([first, second].map(|half| {
            let mut cpus = empty;
            // SAFETY: as above.
            half.iter().for_each(|cpu| unsafe { libc::CPU_SET(*cpu, &mut cpus) });
            Self(cpus)
        }))
    }

    /// Lets a program run on these only.
    pub(crate) fn enclose(self, command: &mut Command) {
        let confine = move || {
            // SAFETY: the set has as many bytes as are told.
            match unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &raw const self.0) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: between fork and exec the closure makes one system call.
        unsafe { command.pre_exec(confine) };
    }
}

/// The name of a cable where there is one.
pub(crate) const CABLE: &str = "cable";

fn ip(words: &[&str]) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(words);
    launch::run(command, PATIENCE).map(drop)
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
        let deadline = Instant::now() + PATIENCE;
        // The kernel may still be taking its programs apart.
        while fs::remove_dir(&self.at).is_err() && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
    }
}
