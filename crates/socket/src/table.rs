//! Which descriptors are TCP sockets, and what each of them is.

pub(crate) mod account;
pub mod descriptors;
pub(crate) mod file;
pub(crate) mod plain;
pub mod sock;
pub mod young;
