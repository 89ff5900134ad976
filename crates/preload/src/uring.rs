//! liburing's names: which descriptors a program gives to io_uring.
//!
//! liburing enters the kernel by instructions of its own, which are not seen. But what it
//! is going to submit lies in the program's memory, in the entries that the program has
//! filled since the last time, and it submits them by functions that we can precede. So
//! every entry is looked at before the kernel sees it, and what that means for its
//! connection, [`sidestep_socket::program::uring`] decides. A ring by itself concerns no connection:
//! most programs use one for files.
//!
//! Programs that set a ring up by `syscall(2)` fill entries that we do not know of. They
//! are told that there is no io_uring, as many containers do, so most of them have a way
//! without; unless no connection may leave TCP anyway.

use crate::real::Name;
use core::ffi::{CStr, c_int, c_uint, c_void};
use sidestep_socket::Errno;
use sidestep_socket::process::options;
use sidestep_socket::process::unseen;
use sidestep_socket::program::uring;

/// Whether a ring whose entries we would not see is refused. If not, connections stay on
/// TCP also when the operator later lets others move.
pub(crate) fn is_refused() -> bool {
    let is_refused = options::current().moves_connections();
    if !is_refused {
        unseen::note_unseen();
    }
    is_refused
}

/// `struct io_uring`, as far as it concerns us: unchanged since liburing 2.0.
#[repr(C)]
struct Ring {
    head: *mut c_uint,
    tail: *mut c_uint,
    mask: *mut c_uint,
    other_words: [*mut c_uint; 4],
    entries: *mut Entry,
    /// Entries from here to `filled` are not submitted yet.
    submitted: c_uint,
    filled: c_uint,
    rest_and_completions: [u64; 15],
    flags: c_uint,
}

const _: () = assert!(core::mem::offset_of!(Ring, entries) == 56);
const _: () = assert!(core::mem::offset_of!(Ring, flags) == 192);

/// `struct io_uring_sqe` of `linux/io_uring.h`.
#[repr(C)]
struct Entry {
    operation: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    address: u64,
    len: u32,
    operation_flags: u32,
    user_data: u64,
    buffer: u32,
    second_fd: i32,
    third_address: [u64; 2],
}

const _: () = assert!(size_of::<Entry>() == 64);

/// `IORING_SETUP_SQE128`: entries are twice as long.
const LONG_ENTRIES: c_uint = 1 << 10;
/// `IOSQE_FIXED_FILE`: `fd` is a place in the table of `io_uring_register_files`.
const FIXED_FILE: u8 = 1;
/// `IORING_OP_CLOSE`, `IORING_OP_EPOLL_CTL`, `IORING_OP_SPLICE`.
const CLOSE: u8 = 19;
const EPOLL_CTL: u8 = 29;
const SPLICE: u8 = 30;
/// The other operations on a socket. With all that are not here, `fd` may be anything,
/// such as a number of buffers.
const ON_SOCKETS: [u8; 21] = [
    1,  // READV
    2,  // WRITEV
    4,  // READ_FIXED
    5,  // WRITE_FIXED
    6,  // POLL_ADD
    9,  // SENDMSG
    10, // RECVMSG
    13, // ACCEPT
    16, // CONNECT
    22, // READ
    23, // WRITE
    26, // SEND
    27, // RECV
    34, // SHUTDOWN
    46, // URING_CMD
    47, // SEND_ZC
    48, // SENDMSG_ZC
    49, // READ_MULTISHOT
    58, // RECV_ZC
    60, // READV_FIXED
    61, // WRITEV_FIXED
];

/// Looks at what is about to be submitted, and lets it be submitted.
///
/// # Safety
/// `ring` is a ring of liburing.
unsafe fn look(ring: *const Ring) -> Result<(), Errno> {
    // SAFETY: the caller's promise; liburing keeps the entries of the ring mapped.
    unsafe {
        let ring = &*ring;
        let stride = if ring.flags & LONG_ENTRIES != 0 { 2 } else { 1 };
        let mut at = ring.submitted;
        while at != ring.filled {
            look_at(&mut *ring.entries.add((at & *ring.mask) as usize * stride));
            at = at.wrapping_add(1);
        }
    }
    Ok(())
}

