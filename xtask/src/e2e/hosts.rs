//! Programs of two hosts, by SMC-R.
//!
//! What the gateways have sent by RDMA must be at least what the programs have sent. Where the cable is looked at, tshark
//! has to know each packet and to find no fault in it, and `sidestep decode` no broken rule.

use std::fs;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sidestep_rdma::faults::Plan;

use super::distant::AS_NOBODY;
use super::filter::Rules;
use super::stage::Stage;
use crate::bench::launch::{self, Dialogue, Program};
use crate::capture::{Capture, Captured};
use crate::debian::POSTGRESQL;
use crate::hosts::{CLIENT, Family, Ground, Host, Hosts, SERVER};
use crate::nginx;
use crate::payload::{must_be_equal, random_bytes};
use crate::suite::HANG;
use crate::user;

/// Not 7000: tshark takes what goes there for something else.
const PORT: u16 = 7_609;

/// Connections that live long, seen by `sidestep ss` at both ends.
pub(crate) fn echo(stage: &Stage<'_>) -> Result<String> {
    const CONNECTIONS: usize = 20;
    let mut scene = Scene::set(stage, Ground::ONE_CABLE, true)?;
    let bytes = scene.exchange(CONNECTIONS, 20)?;
    let seen = scene.conclude(bytes)?;
    Ok(format!("{CONNECTIONS} connections, SMC-R at both ends{seen}"))
}

/// A program that is given a connection, by `exec` or beside a message, sees who is at the other end.
pub(crate) fn names(stage: &Stage<'_>) -> Result<String> {
    // By then its bytes go through shared memory to the gateway.
    const MESSAGES: &str = "200";
    let scene = Scene::set(stage, Ground::ONE_CABLE, false)?;
    let script = stage.house.script("names.py");
    let port = PORT.to_string();
    let words = |role| ["python3", &script, role, SERVER, &port, MESSAGES];
    let mut server = Dialogue::start(scene.hosts.server.program(&words("server")))?;
    server.program().await_listener(PORT)?;
    let said = scene.run(&words("client"))?;
    let [_, client, at] = said.split_whitespace().collect::<Vec<_>>()[..] else {
        bail!("the client says {said:?}")
    };
    ensure!(at == format!("{SERVER}:{PORT}") && client.starts_with(CLIENT), "{said}");
    for how in ["own", "rights", "exec"] {
        let line = server.await_line(how, HANG)?;
        ensure!(line == format!("{how} {at} {client}"), "of {client} at {at} is told: {line}");
    }
    server.finish(HANG)?;
    ensure!(scene.hosts.bytes_sent()? > 0, "nothing has gone by RDMA");
    Ok("exec and SCM_RIGHTS".to_owned())
}

/// An event loop that does not wait for `connect`, and one that serves.
pub(crate) fn redis(stage: &Stage<'_>) -> Result<String> {
    let mut scene = Scene::set(stage, Ground::ONE_CABLE, stage.house.captures)?;
    let bytes = scene.redis(SERVER)?;
    let seen = scene.conclude(bytes)?;
    Ok(format!("redis-benchmark, 10 connections{seen}"))
}

/// Behind two routers, each host in a subnet of its own, where only SMC-Rv2 goes.
pub(crate) fn routers(stage: &Stage<'_>) -> Result<String> {
    /// Of a packet that two routers have passed on.
    const HOPS_LEFT: &str = "62";
    let ground = Ground { distance: Some(Plan::PERFECT), ..Ground::ONE_CABLE };
    let mut scene = Scene::set(stage, ground, false)?;
    let mut bytes = scene.redis(SERVER)?;
    // Of what goes on the cable of the client those packets are from the server that have come through both.
    let capture = scene.hosts.capture(PORT)?;
    bytes += scene.exchange(5, 20)?;
    for host in [&scene.hosts.server, &scene.hosts.client] {
        let links = host.active_links()?;
        let versions: Vec<_> = links.iter().map(|link| link["version"].as_u64()).collect();
        ensure!(versions == [Some(2)], "not one link of SMC-Rv2: {links:#?}");
    }
    scene.conclude(bytes)?;
    let captured = capture.end()?;
    let hops = captured.fields(&format!("infiniband && ip.src == {SERVER}"), &["ip.ttl"])?;
    let count = hops.lines().count();
    ensure!(
        count > 0 && hops.lines().all(|left| left == HOPS_LEFT),
        "packets of the server reach the client with so many hops left: {hops}"
    );
    must_be_sound(&captured)?;
    Ok(format!("SMC-Rv2 over two routers, redis-benchmark, {count} packets looked at"))
}

/// By IPv6 alone: TCP, and RoCEv2 below.
pub(crate) fn ipv6(stage: &Stage<'_>) -> Result<String> {
    let server = Family::V6.server();
    let ground = Ground { families: &[Family::V6], ..Ground::ONE_CABLE };
    let mut scene = Scene::set(stage, ground, true)?;
    let bytes = scene.exchange_at(server, 5, 20)? + scene.redis(server)?;
    scene.must_have_links(&[Family::V6])?;
    let seen = scene.conclude(bytes)?;
    Ok(format!("redis-benchmark, and 5 connections that were looked at{seen}"))
}

/// Where an interface has an adapter of each family, each connection goes over that of its own: whatever
/// came first, and which is preferred.
pub(crate) fn families(stage: &Stage<'_>) -> Result<String> {
    const CONNECTIONS: usize = 5;
    let orders = [[Family::V4, Family::V6], [Family::V6, Family::V4]];
    for preferred in orders {
        for order in orders {
            let ground = Ground { families: &preferred, ..Ground::ONE_CABLE };
            let mut scene = Scene::set(stage, ground, false)?;
            let mut bytes = 0;
            for family in order {
                bytes += scene
                    .exchange_at(family.server(), CONNECTIONS, 20)
                    .with_context(|| format!("adapters {preferred:?}, {family:?} of {order:?}"))?;
            }
            scene.must_have_links(&order)?;
            scene.conclude(bytes)?;
        }
    }
    each_stays_in_its_family(stage)?;
    Ok(format!("{CONNECTIONS} connections of each family, in four orders"))
}

