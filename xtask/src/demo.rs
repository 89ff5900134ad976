//! `cargo xtask demo`: redis and its benchmark talk through TCP, then through
//! shared memory, and `sidestep ss` shows that they do.
//!
//! Both times the same programs with the same arguments; `sidestep run` in
//! front of them is all the difference.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bench::launch::{self, Dialogue, LaunchOptions, Launcher, Program, Transport};
use crate::bench::place;
use crate::bench::workloads::redis_rate;
use crate::debian;

/// What redis-benchmark runs, in the order of its report.
const TESTS: [&str; 2] = ["SET", "GET"];

/// Bytes of each value.
const VALUE_LEN: &str = "2048";

/// One round of the demonstration.
struct Load {
    /// Connections at the same time.
    clients: &'static str,
    /// Requests of each test: some seconds through TCP, long enough to be
    /// looked at without.
    requests: &'static str,
}

const LOADS: [Load; 2] =
    [Load { clients: "1", requests: "100000" }, Load { clients: "50", requests: "400000" }];

/// Longest time for one run of the benchmark.
const PATIENCE: Duration = Duration::from_secs(120);

/// Pause between two looks at the connections.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Connections shown; the table's last line counts them all.
const CONNECTIONS_SHOWN: usize = 3;

/// Runs the demonstration.
///
/// **Errors**: something it needs cannot be had, a program failed, or the
/// connections were not in shared memory.
pub(crate) fn run() -> Result<()> {
    debian::ensure(&["gcc", "redis-server"])?;
    crate::build()?;
    let repo = place::repo_root()?;
    let demo = Demo {
        launcher: Launcher::new(&LaunchOptions::default(), &repo)?,
        scratch: place::scratch_dir(&repo, "sidestep-demo")?,
    };
    let tcp = demo.play(Transport::Tcp)?;
    let smc = demo.play(Transport::Smc)?;
    println!("\n{}", comparison(&tcp, &smc));
    Ok(())
}

/// Requests per second: for each load, those of each test.
type Rates = [[f64; TESTS.len()]; LOADS.len()];

struct Demo {
    launcher: Launcher,
    /// For the server's log.
    scratch: PathBuf,
}

impl Demo {
    fn play(&self, transport: Transport) -> Result<Rates> {
        let prefix = match transport {
            Transport::Tcp => "",
            Transport::Smc => "sidestep run ",
        };
        let port = launch::free_port()?.to_string();
        println!("\n$ {prefix}redis-server --port {port} --save '' --appendonly no");
        let mut server = self.serve(transport, &port)?;
        let mut rates = Rates::default();
        for (load, rates) in LOADS.iter().zip(&mut rates) {
            let words = load.words(&port);
            println!("$ {prefix}{}", words.join(" "));
            let output = self.measure(transport, &server, &words)?;
            server.must_be_alive()?;
            for (test, rate) in TESTS.iter().zip(rates) {
                *rate = redis_rate(&output, test).context("redis-benchmark printed no rate")?;
                println!("{test}: {} requests per second", grouped(*rate));
            }
        }
        Ok(rates)
    }

    fn serve(&self, transport: Transport, port: &str) -> Result<Program> {
        let words = ["--port", port, "--save", "", "--appendonly", "no"];
        let command = self.launcher.launch(transport, "redis-server", words);
        let mut server = Program::start(command, &self.scratch)?;
        server.await_listener(port.parse()?)?;
        Ok(server)
    }

    /// Runs the benchmark to its end; under Sidestep its connections are shown
    /// while it is busy.
    fn measure(&self, transport: Transport, server: &Program, words: &[&str]) -> Result<String> {
        let (program, args) = words.split_first().context("an empty command")?;
        let mut client = Dialogue::start(self.launcher.launch(transport, program, args))?;
        if transport == Transport::Smc {
            println!("$ sidestep ss --pid {}", server.pid());
            println!("{}", self.proof(server, &mut client)?);
        }
        client.finish(PATIENCE)
    }

