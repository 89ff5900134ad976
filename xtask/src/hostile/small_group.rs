//! A control group with little memory, for programs that are to run out of it.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::bench::launch;
use crate::suite::Lacking;

/// Where groups may be made, and the files with a limit: of memory, and of memory and
/// swap (version 1) or swap alone (version 2), where there is swap.
const PLACES: [(&str, &str, &str, bool); 2] = [
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", true),
    ("/sys/fs/cgroup", "memory.max", "memory.swap.max", false),
];

/// The files that say how much it has had at most, of either version.
const PEAKS: [&str; 2] = ["memory.max_usage_in_bytes", "memory.peak"];

/// Looks for the end of its last program, and the pause between two.
const ENDS_MAX: u32 = 100;
const END_INTERVAL: Duration = Duration::from_millis(20);

/// See the [module](self). It ends when it is dropped, after its programs.
#[derive(Debug)]
pub(crate) struct SmallGroup {
    at: PathBuf,
    entrance: File,
}

impl SmallGroup {
    /// A group of programs that together may have so many bytes.
    ///
    /// **Errors**: this machine does not let us make one.
    pub(crate) fn new(bytes: u64) -> Result<Self> {
        for (root, memory, swap, swap_has_both) in PLACES {
            let at = Path::new(root).join(format!("sidestep-hostile-{}", std::process::id()));
            if fs::create_dir(&at).is_err() {
                continue;
            }
            let entrance = OpenOptions::new().write(true).open(at.join("cgroup.procs"));
            let limited = fs::write(at.join(memory), bytes.to_string());
            if let (Ok(entrance), Ok(())) = (entrance, limited) {
                // There may be no swap, and then there is no such file.
                let swap_max = if swap_has_both { bytes } else { 0 };
                let _ = fs::write(at.join(swap), swap_max.to_string());
                return Ok(Self { at, entrance });
            }
            fs::remove_dir(&at)?;
        }
        bail!(Lacking("no control group with a limit of memory can be made".to_owned()));
    }

    /// The most that its programs have had together, in bytes.
    ///
    /// **Errors**: this kernel does not say.
    pub(crate) fn peak(&self) -> Result<u64> {
        let text = PEAKS.iter().find_map(|file| fs::read_to_string(self.at.join(file)).ok());
        let Some(text) = text else {
            bail!(Lacking("this kernel does not say how much memory a group has had".to_owned()));
        };
        Ok(text.trim().parse()?)
    }

    /// Lets the program begin in this group.
    pub(crate) fn enclose(&self, command: &mut Command) {
        launch::enclose(command, &self.entrance);
    }
}

impl Drop for SmallGroup {
    fn drop(&mut self) {
        // The kernel may still be taking its programs apart.
        let removed = (0..ENDS_MAX).any(|_| {
            let removed = fs::remove_dir(&self.at).is_ok();
            if !removed {
                thread::sleep(END_INTERVAL);
            }
            removed
        });
        if !removed {
            println!("{} cannot be removed", self.at.display());
        }
    }
}