/// An adapter that was down when the link group of the other family was made is not for that one when it
/// comes up.
fn each_stays_in_its_family(stage: &Stage<'_>) -> Result<()> {
    const CONNECTIONS: usize = 5;
    let ground = Ground { families: &[Family::V4, Family::V6], ..Ground::ONE_CABLE };
    let mut scene = Scene::set(stage, ground, false)?;
    let [early, late] = [Family::V4, Family::V6];
    scene.hosts.take_addresses(late)?;
    scene.hosts.await_adapters(1, HANG)?;
    let mut bytes = scene.exchange_at(early.server(), CONNECTIONS, 20)?;
    scene.hosts.give_addresses(late)?;
    scene.hosts.await_adapters(2, HANG)?;
    for family in [late, early, late] {
        bytes += scene
            .exchange_at(family.server(), CONNECTIONS, 20)
            .with_context(|| format!("{family:?}, when {late:?} has come up"))?;
    }
    scene.must_have_links(&[early, late])?;
    scene.conclude(bytes).map(drop)
}

/// Connections go by RDMA under a list that denies what no rule permits, because the links make rules of their own. Rules
/// that deny connections reset them, idle ones, at both ends, and new ones are not made.
pub(crate) fn filter(stage: &Stage<'_>) -> Result<String> {
    const CONNECTIONS: usize = 5;
    let rules = Rules::prepare(stage)?;
    let scene = Scene::set(stage, Ground::ONE_CABLE, false)?;
    let group = scene.hosts.client.group();
    rules.put(group, "permit tcp any any\ndefault deny")?;
    let mut server = scene.echo_server()?;
    let mut client = scene.echo_client(SERVER)?;
    talk(&mut client, &format!("{CONNECTIONS} 20"))?;
    ensure!(scene.hosts.bytes_sent()? > 0, "no byte has gone by RDMA");
    must_have_derived(&scene.hosts.client, &rules)?;
    let rule = format!("deny tcp any any:{PORT} out");
    rules.apply(group, &rule, &format!("{CONNECTIONS} connections by the gateway"))?;
    client.say("reset")?;
    client.await_line("all were reset", HANG)?;
    server.must_be_alive()?;
    client.finish(HANG)?;
    Ok(format!("{CONNECTIONS} connections by RDMA were reset"))
}

/// By rules of both hosts TLS protects what goes by RDMA: nginx and curl speak plain text, and none is on the cable.
pub(crate) fn tls(stage: &Stage<'_>) -> Result<String> {
    const LEN: usize = 1 << 20;
    const PLAIN_TEXT: &[u8] = b"User-Agent: curl";
    let directory = stage.house.scratch.join("hosts-tls");
    fs::create_dir_all(&directory)?;
    let [certificate, key] = ["certificate", "key"].map(|it| directory.join(it));
    let mut make = Command::new("openssl");
    make.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
    make.args(["-days", "365", "-subj", "/CN=server"]);
    make.args(["-addext", "subjectAltName=DNS:server.example"]);
    make.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    make.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    launch::run(make, HANG)?;
    let inbound = format!(
        "[tls.inbound.web]\nports = [{PORT}]\ncertificate = {certificate:?}\nkey = {key:?}\n"
    );
    let outbound = format!(
        "[tls.outbound.web]\nports = [{PORT}]\nserver_name = \"server.example\"\n\
         trust = {certificate:?}\n"
    );
    let mut seen = [false; 2];
    for (rules, seen) in [["", ""], [&inbound, &outbound]].into_iter().zip(&mut seen) {
        let ground = Ground { more: rules, ..Ground::ONE_CABLE };
        let mut scene = Scene::set(stage, ground, true)?;
        scene.fetch(LEN)?;
        ensure!(scene.hosts.bytes_sent()? > LEN as u64, "the file has not gone by RDMA");
        let captured = scene.capture.take().context("it was begun")?.end()?;
        *seen = captured.has(PLAIN_TEXT)?;
    }
    ensure!(seen == [true, false], "plain text on the cable, without and with TLS: {seen:?}");
    is_shown(stage, [&inbound, &outbound])
}

/// Displays of both hosts say that a connection goes by SMC-R, and what protects it.
fn is_shown(stage: &Stage<'_>, rules: [&str; 2]) -> Result<String> {
    let scene = Scene::set(stage, Ground { more: rules, ..Ground::ONE_CABLE }, false)?;
    let _server = scene.echo_server()?;
    let mut client = scene.echo_client(SERVER)?;
    talk(&mut client, "3 20")?;
    scene.must_be_smc_r(3)?;
    for host in [&scene.hosts.server, &scene.hosts.client] {
        let shown = host.ask("ss")?;
        let rows = shown.as_array().context("`sidestep ss`: no list")?;
        let is_it = |row: &&Value| {
            row["mode"] == "SMC-R"
                && row["protection"].as_str().is_some_and(|it| it.starts_with("TLS 1.3 "))
        };
        ensure!(rows.iter().filter(is_it).count() == 3, "{shown:#}");
    }
    client.finish(HANG)?;
    Ok("plain text on the cable without rules, and none with them; shown at both ends".to_owned())
}

