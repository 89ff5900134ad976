//! The TCP option of SMC: an agent, programs with and without Sidestep, and tshark, which
//! looks at what they send.
//!
//! All of it lies in a network namespace and a control group of its own: nobody else on
//! the machine sends the option, and nobody else's packets are looked at.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::outsiders::{command, ordinary};
use super::stage::Stage;
use crate::bench::launch::{self, Dialogue, Program, Transport};
use crate::capture::{Capture, Captured};
use crate::enclosure::{Group, Namespace};
use crate::suite::{HANG, Lacking};
use crate::user;
use crate::witness::Claim;

/// The option, as tshark prints it. Linux with SMC in the kernel sends the same bytes,
/// behind its padding where ours comes before.
const OPTION: &str = "fe06e2d4c3d9";

const NOT_AGREED: &str = "without the SMC option";
const PEER_IS_PLAIN: &str = "the peer does not run Sidestep";

pub(crate) fn option(stage: &Stage<'_>) -> Result<String> {
    let scene = Scene::set(stage)?;
    let file = stage.house.scratch.join("tcp-option.pcapng");
    let capture = Capture::begin(&scene.namespace, "lo", "tcp", file)?;
    let mut seen = Vec::new();

    let early = scene.serve(Transport::Smc)?;
    let agent = scene.agent()?;
    seen.push(early.talk(&scene, Transport::Smc, Claim::Smc, "")?.sends(NEITHER));

    let both = scene.serve(Transport::Smc)?;
    seen.push(both.talk(&scene, Transport::Smc, Claim::Smc, "")?.sends(BOTH));
    let server_only = scene.serve(Transport::Smc)?;
    seen.push(server_only.talk(&scene, Transport::Tcp, Claim::Tcp, NOT_AGREED)?.sends(NEITHER));
    let client_only = scene.serve(Transport::Tcp)?;
    seen.push(client_only.talk(&scene, Transport::Smc, Claim::Tcp, PEER_IS_PLAIN)?.sends(NEITHER));
    seen.push(scene.serve(Transport::Tcp)?.talk_unseen(&scene)?.sends(NEITHER));

    scene.set_syn_cookies("2")?;
    let cookie = scene.serve(Transport::Smc)?;
    seen.push(cookie.talk(&scene, Transport::Smc, Claim::Tcp, NOT_AGREED)?.sends(SYN_ONLY));
    scene.set_syn_cookies("1")?;

    let live = scene.serve(Transport::Smc)?;
    let left = scene.serve(Transport::Smc)?;
    seen.push(live.talk_while(&scene, || drop(agent))?.sends(BOTH));
    seen.push(left.talk(&scene, Transport::Smc, Claim::Smc, "")?.sends(NEITHER));

    let segments = segments(&capture.end()?, &scene)?;
    for expected in &seen {
        expected.compare(&segments)?;
    }
    Ok(format!("SYN and SYN-ACK of {} kinds of connections", seen.len()))
}

/// Whether SYN and SYN-ACK have the option.
type Sent = (bool, bool);
const BOTH: Sent = (true, true);
const SYN_ONLY: Sent = (true, false);
const NEITHER: Sent = (false, false);

/// What a connection to a port has to send.
struct Expected {
    port: u16,
    sent: Sent,
}

impl Expected {
    fn compare(&self, segments: &[Segment]) -> Result<()> {
        let port = self.port;
        let find = |is_answer: bool| {
            let mut of_port =
                segments.iter().filter(|it| it.port == port && it.is_answer == is_answer);
            of_port.next().with_context(|| format!("no SYN of port {port} (answer: {is_answer})"))
        };
        let sent = (find(false)?.has_option(), find(true)?.has_option());
        ensure!(sent == self.sent, "port {port}: SYN, SYN-ACK {sent:?} and not {:?}", self.sent);
        Ok(())
    }
}

/// A SYN or SYN-ACK in the capture.
struct Segment {
    /// The server's.
    port: u16,
    is_answer: bool,
    /// In hexadecimal digits.
    options: String,
}

impl Segment {
    /// A line of tshark: the flag ACK, both ports, the options.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[ack, from, to, options] = fields.as_slice() else { return None };
        let is_answer = matches!(ack, "1" | "True");
        let port = if is_answer { from } else { to }.parse().ok()?;
        Some(Self { port, is_answer, options: options.to_owned() })
    }

    fn has_option(&self) -> bool {
        self.options.contains(OPTION)
    }
}

/// Where it is played.
struct Scene<'a> {
    stage: &'a Stage<'a>,
    program: PathBuf,
    namespace: Namespace,
    group: Group,
}

impl<'a> Scene<'a> {
    fn set(stage: &'a Stage<'a>) -> Result<Self> {
        if !user::is_root() {
            bail!(Lacking("an agent, a capture and a network namespace need root".to_owned()));
        }
        let program = ordinary(stage)?;
        Ok(Self { stage, program, namespace: Namespace::make("e2e")?, group: Group::make()? })
    }

