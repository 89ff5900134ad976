//! Bytes by SMC-R: requests, streams, ends of all kinds, many connections.

use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{self, RecvFlags, SendFlags, sockopt};
use sidestep_gateway::limits::N_KEEPALIVE;
use sidestep_gateway::status::{Connection, Mode};

use crate::scene::{CLIENT, PATIENCE, SERVER, Scene, adapters};
use crate::{receive, receive_end, receive_reset, reset, send};

#[test]
fn requests_of_all_sizes_are_answered() {
    let Some(scene) = Scene::new(1) else { return };
    let [client, server] = scene.connect();
    let sizes = [1, 2, 100, 1000, 1024, 16_384, 65_535, 65_536, 65_537, 200_000, 1 << 20];
    let play = |end: &_, first: fn(&_, u8, usize), then: fn(&_, u8, usize), salts: [u8; 2]| {
        for size in sizes {
            first(end, salts[0], size);
            then(end, salts[1], size);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| play(&server, receive, send, [1, 2]));
        play(&client, send, receive, [1, 2]);
    });
}

/// N is silent, and firewalls and address translation forget silent connections.
#[test]
fn the_silent_tcp_connection_is_kept_alive() {
    let Some(scene) = Scene::new(1) else { return };
    let connection = scene.connection();
    // One that its program has probed more often stays as it is.
    let often = Duration::from_secs(30);
    sockopt::set_socket_keepalive(&connection[1], true).unwrap();
    sockopt::set_tcp_keepidle(&connection[1], often).unwrap();
    let ends = scene.hand_over(connection);
    scene.expect(&ends, Mode::SmcR);
    for (end, idle) in ends.iter().zip([N_KEEPALIVE, often]) {
        assert!(sockopt::socket_keepalive(&end.n).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&end.n).unwrap(), idle);
    }
}

/// Both at once, and more than all buffers on the way hold.
fn stream(scene: &Scene, len: usize) {
    let [client, server] = scene.connect();
    thread::scope(|scope| {
        for (end, salt) in [(&client, 1), (&server, 2)] {
            scope.spawn(move || {
                send(end, salt, len);
                end.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                receive(end, 3 - salt, len);
                receive_end(end);
            });
        }
    });
}

#[test]
fn streams_go_both_ways_at_once() {
    let Some(scene) = Scene::new(1) else { return };
    stream(&scene, 20 << 20);
}

#[test]
fn streams_survive_loss() {
    let Some(mut scene) = Scene::without_gateways(1) else { return };
    for host in [CLIENT, SERVER] {
        let words = adapters(host, 1);
        scene.start(host, &[words, vec!["loss=0.5".to_owned()]].concat());
    }
    stream(&scene, 4 << 20);
}

#[test]
fn who_has_shut_still_receives() {
    let Some(scene) = Scene::new(1) else { return };
    let [client, server] = scene.connect();
    send(&client, 1, 10_000);
    client.shutdown(Shutdown::Write).unwrap();
    receive(&server, 1, 10_000);
    receive_end(&server);
    thread::scope(|scope| {
        scope.spawn(|| {
            send(&server, 2, 1 << 20);
            server.shutdown(Shutdown::Write).unwrap();
        });
        receive(&client, 2, 1 << 20);
        receive_end(&client);
    });
    for host in [CLIENT, SERVER] {
        scene.await_log(host, "over: InOrder", 1);
    }
}

#[test]
fn what_was_sent_before_the_close_arrives() {
    let Some(scene) = Scene::new(1) else { return };
    let [client, server] = scene.connect();
    thread::scope(|scope| {
        scope.spawn(move || send(&client, 1, 1 << 20));
        receive(&server, 1, 1 << 20);
        receive_end(&server);
    });
    drop(server);
    for host in [CLIENT, SERVER] {
        scene.await_log(host, "over: InOrder", 1);
    }
}

#[test]
fn a_reset_is_a_reset_for_the_peer() {
    let Some(scene) = Scene::new(1) else { return };
    let [client, server] = scene.connect();
    send(&client, 1, 1000);
    receive(&server, 1, 1000);
    reset(client);
    receive_reset(&server);
    let [client, server] = scene.connect();
    reset(server);
    receive_reset(&client);
}

#[test]
fn a_close_with_unread_bytes_is_a_reset() {
    let Some(scene) = Scene::new(1) else { return };
    let [client, server] = scene.connect();
    send(&server, 2, 1000);
    receive(&client, 2, 10);
    drop(client);
    receive_reset(&server);
}

