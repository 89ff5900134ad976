//! Two network namespaces, brought together by an agent, against one.
//!
//! Both samples of a pair go through Sidestep: in the column of TCP both ends are in one
//! namespace, in that of SMC a cable lies between them. Everything else is the same, the address
//! of the server included.

use std::cell::OnceCell;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::lab::Lab;
use super::launch::{self, Dialogue, Program, Transport};
use super::modeled::Report;
use crate::enclosure::{CABLE, Group, Namespace};
use crate::suite::Lacking;
use crate::user;

const SERVER: &str = "10.90.1.1";
const CLIENT: &str = "10.90.1.2";
const PORT: u16 = 7_609;

/// A Service of Kubernetes, as kube-proxy has it translated on the way out.
const SERVICE: &str = "10.96.0.10";

/// For an agent or a client to begin and to end, beside what it measures.
const PATIENCE: Duration = Duration::from_secs(30);

/// Of the connections whose beginning is measured so many must have moved.
const MOVED_MIN: f64 = 0.9;

/// Two namespaces with a cable, a control group and an agent that knows both.
#[derive(Default)]
pub(super) struct Networks(OnceCell<Scene>);

struct Scene {
    _agent: Dialogue,
    left: Namespace,
    right: Namespace,
    group: Group,
    socket: PathBuf,
}

impl std::fmt::Debug for Networks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Networks").field("exist", &self.0.get().is_some()).finish()
    }
}

impl Networks {
    fn get(&self, lab: &Lab) -> Result<&Scene> {
        if self.0.get().is_none() {
            let _ = self.0.set(Scene::set(lab)?);
        }
        self.0.get().context("it was made before")
    }
}

impl Scene {
    fn set(lab: &Lab) -> Result<Self> {
        if !user::is_root() {
            bail!(Lacking("network namespaces and an agent need root".to_owned()));
        }
        let [left, right] = [Namespace::make("near")?, Namespace::make("far")?];
        left.join(CABLE, right.name())?;
        left.settle(CABLE, &[SERVER])?;
        right.settle(CABLE, &[CLIENT])?;
        let group = Group::make()?;
        let socket = PathBuf::from(lab.path("agent.sock"));
        let mut command = Command::new(observer(lab)?);
        command.arg("agent").arg("--cgroup").arg(group.at()).arg("--socket").arg(&socket);
        let mut agent = Dialogue::start(command)?;
        agent.await_line("sidestep agent: programs of different", PATIENCE)?;
        Ok(Self { _agent: agent, left, right, group, socket })
    }

    /// A command on the server's side, or on the client's, which is another only for `Smc`.
    fn enclose(&self, is_client: bool, transport: Transport, command: &mut Command) {
        let is_far = is_client && transport == Transport::Smc;
        if is_far { &self.right } else { &self.left }.enclose(command);
        self.group.enclose(command);
    }

    /// Has the Service translated to the server on the client's side of the cable, once more or not.
    fn translate(&self) -> Result<()> {
        self.right.ip(&["route", "replace", "default", "via", SERVER])?;
        let rules = format!(
            "add table ip service; delete table ip service; add table ip service; \
             add chain ip service out {{ type nat hook output priority -100; }}; \
             add rule ip service out ip daddr {SERVICE} dnat to {SERVER}"
        );
        let mut nft = Command::new("nft");
        self.right.enclose(nft.arg(rules));
        ensure!(nft.status().context("nft")?.success(), "nft takes no rules");
        Ok(())
    }

    /// Settings with which programs find the agent.
    fn config(&self, lab: &Lab, promotion: &str) -> Result<String> {
        let socket = self.socket.display();
        // Both ends are root's, of two namespaces.
        let text = format!(
            "[smc]\npromotion = \"{promotion}\"\nagent_socket = \"{socket}\"\n\
             [policy]\nshare_with_users = [\"root\"]\n"
        );
        lab.write(&format!("namespaces-{promotion}.toml"), text)
    }
}

