//! What `sidestep stats` counts, against what a program has counted by itself.
//!
//! Redis knows how many bytes it has read from its clients and written to them, whatever way they
//! took. The last client is a plain one of ours, and asks for these numbers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::stage::{Mix, Stage};
use crate::bench::launch;
use crate::suite::HANG;

pub(crate) fn sums(stage: &Stage<'_>) -> Result<String> {
    let port = launch::free_port()?;
    let text = port.to_string();
    let options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    let server = stage.serve(port, &[&["redis-server", "--port", &text][..], &options].concat())?;
    let load = ["-t", "set,get", "-d", "3000", "-c", "20", "-n", "20000", "-q"];
    stage.run(&[&["redis-benchmark", "-h", "127.0.0.1", "-p", &text][..], &load].concat())?;

    let Some(sidestep) = stage.house.launcher.observer() else {
        return Ok("nobody to ask".to_owned());
    };
    let [read, written] = redis_counted(port)?;
    let mut command = Command::new(sidestep);
    command.args(["stats", "--json", &server.pid().to_string()]);
    let statistics: Value = serde_json::from_str(&launch::run(command, HANG)?)?;
    let row = &statistics["all"];
    let number = |key: &str| row[key].as_u64().with_context(|| format!("no {key}: {row}"));

    let counted = [number("bytes_received")?, number("bytes_sent")?];
    ensure!(counted == [read, written], "redis counted {read}, {written}; sidestep {counted:?}");
    for direction in ["sent", "received"] {
        let classes = row["sizes"].as_array().into_iter().flatten();
        let messages: u64 = classes.filter_map(|class| class[direction].as_u64()).sum();
        let calls = number(&format!("messages_{direction}"))?;
        ensure!(messages == calls, "{messages} messages {direction} by length, {calls} calls");
    }
    let [attempted, agreed, failed] =
        ["attempted", "agreed", "failed"].map(|which| number(&format!("handshakes_{which}")));
    let (attempted, agreed) = (attempted?, agreed?);
    ensure!(attempted == agreed + failed?, "handshakes do not add up: {row}");
    ensure!((agreed > 0) == (stage.mix == Mix::Both), "{agreed} agreed with {}", stage.mix);
    Ok(format!("{read} and {written} bytes, {agreed} agreed"))
}

/// Bytes that redis has read and written, the question and its answer included.
pub(super) fn redis_counted(port: u16) -> Result<[u64; 2]> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(HANG))?;
    stream.write_all(b"INFO stats\r\n")?;
    let mut reply = BufReader::new(stream);
    let mut header = String::new();
    reply.read_line(&mut header)?;
    let len: usize = header.trim_start_matches('$').trim_end().parse().context("no bulk reply")?;
    let mut payload = vec![0; len + 2];
    reply.read_exact(&mut payload)?;
    let text = String::from_utf8(payload)?;
    let number = |key: &str| -> Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.with_context(|| format!("no {key}"))?.parse().context("no number")
    };
    // The answer is made before it is written.
    let answer = (header.len() + text.len()) as u64;
    Ok([number("total_net_input_bytes")?, number("total_net_output_bytes")? + answer])
}
