//! A `sidestep assess` that has begun this program gets its state.

use crate::process::options;
use core::time::Duration;
use sidestep_device::sys::{self, UnixName};

/// Gives our state to a `sidestep assess` that has asked for it: what is counted in there
/// outlives us. No other process is to have it: the assessor may have ended, and another user may
/// have taken its name.
pub(crate) fn show(state_fd: i32) {
    let assessor = &options::current().assessor;
    let Some(fd) = (!assessor.is_empty()).then(sys::unix_packet).and_then(Result::ok) else {
        return;
    };
    let may_see = |uid| uid == sys::uid() || uid == 0;
    if sys::connect_unix(fd, &UnixName::new(assessor)).is_ok()
        && sys::peer_user(fd).is_ok_and(may_see)
    {
        let _ = sys::send_fds(fd, &[sys::seat(state_fd)]);
        // It closes the connection when it has seen which program we are: we may be gone in a
        // moment.
        let _ = sys::poll_until(fd, libc::POLLIN, Some(ASSESSOR_PATIENCE));
    }
    sys::close_number(fd);
}

/// How long an assessor that is busy or stopped holds a program up.
const ASSESSOR_PATIENCE: Duration = Duration::from_millis(200);
