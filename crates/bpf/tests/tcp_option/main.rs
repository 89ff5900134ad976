//! The TCP option on connections of all kinds, each test in a network namespace of its
//! own.
//!
//! What a SYN had, its receiver tells (`TCP_SAVED_SYN`); what a SYN-ACK had, the client's
//! answer tells, and to a stranger a raw socket. The tests need privilege and say what
//! they lacked when they skip.

mod hosts;
mod identity;
mod namespace;
mod socket;
mod stranger;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use namespace::Namespace;
use sidestep_bpf::{BpfError, Cgroup, Sweeper, TcpOption};
use sidestep_wire::tcp_option;
use socket::{Answer, Socket};
use stranger::Stranger;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LOOPBACK_6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
const ALL: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ALL_6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

#[test]
fn both_ends_send_it() {
    with_option(|_| {
        let second = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
        let mapped = IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        let own = IpAddr::V4(Namespace::ADDRESSES[0]);
        let pairs = [
            (LOOPBACK, LOOPBACK),
            (ALL, LOOPBACK),
            (ALL, second),
            (ALL, own),
            (ALL, mapped),
            (mapped, LOOPBACK),
            (LOOPBACK_6, LOOPBACK_6),
            (ALL_6, LOOPBACK_6),
            (ALL_6, LOOPBACK),
        ];
        for (at, to) in pairs {
            let listener = Socket::listening(at);
            let client = Socket::marked(to);
            let server = client.connect(&listener, to);
            assert_eq!(server.option_in_syn(), Some(6), "{at} {to}");
            assert_eq!(client.is_agreed(), Answer::Yes, "client {at} {to}");
            assert_eq!(server.is_agreed(), Answer::Yes, "server {at} {to}");
        }
    });
}

#[test]
fn nobody_else_sends_it() {
    with_option(|_| {
        let listener = Socket::listening(LOOPBACK);
        let client = Socket::new(LOOPBACK);
        let server = client.connect(&listener, LOOPBACK);
        assert_eq!(server.option_in_syn(), None, "a plain client");
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::None, Answer::No));

        let listener = Socket::plain_listening(LOOPBACK);
        let client = Socket::marked(LOOPBACK);
        let server = client.connect(&listener, LOOPBACK);
        assert_eq!(server.option_in_syn(), None, "to a plain server");
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::None, Answer::None));
    });
}

#[test]
fn a_server_that_does_not_answer_is_not_agreed_with() {
    with_option(|_| {
        // 2: cookies whether they are needed or not.
        fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").unwrap();
        let listener = Socket::listening(LOOPBACK);
        let client = Socket::marked(LOOPBACK);
        let server = client.connect(&listener, LOOPBACK);
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::No, Answer::No));
    });
}

/// A signature takes 20 of the 40 bytes, what every SYN has 12, and the request for a
/// cookie of fast open 4.
#[test]
fn without_room_it_is_left_out() {
    with_option(|_| {
        let listener = Socket::listening(LOOPBACK);
        listener.sign(LOOPBACK);
        let client = Socket::marked(LOOPBACK);
        client.sign(LOOPBACK);
        let server = client.connect(&listener, LOOPBACK);
        assert_eq!(server.option_in_syn(), Some(6), "beside a signature");
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::Yes, Answer::Yes));

        let client = Socket::marked(LOOPBACK);
        client.sign(LOOPBACK);
        let server = client.connect_fast(&listener, LOOPBACK);
        assert_eq!(server.option_in_syn(), None, "beside a signature and a request");
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::No, Answer::No));
    });
}

/// A kernel that speaks SMC would wait for CLC behind the answer.
#[test]
fn a_stranger_who_asks_is_not_answered() {
    with_option(|_| {
        let listener = Socket::listening(LOOPBACK);
        let mut stranger = Stranger::new([Ipv4Addr::LOCALHOST; 2]);
        let answer = stranger.ask(listener.port(), &tcp_option::BYTES);
        assert_eq!(tcp_option::find(&answer), None, "{answer:02x?}");
    });
}

#[test]
fn a_client_with_another_address_is_not_spoken_for() {
    with_option(|_| {
        let [from, to] = Namespace::ADDRESSES.map(IpAddr::V4);
        let listener = Socket::listening(ALL);
        let client = Socket::marked(to);
        client.bind(SocketAddr::new(from, 0));
        let server = client.connect(&listener, to);
        assert_eq!(server.option_in_syn(), None);
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::None, Answer::None));
    });
}

