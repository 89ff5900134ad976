//! Changes of the configuration while programs run: `sidestep config apply`.
//!
//! A server and a client run on, and the client makes one connection after the other. One of
//! the two has a configuration file, which changes meanwhile: new connections obey, those
//! that exist stay as they are, and a mistake changes nothing.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::stage::Stage;
use crate::bench::launch::{self, Dialogue, Program, Transport};
use crate::suite::{HANG, Lacking};
use crate::witness::Evidence;

/// A running program looks at most once a second.
const INTERVAL: Duration = Duration::from_millis(1100);

/// Connections that may still be under the old rules: a server finds the change when it
/// accepts one.
const LATE_MAX: usize = 1;

pub(crate) fn reload(stage: &Stage<'_>) -> Result<String> {
    if !stage.house.witness.sees() {
        bail!(Lacking("there is no `sidestep` to ask".to_owned()));
    }
    of_one_end(stage, true).context("the server's configuration")?;
    of_one_end(stage, false).context("the client's configuration")?;
    of_a_child(stage).context("of a program that is begun later")?;
    Ok("old connections stay, new ones obey".to_owned())
}

fn of_one_end(stage: &Stage<'_>, is_server: bool) -> Result<()> {
    let file = ConfigFile::new(stage)?;
    let (port, seed) = (launch::free_port()?, stage.house.seed.to_string());
    let (text, server) = (port.to_string(), stage.house.script("echo_threads.py"));
    let client = stage.house.script("connect_again.py");
    let mut server = stage.command(Transport::Smc, &["python3", &server, "server", &text]);
    let mut client = stage.command(Transport::Smc, &["python3", &client, &text, &seed]);
    file.name_to(if is_server { &mut server } else { &mut client });
    let mut pair = Pair::start(stage, server, client, port)?;
    pair.must_have(2, 0)?;

    file.change(&format!("[policy]\nexclude_ports = [{port}]\n"))?;
    pair.connect()?;
    pair.must_have(2, 2)?;
    pair.look()?.gives_reason("policy.exclude_ports")?;

    file.write("[policy]\n\nexclude_ports = [0]\n")?;
    let refused = file.apply()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let mistake = "reload.toml:3: policy.exclude_ports: 0 is not allowed; use a port from 1 to";
    ensure!(refused.status.code() == Some(1) && said.contains(mistake), "it was said: {said}");
    thread::sleep(INTERVAL);
    pair.connect()?;
    pair.must_have(2, 4)?;

    file.change("[pnet.A]\ninterfaces = [\"eth9\"]\ndevices = [\"ism\"]\n")?;
    pair.connect()?;
    pair.must_have(2, 6)?;
    pair.look()?.gives_reason("have the PNET ID")?;

    file.change("[smc]\nmode = \"tcp\"\n")?;
    pair.connect()?;
    pair.must_have(2, 8)?;
    pair.look()?.gives_reason("smc.mode")?;

    file.change("")?;
    (0..LATE_MAX).try_for_each(|_| pair.connect())?;
    let (moved, plain) = pair.look()?.counts();
    pair.connect()?;
    pair.must_have(moved + 2, plain)
}

/// A shell that was started before the change becomes the client after it.
fn of_a_child(stage: &Stage<'_>) -> Result<()> {
    let file = ConfigFile::new(stage)?;
    let (port, seed) = (launch::free_port()?, stage.house.seed.to_string());
    let (text, script) = (port.to_string(), stage.house.script("connect_again.py"));
    let server = stage.house.script("echo_threads.py");
    let server = stage.command(Transport::Smc, &["python3", &server, "server", &text]);
    let line = "read go; exec python3 \"$@\"";
    let mut client =
        stage.command(Transport::Smc, &["sh", "-c", line, "sh", &script, &text, &seed]);
    file.name_to(&mut client);
    let mut program = Program::start(server, &stage.house.scratch)?;
    program.await_listener(port)?;
    let mut client = Dialogue::start(client)?;
    file.change(&format!("[policy]\nexclude_ports = [{port}]\n"))?;
    client.say("go")?;
    client.await_line("verified", HANG)?;
    let mut pair = Pair { stage, server: program, client };
    pair.must_have(0, 2)?;
    pair.look()?.gives_reason("policy.exclude_ports")
}

/// The configuration of one program.
struct ConfigFile<'a> {
    path: PathBuf,
    stage: &'a Stage<'a>,
}

impl<'a> ConfigFile<'a> {
    fn new(stage: &'a Stage<'a>) -> Result<Self> {
        let it = Self { path: stage.house.scratch.join("reload.toml"), stage };
        it.write("")?;
        Ok(it)
    }

    fn name_to(&self, command: &mut Command) {
        command.env("SIDESTEP_CONFIG", &self.path);
    }

    fn write(&self, text: &str) -> Result<()> {
        Ok(fs::write(&self.path, text)?)
    }

    fn apply(&self) -> Result<Output> {
        let sidestep = self.stage.house.launcher.observer().context("there is a witness")?;
        let mut command = Command::new(sidestep);
        command.args(["config", "apply", "--config"]).arg(&self.path);
        // Of this user's own files none is to be touched.
        command.env("HOME", &self.stage.house.scratch).env_remove("XDG_CONFIG_HOME");
        Ok(command.output()?)
    }

    /// Applies a new text, and waits until programs look again.
    fn change(&self, text: &str) -> Result<()> {
        self.write(text)?;
        let applied = self.apply()?;
        let said = String::from_utf8_lossy(&applied.stderr);
        ensure!(applied.status.success(), "`sidestep config apply` failed: {said}");
        thread::sleep(INTERVAL);
        Ok(())
    }
}

/// A server and its client, which makes connections when it is told to.
struct Pair<'a> {
    stage: &'a Stage<'a>,
    server: Program,
    client: Dialogue,
}

impl<'a> Pair<'a> {
    fn start(stage: &'a Stage<'a>, server: Command, client: Command, port: u16) -> Result<Self> {
        let mut server = Program::start(server, &stage.house.scratch)?;
        server.await_listener(port)?;
        let mut client = Dialogue::start(client)?;
        client.await_line("verified", HANG)?;
        Ok(Self { stage, server, client })
    }

    /// One more connection, and every byte right on all.
    fn connect(&mut self) -> Result<()> {
        self.client.say("again")?;
        self.client.await_line("verified", HANG).map(drop)
    }

    fn look(&mut self) -> Result<Evidence> {
        let mut pids = self.server.family();
        pids.extend(self.client.program().family());
        self.stage.house.witness.look(&pids)
    }

    /// **Errors**: not so many ends of connections are in shared memory and on TCP.
    fn must_have(&mut self, smc: usize, tcp: usize) -> Result<()> {
        let seen = self.look()?;
        ensure!(seen.counts() == (smc, tcp), "not {smc} SMC-D and {tcp} TCP: {seen:?}");
        Ok(())
    }
}
