//! What the commands print. All of it goes through here, and nothing of it commands a terminal.
//!
//! Names of programs, paths, settings, and what is in captures and reports, are chosen by other users. To a
//! terminal an escape sequence among them is an order: to clear the screen, to change its title, to type.
//! Characters that turn the direction of text, or are invisible, make it say something else than it says.
//! So every character that is not printable is escaped:
//!
//! | What | Where | Line feeds |
//! |---|---|---|
//! | [`Escaped`] | a value within a text | are escaped, so that a value is no more than a part of its line |
//! | [`print()`], [`print_coloured`], [`complain`] | a whole text, whatever it is made of | stay |
//! | [`print_json`] | a document | stay; the rest is escaped as JSON has it |
//!
//! Only the second is what everything passes: clippy forbids `println!` and its kin in this crate.

use std::fmt::{self, Display, Write as _};
use std::io::{self, Write as _};

/// A value that is displayed with everything escaped that is not printable, line feeds too.
pub(crate) struct Escaped<T>(pub(crate) T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping { to: f, form: Form::Value }, "{}", self.0)
    }
}

/// Writes a text to standard output. A reader that has had enough (`| head`) is no error, but it wants
/// no more: false.
pub(crate) fn print(text: &str) -> io::Result<bool> {
    put(text, Form::Text)
}

/// The same for a text in which [`COLOURS`] stay. The caller that puts them there escapes the values between.
pub(crate) fn print_coloured(text: &str) -> io::Result<bool> {
    put(text, Form::Coloured)
}

/// The same for a JSON document.
pub(crate) fn print_json(document: &str) -> io::Result<bool> {
    put(document, Form::Json)
}

/// The same for what is a JSON document if that was asked for, and a text if not.
pub(crate) fn print_as(is_json: bool, text: &str) -> io::Result<bool> {
    if is_json { print_json(text) } else { print(text) }
}

fn put(text: &str, form: Form) -> io::Result<bool> {
    let mut output = io::stdout().lock();
    match output.write_all(form.escape(text).as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes a line to standard error, in the name of a command: `"why"`, `"config apply"`.
pub(crate) fn complain(command: &str, what: impl Display) {
    let line = Form::Text.escape(&format!("sidestep {command}: {what}\n"));
    // Without a standard error the words have no reader.
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// The same for each line of a text.
pub(crate) fn complain_lines(command: &str, text: &str) {
    text.lines().for_each(|line| complain(command, line));
}

/// The escape sequences that are ours: bold, dim, green, yellow, red, and back to none of these.
pub(crate) const COLOURS: [&str; 7] =
    ["\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[33m", "\x1b[33;1m", "\x1b[31;1m", "\x1b[0m"];

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Value,
    Text,
    Coloured,
    Json,
}

impl Form {
    fn escape(self, text: &str) -> String {
        let mut escaped = String::with_capacity(text.len());
        let written = Escaping { to: &mut escaped, form: self }.write_str(text);
        written.expect("a string takes everything");
        escaped
    }
}

/// Writes what is printable as it is.
struct Escaping<'a, W> {
    to: &'a mut W,
    form: Form,
}

impl<W: fmt::Write> fmt::Write for Escaping<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let colour = COLOURS.into_iter().find(|colour| rest.starts_with(colour));
            if let Some(colour) = colour.filter(|_| self.form == Form::Coloured) {
                self.to.write_str(colour)?;
                rest = &rest[colour.len()..];
                continue;
            }
            match (is_printable(c), self.form) {
                (true, _) => self.to.write_char(c)?,
                (false, Form::Text | Form::Coloured | Form::Json) if c == '\n' => {
                    self.to.write_char(c)?;
                }
                (false, Form::Json) => {
                    let mut units = [0; 2];
                    c.encode_utf16(&mut units)
                        .iter()
                        .try_for_each(|unit| write!(self.to, "\\u{unit:04x}"))?;
                }
                (false, _) => write!(self.to, "{}", c.escape_default())?,
            }
            rest = &rest[c.len_utf8()..];
        }
        Ok(())
    }
}

/// Whether a terminal shows the character and does nothing else. Of those beyond ASCII the standard library
/// knows: neither controls nor formats (directions of text, joiners), separators, what combines with the
/// character before it, nor what is not assigned.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return matches!(c, ' '..='~');
    }
    let mut escaped = c.escape_debug();
    escaped.next() == Some(c) && escaped.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A title, a screen that is cleared, C1's variant of the same, a turn of direction, a line of its own.
    const ATTACK: &str = "a\x1b]0;x\x07\x1b[2J\u{9b}2J\u{202e}b\u{200b}\r\nc\td\u{7f}";

    fn is_harmless(c: char) -> bool {
        !c.is_control() && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
    }

    #[test]
    fn what_is_not_printable_is_escaped() {
        let value = Escaped(ATTACK).to_string();
        assert_eq!(
            value,
            "a\\u{1b}]0;x\\u{7}\\u{1b}[2J\\u{9b}2J\\u{202e}b\\u{200b}\\r\\nc\\td\\u{7f}"
        );
        assert!(value.chars().all(is_harmless));
        let text = Form::Text.escape(ATTACK);
        assert_eq!(text, value.replace("\\r\\n", "\\r\n"));
        let plain = "RR10(2KB/2KB) … µs × “ü” → 漢 ├── 'a' \"b\" \\ ~";
        assert_eq!(Escaped(plain).to_string(), plain);
        assert_eq!(Form::Text.escape(plain), plain);
    }

    #[test]
    fn a_document_stays_the_same_document() {
        let value = serde_json::json!({ "name": ATTACK, "emoji": "\u{e0001}\u{1f600}" });
        let document = serde_json::to_string_pretty(&value).unwrap();
        let escaped = Form::Json.escape(&document);
        assert!(escaped.chars().all(|c| c == '\n' || is_harmless(c)), "{escaped:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }

    #[test]
    fn colours_stay_where_there_are_any() {
        let text = format!("\x1b[32m{}\x1b[0m \x1b[5m\n", Escaped("a\x1b[0mb"));
        assert_eq!(Form::Coloured.escape(&text), "\x1b[32ma\\u{1b}[0mb\x1b[0m \\u{1b}[5m\n");
        assert!(!Form::Text.escape(&text).contains('\x1b'));
    }
}
