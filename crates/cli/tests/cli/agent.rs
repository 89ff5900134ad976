//! `sidestep agent`: where it may, and where it may not, and what it tells Prometheus.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use prometheus_parse::{Scrape, Value};
use sidestep_bpf::Cgroup;

use crate::support::{Place, outcome};
use crate::talk::{Running, Talk, eventually, free_port};

/// An agent that serves a control group without programs.
struct Agent {
    child: Child,
    said: BufReader<ChildStdout>,
    group: Cgroup,
}

impl Agent {
    /// None, with a printed line, if this machine lets nobody be an agent.
    fn start(mut command: Command) -> Option<Self> {
        let group =
            Cgroup::create_for_run().map_err(|lacking| println!("skipped: {lacking}")).ok()?;
        command.arg("--cgroup").arg(group.path());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut agent = Self { child, said, group };
        let line = agent.line();
        if line.is_empty() {
            let mut lacking = String::new();
            agent.child.stderr.take().unwrap().read_to_string(&mut lacking).unwrap();
            println!("skipped: {lacking}");
            return None;
        }
        let group = agent.group.path().display();
        assert_eq!(line, format!("sidestep agent: the TCP option of SMC is written for {group}\n"));
        Some(agent)
    }

    /// The next line that it says, but where programs of different namespaces meet: some
    /// kernels do not allow that.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        if line.contains("network namespaces meet") { self.line() } else { line }
    }

    /// Its exit status after SIGTERM, and what it had reported.
    fn end(mut self) -> (Option<i32>, String) {
        // SAFETY: a number of a child that was not waited for, and a signal.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) }, 0);
        let mut reported = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut reported).unwrap();
        (self.child.wait().unwrap().code(), reported)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `sidestep agent`, which finds no configuration but what the test puts there.
fn agent(place: &Place) -> Command {
    let mut command = place.sidestep(None);
    command.arg("agent").arg("--socket").arg(place.path().join("agent.sock"));
    command
}

/// The metrics, as text.
fn ask(mut stream: impl Read + Write) -> String {
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    text.to_owned()
}

/// All series of these metrics with all of these labels together.
fn sum(text: &str, metric: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap();
    let samples = scrape.samples.iter().filter(|sample| {
        let has = |(name, value): &(&str, &str)| sample.labels.get(name) == Some(*value);
        sample.metric == metric && labels.iter().all(has)
    });
    let value = |value: &Value| match value {
        Value::Counter(value) | Value::Gauge(value) => *value,
        other => panic!("{other:?}"),
    };
    samples.map(|sample| value(&sample.value)).reduce(|sum, value| sum + value)
}

#[test]
fn it_works_until_it_is_told_to_end() {
    let place = Place::new();
    let Some(agent) = Agent::start(agent(&place)) else { return };
    let (status, reported) = agent.end();
    assert_eq!(status, Some(0));
    assert!(reported.contains("ends, by a signal"), "{reported}");
}

#[test]
fn a_directory_that_is_no_group_is_an_error() {
    let place = Place::new();
    let missing: PathBuf = place.path().join("missing");
    let (status, output, errors) = outcome(agent(&place).arg("--cgroup").arg(missing));
    assert_eq!((status, output.as_str()), (Some(1), ""));
    assert!(errors.starts_with("sidestep agent: "), "{errors}");
}

#[test]
fn metrics_are_for_this_host() {
    let place = Place::new();
    let (status, _, errors) = outcome(agent(&place).args(["--metrics", "0.0.0.0:9464"]));
    assert_eq!(status, Some(2));
    assert!(
        errors.contains("use a loopback address such as 127.0.0.1:9464, or unix:PATH"),
        "{errors}"
    );
    place.file(".config/sidestep/sidestep.toml", "[agent]\nmetrics = \"192.0.2.1:9464\"\n");
    let (status, _, errors) = outcome(&mut agent(&place));
    assert_eq!(status, Some(1));
    assert!(errors.contains("sidestep.toml:2: agent.metrics: 192.0.2.1:9464 can be"), "{errors}");
}

