//! Where an attack takes place: a victim under Sidestep, honest clients beside
//! it, and what must be true of both when it is over.

use std::cell::Cell;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::hardship;
use super::vitals::Vitals;
use crate::bench::launch::{self, Dialogue, Launcher, Program, Transport};
use crate::suite::HANG;
use crate::witness::{Claim, Evidence, Witness};

/// Pause between two looks at it.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Connections of the honest clients beside an attack.
const HONEST: &str = "2";

/// Memory a victim may have more of after an attack: what its allocator keeps
/// for threads it has ended, and rings that are kept warm.
const GROWTH_KB: u64 = 4096;

/// How a victim serves its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// A blocking thread for each connection.
    Threads,
    /// One event loop.
    Epoll,
}

impl fmt::Display for Style {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Threads => "threads",
            Self::Epoll => "epoll",
        })
    }
}

/// What all tests share.
#[derive(Debug)]
pub(crate) struct House {
    pub(crate) launcher: Launcher,
    pub(crate) witness: Witness,
    pub(crate) victim: PathBuf,
    pub(crate) client: PathBuf,
    pub(crate) doomed: PathBuf,
    pub(crate) scribbler: PathBuf,
    /// What `sidestep run` preloads.
    pub(crate) library: PathBuf,
    /// Moves connections once they are worth it.
    pub(crate) late: Launcher,
    /// `tests/hostile` of the repository.
    pub(crate) scripts: PathBuf,
    /// The script that sends datagrams.
    pub(crate) datagrams: PathBuf,
    /// The scripts that break one rule after the other.
    pub(crate) scripted_client: PathBuf,
    pub(crate) scripted_server: PathBuf,
    /// For logs and configuration files.
    pub(crate) scratch: PathBuf,
    /// How long an attack lasts.
    pub(crate) seconds: f64,
    /// Of the next program.
    pub(crate) seed: Cell<u32>,
}

impl House {
    /// A seed for each program: the same bytes from two of them could be
    /// exchanged without being noticed.
    pub(crate) fn next_seed(&self) -> String {
        self.seed.replace(self.seed.get().wrapping_add(1)).to_string()
    }
}

/// A victim and the port on which it listens.
#[derive(Debug)]
pub(crate) struct Victim {
    program: Program,
    pub(crate) port: u16,
}

impl Victim {
    pub(crate) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Waits for its end.
    ///
    /// **Errors**: it lives on.
    pub(crate) fn must_end(&mut self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        while !self.program.has_ended()? {
            ensure!(Instant::now() < deadline, "the victim has not ended");
            thread::sleep(LOOK_INTERVAL);
        }
        Ok(())
    }

    /// **Errors**: it is not.
    pub(crate) fn must_be_alive(&mut self) -> Result<()> {
        self.program.must_be_alive()
    }
}

/// One test with one style of victim.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) house: &'a House,
    pub(crate) style: Style,
}

