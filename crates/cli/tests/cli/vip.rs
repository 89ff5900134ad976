//! `sidestep vip`: VIPs in a network namespace of each test's own, in front of listeners of the test itself
//! and of programs under Sidestep.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use sidestep_bpf::Cgroup;

use crate::support::{Place, outcome};
use crate::talk::{Running, Talk, eventually, free_port, outcome_of};

/// Moves this thread, and what it starts from now on, into a network namespace of its own. None, with a
/// printed line, if that takes more than the test has.
fn alone() -> Option<()> {
    // SAFETY: a flag; of this thread's own namespace nothing of Rust's depends.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        println!("skipped: a network namespace needs root");
        return None;
    }
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    if !up.is_ok_and(|status| status.success()) {
        println!("skipped: there is no `ip`");
        return None;
    }
    Some(())
}

/// `sidestep vip run`, until it is dropped.
struct Vips {
    child: Child,
    reports: BufReader<ChildStderr>,
}

impl Vips {
    fn start(place: &Place, config: &str) -> Self {
        let file = place.file("vip.toml", config);
        let mut command = place.sidestep(None);
        command.args(["vip", "run", "--config"]).arg(file);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let mut reports = BufReader::new(child.stderr.take().unwrap());
        if said.is_empty() {
            let mut errors = String::new();
            reports.read_to_string(&mut errors).unwrap();
            panic!("{errors}");
        }
        Self { child, reports }
    }

    /// Ends it in order.
    fn end(mut self) -> String {
        // SAFETY: a number of a child that was not waited for, and a signal.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) }, 0);
        let mut reported = String::new();
        self.reports.read_to_string(&mut reported).unwrap();
        assert!(self.child.wait().unwrap().success(), "{reported}");
        reported
    }
}

impl Drop for Vips {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn vip(place: &Place, words: &[&str]) -> (Option<i32>, String, String) {
    outcome(place.sidestep(None).arg("vip").args(words))
}

/// A target as `sidestep vip targets --json` has it.
fn target(place: &Place, name: &str) -> Value {
    let (status, text, errors) = vip(place, &["targets", "--json"]);
    assert_eq!(status, Some(0), "{errors}");
    let all: Value = serde_json::from_str(&text).unwrap();
    let targets =
        all["vips"].as_array().unwrap().iter().flat_map(|vip| vip["targets"].as_array().unwrap());
    targets.into_iter().find(|target| target["name"] == name).unwrap().clone()
}

fn await_state(place: &Place, name: &str, state: &str) {
    eventually(&format!("{name} is {state}"), || {
        (target(place, name)["state"] == state).then_some(())
    });
}

/// A server of this process that answers each connection by its name, and echoes, until it is dropped.
struct Server {
    listener: TcpListener,
}

impl Server {
    fn start(address: &str, name: u8) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let accepting = listener.try_clone().unwrap();
        thread::spawn(move || {
            while let Ok((mut stream, _)) = accepting.accept() {
                let local = stream.local_addr().unwrap();
                thread::spawn(move || {
                    let mut byte = [name];
                    while stream.write_all(&byte).is_ok() && stream.read_exact(&mut byte).is_ok() {
                        byte = [name];
                    }
                });
                LOCALS.lock().unwrap().push(local);
            }
        });
        Self { listener }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The thread has a descriptor of it, too: this ends the listening itself.
        // SAFETY: an open descriptor.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

/// The lock of a socket of this process, held until it is dropped: by a `setsockopt` that waits in the kernel for memory which does not
/// come (`userfaultfd(2)`).
struct Lock {
    faults: Option<OwnedFd>,
    waiting: Option<thread::JoinHandle<()>>,
}

impl Lock {
    /// None, with a printed line, if the kernel does not let the test do so.
    fn hold(socket: RawFd) -> Option<Self> {
        /// `UFFDIO_API` and `UFFDIO_REGISTER` of `linux/userfaultfd.h`, with what they take.
        const API: u64 = 0xc018_aa3f;
        const REGISTER: u64 = 0xc020_aa00;
        const PAGE: usize = 4096;
        // SAFETY: flags alone.
        let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } as RawFd;
        if faults < 0 {
            println!("skipped: no userfaultfd: {}", std::io::Error::last_os_error());
            return None;
        }
        // SAFETY: it was just made.
        let faults = unsafe { OwnedFd::from_raw_fd(faults) };
        let mut api = [0xaa_u64, 0, 0];
        // SAFETY: the kernel chooses where; the size is that of a page.
        let page = unsafe {
            let (prot, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), PAGE, prot, flags, -1, 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        let page = page as usize;
        // Pages that are missing.
        let mut register = [page as u64, PAGE as u64, 1, 0];
        // SAFETY: an open descriptor, and structs as long as the numbers say.
        unsafe {
            assert_eq!(libc::ioctl(faults.as_raw_fd(), API, api.as_mut_ptr()), 0);
            assert_eq!(libc::ioctl(faults.as_raw_fd(), REGISTER, register.as_mut_ptr()), 0);
        }
        let waiting = thread::spawn(move || {
            let program = libc::sock_fprog { len: 1, filter: page as *mut libc::sock_filter };
            let len = size_of_val(&program) as libc::socklen_t;
            let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
            // SAFETY: an open descriptor, a struct and its length. The kernel reads the filter from the page, and refuses an empty one.
            unsafe { libc::setsockopt(socket, level, option, (&raw const program).cast(), len) };
        });
        // A message of a fault: from then on the kernel waits, with the lock.
        let mut fault = [0_u8; 32];
        // SAFETY: an open descriptor, and a buffer of that length.
        let read =
            unsafe { libc::read(faults.as_raw_fd(), fault.as_mut_ptr().cast(), fault.len()) };
        assert_eq!(read, 32);
        Some(Self { faults: Some(faults), waiting: Some(waiting) })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Without it the page is one of zeroes.
        drop(self.faults.take());
        self.waiting.take().unwrap().join().unwrap();
    }
}

/// What the servers of this process call their own address.
static LOCALS: std::sync::Mutex<Vec<SocketAddr>> = std::sync::Mutex::new(Vec::new());

/// A connection, and the name of the server that has it.
fn connect(address: &str) -> (TcpStream, u8) {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut name = [0];
    stream.read_exact(&mut name).unwrap();
    (stream, name[0])
}

fn lives((stream, name): &mut (TcpStream, u8)) {
    stream.write_all(b"x").unwrap();
    let mut answer = [0];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], *name);
}

