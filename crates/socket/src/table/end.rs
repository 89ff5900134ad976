//! This end of a connection in shared memory, as one call of the program uses it.
//!
//! ```text
//!   End ─── sock   the object of the socket in this process
//!    │ └─── file   the kernel's socket, as the call has named it
//!    └────> Conn   slot, records, rings: what lies in shared memory
//! ```
//!
//! What asks the kernel, or this process, takes an [`End`]. What is about shared memory alone takes a [`Conn`], to
//! which each end leads.

use crate::table::conn::Conn;
use crate::table::file::{self, File};
use crate::table::sock::Sock;
use core::ops::Deref;

/// See the [module](self).
#[derive(Clone, Copy)]
pub(crate) struct End<'a> {
    conn: &'a Conn,
    pub(crate) sock: &'a Sock,
    pub(crate) file: File<'a>,
}

impl<'a> End<'a> {
    /// The end behind a descriptor that led to this socket. `None`: it is not in shared memory.
    #[inline]
    pub(crate) fn of(sock: &'a Sock, fd: i32) -> Option<Self> {
        Self::with(sock, File::of(sock, fd))
    }

    /// The end of a socket whose file the caller has named.
    #[inline]
    pub(crate) fn with(sock: &'a Sock, file: File<'a>) -> Option<Self> {
        Some(Self { conn: sock.conn()?, sock, file })
    }

    /// Whether a call may sleep: see [`file::may_sleep`].
    pub(crate) fn may_sleep(&self) -> bool {
        file::may_sleep(self.sock, self.file)
    }
}

impl Deref for End<'_> {
    type Target = Conn;

    #[inline]
    fn deref(&self) -> &Conn {
        self.conn
    }
}
