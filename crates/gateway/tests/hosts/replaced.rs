//! Connections go on in the gateway that takes the place of theirs.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::Timeout;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvFlags, SendFlags, SocketAddrUnix, SocketType,
    shutdown,
};
use sidestep_gateway::status::Mode;
use sidestep_wire::hand_over::{EMITTED_LEN_MAX, Message, gateway_name};

use crate::scene::{CLIENT, End, PATIENCE, SERVER, Scene, adapters};
use crate::{receive, receive_end, receive_from, receive_reset, reset, send};

/// The process has nothing left, and ends.
pub(crate) fn await_end(mut gateway: Child, scene: &Scene, host: usize) {
    let end = Instant::now() + PATIENCE;
    while gateway.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "it has not ended\n{}", scene.log(host));
        thread::sleep(Duration::from_millis(5));
    }
    assert!(gateway.wait().unwrap().success(), "{}", scene.log(host));
}

/// Requests of many sizes, each answered by as many bytes, until it is told to end; `answered` counts them. The longest that one took.
fn ask(
    client: &TcpStream,
    server: &TcpStream,
    answered: &AtomicUsize,
    is_over: &AtomicBool,
) -> Duration {
    let mut longest = Duration::ZERO;
    thread::scope(|scope| {
        while !is_over.load(Ordering::Relaxed) {
            let count = answered.load(Ordering::Relaxed);
            let (salt, size) = (count as u8, [1, 100, 3000, 70_000][count % 4]);
            let begun = Instant::now();
            let answer = scope.spawn(move || {
                receive(server, salt, size);
                send(server, !salt, size);
            });
            send(client, salt, size);
            receive(client, !salt, size);
            answer.join().unwrap();
            longest = longest.max(begun.elapsed());
            answered.store(count + 1, Ordering::Relaxed);
        }
    });
    longest
}

/// Each connection has had an answer since: they are all under way when the next gateway comes.
fn await_answers(answered: &[AtomicUsize]) {
    let before: Vec<usize> = answered.iter().map(|it| it.load(Ordering::Relaxed)).collect();
    let end = Instant::now() + PATIENCE;
    while answered.iter().zip(&before).any(|(it, before)| it.load(Ordering::Relaxed) == *before) {
        assert!(Instant::now() < end, "a connection has no answer");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The gateways of both hosts are replaced by turns: each byte of requests, of a stream, and of a connection that is
/// not read meanwhile comes once, and each process that was replaced has nothing left and ends.
#[test]
fn nothing_is_lost_when_gateways_are_replaced_under_load() {
    const ROUNDS: usize = 100;
    let Some(mut scene) = Scene::new(1) else { return };
    let [unread, sender] = scene.connect();
    let [from, to] = scene.connect();
    let asking: Vec<_> = (0..6).map(|_| scene.connect()).collect();
    let answered: Vec<AtomicUsize> = asking.iter().map(|_| AtomicUsize::new(0)).collect();
    let (is_over, len) = (AtomicBool::new(false), 4 << 20);
    let longest = thread::scope(|scope| {
        let (is_over, answered) = (&is_over, &answered);
        scope.spawn(|| send(&sender, 5, len));
        let streaming = scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                thread::scope(|scope| {
                    scope.spawn(|| send(&from, count, 300_000));
                    receive(&to, count, 300_000);
                });
                count = count.wrapping_add(1);
            }
        });
        let asking: Vec<_> = asking
            .iter()
            .zip(answered)
            .map(|([c, s], n)| scope.spawn(move || ask(c, s, n, is_over)))
            .collect();
        for round in 0..ROUNDS {
            await_answers(answered);
            let host = [CLIENT, SERVER][round % 2];
            let before = scene.replace(host, &adapters(host, 1));
            await_end(before, &scene, host);
        }
        is_over.store(true, Ordering::Relaxed);
        streaming.join().unwrap();
        receive(&unread, 5, len);
        asking.into_iter().map(|it| it.join().unwrap()).max().unwrap()
    });
    // A figure and no verdict: a machine with other work has its own.
    eprintln!("the longest request took {longest:?}");
    for host in [CLIENT, SERVER] {
        let status = scene.status(host);
        assert_eq!(status.connections.len(), 8, "{status:#?}");
        assert!(status.connections.iter().all(|it| it.mode == Mode::SmcR), "{status:#?}");
        assert!(status.predecessors.is_empty(), "{status:#?}");
    }
}