const TWO: &str = "
[vip.web]
address = \"127.0.0.10:80\"
method = \"roundrobin\"
targets = { a = \"127.0.0.1:7001\", b = \"127.0.0.1:7002\" }
";

#[test]
fn connections_are_spread_drained_and_found_again() {
    let Some(()) = alone() else { return };
    let place = Place::new();
    let (mut a, b) = (Server::start("127.0.0.1:7001", b'a'), Server::start("127.0.0.1:7002", b'b'));
    let vips = Vips::start(&place, TWO);
    let mut all: Vec<_> = (0..10).map(|_| connect("127.0.0.10:80")).collect();
    assert_eq!(all.iter().filter(|(_, name)| *name == b'a').count(), 5);
    for (stream, _) in &all {
        assert_eq!(stream.peer_addr().unwrap(), "127.0.0.10:80".parse().unwrap());
    }
    assert!(LOCALS.lock().unwrap().contains(&"127.0.0.10:80".parse().unwrap()));
    assert_eq!(target(&place, "a")["connections"], 5);

    assert_eq!(vip(&place, &["drain", "a"]).1, "a is draining\n");
    let late: Vec<_> = (0..6).map(|_| connect("127.0.0.10:80").1).collect();
    assert_eq!(late, [b'b'; 6]);
    all.iter_mut().for_each(lives);
    let (status, _, errors) = vip(&place, &["drain", "web/a"]);
    assert_eq!((status, errors.contains("it is drained already")), (Some(1), true), "{errors}");
    assert_eq!(vip(&place, &["resume", "web/a"]).1, "web/a is active\n");

    // A restart: its own connections are of the old server, the others do not notice.
    drop(a);
    await_state(&place, "a", "down");
    assert_eq!(connect("127.0.0.10:80").1, b'b');
    a = Server::start("127.0.0.1:7001", b'A');
    await_state(&place, "a", "active");
    // Whose turn it is, segments sent again to the connections that have ended have a say in.
    eventually("it has its turn again", || (connect("127.0.0.10:80").1 == b'A').then_some(()));
    all.iter_mut().for_each(lives);

    let shown: Value = serde_json::from_str(&vip(&place, &["connections", "--json"]).1).unwrap();
    let shown = shown["connections"].as_array().unwrap().clone();
    let client = all[0].0.local_addr().unwrap().to_string();
    let first = shown.iter().find(|it| it["client"] == client.as_str()).unwrap();
    assert_eq!(first["target"], if all[0].1 == b'a' { "a" } else { "b" });
    let reported = vips.end();
    assert!(
        reported.contains("web/a at 127.0.0.1:7001: active -> draining (the operator's word)"),
        "{reported}"
    );
    all.iter_mut().for_each(lives);
    let refused = TcpStream::connect("127.0.0.10:80").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    drop((a, b));
}

#[test]
fn the_least_busy_is_known_by_what_lives() {
    const CONNECTIONS: usize = 20;
    let Some(()) = alone() else { return };
    let place = Place::new();
    let _servers = [Server::start("127.0.0.1:7001", b'a'), Server::start("127.0.0.1:7002", b'b')];
    let _vips = Vips::start(&place, &TWO.replace("roundrobin", "weightedactive"));
    let (of_a, of_b): (Vec<_>, Vec<_>) =
        (0..CONNECTIONS).map(|_| connect("127.0.0.10:80")).partition(|(_, name)| *name == b'a');
    let half = CONNECTIONS / 2;
    assert_eq!((of_a.len(), of_b.len()), (half, half), "what is given counts at once");
    drop(of_a);
    eventually("a has none", || (target(&place, "a")["connections"] == 0).then_some(()));
    // A segment sent again to a connection that has ended looks for a listener, too, and counts.
    // Each of those that a had may bring one, so not all of them are made up for.
    let late: Vec<_> = (0..3).map(|_| connect("127.0.0.10:80")).collect();
    assert!(late.iter().all(|(_, name)| *name == b'a'), "the idle one catches up");
    let given = ["a", "b"].map(|name| target(&place, name)["given"].as_u64().unwrap());
    assert!(given[0] >= half as u64 + 3 && given[1] >= half as u64, "{given:?}");
}

#[test]
fn a_new_set_is_in_force_at_once_or_not_at_all() {
    let Some(()) = alone() else { return };
    let place = Place::new();
    let _servers = [(7001, b'a'), (7002, b'b'), (7003, b'c')]
        .map(|(port, name)| Server::start(&format!("127.0.0.1:{port}"), name));
    let vips = Vips::start(&place, TWO);
    let apply = |config: &str| {
        place.file("vip.toml", config);
        vip(&place, &["apply"])
    };
    assert_eq!(apply(TWO).1, "nothing to change\n");
    let mut old = connect("127.0.0.10:80");
    let (status, _, errors) = apply(&TWO.replace("targets", "target"));
    assert_eq!(status, Some(1));
    assert!(errors.contains("vip.web.target: unknown key; did you mean `targets`?"), "{errors}");
    assert!(errors.ends_with("nothing is changed\n"), "{errors}");
    let plain = TcpListener::bind("127.0.0.11:81").unwrap();
    let taken = format!(
        "{TWO}[vip.x]\naddress = \"127.0.0.11:81\"\ntargets = {{ a = \"127.0.0.1:7003\" }}\n"
    );
    let (status, _, errors) = apply(&taken);
    assert_eq!(status, Some(1));
    assert!(
        errors.contains("listens at 127.0.0.11:81 already; let it listen at another port"),
        "{errors}"
    );
    drop(plain);
    let (status, text, errors) = apply(&taken.replace("127.0.0.1:7002", "127.0.0.1:7003"));
    assert_eq!(status, Some(0), "{errors}");
    assert!(
        text.contains("web at 127.0.0.10:80: roundrobin, 2 targets\nx at 127.0.0.11:81"),
        "{text}"
    );
    // They live until all are there: no segment of one that has ended takes a turn.
    let late: Vec<_> = (0..4).map(|_| connect("127.0.0.10:80")).collect();
    let names: Vec<_> = late.iter().map(|(_, name)| *name).collect();
    assert!(names.contains(&b'a') && names.contains(&b'c') && !names.contains(&b'b'), "{names:?}");
    lives(&mut old);
    assert!(apply(TWO).1.contains("x at 127.0.0.11:81 is not in force any more"));
    assert!(TcpStream::connect("127.0.0.11:81").is_err());
    assert_eq!(vip(&place, &["remove", "web"]).0, Some(0));
    assert!(TcpStream::connect("127.0.0.10:80").is_err());
    lives(&mut old);
    drop(vips);
}

#[test]
fn what_cannot_be_says_what_to_do() {
    let Some(()) = alone() else { return };
    let place = Place::new();
    let (status, _, errors) = vip(&place, &["targets"]);
    assert_eq!(status, Some(1));
    assert!(
        errors.contains("neither `sidestep vip run` nor `sidestep distributor run` is at work"),
        "{errors}"
    );
    let run = |config: &str| {
        let file = place.file("bad.toml", config);
        let mut command = place.sidestep(None);
        let (status, text, errors) = outcome(command.args(["vip", "run", "--config"]).arg(file));
        assert_eq!((status, text.as_str()), (Some(1), ""), "{errors}");
        errors
    };
    assert!(run("").contains("no VIPs are configured whose targets are listeners of this host"));
    let foreign = run(&TWO.replace("127.0.0.10", "192.0.2.1"));
    assert!(
        foreign.contains("`ip address add 192.0.2.1/32 dev lo` as root makes it one"),
        "{foreign}"
    );
    let _plain = TcpListener::bind("0.0.0.0:80").unwrap();
    let taken = run(TWO);
    assert!(taken.contains("listens at 0.0.0.0:80 already"), "{taken}");
    drop(_plain);
    let vips = Vips::start(&place, TWO);
    assert!(run(TWO).contains("another `sidestep vip run` is at work"));
    await_state(&place, "a", "down");
    let refused = TcpStream::connect("127.0.0.10:80").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "no target listens");
    let (_, _, errors) = vip(&place, &["drain", "c"]);
    assert!(errors.contains("no target c; there are: web/a, web/b"), "{errors}");
    let (_, _, errors) = vip(&place, &["remove", "www"]);
    assert!(errors.contains("no VIP www is in force; there are: web"), "{errors}");
    drop(vips);
}