#[test]
fn what_a_program_had_is_told_also_when_it_has_ended() {
    const BYTES: u64 = 4 * 100 * 1000;
    let Some(talk) = Talk::prepare() else { return };
    // A name that no program of other tests has.
    let talker = talk.place.path().join("scraped");
    std::fs::copy(talk.talker(), &talker).unwrap();
    let run = |words: &[&str]| {
        let mut command = talk.sidestep();
        command.args(["run", "--promotion", "early"]).arg(&talker).args(words);
        Running::start(command)
    };
    let metrics = format!("127.0.0.1:{}", free_port());
    let mut command = agent(&talk.place);
    command.args(["--metrics", &metrics]);
    let Some(mut agent) = Agent::start(command) else { return };
    assert_eq!(agent.line(), format!("sidestep agent: metrics are told at {metrics}\n"));
    let scrape = || ask(TcpStream::connect(&metrics).unwrap());
    let mine = |text: &str, metric: &str, label| {
        let metric = format!("sidestep_{metric}");
        sum(text, &metric, &[("program", "scraped"), label])
    };
    let all_bytes = |text: &str| mine(text, "bytes_total", ("direction", "received"));

    let port = free_port();
    let server = run(&["serve", &port]);
    run(&["call", &port, "1", "1", "1000"]).finish();
    let begun = eventually("the server is seen", || {
        mine(&scrape(), "programs", ("program", "scraped")).filter(|n| *n == 1.0)?;
        all_bytes(&scrape())
    });
    let client = run(&["call", &port, "4", "100", "1000"]);
    let text = eventually("both are seen", || {
        let text = scrape();
        (all_bytes(&text)? == begun + 2.0 * BYTES as f64).then_some(text)
    });
    assert_eq!(mine(&text, "connections", ("mode", "tcp")), Some(0.0));
    let moved = mine(&text, "connections_total", ("mode", "smc-d")).unwrap();
    assert!(moved >= 8.0, "{text}");
    assert_eq!(mine(&text, "handshakes_total", ("result", "agreed")), Some(moved));
    check_by_promtool(&text);

    client.finish();
    // Nobody scrapes before the server has ended, too; the client of this one is never seen.
    run(&["call", &port, "1", "1", "1000"]).finish();
    drop(server);
    let text = eventually("both have ended", || {
        let text = scrape();
        mine(&text, "programs_ended_total", ("program", "scraped")).filter(|n| *n >= 2.0)?;
        Some(text)
    });
    assert_eq!(all_bytes(&text), Some(begun + 2.0 * BYTES as f64 + 1000.0), "{text}");
    assert!(mine(&text, "connections_total", ("mode", "smc-d")) >= Some(moved), "{text}");
    assert_eq!(mine(&text, "connections", ("mode", "smc-d")), None);

    let mut second = self::agent(&talk.place);
    let (status, _, errors) = outcome(second.args(["--metrics", &metrics]));
    assert_eq!(status, Some(1));
    assert!(errors.contains(&format!("{metrics} is in use: another agent")), "{errors}");
    assert_eq!(agent.end().0, Some(0));
}

/// Prometheus's own opinion of the text, where it is installed.
fn check_by_promtool(text: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut promtool) = promtool.spawn() else {
        return println!("promtool is not installed: not checked by it");
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn sidestepd_reads_its_configuration_and_removes_its_socket() {
    let place = Place::new();
    let path = place.path().join("metrics");
    let content = format!("[agent]\nmetrics = \"unix:{}\"\n", path.display());
    place.file(".config/sidestep/sidestep.toml", &content);
    let log = place.path().join("agent.log");
    let daemon = sidestepd(&place);
    let mut command = Command::new(daemon);
    command.env_clear().env("HOME", place.path());
    command.arg("--log").arg(format!("info:{}", log.display()));
    command.arg("--socket").arg(place.path().join("agent.sock"));
    let Some(mut agent) = Agent::start(command) else { return };
    agent.line();
    let text = ask(UnixStream::connect(&path).unwrap());
    assert_eq!(sum(&text, "sidestep_build_info", &[]), Some(1.0));
    assert_eq!(agent.end(), (Some(0), String::new()));
    assert!(!path.exists());
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("ends, by a signal"), "{log}");
}

#[test]
fn who_asks_and_does_not_wait_ends_nothing() {
    let place = Place::new();
    let path = place.path().join("metrics");
    let mut command = agent(&place);
    command.arg("--metrics").arg(format!("unix:{}", path.display()));
    let Some(mut agent) = Agent::start(command) else { return };
    agent.line();
    for _ in 0..200 {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    }
    let text = ask(UnixStream::connect(&path).unwrap());
    assert_eq!(sum(&text, "sidestep_build_info", &[]), Some(1.0));
    assert_eq!(agent.end().0, Some(0));
}

/// `sidestep` under its other name.
fn sidestepd(place: &Place) -> PathBuf {
    let daemon = place.path().join("sidestepd");
    symlink(env!("CARGO_BIN_EXE_sidestep"), &daemon).unwrap();
    daemon
}

#[test]
fn systemd_understands_the_unit() {
    let place = Place::new();
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/sidestepd.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    const INSTALLED: &str = "/usr/local/bin/sidestepd";
    assert!(unit.contains(&format!("\nExecStart={INSTALLED}\n")));
    let here = unit.replace(INSTALLED, &sidestepd(&place).display().to_string());
    let here = place.file("sidestepd.service", &here);
    let Ok(output) = Command::new("systemd-analyze").arg("verify").arg(here).output() else {
        return println!("skipped: there is no systemd-analyze");
    };
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{complaints}");
}
