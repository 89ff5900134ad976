//! The filter on sockets, each test in namespaces of its own: for network, for mounts.
//!
//! The tests need privilege and say what they lacked when they skip.

mod enforced;
mod groups;
mod later;
mod links;
mod router;
mod tls;

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::FromRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sidestep_bpf::{
    BpfError, Cgroup, Filter, GroupNumbers, Identity, LogLine, RuleSet, packet_programs,
};
use sidestep_filter::{Action, Graph, Names, Packet, RuleList, Verdict, Way, compile};

#[test]
fn packets_are_dropped_either_way() {
    with_cgroup(|place| {
        let filter = place.attach("deny udp any any:53 out\ndeny udp any any:54 in", 1);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let error = socket.send_to(b"x", "127.0.0.1:53").unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::PermissionDenied,
            "what leaves is refused to its sender"
        );
        let receiver = UdpSocket::bind("127.0.0.1:54").unwrap();
        socket.send_to(b"x", "127.0.0.1:54").unwrap();
        assert!(!arrives(&receiver), "what arrives is dropped");
        let receiver = UdpSocket::bind("127.0.0.1:55").unwrap();
        socket.send_to(b"x", "127.0.0.1:55").unwrap();
        assert!(arrives(&receiver));

        // The third is the default: to 54 and 55 out, from 55 in.
        let hits = &filter.hits().unwrap()[..3];
        assert_eq!(hits.iter().map(|it| it.count).collect::<Vec<_>>(), [1, 1, 3]);
        assert!(hits.iter().all(|it| it.last_ns > 0));
    });
}

#[test]
fn rules_hold_for_a_connection_that_lives() {
    with_cgroup(|place| {
        let filter = place.attach("default permit", 1);
        let (mut client, mut server, port) = connection();
        for _ in 0..50 {
            // Its verdict is kept by now.
            exchange(&mut client, &mut server);
        }
        let counted = filter.hits().unwrap()[0].count;
        for _ in 0..50 {
            exchange(&mut client, &mut server);
        }
        assert_eq!(filter.hits().unwrap()[0].count, counted, "no rule was searched for them");

        put(&filter, &format!("deny tcp any any:{port}"), 2);
        client.write_all(b"x").unwrap();
        server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let error = server.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "the next packet is judged anew");

        put(&filter, "default permit", 3);
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        server.read_exact(&mut [0]).unwrap();
        exchange(&mut client, &mut server);
    });
}

/// Nine packets begin a connection or are the first that a socket sees in a direction. What follows is not searched for, its
/// end neither.
#[test]
fn of_a_short_connection_only_the_begin_is_searched_for() {
    with_cgroup(|place| {
        let filter = place.attach("default permit", 1);
        let searched = || filter.hits().unwrap()[0].count;
        for connections in 1..=3 {
            let (mut client, mut server, _) = connection();
            exchange(&mut client, &mut server);
            drop(client);
            assert_eq!(server.read(&mut [0]).unwrap(), 0);
            drop(server);
            assert_eq!(searched(), 9 * connections);
        }
    });
}

/// A raw socket that is connected has the state of a connection, and sends what its program likes.
#[test]
fn no_verdict_of_a_raw_socket_is_kept() {
    with_cgroup(|place| {
        let _filter = place.attach("deny tcp any any:60 out", 1);
        // SAFETY: integers.
        let raw = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_TCP) };
        assert!(raw >= 0, "{}", io::Error::last_os_error());
        // SAFETY: a descriptor of this test alone. That it is one of UDP nothing depends on.
        let socket = unsafe { UdpSocket::from_raw_fd(raw) };
        socket.connect("127.0.0.1:0").unwrap();
        let passes = |port: u8| {
            let mut segment = [0; 20];
            (segment[3], segment[12]) = (port, 5 << 4);
            socket.send(&segment).is_ok()
        };
        assert_eq!([59, 59, 60, 59].map(passes), [true, true, false, true]);
    });
}

