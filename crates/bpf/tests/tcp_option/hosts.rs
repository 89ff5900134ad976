//! Two hosts, which are two network namespaces with a wire between them, each with an agent of its own
//! control group; and the same two with one agent, which are one host.

use std::cell::RefCell;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use sidestep_bpf::{Cgroup, Sweeper};
use sidestep_wire::tcp_option;

use crate::namespace::Namespace;
use crate::socket::{Answer, Socket};
use crate::stranger::Stranger;
use crate::{Agent, alone};

/// As ../shared/captures has it from two Linux kernels, in SYN and SYN-ACK.
const OF_LINUX: [u8; 6] = [0xfe, 0x06, 0xe2, 0xd4, 0xc3, 0xd9];

const CLIENT: IpAddr = IpAddr::V4(Namespace::PAIR[0]);
const SERVER: IpAddr = IpAddr::V4(Namespace::PAIR[1]);
const SERVER_6: IpAddr = IpAddr::V6(Namespace::PAIR_6[1]);
const ALL: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ALL_6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

#[test]
fn both_ends_send_it() {
    with_hosts(|client_host, server_host| {
        for (at, to) in [
            (ALL, SERVER),
            (SERVER, SERVER),
            (ALL_6, SERVER),
            (ALL_6, SERVER_6),
            (SERVER_6, SERVER_6),
        ] {
            let listener = server_host.listening_for_hosts(at);
            let client = client_host.marked_for_hosts(to);
            let server = client.connect(&listener, to);
            assert!(has_asked(&server), "{at} {to}");
            assert_eq!(client.is_agreed(), Answer::WithHost, "client {at} {to}");
            assert_eq!(server.is_agreed(), Answer::WithHost, "server {at} {to}");
            assert_eq!(server_host.remembered(), 0, "the handshake is over");
            client.talks_to(&server);
            assert_eq!(
                (client.is_agreed(), server.is_agreed()),
                (Answer::WithHost, Answer::WithHost)
            );
        }
    });
}

#[test]
fn the_answer_has_the_bytes_of_linux() {
    with_hosts(|client_host, server_host| {
        let listener = server_host.listening_for_hosts(ALL);
        let client = client_host.marked_for_hosts(SERVER);
        client_host.enter();
        let watch = Stranger::new(Namespace::PAIR);
        let _server = client.connect(&listener, SERVER);
        let options = watch.receive_answer(listener.port(), client.port());
        assert!(options.windows(6).any(|bytes| bytes == OF_LINUX), "{options:02x?}");
    });
}

#[test]
fn a_stranger_who_asks_is_answered() {
    with_hosts(|client_host, server_host| {
        let listener = server_host.listening_for_hosts(ALL);
        client_host.enter();
        let mut stranger = Stranger::new(Namespace::PAIR);
        let answer = stranger.ask(listener.port(), &OF_LINUX);
        assert_eq!(tcp_option::find(&answer), Some(6), "{answer:02x?}");
        let answer = stranger.ask(listener.port(), &[]);
        assert_eq!(tcp_option::find(&answer), None, "who does not ask is not: {answer:02x?}");
    });
}

#[test]
fn without_both_marks_there_is_none() {
    with_hosts(|client_host, server_host| {
        let marked = server_host.listening_for_hosts(ALL);
        let client = client_host.marked(SERVER);
        let server = client.connect(&marked, SERVER);
        assert_eq!(server.option_in_syn(), None, "the client is for this host only");
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::None, Answer::None));

        let plain = client_host.plain(SERVER);
        let server = plain.connect(&marked, SERVER);
        assert_eq!((plain.is_agreed(), server.is_agreed()), (Answer::None, Answer::None));

        let unmarked = server_host.listening(ALL);
        let client = client_host.marked_for_hosts(SERVER);
        let server = client.connect(&unmarked, SERVER);
        assert!(has_asked(&server), "the client asks anybody");
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::None, Answer::None));

        let plain = server_host.plain_listening(ALL);
        let client = client_host.marked_for_hosts(SERVER);
        let server = client.connect(&plain, SERVER);
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::None, Answer::None));
    });
}

/// A mark is for one `connect`.
#[test]
fn a_socket_that_connects_again_has_to_be_marked_again() {
    with_hosts(|client_host, server_host| {
        let listener = server_host.listening_for_hosts(ALL);
        let client = client_host.marked_for_hosts(SERVER);
        let server = client.connect(&listener, SERVER);
        assert_eq!(server.is_agreed(), Answer::WithHost);
        client.disconnect();
        let server = client.connect(&listener, SERVER);
        assert_eq!(server.option_in_syn(), None);
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::None, Answer::None));
        client.disconnect();
        assert!(client.mark_for_hosts() && client.mark(), "the last mark counts");
        let server = client.connect(&listener, SERVER);
        assert_eq!(server.option_in_syn(), None);
        client.disconnect();
        assert!(client.mark_for_hosts());
        let server = client.connect(&listener, SERVER);
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::WithHost, Answer::WithHost));
    });
}

