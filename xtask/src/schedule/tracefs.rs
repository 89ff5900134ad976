//! The kernel's tracing, by files: an instance of our own beside whatever else is traced.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::mount::{MountFlags, mount};

use super::trace::{self, Event};

/// Where tracefs is, or is to be.
const TRACEFS: &str = "/sys/kernel/tracing";

/// Room for the events of each CPU, in KiB: half a second of two ends that yield to each other
/// needs two thirds of it.
const BUFFER_KIB: &str = "32768";

/// An instance of the kernel's tracing, removed when dropped.
pub(super) struct Tracer {
    dir: PathBuf,
}

impl Tracer {
    /// Nothing is recorded yet.
    ///
    /// **Errors**: tracefs is not there and cannot be mounted: that takes root.
    pub(super) fn new() -> Result<Self> {
        let instances = Path::new(TRACEFS).join("instances");
        if !instances.is_dir() {
            mount("tracefs", TRACEFS, "tracefs", MountFlags::empty(), None)
                .context("mounting tracefs, which takes root")?;
        }
        let dir = instances.join(format!("sidestep-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("creating {}", dir.display()))?;
        let tracer = Self { dir };
        let is_yield = format!("id == {}", libc::SYS_sched_yield);
        let settings = [
            ("tracing_on", "0"),
            ("trace_clock", "mono"),
            ("buffer_size_kb", BUFFER_KIB),
            ("events/raw_syscalls/sys_enter/filter", &is_yield),
            ("events/raw_syscalls/sys_exit/filter", &is_yield),
            ("events/raw_syscalls/sys_enter/enable", "1"),
            ("events/raw_syscalls/sys_exit/enable", "1"),
            ("events/sched/sched_switch/enable", "1"),
            ("events/sched/sched_waking/enable", "1"),
        ];
        for (file, value) in settings {
            tracer.set(file, value)?;
        }
        Ok(tracer)
    }

    /// Records for as long, and returns what happened, in the order of time.
    ///
    /// **Errors**: the kernel lost events, or writes them as we do not know.
    pub(super) fn record(&self, window: Duration) -> Result<Vec<Event>> {
        self.set("trace", "")?;
        self.set("tracing_on", "1")?;
        thread::sleep(window);
        self.set("tracing_on", "0")?;
        let text = fs::read_to_string(self.dir.join("trace")).context("reading the trace")?;
        if text.contains("[LOST") || !is_whole(&text) {
            bail!("the kernel lost events: choose a shorter window");
        }
        text.lines().filter(|line| !line.starts_with('#')).filter_map(trace::read).collect()
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, value).with_context(|| format!("writing {}", path.display()))
    }
}

/// By the header, in which the kernel counts the events that the buffer holds and all that there were.
fn is_whole(trace: &str) -> bool {
    let counts =
        trace.lines().find_map(|line| line.strip_prefix("# entries-in-buffer/entries-written: "));
    let counts = counts.and_then(|counts| counts.split_whitespace().next()?.split_once('/'));
    counts.is_some_and(|(held, written)| held == written)
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // Its files go with it. If it stays, it records nothing.
        if let Err(error) = fs::remove_dir(&self.dir)
            && error.kind() != io::ErrorKind::NotFound
        {
            eprintln!("{}: {error}", self.dir.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_whose_beginning_was_overwritten_is_not_whole() {
        let header = |counts| {
            format!("# tracer: nop\n#\n# entries-in-buffer/entries-written: {counts}   #P:2\n#\n")
        };
        assert!(is_whole(&header("342/342")));
        assert!(!is_whole(&header("342/900")));
        assert!(!is_whole("# tracer: nop\n"));
    }
}
