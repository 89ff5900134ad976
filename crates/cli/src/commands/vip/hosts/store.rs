//! The store that distributors share: etcd, by its gateway of JSON over HTTP, with TLS and a user or without ([`access`]).
//!
//! | Key under [`PREFIX`] | What it has |
//! |---|---|
//! | `record` | who owns the VIPs, who are its backups, what is drained |
//! | `candidates/HOST` | a distributor that takes part |
//! | `secret` | the key by which distributors know each other's messages, drawn by the first one |
//!
//! Every look reads all of it at one revision, and every record is written by a transaction that compares the revision
//! of the one before. etcd answers neither without a majority of its members.

mod access;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sidestep_distributor::election::{Candidate, Process, Record, Snapshot, Written};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio::time::timeout;

use self::access::{Access, Login, Stream, in_words};
use crate::options::Settings;
use crate::store_address::StoreAddress;

const PREFIX: &str = "/sidestep/distributor/";
/// How long a member is waited for.
const CONNECT_WITHIN: Duration = Duration::from_millis(300);
const ANSWER_WITHIN: Duration = Duration::from_millis(700);
/// An answer is not longer.
const ANSWER_LEN_MAX: usize = 1 << 20;

/// Distributors know their messages by it.
pub(super) type Secret = [u8; 16];

/// The members of etcd.
pub(super) struct Store {
    members: Vec<StoreAddress>,
    access: Access,
    /// What etcd has given us for our password.
    token: RefCell<Option<String>>,
    /// The one that has answered last.
    current: Cell<usize>,
}

/// Why the store has not done what was asked.
#[derive(Debug, Error)]
pub(super) enum StoreError {
    #[error("no member of the store can be reached: {0}")]
    NotReached(String),
    #[error("the store does not answer: {0}")]
    NoAnswer(String),
    /// It was not carried out, and never will be.
    #[error("the store refuses: {0}")]
    Refused(String),
    #[error("the store has something else than a distributor writes at {PREFIX}{0}: {1}")]
    Nonsense(&'static str, String),
}

/// What the store has.
pub(super) struct Contents {
    pub(super) snapshot: Snapshot,
    pub(super) secret: Option<Secret>,
}

#[derive(Serialize, Deserialize)]
struct OwnerEntry {
    host: IpAddr,
    instance: u64,
}

#[derive(Serialize, Deserialize)]
struct RecordEntry {
    owner: Option<OwnerEntry>,
    backups: Vec<IpAddr>,
    drained: Vec<String>,
    #[serde(default)]
    moved: bool,
}

#[derive(Serialize, Deserialize)]
struct CandidateEntry {
    instance: u64,
    rank: u32,
}

impl Store {
    /// As the configuration has it; `None`: it has none.
    ///
    /// # Errors
    /// Why it cannot be reached so, and what to do.
    pub(super) fn configured(settings: &Settings) -> Result<Option<Self>, String> {
        let members = settings.store.clone().unwrap_or_default();
        let access = Access::read(settings)?;
        let current = Cell::new(0);
        let store = Self { members, access, token: RefCell::new(None), current };
        Ok((!store.members.is_empty()).then_some(store))
    }

    /// All that it has.
    pub(super) async fn read(&self) -> Result<Contents, StoreError> {
        // The key behind all those that begin so.
        let end = format!("{}0", PREFIX.trim_end_matches('/'));
        let question = json!({"key": encoded(PREFIX), "range_end": encoded(&end)});
        let answer = self.ask("/v3/kv/range", &question).await?;
        let mut contents = Contents { snapshot: Snapshot::default(), secret: None };
        for entry in answer["kvs"].as_array().into_iter().flatten() {
            contents.take(entry)?;
        }
        Ok(contents)
    }

    /// Replaces the record of a revision, 0 if there is none.
    pub(super) async fn write(
        &self,
        expected: u64,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let owner = record.owner.map(|Process { host, instance }| OwnerEntry { host, instance });
        let (backups, drained) = (record.backups.clone(), record.drained.clone());
        let entry = RecordEntry { owner, backups, drained, moved: record.is_moved };
        let key = key_of("record");
        let compare = json!([{
            "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": expected.to_string(),
        }]);
        let transaction = json!({"compare": compare, "success": [put(&key, &in_json(&entry))]});
        match self.ask("/v3/kv/txn", &transaction).await {
            Ok(answer) if answer["succeeded"] == true => {
                let revision = number(&answer["header"]["revision"]);
                Ok(revision.map_or(Written::Unknown, Written::Done))
            }
            Ok(_) => Ok(Written::Conflict),
            Err(error) => Err(error),
        }
    }