impl Stage<'_> {
    // ---- programs ------------------------------------------------------------

    /// A victim that listens.
    pub(crate) fn serve(&self) -> Result<Victim> {
        self.serve_with(|_| {})
    }

    /// The same with something done to its command.
    pub(crate) fn serve_with(&self, prepare: impl FnOnce(&mut Command)) -> Result<Victim> {
        let port = launch::free_port()?;
        let words = [self.style.to_string(), port.to_string()];
        let mut command = self.house.launcher.launch(Transport::Smc, &self.house.victim, words);
        prepare(&mut command);
        self.await_victim(command, port)
    }

    /// Starts the command of a victim and waits until it listens.
    pub(crate) fn await_victim(&self, command: Command, port: u16) -> Result<Victim> {
        let mut program = Program::start(command, &self.house.scratch)?;
        program.await_listener(port)?;
        Ok(Victim { program, port })
    }

    /// A client of the victim under Sidestep: its mode and options.
    pub(crate) fn client(&self, victim: &Victim, words: &[&str]) -> Command {
        self.client_over(Transport::Smc, victim, words)
    }

    /// A client of the victim, plain or under Sidestep.
    pub(crate) fn client_over(&self, over: Transport, to: &Victim, words: &[&str]) -> Command {
        self.client_by(&self.house.launcher, over, to, words)
    }

    fn client_by(
        &self,
        launcher: &Launcher,
        over: Transport,
        to: &Victim,
        words: &[&str],
    ) -> Command {
        let (mode, options) = words.split_first().unwrap_or((&"steady", &[]));
        let (port, seed) = (to.port.to_string(), self.house.next_seed());
        let words = [&[*mode, &port, "-s", &seed], options].concat();
        launcher.launch(over, &self.house.client, words)
    }

    /// A client whose connections move late, if they live so long.
    pub(crate) fn late_client(&self, to: &Victim, words: &[&str]) -> Command {
        self.client_by(&self.house.late, Transport::Smc, to, words)
    }

    /// Makes a program under Sidestep one that writes nonsense into the shared
    /// memory: all of it, or a field of what connections agree on.
    pub(crate) fn make_hostile(&self, command: &mut Command, what: &str) {
        hardship::preload_beside(command, &self.house.scribbler);
        command.env("HOSTILE_WHAT", what).env("HOSTILE_SEED", self.house.next_seed());
    }

    // ---- clients -------------------------------------------------------------

    /// Runs a client to its end and counts what came of its connections.
    ///
    /// **Errors**: it hangs or crashes, or a connection ended as none may: any
    /// way but well, or, if it forgives (`-f`), in a call that did not return.
    pub(crate) fn visit(&self, command: Command) -> Result<Tally> {
        let said = launch::run(command, HANG + self.seconds(1.0))?;
        Tally::parse(said.lines().last().unwrap_or_default())
    }

    /// Attacks the victim while honest clients are connected to it, with some
    /// that come and go (`storms`) if need be; returns what the attack returned.
    ///
    /// **Errors**: the attack failed; an honest client saw a wrong byte, was
    /// reset or had to wait, or was not in shared memory; the victim died, or
    /// has more of something than before.
    pub(crate) fn attack(
        &self,
        victim: &mut Victim,
        seconds: f64,
        attack: impl FnOnce(&mut Victim) -> Result<String>,
    ) -> Result<String> {
        let before = self.vitals_at_rest(victim)?;
        let honest = ["steady", "-n", HONEST, "-h", "-t", &seconds.to_string()];
        let honest = Dialogue::start(self.client(victim, &honest))?;
        let remark = attack(victim)?;
        let patience = HANG + Duration::from_secs_f64(seconds);
        self.witness(honest, Claim::Smc, patience).context("the honest client")?;
        victim.must_be_alive()?;
        self.await_rest(victim, &before, GROWTH_KB)?;
        Ok(remark)
    }

    /// Waits until a client that holds its connections (`-h`) has done all it
    /// was told, and looks at them.
    ///
    /// **Errors**: a connection has not done well, or they are not what is
    /// claimed.
    pub(crate) fn witness(
        &self,
        client: Dialogue,
        claim: Claim,
        patience: Duration,
    ) -> Result<Evidence> {
        let seen = self.look_when_done(vec![client], &[], patience)?;
        self.house.witness.judge(claim, &seen)?;
        Ok(seen)
    }

    /// Waits until clients that hold their connections have done all they were told, and
    /// looks at both ends: theirs and the victim's.
    ///
    /// **Errors**: a connection has not done well.
    pub(crate) fn look_at_both(
        &self,
        clients: Vec<Dialogue>,
        victim: &Victim,
        patience: Duration,
    ) -> Result<Evidence> {
        self.look_when_done(clients, &[victim.pid()], patience)
    }

    fn look_when_done(
        &self,
        mut clients: Vec<Dialogue>,
        others: &[u32],
        patience: Duration,
    ) -> Result<Evidence> {
        let mut pids = others.to_vec();
        for client in &mut clients {
            let line = client.await_line("done", patience)?;
            Tally::parse(&line)?.must_be_well()?;
            pids.extend(client.program().family());
        }
        let seen = self.house.witness.look(&pids)?;
        for client in clients {
            client.finish(HANG)?;
        }
        Ok(seen)
    }

    // ---- vitals --------------------------------------------------------------

    /// The vitals of a victim that has just one dead peer.
    pub(crate) fn vitals_at_rest(&self, victim: &mut Victim) -> Result<Vitals> {
        // Twice: the first client is the first contact of all.
        for _ in 0..2 {
            self.pass_by(victim)?;
        }
        thread::sleep(LOOK_INTERVAL);
        Vitals::of(victim.pid())
    }

    /// Waits until the victim has no more of anything than before; returns what
    /// it has then.
    pub(crate) fn await_rest(
        &self,
        victim: &mut Victim,
        before: &Vitals,
        growth_kb: u64,
    ) -> Result<Vitals> {
        let deadline = Instant::now() + HANG;
        loop {
            // What belongs to dead peers is given back when another one comes.
            self.pass_by(victim)?;
            thread::sleep(LOOK_INTERVAL);
            let after = Vitals::of(victim.pid())?;
            let verdict = after.must_not_exceed(before, growth_kb);
            if verdict.is_ok() || Instant::now() > deadline {
                return verdict.context("the victim").map(|()| after);
            }
        }
    }

    fn pass_by(&self, victim: &mut Victim) -> Result<()> {
        let said = launch::run(self.client(victim, &["cycles", "-c", "2"]), HANG);
        victim.must_be_alive()?;
        said.context("a client at rest").map(drop)
    }

    /// So many times as long as an attack lasts.
    pub(crate) fn seconds(&self, times: f64) -> Duration {
        Duration::from_secs_f64(times * self.house.seconds)
    }
}

