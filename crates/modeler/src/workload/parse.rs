//! From a name to a workload, or to the place where it stops being one.
//!
//! ```text
//! name   = kind clients lengths | "[" kind "]" "[" clients "]" lengths
//! kind   = "RR" | "CRR" | "STR"
//! lengths = "(" length "/" length ")"
//! length = number [ unit ]
//! unit   = "B" | "K" | "KB" | "KiB" | "M" | "MB" | "MiB" | "G" | "GB" | "GiB"
//! ```
//!
//! Letters of either case; without a unit a length is in bytes. All of a name is
//! ASCII, so as long as it is one, bytes, characters and columns are the same thing:
//! the offset at which reading stops is the column of the caret.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::shape::{Kind, Workload};
use super::units::{GB, KIB, MB, Units};

/// A text that is not the name of a workload. Its text form takes several lines: the
/// name, a caret under the character that is wrong, what was expected there, and how
/// names are made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct NameError {
    /// Without blanks around it.
    name: String,
    units: Units,
    fault: Fault,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, fault: Fault { at, expected }, units } = self;
        // A control character would move the caret away from its place, or worse.
        let shown = name.replace(char::is_control, "\u{fffd}");
        let kb = match units {
            Units::Ibm => 1024,
            Units::Si => 1000,
        };
        let clients_max = Workload::CLIENTS_MAX;
        write!(
            f,
            "not the name of a workload:\n\n    {shown}\n    {:at$}^ expected {expected}\n\n\
             A name is RRn(y/z), CRRn(y/z) or STRn(y/z): n clients, 1 to {clients_max}, send y and \
             receive z,\n1B to 1GB each. A KB is {kb} bytes, a MB 1000000, a KiB 1024; \
             [RR][n](y/z) is the same.",
            ""
        )
    }
}

/// A text that is not a length.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a length; use a number with a unit, such as 64KB, from 1B to 1GB")]
pub struct LenError(String);

/// The bytes that a length such as `64KB` stands for. Blanks around it do not count.
///
/// # Errors
/// It is no length, or not from 1 to [`Workload::LEN_MAX`].
pub fn parse_len(text: &str, units: Units) -> Result<u64, LenError> {
    let mut reader = Reader { name: text.trim(), at: 0, units };
    let len = reader.length().and_then(|len| reader.end().map(|()| len));
    len.map_err(|_| LenError(text.to_owned()))
}

impl Workload {
    /// The workload with this name. Blanks around it do not count.
    ///
    /// # Errors
    /// It is no name, or a number in it is out of bounds: clients from 1 to
    /// [`CLIENTS_MAX`](Self::CLIENTS_MAX), lengths from 1 to
    /// [`LEN_MAX`](Self::LEN_MAX).
    pub fn parse(text: &str, units: Units) -> Result<Self, NameError> {
        workload(text, units)
    }
}

/// A name in [`Units::Ibm`].
impl FromStr for Workload {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text, Units::Ibm)
    }
}

/// The workload with this name.
fn workload(text: &str, units: Units) -> Result<Workload, NameError> {
    let name = text.trim();
    let mut reader = Reader { name, at: 0, units };
    reader.workload().map_err(|fault| NameError { name: name.to_owned(), units, fault })
}

/// Where reading stopped, and for want of what.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    /// `0 <= at <= name.len()`; all before it is ASCII.
    at: usize,
    expected: String,
}

/// Reads a name from left to right.
struct Reader<'a> {
    name: &'a str,
    /// What is before has been read, and is ASCII.
    at: usize,
    units: Units,
}

