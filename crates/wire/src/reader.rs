//! Checked reading of fields by their place in a layout table.

use crate::error::Error;
use crate::field::Field;

/// A message, or a section of one, whose fields can be read.
///
/// Every access is checked against the bytes that are there; a field beyond them is
/// [`Error::Truncated`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from `bytes`; offsets count from their start.
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Bytes that are there.
    pub(crate) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The section of `len` bytes at `at`; its own offsets count from its start.
    pub(crate) fn section(&self, name: &'static str, at: usize, len: usize) -> Result<Self, Error> {
        let end = at.saturating_add(len);
        match self.bytes.get(at..end) {
            Some(bytes) => Ok(Self { bytes }),
            None => Err(Error::Truncated { field: name, needed: end, present: self.bytes.len() }),
        }
    }

    /// The bytes of `field`.
    pub(crate) fn bytes<const N: usize>(&self, field: Field<N>) -> Result<[u8; N], Error> {
        self.bytes.get(field.at..).and_then(<[u8]>::first_chunk).copied().ok_or(Error::Truncated {
            field: field.name,
            needed: field.at + N,
            present: self.bytes.len(),
        })
    }

    /// The one byte of `field`.
    pub(crate) fn u8(&self, field: Field<1>) -> Result<u8, Error> {
        self.bytes(field).map(u8::from_be_bytes)
    }

    /// The truth value in `field`: 0 or 1.
    pub(crate) fn truth(&self, field: Field<1>) -> Result<bool, Error> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Error::Invalid { field: field.name, value: other.into() }),
        }
    }

    /// The big-endian integer in `field`.
    pub(crate) fn u16(&self, field: Field<2>) -> Result<u16, Error> {
        self.bytes(field).map(u16::from_be_bytes)
    }

    /// The big-endian integer in `field`.
    pub(crate) fn u32(&self, field: Field<4>) -> Result<u32, Error> {
        self.bytes(field).map(u32::from_be_bytes)
    }

    /// The big-endian integer in `field`.
    pub(crate) fn u64(&self, field: Field<8>) -> Result<u64, Error> {
        self.bytes(field).map(u64::from_be_bytes)
    }
}
