//! Mappings of sealed memory files.
//!
//! A file that a peer maps is created once, with its final length, sparse, and
//! sealed against shrinking and growing before another process sees it: a peer can
//! never be hit by SIGBUS. Pages exist only where something was written.

use crate::stamp::{Kind, Stamp};
use crate::sys::{self, Errno, Result};
use crate::valid::{Shared, Zeroable};
use core::ffi::CStr;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// Seals that make a length final.
const LENGTH_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// The smallest page of any architecture: where a mapping begins.
const PAGE: usize = 4096;

/// A shared mapping that lives until [`Mapping::unmap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is an address range; who may touch which bytes of it is
// ruled by the types laid over it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// A memory file of ours: mapped writable, and a descriptor to show to others.
pub struct Created {
    /// Writable, ours.
    pub mapping: Mapping,
    /// The descriptor, at a hidden number.
    pub fd: i32,
}

/// Creates and maps a sparse memory file of `len` bytes.
///
/// # Errors
/// `ENOMEM`, `EMFILE`, `ENFILE` as the kernel says; `EFBIG` when `RLIMIT_FSIZE`
/// would turn the length into a signal.
pub fn create(name: &CStr, len: usize) -> Result<Created> {
    if sys::soft_limit(libc::RLIMIT_FSIZE) < len as u64 {
        return Err(Errno(libc::EFBIG));
    }
    let fd = sys::move_up(sys::memfd(name)?);
    let mapped = sys::set_len(fd, len)
        .and_then(|_| sys::fcntl(fd, libc::F_ADD_SEALS, LENGTH_SEALS as usize))
        .and_then(|_| sys::map(Some(fd), len, true));
    match mapped {
        Ok(base) => {
            let mapping = Mapping::new(base, len);
            // Rings do not belong into core dumps: gigabytes of holes.
            let _ = sys::advise(base, len, libc::MADV_DONTDUMP);
            Ok(Created { mapping, fd })
        }
        Err(errno) => {
            sys::close(fd);
            Err(errno)
        }
    }
}

/// Turns a descriptor of ours into one that cannot be written through: the file's
/// mode is taken away, so that no other user can reopen it for writing, and the
/// descriptor is opened again read-only. (A process of our own user can give the mode
/// back: what we read of our own slab is a claim, too.)
///
/// # Errors
/// `ENOENT` without `/proc`; the caller then stays on TCP.
pub fn read_only_twin(fd: i32) -> Result<i32> {
    let twin = sys::reopen_read_only(fd)?;
    let _ = sys::chmod(fd, 0);
    Ok(sys::move_up(twin))
}

/// Makes sure that a memory file of another process has `len` bytes, and always will.
///
/// # Errors
/// `EPERM` when seals are missing, `EINVAL` when the length is not `len` or the file
/// is made of huge pages, of which there may be none when one is touched.
pub fn check(fd: i32, len: usize) -> Result<()> {
    check_seals(fd)?;
    if sys::file_len(fd)? != len || !sys::is_on_tmpfs(fd)? {
        return Err(Errno(libc::EINVAL));
    }
    Ok(())
}

/// Maps a memory file that a peer has sent, after [checking](check) it.
///
/// # Errors
/// As [`check`], else as the kernel says.
pub fn adopt(fd: i32, len: usize, writable: bool) -> Result<Mapping> {
    check(fd, len)?;
    let base = sys::map(Some(fd), len, writable)?;
    let _ = sys::advise(base, len, libc::MADV_DONTDUMP);
    Ok(Mapping::new(base, len))
}

/// The same for memory that begins with a [`Stamp`]. It is asked first: that of another
/// version may have another length.
///
/// # Errors
/// As [`adopt`] and [`Stamp::check`].
pub fn adopt_kind(fd: i32, kind: Kind, len: usize, writable: bool) -> Result<Mapping> {
    check_seals(fd)?;
    Stamp::read(fd)?.check(kind)?;
    adopt(fd, len, writable)
}

/// Only memory files have seals, and reading one never waits.
fn check_seals(fd: i32) -> Result<()> {
    let seals = sys::fcntl(fd, libc::F_GET_SEALS, 0)? as i32;
    let needed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    if seals & needed != needed { Err(Errno(libc::EPERM)) } else { Ok(()) }
}

/// Private zeroed memory. All of it counts against `RLIMIT_DATA`; a table that may stay
/// empty is a [`crate::sparse::Sparse`].
///
/// # Errors
/// `ENOMEM` as the kernel says.
pub fn reserve(len: usize) -> Result<Mapping> {
    Ok(Mapping::new(sys::map(None, len, true)?, len))
}

/// An object of zeroes in memory of its own, which is never given back.
///
/// # Errors
/// `ENOMEM` as the kernel says.
pub fn zeroed<T: Zeroable + Sync>() -> Result<&'static T> {
    const { assert!(align_of::<T>() <= PAGE) };
    let at = reserve(size_of::<T>())?.at(0, size_of::<T>()).cast::<T>();
    // SAFETY: zeroed memory of this size, at a page and so aligned, that is never unmapped; zeroes
    // are a value, as `Zeroable` says.
    Ok(unsafe { &*at })
}

/// A value in memory of its own, which stays until it is [taken back](take_back), if ever.
///
/// # Errors
/// `ENOMEM` as the kernel says.
pub fn keep<T: Sync + 'static>(value: T) -> Result<&'static T> {
    const { assert!(align_of::<T>() <= PAGE) };
    let at = reserve(size_of::<T>())?.at(0, size_of::<T>()).cast::<T>();
    // SAFETY: memory of this size, at a page and so aligned, that no other thread knows and that is never
    // unmapped.
    unsafe {
        at.write(value);
        Ok(&*at)
    }
}

