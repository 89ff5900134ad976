//! How often each rule has decided, and when last.
//!
//! CPUs that count in the same cache line wait for each other longer than a walk takes. So each has counters of its own, as
//! long as all of them together take no more than [`LEN_MAX`]; with longer lists several CPUs share some. The time is that of the
//! kernel's last tick, which is in memory: no clock is asked.

use aya::maps::{Array, MapData, MapError};
use sidestep_filter::graph::{NO_RULE, ORDERS, RULE_SHIFT};

use super::frame::PLACE;
use crate::assembler::Register::{R0, R1, R2, R7, R8, R10};
use crate::assembler::{Assembler, Helper};
use crate::map::{MapDefinition, MapKind};

/// The counters of one CPU after those of the other, each the rules of the list, then the default, then those that came later.
pub(super) const HITS: &str = "hits";
/// Bytes of the counters of all CPUs. Longer lists have one counter for each rule.
const LEN_MAX: usize = 4 << 20;

/// How often a rule has decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Packets for which the rules were searched. Those of a TCP connection whose verdict is kept
    /// are not among them.
    pub count: u64,
    /// When last, in nanoseconds of the monotonic clock, some milliseconds early; 0: never.
    pub last_ns: u64,
}

/// A value of the map.
type Counter = [u64; 2];

/// The counters of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counters {
    /// Of the list.
    rules: usize,
    /// How many CPUs have counters of their own: a power of two.
    shards: usize,
}

impl Counters {
    /// For a list of so many rules, on a machine of so many CPUs.
    pub(super) fn of(rules: usize, cpus: usize) -> Self {
        let len = size_of::<Counter>() * stride(rules);
        let room = (LEN_MAX / len).max(1);
        let fit = 1 << room.ilog2();
        Self { rules, shards: cpus.next_power_of_two().min(fit) }
    }

    pub(super) fn map(self) -> MapDefinition {
        MapDefinition {
            name: HITS,
            kind: MapKind::Array,
            key_len: 4,
            value_len: size_of::<Counter>() as u32,
            entries_max: (self.shards * stride(self.rules)) as u32,
            on_demand: false,
        }
    }

    /// Counts the rule of verdict `R7`.
    pub(super) fn count(self, a: &mut Assembler) {
        a.mov(R8, R7);
        a.shift_right_immediate(R8, RULE_SHIFT as i32);
        a.jump_if_not_equal(R8, NO_RULE as i32, "rule");
        a.mov_immediate(R8, self.rules as i32);
        a.label("rule");
        if self.shards > 1 {
            a.call(Helper::SmpProcessorId);
            a.and_immediate(R0, self.shards as i32 - 1);
            a.mul_immediate(R0, stride(self.rules) as i32);
            a.add(R8, R0);
        }
        a.store_32(R10, PLACE, R8);
        a.load_map(R1, HITS);
        a.address(R2, R10, PLACE);
        a.call(Helper::MapLookup);
        a.jump_if_equal(R0, 0, "drop");
        a.mov(R8, R0);
        a.mov_immediate(R1, 1);
        // A packet that arrives can come between, on the same CPU.
        a.atomic_add_64(R8, 0, R1);
        a.call(Helper::KtimeGetCoarseNs);
        a.store_64(R8, 8, R0);
    }
}

/// Counters of one CPU.
fn stride(rules: usize) -> usize {
    rules + ORDERS as usize
}

/// What the counters of a list of so many rules say, by the rules' numbers.
pub(super) fn read(map: &Array<MapData, Counter>, rules: usize) -> Result<Vec<Hits>, MapError> {
    let mut hits = vec![Hits::default(); stride(rules)];
    for (place, counter) in map.iter().enumerate() {
        let place = place % hits.len();
        add(&mut hits[place], counter?);
    }
    Ok(hits)
}

/// The same of one rule.
pub(super) fn read_one(
    map: &Array<MapData, Counter>,
    rules: usize,
    rule: usize,
) -> Result<Hits, MapError> {
    let mut hits = Hits::default();
    for place in (rule..map.len() as usize).step_by(stride(rules)) {
        add(&mut hits, map.get(&(place as u32), 0)?);
    }
    Ok(hits)
}

fn add(hits: &mut Hits, [count, last_ns]: Counter) {
    hits.count += count;
    hits.last_ns = hits.last_ns.max(last_ns);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_share_counters() {
        let shards = |rules, cpus| Counters::of(rules, cpus).shards;
        assert_eq!([shards(10, 1), shards(10, 2), shards(10, 3)], [1, 2, 4]);
        assert_eq!(shards(1_000, 128), 128);
        assert_eq!([shards(100_000, 2), shards(100_000, 64)], [2, 2]);
        assert_eq!(shards(1_000_000, 64), 1);
    }
}
