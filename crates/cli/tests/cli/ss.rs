//! `sidestep ss`: the connections of this very process, which keeps a state as a Sidestep
//! program does.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use serde_json::Value;
use sidestep_device::state::{self, Slot, State, mode};
use sidestep_proto::fallback::{Field, Lack, Reason};

use crate::support::{Place, outcome};

/// A state with connections from port `port`, of which the first two are shown by default: one
/// in shared memory, one on TCP to a plain peer, and one that is closed.
///
/// It stays open until the tests are done, so `port` must be the test's own.
fn state(port: u32) -> State {
    let (state, _) = state::create(std::process::id(), [0, 0]).unwrap();
    let modes = [mode::SMC_D, mode::TCP, mode::LINGERING];
    state.header().slots_used.store(3, Ordering::Relaxed);
    for (index, mode) in modes.into_iter().enumerate() {
        fill(state.slot(index), port, mode);
    }
    /// The word of `PeerCannot::PeerNotSmc`.
    const PEER_NOT_SMC: u64 = 3;
    state.slot(1).reason.store(PEER_NOT_SMC, Ordering::Relaxed);
    state
}

fn fill(slot: &Slot, port: u32, mode: u32) {
    let loopback = 0x7f00_0001;
    slot.user_pid.store(std::process::id(), Ordering::Relaxed);
    slot.local_port.store(port, Ordering::Relaxed);
    slot.peer_port.store(80, Ordering::Relaxed);
    slot.local_ip[0].store(loopback, Ordering::Relaxed);
    slot.peer_ip[0].store(loopback, Ordering::Relaxed);
    slot.family.store(4, Ordering::Relaxed);
    slot.receive_ring_len.store(65_536, Ordering::Relaxed);
    slot.send_ring_len.store(65_536, Ordering::Relaxed);
    slot.counters.bytes_sent.store(2048, Ordering::Relaxed);
    slot.counters.messages_sent.store(2, Ordering::Relaxed);
    slot.mode.store(mode, Ordering::Release);
}

/// `sidestep ss --pid PID ARGUMENTS` for this process.
fn ss(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.sidestep(None);
    command.args(["ss", "--pid", &std::process::id().to_string()]);
    command.args(arguments);
    command
}

fn stdout(command: &mut Command) -> String {
    let (status, output, errors) = outcome(command);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    output
}

/// The rows of `sidestep ss --json` with this local port.
fn rows(place: &Place, port: u32, arguments: &[&str]) -> Vec<Value> {
    let output = stdout(ss(place, arguments).arg("--json"));
    let rows: Vec<Value> = serde_json::from_str(&output).unwrap();
    let local = format!("127.0.0.1:{port}");
    let of_port = |row: &Value| row["local"] == local.as_str();
    rows.into_iter().filter(of_port).collect()
}

#[test]
fn lists_what_a_program_keeps() {
    let place = Place::new();
    state(3001);
    let rows = rows(&place, 3001, &[]);
    assert_eq!(rows.len(), 2, "{rows:#?}");
    assert_eq!(rows[0]["mode"], "SMC-D");
    assert_eq!(rows[0]["pid"], std::process::id());
    assert_eq!(rows[0]["peer"], "127.0.0.1:80");
    assert_eq!(rows[0]["rmbe_local"], 65_536);
    assert_eq!(rows[0]["bytes_sent"], 2048);
    assert_eq!(rows[0]["reason"], Value::Null);
    assert_eq!(rows[1]["mode"], "TCP");
    assert_eq!(rows[1]["rmbe_local"], 0);
    assert_eq!(rows[1]["reason"]["code"], "0x03010000");
    assert_eq!(rows[1]["reason"]["name"], "PEERNOSMC");
}

#[test]
fn names_the_field_by_which_a_peer_broke_the_protocol() {
    let place = Place::new();
    let state = state(3009);
    let told = |reason: Reason| {
        state.slot(1).reason.store(reason.word(), Ordering::Relaxed);
        rows(&place, 3009, &[])[1]["reason"].clone()
    };
    let broke = told(Reason::PeerBroke(Field::HELLO_RMBE_LEN));
    assert_eq!(
        (&broke["blame"], &broke["field"]),
        (&"protocol".into(), &"Hello RMBE length".into())
    );
    assert_eq!(broke["text"], "the peer's messages made no sense: Hello RMBE length");
    let own = told(Lack::NameTaken.into());
    assert_eq!((&own["blame"], &own["field"]), (&"lack".into(), &Value::Null));
    // As a later version might write.
    let unknown = told(Reason::Unknown(222));
    let words = "a reason that this version of Sidestep does not know (code 222)";
    assert_eq!((&unknown["blame"], &unknown["text"]), (&Value::Null, &words.into()));
}

