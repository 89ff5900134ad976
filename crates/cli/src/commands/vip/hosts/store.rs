//! The store that distributors share: etcd, by its gateway of JSON over HTTP.
//!
//! | Key under [`PREFIX`] | What it has |
//! |---|---|
//! | `record` | who owns the VIPs, who are its backups, what is drained |
//! | `candidates/HOST` | a distributor that takes part |
//! | `secret` | the key by which distributors know each other's messages, drawn by the first one |
//!
//! Every look reads all of it at one revision, and every record is written by a transaction that compares the revision
//! of the one before. etcd answers neither without a majority of its members.

use std::cell::Cell;
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
}

#[derive(Serialize, Deserialize)]
struct CandidateEntry {
    instance: u64,
    rank: u32,
}

impl Store {
    /// With these members.
    pub(super) fn new(members: Vec<StoreAddress>) -> Self {
        Self { members, current: Cell::new(0) }
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
        let entry = RecordEntry { owner, backups, drained };
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

    /// The first answer of a member. What one may have heard is told to no other.
    async fn ask(&self, path: &str, question: &Value) -> Result<Value, StoreError> {
        let mut why = String::new();
        for step in 0..self.members.len() {
            let at = (self.current.get() + step) % self.members.len();
            let member = &self.members[at];
            let connected = timeout(CONNECT_WITHIN, TcpStream::connect(member.authority())).await;
            let stream = match connected {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => {
                    why = format!("{member}: {error}");
                    continue;
                }
                Err(_) => {
                    why = format!("{member}: no connection within {CONNECT_WITHIN:?}");
                    continue;
                }
            };
            self.current.set(at);
            let answer = timeout(ANSWER_WITHIN, exchange(stream, member, path, question)).await;
            let answer =
                answer.unwrap_or_else(|_| Err(format!("nothing within {ANSWER_WITHIN:?}")));
            return answer.map_err(|error| {
                self.current.set(at + 1);
                StoreError::NoAnswer(format!("{member}: {error}"))
            });
        }
        Err(StoreError::NotReached(why))
    }
}

/// One question on a connection of its own.
async fn exchange(
    stream: TcpStream,
    member: &StoreAddress,
    path: &str,
    question: &Value,
) -> Result<Value, String> {
    let in_words = |error: hyper::Error| error.to_string();
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(in_words)?;
    spawn_local(connection);
    let request = Request::post(path)
        .header(header::HOST, member.authority())
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(question.to_string())))
        .map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(in_words)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_LEN_MAX).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    let answer: Value = serde_json::from_slice(&body)
        .map_err(|error| format!("status {status}, and no JSON: {error}"))?;
    if status != StatusCode::OK {
        return Err(answer["error"].as_str().map_or_else(|| status.to_string(), str::to_owned));
    }
    Ok(answer)
}

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
        Self { owner, backups: entry.backups, drained: entry.drained }
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
