//! Programs of different network namespaces or users, or behind a translation of addresses, brought together by an agent.
//!
//! Each test has namespaces, cables, a control group and an agent of its own. What must move has
//! moved, at both ends, when the client has verified its bytes; what must not is TCP, without a byte
//! wrong: an end whose like exists elsewhere, and the two legs of a proxy.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::stage::Stage;
use super::versions::Version;
use crate::bench::launch::{self, Dialogue, Program, Transport};
use crate::enclosure::{CABLE, Group, Namespace};
use crate::suite::{HANG, Lacking};
use crate::user;

const SERVER: [&str; 2] = ["10.89.1.1", "fd89::1"];
const CLIENT: [&str; 2] = ["10.89.1.2", "fd89::2"];
const PORT: u16 = 7_000;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) fn namespaces(stage: &Stage<'_>) -> Result<String> {
    let scene = Scene::set(stage)?;
    let _agent = scene.agent()?;
    for address in SERVER {
        let server = scene.serve(&scene.left, Transport::Smc, address, "early")?;
        let mut client = scene.client(&scene.right, Transport::Smc, address, "early", None)?;
        client.talk("1 10")?;
        client.talk("20 10")?;
        scene.expect(&server, &mut client, (42, 0)).with_context(|| address.to_owned())?;
    }
    Ok("IPv4 and IPv6, 21 connections each".to_owned())
}

/// Nobody may stay behind, whatever end was ready first.
pub(crate) fn late(stage: &Stage<'_>) -> Result<String> {
    const ROUNDS: usize = 10;
    let scene = Scene::set(stage)?;
    let _agent = scene.agent()?;
    for round in 0..ROUNDS {
        let address = SERVER[round % SERVER.len()];
        let server = scene.serve(&scene.left, Transport::Smc, address, "lazy")?;
        let mut client = scene.client(&scene.right, Transport::Smc, address, "lazy", None)?;
        client.talk("40 40")?;
        scene.expect(&server, &mut client, (80, 0)).with_context(|| format!("round {round}"))?;
    }
    Ok(format!("40 connections, {ROUNDS} times"))
}

/// Two networks that know nothing of each other, with the same addresses and ports at the same time.
/// Of each connection one end is plain: whoever took the two other ends for one connection would mix
/// up their bytes.
pub(crate) fn twins(stage: &Stage<'_>) -> Result<String> {
    let scene = Scene::set(stage)?;
    let _agent = scene.agent()?;
    let others = [Namespace::make("left2")?, Namespace::make("right2")?];
    cable(&others[0], &others[1])?;
    let address = SERVER[0];
    let [smc, tcp] = [Transport::Smc, Transport::Tcp];
    let plain = scene.serve(&scene.left, tcp, address, "early")?;
    let ours = scene.serve(&others[0], smc, address, "early")?;
    for source in 41_000..41_005 {
        let mut client = scene.client(&scene.right, smc, address, "early", Some(source))?;
        let mut other = scene.client(&others[1], tcp, address, "early", Some(source))?;
        client.say("1 40")?;
        other.say("1 40")?;
        client.verified()?;
        other.verified()?;
        scene.expect(&plain, &mut client, (0, 1))?;
        scene.expect(&ours, &mut other, (0, 1))?;
    }
    Ok("same addresses in two networks stay apart".to_owned())
}

/// Rules as kube-proxy writes them for a Service with one server, for packets at this hook.
fn translation(hook: &str, service: &str, port: u16, to: &str) -> String {
    format!(
        "add table ip t; add chain ip t before {{ type nat hook {hook} priority -100; }}; \
         add rule ip t before ip daddr {service} tcp dport {port} dnat to {to}:{PORT}; \
         add chain ip t after {{ type nat hook postrouting priority 100; }}; \
         add rule ip t after ct status dnat masquerade"
    )
}