#[test]
fn syn_cookies_and_fast_open_are_not_answered() {
    with_hosts(|client_host, server_host| {
        let listener = server_host.listening_for_hosts(ALL);
        fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").unwrap();
        let client = client_host.marked_for_hosts(SERVER);
        let server = client.connect(&listener, SERVER);
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::None, Answer::None));
        server_host.enter();
        fs::write("/proc/sys/net/ipv4/tcp_syncookies", "1").unwrap();

        // 0x207: both sides, without a cookie.
        fs::write("/proc/sys/net/ipv4/tcp_fastopen", "519").unwrap();
        listener.take_fast_open();
        client_host.enter();
        fs::write("/proc/sys/net/ipv4/tcp_fastopen", "5").unwrap();
        let client = client_host.marked_for_hosts(SERVER);
        let server = client.connect_fast(&listener, SERVER);
        assert!(server.has_syn_data(), "the byte went in the SYN");
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::None, Answer::None));
        server.receives(b"x");
    });
}

#[test]
fn without_room_it_is_left_out() {
    with_hosts(|client_host, server_host| {
        let listener = server_host.listening_for_hosts(ALL);
        listener.sign(CLIENT);
        let client = client_host.marked_for_hosts(SERVER);
        client.sign(SERVER);
        let server = client.connect(&listener, SERVER);
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::WithHost, Answer::WithHost));

        let client = client_host.marked_for_hosts(SERVER);
        client.sign(SERVER);
        let server = client.connect_fast(&listener, SERVER);
        assert_eq!(server.option_in_syn(), None, "beside a signature and a request");
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::None, Answer::None));
    });
}

#[test]
fn a_listener_of_this_host_is_asked_as_before() {
    with_hosts(|_, server_host| {
        let listener = server_host.listening_for_hosts(ALL);
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let client = server_host.marked_for_hosts(loopback);
        let server = client.connect(&listener, loopback);
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::Yes, Answer::Yes));

        // Nobody else of this host is asked.
        let plain = server_host.plain_listening(ALL);
        let client = server_host.marked_for_hosts(loopback);
        let server = client.connect(&plain, loopback);
        assert_eq!(server.option_in_syn(), None);
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::None, Answer::None));
    });
}

#[test]
fn ends_for_other_hosts_alone_ask_nobody_of_this_host() {
    with_hosts(|client_host, server_host| {
        let listener = server_host.listening_to_hosts((ALL, 0).into());
        let client = client_host.marked_to_hosts(SERVER);
        let server = client.connect(&listener, SERVER);
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::WithHost, Answer::WithHost));

        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let client = server_host.marked_for_hosts(loopback);
        let server = client.connect(&listener, loopback);
        assert_eq!(server.option_in_syn(), None, "the listener is not for this host");
        assert_eq!(client.is_agreed(), Answer::None);

        let listener = server_host.listening_for_hosts(ALL);
        let client = server_host.marked_to_hosts(loopback);
        let server = client.connect(&listener, loopback);
        assert_eq!(server.option_in_syn(), None, "nor is this client");
        assert_eq!(client.is_agreed(), Answer::None);

        // What was said last holds.
        let client = server_host.marked_to_hosts(loopback);
        assert!(client.mark());
        let server = client.connect(&listener, loopback);
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::Yes, Answer::Yes));
    });
}

#[test]
fn only_a_listener_for_other_hosts_is_announced_to_them_alone() {
    with_hosts(|_, server_host| {
        let late = server_host.listening_for_hosts(ALL);
        assert!(late.announce_to_hosts(), "it was announced, and stays so");
        server_host.enter();
        let unmarked = Socket::listening_unannounced((ALL, 0).into(), Socket::mark);
        assert!(!unmarked.announce_to_hosts());
    });
}

/// With one agent two network namespaces are of one kernel: the ends meet without the option.
#[test]
fn with_one_agent_the_two_are_one_host() {
    with_agents(1, |one_place, other_place| {
        let listener = other_place.listening_for_hosts(ALL);
        let client = one_place.marked_for_hosts(SERVER);
        let server = client.connect(&listener, SERVER);
        assert!(has_asked(&server));
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::None, Answer::None));
    });
}

#[test]
fn listeners_of_both_kinds_are_counted() {
    with_hosts(|client_host, server_host| {
        let first = server_host.listening_for_hosts(SERVER);
        let port = first.port();
        let asks = |listener: &Socket| {
            let client = client_host.marked_for_hosts(SERVER);
            client.connect(listener, SERVER).is_agreed()
        };
        assert_eq!(asks(&first), Answer::WithHost);
        let second = server_host.listening_at((SERVER, port).into());
        drop(first);
        assert_eq!(asks(&second), Answer::None, "the one that is left is not for other hosts");
        drop(second);
        let third = server_host.listening_for_hosts_at((SERVER, port).into());
        assert_eq!(asks(&third), Answer::WithHost);
        drop(third);

        let alone = server_host.listening_to_hosts((SERVER, port).into());
        let within = server_host.listening_at((SERVER, port).into());
        drop(within);
        assert_eq!(
            asks(&alone),
            Answer::WithHost,
            "the one that has ended was not for other hosts"
        );
        drop(alone);
        let last = server_host.listening_at((SERVER, port).into());
        assert_eq!(asks(&last), Answer::None);
    });
}

