//! `filter.rules`: lines of an IP filter that stand in the configuration itself.
//!
//! They are kept with as many empty lines before them as the file has, so that whatever is told of a rule, now or when it is
//! in force, has its line in the file.

use sidestep_filter::RuleList;

/// The text of a value, with the numbers that its lines have in the file: `before` the value, and from it on.
pub(super) fn at_their_lines(lines: &str, before: &str, from: &str) -> String {
    let above = before.matches('\n').count();
    // TOML leaves out a line feed right behind the opening quotes.
    let is_below = ["'''\n", "\"\"\"\n"].iter().any(|opening| from.starts_with(opening));
    format!("{}{lines}", "\n".repeat(above + usize::from(is_below)))
}

/// Looks at the lines; `fault` takes what is wrong in them, at its place in the file.
pub(super) fn check(lines: &str, file: &str, mut fault: impl FnMut(usize, String)) {
    for error in RuleList::parse(lines).err().unwrap_or_default() {
        let above = file.split_inclusive('\n').take(error.line - 1);
        let message = format!("filter.rules: column {}: {}", error.column, error.message);
        fault(above.map(str::len).sum(), message);
    }
}

/// In a line.
pub(super) fn shown(lines: &str) -> String {
    let rules = RuleList::parse(lines).unwrap_or_default().rules.len();
    format!("{rules} rules")
}
