//! What distributors tell each other, in datagrams of UDP.
//!
//! ```text
//!   4 "SDV1"   1 kind   3 zero   8 number   16 from   16 to   8 instance, of a word alone
//!   16 SipHash-2-4-128 of all before, by the store's secret
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

/// Of the hash that ends a datagram.
pub(super) const SEAL_LEN: usize = 16;

const MAGIC: [u8; 4] = *b"SDV1";
/// Where a datagram has what.
pub(super) const KIND: usize = 4;
pub(super) const NUMBER: usize = 8;
pub(super) const ENDS: usize = 16;
const SEAL: usize = ENDS + 32;

/// Between which hosts a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
}

/// The datagram that says this.
pub(super) fn written(message: Message, ends: &Ends, secret: &Secret) -> Vec<u8> {
    let (kind, number) = match message {
        Message::Ask(number) => (1, number),
        Message::Promise(number) => (2, number),
        Message::GaveUp => (3, 0),
        // 4 and 5 are those of copies.
        Message::AskWord(number) => (6, number),
        Message::Word(number, _) => (7, number),
    };
    let mut bytes = begun(kind, number, ends);
    if let Message::Word(_, instance) = message {
        bytes.extend(instance.to_be_bytes());
    }
    sealed(bytes, secret)
}

/// What a datagram says that came from there; `None`: it is no message of another distributor.
pub(super) fn read(bytes: &[u8], ends: &Ends, secret: &Secret) -> Option<Message> {
    let told = opened(bytes, ends, secret)?;
    let number = u64::from_be_bytes(told[NUMBER..ENDS].try_into().ok()?);
    let instance = || told.get(SEAL..)?.try_into().ok().map(u64::from_be_bytes);
    let message = match told[KIND] {
        1 => Message::Ask(number),
        2 => Message::Promise(number),
        3 => Message::GaveUp,
        6 => Message::AskWord(number),
        7 => Message::Word(number, instance()?),
        _ => return None,
    };
    (bytes == written(message, ends, secret)).then_some(message)
}

/// A datagram up to its ends.
pub(super) fn begun(kind: u8, number: u64, ends: &Ends) -> Vec<u8> {
    let mut bytes = vec![0; SEAL];
    bytes[..KIND].copy_from_slice(&MAGIC);
    bytes[KIND] = kind;
    bytes[NUMBER..ENDS].copy_from_slice(&number.to_be_bytes());
    bytes[ENDS..][..16].copy_from_slice(&octets(ends.from));
    bytes[ENDS + 16..].copy_from_slice(&octets(ends.to));
    bytes
}

/// The same with its seal.
pub(super) fn sealed(mut bytes: Vec<u8>, secret: &Secret) -> Vec<u8> {
    let seal = seal(&bytes, secret);
    bytes.extend(seal);
    bytes
}

/// What stands before the seal of a datagram between these ends; `None`: another distributor has not made it.
pub(super) fn opened<'a>(bytes: &'a [u8], ends: &Ends, secret: &Secret) -> Option<&'a [u8]> {
    let (told, sealed) = bytes.split_last_chunk::<SEAL_LEN>()?;
    let is_between = || {
        told[..KIND] == MAGIC
            && told[ENDS..][..16] == octets(ends.from)
            && told[ENDS + 16..][..16] == octets(ends.to)
    };
    (told.len() >= SEAL && *sealed == seal(told, secret) && is_between()).then_some(told)
}

pub(super) fn octets(ip: IpAddr) -> [u8; 16] {
    let ip: Ipv6Addr = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    ip.octets()
}

fn seal(bytes: &[u8], secret: &Secret) -> [u8; SEAL_LEN] {
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
        let (ends, back) = (Ends { from: one, to: two }, Ends { from: two, to: one });
        let word = Message::Word(6, u64::MAX - 1);
        for message in [
            Message::Ask(u64::MAX),
            Message::Promise(5),
            Message::GaveUp,
            Message::AskWord(7),
            word,
        ] {
            let bytes = written(message, &ends, &secret);
            assert_eq!(read(&bytes, &ends, &secret), Some(message));
            assert_eq!(read(&bytes, &back, &secret), None, "sent back");
            assert_eq!(read(&bytes, &ends, &other), None, "another secret");
            assert_eq!(read(&bytes[..bytes.len() - 1], &ends, &secret), None, "cut off");
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                assert_eq!(read(&changed, &ends, &secret), None, "byte {at}");
            }
        }
    }
}
