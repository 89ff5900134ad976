//! What a program sees: its calls, and the life of its sockets.

pub mod dead_end;
pub mod fork;
pub mod growth;
pub mod hand_over;
pub mod life;
pub mod object;
pub mod parcel;
pub mod seccomp;
pub mod stream;
pub mod transfer;
pub mod uring;
pub mod young;
