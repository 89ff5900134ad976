//! What a program sees: its calls, and the life of its sockets.
//!
//! ```text
//!   stream, transfer   send, receive, sendfile, splice: which path the bytes take
//!   lending            ends that the gateway reads where they lie
//!   socket_options     setsockopt, getsockopt, ioctl
//!   fork, bundle       connections in other processes and other programs; uring, seccomp: unseen calls
//!   hand_over          connections to other hosts go to the gateway
//!   without_gateway    they stay TCP where there is none
//!   protection         those that TLS is to protect, too, or they end
//!   life, fresh        sockets made, accepted, duplicated, closed
//!   tracking, object   what they are in the meantime
//! ```

pub mod bundle;
pub mod dead_end;
pub mod fork;
pub mod fresh;
pub mod hand_over;
pub mod lending;
pub mod life;
pub mod object;
pub mod protection;
pub mod seccomp;
pub mod socket_options;
pub mod stream;
pub mod tracking;
pub mod transfer;
pub mod uring;
mod without_gateway;
