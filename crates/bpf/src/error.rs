//! What can be lacking, in words.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use aya::programs::ProgramError;
use thiserror::Error;

/// Why a program is not in place.
#[derive(Debug, Error)]
pub enum BpfError {
    /// The process may not do this (`EPERM`, `EACCES`).
    #[error(
        "no privilege {to_what}: run as root, or with CAP_BPF and CAP_NET_ADMIN and the right \
         to make a cgroup"
    )]
    Privilege {
        /// Continues the sentence, such as `to make a cgroup in /sys/fs/cgroup`.
        to_what: String,
    },
    /// No cgroup2 file system is mounted.
    #[error(
        "no cgroup2 file system is mounted: `mount -t cgroup2 none DIRECTORY` as root mounts one"
    )]
    NoCgroup2,
    /// What is to outlive the process has no place.
    #[error(
        "{} is in no BPF file system: `mount -t bpf bpf /sys/fs/bpf` as root mounts one", path.display()
    )]
    NoBpfFileSystem {
        /// Where it was to be.
        path: PathBuf,
    },
    /// Programs cannot be attached to interfaces so that they stay.
    #[error("forwarded packets are judged on Linux 6.6 or later: leave out `forwarded`")]
    NoTcx,
    /// What is pinned here is none of ours, or of another version.
    #[error("what is in {} is no filter of this version ({reason}): remove it first", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// What was met there.
        reason: String,
    },
    /// The kernel refused for another reason.
    #[error(
        "this kernel could not {what} ({reason}): Linux 5.15 or later is needed, with \
         CONFIG_BPF_SYSCALL, CONFIG_CGROUP_BPF and CONFIG_BPF_STREAM_PARSER"
    )]
    Kernel {
        /// What was asked of it.
        what: &'static str,
        /// All it said, the verifier's log included.
        reason: String,
    },
    /// A file of a cgroup, or one that leads to it, could not be used.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl BpfError {
    pub(crate) fn of_kernel(what: &'static str, error: &(dyn Error + 'static)) -> Self {
        match os_error(error) {
            // What the verifier does not take is EACCES as well; it gives a reason.
            Some(kind) if is_refusal(kind) && !has_verifier_log(error) => {
                Self::Privilege { to_what: format!("to {what}") }
            }
            _ => Self::Kernel { what, reason: all_words(error) },
        }
    }

    pub(crate) fn of_file(path: &Path, source: io::Error) -> Self {
        if is_refusal(source.kind()) {
            return Self::Privilege { to_what: format!("to change {}", path.display()) };
        }
        Self::File { path: path.to_owned(), source }
    }
}

fn has_verifier_log(error: &(dyn Error + 'static)) -> bool {
    chain(error).filter_map(|it| it.downcast_ref::<ProgramError>()).any(|error| match error {
        ProgramError::LoadError { verifier_log, .. } => !verifier_log.to_string().is_empty(),
        _ => false,
    })
}

fn is_refusal(kind: io::ErrorKind) -> bool {
    // Both EPERM and EACCES.
    kind == io::ErrorKind::PermissionDenied
}

/// The system's error at the bottom of a chain.
fn os_error(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    chain(error).filter_map(|it| it.downcast_ref::<io::Error>()).last().map(io::Error::kind)
}

/// The words of a chain, each once: some errors repeat those of their source.
fn all_words(error: &(dyn Error + 'static)) -> String {
    let mut words = String::new();
    for text in chain(error).map(ToString::to_string) {
        if words.is_empty() {
            words = text;
        } else if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
    }
    words
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Error)]
    #[error("the map: {0}")]
    struct Wrapped(#[source] io::Error);

    #[test]
    fn a_refusal_is_called_a_lack_of_privilege() {
        let refusal = Wrapped(io::Error::from(io::ErrorKind::PermissionDenied));
        let error = BpfError::of_kernel("make a map", &refusal);
        assert!(error.to_string().starts_with("no privilege to make a map: run as root"));
    }

    #[test]
    fn words_of_a_source_are_not_repeated() {
        let unknown = Wrapped(io::Error::other("unknown type"));
        assert_eq!(all_words(&unknown), "the map: unknown type");
    }
}
