//! What the agent and the gateway tell systemd, if that has started them: when they are ready, when they
//! end, and that their loops go round ([`Watchdog`]).

use sd_notify::NotifyState;
use sidestep_gateway::watchdog::Watchdog;

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
