//! How the store is reached: by TCP, or by TLS with the CA of its members and a certificate of ours, and in whose name.
//!
//! Files are read once, when the distributor starts. Those with a secret have to be their owner's alone.

use std::error::Error;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::geteuid;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use sidestep_tls::check;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::options::Settings;
use crate::store_address::StoreAddress;

/// How members are reached, and in whose name they are asked.
pub(super) struct Access {
    tls: Option<TlsConnector>,
    pub(super) login: Option<Login>,
}

/// A user of etcd.
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: String,
}

/// A connection to a member.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

impl Access {
    /// As the configuration has it.
    ///
    /// # Errors
    /// Why members cannot be reached so, and what to do.
    pub(super) fn read(settings: &Settings) -> Result<Self, String> {
        let members = settings.store.as_deref().unwrap_or_default();
        let secure = members.iter().filter(|member| member.is_secure()).count();
        if secure == 0 {
            return match key_of_tls(settings) {
                None => Ok(Self { tls: None, login: None }),
                Some(key) => Err(format!(
                    "`{key}` is for members by https://, and no member of `store` is by it"
                )),
            };
        }
        if secure < members.len() {
            let why =
                "some members of `store` are by https:// and some by http://; have all by https://";
            return Err(why.to_owned());
        }
        let tls = TlsConnector::from(Arc::new(config(settings)?));
        let login = settings.store_user_file.as_deref().map(login).transpose()?;
        Ok(Self { tls: Some(tls), login })
    }

    /// A connection to a member, by TLS if that is how it is reached.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(super) async fn secured(
        &self,
        member: &StoreAddress,
        stream: TcpStream,
    ) -> Result<Box<dyn Stream>, String> {
        let Some(connector) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(member.host().to_owned())
            .map_err(|_| format!("{} is no name of a certificate", member.host()))?;
        let stream = connector.connect(name, stream).await.map_err(|error| in_words(&error))?;
        Ok(Box::new(stream))
    }
}

/// An error of a connection, and what to do about one of TLS.
pub(super) fn in_words(error: &(dyn Error + 'static)) -> String {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let tls = io.and_then(|it| it.downcast_ref::<rustls::Error>());
        if let Some(words) = tls.and_then(of_tls) {
            return words.to_owned();
        }
        cause = error.source();
    }
    error.to_string()
}

/// What operators meet.
fn of_tls(error: &rustls::Error) -> Option<&'static str> {
    use AlertDescription as Alert;
    use CertificateError as Certificate;
    Some(match error {
        rustls::Error::InvalidCertificate(Certificate::UnknownIssuer) => {
            "its certificate is not of the CA in `store_ca`"
        }
        rustls::Error::InvalidCertificate(
            Certificate::Expired | Certificate::ExpiredContext { .. },
        ) => "its certificate has ended; renew it",
        rustls::Error::InvalidCertificate(
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. },
        ) => {
            "its certificate is not for the host in `store`; have it issued for that name or address"
        }
        rustls::Error::AlertReceived(Alert::CertificateExpired) => {
            "it says that the certificate in `store_certificate` has ended; renew it"
        }
        rustls::Error::AlertReceived(
            Alert::CertificateRequired | Alert::BadCertificate | Alert::UnknownCA,
        ) => {
            "it wants a certificate of a CA that it knows, and still valid; see `store_certificate` and `store_key`"
        }
        _ => return None,
    })
}

/// The first key that is about TLS.
fn key_of_tls(settings: &Settings) -> Option<&'static str> {
    let keys = [
        ("store_ca", settings.store_ca.is_some()),
        ("store_certificate", settings.store_certificate.is_some()),
        ("store_key", settings.store_key.is_some()),
        ("store_user_file", settings.store_user_file.is_some()),
    ];
    keys.into_iter().find_map(|(key, is_said)| is_said.then_some(key))
}

fn config(settings: &Settings) -> Result<ClientConfig, String> {
    let ca = settings.store_ca.as_ref().ok_or(
        "`store` has members by https://; set `store_ca` to the file with the CA of their certificates",
    )?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca, &read(ca)?)? {
        roots.add(certificate).map_err(|error| format!("store_ca: {}: {error}", ca.display()))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(sidestep_tls::crypto_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    match (&settings.store_certificate, &settings.store_key) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(certificate), Some(key)) => {
            let chain = own_certificates(certificate)?;
            let name = key.display();
            let key = PrivateKeyDer::from_pem_slice(&secret(key)?)
                .map_err(|error| format!("store_key: {name} has no private key: {error}"))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| {
                format!("store_certificate: {} with {name}: {error}", certificate.display())
            })
        }
        _ => Err("`store_certificate` and `store_key` go together; set both".to_owned()),
    }
}

