//! How a distributor and a target that is not on its link come to a tunnel: in datagrams of UDP, at the port of [`inquiry`](super::inquiry).
//!
//! ```text
//!   4 "SDG1"   1 kind   1 zero   2 the longest packet of the way   8 number   8 key
//! ```
//!
//! A distributor greets each second, and so knows whether the target's host is there. The target answers one that it knows by its address
//! with the key that packets of that one's tunnels have to bear. So who only writes a distributor's address as its own has no key. The number of
//! a greeting was drawn for it, and is the answer's.
//!
//! How long a packet the way carries only a greeting with the key says: servers announce segments by it.

use std::collections::HashMap;
use std::net::IpAddr;

use sidestep_bpf::Announcement;

pub(super) const LEN: usize = 24;
const MAGIC: [u8; 4] = *b"SDG1";
const KIND: usize = 4;
const MTU: usize = 6;
const NUMBER: usize = 8;
const KEY: usize = 16;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A distributor's.
    Greeting,
    /// A target's that knows it.
    Welcome,
    /// A target's that does not.
    Stranger,
}

/// A datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) kind: Kind,
    pub(super) mtu: u16,
    pub(super) number: u64,
    /// 0: not known.
    pub(super) key: u64,
}

impl Greeting {
    pub(super) fn written(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..KIND].copy_from_slice(&MAGIC);
        bytes[KIND] = match self.kind {
            Kind::Greeting => 1,
            Kind::Welcome => 2,
            Kind::Stranger => 3,
        };
        bytes[MTU..NUMBER].copy_from_slice(&self.mtu.to_be_bytes());
        bytes[NUMBER..KEY].copy_from_slice(&self.number.to_be_bytes());
        bytes[KEY..].copy_from_slice(&self.key.to_be_bytes());
        bytes
    }

    /// `None`: it is something else.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        let kind = match bytes[KIND] {
            1 => Kind::Greeting,
            2 => Kind::Welcome,
            3 => Kind::Stranger,
            _ => return None,
        };
        let mtu = u16::from_be_bytes(bytes[MTU..NUMBER].try_into().ok()?);
        let number = u64::from_be_bytes(bytes[NUMBER..KEY].try_into().ok()?);
        let key = u64::from_be_bytes(bytes[KEY..].try_into().ok()?);
        let greeting = Self { kind, mtu, number, key };
        (greeting.written() == *bytes).then_some(greeting)
    }
}

/// The distributors that a target knows.
#[derive(Default)]
pub(super) struct Acquaintances {
    /// The key of each.
    keys: HashMap<IpAddr, u64>,
    /// The longest packet that each one's way here carries.
    mtus: HashMap<IpAddr, u32>,
    /// `None`: nothing follows them.
    announcement: Option<Announcement>,
}

impl Acquaintances {
    pub(super) fn new(keys: HashMap<IpAddr, u64>, announcement: Announcement) -> Self {
        Self { keys, mtus: HashMap::new(), announcement: Some(announcement) }
    }

    /// The answer to a datagram from there, if it is a greeting.
    pub(super) fn answer(&mut self, bytes: &[u8], from: IpAddr) -> Option<[u8; LEN]> {
        let greeting = Greeting::read(bytes).filter(|it| it.kind == Kind::Greeting)?;
        let from = from.to_canonical();
        let answer = Greeting { mtu: 0, ..greeting };
        let Some(&key) = self.keys.get(&from) else {
            return Some(Greeting { kind: Kind::Stranger, key: 0, ..answer }.written());
        };
        if greeting.key == key {
            self.note_way(from, greeting.mtu.into());
        }
        Some(Greeting { kind: Kind::Welcome, key, ..answer }.written())
    }

    /// Has servers announce segments that fit into every distributor's tunnel.
    fn note_way(&mut self, from: IpAddr, mtu: u32) {
        if self.mtus.insert(from, mtu) == Some(mtu) {
            return;
        }
        let alike = self.mtus.iter().filter(|(it, _)| it.is_ipv4() == from.is_ipv4());
        let fits = alike.map(|(_, mtu)| *mtu).min().unwrap_or(mtu);
        if let Some(announcement) = &mut self.announcement
            && let Err(error) = announcement.fit(from, fits)
        {
            log::error!("servers announce segments as long as before: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(number: u64, key: u64) -> Greeting {
        Greeting { kind: Kind::Greeting, mtu: 1400, number, key }
    }

    #[test]
    fn only_what_was_written_is_read() {
        for kind in [Kind::Greeting, Kind::Welcome, Kind::Stranger] {
            let greeting = Greeting { kind, ..greeting(0x0102_0304_0506_0708, u64::MAX - 1) };
            let bytes = greeting.written();
            assert_eq!(Greeting::read(&bytes), Some(greeting));
            assert_eq!(Greeting::read(&bytes[..LEN - 1]), None, "cut off");
            assert_eq!(Greeting::read(&[&bytes[..], &[0]].concat()), None, "too long");
            for at in [0, 5] {
                let mut changed = bytes;
                changed[at] ^= 1;
                assert_eq!(Greeting::read(&changed), None, "byte {at}");
            }
        }
    }

    #[test]
    fn a_key_is_told_to_distributors_that_are_known_and_their_word_is_taken_with_it() {
        let [one, two, other]: [IpAddr; 3] =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| ip.parse().unwrap());
        let keys = [(one, 7), (two, 8)].into();
        let mut known = Acquaintances { keys, ..Acquaintances::default() };
        let mut answer = |from: IpAddr, greeting: Greeting| {
            known.answer(&greeting.written(), from).and_then(|bytes| Greeting::read(&bytes))
        };
        let welcome = |key| Greeting { kind: Kind::Welcome, mtu: 0, number: 5, key };
        assert_eq!(answer(one, greeting(5, 0)), Some(welcome(7)));
        let mapped = "::ffff:10.0.0.2".parse().unwrap();
        assert_eq!(answer(mapped, greeting(5, 0)), Some(welcome(8)));
        let stranger = Greeting { kind: Kind::Stranger, ..welcome(0) };
        assert_eq!(answer(other, greeting(5, 7)), Some(stranger));
        assert_eq!(answer(one, welcome(7)), None, "an answer has none");
        answer(two, greeting(6, 7));
        answer(one, greeting(6, 7));
        assert_eq!(known.mtus, [(one, 1400)].into(), "the other's key was wrong");
    }
}
