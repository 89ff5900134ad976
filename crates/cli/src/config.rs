//! The configuration files: where they are, what may stand in them, and what is wrong with one.
//!
//! Up to four files are read, and a key set in an earlier one hides it in the later ones:
//!
//! 1. the file named by `--config`,
//! 2. the file named by `$SIDESTEP_CONFIG`,
//! 3. the user's: `$XDG_CONFIG_HOME/sidestep/sidestep.toml`, or below `~/.config`,
//! 4. the machine's: `/etc/sidestep/sidestep.toml`.
//!
//! The first two must exist when they are named. The keys are the entries of [`TABLES`];
//! `docs/configuration.md` explains each.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use thiserror::Error;
use toml::de::{DeTable, DeValue};

use crate::options::{Eid, MemoryLimit, RmbeSize, Settings, parse_keyword, parse_size};

/// A configuration file that cannot be used.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    /// The file is missing although it was named, or the system refuses to read it.
    #[error("cannot read the configuration file {}: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: io::Error },
    /// The file is not TOML, or a key or value in it is not one of ours.
    #[error("{}:{line}: {message}", path.display())]
    Invalid { path: PathBuf, line: usize, message: String },
}

/// What the configuration files say together.
#[derive(Debug, Default)]
pub(crate) struct Configuration {
    pub(crate) settings: Settings,
    /// The files that were found, the most important first.
    pub(crate) files: Vec<PathBuf>,
}

impl Configuration {
    /// Reads the file given by `--config`, if any, and those that `environment` leads to.
    ///
    /// # Errors
    ///
    /// The first file, in order of importance, that cannot be read or understood.
    pub(crate) fn load(
        named: Option<&Path>,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ConfigError> {
        let mut configuration = Self::default();
        for Candidate { path, required } in candidates(named, environment) {
            // A home directory that this user may not enter is none of theirs; a file that is
            // seen but may not be read is a mistake.
            if !required && std::fs::metadata(&path).is_err() {
                continue;
            }
            let text = std::fs::read_to_string(&path).map_err(|reason| {
                let path = path.clone();
                ConfigError::Unreadable { path, reason }
            })?;
            let settings = parse(&text).map_err(|fault| ConfigError::Invalid {
                path: path.clone(),
                line: line_of(&text, fault.offset),
                message: fault.message,
            })?;
            configuration.settings = configuration.settings.or(settings);
            configuration.files.push(path);
        }
        Ok(configuration)
    }
}

/// A place where a configuration file may be, or must be if `required`.
#[derive(Debug, PartialEq, Eq)]
struct Candidate {
    path: PathBuf,
    required: bool,
}

fn candidates(
    named: Option<&Path>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Vec<Candidate> {
    // An empty variable counts as unset, as in the XDG base directory specification.
    let variable = |name| environment(name).filter(|value| !value.is_empty());
    // The same specification: a relative path in XDG_CONFIG_HOME is to be ignored.
    let user_directory = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".config")));

    let required = |path| Candidate { path, required: true };
    let optional = |directory: PathBuf| Candidate {
        path: directory.join("sidestep/sidestep.toml"),
        required: false,
    };
    let named = named.map(Path::to_owned).map(required);
    let variable = variable("SIDESTEP_CONFIG").map(PathBuf::from).map(required);
    let user = user_directory.map(optional);
    let machine = optional("/etc".into());
    named.into_iter().chain(variable).chain(user).chain([machine]).collect()
}

/// The line, counted from 1, that holds the byte at `offset`.
fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|&c| c == b'\n').count()
}

/// What is wrong in a file, and at which byte.
#[derive(Debug)]
struct Fault {
    offset: usize,
    message: String,
}

/// A key of a table, and how its value gets into the settings. The error is a sentence without
/// the key.
type Key = (&'static str, fn(&mut Settings, &DeValue<'_>) -> Result<(), String>);

