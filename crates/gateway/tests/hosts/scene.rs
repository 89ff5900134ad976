//! Two hosts: network namespaces with cables between them, and a gateway in each.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{self, AddressFamily, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sidestep_gateway::status::{Mode, Status};
use sidestep_wire::RmbeSize;
use sidestep_wire::host_control::Side;

use crate::{by_hand, rights};

pub(crate) const CLIENT: usize = 0;
pub(crate) const SERVER: usize = 1;

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Two hosts. Their cables are `cable0`, `cable1` …, with the addresses 10.93.0.1 and 10.93.0.2,
/// 10.93.1.1 and 10.93.1.2 ….
pub(crate) struct Scene {
    names: [String; 2],
    /// Network namespaces between the two.
    routers: Vec<String>,
    gateways: [Option<Child>; 2],
    directory: tempfile::TempDir,
}

impl Scene {
    /// With gateways that have an adapter at each cable. `None`, and a line that says why, where
    /// there can be none.
    pub(crate) fn new(cables: usize) -> Option<Self> {
        let mut this = Self::without_gateways(cables)?;
        for host in [CLIENT, SERVER] {
            this.start(host, &adapters(host, cables));
        }
        Some(this)
    }

    pub(crate) fn without_gateways(cables: usize) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let names = ["c", "s"].map(|host| format!("gw-{host}-{}-{count}", std::process::id()));
        // What was made is deleted, whatever fails.
        let directory = tempfile::tempdir().unwrap();
        let this = Self { names, routers: Vec::new(), gateways: [None, None], directory };
        let [client, server] = this.names.each_ref().map(String::as_str);
        if !ip(&["netns", "add", client]) || !ip(&["netns", "add", server]) {
            eprintln!("skipped: network namespaces need root and iproute2");
            return None;
        }
        for host in [CLIENT, SERVER] {
            assert!(this.ip(host, &["link", "set", "lo", "up"]));
        }
        (0..cables).for_each(|cable| this.lay(cable));
        Some(this)
    }

    /// A cable, with an address at either end.
    pub(crate) fn lay(&self, cable: usize) {
        let name = format!("cable{cable}");
        let peer = ["type", "veth", "peer", &name, "netns", &self.names[SERVER]];
        assert!(self.ip(CLIENT, &[&["link", "add", &name][..], &peer].concat()));
        for host in [CLIENT, SERVER] {
            let at = address(host, cable);
            assert!(self.ip(host, &["link", "set", &name, "up"]));
            assert!(self.ip(host, &["address", "add", &format!("{at}/24"), "dev", &name]));
        }
    }

    /// VLANs over the first cable; the addresses of VLAN 5 are 10.93.5.1 and 10.93.5.2. False: the kernel has
    /// none.
    pub(crate) fn lay_vlans(&self, vlans: &[u8]) -> bool {
        [CLIENT, SERVER].into_iter().all(|host| {
            vlans.iter().all(|vlan| {
                let (name, id) = (format!("cable0.{vlan}"), vlan.to_string());
                let at = format!("{}/24", address(host, usize::from(*vlan)));
                let add =
                    ["link", "add", "link", "cable0", "name", &name, "type", "vlan", "id", &id];
                self.ip(host, &add)
                    && self.ip(host, &["link", "set", &name, "up"])
                    && self.ip(host, &["address", "add", &at, "dev", &name])
            })
        })
    }

    /// Two hosts with two routers in a row between them:
    /// 10.94.0.1 ─ 10.94.0.2, 10.94.1.1 ─ 10.94.1.2, 10.94.2.2 ─ 10.94.2.1.
    pub(crate) fn routed() -> Option<Self> {
        let mut this = Self::without_gateways(0)?;
        let [client, server] = this.names.clone();
        let routers = ["a", "b"].map(|router| format!("{client}-{router}"));
        for router in &routers {
            assert!(ip(&["netns", "add", router]));
            this.routers.push(router.clone());
            let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
            assert!(ip(&["netns", "exec", router, "sh", "-c", forward]));
        }
        let hops = [&client, &routers[0], &routers[1], &server];
        for (lane, ends) in hops.windows(2).enumerate() {
            let name = format!("lane{lane}");
            let far = ["type", "veth", "peer", &name, "netns", ends[1]];
            assert!(ip(&[&["-n", ends[0], "link", "add", &name][..], &far].concat()));
            let hosts = if lane == 2 { [2, 1] } else { [1, 2] };
            for (namespace, host) in ends.iter().zip(hosts) {
                let at = format!("10.94.{lane}.{host}/24");
                assert!(ip(&["-n", namespace, "address", "add", &at, "dev", &name]));
                assert!(ip(&["-n", namespace, "link", "set", &name, "up"]));
            }
        }
        for (namespace, to, via) in [
            (&client, "default", "10.94.0.2"),
            (&server, "default", "10.94.2.2"),
            (&routers[0], "10.94.2.0/24", "10.94.1.2"),
            (&routers[1], "10.94.0.0/24", "10.94.1.1"),
        ] {
            assert!(ip(&["-n", namespace, "route", "add", to, "via", via]));
        }
        Some(this)
    }

    pub(crate) fn routed_address(host: usize) -> IpAddr {
        IpAddr::from([10, 94, if host == CLIENT { 0 } else { 2 }, 1])
    }

    /// Starts the gateway of a host, with these words.
    pub(crate) fn start(&mut self, host: usize, words: &[String]) {
        let gateway = self.begin(host, words);
        self.adopt(host, gateway);
    }

    /// This is the gateway of a host from now on.
    pub(crate) fn adopt(&mut self, host: usize, gateway: Child) {
        self.gateways[host] = Some(gateway);
    }

    fn begin(&self, host: usize, words: &[String]) -> Child {
        let program = example("alone");
        let log = File::options().create(true).append(true).open(self.log_path(host)).unwrap();
        let mut gateway = Command::new("ip")
            .args(["netns", "exec", &self.names[host]])
            .arg(program)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(gateway.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{}", self.log(host));
        gateway
    }

    /// Another gateway takes the place of a host's. Returns the one that had it.
    pub(crate) fn replace(&mut self, host: usize, words: &[String]) -> Child {
        let before = self.gateways[host].take().unwrap();
        self.start(host, &[words, &["replace".to_owned()]].concat());
        before
    }

    /// These words, and that what it leaves is kept.
    pub(crate) fn with_store(&self, host: usize, words: &[String]) -> Vec<String> {
        [words, &[format!("store={}", self.keeper(host).display())]].concat()
    }

    /// The gateway of a host, which was started [with a store](Self::with_store), is told to end. What it leaves is reset
    /// when what is returned is closed.
    pub(crate) fn end_and_keep(&mut self, host: usize) -> OwnedFd {
        let keeper = self.keep(host);
        self.stop(host);
        rights::receive(&caller(&keeper)).unwrap()
    }

    /// Another one begins with that; it is to be [adopted](Self::adopt).
    pub(crate) fn restore(&self, host: usize, words: &[String], kept: &OwnedFd) -> Child {
        let keeper = self.keep(host);
        let words = [words, &[format!("restore={}", self.keeper(host).display())]].concat();
        thread::scope(|scope| {
            scope.spawn(|| rights::send(&caller(&keeper), kept.as_fd()).unwrap());
            self.begin(host, &words)
        })
    }

    fn keep(&self, host: usize) -> UnixListener {
        let path = self.keeper(host);
        // That of an earlier time.
        let _ = std::fs::remove_file(&path);
        let keeper = UnixListener::bind(path).unwrap();
        keeper.set_nonblocking(true).unwrap();
        keeper
    }

    fn keeper(&self, host: usize) -> PathBuf {
        self.directory.path().join(format!("{host}.keeper"))
    }

    /// As by SIGKILL: it has no time for anything.
    pub(crate) fn kill(&mut self, host: usize) {
        let mut gateway = self.gateways[host].take().unwrap();
        gateway.kill().unwrap();
        gateway.wait().unwrap();
    }

    /// Lets it end in order.
    pub(crate) fn stop(&mut self, host: usize) {
        let mut gateway = self.gateways[host].take().unwrap();
        drop(gateway.stdin.take());
        assert!(gateway.wait().unwrap().success(), "{}", self.log(host));
    }

    pub(crate) fn pid(&self, host: usize) -> u32 {
        // `ip netns exec` becomes the program.
        self.gateways[host].as_ref().unwrap().id()
    }

    fn log_path(&self, host: usize) -> PathBuf {
        self.directory.path().join(format!("{host}.log"))
    }

    /// What a gateway has reported so far.
    pub(crate) fn log(&self, host: usize) -> String {
        std::fs::read_to_string(self.log_path(host)).unwrap()
    }

    /// Waits until a gateway has reported this so often.
    pub(crate) fn await_log(&self, host: usize, text: &str, times: usize) {
        let end = Instant::now() + PATIENCE;
        while self.log(host).matches(text).count() < times {
            assert!(Instant::now() < end, "no {times} times {text:?} in\n{}", self.log(host));
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What a gateway has.
    pub(crate) fn status(&self, host: usize) -> Status {
        self.at(host, || Status::ask().unwrap())
    }

    /// Waits until a gateway has this.
    pub(crate) fn await_status(&self, host: usize, is_so: impl Fn(&Status) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so(&self.status(host)) {
            assert!(Instant::now() < end, "{:#?}", self.status(host));
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Changes the network of a host.
    pub(crate) fn ip(&self, host: usize, words: &[&str]) -> bool {
        ip(&[&["-n", &self.names[host]], words].concat())
    }

    /// Runs a command at a host. False: it fails, or there is none.
    pub(crate) fn run(&self, host: usize, words: &[&str]) -> bool {
        ip(&[&["netns", "exec", &self.names[host]], words].concat())
    }

    /// Does something at a host. Sockets that are made there stay there.
    pub(crate) fn at<T: Send>(&self, host: usize, act: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.names[host])).unwrap();
        let work = move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            act()
        };
        thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    /// A TCP connection: the client's end, and the server's.
    pub(crate) fn connection(&self) -> [TcpStream; 2] {
        self.connection_over(0)
    }

    /// The same, over another cable or a VLAN.
    pub(crate) fn connection_over(&self, cable: usize) -> [TcpStream; 2] {
        self.connection_with(address(CLIENT, cable), SERVER, address(SERVER, cable))
    }

    /// The same, through the routers.
    pub(crate) fn connection_routed(&self) -> [TcpStream; 2] {
        let [client, server] = [CLIENT, SERVER].map(Self::routed_address);
        self.connection_with(client, SERVER, server)
    }

    /// The same, from another address of the client.
    pub(crate) fn connection_from(&self, from: IpAddr) -> [TcpStream; 2] {
        self.connection_with(from, SERVER, address(SERVER, 0))
    }

    /// The same, to an address of the server's that is none of a cable.
    pub(crate) fn connection_to(&self, at: IpAddr) -> [TcpStream; 2] {
        self.connection_with(address(CLIENT, 0), SERVER, at)
    }

    /// A TCP connection of which the client's host has both ends.
    pub(crate) fn connection_within_client(&self) -> [TcpStream; 2] {
        let here = address(CLIENT, 0);
        self.connection_with(here, CLIENT, here)
    }

    fn connection_with(&self, from: IpAddr, host: usize, at: IpAddr) -> [TcpStream; 2] {
        let listen = || TcpListener::bind((at, 0)).unwrap();
        let listener = self.at(host, listen);
        let to: SocketAddr = listener.local_addr().unwrap();
        let client = self.at(CLIENT, || {
            let client = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            net::bind(&client, &SocketAddr::new(from, 0)).unwrap();
            net::connect(&client, &to).unwrap();
            TcpStream::from(client)
        });
        let (server, _) = listener.accept().unwrap();
        [client, server]
    }

    /// Hands both ends of a connection over; nothing is waited for.
    pub(crate) fn hand_over(&self, [client, server]: [TcpStream; 2]) -> [End; 2] {
        [(CLIENT, Side::Client, client), (SERVER, Side::Server, server)].map(|(host, side, n)| {
            let rmbe = RmbeSize::DEFAULT;
            let h = self.at(host, || by_hand::hand_over(&n, side, rmbe).unwrap());
            h.set_read_timeout(Some(PATIENCE)).unwrap();
            h.set_write_timeout(Some(PATIENCE)).unwrap();
            End { n, h }
        })
    }

    /// A connection that goes by SMC-R: the client's end, and the server's.
    pub(crate) fn connect(&self) -> [TcpStream; 2] {
        let ends = self.hand_over(self.connection());
        self.expect(&ends, Mode::SmcR);
        ends.map(|end| end.h)
    }

    /// Waits until both ends travel so.
    pub(crate) fn expect(&self, ends: &[End; 2], mode: Mode) {
        for (host, end) in ends.iter().enumerate() {
            self.expect_at(host, &end.h, mode);
        }
    }

    pub(crate) fn expect_at(&self, host: usize, h: &TcpStream, mode: Mode) {
        match self.at(host, || by_hand::decided(h)) {
            Ok(actual) if actual == mode => {}
            other => panic!("{other:?} at {host}\n{}\n{}", self.log(0), self.log(1)),
        }
    }
}

/// An end of a connection that was handed over.
pub(crate) struct End {
    pub(crate) n: TcpStream,
    pub(crate) h: TcpStream,
}

fn caller(keeper: &UnixListener) -> UnixStream {
    let end = Instant::now() + PATIENCE;
    loop {
        match keeper.accept() {
            Ok((caller, _)) => return caller,
            Err(error) => assert!(Instant::now() < end, "no gateway calls: {error}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for gateway in self.gateways.iter_mut().flatten() {
            let _ = gateway.kill();
            let _ = gateway.wait();
        }
        if thread::panicking() {
            eprintln!("client's gateway:\n{}\nserver's:\n{}", self.log(0), self.log(1));
        }
        for name in self.names.iter().chain(&self.routers) {
            ip(&["netns", "delete", name]);
        }
    }
}

pub(crate) fn address(host: usize, cable: usize) -> IpAddr {
    IpAddr::from([10, 93, cable as u8, host as u8 + 1])
}

/// A soft RNIC at each cable of a host, on one physical network.
pub(crate) fn adapters(host: usize, cables: usize) -> Vec<String> {
    let adapters = (0..cables).map(|cable| format!("soft:{}", address(host, cable)));
    adapters.chain((0..cables).map(|cable| format!("pnet=cable{cable}"))).collect()
}

/// A program that was built with this test.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(|deps| deps.parent()).unwrap();
    let program = target.join("examples").join(name);
    assert!(program.exists(), "{} is built by `cargo test`", program.display());
    program
}

fn ip(words: &[&str]) -> bool {
    Command::new("ip").args(words).output().is_ok_and(|output| output.status.success())
}
