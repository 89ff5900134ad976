//! A machine with systemd: a container of `systemd-nspawn`, in which both units are installed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::super::distant::AS_NOBODY;
use super::super::stage::Stage;
use crate::bench::launch::{self, Dialogue, Program};
use crate::bench::place;
use crate::enclosure::Group;
use crate::suite::Lacking;
use crate::user;

pub(super) const AGENT: &str = "sidestepd.service";
pub(super) const GATEWAY: &str = "sidestep-gateway.service";

/// For something to come about that takes no time of its own.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the watchdogs wait.
pub(super) const WATCHDOG: Duration = Duration::from_secs(3);

/// Where the gateway's adapter is.
const ADAPTER: &str = "10.89.4.1";
pub(super) const PORT: &str = "7000";
/// [`PORT`] in `/proc/net/tcp`, of a socket at any address that listens.
const LISTENER: &str = "00000000:1B58 00000000:0000 0A";
/// Where our scripts are in the machine.
pub(super) const SCRIPTS: &str = "/opt/e2e";
/// Programs begin in a control group of the machine: what the agent has attached is for those in it.
pub(super) const ENTER: &str = "mkdir -p /sys/fs/cgroup/programs && echo 0 > /sys/fs/cgroup/programs/cgroup.procs && \
                     exec \"$@\"";

/// A machine that runs until it is dropped.
pub(super) struct Machine {
    container: Program,
    /// Its first process, as the host calls it.
    leader: u32,
    group: Group,
    seed: String,
}

/// What systemd knows of a unit.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) state: String,
    pub(super) result: String,
    pub(super) main_pid: u32,
    pub(super) restarts: u32,
    /// How long its watchdog waits.
    pub(super) watchdog: String,
    /// When that has heard of it last.
    pub(super) reported: String,
}

impl Unit {
    pub(super) fn is_active(&self) -> bool {
        self.state == "active"
    }
}

impl Machine {
    /// Starts it, with the units installed, and neither started. Their watchdogs wait as long as they say.
    pub(super) fn boot(stage: &Stage<'_>) -> Result<Self> {
        Self::boot_with(stage, "", &[ADAPTER])
    }

    /// The same with watchdogs that wait for [`WATCHDOG`], and no longer for what does not end by itself.
    pub(super) fn boot_impatient(stage: &Stage<'_>) -> Result<Self> {
        let patience = WATCHDOG.as_secs();
        let dropped_in = format!("[Service]\nWatchdogSec={patience}\nTimeoutStopSec=2\n");
        Self::boot_with(stage, &dropped_in, &[ADAPTER])
    }

    /// The same with an adapter at this interface, which may come later, and a descriptor store for the gateway: systemd has
    /// one, but does not say so before 254.
    pub(super) fn boot_with_store(stage: &Stage<'_>, interface: &str) -> Result<Self> {
        Self::boot_with(stage, "[Service]\nEnvironment=FDSTORE=1\n", &[ADAPTER, interface])
    }

    fn boot_with(stage: &Stage<'_>, dropped_in: &str, adapters: &[&str]) -> Result<Self> {
        if !user::is_root() {
            bail!(Lacking("a container needs root".to_owned()));
        }
        let Some(sidestep) = stage.house.launcher.observer() else {
            bail!(Lacking("there is no `sidestep` to be installed".to_owned()));
        };
        let scratch = stage.house.scratch.join("units");
        let group = Group::make()?;
        install(sidestep, &scratch, adapters)?;
        fs::write(scratch.join("drop-in.conf"), dropped_in)?;
        let mut command = nspawn(&scratch, &stage.house.scripts)?;
        group.enclose(&mut command);
        let container = Program::start(command, &scratch)?;
        let mut machine = Self { container, leader: 0, group, seed: stage.house.seed.to_string() };
        machine.await_boot()?;
        // Nobody configures the network of a machine that has none.
        machine.run(&["systemctl", "mask", "--runtime", "systemd-networkd-wait-online.service"])?;
        machine.run(&["ip", "link", "set", "lo", "up"])?;
        machine
            .run(&["ip", "link", "add", "adapter", "type", "veth", "peer", "name", "far"])
            .map_err(|error| Lacking(format!("no cables: {error:#}")))?;
        machine.run(&["ip", "address", "add", &format!("{ADAPTER}/24"), "dev", "adapter"])?;
        machine.run(&["ip", "link", "set", "adapter", "up"])?;
        machine.run(&["ip", "link", "set", "far", "up"])?;
        Ok(machine)
    }

