//! TLS by policy: which connections of programs that know nothing of it are protected, and how.
//!
//! An operator's [`Rule`] says it: ports, peers, programs and users, and with which certificate, which trust and
//! which versions. A [`Setup`] is a rule that is ready to be used, with its keys; a [`Session`] is one connection:
//! records of TLS on one side of it, the program's bytes on the other.
//!
//! ```text
//!   [tls.outbound.logs] ──> Rule ──(certificate, key, trust as bytes)──> Setup ──(a peer)──> Session
//!                            │                                                       program <─┼─> records
//!                            └── check: unreachable? readable by others? ends soon?
//! ```
//!
//! | Module | What |
//! |---|---|
//! | [`rule`] | what an operator can say |
//! | [`cipher`] | cipher suites by their hexadecimal numbers (`C030`) and by IANA's names |
//! | [`check`] | what is wrong with rules and files that can be used |
//! | [`setup`] | a rule with its certificate, key and trust, from bytes |
//! | [`client_names`] | which client certificates a rule admits |
//! | [`session`] | one connection, without I/O |
//! | [`peer_certificate`] | whose certificate the peer has shown |
//! | [`failure`] | why there is no protection, with the alert |
//!
//! Nothing here opens a file or a socket or reads a clock: bytes come in as arguments, and the time by a
//! [`TimeProvider`](rustls::time_provider::TimeProvider) that the caller has. TLS itself is rustls', its
//! cryptography aws-lc-rs', or with the feature `ring` that of ring.
//!
//! The peer's certificate is always verified: there is no way to say otherwise.
//!
//! *Source*: RFC 8446, RFC 5246; z/OS Communications Server, *AT-TLS policy*.

#![forbid(unsafe_code)]

pub mod check;
pub mod cipher;
pub mod client_names;
pub mod failure;
pub mod peer_certificate;
mod portions;
pub mod rule;
pub mod session;
pub mod setup;

pub use failure::Failure;
pub use peer_certificate::PeerCertificate;
pub use rule::Rule;
pub use session::Session;
pub use setup::{Material, Peer, Setup};

#[cfg(feature = "aws-lc-rs")]
use rustls::crypto::aws_lc_rs as cryptography;
#[cfg(all(feature = "ring", not(feature = "aws-lc-rs")))]
use rustls::crypto::ring as cryptography;
#[cfg(not(any(feature = "aws-lc-rs", feature = "ring")))]
compile_error!("choose the cryptography: the feature `aws-lc-rs` (the default) or `ring`");

/// The cryptography of this build, for TLS that no rule is about.
#[must_use]
pub fn crypto_provider() -> rustls::crypto::CryptoProvider {
    cryptography::default_provider()
}
