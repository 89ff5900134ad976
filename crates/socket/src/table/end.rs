//! One end of a connection in shared memory.
//!
//! ```text
//!   End ─── sock   the object of the socket in this process
//!    │ └─── file   the kernel's socket, as a call has named it
//!    └────> Conn   slot, records, rings: what lies in shared memory
//! ```
//!
//! What asks the kernel, or this process, takes an [`End`], which lasts as long as a call of the program. What is
//! about shared memory alone takes a [`Conn`], to which each end leads.

use crate::table::conn::Conn;
use crate::table::file::{self, File};
use crate::table::sock::{Phase, Sock};
use core::ops::Deref;
use core::sync::atomic::Ordering;
use sidestep_device::sys;

impl Conn {
    /// Whether both are one connection.
    fn is(&self, other: &Self) -> bool {
        core::ptr::eq(self.mine, other.mine) && core::ptr::eq(self.theirs, other.theirs)
    }

    /// Whether the peer has left a hint that nothing was asked about yet: a process of it has closed its
    /// descriptor, or shut down both directions, or an operator wishes something.
    #[inline]
    pub(crate) fn is_hinted(&self) -> bool {
        let closes = self.theirs.sending.closes.load(Ordering::Acquire);
        closes != self.slot.closes_seen.load(Ordering::Relaxed)
    }

    /// Whether the peer has ever marked a byte of the ring as urgent.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        self.theirs.sending.urgent.load(Ordering::Acquire) != 0
    }

    /// Says from which CPU we move cursors, if that has changed.
    #[inline]
    pub(crate) fn note_cpu(&self) -> u32 {
        let (cpu, noted) = (sys::cpu(), &self.mine.sending.cpu);
        if noted.load(Ordering::Relaxed) != cpu {
            noted.store(cpu, Ordering::Relaxed);
        }
        cpu
    }

    /// The CPU from which the peer moved a cursor last.
    #[inline]
    pub(crate) fn peer_cpu(&self) -> u32 {
        self.theirs.sending.cpu.load(Ordering::Relaxed)
    }
}

impl Sock {
    /// The connection in shared memory, if it is there.
    #[inline]
    pub fn conn(&self) -> Option<&Conn> {
        // Acquire: pairs with the Release in `set_phase`.
        if self.phase.load(Ordering::Acquire) != Phase::Smc as u8 {
            return None;
        }
        // SAFETY: `move_to` has put it in before it stored `Smc`, which the load has acquired.
        Some(unsafe { self.conn.get_unchecked() })
    }

    /// From now on it is [`Phase::Smc`]. False: another connection was there before.
    pub(crate) fn move_to(&self, conn: Conn) -> bool {
        // An attempt that is made again comes with the same.
        let is_there = self.conn.set(conn) || self.conn.get().is_some_and(|known| known.is(&conn));
        if is_there {
            self.set_phase(Phase::Smc);
        }
        is_there
    }
}

/// See the [module](self).
#[derive(Clone, Copy)]
pub(crate) struct End<'a> {
    conn: &'a Conn,
    pub(crate) sock: &'a Sock,
    fd: i32,
    /// See [`File::certain`].
    is_certain: bool,
}

impl<'a> End<'a> {
    /// The end behind a descriptor that led to this socket. `None`: it is not in shared memory.
    #[inline]
    pub(crate) fn of(sock: &'a Sock, fd: i32) -> Option<Self> {
        Some(Self { conn: sock.conn()?, sock, fd, is_certain: false })
    }

    /// The same for the side that takes the number away, until it has.
    pub(crate) fn certain(sock: &'a Sock, fd: i32) -> Option<Self> {
        Some(Self { is_certain: true, ..Self::of(sock, fd)? })
    }

    /// The kernel's socket.
    pub(crate) fn file(&self) -> File<'a> {
        match self.is_certain {
            false => File::of(self.sock, self.fd),
            true => File::certain(self.sock, self.fd),
        }
    }

    /// Whether a call may sleep: see [`file::may_sleep`].
    pub(crate) fn may_sleep(&self) -> bool {
        file::may_sleep(self.sock, self.file())
    }
}

impl Deref for End<'_> {
    type Target = Conn;

    #[inline]
    fn deref(&self) -> &Conn {
        self.conn
    }
}
