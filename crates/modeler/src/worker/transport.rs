//! What carries the bytes of a connection: a socket, or the ring of the calibration.

use std::io;

/// An end of a stream of bytes.
pub(crate) trait Transport {
    /// Gives bytes; returns how many were taken.
    ///
    /// # Errors
    /// As `send`: `WouldBlock` when none can be taken now.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Takes bytes; returns how many. None: the other side has finished.
    ///
    /// # Errors
    /// As `recv`: `WouldBlock` when there are none now.
    fn recv(&mut self, room: &mut [u8]) -> io::Result<usize>;
}
