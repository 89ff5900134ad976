//! The file by which a service is enabled: `/etc/systemd/system/UNIT.d/50-sidestep.conf`.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::library::{self, PRELOAD_VARIABLE};

/// Of what is disabled all the same.
pub(super) const NOT_ENABLED: &str = "it was not enabled";
const DIRECTORY: &str = "/etc/systemd/system";
const FILE: &str = "50-sidestep.conf";
const HEAD: &str = "# Written by `sidestep enable`; `sidestep disable` takes it away.\n[Service]\n";

/// The drop-in of a unit, whether it is there or not.
#[derive(Debug)]
pub(super) struct DropIn {
    /// With its suffix.
    pub(super) unit: String,
    path: PathBuf,
}

impl DropIn {
    pub(super) fn of(unit: &str) -> Self {
        Self {
            unit: unit.to_owned(),
            path: Path::new(DIRECTORY).join(format!("{unit}.d")).join(FILE),
        }
    }

    /// That for all services of a user's own manager.
    pub(super) fn of_own_services(home: &Path) -> Self {
        let directory = home.join(".config/systemd/user/service.d");
        Self { unit: "service".to_owned(), path: directory.join(FILE) }
    }

    /// Those that are there, by name.
    pub(super) fn all() -> Vec<Self> {
        let directories = fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
        let names = directories.filter_map(|entry| entry.file_name().into_string().ok());
        let units = names.filter_map(|name| name.strip_suffix(".d").map(str::to_owned));
        let mut found: Vec<Self> = units.map(|unit| Self::of(&unit)).filter(Self::exists).collect();
        found.sort_by(|a, b| a.unit.cmp(&b.unit));
        found
    }

    pub(super) fn exists(&self) -> bool {
        self.path.is_file()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is_library_gone(&self) -> bool {
        self.library().is_none_or(|path| !path.is_file())
    }

    /// The library that it names.
    pub(super) fn library(&self) -> Option<PathBuf> {
        let text = fs::read_to_string(&self.path).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Environment=\"LD_PRELOAD="))?;
        let first = line.trim_end_matches('"').split(':').next()?;
        Some(PathBuf::from(first.replace("%%", "%")))
    }

    /// Writes it: whole, or not at all.
    ///
    /// # Errors
    ///
    /// The reason, and what to do about it.
    pub(super) fn write(
        &self,
        library: &Path,
        other_preload: Option<&str>,
        variables: &[(String, String)],
    ) -> Result<(), String> {
        let preload = library::preload_value(library, other_preload.map(AsRef::as_ref));
        let preload = (PRELOAD_VARIABLE.to_owned(), preload.to_string_lossy().into_owned());
        let text = text_of(std::iter::once(&preload).chain(variables));
        write_whole(&self.path, &text).map_err(|error| explained("write", &self.path, &error))
    }

    /// Takes it away, and its directory if nothing else is in that.
    ///
    /// # Errors
    ///
    /// The reason, and what to do about it.
    pub(super) fn remove(&self) -> Result<(), String> {
        fs::remove_file(&self.path).map_err(|error| explained("remove", &self.path, &error))?;
        if let Some(directory) = self.path.parent() {
            // Other drop-ins stay.
            let _ = fs::remove_dir(directory);
        }
        Ok(())
    }
}

/// Writes a file, and its directory if that is not there: whole, or not at all.
///
/// # Errors
///
/// What the system says.
pub(super) fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        // A disk that is full has taken a part of it.
        let _ = fs::remove_file(&new);
        // Unless other files are in it.
        let _ = fs::remove_dir(directory);
    }
    written
}

/// Why a file cannot be written or removed, and what to do about it.
pub(super) fn explained(what: &str, path: &Path, error: &io::Error) -> String {
    let advice = match error.kind() {
        ErrorKind::PermissionDenied => "; run it as root",
        ErrorKind::ReadOnlyFilesystem => {
            "; /etc is read-only here: write it where the system is made"
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; make room, and do it again",
        _ => "",
    };
    format!("cannot {what} {}: {error}{advice}", path.display())
}

fn text_of<'a>(variables: impl Iterator<Item = &'a (String, String)>) -> String {
    let lines =
        variables.map(|(name, value)| format!("Environment=\"{name}={}\"\n", quoted(value)));
    HEAD.to_owned() + &lines.collect::<String>()
}

/// Between quotation marks, as systemd reads them: `%` begins a specifier, `\` an escape.
fn quoted(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_reach_the_program_as_they_are() {
        let variables =
            [("A".to_owned(), "1 2".to_owned()), ("B".to_owned(), r#"50% \ ""#.to_owned())];
        let wanted = format!("{HEAD}Environment=\"A=1 2\"\nEnvironment=\"B=50%% \\\\ \\\"\"\n");
        assert_eq!(text_of(variables.iter()), wanted);
    }
}