#[test]
fn it_stays_when_its_maker_has_gone_and_goes_when_it_is_removed() {
    with_cgroup(|place| {
        assert!(Filter::find(&place.pins).unwrap().is_none());
        let text = "deny udp any any:53 out\npermit tcp 10.0.0.0/8 any:443\ndefault deny";
        drop(place.attach(text, 7));
        let found = Filter::find(&place.pins).unwrap().expect("the filter that was attached");
        assert_eq!(found.identity().unwrap(), identity(7));
        assert_eq!(found.graph().unwrap(), graph(text));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(socket.send_to(b"x", "127.0.0.1:53").is_err());

        put(&found, "deny udp any any:60 out", 8);
        assert_eq!(found.identity().unwrap(), identity(8));
        socket.send_to(b"x", "127.0.0.1:53").unwrap();
        assert!(socket.send_to(b"x", "127.0.0.1:60").is_err());

        found.take_back(identity(7)).unwrap();
        assert_eq!((found.identity().unwrap(), found.graph().unwrap()), (identity(7), graph(text)));
        assert!(socket.send_to(b"x", "127.0.0.1:53").is_err());

        found.remove().unwrap();
        assert!(Filter::find(&place.pins).unwrap().is_none());
        socket.send_to(b"x", "127.0.0.1:53").unwrap();
        assert!(!place.pins.exists(), "nothing is left behind");
    });
}

/// While sets change, no packet meets neither: none that both sets deny passes, and none that both
/// permit is dropped.
#[test]
fn a_change_is_one_moment() {
    with_cgroup(|place| {
        let both = "deny udp any any:53 out\npermit udp any any:55 out\n";
        let filter = place.attach(both, 0);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let end = Instant::now() + Duration::from_secs(3);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut sent = 0;
                while !is_over.load(Ordering::Relaxed) {
                    assert!(socket.send_to(b"x", "127.0.0.1:53").is_err());
                    socket.send_to(b"x", "127.0.0.1:55").unwrap();
                    sent += 1;
                }
                sent
            });
            let mut changes = 0;
            // In an emulated machine a change takes seconds.
            while Instant::now() < end || changes < 3 {
                changes += 1;
                put(&filter, &format!("{both}default {}", ["permit", "deny"][changes % 2]), 1);
            }
            is_over.store(true, Ordering::Relaxed);
            println!("{} packets of either kind, {changes} changes", sender.join().unwrap());
        });
    });
}

#[test]
fn rules_can_be_for_users_and_interfaces() {
    with_cgroup(|place| {
        let rules = "deny udp any any:53 out user root\ndeny udp any any:54 out on lo\n\
                     deny udp any any:55 out user alice\ndeny udp any any:56 out on other";
        let _filter = place.attach(rules, 1);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let passes = |port: u16| socket.send_to(b"x", ("127.0.0.1", port)).is_ok();
        assert_eq!([53, 54, 55, 56].map(passes), [false, false, true, true]);
    });
}

/// What the rules make of packets they make of a connection that has none, from either end.
#[test]
fn a_connection_can_be_asked_about() {
    with_cgroup(|place| {
        let (client, server, port) = connection();
        let asked = |socket: &TcpStream| sidestep_bpf::is_denied(socket, 1).unwrap();
        assert!(!asked(&client), "no filter is there");
        let filter = place.attach("default permit", 1);
        let from = client.local_addr().unwrap().port();
        for (number, (rule, wanted)) in (2..).zip([
            (format!("deny tcp any any:{port}"), [true, true]),
            (format!("deny tcp any any:{port} out"), [true, false]),
            (format!("deny tcp any any:{port} in"), [false, true]),
            (format!("deny tcp 127.0.0.1:{from} 127.0.0.0/8:{port} out"), [true, false]),
            (format!("deny tcp 127.0.0.1:{port} any:{from} in"), [true, false]),
            (format!("deny tcp any any:{port} out user root"), [true, false]),
            (format!("deny tcp any any:{port} out user alice"), [false, false]),
            (format!("deny tcp any any:{port} out on lo"), [true, false]),
            (format!("deny tcp any any:{port} out on other"), [false, false]),
            (format!("deny udp any any:{port}"), [false, false]),
            (format!("permit tcp any any:{port}\ndefault deny"), [true, true]),
            (
                format!("permit tcp any any:{port}\npermit tcp any any:{from}\ndefault deny"),
                [false, false],
            ),
        ]) {
            put(&filter, &rule, number);
            assert_eq!([&client, &server].map(asked), wanted, "{rule}");
        }
        filter.remove().unwrap();
        assert!(!asked(&client));
    });
}

