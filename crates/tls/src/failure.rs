//! Why a connection is not protected, or not any more.
//!
//! TLS tells the peer by an *alert*, which has a number and a name. Both ends of a failure log the same name, so it
//! stands in each text.

use std::fmt;

use rustls::{AlertDescription, CertificateError, Error};
use thiserror::Error as ThisError;

/// Why, and with which alert.
#[derive(Clone, Debug, ThisError, PartialEq, Eq)]
pub enum Failure {
    /// The peer has ended it.
    #[error("the peer refuses: alert {0}")]
    ByPeer(Alert),
    /// The certificate of the peer will not do.
    #[error("the peer's certificate: {words}; it is told so: alert {alert}")]
    Certificate {
        /// What is wrong with it.
        words: String,
        /// What the peer is told.
        alert: Alert,
    },
    /// The peer has shown no certificate, and has to.
    #[error("the peer has shown no certificate; it is told so: alert {0}")]
    NoCertificate(Alert),
    /// The two have no version, cipher suite or protocol in common, or what came is no TLS.
    #[error("{words}{}", AsTold(*alert))]
    Protocol {
        /// What was wrong.
        words: String,
        /// What the peer is told, where that is known.
        alert: Option<Alert>,
    },
    /// The TCP connection has ended, and the peer has not said that it would.
    #[error("the peer has ended TCP without close_notify: bytes may be missing")]
    Truncated,
    /// The same before the connection was protected.
    #[error("the peer has ended TCP in the middle of the handshake")]
    Unfinished,
    /// The program has begun TLS in the middle of the connection, and the peer has sent plain text behind that place: somebody
    /// on the way may have put it there, for the program to take it for protected.
    #[error(
        "the peer has sent bytes in plain text where TLS begins (of those somebody on the way can send, as with \
         STARTTLS injection)"
    )]
    Ahead,
    /// The rule wants the name that the program has resolved, and it is not known.
    #[error(
        "its program has not resolved a name to that address by the C library, or several; say in server_name \
         for whom the server's certificate has to be"
    )]
    Unnamed,
    /// The handshake takes longer than it may.
    #[error("the handshake was not over in time")]
    TooLate,
}

struct AsTold(Option<Alert>);

impl fmt::Display for AsTold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |alert| write!(f, "; the peer is told so: alert {alert}"))
    }
}

/// An alert of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alert(u8);

impl Alert {
    /// *Source*: RFC 8446 §6, RFC 5246 §7.2, RFC 7301.
    const NAMES: [(u8, &'static str); 27] = [
        (0, "close_notify"),
        (10, "unexpected_message"),
        (20, "bad_record_mac"),
        (22, "record_overflow"),
        (40, "handshake_failure"),
        (42, "bad_certificate"),
        (43, "unsupported_certificate"),
        (44, "certificate_revoked"),
        (45, "certificate_expired"),
        (46, "certificate_unknown"),
        (47, "illegal_parameter"),
        (48, "unknown_ca"),
        (49, "access_denied"),
        (50, "decode_error"),
        (51, "decrypt_error"),
        (70, "protocol_version"),
        (71, "insufficient_security"),
        (80, "internal_error"),
        (86, "inappropriate_fallback"),
        (90, "user_canceled"),
        (100, "no_renegotiation"),
        (109, "missing_extension"),
        (110, "unsupported_extension"),
        (112, "unrecognized_name"),
        (113, "bad_certificate_status_response"),
        (116, "certificate_required"),
        (120, "no_application_protocol"),
    ];

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The alert in a record that is not encrypted, if it is one.
    fn of_record(record: &[u8]) -> Option<Self> {
        match record {
            [21, 3, _, 0, 2, _level, number] => Some(Self(*number)),
            _ => None,
        }
    }
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.iter().find(|(number, _)| *number == self.0) {
            Some((number, name)) => write!(f, "{name} ({number})"),
            None => self.0.fmt(f),
        }
    }
}

impl From<AlertDescription> for Alert {
    fn from(alert: AlertDescription) -> Self {
        Self(alert.into())
    }
}

impl Failure {
    /// What rustls says, which has left `records` for the peer to be told.
    pub(crate) fn of(error: &Error, records: &[u8]) -> Self {
        let told = (0..records.len()).find_map(|at| Alert::of_record(&records[at..]));
        match error {
            Error::AlertReceived(alert) => Self::ByPeer((*alert).into()),
            Error::InvalidCertificate(reason) => Self::Certificate {
                words: words_of(reason),
                alert: told.unwrap_or_else(|| AlertDescription::from(reason.clone()).into()),
            },
            Error::NoCertificatesPresented => Self::NoCertificate(told.unwrap_or(Alert(116))),
            Error::InvalidMessage(reason) => Self::Protocol {
                words: error.to_string(),
                alert: told.or_else(|| Some(AlertDescription::from(*reason).into())),
            },
            Error::DecryptError => Self::Protocol {
                words: "a record is damaged".to_owned(),
                alert: told.or(Some(Alert(20))),
            },
            Error::NoApplicationProtocol => Self::Protocol {
                words: "the peer names none of the rule's protocols (alpn)".to_owned(),
                alert: told.or(Some(Alert(120))),
            },
            other => Self::Protocol { words: other.to_string(), alert: told },
        }
    }

    /// The alert, whichever end has sent it.
    #[must_use]
    pub const fn alert(&self) -> Option<Alert> {
        match self {
            Self::ByPeer(alert) | Self::NoCertificate(alert) | Self::Certificate { alert, .. } => {
                Some(*alert)
            }
            Self::Protocol { alert, .. } => *alert,
            Self::Truncated | Self::Unfinished | Self::Ahead | Self::Unnamed | Self::TooLate => {
                None
            }
        }
    }
}

/// The three that operators meet, in fewer words.
fn words_of(reason: &CertificateError) -> String {
    match reason {
        CertificateError::UnknownIssuer => {
            "it was issued by an authority that the rule does not trust".to_owned()
        }
        CertificateError::Expired => "it has ended".to_owned(),
        CertificateError::ApplicationVerificationFailure => {
            "it has none of the rule's client_names".to_owned()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_have_the_names_of_the_standard() {
        let shown = |alert: AlertDescription| Alert::from(alert).to_string();
        assert_eq!(shown(AlertDescription::CertificateExpired), "certificate_expired (45)");
        assert_eq!(shown(AlertDescription::UnknownCA), "unknown_ca (48)");
        assert_eq!(shown(AlertDescription::Unknown(200)), "200");
    }

    #[test]
    fn an_alert_in_the_clear_is_found_behind_other_records() {
        let records = b"\x16\x03\x03\0\x01x\x15\x03\x03\0\x02\x02\x46";
        let error = Error::General("no version in common".to_owned());
        let failure = Failure::of(&error, records);
        assert_eq!(failure.alert().map(Alert::number), Some(70));
        assert!(failure.to_string().ends_with("alert protocol_version (70)"), "{failure}");
    }
}
