//! Rules for control groups, whose sockets are made by this process on its way through them.

use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sidestep_bpf::{Filter, GroupNumbers, NumberedGroup, RuleSet};
use sidestep_filter::{Group, Groups, Names, RuleList, compile};

use super::{Place, identity, with_cgroup};

/// The groups below that of the test, which to the rules is `/`.
struct Machine<'a> {
    place: &'a Place,
    groups: Groups,
}

impl Names for Machine<'_> {
    fn interface(&self, _: &str) -> Option<u32> {
        None
    }

    fn user(&self, _: &str) -> Option<u32> {
        None
    }

    fn group(&self, group: &Group) -> Option<std::ops::RangeInclusive<u32>> {
        self.groups.numbers(group)
    }
}

impl<'a> Machine<'a> {
    fn of(place: &'a Place, list: &RuleList) -> Self {
        Self { place, groups: Groups::of(list, |unit| Path::new("/units").join(unit)) }
    }

    fn numbers(&self) -> GroupNumbers {
        let root = self.place.cgroup.path();
        let depth = |path: &Path| path.components().count() as u32 - 1;
        let above = root.strip_prefix(sidestep_bpf::Cgroup::root().unwrap()).unwrap();
        let above = above.components().count() as u32;
        let there = self.groups.paths().filter_map(|(path, number)| {
            let directory = root.join(path.strip_prefix("/").unwrap());
            let id = fs::metadata(&directory).ok()?.ino();
            Some((id, NumberedGroup { directory, number }))
        });
        GroupNumbers {
            groups: there.collect(),
            deepest: above + self.groups.paths().map(|(path, _)| depth(path)).max().unwrap_or(0),
            around: self.groups.number(Path::new("/")),
        }
    }
}

/// Puts a list into force.
fn put(place: &Place, text: &str) -> Filter {
    let list = RuleList::parse(text).unwrap();
    let machine = Machine::of(place, &list);
    let graph = compile(&list, &machine).unwrap().graph;
    let groups = machine.numbers();
    let rules = list.rules.len();
    let set = RuleSet { graph: &graph, rules, identity: identity(1), groups: &groups };
    match Filter::find(&place.pins).unwrap() {
        Some(filter) => {
            filter.put(&set).unwrap();
            filter
        }
        None => Filter::attach(&place.pins, place.cgroup.path(), &set).unwrap(),
    }
}

fn make(place: &Place, path: &str) -> PathBuf {
    let path = place.cgroup.path().join(path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// What this process makes in a group.
fn within<T>(place: &Place, group: &Path, what: impl FnOnce() -> T) -> T {
    let own = std::process::id().to_string();
    fs::write(group.join("cgroup.procs"), &own).unwrap();
    let made = what();
    fs::write(place.cgroup.path().join("cgroup.procs"), &own).unwrap();
    made
}

fn socket() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

fn passes(socket: &UdpSocket, port: u16) -> bool {
    socket.send_to(b"x", ("127.0.0.1", port)).is_ok()
}

/// Directories that a test has made go before that of its place.
fn remove(place: &Place, paths: &[&str]) {
    for path in paths {
        fs::remove_dir(place.cgroup.path().join(path)).unwrap();
    }
}

#[test]
fn a_rule_means_a_group_and_those_in_it() {
    with_cgroup(|place| {
        let own = socket();
        let a = within(place, &make(place, "a"), socket);
        let b = within(place, &make(place, "a/b"), socket);
        let c = within(place, &make(place, "a/b/c"), socket);
        let d = within(place, &make(place, "units/d.service"), socket);
        let list = "deny udp any any:53 out cgroup /a\n\
                    deny udp any any:54 out cgroup /a/b\n\
                    deny udp any any:55 out unit d.service\n\
                    permit udp any any:56 out cgroup /a/b\n\
                    deny udp any any:56 out cgroup /\n\
                    deny udp any any:57 out cgroup /not/there";
        let filter = put(place, list);
        let of = |socket: &UdpSocket| [53, 54, 55, 56, 57].map(|port| passes(socket, port));
        assert_eq!(of(&own), [true, true, true, false, true]);
        assert_eq!(of(&a), [false, true, true, false, true]);
        assert_eq!(of(&b), [false, false, true, true, true]);
        assert_eq!(of(&c), [false, false, true, true, true], "it is within what is named");
        assert_eq!(of(&d), [true, true, false, false, true]);
        put(place, "deny udp any any:53 out cgroup /a/b");
        assert_eq!(
            [&own, &a, &b, &c, &d].map(|it| passes(it, 53)),
            [true, true, false, false, true]
        );
        filter.take_back(identity(1)).unwrap();
        assert_eq!(
            of(&a),
            [false, true, true, false, true],
            "the groups of the other list hold again"
        );
        filter.remove().unwrap();
        assert!(!place.pins.exists(), "nothing is left behind");
        remove(place, &["a/b/c", "a/b", "a", "units/d.service", "units"]);
    });
}

/// What is asked by another process, which is in none of the groups.
#[test]
fn a_connection_is_asked_about_by_its_sockets_group() {
    with_cgroup(|place| {
        let a = make(place, "a");
        let b = make(place, "a/b");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || TcpStream::connect(address).unwrap();
        let sockets = [connect(), within(place, &a, connect), within(place, &b, connect)];
        let denied = || sockets.each_ref().map(|it| sidestep_bpf::is_denied(it, 0).unwrap());
        assert_eq!(denied(), [false; 3]);
        let filter = put(place, "deny tcp any any out cgroup /a");
        assert_eq!(denied(), [false, true, true]);
        put(place, "deny tcp any any out cgroup /a/b");
        assert_eq!(denied(), [false, false, true]);
        put(place, "permit any any any cgroup /a/b\ndeny any any any cgroup /a");
        assert_eq!(denied(), [false, true, false]);
        put(place, "permit any any any cgroup /a\ndeny any any any cgroup /");
        assert_eq!(denied(), [true, false, false], "its own group is not below it");
        put(place, "deny udp any any");
        assert_eq!(denied(), [false; 3]);
        filter.remove().unwrap();
        drop(sockets);
        remove(place, &["a/b", "a"]);
    });
}

/// A unit that starts again has another directory.
#[test]
fn a_group_that_is_made_anew_is_meant_when_it_has_its_number_again() {
    with_cgroup(|place| {
        let list = RuleList::parse("deny udp any any:53 out unit a.service").unwrap();
        let filter = put(place, &list.to_string());
        let first = within(place, &make(place, "units/a.service"), socket);
        assert!(passes(&first, 53), "it was not there");
        let machine = Machine::of(place, &list);
        filter.renumber(&machine.numbers()).unwrap();
        assert!(!passes(&first, 53));
        drop(first);
        remove(place, &["units/a.service"]);
        let second = within(place, &make(place, "units/a.service"), socket);
        assert!(passes(&second, 53));
        filter.renumber(&machine.numbers()).unwrap();
        assert!(!passes(&second, 53));
        assert_eq!(marks(place), 1, "the marker of the old one has gone");
        filter.remove().unwrap();
        remove(place, &["units/a.service", "units"]);
    });
}

/// How many groups have a marker.
fn marks(place: &Place) -> usize {
    let names = fs::read_dir(&place.pins).unwrap().map(|it| it.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with("group_")).count()
}