#[test]
fn a_connection_of_ipv6_is_asked_about_by_what_its_packets_are() {
    with_cgroup(|place| {
        let filter = place.attach("deny tcp any [::1]:1", 1);
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let denied = |number, rule: &str, socket: &TcpStream| {
            put(&filter, rule, number);
            sidestep_bpf::is_denied(socket, 0).unwrap()
        };
        let client = TcpStream::connect(("::1", port)).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert!(denied(2, &format!("deny tcp ::1 [::1]:{port} out"), &client));
        assert!(denied(3, &format!("deny tcp ::/64 [::1]:{port} in"), &server));
        assert!(!denied(4, "deny tcp 0.0.0.0/0 any", &client));
        // A socket of IPv6 whose packets are IPv4's.
        put(&filter, "default permit", 7);
        let client = TcpStream::connect(("::ffff:127.0.0.1", port)).unwrap();
        let (server, _) = listener.accept().unwrap();
        for socket in [&client, &server] {
            assert!(denied(5, "deny tcp 127.0.0.1 127.0.0.1", socket));
            assert!(!denied(6, "deny tcp ::/0 any", socket));
        }
    });
}

/// Each packet that such a rule decides about, with whose it is; not more than a rule may have.
#[test]
fn rules_with_log_leave_lines() {
    with_cgroup(|place| {
        let rules = "deny udp any any:53 out log\ndeny udp any any:54 out\ndefault permit";
        let filter = place.attach(rules, 1);
        let mut log = filter.log().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for port in [54, 53, 55] {
            _ = socket.send_to(b"four", ("127.0.0.1", port));
        }
        let line = log.take().expect("a line of the rule with `log`");
        assert_eq!(log.take(), None, "others leave none");
        assert_eq!((line.identity, line.len), (identity(1), 20 + 8 + 4));
        let verdict =
            Verdict { action: Action::Deny, rule: Some(0), is_logged: true, needs_tls: false };
        assert_eq!(line.verdict, verdict);
        let from = socket.local_addr().unwrap();
        let packet = Packet::between(17, from, "127.0.0.1:53".parse().unwrap(), Way::Out);
        assert_eq!(line.packet, Packet { interface: 1, ..packet });
        assert_eq!(line.cgroup, fs::metadata(place.cgroup.path()).unwrap().ino());

        // The ring is one for all sets, and the default can be told as well.
        put(&filter, "permit udp any any:55\ndefault deny log", 2);
        _ = socket.send_to(b"x", "127.0.0.1:56");
        let line = log.take().expect("a line of the default");
        assert_eq!((line.identity, line.verdict.rule), (identity(2), None));

        let totals = filter.totals().unwrap();
        assert_eq!((totals.denied, totals.lost_by_rate, totals.lost_for_room), (3, 0, 0));
        // It has left; where it arrived, there was no socket.
        assert_eq!(totals.permitted, 1);
    });
}

/// A sender that floods the log has its rule's share of it, and other rules have theirs.
#[test]
fn a_flood_of_one_rule_leaves_room_for_others() {
    with_cgroup(|place| {
        let rules = "deny udp any any:53 out log\ndeny udp any any:54 out log";
        let filter = place.attach(rules, 1);
        let mut log = filter.log().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let begin = Instant::now();
        const SENT: u64 = 20_000;
        for _ in 0..SENT {
            _ = socket.send_to(b"x", "127.0.0.1:53");
        }
        _ = socket.send_to(b"x", "127.0.0.1:54");
        let seconds = begin.elapsed().as_secs() + 2;
        let lines: Vec<LogLine> = std::iter::from_fn(|| log.take()).collect();
        let (flood, others): (Vec<LogLine>, Vec<LogLine>) =
            lines.into_iter().partition(|line| line.verdict.rule == Some(0));
        assert_eq!(others.len(), 1, "the other rule's line is there");
        let totals = filter.totals().unwrap();
        assert_eq!(flood.len() as u64 + totals.lost_by_rate + totals.lost_for_room, SENT);
        assert!((1..=100 * seconds).contains(&(flood.len() as u64)), "{}", flood.len());
    });
}

