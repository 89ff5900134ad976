//! What a program can ask about TLS on its connection, and how it begins TLS: an option of the socket, which the library answers.
//!
//! Programs that have TLS by an operator's rule need not know of it. One that wants to (to show it, to log whose certificate
//! the peer has, or to serve no one without it) asks its TCP socket for option [`NAME`] of level [`LEVEL`], as AT-TLS's
//! `SIOCTTLSCTL` does. For programs in C `include/sidestep_tls.h` says the same.
//!
//! | Answer | Means |
//! |---|---|
//! | 0 | the value is a [`ProtectionStatus`] |
//! | `ENOPROTOOPT` | the kernel answers: the program does not run under Sidestep |
//! | `ESTALE` | the gateway that has the connection was replaced, and cannot be asked any more, or the connection is another user's |
//! | `ETIMEDOUT` | the host's gateway does not answer |
//!
//! A rule with `controlled = true` leaves to the program when TLS begins. So long it speaks plain text, and then sets the same
//! option to the number [`START`]:
//!
//! | Answer of `setsockopt` | Means |
//! |---|---|
//! | 0 | what the program has written before is in plain text, and nothing else; what it has not read is TLS's |
//! | `EALREADY` | TLS had begun: with the connection, or by an earlier call |
//! | `EPERM` | no rule leaves that to the program; nothing has changed |
//! | `EBUSY` | another thread is in a call on the socket; nothing has changed |
//! | `ENOTCONN` | it is not connected; nothing has changed |
//! | `EINVAL` | another number, or none; nothing has changed |
//! | `ENOBUFS` | no room to note it; nothing has changed |
//! | `ENOPROTOOPT` | the kernel answers: the program does not run under Sidestep |
//! | `ECONNREFUSED` | there is no gateway, or there are rules that the library cannot read; the connection has ended |
//! | `ECONNRESET` | the gateway does not take it, or another process has begun TLS; the connection has ended |
//!
//! The value has no numbers of more than a byte, so it is the same on each machine:
//!
//! | Off | Len | Field |
//! |---|---|---|
//! | 0 | 1 | the [`State`] |
//! | 1 | 1 | 1: the keys come from an earlier connection |
//! | 2 | 2 | the version, as TLS writes it: 3 3 is TLS 1.2, 3 4 is TLS 1.3 |
//! | 4 | 2 | the cipher suite, as IANA writes it: 0x13 0x02 is TLS_AES_256_GCM_SHA384 |
//! | 6 | 34 | the name of the rule, with zeroes behind it |
//! | 40 | 1 | 1: the peer has shown a certificate |
//! | 41 | 3 | reserved |
//! | 44 | 32 | the SHA-256 fingerprint of that certificate |
//! | 76 | 256 | its subject, such as `C=DE, CN=a.example`, with at least one zero behind it; a longer one is cut off |
//!
//! What is not known is zeroes.

use crate::rule_name::RuleName;
use arrayvec::ArrayString;

/// `IPPROTO_TCP`.
pub const LEVEL: i32 = 6;
/// "STLS". No option of Linux's has this number.
pub const NAME: i32 = i32::from_be_bytes(*b"STLS");
/// What a program sets it to that begins TLS.
pub const START: i32 = 1;

/// Bytes of a subject that are told, at most.
pub const SUBJECT_LEN_MAX: usize = 255;

const STATE: usize = 0;
const RESUMED: usize = 1;
const VERSION: usize = 2;
const CIPHER: usize = 4;
const RULE: usize = 6;
const HAS_CERTIFICATE: usize = 40;
const SHA256: usize = 44;
const SUBJECT: usize = 76;

/// How far TLS has come on a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum State {
    /// No rule has the connection: its bytes go as the program writes them.
    #[default]
    Unprotected = 0,
    /// The handshake goes on. No byte of the program has left yet, and none does before it is over.
    Handshake = 1,
    /// TLS protects it.
    Protected = 2,
    /// By the rules of both ends its bytes stay in the memory of this host, without TLS.
    WithinHost = 3,
    /// Its bytes go as the program writes them, until it begins TLS.
    NotBegun = 4,
}

/// What is known of TLS on a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProtectionStatus {
    /// How far it has come.
    pub state: State,
    /// The keys come from an earlier connection.
    pub is_resumed: bool,
    /// As TLS writes it: `[3, 4]` is TLS 1.3.
    pub version: [u8; 2],
    /// As IANA writes it: `[0x13, 0x02]` is TLS_AES_256_GCM_SHA384.
    pub cipher: [u8; 2],
    /// By which rule.
    pub rule: Option<RuleName>,
    /// What the peer has shown.
    pub certificate: Option<PeerCertificate>,
}