/// What came of a client's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) bytes: u64,
    pub(crate) ok: u64,
    /// Bytes came that the server was not sent.
    pub(crate) wrong: u64,
    pub(crate) reset: u64,
    /// The server let the client wait.
    pub(crate) silent: u64,
    /// A call did not return when it should.
    pub(crate) late: u64,
}

impl Tally {
    /// Of the line with which the client ends:
    /// `done 4711 bytes 4 ok 0 wrong 0 reset 0 silent 0 late`.
    pub(crate) fn parse(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let mut tally = Self::default();
        for pair in words.chunks(2) {
            let [number, name] = pair else { bail!("not a tally: {line}") };
            let field = match *name {
                "bytes" => &mut tally.bytes,
                "ok" => &mut tally.ok,
                "wrong" => &mut tally.wrong,
                "reset" => &mut tally.reset,
                "silent" => &mut tally.silent,
                "late" => &mut tally.late,
                _ => bail!("not a tally: {line}"),
            };
            *field = number.parse().with_context(|| format!("not a tally: {line}"))?;
        }
        Ok(tally)
    }

    /// **Errors**: there were no connections, or one of them has not done well.
    pub(crate) fn must_be_well(&self) -> Result<()> {
        self.must_be_true()?;
        ensure!(self.reset == 0, "{self}");
        Ok(())
    }

    /// **Errors**: there were no connections, or one of them was neither well nor
    /// reset.
    pub(crate) fn must_be_true(&self) -> Result<()> {
        ensure!(self.ok + self.reset > 0, "no connections");
        ensure!(self.wrong + self.silent + self.late == 0, "{self}");
        Ok(())
    }

    /// The sum of two.
    pub(crate) fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.ok += other.ok;
        self.wrong += other.wrong;
        self.reset += other.reset;
        self.silent += other.silent;
        self.late += other.late;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["ok", "wrong", "reset", "silent", "late"];
        let numbers = [self.ok, self.wrong, self.reset, self.silent, self.late];
        let counted = names.iter().zip(numbers).filter(|(_, number)| *number > 0);
        let parts: Vec<String> = counted.map(|(name, number)| format!("{number} {name}")).collect();
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_s_last_line_is_counted() -> Result<()> {
        let tally = Tally::parse("done 4711 bytes 4 ok 0 wrong 2 reset 0 silent 0 late")?;
        assert_eq!(tally, Tally { bytes: 4711, ok: 4, reset: 2, ..Tally::default() });
        assert_eq!(tally.to_string(), "4 ok, 2 reset");
        assert!(Tally::parse("done 4711 bytes 4").is_err());
        assert!(Tally::parse("cycle 3: reset").is_err());
        Ok(())
    }

    #[test]
    fn honest_connections_end_well_and_hostile_ones_are_at_most_reset() {
        let well = Tally { ok: 1, ..Tally::default() };
        assert!(well.must_be_well().is_ok());
        assert!(Tally::default().must_be_true().is_err(), "nothing was tried");
        let reset = Tally { reset: 1, ..well };
        assert!(reset.must_be_true().is_ok() && reset.must_be_well().is_err());
        for bad in
            [Tally { wrong: 1, ..well }, Tally { silent: 1, ..well }, Tally { late: 1, ..well }]
        {
            assert!(bad.must_be_true().is_err());
        }
    }
}