/// `sidestep filter list` shows what follows from the link between the two hosts, before the list.
fn must_have_derived(host: &Host, rules: &Rules) -> Result<()> {
    let list = [&rules.words()[..], &["filter", "list", "--json"].map(str::to_owned)].concat();
    let list: Vec<&str> = list.iter().map(String::as_str).collect();
    let said = launch::run(host.command(&list), HANG)?;
    let rows: Vec<Value> = serde_json::from_str(&said).context("sidestep filter list")?;
    let derived = rows.iter().take_while(|row| row["derived"] == true);
    let derived: Vec<&str> = derived.filter_map(|row| row["rule"].as_str()).collect();
    let wanted = [
        format!("permit udp {CLIENT} {SERVER}:4791 out"),
        format!("permit udp {SERVER} {CLIENT}:4791 in"),
        format!("deny udp any {CLIENT}:4791 in"),
    ];
    ensure!(derived == wanted, "{said}");
    Ok(())
}

/// Hosts without a UEID in common: the bytes go by TCP, both ends say why, and after some connections the server is
/// not asked again.
pub(crate) fn declined(stage: &Stage<'_>) -> Result<String> {
    const ASKED: usize = 8;
    const FURTHER: usize = 3;
    let ground = Ground { eids: ["ONE", "OTHER"], ..Ground::ONE_CABLE };
    let mut scene = Scene::set(stage, ground, true)?;
    let mut server = scene.echo_server()?;
    let mut client = scene.echo_client(SERVER)?;
    talk(&mut client, "1 20")?;
    let hosts = &scene.hosts;
    for (host, pid, says) in [
        (&hosts.server, server.pid(), "declined here: no UEID in common"),
        (&hosts.client, client.program().pid(), "declined by the peer: "),
    ] {
        let [found] = &host.why(pid)?[..] else { bail!("not one finding: {:?}", host.why(pid)?) };
        let is_it = found["mode"] == "TCP" && found["open"] == 1;
        let says_why = found["words"].as_str().is_some_and(|words| words.contains(says));
        ensure!(is_it && says_why && found["code"]["name"] == "NOSMCDEV", "{found:#}");
    }

    talk(&mut client, &format!("{} 20", ASKED - 1))?;
    talk(&mut client, &format!("{FURTHER} 20"))?;
    let mut another = scene.echo_client(SERVER)?;
    talk(&mut another, "1 20")?;
    for (program, asked, left) in [(&mut client, ASKED, FURTHER), (&mut another, 0, 1)] {
        let totals = hosts.client.totals(program.program().pid())?;
        let counts = (&totals["gateway_connections"], &totals["tcp_connections"]);
        ensure!(counts == (&json!(asked), &json!(left)), "{totals:#}");
        let found = hosts.client.why(program.program().pid())?;
        let lately = "agreeing with this server has failed lately";
        ensure!(found.iter().any(|it| it["words"] == lately && it["open"] == left), "{found:#?}");
    }
    for client in [client, another] {
        client.finish(HANG)?;
    }
    server.must_be_alive()?;

    ensure!(scene.hosts.bytes_sent()? == 0, "bytes have gone by RDMA");
    let capture = scene.capture.take().context("it was begun")?;
    let said = capture.end()?.fields("smc", &["smc.clc_msg"])?;
    let number = |line: &str| u8::from_str_radix(line.trim_start_matches("0x"), 16);
    let mut said: Vec<u8> = said.lines().map(number).collect::<Result<_, _>>()?;
    // Connections are open side by side.
    said.sort_unstable();
    ensure!(said == CLC_DECLINED.map(|it| [it; ASKED]).concat(), "by CLC: {said:?}");
    Ok(format!("{ASKED} connections were declined, {} not offered; all by TCP", FURTHER + 1))
}

/// A Proposal, and a Decline.
const CLC_DECLINED: [u8; 2] = [1, 4];

fn talk(client: &mut Dialogue, turns: &str) -> Result<()> {
    client.say(turns)?;
    client.await_line("verified", HANG).map(drop)
}

/// A file, compared byte for byte.
pub(crate) fn nginx(stage: &Stage<'_>) -> Result<String> {
    const LEN: usize = 8 << 20;
    let mut scene = Scene::set(stage, Ground::ONE_CABLE, stage.house.captures)?;
    scene.fetch(LEN)?;
    let seen = scene.conclude(LEN)?;
    Ok(format!("8 MiB, the same bytes{seen}"))
}

/// Many requests on connections that stay.
pub(crate) fn wrk(stage: &Stage<'_>) -> Result<String> {
    const LEN: usize = 1_000;
    let mut scene = Scene::set(stage, Ground::ONE_CABLE, stage.house.captures)?;
    let _server = scene.nginx(LEN)?;
    let said = scene.run(&["wrk", "-t", "1", "-c", "10", "-d", "1", &url()])?;
    let is_clean = !said.contains("Socket errors") && !said.contains("Non-2xx");
    let mut words = said.lines().find(|line| line.contains("requests in")).unwrap_or("").split(' ');
    let requests = words.find_map(|word| word.parse::<usize>().ok()).unwrap_or(0);
    ensure!(is_clean && requests > 0, "wrk: {said}");
    let seen = scene.conclude(requests * LEN)?;
    Ok(format!("{requests} requests{seen}"))
}

