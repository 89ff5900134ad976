//! Gateways and peers that die, cables that are cut.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use sidestep_gateway::limits::LEAVE_PATIENCE;
use sidestep_gateway::status::Mode;
use sidestep_wire::clc::{Decline, EMITTED_LEN_MAX, Header, Message};
use sidestep_wire::host_control::Side;
use sidestep_wire::{Diagnosis, PeerId, RmbeSize};

use crate::scene::{CLIENT, SERVER, Scene, adapters, address};
use crate::{by_hand, receive, receive_end, receive_from, receive_reset, send};

#[test]
fn a_gateway_that_dies_resets_its_programs() {
    let Some(mut scene) = Scene::new(1) else { return };
    let ends = scene.hand_over(scene.connection());
    scene.expect(&ends, Mode::SmcR);
    send(&ends[0].h, 1, 1000);
    receive(&ends[1].h, 1, 1000);
    scene.kill(CLIENT);
    let [client, server] = ends;
    receive_reset(&client.h);
    // Its program closes what is left.
    drop(client);
    receive_reset(&server.h);
}

/// The programs have closed N when it was handed over, so the kernel resets it with the gateway.
#[test]
fn the_death_of_a_gateway_is_known_at_the_other_host_at_once() {
    let Some(mut scene) = Scene::new(1) else { return };
    for host in [CLIENT, SERVER] {
        let connections: Vec<_> = (0..20).map(|_| scene.connect()).collect();
        scene.kill(host);
        let killed = Instant::now();
        for ends in &connections {
            receive_reset(&ends[host]);
            receive_reset(&ends[1 - host]);
        }
        let took = killed.elapsed();
        eprintln!("the other host was told after {took:?}");
        // Well before a peer is given up that has left N in order.
        assert!(took < LEAVE_PATIENCE / 2, "{took:?}");
        scene.start(host, &adapters(host, 1));
    }
}

#[test]
fn a_gateway_that_ends_tells_everybody() {
    let Some(mut scene) = Scene::new(1) else { return };
    let [client, server] = scene.connect();
    scene.stop(SERVER);
    receive_reset(&server);
    receive_reset(&client);
}

/// The library is not asked: the kernel closes what the program had.
#[test]
fn a_program_that_is_killed_in_the_middle_resets_its_peer() {
    let Some(scene) = Scene::new(1) else { return };
    let ends = scene.hand_over(scene.connection());
    scene.expect(&ends, Mode::SmcR);
    let [client, server] = ends;
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let bytes = vec![0; 64 << 20];
            (&server.h).write_all(&bytes).unwrap_err()
        });
        assert!((&client.h).read(&mut [0; 1000]).unwrap() > 0);
        drop(client);
        let error = sending.join().unwrap();
        let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        assert!(kinds.contains(&error.kind()), "{error}");
    });
}

/// Streams both ways over two cables, of which one is cut in the middle.
fn cut_one_of_two(cut: impl Fn(&Scene)) {
    let Some(scene) = Scene::new(2) else { return };
    let [client, server] = scene.connect();
    for host in [CLIENT, SERVER] {
        scene.await_status(host, |status| {
            status.links.iter().filter(|link| link.state == "Active").count() == 2
        });
    }
    let (before, len) = (1 << 20, 30 << 20);
    let rest = |from: &_, salt| {
        receive_from(from, salt, before, len);
        receive_end(from);
    };
    thread::scope(|scope| {
        for (end, salt) in [(&client, 1), (&server, 2)] {
            scope.spawn(move || {
                send(end, salt, len);
                end.shutdown(Shutdown::Write).unwrap();
            });
        }
        receive(&client, 2, before);
        receive(&server, 1, before);
        cut(&scene);
        scope.spawn(|| rest(&server, 1));
        scope.spawn(|| rest(&client, 2));
        for host in [CLIENT, SERVER] {
            scene.await_status(host, |status| status.connections.iter().any(|it| it.moves > 0));
        }
    });
}

/// TCP went there, too, and is silent.
#[test]
fn with_two_cables_one_may_be_cut() {
    cut_one_of_two(|scene| assert!(scene.ip(SERVER, &["link", "set", "cable0", "down"])));
}

