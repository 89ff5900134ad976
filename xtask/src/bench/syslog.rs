//! Syslog: three rsyslogd send to a fourth, and what a message costs there.
//!
//! | Way | From where | How |
//! |---|---|---|
//! | UDP, TCP | three network namespaces | rsyslogd alone |
//! | TLS by rule | three network namespaces | the same configuration as TCP, and a gateway in each of the four |
//! | rsyslog's own TLS | three network namespaces | OpenSSL in rsyslogd, keys in its configuration |
//! | one host, TCP and memory | the collector's namespace | rsyslogd alone, and under Sidestep |
//!
//! What counts is the collector's CPU time by its clocks: rsyslogd's, and with a rule its gateway's as well. Messages are
//! compared: by TCP each of a sender's comes once and in order; by UDP none comes that was not sent.
//!
//! The two columns of the table are the two sides of each row's ratio, as [`costs`] says.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::lab::Lab;
use super::launch::{self, Program, Transport};
use crate::enclosure::{CABLE, Namespace};
use crate::suite::Lacking;
use crate::user;

const COLLECTOR: &str = "10.92.0.100";
const SENDERS: [(&str, &str); 3] =
    [("logs-a", "10.92.0.1"), ("logs-b", "10.92.0.2"), ("logs-c", "10.92.0.3")];
const PORT: u16 = 6_514;
/// As the certificate has it.
const NAME: &str = "logs.example";

/// Messages of each sender for each second of a run.
const MESSAGES_PER_S: f64 = 40_000.0;
/// Of a message as it is written, with its end of line.
const MESSAGE_LEN: usize = 100;

/// Where the configuration of all is.
const RULES: &str = "syslog/rules.toml";

const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// By UDP no message comes any more after so long without one.
const SILENCE: Duration = Duration::from_secs(1);

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Udp,
    Tcp,
    Rule,
    OwnTls,
    OneHost,
    Memory,
}

impl Way {
    const fn is_within_host(self) -> bool {
        matches!(self, Self::OneHost | Self::Memory)
    }

    const fn target(self) -> &'static str {
        if self.is_within_host() { "127.0.0.1" } else { COLLECTOR }
    }

    const fn transport(self) -> Transport {
        match self {
            Self::Rule | Self::Memory => Transport::Smc,
            _ => Transport::Tcp,
        }
    }
}

/// Microseconds of the collector's CPU time for a message, in the order of the rows: TCP and UDP; TLS by rule and TCP; TLS
/// by rule and rsyslog's own; within one host shared memory and TCP.
pub(super) fn costs(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let scene = Scene::set(lab)?;
    let cost = |way| scene.cost(way).with_context(|| format!("{way:?}"));
    if transport == Transport::Tcp {
        return [Way::Udp, Way::Tcp, Way::OwnTls, Way::OneHost].into_iter().map(cost).collect();
    }
    let (tcp, rule) = (cost(Way::Tcp)?, cost(Way::Rule)?);
    Ok(vec![tcp, rule, rule, cost(Way::Memory)?])
}

struct Scene<'a> {
    lab: &'a Lab,
    collector: Namespace,
    senders: Vec<Namespace>,
    messages: usize,
}

impl<'a> Scene<'a> {
    fn set(lab: &'a Lab) -> Result<Self> {
        if !user::is_root() {
            bail!(Lacking("network namespaces and gateways need root".to_owned()));
        }
        let collector = Namespace::make("logs")?;
        collector.ip(&["link", "add", "name", "bridge", "type", "bridge"])?;
        collector.settle("bridge", &[COLLECTOR])?;
        let mut senders = Vec::new();
        for (what, address) in SENDERS {
            let sender = Namespace::make(what)?;
            let port = ["link", "add", "name", what, "type", "veth", "peer", "name", CABLE];
            collector.ip(&[&port[..], &["netns", sender.name()]].concat())?;
            collector.ip(&["link", "set", what, "master", "bridge", "up"])?;
            sender.settle(CABLE, &[address])?;
            senders.push(sender);
        }
        make_certificates(lab)?;
        let messages = (lab.seconds * MESSAGES_PER_S) as usize;
        for number in 0..SENDERS.len() {
            let text: String = (0..messages).map(|it| message(number, it)).collect();
            lab.write(&format!("syslog/said-{number}"), text)?;
        }
        Ok(Self { lab, collector, senders, messages })
    }

