//! The servers of a workload, running for one run, and gone after it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::FOLDER;
use super::workload::{Libraries, Workload, filled};
use crate::bench::lab::{Lab, Lacking, folder_of_nobody, given_to_nobody};
use crate::bench::launch::{self, Program, Transport};
use crate::bench::place;
use crate::debian::POSTGRESQL;
use crate::maven::{self, Artifact};

/// Pause between two questions whether a server is ready.
const READY_INTERVAL: Duration = Duration::from_millis(50);

/// A workload's programs, over one transport.
pub(super) struct Stage<'a> {
    pub(super) lab: &'a Lab,
    pub(super) workload: &'a Workload,
    pub(super) transport: Transport,
    /// What stands for the placeholders.
    values: BTreeMap<String, String>,
    servers: Vec<Program>,
}

impl<'a> Stage<'a> {
    /// Installs, compiles and prepares what it takes, and starts the servers.
    ///
    /// **Errors**: something of it failed; [`Lacking`] when the libraries cannot be had.
    pub(super) fn set(lab: &'a Lab, workload: &'a Workload, transport: Transport) -> Result<Self> {
        let scratch = lab.scratch.join("macro").join(&workload.name);
        // Of the run before: each begins with nothing.
        let _ = fs::remove_dir_all(&scratch);
        fs::create_dir_all(&scratch)?;
        let scratch = scratch.display().to_string();
        if workload.unprivileged {
            folder_of_nobody(&scratch)?;
        }
        let folder = place::repo_root()?.join(FOLDER).display().to_string();
        let mut values = BTreeMap::from([
            ("scratch".to_owned(), scratch),
            ("macro".to_owned(), folder),
            ("postgresql".to_owned(), POSTGRESQL.to_owned()),
        ]);
        for server in &workload.servers {
            values.insert(server.placeholder(), launch::free_port()?.to_string());
        }
        let mut stage = Self { lab, workload, transport, values, servers: Vec::new() };
        stage.prepare()?;
        stage.start()?;
        Ok(stage)
    }

    fn prepare(&mut self) -> Result<()> {
        if let Some(libraries) = &self.workload.libraries {
            let class_path = self.fetch(libraries)?;
            self.values.insert("libraries".to_owned(), class_path.clone());
            let compiled = self.path("classes");
            fs::create_dir_all(&compiled)?;
            self.values
                .insert("classes".to_owned(), format!("{}:{class_path}", compiled.display()));
        }
        self.workload.prepare.iter().try_for_each(|line| self.run(line))?;
        self.compile_java()
    }

    fn fetch(&self, libraries: &Libraries) -> Result<String> {
        let artifacts = libraries.artifacts.iter().map(|text| artifact_of(text));
        let artifacts = artifacts.collect::<Result<Vec<_>>>()?;
        let class_path = maven::class_path(&artifacts, &self.lab.scratch).context(Lacking)?;
        maven::verify(&class_path, &libraries.sha256)?;
        Ok(class_path)
    }

    /// Behind what `prepare` has generated into the same folder.
    fn compile_java(&self) -> Result<()> {
        if self.workload.java.is_empty() {
            return Ok(());
        }
        let sources: Vec<String> =
            self.workload.java.iter().map(|it| format!("{{macro}}/java/{it}")).collect();
        let compiled = "{scratch}/classes";
        self.run(&format!(
            "javac -cp {{classes}} -sourcepath {compiled} -d {compiled} {}",
            sources.join(" ")
        ))
    }

    fn start(&mut self) -> Result<()> {
        for server in &self.workload.servers {
            let command = self.command(&server.command, server.accelerated)?;
            let log_dir = self.path("logs").join(&server.name);
            fs::create_dir_all(&log_dir)?;
            let mut program = Program::start(command, &log_dir)?;
            let port = self.values[&server.placeholder()].parse()?;
            program.await_listener(port)?;
            self.servers.push(program);
            if let Some(ready) = &server.ready {
                self.await_success(ready)?;
            }
            server.setup.iter().try_for_each(|line| self.run(line))?;
        }
        Ok(())
    }

    fn await_success(&self, line: &str) -> Result<()> {
        let deadline = Instant::now() + self.lab.patience();
        while let Err(error) = self.run(line) {
            if Instant::now() > deadline {
                return Err(error);
            }
            thread::sleep(READY_INTERVAL);
        }
        Ok(())
    }

    /// The command of one of the measured programs.
    pub(super) fn command(&self, line: &str, is_accelerated: bool) -> Result<Command> {
        let words = filled(line, &self.values)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let command =
            if is_accelerated { self.lab.command(self.transport, &words)? } else { plain(&words) };
        Ok(self.given(command))
    }

    /// Runs a command that is not measured, to its end.
    fn run(&self, line: &str) -> Result<()> {
        let words = filled(line, &self.values)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        launch::run(self.given(plain(&words)), self.lab.patience())?;
        Ok(())
    }

    fn given(&self, command: Command) -> Command {
        if self.workload.unprivileged { given_to_nobody(command) } else { command }
    }

    /// A file or folder of this run.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(&self.values["scratch"]).join(name)
    }

    /// CPU time of all servers' processes so far.
    pub(super) fn cpu_s(&self) -> f64 {
        self.servers.iter().map(|it| launch::cpu_s(&it.family())).sum()
    }

    /// The processes under Sidestep: those of accelerated servers, and of the driver if it is.
    fn accelerated(&self, driver: &Program) -> Vec<u32> {
        let servers = self.servers.iter().zip(&self.workload.servers);
        let servers = servers.filter(|(_, it)| it.accelerated).map(|(program, _)| program);
        let driver = Some(driver).filter(|_| self.workload.driver.accelerated);
        servers.chain(driver).flat_map(Program::family).collect()
    }

    /// Proves that a run over SMC was one, while its connections live.
    ///
    /// **Errors**: none of them is SMC.
    pub(super) fn prove(&self, driver: &Program) -> Result<()> {
        if self.transport == Transport::Tcp {
            return Ok(());
        }
        if let Some(connections) = self.lab.connections_of(&self.accelerated(driver))? {
            ensure!(connections.moved > 0, "no figure of SMC: {connections}");
            self.lab.note(format!("{}: {connections}", self.workload.name));
        }
        Ok(())
    }

    /// **Errors**: a server has ended, or the data are not what they have to be.
    pub(super) fn check(&mut self) -> Result<()> {
        self.servers.iter_mut().try_for_each(Program::must_be_alive)?;
        self.workload.check.iter().try_for_each(|line| self.run(line))
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // The last one first: it may be a client of the others.
        while let Some(program) = self.servers.pop() {
            if let Some(stop) = &self.workload.servers[self.servers.len()].stop {
                // What cannot be stopped in order is killed, as all that have no such command.
                let _ = self.run(stop);
            }
            drop(program);
        }
    }
}

fn plain(words: &[&str]) -> Command {
    let mut command = Command::new(words.first().copied().unwrap_or_default());
    command.args(words.iter().skip(1));
    command
}

fn artifact_of(text: &str) -> Result<Artifact<'_>> {
    let parts: Vec<&str> = text.split(':').collect();
    match parts[..] {
        [group, name, version] => Ok(Artifact { group, name, version }),
        _ => bail!("libraries.artifacts: '{text}' is not GROUP:NAME:VERSION"),
    }
}
