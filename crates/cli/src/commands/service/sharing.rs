//! Which users' programs may share memory, in the machine's configuration: `[share]` where an agent runs, else
//! `policy.share_with_users`.
//!
//! The agent is certain who both ends are, so there each two users of enabled services are a pair of `share.pairs`, and of no
//! one else's. Without it a list has to do, which each end keeps for itself: whom it has, any program that reads it shares
//! with.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use toml_edit::{Array, DocumentMut, Item, Table, Value};

use super::drop_in;
use crate::applied;
use crate::config::{self, Configuration};

pub(super) const MACHINE_FILE: &str = "/etc/sidestep/sidestep.toml";

/// Where users are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// `share.pairs`, which the agent reads.
    Pairs,
    /// `policy.share_with_users`, which programs read.
    List,
}

impl Key {
    /// Its table and its name in that.
    fn path(self) -> [&'static str; 2] {
        match self {
            Self::Pairs => ["share", "pairs"],
            Self::List => ["policy", "share_with_users"],
        }
    }
}

/// The machine's configuration file.
pub(super) struct Sharing {
    path: PathBuf,
}

impl Sharing {
    pub(super) fn of_machine() -> Self {
        Self { path: MACHINE_FILE.into() }
    }

    /// The places that name the user.
    pub(super) fn that_name(&self, user: &str) -> Vec<&'static str> {
        let document =
            fs::read_to_string(&self.path).ok().and_then(|text| text.parse::<DocumentMut>().ok());
        let Some(document) = document else { return Vec::new() };
        let mut places = Vec::new();
        if pairs_of(&document).any(|pair| pair.contains(&user)) {
            places.push("share.pairs");
        }
        if listed(&document).any(|it| it == user) {
            places.push("policy.share_with_users");
        }
        places
    }

    /// Lets programs of any two of these users share memory; programs that run learn of it. Returns what it has added.
    ///
    /// # Errors
    ///
    /// The file has a mistake, cannot be written, or would have one then. It stays as it was.
    pub(super) fn add(&self, key: Key, users: &BTreeSet<String>) -> Result<Vec<String>, String> {
        let shown = self.path.display();
        let text = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            read => read.map_err(|error| format!("cannot read {shown}: {error}"))?,
        };
        let (text, added) =
            with_users(&text, key, users).map_err(|error| format!("{shown}: {error}"))?;
        if added.is_empty() {
            return Ok(added);
        }
        drop_in::write_whole(&self.path, &text)
            .map_err(|error| drop_in::explained("write", &self.path, &error))?;
        self.apply()?;
        Ok(added)
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
    entries(document, Key::List).filter_map(Value::as_str)
}

/// Those that are two names; numbers and mistakes are left as they are.
fn pairs_of(document: &DocumentMut) -> impl Iterator<Item = [&str; 2]> {
    entries(document, Key::Pairs).filter_map(|pair| {
        let names: Vec<_> = pair.as_array()?.iter().filter_map(Value::as_str).collect();
        names.try_into().ok()
    })
}

fn entries(document: &DocumentMut, key: Key) -> impl Iterator<Item = &Value> {
    let [table, name] = key.path();
    let list = document.get(table).and_then(|table| table.get(name));
    list.and_then(Item::as_array).into_iter().flatten()
}

fn grants_all(document: &DocumentMut) -> bool {
    let all = document.get("share").and_then(|share| share.get("all"));
    all.and_then(Item::as_bool).unwrap_or(false)
}

/// The text with what it lacks, and what that is. All else in it stays, comments too.
fn with_users(
    text: &str,
    key: Key,
    users: &BTreeSet<String>,
) -> Result<(String, Vec<String>), String> {
    let mut document: DocumentMut =
        text.parse().map_err(|error: toml_edit::TomlError| error.to_string())?;
    let lacking: Vec<(Value, String)> = match key {
        Key::Pairs if grants_all(&document) => Vec::new(),
        Key::Pairs => lacking_pairs(&document, users),
        Key::List => lacking_users(&document, users),
    };
    let [table, name] = key.path();
    let table_of = document.entry(table).or_insert_with(|| Item::Table(Table::new()));
    let table_of =
        table_of.as_table_like_mut().ok_or(format!("{table} is no table; correct it first"))?;
    let list = table_of.entry(name).or_insert_with(|| Item::Value(Array::new().into()));
    let list = list.as_array_mut().ok_or(format!("{table}.{name} is no list; correct it first"))?;
    let mut added = Vec::new();
    for (value, shown) in lacking {
        list.push(value);
        added.push(shown);
    }
    match added.is_empty() {
        true => Ok((text.to_owned(), added)),
        false => Ok((document.to_string(), added)),
    }
}

