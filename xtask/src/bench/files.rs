//! One large file through ssh's encryption.

use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::lab::Lab;
use super::launch::{self, Transport};

/// What is copied: a gigabyte.
const LEN: u64 = 1 << 30;

/// Where Debian's sshd, started by root, locks up its unprivileged part. It is
/// there as soon as the service was started once.
const SSHD_JAIL: &str = "/run/sshd";

/// Gigabytes per second of `scp` to a server on this host, from start to end.
pub(super) fn scp(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let key = prepare(lab)?;
    let port = launch::free_port()?;
    let config = lab.write("ssh/sshd_config", server_config(lab, port))?;
    // It runs itself again by the name it was started with.
    let server = ["/usr/sbin/sshd", "-D", "-e", "-f", &config];
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
    // Absent where nobody starts services; if it cannot be made, sshd says so.
    let _ = fs::create_dir_all(SSHD_JAIL);
    Ok(key)
}

fn server_config(lab: &Lab, port: u16) -> String {
    let (host_key, keys) = (lab.path("ssh/host-key"), lab.path("ssh/key.pub"));
    format!(
        "ListenAddress 127.0.0.1:{port}\nHostKey {host_key}\nPidFile none\n\
         AuthorizedKeysFile {keys}\nStrictModes no\nPermitRootLogin yes\n\
         UsePAM no\nPasswordAuthentication no\nSubsystem sftp internal-sftp\n"
    )
}
