//! One connection in shared memory.

pub mod ends;
pub mod readiness;
pub mod socket_options;
pub mod switch;
pub mod urgent;
pub mod wait;