impl Reader<'_> {
    fn workload(&mut self) -> Result<Workload, Fault> {
        let bracketed = self.skip(b'[');
        let kind = self.word(&KINDS, "RR, CRR or STR")?;
        if bracketed {
            self.character(b']')?;
            self.character(b'[')?;
        }
        let clients = self.clients()?;
        if bracketed {
            self.character(b']')?;
        }
        self.character(b'(')?;
        let request_len = self.length()?;
        self.character(b'/')?;
        let reply_len = self.length()?;
        self.character(b')')?;
        self.end()?;
        Ok(Workload { kind, clients, request_len, reply_len })
    }

    fn clients(&mut self) -> Result<u32, Fault> {
        let expected = format!("the number of clients, 1 to {}", Workload::CLIENTS_MAX);
        let start = self.at;
        self.number()
            .and_then(|number| u32::try_from(number).ok())
            .filter(|number| (1..=Workload::CLIENTS_MAX).contains(number))
            .ok_or(Fault { at: start, expected })
    }

    fn length(&mut self) -> Result<u64, Fault> {
        let start = self.at;
        let fault = || Fault { at: start, expected: "a length, 1B to 1GB".to_owned() };
        let number = self.number().ok_or_else(fault)?;
        let [ibm, si] = match self.peek() {
            Some(b'/' | b')') | None => [1, 1],
            Some(_) => self.word(&UNITS, "a unit: B, KB, MB, GB, KiB, MiB or GiB")?,
        };
        let scale = match self.units {
            Units::Ibm => ibm,
            Units::Si => si,
        };
        number
            .checked_mul(scale)
            .filter(|len| (1..=Workload::LEN_MAX).contains(len))
            .ok_or_else(fault)
    }

    /// `None`: there is no digit. A number too large for the type is the largest.
    fn number(&mut self) -> Option<u64> {
        let digits = self.run(u8::is_ascii_digit);
        (!digits.is_empty()).then(|| digits.parse().unwrap_or(u64::MAX))
    }

    /// One of the words of a list, in letters of either case. If it is none, the
    /// fault is at the first letter that fits no word.
    fn word<T: Copy>(&mut self, list: &[(&str, T)], expected: &str) -> Result<T, Fault> {
        let start = self.at;
        let letters = self.run(u8::is_ascii_alphabetic);
        let known = list.iter().find(|(word, _)| word.eq_ignore_ascii_case(letters));
        known.map(|&(_, meaning)| meaning).ok_or_else(|| {
            let fitting = list.iter().map(|(word, _)| common_start_len(word, letters)).max();
            Fault { at: start + fitting.unwrap_or(0), expected: expected.to_owned() }
        })
    }

    fn character(&mut self, wanted: u8) -> Result<(), Fault> {
        if self.skip(wanted) {
            return Ok(());
        }
        Err(Fault { at: self.at, expected: format!("`{}`", char::from(wanted)) })
    }

    fn end(&self) -> Result<(), Fault> {
        if self.at == self.name.len() {
            return Ok(());
        }
        Err(Fault { at: self.at, expected: "nothing more".to_owned() })
    }

    /// Reads this character if it is next.
    fn skip(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn peek(&self) -> Option<u8> {
        self.name.as_bytes().get(self.at).copied()
    }

    /// Reads all characters of an ASCII class that come next.
    fn run(&mut self, class: fn(&u8) -> bool) -> &str {
        let rest = &self.name[self.at..];
        let len = rest.bytes().take_while(class).count();
        self.at += len;
        &rest[..len]
    }
}

fn common_start_len(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count()
}

const KINDS: [(&str, Kind); 3] = [
    ("RR", Kind::RequestResponse),
    ("CRR", Kind::ConnectRequestResponse),
    ("STR", Kind::Streaming),
];

