//! Forwarded packets: a client, a router with the filter, and a server, each in a network namespace.
//!
//! ```text
//!   client 10.1.0.1 ── 10.1.0.2 r-client │ router │ r-server 10.2.0.2 ── 10.2.0.1 server
//! ```

use std::fs;
use std::io;
use std::net::UdpSocket;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use sidestep_bpf::{BpfError, Filter, Totals};
use sidestep_filter::{NO_USER, Packet, Way};

use super::{PATIENCE, Place, arrives, done, identity, put, with_cgroup};

/// The indices of the router's interfaces.
const TO_CLIENT: u32 = 98;
/// In rules it is called `other`.
const TO_SERVER: u32 = 99;

#[test]
fn forwarded_packets_are_judged_where_they_leave() {
    with_network(|place, network| {
        let filter =
            place.attach("deny udp any any:53 forwarded\ndeny udp any:55 any forwarded", 1);
        assert!(network.is_served(53), "no interface is named");
        if !network.judge(&filter, &[TO_SERVER]) {
            return;
        }
        assert!(!network.is_served(53));
        assert!(network.is_served(54));
        assert!(network.is_served(55), "what leaves by an interface without a name passes");
        let own = UdpSocket::bind("10.2.0.2:0").unwrap();
        own.send_to(b"x", "10.2.0.1:53").unwrap();
        assert!(arrives(&network.servers[0]), "what a host sends itself is not forwarded");
        assert_eq!(counts(&filter), [1, 0]);
        let Totals { forwarded_permitted, forwarded_denied, .. } = filter.totals().unwrap();
        assert_eq!((forwarded_permitted, forwarded_denied), (2, 1));

        network.judge(&filter, &[TO_SERVER, TO_CLIENT]);
        assert!(!network.is_served(55), "the answer leaves by the other interface");
        assert_eq!(counts(&filter), [1, 1]);
        network.judge(&filter, &[TO_CLIENT]);
        // The kernel lets a link go a moment later.
        let deadline = Instant::now() + PATIENCE;
        while !network.is_served(53) {
            assert!(Instant::now() < deadline, "its interface is named no more");
        }
        assert!(!network.is_served(55));
        assert_eq!(filter.forwarding_interfaces().unwrap(), [TO_CLIENT]);
    });
}

/// `in` and `out` are of sockets, nothing means all, and a user is none's.
#[test]
fn a_rule_says_which_packets_it_means() {
    with_network(|place, network| {
        let filter = place.attach("default permit", 1);
        if !network.judge(&filter, &[TO_SERVER]) {
            return;
        }
        for (number, (rule, is_served)) in (2..).zip([
            ("deny udp any any:53 forwarded", false),
            ("deny udp 10.1.0.0/16 10.2.0.0/16:53 forwarded on other", false),
            ("deny udp any any:53 forwarded on lo", true),
            ("deny udp any any:53 forwarded user root", true),
            ("deny udp any any:53 forwarded user alice", true),
            // The client's socket and the server's are of this control group as well.
            ("permit udp any any both\ndefault deny", false),
            ("permit udp any any both\npermit udp any any forwarded\ndefault deny", true),
            ("permit udp any any\ndefault deny", true),
        ]) {
            put(&filter, rule, number);
            assert_eq!(network.is_served(53), is_served, "{rule}");
        }
    });
}

/// As the rest of the filter, it is there without the process that has made it, until it is removed.
#[test]
fn what_is_forwarded_is_judged_until_the_filter_is_removed() {
    with_network(|place, network| {
        let filter = place.attach("deny udp any any:53 forwarded log", 1);
        if !network.judge(&filter, &[TO_SERVER]) {
            return;
        }
        drop(filter);
        let filter = Filter::find(&place.pins).unwrap().unwrap();
        assert!(!network.is_served(53));
        let line = filter.log().unwrap().take().expect("a line of the rule with `log`");
        let from = network.client.local_addr().unwrap();
        let packet = Packet::between(17, from, "10.2.0.1:53".parse().unwrap(), Way::Forwarded);
        assert_eq!(line.packet, Packet { interface: TO_SERVER, user: NO_USER, ..packet });
        assert_eq!(line.cgroup, 0);

        put(&filter, "deny udp any any:54 forwarded", 2);
        assert!(network.is_served(53) && !network.is_served(54));
        network.judge(&filter, &[TO_SERVER]);
        assert!(!network.is_served(54), "to name it again changes nothing");
        filter.take_back(identity(1)).unwrap();
        assert!(!network.is_served(53) && network.is_served(54));
        filter.remove().unwrap();
        assert!(network.is_served(53) && !place.pins.exists());
        let filter = place.attach("deny udp any any:53 forwarded", 3);
        assert!(network.is_served(53), "another filter has to be told");
        network.judge(&filter, &[TO_SERVER]);
        assert!(!network.is_served(53));
    });
}

