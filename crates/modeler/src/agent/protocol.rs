//! What a coordinator and a server side on another host say to each other.
//!
//! The coordinator asks, the server side answers: one line each. A coordinator
//! begins with [`Request::Hello`]; later versions may change everything else.

use serde::{Deserialize, Serialize};

use crate::control::{Address, Job, SideSample};
use crate::plan::Transport;

/// Both must have the same.
pub(super) const VERSION: u32 = 1;

/// This version of Sidestep, for error texts.
pub(super) const SIDESTEP: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Request {
    Hello(Hello),
    Start { transport: Transport, jobs: Vec<Job> },
    Sample,
    Stop,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    Hello(Hello),
    Started(Vec<Address>),
    Sample(Box<SideSample>),
    Stopped,
    /// Why it is not done.
    Refused(String),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) sidestep: String,
}

impl Hello {
    pub(super) fn ours() -> Self {
        Self { version: VERSION, sidestep: SIDESTEP.to_owned() }
    }

    /// Whether the other end can be talked to; else what to do.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.version == VERSION {
            return Ok(());
        }
        Err(format!(
            "sidestep {} there speaks version {} of the bench protocol, sidestep {SIDESTEP} here \
             version {VERSION}: install the same version on both hosts",
            self.sidestep, self.version
        ))
    }
}

/// Longest request and longest answer in bytes: a job or an address for each of ten
/// thousand clients that are processes, and a job has less than 1 kB.
pub(super) const LINE_LEN_MAX: usize = 10 << 20;
