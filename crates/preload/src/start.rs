//! Before the program's first constructor.

use crate::{cancel, fork, real, standard_streams};
use core::ffi::{CStr, c_char};
use sidestep_device::sys::{self, SignalMask};
use sidestep_socket::connection::sleep::Sleeps;
use sidestep_socket::process::options::{self, Options};
use sidestep_socket::process::{filter, loan, reload};
use sidestep_socket::program::bundle;

/// Run by the loader; `-z initfirst` puts it before all other constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static START: unsafe extern "C" fn(i32, *const *const c_char, *const *const c_char) = start;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// No threads, and no files or descriptors of ours: everything else waits for the first
/// TCP connection, which may have been inherited.
///
/// # Safety
/// Called by the loader. glibc's passes the program's arguments and environment. (libc itself has not run
/// yet, so `environ` and `getenv` know nothing.)
unsafe extern "C" fn start(_: i32, _: *const *const c_char, environment: *const *const c_char) {
    std::panic::set_hook(Box::new(abort));
    real::find();
    // Looked up now: a signal handler may ask first.
    let _ = sys::is_single_threaded();
    sidestep_socket::connection::sleep::sleep_in(SLEEPS);
    loan::note_owner();
    let environment = match real::is_musl() {
        // SAFETY: musl's loader passes nothing, and has set it before.
        true => unsafe { environ },
        false => environment,
    };
    // SAFETY: the program's environment block.
    let [options, sources] =
        [options::VARIABLE, reload::VARIABLE].map(|name| unsafe { variable(environment, name) });
    let options = Options::parse(options, program_name());
    filter::start(options.trust_filters);
    options::configure(options);
    reload::start(sources);
    bundle::adopt_inherited(standard_streams::note_standard);
    fork::watch();
}

/// Where threads sleep: in the program's libc, whose calls are cancellation points.
const SLEEPS: Sleeps = Sleeps { recv, ppoll, epoll_wait, look_for_cancel: cancel::look };

fn recv(fd: i32, bytes: &mut [u8], flags: i32) -> isize {
    // SAFETY: the slice is writable.
    cancel::below_us(|| unsafe { real::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) })
}

fn ppoll(entries: &mut [libc::pollfd], time: Option<&libc::timespec>, mask: SignalMask) -> i32 {
    let time = time.map_or(core::ptr::null(), core::ptr::from_ref);
    let (at, count) = (entries.as_mut_ptr(), entries.len() as u64);
    // SAFETY: the slice is writable, the time can be read, and `SignalMask` is null or a set.
    cancel::below_us(|| unsafe { real::ppoll(at, count, time, mask.as_ptr()) })
}

/// Without a limit by the call that each libc has. With one musl knows whole milliseconds, which are rounded up.
fn epoll_wait(
    epfd: i32,
    events: &mut [libc::epoll_event],
    time: Option<&libc::timespec>,
    mask: SignalMask,
) -> i32 {
    let (at, max) = (events.as_mut_ptr(), events.len().min(i32::MAX as usize) as i32);
    // SAFETY: the slice is writable, the time can be read, and `SignalMask` is null or a set.
    cancel::below_us(|| unsafe {
        match time {
            None => real::epoll_pwait(epfd, at, max, -1, mask.as_ptr()),
            Some(time) if real::is_musl() => {
                real::epoll_pwait(epfd, at, max, in_ms(time), mask.as_ptr())
            }
            Some(time) => real::epoll_pwait2(epfd, at, max, time, mask.as_ptr()),
        }
    })
}

fn in_ms(time: &libc::timespec) -> i32 {
    let rest = (time.tv_nsec + 999_999) / 1_000_000;
    let ms = time.tv_sec.saturating_mul(1_000).saturating_add(rest);
    i32::try_from(ms).unwrap_or(i32::MAX)
}

/// A panic is a bug of ours, which must be loud and must not unwind into a program
/// that knows nothing of it.
fn abort(panic: &std::panic::PanicHookInfo<'_>) {
    sidestep_socket::log!(Error, "{panic}");
    std::process::abort();
}

/// The last part of the path by which the program was started.
fn program_name() -> &'static str {
    // SAFETY: no operands in memory; a null or a string that lives as long as the process.
    let path = unsafe {
        let path = libc::getauxval(libc::AT_EXECFN) as *const c_char;
        if path.is_null() { c"" } else { CStr::from_ptr(path) }
    };
    let path = path.to_str().unwrap_or("");
    path.rsplit('/').next().unwrap_or(path)
}

/// The value of an environment variable of ours.
///
/// # Safety
/// `environment` is a null-terminated array of strings that live for ever.
unsafe fn variable(mut environment: *const *const c_char, wanted: &str) -> &'static str {
    // SAFETY: the caller's promise.
    unsafe {
        while !environment.is_null() && !(*environment).is_null() {
            let entry = CStr::from_ptr(*environment).to_bytes();
            if let Some((name, value)) = split(entry)
                && name == wanted.as_bytes()
            {
                return core::str::from_utf8(value).unwrap_or("");
            }
            environment = environment.add(1);
        }
    }
    ""
}

fn split(entry: &'static [u8]) -> Option<(&'static [u8], &'static [u8])> {
    let at = entry.iter().position(|byte| *byte == b'=')?;
    Some((&entry[..at], &entry[at + 1..]))
}
