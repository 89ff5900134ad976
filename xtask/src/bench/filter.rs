//! TCP connections under an IP filter, against the same without one.
//!
//! Nothing here goes by shared memory: the column of TCP has no filter, or a short one, that of SMC has a long one. Its rules are
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
const SHORT: &str = "CRR40(64B/8kB)";
const LONG: &str = "RR10(100B/800B)";

/// What judges the packets.
#[derive(Clone, Copy)]
enum Filter {
    None,
    /// Ours, of so many rules.
    Rules(u32),
    /// A list of nftables of so many, behind connection tracking.
    Nft(u32),
}

/// What came of a run.
struct Outcome {
    /// Transactions per second.
    rate: f64,
    /// CPU time of client and server for a transaction, in µs.
    cpu_us: f64,
}

/// Of each list: transactions per second with a connection for each, and their CPU time in µs.
pub(super) fn short_connections(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let of_list = |rules| run(lab, only_smc(transport, Filter::Rules(rules)), SHORT);
    let outcomes: Result<Vec<Outcome>> = RULES.into_iter().map(of_list).collect();
    Ok(outcomes?.into_iter().flat_map(|it| [it.rate, it.cpu_us]).collect())
}

/// The same on ten connections that live, under the longest list.
pub(super) fn long_connections(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let outcome = run(lab, only_smc(transport, Filter::Rules(RULES[2])), LONG)?;
    Ok(vec![outcome.rate, outcome.cpu_us])
}

/// Transactions per second under the longest list, against the shortest.
pub(super) fn length(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let rules = match transport {
        Transport::Smc => RULES[2],
        _ => RULES[0],
    };
    Ok(vec![run(lab, Filter::Rules(rules), SHORT)?.rate])
}

/// Transactions per second, and their CPU time in µs, under what Linux has.
pub(super) fn nft(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let outcome = run(lab, only_smc(transport, Filter::Nft(RULES[1])), SHORT)?;
    Ok(vec![outcome.rate, outcome.cpu_us])
}

/// Of the longest list: milliseconds until it is in force, and until it is with one rule more; megabytes in the kernel.
pub(super) fn change(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    if transport != Transport::Smc {
        return Ok(vec![0.0; 3]);
    }
    let place = Place::prepare(lab)?;
    let list = list(lab, RULES[2])?;
    let json = lab.path("show.json");
    let script = format!(
        "{MOUNT}\
         time_of() {{ a=$(date +%s%N); \"$SIDESTEP\" filter \"$@\" >&2; \
         b=$(date +%s%N); echo $(( (b - a) / 1000 )); }}\n\
         time_of apply \"$RULES\" --cgroup \"$GROUP\"\n\
         time_of add --last deny tcp 10.9.0.1 any:25\n\
         \"$SIDESTEP\" filter show --json > \"$JSON\"\n"
    );
    let mut command = place.command(&script)?;
    command.env("RULES", list).env("JSON", &json);
    let said = launch::run(command, lab.patience())?;
    let times: Result<Vec<f64>, _> = said.lines().map(str::parse::<f64>).collect();
    let &[whole, more] = times?.as_slice() else { bail!("not two times: {said}") };
    let show: Value = serde_json::from_slice(&fs::read(&json)?)?;
    let bytes = show["bytes"].as_f64().context("no bytes in `show`")?;
    Ok(vec![whole / 1e3, more / 1e3, bytes / f64::from(1 << 20)])
}

fn only_smc(transport: Transport, filter: Filter) -> Filter {
    if transport == Transport::Smc { filter } else { Filter::None }
}

/// A control group, and what runs in namespaces of its own.
struct Place<'a> {
    lab: &'a Lab,
    group: Group,
}

impl<'a> Place<'a> {
    fn prepare(lab: &'a Lab) -> Result<Self> {
        if !user::is_root() {
            bail!(Lacking("namespaces and a filter need root".to_owned()));
        }
        Ok(Self { lab, group: Group::make()? })
    }

    fn command(&self, script: &str) -> Result<Command> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "sh", "-e", "-c", script]);
        let sidestep = self.lab.launcher.observer().context("the filter is in `sidestep`")?;
        command.env("SIDESTEP", sidestep).env("GROUP", self.group.at());
        Ok(command)
    }
}

fn run(lab: &Lab, filter: Filter, workload: &str) -> Result<Outcome> {
    let place = Place::prepare(lab)?;
    let json = lab.path("filter.json");
    let mut command = place.command(&format!("{MOUNT}{FILTER}{BENCH}"))?;
    command.env("JSON", &json).env("WORKLOAD", workload);
    command.env("DURATION", format!("{}ms", lab.duration().as_millis()));
    match filter {
        Filter::None => {}
        Filter::Rules(rules) => _ = command.env("RULES", list(lab, rules)?),
        Filter::Nft(rules) => _ = command.env("NFT", nft_list(lab, rules)?),
    }
    launch::run(command, lab.patience())?;
    let result: Value = serde_json::from_slice(&fs::read(&json)?)?;
    let number = |at: &str| result.pointer(at).and_then(Value::as_f64).context(at.to_owned());
    let cpu = ["client", "server"].map(|end| number(&format!("/results/0/cpu_us_per_tran/{end}")));
    let [client, server] = cpu;
    Ok(Outcome { rate: number("/results/0/tps/median")?, cpu_us: client? + server? })
}

const MOUNT: &str = "
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs none /run
ip link set lo up
";

/// Connections that have ended are tracked for a second: two minutes of them would be millions.
const FILTER: &str = r#"
if [ -n "$RULES" ]; then "$SIDESTEP" filter apply "$RULES" --cgroup "$GROUP"; fi
if [ -n "$NFT" ]; then
    nft -f "$NFT"
    echo 1 > /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait
fi
"#;

/// The shell joins the group behind `apply`, whose own calls are not to be judged.
const BENCH: &str = r#"
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
        let (from, to, port) = addresses(number);
        writeln!(text, "deny tcp {from} {to}:{port}")?;
    }
    text.push_str("permit any any any\n");
    lab.write(&name, text)
}

/// The same list for nftables, in both directions.
fn nft_list(lab: &Lab, rules: u32) -> Result<String> {
    let name = format!("nft-{rules}");
    let path = lab.path(&name);
    if fs::exists(&path)? {
        return Ok(path);
    }
    let mut text = "table ip filter {\n".to_owned();
    for hook in ["input", "output"] {
        writeln!(text, "chain {hook} {{ type filter hook {hook} priority 0;")?;
        writeln!(text, "ct state established accept")?;
        for number in 1..rules {
            let (from, to, port) = addresses(number);
            writeln!(text, "ip saddr {from} ip daddr {to} tcp dport {port} drop")?;
        }
        writeln!(text, "accept\n}}")?;
    }
    text.push_str("}\n");
    lab.write(&name, text)
}

/// Both addresses and the port of a rule.
fn addresses(number: u32) -> (String, String, u32) {
    let [_, high, middle, low] = number.to_be_bytes();
    let (from, to) = (format!("10.{high}.{middle}.{low}"), format!("192.168.{middle}.{low}"));
    (from, to, 1024 + number % 50_000)
}
