//! What the host needs so that its programs speak SMC-R: an agent, which writes the TCP option, and a
//! gateway, which has the adapter.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::lan::{BRIDGE, Lan, SECOND};
use super::{PNET_ID, UEID};
use crate::bench::launch::{self, Dialogue, Program};
use crate::enclosure::Group;
use crate::suite::HANG;

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Both, until this is dropped, for the programs of a control group.
pub(super) struct Host {
    // In this order: a group can only go without programs.
    gateway: Program,
    _agent: Dialogue,
    group: Group,
    sidestep: PathBuf,
    scratch: PathBuf,
}

impl Host {
    /// Starts both, by the command `sidestep`. What the gateway says is written to a file in
    /// `scratch`.
    pub(super) fn equip(sidestep: &Path, lan: &Lan, scratch: PathBuf) -> Result<Self> {
        fs::create_dir_all(&scratch)?;
        fs::write(scratch.join(CONFIGURATION), Network::default().configuration())?;
        let group = Group::make()?;
        let mut agent = Command::new(sidestep);
        agent.arg("agent").arg("--cgroup").arg(group.at());
        agent.arg("--socket").arg(scratch.join("agent.sock"));
        let mut agent = Dialogue::start(agent)?;
        agent.await_line("sidestep agent: the TCP option", HANG)?;
        let gateway = start_gateway(sidestep, &group, lan, &scratch)?;
        Ok(Self { gateway, _agent: agent, group, sidestep: sidestep.to_owned(), scratch })
    }

    /// Ends the gateway, and starts another, which knows no link group.
    pub(super) fn restart_gateway(&mut self, lan: &Lan, network: Network) -> Result<()> {
        launch::signal(self.gateway.pid(), libc::SIGTERM)?;
        let deadline = Instant::now() + HANG;
        while !self.gateway.has_ended()? {
            ensure!(Instant::now() < deadline, "the gateway does not end");
            thread::sleep(POLL_INTERVAL);
        }
        fs::write(self.scratch.join(CONFIGURATION), network.configuration())?;
        self.gateway = start_gateway(&self.sidestep, &self.group, lan, &self.scratch)?;
        Ok(())
    }

    /// Lets a program begin where it is served.
    pub(super) fn enclose(&self, command: &mut Command) {
        enclose(command, &self.group, &self.scratch);
    }

    /// The gateway stands still for so long.
    pub(super) fn stand_still(&self, pause: Duration) -> Result<()> {
        launch::signal(self.gateway.pid(), libc::SIGSTOP)?;
        thread::sleep(pause);
        launch::signal(self.gateway.pid(), libc::SIGCONT)
    }

    /// Lines of the gateway's log that an operator would look at.
    pub(super) fn warnings(&self) -> Vec<String> {
        let log = self.gateway.printed();
        let lines =
            log.lines().filter(|line| line.contains(" WARN ") || line.contains("stays TCP"));
        lines.map(str::to_owned).collect()
    }

    /// **Errors**: the gateway has ended.
    pub(super) fn must_be_well(&mut self) -> Result<()> {
        self.gateway.must_be_alive()
    }
}

fn start_gateway(sidestep: &Path, group: &Group, lan: &Lan, scratch: &Path) -> Result<Program> {
    let mut command = Command::new(sidestep);
    command.args(["gateway", "--log", "debug"]);
    lan.enclose(&mut command);
    enclose(&mut command, group, scratch);
    let mut gateway = Program::start(command, scratch)?;
    let deadline = Instant::now() + HANG;
    while !gateway.printed().contains("sidestep gateway: ") {
        gateway.must_be_alive()?;
        if Instant::now() > deadline {
            bail!("the gateway does not start: {}", gateway.printed());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(gateway)
}

fn enclose(command: &mut Command, group: &Group, scratch: &Path) {
    group.enclose(command);
    command.env("SIDESTEP_CONFIG", scratch.join(CONFIGURATION));
}

const CONFIGURATION: &str = "sidestep.toml";

/// What the gateway's adapters are in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Network {
    /// Whether it has two.
    pub(super) has_second: bool,
    /// What they send suffers, in the words of `smc-r.faults`.
    pub(super) faults: Option<&'static str>,
}

impl Network {
    /// The host is of the guests' network, with either interface. What one case teaches is not for the next.
    fn configuration(self) -> String {
        let faults = self.faults.map(|words| format!("faults = \"{words}\"\n")).unwrap_or_default();
        let second = if self.has_second { format!(", \"soft:{SECOND}\"") } else { String::new() };
        format!(
            "[smc-r]\nadapters = [\"soft:{BRIDGE}\"{second}]\n{faults}\n[smc]\neid = \"{UEID}\"\n\
             autocache = false\nautosmc = false\n\n\
             [pnet.{PNET_ID}]\ninterfaces = [\"{BRIDGE}\", \"{SECOND}\"]\n"
        )
    }
}
