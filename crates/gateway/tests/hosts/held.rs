//! Programs that keep the lock of a socket which they have handed over: what is others' goes on.
//!
//! A `send` whose bytes lie in memory that does not come (`userfaultfd` here, a silent FUSE file system elsewhere) holds the
//! lock of its socket in the kernel, and each call about that socket waits, in whatever process.

use std::fs::File;
use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::ptr;
use std::thread::{self, JoinHandle};

use rustix::ioctl::{self, Updater, opcode};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, munmap, userfaultfd};
use rustix::process::Uid;
use sidestep_gateway::status::Mode;
use sidestep_wire::RmbeSize;
use sidestep_wire::host_control::Side;

use crate::scene::{CLIENT, PATIENCE, SERVER, Scene};
use crate::stays::strangers;
use crate::{by_hand, receive, receive_end, receive_reset, send};

/// Bytes that are sent when the lock is let go.
const PAGE: usize = 4096;
/// Any but the gateway's.
const USER: u32 = 65_534;
const KEEPS: &str = "a program of user 65534 keeps the lock of its socket";
const LETS_GO: &str = "a program of user 65534 has let its socket go";

/// A socket whose lock a thread has, until this is let go.
struct Held {
    /// The kernel waits for its answer about the page.
    faults: File,
    sender: JoinHandle<()>,
}

/// `linux/userfaultfd.h`: the version that is wanted, and what there is.
#[repr(C)]
struct Api {
    version: u64,
    features: u64,
    ioctls: u64,
}

/// The same: memory whose missing pages are asked for.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

const GROUP: u8 = 0xAA;
const MODE_MISSING: u64 = 1;

impl Held {
    /// `None`, and a line that says why, where the kernel has no `userfaultfd`.
    fn hold(n: &TcpStream) -> Option<Self> {
        // SAFETY: nothing but the page below is registered with it.
        let faults = match unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC) } {
            Ok(faults) => faults,
            Err(error) => {
                eprintln!("skipped: userfaultfd: {error}");
                return None;
            }
        };
        // SAFETY: it is a mapping of its own.
        let page = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(ptr::null_mut(), PAGE, protection, MapFlags::PRIVATE)
        };
        let page = page.unwrap() as usize;
        let mut api = Api { version: GROUP.into(), features: 0, ioctls: 0 };
        let mut register =
            Register { start: page as u64, len: PAGE as u64, mode: MODE_MISSING, ioctls: 0 };
        // SAFETY: both are the structures of these calls.
        unsafe {
            const API: ioctl::Opcode = opcode::read_write::<Api>(GROUP, 0x3F);
            const REGISTER: ioctl::Opcode = opcode::read_write::<Register>(GROUP, 0);
            ioctl::ioctl(&faults, Updater::<API, _>::new(&mut api)).unwrap();
            ioctl::ioctl(&faults, Updater::<REGISTER, _>::new(&mut register)).unwrap();
        }
        let socket = n.try_clone().unwrap();
        let sender = thread::spawn(move || {
            // SAFETY: it is a page that this thread alone uses, and nothing does after it.
            unsafe {
                let _ = libc::send(
                    std::os::fd::AsRawFd::as_raw_fd(&socket),
                    page as *const libc::c_void,
                    PAGE,
                    libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
                );
                munmap(page as *mut _, PAGE).unwrap();
            }
        });
        let mut faults = File::from(faults);
        // The page is asked for: the lock is taken.
        assert!(faults.read(&mut [0; 32]).unwrap() > 0);
        Some(Self { faults, sender })
    }

    /// The page comes, and is sent.
    fn let_go(self) {
        drop(self.faults);
        self.sender.join().unwrap();
    }
}

/// Hands a connection over as another user; nothing is waited for.
fn hand_over(scene: &Scene, host: usize, n: &TcpStream) -> TcpStream {
    let side = if host == CLIENT { Side::Client } else { Side::Server };
    let h = scene.at(host, || {
        // Of this thread only.
        rustix::thread::set_thread_uid(Uid::from_raw(USER)).unwrap();
        by_hand::hand_over(n, side, RmbeSize::DEFAULT).unwrap()
    });
    h.set_read_timeout(Some(PATIENCE)).unwrap();
    h
}

/// Old connections and new ones go on at a host, of root and of others.
fn others_go_on(scene: &Scene, [client, server]: &[TcpStream; 2], mode: Mode) {
    send(client, 1, 1000);
    receive(server, 1, 1000);
    let ends = scene.hand_over(scene.connection());
    scene.expect(&ends, mode);
    let [client, server] = ends.map(|end| end.h);
    send(&client, 2, 100_000);
    receive(&server, 2, 100_000);
    client.shutdown(Shutdown::Write).unwrap();
    receive_end(&server);
}

