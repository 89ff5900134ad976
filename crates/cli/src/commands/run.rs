//! `sidestep run`: become the program, with our library in front of its C library.

use std::ffi::{CString, OsStr, OsString};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::applied::{self, SOURCES_VARIABLE};
use crate::args::{LogArg, RunArgs};
use crate::config::{self, Candidate, ConfigError, Configuration};
use crate::library::{self, LibraryError, PRELOAD_VARIABLE};
use crate::options::{OPTIONS_VARIABLE, Options, Settings};
use crate::output;
use crate::preloadable::{self, Caller, Examination, Obstacle};
use crate::program::{self, ProgramError};

/// Replaces this process by the program, or says why not and returns the exit status for it.
pub(crate) fn execute(args: &RunArgs) -> i32 {
    let error = match Launch::prepare(args) {
        Ok(launch) => launch.exec(),
        Err(error) => error,
    };
    output::complain("run", &error);
    error.exit_status()
}

/// Why the program does not run.
#[derive(Debug, Error)]
pub(super) enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{0}; {advice}", advice = .0.advice())]
    Library(#[from] LibraryError),
    #[error("cannot write the log file {}: {reason}", path.display())]
    LogFile { path: PathBuf, reason: io::Error },
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("{}: cannot be executed: {reason}", path.display())]
    Exec { path: PathBuf, reason: String },
}

impl RunError {
    /// The exit status that `env`, `nice` and the shells use for the same thing.
    pub(super) fn exit_status(&self) -> i32 {
        match self {
            Self::Config(_) | Self::Library(_) | Self::LogFile { .. } => 125,
            Self::Program(ProgramError::NotExecutable { .. }) | Self::Exec { .. } => 126,
            Self::Program(ProgramError::NotInPath { .. } | ProgramError::NoSuchFile(_)) => 127,
        }
    }
}

/// A program ready to be executed.
pub(super) struct Launch {
    path: PathBuf,
    /// The words of the command line, the program's name first, as the user wrote it.
    words: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    /// The program is text without a `#!` line, so the kernel will leave it to a shell.
    is_bare_script: bool,
}

impl Launch {
    /// Checks everything that can be checked, and warns if the program will stay on TCP.
    pub(super) fn prepare(args: &RunArgs) -> Result<Self, RunError> {
        Self::with_wishes(args, Wishes::gather(args, Settings::default())?)
    }

    /// The same for a program that shows what it counts to the assessor of this name.
    pub(super) fn prepare_for(args: &RunArgs, assessor: &str) -> Result<Self, RunError> {
        let assessor = Some(assessor.to_owned());
        Self::with_wishes(args, Wishes::gather(args, Settings { assessor, ..Settings::default() })?)
    }

    /// The same for the gateway, to which no rule of TLS applies: it would hand over to itself.
    pub(super) fn prepare_gateway(args: &RunArgs) -> Result<Self, RunError> {
        let tls = Some(Vec::new());
        Self::with_wishes(args, Wishes::gather(args, Settings { tls, ..Settings::default() })?)
    }

    fn with_wishes(args: &RunArgs, wishes: Wishes) -> Result<Self, RunError> {
        let library = library::find()?;
        let path_variable = std::env::var_os("PATH");
        let name = &args.command[0];
        let path = program::find(name, path_variable.as_deref())?;

        // A program that cannot be read can still be executed, and its loader preloads.
        let examination =
            preloadable::examine(&path, Caller::current(), path_variable.as_deref()).ok();
        let obstacle = examination.as_ref().and_then(|found| found.obstacle.as_ref());
        if let Some(obstacle) = obstacle {
            let program = described(name, examination.as_ref());
            let advice = obstacle.advice();
            let warning = format_args!("warning: {program} stays on TCP: {obstacle}; {advice}");
            output::complain("run", warning);
        }
        let preload = obstacle.is_none_or(Obstacle::tolerates_preload);

        Ok(Self {
            path,
            words: args.command.clone(),
            environment: environment(std::env::vars_os(), wishes, preload.then_some(&library)),
            is_bare_script: examination.is_some_and(|found| found.is_bare_script),
        })
    }

