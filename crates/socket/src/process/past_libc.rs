//! Programs that make calls on sockets past libc, by instructions of their own.
//!
//! The library does not see what such a call does to a connection: a read of one in shared memory would
//! wait on TCP for ever, and an epoll set of its own would know nothing of the ring. So no
//! connection of such a program moves. Whether it is one, its code says: once for each
//! process, before its first connection could begin to move, all code that the loader has
//! brought in is looked through ([`machine_code`]).
//!
//! What the program makes or loads later is not seen.

use core::ffi::{CStr, c_int, c_void};
use core::slice;
use core::sync::atomic::{AtomicBool, Ordering};
use sidestep_device::sys;
use sidestep_proto::machine_code;

/// The code of this process was looked through.
static LOOKED: AtomicBool = AtomicBool::new(false);
/// There was such a call.
static FOUND: AtomicBool = AtomicBool::new(false);
/// libseccomp was among the objects.
static HAS_LIBSECCOMP: AtomicBool = AtomicBool::new(false);

/// Objects that call the kernel because that is what they are for. Their calls on the
/// program's behalf go through us; liburing's do by [`crate::program::uring`].
const KNOWN: [&[u8]; 8] = [
    b"ld-linux",
    b"libc.so.",
    b"libpthread.so.",
    b"librt.so.",
    // musl, under its loader's name or Alpine's for it as a library.
    b"ld-musl-",
    b"libc.musl-",
    b"liburing.so.",
    b"linux-vdso.so.",
];

/// Whether the program has libseccomp, by which it can install a filter of system calls.
pub(super) fn has_libseccomp() -> bool {
    is_found();
    HAS_LIBSECCOMP.load(Ordering::Relaxed)
}

/// Whether the program has such instructions.
pub(crate) fn is_found() -> bool {
    // Acquire: pairs with the Release below.
    if !LOOKED.load(Ordering::Acquire) {
        look();
    }
    FOUND.load(Ordering::Relaxed)
}

/// Looks through all objects. Two threads at once may both do it, and find the same; a lock
/// could be held by what a signal handler has interrupted.
#[cold]
fn look() {
    // SAFETY: `look_at` is a callback of this kind, and needs no data. The loader keeps the
    // objects mapped until it returns.
    unsafe { libc::dl_iterate_phdr(Some(look_at), core::ptr::null_mut()) };
    LOOKED.store(true, Ordering::Release);
}

/// Looks through an object; not 0 ends the search.
///
/// # Safety
/// Called by `dl_iterate_phdr`.
unsafe extern "C" fn look_at(
    object: *mut libc::dl_phdr_info,
    _: libc::size_t,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the loader's description of an object that is mapped.
    let (object, path, segments) = unsafe {
        let object = &*object;
        let segments = slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum));
        (object, CStr::from_ptr(object.dlpi_name).to_bytes(), segments)
    };
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    if name.starts_with(b"libseccomp.so.") {
        HAS_LIBSECCOMP.store(true, Ordering::Relaxed);
    }
    if KNOWN.iter().any(|known| name.starts_with(known)) {
        return 0;
    }
    for segment in segments {
        let Some(code) = code_of(object, segment) else { continue };
        if code.as_ptr_range().contains(&(look as *const u8)) {
            return 0;
        }
        if let Some(call) = machine_code::first_socket_call(code) {
            note(path, call.name, segment.p_vaddr as usize + call.offset);
            return 1;
        }
    }
    0
}

/// The code in a segment, if it is one of code that may be read.
fn code_of<'a>(object: &libc::dl_phdr_info, segment: &libc::Elf64_Phdr) -> Option<&'a [u8]> {
    const READ_AND_EXECUTE: u32 = libc::PF_R | libc::PF_X;
    if segment.p_type != libc::PT_LOAD || segment.p_flags & READ_AND_EXECUTE != READ_AND_EXECUTE {
        return None;
    }
    let address = (object.dlpi_addr + segment.p_vaddr) as *const u8;
    let len = segment.p_filesz as usize;
    // A program may have taken the right to read away from its own code since.
    sys::fault_in(address, len).ok()?;
    // SAFETY: mapped by the loader, which keeps it as long as it calls us; readable, as the
    // kernel has just found.
    Some(unsafe { slice::from_raw_parts(address, len) })
}

/// Writes down what was found.
fn note(path: &[u8], call: &str, offset: usize) {
    if FOUND.swap(true, Ordering::Relaxed) {
        return;
    }
    // The loader does not name the program itself.
    let object = if path.is_empty() { b"the program" } else { path }.escape_ascii();
    crate::log!(
        Info,
        "{object} makes calls past libc ({call} at {offset:#x}): connections stay on TCP"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment of these bytes, as the loader describes it.
    fn segment(bytes: &[u8], kind: u32, flags: u32) -> libc::Elf64_Phdr {
        libc::Elf64_Phdr {
            p_type: kind,
            p_flags: flags,
            p_offset: 0,
            p_vaddr: bytes.as_ptr().addr() as u64,
            p_paddr: 0,
            p_filesz: bytes.len() as u64,
            p_memsz: bytes.len() as u64,
            p_align: 1,
        }
    }

    #[test]
    fn only_code_that_may_be_read_is_looked_through() {
        let object = libc::dl_phdr_info {
            dlpi_addr: 0,
            dlpi_name: core::ptr::null(),
            dlpi_phdr: core::ptr::null(),
            dlpi_phnum: 0,
            dlpi_adds: 0,
            dlpi_subs: 0,
            dlpi_tls_modid: 0,
            dlpi_tls_data: core::ptr::null_mut(),
        };
        let bytes = [0x0f, 0x05, 0xc3];
        let code = |kind, flags| {
            let segment = segment(&bytes, kind, flags);
            code_of(&object, &segment).map(<[u8]>::to_vec)
        };
        let (read, write, run) = (libc::PF_R, libc::PF_W, libc::PF_X);
        assert_eq!(code(libc::PT_LOAD, read | run), Some(bytes.to_vec()));
        assert_eq!(code(libc::PT_LOAD, read | write | run), Some(bytes.to_vec()));
        assert_eq!(code(libc::PT_LOAD, run), None, "it cannot be read");
        assert_eq!(code(libc::PT_LOAD, read | write), None, "it is no code");
        assert_eq!(code(libc::PT_NOTE, read | run), None);
    }
}