#[test]
fn one_that_is_handed_over_under_lock_keeps_nobody_elses_waiting() {
    let Some(scene) = Scene::new(1) else { return };
    let ends = scene.connect();
    for host in [CLIENT, SERVER] {
        let [client, server] = scene.connection();
        let n = if host == CLIENT { &client } else { &server };
        let Some(held) = Held::hold(n) else { return };
        let first = hand_over(&scene, host, n);
        scene.await_log(host, KEEPS, 1);
        others_go_on(&scene, &ends, Mode::SmcR);
        // What that user hands over meanwhile waits.
        let [second, _peer] = scene.connection();
        let second = hand_over(&scene, host, &second);
        others_go_on(&scene, &ends, Mode::SmcR);
        held.let_go();
        scene.await_log(host, LETS_GO, 1);
        others_go_on(&scene, &ends, Mode::SmcR);
        let ports = [&first, &second].map(|h| h.local_addr().unwrap().port());
        scene.await_status(host, |status| {
            ports.iter().all(|port| status.connections.iter().any(|it| it.port == *port))
        });
    }
}

#[test]
fn one_whose_bytes_are_passed_on_keeps_nobody_elses_waiting_and_loses_none() {
    let Some(scene) = strangers() else { return };
    let relayed = scene.hand_over(scene.connection());
    scene.expect(&relayed, Mode::Tcp);
    let ends = relayed.map(|end| end.h);
    let [client, server] = scene.connection();
    let [h, peer] = [hand_over(&scene, CLIENT, &client), hand_over(&scene, SERVER, &server)];
    scene.expect_at(CLIENT, &h, Mode::Tcp);
    scene.expect_at(SERVER, &peer, Mode::Tcp);
    send(&h, 3, 1000);
    receive(&peer, 3, 1000);
    let Some(held) = Held::hold(&server) else { return };
    // The gateway of the server wants to pass these on, and the thread that does is away.
    send(&peer, 4, 1000);
    scene.await_log(SERVER, KEEPS, 1);
    others_go_on(&scene, &ends, Mode::Tcp);
    send(&peer, 5, 1000);
    others_go_on(&scene, &ends, Mode::Tcp);
    held.let_go();
    scene.await_log(SERVER, LETS_GO, 1);
    // What the program has sent by N itself comes first.
    let mut page = vec![1; PAGE];
    (&h).read_exact(&mut page).unwrap();
    assert!(page.iter().all(|byte| *byte == 0));
    receive(&h, 4, 1000);
    receive(&h, 5, 1000);
    peer.shutdown(Shutdown::Write).unwrap();
    receive_end(&h);
}

/// By SMC-R there is nothing to ask N: the connection itself goes on.
#[test]
fn one_that_goes_by_smc_r_goes_on() {
    let Some(scene) = Scene::new(1) else { return };
    let ends = scene.connect();
    let [client, server] = scene.connection();
    let moved = [hand_over(&scene, CLIENT, &client), hand_over(&scene, SERVER, &server)];
    scene.expect_at(CLIENT, &moved[0], Mode::SmcR);
    scene.expect_at(SERVER, &moved[1], Mode::SmcR);
    let Some(held) = Held::hold(&client) else { return };
    let [h, peer] = moved;
    send(&h, 3, 100_000);
    receive(&peer, 3, 100_000);
    others_go_on(&scene, &ends, Mode::SmcR);
    // Its end is told, and N is let go by a thread that waits by itself.
    drop(h);
    receive_end(&peer);
    drop(peer);
    others_go_on(&scene, &ends, Mode::SmcR);
    assert!(client.as_fd().try_clone_to_owned().is_ok());
    held.let_go();
}

/// Rules that have changed are about those that cannot be asked as well: they are reset.
#[test]
fn one_that_cannot_be_asked_is_reset_when_rules_of_the_filter_change() {
    let Some(scene) = strangers() else { return };
    let ends = scene.hand_over(scene.connection());
    scene.expect(&ends, Mode::Tcp);
    let ends = ends.map(|end| end.h);
    let [client, server] = scene.connection();
    let [h, peer] = [hand_over(&scene, CLIENT, &client), hand_over(&scene, SERVER, &server)];
    scene.expect_at(CLIENT, &h, Mode::Tcp);
    scene.expect_at(SERVER, &peer, Mode::Tcp);
    let Some(held) = Held::hold(&server) else { return };
    send(&peer, 4, 1000);
    scene.await_log(SERVER, KEEPS, 1);
    let denied = || sidestep_gateway::status::judge_again().unwrap();
    thread::scope(|scope| {
        let asked = scope.spawn(|| scene.at(SERVER, denied));
        others_go_on(&scene, &ends, Mode::Tcp);
        assert_eq!(asked.join().unwrap(), 1);
    });
    held.let_go();
    receive_reset(&peer);
    others_go_on(&scene, &ends, Mode::Tcp);
}