    /// Notes a distributor that takes part, and the secret if there is none yet.
    pub(super) async fn register(&self, own: Candidate, secret: Secret) -> Result<(), StoreError> {
        let entry = CandidateEntry { instance: own.process.instance, rank: own.rank };
        let candidate = put(&key_of(&format!("candidates/{}", own.process.host)), &in_json(&entry));
        let key = key_of("secret");
        let compare =
            json!([{"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}]);
        let first = [put(&key, &BASE64_STANDARD.encode(secret)), candidate.clone()];
        let transaction = json!({"compare": compare, "success": first, "failure": [candidate]});
        self.ask("/v3/kv/txn", &transaction).await.map(drop)
    }

    /// The store's answer to our user, if there is one. A token is good for some minutes, and until users are changed.
    async fn ask(&self, path: &str, question: &Value) -> Result<Value, StoreError> {
        let Some(login) = &self.access.login else { return self.tell(path, question, None).await };
        let known = self.token.borrow().clone();
        if let Some(token) = known {
            match self.tell(path, question, Some(&token)).await {
                Err(StoreError::Refused(why)) if why.contains(TOKEN_IS_OLD) => {}
                answer => return answer,
            }
        }
        let token = self.log_in(login).await?;
        self.token.replace(Some(token.clone()));
        self.tell(path, question, Some(&token)).await
    }

    async fn log_in(&self, Login { user, password }: &Login) -> Result<String, StoreError> {
        let question = json!({"name": user, "password": password});
        let answer = self.tell("/v3/auth/authenticate", &question, None).await?;
        let token = answer["token"].as_str().map(str::to_owned);
        token.ok_or_else(|| StoreError::NoAnswer(format!("no token for user {user}")))
    }

    /// The first answer of a member. What one may have heard is told to no other.
    async fn tell(
        &self,
        path: &str,
        question: &Value,
        token: Option<&str>,
    ) -> Result<Value, StoreError> {
        let mut why = String::new();
        for step in 0..self.members.len() {
            let at = (self.current.get() + step) % self.members.len();
            let member = &self.members[at];
            let stream = match self.connect(member).await {
                Ok(stream) => stream,
                Err(error) => {
                    why = format!("{member}: {error}");
                    continue;
                }
            };
            self.current.set(at);
            let answer = exchange(stream, member, path, question, token);
            let answer = timeout(ANSWER_WITHIN, answer)
                .await
                .unwrap_or_else(|_| Err(Fault::Lost(format!("nothing within {ANSWER_WITHIN:?}"))));
            return answer.map_err(|fault| match fault {
                Fault::Refused(why) => StoreError::Refused(format!("{member}: {why}")),
                Fault::Lost(why) => {
                    self.current.set(at + 1);
                    StoreError::NoAnswer(format!("{member}: {why}"))
                }
            });
        }
        Err(StoreError::NotReached(why))
    }

    async fn connect(&self, member: &StoreAddress) -> Result<Box<dyn Stream>, String> {
        let within = |time: Duration| move |_| format!("no connection within {time:?}");
        let connected = timeout(CONNECT_WITHIN, TcpStream::connect(member.authority())).await;
        let stream = connected.map_err(within(CONNECT_WITHIN))?.map_err(|it| it.to_string())?;
        let secured = timeout(ANSWER_WITHIN, self.access.secured(member, stream)).await;
        secured.map_err(within(ANSWER_WITHIN))?
    }
}

/// Why a member that was asked has not done it.
enum Fault {
    /// It says that it does not.
    Refused(String),
    /// It may have.
    Lost(String),
}

/// One question on a connection of its own.
async fn exchange(
    stream: Box<dyn Stream>,
    member: &StoreAddress,
    path: &str,
    question: &Value,
    token: Option<&str>,
) -> Result<Value, Fault> {
    let lost = |error: hyper::Error| Fault::Lost(in_words(&error));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
    spawn_local(connection);
    let mut request = Request::post(path)
        .header(header::HOST, member.authority())
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, token);
    }
    let request = request.body(Full::new(Bytes::from(question.to_string())));
    let request = request.map_err(|error| Fault::Lost(error.to_string()))?;
    let response = sender.send_request(request).await.map_err(lost)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_LEN_MAX).collect().await;
    let body = body.map_err(|error| Fault::Lost(error.to_string()))?.to_bytes();
    let answer: Value = serde_json::from_slice(&body)
        .map_err(|error| Fault::Lost(format!("status {status}, and no JSON: {error}")))?;
    if status == StatusCode::OK {
        return Ok(answer);
    }
    let why = answer["error"].as_str().map_or_else(|| status.to_string(), str::to_owned);
    Err(match advice(&why) {
        Some(advice) => Fault::Refused(format!("{why}: {advice}")),
        None => Fault::Lost(why),
    })
}

/// What to do about an answer by which etcd refuses a question because of who asks; `None`: it says something else.
fn advice(error: &str) -> Option<&'static str> {
    /// In the words of etcd (`etcdserver/api/v3rpc/rpctypes/error.go`).
    const REFUSALS: [(&str, &str); 5] = [
        ("invalid auth token", TOKEN_IS_OLD),
        ("revision of auth store is old", TOKEN_IS_OLD),
        ("user name is empty", "it wants a user; set `store_user_file`"),
        ("authentication failed", "it does not know the user by the password in `store_user_file`"),
        (
            "permission denied",
            "let a role of the user in `store_user_file` read and write all keys that begin with \
             /sidestep/distributor/",
        ),
    ];
    REFUSALS.iter().find(|(words, _)| error.contains(words)).map(|(_, advice)| *advice)
}

