//! The agent's socket: who is brought together, and what hostile callers get.

use std::fs::{File, Permissions};
use std::io::{self, BufRead, BufReader, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};
use sidestep_wire::host_control::{
    ControlMessage, EMITTED_LEN_MAX, Instance, Lookup, Match, RefusalCause, Side,
};

use crate::support::Place;
use crate::talk::{HANG, eventually};

#[test]
fn two_ends_get_a_line_to_each_other() {
    let agent = Agent::start();
    let (client, server) = (agent.call(), agent.call());
    client.lookup(1, Side::Client);
    server.lookup(1, Side::Server);
    let (to_client, clients_end) = client.awaits_match();
    let (to_server, servers_end) = server.awaits_match();
    assert_eq!(to_client.instance, Instance([Side::Server as u8; 16]));
    assert_eq!(to_server.instance, Instance([Side::Client as u8; 16]));
    for (news, side) in [(to_client, Side::Client), (to_server, Side::Server)] {
        assert_eq!((news.token, news.port, news.side), ([1; 16], 80, side));
        let own = rustix::process::getuid().as_raw();
        assert_eq!((news.uid, news.own_uid), (own, own));
    }
    net::send(&clients_end, b"hello", SendFlags::empty()).unwrap();
    let mut bytes = [0; 8];
    assert_eq!(net::recv(&servers_end, &mut bytes, RecvFlags::empty()).unwrap().0, 5);
}

#[test]
fn each_end_gets_back_the_port_that_it_sees() {
    let agent = Agent::start();
    let (client, server) = (agent.call(), agent.call());
    client.send(&lookup_at(7, Side::Client, 8080), &[]);
    server.send(&lookup_at(7, Side::Server, 80), &[]);
    assert_eq!(client.awaits_match().0.port, 8080);
    assert_eq!(server.awaits_match().0.port, 80);
}

#[test]
fn the_policy_of_the_host_is_told_to_both_ends() {
    let is_granted = |agent: &Agent| {
        let (client, server) = (agent.call(), agent.call());
        client.lookup(1, Side::Client);
        server.lookup(1, Side::Server);
        let told = [client, server].map(|line| line.awaits_match().0.is_granted);
        assert_eq!(told[0], told[1]);
        told[0]
    };
    let place = Place::new();
    let own = rustix::process::getuid().as_raw();
    let put = |place: &Place, rules: &str| {
        let file = place.file(".config/sidestep/sidestep.toml", rules);
        std::fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
    };
    put(&place, &format!("[share]\npairs = [[{own}, {own}]]\n"));
    let agent = Agent::start_in(place, &[]);
    assert!(is_granted(&agent));
    put(&agent.place, &format!("[share]\npairs = [[{own}, {}]]\n", own + 1));
    eventually("it is taken back", || (!is_granted(&agent)).then_some(()));
    let groups = rustix::process::getgid().as_raw();
    put(&agent.place, &format!("[share]\ngroups = [{groups}]\n"));
    eventually("a group is let in", || is_granted(&agent).then_some(()));
    put(&agent.place, "");
    eventually("nothing is granted", || (!is_granted(&agent)).then_some(()));
}

#[test]
fn a_policy_that_others_may_write_keeps_the_agent_from_starting() {
    let place = Place::new();
    let file = place.file("share.toml", "[share]\nall = true\n");
    std::fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
    let mut command = place.sidestep(None);
    command
        .args(["agent", "--cgroup", "/nowhere", "--socket"])
        .arg(place.path().join("agent.sock"));
    let output = command.arg("--config").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("share.toml: [share] counts only in a file"), "{said}");
}

/// As in a container: its callers have no number in its PID namespace.
#[test]
fn an_agent_in_a_pid_namespace_of_its_own_serves() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: PID namespaces need root");
    }
    let agent = Agent::start_by(&["unshare", "--pid", "--fork", "--kill-child", "--"]);
    agent.serves();
}

#[test]
fn a_process_may_be_at_both_ends() {
    let agent = Agent::start();
    let line = agent.call();
    line.lookup(1, Side::Client);
    line.lookup(1, Side::Server);
    let (news, _end) = line.awaits_match();
    let (other_news, _other_end) = line.awaits_match();
    assert_ne!(news.side, other_news.side);
}

#[test]
fn what_is_no_lookup_is_answered_and_ends_the_line() {
    let agent = Agent::start();
    let whole = lookup(1, Side::Client);
    let mut too_long = whole.clone();
    too_long.resize(4_000, 0);
    let mut of_another_kind = whole.clone();
    of_another_kind[7] = 1;
    for garbage in [&b"x"[..], &whole[..20], &too_long, &of_another_kind, &[0xff; 48]] {
        let line = agent.call();
        line.send(garbage, &[]);
        assert_eq!(line.awaits_refusal(), RefusalCause::Malformed);
        line.awaits_end();
    }
    agent.serves();
}