    /// Microseconds of the collector's CPU time for a message.
    fn cost(&self, way: Way) -> Result<f64> {
        // Of a run that has failed.
        let _ = fs::remove_file(self.lab.path("syslog/heard"));
        // Once, before any program reads it.
        let rules = if way == Way::Rule { rules(self.lab) } else { String::new() };
        self.lab.write(RULES, rules)?;
        let gateways = if way == Way::Rule { self.gateways()? } else { Vec::new() };
        let mut collector = self.rsyslogd(way, &self.collector, "collector", collector_config)?;
        match way {
            Way::Udp => {
                self.await_that("datagrams are taken", || takes_datagrams(collector.pid()))?
            }
            _ => collector.await_listener(PORT)?,
        }
        let counted = || -> Result<f64> {
            let gateway = gateways.first().map(|it| cpu_s(it.pid())).transpose()?;
            Ok(cpu_s(collector.pid())? + gateway.unwrap_or_default())
        };
        let before_s = counted()?;
        let mut senders = Vec::new();
        for number in 0..SENDERS.len() {
            let at = if way.is_within_host() { &self.collector } else { &self.senders[number] };
            let config = |lab: &Lab, way, work: &str| sender_config(lab, way, work, number);
            senders.push(self.rsyslogd(way, at, &format!("sender-{number}"), config)?);
        }
        self.await_messages(way)?;
        let cost_us = (counted()? - before_s) * 1e6;
        self.look(way, &collector)?;
        let heard = self.compare(way)?;
        ensure!(heard > 0, "no message came");
        Ok(cost_us / heard as f64)
    }

    /// A gateway in each namespace; the collector's is the first.
    fn gateways(&self) -> Result<Vec<Program>> {
        let sidestep = self.lab.launcher.observer().context("the gateway is in `sidestep`")?;
        let hosts = || [&self.collector].into_iter().chain(&self.senders);
        let mut gateways = Vec::new();
        for host in hosts() {
            let mut command = Command::new(sidestep);
            command.args(["gateway", "--config", &self.lab.path(RULES)]);
            host.enclose(&mut command);
            gateways.push(Program::start(command, &self.lab.scratch)?);
        }
        for host in hosts() {
            self.await_that("the gateway answers", || {
                let mut command = Command::new(sidestep);
                command.args(["gateway", "--status"]);
                host.enclose(&mut command);
                command.output().is_ok_and(|it| it.status.success())
            })?;
        }
        Ok(gateways)
    }