const HOSTS: &str = "
[vip.web]
address = \"10.9.0.9:80\"
targets = { a = \"10.9.0.1\", b = \"10.9.0.2\" }
";

#[test]
fn what_a_distributor_cannot_be_says_what_to_do() {
    let Some(()) = alone() else { return };
    let place = Place::new();
    let run = |command: &str, config: &str| {
        let file = place.file("hosts.toml", config);
        let mut sidestep = place.sidestep(None);
        let words = ["distributor", command, "--config"];
        let (status, text, errors) = outcome(sidestep.args(words).arg(file));
        assert_eq!((status, text.as_str()), (Some(1), ""), "{errors}");
        errors
    };
    let on = |interface: &str| format!("[distributor]\ninterface = \"{interface}\"\n{HOSTS}");
    assert!(run("run", TWO).contains("no VIPs with hosts as targets are configured"));
    assert!(run("run", HOSTS).contains("add interface = \"eth0\" to [distributor]"));
    assert!(run("run", &on("eth9")).contains("there is no interface eth9"));
    assert!(run("run", &on("lo")).contains("lo is no Ethernet interface"));
    assert!(run("target", HOSTS).contains("has an address of this host as a target"));
    let mixed = run("run", &on("lo").replace("10.9.0.2", "10.9.0.2:80"));
    assert!(mixed.contains("some targets have a port and some have none"), "{mixed}");
}

/// A host that serves a VIP has it, and is silent about it, for as long as it serves.
#[test]
fn a_target_is_set_up_and_as_before_afterwards() {
    let Some(()) = alone() else { return };
    let place = Place::new();
    let setting = || {
        let shown = Command::new("cat").arg("/proc/sys/net/ipv4/conf/all/arp_ignore").output();
        String::from_utf8(shown.unwrap().stdout).unwrap().trim().to_owned()
    };
    let before = setting();
    let mut command = place.sidestep(None);
    command.args(["distributor", "target", "10.9.0.9", "fd00:9::9"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "sidestep distributor: this host serves 10.9.0.9, fd00:9::9\n");
    assert_eq!(setting(), "1");
    let _server = TcpListener::bind("10.9.0.9:80").unwrap();
    TcpListener::bind("[fd00:9::9]:80").unwrap();
    // SAFETY: a number of a child that was not waited for, and a signal.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGTERM) }, 0);
    assert!(child.wait().unwrap().success());
    assert_eq!(setting(), before);
    assert_eq!(TcpListener::bind("10.9.0.9:81").unwrap_err().kind(), ErrorKind::AddrNotAvailable);
}

#[test]
fn probes_decide_who_takes_connections() {
    let Some(()) = alone() else { return };
    let place = Place::new();
    let _servers = [Server::start("127.0.0.1:7001", b'a'), Server::start("127.0.0.1:7002", b'b')];
    let script =
        place.script("check", "#!/bin/sh\ntest ! -e \"$(dirname \"$0\")/$SIDESTEP_TARGET.sick\"\n");
    let probe = format!(
        "probe = [{:?}]\nprobe_interval = \"100ms\"\nrise = 2\nfall = 2\n",
        script.display().to_string()
    );
    let hot =
        TWO.replace("method = \"roundrobin\"\n", &format!("method = \"hotstandby\"\n{probe}"));
    let _vips = Vips::start(&place, &hot);
    await_state(&place, "a", "active");
    await_state(&place, "b", "standby");
    assert_eq!(connect("127.0.0.10:80").1, b'a');
    let sick = place.file("127.0.0.1:7001.sick", "");
    await_state(&place, "b", "active");
    assert_eq!(target(&place, "a")["state"], "down");
    assert_eq!(connect("127.0.0.10:80").1, b'b');
    std::fs::remove_file(sick).unwrap();
    await_state(&place, "a", "active");
    assert_eq!(target(&place, "b")["state"], "standby", "it switches back");
}

/// A target whose program holds the lock of its listener is given nothing, and said to do so; everything else goes on, and so does that
/// target when it lets go.
#[test]
fn a_listener_whose_lock_is_held_keeps_no_other_waiting() {
    let Some(()) = alone() else { return };
    let place = Place::new();
    let servers = [("127.0.0.1:7001", b'a'), ("127.0.0.1:7002", b'b')];
    let servers = servers.map(|(address, name)| Server::start(address, name));
    let Some(lock) = Lock::hold(servers[0].listener.as_raw_fd()) else { return };
    // By the client's end; afterwards in turn, so that both are seen.
    let vips = Vips::start(&place, &TWO.replace("roundrobin", "basewlm"));
    await_state(&place, "b", "active");
    let told = || {
        let fault = target(&place, "a")["fault"].as_str().map(str::to_owned);
        fault.filter(|fault| fault.contains("holds the lock of its listener at 127.0.0.1:7001"))
    };
    let fault = eventually("it is said who holds the lock", told);
    assert!(fault.contains(&format!("(pid {})", std::process::id())), "{fault}");
    assert_eq!([(); 4].map(|()| connect("127.0.0.10:80").1), [b'b'; 4]);
    // Its service gets another number, since what waits may still write there.
    place.file("vip.toml", TWO);
    assert_eq!(vip(&place, &["apply"]).0, Some(0));
    eventually("it is said again", told);
    assert_eq!(connect("127.0.0.10:80").1, b'b');
    drop(lock);
    await_state(&place, "a", "active");
    let names = [(); 2].map(|()| connect("127.0.0.10:80").1);
    assert!(names.contains(&b'a') && names.contains(&b'b'), "{names:?}");
    let reported = vips.end();
    assert_eq!(reported.matches("holds the lock").count(), 2, "{reported}");
}

/// One that ends while a lock is held ends at once.
#[test]
fn a_listener_whose_lock_is_held_does_not_keep_the_command_from_its_end() {
    let Some(()) = alone() else { return };
    let place = Place::new();
    let server = Server::start("127.0.0.1:7001", b'a');
    let Some(_lock) = Lock::hold(server.listener.as_raw_fd()) else { return };
    let _other = Server::start("127.0.0.1:7002", b'b');
    let vips = Vips::start(&place, TWO);
    await_state(&place, "b", "active");
    vips.end();
}

/// Both ends under Sidestep: the connection moves, and displays tell the VIP and the target. An agent
/// that serves a group without programs tells Prometheus.
#[test]
fn connections_move_to_shared_memory_and_are_told() {
    let Some(()) = alone() else { return };
    let Some(talk) = Talk::prepare() else { return };
    std::fs::set_permissions(talk.place.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let server = Running::start(talk.moved(&[], &["serve", "7001"]));
    // `why` looks at the programs of all namespaces: a port that no other test has.
    let port = free_port();
    let config = format!(
        "[vip.echo]\naddress = \"127.0.0.1:{port}\"\ntargets = {{ a = \"127.0.0.1:7001\" }}\n"
    );
    let _vips = Vips::start(&talk.place, &config);
    eventually("the VIP has a marker", || {
        let text = vip(&talk.place, &["list"]).1;
        text.contains("may move to shared memory").then_some(())
    });
    let client = Running::start(talk.moved(&[], &["call", &port, "1", "100", "64"]));
    let subject = format!(":{port}");
    assert_eq!(outcome_of(&talk, &subject, "client").0, "SMC-D");
    assert_eq!(outcome_of(&talk, &subject, "server").0, "SMC-D");
    let why = outcome(talk.sidestep().args(["why", &subject])).1;
    let who = "talker (".to_owned() + &server.pid().to_string();
    let words =
        format!("{who}) serves 127.0.0.1:{port}: target a of VIP echo, at 127.0.0.1:7001, active");
    assert!(why.contains(&words), "{why}");
    let rows: Value =
        serde_json::from_str(&outcome(talk.sidestep().args(["ss", "--json"])).1).unwrap();
    let ours = [server.pid(), client.pid()];
    let rows: Vec<&Value> = rows
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| ours.iter().any(|pid| row["pid"] == *pid))
        .collect();
    assert!(rows.len() == 2 && rows.iter().all(|row| row["vip"] == "echo/a"), "{rows:?}");
    told_to_prometheus(&talk.place);
    client.finish();
}

fn told_to_prometheus(place: &Place) {
    let Ok(group) = Cgroup::create_for_run().map_err(|lacking| println!("skipped: {lacking}"))
    else {
        return;
    };
    let socket = place.path().join("metrics.sock");
    let mut command = place.sidestep(None);
    command
        .args(["agent", "--cgroup"])
        .arg(group.path())
        .arg("--socket")
        .arg(place.path().join("a.sock"));
    command.arg("--metrics").arg(format!("unix:{}", socket.display()));
    let mut agent = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let text = eventually("metrics", || ask(&socket));
    let _ = agent.kill();
    let _ = agent.wait();
    for line in [
        "sidestep_vip_connections{vip=\"echo\",target=\"a\"} 1\n",
        "sidestep_vip_given_total{vip=\"echo\",target=\"a\"} 1\n",
        "sidestep_vip_active{vip=\"echo\",target=\"a\"} 1\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

fn ask(socket: &Path) -> Option<String> {
    let mut stream = std::os::unix::net::UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn strangers_may_look_and_change_nothing() {
    let Some(()) = alone() else { return };
    let Some(talk) = Talk::prepare() else { return };
    if talk.has_other_users().is_none() {
        return;
    }
    let _server = Server::start("127.0.0.1:7001", b'a');
    let _vips = Vips::start(&talk.place, TWO);
    let as_stranger = |words: &[&str]| {
        let mut command = talk.sidestep();
        command.arg("vip").args(words);
        outcome(&mut crate::talk::as_user(crate::talk::USERS[0], command))
    };
    assert_eq!(as_stranger(&["targets"]).0, Some(0));
    for words in [&["drain", "a"][..], &["apply"], &["remove", "web"]] {
        let (status, _, errors) = as_stranger(words);
        assert_eq!(status, Some(1));
        assert!(errors.contains("only root, and the user that"), "{errors}");
    }
    await_state(&talk.place, "a", "active");
}