#[test]
fn descriptors_beside_a_lookup_are_not_taken() {
    let agent = Agent::start();
    let before = agent.descriptors();
    let line = agent.call();
    let file = File::open("/dev/null").unwrap();
    for _ in 0..100 {
        line.send(&lookup(7, Side::Client), &[file.as_fd(), file.as_fd()]);
    }
    agent.serves();
    // The line itself, and what was there before. Who closes them is another thread of the agent.
    eventually("they are closed", || (agent.descriptors() <= before + 8).then_some(()));
}

#[test]
fn one_user_cannot_have_all_lines() {
    let agent = Agent::start();
    // One that is refused may be so while it still calls, or after.
    let lines: Vec<Line> = (0..1_000).filter_map(|_| agent.try_call()).collect();
    let refused = || 1_000 - lines.len() + lines.iter().filter(|line| line.is_hung_up()).count();
    eventually("most are refused", || (refused() >= 700).then_some(()));
    drop(lines);
    eventually("it has seen that they are gone", || agent.would_serve().then_some(()));
    agent.serves();
}

#[test]
fn who_never_reads_loses_answers_and_nobody_else_does() {
    let agent = Agent::start();
    let (deaf, other) = (agent.call(), agent.call());
    let (mut to_other, mut to_deaf) = (0, 0);
    for token in 0..2_000 {
        deaf.send(&lookup(token, Side::Client), &[]);
        other.send(&lookup(token, Side::Server), &[]);
        other.awaits_match();
        to_other += 1;
    }
    while deaf.try_match().is_some() {
        to_deaf += 1;
    }
    assert!((1..500).contains(&to_deaf), "{to_deaf} answers lay unread, {to_other} were read");
    agent.serves();
}

/// Descriptors in flight are counted as the agent's, whoever does not read them.
#[test]
fn answers_that_a_user_leaves_unread_have_an_end() {
    const LINES: u32 = 32;
    const ANSWERS: u32 = 100;
    let agent = Agent::start();
    let deaf: Vec<Line> = (0..LINES).map(|_| agent.call()).collect();
    for (line, number) in deaf.iter().zip(0..) {
        let other = agent.call();
        for token in number * ANSWERS..(number + 1) * ANSWERS {
            line.send(&lookup(token, Side::Client), &[]);
            other.send(&lookup(token, Side::Server), &[]);
        }
        // Lines that have ended are no way to have more. What was sent before is heard before.
        for line in [&other, line] {
            line.send(b"?", &[]);
            line.awaits_hang_up();
        }
    }
    let unread: u32 =
        deaf.iter().map(|line| (0..).map_while(|_| line.try_match()).count() as u32).sum();
    assert!((500..=1_100).contains(&unread), "{unread} answers of {}", LINES * ANSWERS);
    drop(deaf);
    agent.serves();
}

#[test]
fn a_flood_does_not_keep_others_from_being_served() {
    let agent = Agent::start();
    thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let line = agent.call();
            let deadline = Instant::now() + Duration::from_secs(2);
            for token in 0.. {
                line.send(&lookup(token, Side::Client), &[]);
                if Instant::now() > deadline {
                    break;
                }
            }
        });
        while !flood.is_finished() {
            agent.serves();
        }
    });
}

