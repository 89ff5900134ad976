//! The tests: strangers' programs, unmodified, whose payloads are compared
//! byte for byte.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::stage::{Mix, Stage};
use super::{
    containers, demotion, distant, distributor, figures, filter, hosts, learning, metrics,
    outsiders, pid_namespaces, policy, reload, tap, tcp_option, tls, units, versions, vip,
};
use crate::bench::launch::{self, Dialogue, Transport};
use crate::bench::place;
use crate::bench::workloads::SOCKPERF_PACE;
use crate::nginx;
use crate::payload::{must_be_equal, must_be_prefix, random_bytes};
use crate::suite::HANG;
use crate::user;
use crate::witness::Claim;

/// A test; what it returns is worth reading when it has passed.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Commands without which it is skipped.
    pub(crate) needs: &'static [&'static str],
    pub(crate) mixes: &'static [Mix],
    pub(crate) play: fn(&Stage<'_>) -> Result<String>,
}

impl Case {
    const fn new(
        name: &'static str,
        needs: &'static [&'static str],
        play: fn(&Stage<'_>) -> Result<String>,
    ) -> Self {
        Self { name, needs, mixes: Mix::ALL, play }
    }

    /// A test that is played once, with both sides under Sidestep.
    const fn alone(
        name: &'static str,
        needs: &'static [&'static str],
        play: fn(&Stage<'_>) -> Result<String>,
    ) -> Self {
        Self { mixes: &[Mix::Both], ..Self::new(name, needs, play) }
    }
}

const POSTGRES: &str = "/usr/lib/postgresql/15/bin/postgres";

/// For a machine with systemd in a container.
const UNITS: [&str; 7] =
    ["systemd-nspawn", "nsenter", "unshare", "setpriv", "ip", "curl", "python3"];

/// For users who log in to such a machine.
const USERS: [&str; 5] = ["systemd-nspawn", "nsenter", "python3", "dbus-daemon", "loginctl"];

/// For containers of an ordinary user, and of root with a published port.
const ROOTLESS: [&str; 8] =
    ["podman", "crun", "newuidmap", "slirp4netns", "iptables", "gcc", "unshare", "setpriv"];

