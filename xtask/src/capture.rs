//! Captures of what passes a network interface, and what others make of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::bench::launch::{self, Program};
use crate::enclosure::Namespace;
use crate::suite::{HANG, Lacking};

/// For a packet to get from the interface into the file.
const CAPTURE_DELAY: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// MiB of packets that the kernel keeps while tshark waits for a CPU: more than most tests send.
const BUFFER_MIB: &str = "128";

/// tshark, which writes down what passes an interface.
pub(crate) struct Capture {
    tshark: Program,
    file: PathBuf,
}

impl Capture {
    /// Begins with the packets of a filter of pcap's; `file` lies in a directory that may have a log, too.
    pub(crate) fn begin(
        namespace: &Namespace,
        interface: &str,
        filter: &str,
        file: PathBuf,
    ) -> Result<Self> {
        // A file of an earlier run would look like a capture that has begun.
        let _ = fs::remove_file(&file);
        let mut command = Command::new("tshark");
        command.args(["-q", "-B", BUFFER_MIB, "-i", interface, "-f", filter, "-w"]).arg(&file);
        namespace.enclose(&mut command);
        let tshark = Program::start(command, file.parent().context("a file in a directory")?)?;
        let deadline = Instant::now() + HANG;
        while fs::metadata(&file).map_or(0, |it| it.len()) == 0 {
            ensure!(Instant::now() < deadline, "tshark does not begin: {}", tshark.printed());
            thread::sleep(POLL_INTERVAL);
        }
        Ok(Self { tshark, file })
    }

    /// **Errors**: [`Lacking`] if packets are missing: by such a capture a peer seems to have broken the rules.
    pub(crate) fn end(mut self) -> Result<Captured> {
        thread::sleep(CAPTURE_DELAY);
        launch::signal(self.tshark.pid(), libc::SIGINT)?;
        let deadline = Instant::now() + HANG;
        while !self.tshark.has_ended()? {
            ensure!(Instant::now() < deadline, "tshark does not end: {}", self.tshark.printed());
            thread::sleep(POLL_INTERVAL);
        }
        match lost(&self.tshark.printed()) {
            None => Ok(Captured { file: self.file }),
            Some(said) => bail!(Lacking(format!("a CPU for the one who looks on: {said}"))),
        }
    }
}

/// What tshark says of packets that the kernel has not kept for it.
fn lost(said: &str) -> Option<&str> {
    said.lines().map(str::trim).find(|line| line.contains(" dropped from "))
}

/// A capture that has ended.
pub(crate) struct Captured {
    file: PathBuf,
}

impl Captured {
    /// What tshark says of the packets that `only` filters, a line with tabs for each.
    pub(crate) fn fields(&self, only: &str, fields: &[&str]) -> Result<String> {
        let fields = fields.iter().flat_map(|field| ["-e", field]);
        let words: Vec<&str> = ["-T", "fields"].into_iter().chain(fields).collect();
        dissect(&self.file, only, &words)
    }

    /// Whether these bytes are in it, one packet's.
    pub(crate) fn has(&self, bytes: &[u8]) -> Result<bool> {
        let file = fs::read(&self.file)?;
        Ok(file.windows(bytes.len()).any(|it| it == bytes))
    }

    /// **Errors**: `sidestep decode` finds a broken rule, or cannot read it.
    pub(crate) fn must_keep_rules(&self, sidestep: &Path) -> Result<String> {
        let mut decode = Command::new(sidestep);
        decode.arg("decode").arg("--json").arg(&self.file);
        launch::run(decode, HANG).with_context(|| format!("in {}", self.file.display()))
    }
}

/// What tshark prints of the packets in a file that `only` filters.
pub(crate) fn dissect(file: &Path, only: &str, words: &[&str]) -> Result<String> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-Y", only]).args(words);
    // A client's port may be that of some other protocol.
    command.args(["-o", "tcp.try_heuristic_first:TRUE"]);
    // Of these it would look for signs in payloads, which are not of their kinds.
    for protocol in STRANGERS {
        command.args(["--disable-protocol", protocol]);
    }
    launch::run(command, HANG).context("tshark")
}

/// Protocols over InfiniBand that tshark knows.
const STRANGERS: [&str; 7] =
    ["rpcordma", "smb_direct", "nvme-rdma", "lnet", "iser", "infiniband_sdp", "fcoib"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_that_lost_packets_is_known() {
        let whole = "Capturing on 'cable'\ntshark: \n54448 packets captured\n";
        assert_eq!(lost(whole), None);
        let part = whole.replace("tshark", "8850 packets dropped from cable\ntshark");
        assert_eq!(lost(&part), Some("8850 packets dropped from cable"));
    }
}
