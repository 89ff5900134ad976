//! With a member of etcd that asks for certificates and for a user.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
};
use tempfile::TempDir;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use super::*;
use crate::output;

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes a certificate for 127.0.0.1 until the end of this year, and its key: `NAME.pem` and `NAME.key`.
    fn issue(&self, at: &Path, name: &str, year: i32) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        parameters.distinguished_name = DistinguishedName::new();
        parameters.not_before = date_time_ymd(2020, 1, 1);
        parameters.not_after = date_time_ymd(year, 12, 31);
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = parameters.signed_by(&key, &self.0).unwrap();
        write(&at.join(format!("{name}.pem")), &certificate.pem());
        write(&at.join(format!("{name}.key")), &key.serialize_pem());
    }
}

fn write(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

/// One member, which asks for certificates of the authority `ca`, and what is around it.
struct Member {
    place: TempDir,
    child: Child,
    port: u16,
}

impl Member {
    /// `None`, with a printed line: there is no etcd. Its own certificate ends with this year.
    fn start(year: i32) -> Option<Self> {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let authority = Authority::new("ca");
        write(&at("ca.pem"), &authority.0.pem());
        authority.issue(place.path(), "member", year);
        authority.issue(place.path(), "own", 2090);
        authority.issue(place.path(), "ended", 2021);
        let other = Authority::new("other");
        write(&at("other-ca.pem"), &other.0.pem());
        other.issue(place.path(), "strange", 2090);
        let free = [(); 2].map(|()| TcpListener::bind(("127.0.0.1", 0)).unwrap());
        let [port, peers] = free.each_ref().map(|it| it.local_addr().unwrap().port());
        drop(free);
        let (clients, peers) =
            (format!("https://127.0.0.1:{port}"), format!("http://127.0.0.1:{peers}"));
        let mut command = Command::new("etcd");
        command.args(["--name", "m", "--initial-cluster", &format!("m={peers}")]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.arg("--data-dir").arg(at("data")).arg("--trusted-ca-file").arg(at("ca.pem"));
        command.arg("--cert-file").arg(at("member.pem")).arg("--key-file").arg(at("member.key"));
        // The least that there is: a password is checked within the time that a distributor waits.
        command.args(["--client-cert-auth", "--bcrypt-cost", "4"]);
        match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => Some(Self { place, child, port }),
            Err(error) => {
                output::complain("test", format!("skipped: etcd cannot be started: {error}"));
                None
            }
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn settings(&self) -> Settings {
        Settings {
            store: Some(vec![format!("https://127.0.0.1:{}", self.port).parse().unwrap()]),
            store_ca: Some(self.file("ca.pem")),
            store_certificate: Some(self.file("own.pem")),
            store_key: Some(self.file("own.key")),
            ..Settings::default()
        }
    }

    fn user(&self, user: &str) -> Settings {
        let file = self.file(&format!("user-{user}"));
        write(&file, &format!("{user}\n"));
        Settings { store_user_file: Some(file), ..self.settings() }
    }

    /// Until it has answered something.
    fn await_answer(&self, expected: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let said = read(&self.settings());
            if said.contains(expected) {
                return;
            }
            assert!(Instant::now() < deadline, "{said}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// From here on it wants a user. `distributor` may use the keys of distributors, `other` none.
    fn admit_users(&self) {
        let store = Store::configured(&self.settings()).unwrap().unwrap();
        let keys = json!({
            "permType": "READWRITE",
            "key": encoded(PREFIX),
            "range_end": encoded(&format!("{}0", PREFIX.trim_end_matches('/'))),
        });
        let mut questions = vec![
            ("role/add", json!({"name": "root"})),
            ("role/add", json!({"name": "distributor"})),
            ("role/grant", json!({"name": "distributor", "perm": keys})),
        ];
        for user in ["root", "distributor", "other"] {
            questions.push(("user/add", json!({"name": user, "password": "right"})));
        }
        for user in ["root", "distributor"] {
            questions.push(("user/grant", json!({"user": user, "role": user})));
        }
        questions.push(("enable", json!({})));
        for (path, question) in questions {
            let answer = wait(store.tell(&format!("/v3/auth/{path}"), &question, None));
            answer.unwrap_or_else(|error| panic!("{path} {question}: {error}"));
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn wait<T>(answer: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, answer)
}

/// What a look into the store comes to.
fn read(settings: &Settings) -> String {
    let store = Store::configured(settings).and_then(|store| {
        wait(store.expect("it has members").read()).map_err(|error| error.to_string())
    });
    store.map_or_else(|error| error, |contents| format!("{:?}", contents.snapshot))
}

#[test]
fn members_and_distributors_know_each_other_by_certificates() {
    let Some(member) = Member::start(2090) else { return };
    member.await_answer("record: None");
    let right = || member.settings();
    let file = |name: &str| Some(member.file(name));
    let by_name = vec![format!("https://localhost:{}", member.port).parse().unwrap()];
    for (settings, expected) in [
        (
            Settings { store_ca: file("other-ca.pem"), ..right() },
            "its certificate is not of the CA in `store_ca`",
        ),
        (Settings { store: Some(by_name), ..right() }, "is not for the host in `store`"),
        (
            Settings { store_certificate: None, store_key: None, ..right() },
            "it wants a certificate of a CA that it knows",
        ),
        (
            Settings {
                store_certificate: file("strange.pem"),
                store_key: file("strange.key"),
                ..right()
            },
            "it wants a certificate of a CA that it knows",
        ),
        (
            Settings {
                store_certificate: file("ended.pem"),
                store_key: file("ended.key"),
                ..right()
            },
            "ended.pem: its certificate has ended",
        ),
        (Settings { store_key: file("strange.key"), ..right() }, "own.pem with"),
        (Settings { store_key: None, ..right() }, "go together"),
        (Settings { store_ca: file("absent"), ..right() }, "absent cannot be read"),
    ] {
        let said = read(&settings);
        assert!(said.contains(expected), "{said}, not {expected}");
    }
}

#[test]
fn a_member_whose_certificate_has_ended_is_not_believed() {
    let Some(member) = Member::start(2021) else { return };
    member.await_answer("its certificate has ended; renew it");
}

#[test]
fn a_user_with_the_right_password_and_role_may_write() {
    let Some(member) = Member::start(2090) else { return };
    member.await_answer("record: None");
    member.admit_users();
    for (settings, expected) in [
        (member.settings(), "a role of the user in `store_user_file`"),
        (member.user("distributor:wrong"), "by the password in `store_user_file`"),
        (member.user("stranger:right"), "by the password in `store_user_file`"),
        (member.user("other:right"), "a role of the user in `store_user_file`"),
    ] {
        let said = read(&settings);
        assert!(said.contains(expected), "{said}, not {expected}");
    }

    let store = |user: &str| Store::configured(&member.user(user)).unwrap().unwrap();
    let (distributor, root) = (store("distributor:right"), store("root:right"));
    let record = Record { drained: vec!["a/b".to_owned()], ..Record::default() };
    let written = wait(distributor.write(0, &record));
    assert!(matches!(written, Ok(Written::Done(_))), "{written:?}");
    let old = distributor.token.borrow().clone();
    // A new password ends all tokens.
    let again = json!({"name": "distributor", "password": "right"});
    wait(root.ask("/v3/auth/user/changepw", &again)).unwrap();
    let contents = wait(distributor.read()).unwrap();
    assert_eq!(contents.snapshot.record.unwrap().1, record);
    assert_ne!(*distributor.token.borrow(), old, "it has logged in again");
}
