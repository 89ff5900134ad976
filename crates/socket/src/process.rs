//! This process: what it is to others, what it shares with them, and what its operator wishes.

pub mod assessor;
pub mod claims;
pub mod clc;
pub mod desk;
pub mod filter;
pub mod group;
pub mod groups;
pub mod heirs;
pub mod home;
pub mod instance;
pub mod loan;
pub mod log;
pub mod mail;
pub(crate) mod memory;
pub mod options;
pub(crate) mod owner;
pub(crate) mod past_libc;
pub mod pool;
pub mod reload;
pub mod slots;
pub mod tcp;
pub mod unseen;