    /// Becomes the program. Returns only if the system refuses.
    pub(super) fn exec(self) -> RunError {
        let refused = |error: io::Error| RunError::Exec {
            path: self.path.clone(),
            reason: match error.raw_os_error() {
                // The file is there, so what is missing is what it wants to be run by.
                Some(libc::ENOENT) => "its interpreter or loader does not exist".into(),
                _ => error.to_string(),
            },
        };
        let error = exec(&self.path, &self.words, &self.environment);
        if !self.is_bare_script || error.raw_os_error() != Some(libc::ENOEXEC) {
            return refused(error);
        }
        let mut words = vec![preloadable::SHELL.into(), self.path.clone().into_os_string()];
        words.extend_from_slice(&self.words[1..]);
        refused(exec(Path::new(preloadable::SHELL), &words, &self.environment))
    }
}

/// What the library is told in the environment.
struct Wishes {
    options: String,
    /// Where they come from: see [`applied::sources`].
    sources: String,
}

/// What the machine's file says, for the programs of a container. It has a filter of system calls, of the runtime's,
/// which lets pass what the library calls; and a file system of its own, without the log.
///
/// # Errors
///
/// The machine's file has a mistake.
pub(super) fn options_for_container() -> Result<Options, ConfigError> {
    let (_, configuration) = configuration_of_machine()?;
    let of_container = Settings { trust_filters: Some(true), ..Settings::default() };
    let options = of_container.or(configuration.settings).into_options();
    Ok(Options { log_file: None, ..options })
}

/// Where programs of this machine look for the agent.
///
/// # Errors
///
/// The machine's file has a mistake.
pub(super) fn agent_of_machine() -> Result<PathBuf, ConfigError> {
    let (_, configuration) = configuration_of_machine()?;
    Ok(configuration.settings.into_options().agent_socket)
}

/// Neither the files nor the variables of the user who asks are a service's.
fn configuration_of_machine() -> Result<(Vec<Candidate>, Configuration), ConfigError> {
    let candidates = config::candidates(None, |_| None);
    let (configuration, errors) = Configuration::of(candidates.clone());
    match errors.into_iter().next() {
        Some(error) => Err(error),
        None => Ok((candidates, configuration)),
    }
}

/// The variables with which a service begins, but for the library's own: what the machine's file says, and that a
/// filter is trusted if the service begins under one.
///
/// # Errors
///
/// The machine's file has a mistake.
pub(super) fn variables_for_service(
    is_filter_trusted: bool,
) -> Result<Vec<(String, String)>, ConfigError> {
    let (candidates, configuration) = configuration_of_machine()?;
    let of_unit =
        Settings { trust_filters: is_filter_trusted.then_some(true), ..Settings::default() };
    let sources = applied::sources(&candidates, &configuration, &of_unit);
    let options = of_unit.or(configuration.settings).into_options().to_string();
    Ok(vec![(OPTIONS_VARIABLE.to_owned(), options), (SOURCES_VARIABLE.to_owned(), sources)])
}

impl Wishes {
    /// From what goes before all else, the command line, the configuration files and the defaults.
    fn gather(args: &RunArgs, first: Settings) -> Result<Self, RunError> {
        let candidates = config::candidates(args.config.as_deref(), |name| std::env::var_os(name));
        let (configuration, errors) = Configuration::of(candidates.clone());
        if let Some(error) = errors.into_iter().next() {
            return Err(error.into());
        }
        let command_line = first.or(command_line_settings(args));
        let sources = applied::sources(&candidates, &configuration, &command_line);
        let options = command_line.or(configuration.settings).into_options();
        if let Some(path) = &options.log_file {
            // The library could only be silent about it, inside a program that is already running.
            let opened = OpenOptions::new().append(true).create(true).open(path);
            opened.map_err(|reason| RunError::LogFile { path: path.clone(), reason })?;
        }
        Ok(Self { options: options.to_string(), sources })
    }
}

fn command_line_settings(args: &RunArgs) -> Settings {
    let log_file = |log: &LogArg| {
        let file = log.file.as_ref()?;
        // The program may change its directory before the library opens the file.
        Some(std::path::absolute(file).unwrap_or_else(|_| file.clone()))
    };
    Settings {
        mode: args.mode,
        promotion: args.promotion,
        log_level: args.log.as_ref().map(|log| log.level),
        log_file: args.log.as_ref().and_then(log_file),
        ..Settings::default()
    }
}

