//! Workloads and their names, in the words of IBM's performance papers.
//!
//! ```text
//!   RR10(2KB/2KB)        CRR40(64B/8kB)       STR1(1B/20MB)
//!   │ │   │   └─ bytes from server to client in each transaction
//!   │ │   └───── bytes from client to server in each transaction
//!   │ └───────── clients, each with a connection of its own
//!   └─────────── what a client does: see [`Kind`]
//! ```
//!
//! Some papers write `[RR][10](2KB/2KB)` for the same. Case does not matter.
//!
//! The papers count in two ways at once: a KB is 1024 bytes, a MB is 1 000 000.
//! [`Units`] has the choice; KiB, MiB and GiB are always powers of two. [`parse`]
//! has the grammar, rule by rule.

mod parse;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use parse::{LenError, NameError, parse_len};

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

/// How many bytes the units of a name stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Units {
    /// As in IBM's papers: a KB has 1024 bytes, a MB 1 000 000, a GB 10⁹.
    #[default]
    Ibm,
    /// As in the SI: a KB has 1000 bytes, a MB 1 000 000, a GB 10⁹.
    Si,
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

    /// The workload with this name. Blanks around it do not count.
    ///
    /// # Errors
    /// It is no name, or a number in it is out of bounds: clients from 1 to
    /// [`CLIENTS_MAX`](Self::CLIENTS_MAX), lengths from 1 to
    /// [`LEN_MAX`](Self::LEN_MAX).
    pub fn parse(text: &str, units: Units) -> Result<Self, NameError> {
        parse::workload(text, units)
    }
}

/// A name in [`Units::Ibm`].
impl FromStr for Workload {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text, Units::Ibm)
    }
}

/// The name in [`Units::Ibm`], each length in its largest unit without a fraction:
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

const KIB: u64 = 1 << 10;
const MB: u64 = 1_000_000;
const GB: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_names_as_the_papers_do() {
        for name in [
            "RR10(2KB/2KB)",
            "RR10(32KB/32KB)",
            "RR50(256KB/256KB)",
            "RR20(100B/800B)",
            "CRR40(64B/8KB)",
            "CRR9(200B/200B)",
            "STR1(1B/20MB)",
            "STR3(20MB/1B)",
        ] {
            let workload: Workload = name.parse().unwrap();
            assert_eq!(workload.to_string(), name);
        }
    }

    #[test]
    fn prints_in_ibms_units_whatever_it_was_parsed_in() {
        let workload = Workload::parse("RR1(2KB/4096)", Units::Si).unwrap();
        assert_eq!(workload.to_string(), "RR1(2000B/4KB)");
    }

    #[test]
    fn a_printed_name_fills_its_column() {
        let workload: Workload = "STR1(1B/20MB)".parse().unwrap();
        assert_eq!(format!("{workload:<15}|{workload:>15}"), "STR1(1B/20MB)  |  STR1(1B/20MB)");
    }
}
