//! TCP connections under an IP filter, against the same without one.
//!
//! Nothing here goes by shared memory: the column of TCP has no filter, that of SMC has one. Its rules are
//! those that IBM measured z/OS with: exact addresses and ports, none of which matches but the last. All
//! is in a network namespace, with a BPF file system and a control group of its own.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::lab::Lab;
use super::launch::{self, Transport};
use crate::enclosure::Group;
use crate::suite::Lacking;
use crate::user;

/// Rules of the lists for short connections, in the order of the rows.
const RULES: [u32; 3] = [1_000, 10_000, 100_000];

/// Transactions per second with a connection for each.
pub(super) fn short_connections(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    RULES.iter().map(|&rules| rate(lab, transport, rules, "CRR40(64B/8kB)")).collect()
}

/// Transactions per second on ten connections that live, under the longest list.
pub(super) fn long_connections(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    Ok(vec![rate(lab, transport, RULES[2], "RR10(100B/800B)")?])
}

fn rate(lab: &Lab, transport: Transport, rules: u32, workload: &str) -> Result<f64> {
    if !user::is_root() {
        bail!(Lacking("namespaces and a filter need root".to_owned()));
    }
    let sidestep = lab.launcher.observer().context("the filter is in `sidestep`")?;
    let group = Group::make()?;
    let json = lab.path("filter.json");
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "sh", "-e", "-c", SCRIPT]);
    command.env("SIDESTEP", sidestep).env("GROUP", group.at()).env("JSON", &json);
    command.env("DURATION", format!("{}ms", lab.duration().as_millis())).env("WORKLOAD", workload);
    if transport == Transport::Smc {
        command.env("RULES", list(lab, rules)?);
    }
    launch::run(command, lab.patience())?;
    let result: Value = serde_json::from_slice(&fs::read(&json)?)?;
    let rate = result.pointer("/results/0/tps/median").and_then(Value::as_f64);
    rate.context("no rate in the result")
}

/// The shell joins the group behind `apply`, whose own calls are not to be judged.
const SCRIPT: &str = r#"
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs none /run
ip link set lo up
if [ -n "$RULES" ]; then "$SIDESTEP" filter apply "$RULES" --cgroup "$GROUP"; fi
echo $$ > "$GROUP/cgroup.procs"
"$SIDESTEP" bench --over tcp --runs 1 --duration "$DURATION" --json "$JSON" "$WORKLOAD"
"#;

/// The file of the list, made once.
fn list(lab: &Lab, rules: u32) -> Result<String> {
    let name = format!("rules-{rules}");
    let path = lab.path(&name);
    if fs::exists(&path)? {
        return Ok(path);
    }
    let mut text = String::new();
    for number in 1..rules {
        let [_, high, middle, low] = number.to_be_bytes();
        let port = 1024 + number % 50_000;
        writeln!(text, "deny tcp 10.{high}.{middle}.{low} 192.168.{middle}.{low}:{port}")?;
    }
    text.push_str("permit any any any\n");
    lab.write(&name, text)
}
