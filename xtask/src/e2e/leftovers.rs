//! What must be gone when the last program is: names in file systems and in
//! the network namespace.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// The kernel may still be taking killed programs apart.
const PATIENCE: Duration = Duration::from_secs(3);

const INTERVAL: Duration = Duration::from_millis(50);

/// What there was before the tests.
#[derive(Debug)]
pub(crate) struct Leftovers {
    before: BTreeSet<String>,
}

impl Leftovers {
    /// Notes what is there now.
    pub(crate) fn note() -> Self {
        Self { before: names() }
    }

    /// **Errors**: something is there that was not before, and stays.
    pub(crate) fn check(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.new_names().is_empty() && Instant::now() < deadline {
            thread::sleep(INTERVAL);
        }
        let left = self.new_names();
        ensure!(left.is_empty(), "left behind: {}", left.join(", "));
        Ok(())
    }

    fn new_names(&self) -> Vec<String> {
        names().difference(&self.before).cloned().collect()
    }
}

fn names() -> BTreeSet<String> {
    let mut names = files_in("/dev/shm");
    // Other programs keep other things here.
    names.extend(files_in("/tmp").into_iter().filter(|name| is_ours(name)));
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let addresses = sockets.lines().filter_map(|line| line.split_whitespace().nth(7));
    names.extend(addresses.filter(|it| is_ours(it)).map(|it| format!("socket {it}")));
    names
}

fn files_in(dir: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().display().to_string()).collect()
}

fn is_ours(name: &str) -> bool {
    name.to_ascii_lowercase().contains("sidestep")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    #[test]
    fn an_abstract_socket_is_a_leftover() -> Result<()> {
        let leftovers = Leftovers::note();
        let name = format!("sidestep-leftover-{}", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        assert!(leftovers.new_names().iter().any(|it| it.contains(&name)));
        drop(listener);
        assert!(!leftovers.new_names().iter().any(|it| it.contains(&name)));
        Ok(())
    }
}
