//! What strangers' programs are given to carry, and the comparison of what
//! arrived.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use anyhow::{Result, ensure};

/// Bytes that nobody can guess or compress.
pub(crate) fn random_bytes(len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// **Errors**: the two files differ; the text says where.
pub(crate) fn must_be_equal(got: &Path, expected: &Path) -> Result<()> {
    let (got, expected) = (fs::read(got)?, fs::read(expected)?);
    must_be_prefix(&got, &expected)?;
    ensure!(got.len() == expected.len(), "got {} of {} bytes", got.len(), expected.len());
    Ok(())
}

/// **Errors**: `expected` does not begin with `got`.
pub(crate) fn must_be_prefix(got: &[u8], expected: &[u8]) -> Result<()> {
    ensure!(got.len() <= expected.len(), "got {} of {} bytes", got.len(), expected.len());
    let wrong = got.iter().zip(expected).position(|(a, b)| a != b);
    ensure!(wrong.is_none(), "byte {} is wrong", wrong.unwrap_or_default());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_found() {
        assert!(must_be_prefix(b"abc", b"abcd").is_ok());
        assert!(must_be_prefix(b"abcde", b"abcd").is_err());
        let wrong = must_be_prefix(b"abXd", b"abcd").err().map(|error| error.to_string());
        assert_eq!(wrong.as_deref(), Some("byte 2 is wrong"));
    }
}
