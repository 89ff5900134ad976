//! What a gateway that was replaced is passed on of what comes at its UDP port.
//!
//! A UDP port has one socket, and that is the new gateway's. What has come for a queue pair that it does not
//! have goes to the gateway before it, as messages of a SOCK_SEQPACKET socket: this, and behind it the
//! datagrams, of one sender and one length, of which the last may be shorter.
//!
//! | Relayed, 20 bytes | Off | Len |
//! |---|---|---|
//! | IP address of the sender; of IPv4 in the form `::ffff:a.b.c.d` | 0 | 16 |
//! | its UDP port | 16 | 2 |
//! | bytes of each datagram but the last, not 0 | 18 | 2 |
//!
//! All integers are big-endian. The version is that of the [message](crate::hand_over::Relay) beside which the
//! socket has come.

use crate::error::Error;
use crate::field::Field;
use crate::reader::Reader;
use crate::writer::Writer;
use core::net::{IpAddr, Ipv6Addr};

mod field {
    use super::Field;

    pub(super) const ADDRESS: Field<16> = Field::new("Relayed address", 0);
    pub(super) const PORT: Field<2> = Field::new("Relayed port", 16);
    pub(super) const SEGMENT_LEN: Field<2> = Field::new("Relayed length", 18);
}

/// What stands before datagrams that are passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relayed {
    /// Of their sender.
    pub from: IpAddr,
    /// Of their sender.
    pub port: u16,
    /// Bytes of each but the last.
    pub segment_len: u16,
}

impl Relayed {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    /// Reads it from the front of a message.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] when it is cut off; [`Error::Invalid`] for a length of 0.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let reader = Reader::new(bytes);
        let from = Ipv6Addr::from(reader.bytes(field::ADDRESS)?).to_canonical();
        let segment_len = reader.u16(field::SEGMENT_LEN)?;
        if segment_len == 0 {
            return Err(Error::Invalid { field: field::SEGMENT_LEN.name, value: 0 });
        }
        Ok(Self { from, port: reader.u16(field::PORT)?, segment_len })
    }

    /// The bytes that stand before the datagrams.
    ///
    /// # Errors
    ///
    /// None: there is room for all fields.
    pub fn emit(&self) -> Result<[u8; Self::LEN], Error> {
        let mut bytes = [0; Self::LEN];
        let mut writer = Writer::new("Relayed", &mut bytes, Self::LEN)?;
        let from = match self.from {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        writer.put(field::ADDRESS, from.octets())?;
        writer.put(field::PORT, self.port.to_be_bytes())?;
        writer.put(field::SEGMENT_LEN, self.segment_len.to_be_bytes())?;
        Ok(bytes)
    }
}

const _: () = assert!(field::ADDRESS.at + 16 == field::PORT.at);
const _: () = assert!(field::PORT.at + 2 == field::SEGMENT_LEN.at);
const _: () = assert!(field::SEGMENT_LEN.at + 2 == Relayed::LEN);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_as_it_is_written_and_no_shorter() {
        for from in [IpAddr::from([10, 0, 0, 1]), "fd00::1".parse().unwrap()] {
            let relayed = Relayed { from, port: 0xC001, segment_len: 1044 };
            let bytes = relayed.emit().unwrap();
            assert_eq!(Relayed::parse(&bytes), Ok(relayed));
            for len in 0..Relayed::LEN {
                assert!(Relayed::parse(&bytes[..len]).is_err(), "{len}");
            }
        }
        let empty = Relayed { from: [10, 0, 0, 1].into(), port: 1, segment_len: 0 };
        let error = Relayed::parse(&empty.emit().unwrap()).unwrap_err();
        assert_eq!(error.field(), "Relayed length");
    }
}
