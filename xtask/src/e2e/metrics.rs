//! What an agent tells Prometheus while programs run, and after their end, against what redis
//! has counted by itself.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use prometheus_parse::{Scrape, Value};

use super::figures::redis_counted;
use super::stage::Stage;
use crate::bench::launch::{self, Dialogue, Transport};
use crate::enclosure::Group;
use crate::suite::{HANG, Lacking};
use crate::user;

/// Between two scrapes an agent answers what it has said before.
const INTERVAL: Duration = Duration::from_millis(1100);

pub(crate) fn metrics(stage: &Stage<'_>) -> Result<String> {
    let agent = Agent::start(stage)?;
    // A name that no other program of the machine has, and that fits what the kernel keeps.
    let name = format!("kv{}", std::process::id());
    let redis = stage.house.scratch.join(&name);
    fs::copy("/usr/bin/redis-server", &redis).context("a redis of our own")?;
    let port = launch::free_port()?;
    let text = port.to_string();
    let words = [redis.display().to_string(), "--bind".into(), "127.0.0.1".into()];
    let options = ["--port", &text, "--save", "", "--appendonly", "no"].map(str::to_owned);
    let server = stage.serve(port, &[&words[..], &options].concat())?;
    let words = ["redis-benchmark", "-h", "127.0.0.1", "-p", &text, "-t", "set,get", "-d", "3000"];
    let load = [&words[..], &["-c", "20", "-n", "100000", "-q"]].concat();

    let mut load = Dialogue::start(stage.command(Transport::Smc, &load))?;
    let (mut scrapes, mut last) = (0, Figures::default());
    while !load.program().has_ended()? {
        last = agent.scrape()?.must_not_have_fallen(&last)?;
        scrapes += 1;
        thread::sleep(INTERVAL);
    }
    load.finish(HANG)?;
    let counted = redis_counted(port)?;
    // However fast the load was: the agent has to see the server once.
    thread::sleep(INTERVAL);
    last = agent.scrape()?.must_not_have_fallen(&last)?;
    ensure!(!last.0.is_empty(), "no counters of a server that runs");
    drop(server);
    let deadline = Instant::now() + HANG;
    while Instant::now() < deadline {
        thread::sleep(INTERVAL);
        last = agent.scrape()?.must_not_have_fallen(&last)?;
        let told = ["received", "sent"].map(|direction| last.sum(&name, "bytes_total", direction));
        let ended = last.sum(&name, "programs_ended_total", "");
        if ended == 1.0 {
            let counted = counted.map(|n| n as f64);
            ensure!(told == counted, "redis counted {counted:?}; the agent {told:?}");
            ensure!(last.sum(&name, "connections_total", "smc-d") > 0.0, "nothing has moved");
            return Ok(format!("{scrapes} scrapes, {} bytes", told[0] + told[1]));
        }
    }
    bail!("the agent does not notice that {name} has ended")
}

/// An agent with metrics, which writes the option for nobody.
struct Agent {
    _program: Dialogue,
    _group: Group,
    port: u16,
}

impl Agent {
    fn start(stage: &Stage<'_>) -> Result<Self> {
        let Some(sidestep) = stage.house.launcher.observer() else {
            bail!(Lacking("there is no `sidestep` to be the agent".to_owned()));
        };
        if !user::is_root() {
            bail!(Lacking("an agent needs root".to_owned()));
        }
        let (group, port) = (Group::make()?, launch::free_port()?);
        let mut command = Command::new(sidestep);
        command.arg("agent").arg("--cgroup").arg(group.at());
        command.arg("--socket").arg(stage.house.scratch.join("agent.sock"));
        command.arg("--metrics").arg(format!("127.0.0.1:{port}"));
        let mut program = Dialogue::start(command)?;
        program.await_line("sidestep agent: metrics are told", HANG)?;
        Ok(Self { _program: program, _group: group, port })
    }

    fn scrape(&self) -> Result<Figures> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(HANG))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, text) = answer.split_once("\r\n\r\n").context("no answer")?;
        ensure!(head.starts_with("HTTP/1.1 200 "), "{head}");
        check_by_promtool(text)?;
        Figures::parse(text)
    }
}

/// Prometheus's own opinion, where it is installed.
fn check_by_promtool(text: &str) -> Result<()> {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut promtool) = promtool.spawn() else { return Ok(()) };
    promtool.stdin.take().context("no standard input")?.write_all(text.as_bytes())?;
    let output = promtool.wait_with_output()?;
    ensure!(output.status.success(), "promtool: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Counters by name and labels.
#[derive(Debug, Default)]
struct Figures(BTreeMap<(String, String), f64>);

impl Figures {
    fn parse(text: &str) -> Result<Self> {
        let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned())))?;
        let counter = |sample: prometheus_parse::Sample| match sample.value {
            Value::Counter(value) => {
                let labels: BTreeMap<_, _> = sample.labels.iter().collect();
                Some(((sample.metric, format!("{labels:?}")), value))
            }
            _ => None,
        };
        let counters: BTreeMap<_, _> = scrape.samples.into_iter().filter_map(counter).collect();
        Ok(Self(counters))
    }

    /// **Errors**: a counter is gone, or less than it was.
    fn must_not_have_fallen(self, before: &Self) -> Result<Self> {
        for (series, value) in &before.0 {
            let now = self.0.get(series).with_context(|| format!("{series:?} is gone"))?;
            ensure!(now >= value, "{series:?} fell from {value} to {now}");
        }
        Ok(self)
    }

    /// Of this program, with a label of this value; any, if it is empty.
    fn sum(&self, program: &str, metric: &str, value: &str) -> f64 {
        let has = |labels: &str, value: &str| labels.contains(&format!("\"{value}\""));
        let matching = self.0.iter().filter(|((name, labels), _)| {
            let is_it = name.strip_prefix("sidestep_") == Some(metric) && has(labels, program);
            is_it && (value.is_empty() || has(labels, value))
        });
        matching.map(|(_, value)| value).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_falls_is_found() -> Result<()> {
        let of = |n: u32| {
            Figures::parse(&format!(
                "# TYPE sidestep_x_total counter\n\
                 sidestep_x_total{{program=\"p\",direction=\"sent\"}} {n}\n"
            ))
        };
        assert_eq!(of(5)?.sum("p", "x_total", "sent"), 5.0);
        assert_eq!(of(5)?.sum("q", "x_total", "sent"), 0.0);
        assert!(of(5)?.must_not_have_fallen(&of(5)?).is_ok());
        assert!(of(4)?.must_not_have_fallen(&of(5)?).is_err());
        Ok(())
    }
}
