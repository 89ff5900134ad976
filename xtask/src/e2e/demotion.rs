//! An operator takes live connections back to TCP and lets them move again, at random moments,
//! while they are loaded from all sides; no program notices.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::stage::Stage;
use crate::bench::launch::{self, Dialogue};
use crate::suite::{HANG, Lacking};

/// How long the operator is at work.
const AT_WORK: Duration = Duration::from_secs(6);

/// With an echo server of blocking threads.
pub(crate) fn threads(stage: &Stage<'_>) -> Result<String> {
    demotion(stage, "echo_threads.py")
}

/// With an echo server of one event loop.
pub(crate) fn epoll(stage: &Stage<'_>) -> Result<String> {
    demotion(stage, "echo_asyncio.py")
}

fn demotion(stage: &Stage<'_>, script: &str) -> Result<String> {
    let (port, script) = (launch::free_port()?, stage.house.script(script));
    let mut server = stage.serve(port, &["python3", &script, "server", &port.to_string()])?;
    let words = [
        "python3".to_owned(),
        stage.house.script("steady_talk.py"),
        port.to_string(),
        stage.house.seed.to_string(),
    ];
    let mut client = Dialogue::start(stage.client_command(&words))?;
    client.await_line("talking", HANG)?;
    let operator = Operator { stage, port, client: client.program().pid(), server: server.pid() };
    operator.wait_for("SMC-D")?;
    let words = operator.work(stage.house.seed)?;
    operator.say("demote", &operator.port.to_string())?;
    operator.wait_for("TCP")?;
    let before = operator.ring_bytes()?;
    thread::sleep(Duration::from_millis(200));
    ensure!(operator.ring_bytes()? == before, "bytes go through rings although all is on TCP");
    operator.say("promote", "all")?;
    operator.wait_for("SMC-D")?;
    client.hang_up();
    let said = client.await_line("verified", HANG)?;
    server.must_be_alive()?;
    Ok(format!("{said}; {words} words of an operator"))
}

struct Operator<'a> {
    stage: &'a Stage<'a>,
    port: u16,
    client: u32,
    server: u32,
}

impl Operator<'_> {
    fn sidestep(&self) -> Result<Command> {
        match self.stage.house.launcher.observer() {
            Some(sidestep) => Ok(Command::new(sidestep)),
            None => bail!(Lacking("there is no `sidestep` to ask".to_owned())),
        }
    }

    /// Demotes and promotes, one end or both, with pauses from nothing to a fifth of a second.
    fn work(&self, seed: u32) -> Result<u32> {
        let mut state = u64::from(seed) | 1;
        let mut throw = |sides: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % sides
        };
        let deadline = Instant::now() + AT_WORK;
        let mut words = 0;
        while Instant::now() < deadline {
            let word = ["demote", "promote"][throw(2) as usize];
            let target = match throw(3) {
                0 => format!("pid:{}", self.client),
                1 => format!("pid:{}", self.server),
                _ => format!(":{}", self.port),
            };
            // To let go of one port where all are held is refused, and said so.
            self.sidestep()?.args([word, &target]).output()?;
            words += 1;
            thread::sleep(Duration::from_millis(throw(200)));
        }
        for pid in [self.client, self.server] {
            self.say("promote", &format!("pid:{pid}"))?;
        }
        Ok(words)
    }

    fn say(&self, word: &str, target: &str) -> Result<()> {
        let output = self.sidestep()?.args([word, target]).output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "sidestep {word} {target}: {error}");
        Ok(())
    }

    /// All ends of the connections, as `sidestep ss` shows them.
    fn ends(&self) -> Result<Vec<Value>> {
        let mut ends = Vec::new();
        for pid in [self.client, self.server] {
            let output =
                self.sidestep()?.args(["ss", "--json", "--pid", &pid.to_string()]).output()?;
            let list: Value = serde_json::from_slice(&output.stdout)?;
            ends.extend(list.as_array().context("no list")?.iter().cloned());
        }
        Ok(ends)
    }

    fn wait_for(&self, mode: &str) -> Result<()> {
        let deadline = Instant::now() + HANG;
        loop {
            let ends = self.ends()?;
            let others: Vec<_> = ends.iter().filter(|end| end["mode"] != mode).collect();
            if others.is_empty() && !ends.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "not {mode}: {others:#?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn ring_bytes(&self) -> Result<u64> {
        let sent = |end: &Value| end["ring_bytes_sent"].as_u64().unwrap_or_default();
        Ok(self.ends()?.iter().map(sent).sum())
    }
}