/// A process for each connection, all of a user that the gateway is not.
pub(crate) fn pgbench(stage: &Stage<'_>) -> Result<String> {
    const TRANSACTIONS: &str = "100";
    let mut scene = Scene::set(stage, Ground::ONE_CABLE, stage.house.captures)?;
    let directory = scene.hosts.directory.join("postgresql");
    // Left by an earlier run.
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory)?;
    std::os::unix::fs::chown(&directory, Some(user::NOBODY), Some(user::NOBODY))?;
    let (port, data) = (PORT.to_string(), directory.join("data").display().to_string());
    let [initdb, postgres, is_ready, pgbench, control] =
        ["initdb", "postgres", "pg_isready", "pgbench", "pg_ctl"]
            .map(|it| format!("{POSTGRESQL}/{it}"));
    let plain = |host: &Host, words: &[&str]| {
        launch::run(host.command(&[&AS_NOBODY, words].concat()), HANG)
    };
    let [server, client] = [&scene.hosts.server, &scene.hosts.client];
    let options = ["-D", &data, "-U", "postgres", "-A", "trust", "-N"];
    plain(server, &[&[initdb.as_str()][..], &options].concat())?;
    fs::write(directory.join("data/pg_hba.conf"), format!("host all all {CLIENT}/32 trust\n"))?;

    let words = ["-D", &data, "-p", &port, "-k", "", "-F", "-c", "max_connections=30"];
    let listen = format!("listen_addresses={SERVER}");
    let words = [&[postgres.as_str()][..], &words, &["-c", &listen]].concat();
    let _server = server.serve(PORT, server.program_as(&AS_NOBODY, &words))?;
    let deadline = Instant::now() + HANG;
    // It listens before it takes clients.
    while plain(client, &[&is_ready, "-q", "-h", SERVER, "-p", &port]).is_err() {
        ensure!(Instant::now() < deadline, "PostgreSQL takes no clients");
    }
    let load = |words: &[&str]| {
        let address = [pgbench.as_str(), "-h", SERVER, "-p", &port, "-U", "postgres"];
        let words = [&address, words, &["postgres"]].concat();
        launch::run(client.program_as(&AS_NOBODY, &words), HANG)
    };
    load(&["-i", "-q"])?;
    let said = load(&["-n", "-S", "-c", "10", "-j", "2", "-t", TRANSACTIONS])?;
    ensure!(said.contains("number of transactions actually processed: 1000/1000"), "{said}");
    plain(server, &[&control, "stop", "-D", &data, "-m", "fast"])?;
    // Each row is copied in as a line of at least ten characters.
    let seen = scene.conclude(100_000 * 10)?;
    Ok(format!("100 000 rows, 10 connections{seen}"))
}

/// Streams in both directions.
pub(crate) fn iperf3(stage: &Stage<'_>) -> Result<String> {
    let mut scene = Scene::set(stage, Ground::ONE_CABLE, stage.house.captures)?;
    let port = PORT.to_string();
    let _server = scene.serve(&["iperf3", "-s", "-B", SERVER, "-p", &port])?;
    for direction in [&[][..], &["-R"]] {
        scene
            .run(&[&["iperf3", "-c", SERVER, "-p", &port, "-n", "64M"][..], direction].concat())?;
    }
    // A server that is told of the end reads no further.
    let seen = scene.conclude((64 << 20) + (63 << 20))?;
    Ok(format!("64 MiB each way{seen}"))
}

/// Each of two cables goes down and comes back, under streams and requests; then one goes silent.
pub(crate) fn failover(stage: &Stage<'_>) -> Result<String> {
    let mut scene = Scene::set(stage, Ground::TWO_CABLES, false)?;
    let _server = scene.echo_server()?;
    let mut talk = scene.steady_talk()?;
    let hosts = &scene.hosts;
    hosts.await_links(2, HANG)?;
    for cable in 0..2 {
        hosts.unplug(cable)?;
        hosts.await_links(1, HANG).with_context(|| format!("cut of cable {cable}"))?;
        go_on(&mut talk, ALL_THE_WAY).with_context(|| format!("without cable {cable}"))?;
        hosts.mend(cable)?;
        hosts.await_links(2, HANG).with_context(|| format!("cable {cable} is back"))?;
        go_on(&mut talk, ALL_THE_WAY).with_context(|| format!("with cable {cable} again"))?;
    }
    let cable = hosts.busiest_cable()?;
    hosts.silence(cable)?;
    go_on(&mut talk, ALL_THE_WAY).context("a cable is silent")?;
    ensure!(hosts.busiest_cable()? != cable, "a silent cable has traffic");
    hosts.mend(cable)?;
    hosts.await_links(2, HANG).context("the silent cable is back")?;
    let said = end(talk)?;
    scene.conclude(0)?;
    Ok(format!("{said}; two cables unplugged, one silent"))
}

/// A program keeps the lock of a socket that it has handed over: what goes by SMC-R goes on, and what is another user's begins.
pub(crate) fn held(stage: &Stage<'_>) -> Result<String> {
    const CONNECTIONS: usize = 6;
    let mut scene = Scene::set(stage, Ground::ONE_CABLE, false)?;
    let _server = scene.echo_server()?;
    let mut steady = scene.steady_talk()?;
    let script = stage.house.script("hold_lock.py");
    let client = &scene.hosts.client;
    let mut holder = Dialogue::start(client.command(&["python3", &script, CLIENT]))?;
    holder.await_line("held", HANG)?;
    go_on(&mut steady, ALL_THE_WAY)?;
    let (script, port) = (stage.house.script("distant.py"), PORT.to_string());
    let seed = stage.house.seed.to_string();
    let words = ["python3", &script, "client", SERVER, &port, &seed];
    let mut others = Dialogue::start(client.program_as(&AS_NOBODY, &words))?;
    talk(&mut others, &format!("{CONNECTIONS} 20"))?;
    // The gateway is asked for them, and answers.
    scene.must_be_smc_r(CONNECTIONS)?;
    go_on(&mut steady, ALL_THE_WAY)?;
    others.finish(HANG)?;
    holder.hang_up();
    holder.await_line("let go", HANG)?;
    holder.finish(HANG)?;
    // Root's, which the holder was: they have waited.
    let mut own = scene.echo_client(SERVER)?;
    talk(&mut own, &format!("{CONNECTIONS} 20"))?;
    own.finish(HANG)?;
    let said = end(steady)?;
    scene.conclude(0)?;
    Ok(format!("{said}; {CONNECTIONS} connections of another user began"))
}