/// Only that nothing is acknowledged any more tells: packets go to nobody.
#[test]
fn with_two_cables_one_may_lead_nowhere() {
    cut_one_of_two(|scene| {
        for (host, other) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
            let to = address(other, 0).to_string();
            let nobody = ["lladdr", "02:00:00:00:00:99", "dev", "cable0", "nud", "permanent"];
            assert!(scene.ip(host, &[&["neigh", "replace", &to][..], &nobody].concat()));
        }
    });
}

#[test]
fn a_cable_that_is_mended_takes_its_share_again() {
    let Some(scene) = Scene::new(2) else { return };
    let ends: Vec<_> = (0..6).map(|_| scene.connect()).collect();
    let await_loads = |expected: &[usize]| {
        for host in [CLIENT, SERVER] {
            scene.await_status(host, |status| {
                let active = status.links.iter().filter(|link| link.state == "Active");
                active.map(|link| link.connections).eq(expected.iter().copied())
            });
        }
    };
    let converse = |salt| {
        for [client, server] in &ends {
            send(client, salt, 100_000);
            receive(server, salt, 100_000);
            send(server, salt, 1000);
            receive(client, salt, 1000);
        }
    };
    await_loads(&[3, 3]);
    converse(1);
    assert!(scene.ip(SERVER, &["link", "set", "cable1", "down"]));
    await_loads(&[6]);
    converse(2);
    assert!(scene.ip(SERVER, &["link", "set", "cable1", "up"]));
    await_loads(&[3, 3]);
    converse(3);
}

/// As when a container is given its network anew: the interface has another number then.
#[test]
fn an_interface_that_is_made_anew_is_used_again() {
    let Some(scene) = Scene::new(1) else { return };
    let _before = scene.connect();
    let await_all = |is_up| {
        for host in [CLIENT, SERVER] {
            scene.await_status(host, |it| it.adapters.iter().all(|it| it.is_up == is_up));
        }
    };
    assert!(scene.ip(CLIENT, &["link", "delete", "cable0"]));
    await_all(false);
    scene.lay(0);
    await_all(true);
    let [client, server] = scene.connect();
    send(&client, 1, 100_000);
    receive(&server, 1, 100_000);
}

#[test]
fn who_has_nothing_to_do_sleeps() {
    let Some(scene) = Scene::new(1) else { return };
    let [client, server] = scene.connect();
    send(&client, 1, 1000);
    receive(&server, 1, 1000);
    let before = ticks(scene.pid(CLIENT));
    thread::sleep(Duration::from_secs(2));
    let spent = ticks(scene.pid(CLIENT)) - before;
    assert!(spent < 50, "{spent} hundredths of a second of two seconds");
}

/// CPU time of a process, in hundredths of a second.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// The test is the client of the second connection, and says what a client says that has begun
/// anew, as any local user of its host can; its Proposal is that of the gateway. The client's gateway
/// knows the group and says so over the link.
#[test]
fn out_of_sync_from_a_local_user_ends_no_link_group() {
    let Some(scene) = Scene::new(1) else { return };
    let [client, server] = scene.connect();
    let overheard = Overheard::new(&scene);
    let decline = Decline::v2(PeerId::default(), Diagnosis::SYNCERR);
    let mut bytes = [0; EMITTED_LEN_MAX];
    let decline = Message::from(Decline { out_of_sync: true, ..decline });
    let len = decline.emit(&mut bytes).unwrap();
    (&overheard.from_us).write_all(&bytes[..len]).unwrap();
    scene.expect_at(SERVER, &overheard.accepting, Mode::Tcp);
    scene.await_log(SERVER, "is asked over its links", 1);
    scene.await_log(SERVER, "the link groups of the peers are out of sync", 1);
    for (from, to) in [(&client, &server), (&server, &client)] {
        send(from, 1, 1000);
        receive(to, 1, 1000);
    }
    let [client, server] = scene.connect();
    send(&client, 1, 1000);
    receive(&server, 1, 1000);
}

