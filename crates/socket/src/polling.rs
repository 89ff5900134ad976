//! Waiting for many connections at once: epoll, `poll` and `select`.
//!
//! ```text
//!   multiplex      poll and select
//!   epoll          epoll_ctl and epoll_wait
//!   ready          what a set has to report
//!   registration   one descriptor in one set; nesting: a set in a set; watch: a socket without an object
//!   set            the sets themselves
//! ```

pub mod epoll;
pub mod multiplex;
mod nesting;
pub mod ready;
pub mod registration;
pub mod set;
pub mod watch;
