//! Memory of the program that a call names: buffers, arrays, control messages.
//!
//! libc's functions are given addresses. The table of libc's names makes one of the types here of
//! them, and that is the one place where the program is believed: its promise to the kernel, that
//! the memory is there and the call's as long as it lasts, is the promise of `new`. What works with
//! the types needs no more of it.
//!
//! ```text
//!   Buffers    what a call sends, or the room for what it receives: one stretch or a list of them
//!   Argument   numbers and structs, read and written one at a time
//! ```
//!
//! Other threads of the program may change such memory at any time, as they may under a system
//! call. So no decision is made twice on one value: it is read once.

use crate::sys;
use crate::valid::Bits;
use core::marker::PhantomData;
use core::mem::MaybeUninit;

/// Of [`Buffers`]: bytes that a call sends.
pub enum Sent {}
/// Of [`Buffers`]: room for bytes that a call receives.
pub enum Received {}

/// The buffers of a call, in order.
pub struct Buffers<'a, Way> {
    list: &'a [libc::iovec],
    len: usize,
    way: PhantomData<Way>,
}

/// Buffers of one list, as Linux has it.
const IOV_MAX: usize = 1024;

impl<'a, Way> Buffers<'a, Way> {
    /// `None` when the kernel would refuse the list: let it.
    ///
    /// # Safety
    /// `list` leads to `count` iovecs. Each is valid for reads ([`Sent`]) or writes ([`Received`]),
    /// and neither is used in another way by this thread, for `'a`.
    #[must_use]
    pub unsafe fn new(list: *const libc::iovec, count: usize) -> Option<Self> {
        if count > IOV_MAX || (list.is_null() && count > 0) {
            return None;
        }
        let list = if count == 0 {
            &[]
        } else {
            // SAFETY: the caller's promise, and it is not null.
            unsafe { core::slice::from_raw_parts(list, count) }
        };
        Self::of(list)
    }

    fn of(list: &'a [libc::iovec]) -> Option<Self> {
        let mut len = 0usize;
        for part in list {
            len = len.checked_add(part.iov_len)?;
        }
        (len <= isize::MAX as usize).then_some(Self { list, len, way: PhantomData })
    }

    /// No buffer.
    pub const NONE: Buffers<'static, Way> = Buffers { list: &[], len: 0, way: PhantomData };

    /// Bytes in all buffers together.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte in them.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Calls `f` with each stretch of the `n` bytes that follow the first `skip`.
    #[inline]
    fn each(&self, mut skip: usize, mut n: usize, mut f: impl FnMut(*mut u8, usize)) {
        for part in self.list {
            if n == 0 {
                return;
            }
            if skip >= part.iov_len {
                skip -= part.iov_len;
                continue;
            }
            let take = (part.iov_len - skip).min(n);
            f(part.iov_base.cast::<u8>().wrapping_add(skip), take);
            n -= take;
            skip = 0;
        }
    }
}

impl Buffers<'_, Sent> {
    /// The `n` bytes that follow the first `skip`, if there are some and they lie in the first buffer.
    #[inline]
    #[must_use]
    pub fn stretch(&self, skip: usize, n: usize) -> Option<&[u8]> {
        let first = self.list.first()?;
        if n == 0 || skip.checked_add(n)? > first.iov_len {
            return None;
        }
        let at = first.iov_base.cast::<u8>().wrapping_add(skip);
        // SAFETY: inside the first buffer, which `new` was promised to be readable.
        Some(unsafe { core::slice::from_raw_parts(at, n) })
    }

    /// Calls `f` with each stretch of the `n` bytes that follow the first `skip`, as far as there
    /// are so many.
    #[inline]
    pub fn each_sent(&self, skip: usize, n: usize, mut f: impl FnMut(&[u8])) {
        self.each(skip, n, |at, len| {
            // SAFETY: `each` stays inside the buffers, which `new` was promised to be readable.
            f(unsafe { core::slice::from_raw_parts(at, len) });
        });
    }
}