/// Ends of all kinds, in the gateway that has come, of what was begun in the one before.
#[test]
fn connections_end_in_the_next_gateway_as_they_would_have() {
    let Some(mut scene) = Scene::new(1) else { return };
    let [shut, kept] = scene.connect();
    let [resets, is_reset] = scene.connect();
    let [closes, reads] = scene.connect();
    send(&shut, 1, 5000);
    shut.shutdown(std::net::Shutdown::Write).unwrap();
    receive(&kept, 1, 3000);
    send(&closes, 2, 50_000);
    for host in [CLIENT, SERVER] {
        let before = scene.replace(host, &adapters(host, 1));
        await_end(before, &scene, host);
    }
    receive_from(&kept, 1, 3000, 5000);
    receive_end(&kept);
    send(&kept, 3, 100_000);
    receive(&shut, 3, 100_000);
    drop(kept);
    receive_end(&shut);
    reset(resets);
    receive_reset(&is_reset);
    drop(closes);
    receive(&reads, 2, 50_000);
    receive_end(&reads);
}

/// A new connection shares the link group that both gateways have from others, and one of each of them knows no other.
#[test]
fn new_connections_join_the_group_that_has_moved() {
    for moved in [&[CLIENT][..], &[SERVER], &[CLIENT, SERVER]] {
        let Some(mut scene) = Scene::new(1) else { return };
        let before = scene.connect();
        for &host in moved {
            await_end(scene.replace(host, &adapters(host, 1)), &scene, host);
            scene.await_status(host, |status| status.predecessors.is_empty());
        }
        let after = scene.connect();
        for [client, server] in [&before, &after] {
            send(client, 4, 100_000);
            receive(server, 4, 100_000);
            send(server, 5, 1000);
            receive(client, 5, 1000);
        }
        for host in [CLIENT, SERVER] {
            let links = scene.status(host).links;
            assert_eq!((links.len(), links[0].connections), (1, 2), "{moved:?} moved: {links:#?}");
        }
    }
}

/// A connection begins while there is no gateway, and one comes later.
fn begin_in_between(
    scene: &Scene,
    host: usize,
    words: &[String],
    kept: &OwnedFd,
) -> (Child, [End; 2]) {
    thread::scope(|scope| {
        let waiting = scope.spawn(|| scene.hand_over(scene.connection()));
        thread::sleep(Duration::from_millis(100));
        let gateway = scene.restore(host, words, kept);
        (gateway, waiting.join().unwrap())
    })
}

/// Gateways end one after the other, and each goes on later in another process: as where a service is restarted. What programs
/// say meanwhile, and connections that they begin, wait.
#[test]
fn what_a_gateway_leaves_goes_on_in_the_next_one() {
    let Some(mut scene) = Scene::without_gateways(1) else { return };
    let words = [CLIENT, SERVER].map(|host| scene.with_store(host, &adapters(host, 1)));
    [CLIENT, SERVER].into_iter().for_each(|host| scene.start(host, &words[host]));
    let [unread, sender] = scene.connect();
    let [client, server] = scene.connect();
    for (round, host) in [CLIENT, SERVER, CLIENT, SERVER].into_iter().enumerate() {
        let salt = round as u8;
        thread::scope(|scope| {
            // Of which most lies somewhere on the way when the gateway ends.
            scope.spawn(|| send(&sender, salt, 3 << 20));
            send(&client, salt, 10_000);
            let kept = scene.end_and_keep(host);
            send(&client, !salt, 10_000);
            send(&server, salt, 10_000);
            let (gateway, waiting) = begin_in_between(&scene, host, &words[host], &kept);
            scene.adopt(host, gateway);
            drop(kept);
            scene.expect(&waiting, Mode::SmcR);
            receive(&server, salt, 10_000);
            receive(&server, !salt, 10_000);
            receive(&client, salt, 10_000);
            receive(&unread, salt, 3 << 20);
        });
    }
    for host in [CLIENT, SERVER] {
        scene
            .await_status(host, |status| status.links.len() == 1 && status.predecessors.is_empty());
    }
    drop(client);
    receive_end(&server);
}