    fn await_boot(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.container.has_ended()? {
                bail!(Lacking(format!("no container: {}", self.container.printed().trim())));
            }
            let family = self.container.family();
            if let Some(leader) = family.into_iter().find(|pid| own_numbers(*pid).ends_with(&[1])) {
                self.leader = leader;
                // Units that this machine lacks something for have failed in it, which is no matter.
                let words = ["sh", "-c", "systemctl is-system-running || true"];
                let said = launch::run(self.enter(&words), PATIENCE);
                if said.is_ok_and(|said| ["running", "degraded"].contains(&said.trim())) {
                    return Ok(());
                }
            }
            if Instant::now() > deadline {
                bail!(Lacking("the container does not start".to_owned()));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// A command in its namespaces.
    fn enter(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.leader.to_string(), "--all", "--"]).args(words);
        // A user without a home has no files there.
        command.env_remove("HOME");
        command
    }

    /// Its first process, as the host calls it.
    pub(super) const fn leader(&self) -> u32 {
        self.leader
    }

    pub(super) fn seed(&self) -> &str {
        &self.seed
    }

    /// Runs a command in it to its end.
    pub(super) fn run(&self, words: &[&str]) -> Result<String> {
        launch::run(self.enter(words), PATIENCE).with_context(|| words.join(" "))
    }

    /// Writes a file in it, with the directories that it lacks.
    pub(super) fn write(&self, path: &str, text: &str) -> Result<()> {
        let script = "mkdir -p \"${1%/*}\" && printf '%s' \"$2\" > \"$1\"";
        self.run(&["sh", "-c", script, "sh", path, text]).map(drop)
    }

    /// Users can log in, and have sessions and managers of their own.
    pub(super) fn have_pam(&self) -> Result<()> {
        let rules = "auth sufficient pam_rootok.so\nauth required pam_permit.so\naccount required pam_permit.so\n\
                     session required pam_permit.so\nsession optional pam_systemd.so\n";
        for service in ["systemd-user", "su", "su-l"] {
            self.write(&format!("/etc/pam.d/{service}"), rules)?;
        }
        Ok(())
    }

    pub(super) fn start_program(&self, words: &[&str]) -> Result<Dialogue> {
        Dialogue::start(self.enter(&[&["sh", "-c", ENTER, "sh"], words].concat()))
    }

    /// Starts both units. They are ready when this returns.
    pub(super) fn start_both(&self) -> Result<()> {
        for unit in [AGENT, GATEWAY] {
            self.run(&["systemctl", "start", unit])?;
            ensure!(self.unit(unit)?.is_active(), "{unit} is not ready:\n{}", self.said(unit)?);
        }
        Ok(())
    }

    pub(super) fn unit(&self, unit: &str) -> Result<Unit> {
        let said = self.run(&["systemctl", "show", unit])?;
        let field = |name: &str| {
            let value = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            value.map(str::to_owned).with_context(|| format!("systemctl show says no {name}"))
        };
        Ok(Unit {
            state: field("ActiveState")?,
            result: field("Result")?,
            main_pid: field("MainPID")?.parse()?,
            restarts: field("NRestarts")?.parse()?,
            watchdog: field("WatchdogUSec")?,
            reported: field("WatchdogTimestampMonotonic")?,
        })
    }

    /// Waits until a unit is as it should be.
    pub(super) fn await_unit(&self, unit: &str, is_so: impl Fn(&Unit) -> bool) -> Result<Unit> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = self.unit(unit)?;
            if is_so(&now) {
                return Ok(now);
            }
            ensure!(Instant::now() < deadline, "in vain: {unit} is {now:?}\n{}", self.said(unit)?);
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// What a unit has written, and what systemd has written of it.
    pub(super) fn said(&self, unit: &str) -> Result<String> {
        self.run(&["journalctl", "--no-pager", "--quiet", "--unit", unit])
    }

    pub(super) fn metrics(&self) -> Result<String> {
        let ask = ["curl", "--silent", "--fail", "--unix-socket", "/run/sidestep/metrics"];
        self.run(&[&ask[..], &["http://localhost/metrics"]].concat())
    }

    /// How often each thread of a unit has waited for something.
    pub(super) fn wakes(&self, unit: &Unit) -> Result<BTreeMap<u32, u64>> {
        let waits = |status: &str| {
            let line = status.lines().find_map(|it| it.strip_prefix("voluntary_ctxt_switches:"));
            line.and_then(|it| it.trim().parse().ok())
        };
        let count = |thread: &Path| {
            let number = thread.file_name()?.to_str()?.parse().ok()?;
            Some((number, waits(&fs::read_to_string(thread.join("status")).ok()?)?))
        };
        Ok(self.threads(unit)?.iter().filter_map(|thread| count(thread)).collect())
    }

