//! `sidestep config`: what the configuration files come to and what is wrong in them (`check`),
//! and changes for programs that run already (`apply`).

use std::io::ErrorKind;
use std::path::Path;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde::Serialize;

use super::tls;
use crate::applied;
use crate::args::{ConfigApplyArgs, ConfigArgs, ConfigCheckArgs, ConfigCommand};
use crate::config::{self, ConfigError, Configuration};
use crate::options::Settings;
use crate::output;

/// Does what was asked for; 1 if a file has a mistake or cannot be applied, otherwise 0.
pub(crate) fn execute(args: &ConfigArgs) -> i32 {
    match &args.command {
        ConfigCommand::Check(args) => check(args),
        ConfigCommand::Apply(args) => apply(args),
    }
}

/// All files or none: a mistake changes nothing.
fn apply(args: &ConfigApplyArgs) -> i32 {
    let candidates = config::candidates(args.config.as_deref(), |name| std::env::var_os(name));
    let (configuration, mistakes) = Configuration::of(candidates.clone());
    for mistake in &mistakes {
        output::complain("config apply", mistake);
    }
    if !mistakes.is_empty() {
        output::complain("config apply", "running programs keep what they have");
        return 1;
    }
    let (mut applied, mut failed) = (0, 0);
    for path in candidates.iter().map(|candidate| candidate.path.as_path()) {
        let found = configuration.files.iter().find(|(file, _)| file == path);
        // A program may have been started with a file that is gone.
        if found.is_none() && !path.parent().is_some_and(Path::is_dir) {
            continue;
        }
        let settings = found.map(|(_, settings)| settings.clone()).unwrap_or_default();
        match applied::apply(path, &settings) {
            Ok(()) => {
                let remark = if found.is_some() { "" } else { " as empty: there is no such file" };
                tell(&format!("{}: applied{remark}\n", path.display()));
                applied += 1;
            }
            // The machine's file is for others to apply.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                tell(&format!("{}: may not be applied by this user\n", path.display()));
            }
            Err(error) => {
                let path = applied::path_of(path);
                output::complain("config apply", format_args!("{}: {error}", path.display()));
                failed += 1;
            }
        }
    }
    i32::from(failed > 0 || applied == 0)
}

/// The exit status says it as well to who cannot read it.
fn tell(text: &str) {
    let _ = output::print(text);
}

fn check(args: &ConfigCheckArgs) -> i32 {
    let (configuration, mistakes) =
        Configuration::examine(args.config.as_deref(), |name| std::env::var_os(name));
    let report = Report::new(&configuration, &mistakes);
    let text = if args.json { report.to_json() } else { report.to_text() };
    // The exit status says it as well.
    let _ = output::print_as(args.json, &text);
    i32::from(!mistakes.is_empty())
}

/// What is in force, and why.
#[derive(Debug, Serialize)]
struct Report {
    /// The files that were found, the most important first.
    files: Vec<String>,
    keys: Vec<Value>,
    mistakes: Vec<String>,
    /// What should be looked after, though it can be used.
    concerns: Vec<String>,
}

/// A key and what it comes to.
#[derive(Debug, Serialize)]
struct Value {
    key: String,
    value: String,
    /// The file that says so; none: the default.
    file: Option<String>,
}

impl Report {
    fn new(configuration: &Configuration, mistakes: &[ConfigError]) -> Self {
        let shown = |path: &Path| path.display().to_string();
        let defaults = Settings::from(Settings::default().into_options());
        let keys = config::keys().map(|(key, get)| {
            let said = configuration
                .files
                .iter()
                .find_map(|(path, settings)| get(settings).map(|value| (value, Some(shown(path)))));
            let (value, file) = said.unwrap_or((get(&defaults).unwrap_or_default(), None));
            Value { key, value, file }
        });
        Self {
            keys: keys.collect(),
            files: configuration.files.iter().map(|(path, _)| shown(path)).collect(),
            mistakes: mistakes.iter().map(ConfigError::to_string).collect(),
            concerns: tls::concerns_in_words(configuration.settings.tls.as_deref().unwrap_or(&[])),
        }
    }

    fn to_json(&self) -> String {
        // Strings only: cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    fn to_text(&self) -> String {
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(["key", "value", "from"]);
        for Value { key, value, file } in &self.keys {
            let value = if value.is_empty() { "-" } else { value };
            table.add_row([key, value, file.as_deref().unwrap_or("default")]);
        }
        let mut text: String = table.lines().map(|line| line.trim().to_owned() + "\n").collect();
        if self.files.is_empty() {
            text += "\nNo configuration file was found.\n";
        }
        if !self.concerns.is_empty() {
            text += &format!("\n{}\n", self.concerns.join("\n"));
        }
        match self.mistakes.len() {
            0 => text + "\nNo mistakes.\n",
            n => {
                let mistakes = self.mistakes.join("\n");
                let count = if n == 1 { "1 mistake".to_owned() } else { format!("{n} mistakes") };
                text + &format!(
                    "\n{mistakes}\n\n{count}: `sidestep run` refuses to start programs.\n"
                )
            }
        }
    }
}
