//! The check of the IP filter: is one in force?

use super::check::Check;
use crate::commands::filter;

/// It keeps no connection on TCP that it permits, so nothing is wrong either way.
pub(super) fn check() -> Check {
    const NAME: &str = "IP filter";
    match filter::summary() {
        Ok(None) => Check::ok(NAME, "none of `sidestep filter` is in force"),
        Ok(Some(summary)) => Check::ok(NAME, summary),
        Err(reason) => Check::ok(NAME, format!("cannot be seen by this user: {reason}")),
    }
}
