//! Which descriptors are TCP sockets, and what each of them is.

pub(crate) mod account;
pub mod bare;
pub mod candidate;
pub mod conn;
pub mod descriptors;
pub(crate) mod file;
pub mod learned;
pub mod meeting;
pub mod mirror;
pub mod naming;
pub mod outlast;
pub mod passage;
pub mod places;
pub(crate) mod plain;
pub mod sock;
pub mod streak;
