//! The check of the device for containers: is it as `sidestep generate cdi` would write it now?
//!
//! The file has a copy of the configuration, and names directories of the host. A library elsewhere that is there was chosen by
//! who wrote the file, and stays.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::change::Change;
use super::check::Check;
use crate::commands::generate::{self, CDI_FILE};

const NAME: &str = "containers";

/// Nothing to say where there is no such file, or one of somebody else.
pub(super) fn check() -> Option<Check> {
    let written: Value = serde_json::from_str(&fs::read_to_string(CDI_FILE).ok()?).ok()?;
    if written["kind"] != generate::CDI_KIND {
        return None;
    }
    // The library and the configuration have checks of their own.
    let wanted: Value = serde_json::from_str(&generate::cdi_text().ok()?).ok()?;
    Some(judge(&written, &wanted))
}

fn judge(written: &Value, wanted: &Value) -> Check {
    let (library, ours) = (library_of(written), library_of(wanted));
    let is_there = library.is_some_and(|directory| Path::new(directory).is_dir());
    let reason = match (is_there, library == ours) {
        _ if written == wanted => return Check::ok(NAME, format!("{CDI_FILE} is up to date")),
        (false, _) => "mounts a library that is gone: containers that ask for it do not start",
        (true, true) => "has options that are not the configuration's any more",
        (true, false) => {
            return Check::ok(NAME, format!("{CDI_FILE} mounts the library of another place"));
        }
    };
    Check::warn(NAME, format!("{CDI_FILE} {reason}"), format!("sidestep generate cdi > {CDI_FILE}"))
        .with_changes([Change::WriteDevice])
}

/// The directory of the host that containers have as that of the library.
fn library_of(specification: &Value) -> Option<&str> {
    specification["devices"][0]["containerEdits"]["mounts"][0]["hostPath"].as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::check::Status;
    use super::*;

    fn specification(library: &str, options: &str) -> Value {
        let mounts = json!([{ "hostPath": library, "containerPath": "/usr/lib/sidestep" }]);
        json!({ "devices": [{ "containerEdits": { "env": [options], "mounts": mounts } }] })
    }

    #[test]
    fn what_is_out_of_date_is_written_again_and_a_choice_is_not() {
        let ours = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let wanted = specification(&ours.path().display().to_string(), "mode=smc");
        let judged =
            |library: &str, options: &str| judge(&specification(library, options), &wanted);
        let [ours, other] = [ours, other].map(|it| it.keep().display().to_string());
        assert_eq!(judged(&ours, "mode=smc").status, Status::Ok);
        assert_eq!(judged(&other, "mode=tcp").status, Status::Ok);
        for (library, options) in [(ours.as_str(), "mode=tcp"), ("/gone", "mode=smc")] {
            let check = judged(library, options);
            assert_eq!(check.changes, [Change::WriteDevice], "{}", check.finding);
        }
        [ours, other].iter().for_each(|it| fs::remove_dir(it).unwrap());
    }
}
