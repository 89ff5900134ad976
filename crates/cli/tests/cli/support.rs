//! A place of its own for each test, and the compiler where a test needs a program.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory in which `sidestep` finds no configuration but what the test puts there.
pub(crate) struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { directory }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file and returns its path.
    pub(crate) fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Writes a file that may be executed and returns its path.
    pub(crate) fn script(&self, name: &str, content: &str) -> PathBuf {
        let path = self.file(name, content);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    /// What `sidestep` with these words says where `etc` of this place is `/etc`, behind these words of a shell: its status, output and
    /// errors.
    pub(crate) fn on_own_host(
        &self,
        library: &Path,
        prepare: &str,
        words: &[&str],
    ) -> (i32, String, String) {
        let sidestep = self.sidestep(Some(library));
        let enter = format!("mount --bind \"$HOME/etc\" /etc && {prepare} exec \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &enter, "sh"]);
        command.arg(sidestep.get_program()).args(words);
        command.env_clear().current_dir(self.path());
        command.envs(sidestep.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}/bin:{path}", self.path().display()));
        let (status, output, errors) = outcome(&mut command);
        (status.unwrap(), output, errors)
    }

    /// Compiles a C program. None, with a printed line, if that cannot be done here: no
    /// compiler, or no static C library.
    pub(crate) fn compile(&self, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
        let input = self.file(&format!("{name}.c"), source);
        let output = self.path().join(name);
        let compiled = Command::new("gcc").arg("-o").arg(&output).arg(&input).args(flags).status();
        if compiled.is_ok_and(|status| status.success()) {
            return Some(output);
        }
        println!("skipped: gcc {flags:?} does not work here");
        None
    }

    /// A shared library that does nothing, in the place of `libsidestep.so`.
    pub(crate) fn library(&self) -> Option<PathBuf> {
        self.compile("probe.so", "int probe = 1;", &["-shared", "-fPIC"])
    }

    /// `sidestep`, in this directory, knowing only `library`, if given, and what the test adds.
    pub(crate) fn sidestep(&self, library: Option<&Path>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sidestep"));
        command.current_dir(self.path()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.path());
        if let Some(library) = library {
            command.env("SIDESTEP_LIBRARY", library);
        }
        command
    }
}

/// A place that [`Place::on_own_host`] shows as a host of its own, with this `systemctl`, and the library. `None`, with a printed line,
/// if there can be none here.
pub(crate) fn own_host(systemctl: &str) -> Option<(Place, PathBuf)> {
    let may = Command::new("unshare").args(["--mount", "true"]).status();
    if !rustix::process::geteuid().is_root() || !may.is_ok_and(|status| status.success()) {
        println!("skipped: a mount namespace needs root");
        return None;
    }
    let place = Place::new();
    let library = place.library()?;
    place.script("bin/systemctl", systemctl);
    place.file("etc/ld.so.cache", "");
    std::fs::copy("/etc/ld.so.cache", place.path().join("etc/ld.so.cache")).ok()?;
    Some((place, library))
}

/// The exit status, standard output and standard error of a command.
pub(crate) fn outcome(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}
