//! Waiting for many connections at once: epoll, `poll` and `select`.

pub mod epoll;
pub mod multiplex;
