//! Programs of two hosts, by SMC-R.
//!
//! The hosts are two network namespaces with a cable, and nothing in common but the kernel: each has
//! an agent for a control group of its own, which writes the TCP option, and a gateway with a soft
//! RNIC. What the gateways have sent by RDMA must be at least what the programs have sent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::stage::{CLIENT_PATIENCE, Stage};
use crate::bench::launch::{self, Dialogue, Program};
use crate::enclosure::{CABLE, Group, Namespace};
use crate::nginx;
use crate::payload::{must_be_equal, random_bytes};
use crate::suite::Lacking;
use crate::user;

const SERVER: &str = "10.92.1.1";
const CLIENT: &str = "10.92.1.2";
const PORT: u16 = 7_000;

/// For an agent or a gateway to begin.
const PATIENCE: Duration = Duration::from_secs(20);

/// Connections that live long, seen by `sidestep ss` at both ends.
pub(crate) fn echo(stage: &Stage<'_>) -> Result<String> {
    const CONNECTIONS: usize = 20;
    let hosts = Hosts::set(stage)?;
    let script = stage.house.script("distant.py");
    let (port, seed) = (PORT.to_string(), stage.house.seed.to_string());
    let server = hosts.server.program(&["python3", &script, "server", SERVER, &port]);
    let _server = hosts.server.serve(server)?;
    let client = hosts.client.program(&["python3", &script, "client", SERVER, &port, &seed]);
    let mut client = Dialogue::start(client)?;
    client.say(&format!("{CONNECTIONS} 50"))?;
    client.await_line("verified", CLIENT_PATIENCE)?;
    for host in [&hosts.server, &hosts.client] {
        let by_smc_r = host.ask("ss")?;
        let by_smc_r = by_smc_r.as_array().into_iter().flatten();
        let by_smc_r = by_smc_r.filter(|row| row["mode"] == "SMC-R").count();
        ensure!(by_smc_r >= CONNECTIONS, "{by_smc_r} by SMC-R at {}", host.address);
    }
    client.hang_up();
    client.finish(CLIENT_PATIENCE)?;
    hosts.must_have_sent(CONNECTIONS * 50 * 300)?;
    Ok(format!("{CONNECTIONS} connections, SMC-R at both ends"))
}

/// An event loop that does not wait for `connect`, and one that serves.
pub(crate) fn redis(stage: &Stage<'_>) -> Result<String> {
    let hosts = Hosts::set(stage)?;
    let port = PORT.to_string();
    let words = ["redis-server", "--bind", SERVER, "--port", &port, "--save", ""];
    let server = [&words[..], &["--protected-mode", "no"]].concat();
    let _server = hosts.server.serve(hosts.server.program(&server))?;
    let words = ["redis-benchmark", "-h", SERVER, "-p", &port, "-c", "10", "-d", "2048"];
    let client = [&words[..], &["-n", "5000", "-t", "set,get", "-q"]].concat();
    launch::run(hosts.client.program(&client), CLIENT_PATIENCE)?;
    hosts.must_have_sent(2 * 5_000 * 2_048)?;
    Ok("redis-benchmark, 10 connections".to_owned())
}

/// A file, compared byte for byte.
pub(crate) fn nginx(stage: &Stage<'_>) -> Result<String> {
    const LEN: usize = 8 << 20;
    let hosts = Hosts::set(stage)?;
    let file = hosts.directory.join("file");
    fs::write(&file, random_bytes(LEN)?)?;
    let (user, temporary) = nginx::settings(&hosts.directory)?;
    let directory = hosts.directory.display();
    let settings = format!(
        "daemon off; worker_processes 1; pid {directory}/nginx.pid; {user}\n\
         events {{}}\n\
         http {{ access_log off; {temporary}\
         server {{ listen {SERVER}:{PORT}; location / {{ root {directory}; }} }} }}\n"
    );
    let settings_file = hosts.directory.join("nginx.conf");
    fs::write(&settings_file, settings)?;
    let words = ["nginx", "-e", "stderr", "-c", &settings_file.display().to_string()];
    let _server = hosts.server.serve(hosts.server.program(&words))?;
    let got = hosts.directory.join("got");
    let url = format!("http://{SERVER}:{PORT}/file");
    let words = ["curl", "--silent", "--show-error", "--output", &got.display().to_string(), &url];
    launch::run(hosts.client.program(&words), CLIENT_PATIENCE)?;
    must_be_equal(&got, &file)?;
    hosts.must_have_sent(LEN)?;
    Ok("8 MiB, the same bytes".to_owned())
}