impl<'a> Buffers<'a, Received> {
    /// Calls `f` with each stretch of the `n` bytes of room that follow the first `skip`, as far as
    /// there is so much.
    #[inline]
    pub fn each_room(&self, skip: usize, n: usize, mut f: impl FnMut(&mut [MaybeUninit<u8>])) {
        self.each(skip, n, |at, len| {
            // SAFETY: `each` stays inside the buffers, which `new` was promised to be writable and no
            // other's; two that overlap are handed out one after the other.
            f(unsafe { core::slice::from_raw_parts_mut(at.cast(), len) });
        });
    }

    /// Puts `bytes` behind the first `skip`.
    pub fn fill(&self, skip: usize, mut bytes: &[u8]) {
        self.each_room(skip, bytes.len(), |room| {
            let (now, later) = bytes.split_at(room.len());
            room.iter_mut().zip(now).for_each(|(to, byte)| _ = to.write(*byte));
            bytes = later;
        });
    }

    /// The same buffers behind a room of the caller's, as far as `list` has place for them.
    /// `None`: together they are longer than a call may be.
    #[must_use]
    pub fn behind<'b>(
        &'b self,
        room: &'b mut [u8],
        list: &'b mut [libc::iovec],
    ) -> Option<Buffers<'b, Received>>
    where
        'a: 'b,
    {
        let first = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        let all = core::iter::once(&first).chain(self.list);
        let used = list.iter_mut().zip(all).map(|(to, from)| *to = *from).count();
        Buffers::of(&list[..used])
    }
}

/// What an address in a call leads to: so many `T`s, or nothing.
///
/// It is an address and no reference, so it may be asked while other threads write there.
pub struct Argument<'a, T> {
    at: *mut T,
    len: usize,
    of: PhantomData<&'a T>,
}

impl<T> Clone for Argument<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Argument<'_, T> {}

impl<T: Bits> Argument<'_, T> {
    /// An address that may be null; alignment does not matter.
    ///
    /// # Safety
    /// If it is not null and the memory can be read, it is `len` `T`s for `'a`; and if it is written
    /// to, the call says that the kernel would write there.
    #[must_use]
    pub unsafe fn new(at: *mut T, len: usize) -> Self {
        Self { at, len, of: PhantomData }
    }

    /// The address, for the kernel.
    #[must_use]
    pub fn address(self) -> *mut T {
        self.at
    }

    /// Whether the call names nothing here.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.at.is_null()
    }

    /// One of them. The kernel, or `claims` of the crate `socket`, has found that it can be read:
    /// otherwise the program's bad address is a fault.
    ///
    /// # Panics
    /// There is nothing, or there are not so many.
    #[must_use]
    pub fn get(self, place: usize) -> T {
        assert!(place < self.len && !self.at.is_null());
        // SAFETY: in bounds, as just checked, of what `new` was promised; any bytes are a value.
        unsafe { self.at.wrapping_add(place).read_unaligned() }
    }

    /// The first of them, if the kernel says that there is memory.
    #[must_use]
    pub fn value(self) -> Option<T> {
        (self.len > 0 && sys::is_readable(self.at.cast(), size_of::<T>())).then(|| self.get(0))
    }

    /// The bytes with which it begins, if the kernel says that there is memory.
    #[must_use]
    pub fn begin<const LEN: usize>(self) -> Option<[u8; LEN]> {
        const { assert!(LEN <= size_of::<T>()) };
        let bytes = Argument { at: self.at.cast::<[u8; LEN]>(), len: self.len, of: PhantomData };
        bytes.value()
    }

    /// Puts a value in the place of one of them.
    ///
    /// # Panics
    /// There is nothing, or there are not so many.
    pub fn set(self, place: usize, value: T) {
        assert!(place < self.len && !self.at.is_null());
        // SAFETY: in bounds, as just checked, of what `new` was promised to be writable.
        unsafe { self.at.wrapping_add(place).write_unaligned(value) }
    }
}

impl Argument<'_, u8> {
    /// Copies all of it to the begin of `into`, which is the answer. `None`: there is more than has
    /// room, or nothing, or it cannot be read.
    #[must_use]
    pub fn copy_to(self, into: &mut [u8]) -> Option<&[u8]> {
        let into = into.get_mut(..self.len)?;
        if !sys::is_readable(self.at, self.len) {
            return None;
        }
        // SAFETY: it can be read, as the kernel has just said; `into` is as long, and the library's.
        unsafe { core::ptr::copy_nonoverlapping(self.at, into.as_mut_ptr(), self.len) };
        Some(into)
    }
}

