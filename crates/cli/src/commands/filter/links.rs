//! Rules that follow from the links of this network namespace's gateway.
//!
//! The gateway has told the filter of them, so it is asked which: what the kernel keeps with the gateway's sockets no other
//! process can read.

use std::io::ErrorKind;

use sidestep_filter::{Rule, rules_of_links};
use sidestep_gateway::status::Status;

use crate::output;

/// None where there is no gateway, or no link.
pub(super) fn rules() -> Vec<Rule> {
    match Status::ask_all() {
        Ok(status) => rules_of_links(&status.partners),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Vec::new(),
        Err(error) => {
            let lacking =
                "rules that follow from links are not shown, as the gateway does not tell";
            output::complain("filter", format_args!("{lacking}: {error}"));
            Vec::new()
        }
    }
}
