//! `sidestep generate cdi`: what a container runtime puts into a container that is to run under Sidestep.
//!
//! CDI, the Container Device Interface, lets a container ask for a *device* by name, and a file of the host say
//! which mounts and variables that is: ours are [`ContainerEdits`].
//!
//! *Source*: `SPEC.md` of the Container Device Interface, version 0.3.0, which podman 4 and later runtimes read.

use serde_json::{Value, json};

use crate::commands::container_edits::{ContainerEdits, EditsError, MOUNT_OPTIONS, Reach};
use crate::library;

/// What devices of ours are called, before their own name.
pub(in crate::commands) const KIND: &str = "sidestep.dev/smc";

/// The specification, by the machine's configuration.
///
/// # Errors
///
/// The configuration has a mistake, or there is no library.
pub(super) fn specification() -> Result<Value, EditsError> {
    let edits = ContainerEdits::with_library(library::find()?)?;
    Ok(json!({
        "cdiVersion": "0.3.0",
        "kind": KIND,
        "devices": [device(&edits, Reach::All), device(&edits, Reach::Pod)],
    }))
}

fn device(edits: &ContainerEdits, reach: Reach) -> Value {
    let variables = edits.variables(None).map(|(name, value)| format!("{name}={value}"));
    let mounts = edits.mounts(reach).into_iter().map(|mount| {
        json!({
            "hostPath": mount.of_host,
            "containerPath": mount.of_container,
            "options": MOUNT_OPTIONS,
        })
    });
    let mounts: Vec<_> = mounts.collect();
    json!({ "name": reach.name(), "containerEdits": { "env": variables, "mounts": mounts } })
}
