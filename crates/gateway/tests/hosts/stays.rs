//! Connections that stay TCP, with every byte.

use std::fs::File;
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use sidestep_gateway::status::Mode;
use sidestep_proto::autocache;
use sidestep_wire::clc::{self, Decline, Message};
use sidestep_wire::hand_over::{EMITTED_LEN_MAX, gateway_name};
use sidestep_wire::host_control::Side;
use sidestep_wire::lessons::{Cause, Lesson, offset};
use sidestep_wire::{Diagnosis, PeerId, RmbeSize};

use crate::broken::receive_clc;
use crate::moved::send_urgent_bytes;
use crate::scene::{CLIENT, PATIENCE, SERVER, Scene, adapters, address};
use crate::{by_hand, receive, receive_end, receive_reset, send};

/// Two gateways that have nothing in common.
pub(crate) fn strangers() -> Option<Scene> {
    let mut scene = Scene::without_gateways(1)?;
    for (host, ueid) in [(CLIENT, "ueid=ONE"), (SERVER, "ueid=OTHER")] {
        let words = adapters(host, 1);
        scene.start(host, &[words, vec![ueid.to_owned()]].concat());
    }
    Some(scene)
}

#[test]
fn bytes_of_a_declined_connection_are_passed_on_both_ways() {
    let Some(scene) = strangers() else { return };
    let ends = scene.hand_over(scene.connection());
    let [client, server] = ends.each_ref().map(|end| &end.h);
    thread::scope(|scope| {
        // It begins before anything is decided.
        scope.spawn(|| send(client, 1, 300_000));
        receive(server, 1, 300_000);
    });
    scene.expect(&ends, Mode::Tcp);
    let [client, server] = ends.map(|end| end.h);
    client.shutdown(Shutdown::Write).unwrap();
    receive_end(&server);
    send(&server, 2, 1000);
    drop(server);
    receive(&client, 2, 1000);
    receive_end(&client);
}

/// What it has not passed on is lost, and both programs are told so.
#[test]
fn a_gateway_that_dies_says_no_end_to_whom_it_passes_bytes_on() {
    for host in [CLIENT, SERVER] {
        let Some(mut scene) = strangers() else { return };
        let ends = scene.hand_over(scene.connection());
        scene.expect(&ends, Mode::Tcp);
        let [client, server] = ends.map(|end| end.h);
        send(&client, 1, 1000);
        receive(&server, 1, 1000);
        scene.kill(host);
        receive_reset(&client);
        receive_reset(&server);
    }
}

/// What a policy of the kernel protects stays in TCP, at whichever end the policy is, from the moment on at which
/// it is there until it is not any more.
#[test]
fn what_ipsec_protects_stays_tcp() {
    let Some(scene) = Scene::new(1) else { return };
    let now = || {
        let ends = scene.hand_over(scene.connection());
        [CLIENT, SERVER].map(|host| scene.at(host, || by_hand::decided(&ends[host].h).unwrap()))
    };
    for (host, [from, to], direction) in
        [(CLIENT, ["10.93.0.1", "10.93.0.2"], "out"), (SERVER, ["10.93.0.1", "10.93.0.2"], "in")]
    {
        assert_eq!(now(), [Mode::SmcR; 2]);
        let policy = ["xfrm", "policy"];
        let selector = ["src", from, "dst", to, "proto", "tcp", "dir", direction];
        let template = ["tmpl", "proto", "esp", "mode", "transport", "level", "use"];
        assert!(scene.ip(host, &[&policy[..], &["add"], &selector, &template].concat()));
        assert_eq!(now(), [Mode::Tcp; 2], "{direction}");
        scene.await_log(host, "declined here: IPsec is active", 1);
        scene.await_log(1 - host, "declined by the peer: 0x03020000 IPSEC", 1);
        assert!(scene.ip(host, &[&policy[..], &["delete"], &selector].concat()));
    }
    assert_eq!(now(), [Mode::SmcR; 2]);
}

/// The peer is a program of a host without a gateway, and says its urgent bytes as TCP does.
#[test]
fn urgent_bytes_are_passed_on_both_ways() {
    let Some(scene) = Scene::new(1) else { return };
    let [n, peer] = scene.connection();
    let hand_over = || by_hand::hand_over(&n, Side::Client, RmbeSize::DEFAULT).unwrap();
    let h = scene.at(CLIENT, hand_over);
    [&h, &peer].into_iter().for_each(|it| it.set_read_timeout(Some(PATIENCE)).unwrap());
    receive_clc(&peer);
    let decline = Message::from(Decline::v2(PeerId::default(), Diagnosis::PEERNOSMC));
    let mut bytes = [0; clc::EMITTED_LEN_MAX];
    let len = decline.emit(&mut bytes).unwrap();
    (&peer).write_all(&bytes[..len]).unwrap();
    send_urgent_bytes(&h, &peer);
    send_urgent_bytes(&peer, &h);
}

