//! `sidestep doctor --fix`: makes the changes that the checks have, and says what is left.
//!
//! ```text
//!   checks ──> changes ──> each is said, then made ──> checks again ──> what is left
//! ```
//!
//! A second run finds nothing to change: a check has a change only as long as it finds what that is about.

use super::change::Change;
use super::check::{Check, Status};
use crate::output;

/// Makes the changes of these checks, or only says them; `look` makes the checks anew. Returns 0 if nothing is left that could
/// be changed or keeps connections on TCP, otherwise 1.
pub(super) fn execute(checks: Vec<Check>, is_dry: bool, look: impl FnOnce() -> Vec<Check>) -> i32 {
    let changes: Vec<Change> = checks.iter().flat_map(|check| check.changes.clone()).collect();
    if changes.is_empty() {
        say("Nothing to change.\n");
        return conclude(&checks);
    }
    for change in &changes {
        if is_dry {
            say(&format!("would: {change}\n"));
            continue;
        }
        say(&format!("{change}\n"));
        if let Err(reason) = change.make() {
            output::complain("doctor", reason);
        }
    }
    conclude(&if is_dry { checks } else { look() })
}

/// Says what is left, and whether that is nothing.
fn conclude(checks: &[Check]) -> i32 {
    for check in checks.iter().filter(|check| check.status != Status::Ok) {
        let advice = check.advice.as_deref().unwrap_or_default();
        say(&format!("left: {}: {} -> {advice}\n", check.name, check.finding));
    }
    let is_left = |check: &Check| check.status == Status::Fail || !check.changes.is_empty();
    i32::from(checks.iter().any(is_left))
}

fn say(text: &str) {
    // A reader that has gone misses a line, and what was done stays done.
    let _ = output::print(text);
}
