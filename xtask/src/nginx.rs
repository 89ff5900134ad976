//! What a configuration of nginx needs wherever it runs.
//!
//! Distributions start it as root, which listens, and let its workers become a user with few rights. So
//! do the tests; where the client is root's, both sides list the other's user.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::bench::place;
use crate::suite::Lacking;
use crate::user;

/// Whose the workers are in Debian, Ubuntu and Alpine.
const WORKER: &str = "www-data";

/// Settings for the user of the workers and for temporary files below `dir`.
///
/// **Errors**: [`Lacking`] if there is no such user.
pub(crate) fn settings(dir: &Path) -> Result<(String, String)> {
    // Whoever is not root cannot become another user.
    let user = if user::is_root() { format!("user {};", worker()?.name) } else { String::new() };
    Ok((user, temporary_paths(dir)?))
}

/// The same with workers of whoever starts it: for figures without an operator's rules.
pub(crate) fn settings_of_one_user(dir: &Path) -> Result<(&'static str, String)> {
    let user = if user::is_root() { "user root;" } else { "" };
    Ok((user, temporary_paths(dir)?))
}

/// Writes rules of Sidestep by which root and the workers share memory.
pub(crate) fn sharing(file: &Path) -> Result<PathBuf> {
    fs::write(file, format!("[policy]\nshare_with_users = [\"root\", \"{WORKER}\"]\n"))?;
    Ok(file.to_owned())
}

/// The user of the workers.
pub(crate) struct Worker {
    name: &'static str,
    uid: u32,
    gid: u32,
}

impl Worker {
    /// Makes a command this user's, at home nowhere.
    pub(crate) fn own(&self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid).env_remove("HOME");
    }

    /// Gives this user a file or directory.
    pub(crate) fn give(&self, path: &Path) -> Result<()> {
        Ok(std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid))?)
    }
}

/// Who the workers are where root starts nginx.
///
/// **Errors**: [`Lacking`] if there is no such user.
pub(crate) fn worker() -> Result<Worker> {
    let ids = |option: &str| -> Result<u32> {
        let said = Command::new("id").args([option, WORKER]).output()?;
        let number = String::from_utf8_lossy(&said.stdout).trim().parse();
        number.map_err(|_| Lacking(format!("there is no user {WORKER}")).into())
    };
    if !user::is_root() {
        bail!(Lacking("workers of another user need root".to_owned()));
    }
    Ok(Worker { name: WORKER, uid: ids("-u")?, gid: ids("-g")? })
}

/// Nginx creates these for every module it was built with, by default where
/// only root may.
fn temporary_paths(dir: &Path) -> Result<String> {
    let nginx = place::find_command("nginx").context("nginx")?;
    let built = Command::new(nginx).arg("-V").output()?;
    let built = String::from_utf8_lossy(&built.stderr).into_owned();
    let dir = dir.display();
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .into_iter()
        .filter(|kind| !built.contains(&format!("--without-http_{kind}_module")))
        .map(|kind| format!("{kind}_temp_path {dir}/{kind};\n"));
    Ok(paths.collect())
}
