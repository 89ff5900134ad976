//! Whether a target serves: a connection, a request, a command.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use sidestep_distributor::{Probe, ProbeKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::roster::{Question, Witness};
use super::{inquiry, presence};

/// What has come of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Serves,
    Fails,
    /// It serves, and does not speak SMC, though it has to: why not, as far as is known.
    LacksSmc(&'static str),
}

/// Asks a target.
pub(super) async fn outcome(question: &Question) -> Outcome {
    const PLAIN: &str = "its server does not run under Sidestep";
    const SILENT: &str =
        "`sidestep distributor target` does not say there whether the server speaks SMC";
    let Question { probe, target, .. } = question;
    if !passes(probe, *target).await {
        return Outcome::Fails;
    }
    let speaks = match question.witness {
        None => return Outcome::Serves,
        Some(Witness::Here) => Some(presence::has_marker(target.port())),
        Some(Witness::There) => inquiry::speaks_smc(*target, probe.timeout).await,
    };
    match speaks {
        Some(true) => Outcome::Serves,
        Some(false) => Outcome::LacksSmc(PLAIN),
        None => Outcome::LacksSmc(SILENT),
    }
}

/// Whether a target passes now. It is asked at its own address, never through the VIP.
async fn passes(probe: &Probe, target: SocketAddr) -> bool {
    let passes = async {
        match &probe.kind {
            ProbeKind::Listens => true,
            ProbeKind::Tcp => TcpStream::connect(target).await.is_ok(),
            ProbeKind::Http(path) => serves(target, path).await.unwrap_or(false),
            ProbeKind::Command(command) => succeeds(command, target).await.unwrap_or(false),
        }
    };
    timeout(probe.timeout, passes).await.unwrap_or(false)
}

/// `GET` is answered by a status from 200 to 399.
async fn serves(target: SocketAddr, path: &str) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(target).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    // `HTTP/1.1 200`
    let mut status = [0; 12];
    stream.read_exact(&mut status).await?;
    Ok(status.starts_with(b"HTTP/1.") && status[8] == b' ' && matches!(status[9], b'2' | b'3'))
}

/// A command that exits with status 0; one that takes too long is killed when this is dropped.
async fn succeeds(command: &[String], target: SocketAddr) -> std::io::Result<bool> {
    /// How often it is looked whether the command has ended.
    const LOOK: Duration = Duration::from_millis(20);
    let [program, arguments @ ..] = command else { return Ok(false) };
    let mut child = Command::new(program);
    child.args(arguments).env("SIDESTEP_TARGET", target.to_string());
    child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = Child(child.spawn()?);
    loop {
        if let Some(status) = child.0.try_wait()? {
            return Ok(status.success());
        }
        sleep(LOOK).await;
    }
}

/// A process that does not outlive its probe.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        // One that has ended, and was waited for, is not there any more.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;
    use std::time::Instant;

    fn probed(kind: ProbeKind, target: SocketAddr) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let probe = Probe { kind, timeout: Duration::from_millis(500), ..Probe::default() };
        runtime.block_on(passes(&probe, target))
    }

    #[test]
    fn a_connection_is_enough_or_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        assert!(probed(ProbeKind::Tcp, target));
        drop(listener);
        assert!(!probed(ProbeKind::Tcp, target));
    }

    #[test]
    fn a_request_is_answered_well_or_not() {
        for (answer, passes) in
            [("HTTP/1.1 204 x", true), ("HTTP/1.0 503 x", false), ("SSH-2.0-x 2", false)]
        {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let target = listener.local_addr().unwrap();
            let server = thread::spawn(move || {
                let mut stream = listener.accept().unwrap().0;
                let mut request = [0; 16];
                stream.read_exact(&mut request).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
                request
            });
            assert_eq!(probed(ProbeKind::Http("/health".into()), target), passes, "{answer}");
            assert_eq!(&server.join().unwrap(), b"GET /health HTTP");
        }
    }

    #[test]
    fn a_command_succeeds_fails_or_takes_too_long() {
        let target = "127.0.0.1:9".parse().unwrap();
        let command = |script: &str| {
            ProbeKind::Command(["/bin/sh", "-c", script].map(str::to_owned).to_vec())
        };
        assert!(probed(command("test $SIDESTEP_TARGET = 127.0.0.1:9"), target));
        assert!(!probed(command("exit 3"), target));
        assert!(!probed(ProbeKind::Command(vec!["/nowhere".into()]), target));
        let begun = Instant::now();
        assert!(!probed(command("exec sleep 30"), target));
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
