//! One large file through ssh's encryption.

use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::lab::Lab;
use super::launch::{self, Transport};
use crate::sshd;

/// What is copied: a gigabyte.
const LEN: u64 = 1 << 30;

/// Gigabytes per second of `scp` to a server on this host, from start to end.
pub(super) fn scp(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let key = prepare(lab)?;
    let port = launch::free_port()?;
    let config = lab.write("ssh/sshd_config", sshd::config(port, &lab.scratch.join("ssh")))?;
    let server = [sshd::PROGRAM, "-D", "-e", "-f", &config];
    let mut server = lab.serve(port, lab.command(transport, &server)?)?;

    let (from, to) = (lab.path("ssh/from"), format!("127.0.0.1:{}", lab.path("ssh/to")));
    let (port, key) = (format!("Port={port}"), format!("IdentityFile={key}"));
    let identity = ["-o", &port, "-o", &key, "-o", "IdentitiesOnly=yes"];
    let silence = ["-o", "LogLevel=ERROR", "-o", "StrictHostKeyChecking=no"];
    let options = [&["scp", "-q", "-F", "none"], &identity[..], &silence].concat();
    let forget = ["-o", "UserKnownHostsFile=/dev/null", &from, &to];
    let start = Instant::now();
    lab.run(transport, &[&options[..], &forget].concat())?;
    let elapsed_s = start.elapsed().as_secs_f64();
    server.must_be_alive()?;
    fs::remove_file(lab.path("ssh/to"))?;
    Ok(vec![LEN as f64 / 1e9 / elapsed_s])
}

/// Makes keys and the file unless they are there; returns the client's key.
fn prepare(lab: &Lab) -> Result<String> {
    let key = lab.path("ssh/key");
    if !Path::new(&key).exists() {
        // Left by a run that was killed while it did this.
        let _ = fs::remove_dir_all(lab.path("ssh"));
        // Holes take no disk space, and cost as much to encrypt as anything else.
        let from = lab.write("ssh/from", "")?;
        File::options().write(true).open(from)?.set_len(LEN)?;
        for made in [lab.path("ssh/host-key"), key.clone()] {
            let words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", &made];
            lab.run(Transport::Tcp, &words)?;
        }
    }
    Ok(key)
}
