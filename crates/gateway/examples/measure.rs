//! How fast two gateways are, against TCP over the same cable.
//!
//! ```text
//!   cargo build --release -p sidestep-cli -p sidestep-preload
//!   cargo run --release -p sidestep-gateway --example measure [-- seconds [pairs]]
//! ```
//!
//! Two network namespaces with a veth pair between them, and in each a `sidestep gateway` and a program
//! that `sidestep run` has started. Runs go TCP, SMC-R, TCP, SMC-R; what is printed is the median of the
//! ratios of neighbours. Needs root.

#[path = "handover/by_hand.rs"]
mod by_hand;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use sidestep_gateway::status::Mode;
use sidestep_wire::RmbeSize;
use sidestep_wire::host_control::Side;

/// Bytes of a request, and of its answer.
const MESSAGE: usize = 2 << 10;
/// Bytes of one write of a stream.
const BLOCK: usize = 64 << 10;
const NAMES: [&str; 2] = ["measure-near", "measure-far"];
const ADDRESSES: [&str; 2] = ["10.94.0.1", "10.94.0.2"];
const PORT: u16 = 7000;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "worker") {
        return work(&words[1..]);
    }
    let number =
        |at: usize, default| words.get(at).map_or(default, |it| it.parse().expect("a number"));
    let (seconds, pairs) = (number(0, 2.0), number(1, 7.0) as usize);
    let _scene = Scene::set();
    for (name, unit) in [("STR", "MB/s"), ("RR1", "/s"), ("RR10", "/s")] {
        let run = |over| measure(name, over, seconds);
        let runs: Vec<[f64; 2]> = (0..pairs).map(|_| [run("tcp"), run("smc-r")]).collect();
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let ratio = median(runs.iter().map(|[tcp, smc]| smc / tcp).collect());
        let [tcp, smc] = [0, 1].map(|at| median(runs.iter().map(|run| run[at]).collect()));
        println!("{name:<5} TCP {tcp:>9.0} {unit:<5} SMC-R {smc:>9.0} {unit:<5} ratio {ratio:.2}");
    }
}

struct Scene {
    gateways: Vec<Child>,
}

impl Scene {
    fn set() -> Self {
        NAMES.iter().for_each(|name| ip(&["netns", "add", name]));
        let [near, far] = NAMES;
        ip(&["-n", near, "link", "add", "cable", "type", "veth", "peer", "cable", "netns", far]);
        for (name, address) in NAMES.into_iter().zip(ADDRESSES) {
            ip(&["-n", name, "link", "set", "lo", "up"]);
            ip(&["-n", name, "link", "set", "cable", "up"]);
            ip(&["-n", name, "address", "add", &format!("{address}/24"), "dev", "cable"]);
        }
        // What was started is ended, whatever fails.
        let mut this = Self { gateways: Vec::new() };
        for (name, address) in NAMES.into_iter().zip(ADDRESSES) {
            let words = ["gateway", "--adapter", address, "--log", "warn"];
            let mut gateway = inside(name, &words).stdout(Stdio::piped()).spawn().expect("one");
            let output = gateway.stdout.take().expect("piped");
            this.gateways.push(gateway);
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).expect("a line");
            assert!(line.ends_with("up\n"), "{line}");
        }
        this
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for gateway in &mut self.gateways {
            let _ = gateway.kill();
            let _ = gateway.wait();
        }
        NAMES.iter().for_each(|name| ip(&["netns", "delete", name]));
    }
}

fn ip(words: &[&str]) {
    let status = Command::new("ip").args(words).status().expect("iproute2");
    assert!(status.success(), "ip {words:?}");
}

/// `sidestep`, beside this program's directory, in a namespace.
fn inside(name: &str, words: &[&str]) -> Command {
    let example = std::env::current_exe().expect("our own path");
    let sidestep: PathBuf =
        example.parent().and_then(|it| it.parent()).expect("target").join("sidestep");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", name]).arg(sidestep).args(words);
    command
}