#[test]
fn the_socket_of_a_killed_agent_is_replaced_and_that_of_a_living_one_is_not() {
    let mut agent = Agent::start();
    let second = agent
        .place
        .sidestep(None)
        .arg("agent")
        .arg("--socket")
        .arg(&agent.socket)
        .args(["--cgroup", "/nowhere"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("another agent serves there"), "{said}");
    agent.serves();
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    assert!(agent.socket.exists());
    agent.child = begin(&agent.place, &agent.socket, &[]);
    agent.serves();
}

/// An agent; whether it may load programs does not matter here.
struct Agent {
    child: Child,
    socket: PathBuf,
    place: Place,
}

impl Agent {
    fn start() -> Self {
        Self::start_by(&[])
    }

    /// An agent that is begun by another command.
    fn start_by(other: &[&str]) -> Self {
        Self::start_in(Place::new(), other)
    }

    /// The same, with what is in this place.
    fn start_in(place: Place, other: &[&str]) -> Self {
        let socket = place.path().join("agent.sock");
        let child = begin(&place, &socket, other);
        Self { child, socket, place }
    }

    fn call(&self) -> Line {
        self.try_call().expect("the agent is called")
    }

    fn try_call(&self) -> Option<Line> {
        let socket = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        net::connect(&socket, &SocketAddrUnix::new(&self.socket).unwrap()).ok()?;
        Some(Line(socket))
    }

    /// It goes on bringing people together.
    fn serves(&self) {
        let (client, server) = (self.call(), self.call());
        client.lookup(0xee, Side::Client);
        server.lookup(0xee, Side::Server);
        client.awaits_match();
        server.awaits_match();
    }

    /// Whether it brings two together, and refuses neither.
    fn would_serve(&self) -> bool {
        let (Some(client), Some(server)) = (self.try_call(), self.try_call()) else { return false };
        client.lookup(0xee, Side::Client);
        server.lookup(0xee, Side::Server);
        eventually("it serves or refuses", || match client.try_match() {
            Some(_) => Some(true),
            None => (client.is_hung_up() || server.is_hung_up()).then_some(false),
        })
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn begin(place: &Place, socket: &Path, other: &[&str]) -> Child {
    let mut command = place.sidestep(None);
    if let Some((first, rest)) = other.split_first() {
        let program = command.get_program().to_owned();
        let environment: Vec<_> = command
            .get_envs()
            .map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned)))
            .collect();
        command = Command::new(first);
        command.args(rest).arg(program);
        for (name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }
    // A group of the test's own, if that may be made: nobody else's sockets are looked at.
    let group = sidestep_bpf::Cgroup::create_for_run();
    if let Ok(group) = &group {
        command.arg("agent").arg("--cgroup").arg(group.path());
    } else {
        command.arg("agent");
    }
    command.arg("--socket").arg(socket).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let words = "programs of different users and network namespaces";
    let says = |stream: Box<dyn io::Read>| {
        BufReader::new(stream).lines().map_while(Result::ok).any(|line| line.contains(words))
    };
    let out: Box<dyn io::Read> = Box::new(child.stdout.take().unwrap());
    let errors: Box<dyn io::Read> = Box::new(child.stderr.take().unwrap());
    // It says so on the one or the other, by its privilege.
    let is_there = if group.is_ok() { says(out) } else { says(errors) };
    assert!(is_there, "the agent ended");
    child
}

/// A caller.
struct Line(OwnedFd);

impl Line {
    fn lookup(&self, token: u8, side: Side) {
        self.send(&lookup(u32::from_ne_bytes([token; 4]), side), &[]);
    }

    /// What cannot be sent, is not.
    fn send(&self, bytes: &[u8], beside: &[std::os::fd::BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !beside.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(beside));
        }
        let _ = net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    }

    fn awaits_match(&self) -> (Match, OwnedFd) {
        self.await_news();
        self.try_match().expect("a match")
    }

    /// One that has come.
    fn try_match(&self) -> Option<(Match, OwnedFd)> {
        let mut bytes = [0; EMITTED_LEN_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut place = [io::IoSliceMut::new(&mut bytes)];
        let len = net::recvmsg(&self.0, &mut place, &mut control, RecvFlags::DONTWAIT).ok()?.bytes;
        let end = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut ends) => ends.next(),
            _ => None,
        })?;
        match ControlMessage::parse(&bytes[..len]) {
            Ok(ControlMessage::Match(news)) => Some((news, end)),
            other => panic!("{other:?}"),
        }
    }

    fn awaits_refusal(&self) -> RefusalCause {
        self.await_news();
        let mut bytes = [0; EMITTED_LEN_MAX];
        let (len, _) = net::recv(&self.0, &mut bytes, RecvFlags::DONTWAIT).unwrap();
        match ControlMessage::parse(&bytes[..len]) {
            Ok(ControlMessage::Refusal(refusal)) => refusal.cause,
            other => panic!("{other:?}"),
        }
    }

    fn awaits_end(&self) {
        self.await_news();
        let mut bytes = [0; 1];
        let end = net::recv(&self.0, &mut bytes, RecvFlags::DONTWAIT);
        assert!(matches!(end, Ok((0, _)) | Err(rustix::io::Errno::CONNRESET)), "{end:?}");
    }

    /// Whatever lies unread before it.
    fn awaits_hang_up(&self) {
        let mut entry = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let patience = Timespec { tv_sec: HANG.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(poll(&mut entry, Some(&patience)).unwrap(), 1, "the line goes on");
    }

    fn await_news(&self) {
        let mut entry = [PollFd::new(&self.0, PollFlags::IN)];
        let patience = Timespec { tv_sec: HANG.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(poll(&mut entry, Some(&patience)).unwrap(), 1, "nothing comes");
    }

    fn is_hung_up(&self) -> bool {
        let mut entry = [PollFd::new(&self.0, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut entry, Some(&at_once)).unwrap();
        entry[0].revents().contains(PollFlags::HUP)
    }
}

fn lookup(token: u32, side: Side) -> Vec<u8> {
    lookup_at(token, side, 80)
}

fn lookup_at(token: u32, side: Side, port: u16) -> Vec<u8> {
    let mut whole = [0; 16];
    whole.chunks_mut(4).for_each(|chunk| chunk.copy_from_slice(&token.to_ne_bytes()));
    let instance = Instance([side as u8; 16]);
    let mut bytes = vec![0; Lookup::LEN];
    Lookup { instance, token: whole, side, port }.emit(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_file_that_is_no_socket_stays() {
    let place = Place::new();
    let precious = place.path().join("precious");
    std::fs::write(&precious, "precious").unwrap();
    let mut command = place.sidestep(None);
    command.arg("agent").arg("--socket").arg(&precious).args(["--cgroup", "/nowhere"]);
    let said = String::from_utf8_lossy(&command.output().unwrap().stderr).into_owned();
    assert!(said.contains("there is a file of this name that is no socket"), "{said}");
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
}