#[test]
fn an_answer_that_is_lost_is_sent_again() {
    with_hosts(|client_host, server_host| {
        let listener = server_host.listening_for_hosts(ALL);
        listener.saves_no_syn();
        let client = client_host.marked_for_hosts(SERVER);
        client_host.enter();
        let watch = Stranger::new(Namespace::PAIR);
        let server = client.connect_while_lost(&listener, SERVER, || {
            watch.receive_answer(listener.port(), client.port());
        });
        assert_eq!((client.is_agreed(), server.is_agreed()), (Answer::WithHost, Answer::WithHost));
    });
}

#[test]
fn what_came_to_nothing_is_swept() {
    with_hosts(|client_host, server_host| {
        let listener = server_host.listening_for_hosts(ALL);
        client_host.enter();
        let mut stranger = Stranger::new(Namespace::PAIR);
        stranger.ask(listener.port(), &OF_LINUX);
        assert_eq!(server_host.remembered(), 1, "the stranger's");
        assert_eq!(server_host.sweep(Duration::ZERO), 0);
    });
}

/// What an accepted socket's SYN had is what Linux sends.
fn has_asked(server: &Socket) -> bool {
    server.syn_options().windows(OF_LINUX.len()).any(|bytes| bytes == OF_LINUX)
}

/// A network namespace, and the agent of its programs.
struct Host<'a> {
    namespace: Namespace,
    agent: &'a Agent,
    sweeper: RefCell<Option<Sweeper>>,
}

impl Host<'_> {
    /// What this thread does from now on it does there.
    fn enter(&self) {
        self.namespace.enter_again();
        self.agent.enter();
    }

    fn plain(&self, of: IpAddr) -> Socket {
        self.enter();
        Socket::new(of)
    }

    fn marked(&self, of: IpAddr) -> Socket {
        self.enter();
        Socket::marked(of)
    }

    fn marked_for_hosts(&self, of: IpAddr) -> Socket {
        let socket = self.plain(of);
        assert!(socket.mark_for_hosts());
        socket
    }

    fn plain_listening(&self, at: IpAddr) -> Socket {
        self.enter();
        Socket::plain_listening(at)
    }

    fn listening(&self, at: IpAddr) -> Socket {
        self.listening_at(SocketAddr::new(at, 0))
    }

    fn listening_at(&self, at: SocketAddr) -> Socket {
        self.enter();
        Socket::listening_at(at)
    }

    fn listening_for_hosts(&self, at: IpAddr) -> Socket {
        self.listening_for_hosts_at(SocketAddr::new(at, 0))
    }

    fn listening_for_hosts_at(&self, at: SocketAddr) -> Socket {
        self.enter();
        Socket::listening_for_hosts(at)
    }

    fn marked_to_hosts(&self, of: IpAddr) -> Socket {
        let socket = self.plain(of);
        assert!(socket.mark_to_hosts());
        socket
    }

    fn listening_to_hosts(&self, at: SocketAddr) -> Socket {
        self.enter();
        let listener = Socket::listening_unannounced(at, Socket::mark_for_hosts);
        assert!(listener.announce_to_hosts());
        listener
    }

    /// Handshakes with other hosts that the programs remember.
    fn remembered(&self) -> usize {
        self.sweep(Sweeper::DEAD_AFTER)
    }

    fn sweep(&self, dead_after: Duration) -> usize {
        self.sweeper.borrow_mut().as_mut().expect("the agent's only host").sweep(dead_after)
    }
}

/// Runs a test with two hosts, the client's and the server's.
fn with_hosts(test: impl FnOnce(&Host, &Host) + Send) {
    with_agents(2, test);
}

/// Runs a test in two network namespaces with so many agents, or says what that lacked.
fn with_agents(count: usize, test: impl FnOnce(&Host, &Host) + Send) {
    alone(|| {
        let groups = (0..count).map(|_| Cgroup::create_for_run()).collect::<Result<Vec<_>, _>>();
        let agents = groups.and_then(|groups| groups.into_iter().map(Agent::of).collect());
        let mut agents: Vec<Agent> = match agents {
            Ok(agents) => agents,
            Err(lacking) => return println!("skipped: {lacking}"),
        };
        let namespaces = match Namespace::pair() {
            Ok(namespaces) => namespaces,
            Err(lacking) => return println!("skipped: no network namespaces: {lacking}"),
        };
        let mut sweepers: Vec<_> = agents.iter_mut().map(Agent::sweeper).collect();
        sweepers.resize_with(2, || None);
        let mut hosts = namespaces.into_iter().zip(agents.iter().cycle()).zip(sweepers).map(
            |((namespace, agent), sweeper)| Host { namespace, agent, sweeper: sweeper.into() },
        );
        test(&hosts.next().unwrap(), &hosts.next().unwrap());
    });
}