/// An array in memory of its own, for as long as it is needed: for what is too long for the stack.
pub struct Scratch<T> {
    at: NonNull<T>,
    len: usize,
}

impl<T> Scratch<T> {
    /// One of so many values, more than none.
    ///
    /// # Errors
    /// `ENOMEM` as the kernel says, `EINVAL` for none.
    pub fn filled(len: usize, mut make: impl FnMut() -> T) -> Result<Self> {
        const { assert!(align_of::<T>() <= PAGE) };
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Errno(libc::ENOMEM))?;
        let at = reserve(bytes)?.base.cast::<T>();
        // Grows with what is made, so that a panic of `make` drops no more than that.
        let mut scratch = Self { at, len: 0 };
        while scratch.len < len {
            // SAFETY: the mapping has room for `len` of them, and is this one's alone.
            unsafe { at.add(scratch.len).write(make()) };
            scratch.len += 1;
        }
        Ok(scratch)
    }

    /// The array for ever.
    #[must_use]
    pub fn leak(self) -> &'static [T]
    where
        T: 'static,
    {
        let kept = core::mem::ManuallyDrop::new(self);
        // SAFETY: as in `deref`, and `drop` never comes.
        unsafe { core::slice::from_raw_parts(kept.at.as_ptr(), kept.len) }
    }
}

impl<T> Deref for Scratch<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `filled` has made so many, which lie there until `drop`.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and the borrow of `self` excludes others.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl<T> Drop for Scratch<T> {
    fn drop(&mut self) {
        let values: *mut [T] = &raw mut **self;
        // SAFETY: the values that `filled` has made, once; then the mapping that it has made for them,
        // into which nothing is borrowed any more.
        unsafe {
            values.drop_in_place();
            sys::unmap(self.at.as_ptr().cast(), self.len * size_of::<T>());
        }
    }
}

/// Takes a value out of the memory that [`keep`] has put it in, and gives that back.
///
/// # Safety
/// `keep` has put it there, and no reference to it is used again.
pub unsafe fn take_back<T>(at: NonNull<T>) -> T {
    // SAFETY: the value is there, and the caller alone knows it, as it promises.
    let value = unsafe { at.read() };
    // SAFETY: the mapping that `keep` has made for it alone.
    unsafe { sys::unmap(at.as_ptr().cast(), size_of::<T>()) };
    value
}

/// Addresses that read as zeroes and are not to be written yet: they count against `RLIMIT_AS`
/// alone.
///
/// # Errors
/// `ENOMEM` as the kernel says, or when it is more than a quarter of `RLIMIT_AS`.
pub(crate) fn reserve_unwritten(len: usize) -> Result<Mapping> {
    // A program with so few addresses needs them itself: its threads could not be created while they are reserved, and
    // a link group would find no room in any case.
    if len as u64 > sys::soft_limit(libc::RLIMIT_AS) / 4 {
        return Err(Errno(libc::ENOMEM));
    }
    Ok(Mapping::new(sys::map(None, len, false)?, len))
}

/// Whether so many bytes of address space are to be had, at this moment.
#[must_use]
pub fn has_room(len: usize) -> bool {
    let found = sys::map(None, len, false);
    // SAFETY: nothing was put there.
    found.map(|at| unsafe { sys::unmap(at, len) }).is_ok()
}

impl Mapping {
    fn new(base: *mut u8, len: usize) -> Self {
        Self { base: NonNull::new(base).unwrap_or(NonNull::dangling()), len }
    }

    /// Bytes mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether an address lies in it.
    #[must_use]
    pub fn contains(&self, at: *const u8) -> bool {
        let offset = (at as usize).wrapping_sub(self.base.as_ptr() as usize);
        offset < self.len
    }

    /// Address of the byte at `offset`, with `room` bytes behind it.
    ///
    /// # Panics
    /// When the range leaves the mapping: offsets are computed by us or checked.
    #[must_use]
    pub fn at(&self, offset: usize, room: usize) -> *mut u8 {
        assert!(offset.checked_add(room).is_some_and(|end| end <= self.len));
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The `T` at `offset`. In a mapping that is not writable it can only be looked at: a store
    /// raises SIGSEGV.
    ///
    /// # Panics
    /// When it leaves the mapping, or is not aligned: offsets are computed by us or checked.
    #[must_use]
    pub fn get<T: Shared>(&self, offset: usize) -> &'static T {
        const { assert!(align_of::<T>() <= PAGE) };
        assert!(offset.is_multiple_of(align_of::<T>()));
        let at = self.at(offset, size_of::<T>()).cast::<T>();
        // SAFETY: in bounds and aligned, as just checked: a mapping begins with a page. `Shared` says
        // that any bytes are a `T`, and may change meanwhile. The lifetime holds until `unmap`, whose
        // caller promises that no reference is left.
        unsafe { &*at }
    }

    /// What it begins with.
    #[must_use]
    pub fn stamp(&self) -> &'static Stamp {
        self.get(0)
    }

    /// Gives the address range back.
    ///
    /// # Safety
    /// No reference from [`Self::get`] or pointer from [`Self::at`] is used again.
    pub unsafe fn unmap(self) {
        // SAFETY: the caller's promise.
        unsafe { sys::unmap(self.base.as_ptr(), self.len) }
    }
}