    /// What `sidestep ss` says about the server once its connections are seen
    /// in shared memory.
    fn proof(&self, server: &Program, client: &mut Dialogue) -> Result<String> {
        let sidestep = self.launcher.observer().context("there is no `sidestep` command")?;
        let deadline = Instant::now() + PATIENCE;
        let mut table = String::new();
        while Instant::now() < deadline {
            let mut look = Command::new(sidestep);
            look.args(["ss", "--pid", &server.pid().to_string()]);
            table = launch::run(look, PATIENCE)?;
            if table.lines().any(is_smc) {
                return Ok(shortened(&table));
            }
            if client.program().has_ended()? {
                break;
            }
            thread::sleep(LOOK_INTERVAL);
        }
        bail!("no connection was seen in shared memory; `sidestep ss` said:\n{table}")
    }
}

impl Load {
    fn words<'a>(&self, port: &'a str) -> [&'a str; 12] {
        let Self { clients, requests } = *self;
        [
            "redis-benchmark",
            "-p",
            port,
            "-t",
            "set,get",
            "-d",
            VALUE_LEN,
            "-c",
            clients,
            "-n",
            requests,
            "--csv",
        ]
    }
}

fn is_smc(line: &str) -> bool {
    line.starts_with("SMC-D ")
}

/// A table of connections without most of those in shared memory: its heading,
/// a few of them, everything else.
fn shortened(table: &str) -> String {
    let smc_count = table.lines().filter(|line| is_smc(line)).count();
    let mut shown = Vec::new();
    let mut smc_seen = 0;
    for line in table.lines() {
        smc_seen += usize::from(is_smc(line));
        if !is_smc(line) || smc_seen <= CONNECTIONS_SHOWN {
            shown.push(line.to_owned());
        } else if smc_seen == CONNECTIONS_SHOWN + 1 {
            shown.push(format!("… {} more", smc_count - CONNECTIONS_SHOWN));
        }
    }
    shown.join("\n")
}

fn comparison(tcp: &Rates, smc: &Rates) -> String {
    let mut lines = vec![row(["requests per second", "TCP", "Sidestep", "Sidestep / TCP"])];
    for (index, load) in LOADS.iter().enumerate() {
        for (test, name) in TESTS.iter().enumerate() {
            let (tcp, smc) = (tcp[index][test], smc[index][test]);
            let plural = if load.clients == "1" { "" } else { "s" };
            lines.push(row([
                &format!("{name}, {} connection{plural}", load.clients),
                &grouped(tcp),
                &grouped(smc),
                &ratio(tcp, smc),
            ]));
        }
    }
    lines.join("\n")
}

fn row([what, tcp, smc, ratio]: [&str; 4]) -> String {
    format!("{what:<20} {tcp:>12} {smc:>12} {ratio:>16}")
}

fn ratio(tcp: f64, smc: f64) -> String {
    if tcp > 0.0 { format!("{:.1} ×", smc / tcp) } else { "-".to_owned() }
}

/// A whole number with a blank between groups of three digits.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_come_in_groups_of_three() {
        assert_eq!(grouped(7.0), "7");
        assert_eq!(grouped(123.4), "123");
        assert_eq!(grouped(16_129.03), "16 129");
        assert_eq!(grouped(1_234_567.0), "1 234 567");
    }

    #[test]
    fn a_long_table_keeps_its_ends() {
        let table = "Mode   Local\n\
                     SMC-D  a\nSMC-D  b\nTCP    c\nSMC-D  d\nSMC-D  e\nSMC-D  f\n\
                     Connections: 6; SMC-D: 5, TCP: 1";
        assert_eq!(
            shortened(table),
            "Mode   Local\n\
             SMC-D  a\nSMC-D  b\nTCP    c\nSMC-D  d\n… 2 more\n\
             Connections: 6; SMC-D: 5, TCP: 1"
        );
    }

    #[test]
    fn the_ratio_is_sidestep_s_over_tcp_s() {
        let text =
            comparison(&[[10_000.0, 20_000.0], [1.0, 0.0]], &[[50_000.0, 30_000.0], [1.0, 1.0]]);
        let rows: Vec<&str> = text.lines().collect();
        assert!(rows[1].starts_with("SET, 1 connection "));
        assert!(rows[1].ends_with("5.0 ×"));
        assert!(rows[2].ends_with("1.5 ×"));
        assert!(rows[3].starts_with("SET, 50 connections"));
        assert!(rows[4].ends_with("-"));
    }
}
