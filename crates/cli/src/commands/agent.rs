//! `sidestep agent`: does on a host what takes a privilege that programs do not have.
//!
//! It stays in the foreground until SIGTERM or SIGINT. Programs under Sidestep need no
//! agent, and go on without it when it ends.

mod tcp_option;

use std::io;

use crate::args::AgentArgs;

/// Works until it is told to end: 0, or 1 if it cannot begin.
pub(crate) fn execute(args: &AgentArgs) -> i32 {
    let end = End::hold_back();
    let done = tcp_option::attach(args.cgroup.as_deref()).map_err(|error| error.to_string());
    let done = done.and_then(|option| {
        println!("sidestep agent: {option}");
        end.sleep().map_err(|error| error.to_string())
    });
    match done {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("sidestep agent: {error}");
            1
        }
    }
}

/// SIGTERM and SIGINT, which from now on wait until somebody asks for them.
struct End(libc::sigset_t);

impl End {
    fn hold_back() -> Self {
        // SAFETY: all-zero is a valid set, which the calls read and write.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            Self(set)
        }
    }

    /// Sleeps until one of them.
    fn sleep(&self) -> io::Result<()> {
        let mut signal = 0;
        // SAFETY: the set and the number live until the call returns.
        match unsafe { libc::sigwait(&raw const self.0, &raw mut signal) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}