/// What is told of a peer's certificate. It was verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCertificate {
    /// SHA-256 of it, in DER.
    pub sha256: [u8; 32],
    /// Whose it is.
    pub subject: ArrayString<SUBJECT_LEN_MAX>,
}

impl ProtectionStatus {
    /// Bytes of a value.
    pub const LEN: usize = 332;

    /// Reads a value. `None`: it is none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let state = match bytes[STATE] {
            0 => State::Unprotected,
            1 => State::Handshake,
            2 => State::Protected,
            3 => State::WithinHost,
            4 => State::NotBegun,
            _ => return None,
        };
        let rule = match text(&bytes[RULE..HAS_CERTIFICATE])? {
            "" => None,
            name => Some(name.parse().ok()?),
        };
        let certificate = match flag(bytes[HAS_CERTIFICATE])? {
            true => Some(PeerCertificate {
                sha256: *bytes[SHA256..].first_chunk()?,
                subject: ArrayString::from(text(&bytes[SUBJECT..])?).ok()?,
            }),
            false => None,
        };
        let is_resumed = flag(bytes[RESUMED])?;
        let pair = |at: usize| [bytes[at], bytes[at + 1]];
        Some(Self {
            state,
            is_resumed,
            version: pair(VERSION),
            cipher: pair(CIPHER),
            rule,
            certificate,
        })
    }

    /// The value.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let mut put = |at: usize, field: &[u8]| bytes[at..][..field.len()].copy_from_slice(field);
        put(STATE, &[self.state as u8, u8::from(self.is_resumed)]);
        put(VERSION, &self.version);
        put(CIPHER, &self.cipher);
        if let Some(rule) = &self.rule {
            put(RULE, rule.as_str().as_bytes());
        }
        if let Some(certificate) = &self.certificate {
            put(HAS_CERTIFICATE, &[1]);
            put(SHA256, &certificate.sha256);
            put(SUBJECT, certificate.subject.as_bytes());
        }
        bytes
    }
}

impl PeerCertificate {
    /// With as much of the subject as there is room for.
    #[must_use]
    pub fn new(sha256: [u8; 32], subject: &str) -> Self {
        let mut room = ArrayString::new();
        for character in subject.chars() {
            if room.try_push(character).is_err() {
                break;
            }
        }
        Self { sha256, subject: room }
    }
}

fn flag(byte: u8) -> Option<bool> {
    match byte {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Text up to a zero, of which there has to be one.
fn text(bytes: &[u8]) -> Option<&str> {
    let (text, _) = bytes.split_at(bytes.iter().position(|byte| *byte == 0)?);
    core::str::from_utf8(text).ok()
}

const _: () = assert!(SUBJECT + SUBJECT_LEN_MAX + 1 == ProtectionStatus::LEN);

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> ProtectionStatus {
        ProtectionStatus {
            state: State::Protected,
            is_resumed: true,
            version: [3, 4],
            cipher: [0x13, 0x02],
            rule: Some("logs".parse().unwrap()),
            certificate: Some(PeerCertificate::new([7; 32], "CN=a.example")),
        }
    }

    #[test]
    fn a_value_reads_as_it_is_written() {
        let not_begun = ProtectionStatus { state: State::NotBegun, ..ProtectionStatus::default() };
        for status in [whole(), not_begun, ProtectionStatus::default()] {
            assert_eq!(ProtectionStatus::from_bytes(&status.to_bytes()), Some(status));
        }
        let bytes = whole().to_bytes();
        assert_eq!(bytes[..12], *b"\x02\x01\x03\x04\x13\x02logs\0\0");
        assert_eq!((bytes[40], bytes[44], bytes[75]), (1, 7, 7));
        assert_eq!(bytes[76..90], *b"CN=a.example\0\0");
    }

    #[test]
    fn a_long_subject_is_cut_between_characters() {
        let certificate = PeerCertificate::new([0; 32], &"\u{e4}".repeat(200));
        assert_eq!(certificate.subject.len(), 254);
        let status = ProtectionStatus { certificate: Some(certificate), ..whole() };
        assert_eq!(ProtectionStatus::from_bytes(&status.to_bytes()), Some(status));
    }

    #[test]
    fn what_no_gateway_says_is_no_value() {
        for (at, wrong) in
            [(STATE, 5), (RESUMED, 2), (RULE, b' '), (HAS_CERTIFICATE, 2), (SUBJECT, 0xff)]
        {
            let mut bytes = whole().to_bytes();
            bytes[at] = wrong;
            assert_eq!(ProtectionStatus::from_bytes(&bytes), None, "{at}");
        }
        let mut endless = whole().to_bytes();
        endless[SUBJECT..].fill(b'x');
        assert_eq!(ProtectionStatus::from_bytes(&endless), None);
    }
}
