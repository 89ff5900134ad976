//! One tree of the graph.

use crate::graph::{Mark, Node};
use crate::region::{Range, Ranked, Region, field};

/// Where a tree is put, and what it is made of.
pub(super) struct Tree<'a> {
    /// By the place of a rule, what it is where it is accepted.
    pub(super) marks: &'a [Mark],
    pub(super) ranked: &'a Ranked,
    /// All nodes so far; those of the tree are added.
    pub(super) nodes: &'a mut Vec<Node>,
    /// The fields that any rule has a range in.
    pub(super) fields: &'a [usize],
    /// In how many leaves each rule is.
    pub(super) references: &'a mut [u32],
    pub(super) longest_leaf: &'a mut LongestLeaf,
    /// At so many nodes it is given up.
    pub(super) nodes_max: usize,
    /// Nodes whose `other` is to lead out of the tree.
    pub(super) exits: Vec<usize>,
}

/// The leaf with the most rules: what no cut could part.
#[derive(Default)]
pub(super) struct LongestLeaf {
    len: usize,
    /// Some of its rules, by their places in the list.
    pub(super) first: Vec<usize>,
}

/// Rules of it that are told.
const TOLD: usize = 10;

/// There would be more nodes than may be.
#[derive(Debug)]
pub(super) struct Full;

/// Where a part of the space is cut: below `at` in the field, and from there on.
#[derive(Clone, Copy)]
struct Split {
    field: usize,
    at: u32,
}

/// The rules of the sides of a cut, each in their order.
struct Sides {
    below: Vec<u32>,
    /// Those on both sides.
    crossing: Vec<u32>,
    above: Vec<u32>,
}

/// Where the rules go that cross a cut.
#[derive(Clone, Copy)]
enum Crossing {
    /// Into the parts of both sides, if there is room for it.
    Twice,
    /// Into a tree of their own, which is walked after either side.
    Apart,
}

/// What is tested at the head of a tree, and how much of it the rules may reach for the test to be worth its step: half of all
/// addresses, one direction.
const HEAD: [(usize, u32); 3] =
    [(field::SOURCE, u32::MAX / 2), (field::DESTINATION, u32::MAX / 2), (field::WAY, 0)];
/// Rules that are tested one after the other.
const LEAF_RULES: usize = 4;
/// Splits above a leaf.
const DEPTH_MAX: u32 = 48;
/// Of more rules a sample of so many says where to split.
const SAMPLE: usize = 128;