#[test]
fn a_listener_counts_until_it_is_closed() {
    with_option(|_| {
        let first = Socket::listening(LOOPBACK);
        let port = first.port();
        let second = Socket::listening_at(SocketAddr::new(LOOPBACK, port));
        let asks = |listener: &Socket| {
            let client = Socket::marked(LOOPBACK);
            client.connect(listener, LOOPBACK).option_in_syn().is_some()
        };
        drop(second);
        assert!(asks(&first), "one is left");
        drop(first);
        let plain = Socket::plain_listening_at(SocketAddr::new(LOOPBACK, port));
        assert!(!asks(&plain), "a plain server has taken the port");
        drop(plain);
        assert!(asks(&Socket::listening_at(SocketAddr::new(LOOPBACK, port))), "ours again");
    });
}

#[test]
fn a_socket_that_connects_again_asks_again() {
    with_option(|_| {
        let client = Socket::marked(LOOPBACK);
        let gone = Socket::listening(LOOPBACK).port();
        client.is_refused_at(SocketAddr::new(LOOPBACK, gone));
        let listener = Socket::listening(LOOPBACK);
        let server = client.connect(&listener, LOOPBACK);
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::Yes, Answer::Yes));
        client.disconnect();
        let plain = Socket::plain_listening(LOOPBACK);
        let server = client.connect(&plain, LOOPBACK);
        assert_eq!(server.option_in_syn(), None);
        assert_eq!(client.is_agreed(), Answer::None);
    });
}

#[test]
fn a_listener_that_was_there_before_is_not_asked() {
    with_option(|agent| {
        agent.end();
        let listener = Socket::plain_listening(LOOPBACK);
        agent.begin();
        assert!(listener.mark());
        assert!(!listener.announce(), "it would not answer");
        let client = Socket::marked(LOOPBACK);
        let server = client.connect(&listener, LOOPBACK);
        assert_eq!(server.option_in_syn(), None);
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::None, Answer::None));
    });
}

#[test]
fn when_the_programs_are_gone_nobody_speaks() {
    with_option(|agent| {
        let listener = Socket::listening(LOOPBACK);
        let client = Socket::marked(LOOPBACK);
        let server = client.connect(&listener, LOOPBACK);
        agent.end();
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::None, Answer::None));
        client.talks_to(&server);
        let client = Socket::new(LOOPBACK);
        assert!(!client.mark());
        let server = client.connect(&listener, LOOPBACK);
        assert_eq!(server.option_in_syn(), None);
        client.talks_to(&server);
    });
}

#[test]
fn no_program_runs_for_an_established_connection() {
    with_option(|_| {
        let _counting = match aya::sys::enable_stats(aya::sys::Stats::RunTime) {
            Ok(counting) => counting,
            Err(lacking) => return println!("skipped: programs are not counted: {lacking}"),
        };
        let listener = Socket::listening(LOOPBACK);
        let client = Socket::marked(LOOPBACK);
        let server = client.connect(&listener, LOOPBACK);
        let after_handshake = runs();
        assert!(after_handshake > 0, "the handshake was counted");
        for _ in 0..100 {
            client.talks_to(&server);
            server.talks_to(&client);
        }
        assert_eq!(runs(), after_handshake);
    });
}

/// How often programs ran that this process has descriptors of.
fn runs() -> u64 {
    let descriptors = fs::read_dir("/proc/self/fdinfo").unwrap();
    let infos = descriptors.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    let count = |info: String| {
        let line = info.lines().find_map(|line| line.strip_prefix("run_cnt:"))?;
        line.trim().parse::<u64>().ok()
    };
    infos.filter_map(count).sum()
}

/// Who has the option written for the sockets of this process.
struct Agent {
    group: Cgroup,
    option: Option<TcpOption>,
}

impl Agent {
    fn new() -> Result<Self, BpfError> {
        Self::of(Cgroup::create_for_run()?)
    }

    /// Of this group, which the process enters; one made afterwards lies below it.
    fn of(group: Cgroup) -> Result<Self, BpfError> {
        group.add(std::process::id())?;
        let option = Some(TcpOption::attach(group.path())?);
        Ok(Self { group, option })
    }

    /// It is he who serves the sockets that this process makes from now on.
    fn enter(&self) {
        self.group.add(std::process::id()).unwrap();
    }

    fn sweeper(&mut self) -> Option<Sweeper> {
        self.option.as_mut()?.sweeper()
    }

    fn begin(&mut self) {
        self.option = Some(TcpOption::attach(self.group.path()).unwrap());
    }

    fn end(&mut self) {
        self.option = None;
    }
}

/// Runs a test in a network namespace, or says what that lacked.
fn with_option(test: impl FnOnce(&mut Agent) + Send) {
    alone(|| {
        let mut agent = match Agent::new() {
            Ok(agent) => agent,
            Err(lacking) => return println!("skipped: {lacking}"),
        };
        match Namespace::enter() {
            Ok(()) => test(&mut agent),
            Err(lacking) => println!("skipped: no network namespace: {lacking}"),
        }
    });
}

/// Runs something that no other test is to run beside, on a thread of its own.
fn alone(test: impl FnOnce() + Send) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        let run = scope.spawn(test);
        run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
