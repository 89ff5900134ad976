//! What stops the clients of a thread, or a server's.

use std::io;

use super::conversation;

/// Why a generator or a server's thread cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("client {client} cannot connect: {source}")]
    Open { client: u32, source: io::Error },
    #[error("{0}")]
    Talk(#[from] conversation::Error),
    #[error("waiting for sockets: {0}")]
    Wait(#[from] io::Error),
}
