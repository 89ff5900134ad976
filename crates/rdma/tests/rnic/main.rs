//! Soft RNICs over real sockets: at addresses of the loopback interface, and with a cable between
//! two network namespaces.
//!
//! | Module | What |
//! |---|---|
//! | `pair` | two RNICs with a link, and everything that passes over it compared |
//! | `loopback` | both families, bad networks, hostile datagrams, sockets that are full |
//! | `sharing` | several RNICs at one address, which come and go |

mod loopback;
mod pair;
mod sharing;
