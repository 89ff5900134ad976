//! `cargo xtask demo`: redis and its benchmark talk through TCP, then through Sidestep, and its
//! displays show that they do.
//!
//! Both times the same programs with the same arguments; `sidestep run` in front of them is all the
//! difference. `cargo xtask demo hosts` has them on two hosts, which are network namespaces with two
//! cables: there the bytes go by RDMA, and in the end a cable is unplugged. `cargo xtask demo vip` has three
//! redis behind one address.

mod vip;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::bench::launch::{self, Dialogue, LaunchOptions, Launcher, Program, Transport};
use crate::bench::place;
use crate::bench::workloads::redis_rate;
use crate::debian;
use crate::hosts::{CABLES, Ground, Host, Hosts, SERVER};
use crate::suite::HANG;

/// How the demonstration is to be.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Where the two programs are
    #[arg(value_enum, default_value_t)]
    between: Between,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Between {
    /// On this machine, by shared memory
    #[default]
    Programs,
    /// On two hosts, which are network namespaces, by RDMA in software (needs root)
    Hosts,
    /// On this machine, with three servers behind one address (needs root)
    Vip,
}

/// What redis-benchmark runs, as it calls it in its report.
const TESTS: [&str; 2] = ["SET", "GET"];

/// Bytes of each value.
const VALUE_LEN: &str = "2048";

/// One run of redis-benchmark.
struct Load {
    tests: &'static str,
    /// Connections at the same time.
    clients: &'static str,
    /// Requests of each test: some seconds through TCP, long enough to be
    /// looked at without.
    requests: &'static str,
}

const LOADS: [Load; 2] = [
    Load { tests: "set,get", clients: "1", requests: "100000" },
    Load { tests: "set,get", clients: "50", requests: "400000" },
];

/// The one in which a cable is unplugged. There is no second test, whose connections would have to be
/// made, by TCP, over a cable that is not there.
const LOAD_WITH_CUT: Load = Load { tests: "set", clients: "50", requests: "800000" };

/// Pause between two looks at the connections.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Connections shown; the table's last line counts them all.
const CONNECTIONS_SHOWN: usize = 3;

/// Runs the demonstration.
///
/// **Errors**: something it needs cannot be had, a program failed, or the
/// connections went by TCP.
pub(crate) fn run(options: &Options) -> Result<()> {
    debian::ensure(&["gcc", "redis-server"])?;
    crate::build()?;
    let repo = place::repo_root()?;
    let launcher = Launcher::new(&LaunchOptions::default(), &repo)?;
    let scratch = place::scratch_dir(&repo, "sidestep-demo")?;
    let site = match options.between {
        Between::Programs => Site::here(launcher)?,
        Between::Hosts => Site::two_hosts(&launcher, &scratch)?,
        Between::Vip => return vip::run(&launcher, &scratch),
    };
    let demo = Demo { site, scratch };
    let tcp = demo.play(Transport::Tcp)?;
    let smc = demo.play(Transport::Smc)?;
    if let Site::TwoHosts(hosts) = &demo.site {
        demo.unplug(hosts)?;
    }
    println!("\n{}", comparison(&tcp, &smc));
    Ok(())
}

/// Where the two programs are.
enum Site {
    Here { launcher: Launcher, port: String },
    TwoHosts(Box<Hosts>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Server,
    Client,
}

impl Site {
    fn here(launcher: Launcher) -> Result<Self> {
        Ok(Self::Here { launcher, port: launch::free_port()?.to_string() })
    }

    fn two_hosts(launcher: &Launcher, scratch: &Path) -> Result<Self> {
        debian::ensure(&["iproute2"])?;
        println!(
            "\ntwo hosts, client and server: network namespaces with {} cables, and on each\n\
             `sidestep agent`, which writes the TCP option, and `sidestep gateway`, which has a \
             soft RNIC at each cable",
            CABLES.len()
        );
        let hosts = Hosts::set(launcher.observer(), scratch.join("demo"), Ground::TWO_CABLES)?;
        Ok(Self::TwoHosts(Box::new(hosts)))
    }

    /// The server's address, and its port.
    fn server(&self) -> [&str; 2] {
        match self {
            Self::Here { port, .. } => ["127.0.0.1", port],
            Self::TwoHosts(_) => [SERVER, "6379"],
        }
    }

    /// What stands before commands that are shown.
    fn prompt(&self, end: End) -> &'static str {
        match (self, end) {
            (Self::Here { .. }, _) => "$",
            (Self::TwoHosts(_), End::Server) => "server $",
            (Self::TwoHosts(_), End::Client) => "client $",
        }
    }

    fn command(&self, end: End, transport: Transport, words: &[&str]) -> Command {
        match (self, transport) {
            (Self::Here { launcher, .. }, _) => launcher.launch(transport, words[0], &words[1..]),
            (Self::TwoHosts(hosts), Transport::Tcp) => host(hosts, end).command(words),
            (Self::TwoHosts(hosts), Transport::Smc) => host(hosts, end).program(words),
        }
    }

    /// The `sidestep` command there.
    fn sidestep(&self, end: End, words: &[&str]) -> Result<Command> {
        match self {
            Self::TwoHosts(hosts) => Ok(host(hosts, end).sidestep(words)),
            Self::Here { launcher, .. } => {
                let sidestep = launcher.observer().context("there is no `sidestep` command")?;
                let mut command = Command::new(sidestep);
                command.args(words);
                Ok(command)
            }
        }
    }

    /// How `sidestep ss` calls what the connections are to be.
    const fn mode(&self) -> &'static str {
        match self {
            Self::Here { .. } => "SMC-D",
            Self::TwoHosts(_) => "SMC-R",
        }
    }
}

