//! Databases and caches, checked with their own clients and sums.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::site::Site;
use crate::bench::launch::{self, Program};
use crate::debian::POSTGRESQL;

/// The driver for Java.
const JDBC_DRIVER: &str = "/usr/share/java/postgresql.jar";

pub(crate) fn memcached(site: &Site<'_>) -> Result<String> {
    let port = launch::free_port()?.to_string();
    let options = ["-l", "127.0.0.1", "-U", "0", "-t", "4", "-u", "root"];
    let words = [&["memcached", "-p", &port], &options[..]].concat();
    let mut server = site.serve(port.parse()?, &words)?;
    let client = site.script("compat/memcached_client.py");
    let said = site.run(&["python3", &client, &port, &site.seed()])?;
    server.must_be_alive()?;
    Ok(said.trim().to_owned())
}

pub(crate) fn redis(site: &Site<'_>) -> Result<String> {
    let port = launch::free_port()?.to_string();
    let options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    let words = [&["redis-server", "--port", &port], &options[..]].concat();
    let mut server = site.serve(port.parse()?, &words)?;
    let client = site.script("e2e/redis_client.py");
    let said = site.run(&["python3", &client, &port, &site.seed()])?;
    let load = ["-t", "set,get", "-c", "50", "-n", "50000", "-P", "8", "-q"];
    site.run(&[&["redis-benchmark", "-h", "127.0.0.1", "-p", &port], &load[..]].concat())?;
    server.must_be_alive()?;
    Ok(format!("{}, 100000 commands of 50 clients", said.trim()))
}

// ---- PostgreSQL --------------------------------------------------------------

/// A cluster in a folder of its own; `trust`, because nobody else can reach it
/// for the seconds that it lives.
struct Postgresql<'a> {
    site: &'a Site<'a>,
    server: Program,
    port: String,
}

impl<'a> Postgresql<'a> {
    fn start(site: &'a Site<'a>) -> Result<Self> {
        let (initdb, postgres) = (format!("{POSTGRESQL}/initdb"), format!("{POSTGRESQL}/postgres"));
        let data = site.path("data");
        let options = ["-U", "postgres", "-A", "trust", "-N", "-E", "UTF8"];
        site.prepare(&[&[initdb.as_str(), "-D", &data], &options[..]].concat())?;
        let port = launch::free_port()?.to_string();
        let words = [postgres.as_str(), "-D", &data, "-p", &port, "-k", "", "-F"];
        let settings = ["-c", "listen_addresses=127.0.0.1", "-c", "max_connections=100"];
        let server = site.serve(port.parse()?, &[&words[..], &settings].concat())?;
        Ok(Self { site, server, port })
    }

    /// One of the clients, with what all of them need to know.
    fn client(&self, command: &str, words: &[&str]) -> Result<String> {
        let command = format!("{POSTGRESQL}/{command}");
        let address = ["-h", "127.0.0.1", "-p", &self.port, "-U", "postgres"];
        self.site.run(&[&[command.as_str()], &address[..], words].concat())
    }

    /// The rows of a query, columns divided by bars.
    fn ask(&self, query: &str) -> Result<String> {
        let rows = self.client("psql", &["-X", "-A", "-t", "-q", "-c", query, "postgres"])?;
        Ok(rows.trim().to_owned())
    }
}

/// The four sums that are equal whenever no transaction is under way: each
/// adds the same amount to all of them.
const BALANCES: &str = "SELECT (SELECT sum(abalance) FROM pgbench_accounts), \
     (SELECT sum(bbalance) FROM pgbench_branches), \
     (SELECT sum(tbalance) FROM pgbench_tellers), \
     (SELECT sum(delta) FROM pgbench_history), \
     (SELECT count(*) FROM pgbench_history)";

/// Lines of a table that is copied in and out.
const COPIED_ROWS: u32 = 100_000;

