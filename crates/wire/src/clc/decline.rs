//! Decline: "let us stay with TCP".
//!
//! It takes the place of the CLC message the other side expects. It has no answer; both sides go
//! on as plain TCP with the next byte. Everything but the diagnosis is for the log, save one bit:
//! *out of sync* tells the receiver that the link group it wanted to use does not exist here.
//!
//! | Off | Len | Field | Version 1, 28 bytes | Version 2, 44 bytes |
//! |---|---|---|---|---|
//! | 0 | 8 | header, type 4; bit 3 of byte 7 is out of sync | ✓ | ✓ |
//! | 8 | 8 | sender's peer ID | may be 0 | may be 0 |
//! | 16 | 4 | diagnosis | ✓ | ✓ |
//! | 20 | 1 | operating system in bits 7..4 | reserved | ✓ |
//! | 21 | 3 | reserved | | |
//! | 24 | 16 | four further diagnosis words | – | 0 from Linux |
//! | 24 or 40 | 4 | trailer "SMCR" | ✓ | ✓ |
//!
//! *Source*: RFC 7609 §A.2.4 and §C.1–C.3; Linux `net/smc/smc_clc.h`.

use super::frame::{
    Eyecatcher, Header, MessageType, TRAILER_LEN, Version, close, open, unexpected,
};
use super::peer::OsType;
use crate::diagnosis::Diagnosis;
use crate::error::Error;
use crate::field::Field;
use crate::ids::PeerId;
use crate::reader::Reader;
use crate::writer::Writer;

mod field {
    use super::Field;

    pub(super) const PEER_ID: Field<8> = Field::new("Decline peer ID", 8);
    pub(super) const DIAGNOSIS: Field<4> = Field::new("Decline diagnosis", 16);
    pub(super) const OS_TYPE: Field<1> = Field::new("Decline operating system", 20);
    pub(super) const FURTHER: [Field<4>; 4] = [
        Field::new("Decline further diagnosis 1", 24),
        Field::new("Decline further diagnosis 2", 28),
        Field::new("Decline further diagnosis 3", 32),
        Field::new("Decline further diagnosis 4", 36),
    ];
}

/// Bit 3 of byte 7.
const FLAG_OUT_OF_SYNC: u8 = 0x08;
const LEN_V1: usize = 28;
const LEN_V2: usize = 44;

/// A refusal of SMC for this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decline {
    /// The sender; zero when it has no identity to give.
    pub peer_id: PeerId,
    /// Why.
    pub diagnosis: Diagnosis,
    /// The Accept named a link group the sender does not have; the receiver shall end that group.
    pub out_of_sync: bool,
    /// What version 2 adds. `None` makes it a version 1 Decline.
    pub v2: Option<DeclineV2>,
}

/// What a version 2 Decline says beyond version 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeclineV2 {
    /// The sender's operating system.
    pub os_type: OsType,
    /// Four more words of diagnosis, zero from Linux and from us.
    pub further: [u32; 4],
}

impl Decline {
    /// A version 1 Decline, 28 bytes.
    #[must_use]
    pub const fn v1(peer_id: PeerId, diagnosis: Diagnosis) -> Self {
        Self { peer_id, diagnosis, out_of_sync: false, v2: None }
    }

    /// A version 2 Decline, 44 bytes, from Linux.
    #[must_use]
    pub const fn v2(peer_id: PeerId, diagnosis: Diagnosis) -> Self {
        let v2 = DeclineV2 { os_type: OsType::LINUX, further: [0; 4] };
        Self { peer_id, diagnosis, out_of_sync: false, v2: Some(v2) }
    }

    /// The version it is written in.
    #[must_use]
    pub const fn version(&self) -> Version {
        match self.v2 {
            None => Version::V1,
            Some(_) => Version::V2,
        }
    }

    /// Reads a whole Decline.
    ///
    /// # Errors
    ///
    /// As [`Header::parse`]; [`Error::Mismatch`] when the length is not the one of its version;
    /// [`Error::Invalid`] when it is another message.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (header, content) = open(bytes)?;
        if header.message_type != MessageType::Decline {
            return Err(unexpected(header.message_type));
        }
        let expected = emitted_len(header.version);
        if bytes.len() != expected {
            return Err(Error::Mismatch {
                field: "Decline length",
                claimed: bytes.len(),
                expected,
            });
        }
        Ok(Self {
            peer_id: PeerId(content.bytes(field::PEER_ID)?),
            diagnosis: Diagnosis(content.u32(field::DIAGNOSIS)?),
            out_of_sync: header.flags & FLAG_OUT_OF_SYNC != 0,
            v2: match header.version {
                Version::V1 => None,
                Version::V2 => Some(DeclineV2::parse(&content)?),
            },
        })
    }

    /// Bytes [`emit`](Self::emit) will write.
    #[must_use]
    pub const fn emitted_len(&self) -> usize {
        emitted_len(self.version())
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than [`emitted_len`](Self::emitted_len).
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let len = self.emitted_len();
        let mut writer = Writer::new("Decline", out, len)?;
        writer.put(field::PEER_ID, self.peer_id.0)?;
        writer.put(field::DIAGNOSIS, self.diagnosis.0.to_be_bytes())?;
        if let Some(v2) = &self.v2 {
            writer.put(field::OS_TYPE, [v2.os_type.code() << 4])?;
            for (field, word) in field::FURTHER.into_iter().zip(v2.further) {
                writer.put(field, word.to_be_bytes())?;
            }
        }
        let header = Header {
            eyecatcher: Eyecatcher::SmcR,
            message_type: MessageType::Decline,
            length: len as u16,
            version: self.version(),
            flags: if self.out_of_sync { FLAG_OUT_OF_SYNC } else { 0 },
        };
        close(&mut writer, header)?;
        Ok(len)
    }
}

impl DeclineV2 {
    fn parse(content: &Reader<'_>) -> Result<Self, Error> {
        let mut further = [0; 4];
        for (word, field) in further.iter_mut().zip(field::FURTHER) {
            *word = content.u32(field)?;
        }
        let os_type = OsType::from_low_bits(content.u8(field::OS_TYPE)? >> 4);
        Ok(Self { os_type, further })
    }
}

const fn emitted_len(version: Version) -> usize {
    match version {
        Version::V1 => LEN_V1,
        Version::V2 => LEN_V2,
    }
}

const _: () = assert!(field::FURTHER[3].at + 4 + TRAILER_LEN == LEN_V2);
