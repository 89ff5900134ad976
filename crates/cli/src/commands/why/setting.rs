//! Which value a program has for a key, and where that comes from.
//!
//! `sidestep run` gives a program the result of the configuration in its environment, not
//! the files. So the files are read again, as that environment leads to them.

use std::collections::HashMap;
use std::ffi::OsString;

use crate::config::{self, Configuration};
use crate::options::OPTIONS_VARIABLE;
use crate::output::Escaped;
use crate::strangers_files::Process;

/// The longest value that is shown, in characters.
const VALUE_LEN_MAX: usize = 200;

/// The environment that a process was started with. It may be another user's, who has chosen all of it.
#[derive(Debug, Default)]
pub(super) struct Environment {
    process: Option<Process>,
    variables: HashMap<OsString, OsString>,
}

impl Environment {
    /// Of a process; empty if we may not look.
    pub(super) fn of(pid: u32) -> Self {
        let process = Process::new(pid).ok();
        let variables = process.as_ref().and_then(|process| process.environment().ok());
        Self { process, variables: variables.into_iter().flatten().collect() }
    }

    /// Whether `sidestep run` has started it, or an ancestor of it.
    pub(super) fn is_of_sidestep(&self) -> bool {
        self.variables.contains_key(&OsString::from(OPTIONS_VARIABLE))
    }

    /// The settings that may have decided, as one line.
    pub(super) fn origin_of(&self, keys: &[&str]) -> String {
        let variable = |name: &str| self.variables.get(&OsString::from(name)).cloned();
        let candidates = config::candidates(None, variable);
        // What its user may not read was not read for it either.
        let (configuration, _) = Configuration::read_by(candidates, |candidate| {
            self.process.as_ref()?.read(&candidate.path).ok().map(Ok)
        });
        origin_in(&configuration, keys)
    }
}

fn origin_in(configuration: &Configuration, keys: &[&str]) -> String {
    let is_asked_for = |(name, _): &(String, _)| keys.contains(&name.as_str());
    let places: Vec<_> = config::keys()
        .filter(is_asked_for)
        .filter_map(|(name, value)| {
            let (path, settings) =
                configuration.files.iter().find(|(_, settings)| value(settings).is_some())?;
            let value = value(settings).unwrap_or_default();
            let shown = shortened(&value);
            Some(format!("{name} = {}, in {}", Escaped(shown), Escaped(path.display())))
        })
        .collect();
    match places.as_slice() {
        [] => format!(
            "{}: no file has it now; from the command line, --config or the default",
            keys.join(" or ")
        ),
        places => places.join("; "),
    }
}

fn shortened(value: &str) -> String {
    match value.char_indices().nth(VALUE_LEN_MAX) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Mode, Settings};

    #[test]
    fn the_first_file_that_has_a_key_is_named() {
        let tcp = Settings { mode: Some(Mode::Tcp), ..Settings::default() };
        let smc = Settings { mode: Some(Mode::Smc), ..Settings::default() };
        let files = [("/a", Settings::default()), ("/b", tcp), ("/c", smc)];
        let files = files.map(|(path, settings)| (path.into(), settings)).to_vec();
        let configuration = Configuration { files, ..Configuration::default() };
        assert_eq!(origin_in(&configuration, &["smc.mode"]), "smc.mode = tcp, in /b");
        let nowhere = origin_in(&configuration, &["smc.eid"]);
        assert!(nowhere.starts_with("smc.eid: no file has it now"), "{nowhere}");
    }

    #[test]
    fn an_environment_is_read_from_proc() {
        let own = Environment::of(std::process::id());
        let path = own.variables.get(&OsString::from("PATH"));
        assert_eq!(path, std::env::var_os("PATH").as_ref());
        assert!(Environment::of(1 << 30).variables.is_empty());
    }

    #[test]
    fn what_another_user_has_chosen_is_part_of_its_line() {
        let level = Settings { log_file: Some("/a\x1b[2J\nb".into()), ..Settings::default() };
        let files = vec![("/etc\r/c".into(), level)];
        let configuration = Configuration { files, ..Configuration::default() };
        let origin = origin_in(&configuration, &["log.file"]);
        assert_eq!(origin, "log.file = /a\\u{1b}[2J\\nb, in /etc\\r/c");
        assert_eq!(shortened(&"ü".repeat(1000)), "ü".repeat(VALUE_LEN_MAX) + "…");
    }
}