/// A host stands still for as long as a virtual machine that moves to another machine, and goes on where
/// it was: its gateway, or its programs as well. Connections that talk all the time and such that are
/// silent meanwhile are as before, over the same link.
pub(crate) fn stand_still(stage: &Stage<'_>) -> Result<String> {
    const PAUSE: Duration = Duration::from_secs(6);
    const SILENT: usize = 3;
    let mut scene = Scene::set(stage, Ground::ONE_CABLE, false)?;
    let server = scene.echo_server()?;
    let mut talking = scene.steady_talk()?;
    let mut silent = scene.echo_client(SERVER)?;
    talk(&mut silent, &format!("{SILENT} 20"))?;
    let hosts = &scene.hosts;
    let links = hosts.links()?;
    let gateways = [&hosts.client, &hosts.server].map(|it| launch::family_of(it.gateway_pid()));
    let [of_client, of_server] = &gateways;
    let programs = [talking.program().pid(), silent.program().pid()];
    for (who, pids) in [
        ("the client's gateway", of_client.clone()),
        ("the server's host", [&of_server[..], &[server.pid()]].concat()),
        ("the client's host", [&of_client[..], &programs].concat()),
    ] {
        pids.iter().try_for_each(|pid| launch::signal(*pid, libc::SIGSTOP))?;
        thread::sleep(PAUSE);
        pids.iter().try_for_each(|pid| launch::signal(*pid, libc::SIGCONT))?;
        let context = || format!("{who} has stood still");
        go_on(&mut talking, ALL_THE_WAY).with_context(context)?;
        talk(&mut silent, "0 20").with_context(context)?;
        let now = hosts.links()?;
        ensure!(now == links, "{who} has stood still: links {links:?} became {now:?}");
    }
    scene.must_be_smc_r(SILENT)?;
    let said = end(talking)?;
    silent.finish(HANG)?;
    scene.conclude(0)?;
    Ok(format!("{said}, and {SILENT} silent ones; each host for {} s", PAUSE.as_secs()))
}

/// Gateways of both hosts are replaced, several times, under load. All connections go on in the newest process, every
/// byte of them compared; new ones go by it; and each process that was replaced ends.
pub(crate) fn replace(stage: &Stage<'_>) -> Result<String> {
    const ROUNDS: usize = 3;
    const NEW: usize = 3;
    let mut scene = Scene::set(stage, Ground::ONE_CABLE, false)?;
    let _server = scene.echo_server()?;
    let mut talking = scene.steady_talk()?;
    let mut clients = Vec::new();
    for round in 0..ROUNDS {
        scene.hosts.client.replace_gateway()?;
        go_on(&mut talking, ALL_THE_WAY).with_context(|| format!("round {round}: client"))?;
        scene.hosts.server.replace_gateway()?;
        go_on(&mut talking, ALL_THE_WAY).with_context(|| format!("round {round}: server"))?;
        for host in [&mut scene.hosts.client, &mut scene.hosts.server] {
            let ended = host.await_drained(HANG).context("what cannot move keeps it")?;
            ensure!(ended == 1, "{ended} have ended");
        }
        let mut client = scene.echo_client(SERVER)?;
        talk(&mut client, &format!("{NEW} 20"))?;
        clients.push(client);
        let connections = 7 + NEW * (round + 1);
        scene.must_be_smc_r(connections)?;
        for host in [&scene.hosts.client, &scene.hosts.server] {
            let gateways = host.gateways()?;
            let expected = (host.gateway_pid(), "serves".to_owned(), connections);
            ensure!(gateways == [expected], "round {round}: {gateways:?}");
        }
    }
    for client in &mut clients {
        talk(client, "0 20").context("connections of each process")?;
    }
    let said = end(talking)?;
    clients.into_iter().try_for_each(|client| client.finish(HANG).map(drop))?;
    Ok(format!("{said}; {ROUNDS} times at each end, and {NEW} connections begun by each process"))
}

/// A gateway that is told to reload begins the next one itself.
pub(crate) fn reload(stage: &Stage<'_>) -> Result<String> {
    let mut scene = Scene::set(stage, Ground::ONE_CABLE, false)?;
    let _server = scene.echo_server()?;
    let mut talking = scene.steady_talk()?;
    for _ in 0..2 {
        scene.hosts.client.reload_gateway()?;
        go_on(&mut talking, ALL_THE_WAY)?;
    }
    let mut client = scene.echo_client(SERVER)?;
    talk(&mut client, "3 20")?;
    scene.must_be_smc_r(7 + 3)?;
    client.finish(HANG)?;
    end(talking)
}

