//! Which field of the peer's was wrong, as a number that fits into shared memory.

use core::fmt;
use sidestep_wire::Error;

/// A field of the peer's messages, or of the record that it shares.
///
/// The number is the place in [`NAMES`], from 1 on, and stays what it is: new names come at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field(u32);

/// What `wire` calls the fields of CLC messages and of datagrams between processes; then those
/// of a record in a slab, which has no message, and what comes beside one.
const NAMES: &[&str] = &[
    "CLC eyecatcher",
    "CLC type",
    "CLC length",
    "CLC version",
    "CLC trailer",
    "CLC type bits",
    "Proposal length",
    "Proposal typev1",
    "Proposal peer ID",
    "Proposal RoCE GID",
    "Proposal MAC",
    "IP area offset",
    "ISM GID",
    "ISM CHID",
    "v2 extension offset",
    "IP prefix area",
    "IPv4 subnet",
    "IPv4 prefix length",
    "IPv6 prefix count",
    "IPv6 prefix",
    "IPv6 prefix length",
    "v2 extension",
    "UEID count",
    "GID count",
    "v2 extension release",
    "SMC-Dv2 extension offset",
    "RoCEv2 GID",
    "max connections",
    "max links",
    "v2 extension feature mask",
    "UEID",
    "UEID length",
    "SMC-Dv2 extension",
    "SEID",
    "GID entry",
    "GID entry GID",
    "GID entry CHID",
    "Accept or Confirm length",
    "Decline length",
    "Decline peer ID",
    "Decline diagnosis",
    "Decline operating system",
    "Decline further diagnosis 1",
    "Decline further diagnosis 2",
    "Decline further diagnosis 3",
    "Decline further diagnosis 4",
    "SMC-R peer ID",
    "SMC-R GID",
    "SMC-R MAC",
    "QP number",
    "RKey",
    "RMBE index",
    "alert token",
    "RMBE size and MTU codes",
    "RMB address",
    "initial PSN",
    "negotiated EID",
    "SMC-R version 2 continuation",
    "SMC-D GID",
    "DMB token",
    "DMBE index",
    "DMBE size code",
    "SMC-D link ID",
    "SMC-D GID extension",
    "SMC-D version 1 reserved",
    "first contact extension",
    "first contact direct",
    "first contact release",
    "first contact host name",
    "first contact max connections",
    "first contact max links",
    "first contact feature mask",
    "GID list",
    "GID list count",
    "GID list entry",
    "control magic",
    "control version",
    "control kind",
    "control length",
    "control instance",
    "Hello slot",
    "Hello generation",
    "Hello token",
    "Hello socket cookie",
    "Hello network namespace cookie",
    "Hello RMBE length",
    "Introduction reply wanted",
    "Introduction process ID",
    "Introduction slab length",
    "Introduction link ID",
    "Channel channel",
    "Lookup token",
    "Lookup role",
    "Lookup port",
    "Match token",
    "Match port",
    "Match role",
    "Match user of the reader",
    "Match user",
    "Match group",
    "Refusal cause",
    "record RMBE length",
    "record ring offset",
    "rings named in the slab",
    "Introduction memory",
    "Match granted",
];

impl Field {
    /// Not told which.
    pub const UNTOLD: Self = Self(0);
    /// Another CLC message than the one that is due.
    pub const CLC_TYPE: Self = Self::named("CLC type");
    /// A form of SMC that was not offered.
    pub const CLC_TYPE_BITS: Self = Self::named("CLC type bits");
    /// A device that is not the sender's.
    pub const GID_ENTRY: Self = Self::named("GID entry GID");
    /// The device of an Accept or Confirm is not its sender's.
    pub const GID: Self = Self::named("SMC-D GID");
    /// A channel that was not offered.
    pub const CHID: Self = Self::named("ISM CHID");
    /// An EID that was not offered, or not chosen.
    pub const EID: Self = Self::named("negotiated EID");
    /// A release that was not offered, or not chosen.
    pub const RELEASE: Self = Self::named("first contact release");
    /// Another link group than the one that both know.
    pub const LINK_ID: Self = Self::named("SMC-D link ID");
    /// Another size than was said before.
    pub const SIZE_CODE: Self = Self::named("DMBE size code");
    /// Another datagram than the one that is due.
    pub const CONTROL_KIND: Self = Self::named("control kind");
    /// A slot that no process has.
    pub const HELLO_SLOT: Self = Self::named("Hello slot");
    /// A length that no ring has.
    pub const HELLO_RMBE_LEN: Self = Self::named("Hello RMBE length");
    /// The same in a record.
    pub const RECORD_RMBE_LEN: Self = Self::named("record RMBE length");
    /// A ring that does not lie in the peer's slab.
    pub const RECORD_RING_AT: Self = Self::named("record ring offset");
    /// More of the slab for rings than so many connections take.
    pub const RINGS_NAMED: Self = Self::named("rings named in the slab");
    /// Descriptors that are missing beside an Introduction, or are no memory as it has to be.
    pub const INTRODUCED_MEMORY: Self = Self::named("Introduction memory");

