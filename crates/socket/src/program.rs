//! What a program sees: its calls, and the life of its sockets.

pub mod parcel;
pub mod seccomp;
pub mod stream;
pub mod transfer;
pub mod uring;
