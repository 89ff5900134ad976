//! What a memory file begins with: which kind it is, and which layout it has.
//!
//! Another process may run another version of the library: a program that was not restarted
//! after an upgrade, or a container with its own. What is mapped from it is used only if both
//! mean the same by it:
//!
//! ```text
//!   0   magic    the kind: "SIDESLAB", "SIDESTAT"
//!   8   version  the layout, a number for each kind
//! ```
//!
//! The first twelve bytes stay as they are in all versions, so one version recognises the
//! others.
//!
//! The numbers stand once in the library, as data behind a mark ([`MARK`]). A test makes a
//! library of another version from this one by changing them there.

use crate::sys::{self, Errno, Result};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sidestep_derive::Shared;

/// It is what it should be, of another version.
pub const OTHER_VERSION: Errno = Errno(libc::EPROTONOSUPPORT);

/// What stands before the numbers in the library's file.
pub const MARK: [u8; 16] = *b"SIDESTEP LAYOUTS";

/// Kinds of memory that other processes map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`crate::slab`]: with peers.
    Slab,
    /// [`crate::state`]: with processes that go on with a connection, and with displays.
    State,
}

/// The number of each kind, and the mark that they are found by.
#[repr(C)]
struct Versions {
    mark: [u8; 16],
    /// Each is raised by one with every change of that layout.
    slab: u32,
    wake: u32,
    state: u32,
}

#[used]
static VERSIONS: Versions = Versions { mark: MARK, slab: 8, wake: 2, state: 17 };

impl Kind {
    const fn magic(self) -> u64 {
        u64::from_be_bytes(*match self {
            Self::Slab => b"SIDESLAB",
            Self::State => b"SIDESTAT",
        })
    }

    fn version(self) -> u32 {
        // SAFETY: statics. Volatile: a number is read where it stands, not where the compiler
        // knows it from.
        let number = |at: *const u32| unsafe { at.read_volatile() };
        match self {
            // A slab never comes without wake memory, and that has no stamp: all peers write to it.
            Self::Slab => number(&raw const VERSIONS.slab) << 16 | number(&raw const VERSIONS.wake),
            Self::State => number(&raw const VERSIONS.state),
        }
    }
}

/// The numbers of slabs, of wake memory and of states. Where two processes have the same ones, a connection in shared
/// memory can go from one to the other.
#[must_use]
pub fn layouts() -> [u32; 3] {
    let slab = Kind::Slab.version();
    [slab >> 16, slab & 0xFFFF, Kind::State.version()]
}

/// See the [module](self).
#[derive(Shared)]
#[repr(C)]
pub struct Stamp {
    magic: AtomicU64,
    version: AtomicU32,
}

impl Stamp {
    /// Maker: says what the memory is, when all is in it that others have to find.
    pub fn put(&self, kind: Kind) {
        self.version.store(kind.version(), Ordering::Relaxed);
        // Release: a reader that finds the magic finds the rest.
        self.magic.store(kind.magic(), Ordering::Release);
    }

    /// Others: what stands at the begin of a file.
    ///
    /// # Errors
    /// `EINVAL` when nothing does, else as `pread`.
    pub fn read(file: i32) -> Result<Self> {
        let mut bytes = [0u8; size_of::<u64>() + size_of::<u32>()];
        let len = sys::read_at(file, &mut bytes, 0)?;
        let (Some((magic, rest)), true) = (bytes.split_first_chunk(), len == bytes.len()) else {
            return Err(Errno(libc::EINVAL));
        };
        let version = rest.first_chunk().map_or(0, |version| u32::from_ne_bytes(*version));
        Ok(Self { magic: u64::from_ne_bytes(*magic).into(), version: version.into() })
    }

    /// Others: whether it is memory of this kind, laid out as ours.
    ///
    /// # Errors
    /// `EINVAL` when it is of another kind or of none, [`OTHER_VERSION`] when only its
    /// version is another.
    pub fn check(&self, kind: Kind) -> Result<()> {
        // Acquire: pairs with the Release in `put`.
        if self.magic.load(Ordering::Acquire) != kind.magic() {
            return Err(Errno(libc::EINVAL));
        }
        match self.version.load(Ordering::Relaxed) == kind.version() {
            true => Ok(()),
            false => Err(OTHER_VERSION),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_another_kind_nor_another_version_is_taken_for_ours() {
        let stamp = Stamp { magic: AtomicU64::new(0), version: AtomicU32::new(0) };
        assert_eq!(stamp.check(Kind::Slab), Err(Errno(libc::EINVAL)), "nothing yet");
        stamp.put(Kind::Slab);
        assert_eq!(stamp.check(Kind::Slab), Ok(()));
        assert_eq!(stamp.check(Kind::State), Err(Errno(libc::EINVAL)));
        for version in [Kind::Slab.version() - 1, Kind::Slab.version() + 1] {
            stamp.version.store(version, Ordering::Relaxed);
            assert_eq!(stamp.check(Kind::Slab), Err(OTHER_VERSION));
        }
    }
}
