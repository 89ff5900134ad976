//! A rule that is ready to be used: with its certificate and key, and with whom it trusts.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::{ClientConfig, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConnection, RootCertStore, ServerConnection, SupportedProtocolVersion};
use sidestep_proto::protection::{ResolvedName, Role};
use thiserror::Error;

use crate::client_names::NamedClients;
use crate::cryptography;
use crate::failure::Failure;
use crate::rule::{ClientCertificate, Expected, Inconsistent, Rule, Versions};
use crate::session::Session;

/// What a rule names by paths, as bytes.
#[derive(Clone, Default)]
pub struct Material {
    /// The certificate of this host and its issuers, in PEM, and the key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Whom it trusts.
    pub anchors: Vec<CertificateDer<'static>>,
}

/// Why a rule cannot be used. Each says what to do.
#[derive(Debug, Error)]
pub enum SetupError {
    /// It contradicts itself.
    #[error(transparent)]
    Rule(#[from] Inconsistent),
    /// There is no certificate in the file.
    #[error(
        "the certificate is not one in PEM ({0}); use a file that begins with BEGIN CERTIFICATE"
    )]
    Certificate(String),
    /// There is no key in the file.
    #[error(
        "the key is not one in PEM without a password ({0}); `openssl pkey -in OLD -out NEW` writes one"
    )]
    Key(String),
    /// The key is another one's.
    #[error("the certificate and the key do not go together: {0}")]
    Pair(rustls::Error),
    /// No peer could be verified.
    #[error("trusts no authority; use a file in PEM with at least one certificate")]
    TrustsNone,
    /// What was given as an authority is none.
    #[error("one of the authorities that it trusts is no certificate: {0}")]
    Anchor(rustls::Error),
    /// The cryptography cannot do it.
    #[error("{0}")]
    Other(String),
}

/// Reads authorities in PEM.
///
/// # Errors
///
/// [`SetupError::Certificate`].
pub fn anchors(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, SetupError> {
    certificates(pem)
}

/// The other end of a connection, as far as this host knows it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it is.
    pub address: IpAddr,
    /// What the program has asked for to find it: a domain name, or its address in numbers.
    pub resolved: Option<Box<ResolvedName>>,
}

/// A rule that is ready.
#[derive(Clone, Debug)]
pub struct Setup {
    rule: Arc<Rule>,
    side: Side,
}

#[derive(Clone, Debug)]
enum Side {
    Client(Arc<ClientConfig>),
    Server(Arc<ServerConfig>),
}

impl Setup {
    /// With the material that the rule names, and a clock by which certificates are judged.
    ///
    /// # Errors
    ///
    /// [`SetupError`].
    pub fn new(
        rule: Rule,
        material: &Material,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Self, SetupError> {
        rule.check()?;
        let side = match rule.scope.role {
            Role::Outbound => Side::Client(Arc::new(client(&rule, material, clock)?)),
            Role::Inbound => Side::Server(Arc::new(server(&rule, material, clock)?)),
        };
        Ok(Self { rule: Arc::new(rule), side })
    }

    /// What the operator has said.
    #[must_use]
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Begins a connection with this peer. A client makes its first keys here, so it takes CPU time.
    ///
    /// # Errors
    ///
    /// [`Failure::Unnamed`], or the cryptography has no random numbers.
    pub fn begin(&self, peer: &Peer) -> Result<Session, Failure> {
        let connection = match &self.side {
            Side::Client(config) => {
                ClientConnection::new(Arc::clone(config), self.server_name(peer)?).map(Into::into)
            }
            Side::Server(config) => ServerConnection::new(Arc::clone(config)).map(Into::into),
        };
        let connection = connection.map_err(|error| Failure::of(&error, &[]))?;
        Ok(Session::new(connection, self.rule.unclean_end))
    }

    /// Whom the certificate of this server has to be for.
    fn server_name(&self, peer: &Peer) -> Result<ServerName<'static>, Failure> {
        let address = ServerName::IpAddress(peer.address.into());
        match &self.rule.server_name {
            Some(Expected::Name(name)) => Ok(name.server_name().clone()),
            Some(Expected::Resolved) => {
                let resolved = peer.resolved.as_ref().ok_or(Failure::Unnamed)?;
                match ServerName::try_from(resolved.as_str().to_owned()) {
                    Ok(name @ ServerName::DnsName(_)) => Ok(name),
                    Ok(_) => Ok(address),
                    Err(_) => Err(Failure::Unnamed),
                }
            }
            // `check` has seen that there is one of the three.
            Some(Expected::Address) | None => Ok(address),
        }
    }
}

