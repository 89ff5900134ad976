//! Workloads and their names, in the words of IBM's performance papers.

use serde::{Deserialize, Serialize};

/// What each client does over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// `RR`: connect once; a transaction is a request and its reply.
    #[serde(rename = "RR")]
    RequestResponse,
    /// `CRR`: a transaction is connect, request, reply, close.
    #[serde(rename = "CRR")]
    ConnectRequestResponse,
    /// `STR`: connect once; a transaction is a stream one way or both.
    #[serde(rename = "STR")]
    Streaming,
}

/// A workload such as `RR10(2KB/2KB)`.
///
/// Its text form is its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Workload {
    /// What each client does.
    pub kind: Kind,
    /// Clients, each with a connection of its own: at least 1.
    pub clients: u32,
    /// Bytes from client to server in each transaction: at least 1.
    pub request_len: u64,
    /// Bytes from server to client in each transaction: at least 1.
    pub reply_len: u64,
}
