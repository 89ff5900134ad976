//! What the host needs so that its programs speak SMC-R: an agent, which writes the TCP option, and a
//! gateway, which has the adapter.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::lan::{BRIDGE, Lan};
use super::{PNET_ID, UEID};
use crate::bench::launch::{self, Dialogue, Program};
use crate::enclosure::Group;

/// For one of them to begin, or to end.
const PATIENCE: Duration = Duration::from_secs(20);
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
        fs::write(scratch.join(CONFIGURATION), configuration(None))?;
        let group = Group::make()?;
        let mut agent = Command::new(sidestep);
        agent.arg("agent").arg("--cgroup").arg(group.at());
        agent.arg("--socket").arg(scratch.join("agent.sock"));
        let mut agent = Dialogue::start(agent)?;
        agent.await_line("sidestep agent: the TCP option", PATIENCE)?;
        let gateway = start_gateway(sidestep, &group, lan, &scratch)?;
        Ok(Self { gateway, _agent: agent, group, sidestep: sidestep.to_owned(), scratch })
    }

    /// Ends the gateway, and starts another, which knows no link group. In front of its adapter is a
    /// network with these faults, in the words of `smc-r.faults`.
    pub(super) fn restart_gateway(&mut self, lan: &Lan, faults: Option<&str>) -> Result<()> {
        launch::signal(self.gateway.pid(), libc::SIGTERM)?;
        let deadline = Instant::now() + PATIENCE;
        while !self.gateway.has_ended()? {
            ensure!(Instant::now() < deadline, "the gateway does not end");
            thread::sleep(POLL_INTERVAL);
        }
        fs::write(self.scratch.join(CONFIGURATION), configuration(faults))?;
        self.gateway = start_gateway(&self.sidestep, &self.group, lan, &self.scratch)?;
        Ok(())
    }

    /// Lets a program begin where it is served.
    pub(super) fn enclose(&self, command: &mut Command) {
        enclose(command, &self.group, &self.scratch);
    }

    /// **Errors**: the gateway has ended.
    pub(super) fn must_be_well(&mut self) -> Result<()> {
        self.gateway.must_be_alive()
    }
}

fn start_gateway(sidestep: &Path, group: &Group, lan: &Lan, scratch: &Path) -> Result<Program> {
    let mut command = Command::new(sidestep);
    command.args(["gateway", "--adapter", BRIDGE, "--log", "debug"]);
    lan.enclose(&mut command);
    enclose(&mut command, group, scratch);
    let mut gateway = Program::start(command, scratch)?;
    let deadline = Instant::now() + PATIENCE;
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

/// The host is of the guests' network.
fn configuration(faults: Option<&str>) -> String {
    let faults = faults.map(|words| format!("[smc-r]\nfaults = \"{words}\"\n\n"));
    let faults = faults.unwrap_or_default();
    format!("{faults}[smc]\neid = \"{UEID}\"\n\n[pnet.{PNET_ID}]\ninterfaces = [\"{BRIDGE}\"]\n")
}