/// The program's name, with the interpreter that decides if there is one.
fn described(name: &OsStr, examination: Option<&Examination>) -> String {
    match examination.and_then(|found| found.interpreters.last()) {
        Some(interpreter) => format!("{} (run by {})", name.display(), interpreter.display()),
        None => name.display().to_string(),
    }
}

/// `inherited`, with the options for the library and, if it may be preloaded, with the library.
fn environment(
    inherited: impl Iterator<Item = (OsString, OsString)>,
    wishes: Wishes,
    library: Option<&PathBuf>,
) -> Vec<(OsString, OsString)> {
    let (preloads, mut environment): (Vec<_>, Vec<_>) = inherited
        .filter(|(name, _)| name != OPTIONS_VARIABLE && name != SOURCES_VARIABLE)
        .partition(|(name, _)| name == PRELOAD_VARIABLE);
    environment.push((OPTIONS_VARIABLE.into(), wishes.options.into()));
    environment.push((SOURCES_VARIABLE.into(), wishes.sources.into()));

    let existing = preloads.into_iter().next().map(|(_, value)| value);
    let preload = match library {
        Some(library) => Some(library::preload_value(library, existing.as_deref())),
        None => existing,
    };
    environment.extend(preload.map(|value| (PRELOAD_VARIABLE.into(), value)));
    environment
}

/// Replaces this process; returns the system's reason if that fails.
///
/// Not `std::process::Command::exec`, which resets the signal mask and the handling of SIGPIPE:
/// the program is to inherit ours, as from `env`.
fn exec(path: &Path, words: &[OsString], environment: &[(OsString, OsString)]) -> io::Error {
    let environment = environment.iter().map(|(name, value)| {
        let mut entry = name.clone();
        entry.push("=");
        entry.push(value);
        entry
    });
    let arguments = (
        CString::new(path.as_os_str().as_bytes()),
        c_strings(words.iter().cloned()),
        c_strings(environment),
    );
    let (path, words, environment) = match arguments {
        (Ok(path), Ok(words), Ok(environment)) => (path, words, environment),
        (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => return error.into(),
    };
    let words = pointers(&words);
    let environment = pointers(&environment);
    // SAFETY: `path` is a C string; `words` and `environment` are arrays of pointers to C
    // strings, each closed by a null pointer. All outlive the call.
    unsafe { libc::execve(path.as_ptr(), words.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

fn c_strings(strings: impl Iterator<Item = OsString>) -> Result<Vec<CString>, std::ffi::NulError> {
    strings.map(|string| CString::new(string.into_vec())).collect()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    let end = std::ptr::null();
    strings.iter().map(|s| s.as_ptr()).chain([end]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(inherited: &[(&str, &str)], library: Option<&str>) -> Vec<String> {
        let inherited = inherited.iter().map(|&(name, value)| (name.into(), value.into()));
        let wishes = Wishes { options: "mode=smc".into(), sources: "mode=smc file= ".into() };
        let library = library.map(PathBuf::from);
        super::environment(inherited, wishes, library.as_ref())
            .into_iter()
            .map(|(name, value)| format!("{}={}", name.display(), value.display()))
            .collect()
    }

    #[test]
    fn the_environment_gains_three_variables() {
        let (options, sources) = ("SIDESTEP_OPTIONS=mode=smc", "SIDESTEP_SOURCES=mode=smc file= ");
        assert_eq!(
            environment(&[("A", "1")], Some("/l/libsidestep.so")),
            ["A=1", options, sources, "LD_PRELOAD=/l/libsidestep.so"]
        );
        assert_eq!(
            environment(
                &[("LD_PRELOAD", "/x.so"), ("SIDESTEP_OPTIONS", "old"), ("A", "1")],
                Some("/l/libsidestep.so")
            ),
            ["A=1", options, sources, "LD_PRELOAD=/l/libsidestep.so:/x.so"]
        );
    }

    #[test]
    fn without_a_library_other_preloads_stay() {
        let environment = environment(&[("LD_PRELOAD", "/x.so")], None);
        assert_eq!(environment[2], "LD_PRELOAD=/x.so");
    }
}
