//! Values of any table: what they are, and how a mistake in one is told.

use std::path::PathBuf;

use ipnet::IpNet;
use sidestep_proto::policy::{self, ENTRIES_MAX, PortRange};
use toml::de::DeValue;

use crate::accounts::User;
use crate::options::ProgramName;

pub(super) fn boolean(value: &DeValue<'_>) -> Result<bool, String> {
    let allowed = || format!("{} is not allowed; use true or false", shown(value));
    value.as_bool().ok_or_else(allowed)
}

/// An array, each of whose elements `entry` understands.
pub(super) fn list<T>(
    value: &DeValue<'_>,
    entry: fn(&DeValue<'_>) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let DeValue::Array(elements) = value else {
        return Err(format!("{} is not allowed; use a list: [...]", shown(value)));
    };
    if elements.len() > ENTRIES_MAX {
        return Err(format!("{} entries are too many; use at most {ENTRIES_MAX}", elements.len()));
    }
    elements.iter().map(|element| entry(element.get_ref())).collect()
}

pub(super) fn absolute_path(value: &DeValue<'_>) -> Result<PathBuf, String> {
    value
        .as_str()
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .ok_or_else(|| format!("{} is not allowed; use an absolute path", shown(value)))
}

pub(super) fn port_range(value: &DeValue<'_>) -> Result<PortRange, String> {
    let text = match value {
        DeValue::Integer(integer) => integer.to_string(),
        other => other.as_str().unwrap_or_default().to_owned(),
    };
    text.parse().map_err(|error| format!("{} is not allowed; {error}", shown(value)))
}

pub(super) fn subnet(value: &DeValue<'_>) -> Result<IpNet, String> {
    policy::parse_subnet(value.as_str().unwrap_or_default())
        .map_err(|error| format!("{} is not allowed; {error}", shown(value)))
}

pub(super) fn program_name(value: &DeValue<'_>) -> Result<ProgramName, String> {
    let name = value.as_str().and_then(ProgramName::new);
    name.ok_or_else(|| format!("{} is not allowed; use {}", shown(value), ProgramName::ALLOWED))
}

pub(super) fn user(value: &DeValue<'_>) -> Result<User, String> {
    let (text, number) = name_or_number(value);
    User::find(&text, number)
        .ok_or_else(|| format!("{} is not allowed; use {}", shown(value), User::ALLOWED))
}

/// A name of an account, or its number.
pub(super) fn name_or_number(value: &DeValue<'_>) -> (String, Option<u32>) {
    match value {
        DeValue::Integer(number) => (number.to_string(), number.to_string().parse().ok()),
        other => (other.as_str().unwrap_or_default().to_owned(), None),
    }
}

/// The value as a user would recognise it.
pub(super) fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("`{text}`"),
        DeValue::Integer(integer) => integer.to_string(),
        DeValue::Float(float) => float.to_string(),
        DeValue::Boolean(boolean) => boolean.to_string(),
        other => format!("{} value", other.type_str()),
    }
}

/// The sentence for a name that is not in `known`, with the nearest one that is.
pub(super) fn unknown<'a>(
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> String {
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

    #[test]
    fn edit_distance_counts_slips() {
        assert_eq!(edit_distance("rmb_size", "rmbe_size"), 1);
        assert_eq!(edit_distance("lvl", "level"), 2);
        assert_eq!(edit_distance("", "mode"), 4);
        assert_eq!(edit_distance("mode", "mode"), 0);
    }
}
