//! Checked writing of fields by their place in a layout table.

use crate::error::Error;
use crate::field::Field;

/// A message being written. It starts out as zeros, so what is not written is reserved.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    bytes: &'a mut [u8],
}

impl<'a> Writer<'a> {
    /// Claims the first `len` bytes of `out` for `message` and zeroes them.
    pub(crate) fn new(message: &'static str, out: &'a mut [u8], len: usize) -> Result<Self, Error> {
        let present = out.len();
        let bytes =
            out.get_mut(..len).ok_or(Error::NoRoom { field: message, needed: len, present })?;
        bytes.fill(0);
        Ok(Self { bytes })
    }

    /// The section of `len` bytes at `at`; its own offsets count from its start.
    pub(crate) fn section(
        &mut self,
        name: &'static str,
        at: usize,
        len: usize,
    ) -> Result<Writer<'_>, Error> {
        let end = at.saturating_add(len);
        let present = self.bytes.len();
        match self.bytes.get_mut(at..end) {
            Some(bytes) => Ok(Writer { bytes }),
            None => Err(Error::NoRoom { field: name, needed: end, present }),
        }
    }

    /// Puts `value` into `field`. An integer goes in as its `to_be_bytes`.
    pub(crate) fn put<const N: usize>(
        &mut self,
        field: Field<N>,
        value: [u8; N],
    ) -> Result<(), Error> {
        let present = self.bytes.len();
        match self.bytes.get_mut(field.at..).and_then(<[u8]>::first_chunk_mut) {
            Some(place) => {
                *place = value;
                Ok(())
            }
            None => Err(Error::NoRoom { field: field.name, needed: field.at + N, present }),
        }
    }
}