fn observer(lab: &Lab) -> Result<PathBuf> {
    let sidestep =
        lab.launcher.observer().context("the agent and the modeler are in `sidestep`")?;
    Ok(sidestep.to_owned())
}

/// Transactions per second of one of the modeler's workloads.
pub(super) fn modeled(lab: &Lab, transport: Transport, workload: &str) -> Result<Vec<f64>> {
    rate(lab, transport, &format!("{SERVER}:{PORT}"), workload)
}

/// The same in two namespaces: in the column of TCP by the server's own address, in that of SMC by a Service's. The
/// rules are there for both.
pub(super) fn translated(lab: &Lab, transport: Transport, workload: &str) -> Result<Vec<f64>> {
    lab.networks.get(lab)?.translate()?;
    let to = match transport {
        Transport::Tcp => format!("{SERVER}:{PORT}"),
        Transport::Smc => format!("{SERVICE}:{PORT}"),
    };
    rate(lab, Transport::Smc, &to, workload)
}

/// Of clients that call the server by an address, on the side that `transport` stands for.
fn rate(lab: &Lab, transport: Transport, to: &str, workload: &str) -> Result<Vec<f64>> {
    let (scene, sidestep) = (lab.networks.get(lab)?, observer(lab)?);
    let config = scene.config(lab, "lazy")?;
    let at = format!("{SERVER}:{PORT}");
    let mut server = Command::new(&sidestep);
    server.args(["bench", "serve", "--listen", &at]).env("SIDESTEP_CONFIG", &config);
    scene.enclose(false, transport, &mut server);
    let mut server = Program::start(server, &lab.scratch)?;
    server.await_listener(PORT)?;
    let json = lab.path("namespaces.json");
    let duration = format!("{}ms", (lab.seconds * 1e3).round());
    let mut client = Command::new(&sidestep);
    client
        .args(["bench", "--over", "smc", "--runs", "1", "--duration", &duration])
        .args(["--server", to, "--json", &json, workload])
        .env("SIDESTEP_CONFIG", &config);
    scene.enclose(true, transport, &mut client);
    let report = Report::read(launch::run(client, lab.patience()), &json)?;
    Ok(vec![report.number("/tps/median")?])
}

/// Microseconds from `connect` to `close` of a connection that moves at once.
pub(super) fn set_up(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let (scene, sidestep) = (lab.networks.get(lab)?, observer(lab)?);
    let config = scene.config(lab, "early")?;
    let (program, port, seconds) = (lab.own("setup"), PORT.to_string(), lab.seconds.to_string());
    let command = |words: &[&str]| {
        let mut command = Command::new(&sidestep);
        command.args(["run", "--"]).args(words).env("SIDESTEP_CONFIG", &config);
        command
    };
    let mut server = command(&[&program, "server", SERVER, &port]);
    scene.enclose(false, transport, &mut server);
    let mut server = Program::start(server, &lab.scratch)?;
    server.await_listener(PORT)?;
    let mut client = command(&[&program, "client", SERVER, &port, &seconds]);
    scene.enclose(true, transport, &mut client);
    let mut client = Dialogue::start(client)?;
    let said = client.await_line("took ", lab.patience())?;
    must_have_moved(&sidestep, client.program().pid())?;
    let number = said.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    Ok(vec![number.with_context(|| format!("no time in {said:?}"))?])
}

fn must_have_moved(sidestep: &PathBuf, pid: u32) -> Result<()> {
    let mut command = Command::new(sidestep);
    let output = command.args(["ss", "--totals", "--json", "--pid", &pid.to_string()]).output()?;
    let totals: Value = serde_json::from_slice(&output.stdout)?;
    let count = |key: &str| totals[0][key].as_f64().unwrap_or_default();
    let (smc, tcp) = (count("smc_connections"), count("tcp_connections"));
    ensure!(smc >= MOVED_MIN * (smc + tcp), "{tcp} of {} connections stayed on TCP", smc + tcp);
    Ok(())
}
