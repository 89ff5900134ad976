//! `sidestep bench`: real runs, short ones, and what it says when there can be none.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use procfs::process::{MountInfo, Process, Stat};
use serde_json::{Value, json};

use crate::support::{Place, outcome};
use crate::talk::Talk;

/// A few transactions of each client, every byte compared.
const SHORT: [&str; 5] = ["--verify", "--runs", "2", "--count", "40"];

/// `sidestep bench ARGUMENTS`.
fn bench(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.sidestep(None);
    command.arg("bench").args(arguments);
    command
}

/// Measures, and returns the exit status and the JSON.
fn measure(command: &mut Command, place: &Place) -> (Option<i32>, Value) {
    let path = place.path().join("result.json");
    let (status, _, errors) = outcome(command.arg("--json").arg(&path));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("no result: {errors}"));
    (status, serde_json::from_str(&text).unwrap())
}

fn refusal(place: &Place, arguments: &[&str]) -> (Option<i32>, String) {
    let (status, _, errors) = outcome(&mut bench(place, arguments));
    (status, errors)
}

#[test]
fn every_kind_runs_over_every_transport_that_needs_no_library() {
    let place = Place::new();
    let workloads = ["RR3(100B/3KB)", "CRR2(64B/8KB)", "STR1(1B/300KB)"];
    for model in ["threads", "processes", "event-loop"] {
        let mut command = bench(&place, &SHORT);
        command.args(["--over", "tcp,unix", "--model", model]).args(workloads);
        let (status, result) = measure(&mut command, &place);
        assert_eq!(status, Some(0), "{model}");
        let cells = result["results"].as_array().unwrap();
        assert_eq!(cells.len(), workloads.len() * 2);
        for cell in cells {
            let clients = cell["workload"].as_str().unwrap().split(['R', '(']).rev().nth(1);
            let clients: u64 = clients.unwrap().parse().unwrap();
            for run in cell["samples"].as_array().unwrap() {
                assert_eq!(run["transactions"], 40 * clients, "{cell:#}");
            }
            assert_eq!(cell["runs"], 2);
            assert!(cell["tps"]["median"].as_f64().unwrap() > 0.0);
            let percentiles = &cell["response_us"];
            let p = |name: &str| percentiles[name].as_f64().unwrap();
            assert!(p("p50") <= p("p99") && p("p99") <= p("max"), "{percentiles}");
        }
        assert_eq!(result["comparisons"].as_array().unwrap().len(), workloads.len());
    }
}

#[test]
fn an_smc_figure_that_is_none_is_called_that() {
    let place = Place::new();
    let Some(library) = place.library() else { return };
    let mut command = bench(&place, &SHORT);
    command.env("SIDESTEP_LIBRARY", library).arg("RR2(1B/1B)");
    let (status, result) = measure(&mut command, &place);
    assert_eq!(status, Some(1), "for CI");
    let smc = &result["results"][1];
    assert_eq!(smc["transport"], "smc");
    assert_eq!(smc["transport_proof"]["smc_connections"], 0);
    assert_eq!(smc["remarks"][0]["kind"], "fell-back", "{smc:#}");
}

#[test]
fn connections_that_autosmc_leaves_on_tcp_are_no_failure() {
    let Some(talk) = Talk::prepare() else { return };
    let mut command = talk.sidestep();
    command.arg("bench").args(SHORT).args(["CRR2(64B/8KB)", "RR2(1B/1B)"]);
    let (status, result) = measure(&mut command, &talk.place);
    assert_eq!(status, Some(0), "{:#}", result["results"]);
    let [crr, rr] = [1, 3].map(|cell| &result["results"][cell]["transport_proof"]);
    assert_eq!(crr["smc_connections"], 0);
    assert!(crr["too_short"].as_u64() > Some(0), "{crr:#}");
    assert_eq!(crr["too_short"], crr["tcp_connections"]);
    assert_eq!((&rr["smc_connections"], &rr["too_short"]), (&4.into(), &0.into()));
}

#[test]
fn the_server_side_may_be_elsewhere() {
    let place = Place::new();
    let server = Server::start(&place);
    let mut command = bench(&place, &SHORT);
    command.args(["--over", "tcp", "--server", &server.address, "RR3(100B/3KB)"]);
    let (status, result) = measure(&mut command, &place);
    assert_eq!(status, Some(0));
    assert!(!result["results"][0]["server_machine_us_per_tran"].is_null());
}

#[test]
fn a_result_is_equivalent_to_itself_and_can_be_shown_again() {
    let place = Place::new();
    let mut command = bench(&place, &SHORT);
    let (status, _) = measure(command.args(["--over", "tcp", "RR1(1B/1B)"]), &place);
    assert_eq!(status, Some(0));

    let (status, text, errors) =
        outcome(&mut bench(&place, &["compare", "result.json", "result.json"]));
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    assert!(text.contains("Worse: 0"), "{text}");

    let page = ["report", "result.json", "--html", "page.html"];
    let (status, _, errors) = outcome(&mut bench(&place, &page));
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    let page = std::fs::read_to_string(place.path().join("page.html")).unwrap();
    assert!(page.contains("RR1(1B/1B)") && page.trim_end().ends_with("</html>"), "a whole page");
}

