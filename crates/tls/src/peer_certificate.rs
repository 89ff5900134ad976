//! Whose certificate a peer has shown.

use rustls::pki_types::CertificateDer;
use x509_parser::parse_x509_certificate;

use crate::cryptography;

/// What is told of a certificate that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate {
    /// Such as `C=DE, CN=a.example`.
    pub subject: String,
    /// SHA-256 of it.
    pub sha256: [u8; 32],
}

impl PeerCertificate {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = parse_x509_certificate(certificate).ok()?;
        let subject = parsed.subject().to_string();
        // That of the suite is SHA-256.
        let suite = cryptography::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13()?;
        let sha256 = suite.common.hash_provider.hash(certificate);
        Some(Self { subject, sha256: sha256.as_ref().try_into().ok()? })
    }
}
