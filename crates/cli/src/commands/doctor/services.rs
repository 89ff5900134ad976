//! The check of enabled services: does each drop-in name a library that is there?

use super::change::Change;
use super::check::Check;
use crate::commands::service;

/// Nothing to say where no service is enabled.
pub(super) fn check() -> Option<Check> {
    const NAME: &str = "services";
    let enabled = service::enabled_units();
    if enabled.is_empty() {
        return None;
    }
    let bereft: Vec<String> =
        enabled.iter().filter(|it| it.is_library_gone).map(|it| it.unit.clone()).collect();
    if bereft.is_empty() {
        return Some(Check::ok(NAME, format!("enabled: {}", enabled.len())));
    }
    let finding =
        format!("start on TCP, as the library of their drop-ins is gone: {}", bereft.join(", "));
    let advice = format!("sidestep enable {}", bereft.join(" "));
    let changes = bereft.into_iter().map(Change::EnableAgain);
    Some(Check::warn(NAME, finding, advice).with_changes(changes))
}
