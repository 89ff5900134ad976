//! Ctrl-C and SIGTERM end a watch or a record between two lines, as success.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// See the [module](self).
pub(super) struct Interrupt;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_interrupt(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

impl Interrupt {
    /// From now on they end nothing by themselves.
    pub(super) fn catch() {
        let handler = on_interrupt as extern "C" fn(libc::c_int);
        // SAFETY: the handler only stores to an atomic. `signal` restarts calls, `poll` excepted.
        unsafe {
            libc::signal(libc::SIGINT, handler as libc::sighandler_t);
            libc::signal(libc::SIGTERM, handler as libc::sighandler_t);
        }
    }

    /// Waits so long, or until one comes.
    pub(super) fn has_not_come_within(time: Duration) -> bool {
        let end = Instant::now() + time;
        while !INTERRUPTED.load(Ordering::Relaxed) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            // Short enough that a signal between the look above and the sleep does not wait.
            let ms = left.as_millis().clamp(1, 200) as libc::c_int;
            // SAFETY: no descriptors.
            unsafe { libc::poll(std::ptr::null_mut(), 0, ms) };
        }
        false
    }
}
