//! Programs of two hosts, by SMC-R.
//!
//! What the gateways have sent by RDMA must be at least what the programs have sent.

use std::fs;

use anyhow::{Result, ensure};

use super::stage::{CLIENT_PATIENCE, Stage};
use crate::bench::launch::{self, Dialogue};
use crate::hosts::{Ground, Hosts, SERVER};
use crate::nginx;
use crate::payload::{must_be_equal, random_bytes};

const PORT: u16 = 7_000;

/// Connections that live long, seen by `sidestep ss` at both ends.
pub(crate) fn echo(stage: &Stage<'_>) -> Result<String> {
    const CONNECTIONS: usize = 20;
    let hosts = set(stage, Ground::ONE_CABLE)?;
    let script = stage.house.script("distant.py");
    let (port, seed) = (PORT.to_string(), stage.house.seed.to_string());
    let server = hosts.server.program(&["python3", &script, "server", SERVER, &port]);
    let _server = hosts.server.serve(PORT, server)?;
    let client = hosts.client.program(&["python3", &script, "client", SERVER, &port, &seed]);
    let mut client = Dialogue::start(client)?;
    client.say(&format!("{CONNECTIONS} 50"))?;
    client.await_line("verified", CLIENT_PATIENCE)?;
    for (host, end) in [(&hosts.server, "server"), (&hosts.client, "client")] {
        let by_smc_r = host.ask("ss")?;
        let by_smc_r = by_smc_r.as_array().into_iter().flatten();
        let by_smc_r = by_smc_r.filter(|row| row["mode"] == "SMC-R").count();
        ensure!(by_smc_r >= CONNECTIONS, "{by_smc_r} by SMC-R at the {end}");
    }
    client.hang_up();
    client.finish(CLIENT_PATIENCE)?;
    must_have_sent(&hosts, CONNECTIONS * 50 * 300)?;
    Ok(format!("{CONNECTIONS} connections, SMC-R at both ends"))
}

/// An event loop that does not wait for `connect`, and one that serves.
pub(crate) fn redis(stage: &Stage<'_>) -> Result<String> {
    let hosts = set(stage, Ground::ONE_CABLE)?;
    let port = PORT.to_string();
    let words = ["redis-server", "--bind", SERVER, "--port", &port, "--save", ""];
    let server = [&words[..], &["--protected-mode", "no"]].concat();
    let _server = hosts.server.serve(PORT, hosts.server.program(&server))?;
    let words = ["redis-benchmark", "-h", SERVER, "-p", &port, "-c", "10", "-d", "2048"];
    let client = [&words[..], &["-n", "5000", "-t", "set,get", "-q"]].concat();
    launch::run(hosts.client.program(&client), CLIENT_PATIENCE)?;
    must_have_sent(&hosts, 2 * 5_000 * 2_048)?;
    Ok("redis-benchmark, 10 connections".to_owned())
}

/// A file, compared byte for byte.
pub(crate) fn nginx(stage: &Stage<'_>) -> Result<String> {
    const LEN: usize = 8 << 20;
    let hosts = set(stage, Ground::ONE_CABLE)?;
    let file = hosts.directory.join("file");
    fs::write(&file, random_bytes(LEN)?)?;
    let (user, temporary) = nginx::settings(&hosts.directory)?;
    let directory = hosts.directory.display();
    let settings = format!(
        "daemon off; worker_processes 1; pid {directory}/nginx.pid; {user}\n\
         events {{}}\n\
         http {{ access_log off; {temporary}\
         server {{ listen {SERVER}:{PORT}; location / {{ root {directory}; }} }} }}\n"
    );
    let settings_file = hosts.directory.join("nginx.conf");
    fs::write(&settings_file, settings)?;
    let words = ["nginx", "-e", "stderr", "-c", &settings_file.display().to_string()];
    let _server = hosts.server.serve(PORT, hosts.server.program(&words))?;
    let got = hosts.directory.join("got");
    let url = format!("http://{SERVER}:{PORT}/file");
    let words = ["curl", "--silent", "--show-error", "--output", &got.display().to_string(), &url];
    launch::run(hosts.client.program(&words), CLIENT_PATIENCE)?;
    must_be_equal(&got, &file)?;
    must_have_sent(&hosts, LEN)?;
    Ok("8 MiB, the same bytes".to_owned())
}

/// Streams in both directions.
pub(crate) fn iperf3(stage: &Stage<'_>) -> Result<String> {
    let hosts = set(stage, Ground::ONE_CABLE)?;
    let port = PORT.to_string();
    let server = hosts.server.program(&["iperf3", "-s", "-B", SERVER, "-p", &port]);
    let _server = hosts.server.serve(PORT, server)?;
    for direction in [&[][..], &["-R"]] {
        let words = [&["iperf3", "-c", SERVER, "-p", &port, "-n", "64M"][..], direction].concat();
        launch::run(hosts.client.program(&words), CLIENT_PATIENCE)?;
    }
    must_have_sent(&hosts, 128 << 20)?;
    Ok("64 MiB each way".to_owned())
}

fn set(stage: &Stage<'_>, ground: Ground) -> Result<Hosts> {
    Hosts::set(stage.house.launcher.observer(), stage.house.scratch.join("hosts"), ground)
}

/// **Errors**: the adapters have sent fewer bytes than this to each other.
fn must_have_sent(hosts: &Hosts, bytes: usize) -> Result<()> {
    let sent = hosts.bytes_sent()?;
    ensure!(sent >= bytes as u64, "{sent} bytes by RDMA, of {bytes}");
    Ok(())
}
