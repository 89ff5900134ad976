//! Two versions of Sidestep on one host, as after an upgrade that has not reached all programs.
//!
//! The other version is this one with other numbers for its layouts of memory, which stand in the
//! files behind a mark (`device/src/stamp.rs`). So each takes the other's memory for what it must
//! not read, and everything else about the two is equal.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::stage::Stage;
use crate::bench::launch::{self, Dialogue, Program};
use crate::hosts::{Ground, Hosts, SERVER};
use crate::suite::HANG;
use crate::suite::Lacking;

/// What stands before the numbers.
const MARK: &[u8] = b"SIDESTEP LAYOUTS";
/// Bytes of each number, and how many there are.
const NUMBERS: [usize; 2] = [4, 3];

const REASON: &str = "the peer runs another version of Sidestep";
const SEEN: &str = "programs with another version of Sidestep: ";

/// Programs of two versions stay on TCP, each way round, and either version's displays say why.
pub(crate) fn programs(stage: &Stage<'_>) -> Result<String> {
    let [this, other] = Version::both(stage)?;
    for [server, client] in [[&this, &other], [&other, &this]] {
        stay_on_tcp(stage, server, client)
            .with_context(|| format!("server {}, client {}", server.name, client.name))?;
    }
    Ok("5 connections each way round stay on TCP, and both versions say why".to_owned())
}

fn stay_on_tcp(stage: &Stage<'_>, server: &Version, client: &Version) -> Result<()> {
    let port = launch::free_port()?;
    let served = server.serve(stage, port)?;
    let mut talker = client.talker(stage, port)?;
    talk(&mut talker, "5 40")?;
    let pids = [served.pid(), talker.program().pid()];
    for (version, own, others) in [(server, pids[0], pids[1]), (client, pids[1], pids[0])] {
        version
            .sees_its_own(own, own == pids[1])
            .with_context(|| format!("`sidestep` {}", version.name))?;
        version.knows_of(others).with_context(|| format!("`sidestep` {}", version.name))?;
    }
    // The same, where it is known already that nothing will come of it.
    talk(&mut talker, "5 40")?;
    talker.finish(HANG).map(drop)
}

/// Connections in shared memory that are handed to a program of the other version are reset there,
/// and the one that has them can go on with new ones.
pub(crate) fn handed_on(stage: &Stage<'_>) -> Result<String> {
    let [this, other] = Version::both(stage)?;
    for [from, to] in [[&this, &other], [&other, &this]] {
        for way in ["give", "exec"] {
            hand_on(stage, from, to, way)
                .with_context(|| format!("{way} from {} to {}", from.name, to.name))?;
        }
    }
    Ok("by SCM_RIGHTS and exec: reset in the other version, and said".to_owned())
}

fn hand_on(stage: &Stage<'_>, from: &Version, to: &Version, way: &str) -> Result<()> {
    let port = launch::free_port()?;
    let mut server = from.serve(stage, port)?;
    let mut talker = from.talker(stage, port)?;
    talk(&mut talker, "5 40")?;
    let moved = from.connections(&talker.program().family())?;
    let is_moved = |connection: &Value| connection["mode"] == "SMC-D";
    ensure!(moved.len() == 5 && moved.iter().all(is_moved), "have not moved: {moved:?}");
    talk(&mut talker, &format!("{way} {}", to.library.display()))?;
    talker.say("reset")?;
    talker.await_line("all were reset", HANG)?;
    talk(&mut talker, "2 40")?;
    talker.finish(HANG)?;
    server.must_be_alive()
}

/// An agent and gateways of one version serve programs of the other. The way to the gateway stays TCP.
pub(crate) fn gateway(stage: &Stage<'_>) -> Result<String> {
    const PORT: u16 = 7_610;
    const ROUNDS: [usize; 2] = [5, 20];
    const MESSAGE_LEN: usize = 300;
    let [this, other] = Version::both(stage)?;
    let directory = stage.house.scratch.join("versions");
    let hosts = Hosts::set(Some(&other.sidestep), directory, Ground::ONE_CABLE)?;
    let (script, port) = (stage.house.script("distant.py"), PORT.to_string());
    let sidestep = this.sidestep.to_string_lossy();
    let under = [&*sidestep, "run", "--promotion", "early", "--", "python3", &script];
    let words = [&under[..], &["server", SERVER, &port]].concat();
    let server = hosts.server.serve(PORT, hosts.server.command(&words))?;
    let seed = stage.house.seed.to_string();
    let words = [&under[..], &["client", SERVER, &port, &seed]].concat();
    let mut talker = Dialogue::start(hosts.client.command(&words))?;
    let [connections, messages] = ROUNDS;
    talk(&mut talker, &format!("{connections} {messages}"))?;
    let carried = 2 * (connections * messages * MESSAGE_LEN) as u64;
    let sent = hosts.bytes_sent()?;
    ensure!(sent >= carried, "{sent} bytes by RDMA of {carried}");
    for pid in [server.pid(), talker.program().pid()] {
        let seen = hosts.client.command(&[&*sidestep, "ss", "--json", "--pid", &pid.to_string()]);
        let seen: Value = serde_json::from_str(&launch::run(seen, HANG)?)?;
        let rows = seen.as_array().context("`sidestep ss --json` printed no array")?;
        ensure!(rows.len() == connections, "`sidestep ss` of {pid}: {seen:#}");
        other.knows_of(pid)?;
    }
    talker.finish(HANG)?;
    Ok(format!("{connections} connections by gateways of another version, {sent} bytes by RDMA"))
}

fn talk(talker: &mut Dialogue, line: &str) -> Result<()> {
    talker.say(line)?;
    talker.await_line("verified", HANG).map(drop)
}