/// Without a reader the ring is full after some thousand lines, and what is lost is counted.
#[test]
fn lines_without_a_reader_are_counted() {
    with_cgroup(|place| {
        // A hundred lines of each of fifty rules.
        let rules: String =
            (1000..1050).map(|port| format!("deny udp any any:{port} log\n")).collect();
        let filter = place.attach(&rules, 1);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for port in 1000..1050 {
            for _ in 0..100 {
                _ = socket.send_to(b"x", ("127.0.0.1", port));
            }
        }
        let mut log = filter.log().unwrap();
        let lines = std::iter::from_fn(|| log.take()).count() as u64;
        let totals = filter.totals().unwrap();
        assert_eq!(lines + totals.lost_for_room + totals.lost_by_rate, 5_000);
        assert!(lines > 2_000 && totals.lost_for_room > 1_000, "{lines} lines, {totals:?}");
    });
}

/// Another filter of the same cgroup is one: it is shown, and drops what it denies.
#[test]
fn programs_of_others_are_seen_and_hold() {
    with_cgroup(|place| {
        let ours = place.attach("deny udp any any:53 out", 1);
        let pins = place.pins.with_file_name("other");
        let list = graph("deny udp any any:54 out");
        let groups = GroupNumbers::default();
        let set = RuleSet { graph: &list, rules: 1, identity: identity(2), groups: &groups };
        let other = Filter::attach(&pins, place.cgroup.path(), &set).unwrap();
        let nowhere = Path::new("/nowhere");
        let found = packet_programs([nowhere, place.cgroup.path()]).unwrap();
        let mut ids: Vec<u32> = found.iter().map(|(_, program)| program.id).collect();
        let mut all = [ours.packet_programs().unwrap(), other.packet_programs().unwrap()].concat();
        ids.sort_unstable();
        all.sort_unstable();
        assert_eq!(ids, all);
        assert!(found.iter().all(|(place, program)| *place == 1 && program.user == Some(0)));
        let ways: Vec<_> = found.iter().map(|(_, it)| (it.name.as_str(), it.way)).collect();
        let way = |name, way| [(name, way); 2];
        assert_eq!(ways, [way("gate_in", Way::In), way("gate_out", Way::Out)].concat());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let passes = |port: u16| socket.send_to(b"x", ("127.0.0.1", port)).is_ok();
        assert_eq!([53, 54, 55].map(passes), [false, false, true]);
        ours.remove().unwrap();
        assert_eq!([53, 54, 55].map(passes), [true, false, true], "others stay");
    });
}

#[test]
fn a_directory_elsewhere_is_refused_and_so_is_a_cgroup_that_is_none() {
    with_cgroup(|place| {
        let elsewhere = tempfile::tempdir().unwrap();
        let pins = elsewhere.path().join("filter");
        let (graph, groups) = (graph("default deny"), GroupNumbers::default());
        let attach = |pins: &Path, cgroup: &Path| {
            let set = RuleSet { graph: &graph, rules: 0, identity: identity(1), groups: &groups };
            Filter::attach(pins, cgroup, &set).unwrap_err()
        };
        let error = attach(&pins, place.cgroup.path());
        assert!(matches!(error, BpfError::NoBpfFileSystem { .. }), "{error}");
        assert!(!pins.exists());
        let error = attach(&place.pins, elsewhere.path());
        assert!(error.to_string().contains("cgroup.procs"), "{error}");
        assert!(Filter::find(&place.pins).unwrap().is_none(), "it is not there by half");
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"x", "127.0.0.1:1").unwrap();
    });
}

