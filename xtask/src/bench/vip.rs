//! TCP connections through a VIP, against the same without one.
//!
//! Nothing here goes by shared memory: the column of TCP connects to the listener itself, that of SMC to a
//! VIP in front of it. All is in a network namespace of its own.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::lab::Lab;
use super::launch::{self, Transport};
use crate::suite::Lacking;
use crate::user;

/// Transactions per second with a connection for each.
pub(super) fn short_connections(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    if !user::is_root() {
        bail!(Lacking("a network namespace and a VIP need root".to_owned()));
    }
    let sidestep = lab.launcher.observer().context("VIPs are in `sidestep`")?;
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-e", "-c", SCRIPT]);
    command.env("SIDESTEP", sidestep).env("CRR", lab.own("crr"));
    command.env("SECONDS_TO_RUN", lab.seconds.to_string());
    if transport == Transport::Smc {
        command.env("CONFIG", lab.write("vip.toml", CONFIG)?);
    }
    let said = launch::run(command, lab.patience())?;
    let rate = said.lines().last().and_then(|line| line.trim().parse().ok());
    Ok(vec![rate.with_context(|| format!("no rate in: {said}"))?])
}

const CONFIG: &str = "[vip.crr]
address = \"127.0.0.10:80\"
targets = { a = \"127.0.0.1:7001\" }
";

/// What it starts ends with it.
const SCRIPT: &str = r#"
trap 'kill $SERVER $VIPS 2>/dev/null' EXIT
ip link set lo up
"$CRR" serve 127.0.0.1 7001 &
SERVER=$!
WHERE="127.0.0.1 7001"
sleep 0.2
if [ -n "$CONFIG" ]; then
    "$SIDESTEP" vip run --log error --config "$CONFIG" > /dev/null &
    VIPS=$!
    WHERE="127.0.0.10 80"
    until "$SIDESTEP" vip targets 2>/dev/null | grep -q active; do sleep 0.05; done
fi
"$CRR" call $WHERE "$SECONDS_TO_RUN"
"#;
