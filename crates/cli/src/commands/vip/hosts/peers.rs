//! What distributors tell each other, in datagrams of UDP.
//!
//! ```text
//!   4 "SDV1"   1 kind   3 zero   8 number   16 from   16 to   16 SipHash-2-4-128 of all before, by the store's secret
//! ```
//!
//! Who cannot read the store cannot make one. One that is repeated makes a backup wait, as no message at all would: the
//! number of a question is known to its sender alone.

use std::hash::Hasher;
use std::net::{IpAddr, Ipv6Addr};

use sidestep_distributor::election::Message;
use siphasher::sip128::{Hasher128, SipHasher24};

use super::store::Secret;

pub(super) use crate::commands::vip::inquiry::PORT;

/// Bytes of a message.
pub(super) const LEN: usize = SEAL + 16;

const MAGIC: [u8; 4] = *b"SDV1";
const KIND: usize = 4;
const NUMBER: usize = 8;
const FROM: usize = 16;
const TO: usize = 32;
const SEAL: usize = 48;

/// The datagram that says this.
pub(super) fn written(message: Message, from: IpAddr, to: IpAddr, secret: &Secret) -> [u8; LEN] {
    let (kind, number) = match message {
        Message::Ask(number) => (1, number),
        Message::Promise(number) => (2, number),
        Message::GaveUp => (3, 0),
    };
    let mut bytes = [0; LEN];
    bytes[..KIND].copy_from_slice(&MAGIC);
    bytes[KIND] = kind;
    bytes[NUMBER..FROM].copy_from_slice(&number.to_be_bytes());
    bytes[FROM..TO].copy_from_slice(&octets(from));
    bytes[TO..SEAL].copy_from_slice(&octets(to));
    let seal = seal(&bytes[..SEAL], secret);
    bytes[SEAL..].copy_from_slice(&seal);
    bytes
}

/// What a datagram says to us that came from there; `None`: nothing that another distributor has sent.
pub(super) fn read(bytes: &[u8], from: IpAddr, to: IpAddr, secret: &Secret) -> Option<Message> {
    let bytes: &[u8; LEN] = bytes.try_into().ok()?;
    let number = u64::from_be_bytes(bytes[NUMBER..FROM].try_into().ok()?);
    let message = match bytes[KIND] {
        1 => Message::Ask(number),
        2 => Message::Promise(number),
        3 => Message::GaveUp,
        _ => return None,
    };
    (*bytes == written(message, from, to, secret)).then_some(message)
}

fn octets(ip: IpAddr) -> [u8; 16] {
    let ip: Ipv6Addr = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    ip.octets()
}

fn seal(bytes: &[u8], secret: &Secret) -> [u8; 16] {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(bytes);
    hasher.finish128().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_for_us_by_the_sender_is_read() {
        let [one, two]: [IpAddr; 2] = ["10.0.0.1", "fd00::2"].map(|ip| ip.parse().unwrap());
        let (secret, other) = ([7; 16], [8; 16]);
        for message in [Message::Ask(u64::MAX), Message::Promise(5), Message::GaveUp] {
            let bytes = written(message, one, two, &secret);
            assert_eq!(read(&bytes, one, two, &secret), Some(message));
            assert_eq!(read(&bytes, two, one, &secret), None, "sent back");
            assert_eq!(read(&bytes, one, two, &other), None, "another secret");
            assert_eq!(read(&bytes[..LEN - 1], one, two, &secret), None, "cut off");
            for at in 0..LEN {
                let mut changed = bytes;
                changed[at] ^= 1;
                assert_eq!(read(&changed, one, two, &secret), None, "byte {at}");
            }
        }
    }
}
