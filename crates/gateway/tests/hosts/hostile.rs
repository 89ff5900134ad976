//! Callers that say what they should not: nobody else notices.

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use rustix::process::{Pid, Signal, kill_process};
use sidestep_gateway::status::Mode;
use sidestep_wire::RmbeSize;
use sidestep_wire::hand_over::{EMITTED_LEN_MAX, HandOver, Message};
use sidestep_wire::host_control::Side;

use crate::by_hand::Line;
use crate::scene::{CLIENT, PATIENCE, SERVER, Scene};
use crate::{receive, receive_reset, send};

fn message(port: u16) -> Vec<u8> {
    let hand_over = HandOver { side: Side::Client, port, rmbe: RmbeSize::DEFAULT };
    let mut bytes = vec![0; EMITTED_LEN_MAX];
    let len = Message::HandOver(hand_over).emit(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

#[test]
fn nonsense_is_hung_up_on() {
    let Some(scene) = Scene::new(1) else { return };
    let [client, server] = scene.connect();
    let [n, _peer] = scene.connection();
    let message = message(1);
    scene.at(CLIENT, || {
        let line = || Line::call().unwrap();
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let no_tcp = TcpStream::from(std::os::fd::OwnedFd::from(socket));
        line().send(b"hello", &[&n]).unwrap();
        line().send(&message, &[]).unwrap();
        line().send(&message, &[&n, &n]).unwrap();
        line().send(&message, &[&no_tcp]).unwrap();
        line().send(&message[..19], &[&n]).unwrap();
        line().send(&[&message[..], &[0; 2000]].concat(), &[&n]).unwrap();
    });
    scene.await_log(CLIENT, "hands over what is no connection", 6);
    send(&client, 1, 1000);
    receive(&server, 1, 1000);
}

/// The last close of a TCP connection with unsent bytes and `SO_LINGER` sleeps: that of what is no
/// hand-over, and that of a line in which such a message lies unread.
#[test]
fn what_sleeps_when_it_is_closed_holds_up_nobody() {
    let Some(scene) = Scene::new(1) else { return };
    let [client, server] = scene.connect();
    let sleeper = || {
        let [n, peer] = scene.connection();
        n.set_nonblocking(true).unwrap();
        while (&n).write(&[0; 1 << 16]).is_ok() {}
        sockopt::set_socket_linger(&n, Some(LINGER)).unwrap();
        (n, peer)
    };
    // The gateway is to have the last descriptor of each, so it reads when all others are closed.
    let lines = scene.at(CLIENT, || [(); 2].map(|()| Line::call().unwrap()));
    let gateway = Pid::from_raw(scene.pid(CLIENT) as i32).unwrap();
    kill_process(gateway, Signal::STOP).unwrap();
    let said = [b"nonsense".to_vec(), message(1)];
    let _peers = lines.each_ref().map(|line| {
        let [(first, peer), (second, other_peer)] = [(); 2].map(|()| sleeper());
        line.send(&said[0], &[&first]).unwrap();
        // Behind what is hung up on, this is not read any more.
        line.send(&said[1], &[&second]).unwrap();
        (peer, other_peer)
    });
    drop(lines);
    kill_process(gateway, Signal::CONT).unwrap();
    scene.await_log(CLIENT, "hands over what is no connection", 1);
    let begin = Instant::now();
    send(&client, 1, 1000);
    receive(&server, 1, 1000);
    let ends = scene.hand_over(scene.connection());
    scene.expect(&ends, Mode::SmcR);
    assert!(begin.elapsed() < LINGER, "{:?}", begin.elapsed());
}

/// Longer than anything else takes.
const LINGER: Duration = Duration::from_secs(600);

/// Each half waits for the other, in vain.
#[test]
fn halves_are_let_go() {
    let Some(scene) = Scene::new(1) else { return };
    let [client, server] = scene.connect();
    let [n, _peer] = scene.connection();
    let h = scene.at(CLIENT, || {
        let line = Line::call().unwrap();
        line.send(&message(1), &[&n]).unwrap();
        line.connect().unwrap()
    });
    h.set_read_timeout(Some(PATIENCE)).unwrap();
    receive_reset(&h);
    send(&client, 1, 1000);
    receive(&server, 1, 1000);
}

#[test]
fn floods_of_halves_are_bounded() {
    let Some(scene) = Scene::new(1) else { return };
    let [client, server] = scene.connect();
    let [n, _peer] = scene.connection();
    let _halves: Vec<TcpStream> = scene.at(CLIENT, || {
        let line = Line::call().unwrap();
        (1..=1500).for_each(|port| line.send(&message(port), &[&n]).unwrap());
        (0..1500).map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, line.port)).unwrap()).collect()
    });
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", scene.pid(CLIENT))).unwrap();
    let count = descriptors.count();
    assert!(count < 2 * sidestep_gateway::limits::WAITING_MAX + 100, "{count}");
    send(&client, 1, 1000);
    receive(&server, 1, 1000);
    let ends = scene.hand_over(scene.connection());
    scene.expect(&ends, Mode::SmcR);
}

/// A program of another user that knows where H comes from cannot have its bytes.
#[test]
fn nobody_can_hand_over_for_another_user() {
    let Some(scene) = Scene::new(1) else { return };
    let ends = scene.connection();
    let h = scene.at(CLIENT, || Line::call().unwrap().connect().unwrap());
    let port = h.local_addr().unwrap().port();
    let [n, _] = &ends;
    scene.at(CLIENT, || {
        // Of this thread only.
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).unwrap();
        Line::call().unwrap().send(&message(port), &[n]).unwrap();
    });
    h.set_read_timeout(Some(PATIENCE)).unwrap();
    receive_reset(&h);
    let log = scene.log(CLIENT);
    assert!(!log.contains("connection 1"), "{log}");
}

#[test]
fn the_status_is_not_for_everybody() {
    let Some(scene) = Scene::new(1) else { return };
    assert_eq!(scene.status(CLIENT).adapters.len(), 1);
    scene.at(CLIENT, || {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).unwrap();
        assert!(sidestep_gateway::status::Status::ask().is_err());
    });
    scene.await_log(CLIENT, "user 65534 hands over what is no connection: StatusRequest", 1);
}

#[test]
fn a_namespace_has_one_gateway() {
    let Some(scene) = Scene::new(1) else { return };
    let settings = sidestep_gateway::Settings::default();
    let error = scene.at(SERVER, || sidestep_gateway::Gateway::open(settings).unwrap_err());
    let words = error.to_string();
    assert!(words.starts_with("there is a gateway in this network namespace already"), "{words}");
}