const TOKEN_IS_OLD: &str = "the token is old";

impl Contents {
    fn take(&mut self, entry: &Value) -> Result<(), StoreError> {
        let decoded = |name: &str| BASE64_STANDARD.decode(entry[name].as_str()?).ok();
        let key = decoded("key").and_then(|key| String::from_utf8(key).ok()).unwrap_or_default();
        let value = decoded("value").unwrap_or_default();
        let name = key.strip_prefix(PREFIX).unwrap_or_default();
        if name == "record" {
            let wrong = |why: &dyn ToString| StoreError::Nonsense("record", why.to_string());
            let record: RecordEntry = serde_json::from_slice(&value).map_err(|it| wrong(&it))?;
            let revision =
                number(&entry["mod_revision"]).ok_or_else(|| wrong(&"it has no revision"))?;
            self.snapshot.record = Some((revision, record.into()));
        } else if name == "secret" {
            let secret = BASE64_STANDARD.decode(&value).ok().and_then(|it| it.try_into().ok());
            let wrong = || StoreError::Nonsense("secret", "it is not of 16 bytes".to_owned());
            self.secret = Some(secret.ok_or_else(wrong)?);
        } else if let Some(host) = name.strip_prefix("candidates/") {
            let wrong = |why: &dyn ToString| StoreError::Nonsense("candidates", why.to_string());
            let host: IpAddr = host.parse().map_err(|it| wrong(&it))?;
            let CandidateEntry { instance, rank } =
                serde_json::from_slice(&value).map_err(|it| wrong(&it))?;
            let process = Process { host, instance };
            self.snapshot.candidates.push(Candidate { process, rank });
        }
        Ok(())
    }
}

impl From<RecordEntry> for Record {
    fn from(entry: RecordEntry) -> Self {
        let owner = entry.owner.map(|OwnerEntry { host, instance }| Process { host, instance });
        let RecordEntry { backups, drained, moved: is_moved, .. } = entry;
        Self { owner, backups, drained, is_moved }
    }
}

fn encoded(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

fn key_of(name: &str) -> String {
    encoded(&format!("{PREFIX}{name}"))
}

fn put(key: &str, value: &str) -> Value {
    json!({"request_put": {"key": key, "value": encoded(value)}})
}

fn in_json(entry: &impl Serialize) -> String {
    serde_json::to_string(entry).expect("plain values")
}

/// Numbers of 64 bits are texts.
fn number(value: &Value) -> Option<u64> {
    value.as_str()?.parse().ok()
}
