//! What one side of a rendezvous tells its driver.

extern crate alloc;

use alloc::boxed::Box;

use sidestep_wire::clc::AcceptConfirmR;

use super::outcome::Outcome;
use super::terms::{Proposer, Terms};

/// What the driver is to do, or to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Server: the engine is to accept a connection from this client.
    Accept(Proposer, Terms),
    /// Client: the engine is to connect by this Accept.
    Connect(Box<AcceptConfirmR>, Terms),
    /// Server: this is the Confirm that the engine waits for.
    Confirmed(Box<AcceptConfirmR>),
    /// The rendezvous is over, and this is the last event. Nothing is read any more.
    Ended(Outcome),
}
