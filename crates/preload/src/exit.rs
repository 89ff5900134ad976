//! The end of a process by its own will: `exit`, a return from `main`, `_exit`.
//!
//! A process that is killed says nothing, and its peers learn what they need from the
//! kernel and from what lies in shared memory. One that ends by itself can say more.

use crate::real;
use sidestep_socket::program::fork;

/// Run by `exit`; `-z initfirst` puts it behind all other destructors.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: unsafe extern "C" fn() = end;

unsafe extern "C" fn end() {
    fork::before_exit();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(status: i32) -> ! {
    leave(status)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: i32) -> ! {
    leave(status)
}

fn leave(status: i32) -> ! {
    fork::before_exit();
    // SAFETY: passed on.
    unsafe { real::_exit(status) };
    unreachable!("libc's _exit returns to nobody")
}
