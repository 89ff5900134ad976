//! `sidestep tap` against tshark: what a capture says of a connection in shared memory is what its two programs have sent.
//!
//! The client sends bytes that it knows and gets the same back, so each direction has them, in rings of their own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::stage::Stage;
use crate::bench::launch::{self, Dialogue};
use crate::capture;
use crate::suite::{HANG, Lacking};

/// Bytes that are sent while the connection is followed.
const SENT: usize = 400_000;
/// A file with a header and nothing else is shorter, one with a packet longer.
const HEADER_MAX: u64 = 200;
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Each end of a connection is a FIN.
const ENDS: &str = "tcp.flags.fin == 1";

pub(crate) fn streams(stage: &Stage<'_>) -> Result<String> {
    let Some(sidestep) = stage.house.launcher.observer() else {
        bail!(Lacking("there is no `sidestep` to ask".to_owned()));
    };
    let scratch = |name: &str| stage.house.scratch.join(name);
    let (file, expected) = (scratch("tap.pcapng"), scratch("tap.expected"));
    let _ = fs::remove_file(&file);
    let (port, seed) = (launch::free_port()?, stage.house.seed.to_string());
    let text = port.to_string();
    let _server =
        stage.serve(port, &["python3", &stage.house.script("echo_threads.py"), "server", &text])?;
    let mut command = Command::new(sidestep);
    command.args(["tap", &format!(":{port}"), "--write"]).arg(&file);
    let mut tap = Dialogue::start(command)?;
    await_len(&file, 1)?;
    let words = ["python3", &stage.house.script("tapped.py"), &text, &seed];
    let mut words: Vec<String> = words.map(str::to_owned).to_vec();
    words.push(expected.display().to_string());
    let mut client = Dialogue::start(stage.client_command(&words))?;
    client.await_line("talking", HANG)?;
    await_len(&file, HEADER_MAX)?;
    client.say(&SENT.to_string())?;
    client.await_line("went on", HANG)?;
    client.finish(HANG)?;
    await_ends(&file)?;
    launch::signal(tap.program().pid(), libc::SIGINT)?;
    tap.finish(HANG)?;
    compare(&file, port, &fs::read(&expected)?)
}

/// Waits until the file has more than so many bytes.
fn await_len(file: &Path, len: u64) -> Result<()> {
    let deadline = Instant::now() + HANG;
    while fs::metadata(file).map_or(0, |it| it.len()) <= len {
        ensure!(Instant::now() < deadline, "{} does not grow beyond {len} bytes", file.display());
        thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}

/// Waits until the tap has written both ends of the connection. A file that grows may be cut short when it is looked at.
fn await_ends(file: &Path) -> Result<()> {
    let deadline = Instant::now() + HANG;
    while !count(file, ENDS).is_ok_and(|ends| ends == 2) {
        ensure!(Instant::now() < deadline, "{} does not have both ends", file.display());
        thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}

/// The packets that a filter of tshark finds.
fn count(file: &Path, only: &str) -> Result<usize> {
    Ok(capture::dissect(file, only, &["-T", "fields", "-e", "frame.number"])?.lines().count())
}

/// What tshark finds, against what was sent in each direction.
fn compare(file: &Path, port: u16, expected: &[u8]) -> Result<String> {
    let count = |only| count(file, only);
    ensure!(count("tcp.flags.syn == 1")? == 2, "no handshake");
    ensure!(count(ENDS)? == 2, "not both ends");
    let wrong = "tcp.analysis.retransmission || tcp.analysis.out_of_order || tcp.flags.reset == 1";
    ensure!(count(wrong)? == 0, "tshark finds segments twice, or in another order");
    ensure!(count("frame.comment contains \"SMC-D in shared memory\"")? > 0, "no comment");
    let fields = ["tcp.srcport", "tcp.seq_raw", "tcp.payload"];
    let words = ["-T", "fields"].into_iter().chain(fields.iter().flat_map(|it| ["-e", it]));
    let lines = capture::dissect(file, "tcp.len > 0", &words.collect::<Vec<_>>())?;
    let mut told: BTreeMap<bool, Vec<(usize, Vec<u8>)>> = BTreeMap::new();
    for line in lines.lines() {
        let [source, sequence, payload] =
            line.split('\t').collect::<Vec<_>>().try_into().ok().context("three fields")?;
        let segment = (sequence.parse::<usize>()? - 1, of_hex(payload)?);
        told.entry(source.parse::<u16>()? == port).or_default().push(segment);
    }
    let mut sums = Vec::new();
    for (from_server, segments) in [(false, told.get(&false)), (true, told.get(&true))] {
        let segments =
            segments.with_context(|| format!("from the server {from_server}: nothing"))?;
        let mut at = segments[0].0;
        // What had gone by TCP: some messages, of which a connection has 16 before it moves.
        ensure!(at > 0 && at <= 4000, "from the server {from_server}: begins at {at}");
        let begin = at;
        for (offset, bytes) in segments {
            ensure!(*offset == at, "from the server {from_server}: a gap from {at} to {offset}");
            let end = at + bytes.len();
            let sent = expected.get(at..end).context("more than was sent")?;
            ensure!(sent == bytes, "from the server {from_server}: other bytes at {at}");
            at = end;
        }
        ensure!(at == expected.len(), "from the server {from_server}: {at} of {}", expected.len());
        sums.push(format!("{} bytes behind {begin}", at - begin));
    }
    Ok(format!("tshark reads {}", sums.join(", ")))
}

fn of_hex(text: &str) -> Result<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    ensure!(rest.is_empty(), "half a byte");
    let byte = |pair: &[u8; 2]| Ok(u8::from_str_radix(str::from_utf8(pair)?, 16)?);
    pairs.iter().map(byte).collect()
}