#[test]
fn what_cannot_be_measured_is_said_before_anything_runs() {
    let place = Place::new();
    let cases: [(&[&str], i32, &str); 9] = [
        (&[], 2, "nothing to measure"),
        (&["RR10(2KB/2KX)"], 2, "^"),
        (&["--suite", "no-such"], 2, "smc-r-2013"),
        (&["--json", "/proc/no/such.json", "RR1(1B/1B)"], 1, "/proc/no"),
        (&["--server", "127.0.0.1:1", "RR1(1B/1B)"], 1, "sidestep bench serve"),
        (&["--server", "127.0.0.1:1", "--over", "unix", "RR1(1B/1B)"], 1, "one host"),
        (&["--neighbours", "2:nice=40", "RR1(1B/1B)"], 2, "from -20 to 19"),
        (&["--neighbours", "2", "--server", "h:1", "RR1(1B/1B)"], 2, "for one host"),
        (&["compare", "absent.json", "absent.json"], 2, "absent.json"),
    ];
    for (arguments, expected, part) in cases {
        let (status, errors) = refusal(&place, arguments);
        assert_eq!(status, Some(expected), "{arguments:?}: {errors}");
        assert!(errors.contains(part), "{arguments:?}: {errors}");
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let place = Place::new();
    let server = Server::start(&place);
    let (status, errors) = refusal(&place, &["serve", "--listen", &server.address]);
    assert_eq!(status, Some(1));
    assert!(errors.contains(&server.address) && errors.contains("--listen"), "{errors}");
}

#[test]
fn too_few_descriptors_are_an_error_that_says_the_limit() {
    let place = Place::new();
    let script = place.script("few.sh", "#!/bin/sh\nulimit -n 64\nexec \"$@\"\n");
    let mut command = Command::new(script);
    command.arg(env!("CARGO_BIN_EXE_sidestep")).arg("bench").current_dir(place.path());
    command.args(SHORT).args(["--over", "tcp", "RR200(1B/1B)"]);
    let (status, _, errors) = outcome(&mut command);
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("64") && errors.contains("ulimit"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "not tried again: {errors}");
}

#[test]
fn probe_predicts_what_is_asked_and_refuses_what_has_no_meaning() {
    let place = Place::new();
    let arguments = ["probe", "--json", "--model", "event-loop", "RR10(2KB/2KB)"];
    let (status, text, errors) = outcome(place.sidestep(None).args(arguments));
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    let report: Value = serde_json::from_str(&text).unwrap();
    let forecast = &report["forecasts"][0];
    assert_eq!(forecast["workload"], "RR10(2KB/2KB)");
    assert!(forecast["prediction"]["throughput_ratio"].as_f64().unwrap() > 0.0, "{forecast:#}");

    let (status, _, errors) = outcome(place.sidestep(None).args(["probe", "RR10(2KB)"]));
    assert_eq!(status, Some(2));
    assert!(errors.contains('^'), "{errors}");
}

#[test]
fn neighbours_run_beside_every_transport_and_are_told() {
    let place = Place::new();
    let mut command = with_neighbours(&place, &["--neighbours", "0,2,1:nice=19,1:idle"]);
    command.args(SHORT).args(["--over", "tcp,unix", "RR2(1B/1B)"]);
    let (status, result) = measure(&mut command, &place);
    assert_eq!(status, Some(0));
    let of = |kind: &str| -> Vec<Value> {
        let all = result[kind].as_array().unwrap().iter();
        all.map(|one| one["contention"]["neighbours"].clone()).collect()
    };
    let levels = [
        json!({"count": 0, "priority": "same"}),
        json!({"count": 2, "priority": "same"}),
        json!({"count": 1, "priority": {"nice": 19}}),
        json!({"count": 1, "priority": "idle"}),
    ];
    assert_eq!(of("comparisons"), levels);
    assert_eq!(of("results"), levels.iter().flat_map(|it| [it; 2]).cloned().collect::<Vec<_>>());
    assert_eq!(result["results"][0]["neighbour_cpus"], 0.0);
    assert_eq!(neighbours(&place).len(), 0, "they end with the measurement");
}

#[test]
fn limits_of_the_cpu_time_are_set_and_taken_away() {
    let place = Place::new();
    let groups = || -> Vec<_> {
        let mounts = Process::myself().unwrap().mountinfo().unwrap();
        let below = |it: MountInfo| std::fs::read_dir(it.mount_point).ok();
        let groups = mounts.into_iter().filter(|it| it.fs_type.starts_with("cgroup"));
        let names = groups.filter_map(below).flatten().flatten().map(|it| it.file_name());
        names.filter(|it| it.to_string_lossy().starts_with("sidestep-bench-cpu-")).collect()
    };
    let options = ["--cpu-quota", "60", "--cpu-weight", "1", "--neighbours", "1"];
    let mut command = with_neighbours(&place, &options);
    command.args(SHORT).args(["--over", "tcp,unix", "RR2(1B/1B)"]);
    let path = place.path().join("result.json");
    let (status, _, errors) = outcome(command.arg("--json").arg(&path));
    if errors.contains("take a control group") {
        return eprintln!("skipped: {errors}");
    }
    assert_eq!(status, Some(0), "{errors}");
    let result: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let contention = &result["results"][1]["contention"];
    assert_eq!((&contention["cpu_quota"], &contention["cpu_weight"]), (&60.into(), &1.into()));
    assert_eq!((groups(), neighbours(&place).len()), (Vec::new(), 0));
}

/// The loops use CPU time while the measurement lasts, and end even if it is killed.
#[test]
fn a_workload_is_set_against_itself_without_a_filter() {
    if let Err(lacking) = sidestep_bpf::available() {
        return println!("skipped: {lacking}");
    }
    let place = Place::new();
    let mut command = bench(&place, &SHORT);
    command.args(["--over", "tcp", "--filter-rules", "0,10", "CRR2(64B/1KB)"]);
    let (status, result) = measure(&mut command, &place);
    assert_eq!(status, Some(0), "{result}");
    let rules = |of: &str| -> Vec<u64> {
        let all = result[of].as_array().unwrap().iter();
        all.map(|it| it["filter_rules"].as_u64().unwrap()).collect()
    };
    assert_eq!((rules("results"), rules("filtered")), (vec![0, 10], vec![10]));
    assert!(result["filtered"][0]["response_ratio"].as_f64().unwrap() > 0.0);

    let both = ["--over", "tcp", "--filter-rules", "10", "--cpu-quota", "50", "CRR2(64B/1KB)"];
    let (status, errors) = refusal(&place, &[&SHORT[..], &both].concat());
    assert_eq!(status, Some(1));
    assert!(errors.contains("has a control group of its own"), "{errors}");
}

#[test]
fn neighbours_do_not_outlive_a_measurement_that_is_killed() {
    let place = Place::new();
    let allowed = Process::myself().unwrap().status().unwrap().cpus_allowed_list.unwrap();
    let cpu = allowed.last().unwrap().1.to_string();
    let options = ["--neighbours", "3", "--cpus", &cpu, "--duration", "10m"];
    let mut command = with_neighbours(&place, &options);
    let mut bench = command.args(["--over", "tcp", "RR1(1B/1B)"]).spawn().unwrap();
    wait_until("three of them run", || {
        let used: Vec<_> = neighbours(&place).iter().map(|it| it.utime).collect();
        used.len() == 3 && used.iter().all(|ticks| *ticks >= 2)
    });
    for neighbour in neighbours(&place) {
        let status = Process::new(neighbour.pid).unwrap().status().unwrap();
        let cpu = cpu.parse().unwrap();
        assert_eq!(status.cpus_allowed_list, Some(vec![(cpu, cpu)]));
    }
    bench.kill().unwrap();
    bench.wait().unwrap();
    wait_until("they have ended", || neighbours(&place).is_empty());
}

/// `sidestep bench OPTIONS`, whose neighbours are known by their environment.
fn with_neighbours(place: &Place, options: &[&str]) -> Command {
    let mut command = bench(place, options);
    command.env(MARK, place.path());
    command
}

/// The neighbours that a test has started, with what they have used.
fn neighbours(place: &Place) -> Vec<Stat> {
    let all = procfs::process::all_processes().unwrap().flatten();
    let is_ours = |process: &Process| {
        let is_neighbour =
            process.cmdline().is_ok_and(|it| it.ends_with(&["neighbour".to_owned()]));
        let mark = process.environ().ok().and_then(|mut it| it.remove(OsStr::new(MARK)));
        is_neighbour && mark.as_deref() == Some(place.path().as_os_str())
    };
    all.filter(is_ours).filter_map(|process| process.stat().ok()).collect()
}

const MARK: &str = "SIDESTEP_TEST_PLACE";

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < deadline, "not within two minutes: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// `sidestep bench serve`, until it is dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(place: &Place) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = bench(place, &["serve", "--listen", &address]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let errors = child.stderr.take().unwrap();
        let mut line = String::new();
        BufReader::new(errors).read_line(&mut line).unwrap();
        assert!(line.contains(&address), "{line}");
        Self { child, address }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A port that nobody listens at; somebody could take it before we do, though the
/// kernel gives others first.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
