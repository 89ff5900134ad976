//! What a container is given so that its programs run under Sidestep: mounts and variables.
//!
//! Every program of the container is then begun as by `sidestep run`: the one library is for programs of glibc and of musl, so
//! nothing has to be known of the image. [`generate cdi`](super::generate) writes it down for runtimes that look devices up in
//! files, [`nri`](super::nri) answers it to a runtime that asks.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::run;
use crate::config::ConfigError;
use crate::library::{self, LibraryError, PRELOAD_VARIABLE};
use crate::options::{OPTIONS_VARIABLE, Options};

/// Where the library is in a container.
const LIBRARY: &str = "/usr/lib/sidestep/libsidestep.so";
/// Read-only: connecting to a socket writes nothing to its directory.
pub(super) const MOUNT_OPTIONS: [&str; 4] = ["bind", "ro", "nosuid", "nodev"];

/// Whom the programs of a container meet in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Those of all containers of the host, by the agent.
    All,
    /// Those of its own network, such as the other containers of a pod.
    Pod,
}

impl Reach {
    /// By the name that containers ask for; `None`: there is none of that name.
    pub(super) fn named(name: &str) -> Option<Self> {
        [Self::All, Self::Pod].into_iter().find(|it| it.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Pod => "pod",
        }
    }
}

/// A directory of the host, and where a container sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) of_host: PathBuf,
    pub(super) of_container: PathBuf,
}

/// Why it is not known what a container is given.
#[derive(Debug, Error)]
pub(super) enum EditsError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{0}; {advice}", advice = .0.advice())]
    Library(#[from] LibraryError),
}

/// See the [module](self).
pub(super) struct ContainerEdits {
    /// The library, on the host.
    library: PathBuf,
    options: Options,
}

impl ContainerEdits {
    /// With this library of the host, by the machine's configuration.
    ///
    /// # Errors
    ///
    /// The configuration has a mistake.
    pub(super) fn with_library(library: PathBuf) -> Result<Self, EditsError> {
        Ok(Self { library, options: run::options_for_container()? })
    }

    /// With the defaults, whatever this machine has.
    #[cfg(test)]
    pub(super) fn by_default(library: &str, agent_socket: &Path) -> Self {
        let agent_socket = Some(agent_socket.to_owned());
        let settings = crate::options::Settings { agent_socket, ..Default::default() };
        Self { library: library.into(), options: settings.into_options() }
    }

    /// The directory of the agent's socket, on the host and in a container.
    pub(super) fn agent(&self) -> &Path {
        directory(&self.options.agent_socket)
    }

    /// The directories that it sees.
    pub(super) fn mounts(&self, reach: Reach) -> Vec<Mount> {
        let (library, agent) = (directory(&self.library), self.agent());
        let mount = |of_host: &Path, of_container: &Path| Mount {
            of_host: of_host.to_owned(),
            of_container: of_container.to_owned(),
        };
        let agent = (reach == Reach::All).then(|| mount(agent, agent));
        [mount(library, directory(Path::new(LIBRARY)))].into_iter().chain(agent).collect()
    }

    /// Variables of its programs; `preload` is what it has in `LD_PRELOAD` by itself.
    pub(super) fn variables(&self, preload: Option<&str>) -> [(&'static str, String); 2] {
        let preload = library::preload_value(Path::new(LIBRARY), preload.map(OsStr::new));
        [
            (PRELOAD_VARIABLE, preload.to_string_lossy().into_owned()),
            (OPTIONS_VARIABLE, self.options.to_string()),
        ]
    }
}

fn directory(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edits() -> ContainerEdits {
        ContainerEdits::by_default(
            "/var/lib/sidestep/libsidestep.so",
            Path::new("/run/a/agent.sock"),
        )
    }

    #[test]
    fn the_library_of_the_host_is_where_containers_look_for_it() {
        let mount = |of_host: &str, of_container: &str| Mount {
            of_host: of_host.into(),
            of_container: of_container.into(),
        };
        let (library, agent) =
            (mount("/var/lib/sidestep", "/usr/lib/sidestep"), mount("/run/a", "/run/a"));
        assert_eq!(edits().mounts(Reach::Pod), std::slice::from_ref(&library));
        assert_eq!(edits().mounts(Reach::All), [library, agent]);
    }

    #[test]
    fn what_a_container_preloads_by_itself_stays() {
        let preload = |own| edits().variables(own)[0].clone();
        assert_eq!(preload(None), ("LD_PRELOAD", LIBRARY.to_owned()));
        let both = format!("{LIBRARY}:/lib/libjemalloc.so.2");
        assert_eq!(preload(Some("/lib/libjemalloc.so.2")), ("LD_PRELOAD", both));
    }

    #[test]
    fn containers_ask_by_name() {
        for reach in [Reach::All, Reach::Pod] {
            assert_eq!(Reach::named(reach.name()), Some(reach));
        }
        assert_eq!(Reach::named("true"), None);
    }
}