    /// The thread of this name of a unit's process, as the host calls it.
    pub(super) fn thread(&self, unit: &Unit, name: &str) -> Result<u32> {
        let is_it = |thread: &&PathBuf| {
            fs::read_to_string(thread.join("comm")).is_ok_and(|it| it.trim_end() == name)
        };
        let threads = self.threads(unit)?;
        let thread = threads.iter().find(is_it).and_then(|it| it.file_name()?.to_str());
        Ok(thread.with_context(|| format!("there is no thread {name}"))?.parse()?)
    }

    fn threads(&self, unit: &Unit) -> Result<Vec<PathBuf>> {
        let is_it = |pid: &u32| own_numbers(*pid).ends_with(&[unit.main_pid]);
        let pid = self.container.family().into_iter().find(is_it);
        let pid =
            pid.with_context(|| format!("process {} of the machine is gone", unit.main_pid))?;
        let threads = fs::read_dir(format!("/proc/{pid}/task"))?;
        Ok(threads.flatten().map(|it| it.path()).collect())
    }
}

// ---- programs under Sidestep, of user 65534 -----------------------------------------------------------------

impl Machine {
    /// A server at all addresses.
    pub(super) fn serve(&self) -> Result<Dialogue> {
        let script = format!("{SCRIPTS}/distant.py");
        let words = ["python3", &script, "server", "0.0.0.0", PORT];
        let server = self.start_program(&[&AS_NOBODY[..], &UNDER_SIDESTEP, &words].concat())?;
        self.await_listener()?;
        Ok(server)
    }

    /// Waits until a server listens.
    pub(super) fn await_listener(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.run(&["cat", "/proc/self/net/tcp"])?.contains(LISTENER) {
            ensure!(Instant::now() < deadline, "the server does not listen");
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// A client in the machine's own network.
    pub(super) fn client(&self, server: &str) -> Result<Dialogue> {
        let client = self.client_words(server);
        let words: Vec<&str> = client.iter().map(String::as_str).collect();
        self.start_program(&words)
    }

    /// A line for a shell by which a client says this.
    pub(super) fn talk(&self, server: &str, line: &str) -> String {
        format!("echo '{line}' | {}", self.client_words(server).join(" "))
    }

    fn client_words(&self, server: &str) -> Vec<String> {
        let script = format!("{SCRIPTS}/distant.py");
        let words = ["python3", &script, "client", server, PORT, &self.seed];
        [&AS_NOBODY[..], &UNDER_SIDESTEP, &words].concat().into_iter().map(str::to_owned).collect()
    }

    /// Connections of the server that have moved, those that have ended included.
    pub(super) fn moved_connections_of_server(&self) -> Result<u64> {
        let totals = self.run(&["sidestep", "ss", "--totals", "--json"])?;
        let totals: Value = serde_json::from_str(&totals)?;
        let moved = |program: &Value| program["smc_connections"].as_u64();
        // A client that is ending has fewer. Without a connection the server is not listed.
        Ok(totals.as_array().into_iter().flatten().filter_map(moved).max().unwrap_or(0))
    }

    /// A shell in a container of this machine: a network of its own, and of the files below `/run` only the
    /// agent's directory, as it is now.
    pub(super) fn container(&self, here: &str, there: &str) -> Result<Dialogue> {
        self.run(&["ip", "netns", "add", "box"])?;
        let cable =
            ["ip", "link", "add", "box", "type", "veth", "peer", "name", "box", "netns", "box"];
        self.run(&cable)?;
        for (inside, address) in [(&[][..], here), (&["-n", "box"], there)] {
            let ip = |words: &[&str]| self.run(&[&["ip"], inside, words].concat());
            ip(&["address", "add", &format!("{address}/24"), "dev", "box"])?;
            ip(&["link", "set", "box", "up"])?;
        }
        let script = "mkdir -p /srv && mount --bind /run/sidestep /srv && mount -t tmpfs none /run && \
                      mkdir /run/sidestep && mount --move /srv /run/sidestep && echo inside && exec sh";
        let words = ["ip", "netns", "exec", "box", "unshare", "--mount", "sh", "-c", script];
        let mut shell = self.start_program(&words)?;
        shell.await_line("inside", PATIENCE)?;
        Ok(shell)
    }

    /// Somebody who calls the agent, sends what is no lookup, and calls again, without a pause.
    pub(super) fn call_without_end(&self) -> Result<Dialogue> {
        let script = "import socket\n\
                      while True:\n    \
                          with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:\n        \
                              line.connect('/run/sidestep/agent.sock')\n        \
                              line.send(b'?')\n";
        self.start_program(&[&AS_NOBODY[..], &["python3", "-c", script]].concat())
    }
}

const UNDER_SIDESTEP: [&str; 5] = ["sidestep", "run", "--promotion", "early", "--"];

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = launch::signal(self.leader, libc::SIGKILL);
        let deadline = Instant::now() + PATIENCE;
        while !matches!(self.container.has_ended(), Ok(true)) && Instant::now() < deadline {
            // What was begun from outside, and whose parent has ended, is ours; the first process waits until
            // all in its PID namespace are waited for.
            launch::family_of(std::process::id())
                .into_iter()
                .filter(|pid| !own_numbers(*pid).is_empty())
                .for_each(wait_for);
            thread::sleep(POLL_INTERVAL);
        }
        // By then all of it is gone; what systemd has made of groups is not.
        remove_groups(self.group.at());
    }
}

