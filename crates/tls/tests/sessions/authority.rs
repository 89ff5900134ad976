//! Certificates for tests, and rules with them.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use sidestep_proto::protection::{Role, Scope};
use sidestep_tls::rule::{Expected, Identity, Rule};
use sidestep_tls::setup::{self, SetupError};
use sidestep_tls::{Material, Peer, Setup};

/// When all of it takes place.
#[derive(Debug)]
struct Then;

impl TimeProvider for Then {
    fn current_time(&self) -> Option<UnixTime> {
        let then = date_time_ymd(2026, 7, 1).unix_timestamp().unsigned_abs();
        Some(UnixTime::since_unix_epoch(Duration::from_secs(then)))
    }
}

/// Who issues certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Of two with one name, the second would be taken for the first, and its signature be wrong.
        let key = KeyPair::generate().unwrap();
        let name = format!("authority {:?}", key.public_key_raw());
        parameters.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(parameters, key).unwrap())
    }

    pub(crate) fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }

    /// A certificate for this name, valid until the end of this year, and its key.
    pub(crate) fn issue(&self, name: &str, year: i32) -> (Vec<u8>, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new([name.to_owned()]).unwrap();
        parameters.not_before = date_time_ymd(2020, 1, 1);
        parameters.not_after = date_time_ymd(year, 12, 31);
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = parameters.signed_by(&key, &self.0).unwrap();
        (certificate.pem().into_bytes(), key.serialize_pem().into_bytes())
    }
}

/// A rule of this role for port 8443, whose paths nothing reads.
pub(crate) fn rule(role: Role) -> Rule {
    let ports = ["8443".parse().unwrap()].into_iter().collect();
    let (begin, peers, users) = Default::default();
    let rule = Rule::new(Scope { role, begin, name: "test".parse().unwrap(), ports, peers, users });
    match role {
        Role::Outbound => Rule { server_name: Some(named("a.example")), ..rule },
        Role::Inbound => {
            let identity = Identity { certificate: "/c".into(), key: "/k".into() };
            Rule { identity: Some(identity), ..rule }
        }
    }
}

pub(crate) fn named(name: &str) -> Expected {
    Expected::Name(name.parse().unwrap())
}

/// At 10.0.0.1, found by this name if by any.
pub(crate) fn peer(resolved: Option<&str>) -> Peer {
    let resolved = resolved.map(|it| Box::new(it.parse().unwrap()));
    Peer { address: [10, 0, 0, 1].into(), resolved }
}

pub(crate) fn setup(
    rule: Rule,
    identity: Option<(Vec<u8>, Vec<u8>)>,
    trust: &[u8],
) -> Result<Setup, SetupError> {
    let anchors = setup::anchors(trust)?;
    Setup::new(rule, &Material { identity, anchors }, Arc::new(Then))
}

/// A client that trusts this authority, and a server with a certificate for `a.example` by it.
pub(crate) fn pair(authority: &Authority, client: Rule, server: Rule) -> [Setup; 2] {
    let identity = authority.issue("a.example", 2030);
    let trust = authority.pem();
    [setup(client, None, &trust).unwrap(), setup(server, Some(identity), &trust).unwrap()]
}
