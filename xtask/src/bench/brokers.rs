//! Message brokers: RabbitMQ under its makers' load generator, and ActiveMQ Artemis with requesters.
//!
//! A broker and its clients take seconds until they are warm: a Java program compiles itself while it runs.
//! So the load generator goes on without end and prints a line each second. The lines of the first seconds are
//! passed over; then the messages of the next ones count, and the CPU time of all programs between them.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::lab::{Lab, Lacking, Load, RUN_PATIENCE};
use super::launch::{self, Dialogue, Program, Transport};
use crate::maven::Artifact;

/// Lines until the programs are warm, endless loops at rest.
const RABBITMQ_WARM_UP: u32 = 4;

/// Broker and clients are Java programs: after four seconds they have less than half of their rate.
const ARTEMIS_WARM_UP: u32 = 20;

/// Lines until the programs have got used to the endless loops.
const SETTLING_LINES: u32 = 1;

// ---- RabbitMQ ------------------------------------------------------------

/// The broker's own script; those on PATH change the user, and with it the environment.
const RABBITMQ_SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

const PERF_TEST: Artifact =
    Artifact { group: "com.rabbitmq", name: "perf-test", version: "2.22.1" };

/// Lengths of messages, in the order of the rows.
const RABBITMQ_LENGTHS: [&str; 2] = ["1024", "32768"];

/// Four producers, who wait until the broker has confirmed each message, and four consumers: the rate and
/// the CPU time of a message for each length.
pub(super) fn rabbitmq(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let class_path = PERF_TEST.class_path(&lab.scratch).context(Lacking)?;
    let mut broker = RabbitMq::start(lab, transport)?;
    let uri = format!("amqp://127.0.0.1:{}", broker.port);
    let mut numbers = Vec::new();
    for length in RABBITMQ_LENGTHS {
        let queue = format!("of-{length}");
        let words = ["java", "-cp", &class_path, "com.rabbitmq.perf.PerfTest", "--uri", &uri];
        let who = ["--producers", "4", "--consumers", "4", "--queue", &queue];
        let what = ["--size", length, "--confirm", "1"];
        let client = lab.command(transport, &[&words[..], &who, &what].concat())?;
        let name = format!("rabbitmq, {length} B");
        numbers.extend(Vec::from(loaded(
            lab,
            transport,
            &name,
            RABBITMQ_WARM_UP,
            client,
            &broker.server,
        )?));
        broker.server.must_be_alive()?;
    }
    Ok(numbers)
}

/// A broker with files of its own, and with an own name server of Erlang.
struct RabbitMq {
    port: u16,
    server: Program,
    _names: Program,
}

impl RabbitMq {
    fn start(lab: &Lab, transport: Transport) -> Result<Self> {
        let folder = lab.path("rabbitmq");
        // Those of the broker before, which was ended without ceremony.
        let _ = fs::remove_dir_all(&folder);
        let port = launch::free_port()?;
        let config = lab.write(
            "rabbitmq/rabbitmq.conf",
            format!("listeners.tcp.1 = 127.0.0.1:{port}\nlog.console.level = warning\n"),
        )?;
        let plugins = lab.write("rabbitmq/enabled_plugins", "[].\n")?;
        let environment = lab.write("rabbitmq/rabbitmq-env.conf", "")?;

        let (names_port, nodes_port) = (launch::free_port()?, launch::free_port()?.to_string());
        let names_text = names_port.to_string();
        let words = ["epmd", "-port", &names_text, "-address", "127.0.0.1"];
        let names = lab.serve(names_port, lab.command(Transport::Tcp, &words)?)?;
        let mut command = lab.command(transport, &[RABBITMQ_SERVER])?;
        command
            .env("HOME", &folder)
            .env("ERL_EPMD_PORT", &names_text)
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", "sidestep-bench@localhost")
            .env("RABBITMQ_DIST_PORT", nodes_port)
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1}",
            )
            .env("RABBITMQ_CONF_ENV_FILE", environment)
            .env("RABBITMQ_CONFIG_FILE", config)
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", plugins)
            .env("RABBITMQ_MNESIA_BASE", format!("{folder}/mnesia"))
            .env("RABBITMQ_LOG_BASE", format!("{folder}/log"))
            .env("RABBITMQ_LOGS", "-")
            // The script becomes the broker, and does not wait for it.
            .env("RUNNING_UNDER_SYSTEMD", "true");
        let server = lab.in_peace(|| lab.serve(port, command))?;
        Ok(Self { port, server, _names: names })
    }
}

