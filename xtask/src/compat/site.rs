//! Where one program is tried: a folder and a port of its own, its servers
//! and clients under Sidestep, and the sums of `sidestep ss --totals`, looked
//! at again and again.

use std::cell::RefCell;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bench::launch::{self, Dialogue, Launcher, Program, Transport};
use crate::payload;
use crate::suite::HANG;
use crate::user;
use crate::witness::{Tally, Witness};

/// Pause between two looks: each is a process that takes CPU from the program.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Where Debian's programs are. They come before what else a user has installed,
/// because theirs are the versions that are told.
const DEBIAN_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// What all programs share.
#[derive(Debug)]
pub(crate) struct House {
    pub(crate) launcher: Launcher,
    pub(crate) witness: Witness,
    /// `tests` of the repository.
    pub(crate) scripts: PathBuf,
    /// Folders of programs are made in here.
    pub(crate) scratch: PathBuf,
    pub(crate) seed: u32,
    /// Programs that come before Debian's.
    pub(crate) programs: Option<PathBuf>,
}

/// The place of one program.
#[derive(Debug)]
pub(crate) struct Site<'a> {
    house: &'a House,
    dir: PathBuf,
    user: Option<u32>,
    seen: RefCell<Tally>,
}

impl<'a> Site<'a> {
    /// An empty place. A program that refuses to run as root is nobody's.
    pub(crate) fn create(house: &'a House, name: &str, refuses_root: bool) -> Result<Self> {
        let dir = house.scratch.join(name);
        // Left by a run that was killed.
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        let user = user::unless_root().filter(|_| refuses_root);
        if user.is_some() {
            chown(&dir, user, user)?;
        }
        Ok(Self { house, dir, user, seen: RefCell::default() })
    }

    // ---- files ---------------------------------------------------------------

    /// A file or folder of this place, as a word of a command.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// One of our scripts, from `tests`.
    pub(crate) fn script(&self, name: &str) -> String {
        self.house.scripts.join(name).display().to_string()
    }

    /// Writes a file and returns its path.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<String> {
        let path = self.path(name);
        let dir = Path::new(&path).parent().context("a file lies in a folder")?;
        fs::create_dir_all(dir)?;
        fs::write(&path, content).with_context(|| format!("writing {path}"))?;
        Ok(path)
    }

    /// The same with random bytes.
    pub(crate) fn write_random(&self, name: &str, len: usize) -> Result<String> {
        self.write(name, payload::random_bytes(len)?)
    }

    /// **Errors**: the two files differ.
    pub(crate) fn must_be_equal(&self, got: &str, expected: &str) -> Result<()> {
        payload::must_be_equal(Path::new(&self.path(got)), Path::new(&self.path(expected)))
            .with_context(|| format!("{got} is not {expected}"))
    }

    pub(crate) fn seed(&self) -> String {
        self.house.seed.to_string()
    }

    // ---- programs ------------------------------------------------------------

    /// Starts a server under Sidestep and waits until it listens.
    pub(crate) fn serve<S: AsRef<OsStr>>(&self, port: u16, words: &[S]) -> Result<Program> {
        let mut server = Program::start(self.command(Transport::Smc, words), &self.dir)?;
        server.await_listener(port)?;
        Ok(server)
    }

    /// Starts a program under Sidestep that talks while others do.
    pub(crate) fn start<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<Dialogue> {
        Dialogue::start(self.command(Transport::Smc, words))
    }

    /// Runs a client under Sidestep to its end and returns what it said.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<String> {
        self.finish(self.start(words)?)
    }

    /// Waits for the end of what was started.
    pub(crate) fn finish(&self, mut client: Dialogue) -> Result<String> {
        let deadline = Instant::now() + HANG;
        client.hang_up();
        while !client.program().has_ended()? && Instant::now() < deadline {
            self.look()?;
            thread::sleep(LOOK_INTERVAL);
        }
        let said = client.finish(HANG)?;
        // Once more: the server keeps the sums of connections that have ended.
        self.look()?;
        Ok(said)
    }

    /// Runs a command that prepares something, without Sidestep.
    pub(crate) fn prepare<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<String> {
        launch::run(self.command(Transport::Tcp, words), HANG)
    }

    /// Waits until `is_done`, looking at the connections meanwhile.
    ///
    /// **Errors**: it takes too long.
    pub(crate) fn await_that(
        &self,
        what: &str,
        mut is_done: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + HANG;
        while !is_done()? {
            if Instant::now() > deadline {
                bail!("waited in vain until {what}");
            }
            self.look()?;
            thread::sleep(LOOK_INTERVAL);
        }
        self.look()
    }

    fn command<S: AsRef<OsStr>>(&self, transport: Transport, words: &[S]) -> Command {
        let program = words.first().map_or(OsStr::new(""), AsRef::as_ref);
        let mut command = self.house.launcher.launch(transport, program, words.iter().skip(1));
        let path = env::var("PATH").unwrap_or_default();
        let first = self.house.programs.iter().map(|it| it.display().to_string());
        let path = first.chain([DEBIAN_PATH.to_owned(), path]).collect::<Vec<_>>().join(":");
        command.current_dir(&self.dir).env("PATH", path);
        // Python would leave compiled scripts in the source tree.
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        // No setting or history of whoever runs this.
        command.env("HOME", &self.dir).env("LC_ALL", "C.UTF-8");
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    // ---- proof ---------------------------------------------------------------

    fn look(&self) -> Result<()> {
        // Whatever runs below us belongs to the program that is tried.
        let pids = launch::family_of(std::process::id());
        self.seen.borrow_mut().merge(&self.house.witness.tally(&pids)?);
        Ok(())
    }

    /// What was seen of the connections of all programs here.
    pub(crate) fn tally(&self) -> Tally {
        self.seen.borrow().clone()
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        // Files of many megabytes; if they stay, the next run removes them.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