const fn host(hosts: &Hosts, end: End) -> &Host {
    match end {
        End::Server => &hosts.server,
        End::Client => &hosts.client,
    }
}

/// Requests per second: for each load, those of each test.
type Rates = [[f64; TESTS.len()]; LOADS.len()];

struct Demo {
    site: Site,
    /// For the server's log.
    scratch: PathBuf,
}

impl Demo {
    fn play(&self, transport: Transport) -> Result<Rates> {
        println!();
        let mut server = self.serve(transport)?;
        let mut rates = Rates::default();
        for (load, rates) in LOADS.iter().zip(&mut rates) {
            let mut client = self.begin(transport, load)?;
            if transport == Transport::Smc {
                self.show_connections(&server, &mut client)?;
            }
            let report = client.finish(HANG)?;
            server.must_be_alive()?;
            for (test, rate) in TESTS.iter().zip(rates) {
                *rate = show_rate(test, &report)?;
            }
        }
        Ok(rates)
    }

    /// While requests are under way, the cable by which they go is unplugged.
    fn unplug(&self, hosts: &Hosts) -> Result<()> {
        println!();
        let mut server = self.serve(Transport::Smc)?;
        let mut client = self.begin(Transport::Smc, &LOAD_WITH_CUT)?;
        self.proof(&server, &mut client)?;
        hosts.await_links(CABLES.len(), HANG)?;
        let before = hosts.links()?;
        self.show(End::Client, &["links"])?;
        let cable = hosts.busiest_cable()?;
        println!("client $ ip link set {} down", CABLES[cable]);
        hosts.unplug(cable)?;
        hosts.await_other_links(&before, HANG)?;
        self.show(End::Client, &["links"])?;
        show_rate(TESTS[0], &client.finish(HANG)?)?;
        server.must_be_alive()
    }

    fn serve(&self, transport: Transport) -> Result<Program> {
        let [address, port] = self.site.server();
        let place = ["redis-server", "--bind", address, "--port", port, "--protected-mode", "no"];
        let words = [&place[..], &["--save", "", "--appendonly", "no"]].concat();
        let command = self.announced(End::Server, transport, &words);
        let mut server = Program::start(command, &self.scratch)?;
        server.await_listener(port.parse()?)?;
        Ok(server)
    }

    fn begin(&self, transport: Transport, load: &Load) -> Result<Dialogue> {
        let words = load.words(self.site.server());
        Dialogue::start(self.announced(End::Client, transport, &words))
    }

    /// The command, when it was shown.
    fn announced(&self, end: End, transport: Transport, words: &[&str]) -> Command {
        let prefix = match transport {
            Transport::Tcp => "",
            Transport::Smc => "sidestep run ",
        };
        let quoted: Vec<&str> =
            words.iter().map(|word| if word.is_empty() { "''" } else { word }).collect();
        println!("{} {prefix}{}", self.site.prompt(end), quoted.join(" "));
        self.site.command(end, transport, words)
    }

    /// Shows a display of Sidestep.
    fn show(&self, end: End, words: &[&str]) -> Result<()> {
        println!("{} sidestep {}", self.site.prompt(end), words.join(" "));
        print!("{}", launch::run(self.site.sidestep(end, words)?, HANG)?);
        Ok(())
    }

    fn show_connections(&self, server: &Program, client: &mut Dialogue) -> Result<()> {
        println!("{} sidestep ss --pid {}", self.site.prompt(End::Server), server.pid());
        println!("{}", shortened(&self.proof(server, client)?, self.site.mode()));
        Ok(())
    }

    /// What `sidestep ss` says about the server once its connections are seen not to go by TCP, and
    /// none is still with the gateway that has to agree about it.
    fn proof(&self, server: &Program, client: &mut Dialogue) -> Result<String> {
        let (mode, pid) = (self.site.mode(), server.pid().to_string());
        let deadline = Instant::now() + HANG;
        let mut table = String::new();
        while Instant::now() < deadline {
            let look = self.site.sidestep(End::Server, &["ss", "--pid", &pid])?;
            table = launch::run(look, HANG)?;
            let has = |mode| table.lines().any(|line| is_in(mode, line));
            if has(mode) && !has("gateway") {
                return Ok(table);
            }
            if client.program().has_ended()? {
                break;
            }
            thread::sleep(LOOK_INTERVAL);
        }
        bail!("the connections were not seen to be {mode}; `sidestep ss` said:\n{table}")
    }
}

impl Load {
    fn words<'a>(&self, [address, port]: [&'a str; 2]) -> Vec<&'a str> {
        let Self { tests, clients, requests } = *self;
        let place = ["redis-benchmark", "-h", address, "-p", port, "-t", tests];
        [&place[..], &["-d", VALUE_LEN, "-c", clients, "-n", requests, "--csv"]].concat()
    }
}

/// The rate of one test of a report.
fn show_rate(test: &str, report: &str) -> Result<f64> {
    let rate = redis_rate(report, test).context("redis-benchmark printed no rate")?;
    println!("{test}: {} requests per second", grouped(rate));
    Ok(rate)
}

/// Whether a line of `sidestep ss` is that of a connection of this mode.
fn is_in(mode: &str, line: &str) -> bool {
    line.split_whitespace().next() == Some(mode)
}

/// A table of connections without most of those of this mode: its heading, a few of them, everything
/// else.
fn shortened(table: &str, mode: &str) -> String {
    let smc_count = table.lines().filter(|line| is_in(mode, line)).count();
    let mut shown = Vec::new();
    let mut smc_seen = 0;
    for line in table.lines() {
        let is_smc = is_in(mode, line);
        smc_seen += usize::from(is_smc);
        if !is_smc || smc_seen <= CONNECTIONS_SHOWN {
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
            shortened(table, "SMC-D"),
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