// ---- ActiveMQ Artemis ----------------------------------------------------

const ARTEMIS: Artifact =
    Artifact { group: "org.apache.activemq", name: "artemis-server", version: "2.31.2" };

const ARTEMIS_CLIENT: Artifact =
    Artifact { group: "org.apache.activemq", name: "artemis-jms-client", version: "2.31.2" };

/// Requests of 2 KB by six threads, each over a connection of its own, and as long replies by two.
pub(super) fn artemis(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let path = |it: Artifact| it.class_path(&lab.scratch).context(Lacking);
    let (broker_path, client_path) = (path(ARTEMIS)?, path(ARTEMIS_CLIENT)?);
    let port = launch::free_port()?;
    let text = port.to_string();
    let broker = lab.source("ArtemisBroker.java")?;
    let words = ["java", "-cp", &broker_path, &broker, &text, &lab.path("artemis")];
    let broker = lab.command(transport, &words)?;
    let mut broker = lab.in_peace(|| lab.serve(port, broker))?;

    let requesters = lab.source("ArtemisRequesters.java")?;
    let client = lab.command(transport, &["java", "-cp", &client_path, &requesters, &text])?;
    let load = loaded(lab, transport, "artemis", ARTEMIS_WARM_UP, client, &broker)?;
    broker.must_be_alive()?;
    Ok(load.into())
}

// ---- a load that prints a line each second -------------------------------

/// What a load generator gets out of a broker once both are warm.
fn loaded(
    lab: &Lab,
    transport: Transport,
    name: &str,
    warm_up: u32,
    client: Command,
    broker: &Program,
) -> Result<Load> {
    let mut client = Dialogue::start(client)?;
    lab.in_peace(|| pass_over(&mut client, warm_up))?;
    let mut last = pass_over(&mut client, SETTLING_LINES)?;

    let begun = last.time_s;
    let cpu_s = |client: &mut Dialogue| {
        launch::cpu_s(&broker.family()) + launch::cpu_s(&client.program().family())
    };
    let cpu_before_s = cpu_s(&mut client);
    let mut messages = 0.0;
    while last.time_s < begun + lab.seconds {
        let next = next_second(&mut client)?;
        messages += next.messages_per_s * (next.time_s - last.time_s);
        last = next;
    }
    let cpu_s = cpu_s(&mut client) - cpu_before_s;
    ensure!(messages > 0.0, "no message arrived within {} s", last.time_s - begun);
    if transport == Transport::Smc {
        lab.note_connections(name, client.program().pid())?;
    }
    Ok(Load {
        requests_per_s: messages / (last.time_s - begun),
        cpu_us_per_request: cpu_s * 1e6 / messages,
    })
}

/// What a load generator says of a second.
#[derive(Debug, PartialEq)]
struct Second {
    /// When it ended, since the load began.
    time_s: f64,
    messages_per_s: f64,
}

fn pass_over(client: &mut Dialogue, lines: u32) -> Result<Second> {
    for _ in 1..lines {
        next_second(client)?;
    }
    next_second(client)
}

/// What it says beside these lines, of its threads that begin, is passed over.
fn next_second(client: &mut Dialogue) -> Result<Second> {
    loop {
        let line = client.await_line("id:", RUN_PATIENCE)?;
        if let Some(second) = second_of(&line) {
            return Ok(second);
        }
    }
}

/// From `id: NAME, time 1.042 s, sent: 4518 msg/s, …, received: 4514 msg/s, …`.
fn second_of(line: &str) -> Option<Second> {
    let number_behind = |word: &str| -> Option<f64> {
        let (_, rest) = line.split_once(word)?;
        rest.split_whitespace().next()?.parse().ok()
    };
    Some(Second {
        time_s: number_behind(", time ")?,
        messages_per_s: number_behind(", received: ")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_second_is_told_from_the_others() {
        let line = "id: test-185142-852, time 1.042 s, sent: 4518 msg/s, confirmed: 4516 msg/s, \
                    nacked: 0 msg/s, received: 4514 msg/s, min/median consumer latency: 169/604 µs";
        let second = Second { time_s: 1.042, messages_per_s: 4514.0 };
        assert_eq!(second_of(line), Some(second));
        assert_eq!(second_of("id: test-185142-852, starting consumer #0"), None);
    }
}
