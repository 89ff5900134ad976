//! Changes of the configuration, for programs that run already.
//!
//! The library in a program cannot read TOML. So beside each configuration file there may be
//! an *applied file*, which has the same settings in the library's words, and which the
//! library looks at while the program runs ([`sidestep_socket::process::reload`]). Nobody has to know
//! which programs those are. What each of them was started with, in the order of its
//! importance, it has been told by [`sources`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sidestep_socket::process::reload::{self, FRAME, SUFFIX};

use crate::config::{Candidate, Configuration};
use crate::options::{Settings, percent_encode};

/// The environment variable that carries the sources to the library.
pub(crate) const SOURCES_VARIABLE: &str = reload::VARIABLE;

/// The applied file of a configuration file.
pub(crate) fn path_of(file: &Path) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(SUFFIX);
    path.into()
}

/// What a program is started with, the least important first: the defaults, each file whether
/// it is there or not, and the command line.
pub(crate) fn sources(
    candidates: &[Candidate],
    configuration: &Configuration,
    command_line: &Settings,
) -> String {
    let mut text = Settings::default().into_options().to_string();
    for Candidate { path, .. } in candidates.iter().rev() {
        let said = configuration.files.iter().find(|(found, _)| found == path);
        let words = said.map(|(_, settings)| settings.to_words()).unwrap_or_default();
        // The program may change its directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let stamp = File::open(path_of(&path)).map_or(reload::ABSENT, |file| reload::stamp(&file));
        text += &format!(" file={} stamp={stamp} {words}", percent_encode(path.as_os_str()));
    }
    text + " file= " + &command_line.to_words()
}

/// Puts what a configuration file says now, or an empty file if it is gone, where running
/// programs look. They find the old one or the new one, never a part.
///
/// # Errors
///
/// What the system says about a file in that directory.
pub(crate) fn apply(file: &Path, settings: &Settings) -> io::Result<()> {
    let path = path_of(file);
    let mut new = path.clone().into_os_string();
    new.push(format!(".{}", std::process::id()));
    let written = write_new(Path::new(&new), &settings.to_words())
        .and_then(|written| {
            // Who may read the configuration, may read this.
            fs::metadata(file).map_or(Ok(()), |facts| written.set_permissions(facts.permissions()))
        })
        .and_then(|()| fs::rename(&new, &path));
    written.inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

fn write_new(path: &Path, words: &str) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    let frame = char::from(FRAME);
    write!(file, "{frame}{words}{frame}")?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::candidates;

    #[test]
    fn sources_begin_with_the_least_important() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.toml");
        fs::write(&file, "[smc]\nspin = \"never\"\n[policy]\nexclude_ports = []\n").unwrap();
        let home = |name: &str| (name == "HOME").then(|| directory.path().as_os_str().to_owned());
        let candidates = candidates(Some(&file), home);
        let (configuration, errors) = Configuration::of(candidates.clone());
        assert!(errors.is_empty());
        let command_line = Settings::default();
        let text = || sources(&candidates, &configuration, &command_line);
        let shown = directory.path().display();
        let before = text();
        assert!(before.starts_with("mode=smc "), "{before}");
        let machine = before.find(" file=/etc/sidestep/sidestep.toml stamp=").unwrap();
        let user = format!(" file={shown}/.config/sidestep/sidestep.toml stamp=0 ");
        let user = before.find(&user).unwrap();
        let named = format!(" file={shown}/a.toml stamp=0 spin=never noport= file= ");
        assert!(machine < user && before.ends_with(&named), "{before}");

        apply(&file, &configuration.files[0].1).unwrap();
        assert_eq!(fs::read_to_string(path_of(&file)).unwrap(), "\nspin=never noport=\n");
        assert_ne!(text(), before, "the stamp is another");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