    const fn named(name: &str) -> Self {
        let mut at = 0;
        while !is_same(NAMES[at].as_bytes(), name.as_bytes()) {
            at += 1;
        }
        Self(at as u32 + 1)
    }

    /// The field of an error in reading. One whose name has no number is not told.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        let at = NAMES.iter().position(|name| *name == error.field());
        at.map_or(Self::UNTOLD, |at| Self(at as u32 + 1))
    }

    /// The field with this number. One that this version does not know is kept.
    #[must_use]
    pub const fn of_number(number: u32) -> Self {
        Self(number)
    }

    /// Its number; 0: not told.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Its name, if it is told and this version knows it.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        NAMES.get((self.0 as usize).checked_sub(1)?).copied()
    }
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self.0) {
            (Some(name), _) => f.write_str(name),
            (None, 0) => f.write_str("a field that is not told"),
            (None, number) => {
                write!(f, "a field that this version of Sidestep does not know (number {number})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};
    use std::string::String;
    use std::vec::Vec;
    use std::{format, fs};

    /// The files of `wire` that say what messages between two processes consist of.
    fn sources() -> Vec<PathBuf> {
        let of = |folder: &Path| {
            let entries =
                fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
            entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
        };
        let wire = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/src");
        let folders = ["clc", "clc/accept_confirm", "host_control"];
        let files =
            ["clc.rs", "host_control.rs", "ids.rs", "rmbe_size.rs"].map(|file| wire.join(file));
        let nested = folders.iter().flat_map(|folder| of(&wire.join(folder)));
        let is_rust = |path: &PathBuf| path.extension().is_some_and(|it| it == "rs");
        files.into_iter().chain(nested.filter(is_rust)).collect()
    }

    /// What a file of `wire` calls its fields and sections, its tests left out.
    fn names_in(source: &str) -> Vec<String> {
        let product = source.split("#[cfg(test)]").next().unwrap_or_default();
        let words: Vec<_> = product.split_whitespace().collect();
        let product = words.join(" ").replace("( \"", "(\"");
        let begins = [("Field::new(", ""), ("field: ", ""), (": &str = ", ""), ("", "control ")];
        let found = begins.iter().flat_map(|(before, with)| {
            let rests: Vec<_> = product.split(&format!("{before}\"{with}")).skip(1).collect();
            rests
                .into_iter()
                .filter_map(move |rest| Some(format!("{with}{}", rest.split_once('"')?.0)))
        });
        found.collect()
    }

    #[test]
    fn every_field_that_wire_can_name_has_a_number() {
        let sources = sources().into_iter().map(|path| fs::read_to_string(path).unwrap());
        let in_wire: BTreeSet<_> = sources.flat_map(|source| names_in(&source)).collect();
        let known: BTreeSet<_> = NAMES.iter().map(|name| String::from(*name)).collect();
        let without_number: Vec<_> = in_wire.difference(&known).collect();
        assert!(without_number.is_empty(), "give them numbers: {without_number:?}");
        let of_records: Vec<_> = known.difference(&in_wire).collect();
        let expected = [
            "Introduction memory",
            "record RMBE length",
            "record ring offset",
            "rings named in the slab",
        ];
        assert_eq!(of_records, expected);
    }

    #[test]
    fn a_number_stands_for_one_name() {
        let names: BTreeSet<_> = NAMES.iter().collect();
        assert_eq!(names.len(), NAMES.len());
        for (number, name) in (1..).zip(NAMES) {
            let field = Field::of_number(number);
            assert_eq!((field.number(), field.name()), (number, Some(*name)));
            let error = Error::Invalid { field: name, value: 0 };
            assert_eq!(Field::of(&error), field);
        }
        assert_eq!(Field::HELLO_RMBE_LEN.name(), Some("Hello RMBE length"));
    }

    #[test]
    fn numbers_that_were_given_stay() {
        let given =
            [(1, "CLC eyecatcher"), (58, "SMC-R version 2 continuation"), (76, "control magic")];
        for (number, name) in given {
            assert_eq!(Field::of_number(number).name(), Some(name));
        }
        assert_eq!(Field::RINGS_NAMED.number(), 104);
        assert_eq!(Field::INTRODUCED_MEMORY.number(), 105);
    }

    #[test]
    fn what_is_not_known_is_said_to_be() {
        let [untold, later] = [Field::UNTOLD, Field::of_number(9_999)];
        assert_eq!((untold.name(), later.name()), (None, None));
        let words = "a field that this version of Sidestep does not know (number 9999)";
        assert_eq!(format!("{later}"), words);
        let error = Error::Invalid { field: "no such field", value: 0 };
        assert_eq!(Field::of(&error), Field::UNTOLD);
    }
}
