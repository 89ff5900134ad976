//! Connections of processes in a cgroup, with and without the redirect.
//!
//! The processes are this test binary again, in a [`role`]; the tests need privilege
//! and say what they lacked when they skip.

mod role;

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use role::{Conversation, Process};
use sidestep_bpf::{Cgroup, Counters, Sockmap, available};

/// Ends the test, with a word, where BPF or cgroups may not be used.
macro_rules! need_privilege {
    () => {
        let _one_at_a_time = one_at_a_time();
        if let Err(lacking) = available() {
            println!("skipped: {lacking}");
            return;
        }
    };
}

#[test]
fn ten_thousand_messages_arrive_byte_for_byte() {
    need_privilege!();
    let run = run("127.0.0.1:0", "127.0.0.1", Conversation::Echo { messages: 10_000 });
    assert_eq!(run.counters.joined, 2);
    assert!(run.counters.redirected >= 20_000, "{:?}", run.counters);
    assert_eq!(run.counters.by_tcp, 0, "{:?}", run.counters);
    assert!(run.bytes_by_tcp <= HANDSHAKE_BYTES, "{} bytes went by TCP", run.bytes_by_tcp);
}

#[test]
fn a_stream_is_whole_when_its_receiver_pauses() {
    need_privilege!();
    let run = run("127.0.0.1:0", "127.0.0.1", Conversation::Stream { bytes: 64 << 20 });
    assert!(run.counters.redirected > 0 && run.counters.by_tcp == 0, "{:?}", run.counters);
}

#[test]
fn connections_of_ipv6_are_redirected() {
    need_privilege!();
    let run = run("[::1]:0", "[::1]", Conversation::Echo { messages: 100 });
    assert!(run.counters.redirected >= 200, "{:?}", run.counters);
}

#[test]
fn ends_of_two_families_find_each_other() {
    need_privilege!();
    let run = run("[::]:0", "127.0.0.1", Conversation::Echo { messages: 100 });
    assert!(run.counters.redirected >= 200, "{:?}", run.counters);
}

/// The accepted end of each connection is made by its first message, which therefore
/// goes by TCP and lies in another queue than what would be handed over behind it.
#[test]
fn order_is_kept_when_the_first_message_makes_the_other_end() {
    need_privilege!();
    let run = run("127.0.0.1:0", "127.0.0.1", Conversation::Deferred { connections: 200 });
    assert_eq!(run.counters.joined, 400);
    assert_eq!(run.counters.by_tcp, 3 * 200, "every message behind the first follows it");
}

#[test]
fn order_is_kept_for_messages_right_after_connect() {
    need_privilege!();
    let run = run("127.0.0.1:0", "127.0.0.1", Conversation::Prompt { connections: 300 });
    let Counters { joined, redirected, by_tcp } = run.counters;
    println!("of {} messages right after connect {by_tcp} went by TCP", redirected + by_tcp);
    assert_eq!((joined, redirected + by_tcp), (600, 900));
}

#[test]
fn connections_of_other_processes_stay_what_they_are() {
    need_privilege!();
    let cgroup = Cgroup::create_for_run().unwrap();
    let sockmap = Sockmap::attach(cgroup.path()).unwrap();
    let conversation = Conversation::Echo { messages: 100 };
    let mut server = Process::server("127.0.0.1:0", conversation, None);
    let mut client = Process::client("127.0.0.1", server.port(), conversation, None);
    let bytes_by_tcp = client.bytes_by_tcp();
    assert!(bytes_by_tcp > HANDSHAKE_BYTES, "{bytes_by_tcp}");
    assert_eq!(sockmap.counters().unwrap(), Counters::default());
}

#[test]
fn nothing_is_left_behind() {
    need_privilege!();
    let cgroup = Cgroup::create_for_run().unwrap();
    let sockmap = Sockmap::attach(cgroup.path()).unwrap();
    let mut idle = Process::idle(&cgroup);
    let programs = own_programs();
    assert_eq!(programs.len(), 2);
    assert!(programs.is_subset(&loaded_programs()));

    let path = cgroup.path().to_owned();
    drop(sockmap);
    drop(cgroup);
    assert!(!path.exists(), "a process in the group does not keep it");
    assert!(idle.is_running(), "and is not ended");
    // The kernel frees them behind our back.
    let patience = Instant::now() + Duration::from_secs(300);
    while !programs.is_disjoint(&loaded_programs()) {
        assert!(Instant::now() < patience, "programs stay loaded");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What came of a conversation.
struct Run {
    counters: Counters,
    /// Bytes of the client that TCP had acknowledged at the end.
    bytes_by_tcp: u64,
}

/// SYN and FIN count as bytes.
const HANDSHAKE_BYTES: u64 = 2;

/// Two processes of a cgroup talk; their counts are taken when both have ended well.
fn run(listen: &str, connect: &str, conversation: Conversation) -> Run {
    let cgroup = Cgroup::create_for_run().unwrap();
    let sockmap = Sockmap::attach(cgroup.path()).unwrap();
    let mut server = Process::server(listen, conversation, Some(&cgroup));
    let mut client = Process::client(connect, server.port(), conversation, Some(&cgroup));
    let bytes_by_tcp = client.bytes_by_tcp();
    client.ended_well();
    server.ended_well();
    Run { counters: sockmap.counters().unwrap(), bytes_by_tcp }
}

/// Descriptors are counted, and there are two CPUs on a small machine.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Identifiers of the programs that this process has descriptors of.
fn own_programs() -> BTreeSet<u32> {
    let descriptors = fs::read_dir("/proc/self/fdinfo").unwrap();
    let infos = descriptors.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    let is_program = |info: &String| info.contains("prog_type:");
    infos.filter(is_program).filter_map(|info| number_behind(&info, "prog_id:")).collect()
}

fn number_behind(text: &str, label: &str) -> Option<u32> {
    text.lines().find_map(|line| line.strip_prefix(label)?.trim().parse().ok())
}

fn loaded_programs() -> BTreeSet<u32> {
    aya::programs::loaded_programs().map(|program| program.unwrap().id()).collect()
}

/// `127.0.0.1` or `[::1]`, and a port.
fn socket_address(host: &str, port: u16) -> SocketAddr {
    format!("{host}:{port}").parse().unwrap()
}