/// Descriptors are given to a ring for good.
///
/// # Safety
/// `files` is a list of so many descriptors.
unsafe fn give_all(files: *const c_int, count: c_uint) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let mut files = (0..count as usize).map(|i| unsafe { *files.add(i) });
    if files.all(uring::give) { Ok(()) } else { Err(libc::EBADF) }
}

/// Looks at an entry; one that must not be submitted gets a descriptor that never is one,
/// and the program an EBADF.
fn look_at(entry: &mut Entry) {
    const NONE: i32 = -1;
    let is_fixed = entry.flags & FIXED_FILE != 0;
    match entry.operation {
        CLOSE if !is_fixed => uring::give_to_close(entry.fd),
        EPOLL_CTL if !uring::give(entry.offset as i32) => entry.fd = NONE,
        SPLICE if !uring::give(entry.second_fd) => entry.second_fd = NONE,
        SPLICE if !is_fixed && !uring::give(entry.fd) => entry.fd = NONE,
        operation if ON_SOCKETS.contains(&operation) && !is_fixed && !uring::give(entry.fd) => {
            entry.fd = NONE;
        }
        _ => {}
    }
}

/// Defines functions of liburing: what precedes each, and that function itself unless it
/// must not be called. They report errors by their result.
macro_rules! liburing {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $first:block)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
                static NEXT: Name = {
                    // SAFETY: concat! adds the only NUL.
                    Name::new(unsafe {
                        CStr::from_bytes_with_nul_unchecked(
                            concat!(stringify!($name), "\0").as_bytes(),
                        )
                    })
                };
                #[allow(unused_unsafe, reason = "one of them looks at no memory")]
                // SAFETY: the program's ring, or its list.
                let first = unsafe { $first };
                if let Err(errno) = first {
                    return -errno;
                }
                let address = NEXT.address();
                if address.is_null() {
                    return -libc::ENOSYS;
                }
                type Function = unsafe extern "C-unwind" fn($($type),*) -> c_int;
                // SAFETY: liburing defines the name with this signature.
                let function: Function = unsafe { core::mem::transmute(address) };
                // SAFETY: the program's own call, passed on.
                unsafe { function($($arg),*) }
            }
        )*
    };
}

type At = *const Ring;
type Files = *const c_int;
type Tags = *const u64;
type Completion = *mut *mut c_void;
type Time = *mut c_void;
type Mask = *mut c_void;

liburing! {
    fn io_uring_submit(ring: At) { look(ring) }

    fn io_uring_submit_and_wait(ring: At, count: c_uint) { look(ring) }

    fn io_uring_submit_and_get_events(ring: At) { look(ring) }

    fn io_uring_submit_and_wait_timeout(ring: At, place: Completion, count: c_uint, time: Time, mask: Mask) { look(ring) }

    fn io_uring_submit_and_wait_min_timeout(ring: At, place: Completion, count: c_uint, time: Time, least: c_uint, mask: Mask) { look(ring) }

    fn io_uring_submit_and_wait_reg(ring: At, place: Completion, count: c_uint, index: c_int) { look(ring) }

    fn io_uring_wait_cqes(ring: At, place: Completion, count: c_uint, time: Time, mask: Mask) { look(ring) }

    fn io_uring_wait_cqe_timeout(ring: At, place: Completion, time: Time) { look(ring) }

    fn io_uring_register_files(ring: At, files: Files, count: c_uint) { give_all(files, count) }

    fn io_uring_register_files_tags(ring: At, files: Files, tags: Tags, count: c_uint) { give_all(files, count) }

    fn io_uring_register_files_update(ring: At, place: c_uint, files: Files, count: c_uint) { give_all(files, count) }

    fn io_uring_register_files_update_tag(ring: At, place: c_uint, files: Files, tags: Tags, count: c_uint) { give_all(files, count) }

    fn io_uring_setup(entries: c_uint, parameters: *mut c_void) {
        // For programs that fill the entries by themselves.
        if is_refused() { Err(libc::ENOSYS) } else { Ok(()) }
    }
}