/// Waits for a process if it is a child of ours that has ended.
fn wait_for(pid: u32) {
    // SAFETY: numbers, and no place for a status.
    unsafe { libc::waitpid(pid as libc::pid_t, std::ptr::null_mut(), libc::WNOHANG) };
}

/// Removes the groups below one.
fn remove_groups(group: &Path) {
    for below in fs::read_dir(group).into_iter().flatten().flatten() {
        if below.file_type().is_ok_and(|it| it.is_dir()) {
            remove_groups(&below.path());
            let _ = fs::remove_dir(below.path());
        }
    }
}

/// The numbers of a process in the PID namespaces that it is in, the outermost first.
fn own_numbers(pid: u32) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let numbers: Vec<u32> = line.split_whitespace().filter_map(|it| it.parse().ok()).collect();
    // One alone is a process of the host.
    if numbers.len() < 2 { Vec::new() } else { numbers }
}

/// Installs the programs below a directory, as `/usr/local` is to be.
fn install(sidestep: &Path, scratch: &Path, adapters: &[&str]) -> Result<()> {
    let local = scratch.join("local");
    let (bin, lib) = (local.join("bin"), local.join("lib/sidestep"));
    fs::create_dir_all(&bin)?;
    fs::create_dir_all(&lib)?;
    fs::copy(sidestep, bin.join("sidestep"))?;
    fs::copy(sidestep.with_file_name("libsidestep.so"), lib.join("libsidestep.so"))?;
    if fs::symlink_metadata(bin.join("sidestepd")).is_err() {
        std::os::unix::fs::symlink("sidestep", bin.join("sidestepd"))?;
    }
    let adapters: Vec<_> = adapters.iter().map(|adapter| format!("soft:{adapter}")).collect();
    let settings = format!(
        "[smc-r]\nadapters = {adapters:?}\n[agent]\nmetrics = \"unix:/run/sidestep/metrics\"\n"
    );
    Ok(fs::write(scratch.join("sidestep.toml"), settings)?)
}

fn nspawn(scratch: &Path, scripts: &Path) -> Result<Command> {
    let packaging = place::repo_root()?.join("packaging");
    let mut command = Command::new("systemd-nspawn");
    // One hierarchy of control groups, and no lock on the directory `/`, which others use as well.
    command.env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1").env("SYSTEMD_NSPAWN_LOCK", "0");
    // No filter of system calls, as on a machine of its own: what a service has is the unit's.
    command.env("SYSTEMD_SECCOMP", "0");
    command.args(["--quiet", "--register=no", "--keep-unit", "--directory=/", "--volatile=yes"]);
    command.arg(format!("--machine=sidestep-{}", std::process::id()));
    command.args(["--private-network", "--link-journal=no", "--console=pipe"]);
    // The agent's privileges, which systemd gives it and which a container's systemd has not by itself.
    command.arg("--capability=all");
    let mut bind = |from: PathBuf, to: &str| {
        command.arg(format!("--bind-ro={}:{to}", from.display()));
    };
    bind(scratch.join("local"), "/usr/local");
    bind(scratch.join("sidestep.toml"), "/etc/sidestep/sidestep.toml");
    bind(scripts.to_owned(), SCRIPTS);
    for unit in [AGENT, GATEWAY] {
        bind(packaging.join(unit), &format!("/etc/systemd/system/{unit}"));
        bind(scratch.join("drop-in.conf"), &format!("/run/systemd/system/{unit}.d/test.conf"));
    }
    // Not multi-user.target, with all that is installed on this machine.
    command.args(["--boot", "--", "--unit=basic.target"]);
    Ok(command)
}
