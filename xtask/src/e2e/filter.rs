//! Rules of the IP filter change while connections are in shared memory: those that are denied end, whatever
//! they are doing, and the others live on.
//!
//! The filter is that of a control group of the test's own, pinned in a mount namespace of its own: no other
//! program's packets are judged, and it goes with the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

use super::stage::Stage;
use crate::bench::launch::{self, Dialogue, Program};
use crate::enclosure::Group;
use crate::suite::{HANG, Lacking};
use crate::user;

const DENIED: &str = "127.0.0.2";
const PERMITTED: &str = "127.0.0.3";
/// Connections of each address that wait in a way of their own.
const KINDS: usize = 4;
/// All that the client has in shared memory, of which it has one end.
const MOVED: usize = 2 * KINDS + 3;

pub(crate) fn filter(stage: &Stage<'_>) -> Result<String> {
    let scene = Scene::set(stage)?;
    let port = launch::free_port()?;
    let mut server = scene.redis(port)?;
    let mut client = scene.client(port)?;
    client.await_line("ready", HANG)?;
    scene.wait_until(&server, &mut client, "not all has moved", |seen| seen.0 >= 2 * MOVED)?;

    // The rule is about the packets of one end alone.
    let returned = scene.apply(&format!("deny tcp {DENIED} any:{port} out"), KINDS)?;
    let late = all_end(&mut client, DENIED, returned)?;
    client.say("alive")?;
    client.await_line("alive", HANG)?;
    client.say("try")?;
    client.await_line("tried", HANG)?;
    scene.wait_for_reason(&mut client, "a rule of `sidestep filter` denies it")?;
    server.must_be_alive()?;

    // A stopped peer keeps no connection alive.
    launch::signal(server.pid(), libc::SIGSTOP)?;
    let applied = scene.apply(&format!("deny tcp any any:{port} out"), KINDS + 3);
    let stopped = applied.and_then(|returned| all_end(&mut client, PERMITTED, returned));
    launch::signal(server.pid(), libc::SIGCONT)?;
    let late = late.max(stopped?);
    server.must_be_alive()?;
    client.finish(HANG)?;
    Ok(match late {
        Duration::ZERO => "all had ended when `apply` returned".to_owned(),
        late => format!("the last connection ended {late:.1?} after `apply` had returned"),
    })
}

/// How long after this moment the last of an address's connections ended.
fn all_end(client: &mut Dialogue, address: &str, returned: SystemTime) -> Result<Duration> {
    let mut latest = Duration::ZERO;
    for _ in 0..KINDS {
        let line = client.await_line(&format!("ended {address}"), HANG)?;
        let words: Vec<&str> = line.split(' ').collect();
        let &[_, _, kind, how, when] = words.as_slice() else { bail!("what is {line}?") };
        ensure!(how == "ECONNRESET", "the connection that was in {kind} ended by {how}");
        let ended = UNIX_EPOCH + Duration::from_secs_f64(when.parse()?);
        latest = latest.max(ended.duration_since(returned).unwrap_or_default());
    }
    Ok(latest)
}

/// Where rules are put into force for a control group, and are gone with the test.
pub(super) struct Rules {
    /// Keeps the mount namespace, by its process.
    _keeper: Dialogue,
    keeper: u32,
    sidestep: PathBuf,
    list: PathBuf,
}

impl Rules {
    pub(super) fn prepare(stage: &Stage<'_>) -> Result<Self> {
        if !user::is_root() {
            bail!(Lacking("a filter and a mount namespace need root".to_owned()));
        }
        let Some(sidestep) = stage.house.launcher.observer() else {
            bail!(Lacking("there is no `sidestep` to apply rules".to_owned()));
        };
        let mut command = Command::new("unshare");
        let script =
            "mount -t bpf bpf /sys/fs/bpf && mount -t tmpfs none /run && echo mounted && read end";
        command.args(["--mount", "sh", "-c", script]);
        let mut keeper = Dialogue::start(command)?;
        keeper
            .await_line("mounted", HANG)
            .map_err(|error| Lacking(format!("no BPF file system of its own: {error:#}")))?;
        let pid = keeper.program().pid();
        let list = stage.house.scratch.join("rules");
        Ok(Self { _keeper: keeper, keeper: pid, sidestep: sidestep.to_owned(), list })
    }

    /// Puts one rule into force, by which so much is reset. When the command had done its work.
    pub(super) fn apply(&self, group: &Path, rule: &str, reset: &str) -> Result<SystemTime> {
        let said = self.put(group, rule)?;
        let returned = SystemTime::now();
        let wanted = format!("reset: {reset}");
        ensure!(said.contains(&wanted), "not '{wanted}': {said}");
        Ok(returned)
    }

    /// Puts rules into force, and says what the command says.
    pub(super) fn put(&self, group: &Path, rules: &str) -> Result<String> {
        fs::write(&self.list, format!("{rules}\n"))?;
        let mut command = Command::new("nsenter");
        command.args(&self.words()[1..]).args(["filter", "apply"]).arg(&self.list);
        command.arg("--cgroup").arg(group);
        launch::run(command, HANG)
    }

    /// The begin of a command line by which `sidestep` sees these rules.
    pub(super) fn words(&self) -> [String; 5] {
        let word = str::to_owned;
        let sidestep = self.sidestep.to_string_lossy().into_owned();
        let keeper = self.keeper.to_string();
        [word("nsenter"), word("--mount"), word("--target"), keeper, sidestep]
    }
}

struct Scene<'a> {
    stage: &'a Stage<'a>,
    group: Group,
    rules: Rules,
}

impl<'a> Scene<'a> {
    fn set(stage: &'a Stage<'a>) -> Result<Self> {
        let rules = Rules::prepare(stage)?;
        Ok(Self { stage, group: Group::make()?, rules })
    }

    fn redis(&self, port: u16) -> Result<Program> {
        let port_word = port.to_string();
        let words = [
            "redis-server",
            "--port",
            &port_word,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--protected-mode",
            "no",
        ];
        let mut command = self.stage.server_command(&words);
        self.group.enclose(&mut command);
        self.stage.serve_command(port, command)
    }

    fn client(&self, port: u16) -> Result<Dialogue> {
        let script = self.stage.house.script("filtered.py");
        let port = port.to_string();
        let words = ["python3", &script, &port, DENIED, PERMITTED];
        let mut command = self.stage.client_command(&words);
        self.group.enclose(&mut command);
        Dialogue::start(command)
    }

    fn apply(&self, rule: &str, ends: usize) -> Result<SystemTime> {
        let reset = format!("{ends} connections in shared memory");
        self.rules.apply(self.group.at(), rule, &reset)
    }

    /// Waits until the ends in SMC-D and TCP are as many as they should.
    fn wait_until(
        &self,
        server: &Program,
        client: &mut Dialogue,
        otherwise: &str,
        is_it: impl Fn((usize, usize)) -> bool,
    ) -> Result<()> {
        let pids = [server.family(), client.program().family()].concat();
        let deadline = Instant::now() + HANG;
        loop {
            let seen = self.stage.house.witness.look(&pids)?.counts();
            if is_it(seen) || !self.stage.house.witness.sees() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{otherwise}: {seen:?} ends in SMC-D and TCP");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn wait_for_reason(&self, client: &mut Dialogue, reason: &str) -> Result<()> {
        let pids = client.program().family();
        let deadline = Instant::now() + HANG;
        loop {
            let seen = self.stage.house.witness.look(&pids)?.gives_reason(reason);
            if seen.is_ok() || !self.stage.house.witness.sees() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return seen.context("of the connection that had not moved");
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}
