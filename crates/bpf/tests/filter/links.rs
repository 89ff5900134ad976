//! Link partners: whom RoCEv2 may come from and go to at the sockets of a soft RNIC.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::thread;
use std::time::Instant;

use sidestep_bpf::tell_partner;
use sidestep_filter::{Packet, RuleList, Way, rules_of_links};
use sidestep_wire::roce::PORT;
use sidestep_wire::verdict::{LEVEL, LINKED, Partner, UNLINKED};

use super::{Machine, PATIENCE, arrives, done, put, with_cgroup};

/// The two sockets of a soft RNIC, and what the rules have been told of them.
struct Rnic {
    own: IpAddr,
    receiver: UdpSocket,
    sender: UdpSocket,
}

impl Rnic {
    fn at(own: &str) -> Self {
        let own: IpAddr = own.parse().unwrap();
        let bind = |port: u16| UdpSocket::bind((own, port)).unwrap();
        Self { own, receiver: bind(PORT), sender: bind(0) }
    }

    fn tell(&self, partner: IpAddr, is_linked: bool) {
        for socket in [&self.receiver, &self.sender] {
            assert!(tell_partner(socket, partner, is_linked).unwrap(), "a filter is there");
        }
    }

    /// Whether a packet from this one's port of RoCE arrives, and one that leaves to its.
    fn speaks_with(&self, other: &UdpSocket) -> [bool; 2] {
        other.send_to(b"x", (self.own, PORT)).unwrap();
        let is_heard = arrives(&self.receiver);
        match self.sender.send_to(b"x", other.local_addr().unwrap()) {
            Ok(_) => [is_heard, arrives(other)],
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::PermissionDenied);
                [is_heard, false]
            }
        }
    }
}

/// What links to the first address, and none to the second, make of both, under a list that denies all at this end, and
/// under one that permits all.
fn follow_links([own, partner, stranger]: [&str; 3]) {
    with_cgroup(|place| {
        for address in [own, partner, stranger].into_iter().filter(|it| it.contains(':')) {
            let words = ["addr", "add", address, "dev", "lo", "nodad"];
            assert!(Command::new("ip").args(words).status().unwrap().success());
        }
        // The others' ends are permitted, as on hosts of theirs.
        let of_others = [partner, stranger]
            .map(|it| format!("permit udp {it} any out\npermit udp any {it} in\n"));
        let filter = place.attach(&format!("{}default deny", of_others.concat()), 1);
        let rnic = Rnic::at(own);
        let [partner, stranger] = [partner, stranger].map(|it| {
            let address: IpAddr = it.parse().unwrap();
            (address, UdpSocket::bind((address, PORT)).unwrap())
        });
        assert_eq!(rnic.speaks_with(&partner.1), [false, false], "before there is a link");

        rnic.tell(partner.0, true);
        assert_eq!(rnic.speaks_with(&partner.1), [true, true]);
        assert_eq!(rnic.speaks_with(&stranger.1), [false, false]);
        let other_port = rnic.sender.send_to(b"x", (partner.0, 53)).unwrap_err();
        assert_eq!(other_port.kind(), ErrorKind::PermissionDenied, "links are to one port");

        // What was told outlives the list, and closes the port under any.
        put(&filter, "default permit", 2);
        assert_eq!(rnic.speaks_with(&partner.1), [true, true]);
        assert_eq!(rnic.speaks_with(&stranger.1), [false, true]);
        rnic.tell(partner.0, false);
        assert_eq!(rnic.speaks_with(&partner.1), [true, true], "without links the list decides");
        agrees_with_its_rules(&rnic, [partner.0, stranger.0]);

        filter.remove().unwrap();
        assert_eq!(rnic.speaks_with(&stranger.1), [true, true]);
        // The kernel lets a link go a moment later.
        let deadline = Instant::now() + PATIENCE;
        while tell_partner(&rnic.receiver, partner.0, true).unwrap() {
            assert!(Instant::now() < deadline, "no filter is there");
        }
    });
}

