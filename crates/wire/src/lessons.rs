//! Servers of other hosts with which SMC-R is not worth it for now, as the gateway tells its host's
//! libraries.
//!
//! The gateway writes them into a memory file, of which each library has a descriptor. A program that
//! is about to connect looks there, and leaves a server alone that it finds: without the TCP option
//! the connection is an ordinary one from the beginning.
//!
//! The file has [`PLACES`] places, and each server of each user has one of them ([`offset`]). The
//! latest that has a place is the one that is remembered. A place is all zero, or
//!
//! | Lesson, 36 bytes | Off | Len |
//! |---|---|---|
//! | IP address of the server; of IPv4 in the form `::ffff:a.b.c.d` | 0 | 16 |
//! | its port, not 0 | 16 | 2 |
//! | connections in vain, in a row, as the gateway counts them | 18 | 2 |
//! | the user of the program, as the gateway sees it | 20 | 4 |
//! | until when the server is left alone: nanoseconds of the host's monotonic clock; 0: it is not | 24 | 8 |
//! | why the last one was in vain, or is left out: 1 it has failed, 2 it was short, 3 SMC-R is compared with TCP, 4 it carries no more than TCP, 5 the gateway has no adapter, of every server and user, whatever stands before | 32 | 1 |
//! | connections that the server has declined, in a row | 33 | 1 |
//! | 1: the server has accepted others | 34 | 1 |
//! | reserved | 35 | 1 |
//!
//! All integers are big-endian. No reader waits for a writer: what is read may be half of one entry and
//! half of another, and leads to no worse than TCP where SMC-R had been possible, or the reverse.

use crate::error::Error;
use crate::field::Field;
use crate::reader::Reader;
use crate::writer::Writer;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;

/// How many entries the file has room for.
pub const PLACES: usize = 1024;
/// Its length in bytes.
pub const FILE_LEN: usize = PLACES * Lesson::LEN;

mod field {
    use super::Field;

    pub(super) const ADDRESS: Field<16> = Field::new("Lesson address", 0);
    pub(super) const PORT: Field<2> = Field::new("Lesson port", 16);
    pub(super) const IN_VAIN: Field<2> = Field::new("Lesson count", 18);
    pub(super) const USER: Field<4> = Field::new("Lesson user", 20);
    pub(super) const UNTIL: Field<8> = Field::new("Lesson time", 24);
    pub(super) const CAUSE: Field<1> = Field::new("Lesson cause", 32);
    pub(super) const DECLINED: Field<1> = Field::new("Lesson declined", 33);
    pub(super) const HAS_ACCEPTED: Field<1> = Field::new("Lesson accepted", 34);
    pub(super) const RESERVED: Field<1> = Field::new("Lesson reserved", 35);
}

/// Why a connection was in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It has not come to SMC-R.
    Failed = 1,
    /// It has, and ended before that was worth it.
    Short = 2,
    /// It is to go by TCP, so that the two can be compared.
    Compared = 3,
    /// It has carried no more than TCP would have.
    NoGain = 4,
    /// The gateway has no adapter that is up. It is said of every server, in each place.
    NoAdapter = 5,
}

/// What connections to a server have taught.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lesson {
    /// Where it listens; never an IPv4 address in the form of IPv6.
    pub server: SocketAddr,
    /// Whose programs are to leave it alone.
    pub user: u32,
    /// Connections in vain, in a row.
    pub in_vain: u16,
    /// Why the last one was.
    pub cause: Cause,
    /// The server is left alone until then, since the monotonic clock began. Zero: it is not.
    pub until: Duration,
    /// Connections that the server has declined, in a row.
    pub declined: u8,
    /// It has accepted others.
    pub has_accepted: bool,
}

impl Lesson {
    /// Bytes of a place.
    pub const LEN: usize = 36;

    /// Reads a place.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] when it is cut off; [`Error::Invalid`] for a port of 0, as in a place
    /// where nothing is, and for a cause that there is not.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let reader = Reader::new(bytes).section("Lesson", 0, Self::LEN)?;
        let port = match reader.u16(field::PORT)? {
            0 => return Err(Error::Invalid { field: field::PORT.name, value: 0 }),
            port => port,
        };
        let cause = match reader.u8(field::CAUSE)? {
            1 => Cause::Failed,
            2 => Cause::Short,
            3 => Cause::Compared,
            4 => Cause::NoGain,
            5 => Cause::NoAdapter,
            value => {
                let value = value.into();
                return Err(Error::Invalid { field: field::CAUSE.name, value });
            }
        };
        let ip = Ipv6Addr::from(reader.bytes(field::ADDRESS)?).to_canonical();
        Ok(Self {
            server: SocketAddr::new(ip, port),
            user: reader.u32(field::USER)?,
            in_vain: reader.u16(field::IN_VAIN)?,
            cause,
            until: Duration::from_nanos(reader.u64(field::UNTIL)?),
            declined: reader.u8(field::DECLINED)?,
            has_accepted: reader.u8(field::HAS_ACCEPTED)? == 1,
        })
    }

    /// The bytes of a place. A time beyond 584 years is one of 584 years.
    ///
    /// # Errors
    ///
    /// None; [`Error::NoRoom`] is what writing says where there is no room.
    pub fn emit(&self) -> Result<[u8; Self::LEN], Error> {
        let mut out = [0; Self::LEN];
        let mut writer = Writer::new("Lesson", &mut out, Self::LEN)?;
        let until = u64::try_from(self.until.as_nanos()).unwrap_or(u64::MAX);
        writer.put(field::ADDRESS, octets(self.server.ip()))?;
        writer.put(field::PORT, self.server.port().to_be_bytes())?;
        writer.put(field::IN_VAIN, self.in_vain.to_be_bytes())?;
        writer.put(field::USER, self.user.to_be_bytes())?;
        writer.put(field::UNTIL, until.to_be_bytes())?;
        writer.put(field::CAUSE, [self.cause as u8])?;
        writer.put(field::DECLINED, [self.declined])?;
        writer.put(field::HAS_ACCEPTED, [u8::from(self.has_accepted)])?;
        Ok(out)
    }

    /// Whether it is about this server, for this user.
    #[must_use]
    pub fn is_about(&self, server: SocketAddr, user: u32) -> bool {
        if self.cause == Cause::NoAdapter {
            return true;
        }
        let its = (self.server.ip(), self.server.port(), self.user);
        its == (server.ip().to_canonical(), server.port(), user)
    }
}