/// Published ports and Services: the two ends see other addresses, in one network namespace and in two.
pub(crate) fn translated(stage: &Stage<'_>) -> Result<String> {
    const SERVICE: &str = "10.96.0.10";
    let scene = Scene::set(stage)?;
    let _agent = scene.agent()?;
    let rules = |service: &str, port: u16| translation("output", service, port, SERVER[0]);
    scene.right.ip(&["route", "add", "default", "via", SERVER[0]])?;
    scene.translate(&scene.right, &rules(SERVICE, 80))?;
    scene.translate(&scene.left, &rules("127.0.0.1", 8_080))?;
    let server = scene.serve(&scene.left, Transport::Smc, "0.0.0.0", "early")?;
    for (namespace, address, port) in [
        (&scene.right, SERVICE, 80),
        (&scene.left, "127.0.0.1", 8_080),
        (&scene.right, SERVER[0], PORT),
    ] {
        let mut client = scene.client_at(namespace, (address, port))?;
        client.talk("3 40")?;
        scene.expect(&server, &mut client, (6, 0)).with_context(|| format!("{address}:{port}"))?;
        client.talk("3 40")?;
        scene.expect(&server, &mut client, (12, 0)).context("of processes that have met")?;
        drop(client);
        scene.await_no_connection(&server)?;
    }
    Ok("a Service between two namespaces, a published port within one".to_owned())
}

/// A router between client and server that translates both addresses, as the node between two pods does.
pub(crate) fn routed(stage: &Stage<'_>) -> Result<String> {
    const SERVICE: &str = "10.96.0.10";
    const ROUTER: [&str; 2] = ["10.89.3.1", "10.89.4.1"];
    const POD: [&str; 2] = ["10.89.3.2", "10.89.4.2"];
    let scene = Scene::set(stage)?;
    let _agent = scene.agent()?;
    let router = Namespace::make("router")?;
    let pods = [&scene.right, &scene.left];
    for (number, pod) in pods.into_iter().enumerate() {
        let cable = format!("pod{number}");
        router.join(&cable, pod.name())?;
        router.settle(&cable, &[ROUTER[number]])?;
        pod.settle(&cable, &[POD[number]])?;
        pod.ip(&["route", "add", "default", "via", ROUTER[number]])?;
    }
    scene.run_in(&router, &["sysctl", "-qw", "net.ipv4.ip_forward=1"])?;
    let rules = translation("prerouting", SERVICE, 80, POD[1]);
    scene.translate(&router, &rules)?;
    let server = scene.serve(&scene.left, Transport::Smc, "0.0.0.0", "early")?;
    let mut client = scene.client_at(&scene.right, (SERVICE, 80))?;
    client.talk("5 40")?;
    scene.expect(&server, &mut client, (10, 0))?;
    Ok("5 connections of a pod to a Service, through a router".to_owned())
}

/// A program that passes bytes on has two connections. Each moves if both of its ends can, and no end of one is
/// taken for an end of the other.
pub(crate) fn proxied(stage: &Stage<'_>) -> Result<String> {
    const PROXY: u16 = 7_001;
    let scene = Scene::set(stage)?;
    let _agent = scene.agent()?;
    let server = scene.serve(&scene.left, Transport::Smc, SERVER[0], "early")?;
    // The proxy's connections to the server are ends of the server's process as well.
    for (transport, ends) in [(Transport::Tcp, (0, 10)), (Transport::Smc, (20, 0))] {
        let words = ["proxy", "0.0.0.0", &PROXY.to_string(), SERVER[0], &PORT.to_string()];
        let mut proxy = scene.command(transport, "early", &words);
        scene.enclose(&scene.left, &mut proxy);
        let mut proxy = Program::start(proxy, &stage.house.scratch)?;
        proxy.await_listener(PROXY)?;
        let mut client = scene.client_at(&scene.right, (SERVER[0], PROXY))?;
        client.talk("5 40")?;
        let pids = [server.family(), proxy.family()].concat();
        scene.expect_of(&pids, &mut client, ends).with_context(|| format!("{transport:?}"))?;
        drop(client);
        scene.await_no_connection(&server)?;
    }
    Ok("both legs of a proxy, and neither of a plain one".to_owned())
}

/// The agent is killed in the middle of it, and another one begins.
pub(crate) fn agent_ends(stage: &Stage<'_>) -> Result<String> {
    let scene = Scene::set(stage)?;
    let agent = scene.agent()?;
    let (server, mut client) = scene.five_connections()?;
    client.say("0 2000")?;
    drop(agent);
    client.verified()?;
    scene.expect(&server, &mut client, (10, 0)).context("what has moved stays moved")?;
    client.talk("5 40")?;
    scene.expect(&server, &mut client, (10, 10)).context("without an agent")?;

    let _agent = scene.agent()?;
    // Who has found none does not ask again at once.
    thread::sleep(Duration::from_millis(1_100));
    client.talk("5 40")?;
    scene.expect(&server, &mut client, (20, 10)).context("with the next agent")?;
    let mut newcomer = scene.client(&scene.right, Transport::Smc, SERVER[0], "early", None)?;
    newcomer.talk("5 40")?;
    scene.expect(&server, &mut newcomer, (20, 5)).context("who comes later")?;
    Ok("what has moved lives on, and the next agent goes on".to_owned())
}