/// All tests, quick ones first.
pub(crate) const CASES: &[Case] = &[
    Case::new("python-threads", &["python3"], python_threads),
    Case::new("python-asyncio", &["python3"], python_asyncio),
    Case::alone("one-listener", &["python3"], one_listener),
    Case::alone("listener-handed-on", &["python3"], listener_handed_on),
    Case::new("redis", &["redis-server", "redis-benchmark", "python3"], redis),
    Case::new("nginx-curl", &["nginx", "curl"], nginx_curl),
    Case::new("sockperf", &["sockperf"], sockperf),
    Case::new("iperf3", &["iperf3"], iperf3),
    Case::new("node", &["node"], node),
    Case::new("java-nio", &["java", "javac"], java),
    Case::alone("static", &["gcc"], outsiders::static_program),
    Case::alone("musl", &["gcc", "musl-gcc"], outsiders::musl),
    Case::alone("32-bit", &["gcc", "/usr/lib32/libc.so"], outsiders::narrow),
    Case::alone("set-user-id", &["gcc"], outsiders::set_user_id),
    Case::alone("go", &["caddy", "curl"], outsiders::go),
    Case::alone("syscall", &["gcc"], outsiders::by_number),
    Case::alone("io_uring", &["gcc", "/usr/include/liburing.h"], outsiders::io_uring),
    Case::alone(
        "io_uring-built-in",
        &["gcc", "/usr/include/liburing.h"],
        outsiders::io_uring_built_in,
    ),
    Case::alone("policy", &["gcc"], policy::rules),
    Case::alone("users", &["gcc"], policy::users),
    Case::alone("tls", &["unshare", "ip", "python3", "openssl", "gcc"], tls::rules),
    Case::alone("tls-controlled", &["unshare", "ip", "python3", "openssl", "gcc"], tls::controlled),
    Case::alone("tls-peers", &["unshare", "ip", "python3", "openssl"], tls::peers),
    Case::alone("handshakes", &["python3"], policy::handshakes),
    Case::alone("reload", &["python3"], reload::reload),
    Case::alone("autosmc", &["python3"], learning::autosmc),
    Case::alone("autocache", &["python3"], learning::autocache),
    Case::alone("demotion", &["python3"], demotion::threads),
    Case::alone("demotion-epoll", &["python3"], demotion::epoll),
    Case::alone("ip-filter", &["redis-server", "python3", "unshare", "nsenter"], filter::filter),
    Case::alone("tap", &["python3", "tshark"], tap::streams),
    Case::alone("metrics", &["/usr/bin/redis-server", "redis-benchmark"], metrics::metrics),
    Case::alone("versions", &["python3"], versions::programs),
    Case::alone("versions-handed-on", &["python3"], versions::handed_on),
    Case::alone("versions-gateway", &["ip", "python3"], versions::gateway),
    Case::alone("versions-agent", &["ip", "setpriv", "python3"], distant::other_version),
    Case::alone("pid-namespaces", &["unshare", "python3"], pid_namespaces::two),
    Case::alone("namespaces", &["ip", "python3"], distant::namespaces),
    Case::alone("namespaces-late", &["ip", "python3"], distant::late),
    Case::alone("namespaces-twins", &["ip", "python3"], distant::twins),
    Case::alone("namespaces-nat", &["ip", "nft", "python3"], distant::translated),
    Case::alone("namespaces-router", &["ip", "nft", "python3", "sysctl"], distant::routed),
    Case::alone("namespaces-proxy", &["ip", "python3"], distant::proxied),
    Case::alone("namespaces-policy", &["ip", "setpriv", "python3"], distant::policy),
    Case::alone("namespaces-agent", &["ip", "python3"], distant::agent_ends),
    Case::alone("namespaces-handed-on", &["ip", "python3"], distant::handed_on),
    Case::alone("namespaces-users", &["ip", "setpriv", "python3"], distant::users),
    Case::alone("namespaces-roots", &["ip", "python3"], distant::roots),
    Case::alone("namespaces-pnet", &["ip", "python3"], distant::pnet_ids),
    Case::alone("podman", &["podman", "crun", "gcc", "musl-gcc", "unshare", "ss"], containers::pod),
    Case::alone("podman-rootless", &ROOTLESS, containers::rootless),
    Case::alone("container", &["ip", "setpriv", "unshare", "python3"], distant::container),
    Case::alone("hosts", &["ip", "python3", "tshark"], hosts::echo),
    Case::alone("hosts-names", &["ip", "python3"], hosts::names),
    Case::alone("hosts-redis", &["ip", "redis-server", "redis-benchmark"], hosts::redis),
    Case::alone(
        "hosts-ipv6",
        &["ip", "python3", "redis-server", "redis-benchmark", "tshark"],
        hosts::ipv6,
    ),
    Case::alone(
        "hosts-routers",
        &["ip", "python3", "redis-server", "redis-benchmark", "tshark"],
        hosts::routers,
    ),
    Case::alone("hosts-families", &["ip", "python3"], hosts::families),
    Case::alone("hosts-filter", &["ip", "python3", "unshare", "nsenter"], hosts::filter),
    Case::alone("hosts-tls", &["ip", "openssl", "nginx", "curl", "tshark"], hosts::tls),
    Case::alone("hosts-declined", &["ip", "python3", "tshark"], hosts::declined),
    Case::alone("hosts-nginx", &["ip", "nginx", "curl"], hosts::nginx),
    Case::alone("hosts-wrk", &["ip", "nginx", "wrk"], hosts::wrk),
    Case::alone("hosts-pgbench", &["ip", "setpriv", POSTGRES], hosts::pgbench),
    Case::alone("hosts-iperf3", &["ip", "iperf3"], hosts::iperf3),
    Case::alone("hosts-failover", &["ip", "python3"], hosts::failover),
    Case::alone("hosts-stand-still", &["ip", "python3"], hosts::stand_still),
    Case::alone("hosts-held", &["ip", "python3", "setpriv"], hosts::held),
    Case::alone("hosts-replace", &["ip", "python3"], hosts::replace),
    Case::alone("hosts-reload", &["ip", "python3"], hosts::reload),
    Case::alone("hosts-killed", &["ip", "python3"], hosts::killed),
    Case::alone("hosts-faults", &["ip", "python3", "nginx", "curl"], hosts::faults),
    Case::alone("hosts-attack", &["ip", "python3"], hosts::attack),
    Case::alone("hosts-attack-next", &["ip", "python3"], hosts::next_forged),
    Case::alone("tcp-option", &["gcc", "ip", "tshark"], tcp_option::option),
    Case::alone("vip", &["ip", "setpriv", "redis-server", "redis-benchmark"], vip::targets),
    Case::alone(
        "distributor",
        &["ip", "setpriv", "redis-server", "redis-benchmark"],
        distributor::hosts,
    ),
    Case::alone(
        "distributor-optlocal",
        &["ip", "setpriv", "python3", "redis-server", "redis-benchmark"],
        distributor::locality,
    ),
    Case::alone("distributor-takeover", &["ip", "python3", "etcd"], distributor::takeover),
    Case::alone(
        "distributor-tunnel",
        &["ip", "setpriv", "python3", "redis-server", "redis-benchmark", "sysctl"],
        distributor::tunnel,
    ),
    Case::alone(
        "distributor-tunnel-takeover",
        &["ip", "python3", "etcd", "sysctl"],
        distributor::tunnel_takeover,
    ),
    Case::alone(
        "distributor-tunnel-forged",
        &["ip", "setpriv", "python3", "sysctl", "curl"],
        distributor::forged,
    ),
    Case::alone(
        "distributor-xdp",
        &["ip", "setpriv", "python3", "redis-server", "redis-benchmark"],
        distributor::xdp,
    ),
    Case::alone("distributor-cut-off", &["ip", "python3", "etcd"], distributor::cut_off),
    Case::alone(
        "distributor-smc-r",
        &["ip", "setpriv", "redis-server", "redis-benchmark"],
        distributor::smc_r,
    ),
    Case::alone(
        "distributor-tunnel-smc-r",
        &["ip", "setpriv", "redis-server", "redis-benchmark", "sysctl"],
        distributor::tunnel_smc_r,
    ),
    Case {
        mixes: &[Mix::Both, Mix::ServerOnly],
        ..Case::new("figures", &["redis-server", "redis-benchmark"], figures::sums)
    },
    Case::alone("instructions", &["gcc"], outsiders::instructions),
    Case::alone("modeler", &[], modeler),
    Case::new("death", &["gcc"], death),
    Case::alone("units", &UNITS, units::start),
    Case::alone("units-kept", &UNITS, units::kept),
    Case::alone("units-container", &UNITS, units::container),
    Case::alone("units-watchdog", &UNITS, units::watchdog),
    Case::alone("units-enabled", &UNITS, units::enabled),
    Case::alone("units-debian", &UNITS, units::debian),
    Case::alone("units-of-user", &USERS, units::of_user),
];

