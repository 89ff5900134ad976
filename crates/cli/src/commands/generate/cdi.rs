//! `sidestep generate cdi`: what a container runtime puts into a container that is to run under Sidestep.
//!
//! CDI, the Container Device Interface, lets a container ask for a *device* by name, and a file of the host say
//! which mounts and variables that is. Ours are the library, and the variables by which every program of the
//! container is begun as by `sidestep run`: the one library is for programs of glibc and of musl, so nothing has to
//! be known of the image.
//!
//! *Source*: `SPEC.md` of the Container Device Interface, version 0.3.0, which podman 4 and later runtimes read.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thiserror::Error;

use crate::commands::run;
use crate::config::ConfigError;
use crate::library::{self, LibraryError, PRELOAD_VARIABLE};
use crate::options::OPTIONS_VARIABLE;

/// Where the library is in a container.
const LIBRARY: &str = "/usr/lib/sidestep/libsidestep.so";

/// Why there is no specification.
#[derive(Debug, Error)]
pub(super) enum CdiError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{0}; {advice}", advice = .0.advice())]
    Library(#[from] LibraryError),
}

/// The specification, by the machine's configuration.
///
/// # Errors
///
/// The configuration has a mistake, or there is no library.
pub(super) fn specification() -> Result<Value, CdiError> {
    let library = library::find()?;
    let options = run::options_for_container()?;
    let variables =
        [(PRELOAD_VARIABLE, LIBRARY.to_owned()), (OPTIONS_VARIABLE, options.to_string())];
    let variables = variables.map(|(name, value)| format!("{name}={value}"));
    let library_mount = mount(&directory(&library), &directory(Path::new(LIBRARY)));
    let agent = directory(&options.agent_socket);
    let agent_mount = mount(&agent, &agent);
    let device = |name: &str, mounts: &[&Value]| json!({ "name": name, "containerEdits": { "env": variables, "mounts": mounts } });
    Ok(json!({
        "cdiVersion": "0.3.0",
        "kind": "sidestep.dev/smc",
        "devices": [
            device("all", &[&library_mount, &agent_mount]),
            device("pod", &[&library_mount]),
        ],
    }))
}

fn directory(file: &Path) -> PathBuf {
    file.parent().unwrap_or(Path::new("/")).to_owned()
}

/// Read-only: connecting to a socket writes nothing to its directory.
fn mount(of_host: &Path, of_container: &Path) -> Value {
    json!({
        "hostPath": of_host,
        "containerPath": of_container,
        "options": ["bind", "ro", "nosuid", "nodev"],
    })
}
