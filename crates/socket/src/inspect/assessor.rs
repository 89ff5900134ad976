//! Being shown what programs count, from their first connection to beyond their end.
//!
//! A state goes with its process, and a short program is gone before anybody has looked into
//! `/proc`. So whoever starts one to assess it binds a name, the library sends its state
//! there as soon as there is one, and what was counted stays as long as we hold it.

use super::{Mapped, Program, program};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use sidestep_device::state;
use sidestep_device::sys::{self, UnixName};
use std::io;
use std::os::fd::RawFd;

/// A name to which programs send their states.
pub struct Assessor {
    fd: i32,
    name: String,
}

/// A state that its program has sent us.
pub struct Shown {
    state: Mapped,
    pid: u32,
    program: String,
}

/// Names taken by this process.
static NAMES: AtomicU32 = AtomicU32::new(0);

impl Assessor {
    /// Binds a name of its own.
    ///
    /// # Errors
    /// As `socket`, `bind` and `listen`.
    pub fn bind() -> io::Result<Self> {
        let number = NAMES.fetch_add(1, Ordering::Relaxed);
        let name = format!("sidestep/1/assess/{}/{number}", sys::pid());
        let fd = sys::unix_packet().map_err(error)?;
        let assessor = Self { fd, name };
        let bound = sys::bind_unix(fd, &UnixName::new(assessor.name.as_bytes()));
        bound.and_then(|_| sys::listen(fd, QUEUE_LEN)).map(|_| assessor).map_err(error)
    }

    /// Under which programs find it: the option `assessor`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Readable when somebody has sent a state.
    #[must_use]
    pub fn as_raw_fd(&self) -> RawFd {
        self.fd
    }

    /// The states that have come since the last time. A stranger's are none.
    pub fn receive(&self) -> Vec<Shown> {
        let mut shown = Vec::new();
        while let Ok(fd) = sys::accept(self.fd) {
            shown.extend(Shown::receive(fd));
            sys::close_number(fd);
        }
        shown
    }
}

/// How long a program may take from its connection to its state.
const PATIENCE: Duration = Duration::from_secs(1);

/// Programs that may have begun since we last looked; more are not counted.
const QUEUE_LEN: i32 = 4096;

impl Drop for Assessor {
    fn drop(&mut self) {
        sys::close(self.fd);
    }
}

impl Shown {
    /// What is sent over a connection, of a program of ours: at once, unless it is stopped.
    fn receive(connection: i32) -> Option<Self> {
        let (uid, pid) = sys::peer_of(connection).ok()?;
        let is_ours = uid == sys::uid() || sys::uid() == 0;
        if !is_ours || sys::poll_until(connection, libc::POLLIN, Some(PATIENCE)).is_err() {
            return None;
        }
        let received = sys::recv_with_fds(connection, &mut [0; 1]).ok()?;
        let state = received.fds().first().and_then(|fd| state::inspect(*fd).ok());
        received.close_fds();
        Some(Self { state: Mapped(state?), pid, program: program(pid) })
    }

    /// What it says now.
    #[must_use]
    pub fn read(&self) -> Program {
        Program::read(&self.state.0, vec![self.pid], self.program.clone())
    }
}

fn error(errno: sys::Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(assessor: &Assessor, fds: &[i32]) {
        let sender = sys::unix_packet().unwrap();
        sys::connect_unix(sender, &UnixName::new(assessor.name().as_bytes())).unwrap();
        assert_eq!(sys::peer_of(sender), Ok((sys::uid(), sys::pid())));
        sys::send_fds(sender, fds).unwrap();
        sys::close(sender);
    }

    #[test]
    fn a_state_can_be_read_when_its_program_has_let_go() {
        let assessor = Assessor::bind().unwrap();
        let (state, fd) = state::create(sys::pid(), [0, 0]).unwrap();
        send(&assessor, &[fd]);
        sys::close(fd);
        state.header().ended.smc.store(7, Ordering::Relaxed);
        // SAFETY: nothing of it is used again.
        unsafe { state.unmap() };
        let [shown] = assessor.receive().try_into().unwrap_or_else(|_| panic!("one state"));
        let program = shown.read();
        assert_eq!((program.pids, program.totals.smc), (vec![sys::pid()], 7));
        assert!(assessor.receive().is_empty());
    }

    #[test]
    fn a_state_that_is_sent_a_moment_later_is_waited_for() {
        let assessor = Assessor::bind().unwrap();
        let (state, fd) = state::create(sys::pid(), [0, 0]).unwrap();
        let sender = sys::unix_packet().unwrap();
        sys::connect_unix(sender, &UnixName::new(assessor.name().as_bytes())).unwrap();
        let shown = std::thread::scope(|scope| {
            let shown = scope.spawn(|| assessor.receive().len());
            std::thread::sleep(Duration::from_millis(50));
            sys::send_fds(sender, &[fd]).unwrap();
            shown.join().unwrap()
        });
        assert_eq!(shown, 1);
        sys::close(sender);
        sys::close(fd);
        // SAFETY: nothing of it is used again.
        unsafe { state.unmap() };
    }

    #[test]
    fn what_is_no_state_is_none() {
        let assessor = Assessor::bind().unwrap();
        send(&assessor, &[]);
        send(&assessor, &[assessor.as_raw_fd()]);
        assert!(assessor.receive().is_empty());
    }
}
