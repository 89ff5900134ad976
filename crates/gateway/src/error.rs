//! Why there is no gateway: what its operator can change.

use std::io;

use sidestep_proto::link_group::ADAPTERS_MAX;
use thiserror::Error;

/// Why there is no gateway.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A link group has room for no more.
    #[error("{0} adapters are too many; use at most {ADAPTERS_MAX}")]
    TooMany(usize),
    /// The name is taken.
    #[error(
        "there is a gateway in this network namespace already; to have it end with its last connection, and \
         take the new ones by this one: sidestep gateway --replace"
    )]
    InUse,
    /// It is another user's, or a build that cannot be replaced, or stands still.
    #[error("the gateway that is there does not give its place away: {0}; end it first")]
    Stays(io::Error),
    /// The kernel refuses something that it should not.
    #[error("{what}: {error}")]
    Kernel {
        /// What was asked for.
        what: &'static str,
        /// What it says.
        error: io::Error,
    },
}

impl OpenError {
    /// The kernel refuses `what`.
    pub(crate) fn kernel<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Kernel { what, error: error.into() }
    }
}