// ---- echo servers ----------------------------------------------------------

fn python_threads(stage: &Stage<'_>) -> Result<String> {
    python_echo(stage, "echo_threads.py")
}

fn python_asyncio(stage: &Stage<'_>) -> Result<String> {
    python_echo(stage, "echo_asyncio.py")
}

fn python_echo(stage: &Stage<'_>, script: &str) -> Result<String> {
    let (port, script) = (launch::free_port()?, stage.house.script(script));
    echo(stage, port, &["python3", &script], &[])
}

fn java(stage: &Stage<'_>) -> Result<String> {
    let (port, program) = (launch::free_port()?, stage.house.script("Echo.java"));
    echo(stage, port, &["java", &program], &[])
}

fn node(stage: &Stage<'_>) -> Result<String> {
    let (port, http_port) = (launch::free_port()?, launch::free_port()?);
    echo(stage, port, &["node", &stage.house.script("echo.js")], &[&http_port.to_string()])
}

/// `PROGRAM server PORT EXTRA`, then `PROGRAM client PORT EXTRA SEED`.
fn echo(stage: &Stage<'_>, port: u16, program: &[&str], extra: &[&str]) -> Result<String> {
    let (port_text, seed) = (port.to_string(), stage.house.seed.to_string());
    let server = [program, &["server", &port_text], extra].concat();
    let client = [program, &["client", &port_text], extra, &[&seed]].concat();
    let mut server = stage.serve(port, &server)?;
    stage.converse(&mut server, &client)
}

