//! Two workers in one process, with the sockets of this machine between them.

use super::shares::shares;
use super::*;
use crate::control::{Address, ClientReport, Command, Usage};
use crate::plan::{self, Conduct, Extent, Model};
use crate::worker::record::tests::from_hex;
use crate::workload::{Kind, Workload};
use std::io::{self, BufReader, PipeReader, PipeWriter, Read};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

/// A worker, seen by its coordinator.
struct Worker {
    commands: PipeWriter,
    events: BufReader<PipeReader>,
    thread: JoinHandle<i32>,
}

impl Worker {
    fn start(job: &Job) -> Self {
        let (input, commands) = io::pipe().expect("a pipe");
        let (events, output) = io::pipe().expect("a pipe");
        let thread = std::thread::spawn(move || run(BufReader::new(input), output));
        let mut worker = Self { commands, events: BufReader::new(events), thread };
        worker.line(job);
        worker
    }

    fn line(&mut self, message: &impl serde::Serialize) {
        let line = serde_json::to_string(message).expect("a message");
        writeln!(self.commands, "{line}").expect("it reads");
    }

    fn event(&mut self) -> Event {
        let mut line = String::new();
        self.events.read_line(&mut line).expect("it writes");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    fn address(&mut self) -> Address {
        match self.event() {
            Event::Listening(address) => address,
            other => panic!("{other:?}"),
        }
    }

    /// All of a run that goes well.
    fn report(&mut self) -> ClientReport {
        assert_eq!(self.event(), Event::Connected);
        self.line(&Command::Go { at_ns: 0 });
        assert_eq!(self.event(), Event::Warm);
        match self.event() {
            Event::Report(report) => *report,
            other => panic!("{other:?}"),
        }
    }

    /// The text with which it gives up, whatever it has done before.
    fn failure(mut self) -> String {
        loop {
            match self.event() {
                Event::Failed(text) => {
                    assert_eq!(self.thread.join().expect("it ends"), 1);
                    return text;
                }
                Event::Connected => self.line(&Command::Go { at_ns: 0 }),
                _ => {}
            }
        }
    }

    fn end(self) {
        drop(self.commands);
        assert_eq!(self.thread.join().expect("it ends"), 0);
    }
}

fn tcp() -> Address {
    Address::Tcp((Ipv4Addr::LOCALHOST, 0).into())
}

fn job(role: Role, workload: Workload, model: Model, conduct: &Conduct) -> Job {
    let connections = workload.clients;
    Job { role, workload, model, connections, first_client: 0, conduct: conduct.clone() }
}

fn workload(kind: Kind, clients: u32, request_len: u64, reply_len: u64) -> Workload {
    Workload { kind, clients, request_len, reply_len }
}

fn counted(warmup: u64, measured: u64) -> Conduct {
    Conduct { extent: Extent::Count { warmup, measured }, ..Conduct::default() }
}

/// One run with both sides here.
fn measure(at: Address, workload: Workload, model: Model, conduct: &Conduct) -> ClientReport {
    let mut server = Worker::start(&job(Role::Server(at), workload, model, conduct));
    let to = server.address();
    let mut client = Worker::start(&job(Role::Client(to), workload, model, conduct));
    let report = client.report();
    client.end();
    server.end();
    report
}

fn check(report: &ClientReport, workload: Workload, measured: u64) {
    let transactions = u64::from(workload.clients) * measured;
    assert_eq!(report.transactions, transactions);
    assert_eq!(report.bytes, transactions * (workload.request_len + workload.reply_len));
    assert_eq!(report.over_time.iter().sum::<u64>(), transactions);
    assert_eq!(from_hex(&report.response_ns).len(), transactions);
    assert_eq!(report.unfinished, 0);
    assert!(report.elapsed_ns > 0 && report.response_sums_us.0 > 0.0);
}

/// Each workload, model and kind of address, with a conduct.
fn measure_all(conduct: &Conduct) {
    let workloads = [
        workload(Kind::RequestResponse, 3, 100, 800),
        workload(Kind::ConnectRequestResponse, 3, 64, 8192),
        workload(Kind::Streaming, 2, 1, 3_000_000),
        workload(Kind::Streaming, 1, 3_000_000, 1),
    ];
    for workload in workloads {
        for model in [Model::Threads, Model::EventLoop] {
            for at in [tcp(), Address::Unix(String::new())] {
                let report = measure(at, workload, model, conduct);
                check(&report, workload, 20);
            }
        }
    }
}

#[test]
fn all_workloads_in_all_models_over_tcp_and_unix() {
    measure_all(&counted(5, 20));
}

#[test]
fn all_of_them_verified() {
    measure_all(&Conduct { verify: true, ..counted(5, 20) });
}

#[test]
fn chunks_waiting_and_loops_of_all_kinds() {
    let workload = workload(Kind::RequestResponse, 5, 5000, 70_000);
    let verified = Conduct { verify: true, chunk_len: 999, ..counted(0, 10) };
    for model in [Model::Threads, Model::EventLoop] {
        for conduct in [
            Conduct { blocking: false, ..verified.clone() },
            Conduct { wait_all: true, ..verified.clone() },
            Conduct { connections_per_loop: Some(2), ..verified.clone() },
            Conduct { think: Duration::from_micros(300), ..verified.clone() },
            Conduct { pace: plan::Pace::Open { per_second: 2000.0 }, ..verified.clone() },
        ] {
            check(&measure(tcp(), workload, model, &conduct), workload, 10);
        }
    }
}

#[test]
fn many_loops_serve_connections_that_come_and_go() {
    let workload = workload(Kind::ConnectRequestResponse, 7, 64, 64);
    let conduct = Conduct { connections_per_loop: Some(2), verify: true, ..counted(1, 100) };
    check(&measure(tcp(), workload, Model::EventLoop, &conduct), workload, 100);
    let conduct = Conduct { blocking: false, ..conduct };
    check(&measure(tcp(), workload, Model::Threads, &conduct), workload, 100);
}

#[test]
fn ipv6() {
    let workload = workload(Kind::RequestResponse, 2, 10, 10);
    let at = Address::Tcp((Ipv6Addr::LOCALHOST, 0).into());
    let conduct = Conduct { ipv6: true, ..counted(1, 10) };
    check(&measure(at, workload, Model::Threads, &conduct), workload, 10);
}

#[test]
fn a_timed_run_reports_the_time_it_was_given() {
    let measured = Duration::from_millis(250);
    let extent = Extent::Time { warmup: Duration::from_millis(20), measured };
    let conduct = Conduct { extent, ..Conduct::default() };
    let workload = workload(Kind::RequestResponse, 2, 10, 10);
    for model in [Model::Threads, Model::EventLoop] {
        let report = measure(tcp(), workload, model, &conduct);
        assert!(report.transactions > 0);
        assert_eq!(report.elapsed_ns, 250_000_000);
        assert_eq!(report.over_time.len(), 3);
        assert_eq!(report.over_time.iter().sum::<u64>(), report.transactions);
        assert!(report.usage.user_us + report.usage.system_us > 0);
    }
}

#[test]
fn an_open_loop_that_keeps_up_leaves_nothing_unfinished() {
    let extent = Extent::Time { warmup: Duration::ZERO, measured: Duration::from_millis(200) };
    let pace = plan::Pace::Open { per_second: 200.0 };
    let conduct = Conduct { extent, pace, ..Conduct::default() };
    let workload = workload(Kind::RequestResponse, 4, 10, 10);
    for model in [Model::Threads, Model::EventLoop] {
        let report = measure(tcp(), workload, model, &conduct);
        // 40 are due; one that is due just before the end may end after it.
        assert_eq!(report.transactions + report.unfinished, 40);
    }
}

#[test]
fn a_server_tells_its_usage() {
    let workload = workload(Kind::RequestResponse, 1, 1, 1);
    let conduct = counted(0, 1);
    let mut server = Worker::start(&job(Role::Server(tcp()), workload, Model::Threads, &conduct));
    server.address();
    server.line(&Command::Sample);
    let Event::Usage(first) = server.event() else { panic!("no usage") };
    server.line(&Command::Sample);
    let Event::Usage(second) = server.event() else { panic!("no usage") };
    assert_eq!(first - second, Usage::default());
    server.end();
}

/// A man in the middle who inverts one byte of the server's.
fn spoil(server: Address, at: u64) -> Address {
    let Address::Tcp(server) = server else { panic!("no TCP address") };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let address = Address::Tcp(listener.local_addr().expect("an address"));
    std::thread::spawn(move || -> io::Result<()> {
        let (mut client, _) = listener.accept()?;
        let mut server = TcpStream::connect(server)?;
        let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
        std::thread::spawn(move || io::copy(&mut from, &mut to));
        io::copy(&mut (&mut server).take(at), &mut client)?;
        let mut byte = [0];
        server.read_exact(&mut byte)?;
        client.write_all(&[!byte[0]])?;
        io::copy(&mut server, &mut client)?;
        Ok(())
    });
    address
}

#[test]
fn a_byte_corrupted_on_the_way_is_found() {
    for model in [Model::Threads, Model::EventLoop] {
        let workload = workload(Kind::RequestResponse, 1, 10, 1000);
        let conduct = Conduct { verify: true, ..counted(0, 10) };
        let mut server = Worker::start(&job(Role::Server(tcp()), workload, model, &conduct));
        let to = spoil(server.address(), 3 * 1000 + 77);
        let client = Worker::start(&job(Role::Client(to), workload, model, &conduct));
        let text = client.failure();
        let found = text.contains("the reply to transaction 3 of client 0 is corrupted: byte 77");
        assert!(found, "{text}");
        drop(server.commands);
    }
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .expect("an address");
    for kind in [Kind::RequestResponse, Kind::ConnectRequestResponse] {
        for model in [Model::Threads, Model::EventLoop] {
            let role = Role::Client(Address::Tcp(gone));
            let worker = Worker::start(&job(role, workload(kind, 1, 1, 1), model, &counted(0, 1)));
            let text = worker.failure();
            assert!(text.contains("refused") && text.contains(&gone.to_string()), "{text}");
        }
    }
}

#[test]
fn a_server_that_dies_fails_the_run() {
    for model in [Model::Threads, Model::EventLoop] {
        let conduct = Conduct {
            extent: Extent::Time {
                warmup: Duration::from_secs(60),
                measured: Duration::from_secs(60),
            },
            ..Conduct::default()
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let role = Role::Client(Address::Tcp(listener.local_addr().expect("an address")));
        let workload = workload(Kind::RequestResponse, 1, 10, 10);
        let client = Worker::start(&job(role, workload, model, &conduct));
        let server = std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().expect("a client");
            peer.read_exact(&mut [0; 10]).expect("a request");
            peer.write_all(&[0; 4]).expect("part of a reply");
        });
        let text = client.failure();
        let told = text.contains(
            "the server closed the connection during the reply to transaction 0 of client 0, \
             after 4 of 10 bytes",
        );
        assert!(told, "{text}");
        server.join().expect("it did its part");
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let at = taken.local_addr().expect("an address");
    let role = Role::Server(Address::Tcp(at));
    let workload = workload(Kind::RequestResponse, 1, 1, 1);
    let text = Worker::start(&job(role, workload, Model::Threads, &counted(0, 1))).failure();
    assert!(text.contains("in use") && text.contains(&at.to_string()), "{text}");
}

#[test]
fn nonsense_is_refused_in_words() {
    let workload = workload(Kind::RequestResponse, 1, 1, 1);
    let mut void = job(Role::Server(tcp()), workload, Model::Threads, &counted(0, 1));
    void.conduct.chunk_len = 0;
    let text = Worker::start(&void).failure();
    assert!(text.contains("chunk_len"), "{text}");

    void.conduct.chunk_len = 1;
    let mut server = Worker::start(&void);
    server.address();
    server.line(&"dance");
    let text = server.failure();
    assert!(text.contains("not a command") && text.contains("dance"), "{text}");

    let mut server = Worker::start(&void);
    server.address();
    server.line(&Command::Go { at_ns: 0 });
    assert!(server.failure().contains("go was not expected"));
}

#[test]
fn connections_are_shared_evenly() {
    let workload = workload(Kind::RequestResponse, 10, 1, 1);
    let mut job = job(Role::Server(tcp()), workload, Model::EventLoop, &counted(0, 1));
    assert_eq!(shares(&job), [10]);
    job.conduct.connections_per_loop = Some(4);
    assert_eq!(shares(&job), [4, 3, 3]);
    job.conduct.connections_per_loop = Some(100);
    assert_eq!(shares(&job), [10]);
    job.model = Model::Threads;
    assert_eq!(shares(&job), [1; 10]);
}