impl Tree<'_> {
    /// Grows the tree of some rules, which are there by their places in `ranked`. A packet from or to where none of them
    /// reaches, or of another direction, leaves it at its head.
    pub(super) fn grow(&mut self, rules: Vec<u32>, room: u64) -> Result<(), Full> {
        let room = room * rules.len() as u64;
        let mut bounds = Region::ALL;
        if rules.len() > LEAF_RULES {
            for (field, span_max) in HEAD {
                let range = self.hull(&rules, field);
                if range.span() <= span_max {
                    let test = self.add([field as u32, range.low, range.span(), 0])?;
                    self.exits.push(test);
                    bounds.0[field] = range;
                }
            }
        }
        self.part(rules, bounds, room, 0)
    }

    /// The least range that holds those of all these rules.
    fn hull(&self, rules: &[u32], field: usize) -> Range {
        let ranges = rules.iter().map(|&rule| self.ranked[rule as usize].1.0[field]);
        let both = |a: Range, b: Range| Range { low: a.low.min(b.low), high: a.high.max(b.high) };
        ranges.reduce(both).unwrap_or(Range::ALL)
    }

    /// A part of the space, with those of the rules that reach into it.
    fn part(
        &mut self,
        mut rules: Vec<u32>,
        bounds: Region,
        room: u64,
        depth: u32,
    ) -> Result<(), Full> {
        let covers = |&rule: &u32| self.ranked[rule as usize].1.covers(&bounds);
        if let Some(first) = rules.iter().position(covers) {
            rules.truncate(first + 1);
        }
        if rules.len() <= LEAF_RULES || depth == DEPTH_MAX {
            return self.leaf(&rules, &bounds);
        }
        if let Some((split, sides)) = self.split(&rules, &bounds, room, Crossing::Twice) {
            return self.halves(split, sides, &bounds, room, depth);
        }
        match self.split(&rules, &bounds, room, Crossing::Apart) {
            Some((split, sides)) => self.halves_and_crossing(split, sides, &bounds, room, depth),
            None => self.leaf(&rules, &bounds),
        }
    }

    /// The two sides of a cut, with the rules that cross it in both.
    fn halves(
        &mut self,
        split: Split,
        sides: Sides,
        bounds: &Region,
        room: u64,
        depth: u32,
    ) -> Result<(), Full> {
        let Split { field, at } = split;
        let test = self.add([field as u32, 0, at - 1, 0])?;
        let [below, above] = sides.with_crossing();
        let room_below = room * below.len() as u64 / (below.len() + above.len()) as u64;
        self.part(below, split.below(bounds), room_below, depth + 1)?;
        self.nodes[test][3] = self.nodes.len() as u32;
        self.part(above, split.above(bounds), room - room_below, depth + 1)
    }

    /// The two sides of a cut, and behind both a tree of the rules that cross it.
    fn halves_and_crossing(
        &mut self,
        split: Split,
        sides: Sides,
        bounds: &Region,
        room: u64,
        depth: u32,
    ) -> Result<(), Full> {
        let Split { field, at } = split;
        let Sides { below, crossing, above } = sides;
        let exits_before = self.exits.len();
        let share = |rules: &[u32]| {
            rules.len() as u64 * room / (below.len() + crossing.len() + above.len()) as u64
        };
        let rooms = [share(&below), share(&above), share(&crossing)];
        if below.is_empty() {
            let test = self.add([field as u32, at, u32::MAX - at, 0])?;
            self.exits.push(test);
        } else {
            let test = self.add([field as u32, 0, at - 1, 0])?;
            self.part(below, split.below(bounds), rooms[0], depth + 1)?;
            match above.is_empty() {
                true => self.exits.push(test),
                false => self.nodes[test][3] = self.nodes.len() as u32,
            }
        }
        if !above.is_empty() {
            self.part(above, split.above(bounds), rooms[1], depth + 1)?;
        }
        if crossing.is_empty() {
            return Ok(());
        }
        let head = self.nodes.len() as u32;
        for exit in self.exits.drain(exits_before..) {
            self.nodes[exit][3] = head;
        }
        let head = self.add(self.mark(crossing[0]).better())?;
        self.exits.push(head);
        self.part(crossing, *bounds, rooms[2], depth + 1)
    }

    /// Tests the rules in order, each for what the bounds do not say already. What none of them
    /// accepts leads out.
    fn leaf(&mut self, rules: &[u32], bounds: &Region) -> Result<(), Full> {
        if rules.len() > self.longest_leaf.len {
            let first = rules.iter().take(TOLD).map(|&rule| self.ranked[rule as usize].0 as usize);
            *self.longest_leaf = LongestLeaf { len: rules.len(), first: first.collect() };
        }
        let mut fails = 0..0;
        for &rule in rules {
            let next = self.nodes.len() as u32;
            self.nodes[fails].iter_mut().for_each(|test| test[3] = next);
            let (rank, region) = &self.ranked[rule as usize];
            self.references[*rank as usize] += 1;
            let first = self.nodes.len();
            for (field, range) in tests(region, bounds) {
                self.add([field as u32, range.low, range.span(), 0])?;
            }
            let accepted = self.add(self.marks[*rank as usize].accept())?;
            self.exits.push(accepted);
            fails = first..accepted;
        }
        self.exits.extend(fails);
        Ok(())
    }

    fn mark(&self, rule: u32) -> Mark {
        self.marks[self.ranked[rule as usize].0 as usize]
    }

    fn add(&mut self, node: Node) -> Result<usize, Full> {
        if self.nodes.len() >= self.nodes_max {
            return Err(Full);
        }
        self.nodes.push(node);
        Ok(self.nodes.len() - 1)
    }

    /// The best place to cut, and the rules of the two sides, if it makes parts that are smaller.
    fn split(
        &self,
        rules: &[u32],
        bounds: &Region,
        room: u64,
        crossing: Crossing,
    ) -> Option<(Split, Sides)> {
        if rules.len() > 2 * SAMPLE {
            let sample: Vec<u32> =
                rules.iter().copied().step_by(rules.len().div_ceil(SAMPLE)).collect();
            let sample_room = room * sample.len() as u64 / rules.len() as u64;
            let found = self.best(&sample, bounds, sample_room, crossing);
            let found = found.map(|split| (split, self.sides(rules, split)));
            let is_fit = |(_, sides): &(Split, Sides)| {
                crossing.cost(sides.counts(), rules.len(), room).is_some()
            };
            if let Some(found) = found.filter(is_fit) {
                return Some(found);
            }
        }
        let split = self.best(rules, bounds, room, crossing)?;
        Some((split, self.sides(rules, split)))
    }

    /// The cut that costs least.
    fn best(&self, rules: &[u32], bounds: &Region, room: u64, crossing: Crossing) -> Option<Split> {
        let mut best: Option<(usize, Split)> = None;
        let (mut lows, mut highs) = (Vec::new(), Vec::new());
        for &field in self.fields {
            let within = bounds.0[field];
            lows.clear();
            highs.clear();
            for &rule in rules {
                let range = self.ranked[rule as usize].1.0[field];
                lows.push(range.low);
                highs.push(range.high);
            }
            lows.sort_unstable();
            highs.sort_unstable();
            let begins = lows.iter().copied().filter(|&low| low > within.low);
            let ends = highs.iter().filter(|&&high| high < within.high).map(|&high| high + 1);
            let mut last = None;
            for at in begins.chain(ends) {
                if last.replace(at) == Some(at) {
                    continue;
                }
                // Those that begin below, and those that end above: the ones that cross do both.
                let below = lows.partition_point(|&low| low < at);
                let above = rules.len() - highs.partition_point(|&high| high < at);
                let crossing_count = below + above - rules.len();
                let counts = [below - crossing_count, crossing_count, above - crossing_count];
                if let Some(cost) = crossing.cost(counts, rules.len(), room)
                    && best.is_none_or(|(least, _)| cost < least)
                {
                    best = Some((cost, Split { field, at }));
                }
            }
        }
        best.map(|(_, split)| split)
    }

    fn sides(&self, rules: &[u32], Split { field, at }: Split) -> Sides {
        let mut sides = Sides { below: Vec::new(), crossing: Vec::new(), above: Vec::new() };
        for &rule in rules {
            let range = self.ranked[rule as usize].1.0[field];
            let side = match (range.low < at, range.high >= at) {
                (true, true) => &mut sides.crossing,
                (true, false) => &mut sides.below,
                _ => &mut sides.above,
            };
            side.push(rule);
        }
        sides
    }
}

