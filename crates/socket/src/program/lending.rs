//! Ends that are lent to a program that knows this library: see [`sidestep_device::lent`].

use crate::Errno;
use crate::connection::ring_lent;
use crate::table::descriptors;
use crate::table::end::End;
use sidestep_device::lent::{ELSEWHERE, Lent};

/// What lies ahead of the reader of a descriptor, none at the end of the stream.
///
/// # Errors
/// [`ELSEWHERE`], `EAGAIN`, or what has ended the connection.
pub fn look(fd: i32) -> Result<Lent, Errno> {
    let sock = descriptors::sock(fd).ok_or(ELSEWHERE.0)?;
    let end = End::of(&sock, fd).ok_or(ELSEWHERE.0)?;
    let ahead = ring_lent::ahead(&end).ok_or(ELSEWHERE.0)??;
    if ahead.len == 0 {
        return Ok(Lent::NOTHING);
    }
    let stretches = end.incoming.stretches(ahead.position, ahead.len);
    Ok(Lent { stretches, position: ahead.position, is_urgent: ahead.is_urgent })
}

/// The reader of a descriptor is done with the first `n` bytes of those that [`look`] has shown.
pub fn pass(fd: i32, position: u64, n: usize) {
    let Some(sock) = descriptors::sock(fd) else { return };
    if let Some(end) = End::of(&sock, fd) {
        ring_lent::pass(&end, position, n);
    }
}