    /// `sidestep agent`, once it says that the option is written.
    fn agent(&self) -> Result<Dialogue> {
        let Some(sidestep) = self.stage.house.launcher.observer() else {
            bail!(Lacking("there is no `sidestep` to be the agent".to_owned()));
        };
        let mut command = Command::new(sidestep);
        command.arg("agent").arg("--cgroup").arg(self.group.at());
        command.arg("--socket").arg(self.stage.house.scratch.join("agent.sock"));
        let mut agent = Dialogue::start(command)?;
        agent.await_line("sidestep agent: the TCP option", HANG)?;
        Ok(agent)
    }

    fn set_syn_cookies(&self, value: &str) -> Result<()> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("echo {value} > /proc/sys/net/ipv4/tcp_syncookies"));
        self.namespace.enclose(&mut command);
        launch::run(command, HANG).map(drop)
    }

    fn serve(&self, transport: Transport) -> Result<Server> {
        let port = launch::free_port()?;
        let command = self.command(transport, &["server", &port.to_string()]);
        let mut program = Program::start(command, &self.stage.house.scratch)?;
        program.await_listener(port)?;
        Ok(Server { program, port })
    }

    fn command(&self, transport: Transport, words: &[&str]) -> Command {
        let mut command = match transport {
            Transport::Smc => command(self.stage, &self.program, "calls", words),
            Transport::Tcp => {
                let mut command = Command::new(&self.program);
                command.arg("calls").args(words);
                command
            }
        };
        self.namespace.enclose(&mut command);
        self.group.enclose(&mut command);
        command
    }
}

/// A server that waits for its one client.
struct Server {
    program: Program,
    port: u16,
}

impl Server {
    /// Has a client talk to it; `sidestep ss` must show what is claimed, for this reason if
    /// it is TCP.
    fn talk(
        mut self,
        scene: &Scene<'_>,
        transport: Transport,
        claim: Claim,
        reason: &str,
    ) -> Result<Self> {
        let client = Dialogue::start(self.client(scene, transport))?;
        let (_, seen) = scene.stage.observe(&mut self.program, [client], claim)?;
        if scene.stage.house.witness.sees() {
            seen.gives_reason(reason)?;
        }
        Ok(self)
    }

    /// The same without Sidestep.
    fn talk_unseen(self, scene: &Scene<'_>) -> Result<Self> {
        launch::run(self.client(scene, Transport::Tcp), HANG)?;
        Ok(self)
    }

    /// A connection in shared memory lives through what happens.
    fn talk_while(self, scene: &Scene<'_>, happen: impl FnOnce()) -> Result<Self> {
        let mut client = Dialogue::start(self.client(scene, Transport::Smc))?;
        client.await_line("verified", HANG)?;
        happen();
        let pids = [self.program.family(), client.program().family()].concat();
        let seen = scene.stage.house.witness.look(&pids)?;
        scene.stage.house.witness.judge(Claim::Smc, &seen)?;
        client.finish(HANG)?;
        Ok(self)
    }

    fn sends(self, sent: Sent) -> Expected {
        Expected { port: self.port, sent }
    }

    fn client(&self, scene: &Scene<'_>, transport: Transport) -> Command {
        let seed = scene.stage.house.seed.to_string();
        scene.command(transport, &["client", &self.port.to_string(), &seed])
    }
}

/// What SYN and SYN-ACK had; what the rules say of the rest is asked, too.
fn segments(captured: &Captured, scene: &Scene<'_>) -> Result<Vec<Segment>> {
    let fields = ["tcp.flags.ack", "tcp.srcport", "tcp.dstport", "tcp.options"];
    let text = captured.fields("tcp.flags.syn == 1", &fields)?;
    let segments: Vec<Segment> = text.lines().filter_map(Segment::parse).collect();
    ensure!(!segments.is_empty(), "tshark has seen nothing: {text}");
    if let Some(sidestep) = scene.stage.house.launcher.observer() {
        captured.must_keep_rules(sidestep)?;
    }
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_tshark_are_syn_and_syn_ack() {
        let syn = Segment::parse("0\t40000\t80\t0204ffd7fe06e2d4c3d90101").unwrap();
        assert_eq!((syn.port, syn.is_answer, syn.has_option()), (80, false, true));
        let answer = Segment::parse("True\t80\t40000\t0204ffd7").unwrap();
        assert_eq!((answer.port, answer.is_answer, answer.has_option()), (80, true, false));
        let segments = [syn, answer];
        assert!(Expected { port: 80, sent: SYN_ONLY }.compare(&segments).is_ok());
        assert!(Expected { port: 80, sent: BOTH }.compare(&segments).is_err());
        assert!(Expected { port: 81, sent: NEITHER }.compare(&segments).is_err());
    }
}
