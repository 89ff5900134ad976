//! Soft RNICs over real sockets: at addresses of the loopback interface, and with a cable between
//! two network namespaces.
//!
//! | Module | What |
//! |---|---|
//! | `namespace` | two network namespaces with a cable between them; skipped where there are none |
//! | `capture` | what really passes over a cable |
//! | `pair` | two RNICs with a link, and everything that passes over it compared |
//! | `loopback` | both families, bad networks, hostile datagrams, sockets that are full |
//! | `cable` | the headers that the ICRC counts on, as another program decodes them, and MTUs |

mod cable;
mod capture;
mod loopback;
mod namespace;
mod pair;