fn lacking_users(document: &DocumentMut, users: &BTreeSet<String>) -> Vec<(Value, String)> {
    let known: BTreeSet<&str> = listed(document).collect();
    let lacking = users.iter().filter(|user| !known.contains(user.as_str()));
    lacking.map(|user| (Value::from(user.as_str()), user.clone())).collect()
}

/// Each two of the users that are no pair, in either order.
fn lacking_pairs(document: &DocumentMut, users: &BTreeSet<String>) -> Vec<(Value, String)> {
    let known: BTreeSet<[&str; 2]> =
        pairs_of(document).flat_map(|[one, other]| [[one, other], [other, one]]).collect();
    let all = users.iter().enumerate();
    let pairs = all.flat_map(|(at, one)| users.iter().skip(at + 1).map(move |other| [one, other]));
    let lacking = pairs.filter(|pair| !known.contains(&pair.map(String::as_str)));
    lacking
        .map(|[one, other]| {
            let value = [one.as_str(), other.as_str()].into_iter().collect::<Array>();
            (Value::from(value), format!("{one} with {other}"))
        })
        .collect()
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
        let (new, added) = with_users(text, Key::List, &users(&["redis", "www-data"])).unwrap();
        assert_eq!(added, ["www-data"]);
        assert_eq!(new, text.replace("[\"redis\"]", "[\"redis\", \"www-data\"]"));
        let again = with_users(&new, Key::List, &users(&["redis"])).unwrap();
        assert_eq!(again, (new.clone(), Vec::new()));
    }

    #[test]
    fn each_two_users_are_a_pair_once() {
        let text = "[share] # by us\npairs = [[\"www-data\", \"redis\"], [\"root\", 7]]\n";
        let all = users(&["postgres", "redis", "www-data"]);
        let (new, added) = with_users(text, Key::Pairs, &all).unwrap();
        assert_eq!(added, ["postgres with redis", "postgres with www-data"]);
        let pairs = "[[\"www-data\", \"redis\"], [\"root\", 7], [\"postgres\", \"redis\"], [\"postgres\", \"www-data\"]]";
        assert_eq!(new, format!("[share] # by us\npairs = {pairs}\n"));
        assert_eq!(with_users(&new, Key::Pairs, &all).unwrap().1, Vec::<String>::new());
        let text = "[share]\nall = true\n";
        assert_eq!(with_users(text, Key::Pairs, &all).unwrap(), (text.to_owned(), Vec::new()));
    }

    #[test]
    fn an_empty_file_gets_the_table() {
        let (new, added) = with_users("# nothing yet\n", Key::List, &users(&["redis"])).unwrap();
        assert_eq!(added, ["redis"]);
        assert!(new.contains("[policy]\nshare_with_users = [\"redis\"]"), "{new}");
        let (new, added) = with_users("", Key::Pairs, &users(&["a", "b"])).unwrap();
        assert_eq!(added, ["a with b"]);
        assert!(new.contains("[share]\npairs = [[\"a\", \"b\"]]"), "{new}");
    }

    #[test]
    fn a_file_with_a_mistake_is_left_alone() {
        let error = |text, key| with_users(text, key, &users(&["a", "b"])).unwrap_err();
        assert!(!error("[policy\n", Key::List).is_empty());
        let list = error("[policy]\nshare_with_users = 3\n", Key::List);
        assert!(list.starts_with("policy.share_with_users is no list"), "{list}");
        let pairs = error("[share]\npairs = 3\n", Key::Pairs);
        assert!(pairs.starts_with("share.pairs is no list"), "{pairs}");
        assert!(error("share = 3\n", Key::Pairs).starts_with("share is no table"));
    }
}
