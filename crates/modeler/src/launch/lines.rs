//! Messages as lines of JSON, each no longer than its reader allows.

use std::io::{self, BufRead, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Why there is no message.
#[derive(Debug, Error)]
pub(crate) enum LineError {
    /// The other end cannot be heard.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It goes on and on.
    #[error("a line of more than {max} bytes")]
    TooLong {
        /// What is allowed.
        max: usize,
    },
    /// It is not a message.
    #[error("the line `{start}`: {reason}")]
    Malformed {
        /// How it begins.
        start: String,
        /// What is wrong.
        reason: serde_json::Error,
    },
}

/// The next message; `None` at the end of the input.
pub(crate) fn read<T: DeserializeOwned>(
    input: &mut impl BufRead,
    max: usize,
) -> Result<Option<T>, LineError> {
    let mut line = Vec::new();
    // One more than allowed tells a line that is too long from one that just fits.
    let read = input.take(max as u64 + 1).read_until(b'\n', &mut line)?;
    match read {
        0 => Ok(None),
        len if len > max => Err(LineError::TooLong { max }),
        _ => match serde_json::from_slice(&line) {
            Ok(message) => Ok(Some(message)),
            Err(reason) => Err(LineError::Malformed { start: start(&line), reason }),
        },
    }
}

/// Sends a message.
pub(crate) fn write(output: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    // In one call: a line is not to wait for the acknowledgement of its beginning.
    output.write_all(&line)?;
    output.flush()
}

/// The beginning of a line, fit for an error text.
fn start(line: &[u8]) -> String {
    let printable = |c: char| if c.is_control() { '?' } else { c };
    let text = String::from_utf8_lossy(line);
    text.trim_end().chars().take(START_LEN).map(printable).collect()
}

/// Characters of a malformed line that are shown.
const START_LEN: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(mut input: &[u8], max: usize) -> Vec<Result<u32, String>> {
        let mut read = Vec::new();
        loop {
            match super::read(&mut input, max) {
                Ok(None) => return read,
                Ok(Some(number)) => read.push(Ok(number)),
                Err(error) => {
                    read.push(Err(error.to_string()));
                    return read;
                }
            }
        }
    }

    #[test]
    fn messages_are_lines() {
        assert_eq!(read_all(b"1\n22\n333", 5), [Ok(1), Ok(22), Ok(333)]);
        assert_eq!(read_all(b"", 5), []);
    }

    #[test]
    fn a_line_has_a_limit() {
        assert_eq!(read_all(b"1234\n", 5), [Ok(1234)]);
        let error = Err("a line of more than 5 bytes".to_owned());
        assert_eq!(read_all(b"1\n12345\n", 5), [Ok(1), error.clone()]);
        assert_eq!(read_all(&[b' '; 10_000], 5), [error]);
    }

    #[test]
    fn a_malformed_line_is_shown() {
        let [Err(error)] = &read_all(b"GET / HTTP/1.1\x07\r\n", 99)[..] else { panic!() };
        assert!(error.starts_with("the line `GET / HTTP/1.1?`: expected value"), "{error}");
        let [Err(error)] = &read_all(&[b'x'; 90], 99)[..] else { panic!() };
        assert!(error.contains(&format!("`{}`", "x".repeat(60))), "{error}");
        assert!(read_all(b"\xff\xfe\n", 99)[0].is_err());
    }

    #[test]
    fn what_is_written_can_be_read() {
        let mut bytes = Vec::new();
        write(&mut bytes, &7).unwrap();
        write(&mut bytes, &8).unwrap();
        assert_eq!(bytes, b"7\n8\n");
    }
}
