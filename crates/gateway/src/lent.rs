//! H as the ring that the program fills, where the library lends it.
//!
//! The library, which this process has preloaded, shows where a program's bytes lie, and they are copied from there
//! into the send buffer: no buffer between, and no call of libc's. Where there is no library, or the bytes still come by
//! TCP, H is read as any socket ([`intake`](crate::intake)).

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::LazyLock;

use rustix::io::Errno;
use sidestep_device::lent::{ELSEWHERE, Lender, Lent};
use sidestep_rdma::memory::Stretch;

use crate::intake::Intake;

static LENDER: LazyLock<Option<&Lender>> = LazyLock::new(Lender::of_process);

/// What lies in the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ahead<'a> {
    /// These, and they stay there.
    Bytes(Bytes<'a>),
    /// There will be no more.
    End,
    /// There are none for now.
    Nothing,
}

/// Bytes in a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a> {
    /// The second goes on where the first ends, and may be empty.
    pub(crate) stretches: [Stretch<'a>; 2],
    /// It is one urgent byte.
    pub(crate) is_urgent: bool,
    position: u64,
}

impl<'a> Bytes<'a> {
    /// What was shown of H's ring.
    #[expect(
        unsafe_code,
        reason = "the ring is mapped by the library, and borrowed for as long as H"
    )]
    fn of(_h: &'a TcpStream, lent: &Lent) -> Self {
        // SAFETY: the library has the ring mapped, readable, as long as H is open.
        let stretch = |(base, len)| unsafe { Stretch::new(base, len) };
        let stretches = lent.stretches.map(stretch);
        Self { stretches, is_urgent: lent.is_urgent, position: lent.position }
    }
}

impl From<Ahead<'_>> for Intake {
    fn from(ahead: Ahead<'_>) -> Self {
        match ahead {
            Ahead::Bytes(Bytes { stretches: [first, second], is_urgent, .. }) => {
                Self::Bytes { count: first.len() + second.len(), is_urgent }
            }
            Ahead::End => Self::End,
            Ahead::Nothing => Self::Nothing,
        }
    }
}

/// What lies in the ring that leads to H. `None`: H is to be read as a socket.
///
/// # Errors
///
/// What `recv` would say of the connection.
pub(crate) fn look(h: &TcpStream) -> Result<Option<Ahead<'_>>, Errno> {
    let Some(lender) = *LENDER else { return Ok(None) };
    match lender.look(h.as_raw_fd()) {
        Ok(lent) if lent.is_empty() => Ok(Some(Ahead::End)),
        Ok(lent) => Ok(Some(Ahead::Bytes(Bytes::of(h, &lent)))),
        Err(ELSEWHERE) => Ok(None),
        Err(errno) if errno.0 == libc::EAGAIN => Ok(Some(Ahead::Nothing)),
        Err(errno) => Err(Errno::from_raw_os_error(errno.0)),
    }
}

/// The program may write over the first `count` of those bytes.
pub(crate) fn pass(h: &TcpStream, bytes: &Bytes<'_>, count: usize) {
    if let Some(lender) = *LENDER {
        (lender.pass)(h.as_raw_fd(), bytes.position, count);
    }
}
