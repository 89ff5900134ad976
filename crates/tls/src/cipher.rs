//! Cipher suites, as operators write them: `C030`, as z/OS does, or `TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384`, as
//! IANA does.

use std::fmt;
use std::str::FromStr;

use rustls::{CipherSuite, SupportedCipherSuite};
use thiserror::Error;

use crate::cryptography;

/// A cipher suite that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cipher(CipherSuite);

/// What a cipher suite may look like.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "use the number or IANA's name of one of these: {}",
    Cipher::all().map(|it| format!("{:04X} {it}", it.number())).collect::<Vec<_>>().join(", ")
)]
pub struct NotCipher;

impl Cipher {
    /// All that there are, the preferred first.
    pub fn all() -> impl Iterator<Item = Self> {
        cryptography::ALL_CIPHER_SUITES.iter().map(|suite| Self(suite.suite()))
    }

    /// Its number at IANA.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0.into()
    }

    /// Whether it is one of TLS 1.3; all others are of TLS 1.2.
    #[must_use]
    pub fn is_of_tls13(self) -> bool {
        self.supported().is_some_and(|suite| suite.tls13().is_some())
    }

    pub(crate) const fn of(suite: CipherSuite) -> Self {
        Self(suite)
    }

    pub(crate) fn supported(self) -> Option<SupportedCipherSuite> {
        cryptography::ALL_CIPHER_SUITES.iter().copied().find(|suite| suite.suite() == self.0)
    }
}

impl FromStr for Cipher {
    type Err = NotCipher;

    fn from_str(text: &str) -> Result<Self, NotCipher> {
        let number = u16::from_str_radix(text, 16).ok().filter(|_| text.len() == 4);
        let is_meant = |it: &Self| number == Some(it.number()) || it.to_string() == text;
        Self::all().find(is_meant).ok_or(NotCipher)
    }
}

/// IANA's name. Those of rustls have the version in them.
impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_str() {
            Some(name) => f.write_str(&name.replacen("TLS13_", "TLS_", 1)),
            None => write!(f, "{:04X}", self.number()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_known_by_number_and_by_name() {
        for (number, name) in [
            ("C030", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"),
            ("1302", "TLS_AES_256_GCM_SHA384"),
            ("cca8", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
        ] {
            let cipher: Cipher = number.parse().unwrap();
            assert_eq!((cipher.to_string().as_str(), name.parse()), (name, Ok(cipher)));
            assert_eq!(cipher.is_of_tls13(), number == "1302");
        }
    }

    #[test]
    fn weak_and_unknown_ones_are_refused_with_what_there_is() {
        // TLS_RSA_WITH_AES_128_CBC_SHA, which z/OS calls 2F.
        for text in ["002F", "2F", "TLS_RSA_WITH_AES_128_CBC_SHA", "", "C0300", "+030"] {
            let error = text.parse::<Cipher>().unwrap_err().to_string();
            assert!(error.contains("1302 TLS_AES_256_GCM_SHA384"), "{text}: {error}");
        }
    }
}
