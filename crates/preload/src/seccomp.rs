//! `prctl`, and `seccomp` by number: a program confines itself to some system calls.
//!
//! `prctl` is variadic, and defined with all its arguments as `syscall` is.

use crate::real;
use sidestep_device::confinement::Confinement;
use sidestep_socket::program::seccomp;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn prctl(
    option: i32,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
) -> i32 {
    // SAFETY: the program's own call.
    let call = || unsafe { real::prctl(option, a, b, c, d) };
    let to = match option {
        libc::PR_SET_SECCOMP => confinement_of(a == libc::SECCOMP_MODE_STRICT as usize, b),
        _ => None,
    };
    match to {
        Some(to) => seccomp::confine(to, || i64::from(call())) as i32,
        None => call(),
    }
}

/// The system call `seccomp`, which libc has no function for. `None`: it does not confine.
pub(crate) fn of_system_call(operation: usize, filter: usize) -> Option<Confinement> {
    match operation as u32 {
        libc::SECCOMP_SET_MODE_STRICT => confinement_of(true, filter),
        libc::SECCOMP_SET_MODE_FILTER => confinement_of(false, filter),
        _ => None,
    }
}

/// Without a filter the call asks whether the kernel knows any.
fn confinement_of(is_strict: bool, filter: usize) -> Option<Confinement> {
    match is_strict {
        true => Some(Confinement::Strict),
        false => (filter != 0).then_some(Confinement::Filtered),
    }
}
