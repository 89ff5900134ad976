//! This process: what it is to others, what it shares with them, and what its operator wishes.

pub mod claims;
pub mod group;
pub mod home;
pub mod log;
pub(crate) mod memory;
pub mod options;
pub(crate) mod owner;
pub(crate) mod past_libc;
pub mod pool;
pub mod reload;