/// Connections that have moved go on in another process, by SCM_RIGHTS, and in another program, by
/// `exec`, without an agent; and those are no strangers to the server afterwards.
pub(crate) fn handed_on(stage: &Stage<'_>) -> Result<String> {
    let scene = Scene::set(stage)?;
    let agent = scene.agent()?;
    let (server, mut client) = scene.five_connections()?;
    drop(agent);
    for way in ["give", "exec", "give"] {
        client.talk(way)?;
        client.talk("0 40")?;
        scene.expect(&server, &mut client, (10, 0)).with_context(|| way.to_owned())?;
    }
    let _agent = scene.agent()?;
    // As above.
    thread::sleep(Duration::from_millis(1_100));
    client.talk("5 40")?;
    scene.expect(&server, &mut client, (20, 0)).context("its own connections")?;
    Ok("5 connections, given away, taken along by exec, given away again".to_owned())
}

/// Programs of two users share memory if both ends list the other's, and only then.
pub(crate) fn users(stage: &Stage<'_>) -> Result<String> {
    let scene = Scene::set(stage)?;
    let _agent = scene.agent()?;
    for (server_lists, client_lists, ends) in
        [("", "65534", (0, 6)), ("0", "", (0, 6)), ("0", "65534", (6, 0))]
    {
        let rules = [server_lists, client_lists].map(shared_with);
        scene.meet(SERVER[0], Scene::serve_as_nobody, &rules, ends)?;
    }
    Ok("both ends have a say".to_owned())
}

/// Programs of two users with empty lists share memory if the policy of the host says so.
pub(crate) fn policy(stage: &Stage<'_>) -> Result<String> {
    let scene = Scene::set(stage)?;
    let rules = scene.agent_directory.join("agent.toml");
    fs::write(&rules, "[share]\npairs = [[0, 65534]]\n")?;
    let _agent = scene.agent_with(&["--config".as_ref(), rules.as_os_str()])?;
    let nothing = [String::new(), String::new()];
    for namespace in [&scene.left, &scene.right] {
        scene.meet_in(namespace, SERVER[0], Scene::serve_as_nobody, &nothing, (6, 0))?;
    }
    fs::write(&rules, "[share]\npairs = [[0, 1]]\n")?;
    // The agent looks at its files once a second.
    thread::sleep(Duration::from_millis(1_100));
    for namespace in [&scene.left, &scene.right] {
        scene.meet_in(namespace, SERVER[0], Scene::serve_as_nobody, &nothing, (0, 6))?;
    }
    let lists = ["0", "65534"].map(shared_with);
    scene.meet_in(&scene.left, SERVER[0], Scene::serve_as_nobody, &lists, (6, 0))?;
    Ok("two users in one namespace and in two, by the host's policy and by their lists".to_owned())
}

/// An agent of another version brings programs of this one together.
pub(crate) fn other_version(stage: &Stage<'_>) -> Result<String> {
    let [_, other] = Version::both(stage)?;
    let scene = Scene::set(stage)?;
    let rules = scene.agent_directory.join("agent.toml");
    fs::write(&rules, "[share]\npairs = [[0, 65534]]\n")?;
    let _agent = scene.agent_of(&other.sidestep, &["--config".as_ref(), rules.as_os_str()])?;
    for namespace in [&scene.left, &scene.right] {
        let nothing = [String::new(), String::new()];
        scene.meet_in(namespace, SERVER[0], Scene::serve_as_nobody, &nothing, (6, 0))?;
    }
    Ok("two users in one namespace and in two meet by an agent of another version".to_owned())
}

/// Root of two namespaces is two users, as long as not both list it.
pub(crate) fn roots(stage: &Stage<'_>) -> Result<String> {
    let scene = Scene::set(stage)?;
    let _agent = scene.agent()?;
    for (server_lists, client_lists, ends) in
        [("", "", (0, 6)), ("0", "", (0, 6)), ("", "0", (0, 6)), ("0", "0", (6, 0))]
    {
        let rules = [server_lists, client_lists].map(shared_with);
        scene.meet(SERVER[0], Scene::serve_as_root, &rules, ends)?;
    }
    Ok("root shares with root elsewhere if both list it".to_owned())
}

fn shared_with(users: &str) -> String {
    format!("[policy]\nshare_with_users = [{users}]\n")
}

