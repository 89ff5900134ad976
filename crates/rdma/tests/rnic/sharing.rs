//! Several RNICs at one address. For the kernel it makes no difference that one process has them.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};

use sidestep_rdma::soft::Rnic;
use sidestep_rdma::soft::port::Settings;
use sidestep_rdma::soft::sharing::Slot;

use crate::pair::Pair;

fn open(address: &str) -> Rnic {
    let settings = Settings { is_shared: true, ..Settings::default() };
    Rnic::open(address.parse().unwrap(), &settings).unwrap()
}

/// Pairs whose first ends share an address; the others have addresses of their own.
fn pairs(third: u8, count: u8) -> Vec<Pair> {
    let own = |number| format!("127.0.{third}.{number}");
    (0..count).map(|n| Pair::new([open(&own(100)), open(&own(n + 1))], 1024)).collect()
}

fn slot(pair: &Pair) -> Slot {
    Slot::of(pair.ends[0].qp)
}

#[test]
fn datagrams_go_to_the_process_of_their_slot() {
    let mut pairs = pairs(60, 4);
    let slots: Vec<Slot> = pairs.iter().map(slot).collect();
    assert_eq!(slots, [0, 1, 2, 3].map(|slot| Slot::new(slot).unwrap()));
    // Each is turned alone: nobody needs the others to be awake.
    pairs.iter_mut().for_each(|pair| pair.exchange(5));
    for pair in &mut pairs {
        let drops = pair.ends[0].rnic.adapter().drops();
        assert_eq!(drops, Default::default());
    }
}

#[test]
fn those_who_stay_do_not_notice_who_comes_and_goes() {
    let mut pairs = pairs(61, 4);
    // The last one is moved to the place of the first, and later to that of the second.
    for _ in 0..2 {
        drop(pairs.remove(0));
        for _ in 0..3 {
            pairs.iter_mut().for_each(exchange_beside);
        }
    }
    let back = Pair::new([open("127.0.61.100"), open("127.0.61.9")], 1024);
    assert_eq!(slot(&back), Slot::new(0).unwrap(), "the first that is free");
    pairs.push(back);
    pairs.iter_mut().for_each(exchange_beside);
}

/// One message each way, however long the group takes to find itself.
fn exchange_beside(pair: &mut Pair) {
    let ids = pair.ends.each_ref().map(|end| end.completed.len() as u64);
    for (end, id) in pair.ends.iter_mut().zip(ids) {
        end.post_send(id, b"still there?");
    }
    pair.run_until(|ends| ends.iter().zip(ids).all(|(end, id)| end.completed.len() as u64 > id));
}

/// Where [`member`] joins; and what it says when it has.
const MEMBER_AT: &str = "RNIC_MEMBER_AT";
const JOINED: &str = "joined";

/// Not a test by itself: another process, that joins and waits for its end.
#[test]
#[ignore = "a process that others begin"]
fn member() {
    let Ok(address) = std::env::var(MEMBER_AT) else { return };
    let rnic = open(&address);
    println!("{JOINED}");
    let _ = std::io::stdin().read(&mut [0]);
    drop(rnic);
}

/// Begins one.
fn begin_member(address: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "sharing::member", "--ignored", "--nocapture"]);
    command.env(MEMBER_AT, address).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let joined = lines.map_while(Result::ok).any(|line| line.contains(JOINED));
    assert!(joined, "it has ended before");
    child
}

#[test]
fn a_process_that_is_killed_takes_nobody_with_it() {
    let mut strangers = [0, 1].map(|_| begin_member("127.0.63.100"));
    let mut pairs = pairs(63, 2);
    assert_eq!(pairs.iter().map(slot).collect::<Vec<_>>(), [2, 3].map(|n| Slot::new(n).unwrap()));
    pairs.iter_mut().for_each(exchange_beside);
    for stranger in &mut strangers {
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        pairs.iter_mut().for_each(exchange_beside);
    }
    pairs.iter_mut().for_each(|pair| (0..20).for_each(|_| exchange_beside(pair)));
}

#[test]
fn what_reaches_the_wrong_process_is_handed_over() {
    let [mut first, mut second]: [Pair; 2] = pairs(62, 2).try_into().unwrap_or_else(|_| panic!());
    // Somebody lets the kernel give everything to the first.
    let all_to_first = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: 1, filter: all_to_first.as_ptr().cast_mut() };
    let socket = first.ends[0].rnic.port().receiver().as_raw_fd();
    // SAFETY: the program is there during the call, with its length.
    let result = unsafe {
        let option = libc::SO_ATTACH_REUSEPORT_CBPF;
        let len = size_of_val(&program) as u32;
        libc::setsockopt(socket, libc::SOL_SOCKET, option, (&raw const program).cast(), len)
    };
    assert_eq!(result, 0);
    second.ends[0].post_send(0, b"first");
    second.ends[1].post_send(0, b"second");
    second.turn();
    first.turn();
    second.turn();
    assert_eq!(second.ends[0].received, [b"second"], "by way of the first");
    second.run_until(|ends| ends.iter().all(|end| end.completed == [0]));
    // And soon the right program is back: the first may sleep.
    (0..10).for_each(|_| exchange_beside(&mut second));
}

#[test]
fn both_ends_have_the_only_address_of_ipv6() {
    let mut pair = Pair::new([open("::1"), open("::1")], 4096);
    pair.exchange(20);
}
