//! What a configuration of nginx needs wherever it runs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::bench::place;
use crate::user;

/// Settings for the user of the workers and for temporary files below `dir`.
pub(crate) fn settings(dir: &Path) -> Result<(&'static str, String)> {
    // Workers under another user would be strangers to the client.
    let user = if user::is_root() { "user root;" } else { "" };
    Ok((user, temporary_paths(dir)?))
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