/// A gateway is killed at any moment, of the one host and the other by turns. Its programs are told at once, wherever
/// they sleep, and of no orderly end, and so are those of the other host; new connections are TCP at once; and
/// the next gateway begins as if there had been none.
pub(crate) fn killed(stage: &Stage<'_>) -> Result<String> {
    const SLEEPERS: usize = 6;
    /// The median at either host.
    const TOLD_WITHIN_S: f64 = 0.1;
    /// Each of them, on a machine with other work: what sleeps until the library looks after it anyway takes a second.
    const EACH_WITHIN_S: f64 = 0.9;
    /// A little more than that of `rendezvous/gateway.rs` of the library.
    const CALL_INTERVAL: Duration = Duration::from_millis(1_100);
    let mut scene = Scene::set(stage, Ground::ONE_CABLE, false)?;
    let server = scene.echo_server()?;
    let script = stage.house.script("orphans.py");
    let (port, seed) = (PORT.to_string(), stage.house.seed.to_string());
    let words = ["python3", &script, SERVER, &port, &seed];
    let rounds = stage.house.rounds as usize;
    let (mut worst_tcp, mut here, mut there) = (0_f64, Vec::new(), Vec::new());
    for round in 0..rounds {
        let mut client = Dialogue::start(scene.hosts.client.program(&words))?;
        client.say("sleep")?;
        client.await_line("asleep", HANG)?;
        // The rendezvous takes some milliseconds; a kill in the middle of it is a moment as any.
        thread::sleep(Duration::from_millis(7 * round as u64 % 60));
        if round % 4 < 2 {
            scene.must_be_smc_r(SLEEPERS)?;
        }
        let is_clients = round % 2 == 0;
        let hosts = &mut scene.hosts;
        let host = if is_clients { &mut hosts.client } else { &mut hosts.server };
        let killed_s = host.kill_gateway()?;
        let context = || format!("round {round}, the gateway of the client: {is_clients}");
        client.say("connect")?;
        client.say("told")?;
        for _ in 0..SLEEPERS + 1 {
            let line = client.await_line("", HANG).with_context(context)?;
            let [what, rest @ .., time] = &line.split(' ').collect::<Vec<_>>()[..] else {
                bail!("{line}");
            };
            let time_s: f64 = time.parse()?;
            match (*what, rest) {
                ("connected", _) => worst_tcp = worst_tcp.max(time_s),
                (_, kind) => {
                    let took_s = time_s - killed_s;
                    ensure!(took_s < EACH_WITHIN_S, "{}: {kind:?} {took_s} s", context());
                    if is_clients { &mut here } else { &mut there }.push(took_s);
                }
            }
        }
        client.await_line("all were told", HANG).with_context(context)?;
        client.finish(HANG)?;
        let Hosts { server, client, .. } = &mut scene.hosts;
        if !is_clients {
            server.begin_gateway().with_context(context)?;
            // The server has called in vain, and calls again after a second.
            thread::sleep(CALL_INTERVAL);
            // This one leaves the server alone now, as agreeing has failed.
            client.kill_gateway()?;
        }
        client.begin_gateway().with_context(context)?;
    }
    drop(server);
    let ms = |s: f64| (s * 1e3).round();
    let summed_up = |host: &str, times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        // One round is of the client's gateway.
        let Some(worst) = times.last() else { return Ok(String::new()) };
        let median = times[times.len() / 2];
        ensure!(median < TOLD_WITHIN_S, "at {host}: {times:?}");
        Ok(format!("told at {host} within {} ms, the median {} ms; ", ms(*worst), ms(median)))
    };
    let (here, there) = (summed_up("its host", &mut here)?, summed_up("the other", &mut there)?);
    Ok(format!(
        "{rounds} times; {here}{there}a new connection had its first echo after {} ms",
        ms(worst_tcp)
    ))
}

/// A bad network costs time only.
pub(crate) fn faults(stage: &Stage<'_>) -> Result<String> {
    // Two thousand packets of 1024 bytes: that none of them is lost has a chance of one in
    // 10⁸, whatever the seed.
    const LEN: usize = 2 << 20;
    let seed = stage.house.seed;
    let faults = format!("loss=1% duplication=1% delay=500us jitter=200us seed={seed}");
    let mut scene = Scene::set(stage, Ground { faults: &faults, ..Ground::ONE_CABLE }, false)?;
    let bytes = scene.exchange(5, 8)? + LEN;
    scene.fetch(LEN)?;
    let again = scene.hosts.packets_sent_again()?;
    ensure!(again > 0, "no packet was lost");
    scene.conclude(bytes)?;
    Ok(format!("{bytes} bytes compared; {again} packets sent again"))
}

/// Somebody who sees the packets of both gateways forges more of them.
pub(crate) fn attack(stage: &Stage<'_>) -> Result<String> {
    const PACKETS: usize = 4_000;
    let mut scene = Scene::set(stage, Ground::ONE_CABLE, false)?;
    scene.hosts.part_runs()?;
    let _server = scene.echo_server()?;
    let mut talk = scene.steady_talk()?;
    go_on(&mut talk, ALL_THE_WAY)?;
    let links = scene.hosts.links()?;
    let (script, count) = (stage.house.script("forge.py"), PACKETS.to_string());
    let seed = stage.house.seed.to_string();
    let forge = |host: &Host, from, to| {
        let words = ["python3", &script, host.cable(), from, to, &count, &seed];
        Dialogue::start(host.command(&words))
    };
    let forgers =
        [forge(&scene.hosts.client, CLIENT, SERVER)?, forge(&scene.hosts.server, SERVER, CLIENT)?];
    go_on(&mut talk, ALL_THE_WAY).context("under attack")?;
    for forger in forgers {
        forger.finish(HANG)?;
    }
    go_on(&mut talk, ALL_THE_WAY).context("after the attack")?;
    ensure!(scene.hosts.links()? == links, "links have changed");
    let said = end(talk)?;
    scene.conclude(0)?;
    Ok(format!("{said}; {PACKETS} forged packets each way"))
}

/// Somebody who sees each packet sends the next one in the place of its sender.
///
/// From the sender's address nobody can tell whose it is. If it asks for what no peer may have, it breaks the
/// queue pair, as the standard says: connections go on over the other link, and where there is none, they
/// are reset. From another address it is nothing.
pub(crate) fn next_forged(stage: &Stage<'_>) -> Result<String> {
    connections_go_over(stage)?;
    connections_are_reset(stage)?;
    Ok(format!("{} forgeries, each from elsewhere, and in the peer's place", REFUSED.len()))
}

fn connections_go_over(stage: &Stage<'_>) -> Result<()> {
    let scene = Scene::set(stage, Ground::TWO_CABLES, false)?;
    let _server = scene.echo_server()?;
    let mut client = scene.echo_client(SERVER)?;
    // Those who look on see each packet by itself, and from the beginning.
    scene.hosts.part_runs()?;
    let (stranger, address) = scene.hosts.neighbour()?;
    let mut stranger = scene.forger(CLIENT, &[stranger.name(), address])?;
    let mut forgers = [scene.forger(CLIENT, &[])?, scene.forger(SERVER, &[])?];
    talk(&mut client, "6 20")?;
    scene.must_be_smc_r(6)?;
    let hosts = &scene.hosts;
    hosts.await_links(2, HANG)?;

    let links = hosts.links()?;
    for forgery in REFUSED.iter().chain(&["right"]) {
        forge(&mut stranger, forgery)?;
        talk(&mut client, "0 10").with_context(|| format!("{forgery} from elsewhere"))?;
    }
    ensure!(hosts.links()? == links, "links have changed, and nobody has sent anything");

    for (nth, forgery) in REFUSED.iter().enumerate() {
        let forger = &mut forgers[nth % 2];
        let links = hosts.links()?;
        // Some of them are over the link that is attacked.
        talk(&mut client, "2 10")?;
        forge(forger, forgery)?;
        let attacked = || format!("{forgery}, {}", ["to the server", "to the client"][nth % 2]);
        hosts.await_other_links(&links, HANG).with_context(attacked)?;
        talk(&mut client, "0 10").with_context(attacked)?;
        hosts.await_links(2, HANG).with_context(attacked)?;
    }
    talk(&mut client, "0 10")?;
    client.finish(HANG).map(drop)
}

