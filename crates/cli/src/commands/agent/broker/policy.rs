//! Whom the policy of the host lets share memory ([`SharePolicy`]), as its files say now.
//!
//! The files are looked at again when two processes are about to meet, once a second at most. One that grants
//! something must be root's or the agent's own user's, and no other user may write to it. What has a mistake grants
//! nothing until it is right.

use std::cell::Cell;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::config::{self, Candidate, ConfigError, Configuration};
use crate::share::{Party, SharePolicy};

/// Between two looks at the files.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Permission to write of group and others.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Why there is no policy.
#[derive(Debug, Error)]
pub(crate) enum PolicyError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(
        "{}: [share] counts only in a file that others than root cannot write: chown root, chmod go-w",
        .0.display()
    )]
    Untrusted(PathBuf),
}

/// The policy and the files that it comes from.
pub(crate) struct HostPolicy {
    candidates: Vec<Candidate>,
    policy: SharePolicy,
    /// What was found of each file last.
    seen: Vec<Option<Version>>,
    look_at: Instant,
}

/// Which version of a file it is: device, inode, size, and the time of its last change.
type Version = (u64, u64, u64, i64, i64, u32, u32);

impl HostPolicy {
    /// Reads the file of the command line, if one was named, and those that the environment leads to.
    ///
    /// # Errors
    ///
    /// A file has a mistake, or grants something and others may write it.
    pub(crate) fn load(named: Option<&Path>) -> Result<Self, PolicyError> {
        let candidates = config::candidates(named, |name| std::env::var_os(name));
        let seen = versions(&candidates);
        let policy = read(&candidates)?;
        Ok(Self { candidates, policy, seen, look_at: Instant::now() + LOOK_INTERVAL })
    }

    /// Whether these two may share memory, as the files say now.
    pub(super) fn grants(&mut self, one: &Party<'_>, other: &Party<'_>, now: Instant) -> bool {
        self.follow(now);
        self.policy.grants(one, other)
    }

    fn follow(&mut self, now: Instant) {
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK_INTERVAL;
        let seen = versions(&self.candidates);
        if seen == self.seen {
            return;
        }
        self.seen = seen;
        match read(&self.candidates) {
            Ok(policy) => {
                log::info!("[share] was read again");
                self.policy = policy;
            }
            Err(error) => {
                log::error!("[share] grants nothing until this is right: {error}");
                self.policy = SharePolicy::default();
            }
        }
    }
}

fn versions(candidates: &[Candidate]) -> Vec<Option<Version>> {
    let version = |it: Metadata| {
        (it.dev(), it.ino(), it.size(), it.ctime(), it.ctime_nsec(), it.uid(), it.mode())
    };
    let of_file = |candidate: &Candidate| std::fs::metadata(&candidate.path).ok().map(version);
    candidates.iter().map(of_file).collect()
}

fn read(candidates: &[Candidate]) -> Result<SharePolicy, PolicyError> {
    let untrusted = Cell::new(Vec::new());
    let (configuration, errors) = Configuration::read_by(candidates.to_vec(), |candidate| {
        let text = File::open(&candidate.path).and_then(|file| {
            if !is_trusted(&file.metadata()?) {
                let mut paths = untrusted.take();
                paths.push(candidate.path.clone());
                untrusted.set(paths);
            }
            text_of(file)
        });
        let is_absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        match text {
            Err(error) if is_absent(&error) && !candidate.is_required() => None,
            text => Some(text),
        }
    });
    if let Some(error) = errors.into_iter().next() {
        return Err(error.into());
    }
    let untrusted = untrusted.take();
    let grants = configuration.files.iter().filter(|(_, settings)| settings.has_share_policy());
    if let Some((path, _)) = grants.into_iter().find(|(path, _)| untrusted.contains(path)) {
        return Err(PolicyError::Untrusted(path.clone()));
    }
    Ok(configuration.settings.into_share_policy())
}

fn text_of(mut file: File) -> io::Result<String> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// Whether root or our own user alone can have written it.
fn is_trusted(file: &Metadata) -> bool {
    let own = rustix::process::geteuid().as_raw();
    [0, own].contains(&file.uid()) && file.mode() & WRITABLE_BY_OTHERS == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    const ONE: Party<'_> = Party { uid: 1, gid: 1, groups: &[] };
    const OTHER: Party<'_> = Party { uid: 2, gid: 2, groups: &[] };

    fn candidates(path: &Path) -> Vec<Candidate> {
        config::candidates(Some(path), |_| None).into_iter().take(1).collect()
    }

    fn policy_of(path: &Path) -> Result<HostPolicy, PolicyError> {
        let candidates = candidates(path);
        let (seen, policy) = (versions(&candidates), read(&candidates)?);
        Ok(HostPolicy { candidates, policy, seen, look_at: Instant::now() })
    }

    fn put(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_the_file_says_now_is_the_policy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sidestep.toml");
        put(&path, "[share]\npairs = [[1, 2]]\n", 0o644);
        let mut policy = policy_of(&path).unwrap();
        let mut now = Instant::now();
        let mut grants = || {
            now += LOOK_INTERVAL;
            policy.grants(&ONE, &OTHER, now)
        };
        assert!(grants());
        put(&path, "[share]\npairs = [[1, 3]]\n#\n", 0o644);
        assert!(!grants(), "it was taken back");
        put(&path, "[share]\nall = true\n", 0o644);
        assert!(grants());
        put(&path, "[share]\nall = maybe\n", 0o644);
        assert!(!grants(), "a mistake grants nothing");
        put(&path, "[share]\nall = true\n", 0o644);
        assert!(grants());
        put(&path, "[share]\nall = true\n", 0o666);
        assert!(!grants(), "others may write it");
        fs::remove_file(&path).unwrap();
        assert!(!grants());
    }

    #[test]
    fn a_file_that_others_may_write_has_no_say() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sidestep.toml");
        for (mode, is_trusted) in [(0o644, true), (0o600, true), (0o664, false), (0o646, false)] {
            put(&path, "[share]\ngroups = [\"root\"]\n", mode);
            assert_eq!(policy_of(&path).is_ok(), is_trusted, "{mode:o}");
        }
        put(&path, "[log]\nlevel = \"info\"\n", 0o666);
        assert!(policy_of(&path).is_ok(), "it grants nothing");
        let error = {
            put(&path, "[share]\nall = true\n", 0o666);
            policy_of(&path).map(|_| ()).unwrap_err().to_string()
        };
        assert!(error.contains("chmod go-w"), "{error}");
    }
}
