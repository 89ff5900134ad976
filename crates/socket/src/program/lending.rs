//! Ends that are lent to a program that knows this library: see [`sidestep_device::lent`].

use crate::Errno;
use crate::connection::ring_lent;
use crate::table::descriptors;
use crate::table::end::End;
use sidestep_device::lent::{ELSEWHERE, Lent};

/// What lies behind the next `skip` bytes of a descriptor, none at the end of the stream.
///
/// # Errors
/// [`ELSEWHERE`], `EAGAIN`, or what has ended the connection.
pub fn look(fd: i32, skip: usize) -> Result<Lent, Errno> {
    let sock = descriptors::sock(fd).ok_or(ELSEWHERE.0)?;
    let end = End::of(&sock, fd).ok_or(ELSEWHERE.0)?;
    let ahead = ring_lent::ahead(&end, skip).ok_or(ELSEWHERE.0)??;
    if ahead.len == 0 {
        return Ok(Lent::NOTHING);
    }
    let ring = end.incoming;
    let stretches = ring.stretches(ahead.position, ahead.len);
    let (position, is_urgent) = (ahead.position, ahead.is_urgent);
    Ok(Lent { stretches, position, memory: ring.memory(), is_urgent })
}

/// The reader of a descriptor is done with the first `n` bytes of those that [`look`] has shown.
pub fn pass(fd: i32, position: u64, n: usize) {
    let Some(sock) = descriptors::sock(fd) else { return };
    if let Some(end) = End::of(&sock, fd) {
        ring_lent::pass(&end, position, n);
    }
}

/// Ends a connection by a reset. Its slot, and with it the ring, stays taken until the descriptor is closed.
pub fn reset(fd: i32) {
    let Some(sock) = descriptors::sock(fd) else { return };
    if let Some(end) = End::of(&sock, fd) {
        ring_lent::reset(&end);
    }
}