/// The same, where there is no other link.
fn connections_are_reset(stage: &Stage<'_>) -> Result<()> {
    const CONNECTIONS: usize = 3;
    let scene = Scene::set(stage, Ground::ONE_CABLE, false)?;
    let _server = scene.echo_server()?;
    scene.hosts.part_runs()?;
    let mut forgers = [scene.forger(CLIENT, &[])?, scene.forger(SERVER, &[])?];
    let mut client = scene.echo_client(SERVER)?;
    for forger in &mut forgers {
        talk(&mut client, &format!("{CONNECTIONS} 20"))?;
        scene.must_be_smc_r(CONNECTIONS)?;
        forge(forger, REFUSED[0])?;
        client.say("reset")?;
        client.await_line("all were reset", HANG)?;
        // One end knows before the other, and what begins meanwhile stays TCP.
        scene.hosts.await_no_links(HANG)?;
    }
    talk(&mut client, &format!("{CONNECTIONS} 20"))?;
    scene.must_be_smc_r(CONNECTIONS)?;
    client.finish(HANG).map(drop)
}

/// What `forge_next.py` can ask for that no peer is given.
const REFUSED: [&str; 6] = ["key", "beyond", "before", "length", "middle", "read"];

fn forge(forger: &mut Dialogue, forgery: &str) -> Result<()> {
    forger.say(forgery)?;
    forger.await_line("forged", HANG).map(drop)
}

/// More than all buffers between two programs hold.
const ALL_THE_WAY: usize = 1_000_000;

/// Waits until streams have got so many bytes further, and others some messages.
fn go_on(talk: &mut Dialogue, bytes: usize) -> Result<()> {
    talk.say(&bytes.to_string())?;
    talk.await_line("went on", HANG).map(drop)
}

fn end(mut talk: Dialogue) -> Result<String> {
    talk.hang_up();
    let said = talk.await_line("verified", HANG)?;
    talk.finish(HANG)?;
    Ok(said)
}

fn url() -> String {
    format!("http://{SERVER}:{PORT}/file")
}

/// Where it is played.
struct Scene<'a> {
    stage: &'a Stage<'a>,
    hosts: Hosts,
    capture: Option<Capture>,
}

impl<'a> Scene<'a> {
    fn set(stage: &'a Stage<'a>, ground: Ground<'_>, is_captured: bool) -> Result<Self> {
        let directory = stage.house.scratch.join("hosts");
        let hosts = Hosts::set(stage.house.launcher.observer(), directory, ground)?;
        let capture = is_captured.then(|| hosts.capture(PORT)).transpose()?;
        Ok(Self { stage, hosts, capture })
    }

    fn serve(&self, words: &[&str]) -> Result<Program> {
        self.hosts.server.serve(PORT, self.hosts.server.program(words))
    }

    fn run(&self, words: &[&str]) -> Result<String> {
        launch::run(self.hosts.client.program(words), HANG)
    }

    fn echo_server(&self) -> Result<Program> {
        self.echo_server_at(SERVER)
    }

    fn echo_server_at(&self, address: &str) -> Result<Program> {
        let script = self.stage.house.script("distant.py");
        self.serve(&["python3", &script, "server", address, &PORT.to_string()])
    }

    fn echo_client(&self, address: &str) -> Result<Dialogue> {
        let (script, port) = (self.stage.house.script("distant.py"), PORT.to_string());
        let seed = self.stage.house.seed.to_string();
        let words = ["python3", &script, "client", address, &port, &seed];
        Dialogue::start(self.hosts.client.program(&words))
    }

    /// Somebody at the host with the first of the two addresses who knows what it sends to the other one;
    /// `from` is where the forgeries come from, if not there: a network namespace, and its address.
    fn forger(&self, source: &str, from: &[&str]) -> Result<Dialogue> {
        let script = self.stage.house.script("forge_next.py");
        let (host, destination) = match source {
            CLIENT => (&self.hosts.client, SERVER),
            _ => (&self.hosts.server, CLIENT),
        };
        let words = ["python3", &script, host.cable(), source, destination];
        let mut forger = Dialogue::start(host.command(&[&words, from].concat()))?;
        forger.await_line("ready", HANG)?;
        Ok(forger)
    }

    /// A server of keys, and a client that has many connections; returns how many bytes they have
    /// exchanged at least.
    fn redis(&self, address: &str) -> Result<usize> {
        const REQUESTS: usize = 5_000;
        let (port, requests) = (PORT.to_string(), REQUESTS.to_string());
        let words = ["redis-server", "--bind", address, "--port", &port, "--save", ""];
        let _server = self.serve(&[&words[..], &["--protected-mode", "no"]].concat())?;
        let words = ["redis-benchmark", "-h", address, "-p", &port, "-c", "10", "-d", "2048"];
        self.run(&[&words[..], &["-n", &requests, "-t", "set,get", "-q"]].concat())?;
        Ok(2 * REQUESTS * 2_048)
    }

    fn exchange(&self, connections: usize, messages: usize) -> Result<usize> {
        self.exchange_at(SERVER, connections, messages)
    }

