//! Why something could not be done.

use std::io;

use sidestep_bpf::BpfError;
use thiserror::Error;

use crate::commands::logging::LogError;
use crate::commands::vip_status::{AskError, Daemon};
use crate::config::ConfigError;

/// Why something could not be done. Each says what to do next, where something can be done.
#[derive(Debug, Error)]
pub(super) enum VipError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Bpf(#[from] BpfError),
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error(
        "no VIPs are configured whose targets are listeners of this host; add [vip.NAME] with an address and targets to \
         the configuration (docs/vip.md)"
    )]
    None,
    #[error(
        "no VIPs with hosts as targets are configured; add [vip.NAME] with an address, and targets named by \
         an address without a port (docs/distributor.md)"
    )]
    NoHosts,
    #[error(
        "no interface is configured; add interface = \"eth0\" to [distributor], the one by which clients come \
         and targets are reached"
    )]
    NoInterface,
    #[error(
        "another `{}` is at work in this network namespace; `sidestep vip apply` has it \
         read its configuration again", .0.command()
    )]
    Running(Daemon),
    #[error("{0}")]
    Refused(String),
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
}

impl VipError {
    pub(super) fn of(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