/// The certificate that members are shown.
fn own_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read(file)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let of = |concern: check::Concern| format!("store_certificate: {}: {concern}", file.display());
    let until = check::valid_until(&pem).map_err(of)?;
    match check::validity(until, now.cast_signed()) {
        Some(ended @ check::Concern::HasEnded) => return Err(of(ended)),
        Some(concern) => log::warn!("{}", of(concern)),
        None => {}
    }
    certificates(file, &pem)
}

fn certificates(file: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(format!("{} has no certificate", file.display())),
        Ok(all) => Ok(all),
        Err(error) => Err(format!("{} has no certificate: {error}", file.display())),
    }
}

/// `USER:PASSWORD`
fn login(file: &Path) -> Result<Login, String> {
    let line = String::from_utf8(secret(file)?).unwrap_or_default();
    let line = line.trim_end_matches(['\n', '\r']);
    let parts = line.split_once(':').filter(|(user, _)| !user.is_empty() && !line.contains('\n'));
    let (user, password) = parts.ok_or_else(|| {
        let what = "has to have one line, USER:PASSWORD, of a user of etcd";
        format!("store_user_file: {} {what}", file.display())
    })?;
    Ok(Login { user: user.to_owned(), password: password.to_owned() })
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| format!("{} cannot be read: {error}", file.display()))
}

/// What a file has that is this user's, or root's, and not for others.
fn secret(file: &Path) -> Result<Vec<u8>, String> {
    let name = file.display();
    let about = fs::metadata(file).map_err(|error| format!("{name} cannot be read: {error}"))?;
    if about.uid() != 0 && about.uid() != geteuid().as_raw() {
        return Err(format!("{name} is another user's; `chown root {name}`"));
    }
    if check::key_mode(about.mode()).is_some() {
        return Err(format!("{name} may be read by others than its owner; `chmod 600 {name}`"));
    }
    read(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn members(scheme: &str) -> Vec<StoreAddress> {
        [1, 2].map(|host| format!("{scheme}://10.0.0.{host}:2379").parse().unwrap()).to_vec()
    }

    fn refusal(settings: &Settings) -> String {
        Access::read(settings).err().expect("a refusal")
    }

    #[test]
    fn what_does_not_go_together_is_refused_in_words() {
        let by =
            |members: Vec<StoreAddress>| Settings { store: Some(members), ..Settings::default() };
        assert!(Access::read(&by(members("http"))).is_ok());
        assert!(refusal(&by(members("https"))).contains("set `store_ca`"));
        let mixed = [&members("http")[..1], &members("https")[..1]].concat();
        assert!(refusal(&by(mixed)).contains("have all by https://"));
        let user = Settings { store_user_file: Some("/a".into()), ..by(members("http")) };
        assert!(refusal(&user).starts_with("`store_user_file` is for members by https://"));
    }

    #[test]
    fn a_user_is_one_line_in_a_file_of_its_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("user");
        for (text, mode, expected) in [
            ("d:hunter2\n", 0o600, Ok(("d", "hunter2"))),
            ("d:a:b", 0o400, Ok(("d", "a:b"))),
            ("d:\r\n", 0o640, Ok(("d", ""))),
            ("d:a", 0o644, Err("chmod 600")),
            ("d", 0o600, Err("USER:PASSWORD")),
            (":a", 0o600, Err("USER:PASSWORD")),
            ("d:a\ne:b\n", 0o600, Err("USER:PASSWORD")),
        ] {
            _ = fs::remove_file(&file);
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            match (login(&file), expected) {
                (Ok(it), Ok(due)) => assert_eq!((&it.user[..], &it.password[..]), due),
                (Err(why), Err(words)) => assert!(why.contains(words), "{why}"),
                (it, _) => panic!("{text:?} {mode:o}: {:?}", it.map(|it| it.user)),
            }
        }
        fs::remove_file(&file).unwrap();
        assert!(login(&file).err().unwrap().contains("cannot be read"));
    }
}