/// A plain client and one under Sidestep at the same listener, at full speed.
fn one_listener(stage: &Stage<'_>) -> Result<String> {
    let (port, script) = (launch::free_port()?, stage.house.script("echo_threads.py"));
    let (port_text, seed) = (port.to_string(), stage.house.seed.to_string());
    let mut server = stage.serve(port, &["python3", &script, "server", &port_text])?;
    let client = ["python3", &script, "client", &port_text, &seed];
    let plain = Dialogue::start(stage.command(Transport::Tcp, &client))?;
    let ours = Dialogue::start(stage.command(Transport::Smc, &client))?;
    stage.converse_with(&mut server, [plain, ours], Claim::Both)
}

/// A listener that another process has made; its client is due to move before it is accepted.
fn listener_handed_on(stage: &Stage<'_>) -> Result<String> {
    let (script, seed) = (stage.house.script("hand_listener_on.py"), stage.house.seed.to_string());
    let mut said = String::new();
    for how in ["exec", "rights"] {
        for when in ["before", "after"] {
            let port = launch::free_port()?;
            let text = port.to_string();
            let mut server =
                stage.serve(port, &["python3", &script, "server", &text, how, when])?;
            said = stage
                .converse(&mut server, &["python3", &script, "client", &text, &seed])
                .with_context(|| format!("by {how}, listening {when}"))?;
        }
    }
    Ok(said)
}

// ---- the workload modeler --------------------------------------------------

/// Every kind of workload in every model, every byte compared by the workers: over
/// TCP, AF_UNIX and shared memory. The result itself has to prove the last.
fn modeler(stage: &Stage<'_>) -> Result<String> {
    let Some(sidestep) = stage.house.launcher.observer() else {
        return Ok("left out: there is no `sidestep`".to_owned());
    };
    let file = stage.house.scratch.join("modeler.json");
    let workloads = ["RR10(2KB/2KB)", "RR3(100KB/1B)", "STR1(1B/2MB)", "STR2(300KB/300KB)"];
    let mut command = Command::new(sidestep);
    command.args(["bench", "--verify", "--runs", "1", "--over", "tcp,unix,smc"]);
    command.args(["--model", "threads,processes,event-loop"]);
    command.args(["--duration", "100ms", "--warmup", "50ms", "--json"]);
    command.arg(&file).args(workloads);
    launch::run(command, HANG)?;

    let result: Value = serde_json::from_slice(&fs::read(&file)?)?;
    let cells = result["results"].as_array().context("the result has no cells")?;
    ensure!(cells.len() == workloads.len() * 9, "{} cells were measured", cells.len());
    let proof = |cell: &Value, of: &str| cell["transport_proof"][of].as_u64().unwrap_or(0);
    for cell in cells.iter().filter(|cell| cell["transport"] == "smc") {
        let [smc, tcp] = ["smc_connections", "tcp_connections"].map(|of| proof(cell, of));
        ensure!(smc > 0 && tcp == 0, "{smc} SMC-D, {tcp} TCP in {cell}");
    }
    Ok(format!("{} cells", cells.len()))
}

