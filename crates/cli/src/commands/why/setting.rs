//! Which value a program has for a key, and where that comes from.
//!
//! `sidestep run` gives a program the result of the configuration in its environment, not
//! the files. So the files are read again, as that environment leads to them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use crate::config::{self, Configuration};
use crate::options::OPTIONS_VARIABLE;

/// The environment that a process was started with.
#[derive(Debug, Default)]
pub(super) struct Environment(HashMap<OsString, OsString>);

impl Environment {
    /// Of a process; empty if we may not look.
    pub(super) fn of(pid: u32) -> Self {
        let bytes = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let variable = |line: &[u8]| {
            let at = line.iter().position(|byte| *byte == b'=')?;
            let word = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
            Some((word(&line[..at]), word(&line[at + 1..])))
        };
        Self(bytes.split(|byte| *byte == 0).filter_map(variable).collect())
    }

    /// Whether `sidestep run` has started it, or a forebear of it.
    pub(super) fn is_of_sidestep(&self) -> bool {
        self.0.contains_key(&OsString::from(OPTIONS_VARIABLE))
    }

    /// The settings that may have decided, as one line.
    pub(super) fn origin_of(&self, keys: &[&str]) -> String {
        let variable = |name: &str| self.0.get(&OsString::from(name)).cloned();
        let (configuration, _) = Configuration::examine(None, variable);
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
            Some(format!("{name} = {value}, in {}", path.display()))
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
        assert_eq!(own.0.get(&OsString::from("PATH")), std::env::var_os("PATH").as_ref());
        assert!(Environment::of(1 << 30).0.is_empty());
    }
}
