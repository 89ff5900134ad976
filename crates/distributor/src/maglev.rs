//! Maglev tables: a place for each hash, shares by weight, and few places that change.
//!
//! Each target has an order of its own in which it likes the places. In rounds, each takes the first free
//! place of its order; one of half the weight takes part in each second round. When a target goes, its
//! places are given to the others, and of theirs few change: so a table that is made anew, here or on
//! another host, sends nearly every client where it was sent before.
//!
//! *Source*: Eisenbud and others, "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016,
//! §3.4.

use siphasher::sip::SipHasher13;

/// Places of a table: the largest prime of 16 bits. When one of 64 targets goes, half a point more of them
/// changes than have to; of a quarter as many places it would be two points.
pub const PLACES: usize = 65_521;

/// Who takes places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taker {
    /// What stands in its places.
    pub target: u8,
    /// Says in which order it takes them: the same on each host, whatever its number.
    pub identity: u64,
    /// Its share beside the others', at least 1.
    pub weight: u16,
}

/// The identity of a target of this name.
#[must_use]
pub fn identity(name: &str) -> u64 {
    SipHasher13::new_with_keys(0, 0).hash(name.as_bytes())
}

/// The table of these takers; empty if there are none.
#[must_use]
pub fn table(takers: &[Taker]) -> Vec<u8> {
    /// No target has this number.
    const FREE: u8 = u8::MAX;
    let Some(heaviest) = takers.iter().map(|taker| u32::from(taker.weight)).max() else {
        return Vec::new();
    };
    // By identity, so that the order in which they are written down does not matter.
    let mut takers: Vec<Taker> = takers.to_vec();
    takers.sort_by_key(|taker| (taker.identity, taker.target));
    let mut orders: Vec<Order> = takers.iter().map(|taker| Order::of(taker.identity)).collect();
    let mut credit = vec![0; takers.len()];
    let mut places = vec![FREE; PLACES];
    let mut left = PLACES;
    loop {
        for ((taker, order), credit) in takers.iter().zip(&mut orders).zip(&mut credit) {
            *credit += u32::from(taker.weight.max(1));
            if *credit < heaviest {
                continue;
            }
            *credit -= heaviest;
            let free = order.find(|place| places[*place] == FREE);
            // An order has every place, so a free one is found while there is one.
            let Some(place) = free else { return places };
            places[place] = taker.target;
            left -= 1;
            if left == 0 {
                return places;
            }
        }
    }
}

/// Every place once. The steps are shorter than the table, and its length is a prime.
struct Order {
    next: usize,
    step: usize,
}

impl Order {
    fn of(identity: u64) -> Self {
        let hash = |key| SipHasher13::new_with_keys(0, key).hash(&identity.to_be_bytes());
        let below = |key, bound: usize| (hash(key) % bound as u64) as usize;
        Self { next: below(1, PLACES), step: 1 + below(2, PLACES - 1) }
    }
}

impl Iterator for Order {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let place = self.next;
        let next = place + self.step;
        self.next = if next < PLACES { next } else { next - PLACES };
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    fn takers(weights: &[u16]) -> Vec<Taker> {
        let taker = |(place, &weight): (usize, &u16)| Taker {
            target: place as u8,
            identity: identity(&format!("t{place}")),
            weight,
        };
        weights.iter().enumerate().map(taker).collect()
    }

    fn share(places: &[u8], target: u8) -> f64 {
        places.iter().filter(|place| **place == target).count() as f64 / places.len() as f64
    }

    /// Of so many clients on one host and on many, in points.
    fn error_of_shares(weights: &[u16], connections: u32) -> f64 {
        let places = table(&takers(weights));
        let mut counts = vec![0_u32; weights.len()];
        for number in 0..connections {
            let address = Ipv4Addr::from(0x0a00_0000 + number % 7);
            let port = 32_768 + (number / 7 % 28_000) as u16;
            counts[usize::from(places[hash::of_client(address.into(), port) as usize % PLACES])] +=
                1;
        }
        let sum: u16 = weights.iter().sum();
        let error = |(count, weight): (&u32, &u16)| {
            (f64::from(*count) / f64::from(connections) - f64::from(*weight) / f64::from(sum)).abs()
        };
        counts.iter().zip(weights).map(error).fold(0.0, f64::max) * 100.0
    }

    #[test]
    fn ten_thousand_connections_at_4_2_1_are_within_two_points() {
        let error = error_of_shares(&[4, 2, 1], 10_000);
        assert!(error < 2.0, "{error} points");
    }

    #[test]
    fn without_takers_there_is_no_table() {
        assert!(table(&[]).is_empty());
    }

    #[test]
    fn the_order_of_takers_does_not_matter() {
        let mut takers = takers(&[3, 1, 7, 100]);
        let places = table(&takers);
        takers.reverse();
        assert_eq!(places, table(&takers));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn shares_follow_weights(weights in prop::collection::vec(1..=100_u16, 1..=64)) {
            let places = table(&takers(&weights));
            let sum: u32 = weights.iter().map(|weight| u32::from(*weight)).sum();
            for (target, weight) in (0..).zip(&weights) {
                let due = f64::from(*weight) / f64::from(sum);
                prop_assert!((share(&places, target) - due).abs() < 0.005, "{target}");
            }
        }

        #[test]
        fn few_places_change_when_one_goes(count in 2..=64_usize, gone in any::<prop::sample::Index>()) {
            let all = takers(&vec![1; count]);
            let before = table(&all);
            let gone = gone.index(count) as u8;
            let rest: Vec<Taker> = all.into_iter().filter(|taker| taker.target != gone).collect();
            let after = table(&rest);
            let changed = before.iter().zip(&after).filter(|(one, other)| one != other).count();
            let changed = changed as f64 / PLACES as f64;
            prop_assert!(changed <= 1.0 / count as f64 + 0.01, "{changed} of {count}");
            prop_assert!(!after.contains(&gone));
        }
    }
}