fn measure(workload: &str, over: &str, seconds: f64) -> f64 {
    let own = std::env::current_exe().expect("our own path").display().to_string();
    let seconds = seconds.to_string();
    let [mut client, mut server] = [(0, "client"), (1, "server")].map(|(at, role)| {
        let words = ["run", "--", &own, "worker", role, workload, over, &seconds];
        inside(NAMES[at], &words).stdout(Stdio::piped()).spawn().expect("a worker")
    });
    let mut text = String::new();
    client.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
    assert!(client.wait().expect("an end").success() && server.wait().expect("an end").success());
    text.trim().parse().unwrap_or_else(|_| panic!("{text:?} is no figure"))
}

fn work(words: &[String]) {
    let [role, workload, over, seconds] = words else { panic!("four words") };
    let time = Duration::from_secs_f64(seconds.parse().expect("a number"));
    let count = if workload == "RR10" { 10 } else { 1 };
    let is_client = role == "client";
    let side = if is_client { Side::Client } else { Side::Server };
    let listener = (!is_client).then(|| TcpListener::bind((ADDRESSES[1], PORT)).expect("the port"));
    let sockets: Vec<(TcpStream, Option<TcpStream>)> = (0..count)
        .map(|_| {
            let n = match &listener {
                Some(listener) => listener.accept().expect("a client").0,
                None => connect(),
            };
            n.set_nodelay(true).expect("TCP");
            if over == "tcp" {
                return (n, None);
            }
            let h = by_hand::hand_over(&n, side, RmbeSize::MAX).expect("a gateway");
            assert_eq!(by_hand::decided(&h).expect("a decision"), Mode::SmcR);
            (h, Some(n))
        })
        .collect();
    let begin = Instant::now();
    let threads: Vec<_> = sockets
        .into_iter()
        .map(|(socket, n)| {
            let is_stream = workload == "STR";
            thread::spawn(move || {
                let count = match (is_client, is_stream) {
                    (true, true) => stream(socket, begin, time),
                    (true, false) => ask(&socket, begin, time),
                    (false, true) => sink(&socket),
                    (false, false) => answer(&socket),
                };
                drop(n);
                count
            })
        })
        .collect();
    let sum: u64 = threads.into_iter().map(|it| it.join().expect("no panic")).sum();
    if is_client {
        println!("{}", sum as f64 / begin.elapsed().as_secs_f64());
    }
}

/// The server may not listen yet.
fn connect() -> TcpStream {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpStream::connect((ADDRESSES[1], PORT)) {
            Ok(connection) => return connection,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Megabytes, as far as the other side has read them.
fn stream(mut socket: TcpStream, begin: Instant, time: Duration) -> u64 {
    let block = vec![7; BLOCK];
    let mut sent = 0;
    while begin.elapsed() < time {
        socket.write_all(&block).expect("a reader");
        sent += block.len();
    }
    socket.shutdown(std::net::Shutdown::Write).expect("a connection");
    assert_eq!(socket.read(&mut [0]).expect("an end"), 0);
    sent as u64 / 1_000_000
}

fn sink(mut socket: &TcpStream) -> u64 {
    let mut bytes = vec![0; BLOCK];
    while socket.read(&mut bytes).expect("bytes") > 0 {}
    0
}

/// Round trips.
fn ask(mut socket: &TcpStream, begin: Instant, time: Duration) -> u64 {
    let mut message = vec![7; MESSAGE];
    let mut count = 0;
    while begin.elapsed() < time {
        socket.write_all(&message).expect("a reader");
        socket.read_exact(&mut message).expect("an answer");
        count += 1;
    }
    count
}

fn answer(mut socket: &TcpStream) -> u64 {
    let mut message = vec![0; MESSAGE];
    while socket.read_exact(&mut message).is_ok() {
        socket.write_all(&message).expect("a reader");
    }
    0
}