pub(crate) fn postgresql(site: &Site<'_>) -> Result<String> {
    let mut database = Postgresql::start(site)?;
    copy_in_and_out(&database)?;
    database.client("pgbench", &["-i", "-q", "-s", "10", "postgres"])?;
    let selects = database.client("pgbench", &["-n", "-S", "-c", "10", "-T", "4", "postgres"])?;
    must_be_without_failures(&selects)?;
    let updates = ["-n", "-c", "50", "-j", "2", "-T", "6", "postgres"];
    must_be_without_failures(&database.client("pgbench", &updates)?)?;
    let sums = database.ask(BALANCES)?;
    let sums: Vec<&str> = sums.split('|').collect();
    ensure!(sums.len() == 5, "not five sums: {sums:?}");
    ensure!(sums[1..4].iter().all(|sum| *sum == sums[0]), "the sums differ: {sums:?}");
    database.server.must_be_alive()?;
    Ok(format!(
        "{COPIED_ROWS} rows copied in and out, {} tpcb transactions of 50 clients, four sums equal",
        sums[4]
    ))
}

fn must_be_without_failures(report: &str) -> Result<()> {
    let is_clean = report.contains("number of failed transactions: 0 ");
    ensure!(is_clean, "pgbench had failures: {report}");
    Ok(())
}

/// psql sends a file to a table and fetches the table into a file.
fn copy_in_and_out(database: &Postgresql<'_>) -> Result<()> {
    let site = database.site;
    let rows: String = (0..COPIED_ROWS).map(|n| format!("{n}\trow {n} of many\n")).collect();
    let from = site.write("copied-in", rows)?;
    let to = site.path("copied-out");
    database.ask("CREATE TABLE copied (n int, words text)")?;
    database.ask(&format!("\\copy copied FROM '{from}'"))?;
    database.ask(&format!("\\copy (SELECT * FROM copied ORDER BY n) TO '{to}'"))?;
    site.must_be_equal("copied-out", "copied-in")
}

pub(crate) fn jdbc(site: &Site<'_>) -> Result<String> {
    let mut database = Postgresql::start(site)?;
    let program = site.script("compat/Jdbc.java");
    let said = site.run(&["java", "-cp", JDBC_DRIVER, &program, &database.port, &site.seed()])?;
    database.server.must_be_alive()?;
    Ok(said.trim().to_owned())
}

// ---- MariaDB -----------------------------------------------------------------

/// Doubled so many times, from one row.
const DOUBLINGS: u32 = 15;

pub(crate) fn mariadb(site: &Site<'_>) -> Result<String> {
    let data = format!("--datadir={}", site.path("data"));
    let normal = "--auth-root-authentication-method=normal";
    site.prepare(&["mariadb-install-db", "--no-defaults", &data, "--user=root", normal])?;
    let port = launch::free_port()?.to_string();
    let (socket, to_port) = (format!("--socket={}", site.path("socket")), format!("--port={port}"));
    let server = ["mariadbd", "--no-defaults", &data, &socket, &to_port];
    let settings = ["--bind-address=127.0.0.1", "--user=root", "--max-allowed-packet=64M"];
    let mut server = site.serve(port.parse()?, &[&server[..], &settings].concat())?;

    let address = ["--no-defaults", "--protocol=tcp", "-h", "127.0.0.1", "-u", "root", &to_port];
    let ask = |query: &str| site.run(&[&["mariadb"], &address[..], &["-N", "-e", query]].concat());
    ask("CREATE DATABASE a; CREATE DATABASE b; CREATE TABLE a.t \
         (n INT AUTO_INCREMENT PRIMARY KEY, words VARCHAR(200), bytes BLOB); \
         INSERT INTO a.t (words, bytes) VALUES ('one', RANDOM_BYTES(600))")?;
    for _ in 0..DOUBLINGS {
        ask("INSERT INTO a.t (words, bytes) SELECT SHA2(RAND(), 512), RANDOM_BYTES(600) FROM a.t")?;
    }
    // The rows go out through one connection and in through another.
    let dump = site.path("dump.sql");
    let file = format!("--result-file={dump}");
    site.run(&[&["mariadb-dump"], &address[..], &["--hex-blob", &file, "a"]].concat())?;
    let len = fs::metadata(&dump).context("the dump")?.len();
    site.run(&[&["mariadb"], &address[..], &["b", "-e", &format!("source {dump}")]].concat())?;
    let sums = ask("CHECKSUM TABLE a.t, b.t EXTENDED")?;
    let sums: Vec<&str> = sums.lines().filter_map(|row| row.split_whitespace().nth(1)).collect();
    ensure!(sums.len() == 2 && sums[0] == sums[1], "the copy differs: {sums:?}");
    server.must_be_alive()?;
    let rows = 1 << DOUBLINGS;
    Ok(format!("{rows} rows dumped and loaded ({len} bytes), table checksums equal"))
}