/// Every table and key a file may hold.
const TABLES: &[(&str, &[Key])] = &[
    (
        "smc",
        &[
            ("mode", |s, v| keyword(v).map(|v| s.mode = Some(v))),
            ("promotion", |s, v| keyword(v).map(|v| s.promotion = Some(v))),
            ("rmbe_size", |s, v| rmbe_size(v).map(|v| s.rmbe_size = Some(v))),
            ("spin", |s, v| keyword(v).map(|v| s.spin = Some(v))),
            ("memory_limit", |s, v| memory_limit(v).map(|v| s.memory_limit = Some(v))),
            ("eid", |s, v| eid(v).map(|v| s.eid = Some(v))),
        ],
    ),
    (
        "log",
        &[
            ("level", |s, v| keyword(v).map(|v| s.log_level = Some(v))),
            ("file", |s, v| log_file(v).map(|v| s.log_file = Some(v))),
        ],
    ),
];

fn parse(text: &str) -> Result<Settings, Fault> {
    let document = DeTable::parse(text).map_err(|error| Fault {
        offset: error.span().map_or(0, |span| span.start),
        message: error.message().to_owned(),
    })?;

    let mut settings = Settings::default();
    for (name, value) in document.get_ref() {
        let fault = |offset, message| Fault { offset, message };
        let Some((table_name, keys)) = TABLES.iter().find(|(known, _)| known == name.get_ref())
        else {
            let known = TABLES.iter().map(|(known, _)| *known);
            let message = unknown("table", name.get_ref(), known);
            return Err(fault(name.span().start, message));
        };
        let DeValue::Table(table) = value.get_ref() else {
            let message = format!("{table_name}: expected a table: [{table_name}]");
            return Err(fault(name.span().start, message));
        };
        for (key, value) in table {
            let Some((_, set)) = keys.iter().find(|(known, _)| known == key.get_ref()) else {
                let known = keys.iter().map(|(known, _)| *known);
                let message = unknown("key", key.get_ref(), known);
                let message = format!("{table_name}.{message}");
                return Err(fault(key.span().start, message));
            };
            set(&mut settings, value.get_ref()).map_err(|message| {
                let message = format!("{table_name}.{}: {message}", key.get_ref());
                fault(value.span().start, message)
            })?;
        }
    }
    Ok(settings)
}

fn keyword<T: ValueEnum>(value: &DeValue<'_>) -> Result<T, String> {
    // A value that is not a string is no keyword either, so it gets the same list of words.
    parse_keyword(value.as_str().unwrap_or(value.type_str()))
}

fn rmbe_size(value: &DeValue<'_>) -> Result<RmbeSize, String> {
    bytes(value)
        .and_then(RmbeSize::new)
        .ok_or_else(|| format!("{} is not allowed; use {}", shown(value), RmbeSize::ALLOWED))
}

fn memory_limit(value: &DeValue<'_>) -> Result<MemoryLimit, String> {
    bytes(value).and_then(MemoryLimit::new).ok_or_else(|| {
        let allowed = MemoryLimit::ALLOWED;
        format!("{} is not allowed; use {allowed}", shown(value))
    })
}

fn eid(value: &DeValue<'_>) -> Result<Eid, String> {
    value
        .as_str()
        .and_then(Eid::new)
        .ok_or_else(|| format!("{} is not allowed; use {}", shown(value), Eid::ALLOWED))
}

fn log_file(value: &DeValue<'_>) -> Result<PathBuf, String> {
    value
        .as_str()
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .ok_or_else(|| format!("{} is not allowed; use an absolute path", shown(value)))
}

/// A number of bytes: an integer, or a string such as `"64KB"`. One KB is 1024 bytes.
fn bytes(value: &DeValue<'_>) -> Option<u64> {
    match value {
        DeValue::Integer(integer) => u64::from_str_radix(integer.as_str(), integer.radix()).ok(),
        DeValue::String(text) => parse_size(text),
        _ => None,
    }
}

