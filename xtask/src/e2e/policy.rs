//! The operator's rules: `[policy]` or `[pnet]` in the configuration of one end is enough.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::outsiders::{Maker, command, converse, ordinary};
use super::stage::Stage;
use crate::bench::launch::{self, Dialogue, Transport};
use crate::suite::{HANG, Lacking};
use crate::user;
use crate::witness::Claim;

/// A rule, and why a connection on loopback to `PORT` stays on TCP. No reason: it moves.
const RULES: [(&str, Option<&str>); 13] = [
    ("exclude_ports = [PORT]", Some("excluded by policy.exclude_ports")),
    ("exclude_ports = [\"1-65535\"]", Some("excluded by policy.exclude_ports")),
    ("exclude_ports = [1]\npermit_peers = [\"127.0.0.0/8\"]", None),
    ("permit_peers = [\"192.0.2.0/24\", \"::/0\"]", Some("excluded by policy.permit_peers")),
    ("exclude_peers = [\"127.0.0.1\"]", Some("excluded by policy.permit_peers")),
    ("exclude_programs = [\"other\", \"outsider-peer\"]", Some("policy.exclude_programs")),
    ("exclude_programs = [\"outsider\"]", None),
    ("[smc]\neid = [\"OTHER\", \"SIDESTEP\"]", None),
    ("[smc]\neid = [\"OTHER\", \"ANOTHER\"]", Some("no enterprise ID in common")),
    ("[smc]\neid = \"OTHER\"\nseid = true", Some("no enterprise ID in common")),
    ("[pnet.A]\ninterfaces = [\"eth9\", \"lo\"]\ndevices = [\"ism\"]", None),
    ("[pnet.A]\ninterfaces = [\"eth9\"]\ndevices = [\"ism\"]", Some("have the PNET ID")),
    ("[pnet.A]\ninterfaces = [\"eth9\"]", None),
];

pub(crate) fn rules(stage: &Stage<'_>) -> Result<String> {
    let program = ordinary(stage)?;
    let config = stage.house.scratch.join("policy.toml");
    let free = |words: &[&str]| command(stage, &program, "calls", words);
    let ruled = |words: &[&str]| {
        let mut command = free(words);
        command.env("SIDESTEP_CONFIG", &config);
        command
    };
    let mut said = String::new();
    for (rule, reason) in RULES {
        let (claim, reason) = (reason.map_or(Claim::Smc, |_| Claim::Tcp), reason.unwrap_or(""));
        let (ruled, free): (Maker<'_>, Maker<'_>) = (&ruled, &free);
        for (server, client) in [(ruled, free), (free, ruled)] {
            let port = launch::free_port()?;
            let text = format!("[policy]\n{}\n", rule.replace("PORT", &port.to_string()));
            fs::write(&config, text)?;
            said = converse(stage, port, claim, reason, server, client)
                .with_context(|| rule.to_owned())?;
        }
    }
    seid(stage, &free)?;
    Ok(said)
}

/// Programs that have no UEID in common, and both the SEID.
fn seid(stage: &Stage<'_>, free: Maker<'_>) -> Result<()> {
    let ruled = |eid: &str| {
        let config = stage.house.scratch.join(format!("seid-{eid}.toml"));
        fs::write(&config, format!("[smc]\neid = \"{eid}\"\nseid = true\n"))?;
        anyhow::Ok(move |words: &[&str]| {
            let mut command = free(words);
            command.env("SIDESTEP_CONFIG", &config);
            command
        })
    };
    let (server, client) = (ruled("ONE")?, ruled("OTHER")?);
    converse(stage, launch::free_port()?, Claim::Smc, "", &server, &client).context("smc.seid")?;
    Ok(())
}

/// A program that has a connection on which the ends do not agree, because nobody accepts it,
/// and another: `handshake_limit` says whether that may begin.
pub(crate) fn handshakes(stage: &Stage<'_>) -> Result<String> {
    let config = stage.house.scratch.join("handshakes.toml");
    let (script, seed) = (stage.house.script("handshakes.py"), stage.house.seed.to_string());
    let mut said = String::new();
    for (limit, claim, reason) in
        [(0, Claim::Both, ""), (3, Claim::Both, ""), (1, Claim::Tcp, "policy.handshake_limit")]
    {
        fs::write(&config, format!("[policy]\nhandshake_limit = {limit}\n"))?;
        let mut command = stage.command(Transport::Smc, &["python3", &script, &seed]);
        command.env("SIDESTEP_CONFIG", &config);
        let mut program = Dialogue::start(command)?;
        said = program.await_line("verified", HANG)?;
        if stage.house.witness.sees() {
            let seen = stage.house.witness.look(&program.program().family())?;
            stage.house.witness.judge(claim, &seen).with_context(|| format!("limit {limit}"))?;
            seen.gives_reason(reason)?;
        }
        program.finish(HANG)?;
    }
    Ok(said)
}

/// A user and group with a number and no name, as in containers.
const STRANGER: u32 = 4711;

/// What root's server and a stranger's client say about each other, and what comes of it.
const SHARED: [(&str, &str, Claim); 6] = [
    ("", "", Claim::Tcp),
    ("share_with_users = [4711]", "share_with_users = [\"root\"]", Claim::Smc),
    ("share_with_users = [1, 4711]", "", Claim::Tcp),
    ("", "share_with_users = [\"root\"]", Claim::Tcp),
    ("share_with_groups = [4711]", "share_with_groups = [\"root\"]", Claim::Smc),
    ("share_with_groups = [4711]", "share_with_users = [4711]", Claim::Tcp),
];

pub(crate) fn users(stage: &Stage<'_>) -> Result<String> {
    if !user::is_root() {
        bail!(Lacking("programs of two users need root".to_owned()));
    }
    let program = ordinary(stage)?;
    let as_stranger = |command: &mut Command| {
        command.uid(STRANGER).gid(STRANGER);
    };
    let mut reach = Command::new(&program);
    as_stranger(&mut reach);
    if reach.output().is_err() {
        bail!(Lacking("another user cannot reach the build".to_owned()));
    }
    let configs = ["server.toml", "client.toml"].map(|name| stage.house.scratch.join(name));
    let ours = |words: &[&str]| {
        let mut command = command(stage, &program, "calls", words);
        command.env("SIDESTEP_CONFIG", &configs[0]);
        command
    };
    let theirs = |words: &[&str]| {
        let mut command = command(stage, &program, "calls", words);
        command.env("SIDESTEP_CONFIG", &configs[1]).env_remove("HOME");
        as_stranger(&mut command);
        command
    };
    let mut said = String::new();
    for (server, client, claim) in SHARED {
        for (path, rule) in configs.iter().zip([server, client]) {
            fs::write(path, format!("[policy]\n{rule}\n"))?;
        }
        let port = launch::free_port;
        // Who is refused by the other end only, does not learn it at once.
        let reason = if claim == Claim::Tcp && client.is_empty() { "another user" } else { "" };
        said = converse(stage, port()?, claim, reason, &ours, &theirs)
            .with_context(|| format!("server: {server}, client: {client}"))?;
        converse(stage, port()?, claim, "", &theirs, &ours)
            .with_context(|| format!("client: {server}, server: {client}"))?;
    }
    Ok(said)
}
