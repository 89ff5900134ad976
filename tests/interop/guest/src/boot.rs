//! The first process of a machine that has nothing: file systems, devices and modules.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, mount};
use rustix::system::finit_module;

/// In the initramfs: the names of the modules' files, one on a line, each behind those it needs.
const MODULE_LIST: &str = "/modules/list";

/// Makes the machine one in which files and devices can be used.
///
/// **Errors**: the kernel's; there is no use in going on then.
pub(crate) fn start() -> Result<()> {
    for (kind, at) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        fs::create_dir_all(at)?;
        mount(kind, at, kind, MountFlags::empty(), None).with_context(|| at.to_owned())?;
    }
    let list = fs::read_to_string(MODULE_LIST).context(MODULE_LIST)?;
    for module in list.lines() {
        let file = File::open(Path::new("/modules").join(module)).context(module.to_owned())?;
        finit_module(&file, c"", 0).with_context(|| format!("loading {module}"))?;
    }
    Ok(())
}
