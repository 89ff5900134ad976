//! TLS by rules of both hosts: its records go by SMC-R where the hosts have agreed on SMC, and by TCP otherwise.

use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;

use rustix::net::{self, RecvFlags};
use sidestep_gateway::status::{Connection, Mode};
use sidestep_wire::RmbeSize;
use sidestep_wire::hand_over::{EMITTED_LEN_MAX, HandOver, Message, Protect};
use sidestep_wire::host_control::Side;
use sidestep_wire::protection_status::State;
use tempfile::TempDir;

use crate::by_hand::Line;
use crate::replaced::await_end;
use crate::scene::{CLIENT, End, PATIENCE, SERVER, Scene, adapters};
use crate::{receive, receive_end, receive_reset, reset, send};

/// A certificate for `a.example`, and the same with its key.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        let key = rcgen::KeyPair::generate().unwrap();
        let parameters = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
        let certificate = parameters.self_signed(&key).unwrap().pem();
        std::fs::write(files.path("trust"), &certificate).unwrap();
        std::fs::write(files.path("identity"), certificate + &key.serialize_pem()).unwrap();
        files
    }

    fn path(&self, name: &str) -> impl AsRef<Path> + use<> {
        self.0.path().join(name)
    }

    /// What a gateway is told of it, behind its adapters.
    fn words(&self, host: usize, adapters: Vec<String>) -> Vec<String> {
        let name = if host == CLIENT { "trust" } else { "identity" };
        let word = format!("{name}={}", self.path(name).as_ref().display());
        [adapters, vec![word]].concat()
    }
}

/// Hosts with rules for all connections.
fn scene(files: &Files) -> Option<Scene> {
    let mut scene = Scene::without_gateways(1)?;
    for host in [CLIENT, SERVER] {
        scene.start(host, &files.words(host, adapters(host, 1)));
    }
    Some(scene)
}

fn protect(hand_over: HandOver, is_agreed: bool) -> Message {
    let (rule, resolved) = ("test".parse().unwrap(), None);
    Message::Protect(Protect { hand_over, is_agreed, rule, resolved })
}

/// Hands both ends of a connection over that TLS is to protect.
fn hand_over(scene: &Scene, [client, server]: [TcpStream; 2], is_agreed: bool) -> [End; 2] {
    [(CLIENT, Side::Client, client), (SERVER, Side::Server, server)].map(|(host, side, n)| {
        let h = scene.at(host, || {
            let line = Line::call().unwrap();
            let h = line.connect().unwrap();
            line.say(&n, &h, (side, RmbeSize::DEFAULT), |it| protect(it, is_agreed)).unwrap();
            h
        });
        h.set_read_timeout(Some(PATIENCE)).unwrap();
        h.set_write_timeout(Some(PATIENCE)).unwrap();
        End { n, h }
    })
}

fn is_protected(connection: &Connection) -> bool {
    connection.protection.as_ref().is_some_and(|it| it.version.is_some())
}

/// Requests of several sizes, and then both at once.
fn converse([client, server]: [&TcpStream; 2]) {
    let sizes = [1, 100, 16_384, 16_385, 200_000];
    thread::scope(|scope| {
        scope.spawn(|| {
            for size in sizes {
                receive(server, 1, size);
                send(server, 2, size);
            }
        });
        for size in sizes {
            send(client, 1, size);
            receive(client, 2, size);
        }
    });
    let len = 2 << 20;
    thread::scope(|scope| {
        for (end, salt) in [(client, 3), (server, 4)] {
            scope.spawn(move || send(end, salt, len));
            scope.spawn(move || receive(end, 7 - salt, len));
        }
    });
}

/// A connection ends in each direction by itself.
fn end_in_order([client, server]: [&TcpStream; 2]) {
    client.shutdown(Shutdown::Write).unwrap();
    receive_end(server);
    send(server, 9, 50_000);
    server.shutdown(Shutdown::Write).unwrap();
    receive(client, 9, 50_000);
    receive_end(client);
}

#[test]
fn records_go_by_smc_r() {
    let files = Files::new();
    let Some(scene) = scene(&files) else { return };
    let ends = hand_over(&scene, scene.connection(), true);
    scene.expect(&ends, Mode::SmcR);
    let programs = ends.each_ref().map(|end| &end.h);
    converse(programs);
    for host in [CLIENT, SERVER] {
        let status = scene.status(host);
        let [connection] = &status.connections[..] else { panic!("{status:#?}") };
        assert!(is_protected(connection), "{connection:?}");
        // The program's bytes with what TLS adds to each record.
        let sent = connection.traffic.bytes_sent;
        assert!(sent > (2 << 20) + 216_870, "{sent}");
    }
    end_in_order(programs);
    for host in [CLIENT, SERVER] {
        scene.await_status(host, |status| status.connections.is_empty());
        assert!(scene.status(host).refusals.is_empty());
    }
    let [client, server] = hand_over(&scene, scene.connection(), true).map(|end| end.h);
    converse([&client, &server]);
    reset(server);
    receive_reset(&client);
}

