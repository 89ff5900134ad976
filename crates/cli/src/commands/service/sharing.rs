//! `policy.share_with_users` of the machine: which users' programs may share memory.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use toml_edit::{Array, DocumentMut, Item, Table, Value};

use crate::applied;
use crate::config::{self, Configuration};

pub(super) const MACHINE_FILE: &str = "/etc/sidestep/sidestep.toml";

/// The machine's configuration file.
pub(super) struct Sharing {
    path: PathBuf,
}

impl Sharing {
    pub(super) fn of_machine() -> Self {
        Self { path: MACHINE_FILE.into() }
    }

    /// Whether the user is listed.
    pub(super) fn lists(&self, user: &str) -> bool {
        let document =
            fs::read_to_string(&self.path).ok().and_then(|text| text.parse::<DocumentMut>().ok());
        document.is_some_and(|document| listed(&document).any(|it| it == user))
    }

    /// Lists those of `users` that are not; programs that run learn of it. Returns whom it has added.
    ///
    /// # Errors
    ///
    /// The file has a mistake, cannot be written, or would have one then. It stays as it was.
    pub(super) fn add(&self, users: &BTreeSet<String>) -> Result<Vec<String>, String> {
        let shown = self.path.display();
        let text = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            read => read.map_err(|error| format!("cannot read {shown}: {error}"))?,
        };
        let (text, added) =
            with_users(&text, users).map_err(|error| format!("{shown}: {error}"))?;
        if added.is_empty() {
            return Ok(added);
        }
        self.replace(&text).map_err(|error| format!("cannot write {shown}: {error}"))?;
        self.apply()?;
        Ok(added)
    }

    fn replace(&self, text: &str) -> std::io::Result<()> {
        fs::create_dir_all(self.path.parent().unwrap_or(Path::new("/")))?;
        let new = self.path.with_extension("toml.new");
        fs::write(&new, text)?;
        fs::rename(&new, &self.path)
    }

    /// As `sidestep config apply` does.
    fn apply(&self) -> Result<(), String> {
        let candidates = config::candidates(Some(&self.path), |_| None);
        let (configuration, errors) = Configuration::of(candidates);
        if let Some(error) = errors.into_iter().next() {
            return Err(error.to_string());
        }
        let settings = configuration.files.into_iter().find(|(path, _)| *path == self.path);
        let settings = settings.map(|(_, settings)| settings).unwrap_or_default();
        applied::apply(&self.path, &settings)
            .map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

fn listed(document: &DocumentMut) -> impl Iterator<Item = &str> {
    let list = document.get("policy").and_then(|policy| policy.get("share_with_users"));
    list.and_then(Item::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// The text with the users that it lacks, and which those are. All else in it stays, comments too.
fn with_users(text: &str, users: &BTreeSet<String>) -> Result<(String, Vec<String>), String> {
    let mut document: DocumentMut =
        text.parse().map_err(|error: toml_edit::TomlError| error.to_string())?;
    let known: BTreeSet<String> = listed(&document).map(str::to_owned).collect();
    let added: Vec<String> = users.difference(&known).cloned().collect();
    let policy = document.entry("policy").or_insert_with(|| Item::Table(Table::new()));
    let policy = policy.as_table_like_mut().ok_or("policy is no table; correct it first")?;
    let list = policy.entry("share_with_users").or_insert_with(|| Item::Value(Array::new().into()));
    let list = list.as_array_mut().ok_or("policy.share_with_users is no list; correct it first")?;
    added.iter().for_each(|user| list.push(user));
    Ok((document.to_string(), added))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn users_are_added_and_the_rest_stays() {
        let text = "# ours\n[policy]\nexclude_ports = [22] # ssh\nshare_with_users = [\"redis\"]\n\n[log]\nlevel = \"warn\"\n";
        let (new, added) = with_users(text, &users(&["redis", "www-data"])).unwrap();
        assert_eq!(added, ["www-data"]);
        assert_eq!(new, text.replace("[\"redis\"]", "[\"redis\", \"www-data\"]"));
        assert_eq!(with_users(&new, &users(&["redis"])).unwrap(), (new.clone(), Vec::new()));
    }

    #[test]
    fn an_empty_file_gets_the_table() {
        let (new, added) = with_users("# nothing yet\n", &users(&["redis"])).unwrap();
        assert_eq!(added, ["redis"]);
        assert!(new.contains("[policy]\nshare_with_users = [\"redis\"]"), "{new}");
    }

    #[test]
    fn a_file_with_a_mistake_is_left_alone() {
        assert!(with_users("[policy\n", &users(&["redis"])).is_err());
        let error = with_users("[policy]\nshare_with_users = 3\n", &users(&["redis"])).unwrap_err();
        assert!(error.starts_with("policy.share_with_users is no list"), "{error}");
    }
}
