//! What is said of a command line that is wrong in a way that beginners' are: `run` is forgotten, or an option of the program stands
//! before its name.

use std::env;
use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use crate::program;

/// The same error, with what was probably meant in the place of names that merely look alike.
pub(super) fn explained(mut error: Error, words: &[OsString]) -> Error {
    let tip = match error.kind() {
        ErrorKind::InvalidSubcommand => forgotten_run(words),
        ErrorKind::UnknownArgument => early_option(&error, words),
        _ => None,
    };
    if let Some(tip) = tip {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// `sidestep redis-server --port 6379`.
fn forgotten_run(words: &[OsString]) -> Option<String> {
    let name = words.get(1)?;
    program::find(name, env::var_os("PATH").as_deref()).ok()?;
    Some(format!("to run the program of this name: sidestep run {}", name.display()))
}

/// `sidestep run --port 6379 redis-server`.
fn early_option(error: &Error, words: &[OsString]) -> Option<String> {
    if words.get(1).map(OsString::as_os_str) != Some(OsStr::new("run")) {
        return None;
    }
    let ContextValue::String(option) = error.get(ContextKind::InvalidArg)? else { return None };
    Some(format!("options of the program go behind its name: sidestep run PROGRAM {option}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    fn said(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        explained(Args::try_parse_from(&words).unwrap_err(), &words).to_string()
    }

    #[test]
    fn beginners_are_told_what_they_mean() {
        let forgotten = said("sidestep sh -c true");
        assert!(
            forgotten.contains("tip: to run the program of this name: sidestep run sh"),
            "{forgotten}"
        );
        assert!(!forgotten.contains("similar"), "{forgotten}");
        let early = said("sidestep run --port 80 redis-server");
        assert!(early.contains("sidestep run PROGRAM --port"), "{early}");
    }

    #[test]
    fn other_mistakes_are_told_as_ever() {
        assert!(said("sidestep docto").contains("exist: 'demote', 'doctor'"));
        assert!(!said("sidestep ss --port").contains("PROGRAM"));
    }
}