impl Split {
    fn below(self, bounds: &Region) -> Region {
        let mut half = *bounds;
        half.0[self.field].high = self.at - 1;
        half
    }

    fn above(self, bounds: &Region) -> Region {
        let mut half = *bounds;
        half.0[self.field].low = self.at;
        half
    }
}

impl Sides {
    fn counts(&self) -> [usize; 3] {
        [self.below.len(), self.crossing.len(), self.above.len()]
    }

    /// Those below and those above, each with the ones that cross, in their order.
    fn with_crossing(self) -> [Vec<u32>; 2] {
        let Self { mut below, crossing, mut above } = self;
        for side in [&mut below, &mut above] {
            side.extend(&crossing);
            side.sort_unstable();
        }
        [below, above]
    }
}

impl Crossing {
    /// What a cut costs that parts `all` rules into those below, crossing and above; `None`: it
    /// makes nothing smaller, or there is no room for it.
    fn cost(self, [below, crossing, above]: [usize; 3], all: usize, room: u64) -> Option<usize> {
        let larger = below.max(above);
        let is_useful = larger + crossing < all;
        match self {
            Self::Twice if (all + crossing) as u64 > room => None,
            _ => is_useful.then_some(larger + 2 * crossing),
        }
    }
}

/// What is to be tested of a rule within bounds, the narrowest first: it fails soonest.
fn tests(region: &Region, bounds: &Region) -> Vec<(usize, Range)> {
    let mut tests: Vec<(usize, Range)> = region
        .0
        .iter()
        .copied()
        .enumerate()
        .filter(|&(field, range)| !range.covers(bounds.0[field]))
        .collect();
    let share = |&(field, range): &(usize, Range)| {
        let all = u64::from(bounds.0[field].span()) + 1;
        (u64::from(range.span()) << 32) / all
    };
    tests.sort_by_key(share);
    tests
}