/// A user who may write to the BPF file system makes our directory first, and would own what is pinned there.
#[test]
fn a_directory_of_another_user_is_refused() {
    with_cgroup(|place| {
        let (graph, groups) = (graph("default deny"), GroupNumbers::default());
        let attach = || {
            let set = RuleSet { graph: &graph, rules: 0, identity: identity(1), groups: &groups };
            Filter::attach(&place.pins, place.cgroup.path(), &set)
        };
        let above = place.pins.parent().unwrap();
        fs::create_dir(above).unwrap();
        chown(above, Some(1000), None).unwrap();
        let error = attach().unwrap_err().to_string();
        assert!(error.contains("user 1000 owns") && error.contains("remove it first"), "{error}");
        chown(above, Some(0), None).unwrap();
        fs::set_permissions(above, Permissions::from_mode(0o777)).unwrap();
        let error = attach().unwrap_err().to_string();
        assert!(error.contains("others may write"), "{error}");
        fs::set_permissions(above, Permissions::from_mode(0o755)).unwrap();
        attach().unwrap();
    });
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Where a test has its filter.
struct Place {
    cgroup: Cgroup,
    pins: PathBuf,
}

impl Place {
    fn attach(&self, text: &str, number: u8) -> Filter {
        let rules = RuleList::parse(text).unwrap().rules.len();
        let (graph, groups) = (graph(text), GroupNumbers::default());
        let set = RuleSet { graph: &graph, rules, identity: identity(number), groups: &groups };
        Filter::attach(&self.pins, self.cgroup.path(), &set).unwrap()
    }
}

fn put(filter: &Filter, text: &str, number: u8) {
    let rules = RuleList::parse(text).unwrap().rules.len();
    let (graph, groups) = (graph(text), GroupNumbers::default());
    let set = RuleSet { graph: &graph, rules, identity: identity(number), groups: &groups };
    filter.put(&set).unwrap();
}

fn identity(number: u8) -> Identity {
    [number; 7]
}

fn graph(text: &str) -> Graph {
    compile(&RuleList::parse(text).unwrap(), &Machine).unwrap().graph
}

struct Machine;

impl Names for Machine {
    fn interface(&self, name: &str) -> Option<u32> {
        // The loopback interface is the first of each network namespace.
        Some(if name == "lo" { 1 } else { 99 })
    }

    fn user(&self, name: &str) -> Option<u32> {
        Some(if name == "root" { 0 } else { 1000 })
    }
}

fn connection() -> (TcpStream, TcpStream, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = TcpStream::connect(address).unwrap();
    (client, listener.accept().unwrap().0, address.port())
}

fn exchange(client: &mut TcpStream, server: &mut TcpStream) {
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    server.write_all(b"y").unwrap();
    client.read_exact(&mut [0]).unwrap();
}

fn arrives(receiver: &UdpSocket) -> bool {
    receiver.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    receiver.recv(&mut [0]).is_ok()
}

/// Runs a test in namespaces of its own, its process in a cgroup, or says what is lacking.
fn with_cgroup(test: impl FnOnce(&Place) + Send) {
    static LOCK: Mutex<()> = Mutex::new(());
    // The process is in one cgroup at a time.
    let _one_at_a_time = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(lacking) = sidestep_bpf::available() {
        println!("skipped: {lacking}");
        return;
    }
    // The namespaces are the thread's.
    let result = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let bpf_file_system = tempfile::tempdir().unwrap();
            enter_namespaces(bpf_file_system.path()).unwrap();
            let cgroup = Cgroup::create_for_run().unwrap();
            cgroup.add(std::process::id()).unwrap();
            let place = Place { cgroup, pins: bpf_file_system.path().join("sidestep/filter") };
            test(&place);
        });
        thread.join()
    });
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

fn enter_namespaces(bpf_file_system: &Path) -> io::Result<()> {
    // SAFETY: an integer; only this thread is concerned.
    done(unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) })?;
    let path = |path: &Path| std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let (root, to) = (path(Path::new("/")), path(bpf_file_system));
    // Nothing that is mounted here is seen elsewhere.
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: strings that outlive the call, and null where nothing is told.
    done(unsafe { libc::mount(null(), root.as_ptr(), null(), private, null()) })?;
    // SAFETY: the same.
    done(unsafe { libc::mount(c"bpf".as_ptr(), to.as_ptr(), c"bpf".as_ptr(), 0, null()) })?;
    let status = Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
    assert!(status.success() && fs::exists(bpf_file_system)?);
    Ok(())
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
