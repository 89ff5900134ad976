//! What the agent and the gateway tell systemd, if that has started them: when they are ready, when they
//! end, and that their loops go round ([`Watchdog`]). And a descriptor that the gateway has it keep until the service
//! starts again.

use std::env;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use sd_notify::NotifyState;
use sidestep_gateway::watchdog::Watchdog;

/// The name of the descriptor in the store.
const STORED: &str = "gateway";
/// How long systemd may take to say that it has a descriptor.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Nothing happens if systemd has not asked for it.
pub(super) fn tell_systemd(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        log::warn!("systemd does not hear: {error}");
    }
}

/// Who restarts this process when one of its loops stands still: `WatchdogSec=` of the unit, if it has it.
pub(super) fn watchdog() -> Watchdog {
    let Some(patience) = sd_notify::watchdog_enabled() else { return Watchdog::default() };
    Watchdog::report_within(patience).unwrap_or_else(|error| {
        log::warn!("systemd waits for a word, and cannot be told: {error}");
        Watchdog::default()
    })
}

/// Whether the service has a descriptor store: systemd says so from 254 on. Those before it close what is in a store in
/// their one thread, and a socket that lingers would stop them.
pub(super) fn has_store() -> bool {
    env::var_os("FDSTORE").is_some_and(|max| max != "0")
}

/// Has systemd keep a descriptor until the service starts again, or to its end. When this returns, it has it.
///
/// # Errors
///
/// systemd does not hear.
pub(super) fn store(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    // That its other end is closed says nothing.
    let state =
        [NotifyState::FdStore, NotifyState::FdName(STORED), NotifyState::Custom("FDPOLL=0")];
    sd_notify::notify_with_fds(&state, &[descriptor])?;
    // systemd may not know any more of which service a process that has ended was; it closes this when it has read the message.
    let (ours, theirs) = io::pipe()?;
    sd_notify::notify_with_fds(&[NotifyState::Custom("BARRIER=1")], &[theirs.as_fd()])?;
    drop(theirs);
    let mut heard = [PollFd::new(&ours, PollFlags::empty())];
    match retry_on_intr(|| poll(&mut heard, Some(&PATIENCE)))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

/// What systemd has kept for this process, and keeps no longer.
pub(super) fn take_stored() -> Option<OwnedFd> {
    let mut named = sd_notify::listen_fds_with_names().ok()?;
    let (stored, _) = named.find(|(_, name)| name == STORED)?;
    // SAFETY: systemd has opened it for this process, and nothing else here takes it.
    let stored = unsafe { OwnedFd::from_raw_fd(stored) };
    if let Err(error) =
        sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(STORED)])
    {
        log::warn!("systemd does not hear: {error}");
    }
    Some(stored)
}
