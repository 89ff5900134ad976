//! The small tools of everybody who works with networks.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::site::Site;
use crate::bench::launch;
use crate::bench::workloads::SOCKPERF_PACE;

/// What the tools that copy carry.
const COPIED_LEN: usize = 50_000_000;

/// There and back, through a process that answers with what it reads. Not socat's
/// own `PIPE`: it is written to until it blocks, by the process that would have to
/// empty it, so it stands still over TCP with small buffers, too.
pub(crate) fn socat(site: &Site<'_>) -> Result<String> {
    let port = launch::free_port()?;
    let listen = format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork");
    let mut server = site.serve(port, &["socat", &listen, "EXEC:cat"])?;
    site.write_random("sent", COPIED_LEN)?;
    let client = format!("socat -t 30 STDIO TCP:127.0.0.1:{port} < sent > got");
    site.run(&["bash", "-c", &client])?;
    site.must_be_equal("got", "sent")?;
    server.must_be_alive()?;
    Ok(format!("{COPIED_LEN} bytes echoed and compared"))
}

pub(crate) fn netcat_openbsd(site: &Site<'_>) -> Result<String> {
    let port = launch::free_port()?;
    let listen = format!("nc.openbsd -l 127.0.0.1 {port} | {LATE_READER} > got");
    copy(site, port, &listen, &format!("nc.openbsd -N 127.0.0.1 {port} < sent"))
}

/// The listener sends: as a receiver it ends its own direction first, when its
/// standard input is empty, and a connection with an end does not move any more.
pub(crate) fn ncat(site: &Site<'_>) -> Result<String> {
    let port = launch::free_port()?;
    let listen = format!("ncat -l --send-only 127.0.0.1 {port} < sent");
    copy(site, port, &listen, &format!("ncat --recv-only 127.0.0.1 {port} | {LATE_READER} > got"))
}

/// Behind the program that receives: neither end outlives the connection, which
/// therefore has to last until somebody has looked at it. A sender who fills TCP's buffers before
/// the receiver's process has told its name looks for it again when it has sent twice as much, so
/// the reader waits another time.
const LATE_READER: &str = "(sleep 1; head -c 16000000; sleep 1; cat)";

/// A file between one that listens and one that connects.
fn copy(site: &Site<'_>, port: u16, listen: &str, connect: &str) -> Result<String> {
    site.write_random("sent", COPIED_LEN)?;
    let mut server = site.serve(port, &["bash", "-c", listen])?;
    site.run(&["bash", "-c", connect])?;
    site.await_that("the listener has ended", || server.has_ended())?;
    site.must_be_equal("got", "sent")?;
    Ok(format!("{COPIED_LEN} bytes compared"))
}

const SHELL_LINES: u32 = 2000;

/// The shell itself as a client, a line at a time.
pub(crate) fn bash(site: &Site<'_>) -> Result<String> {
    let port = launch::free_port()?;
    let listen = format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork");
    let mut server = site.serve(port, &["socat", &listen, "PIPE"])?;
    let script = format!(
        "exec 9<>/dev/tcp/127.0.0.1/{port}\n\
         for ((n = 0; n < {SHELL_LINES}; n++)); do\n\
         printf 'line %d\\n' $n >&9; read -r -u 9 got; [ \"$got\" = \"line $n\" ] || exit 1\n\
         done"
    );
    site.run(&["bash", "-c", &script])?;
    server.must_be_alive()?;
    Ok(format!("{SHELL_LINES} lines echoed and compared"))
}

// ---- meters ------------------------------------------------------------------

pub(crate) fn iperf3(site: &Site<'_>) -> Result<String> {
    let port = launch::free_port()?;
    let text = port.to_string();
    let mut server = site.serve(port, &["iperf3", "-s", "-B", "127.0.0.1", "-p", &text])?;
    let client = ["iperf3", "-c", "127.0.0.1", "-p", &text, "-t", "1", "-P", "4", "-J"];
    let mut total = 0;
    for direction in [&[][..], &["-R"], &["--bidir"]] {
        let report: Value = serde_json::from_str(&site.run(&[&client, direction].concat())?)?;
        let bytes = |of: &str| report.pointer(of).and_then(Value::as_u64).context("no sum");
        let [sent, received] = ["/end/sum_sent/bytes", "/end/sum_received/bytes"].map(bytes);
        let (sent, received) = (sent?, received?);
        // It stops reading when the time is over.
        ensure!(0 < received && received <= sent, "{received} of {sent} bytes arrived");
        total += received;
    }
    server.must_be_alive()?;
    Ok(format!("{:.1} GB in 4 streams, there, back and both", total as f64 / 1e9))
}

pub(crate) fn sockperf(site: &Site<'_>) -> Result<String> {
    let port = launch::free_port()?;
    let text = port.to_string();
    let address = ["--tcp", "-i", "127.0.0.1", "-p", &text];
    let mut server = site.serve(port, &[&["sockperf", "sr"], &address[..]].concat())?;
    let client = ["sockperf", "ping-pong", "-t", "1", "-m", "1400", "--data-integrity"];
    let said = site.run(&[&client[..], &[SOCKPERF_PACE], &address].concat())?;
    ensure!(!said.contains("integrity test failed"), "sockperf saw a wrong byte");
    server.must_be_alive()?;
    Ok("sockperf's data integrity test".to_owned())
}

/// Sockets between processes that stress-ng forks, with all its ways to send.
pub(crate) fn stress_ng(site: &Site<'_>) -> Result<String> {
    let port = launch::free_port()?.to_string();
    let sockets = ["stress-ng", "--sock", "2", "--sock-domain", "ipv4", "--sock-port", &port];
    let limits = ["--timeout", "4", "--verify", "--metrics-brief", "--log-file", "log"];
    site.run(&[&sockets[..], &limits].concat())?;
    let log = fs::read_to_string(site.path("log"))?;
    let metrics = log.lines().find(|line| line.contains("] sock "));
    let operations = metrics.and_then(|line| line.split_whitespace().nth(4));
    let operations = operations.with_context(|| format!("no metrics in {log}"))?;
    ensure!(operations != "0", "stress-ng did nothing");
    Ok(format!("stress-ng's own check of {operations} operations"))
}