/// The descriptors beside a message (`SCM_RIGHTS`), each with its place in the control messages, where
/// it has four bytes. A message that does not fit into `control` ends the walk.
///
/// *Source*: cmsg(3); `struct cmsghdr` of `bits/socket.h`.
pub fn rights(control: &[u8]) -> impl Iterator<Item = (usize, i32)> {
    let mut next = 0;
    let messages = core::iter::from_fn(move || {
        let at = next;
        let header = Header::parse(control.get(at..)?)?;
        next = at + header.len.next_multiple_of(align_of::<libc::cmsghdr>());
        Some((at, header))
    });
    messages.filter(|(_, header)| header.is_rights).flat_map(|(at, header)| {
        let first = at + size_of::<libc::cmsghdr>();
        let (numbers, _) = control[first..at + header.len].as_chunks();
        let places = (first..).step_by(size_of::<i32>());
        places.zip(numbers.iter().map(|number| i32::from_ne_bytes(*number)))
    })
}

/// The header of a control message.
struct Header {
    /// Of the message, with the header; at most what there is.
    len: usize,
    is_rights: bool,
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| {
            let bytes = bytes.get(at..)?.first_chunk()?;
            Some(i32::from_ne_bytes(*bytes))
        };
        // musl's struct has four bytes for it, and four that a program need not set.
        let len = usize::from_ne_bytes(*bytes.first_chunk()?) as u32 as usize;
        let level = number(core::mem::offset_of!(libc::cmsghdr, cmsg_level))?;
        let kind = number(core::mem::offset_of!(libc::cmsghdr, cmsg_type))?;
        let fits = (size_of::<libc::cmsghdr>()..=bytes.len()).contains(&len);
        let is_rights = (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        fits.then_some(Self { len, is_rights })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn list(parts: &mut [&mut [u8]]) -> Vec<libc::iovec> {
        let part = |part: &mut &mut [u8]| libc::iovec {
            iov_base: part.as_mut_ptr().cast(),
            iov_len: part.len(),
        };
        parts.iter_mut().map(part).collect()
    }

    #[test]
    fn stretches_are_cut_where_buffers_end() {
        let (mut first, mut second, mut third) = ([1, 2, 3], [4], [5, 6]);
        let list = list(&mut [&mut first, &mut [], &mut second, &mut third]);
        // SAFETY: the list's buffers live until the end of the test.
        let buffers = unsafe { Buffers::<Sent>::new(list.as_ptr(), list.len()) }.unwrap();
        assert_eq!(buffers.len(), 6);
        let stretches = |skip, n| {
            let mut found = Vec::new();
            buffers.each_sent(skip, n, |bytes| found.push(bytes.to_vec()));
            found
        };
        assert_eq!(stretches(0, 6), [&[1, 2, 3][..], &[4], &[5, 6]]);
        assert_eq!(stretches(2, 3), [&[3][..], &[4], &[5]]);
        assert_eq!(stretches(3, 9), [&[4][..], &[5, 6]]);
        assert!(stretches(6, 1).is_empty() && stretches(1, 0).is_empty());
    }

    #[test]
    fn what_comes_fills_buffers_in_order() {
        let (mut one, mut two, mut room) = ([0; 2], [0; 3], [0; 2]);
        let list = list(&mut [&mut one, &mut two]);
        // SAFETY: as above.
        let buffers = unsafe { Buffers::<Received>::new(list.as_ptr(), list.len()) }.unwrap();
        buffers.fill(1, &[7, 8, 9]);
        let mut longer = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 2];
        let behind = buffers.behind(&mut room, &mut longer).unwrap();
        assert_eq!(behind.len(), 4, "the last buffer has no place in the list");
        behind.fill(1, &[1, 2]);
        assert_eq!((room, one, two), ([0, 1], [2, 7], [8, 9, 0]));
    }

