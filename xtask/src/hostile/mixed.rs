//! All at once at one listener, for a minute: honest clients whose connections move early, late
//! and never, and everybody else who could come.
//!
//! | Who | What |
//! |---|---|
//! | honest clients | connections that stay and that come and go, under Sidestep (early and late promotion) and plain |
//! | strangers, plain and under Sidestep | half-open, vanishing, garbage, byte by byte, never reading ([`strangers.py`]) |
//! | a scripted client | rules of CLC broken one after the other, and waits without an answer |
//! | a sender of datagrams | nonsense at the mailbox and at the names of connections |
//! | clients that are killed | in the middle of what they do |
//!
//! Each byte is compared with the one at its place in what was sent. No honest connection may fail,
//! and at the end the server has nothing left of all that: no descriptor, slot or memory.
//!
//! [`strangers.py`]: ../../../tests/hostile/strangers.py

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::stage::{Stage, Tally, Victim};
use crate::bench::launch::{self, Dialogue, Transport};
use crate::suite::{HANG, Lacking};

/// So many times as long as another attack: a minute, if nothing else was said.
const TIMES: f64 = 120.0;

/// Threads of each honest client.
const THREADS: &str = "3";

/// How long datagrams are sent at a time.
const DATAGRAMS_S: &str = "1";

/// The longest time that a client lives before it is killed.
const LIFE_MAX_MS: u64 = 400;

pub(super) fn mixed(stage: &Stage<'_>) -> Result<String> {
    if stage.house.launcher.is_plain() {
        bail!(Lacking("nobody has a mailbox".to_owned()));
    }
    let mut victim = stage.serve()?;
    let seconds = TIMES * stage.house.seconds;
    let remark = stage.attack(&mut victim, seconds, |victim| all_at_once(stage, victim))?;
    must_have_no_connection(stage, &victim)?;
    Ok(remark)
}

fn must_have_no_connection(stage: &Stage<'_>, victim: &Victim) -> Result<()> {
    let deadline = Instant::now() + HANG;
    loop {
        let (smc, tcp) = stage.house.witness.look(&[victim.pid()])?.counts();
        if smc + tcp == 0 {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the server still has {smc} in SMC-D and {tcp} on TCP");
    }
}

fn all_at_once(stage: &Stage<'_>, victim: &mut Victim) -> Result<String> {
    let duration = stage.seconds(TIMES);
    let end = Instant::now() + duration;
    let honest = honest_clients(stage, victim, duration)?;
    let others = others(stage, victim, duration)?;
    let mut killed = 0;
    while Instant::now() < end {
        kill_one(stage, victim)?;
        killed += 1;
        launch::run(scripted(stage, victim), HANG).context("the scripted client")?;
        launch::run(datagrams(stage, victim), HANG).context("the datagrams")?;
        victim.must_be_alive()?;
    }
    let patience = HANG + duration / 4;
    let mut sum = Tally::default();
    for (name, client) in honest {
        let said = client.finish(patience).context(name)?;
        let tally = Tally::parse(said.lines().last().unwrap_or_default()).context(name)?;
        tally.must_be_well().context(name)?;
        sum.add(&tally);
    }
    let mut remark = format!("{sum} honest; {killed} killed");
    for (name, other) in others {
        remark += &format!(", {name} {}", other.finish(patience).context(name)?.trim());
    }
    Ok(remark)
}

type Named = (&'static str, Dialogue);

/// Those that must do well, to the last byte.
fn honest_clients(stage: &Stage<'_>, victim: &Victim, duration: Duration) -> Result<Vec<Named>> {
    let seconds = duration.as_secs_f64().to_string();
    let words = ["storm", "-n", THREADS, "-t", &seconds];
    let late = stage.late_client(victim, &words);
    let early = stage.client(victim, &words);
    let plain = stage.client_over(Transport::Tcp, victim, &words);
    [("early clients", early), ("late clients", late), ("plain clients", plain)]
        .into_iter()
        .map(|(name, command)| Ok((name, Dialogue::start(command)?)))
        .collect()
}

fn others(stage: &Stage<'_>, victim: &Victim, duration: Duration) -> Result<Vec<Named>> {
    let house = stage.house;
    let seconds = duration.as_secs_f64().to_string();
    let strangers = |over| {
        let script = house.scripts.join("strangers.py").display().to_string();
        let (port, seed) = (victim.port.to_string(), house.next_seed());
        let words = [&script, &port, "--seed", &seed, "--seconds", &seconds];
        let mut command = house.launcher.launch(over, "python3", words);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    [("plain strangers", strangers(Transport::Tcp)), ("strangers", strangers(Transport::Smc))]
        .into_iter()
        .map(|(name, command)| Ok((name, Dialogue::start(command)?)))
        .collect()
}

/// A client that does not live long.
fn kill_one(stage: &Stage<'_>, victim: &Victim) -> Result<()> {
    let life: u64 = stage.house.next_seed().parse::<u64>()?.wrapping_mul(0x9E37_79B9);
    let words = ["storm", "-n", "4", "-f", "-t", "60"];
    let client = Dialogue::start(stage.client(victim, &words))?;
    thread::sleep(Duration::from_millis(life % LIFE_MAX_MS));
    drop(client);
    Ok(())
}

/// Not beside the scripted client, to whom nonsense is sent as well: unlike the library, it
/// waits until it is understood.
fn datagrams(stage: &Stage<'_>, victim: &Victim) -> Command {
    let mut command = Command::new("python3");
    command.env("PYTHONDONTWRITEBYTECODE", "1").arg(&stage.house.datagrams);
    command.args(["--pid", &victim.pid().to_string(), "--seed", &stage.house.next_seed()]);
    command.args(["--seconds", DATAGRAMS_S]);
    command
}

fn scripted(stage: &Stage<'_>, victim: &Victim) -> Command {
    let mut command = Command::new("python3");
    command.env("PYTHONDONTWRITEBYTECODE", "1").arg(&stage.house.scripted_client);
    command.arg(victim.port.to_string());
    command
}