/// The peer has agreed by the option, and then says something else: that is no connection of CLC's, and
/// none of TCP's any more.
#[test]
fn a_peer_that_speaks_no_clc_is_reset() {
    let Some(scene) = Scene::new(1) else { return };
    for (side, host) in [(Side::Client, CLIENT), (Side::Server, SERVER)] {
        let mut ends = scene.connection();
        if host == SERVER {
            ends.reverse();
        }
        let [ours, mut theirs] = ends;
        theirs.write_all(b"220 here is no CLC, but what the program says").unwrap();
        let h = scene.at(host, || by_hand::hand_over(&ours, side, RmbeSize::DEFAULT).unwrap());
        h.set_read_timeout(Some(PATIENCE)).unwrap();
        receive_reset(&h);
        theirs.set_read_timeout(Some(PATIENCE)).unwrap();
        let error = theirs.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
}

#[test]
fn a_peer_that_says_nothing_is_not_waited_for_for_ever() {
    let Some(scene) = Scene::new(1) else { return };
    let [client, _server] = scene.connection();
    let hand_over = || by_hand::hand_over(&client, Side::Client, RmbeSize::DEFAULT).unwrap();
    let h = scene.at(CLIENT, hand_over);
    h.set_read_timeout(Some(PATIENCE)).unwrap();
    receive_reset(&h);
}

/// A server with which it came to nothing is left alone, and one with which it did not is not.
#[test]
fn a_server_that_has_declined_is_remembered() {
    let Some(mut scene) = strangers() else { return };
    let listen = || TcpListener::bind((address(SERVER, 0), 0)).unwrap();
    let listener = scene.at(SERVER, listen);
    let declining = listener.local_addr().unwrap();
    let connect = |scene: &Scene| {
        let client = scene.at(CLIENT, || TcpStream::connect(declining).unwrap());
        [client, listener.accept().unwrap().0]
    };
    let decline = || {
        let ends = scene.hand_over(connect(&scene));
        scene.expect(&ends, Mode::Tcp);
        ends
    };
    for _ in 1..autocache::PATIENCE {
        decline();
        assert!(!is_left_alone(&scene, CLIENT, declining), "it may be one of several");
    }
    let ends = decline();
    assert!(is_left_alone(&scene, CLIENT, declining));
    let client = ends[1].n.peer_addr().unwrap();
    assert!(!is_left_alone(&scene, SERVER, client), "servers leave nobody alone");
    // Another gateway may agree.
    scene.stop(CLIENT);
    let words = adapters(CLIENT, 1);
    scene.start(CLIENT, &[words, vec!["ueid=OTHER".to_owned()]].concat());
    assert!(!is_left_alone(&scene, CLIENT, declining));
    let ends = scene.hand_over(connect(&scene));
    scene.expect(&ends, Mode::SmcR);
    assert!(!is_left_alone(&scene, CLIENT, declining));
}

/// As often as it takes for a server to be left alone.
const SHORT_ONES: usize = 16;

/// A server whose connections end after a few messages is left alone as well.
#[test]
fn a_server_of_short_connections_is_remembered() {
    let Some(scene) = Scene::new(1) else { return };
    let listen = || TcpListener::bind((address(SERVER, 0), 0)).unwrap();
    let listener = scene.at(SERVER, listen);
    let to = listener.local_addr().unwrap();
    let talk = |messages: usize| {
        let client = scene.at(CLIENT, || TcpStream::connect(to).unwrap());
        let ends = scene.hand_over([client, listener.accept().unwrap().0]);
        scene.expect(&ends, Mode::SmcR);
        let [client, server] = ends.map(|end| end.h);
        for _ in 0..messages {
            send(&client, 1, 10);
            receive(&server, 1, 10);
        }
        drop(client);
        receive_end(&server);
    };
    let talk_often = |times: usize, before: usize| {
        (0..times).for_each(|_| talk(1));
        scene.await_log(CLIENT, "over: InOrder", before + times);
    };
    talk_often(SHORT_ONES - 1, 0);
    talk(20);
    talk_often(SHORT_ONES - 1, SHORT_ONES);
    assert!(!is_left_alone(&scene, CLIENT, to));
    talk_often(1, 2 * SHORT_ONES - 1);
    assert!(is_left_alone(&scene, CLIENT, to));
}

/// A firewall lets TCP in and drops UDP port 4791, at one host or at both. The first connection waits for CONFIRM
/// LINK, or for the peer's Decline, and goes on by TCP with every byte; the next ones do not ask. How long the waits
/// are is tried with a clock of the test's own (`engine/tests/table`).
#[test]
fn a_firewall_that_drops_rdma_costs_one_wait() {
    const RULES: &str = "add table inet f; add chain inet f i { type filter hook input priority 0; }; \
                         add rule inet f i udp dport 4791 drop";
    for walled in [&[CLIENT][..], &[SERVER], &[CLIENT, SERVER]] {
        let Some(scene) = Scene::new(1) else { return };
        if !walled.iter().all(|host| scene.run(*host, &["nft", RULES])) {
            return eprintln!("skipped: there is no nft, or no nf_tables in the kernel");
        }
        let connection = scene.connection();
        let server = connection[0].peer_addr().unwrap();
        let begin = Instant::now();
        let ends = scene.hand_over(connection);
        send(&ends[0].h, 1, 100_000);
        receive(&ends[1].h, 1, 100_000);
        // A figure and no verdict: a machine with other work has its own.
        eprintln!("dropped at {walled:?}: TCP after {:.1?}", begin.elapsed());
        scene.expect(&ends, Mode::Tcp);
        assert!(is_left_alone(&scene, CLIENT, server));
    }
}

/// Where TCP carries more than SMC-R has, new connections go by TCP: after the gateway has looked at both.
#[test]
fn a_server_where_smc_gains_nothing_is_left_to_tcp() {
    let Some(scene) = Scene::new(1) else { return };
    let listen = || TcpListener::bind((address(SERVER, 0), 0)).unwrap();
    let listener = scene.at(SERVER, listen);
    let to = listener.local_addr().unwrap();
    let connect = || {
        let client = scene.at(CLIENT, || TcpStream::connect(to).unwrap());
        [client, listener.accept().unwrap().0]
    };
    let ends = scene.hand_over(connect());
    scene.expect(&ends, Mode::SmcR);
    let [client, server] = ends.map(|end| end.h);
    // Slow, as by an adapter that is no good.
    for _ in 0..12 {
        send(&client, 1, 100_000);
        receive(&server, 1, 100_000);
        thread::sleep(Duration::from_millis(100));
    }
    drop(client);
    receive_end(&server);
    drop(server);
    scene.await_log(CLIENT, "SMC-R is compared with TCP", 1);
    assert_eq!(lesson(&scene, CLIENT, to).map(|it| it.cause), Some(Cause::Compared));
    let [client, server] = connect();
    let begin = Instant::now();
    // Until the trial is over.
    while begin.elapsed() < Duration::from_secs(4) {
        send(&client, 1, 100_000);
        receive(&server, 1, 100_000);
    }
    scene.await_log(CLIENT, "GainsNothing", 1);
    assert_eq!(lesson(&scene, CLIENT, to).map(|it| it.cause), Some(Cause::NoGain));
}

/// Whether the gateway tells this program to leave a server alone.
fn is_left_alone(scene: &Scene, host: usize, server: SocketAddr) -> bool {
    lesson(scene, host, server).is_some_and(|lesson| !lesson.until.is_zero())
}

/// What the gateway tells this program of a server.
pub(crate) fn lesson(scene: &Scene, host: usize, server: SocketAddr) -> Option<Lesson> {
    let (file, user) = scene.at(host, || (lessons(), rustix::process::geteuid().as_raw()));
    let mut bytes = [0; Lesson::LEN];
    file.read_exact_at(&mut bytes, offset(server, user)).unwrap();
    Lesson::parse(&bytes).ok().filter(|lesson| lesson.is_about(server, user))
}

/// What lies beside the greeting.
fn lessons() -> File {
    let flags = SocketFlags::CLOEXEC;
    let line = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    net::connect(&line, &SocketAddrUnix::new_abstract_name(&gateway_name()).unwrap()).unwrap();
    let mut bytes = [0; EMITTED_LEN_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    net::recvmsg(&line, &mut parts, &mut beside, RecvFlags::CMSG_CLOEXEC).unwrap();
    let mut rights = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    File::from(rights.next().unwrap())
}