/// Where in the file a server of a user has its place, in bytes.
#[must_use]
pub fn offset(server: SocketAddr, user: u32) -> u64 {
    let [port, user] = [u32::from(server.port()), user].map(u32::to_be_bytes);
    let parts = octets(server.ip()).into_iter().chain(port).chain(user);
    // FNV-1a. A user that makes two servers share a place on purpose has one of them forgotten.
    let hash = parts.fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    });
    (hash >> 32) % PLACES as u64 * Lesson::LEN as u64
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

const _: () = assert!(field::UNTIL.at + 8 == field::CAUSE.at);
const _: () = assert!(field::RESERVED.at + 1 == Lesson::LEN);

#[cfg(test)]
mod tests {
    use super::*;

    fn lesson(server: &str) -> Lesson {
        let until = Duration::from_nanos(0x0102_0304_0506_0708);
        Lesson {
            server: server.parse().unwrap(),
            user: 1000,
            in_vain: 3,
            cause: Cause::Short,
            until,
            declined: 5,
            has_accepted: true,
        }
    }

    #[test]
    fn places_read_as_they_are_written() {
        let rest =
            b"\x1A\x0A\x00\x03\x00\x00\x03\xE8\x01\x02\x03\x04\x05\x06\x07\x08\x02\x05\x01\0";
        for (server, address) in [
            ("10.0.0.1:6666", b"\0\0\0\0\0\0\0\0\0\0\xFF\xFF\x0A\0\0\x01"),
            ("[fd00::1]:6666", b"\xFD\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01"),
        ] {
            let lesson = lesson(server);
            let bytes = lesson.emit().unwrap();
            assert_eq!(bytes[..], [&address[..], rest].concat());
            assert_eq!(Lesson::parse(&bytes), Ok(lesson));
        }
    }

    #[test]
    fn what_is_empty_or_cut_off_is_none() {
        assert!(Lesson::parse(&[0; Lesson::LEN]).is_err());
        let whole = lesson("10.0.0.1:6666").emit().unwrap();
        for len in 0..whole.len() {
            assert!(matches!(Lesson::parse(&whole[..len]), Err(Error::Truncated { .. })));
        }
        let mut bytes = whole;
        bytes[16..18].fill(0);
        assert_eq!(Lesson::parse(&bytes).unwrap_err().field(), "Lesson port");
        let mut bytes = whole;
        bytes[32] = 6;
        assert_eq!(Lesson::parse(&bytes).unwrap_err().field(), "Lesson cause");
    }

    #[test]
    fn a_server_is_one_in_both_forms_of_its_address() {
        let [v4, mapped] = ["10.0.0.1:80", "[::ffff:10.0.0.1]:80"].map(|it| it.parse().unwrap());
        let lesson = lesson("10.0.0.1:80");
        assert!(lesson.is_about(v4, 1000) && lesson.is_about(mapped, 1000));
        assert!(
            !lesson.is_about(v4, 1001) && !lesson.is_about("10.0.0.1:81".parse().unwrap(), 1000)
        );
        assert_eq!(offset(v4, 1000), offset(mapped, 1000));
    }

    #[test]
    fn what_is_said_of_all_servers_is_about_each() {
        let all = Lesson { cause: Cause::NoAdapter, ..lesson("10.0.0.1:80") };
        assert!(all.is_about("[fd00::1]:443".parse().unwrap(), 7));
    }

    #[test]
    fn places_lie_in_the_file_and_are_used_alike() {
        let mut places = [0u32; PLACES];
        for port in 1..=u16::MAX {
            let at = offset(SocketAddr::from(([10, 0, 0, 1], port)), 1000) as usize;
            assert!(at.is_multiple_of(Lesson::LEN) && at < FILE_LEN);
            places[at / Lesson::LEN] += 1;
        }
        // 64 on the average.
        assert!(places.iter().all(|count| (16..=160).contains(count)));
    }
}
