//! What messages between programs of one host start with, which are Sidestep's own.
//!
//! | Off | Len | Field | Value |
//! |---|---|---|---|
//! | 0 | 4 | magic | of the family of messages |
//! | 4 | 2 | version | 1 |
//! | 6 | 2 | kind | within the family |
//! | 8 | 4 | length | of the whole message |

use crate::error::Error;
use crate::field::Field;
use crate::reader::Reader;
use crate::writer::Writer;

/// Bytes that all of them start with; some are no longer.
pub(crate) const LEN: usize = 12;

const VERSION: u16 = 1;

/// A family of messages.
pub(crate) struct Family {
    magic: [u8; 4],
    at_magic: Field<4>,
    at_version: Field<2>,
    at_kind: Field<2>,
    at_length: Field<4>,
}

/// Which message of a family it is.
pub(crate) trait Kind: Copy {
    fn from_code(code: u16) -> Option<Self>;
    fn code(self) -> u16;
    fn name(self) -> &'static str;
    /// Bytes of the whole message.
    fn len(self) -> usize;
}

impl Family {
    /// With the words that errors have for magic, version, kind and length.
    pub(crate) const fn new(magic: [u8; 4], names: [&'static str; 4]) -> Self {
        let [at_magic, at_version, at_kind, at_length] = names;
        Self {
            magic,
            at_magic: Field::new(at_magic, 0),
            at_version: Field::new(at_version, 4),
            at_kind: Field::new(at_kind, 6),
            at_length: Field::new(at_length, 8),
        }
    }

    /// Checks magic, version, kind and length.
    pub(crate) fn parse<K: Kind>(&self, reader: &Reader<'_>) -> Result<K, Error> {
        let magic = reader.bytes(self.at_magic)?;
        if magic != self.magic {
            let value = u32::from_be_bytes(magic).into();
            return Err(Error::Invalid { field: self.at_magic.name, value });
        }
        let version = reader.u16(self.at_version)?;
        if version != VERSION {
            return Err(Error::Unsupported {
                field: self.at_version.name,
                value: version.into(),
                what: "another version of Sidestep",
            });
        }
        let code = reader.u16(self.at_kind)?;
        let kind = K::from_code(code)
            .ok_or(Error::Invalid { field: self.at_kind.name, value: code.into() })?;
        let claimed = reader.u32(self.at_length)? as usize;
        for expected in [kind.len(), reader.len()] {
            if claimed != expected {
                return Err(Error::Mismatch { field: self.at_length.name, claimed, expected });
            }
        }
        Ok(kind)
    }

    /// Claims the room for a message and writes what it starts with.
    pub(crate) fn emit<'a, K: Kind>(
        &self,
        kind: K,
        out: &'a mut [u8],
    ) -> Result<Writer<'a>, Error> {
        let mut writer = Writer::new(kind.name(), out, kind.len())?;
        writer.put(self.at_magic, self.magic)?;
        writer.put(self.at_version, VERSION.to_be_bytes())?;
        writer.put(self.at_kind, kind.code().to_be_bytes())?;
        writer.put(self.at_length, (kind.len() as u32).to_be_bytes())?;
        Ok(writer)
    }
}
