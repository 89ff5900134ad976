//! One connection in shared memory.
//!
//! ```text
//!   ring_send, ring_receive   the two screens; readiness: what poll says; closing: how this end ends it
//!   ring_lent                 receive without a copy
//!   wait                      spin, nap, sleep, on what ends and switch leave
//!   switch                    from which byte a direction uses the ring
//!   ends                      what the kernel and the peer say of the end; denial: what the IP filter says
//!   bells, sleeper            waking the other side, and being woken by it
//!   words, ledger, turns      shared words, the kernel's counters, the way of the next bytes
//! ```

pub mod bells;
pub mod closing;
pub mod confirm;
pub(crate) mod denial;
pub mod ends;
pub mod kept_options;
pub mod ledger;
pub mod readiness;
pub(crate) mod ring_lent;
pub mod ring_receive;
pub mod ring_send;
pub mod sleep;
pub mod sleeper;
pub mod spin;
pub mod switch;
pub mod turns;
pub mod urgent;
pub mod wait;
pub mod words;