/// No other one begins, and what was left is closed.
#[test]
fn what_no_gateway_goes_on_with_is_reset() {
    let Some(mut scene) = Scene::without_gateways(1) else { return };
    let words = [CLIENT, SERVER].map(|host| scene.with_store(host, &adapters(host, 1)));
    [CLIENT, SERVER].into_iter().for_each(|host| scene.start(host, &words[host]));
    let ends = scene.hand_over(scene.connection());
    scene.expect(&ends, Mode::SmcR);
    let [client, server] = ends.map(|end| end.h);
    let kept = scene.end_and_keep(CLIENT);
    send(&server, 1, 1000);
    drop(kept);
    receive_reset(&client);
    receive_reset(&server);
    // The next one begins as if there had been none.
    scene.start(CLIENT, &words[CLIENT]);
    let [client, server] = scene.connect();
    send(&client, 1, 1000);
    receive(&server, 1, 1000);
}

/// Without the adapter that its links go over, the next gateway does not take a link group, and the one before goes on
/// with it.
#[test]
fn what_the_next_gateway_cannot_carry_stays() {
    let Some(mut scene) = Scene::new(2) else { return };
    let [client, server] = scene.connect();
    let mut before = scene.replace(CLIENT, &[format!("soft:{}", crate::scene::address(CLIENT, 1))]);
    scene.await_log(CLIENT, "goes on there", 1);
    for salt in 0..20 {
        send(&client, salt, 100_000);
        receive(&server, salt, 100_000);
    }
    assert!(before.try_wait().unwrap().is_none(), "{}", scene.log(CLIENT));
    drop([client, server]);
    await_end(before, &scene, CLIENT);
}

/// What a successor says of its versions: the state of link groups, and the layouts of shared memory.
fn version() -> u32 {
    const STATE: u8 = 2;
    let [slab, wake, state] = sidestep_device::stamp::layouts().map(|number| number as u8);
    u32::from_be_bytes([STATE, slab, wake, state])
}

fn say(line: &OwnedFd, message: Message) {
    let mut bytes = [0; EMITTED_LEN_MAX];
    let len = message.emit(&mut bytes).unwrap();
    net::send(line, &bytes[..len], SendFlags::NOSIGNAL).unwrap();
}

/// The next message. The descriptors beside it are closed.
fn hear(line: &OwnedFd) -> Message {
    let mut bytes = [0; EMITTED_LEN_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let len = net::recvmsg(line, &mut parts, &mut beside, RecvFlags::CMSG_CLOEXEC).unwrap().bytes;
    Message::parse(&bytes[..len]).unwrap()
}

/// Takes the place of the client's gateway, and nothing that comes with it but the line.
fn claim(scene: &Scene) -> OwnedFd {
    let line = scene.at(CLIENT, || {
        let kind = SocketType::SEQPACKET;
        let line = net::socket(AddressFamily::UNIX, kind, None).unwrap();
        net::connect(&line, &SocketAddrUnix::new_abstract_name(&gateway_name()).unwrap()).unwrap();
        line
    });
    net::sockopt::set_socket_timeout(&line, Timeout::Recv, Some(PATIENCE)).unwrap();
    say(&line, Message::Replace);
    while hear(&line) != Message::Replaced {}
    line
}

/// A successor that refuses, one that hangs up instead of an answer, and one of another version: the connections are
/// where they were, with every byte.
#[test]
fn what_is_not_taken_comes_back() {
    for answer in [Some(Message::NotTaken), None] {
        let Some(scene) = Scene::new(1) else { return };
        let pairs = [scene.connect(), scene.connect()];
        let [[unread, sender], [client, server]] = &pairs;
        let line = claim(&scene);
        thread::scope(|scope| {
            scope.spawn(|| send(sender, 9, 4 << 20));
            say(&line, Message::Admits(version()));
            while hear(&line) != Message::Migrant {}
            // They wait in the meantime.
            send(client, 1, 10_000);
            match answer {
                Some(answer) => say(&line, answer),
                None => shutdown(&line, net::Shutdown::Both).unwrap(),
            }
            receive(server, 1, 10_000);
            for salt in 0..20 {
                send(server, salt, 50_000);
                receive(client, salt, 50_000);
            }
            receive(unread, 9, 4 << 20);
        });
    }
}

#[test]
fn to_another_version_nothing_goes() {
    let Some(scene) = Scene::new(1) else { return };
    let [client, server] = scene.connect();
    let line = claim(&scene);
    say(&line, Message::Admits(version() ^ 1));
    scene.await_log(CLIENT, "they stay here", 1);
    send(&client, 1, 100_000);
    receive(&server, 1, 100_000);
}
