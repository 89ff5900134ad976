//! libc's resolver: which name the program has asked for, and which addresses it was told.
//!
//! A rule of TLS may want the server's certificate to be for the name that the program has resolved. libc's answer is the
//! program's as it is; it is only read.

use crate::errno::quietly;
use crate::exports::{Failed, export};
use crate::real;
use core::ffi::{CStr, c_char};
use core::net::IpAddr;
use core::ptr::NonNull;
use core::slice;
use sidestep_socket::process::tcp;
use sidestep_socket::program::protection;

type Text = *const c_char;
type Host = *mut libc::hostent;

export! {
    fn getaddrinfo(name: Text, service: Text, hints: *const libc::addrinfo, found: *mut *mut libc::addrinfo) -> i32 {
        // SAFETY: passed on.
        let error = unsafe { real::getaddrinfo(name, service, hints, found) };
        if error == 0 && !name.is_null() && protection::concerns_clients() {
            // SAFETY: libc has read the name, and has put a list of its own there.
            quietly(|| unsafe { protection::note_resolved(text(name), Infos(*found)) });
        }
        error
    }

    fn gethostbyname(name: Text) -> Host {
        // SAFETY: passed on; the answer is libc's.
        unsafe { noted(name, real::gethostbyname(name)) }
    }

    fn gethostbyname2(name: Text, family: i32) -> Host {
        // SAFETY: passed on; the answer is libc's.
        unsafe { noted(name, real::gethostbyname2(name, family)) }
    }

    fn gethostbyname_r(name: Text, room: Host, at: *mut c_char, len: usize, found: *mut Host, error: *mut i32) -> i32 {
        // SAFETY: passed on.
        let failed = unsafe { real::gethostbyname_r(name, room, at, len, found, error) };
        if failed == 0 {
            // SAFETY: libc has put its answer, or null, there.
            unsafe { noted(name, *found) };
        }
        failed
    }

    fn gethostbyname2_r(name: Text, family: i32, room: Host, at: *mut c_char, len: usize, found: *mut Host, error: *mut i32) -> i32 {
        // SAFETY: passed on.
        let failed = unsafe { real::gethostbyname2_r(name, family, room, at, len, found, error) };
        if failed == 0 {
            // SAFETY: libc has put its answer, or null, there.
            unsafe { noted(name, *found) };
        }
        failed
    }
}

/// Null, too, is an answer: libc's resolver sees to the cancellation of a thread by itself.
impl Failed for Host {
    fn has_failed(&self) -> bool {
        false
    }
}

/// The answer, after it was noted.
///
/// # Safety
/// libc has answered with it for this name; it may be null.
unsafe fn noted(name: Text, answer: Host) -> Host {
    if let Some(host) = NonNull::new(answer).filter(|_| protection::concerns_clients()) {
        // SAFETY: the caller's promise.
        quietly(|| unsafe { protection::note_resolved(text(name), addresses(host.as_ref())) });
    }
    answer
}

/// # Safety
/// A C string that stays as it is.
unsafe fn text<'a>(name: Text) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(name) }.to_bytes()
}

/// The addresses of what is left of libc's list.
struct Infos(*const libc::addrinfo);

impl Iterator for Infos {
    type Item = IpAddr;

    fn next(&mut self) -> Option<IpAddr> {
        loop {
            // SAFETY: libc's list, which the program has not seen yet.
            let info = unsafe { self.0.as_ref() }?;
            self.0 = info.ai_next;
            if info.ai_addr.is_null() {
                continue;
            }
            // SAFETY: libc has written an address of so many bytes there.
            let bytes =
                unsafe { slice::from_raw_parts(info.ai_addr.cast(), info.ai_addrlen as usize) };
            if let Some(address) = tcp::address_in(bytes) {
                return Some(address.ip());
            }
        }
    }
}

/// The addresses of an answer: a list of pointers with a null behind it.
///
/// # Safety
/// An answer of libc's, which the program has not seen yet.
unsafe fn addresses(host: &libc::hostent) -> impl Iterator<Item = IpAddr> {
    let mut at = host.h_addr_list;
    let family = host.h_addrtype;
    core::iter::from_fn(move || {
        // SAFETY: the null has not been passed.
        let address = unsafe { NonNull::new(*at) }?;
        // SAFETY: the next is there, because this is not the null.
        at = unsafe { at.add(1) };
        Some(match family {
            // SAFETY: addresses of this family have so many bytes.
            libc::AF_INET => Some(IpAddr::from(unsafe { address.cast::<[u8; 4]>().read() })),
            // SAFETY: the same.
            libc::AF_INET6 => Some(IpAddr::from(unsafe { address.cast::<[u8; 16]>().read() })),
            _ => None,
        })
    })
    .flatten()
}