// ---- redis -----------------------------------------------------------------

fn redis(stage: &Stage<'_>) -> Result<String> {
    let port = launch::free_port()?;
    let text = port.to_string();
    let options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    let server = [&["redis-server", "--port", &text][..], &options].concat();
    let mut server = stage.serve(port, &server)?;

    let (script, seed) = (stage.house.script("redis_client.py"), stage.house.seed.to_string());
    let verified = stage.converse(&mut server, &["python3", &script, &text, &seed])?;
    let load = ["-t", "set,get", "-d", "2000", "-c", "20", "-n", "40000", "-q"];
    let benchmark = [&["redis-benchmark", "-h", "127.0.0.1", "-p", &text][..], &load].concat();
    stage.watch(&server, &benchmark)?;
    stage.run(&[&benchmark[..], &["-P", "16"]].concat())?;
    server.must_be_alive()?;
    Ok(verified)
}

// ---- nginx and curl --------------------------------------------------------

/// From less than a packet to many times the largest ring.
const PAGE_LENS: [usize; 4] = [1_000, 65_537, 1_000_000, 50_000_000];

/// Requests on one connection: the large ones have small ones behind them.
const KEEP_ALIVE_ORDER: [usize; 8] = [0, 2, 0, 1, 3, 0, 1, 2];

/// One and a half seconds for the largest page: long enough to be looked at,
/// and the server finds its peer's buffer full again and again.
const SLOW_RATE: &str = "33M";

fn nginx_curl(stage: &Stage<'_>) -> Result<String> {
    let port = launch::free_port()?;
    let site = Site::create(&stage.house.scratch.join("nginx"), port)?;
    let config = site.config_file()?;
    let rules = nginx::sharing(&site.dir.join("sidestep.toml"))?;
    let words = [OsString::from("nginx"), "-e".into(), "stderr".into(), "-c".into()];
    let mut server = stage.server_command(&[&words[..], &[config.into()]].concat());
    server.env("SIDESTEP_CONFIG", &rules);
    let mut server = stage.serve_command(port, server)?;
    let client = |words: &[OsString]| {
        let mut client = stage.client_command(words);
        client.env("SIDESTEP_CONFIG", &rules);
        client
    };

    let run = |words: &[OsString]| launch::run(client(words), HANG);
    let connects = site.fetch(&KEEP_ALIVE_ORDER, run)?;
    let connects: u32 = connects.split_whitespace().flat_map(str::parse::<u32>).sum();
    ensure!(connects == 1, "curl opened {connects} connections, not one with keep-alive");
    site.fetch(&[3, 2, 1, 0, 2, 1], |words| run(&[words, &["-Z".into()]].concat()))?;
    let slowly = |words: &[OsString]| [words, &["--limit-rate".into(), SLOW_RATE.into()]].concat();
    site.fetch(&[3], |words| stage.watch_command(&server, client(&slowly(words))))?;
    if !user::is_root() {
        server.must_be_alive()?;
        return Ok("15 files compared".to_owned());
    }
    // The workers are not who has listened, and share with their own user without any rule.
    let worker = nginx::worker()?;
    worker.give(&site.dir)?;
    site.fetch(&[3], |words| {
        let mut client = stage.client_command(&slowly(words));
        worker.own(&mut client);
        stage.watch_command(&server, client)
    })?;
    server.must_be_alive()?;
    Ok("16 files compared, one fetched by the user of the workers".to_owned())
}

/// Static files, a configuration to serve them, and what was fetched of them.
struct Site {
    dir: PathBuf,
    port: u16,
}

impl Site {
    fn create(dir: &Path, port: u16) -> Result<Self> {
        fs::create_dir_all(dir.join("www"))?;
        let site = Self { dir: dir.to_owned(), port };
        for len in PAGE_LENS {
            fs::write(site.page(len), random_bytes(len)?)?;
        }
        Ok(site)
    }