    /// Has messages echoed on connections that are by SMC-R, and compares them; returns how many bytes
    /// they had.
    fn exchange_at(&self, address: &str, connections: usize, messages: usize) -> Result<usize> {
        const MESSAGE_LEN: usize = 300;
        let _server = self.echo_server_at(address)?;
        let mut client = self.echo_client(address)?;
        talk(&mut client, &format!("{connections} {messages}"))?;
        self.must_be_smc_r(connections)?;
        client.finish(HANG)?;
        Ok(2 * connections * messages * MESSAGE_LEN)
    }

    /// Fetches a file of so many bytes, and compares it.
    fn fetch(&self, len: usize) -> Result<()> {
        let (_server, file) = self.nginx(len)?;
        let got = self.hosts.directory.join("got");
        let words = ["curl", "--silent", "--show-error", "--output", &got.display().to_string()];
        self.run(&[&words[..], &[&url()]].concat())?;
        must_be_equal(&got, &file)
    }

    /// Seven connections, all by SMC-R, over which bytes go to and fro until the end.
    fn steady_talk(&self) -> Result<Dialogue> {
        const CONNECTIONS: usize = 7;
        let (script, port) = (self.stage.house.script("steady_talk.py"), PORT.to_string());
        let seed = self.stage.house.seed.to_string();
        let client = self.hosts.client.program(&["python3", &script, &port, &seed, SERVER]);
        let mut client = Dialogue::start(client)?;
        client.await_line("talking", HANG)?;
        go_on(&mut client, 1)?;
        self.must_be_smc_r(CONNECTIONS)?;
        Ok(client)
    }

    /// A server of one file, which has so many bytes.
    fn nginx(&self, len: usize) -> Result<(Program, PathBuf)> {
        let directory = &self.hosts.directory;
        let file = directory.join("file");
        fs::write(&file, random_bytes(len)?)?;
        let (user, temporary) = nginx::settings(directory)?;
        let directory = directory.display();
        let settings = format!(
            "daemon off; worker_processes 1; pid {directory}/nginx.pid; {user}\n\
             events {{}}\n\
             http {{ access_log off; {temporary}\
             server {{ listen {SERVER}:{PORT}; location / {{ root {directory}; }} }} }}\n"
        );
        let settings_file = self.hosts.directory.join("nginx.conf");
        fs::write(&settings_file, settings)?;
        let words = ["nginx", "-e", "stderr", "-c", &settings_file.display().to_string()];
        Ok((self.serve(&words)?, file))
    }

    fn must_be_smc_r(&self, connections: usize) -> Result<()> {
        for (host, end) in [(&self.hosts.server, "server"), (&self.hosts.client, "client")] {
            let shown = host.ask("ss")?;
            let rows = shown.as_array().into_iter().flatten();
            let by_smc_r = rows.filter(|row| row["mode"] == "SMC-R").count();
            ensure!(by_smc_r >= connections, "{by_smc_r} by SMC-R at the {end}");
        }
        Ok(())
    }

    /// **Errors**: the links are not between adapters of these families, one of each.
    fn must_have_links(&self, families: &[Family]) -> Result<()> {
        for host in [&self.hosts.server, &self.hosts.client] {
            let links = host.ask("links")?;
            let links = links.as_array().context("`sidestep links`: no list")?;
            let of = |link: &Value, end: &str| {
                let gid: Ipv6Addr = link[end].as_str()?.parse().ok()?;
                Some(if gid.to_ipv4_mapped().is_some() { Family::V4 } else { Family::V6 })
            };
            let is_there = |family: &Family| {
                let ends =
                    |link: &&Value| [of(link, "gid"), of(link, "peer_gid")] == [Some(*family); 2];
                links.iter().filter(ends).count() == 1
            };
            ensure!(
                links.len() == families.len() && families.iter().all(is_there),
                "not one link of each of {families:?}: {links:#?}"
            );
        }
        Ok(())
    }

    /// Says what was seen on the cable, if it was looked at.
    ///
    /// **Errors**: the adapters have sent fewer bytes than this to each other, or not by the rules.
    fn conclude(&mut self, bytes: usize) -> Result<String> {
        let sent = self.hosts.bytes_sent()?;
        ensure!(sent >= bytes as u64, "{sent} bytes by RDMA, of {bytes}");
        let Some(capture) = self.capture.take() else { return Ok(String::new()) };
        let captured = capture.end()?;
        let packets = must_be_sound(&captured)?;
        if let Some(sidestep) = self.stage.house.launcher.observer() {
            let figures: Value = serde_json::from_str(&captured.must_keep_rules(sidestep)?)?;
            let links = figures["links"].as_array().map_or(0, Vec::len);
            ensure!(links > 0, "`sidestep decode` has seen no link");
        }
        Ok(format!("; {packets} packets, of which nobody complains"))
    }
}

/// How tshark calls an error among its remarks.
const EXPERT_ERROR: &str = "8388608";

/// Counts the packets of RoCEv2.
///
/// **Errors**: one is malformed or has another fault, or messages of a kind that SMC-R has are missing.
fn must_be_sound(captured: &Captured) -> Result<usize> {
    let fields = ["frame.number", "frame.protocols", "_ws.expert.severity", "_ws.expert.message"];
    let text = captured.fields("infiniband || smc || _ws.expert.severity == 8388608", &fields)?;
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let faulty = rows.iter().find(|row| row[2].split(',').any(|it| it == EXPERT_ERROR));
    ensure!(faulty.is_none(), "tshark complains: {faulty:?}");
    let count = |words: &[&str]| {
        rows.iter().filter(|row| words.iter().all(|word| row[1].contains(word))).count()
    };
    let (clc, messages, packets) =
        (count(&["tcp", "smc"]), count(&["infiniband", "smc"]), count(&["infiniband"]));
    ensure!(clc > 0 && messages > 0, "tshark sees {clc} CLC messages, and {messages} by RDMA");
    Ok(packets)
}