/// An installation: the tool and the library beside it.
pub(super) struct Version {
    name: &'static str,
    pub(super) sidestep: PathBuf,
    library: PathBuf,
}

impl Version {
    /// The one that was built, and one of another version.
    pub(super) fn both(stage: &Stage<'_>) -> Result<[Self; 2]> {
        let sidestep = stage.house.launcher.observer();
        let Some(from) = sidestep.and_then(|sidestep| sidestep.parent()) else {
            bail!(Lacking("there is no `sidestep` to make another version of".to_owned()));
        };
        let to = stage.house.scratch.join("other-version");
        fs::create_dir_all(&to)?;
        let at = |name, directory: PathBuf| Self {
            name,
            sidestep: directory.join("sidestep"),
            library: directory.join("libsidestep.so"),
        };
        let both = [at("of this version", from.to_owned()), at("of another version", to)];
        let [this, other] = &both;
        for (from, to) in [(&this.sidestep, &other.sidestep), (&this.library, &other.library)] {
            fs::copy(from, to)?;
            let bytes = renumbered(fs::read(from)?).with_context(|| from.display().to_string())?;
            fs::write(to, bytes)?;
        }
        Ok(both)
    }

    fn command(&self, stage: &Stage<'_>, words: &[&str]) -> Command {
        let mut command = Command::new(&self.sidestep);
        command.args(["run", "--promotion", "early", "--", "python3"]);
        command.arg(stage.house.script("distant.py")).args(words);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    fn serve(&self, stage: &Stage<'_>, port: u16) -> Result<Program> {
        let command = self.command(stage, &["server", "127.0.0.1", &port.to_string()]);
        let mut server = Program::start(command, &stage.house.scratch)?;
        server.await_listener(port)?;
        Ok(server)
    }

    fn talker(&self, stage: &Stage<'_>, port: u16) -> Result<Dialogue> {
        let (port, seed) = (port.to_string(), stage.house.seed.to_string());
        Dialogue::start(self.command(stage, &["client", "127.0.0.1", &port, &seed]))
    }

    fn ask(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.sidestep);
        command.args(words);
        launch::run(command, HANG)
    }

    fn connections(&self, pids: &[u32]) -> Result<Vec<Value>> {
        let Value::Array(rows) = serde_json::from_str(&self.ask(&["ss", "--json"])?)? else {
            bail!("`sidestep ss --json` printed no array");
        };
        let is_theirs = |row: &Value| pids.iter().any(|pid| row["pid"] == *pid);
        Ok(rows.into_iter().filter(is_theirs).collect())
    }

    /// A program of this version has five connections, on TCP: the first for the right reason, those
    /// of a client all. (A server is not asked again.)
    fn sees_its_own(&self, pid: u32, is_client: bool) -> Result<()> {
        let rows = self.connections(&[pid])?;
        let is_tcp = |row: &Value| row["mode"] == "TCP";
        let is_right = |row: &&Value| row["reason"]["text"] == REASON;
        let right = rows.iter().filter(is_right).count();
        let is_enough = if is_client { right == rows.len() } else { right > 0 };
        ensure!(rows.len() == 5 && rows.iter().all(is_tcp) && is_enough, "ss: {rows:#?}");
        let why = self.ask(&["why", &format!("pid:{pid}")])?;
        ensure!(why.contains(REASON), "`sidestep why`: {why}");
        Ok(())
    }

    /// A program of the other version is not passed over in silence.
    fn knows_of(&self, pid: u32) -> Result<()> {
        let table = self.ask(&["ss"])?;
        ensure!(table.contains(SEEN), "`sidestep ss`: {table}");
        let why = self.ask(&["why", &format!("pid:{pid}")])?;
        ensure!(why.contains("it runs under another version of Sidestep"), "why: {why}");
        for words in [&["ss", "--pid"][..], &["stats"]] {
            let asked = Command::new(&self.sidestep).args(words).arg(pid.to_string()).output()?;
            let refusal = String::from_utf8_lossy(&asked.stderr);
            let is_refused = refusal.contains("runs another version of Sidestep");
            ensure!(!asked.status.success() && is_refused, "{words:?}: {refusal}");
        }
        Ok(())
    }
}

/// The same program or library with other numbers for its layouts.
fn renumbered(mut bytes: Vec<u8>) -> Result<Vec<u8>> {
    let found: Vec<_> = places_of(&bytes, MARK);
    let &[mark] = &found[..] else { bail!("the mark is there {} times", found.len()) };
    let [len, count] = NUMBERS;
    let begin = mark + MARK.len();
    let numbers = bytes.get_mut(begin..begin + len * count).context("cut off")?;
    for number in numbers.chunks_exact_mut(len) {
        let next = u32::from_le_bytes(number.try_into()?).wrapping_add(1);
        number.copy_from_slice(&next.to_le_bytes());
    }
    Ok(bytes)
}

fn places_of(bytes: &[u8], text: &[u8]) -> Vec<usize> {
    let places = bytes.windows(text.len()).enumerate();
    places.filter(|(_, window)| *window == text).map(|(at, _)| at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_numbers_behind_the_one_mark_are_raised() {
        let library = |numbers: [u8; 3]| {
            let [a, b, c] = numbers;
            [b"..", MARK, &[a, 0, 0, 0, b, 0, 0, 0, c, 0, 0, 0], b".."].concat()
        };
        assert_eq!(renumbered(library([6, 1, 12])).unwrap(), library([7, 2, 13]));
        assert!(renumbered([library([1; 3]), library([1; 3])].concat()).is_err());
        assert!(renumbered(b"nothing".to_vec()).is_err());
    }
}
