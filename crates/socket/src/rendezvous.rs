//! How two processes find each other beside a connection, and agree.

pub(crate) mod afar;
pub mod agreement;
pub(crate) mod autocache;
pub(crate) mod begin;
pub(crate) mod claim;
pub(crate) mod client;
pub mod gateway;
pub mod listeners;
pub mod marker;
pub(crate) mod passed;
pub(crate) mod petition;
pub(crate) mod pnet;
pub(crate) mod record;
pub(crate) mod server;
pub mod tcp_option;
