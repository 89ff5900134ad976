//! Error numbers of Linux.

#![allow(missing_docs)]

pub const EBADF: i32 = 9;
pub const EPIPE: i32 = 32;
pub const ENOTSOCK: i32 = 88;
pub const ECONNRESET: i32 = 104;
pub const ENOTCONN: i32 = 107;
