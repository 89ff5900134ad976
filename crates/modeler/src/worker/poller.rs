//! What the generator needs of the world: connections, readiness and a clock.

use std::io;

use super::transport::Transport;

/// Opens connections for clients and tells which of them can go on.
///
/// A client is known by its token, a number below the number of clients.
pub(crate) trait Poller {
    /// A client's end of a connection; it closes when dropped.
    type Transport: Transport;

    /// The moment, in nanoseconds: the clock that [`Poller::wait`] keeps.
    fn now_ns(&self) -> u64;

    /// Opens a connection. It may still be on its way: sending then would block.
    ///
    /// # Errors
    /// It cannot be opened.
    fn open(&mut self) -> io::Result<Self::Transport>;

    /// Begins to watch a client's new connection.
    ///
    /// # Errors
    /// The system refuses.
    fn register(
        &mut self,
        token: usize,
        transport: &Self::Transport,
        interest: Interest,
    ) -> io::Result<()>;

    /// Watches the connection for something else than before.
    ///
    /// # Errors
    /// The system refuses.
    fn reregister(
        &mut self,
        token: usize,
        transport: &Self::Transport,
        interest: Interest,
    ) -> io::Result<()>;

    /// Waits until a client can go on or the moment `until_ns` has come, and adds the
    /// tokens of those who can to `ready`. Wrong tokens do no harm.
    ///
    /// `until_ns` is when the first idle client has to start; `None`: none is idle. A
    /// poller for a single client learns from it whether that client is idle.
    ///
    /// # Errors
    /// The system refuses.
    fn wait(&mut self, until_ns: Option<u64>, ready: &mut Vec<usize>) -> io::Result<()>;
}

/// What a conversation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Bytes, or the end, from the other side.
    Read,
    /// Room for bytes to the other side.
    Write,
}
