//! This process: what it is to others, what it shares with them, and what its operator wishes.
//!
//! ```text
//!   mail       what other processes say
//!   slots      taken and given back         children     which process holds them after a fork
//!   home       the process with its slots and link groups; groups finds those
//!   group      one link group: the memory between this process and another; rings: what lies in it
//!   instance   the process as others know it: state, mailbox, bells
//! ```
//!
//! Below stands what needs no process object: options and log, memory and its pools, locks and their owners,
//! filters and other ways to use sockets unseen, and what the kernel says of a TCP socket.

pub mod agent_line;
pub mod assessor;
pub mod children;
pub mod claims;
pub mod clc;
pub mod filter;
pub mod group;
pub mod groups;
pub mod home;
pub mod instance;
pub mod lingering;
pub mod loan;
pub mod log;
pub mod mail;
pub(crate) mod memory;
pub mod options;
pub(crate) mod owner;
pub(crate) mod past_libc;
pub mod pool;
pub mod reload;
pub(crate) mod rings;
pub mod slots;
pub(crate) mod system_eid;
pub mod tcp;
pub mod unseen;