    #[test]
    fn a_list_the_kernel_would_refuse_is_none() {
        let endless = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: isize::MAX as usize };
        let list = [endless; 2];
        // SAFETY: lists that are there; no byte of theirs is touched.
        unsafe {
            assert!(Buffers::<Sent>::new(list.as_ptr(), 2).is_none());
            assert!(Buffers::<Sent>::new(list.as_ptr(), 1).is_some());
            assert!(Buffers::<Sent>::new(list.as_ptr(), IOV_MAX + 1).is_none());
            assert!(Buffers::<Sent>::new(core::ptr::null(), 1).is_none());
            assert!(Buffers::<Sent>::new(core::ptr::null(), 0).is_some_and(|none| none.is_empty()));
        }
    }

    #[test]
    fn numbers_are_read_and_written_at_any_address() {
        let mut bytes = [0u8; 9];
        let at = bytes.as_mut_ptr().wrapping_add(1).cast::<u32>();
        // SAFETY: eight bytes at an odd address.
        let numbers = unsafe { Argument::new(at, 2) };
        numbers.set(1, 0x0403_0201_u32.to_le());
        assert_eq!((numbers.get(0), numbers.get(1).to_le()), (0, 0x0403_0201));
        assert_eq!(bytes, [0, 0, 0, 0, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn what_cannot_be_read_is_no_value() {
        let mut number = 0x0403_0201_u32.to_le();
        // SAFETY: a number, and none.
        let (number, none) = unsafe {
            (Argument::new(&raw mut number, 1), Argument::new(core::ptr::null_mut::<u32>(), 1))
        };
        assert_eq!(number.value().map(u32::to_le), Some(0x0403_0201));
        assert_eq!((number.begin(), number.begin()), (Some([1]), Some([1, 2, 3])));
        assert_eq!((none.value(), none.begin::<4>()), (None, None));
        // SAFETY: it cannot be read.
        let nowhere = unsafe { Argument::new(core::ptr::without_provenance_mut::<u8>(8), 4) };
        assert_eq!(nowhere.copy_to(&mut [0; 4]), None);
        let mut source = [1, 2, 3];
        // SAFETY: three bytes.
        let bytes = unsafe { Argument::new(source.as_mut_ptr(), 3) };
        assert_eq!(bytes.copy_to(&mut [0; 2]), None);
        assert_eq!(bytes.copy_to(&mut [0; 4]), Some(&[1, 2, 3][..]));
    }

    fn message(kind: i32, numbers: &[i32], len: usize) -> Vec<u8> {
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend(libc::SOL_SOCKET.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        numbers.iter().for_each(|number| bytes.extend(number.to_ne_bytes()));
        bytes.resize(bytes.len().next_multiple_of(align_of::<libc::cmsghdr>()), 0);
        bytes
    }

    fn found(control: &[u8]) -> Vec<i32> {
        let number = |place: usize| i32::from_ne_bytes(*control[place..].first_chunk().unwrap());
        let is_there = |(place, fd)| Some(fd).filter(|fd| *fd == number(place));
        rights(control).map(|right| is_there(right).unwrap()).collect()
    }

    #[test]
    fn descriptors_are_found_behind_other_messages() {
        const HEADER: usize = size_of::<libc::cmsghdr>();
        let credentials = message(libc::SCM_CREDENTIALS, &[1, 2, 3], HEADER + 12);
        let first = message(libc::SCM_RIGHTS, &[7, 8, 9], HEADER + 12);
        let second = message(libc::SCM_RIGHTS, &[10], HEADER + 4);
        assert_eq!(found(&[credentials, first.clone(), second].concat()), [7, 8, 9, 10]);
        assert!(found(&[]).is_empty() && found(&first[..HEADER - 1]).is_empty());
        assert_eq!(found(&message(libc::SCM_RIGHTS, &[7, 8], HEADER + 6)), [7], "half a number");
    }

    #[test]
    fn a_length_that_leads_outside_ends_the_walk() {
        const HEADER: usize = size_of::<libc::cmsghdr>();
        for len in [0, HEADER - 1, HEADER + 9, usize::MAX] {
            assert!(found(&message(libc::SCM_RIGHTS, &[7, 8], len)).is_empty(), "{len}");
        }
    }
}