/// The link ends with its interface; one that is there again under the same number is attached anew.
#[test]
fn an_interface_that_comes_again_is_judged_when_it_is_named_again() {
    with_network(|place, network| {
        let filter = place.attach("deny udp any any:53 forwarded", 1);
        if !network.judge(&filter, &[TO_SERVER]) {
            return;
        }
        run("ip link del r-server");
        assert!(filter.judge_forwarded(&[TO_SERVER]).is_err(), "it has gone");
        run(&format!("ip link add r-server index {TO_SERVER} type veth peer name nobody"));
        run("ip addr add 10.2.0.2/24 dev r-server");
        run("ip link set nobody up");
        run("ip link set r-server up");
        run("ip neigh add 10.2.0.1 lladdr 02:00:00:00:00:01 dev r-server");
        let send = || network.client.send_to(b"x", "10.2.0.1:53").unwrap();
        send();
        assert_eq!(counts(&filter), [0]);
        network.judge(&filter, &[TO_SERVER]);
        send();
        assert_eq!(counts(&filter), [1]);
    });
}

/// The sockets of the two hosts, which keep their namespaces; the test's own is the router's.
struct Network {
    client: UdpSocket,
    servers: Vec<UdpSocket>,
}

impl Network {
    /// Whether a datagram to this port arrives, and the answer to it.
    fn is_served(&self, port: u16) -> bool {
        self.client.send_to(b"x", ("10.2.0.1", port)).unwrap();
        let server = &self.servers[usize::from(port - 53)];
        if !arrives(server) {
            return false;
        }
        // A server that is denied to send is told so.
        _ = server.send_to(b"y", self.client.local_addr().unwrap());
        arrives(&self.client)
    }

    /// False, with a word, where the kernel cannot.
    fn judge(&self, filter: &Filter, interfaces: &[u32]) -> bool {
        match filter.judge_forwarded(interfaces) {
            Ok(()) => true,
            Err(lacking @ BpfError::NoTcx) => {
                println!("skipped: {lacking}");
                false
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Of the first rules.
fn counts<const N: usize>(filter: &Filter) -> [u64; N] {
    let hits = filter.hits().unwrap();
    std::array::from_fn(|rule| hits[rule].count)
}

fn with_network(test: impl FnOnce(&Place, &Network) + Send) {
    with_cgroup(|place| {
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        let client = host("client", TO_CLIENT, "10.1.0", |bind| bind(0)).unwrap();
        let servers =
            host("server", TO_SERVER, "10.2.0", |bind| [53, 54, 55].map(bind).into()).unwrap();
        test(place, &Network { client, servers });
    });
}

/// What is made on a host that this one reaches by an interface `r-NAME`, as address 1 of a network where this is 2.
fn host<T: Send>(
    name: &str,
    index: u32,
    network: &str,
    make: impl FnOnce(&dyn Fn(u16) -> UdpSocket) -> T + Send,
) -> io::Result<T> {
    let (to_router, from_host) = channel();
    let (to_host, from_router) = channel();
    // What is sent by ends with a panic, and with it what waits for it.
    thread::scope(move |scope| {
        let host = scope.spawn(move || {
            // SAFETY: an integer; only this thread is concerned.
            done(unsafe { libc::unshare(libc::CLONE_NEWNET) }).unwrap();
            // SAFETY: nothing is passed.
            to_router.send(unsafe { libc::gettid() }).unwrap();
            from_router.recv().unwrap();
            run(&format!("ip addr add {network}.1/24 dev {name}"));
            run(&format!("ip link set {name} up"));
            run(&format!("ip route add default via {network}.2"));
            make(&|port| UdpSocket::bind((format!("{network}.1"), port)).unwrap())
        });
        let thread = from_host.recv().map_err(io::Error::other)?;
        run(&format!(
            "ip link add r-{name} index {index} type veth peer name {name} netns {thread}"
        ));
        run(&format!("ip addr add {network}.2/24 dev r-{name}"));
        run(&format!("ip link set r-{name} up"));
        to_host.send(()).map_err(io::Error::other)?;
        host.join().map_err(|_| io::Error::other("the host has failed"))
    })
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success(), "{command}");
}