fn client(
    rule: &Rule,
    material: &Material,
    clock: Arc<dyn TimeProvider>,
) -> Result<ClientConfig, SetupError> {
    let provider = provider(rule);
    let verifier =
        WebPkiServerVerifier::builder_with_provider(roots(material)?, Arc::clone(&provider))
            .build()
            .map_err(|error| SetupError::Other(error.to_string()))?;
    let builder = ClientConfig::builder_with_details(provider, clock)
        .with_protocol_versions(&versions(rule.versions))
        .map_err(|error| SetupError::Other(error.to_string()))?
        .with_webpki_verifier(verifier);
    let mut config = match &material.identity {
        Some((certificate, key)) => builder
            .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
            .map_err(SetupError::Pair)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = protocols(rule);
    config.enable_sni = rule.server_name != Some(Expected::Address);
    Ok(config)
}

fn server(
    rule: &Rule,
    material: &Material,
    clock: Arc<dyn TimeProvider>,
) -> Result<ServerConfig, SetupError> {
    let provider = provider(rule);
    let builder = ServerConfig::builder_with_details(Arc::clone(&provider), clock)
        .with_protocol_versions(&versions(rule.versions))
        .map_err(|error| SetupError::Other(error.to_string()))?;
    let builder = match rule.client_certificate {
        ClientCertificate::None => builder.with_no_client_auth(),
        _ => builder.with_client_cert_verifier(clients(rule, material, provider)?),
    };
    let (certificate, key) = material.identity.as_ref().ok_or(Inconsistent::NoIdentity)?;
    let mut config = builder
        .with_single_cert(certificates(certificate)?, private_key(key)?)
        .map_err(SetupError::Pair)?;
    config.alpn_protocols = protocols(rule);
    Ok(config)
}

fn clients(
    rule: &Rule,
    material: &Material,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, SetupError> {
    let builder = WebPkiClientVerifier::builder_with_provider(roots(material)?, provider);
    let builder = match rule.client_certificate {
        ClientCertificate::Needed => builder,
        _ => builder.allow_unauthenticated(),
    };
    let inner = builder.build().map_err(|error| SetupError::Other(error.to_string()))?;
    Ok(match rule.client_names.is_empty() {
        true => inner,
        false => Arc::new(NamedClients { inner, names: rule.client_names.clone() }),
    })
}

/// The cryptography, with the suites that the rule allows.
fn provider(rule: &Rule) -> Arc<CryptoProvider> {
    let mut provider = cryptography::default_provider();
    if !rule.ciphers.is_empty() {
        provider.cipher_suites = rule.ciphers.iter().filter_map(|it| it.supported()).collect();
    }
    Arc::new(provider)
}

fn versions(versions: Versions) -> Vec<&'static SupportedProtocolVersion> {
    let allowed = [(versions.tls13, &TLS13), (versions.tls12, &TLS12)];
    allowed.into_iter().filter_map(|(is_allowed, version)| is_allowed.then_some(version)).collect()
}

fn protocols(rule: &Rule) -> Vec<Vec<u8>> {
    rule.alpn.iter().map(|name| name.as_bytes().to_vec()).collect()
}

fn roots(material: &Material) -> Result<Arc<RootCertStore>, SetupError> {
    let mut roots = RootCertStore::empty();
    for anchor in &material.anchors {
        roots.add(anchor.clone()).map_err(SetupError::Anchor)?;
    }
    if roots.is_empty() { Err(SetupError::TrustsNone) } else { Ok(Arc::new(roots)) }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, SetupError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|error| SetupError::Certificate(error.to_string()))?;
    match read.is_empty() {
        true => Err(SetupError::Certificate("there is none".to_owned())),
        false => Ok(read),
    }
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, SetupError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| SetupError::Key(error.to_string()))
}
