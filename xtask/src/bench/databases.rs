//! A cache and a database under their own load generators.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::lab::{Lab, Load, folder_of_nobody, given_to_nobody};
use super::launch::{self, Program, Transport};
use crate::debian::POSTGRESQL;

// ---- memcached -----------------------------------------------------------

/// Nine reads for each write, of 1 KiB, by one thread to one thread.
pub(super) fn memcached(lab: &Lab, transport: Transport, connections: u32) -> Result<Load> {
    let port = launch::free_port()?;
    let text = port.to_string();
    // Memory for everything: a value that was evicted would make a short answer.
    let options = ["-l", "127.0.0.1", "-U", "0", "-t", "1", "-m", "2048", "-u", "root"];
    let words = [&["memcached", "-p", &text][..], &options].concat();
    let mut server = lab.serve(port, lab.command(transport, &words)?)?;

    let (address, connections) = (format!("127.0.0.1:{port}"), connections.to_string());
    let duration = format!("{}s", lab.whole_seconds());
    let client = ["memcaslap", "-s", &address, "-T", "1", "-c", &connections];
    let load = ["-X", "1024", "-w", "1k", "-t", &duration];
    let client = lab.command(transport, &[&client[..], &load].concat())?;
    let counted = lab.run_counted(client, &[&server])?;
    server.must_be_alive()?;

    let sums = memcaslap_sums(&counted.said).context("memcaslap's sums")?;
    let is_load = sums.misses * 100.0 < sums.operations;
    ensure!(is_load, "{} of {} reads found nothing", sums.misses, sums.operations);
    Ok(Load {
        requests_per_s: sums.operations_per_s,
        cpu_us_per_request: counted.cpu_s * 1e6 / sums.operations,
    })
}

struct MemcaslapSums {
    operations: f64,
    operations_per_s: f64,
    misses: f64,
}

/// From `get_misses: 0` and `Run time: 1.0s Ops: 127383 TPS: 127210 Net_rate: …`.
fn memcaslap_sums(report: &str) -> Option<MemcaslapSums> {
    let number_behind = |word: &str| -> Option<f64> {
        let mut words = report.split_whitespace().skip_while(|it| *it != word);
        words.nth(1)?.parse().ok()
    };
    Some(MemcaslapSums {
        operations: number_behind("Ops:")?,
        operations_per_s: number_behind("TPS:")?,
        misses: number_behind("get_misses:")?,
    })
}

// ---- PostgreSQL ----------------------------------------------------------

/// pgbench's tables with a million rows.
const SCALE: &str = "10";

/// Pause between two questions whether the server is ready.
const READY_INTERVAL: Duration = Duration::from_millis(50);

/// Reads of one row, prepared; each client has a backend process.
pub(super) fn pgbench(lab: &Lab, transport: Transport, clients: u32) -> Result<Load> {
    let cluster = Cluster::of(lab);
    cluster.prepare()?;
    let (port, mut server) = cluster.serve(transport)?;
    // It counts from its first connection on, and for each a process is begun.
    let duration = (lab.seconds.ceil() + 1.0).to_string();
    let clients = clients.to_string();
    let reads = ["-n", "-S", "-M", "prepared", "-c", &clients, "-j", "1", "-T", &duration];
    let client = cluster.pgbench(transport, &port, &reads)?;
    let counted = lab.run_counted(client, &[&server])?;
    server.must_be_alive()?;
    cluster.stop()?;

    let sums = pgbench_sums(&counted.said).context("pgbench's sums")?;
    Ok(Load {
        requests_per_s: sums.transactions_per_s,
        cpu_us_per_request: counted.cpu_s * 1e6 / sums.transactions,
    })
}

/// A database cluster that all runs of this bench use one after the other.
///
/// Server and clients belong to nobody: the server refuses to be root's, and
/// only programs of one user share memory.
struct Cluster<'a> {
    lab: &'a Lab,
    data: String,
}

impl<'a> Cluster<'a> {
    fn of(lab: &'a Lab) -> Self {
        Self { lab, data: lab.path("postgresql/data") }
    }