    fn page(&self, len: usize) -> PathBuf {
        self.dir.join(format!("www/{len}"))
    }

    fn config_file(&self) -> Result<PathBuf> {
        let file = self.dir.join("nginx.conf");
        fs::write(&file, self.config()?)?;
        Ok(file)
    }

    fn config(&self) -> Result<String> {
        let (dir, port) = (self.dir.display(), self.port);
        let (user, temporary) = nginx::settings(&self.dir)?;
        Ok(format!(
            "daemon off; worker_processes 2; pid {dir}/nginx.pid; {user}\n\
             events {{ worker_connections 256; }}\n\
             http {{\n\
             access_log off; sendfile on; tcp_nopush on; keepalive_timeout 60;\n\
             {temporary}\
             server {{ listen 127.0.0.1:{port}; root {dir}/www; }}\n\
             }}\n"
        ))
    }

    /// Fetches these pages with one curl and compares what came; returns what
    /// curl said.
    fn fetch(
        &self,
        pages: &[usize],
        curl: impl Fn(&[OsString]) -> Result<String>,
    ) -> Result<String> {
        let flags = ["curl", "-sS", "--fail", "--max-time", "50", "-w", "%{num_connects} "];
        let mut words: Vec<OsString> = flags.map(OsString::from).into();
        for (index, page) in pages.iter().enumerate() {
            let url = format!("http://127.0.0.1:{}/{}", self.port, PAGE_LENS[*page]);
            words.extend(["-o".into(), self.fetched(index).into(), url.into()]);
        }
        let said = curl(&words)?;
        for (index, page) in pages.iter().enumerate() {
            must_be_equal(&self.fetched(index), &self.page(PAGE_LENS[*page]))?;
            fs::remove_file(self.fetched(index))?;
        }
        Ok(said)
    }

