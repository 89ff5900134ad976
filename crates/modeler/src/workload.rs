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
mod shape;
mod units;

pub use parse::{LenError, NameError, parse_len};
pub use shape::{Kind, Workload};
pub use units::Units;

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
