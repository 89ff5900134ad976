//! The terminal that the output goes to, if it does.

use std::io::{self, IsTerminal};
use std::mem::MaybeUninit;

/// The columns of the terminal, if standard output is one.
pub(crate) fn width() -> Option<u16> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let mut size = MaybeUninit::<libc::winsize>::zeroed();
    // SAFETY: the kernel fills one `winsize`, for which there is room.
    let asked = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, size.as_mut_ptr()) };
    // SAFETY: four numbers; zeroed, and perhaps filled.
    let size = unsafe { size.assume_init() };
    (asked == 0 && size.ws_col > 0).then_some(size.ws_col)
}
