//! Real programs under the real library: an echo server and its client.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Place, outcome};

/// A place with a program that talks and the library that moves it.
pub(crate) struct Talk {
    pub(crate) place: Place,
    talker: PathBuf,
    library: &'static Path,
}

/// A program that runs until it is dropped.
pub(crate) struct Running {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Talk {
    /// None, with a printed line, if there is no compiler or no library.
    pub(crate) fn prepare() -> Option<Self> {
        let place = Place::new();
        let talker = place.compile("talker", include_str!("talker.c"), &["-Wall", "-Werror"])?;
        Some(Self { place, talker, library: library()? })
    }

    /// `sidestep`, with the real library.
    pub(crate) fn sidestep(&self) -> Command {
        self.place.sidestep(Some(self.library))
    }

    /// The talker under `sidestep run OPTIONS`. Its connections are short.
    pub(crate) fn moved(&self, options: &[&str], words: &[&str]) -> Command {
        let mut command = self.sidestep();
        command.args(["run", "--promotion", "early"]).args(options).arg(&self.talker).args(words);
        command
    }

    /// The talker as it is.
    pub(crate) fn plain(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.talker);
        command.args(words);
        command
    }

    /// Whether programs of [`USERS`] can run here. None, with a printed line, if not.
    pub(crate) fn has_other_users(&self) -> Option<()> {
        let readable = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.place.path(), readable).unwrap();
        let mut reach = self.sidestep();
        reach.args(["run", "--"]).arg(&self.talker);
        // It complains of its words.
        let reached = as_user(USERS[0], reach).status().is_ok_and(|it| it.code() == Some(2));
        if !reached {
            println!("skipped: programs of other users need root, and a build that they can reach");
        }
        reached.then_some(())
    }

    pub(crate) fn talker(&self) -> &Path {
        &self.talker
    }
}

/// Users for whom no system has a name.
pub(crate) const USERS: [u32; 2] = [4711, 4712];

/// The command, of this user and the group of the same number.
pub(crate) fn as_user(user: u32, mut command: Command) -> Command {
    command.uid(user).gid(user);
    command
}

impl Running {
    /// Starts it and waits for its first line: a server listens, a client has talked.
    pub(crate) fn start(command: Command) -> Self {
        Self::try_start(command).expect("it is ready, or done")
    }

    /// None: it could not do what it was told.
    pub(crate) fn try_start(mut command: Command) -> Option<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut it = Self { child, said };
        let mut line = String::new();
        it.said.read_line(&mut line).unwrap();
        (line == "ready\n" || line == "done\n").then_some(it)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Closes its standard input: a client closes its connection and ends.
    pub(crate) fn finish(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.said.read_line(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port at which nobody listens.
pub(crate) fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// Only a hang takes so long, however busy the machine is.
pub(crate) const HANG: Duration = Duration::from_secs(300);

/// Tries until it succeeds, or for [`HANG`]: what one program has done the other may still have to see.
pub(crate) fn eventually<T>(what: &str, mut f: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + HANG;
    loop {
        if let Some(value) = f() {
            return value;
        }
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// How the connection of an end in this role travels, and why, once that is decided.
pub(crate) fn outcome_of(talk: &Talk, subject: &str, role: &str) -> (String, String) {
    eventually("nothing is decided about the connection", || {
        let why = outcome(talk.sidestep().args(["why", "--json", subject])).1;
        let explanation: Value = serde_json::from_str(&why).ok()?;
        let is_it = |finding: &&Value| finding["role"] == role;
        let finding = explanation["findings"].as_array()?.iter().find(is_it)?;
        let words = finding["words"].as_str()?.to_owned();
        let is_decided = finding["mode"] == "SMC-D" || finding["code"]["code"].is_string();
        is_decided.then(|| (finding["mode"].as_str().unwrap().to_owned(), words))
    })
}

/// A connection of this very process, which does not run under Sidestep, with bytes both ways.
pub(crate) fn connect(port: &str) -> TcpStream {
    use std::io::{Read, Write};
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.write_all(b"hello").unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
    stream
}

/// `libsidestep.so` of this build. None, with a printed line, if cargo cannot build it here.
pub(crate) fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let directory = Path::new(env!("CARGO_BIN_EXE_sidestep")).parent().unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "-q", "-p", "sidestep-preload", "--manifest-path"]);
        cargo.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml"));
        cargo.arg("--target-dir").arg(directory.parent().unwrap());
        if directory.ends_with("release") {
            cargo.arg("--release");
        }
        let built = cargo.status().is_ok_and(|status| status.success());
        Some(directory.join("libsidestep.so")).filter(|path| built && path.exists())
    };
    let library = LIBRARY.get_or_init(build).as_deref();
    if library.is_none() {
        println!("skipped: cargo cannot build libsidestep.so here");
    }
    library
}