/// Neither side reads: what is kept is bounded, and nothing is lost.
#[test]
fn who_does_not_read_stops_only_himself() {
    let Some(scene) = Scene::new(1) else { return };
    let [idle, sender] = scene.connect();
    let [client, server] = scene.connect();
    thread::scope(|scope| {
        let sending = scope.spawn(|| send(&sender, 2, 16 << 20));
        for _ in 0..100 {
            send(&client, 1, 5000);
            receive(&server, 1, 5000);
        }
        assert!(!sending.is_finished(), "somewhere 16 MB have been kept");
        receive(&idle, 2, 16 << 20);
    });
}

#[test]
fn connections_share_a_link_group() {
    let Some(scene) = Scene::new(1) else { return };
    let pairs: Vec<_> = (0..50).map(|_| scene.connect()).collect();
    for (nth, [client, server]) in pairs.iter().enumerate() {
        send(client, nth as u8, 3000);
        send(server, !(nth as u8), 3000);
    }
    for (nth, [client, server]) in pairs.iter().enumerate() {
        receive(server, nth as u8, 3000);
        receive(client, !(nth as u8), 3000);
    }
    for host in [CLIENT, SERVER] {
        let status = scene.status(host);
        let [link] = &status.links[..] else { panic!("one adapter, one link: {status:#?}") };
        assert_eq!(link.connections, 50);
        assert_eq!(link.usage.traffic.bytes_sent, 150_000);
        let [adapter] = &status.adapters[..] else { panic!("{status:#?}") };
        assert_eq!((adapter.links, adapter.is_up), (1, true));
        assert_eq!(adapter.pnet_id.as_deref(), Some("NET1"));
        assert_eq!(status.connections.len(), 50);
        let is_right = |it: &Connection| {
            it.mode == Mode::SmcR && it.traffic.bytes_received == 3000 && it.link == Some(link.link)
        };
        assert!(status.connections.iter().all(is_right), "{status:#?}");
    }
    for [client, server] in pairs {
        drop(client);
        receive_end(&server);
    }
    for host in [CLIENT, SERVER] {
        scene.await_log(host, "over: InOrder", 50);
        scene.await_status(host, |status| status.connections.is_empty());
        let log = scene.log(host);
        assert_eq!(log.matches("first contact").count(), 1, "{log}");
        assert_eq!(log.matches("further contact").count(), 49, "{log}");
    }
}

/// Each comes once, marked and in its place, whenever it comes.
#[test]
fn an_urgent_byte_is_one_for_the_peer() {
    let Some(scene) = Scene::new(1) else { return };
    let [client, server] = scene.connect();
    send_urgent_bytes(&client, &server);
    send_urgent_bytes(&server, &client);
}

/// Each with others right before and behind it: the gateway may be about to read when it comes.
pub(crate) fn send_urgent_bytes(from: &TcpStream, to: &TcpStream) {
    for before in 0..400 {
        send(from, 1, before);
        assert_eq!(net::send(from, b"!", SendFlags::OOB), Ok(1));
        receive(to, 1, before);
        receive_urgent_byte(to);
    }
    send(from, 2, 3000);
    receive(to, 2, 3000);
}

fn receive_urgent_byte(to: &TcpStream) {
    let mut fds = [PollFd::new(to, PollFlags::PRI)];
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut fds, Some(&patience)), Ok(1), "no urgent byte has come");
    let mut byte = [0];
    assert_eq!(net::recv(to, &mut byte, RecvFlags::OOB).map(|(_, len)| len), Ok(1));
    assert_eq!(&byte, b"!");
}

/// The gateway agrees with the peer meanwhile, and reads what has come.
#[test]
fn an_urgent_byte_may_come_before_the_agreement() {
    let Some(scene) = Scene::new(1) else { return };
    for pause_us in (0..300).step_by(3) {
        let ends = scene.hand_over(scene.connection());
        send(&ends[0].h, 1, 1);
        let sent = Instant::now();
        while sent.elapsed() < Duration::from_micros(pause_us) {}
        assert_eq!(net::send(&ends[0].h, b"!", SendFlags::OOB), Ok(1));
        receive(&ends[1].h, 1, 1);
        receive_urgent_byte(&ends[1].h);
    }
}

/// Who has handed over may send at once.
#[test]
fn bytes_from_before_the_agreement_are_the_first() {
    let Some(scene) = Scene::new(1) else { return };
    let ends = scene.hand_over(scene.connection());
    send(&ends[0].h, 1, 50_000);
    send(&ends[1].h, 2, 50_000);
    scene.expect(&ends, Mode::SmcR);
    receive(&ends[1].h, 1, 50_000);
    receive(&ends[0].h, 2, 50_000);
}