/// Each end asks for the PNET ID of the interface that it has itself.
pub(crate) fn pnet_ids(stage: &Stage<'_>) -> Result<String> {
    let scene = Scene::set(stage)?;
    let _agent = scene.agent()?;
    for address in SERVER {
        for (server_has, client_has, ends) in
            [("lo", CABLE, (0, 6)), (CABLE, "lo", (0, 6)), (CABLE, CABLE, (6, 0))]
        {
            let rules = [server_has, client_has].map(pnet_id_of);
            scene.meet(address, Scene::serve_as_root, &rules, ends)?;
        }
    }
    Ok("IPv4 and IPv6, by the interfaces of both ends".to_owned())
}

fn pnet_id_of(interface: &str) -> String {
    let rules = shared_with("0");
    format!("{rules}[pnet.A]\ninterfaces = [\"{interface}\"]\ndevices = [\"ism\"]\n")
}

/// A container without a privilege: a user, a network and a mount namespace that an ordinary user has
/// made, a cable that root has laid, and the agent's directory mounted somewhere else.
pub(crate) fn container(stage: &Stage<'_>) -> Result<String> {
    let scene = Scene::set(stage)?;
    let _agent = scene.agent()?;
    let [gateway, own] = ["10.89.2.1", "10.89.2.2"];
    let words = ["server", "0.0.0.0", &PORT.to_string()];
    let server = scene.serve_as_nobody(scene.command(Transport::Smc, "early", &words))?;

    let inside = scene.agent_directory.join("inside");
    let words = ["client", gateway, &PORT.to_string(), &stage.house.seed.to_string()];
    let mut client = scene.command(Transport::Smc, "early", &words);
    client.env("SIDESTEP_CONFIG", scene.config("early-inside", &inside.join("agent.sock"))?);
    let script = format!(
        "mount --bind {agent} {inside} && while ! ip address add {own}/24 dev {CABLE}2 2>/dev/null; \
         do sleep 0.05; done && ip link set {CABLE}2 up && exec \"$@\"",
        agent = scene.agent_directory.join("run").display(),
        inside = inside.display(),
    );
    prefix(&mut client, &[&AS_NOBODY[..], &CONTAINER, &["sh", "-c", &script, "sh"]].concat());
    scene.group.enclose(&mut client);
    let mut client = Talker(Dialogue::start(client)?);
    let pid = client.0.program().pid();
    await_own_network(pid)?;
    scene.left.lead_to(pid, gateway)?;
    client.0.say("5 40")?;
    client.verified()?;
    scene.expect(&server, &mut client, (10, 0))?;
    Ok("5 connections of a container".to_owned())
}

/// The user without a name.
pub(super) const AS_NOBODY: [&str; 4] =
    ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
/// A user's own namespaces, in which it is root.
const CONTAINER: [&str; 6] = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--"];

