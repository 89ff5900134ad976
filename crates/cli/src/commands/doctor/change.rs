//! What `sidestep doctor --fix` changes: each change says what it does before it does it, and how to take it back.
//!
//! There is a change only for what doctor understands and what breaks nothing that runs. Some advice is left to the administrator:
//! `vm.overcommit_memory` and limits of memory and files were set by somebody for a reason, and so were interfaces that are down,
//! masked units, filters of system calls, and mistakes in a configuration, which only its author can mean otherwise.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::geteuid;

use crate::commands::{generate, service};

pub(super) const AGENT_UNIT: &str = "sidestepd.service";

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Has systemd start the agent, now and at each start of the machine.
    StartAgent,
    /// Writes the drop-in of an enabled service again, with the library that there is.
    EnableAgain(String),
    /// Removes the socket of a process that has ended.
    RemoveSocket(PathBuf),
    /// Removes what a process that has ended was about to put in the place of another file.
    RemoveUnfinished(PathBuf),
    /// Writes the device for containers again.
    WriteDevice,
    /// Raises the soft limit of open files of a user, from the next session on.
    RaiseOpenFiles(OpenFiles),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StartAgent => write!(
                f,
                "systemctl enable --now {AGENT_UNIT} (back: systemctl disable --now {AGENT_UNIT})"
            ),
            Self::EnableAgain(unit) => write!(
                f,
                "write {} with the library that is there, for the next start of {unit} (back: sidestep disable {unit})",
                service::drop_in_of(unit).display()
            ),
            Self::RemoveSocket(path) => {
                write!(f, "remove {}, at which nothing listens", path.display())
            }
            Self::RemoveUnfinished(path) => {
                write!(f, "remove {}, left by a process that has ended", path.display())
            }
            Self::WriteDevice => write!(
                f,
                "write {} as `sidestep generate cdi` does, for containers that begin from then on (back: remove it)",
                generate::CDI_FILE
            ),
            Self::RaiseOpenFiles(change) => change.fmt(f),
        }
    }
}

impl Change {
    /// Makes it.
    ///
    /// # Errors
    ///
    /// The reason, and what to do about it.
    pub(super) fn make(&self) -> Result<(), String> {
        match self {
            Self::StartAgent => {
                as_root()?;
                service::systemctl(&["enable", "--now", AGENT_UNIT])
                    .map(drop)
                    .map_err(|error| format!("{error}; see: journalctl -u {AGENT_UNIT}"))
            }
            Self::EnableAgain(unit) => {
                as_root()?;
                service::enable_again(unit)
            }
            Self::RemoveSocket(path) => explained(path, remove_dead_socket(path)),
            Self::RemoveUnfinished(path) => explained(path, fs::remove_file(path)),
            Self::WriteDevice => {
                let path = Path::new(generate::CDI_FILE);
                let text = generate::cdi_text().map_err(|error| error.to_string())?;
                explained(path, replace(path, &text))
            }
            Self::RaiseOpenFiles(change) => explained(
                Path::new(OpenFiles::FILE),
                replace(Path::new(OpenFiles::FILE), &change.text()),
            ),
        }
    }
}

/// A line for `pam_limits`, in a file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenFiles {
    pub(super) user: String,
    pub(super) count: u64,
}

impl OpenFiles {
    pub(super) const FILE: &str = "/etc/security/limits.d/50-sidestep.conf";

    /// The file, users whom it names already included.
    fn text(&self) -> String {
        const HEAD: &str =
            "# Written by `sidestep doctor --fix`; remove this file to take it back.\n";
        let present = fs::read_to_string(Self::FILE).unwrap_or_else(|_| HEAD.to_owned());
        present + &self.line() + "\n"
    }

    fn line(&self) -> String {
        format!("{} soft nofile {}", self.user, self.count)
    }

    /// Whether the file has it: then something else sets the limit, after the session has begun.
    pub(super) fn is_made(&self) -> bool {
        let text = fs::read_to_string(Self::FILE).unwrap_or_default();
        text.lines().any(|line| line == self.line())
    }
}

impl fmt::Display for OpenFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "write `{}` to {}, for sessions that begin from then on (back: remove it)",
            self.line(),
            Self::FILE
        )
    }
}

fn as_root() -> Result<(), String> {
    if geteuid().is_root() { Ok(()) } else { Err(NEEDS_ROOT.to_owned()) }
}

const NEEDS_ROOT: &str = "this needs root: sudo sidestep doctor --fix";

fn explained(path: &Path, outcome: io::Result<()>) -> Result<(), String> {
    outcome.map_err(|error| {
        let advice = match error.kind() {
            ErrorKind::PermissionDenied => format!("; {NEEDS_ROOT}"),
            ErrorKind::ReadOnlyFilesystem => {
                "; it is read-only here: change it where the system is made".to_owned()
            }
            _ => String::new(),
        };
        format!("{}: {error}{advice}", path.display())
    })
}

/// Whole, or not at all.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(&new, path)
}

/// Removes a socket at which nothing listens.
///
/// A process may begin to listen between a look and the removal, and it is its socket that would go. So the file is first taken to
/// another name, looked at there, and put back if it answers.
fn remove_dead_socket(path: &Path) -> io::Result<()> {
    let aside = path.with_extension("dead");
    fs::rename(path, &aside)?;
    if is_dead(&aside) {
        return fs::remove_file(&aside);
    }
    match renameat_with(CWD, &aside, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => Err(io::Error::other("something listens there now, so it stays")),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether nothing listens at a socket. A call with the wrong type of socket is refused as such, and by a listener only.
pub(super) fn is_dead(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_is_removed_only_when_nothing_listens() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("agent.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let error = Change::RemoveSocket(path.clone()).make().unwrap_err();
        assert!(error.contains("something listens there now"), "{error}");
        UnixStream::connect(&path).unwrap();
        drop(listener);
        Change::RemoveSocket(path.clone()).make().unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn every_change_says_how_to_take_it_back() {
        let limit = OpenFiles { user: "ann".to_owned(), count: 1024 };
        for change in [
            Change::StartAgent,
            Change::EnableAgain("a.service".to_owned()),
            Change::WriteDevice,
            Change::RaiseOpenFiles(limit),
        ] {
            assert!(change.to_string().contains("(back: "), "{change}");
        }
    }
}