#[test]
fn lists_closed_connections_only_with_all() {
    let place = Place::new();
    state(3002);
    let rows = rows(&place, 3002, &["--all"]);
    let modes: Vec<_> = rows.iter().map(|row| &row["mode"]).collect();
    assert_eq!(modes, ["SMC-D", "TCP", "SMC-D"]);
}

#[test]
fn the_table_has_header_rows_and_totals() {
    let place = Place::new();
    state(3003);
    let output = stdout(&mut ss(&place, &[]));
    let lines: Vec<_> = output.lines().collect();
    assert!(lines[0].starts_with("Mode "), "{output}");
    assert!(lines.last().unwrap().starts_with("Connections: "), "{output}");
    let line = |mode| {
        let of_mode = |line: &&&str| line.starts_with(mode) && line.contains("127.0.0.1:3003 ");
        lines.iter().find(of_mode).unwrap_or_else(|| panic!("{output}"))
    };
    assert!(line("SMC-D").contains(" 64 KB/64 KB "), "{output}");
    assert!(line("SMC-D").contains(" 2 KB (2) "), "{output}");
    assert!(line("TCP").ends_with(" 0x03010000 the peer does not run Sidestep"), "{output}");
}

#[test]
fn totals_include_connections_that_have_ended() {
    let place = Place::new();
    let state = state(3005);
    state.slot(0).counters.ring_bytes_sent.store(2048, Ordering::Relaxed);
    // How this test knows its own program among those of the others.
    let spin_ns = 3005 << 32;
    state.slot(0).counters.spin_ns.store(spin_ns, Ordering::Relaxed);
    state.free_slot(0, 0);
    state.free_slot(1, 0);
    let output = stdout(&mut ss(&place, &["--totals", "--json"]));
    let programs: Vec<Value> = serde_json::from_str(&output).unwrap();
    let own = programs.iter().find(|program| program["spin_ns"] == spin_ns).unwrap();
    assert_eq!(own["pids"][0], std::process::id());
    assert_eq!(own["smc_connections"], 1);
    assert_eq!(own["tcp_connections"], 2);
    assert_eq!(own["undecided"], 1);
    assert_eq!(own["bytes_sent"], 3 * 2048);
    assert_eq!(own["reasons"][0]["name"], "PEERNOSMC");
    assert_eq!(own["reasons"][0]["connections"], 1);

    let output = stdout(&mut ss(&place, &["--totals"]));
    assert!(output.contains(" 1 x 0x03010000 the peer does not run Sidestep\n"), "{output}");
    assert!(output.lines().last().unwrap().starts_with("Programs: "), "{output}");
    let (status, _, errors) = outcome(&mut ss(&place, &["--totals", "--all"]));
    assert_eq!(status, Some(2), "{errors}");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let place = Place::new();
    state(3004);
    // With SIGPIPE as a shell leaves it, and ignored, as some programs start their children.
    for handling in [libc::SIG_DFL, libc::SIG_IGN] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut command = ss(&place, &[]);
        command.stdout(writer).stderr(Stdio::piped());
        let set_handling = move || {
            // SAFETY: no handler is installed, only a disposition.
            unsafe { libc::signal(libc::SIGPIPE, handling) };
            Ok(())
        };
        // SAFETY: `signal` may be called between fork and exec.
        unsafe { command.pre_exec(set_handling) };
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
        let by_signal = handling == libc::SIG_DFL;
        assert_eq!(output.status.code(), if by_signal { None } else { Some(0) });
    }
}

#[test]
fn a_process_without_connections_or_without_existence_is_said_so() {
    let place = Place::new();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = child.id().to_string();
    let output = stdout(place.sidestep(None).args(["ss", "--pid", &pid]));
    assert_eq!(output, format!("process {pid} has no Sidestep connections\n"));
    let output = stdout(place.sidestep(None).args(["ss", "--json", "--pid", &pid]));
    assert_eq!(output, "[]\n");
    child.kill().unwrap();
    child.wait().unwrap();

    let mut command = place.sidestep(None);
    let (status, output, errors) = outcome(command.args(["ss", "--pid", "1073741824"]));
    assert_eq!((status, output.as_str()), (Some(1), ""));
    assert_eq!(errors, "sidestep ss: there is no process 1073741824\n");
}