    /// Creates and fills it unless that was done.
    fn prepare(&self) -> Result<()> {
        let filled = self.lab.scratch.join("postgresql/filled");
        if filled.exists() {
            return Ok(());
        }
        let folder = self.lab.path("postgresql");
        // Left by a run that was killed while it did this.
        let _ = fs::remove_dir_all(&folder);
        folder_of_nobody(&folder)?;
        let options = ["-U", "postgres", "-A", "trust", "-N"];
        self.run(&[&["initdb", "-D", &self.data][..], &options].concat())?;
        let (port, _server) = self.serve(Transport::Tcp)?;
        let fill = self.pgbench(Transport::Tcp, &port, &["-i", "-q", "-s", SCALE])?;
        launch::run(fill, self.lab.patience())?;
        self.stop()?;
        fs::write(filled, "")?;
        Ok(())
    }

    fn serve(&self, transport: Transport) -> Result<(String, Program)> {
        let port = launch::free_port()?;
        let text = port.to_string();
        let words = ["postgres", "-D", &self.data, "-p", &text, "-k", "", "-F"];
        let settings = ["-c", "listen_addresses=127.0.0.1", "-c", "max_connections=100"];
        let command = self.command(transport, &[&words[..], &settings].concat())?;
        let server = self.lab.serve(port, command)?;
        self.await_readiness(&text)?;
        Ok((text, server))
    }

    /// It listens before it takes clients.
    fn await_readiness(&self, port: &str) -> Result<()> {
        let deadline = Instant::now() + self.lab.patience();
        while let Err(error) = self.run(&["pg_isready", "-q", "-h", "127.0.0.1", "-p", port]) {
            if Instant::now() > deadline {
                return Err(error);
            }
            thread::sleep(READY_INTERVAL);
        }
        Ok(())
    }

    /// In order: a server that was killed has to repair its files.
    fn stop(&self) -> Result<()> {
        self.run(&["pg_ctl", "stop", "-D", &self.data, "-m", "fast"])
    }

    fn pgbench(&self, transport: Transport, port: &str, words: &[&str]) -> Result<Command> {
        let address = ["pgbench", "-h", "127.0.0.1", "-p", port, "-U", "postgres"];
        self.command(transport, &[&address[..], words, &["postgres"]].concat())
    }

    /// Runs one of the commands that prepare or end something.
    fn run(&self, words: &[&str]) -> Result<()> {
        launch::run(self.command(Transport::Tcp, words)?, self.lab.patience())?;
        Ok(())
    }

    fn command(&self, transport: Transport, words: &[&str]) -> Result<Command> {
        let (name, rest) = words.split_first().context("an empty command")?;
        let program = format!("{POSTGRESQL}/{name}");
        let command = self.lab.command(transport, &[&[program.as_str()], rest].concat())?;
        Ok(given_to_nobody(command))
    }
}

struct PgbenchSums {
    transactions: f64,
    transactions_per_s: f64,
}

/// From `number of transactions actually processed: 30178` and
/// `tps = 10066.020526 (without initial connection time)`.
fn pgbench_sums(report: &str) -> Option<PgbenchSums> {
    let behind = |text: &str| -> Option<f64> {
        let rest = report.lines().find_map(|line| line.strip_prefix(text))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    Some(PgbenchSums {
        transactions: behind("number of transactions actually processed:")?,
        transactions_per_s: behind("tps =")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memcaslap_s_sums_are_found_among_its_settings() {
        let report = "set proportion: set_prop=0.10\nget_misses: 7\n\n\
                      Run time: 3.0s Ops: 2180746 TPS: 726619 Net_rate: 544.1M/s\n";
        let sums = memcaslap_sums(report).map(|it| (it.operations, it.operations_per_s, it.misses));
        assert_eq!(sums, Some((2_180_746.0, 726_619.0, 7.0)));
        assert!(memcaslap_sums("Ops:").is_none());
    }

    #[test]
    fn pgbench_s_sums_are_found_by_their_lines() {
        let report = "number of transactions actually processed: 30178\n\
                      tps = 10066.020526 (without initial connection time)\n";
        let sums = pgbench_sums(report).map(|it| (it.transactions, it.transactions_per_s));
        assert_eq!(sums, Some((30_178.0, 10_066.020_526)));
    }
}
