//! What programs learn from their connections: AUTOSMC, AUTOCACHE.
//!
//! All as `sidestep ss --totals` shows it, with the default settings: connections that are
//! moved from their first bytes teach nothing.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::stage::Stage;
use crate::bench::launch::{self, Dialogue, Program};
use crate::suite::{HANG, Lacking};

/// Connections that are too short move once, and not again; when they have become long, they
/// all do.
pub(crate) fn autosmc(stage: &Stage<'_>) -> Result<String> {
    let port = launch::free_port()?;
    let mut server = serve(stage, port, "")?;
    let mut client = Client::start(stage, port, "")?;
    // 24 messages: the first connection moves after 16, and the move does not pay. The next ones
    // may begin before that is known.
    client.talk("10 12")?;
    let short = client.totals()?["smc_connections"].as_u64().unwrap_or_default();
    ensure!((1..10).contains(&short), "of ten short ones {short} moved");
    client.talk("10 12")?;
    let learned = client.totals()?;
    ensure!(learned["smc_connections"] == short, "of ten more some moved: {learned:#}");
    ensure!(learned["reasons"][0]["connections"].as_u64() >= Some(10), "{learned:#}");
    let patience = &learned["patience"][0];
    ensure!(patience["port"] == port && patience["messages"].as_u64() > Some(24), "{learned:#}");

    client.talk("6 400")?;
    let learned = client.totals()?;
    ensure!(learned["smc_connections"] == short + 6, "of six long ones not all: {learned:#}");
    ensure!(learned["patience"] == Value::Array(Vec::new()), "{learned:#}");
    server.must_be_alive()?;
    Ok("short connections were left alone, long ones moved again".to_owned())
}

/// So many connections in a row that a server declines have it left alone.
const PATIENCE: u32 = 8;

/// A server that declines is left alone after some connections, until another process serves there.
pub(crate) fn autocache(stage: &Stage<'_>) -> Result<String> {
    let port = launch::free_port()?;
    let stranger = serve(stage, port, "eid = \"OTHERS\"\n")?;
    let mut client = Client::start(stage, port, "eid = \"OURS\"\n")?;
    client.talk(&format!("{} 60", PATIENCE + 2))?;
    let learned = client.totals()?;
    let left_alone = &learned["left_alone"][0];
    let reason = left_alone["reason"].as_str().unwrap_or_default();
    let is_why = reason.starts_with("the peer declined: 0x03030000 NOSMCDEV");
    ensure!(is_why && left_alone["failures"] == PATIENCE, "{learned:#}");
    let lately = "agreeing with this server has failed lately";
    let skipped = learned["reasons"].as_array().and_then(|reasons| {
        reasons.iter().find(|reason| reason["text"] == lately).map(|it| &it["connections"])
    });
    ensure!(skipped == Some(&Value::from(2)), "{learned:#}");

    drop(stranger);
    let mut server = serve(stage, port, "eid = \"OURS\"\n")?;
    client.talk("2 60")?;
    let learned = client.totals()?;
    ensure!(learned["smc_connections"] == 2, "with the other server: {learned:#}");
    server.must_be_alive()?;
    Ok("a server that declines is left alone, the next one is asked".to_owned())
}

/// A program under Sidestep with the default settings and these of `[smc]`.
fn command(stage: &Stage<'_>, settings: &str, name: &str, words: &[&str]) -> Result<Command> {
    let Some(sidestep) = stage.house.launcher.observer() else {
        bail!(Lacking("there is no `sidestep` to ask".to_owned()));
    };
    let file = stage.house.scratch.join(format!("{name}.toml"));
    fs::write(&file, format!("[smc]\n{settings}"))?;
    let mut command = Command::new(sidestep);
    command.arg("run").arg("--config").arg(&file).arg("--").args(words);
    Ok(command)
}

fn serve(stage: &Stage<'_>, port: u16, settings: &str) -> Result<Program> {
    let (script, text) = (stage.house.script("echo_threads.py"), port.to_string());
    let words = ["python3", &script, "server", &text];
    let mut server =
        Program::start(command(stage, settings, "server", &words)?, &stage.house.scratch)?;
    server.await_listener(port)?;
    Ok(server)
}

struct Client<'a> {
    stage: &'a Stage<'a>,
    dialogue: Dialogue,
}

impl<'a> Client<'a> {
    fn start(stage: &'a Stage<'a>, port: u16, settings: &str) -> Result<Self> {
        let (script, seed) = (stage.house.script("by_turns.py"), stage.house.seed.to_string());
        let words = ["python3", &script, &port.to_string(), &seed];
        let mut dialogue = Dialogue::start(command(stage, settings, "client", &words)?)?;
        dialogue.await_line("ready", HANG)?;
        Ok(Self { stage, dialogue })
    }

    /// So many connections, for so many messages each.
    fn talk(&mut self, turns: &str) -> Result<()> {
        self.dialogue.say(turns)?;
        self.dialogue.await_line("verified", HANG).map(drop)
    }

    /// What `sidestep ss --totals` says about it.
    fn totals(&mut self) -> Result<Value> {
        let sidestep = self.stage.house.launcher.observer().context("it was there before")?;
        let pid = self.dialogue.program().pid().to_string();
        let output =
            Command::new(sidestep).args(["ss", "--totals", "--json", "--pid", &pid]).output()?;
        let programs: Value = serde_json::from_slice(&output.stdout)?;
        programs.get(0).cloned().context("`ss --totals` does not show the client")
    }
}
