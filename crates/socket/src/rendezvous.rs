//! How two processes find each other beside a connection, and agree.
//!
//! ```text
//!   agreement   one look for progress; client and server carry out its machines
//!   begin       the questions before an attempt; record: what the ends show each other
//!   whereabouts how the other end can be found; claim: by memory that both processes share; afar: by the agent
//!   listeners   who listens says so by a marker
//!   gateway     the other end is on another host; tcp_option: whether it knows SMC
//!   pnet        whether the interface may move; denial: whether the IP filter lets it
//! ```

pub(crate) mod afar;
pub mod agreement;
pub mod attempt;
pub(crate) mod autocache;
pub(crate) mod begin;
pub(crate) mod claim;
pub(crate) mod client;
pub(crate) mod denial;
pub mod gateway;
pub mod listeners;
pub(crate) mod lookup;
pub mod marker;
pub(crate) mod passed;
pub(crate) mod pnet;
pub(crate) mod record;
pub(crate) mod server;
pub mod tcp_option;
pub(crate) mod whereabouts;