    fn fetched(&self, index: usize) -> PathBuf {
        self.dir.join(format!("fetched-{index}"))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // Files of many megabytes; if they stay, the next run overwrites them.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

// ---- sockperf --------------------------------------------------------------

fn sockperf(stage: &Stage<'_>) -> Result<String> {
    let port = launch::free_port()?;
    let text = port.to_string();
    let address = ["--tcp", "-i", "127.0.0.1", "-p", &text];
    let mut server = stage.serve(port, &[&["sockperf", "sr"], &address[..]].concat())?;
    let pingpong = ["sockperf", "ping-pong", "-t", "1", "-m", "1400", "--data-integrity"];
    let pingpong = [&pingpong[..], &[SOCKPERF_PACE]].concat();
    let said = stage.watch(&server, &[&pingpong[..], &address].concat())?;
    ensure!(!said.contains("integrity test failed"), "sockperf saw a wrong byte");
    let stream = ["sockperf", "throughput", "-t", "1", "-m", "1400"];
    stage.watch(&server, &[&stream[..], &address].concat())?;
    server.must_be_alive()?;
    Ok("data integrity and throughput".to_owned())
}

// ---- iperf3 ----------------------------------------------------------------

/// Whole blocks of 16 KiB: of a last block that was shorter, the first byte was now and
/// then another, while all before it were right.
const IPERF_FILE_LEN: usize = 1831 * (16 << 10);

fn iperf3(stage: &Stage<'_>) -> Result<String> {
    let mut rates = Vec::new();
    for direction in [&[][..], &["-R"]] {
        let gigabits = iperf3_stream(stage, direction)?;
        iperf3_file(stage, direction)?;
        rates.push(format!("{gigabits:.1} Gbit/s"));
    }
    Ok(rates.join(" and back "))
}

/// For a second, as fast as it goes.
fn iperf3_stream(stage: &Stage<'_>, direction: &[&str]) -> Result<f64> {
    let port = launch::free_port()?;
    let text = port.to_string();
    let mut server = stage.serve(port, &["iperf3", "-s", "-B", "127.0.0.1", "-p", &text])?;
    let client = ["iperf3", "-c", "127.0.0.1", "-p", &text, "-t", "1", "-J"];
    let said = stage.watch(&server, &[&client, direction].concat())?;
    server.must_be_alive()?;
    let report: Value = serde_json::from_str(&said).context("iperf3's report")?;
    let rate = report.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
    let rate = rate.context("iperf3 reported no rate")?;
    ensure!(rate > 0.0, "iperf3 received nothing");
    Ok(rate / 1e9)
}

/// A file, of which iperf3 stops reading when the sender is done: what has
/// arrived until then is compared.
fn iperf3_file(stage: &Stage<'_>, direction: &[&str]) -> Result<()> {
    let port = launch::free_port()?;
    let text = port.to_string();
    let dir = &stage.house.scratch;
    let (from, to) = (dir.join("iperf3-from"), dir.join("iperf3-to"));
    let bytes = random_bytes(IPERF_FILE_LEN)?;
    fs::write(&from, &bytes)?;
    // Left by an earlier run: it is overwritten, not shortened.
    let _ = fs::remove_file(&to);
    let reverse = !direction.is_empty();
    let (of_server, of_client) = if reverse { (&from, &to) } else { (&to, &from) };
    let (of_server, of_client) = (of_server.to_string_lossy(), of_client.to_string_lossy());

    let server = ["iperf3", "-s", "-B", "127.0.0.1", "-p", &text, "-F", &of_server];
    let mut server = stage.serve(port, &server)?;
    let client = [
        "iperf3",
        "-c",
        "127.0.0.1",
        "-p",
        &text,
        "-t",
        "1",
        // With -F it forgets where to continue after a write that was taken in
        // part, so its writes must fit whenever the socket is writable: a third of
        // a ring.
        "-l",
        "16K",
        "-F",
        &of_client,
    ];
    stage.run(&[&client, direction].concat())?;
    server.must_be_alive()?;
    let arrived = fs::read(&to)?;
    must_be_prefix(&arrived, &bytes).context("the file sent by iperf3")?;
    ensure!(arrived.len() > IPERF_FILE_LEN / 4, "only {} bytes arrived", arrived.len());
    fs::remove_file(&from)?;
    fs::remove_file(&to)?;
    Ok(())
}

// ---- death -----------------------------------------------------------------

/// The survivor is on the server's side of the mix, its victims on the
/// client's; who listens changes from round to round.
fn death(stage: &Stage<'_>) -> Result<String> {
    let house = stage.house;
    let program = place::compile_c(&house.scripts.join("death.c"), &house.scratch)?;
    let program = program.into_os_string();
    let survivor = || {
        let mut survivor = stage.server_command(&[&program, &OsString::from("survivor")]);
        survivor.args(["--rounds", &house.rounds.to_string()]);
        survivor.args(["--seed", &house.seed.to_string(), "--"]);
        survivor.args(words_of(&stage.client_command(&[&program])));
        Ok(survivor)
    };
    Ok(stage.watch_until_seen(survivor)?.trim().to_owned())
}

/// A command as the words with which a process that is itself under Sidestep
/// starts it, without passing that on.
fn words_of(command: &Command) -> Vec<OsString> {
    let mut words = ["env", "-u", "LD_PRELOAD"].map(OsString::from).to_vec();
    for (name, value) in command.get_envs() {
        let mut setting = name.to_owned();
        setting.push("=");
        setting.push(value.unwrap_or_default());
        words.push(setting);
    }
    words.push(command.get_program().to_owned());
    words.extend(command.get_args().map(OsString::from));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_s_command_carries_its_own_environment_only() {
        let mut command = Command::new("death");
        command.env("LD_PRELOAD", "ours.so").arg("x");
        let words = words_of(&command);
        assert_eq!(words, ["env", "-u", "LD_PRELOAD", "LD_PRELOAD=ours.so", "death", "x"]);
    }
}