    fn await_that(&self, what: &str, is_so: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + self.lab.patience();
        while !is_so() {
            ensure!(Instant::now() < deadline, "waited in vain: {what}");
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn rsyslogd(
        &self,
        way: Way,
        at: &Namespace,
        name: &str,
        config: impl FnOnce(&Lab, Way, &str) -> String,
    ) -> Result<Program> {
        let lab = self.lab;
        // It remembers there how far it has read a file.
        let work = lab.path(&format!("syslog/{name}"));
        let _ = fs::remove_dir_all(&work);
        fs::create_dir_all(&work)?;
        let config = lab.write(&format!("syslog/{name}.conf"), config(lab, way, &work))?;
        let pid = format!("{work}/pid");
        let mut command =
            lab.command(way.transport(), &["rsyslogd", "-n", "-f", &config, "-i", &pid])?;
        command.env("SIDESTEP_CONFIG", lab.path(RULES));
        at.enclose(&mut command);
        Program::start(command, &lab.scratch)
    }

    /// Until all have come, or by UDP no more do.
    fn await_messages(&self, way: Way) -> Result<()> {
        let (heard, all) = (self.lab.path("syslog/heard"), self.all() * MESSAGE_LEN);
        let deadline = Instant::now() + self.lab.patience();
        let (mut len, mut grown) = (0, Instant::now());
        loop {
            let now = fs::metadata(&heard).map_or(0, |it| it.len() as usize);
            if now > len {
                (len, grown) = (now, Instant::now());
            }
            if len >= all || way == Way::Udp && len > 0 && grown.elapsed() > SILENCE {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{len} of {all} bytes came");
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn all(&self) -> usize {
        self.messages * SENDERS.len()
    }

    /// That messages went the way that they should.
    fn look(&self, way: Way, collector: &Program) -> Result<()> {
        match way {
            Way::Rule => {
                let sidestep = self.lab.launcher.observer().context("`sidestep`")?;
                let mut command = Command::new(sidestep);
                command.args(["tls", "--json"]);
                command.env("SIDESTEP_CONFIG", self.lab.path(RULES));
                self.collector.enclose(&mut command);
                let told: Value =
                    serde_json::from_str(&launch::run(command, self.lab.patience())?)?;
                let rules = told["rules"].as_array().context("no rules")?;
                let handshakes: u64 = rules.iter().filter_map(|it| it["handshakes"].as_u64()).sum();
                ensure!(handshakes == SENDERS.len() as u64, "{handshakes} handshakes");
                Ok(())
            }
            Way::Memory => self.lab.note_connections("syslog within one host", collector.pid()),
            _ => Ok(()),
        }
    }

    /// How many messages came; by TCP each of a sender's, once and in order.
    fn compare(&self, way: Way) -> Result<usize> {
        let heard = self.lab.path("syslog/heard");
        let text = fs::read_to_string(&heard)?;
        let mut next = [0; SENDERS.len()];
        for line in text.lines() {
            let (number, at) = numbers(line).with_context(|| format!("never sent: {line:?}"))?;
            ensure!(message(number, at).trim_end() == line, "changed: {line:?}");
            let next = next.get_mut(number).context("no such sender")?;
            ensure!(at >= *next && at < self.messages, "sender {number}: {at} behind {next}");
            ensure!(way == Way::Udp || at == *next, "sender {number}: {at} in the place of {next}");
            *next = at + 1;
        }
        let count = text.lines().count();
        ensure!(way == Way::Udp || count == self.all(), "{count} of {} messages", self.all());
        if count < self.all() {
            let lost = self.all() - count;
            self.lab.note(format!("syslog by UDP: {lost} of {} messages were lost", self.all()));
        }
        fs::remove_file(heard)?;
        Ok(count)
    }
}

/// Whether a process of that network namespace has bound the port for datagrams.
fn takes_datagrams(pid: u32) -> bool {
    let wanted = format!(":{PORT:04X} ");
    fs::read_to_string(format!("/proc/{pid}/net/udp")).is_ok_and(|it| it.contains(&wanted))
}

/// CPU time of all threads of a process, those that have ended as well.
fn cpu_s(pid: u32) -> Result<f64> {
    let mut clock = 0;
    // SAFETY: `clock` is writable.
    match unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) } {
        0 => {}
        error => return Err(io::Error::from_raw_os_error(error)).context("a clock of CPU time"),
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) };
    ensure!(failed == 0, "a clock of CPU time: {}", io::Error::last_os_error());
    Ok(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

/// A message of a sender, of [`MESSAGE_LEN`] bytes.
fn message(sender: usize, number: usize) -> String {
    let head = format!("sender {sender} message {number} ");
    format!("{head:.<width$}\n", width = MESSAGE_LEN - 1)
}

fn numbers(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split(' ');
    let sender = (words.next()? == "sender").then(|| words.next())??.parse().ok()?;
    let number = (words.next()? == "message").then(|| words.next())??.parse().ok()?;
    Some((sender, number))
}

fn collector_config(lab: &Lab, way: Way, work: &str) -> String {
    let heard = lab.path("syslog/heard");
    let at = |name: &str| lab.path(&format!("syslog/{name}"));
    let input = match way {
        // Room for all, or the figure would be that of a collector that loses most.
        Way::Udp => {
            "module(load=\"imudp\" batchSize=\"128\")\ninput(type=\"imudp\" rcvbufSize=\"256m\" "
                .to_owned()
        }
        Way::OwnTls => format!(
            "global(defaultNetstreamDriverCAFile=\"{}\" defaultNetstreamDriverCertFile=\"{}\" \
             defaultNetstreamDriverKeyFile=\"{}\")\n\
             module(load=\"imtcp\" streamDriver.name=\"ossl\" streamDriver.mode=\"1\" \
             streamDriver.authMode=\"anon\")\ninput(type=\"imtcp\" ",
            at("ca.pem"),
            at("logs.pem"),
            at("logs.key")
        ),
        _ => "module(load=\"imtcp\")\ninput(type=\"imtcp\" ".to_owned(),
    };
    // What a message has behind the blank that its header ends with. A second thread of the queue, which rsyslogd begins with 40 000
    // messages waiting, would write its batches between those of the first.
    format!(
        "global(workDirectory=\"{work}\")\n\
         main_queue(queue.workerThreads=\"1\")\n\
         template(name=\"words\" type=\"string\" string=\"%msg:2:$%\\n\")\n\
         {input}address=\"{}\" port=\"{PORT}\")\n\
         action(type=\"omfile\" file=\"{heard}\" template=\"words\")\n",
        way.target()
    )
}

fn sender_config(lab: &Lab, way: Way, work: &str, number: usize) -> String {
    let said = lab.path(&format!("syslog/said-{number}"));
    let protocol = if way == Way::Udp { "udp" } else { "tcp" };
    let (ca, driver) = match way {
        Way::OwnTls => (
            format!("global(defaultNetstreamDriverCAFile=\"{}\")\n", lab.path("syslog/ca.pem")),
            format!(
                " streamDriver=\"ossl\" streamDriverMode=\"1\" streamDriverAuthMode=\"x509/name\" \
                 streamDriverPermittedPeers=\"{NAME}\""
            ),
        ),
        _ => Default::default(),
    };
    format!(
        "global(workDirectory=\"{work}\")\n{ca}module(load=\"imfile\")\n\
         input(type=\"imfile\" file=\"{said}\" tag=\"said:\")\n\
         action(type=\"omfwd\" target=\"{}\" port=\"{PORT}\" protocol=\"{protocol}\" \
         action.resumeRetryCount=\"-1\" action.resumeInterval=\"1\"{driver})\n",
        way.target()
    )
}

/// Of both ends; each has its own.
fn rules(lab: &Lab) -> String {
    let at = |name: &str| lab.path(&format!("syslog/{name}"));
    format!(
        "[tls.outbound.logs]\nports = [{PORT}]\nserver_name = \"{NAME}\"\ntrust = \"{}\"\n\
         [tls.inbound.logs]\nports = [{PORT}]\ncertificate = \"{}\"\nkey = \"{}\"\n",
        at("ca.pem"),
        at("logs.pem"),
        at("logs.key")
    )
}

/// An authority, and a certificate with RSA-2048 for the collector, made once.
fn make_certificates(lab: &Lab) -> Result<()> {
    let file = lab.write("syslog/names", format!("subjectAltName=DNS:{NAME}\n"))?;
    if Path::new(&lab.path("syslog/logs.pem")).exists() {
        return Ok(());
    }
    let script = "cd \"$(dirname \"$0\")\"
        openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=authority -addext basicConstraints=critical,CA:TRUE \
            -keyout ca.key -out ca.pem
        openssl req -newkey rsa:2048 -nodes -subj /CN=\"$1\" -keyout logs.key -out logs.csr
        openssl x509 -req -in logs.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -days 30 -out logs.pem
        chmod 600 logs.key";
    let mut command = Command::new("sh");
    command.args(["-e", "-c", script, &file, NAME]);
    launch::run(command, lab.patience()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_one_length_and_tell_their_numbers() {
        for (sender, number) in [(0, 0), (2, 119_999)] {
            let said = message(sender, number);
            assert_eq!(said.len(), MESSAGE_LEN);
            assert_eq!(numbers(said.trim_end()), Some((sender, number)));
        }
        assert_eq!(numbers("sender 1 massage 2 ..."), None);
    }
}
