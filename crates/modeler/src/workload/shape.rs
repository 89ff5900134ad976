//! What a workload is: what each client does, how many there are, with how many bytes.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::units::{GB, KIB, MB};

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

impl Workload {
    /// The most clients a workload may have. One address has 65 535 ports, so more
    /// than this cannot connect to a server with any usual number of addresses; a
    /// larger number is a slip of the hand.
    pub const CLIENTS_MAX: u32 = 100_000;

    /// The most bytes of a request or reply: 1 GB. A transaction must be short
    /// against a run, and no host moves more than some GB in the second that a run
    /// lasts by default.
    pub const LEN_MAX: u64 = GB;
}

/// The name in [`Units::Ibm`](super::Units::Ibm), each length in its largest unit without a fraction:
/// the way the papers print it. Parsed again it is the same workload.
impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, clients, request_len, reply_len } = *self;
        f.pad(&format!("{kind}{clients}({}/{})", Len(request_len), Len(reply_len)))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::RequestResponse => "RR",
            Self::ConnectRequestResponse => "CRR",
            Self::Streaming => "STR",
        })
    }
}

/// A length as it stands in a name.
struct Len(u64);

impl fmt::Display for Len {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // MB before KB: 20 000 000 is 20MB to the papers, 262 144 is 256KB.
        let (scale, unit) = [(GB, "GB"), (MB, "MB"), (KIB, "KB")]
            .into_iter()
            .find(|(scale, _)| self.0.is_multiple_of(*scale))
            .unwrap_or((1, "B"));
        write!(f, "{}{unit}", self.0 / scale)
    }
}
