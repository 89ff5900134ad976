//! Ends of connections that the library lends to a program that knows it.
//!
//! A program calls libc, and the library copies between the program's buffers and a ring. A program that would only
//! pass the bytes on, as the gateway does, needs no buffer: the library shows it where they lie.
//!
//! ```text
//!   the program ── look ──> [ the peer's ring ]   the bytes stay there, and are read from there
//!               ── pass ──>                       so many are done with: the peer may write over them
//!               ── reset ─>                       the connection has ended, but the ring stays as it is
//! ```
//!
//! Until they are passed the bytes stay as they are, unless their writer breaks the rules: an adapter may send them from
//! there, and again, for as long as the end is open. So `look` can also leave out those that are under way.
//!
//! Strangers send such a program sockets of theirs (`leave_received`): what the library would ask about one may wait for the lock
//! of the socket, which its sender may keep.
//!
//! All are a [`Lender`] in the library, found by [its name](NAME). Its version is a part of the name, so a program
//! and a library of different builds either agree or do without.
//!
//! An end that is lent has one reader: between `look` and `pass` no other thread or process takes bytes of it.

use crate::sys::Errno;
use core::ffi::CStr;

/// Where the library has its [`Lender`].
pub const NAME: &CStr = c"sidestep_lender_3";

/// The bytes do not lie in a ring, or not all of them: `recv` has them. The kernel never says this of a TCP socket.
pub const ELSEWHERE: Errno = Errno(libc::EOPNOTSUPP);

/// Bytes that lie in a ring, in order. Read-only, and the peer may change them at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Lent {
    /// Where they are, and how many. The second stretch goes on where the first ends, and may be empty.
    pub stretches: [(*const u8, usize); 2],
    /// Where the first of them is in the stream, for `pass`.
    pub position: u64,
    /// The memory of the ring, mapped as long as the end is open: the byte at a position lies at that modulo the length.
    pub memory: (*const u8, usize),
    /// It is one urgent byte.
    pub is_urgent: bool,
}

impl Lent {
    /// No byte.
    pub const NOTHING: Self = Self {
        stretches: [(core::ptr::null(), 0); 2],
        position: 0,
        memory: (core::ptr::null(), 0),
        is_urgent: false,
    };

    /// How many they are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.stretches[0].1 + self.stretches[1].1
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What the library does for an end that it lends.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Lender {
    /// Says what lies behind the next `skip` bytes, which `look` has shown before: as `recv` that does not wait, so many
    /// bytes, 0 at the end of the stream, or a negated error number, [`ELSEWHERE`] among them. The end is told when
    /// nothing is left to skip.
    pub look: extern "C" fn(fd: i32, skip: usize, lent: &mut Lent) -> isize,
    /// The reader is done with so many bytes of those that `look` has shown at `position`.
    pub pass: extern "C" fn(fd: i32, position: u64, count: usize),
    /// Ends the connection by a reset, of which the peer learns at once; the ring is the end's until that is closed.
    pub reset: extern "C" fn(fd: i32),
    /// Whether sockets that come beside messages are the program's, whatever their sender has done with them, so that the
    /// library takes none for one of a connection that was passed on: 1 from now on, 0 no more. At first it is not so.
    pub leave_received: extern "C" fn(is_left: u8),
}

impl Lender {
    /// That of the library of this process. `None`: there is no library, or it is of a build that lends otherwise.
    #[must_use]
    pub fn of_process() -> Option<&'static Self> {
        // SAFETY: the name is NUL-terminated.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, NAME.as_ptr()) };
        // SAFETY: the library defines that name as a `Lender`, and is never unloaded.
        unsafe { address.cast::<Self>().as_ref() }
    }

    /// What lies behind the next `skip` bytes of a descriptor; no byte: the end of the stream.
    ///
    /// # Errors
    /// `EAGAIN`: nothing for now. [`ELSEWHERE`]. Else what `recv` says of the connection, once.
    pub fn look(&self, fd: i32, skip: usize) -> Result<Lent, Errno> {
        let mut lent = Lent::NOTHING;
        match (self.look)(fd, skip, &mut lent) {
            errno @ ..0 => Err(Errno(-errno as i32)),
            _ => Ok(lent),
        }
    }
}
