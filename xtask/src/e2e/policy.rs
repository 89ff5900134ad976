//! The operator's rules: `[policy]` in the configuration of one end is enough.

use std::fs;

use anyhow::{Context, Result};

use super::outsiders::{Maker, command, converse, ordinary};
use super::stage::Stage;
use crate::bench::launch;
use crate::witness::Claim;

/// A rule, and why a connection on loopback to `PORT` stays on TCP. No reason: it moves.
const RULES: [(&str, Option<&str>); 7] = [
    ("exclude_ports = [PORT]", Some("excluded by policy.exclude_ports")),
    ("exclude_ports = [\"1-65535\"]", Some("excluded by policy.exclude_ports")),
    ("exclude_ports = [1]\npermit_peers = [\"127.0.0.0/8\"]", None),
    ("permit_peers = [\"192.0.2.0/24\", \"::/0\"]", Some("excluded by policy.permit_peers")),
    ("exclude_peers = [\"127.0.0.1\"]", Some("excluded by policy.permit_peers")),
    ("exclude_programs = [\"other\", \"outsider-peer\"]", Some("policy.exclude_programs")),
    ("exclude_programs = [\"outsider\"]", None),
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
    Ok(said)
}
