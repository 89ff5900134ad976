//! The one thing of the library's that is no name of libc's: ends that it lends, see [`sidestep_device::lent`].

use sidestep_device::lent::{Lender, Lent};
use sidestep_socket::program::{bundle, lending};

/// By this name, which is [`sidestep_device::lent::NAME`], the program finds it.
#[unsafe(no_mangle)]
#[used]
static sidestep_lender_3: Lender = Lender { look, pass, reset, leave_received };

extern "C" fn look(fd: i32, skip: usize, lent: &mut Lent) -> isize {
    match lending::look(fd, skip) {
        Ok(found) => {
            *lent = found;
            found.len() as isize
        }
        Err(errno) => -(errno as isize),
    }
}

extern "C" fn pass(fd: i32, position: u64, count: usize) {
    lending::pass(fd, position, count);
}

extern "C" fn reset(fd: i32) {
    lending::reset(fd);
}

extern "C" fn leave_received(is_left: u8) {
    bundle::leave_received(is_left != 0);
}
