//! The check of what processes that were killed have left: sockets at which nothing listens, and files that were to replace a
//! configuration.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::change::{Change, is_dead};
use super::check::Check;
use crate::applied;
use crate::config;

/// Nothing is in the way of connections; it is only untidy, and misleads who looks.
pub(super) fn check(agent_socket: &Path) -> Check {
    const NAME: &str = "leftovers";
    let sockets = sockets_beside(agent_socket)
        .into_iter()
        .map(|path| (path.clone(), Change::RemoveSocket(path)));
    let files = unfinished().into_iter().map(|path| (path.clone(), Change::RemoveUnfinished(path)));
    let (paths, changes): (Vec<PathBuf>, Vec<Change>) = sockets.chain(files).unzip();
    if paths.is_empty() {
        return Check::ok(NAME, "none of processes that have ended");
    }
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let paths = paths.join(" ");
    Check::warn(NAME, format!("of processes that have ended: {paths}"), format!("rm {paths}"))
        .with_changes(changes)
}

/// Dead sockets in the agent's directory: its own, and that of its metrics.
fn sockets_beside(agent_socket: &Path) -> Vec<PathBuf> {
    let entries = agent_socket.parent().and_then(|directory| fs::read_dir(directory).ok());
    let entries = entries.into_iter().flatten().flatten();
    let is_socket = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_socket());
    let sockets = entries.filter(is_socket).map(|entry| entry.path());
    let mut dead: Vec<PathBuf> = sockets.filter(|path| is_dead(path)).collect();
    dead.sort();
    dead
}

/// `sidestep config apply` writes `FILE.applied.PID`, and renames it.
fn unfinished() -> Vec<PathBuf> {
    let files = config::candidates(None, |name| std::env::var_os(name));
    let mut found: Vec<PathBuf> =
        files.iter().flat_map(|file| unfinished_beside(&file.path)).collect();
    found.sort();
    found.dedup();
    found
}

fn unfinished_beside(file: &Path) -> Vec<PathBuf> {
    let applied = applied::path_of(file);
    let (Some(directory), Some(name)) = (applied.parent(), applied.file_name()) else {
        return Vec::new();
    };
    let prefix = format!("{}.", name.to_string_lossy());
    let is_of_dead = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let pid = name.strip_prefix(&prefix).and_then(|pid| pid.parse::<u32>().ok());
        pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(is_of_dead).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_what_the_dead_have_left_is_found() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let _alive = UnixListener::bind(path("agent.sock")).unwrap();
        drop(UnixListener::bind(path("metrics")).unwrap());
        fs::write(path("no-socket"), "").unwrap();
        assert_eq!(sockets_beside(&path("agent.sock")), [path("metrics")]);

        // Numbers of processes end below 2^22.
        let mut names = vec!["a.toml.applied".to_owned(), "a.toml.applied.x".to_owned()];
        names.push(format!("a.toml.applied.{}", std::process::id()));
        names.push("a.toml.applied.4194305".to_owned());
        names.iter().for_each(|name| fs::write(path(name), "").unwrap());
        assert_eq!(unfinished_beside(&path("a.toml")), [path("a.toml.applied.4194305")]);
    }
}