/// The rules that are shown say what was seen under a list that permits all.
fn agrees_with_its_rules(rnic: &Rnic, [partner, stranger]: [IpAddr; 2]) {
    let list = RuleList::new(rules_of_links(&[[rnic.own, partner]]), Default::default());
    let decided = |from: IpAddr, to: IpAddr, way| {
        let packet = Packet::between(17, (from, 50_000).into(), (to, PORT).into(), way);
        list.first_match(&packet, &Machine).map(|rule| list.rules[rule].action.to_string())
    };
    let permit = Some("permit".to_owned());
    assert_eq!(decided(partner, rnic.own, Way::In), permit);
    assert_eq!(decided(rnic.own, partner, Way::Out), permit);
    assert_eq!(decided(stranger, rnic.own, Way::In), Some("deny".to_owned()));
    assert_eq!(decided(rnic.own, stranger, Way::Out), None);
}

#[test]
fn rocev2_passes_between_the_ends_of_links_alone() {
    follow_links(["127.0.0.1", "127.0.0.2", "127.0.0.3"]);
    follow_links(["fd00::1", "fd00::2", "fd00::3"]);
}

/// A gateway and the one that replaces it share a socket: what one says is not the other's.
#[test]
fn a_partner_of_two_processes_stays_until_both_have_left() {
    with_cgroup(|place| {
        let list = "permit udp any any out\npermit udp any 127.0.0.2 in\ndefault deny";
        let _filter = place.attach(list, 1);
        let rnic = Rnic::at("127.0.0.1");
        let address: IpAddr = "127.0.0.2".parse().unwrap();
        let partner = UdpSocket::bind((address, PORT)).unwrap();
        let told = |option, process| tell(&rnic.receiver, option, Partner { address, process });
        for process in [7, 8, 7] {
            told(LINKED, process).unwrap();
        }
        told(UNLINKED, 9).unwrap();
        told(UNLINKED, 7).unwrap();
        assert_eq!(rnic.speaks_with(&partner), [true, true]);
        told(UNLINKED, 8).unwrap();
        assert_eq!(rnic.speaks_with(&partner), [false, true]);
    });
}

#[test]
fn too_many_partners_are_refused_and_so_is_a_user_s_word() {
    let of_family: [fn(u16) -> IpAddr; 2] = [
        |number| Ipv4Addr::from_bits(0x0a00_0000 | u32::from(number)).into(),
        |number| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number).into(),
    ];
    with_cgroup(|place| {
        let _filter = place.attach("default permit", 1);
        for (own, address) in ["127.0.0.1", "::1"].into_iter().zip(of_family) {
            fill(&Rnic::at(own), address);
        }
    });
}

/// Tells of as many partners as there is room for.
fn fill(rnic: &Rnic, address: fn(u16) -> IpAddr) {
    let tell = |option, number| {
        tell(&rnic.receiver, option, Partner { address: address(number), process: 7 })
    };
    let refused = |told: io::Result<()>| {
        assert_eq!(told.unwrap_err().kind(), ErrorKind::PermissionDenied);
    };
    let room = (0..1_000).find(|&number| tell(LINKED, number).is_err());
    let room = room.expect("there is an end of it");
    println!("room for {room} partners");
    assert!(room >= 100);
    refused(tell(LINKED, room));
    (0..room).for_each(|number| tell(UNLINKED, number).unwrap());
    (0..room).for_each(|number| tell(LINKED, number).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: integers; it changes this thread alone.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, 1, 1, 1) };
            assert_eq!(changed, 0);
            refused(tell(UNLINKED, 0));
        });
    });
}

fn tell(socket: &UdpSocket, option: i32, partner: Partner) -> io::Result<()> {
    let value = partner.to_bytes();
    // SAFETY: the value is as long as is said.
    done(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            LEVEL,
            option,
            value.as_ptr().cast(),
            value.len() as u32,
        )
    })
}