/// Units of lengths, with their bytes in [`Units::Ibm`] and in [`Units::Si`].
const UNITS: [(&str, [u64; 2]); 10] = [
    ("B", [1, 1]),
    ("K", [KIB, 1000]),
    ("KB", [KIB, 1000]),
    ("KiB", [KIB, KIB]),
    ("M", [MB, MB]),
    ("MB", [MB, MB]),
    ("MiB", [KIB * KIB, KIB * KIB]),
    ("G", [GB, GB]),
    ("GB", [GB, GB]),
    ("GiB", [KIB * KIB * KIB, KIB * KIB * KIB]),
];

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use proptest::prelude::*;

    use super::*;

    fn parsed(name: &str) -> (Kind, u32, u64, u64) {
        let Workload { kind, clients, request_len, reply_len } = name.parse().unwrap();
        (kind, clients, request_len, reply_len)
    }

    fn error(name: &str) -> String {
        Workload::parse(name, Units::Ibm).unwrap_err().to_string()
    }

    /// Column of the caret, from 0, and what was expected there.
    fn fault(name: &str) -> (usize, String) {
        let fault = Workload::parse(name, Units::Ibm).unwrap_err().fault;
        (fault.at, fault.expected)
    }

    #[test]
    fn reads_the_forms_of_the_papers() {
        use Kind::{ConnectRequestResponse, RequestResponse, Streaming};
        assert_eq!(parsed("RR10(2KB/2KB)"), (RequestResponse, 10, 2048, 2048));
        assert_eq!(parsed("CRR40(64B/8kB)"), (ConnectRequestResponse, 40, 64, 8192));
        assert_eq!(parsed("STR1(1B/20MB)"), (Streaming, 1, 1, 20_000_000));
        assert_eq!(parsed("[RR][10](1B/100B)"), (RequestResponse, 10, 1, 100));
        assert_eq!(parsed("  [crr][9](200b/200b)\n"), (ConnectRequestResponse, 9, 200, 200));
        assert_eq!(parsed("str3(20mb/1)"), (Streaming, 3, 20_000_000, 1));
    }

    #[test]
    fn only_the_kb_depends_on_the_units() {
        let lens = |text| [Units::Ibm, Units::Si].map(|units| parse_len(text, units).unwrap());
        for kb in ["3K", "3KB", "3kB", "3kb"] {
            assert_eq!(lens(kb), [3072, 3000]);
        }
        assert_eq!(lens("7"), [7; 2]);
        assert_eq!(lens("7B"), [7; 2]);
        assert_eq!(lens("3KiB"), [3072; 2]);
        assert_eq!(lens("3M"), [3_000_000; 2]);
        assert_eq!(lens("3MB"), [3_000_000; 2]);
        assert_eq!(lens("3MiB"), [3 << 20; 2]);
        assert_eq!(lens("1G"), [1_000_000_000; 2]);
        assert_eq!(lens("1GB"), [1_000_000_000; 2]);
    }

    #[test]
    fn an_error_shows_the_place_and_the_grammar() {
        assert_snapshot!(error("RR10(2KX/2KB)"), @r"
        not the name of a workload:

            RR10(2KX/2KB)
                   ^ expected a unit: B, KB, MB, GB, KiB, MiB or GiB

        A name is RRn(y/z), CRRn(y/z) or STRn(y/z): n clients, 1 to 100000, send y and receive z,
        1B to 1GB each. A KB is 1024 bytes, a MB 1000000, a KiB 1024; [RR][n](y/z) is the same.
        ");
        let si = Workload::parse("", Units::Si).unwrap_err().to_string();
        assert!(si.contains("A KB is 1000 bytes"), "{si}");
    }

    #[test]
    fn the_caret_is_under_the_first_character_that_fits_nothing() {
        let cases = [
            ("", 0, "RR, CRR or STR"),
            ("10(1/1)", 0, "RR, CRR or STR"),
            ("XRR1(1/1)", 0, "RR, CRR or STR"),
            ("CRX1(1/1)", 2, "RR, CRR or STR"),
            ("RRR1(1/1)", 2, "RR, CRR or STR"),
            ("RR(1/1)", 2, "the number of clients, 1 to 100000"),
            ("RR0(1/1)", 2, "the number of clients, 1 to 100000"),
            ("RR100001(1/1)", 2, "the number of clients, 1 to 100000"),
            ("RR99999999999999999999999(1/1)", 2, "the number of clients, 1 to 100000"),
            ("RR1", 3, "`(`"),
            ("RR1 (1/1)", 3, "`(`"),
            ("RR1()", 4, "a length, 1B to 1GB"),
            ("RR1(0/1)", 4, "a length, 1B to 1GB"),
            ("RR1(2GB/1)", 4, "a length, 1B to 1GB"),
            ("RR1(1GiB/1)", 4, "a length, 1B to 1GB"),
            ("RR1(99999999999999999999GB/1)", 4, "a length, 1B to 1GB"),
            ("RR1(-1/1)", 4, "a length, 1B to 1GB"),
            ("RR1(1.5KB/1)", 5, "a unit: B, KB, MB, GB, KiB, MiB or GiB"),
            ("RR1(1KBB/1)", 7, "a unit: B, KB, MB, GB, KiB, MiB or GiB"),
            ("RR1(1µ/1)", 5, "a unit: B, KB, MB, GB, KiB, MiB or GiB"),
            ("RR1(1)", 5, "`/`"),
            ("RR1(1", 5, "`/`"),
            ("RR1(1/", 6, "a length, 1B to 1GB"),
            ("RR1(1/1", 7, "`)`"),
            ("RR1(1/1/1)", 7, "`)`"),
            ("RR1(1/1) x", 8, "nothing more"),
            ("[RR10(1/1)", 3, "`]`"),
            ("[RR]10(1/1)", 4, "`[`"),
            ("[RR][10(1/1)", 7, "`]`"),
            ("  RR1(1/1", 7, "`)`"),
        ];
        for (name, at, expected) in cases {
            assert_eq!(fault(name), (at, expected.to_owned()), "{name}");
        }
    }

    #[test]
    fn an_error_keeps_control_characters_from_the_terminal() {
        let text = error("RR1(1/1)\u{1b}[2J\r\nx");
        assert!(text.contains("    RR1(1/1)\u{fffd}[2J\u{fffd}\u{fffd}x\n            ^"), "{text}");
    }

    #[test]
    fn a_length_alone_must_be_one() {
        let error = parse_len("64KB/1", Units::Ibm).unwrap_err();
        assert_snapshot!(error, @"`64KB/1` is not a length; use a number with a unit, such as 64KB, from 1B to 1GB");
        for bad in ["", "0", "KB", "64KX", "2GB", "64 KB"] {
            assert!(parse_len(bad, Units::Ibm).is_err(), "{bad}");
        }
    }

    fn units() -> impl Strategy<Value = Units> {
        prop_oneof![Just(Units::Ibm), Just(Units::Si)]
    }

    fn kind() -> impl Strategy<Value = Kind> {
        proptest::sample::select(KINDS.map(|(_, kind)| kind).to_vec())
    }

    /// Any length, and often one that is some units long.
    fn length() -> impl Strategy<Value = u64> {
        let multiples = |unit: u64| (1..=Workload::LEN_MAX / unit).prop_map(move |n| n * unit);
        prop_oneof![multiples(1), multiples(KIB), multiples(MB), multiples(GB)]
    }

    prop_compose! {
        fn any_workload()(
            kind in kind(),
            clients in 1..=Workload::CLIENTS_MAX,
            request_len in length(),
            reply_len in length(),
        ) -> Workload {
            Workload { kind, clients, request_len, reply_len }
        }
    }

    /// A length as a user may write it: 1 to 100 of some unit.
    fn written_length() -> impl Strategy<Value = String> {
        let unit =
            proptest::sample::select(vec!["", "B", "K", "kB", "kb", "KiB", "M", "mb", "MiB"]);
        (1..=100u32, unit).prop_map(|(number, unit)| format!("{number}{unit}"))
    }

    proptest! {
        #[test]
        fn a_printed_name_is_the_same_workload(workload in any_workload()) {
            prop_assert_eq!(Workload::parse(&workload.to_string(), Units::Ibm), Ok(workload));
        }

        #[test]
        fn a_name_in_either_unit_is_printed_as_the_same_workload(
            units in units(),
            kind in kind(),
            clients in 1..=Workload::CLIENTS_MAX,
            request in written_length(),
            reply in written_length(),
            brackets in any::<bool>(),
        ) {
            let name = if brackets {
                format!("[{kind}][{clients}]({request}/{reply})")
            } else {
                format!("{kind}{clients}({request}/{reply})")
            };
            let workload = Workload::parse(&name, units).unwrap();
            prop_assert_eq!(workload.kind, kind);
            prop_assert_eq!(workload.clients, clients);
            prop_assert_eq!(Ok(workload.request_len), parse_len(&request, units));
            prop_assert_eq!(Ok(workload.reply_len), parse_len(&reply, units));
            prop_assert_eq!(workload.to_string().parse::<Workload>(), Ok(workload));
        }

        #[test]
        fn whatever_the_text_the_caret_stands_in_or_behind_it(
            text in "(RR|[\\[\\]RCST]{0,4})?[0-9]{0,3}[(]?[0-9kKiMB/]{0,8}\\PC{0,4}",
        ) {
            if let Err(error) = Workload::parse(&text, Units::Ibm) {
                let before = error.name.get(..error.fault.at);
                prop_assert!(before.is_some_and(str::is_ascii), "{error:?}");
                prop_assert!(error.to_string().contains("^ expected "));
            }
        }
    }
}