/// The value as a user would recognise it.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("`{text}`"),
        DeValue::Integer(integer) => integer.to_string(),
        DeValue::Float(float) => float.to_string(),
        DeValue::Boolean(boolean) => boolean.to_string(),
        other => format!("{} value", other.type_str()),
    }
}

/// The sentence for a name that is not in `known`, with the nearest one that is.
fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let nearest = known
        .clone()
        .map(|candidate| (edit_distance(name, candidate), candidate))
        .min()
        // Beyond half the letters it is another word, not a slip.
        .filter(|(distance, candidate)| *distance <= candidate.len() / 2);
    let known = known.collect::<Vec<_>>().join(", ");
    match nearest {
        Some((_, nearest)) => {
            format!("{name}: unknown {what}; did you mean `{nearest}`? (known: {known})")
        }
        None => format!("{name}: unknown {what} (known: {known})"),
    }
}

/// The fewest insertions, deletions and replacements of a character that turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    // row[j]: the distance of the part of `a` read so far to the first j characters of `b`.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &b) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{LogLevel, Mode, Promotion, Spin};

    /// The error text for a file with this content, without the directory.
    fn error(content: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sidestep.toml");
        std::fs::write(&path, content).unwrap();
        let error = Configuration::load(Some(&path), |_| None).unwrap_err();
        error.to_string().replace(&format!("{}/", directory.path().display()), "")
    }

    #[test]
    fn every_key_is_understood() {
        let settings = parse(
            r#"
            [smc]
            mode = "tcp"
            promotion = "lazy"
            rmbe_size = "128KB"
            spin = "never"
            memory_limit = "256 MiB"
            eid = "PROD-1"
            [log]
            level = "debug"
            file = "/var/log/sidestep.log"
            "#,
        )
        .unwrap();
        let expected = Settings {
            mode: Some(Mode::Tcp),
            promotion: Some(Promotion::Lazy),
            rmbe_size: RmbeSize::new(128 << 10),
            spin: Some(Spin::Never),
            memory_limit: MemoryLimit::new(256 << 20),
            eid: Eid::new("PROD-1"),
            log_level: Some(LogLevel::Debug),
            log_file: Some("/var/log/sidestep.log".into()),
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn sizes_are_integers_or_strings_with_a_unit() {
        let size = |text: &str| bytes(DeValue::parse(text).unwrap().get_ref());
        assert_eq!(size("65536"), Some(65_536));
        assert_eq!(size("65_536"), Some(65_536));
        assert_eq!(size("0x10000"), Some(65_536));
        for same in ["\"64KB\"", "\"64k\"", "\"64 KiB\"", "\"65536\"", "\"65536B\""] {
            assert_eq!(size(same), Some(65_536), "{same}");
        }
        for bad in ["-1", "1.5", "\"KB\"", "\"-1KB\"", "\"64TB\"", "\"99999999999G\"", "true"] {
            assert_eq!(size(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_unknown_key_suggests_the_nearest() {
        assert_eq!(
            error("[smc]\nmode = \"smc\"\nrmb_size = 1\n"),
            "sidestep.toml:3: smc.rmb_size: unknown key; did you mean `rmbe_size`? \
             (known: mode, promotion, rmbe_size, spin, memory_limit, eid)"
        );
        assert_eq!(
            error("[log]\ncolour = true\n"),
            "sidestep.toml:2: log.colour: unknown key (known: level, file)"
        );
        assert_eq!(error("\n[lgo]\n"), "sidestep.toml:2: lgo: unknown table (known: smc, log)");
    }

    #[test]
    fn a_wrong_value_names_key_line_and_what_is_allowed() {
        assert_eq!(
            error("[smc]\n\nmode = \"shm\"\n"),
            "sidestep.toml:3: smc.mode: `shm` is not one of: smc, tcp"
        );
        assert_eq!(
            error("[smc]\nrmbe_size = \"48KB\"\n"),
            "sidestep.toml:2: smc.rmbe_size: `48KB` is not allowed; \
             use 32KB, 64KB, 128KB, 256KB, 512KB or 1MB"
        );
        assert_eq!(
            error("[smc]\nmemory_limit = 4096\n"),
            "sidestep.toml:2: smc.memory_limit: 4096 is not allowed; \
             use 0 (what the control group bears), or at least 2MB, such as 256MB"
        );
        assert_eq!(
            error("smc.eid = \"prod\"\n"),
            "sidestep.toml:1: smc.eid: `prod` is not allowed; \
             use 1 to 32 characters from A-Z, 0-9, `.` and `-`, the first a letter or digit"
        );
        assert_eq!(
            error("[log]\nfile = \"sidestep.log\"\n"),
            "sidestep.toml:2: log.file: `sidestep.log` is not allowed; use an absolute path"
        );
        assert_eq!(
            error("[smc]\nspin = true\n"),
            "sidestep.toml:2: smc.spin: `boolean` is not one of: auto, never, always"
        );
        assert_eq!(error("smc = 1\n"), "sidestep.toml:1: smc: expected a table: [smc]");
    }

    #[test]
    fn what_is_not_toml_is_reported_with_its_line() {
        let error = error("[smc]\nmode = smc\n");
        assert!(error.starts_with("sidestep.toml:2: "), "{error}");
    }

    #[test]
    fn a_named_file_must_be_readable() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("none.toml");
        let error = Configuration::load(Some(&missing), |_| None).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "cannot read the configuration file {}: No such file or directory (os error 2)",
                missing.display()
            )
        );
        let missing = missing.into_os_string();
        let variable = |name: &str| (name == "SIDESTEP_CONFIG").then(|| missing.clone());
        assert!(Configuration::load(None, variable).is_err());
        assert!(Configuration::load(Some(directory.path()), |_| None).is_err());
    }

    #[test]
    fn files_are_laid_over_each_other_key_by_key() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, content).unwrap();
            path
        };
        let named = write("named.toml", "smc.mode = \"tcp\"");
        let variable = write("variable.toml", "smc.mode = \"smc\"\nsmc.spin = \"never\"");
        let user =
            write("config/sidestep/sidestep.toml", "smc.spin = \"always\"\nlog.level = \"info\"");
        let environment = |name: &str| match name {
            "SIDESTEP_CONFIG" => Some(variable.clone().into_os_string()),
            "XDG_CONFIG_HOME" => Some(directory.path().join("config").into_os_string()),
            _ => None,
        };
        let loaded = Configuration::load(Some(&named), environment).unwrap();
        assert_eq!(loaded.settings.mode, Some(Mode::Tcp));
        assert_eq!(loaded.settings.spin, Some(Spin::Never));
        assert_eq!(loaded.settings.log_level, Some(LogLevel::Info));
        assert_eq!(loaded.files[..3], [named, variable, user]);
    }

    #[test]
    fn the_user_directory_follows_xdg() {
        let user = |xdg: &str, home: &str| {
            let environment = |name: &str| match name {
                "XDG_CONFIG_HOME" => Some(xdg.into()),
                "HOME" => Some(home.into()),
                _ => None,
            };
            let mut paths = candidates(None, environment).into_iter();
            paths.next().unwrap().path
        };
        let file = "sidestep/sidestep.toml";
        assert_eq!(user("/xdg", "/home/a"), Path::new("/xdg").join(file));
        assert_eq!(user("", "/home/a"), Path::new("/home/a/.config").join(file));
        assert_eq!(user("xdg", "/home/a"), Path::new("/home/a/.config").join(file));
        assert_eq!(user("", ""), Path::new("/etc").join(file));
    }

    #[test]
    fn edit_distance_counts_slips() {
        assert_eq!(edit_distance("rmb_size", "rmbe_size"), 1);
        assert_eq!(edit_distance("lvl", "level"), 2);
        assert_eq!(edit_distance("", "mode"), 4);
        assert_eq!(edit_distance("mode", "mode"), 0);
    }
}