/// A local user of the client's host answers at a listener of its own with what the server has said
/// elsewhere. With the connection the gateway would write this user's bytes into memory of others.
#[test]
fn an_accept_of_another_host_joins_no_link_group() {
    let Some(scene) = Scene::new(1) else { return };
    let [client, server] = scene.connect();
    let overheard = Overheard::new(&scene);
    let [n, listening] = scene.connection_within_client();
    let _h = scene.at(CLIENT, || by_hand::hand_over(&n, Side::Client, RmbeSize::DEFAULT).unwrap());
    receive_clc(&listening);
    (&listening).write_all(&overheard.accept).unwrap();
    let Ok(Message::Decline(decline)) = Message::parse(&receive_clc(&listening)) else {
        panic!("no Decline\n{}", scene.log(CLIENT));
    };
    assert_eq!((decline.diagnosis, decline.out_of_sync), (Diagnosis::NOSRVLINK, false));
    for (from, to) in [(&client, &server), (&server, &client)] {
        send(from, 1, 1000);
        receive(to, 1, 1000);
    }
}

/// What two gateways say to each other of a further connection, heard by the test, which stands
/// between them: their programs' ends of the TCP connections are its own.
struct Overheard {
    /// To the server's gateway, which has answered here.
    from_us: TcpStream,
    /// The program's end of that.
    accepting: TcpStream,
    accept: Vec<u8>,
    _proposing: TcpStream,
}

impl Overheard {
    fn new(scene: &Scene) -> Self {
        let [proposing, to_us] = scene.connection();
        let [from_us, accepting] = scene.connection();
        let hand_over = |host, side, n: &TcpStream| {
            scene.at(host, || by_hand::hand_over(n, side, RmbeSize::DEFAULT).unwrap())
        };
        let _proposing = hand_over(CLIENT, Side::Client, &proposing);
        let accepting = hand_over(SERVER, Side::Server, &accepting);
        (&from_us).write_all(&receive_clc(&to_us)).unwrap();
        let accept = receive_clc(&from_us);
        let Ok(Message::Accept(parsed)) = Message::parse(&accept) else {
            panic!("no Accept\n{}", scene.log(SERVER));
        };
        assert!(!parsed.is_first_contact());
        Self { from_us, accepting, accept, _proposing }
    }
}

/// Another host, here another address of the client's, repeats the client's Proposal and goes no further. The
/// client's first contact does not wait for it.
#[test]
fn a_stranger_that_repeats_a_proposal_delays_nobody() {
    let Some(scene) = Scene::new(1) else { return };
    let stranger = IpAddr::from([10, 93, 0, 9]);
    assert!(scene.ip(CLIENT, &["address", "add", &format!("{stranger}/24"), "dev", "cable0"]));
    let hand_over = |host, side, n: &TcpStream| {
        scene.at(host, || by_hand::hand_over(n, side, RmbeSize::DEFAULT).unwrap())
    };
    let [proposing, to_us] = scene.connection();
    let _proposing = hand_over(CLIENT, Side::Client, &proposing);
    let proposal = receive_clc(&to_us);
    let repeated = [(); 3].map(|()| {
        let [from_stranger, accepting] = scene.connection_from(stranger);
        let h = hand_over(SERVER, Side::Server, &accepting);
        (&from_stranger).write_all(&proposal).unwrap();
        (from_stranger, h)
    });
    let Ok(Message::Accept(accept)) = Message::parse(&receive_clc(&repeated[0].0)) else {
        panic!("no Accept\n{}", scene.log(SERVER));
    };
    assert!(accept.is_first_contact());
    let [client, server] = scene.connect();
    send(&client, 1, 1000);
    receive(&server, 1, 1000);
}

/// One CLC message.
pub(crate) fn receive_clc(mut from: &TcpStream) -> Vec<u8> {
    let mut bytes = vec![0; Header::LEN];
    from.read_exact(&mut bytes).unwrap();
    let (_, len) = Header::extent(&bytes).unwrap();
    bytes.resize(len.into(), 0);
    from.read_exact(&mut bytes[Header::LEN..]).unwrap();
    bytes
}
