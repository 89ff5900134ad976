//! H as the ring that the program fills, where the library lends it.
//!
//! The library, which this process has preloaded, shows where a program's bytes lie, and an adapter sends them from
//! there: no copy, and no call of libc's. They are passed, so that the program may write over them, when they have
//! arrived.
//!
//! ```text
//!   the program's ring    passed │ under way │ behind │ free
//!                                  begin       look
//! ```
//!
//! An adapter that cannot read the ring has them copied into the send buffer, and they are passed at once. Where there
//! is no library, or the bytes still come by TCP, H is read as any socket ([`intake`](crate::intake)).

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::{Arc, LazyLock};

use rustix::io::Errno;
use sidestep_device::lent::{ELSEWHERE, Lender, Lent};
use sidestep_engine::InPlace;
use sidestep_rdma::memory::{Shared, Stretch};

use crate::intake::Intake;

static LENDER: LazyLock<Option<&Lender>> = LazyLock::new(Lender::of_process);

/// Receives what may have sockets of programs beside it, which the library is to leave alone. One thread at a time does.
pub(crate) fn receive_strange<T>(receive: impl FnOnce() -> T) -> T {
    let tell = |is_left| {
        if let Some(lender) = *LENDER {
            (lender.leave_received)(u8::from(is_left));
        }
    };
    tell(true);
    let received = receive();
    tell(false);
    received
}

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
    memory: (*const u8, usize),
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
        let Lent { position, memory, is_urgent, .. } = *lent;
        Self { stretches, is_urgent, position, memory }
    }

    /// How many they are.
    pub(crate) const fn len(&self) -> usize {
        let [first, second] = self.stretches;
        first.len() + second.len()
    }
}

/// The ring that leads to H, and what is sent from it.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    memory: Option<Arc<Shared>>,
    /// Where the first byte under way is, and how many there are.
    begin: u64,
    under_way: usize,
}

impl Ring {
    /// Bytes that are sent from the ring and have not been passed.
    pub(crate) const fn under_way(&self) -> usize {
        self.under_way
    }

    /// Bytes behind those, as the host sends them.
    #[expect(unsafe_code, reason = "the library has the ring mapped, and the session keeps H open")]
    pub(crate) fn in_place(&mut self, bytes: &Bytes<'_>) -> InPlace<'_> {
        let (base, len) = bytes.memory;
        // SAFETY: the library has the ring mapped as long as H is open. The session keeps H until the host reads no more
        // there (`Gateway::finish`), and the host drops this before it says so. It is only read.
        let ring = self
            .memory
            .get_or_insert_with(|| Arc::new(unsafe { Shared::new(base.cast_mut(), len) }));
        InPlace { ring, position: bytes.position, len: bytes.len(), is_urgent: bytes.is_urgent }
    }

    /// Those bytes are under way.
    pub(crate) const fn note_sent(&mut self, bytes: &Bytes<'_>) {
        if self.under_way == 0 {
            self.begin = bytes.position;
        }
        self.under_way += bytes.len();
    }

    /// No more than `kept` of the bytes under way have still to arrive: the program may write over the others.
    pub(crate) fn pass_arrived(&mut self, h: &TcpStream, kept: usize) {
        let arrived = self.under_way.saturating_sub(kept);
        if arrived > 0 {
            pass_from(h, self.begin, arrived);
            self.begin = self.begin.wrapping_add(arrived as u64);
            self.under_way -= arrived;
        }
    }
}

impl From<Ahead<'_>> for Intake {
    fn from(ahead: Ahead<'_>) -> Self {
        match ahead {
            Ahead::Bytes(bytes) => Self::Bytes { count: bytes.len(), is_urgent: bytes.is_urgent },
            Ahead::End => Self::End,
            Ahead::Nothing => Self::Nothing,
        }
    }
}

/// What lies in the ring that leads to H, behind the next `skip` bytes. `None`: H is to be read as a socket.
///
/// # Errors
///
/// What `recv` would say of the connection.
pub(crate) fn look(h: &TcpStream, skip: usize) -> Result<Option<Ahead<'_>>, Errno> {
    let Some(lender) = *LENDER else { return Ok(None) };
    match lender.look(h.as_raw_fd(), skip) {
        Ok(lent) if lent.is_empty() => Ok(Some(Ahead::End)),
        Ok(lent) => Ok(Some(Ahead::Bytes(Bytes::of(h, &lent)))),
        Err(ELSEWHERE) => Ok(None),
        Err(errno) if errno.0 == libc::EAGAIN => Ok(Some(Ahead::Nothing)),
        Err(errno) => Err(Errno::from_raw_os_error(errno.0)),
    }
}

/// The program may write over the first `count` of those bytes.
pub(crate) fn pass(h: &TcpStream, bytes: &Bytes<'_>, count: usize) {
    pass_from(h, bytes.position, count);
}

fn pass_from(h: &TcpStream, position: u64, count: usize) {
    if let Some(lender) = *LENDER {
        (lender.pass)(h.as_raw_fd(), position, count);
    }
}

/// H is reset for the program, and its ring stays as it is until H is closed.
pub(crate) fn reset(h: &TcpStream) {
    if let Some(lender) = *LENDER {
        (lender.reset)(h.as_raw_fd());
    }
}