fn await_own_network(pid: u32) -> Result<()> {
    let network = |of: &str| fs::read_link(format!("/proc/{of}/ns/net"));
    let deadline = Instant::now() + HANG;
    while network(&pid.to_string())? == network("self")? {
        if Instant::now() > deadline {
            bail!(Lacking("no namespaces for ordinary users".to_owned()));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Has a command begun by another one, whose last words it becomes.
fn prefix(command: &mut Command, words: &[&str]) {
    let mut whole = Command::new(words[0]);
    whole.args(&words[1..]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => whole.env(name, value),
            None => whole.env_remove(name),
        };
    }
    // A user without a home has no files there.
    whole.env_remove("HOME");
    *command = whole;
}

fn cable(left: &Namespace, right: &Namespace) -> Result<()> {
    left.join(CABLE, right.name())?;
    left.settle(CABLE, &SERVER)?;
    right.settle(CABLE, &CLIENT)
}

/// Where it is played: two namespaces with a cable between them.
struct Scene<'a> {
    stage: &'a Stage<'a>,
    left: Namespace,
    right: Namespace,
    group: Group,
    /// `run` in it has the socket.
    agent_directory: PathBuf,
}

impl<'a> Scene<'a> {
    fn set(stage: &'a Stage<'a>) -> Result<Self> {
        if !user::is_root() {
            bail!(Lacking("network namespaces and an agent need root".to_owned()));
        }
        let [left, right] = [Namespace::make("left")?, Namespace::make("right")?];
        cable(&left, &right)?;
        let agent_directory = stage.house.scratch.join("distant");
        fs::create_dir_all(agent_directory.join("run"))?;
        fs::create_dir_all(agent_directory.join("inside"))?;
        Ok(Self { stage, left, right, group: Group::make()?, agent_directory })
    }

    fn socket(&self) -> PathBuf {
        self.agent_directory.join("run/agent.sock")
    }

    /// `sidestep agent`, once it is there for both namespaces.
    fn agent(&self) -> Result<Dialogue> {
        self.agent_with(&[])
    }

    fn agent_with(&self, words: &[&OsStr]) -> Result<Dialogue> {
        let Some(sidestep) = self.stage.house.launcher.observer() else {
            bail!(Lacking("there is no `sidestep` to be the agent".to_owned()));
        };
        self.agent_of(sidestep, words)
    }

    fn agent_of(&self, sidestep: &Path, words: &[&OsStr]) -> Result<Dialogue> {
        let mut command = Command::new(sidestep);
        command.arg("agent").arg("--cgroup").arg(self.group.at());
        command.arg("--socket").arg(self.socket()).args(words);
        let mut agent = Dialogue::start(command)?;
        agent.await_line("sidestep agent: programs of different", HANG)?;
        Ok(agent)
    }

    /// A configuration file, by which root shares memory with root elsewhere.
    fn config(&self, name: &str, socket: &Path) -> Result<PathBuf> {
        self.configured(name, socket, &shared_with("0"))
    }

    /// A configuration file with these rules.
    fn configured(&self, name: &str, socket: &Path, rules: &str) -> Result<PathBuf> {
        let promotion = name.split('-').next().unwrap_or_default();
        let file = self.agent_directory.join(format!("{name}.toml"));
        let socket = socket.display();
        let text =
            format!("[smc]\npromotion = \"{promotion}\"\nagent_socket = \"{socket}\"\n{rules}");
        fs::write(&file, text)?;
        Ok(file)
    }

    /// The same, for one end of a test about them.
    fn amended(&self, end: &str, rules: &str) -> Result<PathBuf> {
        self.configured(&format!("early-{end}"), &self.socket(), rules)
    }

    fn command(&self, transport: Transport, promotion: &str, words: &[&str]) -> Command {
        let script = self.stage.house.script("distant.py");
        let words = [&["python3", &script], words].concat();
        let Some(sidestep) =
            self.stage.house.launcher.observer().filter(|_| transport == Transport::Smc)
        else {
            return self.stage.command(Transport::Tcp, &words);
        };
        // The launcher's own moves everything at once.
        let mut command = Command::new(sidestep);
        command.args(["run", "--promotion", promotion, "--"]).args(words);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        if let Ok(config) = self.config(promotion, &self.socket()) {
            command.env("SIDESTEP_CONFIG", config);
        }
        command
    }

    fn enclose(&self, namespace: &Namespace, command: &mut Command) {
        namespace.enclose(command);
        self.group.enclose(command);
    }

    /// A server and a client, each with rules of its own, make three connections: so many of their ends
    /// must be in shared memory and on TCP.
    fn meet(
        &self,
        address: &str,
        serve: fn(&Self, Command) -> Result<Program>,
        rules: &[String; 2],
        ends: (usize, usize),
    ) -> Result<()> {
        self.meet_in(&self.right, address, serve, rules, ends)
    }

    /// The same, with the client in this namespace.
    fn meet_in(
        &self,
        namespace: &Namespace,
        address: &str,
        serve: fn(&Self, Command) -> Result<Program>,
        [of_server, of_client]: &[String; 2],
        ends: (usize, usize),
    ) -> Result<()> {
        let (port, seed) = (PORT.to_string(), self.stage.house.seed.to_string());
        let mut server = self.command(Transport::Smc, "early", &["server", address, &port]);
        server.env("SIDESTEP_CONFIG", self.amended("server", of_server)?);
        let mut server = serve(self, server)?;
        let words = ["client", address, &port, &seed];
        let mut client = self.command(Transport::Smc, "early", &words);
        client.env("SIDESTEP_CONFIG", self.amended("client", of_client)?);
        self.enclose(namespace, &mut client);
        let mut client = Talker(Dialogue::start(client)?);
        client.talk("3 40")?;
        self.expect(&server, &mut client, ends)
            .with_context(|| format!("{address}, {of_server:?} and {of_client:?}"))?;
        server.must_be_alive()
    }

    fn serve(
        &self,
        namespace: &Namespace,
        transport: Transport,
        address: &str,
        promotion: &str,
    ) -> Result<Program> {
        let words = ["server", address, &PORT.to_string()];
        self.serve_by(namespace, self.command(transport, promotion, &words))
    }

    fn serve_as_root(&self, command: Command) -> Result<Program> {
        self.serve_by(&self.left, command)
    }

    fn serve_as_nobody(&self, mut command: Command) -> Result<Program> {
        prefix(&mut command, &AS_NOBODY);
        self.serve_by(&self.left, command)
            .map_err(|error| Lacking(format!("no other user: {error:#}")).into())
    }

    fn serve_by(&self, namespace: &Namespace, mut command: Command) -> Result<Program> {
        self.enclose(namespace, &mut command);
        let mut server = Program::start(command, &self.stage.house.scratch)?;
        server.await_listener(PORT)?;
        Ok(server)
    }

    fn client(
        &self,
        namespace: &Namespace,
        transport: Transport,
        address: &str,
        promotion: &str,
        source: Option<u16>,
    ) -> Result<Talker> {
        let (port, seed) = (PORT.to_string(), self.stage.house.seed.to_string());
        let source = source.map(|port| port.to_string());
        let mut words = vec!["client", address, &port, &seed];
        words.extend(source.as_deref());
        let mut command = self.command(transport, promotion, &words);
        self.enclose(namespace, &mut command);
        Ok(Talker(Dialogue::start(command)?))
    }

    /// A client of a server that answers at this address and port.
    fn client_at(&self, namespace: &Namespace, (address, port): (&str, u16)) -> Result<Talker> {
        let (port, seed) = (port.to_string(), self.stage.house.seed.to_string());
        let mut command = self.command(Transport::Smc, "early", &["client", address, &port, &seed]);
        self.enclose(namespace, &mut command);
        Ok(Talker(Dialogue::start(command)?))
    }

    /// Has a network namespace translate addresses by these rules.
    fn translate(&self, namespace: &Namespace, rules: &str) -> Result<()> {
        self.run_in(namespace, &["nft", rules])
            .map_err(|error| Lacking(format!("no translation of addresses: {error:#}")).into())
    }

    fn run_in(&self, namespace: &Namespace, words: &[&str]) -> Result<()> {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        namespace.enclose(&mut command);
        launch::run(command, HANG).map(drop)
    }

    /// Waits until a server has seen that all its clients have gone.
    fn await_no_connection(&self, server: &Program) -> Result<()> {
        let deadline = Instant::now() + HANG;
        while self.stage.house.witness.sees() {
            let (moved, tcp) = self.stage.house.witness.look(&server.family())?.counts();
            if moved + tcp == 0 {
                break;
            }
            ensure!(Instant::now() < deadline, "{} connections without a client", moved + tcp);
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// A server and a client, all of whose connections have moved.
    fn five_connections(&self) -> Result<(Program, Talker)> {
        let server = self.serve(&self.left, Transport::Smc, SERVER[0], "early")?;
        let mut client = self.client(&self.right, Transport::Smc, SERVER[0], "early", None)?;
        client.talk("5 20")?;
        self.expect(&server, &mut client, (10, 0))?;
        Ok((server, client))
    }

    /// So many ends, of both programs, must be in shared memory and on TCP.
    fn expect(&self, server: &Program, client: &mut Talker, ends: (usize, usize)) -> Result<()> {
        self.expect_of(&server.family(), client, ends)
    }

    /// The same, of the client and these processes.
    fn expect_of(&self, pids: &[u32], client: &mut Talker, ends: (usize, usize)) -> Result<()> {
        if !self.stage.house.witness.sees() {
            return Ok(());
        }
        let pids = [pids, &client.0.program().family()].concat();
        let deadline = Instant::now() + HANG;
        loop {
            let seen = self.stage.house.witness.look(&pids)?;
            // On a busy machine a talk can be over before the agent has answered.
            if seen.counts().0 >= ends.0 || Instant::now() > deadline {
                ensure!(seen.counts() == ends, "(SMC-D, TCP) is not {ends:?}: {seen:?}");
                return Ok(());
            }
            client.talk("0 40")?;
        }
    }
}

/// A client that is told what to do.
struct Talker(Dialogue);

impl Talker {
    fn talk(&mut self, turns: &str) -> Result<()> {
        self.say(turns)?;
        self.verified()
    }

    fn say(&mut self, turns: &str) -> Result<()> {
        self.0.say(turns)
    }

    fn verified(&mut self) -> Result<()> {
        self.0.await_line("verified", HANG).map(drop)
    }
}