/// One that is not, or not wanted by a host, has TLS by TCP, and CLC leaves nothing behind.
#[test]
fn without_smc_records_go_by_tcp() {
    let files = Files::new();
    let Some(mut scene) = scene(&files) else { return };
    let talk = |scene: &Scene, is_agreed| {
        let ends = hand_over(scene, scene.connection(), is_agreed);
        scene.expect(&ends, Mode::Tls);
        let programs = ends.each_ref().map(|end| &end.h);
        converse(programs);
        for host in [CLIENT, SERVER] {
            let status = scene.status(host);
            let [connection] = &status.connections[..] else { panic!("{status:#?}") };
            assert_eq!(connection.reason.is_some(), is_agreed, "{connection:?}");
        }
        end_in_order(programs);
        for host in [CLIENT, SERVER] {
            scene.await_status(host, |status| status.connections.is_empty());
        }
    };
    talk(&scene, false);
    for host in [SERVER, CLIENT] {
        scene.stop(host);
        scene.start(host, &files.words(host, Vec::new()));
        // One declines, and then both, whose words cross.
        talk(&scene, true);
    }
}

#[test]
fn a_server_that_is_not_trusted_hears_so_by_smc_r() {
    let [files, others] = [Files::new(), Files::new()];
    let Some(mut scene) = scene(&files) else { return };
    scene.stop(CLIENT);
    scene.start(CLIENT, &others.words(CLIENT, adapters(CLIENT, 1)));
    let [client, server] = hand_over(&scene, scene.connection(), true).map(|end| end.h);
    send(&client, 1, 100);
    receive_reset(&client);
    receive_reset(&server);
    scene.await_status(SERVER, |status| status.refusals.iter().any(|it| it.alert == Some(51)));
    for host in [CLIENT, SERVER] {
        assert_eq!(scene.status(host).totals.smc_r_connections, 1);
    }
}

/// They have link groups of their own, so they keep nothing else from leaving.
#[test]
fn a_gateway_that_is_replaced_goes_on_with_tls_and_gives_away_the_rest() {
    let files = Files::new();
    let Some(mut scene) = Scene::new(1) else { return };
    let plain = scene.connect();
    let (client, server) =
        (files.words(CLIENT, adapters(CLIENT, 1)), files.words(SERVER, adapters(SERVER, 1)));
    // Rules come with the next gateways.
    for (host, words) in [(CLIENT, &client), (SERVER, &server)] {
        let before = scene.replace(host, words);
        await_end(before, &scene, host);
    }
    let secret = hand_over(&scene, scene.connection(), true);
    scene.expect(&secret, Mode::SmcR);
    let mut draining = scene.replace(SERVER, &server);
    scene.await_status(SERVER, |status| status.connections.len() == 1);
    assert!(draining.try_wait().unwrap().is_none(), "it has the other one");
    for _ in 0..2 {
        converse(plain.each_ref());
        converse(secret.each_ref().map(|end| &end.h));
    }
    end_in_order(secret.each_ref().map(|end| &end.h));
    await_end(draining, &scene, SERVER);
    converse(plain.each_ref());
}

/// The answer to a question that is about a connection which is being handed over.
fn asked_about(h: &TcpStream, hand_over: impl FnOnce()) -> Message {
    let socket = OwnedFd::from(Line::call().unwrap());
    let mut bytes = [0; EMITTED_LEN_MAX];
    let port = h.local_addr().unwrap().port();
    let len = Message::ProtectionRequest(port).emit(&mut bytes).unwrap();
    net::send(&socket, &bytes[..len], net::SendFlags::empty()).unwrap();
    hand_over();
    let (_, len) = net::recv(&socket, &mut bytes, RecvFlags::empty()).unwrap();
    Message::parse(&bytes[..len]).unwrap()
}

#[test]
fn a_program_may_ask_about_tls_before_the_gateway_knows_its_connection() {
    let files = Files::new();
    let Some(scene) = scene(&files) else { return };
    let [n, _server] = scene.connection();
    let answer = scene.at(CLIENT, || {
        let line = Line::call().unwrap();
        let h = line.connect().unwrap();
        let of = (Side::Client, RmbeSize::DEFAULT);
        asked_about(&h, || line.say(&n, &h, of, |it| protect(it, false)).unwrap())
    });
    let Message::Protection(status) = answer else { panic!("{answer:?}") };
    assert_eq!(status.state, State::Handshake);
    let unknown = scene.at(CLIENT, || asked_about(&n, || {}));
    assert_eq!(unknown, Message::Unknown);
}
