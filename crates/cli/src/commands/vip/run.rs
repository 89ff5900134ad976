//! `sidestep vip run`: puts the VIPs of the configuration into force whose targets are listeners of this host,
//! and looks after them.

use std::io::ErrorKind;

use sidestep_distributor::TargetKind;

use super::daemon::{self, Direct};
use super::director::Director;
use super::error::VipError;
use crate::args::VipRunArgs;
use crate::commands::vip_status::{self, Daemon};
use crate::commands::{logging, signals};

pub(super) fn execute(args: &VipRunArgs) -> Result<(), VipError> {
    // First of all: a signal from now on ends it in order.
    let stop = signals::stop().map_err(VipError::of("cannot wait for signals"))?;
    signals::ignore_sigpipe();
    logging::begin(args.log.as_ref())?;
    let config = args.config.as_deref();
    let set = daemon::vips_of(daemon::configured(config)?, TargetKind::Listeners);
    if set.vips().is_empty() {
        return Err(VipError::None);
    }
    let commands = vip_status::listen(Daemon::Listeners).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => VipError::Running(Daemon::Listeners),
        _ => VipError::of("cannot listen for commands")(error),
    })?;
    let mut director = Director::new()?;
    let done = director.apply(&set).map_err(VipError::Refused)?;
    daemon::say("sidestep vip", &done)?;
    daemon::serve(director, commands, stop, config)
}