/// Streams in both directions.
pub(crate) fn iperf3(stage: &Stage<'_>) -> Result<String> {
    let hosts = Hosts::set(stage)?;
    let port = PORT.to_string();
    let server = hosts.server.program(&["iperf3", "-s", "-B", SERVER, "-p", &port]);
    let _server = hosts.server.serve(server)?;
    for direction in [&[][..], &["-R"]] {
        let words = [&["iperf3", "-c", SERVER, "-p", &port, "-n", "64M"][..], direction].concat();
        launch::run(hosts.client.program(&words), CLIENT_PATIENCE)?;
    }
    hosts.must_have_sent(128 << 20)?;
    Ok("64 MiB each way".to_owned())
}

/// Two hosts and the cable between them.
struct Hosts {
    server: Host,
    client: Host,
    directory: PathBuf,
}

impl Hosts {
    fn set(stage: &Stage<'_>) -> Result<Self> {
        if !user::is_root() {
            bail!(Lacking("network namespaces and an agent need root".to_owned()));
        }
        let Some(sidestep) = stage.house.launcher.observer() else {
            bail!(Lacking("there is no `sidestep` to be agent and gateway".to_owned()));
        };
        let [left, right] = [Namespace::make("host1")?, Namespace::make("host2")?];
        left.join(right.name())?;
        left.settle(&[SERVER])?;
        right.settle(&[CLIENT])?;
        let directory = stage.house.scratch.join("hosts");
        fs::create_dir_all(&directory)?;
        let begin = |namespace, address: &'static str| {
            Host::begin(sidestep.to_owned(), namespace, address, directory.join(address))
        };
        Ok(Self { server: begin(left, SERVER)?, client: begin(right, CLIENT)?, directory })
    }

    /// **Errors**: the two adapters have sent fewer bytes than this to each other.
    fn must_have_sent(&self, bytes: usize) -> Result<()> {
        let mut sent = 0;
        for host in [&self.server, &self.client] {
            let devices = host.ask("devices")?;
            let of_one = |device: &Value| device["bytes_sent"].as_u64().unwrap_or(0);
            sent += devices.as_array().into_iter().flatten().map(of_one).sum::<u64>();
        }
        ensure!(sent >= bytes as u64, "{sent} bytes by RDMA, of {bytes}");
        Ok(())
    }
}

/// A network namespace that is a host, until this is dropped.
struct Host {
    // In this order: a group can only go without programs.
    _gateway: Dialogue,
    _agent: Dialogue,
    group: Group,
    namespace: Namespace,
    address: &'static str,
    sidestep: PathBuf,
    directory: PathBuf,
}

impl Host {
    fn begin(
        sidestep: PathBuf,
        namespace: Namespace,
        address: &'static str,
        directory: PathBuf,
    ) -> Result<Self> {
        fs::create_dir_all(&directory)?;
        let settings = format!("[pnet.CABLE]\ninterfaces = [\"{CABLE}\"]\n");
        fs::write(directory.join("sidestep.toml"), settings)?;
        let group = Group::make()?;
        let mut agent = Command::new(&sidestep);
        agent.arg("agent").arg("--cgroup").arg(group.at());
        agent.arg("--socket").arg(directory.join("agent.sock"));
        let mut agent = Dialogue::start(agent)?;
        agent.await_line("sidestep agent: the TCP option", PATIENCE)?;
        let mut gateway = Command::new(&sidestep);
        gateway.args(["gateway", "--adapter", address]);
        enclose(&mut gateway, &group, &namespace, &directory);
        let mut gateway = Dialogue::start(gateway)?;
        gateway.await_line("sidestep gateway:", PATIENCE)?;
        let (_gateway, _agent) = (gateway, agent);
        Ok(Self { _gateway, _agent, group, namespace, address, sidestep, directory })
    }

    /// A program of this host.
    fn program(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.sidestep);
        command.args(["run", "--"]).args(words).env("PYTHONDONTWRITEBYTECODE", "1");
        enclose(&mut command, &self.group, &self.namespace, &self.directory);
        command
    }

    fn serve(&self, command: Command) -> Result<Program> {
        let mut server = Program::start(command, &self.directory)?;
        server.await_listener(PORT)?;
        Ok(server)
    }

    /// What one of the displays says here.
    fn ask(&self, display: &str) -> Result<Value> {
        let mut command = Command::new(&self.sidestep);
        command.args([display, "--json"]);
        self.namespace.enclose(&mut command);
        let said = launch::run(command, PATIENCE)?;
        serde_json::from_str(&said).with_context(|| format!("sidestep {display}: {said}"))
    }
}

fn enclose(command: &mut Command, group: &Group, namespace: &Namespace, directory: &Path) {
    namespace.enclose(command);
    group.enclose(command);
    command.env("SIDESTEP_CONFIG", directory.join("sidestep.toml"));
}
